"""Multicast: one message that several queues hold, stored once, with the list of those queues.

Spec: docs/journal-format.md. Each queue has a separate seq for it, so that acknowledgements and counts speak of one
of them; all these messages are at the same place. `Copy.of` makes the message of one queue from the record: the
message as it was sent, and where it was sent to if that was not this queue.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from amq.core.message import LARGE_BODY_BYTES, TEXT, Copier, Copy, Envelope, Message
from amq.core.values import Properties
from amq.journal.format import RECORD, RECORD_BYTES, Chunk, LargeRecord, crc32, frame_record
from amq.journal.records.base import BaseRecord, S
from amq.journal.records.message import Storing, describe_message, tail_bytes
from amq.journal.records.section import decode_section, encode_section

MULTICAST = 10
HOLDERS_MAX = 20_000  # in one record; it stays small beside a large body
# first seq, holders, flags, priority, timestamp ms, expires ms, bytes of: content type, duplicate id, properties, name
_HEAD = struct.Struct("<QIBBQQHHII")
_HOLDER = struct.Struct("<II")  # number of the queue, its seq less the first one
MULTICAST_BYTES = _HEAD.size  # at least
_PRIORITY_MAX = 9


class Multicast(BaseRecord):
    """`message` as it was sent is in the queues `queues`, under `seqs`.

    copies        what the queues of a live broker get, whose seqs count; none where the record was read
    offset, size  of the record in its segment, bytes, once it is stored
    """

    kinds = (MULTICAST,)
    type_name = "multicast"
    __slots__ = ("_seqs", "copies", "message", "offset", "queues", "size")

    def __init__(self, message: Message, queues: list[str], seqs: Iterable[int] = (), copies: Iterable[Copy] = ()):
        self.message = message
        self.queues = queues
        self.copies = list(copies)
        self._seqs = list(seqs)
        self.offset = self.size = 0

    @property
    def seqs(self) -> list[int]:
        """One for each queue, growing."""
        return [copy.seq for copy in self.copies] if self.copies else self._seqs

    @property
    def head_bytes(self) -> int:
        """Bytes of the record before content type, ids, properties and body of the message."""
        return MULTICAST_BYTES + _HOLDER.size * len(self.queues) + len(self.message.destination.encode())

    def place(self, offset: int, size: int) -> None:
        self.offset, self.size = offset, size
        for copy in self.copies:
            copy.offset, copy.size = offset, size
            copy.original = None  # it is stored

    def held(self) -> Iterator[Copy]:
        """The message of each queue."""
        copier = Copier(self.message)
        for name, seq in zip(self.queues, self.seqs, strict=True):
            copy = copier.copy(name, seq)
            copy.offset, copy.size = self.offset, self.size
            yield copy

    def encode(self, ids: Mapping[str, int], /) -> Chunk:
        message, seqs = self.message, self.seqs
        flags, properties = encode_section(message)
        content_type, duplicate_id = message.content_type.encode(), message.duplicate_id.encode()
        name = message.destination.encode()
        head = _HEAD.pack(
            seqs[0],
            len(seqs),
            flags,
            message.priority,
            message.timestamp_ms,
            message.expires_ms,
            len(content_type),
            len(duplicate_id),
            len(properties),
            len(name),
        )
        holders = _holders((ids[queue] for queue in self.queues), seqs)
        parts = (head, holders, name, content_type, duplicate_id, properties, message.body)
        if len(message.body) > LARGE_BODY_BYTES:
            return LargeRecord(MULTICAST, parts)
        return frame_record(MULTICAST, b"".join(parts))

    def record_bytes(self) -> int:
        return RECORD_BYTES + self.head_bytes + tail_bytes(self.message)

    def apply(self, fold: Storing[S], segment: S, /) -> None:
        for copy in self.copies or self.held():
            fold.store(copy, segment)

    def message_count(self) -> int:
        return len(self.queues)

    def destinations(self) -> list[str]:
        return self.queues

    def takes_space(self) -> bool:
        return True

    def describe(self, bodies: bool = False) -> dict[str, Any]:
        queues = [{"destination": name, "seq": seq} for name, seq in zip(self.queues, self.seqs, strict=True)]
        return describe_message(self.message, bodies) | {"type": self.type_name, "queues": queues}


def _holders(numbers: Iterable[int], seqs: list[int]) -> bytes:
    first = seqs[0]
    return b"".join(_HOLDER.pack(number, seq - first) for number, seq in zip(numbers, seqs, strict=True))


class _Layout:
    """Where what is in the framed record that begins at `position` of `payload`. Raises ValueError, struct.error.

    holders       (number of the queue, seq) of each
    start         of the holders; what follows them starts at `name`
    """

    __slots__ = (
        "body",
        "content_type",
        "duplicate_id",
        "expires_ms",
        "flags",
        "holders",
        "name",
        "priority",
        "properties",
        "start",
        "timestamp_ms",
    )

    def __init__(self, payload: bytes | memoryview, position: int, stop: int) -> None:
        self.start = position + RECORD_BYTES + _HEAD.size
        if self.start > stop:
            raise ValueError("record is too short")
        (
            first,
            count,
            self.flags,
            self.priority,
            self.timestamp_ms,
            self.expires_ms,
            type_bytes,
            id_bytes,
            property_bytes,
            name_bytes,
        ) = _HEAD.unpack_from(payload, position + RECORD_BYTES)
        self.name = self.start + count * _HOLDER.size
        self.content_type = self.name + name_bytes
        self.duplicate_id = self.content_type + type_bytes
        self.properties = self.duplicate_id + id_bytes
        self.body = self.properties + property_bytes
        if self.body > stop or self.priority > _PRIORITY_MAX or not count:
            raise ValueError("impossible lengths or priority")
        found = _HOLDER.iter_unpack(payload[self.start : self.name])
        self.holders = [(number, first + behind) for number, behind in found]


def decode_multicast(
    payload: bytes | memoryview, position: int, stop: int, names: Mapping[int, str], bodies: bool = True
) -> Multicast:
    """The record between `position` and `stop` of `payload`. Raises ValueError, struct.error, RecursionError, and
    KeyError where a queue was not defined before."""
    layout = _Layout(payload, position, stop)
    message = _message(payload, layout, stop, bodies)
    queues = [names[number] for number, _ in layout.holders]
    seqs = [seq for _, seq in layout.holders]
    if any(later <= seq for seq, later in pairwise(seqs)) or len(set(queues)) < len(queues):
        raise ValueError("seqs do not grow, or a queue is named twice")
    record = Multicast(message, queues, seqs)
    record.place(position, stop - position)
    return record


def decode_copy(payload: bytes | memoryview, stop: int, queue_name: str, seq: int) -> Copy:
    """The message that queue `queue_name` holds as `seq` of the record at the start of `payload`. Raises ValueError,
    struct.error, RecursionError."""
    layout = _Layout(payload, 0, stop)
    if seq not in (held for _, held in layout.holders):
        raise ValueError(f"message {seq} is not here")
    return Copy.of(_message(payload, layout, stop, True), queue_name, seq)


def _message(payload: bytes | memoryview, at: _Layout, stop: int, bodies: bool) -> Message:
    duplicate_id = str(payload[at.duplicate_id : at.properties], "utf-8")
    properties: Properties | None = None
    envelope: Envelope | None = None
    content = at.flags & TEXT
    if bodies and at.body > at.properties:
        properties, content, envelope = decode_section(bytes(payload[at.properties : at.body]), at.flags)
    message = Message(
        str(payload[at.name : at.content_type], "utf-8"),
        b"",
        properties,
        "",
        at.priority,
        True,
        at.timestamp_ms,
        at.expires_ms,
        duplicate_id,
        content,
        at.holders[0][1],
        envelope,
    )
    if bodies:
        message.content_type = str(payload[at.content_type : at.duplicate_id], "utf-8")
        message.body = bytes(payload[at.body : stop])
    return message


def multicast_body_offset(head: bytes) -> int:
    """How many bytes of the record, of which `head` is the beginning, are before its body."""
    found: tuple[int, ...] = _HEAD.unpack_from(head, RECORD_BYTES)
    return RECORD_BYTES + _HEAD.size + found[1] * _HOLDER.size + sum(found[6:])


class Raw:
    """The record `record`, framed, as it is in a segment: to be copied with those queues that still hold it."""

    __slots__ = ("_layout", "_record")

    def __init__(self, record: memoryview) -> None:
        """Raises ValueError, struct.error."""
        self._record = record
        self._layout = _Layout(record, 0, len(record))

    @property
    def holders(self) -> list[tuple[int, int]]:
        """(number of the queue in that segment, seq)"""
        return self._layout.holders

    @property
    def duplicate_id(self) -> str:
        return str(self._record[self._layout.duplicate_id : self._layout.properties], "utf-8")

    def message(self) -> Message:
        """The message as it was sent. Raises ValueError, RecursionError."""
        return _message(self._record, self._layout, len(self._record), bodies=True)

    def kept(self, holders: list[tuple[int, int]]) -> list[bytes | memoryview]:
        """The record in pieces, with `holders` (number of the queue in this journal, seq) only. Byte for byte where
        those are all. Raises ValueError where it fails its checksum."""
        record, layout = self._record, self._layout
        if holders == layout.holders:
            return [record]
        _, crc, _ = RECORD.unpack_from(record)
        if crc32(record[RECORD_BYTES:], MULTICAST) != crc:
            raise ValueError("record fails its checksum")
        seqs = [seq for _, seq in holders]
        _, _, *others = _HEAD.unpack_from(record, RECORD_BYTES)
        head = _HEAD.pack(seqs[0], len(seqs), *others) + _holders((number for number, _ in holders), seqs)
        rest = record[layout.name :]
        return [RECORD.pack(len(head) + len(rest), crc32(rest, crc32(head, MULTICAST)), MULTICAST) + head, rest]


def numbers_in(frame: memoryview) -> list[int]:
    """Numbers of the queues in a damaged record, as far as what is left of it tells."""
    try:
        return [number for number, _ in _Layout(frame, 0, len(frame)).holders]
    except (ValueError, struct.error):
        return []
