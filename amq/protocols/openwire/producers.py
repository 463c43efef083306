"""The producers of one connection, which OpenWire declares before they send."""

from __future__ import annotations

from amq.protocols.commands import InSession
from amq.protocols.openwire.messages import Known, producer_text
from amq.protocols.openwire.table import Structure


class Producer:
    """`text` = its id as text; `window` = bytes that may be on their way, 0 = any number; `known` = how its messages
    begin; `enters` = what is before its commands in a read."""

    __slots__ = ("enters", "id", "known", "session", "text", "window")

    def __init__(self, id: Structure, session: int, window: int, properties_max: int) -> None:
        self.id = id
        self.known = Known(properties_max)
        self.text = producer_text(id)
        self.session = session
        self.enters = InSession(session)
        self.window = window
