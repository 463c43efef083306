"""What the journal says: one class a record type, each with its bytes. `Broker.apply` gives them their meaning.

Spec: docs/journal-format.md. In the bytes a destination is a number, defined by a `Destination` record earlier in the
same segment, so that every segment can be read alone; in memory it is its name. Readers refuse a type they do not
know (NewerFormatError): a skipped record could be an acknowledgement.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from amq.errors import CorruptError, NewerFormatError
from amq.journal.format import RECORD, RECORD_BYTES, Chunk, LargeRecord, crc32, frame_record
from amq.message import LARGE_BODY_BYTES, Message

if TYPE_CHECKING:
    from amq.journal.recovery import Segment

DESTINATION, MESSAGE, CONSUMED, REDELIVERED, GROUP, DUPLICATES, OUTCOMES, TRIMMED, PREVIOUS = range(1, 10)
KINDS = (
    "", "destination", "message", "consumed", "redelivered", "group", "duplicates", "outcomes", "trimmed", "previous",
)  # fmt: skip

# Why a message left its queue.
ACKED, EXPIRED, DEAD_LETTERED, PURGED = range(4)
REASONS = ("acked", "expired", "dead-lettered", "purged")

_DESTINATION = struct.Struct("<IB")
# seq, destination, flags, priority, timestamp ms, expires ms, bytes of: content type, duplicate id, properties
_MESSAGE = struct.Struct("<QIBBQQHHI")
MESSAGE_BYTES = _MESSAGE.size  # of a message without body, names and properties
_FRAMED_MESSAGE = struct.Struct("<IIBQIBBQQHHI")
# of the same: bytes of the record, its type, seq, destination, bytes of content type and duplicate id
_MESSAGE_KEYS = struct.Struct("<I4xBQI18xHH")
_CONSUMED = struct.Struct("<IBI")
_U32 = struct.Struct("<I")
_TRIMMED = struct.Struct("<QQ")
_KEPT = struct.Struct("<QQQ")
_U64 = struct.Struct("<Q")
_GROUP = struct.Struct("<QI")
_REDELIVERY = struct.Struct("<QII")
_TEXT = 1
_PRIORITY_MAX = 9

Key = tuple[int, int]  # of a segment: (epoch, number)


class Destination:
    """From here on destination number `id` is called `name` in this segment."""

    kind = DESTINATION
    __slots__ = ("id", "name")

    def __init__(self, id: int, name: str) -> None:
        self.id = id
        self.name = name

    def encode(self, _: dict[str, int]) -> bytes:
        return frame_record(DESTINATION, _DESTINATION.pack(self.id, 0) + self.name.encode())


class Consumed:
    """Messages `seqs` have left destination `destination` for good, for `reason`."""

    kind = CONSUMED
    __slots__ = ("destination", "reason", "seqs")

    def __init__(self, destination: str, reason: int, seqs: list[int]) -> None:
        self.destination = destination
        self.reason = reason
        self.seqs = seqs

    def encode(self, ids: dict[str, int]) -> bytes:
        seqs = self.seqs
        body = _CONSUMED.pack(ids[self.destination], self.reason, len(seqs)) + struct.pack(f"<{len(seqs)}Q", *seqs)
        return frame_record(CONSUMED, body)


class Redelivered:
    """Messages came back unacknowledged: `counts` = (seq, deliveries so far, of which counted as failures)."""

    kind = REDELIVERED
    __slots__ = ("counts", "destination")

    def __init__(self, destination: str, counts: list[tuple[int, int, int]]) -> None:
        self.destination = destination
        self.counts = counts

    def encode(self, ids: dict[str, int]) -> bytes:
        return frame_record(
            REDELIVERED, _U32.pack(ids[self.destination]) + b"".join(_REDELIVERY.pack(*count) for count in self.counts)
        )


class Group:
    """Records that happen together or not at all: a transaction, a move to the dead-letter queue.

    `outcome_id` names the commit so that a client can ask for it later, "" = nobody will; `seq` is then its age.
    `origin` is what a live broker made the group of, None in a replay; it is never written.
    """

    kind = GROUP
    __slots__ = ("origin", "outcome_id", "places", "records", "seq")

    def __init__(self, records: list[Record], outcome_id: str = "", seq: int = 0, origin: object = None) -> None:
        self.records = records
        self.outcome_id = outcome_id
        self.seq = seq
        self.origin = origin
        self.places: list[tuple[int, int]] = []  # of each record: bytes from the beginning of the group's, its size

    def encode(self, ids: dict[str, int]) -> Chunk:
        outcome = self.outcome_id.encode()
        parts: list[Chunk] = [_GROUP.pack(self.seq, len(outcome)), outcome]
        offset = RECORD_BYTES + _GROUP.size + len(outcome)
        self.places = []
        for record in self.records:
            parts.append(encode_record(record, ids))
            self.places.append((offset, len(parts[-1])))
            offset += len(parts[-1])
        if offset > LARGE_BODY_BYTES:
            return LargeRecord(GROUP, parts)
        return frame_record(GROUP, b"".join(parts))  # type: ignore[arg-type]

    def place(self, offset: int) -> None:
        """The group stands at `offset` of its segment: so its messages stand there and behind."""
        for record, (start, size) in zip(self.records, self.places, strict=True):
            if isinstance(record, Message):
                record.offset, record.size = offset + start, size


class Copies:
    """Messages that compaction copies forward, written as a group, their bytes as they stand in segment `source`.

    destinations  names
    records       whole framed records, in which a destination has the number that this journal gives it
    redelivered   how often some of them were delivered
    moves         {destination: (seq, bytes from the first record of the group to this one)}
    ids           (destination, producer-given id, seq) of those that have one
    messages, size  how many, and bytes of `records`
    offset        of the group in its segment, once it is stored
    """

    kind = GROUP
    __slots__ = ("ids", "messages", "moves", "offset", "records", "redelivered", "size", "source")

    def __init__(self, source: Segment) -> None:
        self.source = source
        self.records: list[bytes | memoryview] = []
        self.redelivered: list[Redelivered] = []
        self.moves: dict[str, list[tuple[int, int]]] = {}
        self.ids: list[tuple[str, str, int]] = []
        self.messages = 0
        self.size = 0
        self.offset = 0

    @property
    def first(self) -> int:
        """Where the first record stands, once the group is stored."""
        return self.offset + RECORD_BYTES + _GROUP.size

    def encode(self, ids: dict[str, int]) -> LargeRecord:
        counts = [each.encode(ids) for each in self.redelivered]
        return LargeRecord(GROUP, [_GROUP.pack(0, 0), *self.records, *counts])  # type: ignore[list-item]


class Duplicates:
    """Producer-given ids that a destination still remembers, copied out of a segment about to be deleted.

    `ids` = (id, seq of the message that brought it).
    """

    kind = DUPLICATES
    __slots__ = ("destination", "ids")

    def __init__(self, destination: str, ids: list[tuple[str, int]]) -> None:
        self.destination = destination
        self.ids = ids

    def encode(self, ids: dict[str, int]) -> bytes:
        return frame_record(DUPLICATES, _U32.pack(ids[self.destination]) + json.dumps(self.ids).encode())


class Outcomes:
    """Commits that took place, copied out of a segment about to be deleted: `ids` = (outcome id, seq of its group)."""

    kind = OUTCOMES
    __slots__ = ("ids",)

    def __init__(self, ids: list[tuple[str, int]]) -> None:
        self.ids = ids

    def encode(self, _: dict[str, int]) -> bytes:
        return frame_record(OUTCOMES, json.dumps(self.ids).encode())


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Of the segments up to and including (epoch, number) only `kept` are needed: all others may be gone, and count no
    more. The newest mark says all that those before it said.

    kept   {(epoch, number): bytes that count}, of segments up to there
    """

    kind: ClassVar = TRIMMED
    epoch: int = 0
    number: int = 0
    kept: Mapping[Key, int] = field(default_factory=dict)

    @property
    def through(self) -> Key:
        return self.epoch, self.number

    def __contains__(self, key: Key) -> bool:
        """Does the segment of that (epoch, number) count no more?"""
        return key <= (self.epoch, self.number) and key not in self.kept

    def newest(self, other: Trimmed) -> Trimmed:
        """That of two marks of one journal which was made later."""
        later = (other.through, -len(other.kept)) > (self.through, -len(self.kept))
        return other if later else self

    def encode(self, _: dict[str, int]) -> bytes:
        kept = (_KEPT.pack(*key, end) for key, end in self.kept.items())
        return frame_record(TRIMMED, b"".join((_TRIMMED.pack(self.epoch, self.number), *kept)))

    @classmethod
    def decode(cls, body: bytes) -> Trimmed:
        kept = {(epoch, number): end for epoch, number, end in _KEPT.iter_unpack(body[_TRIMMED.size :])}
        epoch, number = _TRIMMED.unpack_from(body)
        return cls(epoch, number, kept)


