"""The messages between members of a group as bytes.

A frame is a checksum, its kind, the number of bytes of its head and of its data, the checksum of its data, its head and
its data. The first checksum covers all but the data. Over TLS there are no checksums of data: 0.

Invariants: no damage makes another message of one; every field is checked; a frame has at most `HEAD_BYTES_MAX` and
`DATA_BYTES_MAX`, which is known before any memory is taken; garbage is a `PeerWireError`, and nothing else. Data is
copied neither on its way out nor, where there is much of it, on its way in.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final
from zlib import crc32

from amq.core.errors import ProtocolError
from amq.store.replica.group import GroupRecord
from amq.store.replica.messages import (
    Adopt,
    Append,
    AskPromise,
    Fetched,
    FetchLog,
    Lacking,
    Piece,
    Promised,
    RefusedBallot,
    Renew,
    Renewed,
    SegmentWrite,
    Stored,
    Trim,
)

DATA_BYTES_MAX: Final = (5 << 29) + (2 << 20)  # of one message: the largest record of a journal and its frame
MEMBERS_MAX: Final = 64  # of a group
ID_BYTES_MAX: Final = 128  # of the id of a member
ID: Final = re.compile(rf"[A-Za-z0-9_.-]{{1,{ID_BYTES_MAX}}}")
NAME_BYTES_MAX: Final = 255  # of a segment
WRITES_MAX: Final = 200  # of one Piece
NAMES_MAX: Final = 1 << 16  # of one Trim
NAMES_KNOWN: Final = 16  # the last ones, which are not checked anew
NUMBER_MAX: Final = (1 << 63) - 1  # of ballots, terms and positions
CHUNK_BYTES: Final = 64 << 10  # are read at once where no data is awaited
KNOWN_BYTES_MAX: Final = 1 << 20  # larger messages are not kept to be sent again
STEP_BYTES: Final = 16 << 20  # the memory for data grows by so much, when it has come

BEAT: Final = 0  # a kind without message: nothing but a sign of life
_LEAD: Final = struct.Struct("<IBHII")  # checksum, kind, bytes of the head, of the data, checksum of the data
_COVERED: Final = struct.Struct("<BHII")
LEAD_BYTES: Final = _LEAD.size
_RECORD: Final = struct.Struct("<QHQQQB")  # term, copies, before, sealed, epoch, number of members
_RECORD_BYTES_MAX: Final = _RECORD.size + MEMBERS_MAX * (1 + ID_BYTES_MAX)
_WRITE: Final = struct.Struct("<QIB")  # start, bytes of the data, of the name, which follows
_PIECE: Final = struct.Struct("<QQBB")  # ballot, number, last, number of writes; these and the record follow
HEAD_BYTES_MAX: Final = _PIECE.size + _RECORD_BYTES_MAX + WRITES_MAX * (_WRITE.size + NAME_BYTES_MAX)
assert HEAD_BYTES_MAX + LEAD_BYTES < CHUNK_BYTES

Data = bytes | bytearray | memoryview


class PeerWireError(ProtocolError):
    """The other member broke the protocol, is of another version or group, or has not proved that it knows the
    secret."""

    code = "PEER_BROKEN"


class FramedMessage:
    """A message as bytes: `pieces` in this order, of `size` bytes."""

    __slots__ = ("pieces", "size")

    def __init__(self, kind: int, head: bytes, data: Sequence[Data] = (), data_crc: int = 0) -> None:
        data_bytes = sum(map(len, data))
        assert data_bytes <= DATA_BYTES_MAX
        covered = _COVERED.pack(kind, len(head), data_bytes, data_crc) + head
        self.pieces: list[Data] = [crc32(covered).to_bytes(4, "little") + covered, *data]
        self.size = LEAD_BYTES + len(head) + data_bytes


# -- heads -------------------------------------------------------------------------------------------------------------


class _Numbers:
    """A head of numbers alone; `flags` of them, at the end, are true or false."""

    has_data = False

    def __init__(self, kind: int, make: Callable[..., Any], numbers: int, flags: int = 0) -> None:
        self.kind, self.make = kind, make
        self._format = struct.Struct("<" + "Q" * numbers + "B" * flags)
        self._flags = flags

    def pack(self, message: Any) -> tuple[bytes, Sequence[Data]]:
        return self._format.pack(*message), ()

    def unpack(self, head: memoryview, _: memoryview) -> Any:
        if len(head) != self._format.size:
            raise _wrong(f"a {self.make.__name__} has a head of {len(head)} bytes")
        values = self._format.unpack(head)
        if max(values) > NUMBER_MAX:
            raise _wrong(f"a {self.make.__name__} has a number beyond 2^63")
        if not self._flags:
            return self.make(*values)
        if values[-1] > 1:
            raise _wrong(f"a {self.make.__name__} has a flag of {values[-1]}")
        return self.make(*values[:-1], values[-1] == 1)


class _Written:
    """A head of numbers, the last two of which are positions; and a write that leads from the one to the other, or
    none."""

    has_data = True

    def __init__(self, kind: int, make: Callable[..., Any], numbers: int) -> None:
        self.kind, self.make = kind, make
        self._format = struct.Struct("<" + "Q" * numbers)

    def pack(self, message: Any) -> tuple[bytes, Sequence[Data]]:
        numbers, write = self._format.pack(*message[:-1]), message[-1]
        if write is None:
            return numbers, ()
        return numbers + _pack_write(write), _pieces(write.data)

    def unpack(self, head: memoryview, data: memoryview) -> Any:
        size = self._format.size
        if len(head) < size:
            raise _wrong(f"a {self.make.__name__} has a head of {len(head)} bytes")
        values = self._format.unpack_from(head)
        if max(values) > NUMBER_MAX or values[-1] < values[-2]:
            raise _wrong(f"a {self.make.__name__} has numbers that cannot be")
        if len(head) == size:
            if len(data):
                raise _wrong(f"a {self.make.__name__} has data of no write")
            return self.make(*values, None)
        writes, at = _unpack_writes(head, size, data, 1)
        if at != len(head):
            raise _wrong(f"a {self.make.__name__} is too long")
        return self.make(*values, writes[0])


class _Adopting:
    """The head of an Adopt: the ballot, and the record."""

    kind, make, has_data = 2, Adopt, False
    _ballot: Final = struct.Struct("<Q")

    def pack(self, message: Adopt) -> tuple[bytes, Sequence[Data]]:
        return self._ballot.pack(message.ballot) + _pack_record(message.record), ()

    def unpack(self, head: memoryview, _: memoryview) -> Adopt:
        if len(head) < self._ballot.size:
            raise _wrong("an Adopt is too short")
        (ballot,) = self._ballot.unpack_from(head)
        return Adopt(_number(ballot), _unpack_record(head[self._ballot.size :]))


class _PieceOf:
    """The head of a Piece: ballot, number, whether it is the last one, its writes, and the record."""

    kind, make, has_data = 4, Piece, True

    def pack(self, message: Piece) -> tuple[bytes, Sequence[Data]]:
        writes = message.data
        lead = _PIECE.pack(message.ballot, message.number, message.last, len(writes))
        head = b"".join((lead, *map(_pack_write, writes), _pack_record(message.record)))
        return head, [piece for write in writes for piece in _pieces(write.data)]

    def unpack(self, head: memoryview, data: memoryview) -> Piece:
        if len(head) < _PIECE.size:
            raise _wrong("a Piece is too short")
        ballot, number, last, count = _PIECE.unpack_from(head)
        if last > 1 or count > WRITES_MAX:
            raise _wrong("a Piece has numbers that cannot be")
        writes, at = _unpack_writes(head, _PIECE.size, data, count)
        return Piece(_number(ballot), _unpack_record(head[at:]), _number(number), last == 1, tuple(writes))


class _Trimming:
    """The head of a Trim: ballot, term, position; its names are the data, each after its length."""

    kind, make, has_data = 6, Trim, True
    _numbers: Final = struct.Struct("<QQQ")

    def pack(self, message: Trim) -> tuple[bytes, Sequence[Data]]:
        assert len(message.names) <= NAMES_MAX
        names = [name.encode() for name in message.names]
        return self._numbers.pack(*message[:3]), (b"".join(bytes((len(name),)) + name for name in names),)

    def unpack(self, head: memoryview, data: memoryview) -> Trim:
        if len(head) != self._numbers.size or len(data) > NAMES_MAX * (1 + NAME_BYTES_MAX):
            raise _wrong("a Trim is too long or too short")
        ballot, term, position = map(_number, self._numbers.unpack(head))
        names, at = [], 0
        while at < len(data):
            end = at + 1 + data[at]
            names.append(_name(bytes(data[at + 1 : end]), data[at]))
            at = end
        if len(names) > NAMES_MAX:
            raise _wrong("a Trim has too many names")
        return Trim(ballot, term, position, tuple(names))


_Form = _Numbers | _Written | _Adopting | _PieceOf | _Trimming
_TO_A_COPY: Final[tuple[_Form, ...]] = (
    _Numbers(1, AskPromise, 1),
    _Adopting(),
    _Written(3, Append, 4),
    _PieceOf(),
    _Numbers(5, FetchLog, 3),
    _Trimming(),
    _Numbers(7, Renew, 2),
)
_ANSWERS: Final[tuple[_Form, ...]] = (
    _Numbers(16, Promised, 3, 1),
    _Numbers(17, Stored, 2),
    _Numbers(18, Lacking, 2, 1),
    _Numbers(19, RefusedBallot, 1),
    _Written(20, Fetched, 3),
    _Numbers(21, Renewed, 2),
)
_BY_TYPE: Final[dict[Any, _Form]] = {form.make: form for form in (*_TO_A_COPY, *_ANSWERS)}
TO_A_COPY_KINDS: Final = {form.kind: form for form in _TO_A_COPY}
ANSWER_KINDS: Final = {form.kind: form for form in _ANSWERS}
BEAT_FRAME: Final = FramedMessage(BEAT, b"")


class Framer:
    """Messages to bytes. The buffers of data must stay as they are until all is sent. The same message goes to several
    members: it is framed once."""

    def __init__(self) -> None:
        # The last message with data, whether it is checked, and its bytes. One assignment replaces all: any thread may
        # call.
        self._known: tuple[Any, bool, FramedMessage | None] = None, False, None

    def framed(self, message: Any, checked: bool = True) -> FramedMessage:
        """`checked` = with a checksum of the data."""
        known, was_checked, framed = self._known
        if known is message and was_checked is checked and framed is not None:
            return framed
        form = _BY_TYPE[type(message)]
        head, data = form.pack(message)
        crc = 0
        if checked and form.has_data:
            for piece in data:
                crc = crc32(piece, crc)
        framed = FramedMessage(form.kind, head, data, crc)
        if form.has_data:
            self._known = (message, checked, framed) if framed.size <= KNOWN_BYTES_MAX else (None, False, None)
        return framed


class WireReader:
    """Cuts what is read into messages of the given kinds. Read into `buffer()`, then call `received`.

    The data of a message is a view of separate memory: what came in one read with others is copied once, the rest is
    read to where it stays.
    """

    def __init__(self, kinds: dict[int, _Form], checked: bool = True) -> None:
        self._kinds = kinds
        self._checked = checked
        self._chunk = memoryview(bytearray(CHUNK_BYTES))
        self._held = 0  # bytes in the chunk
        self._begun: _Begun | None = None  # a message whose data did not come with its head

    @property
    def held_bytes(self) -> int:
        """The bytes of a message that is not complete."""
        return self._held + (self._begun.filled if self._begun is not None else 0)

    def buffer(self) -> memoryview:
        """Where the next bytes belong; never empty."""
        return self._chunk[self._held :] if self._begun is None else self._begun.buffer()

    def received(self, size: int) -> list[Any]:
        """The messages that the next `size` bytes complete, None for a beat. Raises PeerWireError."""
        begun = self._begun
        if begun is None:
            self._held += size
            return self._cut()
        begun.filled += size
        if begun.filled < begun.size:
            return []
        self._begun = None
        return [self._message(begun.form, memoryview(begun.head), memoryview(begun.data), begun.crc)]

    def _cut(self) -> list[Any]:
        found: list[Any] = []
        chunk, end, at = self._chunk, self._held, 0
        while end - at >= LEAD_BYTES:
            crc, kind, head_bytes, data_bytes, data_crc = _LEAD.unpack_from(chunk, at)
            form = self._checked_lead(kind, head_bytes, data_bytes)
            start = at + LEAD_BYTES
            middle = start + head_bytes
            if middle > end:
                break
            if crc32(chunk[at + 4 : middle]) != crc:
                raise PeerWireError("a message fails its checksum: the network or a proxy damaged it")
            stop = middle + data_bytes
            if stop <= end:
                data = memoryview(bytes(chunk[middle:stop])) if data_bytes else memoryview(b"")
                found.append(None if form is None else self._message(form, chunk[start:middle], data, data_crc))
                at = stop
                continue
            assert form is not None
            self._begun = _Begun(form, bytes(chunk[start:middle]), data_bytes, data_crc, chunk[middle:end])
            at = end
        if at:
            self._chunk[: end - at] = bytes(chunk[at:end])
            self._held = end - at
        return found

    def _checked_lead(self, kind: int, head_bytes: int, data_bytes: int) -> _Form | None:
        form = self._kinds.get(kind)
        if form is None and kind != BEAT:
            raise _wrong(f"a message is of kind {kind}")
        if head_bytes > (0 if form is None else HEAD_BYTES_MAX):
            raise _wrong(f"the head of a message has {head_bytes} bytes")
        if data_bytes > (DATA_BYTES_MAX if form is not None and form.has_data else 0):
            raise _wrong(f"a message has {data_bytes} bytes of data")
        return form

    def _message(self, form: _Form, head: memoryview, data: memoryview, crc: int) -> Any:
        if crc != (crc32(data) if self._checked and form.has_data and len(data) else 0):
            raise PeerWireError("the data of a message fails its checksum: the network or a proxy damaged it")
        return form.unpack(head, data)


class _Begun:
    """A message of which only a part has come."""

    def __init__(self, form: _Form, head: bytes, size: int, crc: int, first: memoryview) -> None:
        self.form, self.head, self.size, self.crc = form, head, size, crc
        self.filled = len(first)
        self.data = bytearray(min(size, STEP_BYTES))
        self.data[: self.filled] = first

    def buffer(self) -> memoryview:
        if self.filled == len(self.data):
            self.data += bytes(min(self.size - self.filled, STEP_BYTES))
        return memoryview(self.data)[self.filled :]


# -- parts of heads ----------------------------------------------------------------------------------------------------


def _pieces(data: Any) -> Sequence[Data]:
    return data if isinstance(data, (tuple, list)) else (data,)


def _pack_write(write: SegmentWrite) -> bytes:
    name = write.name.encode()
    return _WRITE.pack(write.start, sum(map(len, _pieces(write.data))), len(name)) + name


def _unpack_writes(head: memoryview, at: int, data: memoryview, count: int) -> tuple[list[SegmentWrite], int]:
    """The writes of a head, `count` of them, which share all of `data`; and where their heads end."""
    writes, done = [], 0
    for _ in range(count):
        if len(head) - at < _WRITE.size:
            raise _wrong("a write is too short")
        start, size, name_bytes = _WRITE.unpack_from(head, at)
        at += _WRITE.size
        name = _name(bytes(head[at : at + name_bytes]), name_bytes)
        at += name_bytes
        if len(data) - done < size:
            raise _wrong("a write has more bytes than there are")
        writes.append(SegmentWrite(name, _number(start), data[done : done + size]))
        done += size
    if done != len(data):
        raise _wrong("a message has bytes that belong to no write")
    return writes, at


@lru_cache(NAMES_KNOWN)
def _name(data: bytes, size: int) -> str:
    try:
        name = str(data, "utf-8")
    except UnicodeDecodeError:
        name = ""
    if len(data) != size or "\0" in name or {"", ".", ".."} & set(name.split("/")):
        raise _wrong("a segment has a name that cannot be")
    return name


def _pack_record(record: GroupRecord) -> bytes:
    members = sorted(record.members)
    ids = b"".join(bytes((len(member),)) + member.encode("ascii") for member in members)
    numbers = record.term, record.copies, record.before, record.sealed, record.epoch
    return _RECORD.pack(*numbers, len(members)) + ids


def _unpack_record(data: memoryview) -> GroupRecord:
    if len(data) < _RECORD.size:
        raise _wrong("a record is too short")
    term, copies, before, sealed, epoch, count = _RECORD.unpack_from(data)
    rest, at = bytes(data), _RECORD.size
    members: list[str] = []
    for _ in range(count):
        size = rest[at] if at < len(rest) else 0
        text = rest[at + 1 : at + 1 + size].decode("ascii", "replace")
        if not ID.fullmatch(text) or (members and text <= members[-1]):
            raise _wrong("a record has members that cannot be")
        members.append(text)
        at += 1 + size
    if at != len(rest) or count > MEMBERS_MAX:
        raise _wrong("a record has another length than its members need")
    members_of = frozenset(members)
    return GroupRecord(_number(term), members_of, copies, _number(before), _number(sealed), _number(epoch))


def _number(value: int) -> int:
    if value > NUMBER_MAX:
        raise _wrong("a number is beyond 2^63")
    return value


def _wrong(what: str) -> PeerWireError:
    return PeerWireError(f"{what}: the other end does not speak this protocol")
