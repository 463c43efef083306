"""MessageIds: the ids of messages as one client sees them.

A client with a failover URL takes a message that comes a second time under the same id for a duplicate, and gives it
up. So a message that it may have had before comes under a new id of this connection, which shows the old one as text,
and so does each delivery of a repeated message, which shows an id of the broker.
Any other client keeps no such list: to it a message keeps its id.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from zlib import crc32

from amq.core.message import Message
from amq.protocols.openwire.consumers import SEQ_BITS
from amq.protocols.openwire.messages import given_id, is_openwire, own_id


class Identity(NamedTuple):
    """The facts of the broker and its store that clients are told.

    broker             its name
    store              id of the store, the same for all brokers of the group
    epoch, connection  which no other connection ever has together
    newest_seq         of the messages that were there when this connection was made
    """

    broker: str
    store: str
    epoch: int
    connection: str
    newest_seq: int


NO_IDENTITY: Final = Identity("amq", "ID:AMQ", 0, "0", 0)


class MessageIds:
    """`known_to` = the sequence up to which the client may have had messages before, -1 = none."""

    __slots__ = ("_identity", "_sequence", "_tag", "known_to")

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._tag = 1 + crc32(f"{identity.epoch} {identity.connection}".encode()) % 63
        self._sequence = 0  # of the ids that this connection has given to messages
        self.known_to = -1

    def may_know(self, message: Message) -> bool:
        """May this client have had the message on its earlier connection, or by a consumer that has ended?"""
        return message.seq <= self.known_to

    def new_id(self, message: Message, version: int, fresh: bool) -> bytes:
        """A new id for a message that has none of OpenWire, or that the client may have had before; b"" = its own.
        `fresh`: the client looks for duplicates, so no id comes twice, and their numbers have no gaps."""
        if is_openwire(message) and not self.may_know(message) and not given_id(message):
            return b""
        identity, sequence = self._identity, message.seq
        if fresh:
            self._sequence = sequence = self._sequence + 1
        return own_id(
            message,
            f"ID:amq-{identity.epoch}-{identity.connection}",
            sequence,
            self.name_of(message.seq),
            identity.store,
            version,
        )

    def name_of(self, seq: int) -> int:
        """The number of a message that has a new id: hardly ever that of the same one on another connection."""
        return seq % (1 << SEQ_BITS) + (self._tag << SEQ_BITS)