class Previous:
    """First record of a segment: the segment before it in this epoch is valid up to `end` bytes (0 = there is none)."""

    kind = PREVIOUS
    __slots__ = ("end",)

    def __init__(self, end: int) -> None:
        self.end = end

    def encode(self, _: dict[str, int]) -> bytes:
        return frame_record(PREVIOUS, _U64.pack(self.end))

    @classmethod
    def decode(cls, body: bytes) -> Previous:
        return cls(*_U64.unpack(body))


Record = Message | Destination | Consumed | Redelivered | Group | Copies | Duplicates | Outcomes | Trimmed | Previous


def encode_message(message: Message, destination: int) -> Chunk:
    """The record of a persistent message. Body last, so that a reader can stop before it.

    On the hot path: head and CRC in one pack, one join. A large body stays where it is.
    """
    properties = json.dumps(message.properties).encode() if message.properties else b""
    content_type = message.content_type.encode()
    duplicate_id = message.duplicate_id.encode()
    head = _MESSAGE.pack(
        message.seq, destination, _TEXT if message.text else 0, message.priority, message.timestamp_ms,
        message.expires_ms, len(content_type), len(duplicate_id), len(properties),
    )  # fmt: skip
    if len(message.body) > LARGE_BODY_BYTES:
        return LargeRecord(MESSAGE, (head, content_type, duplicate_id, properties, message.body))
    body = b"".join((head, content_type, duplicate_id, properties, message.body))
    return RECORD.pack(len(body), crc32(body, MESSAGE), MESSAGE) + body


