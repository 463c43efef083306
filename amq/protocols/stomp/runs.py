"""SENDMANY and MESSAGES: many messages in one frame, for programs that move columns of them. Frames of ours.

A client asks for them in CONNECT, so no other client ever meets one. The body of SENDMANY has headers and bodies by
columns, that of MESSAGES has the records of the journal as they are there. docs/stomp.md, "Runs of messages", has the
bytes. Invariants: whatever the body, it is read as messages or rejected with a ProtocolError; what SENDMANY brings is
what as many SEND frames would have brought.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from amq.core.errors import ProtocolError
from amq.core.message import CORRELATION_ID, LARGE_BODY_BYTES, LIFTED, HeaderColumns
from amq.protocols.commands import Command, Send, SendMany
from amq.protocols.stomp.delivery import RESERVED, DeliveryFormat, header_line
from amq.protocols.stomp.destination import wire_name
from amq.protocols.stomp.frame import Frame, FrameLimits
from amq.protocols.stomp.subscribing import RUNS, RUNS_VERSION, boolean, number
from amq.protocols.stomp.transformation import TRANSFORMATION

SENDMANY: Final = "SENDMANY"
MESSAGES: Final = "MESSAGES"
HEADER: Final = RUNS  # of CONNECT and CONNECTED, and of SUBSCRIBE
VERSION: Final = RUNS_VERSION  # its value: of these bytes, and of the journal's record of a message
MESSAGES_MAX: Final = 10_000  # in one frame: about 15 ms of the event loop
BODY_BYTES_MAX: Final = 8 << 20
LISTS_MAX: Final = 256  # of names
TABLE_BYTES_MAX: Final = 128 << 10  # of these lists, as JSON: about 5 ms to read
VALUES_MAX: Final = 100_000
# Headers of SENDMANY, which all its messages have.
_COMMON: Final[tuple[str, ...]] = ("content-type", "expires", "persistent", "priority", "transaction")
_OWN: Final = frozenset({*_COMMON, "content-length", "destination", "messages", "text"})
_NEVER: Final = frozenset({"content-length", "destination", "receipt", "transaction"})  # of a single message
# Headers that are more than a property: each message that has one is read as a SEND is.
_PECULIAR: Final = (RESERVED | LIFTED | {"amq-msg-type", TRANSFORMATION}) - {CORRELATION_ID}
_PECULIAR_ID: Final = "ID:AMQP_BINARY:"
_U32: Final = struct.Struct("<I")
_PAIR: Final = struct.Struct("<II")


def is_asked(headers: Mapping[str, str]) -> bool:
    """Does CONNECT or CONNECTED speak of runs that we know?"""
    return headers.get(HEADER) == VERSION


# -- SENDMANY ----------------------------------------------------------------------------------------------------------


def pack(lists: Sequence[Sequence[str]], which: bytes, values: bytes, lengths: bytes, bodies: bytes) -> bytes:
    """The body of a SENDMANY. `values` = UTF-8, each with a NUL behind it; `lengths` of the bodies, four bytes each."""
    table = json.dumps(lists).encode() if lists else b"[]"
    return b"".join((_U32.pack(len(table)), table, which, _U32.pack(len(values)), values, lengths, bodies))


def commands(frame: Frame, send: Callable[[dict[str, str], bytes], Send], limits: FrameLimits) -> list[Command]:
    """The commands of a SENDMANY frame. `send` reads headers and body of a SEND. Raises ProtocolError, AccessError."""
    headers = frame.headers
    if extra := sorted(headers.keys() - _OWN):
        raise ProtocolError(f"{SENDMANY} has no header {extra[0][:40]}: see docs/stomp.md", code="HEADER_INVALID")
    for name in ("destination", "messages", "transaction"):
        if not headers.get(name):
            raise ProtocolError(f"{SENDMANY} without the header {name}: add it", code="HEADER_MISSING")
    count = number("messages", headers["messages"], MESSAGES_MAX)
    if not count:
        raise ProtocolError(f"messages:0 of {SENDMANY}: send at least one", code="HEADER_INVALID")
    bodies, columns = unpack(frame.body, count, limits)
    common = {name: headers[name] for name in ("destination", *_COMMON) if name in headers}
    if not boolean("text", headers.get("text", "false")):
        common["content-length"] = ""
    if columns is None or _is_plain(columns):
        first = send(common.copy(), b"")
        if first.__class__ is Send:
            return [SendMany(first.message, bodies, first.transaction, columns)]
    rows = columns.rows(count) if columns is not None else ({} for _ in bodies)
    return [send({**row, **common}, body) for row, body in zip(rows, bodies, strict=True)]


def unpack(body: bytes, count: int, limits: FrameLimits) -> tuple[list[bytes], HeaderColumns | None]:
    """Bodies and headers of `count` messages. Raises ProtocolError."""
    if len(body) > BODY_BYTES_MAX:
        raise ProtocolError(
            f"a {SENDMANY} frame has a body of more than {BODY_BYTES_MAX} bytes: send more frames", code="BODY_TOO_BIG"
        )
    lists, at = _table(body)
    which = b""
    if len(lists) > 1:
        which, at = body[at : at + count], at + count
        if len(which) < count or max(which) >= len(lists):
            raise _damaged("a message has a list of names that is not there")
    values, at = _values(body, at)
    columns = HeaderColumns(lists, which, values) if lists else None
    widths = [len(names) for names in lists]
    expected = sum(map(widths.__getitem__, which)) if which else count * sum(widths)
    if len(values) != expected:
        raise _damaged(f"{len(values)} values for {expected} headers")
    if columns is not None:
        _check_limits(columns, count, limits)
    return _bodies(body, at, count, limits), columns


def _table(body: bytes) -> tuple[tuple[tuple[str, ...], ...], int]:
    """The lists of names, and where they end."""
    end = _U32.size + _length(body, 0)
    if end > len(body):
        raise _damaged("the table of names is longer than the body")
    if end - _U32.size > TABLE_BYTES_MAX:
        raise _damaged(f"the table of names has more than {TABLE_BYTES_MAX} bytes")
    try:
        found = json.loads(body[_U32.size : end])
        if not isinstance(found, list) or len(found) > LISTS_MAX:
            raise ValueError("no list of lists")
        lists = tuple(map(_names, found))
    except (ValueError, RecursionError) as error:
        raise _damaged(f"the table of names: {str(error)[:100]}") from None
    return lists, end


def _names(found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(name, str) and name for name in found):
        raise ValueError("names are not texts")
    names = tuple(found)
    if len(set(names)) < len(names) or not _NEVER.isdisjoint(names) or "\0" in "".join(names):
        raise ValueError("a name is there twice, or must not be there")
    "".join(names).encode()  # ValueError where it is not a text
    return names


def _values(body: bytes, at: int) -> tuple[list[str], int]:
    start = at + _U32.size
    end = start + _length(body, at)
    if end > len(body):
        raise _damaged("the values are longer than the body")
    if end == start:
        return [], end
    if body[end - 1]:
        raise _damaged("the last value has no NUL after it")
    if body.count(b"\0", start, end) > VALUES_MAX:
        raise _damaged(f"more than {VALUES_MAX} headers: send more frames")
    try:
        return body[start : end - 1].decode().split("\0"), end
    except UnicodeDecodeError as error:
        raise _damaged(f"a value is not UTF-8: {error.reason}") from None


def _check_limits(columns: HeaderColumns, count: int, limits: FrameLimits) -> None:
    """Raises ProtocolError where a message has more or longer headers than a SEND may have."""
    longest = 4 * max(map(len, columns.values), default=0)  # bytes of UTF-8, at most
    few = True
    for names in columns.lists:
        size = [len(name.encode()) + longest + 2 for name in names]
        few = few and sum(size) <= limits.header_block_bytes_max and max(size, default=0) <= limits.header_bytes_max
        if len(names) > limits.header_count_max:
            raise ProtocolError(f"a message has more than {limits.header_count_max} headers", code="HEADERS_TOO_MANY")
    if few:
        return
    for row in columns.rows(count):
        size = [len(name.encode()) + len(value.encode()) + 2 for name, value in row.items()]
        if max(size, default=0) > limits.header_bytes_max:
            raise ProtocolError(f"a header is longer than {limits.header_bytes_max} bytes", code="HEADER_TOO_LONG")
        if sum(size) > limits.header_block_bytes_max:
            why = f"the headers of a message take more than {limits.header_block_bytes_max} bytes"
            raise ProtocolError(why, code="HEADERS_TOO_BIG")


def _bodies(body: bytes, at: int, count: int, limits: FrameLimits) -> list[bytes]:
    start = at + _U32.size * count
    if start > len(body):
        raise _damaged(f"it ends before the lengths of {count} bodies")
    lengths = struct.unpack_from(f"<{count}I", body, at)
    limit = min(LARGE_BODY_BYTES, limits.body_bytes_max)
    if max(lengths) > limit:
        raise ProtocolError(f"a body in {SENDMANY} has more than {limit} bytes: use SEND", code="BODY_TOO_BIG")
    if start + sum(lengths) != len(body):
        raise _damaged("the bodies are not as long as their lengths say")
    return [body[begin:end] for begin, end in pairwise(accumulate(lengths, initial=start))]


def _is_plain(columns: HeaderColumns) -> bool:
    """Are all headers properties, or a correlation id in the first place?"""
    for names in columns.lists:
        if not _PECULIAR.isdisjoint(names) or CORRELATION_ID in names[1:]:
            return False
    return _PECULIAR_ID not in "".join(columns.values)


def _length(body: bytes, at: int) -> int:
    if at + _U32.size > len(body):
        raise _damaged("it ends too early")
    found: tuple[int] = _U32.unpack_from(body, at)
    return found[0]


def _damaged(why: str) -> ProtocolError:
    return ProtocolError(f"the body of a frame of many messages cannot be read: {why}", code="BODY_INVALID")


# -- MESSAGES ----------------------------------------------------------------------------------------------------------


class RunFormat(DeliveryFormat):
    """The facts of a subscription that takes runs."""

    __slots__ = ("lines",)

    def __init__(self, form: DeliveryFormat, version: str, owner: str) -> None:
        super().__init__(form.start.decode(), form.head, form.ack, form.id, form.destination)
        subscription = header_line("subscription", form.id, version) if form.id else ""
        id_prefix = form.head[len(form.start.decode()) :] + "\n"
        self.lines = subscription + id_prefix, version, owner

    def run(
        self,
        destination: str,
        records: bytes | memoryview,
        sizes: Sequence[int],
        seq: int,
        redelivered: Sequence[tuple[int, int]],
    ) -> bytes:
        """The MESSAGES frame of these `records` of the journal, which follow each other and have these `sizes`. The
        last is that of message `seq`; `redelivered` = (place in the run, deliveries before this one) of those that were
        delivered before."""
        lines, version, owner = self.lines
        ack = f"{self.ack[1:]}{seq}\n" if self.ack else ""
        where = header_line("destination", wire_name(destination, owner), version)
        count, known = len(sizes), len(redelivered)
        size = _U32.size * (1 + count) + _PAIR.size * known + len(records)
        head = f"{MESSAGES}\n{lines}{ack}{where}messages:{count}\ncontent-length:{size}\n\n"
        pairs = b"".join([_PAIR.pack(*each) for each in redelivered])
        widths = struct.pack(f"<{count}I", *sizes)
        return b"".join((head.encode("utf-8", "replace"), _U32.pack(known), pairs, widths, records, b"\0"))


@dataclass(frozen=True, slots=True)
class Run:
    """The messages of a MESSAGES frame, in order.

    destination  as in MESSAGE
    id_prefix    what is before its seq in the id of a message
    sizes        of the records, bytes
    records      of the journal, one after the other: docs/journal-format.md, "Message"
    redelivered  place in the run → deliveries before this one
    """

    destination: str
    id_prefix: str
    sizes: Sequence[int]
    records: memoryview
    redelivered: Mapping[int, int]

    def __len__(self) -> int:
        return len(self.sizes)

    def each(self) -> Iterator[memoryview]:
        """The records, one by one."""
        return (self.records[start:stop] for start, stop in pairwise(accumulate(self.sizes, initial=0)))


def read_run(frame: Frame) -> Run:
    """The run of a MESSAGES frame. Raises ProtocolError."""
    body = frame.body
    count, known = number("messages", frame.headers.get("messages", ""), MESSAGES_MAX), _length(body, 0)
    sizes_at = _U32.size + _PAIR.size * known
    start = sizes_at + _U32.size * count
    if start > len(body):
        raise _damaged("it ends too early")
    redelivered = dict(_PAIR.iter_unpack(body[_U32.size : sizes_at]))
    sizes = struct.unpack_from(f"<{count}I", body, sizes_at)
    if start + sum(sizes) != len(body) or any(place >= count for place in redelivered):
        raise _damaged("the records are not as long as their lengths say")
    headers = frame.headers
    destination, id_prefix = headers.get("destination", ""), headers.get("message-id", "")
    return Run(destination, id_prefix, sizes, memoryview(body)[start:], redelivered)
