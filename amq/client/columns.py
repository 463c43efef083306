"""Messages by columns: those to be sent, as somebody who has columns gives them, and the frame that carries them.

Invariant: `send` writes what as many SEND frames would have said. A broker that does not know frames of many messages,
as it may be one of a group in the middle of an upgrade, gets these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amq.client import bulk
from amq.client.core import RESERVED_HEADERS, VERSION, rare_headers
from amq.core.errors import CommandError, ProtocolError
from amq.core.message import LARGE_BODY_BYTES
from amq.protocols.stomp import runs
from amq.protocols.stomp.frame import FrameLimits, escape

if TYPE_CHECKING:
    from amq.client.core import ProducerCore

MESSAGES_MAX = 4096  # in one frame of ours
BYTES_MAX = 2 << 20  # beside the last message


@dataclass(frozen=True, slots=True)
class Columns:
    """Some messages for one destination.

    count    how many: `MESSAGES_MAX` at most
    bodies   all bodies, one after the other
    lengths  of the bodies, four bytes each, little-endian
    lists    lists of names of headers; a message has all headers of one of them
    which    a byte for each message, the index of its list; b"" where there is one list or none
    values   values of the headers of all messages, one message after the other: UTF-8, each with a NUL behind it
    text     the bodies are UTF-8 text to their receivers, not bytes
    """

    count: int
    bodies: bytes
    lengths: bytes
    lists: Sequence[Sequence[str]] = ()
    which: bytes = b""
    values: bytes = b""
    text: bool = False

    def pack(self) -> bytes:
        """The body of the frame that carries them."""
        return runs.pack(self.lists, self.which, self.values, self.lengths, self.bodies)

    def check(self) -> None:
        """Raises CommandError for what no frame can carry."""
        for names in self.lists:
            for name in names:
                if name in RESERVED_HEADERS or not name:
                    raise CommandError(f"header {name!r} is set by an argument of send or by the client: leave it out")
        size = 4 * self.count
        if not 0 < self.count <= MESSAGES_MAX or len(self.lengths) != size or len(self.lists) > runs.LISTS_MAX:
            raise CommandError(f"{self.count} messages: send 1 to {MESSAGES_MAX} together, with as many lengths")
        if self.values.count(b"\0") > runs.VALUES_MAX or len(self.bodies) + len(self.values) > runs.BODY_BYTES_MAX // 2:
            raise CommandError("messages are too large to be sent together: send fewer, or one by one")


def send(core: ProducerCore, columns: Columns, persistent: bool, priority: int, expires_ms: int) -> None:
    """Write them; `SessionCore.may_send` must have been true, and `columns` checked. Raises CommandError."""
    session = core.session
    if not session.transacted:
        raise CommandError("only a transacted session sends many messages in one call: session(transacted=True)")
    machine = session.machine
    assert machine.line is not None
    if not machine.line.takes_runs:
        _send_each(core, columns, persistent, priority, expires_ms)
        return
    body = columns.pack()
    head = (
        f"{runs.SENDMANY}\ndestination:{escape(core.destination, VERSION)}\n"
        f"persistent:{'true' if persistent else 'false'}\ntransaction:{session.current().name}\n"
        f"messages:{columns.count}\ntext:{'true' if columns.text else 'false'}"
    ).encode() + rare_headers(None, priority, expires_ms, "")
    machine.write(b"%b\ncontent-length:%d\n\n%b\0" % (head, len(body), body))


def _send_each(core: ProducerCore, columns: Columns, persistent: bool, priority: int, expires_ms: int) -> None:
    limits = FrameLimits(header_bytes_max=1 << 30, header_block_bytes_max=1 << 30, body_bytes_max=LARGE_BODY_BYTES)
    try:
        bodies, found = runs.unpack(columns.pack(), columns.count, limits)
    except ProtocolError as error:
        raise CommandError(f"these columns are not messages: {error.description}") from error
    headers = [*found.rows(columns.count)] if found is not None else None
    for part in bulk.pieces(bodies):
        some = headers[part] if headers is not None else None
        bulk.send(core, bodies[part], some, columns.text, persistent, priority, expires_ms)