def encode_record(record: Record, ids: dict[str, int]) -> Chunk:
    """Any record's bytes. `ids`: the number of each destination by name."""
    if isinstance(record, Message):
        return encode_message(record, ids[record.destination])
    return record.encode(ids)


def decode_message(payload: bytes | memoryview, position: int, stop: int, name: str, bodies: bool = True) -> Message:
    """The message of the record between `position` and `stop` of `payload`. Raises ValueError, RecursionError."""
    _, _, _, seq, _, flags, priority, timestamp, expires, n_type, n_dup, n_props = _FRAMED_MESSAGE.unpack_from(
        payload, position
    )
    i = position + _FRAMED_MESSAGE.size
    j = i + n_type
    k = j + n_dup
    m = k + n_props
    if m > stop or priority > _PRIORITY_MAX:
        raise ValueError("impossible lengths or priority")
    duplicate_id = str(payload[j:k], "utf-8") if n_dup else ""
    if bodies:
        return Message(
            name, bytes(payload[m:stop]), _properties(bytes(payload[k:m])) if n_props else None,
            str(payload[i:j], "utf-8") if n_type else "", priority, True, timestamp, expires, duplicate_id,
            bool(flags & _TEXT), seq,
        )  # fmt: skip
    return Message(name, b"", None, "", priority, True, timestamp, expires, duplicate_id, bool(flags & _TEXT), seq)


def body_offset(head: bytes) -> int:
    """How many bytes of a message's record, of which `head` is the beginning, stand before its body."""
    *_, content_type, duplicate_id, properties = _FRAMED_MESSAGE.unpack_from(head)
    return int(_FRAMED_MESSAGE.size + content_type + duplicate_id + properties)


class Decoder:
    """Bytes → records, for one segment (destination numbers are the segment's own).

    `bodies` False leaves out of messages what only their consumers need: body, properties, content type.
    """

    def __init__(self, path: str, bodies: bool = True) -> None:
        self._path = path
        self._bodies = bodies
        self.names: dict[int, str] = {}

    def decode(
        self, payload: bytes | memoryview, at: int = 0, verify: bool = True, grouped: bool = False
    ) -> Iterator[Record]:
        """The records of one batch payload, which starts at offset `at` of the file; `grouped` = of a group, in which
        no other group stands. Raises CorruptError, NewerFormatError.
        """
        position, end = 0, len(payload)
        number, names, bodies = _U32.unpack_from, self.names, self._bodies
        framed_bytes = _FRAMED_MESSAGE.size
        while position < end:
            if end - position < RECORD_BYTES:
                raise CorruptError(self._path, at + position, "batch ends inside a record")
            size, crc, kind = RECORD.unpack_from(payload, position)
            start = position + RECORD_BYTES
            stop = start + size
            if stop > end:
                raise CorruptError(self._path, at + position, "record is longer than its batch")
            if verify and crc32(payload[start:stop], kind) != crc:
                raise CorruptError(self._path, at + position, "record fails its checksum")
            if kind == MESSAGE and size >= framed_bytes - RECORD_BYTES:
                name = names.get(number(payload, start + 8)[0])
                if name is None:
                    raise CorruptError(self._path, at + position, "the destination was not defined before")
                try:
                    message = decode_message(payload, position, stop, name, bodies)
                except (ValueError, RecursionError) as error:
                    raise CorruptError(self._path, at + position, f"message: {error}") from error
                message.offset, message.size = at + position, stop - position
                record: Record = message
            elif kind == GROUP and grouped:
                raise CorruptError(self._path, at + position, "a group stands in a group")
            else:
                try:
                    body = payload[start:stop] if kind == GROUP else bytes(payload[start:stop])
                    record = self._decode_other(kind, body, at + start)
                except (struct.error, ValueError, KeyError, RecursionError) as error:
                    raise CorruptError(self._path, at + position, f"record of type {kind}: {error}") from error
            yield record
            position = stop

    def _decode_other(self, kind: int, body: bytes | memoryview, at: int) -> Record:
        if kind == GROUP:  # not copied: it may hold large messages
            seq, size = _GROUP.unpack_from(body)
            start = _GROUP.size + size
            if start > len(body):
                raise ValueError("the outcome id is longer than the record")
            outcome_id = str(body[_GROUP.size : start], "utf-8")
            return Group(list(self.decode(body[start:], at + start, grouped=True)), outcome_id, seq)
        assert isinstance(body, bytes)
        if kind == CONSUMED:
            destination, reason, count = _CONSUMED.unpack_from(body)
            if reason >= len(REASONS):
                raise NewerFormatError(f"{self._path}: offset {at}: reason {reason} is unknown: upgrade this broker")
            seqs = list(struct.unpack_from(f"<{count}Q", body, _CONSUMED.size))
            return Consumed(self.names[destination], reason, seqs)
        if kind == DESTINATION:
            number, _ = _DESTINATION.unpack_from(body)
            name = body[_DESTINATION.size :].decode()
            self.names[number] = name
            return Destination(number, name)
        if kind == REDELIVERED:
            return Redelivered(self.names[_U32.unpack_from(body)[0]], list(_REDELIVERY.iter_unpack(body[4:])))
        if kind == DUPLICATES:
            return Duplicates(self.names[_U32.unpack_from(body)[0]], _ids(body[4:]))
        if kind == OUTCOMES:
            return Outcomes(_ids(body))
        if kind == TRIMMED:
            return Trimmed.decode(body)
        if kind == PREVIOUS:
            return Previous.decode(body)
        raise NewerFormatError(f"{self._path}: offset {at}: record type {kind} is unknown here: upgrade this broker")


def _properties(text: bytes) -> dict[str, str]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("properties are no JSON object")
    return found


def _ids(text: bytes) -> list[tuple[str, int]]:
    found = json.loads(text)
    if not isinstance(found, list) or not all(map(_is_id, found)):
        raise ValueError("ids are no JSON list of [id, seq]")
    return [(each[0], each[1]) for each in found]


def _is_id(found: object) -> bool:
    return isinstance(found, list) and [type(each) for each in found] == [str, int]


def raw_messages(payload: memoryview, names: dict[int, str]) -> Iterator[tuple[int, int, int, int, int, int]]:
    """(start, stop, number of the destination, seq, start and stop of the producer-given id) of each message in the
    payload of a batch whose CRC is known to be right, also of those in groups. Adds to `names` the destinations that
    the payload defines. Raises struct.error, ValueError.
    """
    position, end, framed = 0, len(payload), _FRAMED_MESSAGE.size
    keys, last = _MESSAGE_KEYS.unpack_from, len(payload) - _MESSAGE_KEYS.size
    while position < end:
        if position <= last:
            size, kind, seq, destination, type_bytes, id_bytes = keys(payload, position)
        else:
            size, _, kind = RECORD.unpack_from(payload, position)
        stop = position + RECORD_BYTES + size
        if stop > end:
            raise ValueError("record is longer than its batch")
        if kind == MESSAGE:
            if stop - position < framed:
                raise ValueError("record of a message is too short")
            id_start = position + framed + type_bytes
            yield position, stop, destination, seq, id_start, id_start + id_bytes
        elif kind == GROUP:  # its records are framed as all others are, and end where it does
            position += RECORD_BYTES
            position += _GROUP.size + _GROUP.unpack_from(payload, position)[1]
            continue
        elif kind == DESTINATION:
            body = position + RECORD_BYTES
            names[_DESTINATION.unpack_from(payload, body)[0]] = str(payload[body + _DESTINATION.size : stop], "utf-8")
        position = stop


def renumbered(record: memoryview, destination: int) -> tuple[bytes, memoryview]:
    """The framed record of a message, with another number for its destination: beginning and rest."""
    rest = record[RECORD_BYTES + 12 :]
    head = bytes(record[RECORD_BYTES : RECORD_BYTES + 8]) + _U32.pack(destination)
    return RECORD.pack(len(record) - RECORD_BYTES, crc32(rest, crc32(head, MESSAGE)), MESSAGE) + head, rest


def ids_bytes(record: Duplicates | Outcomes) -> int:
    """About what it takes in the journal."""
    return RECORD_BYTES + len(json.dumps(record.ids))


def takes_space(record: Record) -> bool:
    """Does storing this need room that a full disk should keep for acknowledgements?"""
    if isinstance(record, Group):
        return any(map(takes_space, record.records))
    return isinstance(record, Message | Copies)


def raw_records(payload: bytes | memoryview) -> Iterator[tuple[int, bytes]]:
    """(type, body) of each record of a batch whose CRC is known to be right; bodies of messages are left out ("")."""
    position = 0
    while position < len(payload):
        size, _, kind = RECORD.unpack_from(payload, position)
        position += RECORD_BYTES
        yield kind, b"" if kind == MESSAGE else bytes(payload[position : position + size])
        position += size


def destinations_of(records: Iterable[Record]) -> dict[str, None]:
    """Names of the destinations that `records` name, in the order of their first mention."""
    names: dict[str, None] = {}
    for record in records:
        if isinstance(record, Message | Consumed | Redelivered | Duplicates):
            names[record.destination] = None
        elif isinstance(record, Group):
            names |= destinations_of(record.records)
        elif isinstance(record, Copies):
            names |= dict.fromkeys(record.moves)
    return names
