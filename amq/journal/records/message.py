"""The message: the record that most of a journal is made of, and the one without a separate class, as `Message`
itself is on the hot path. Spec: docs/journal-format.md.

`Run`: messages that follow each other and differ in their bodies alone, in one piece on their way to the journal.
Invariant: in the journal each is a separate record, the same that it would have had alone; so readers know nothing of
runs.
"""

from __future__ import annotations

import base64
import json
import struct
from array import array
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, repeat
from operator import add
from typing import Any, Protocol

from amq.core.message import LARGE_BODY_BYTES, TEXT, Message, alike, header_bytes_of_natives, native_like, stood
from amq.core.ownership import given, owner_of
from amq.journal.format import RECORD, RECORD_BYTES, Chunk, LargeRecord, crc32
from amq.journal.hidden import is_hidden
from amq.journal.records.base import BaseRecord, S
from amq.journal.records.section import EXTENDED, decode_section, describe_section, encode_section, native_begin

MESSAGE = 2
# seq, destination, flags, priority, timestamp ms, expires ms, bytes of: content type, duplicate id, properties
MESSAGE_HEAD = struct.Struct("<QIBBQQHHI")
MESSAGE_BYTES = MESSAGE_HEAD.size  # of a message without body, names and properties
FRAMED_MESSAGE = struct.Struct("<IIBQIBBQQHHI")  # the same head with its framing
# of the same: bytes of the record, its type, seq, destination, bytes of content type and duplicate id
MESSAGE_KEYS = struct.Struct("<I4xBQI18xHH")
_FLAGS_AT = RECORD_BYTES + 12  # in the framed record
_PRIORITY_MAX = 9
LEAD_BYTES_MAX = 128  # behind a seq: for more, such as a long content type, nothing is kept
_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")


def encode_message(message: Message, destination: int) -> Chunk:
    """The record of a persistent message. Body last, so that a reader can stop before it.

    On the hot path: head and CRC in one pack, one join. A large body stays where it is.
    """
    flags = message.content
    if message.envelope is not None:
        flags, properties = encode_section(message)
    else:  # as that does it too: a call less
        properties = json.dumps(message.properties).encode() if message.properties else b""
    content_type = message.content_type.encode()
    duplicate_id = message.duplicate_id.encode()
    head = MESSAGE_HEAD.pack(
        message.seq,
        destination,
        flags,
        message.priority,
        message.timestamp_ms,
        message.expires_ms,
        len(content_type),
        len(duplicate_id),
        len(properties),
    )
    if len(message.body) > LARGE_BODY_BYTES:
        return LargeRecord(MESSAGE, (head, content_type, duplicate_id, properties, message.body))
    body = b"".join((head, content_type, duplicate_id, properties, message.body))
    return RECORD.pack(len(body), crc32(body, MESSAGE), MESSAGE) + body


def decode_message(payload: bytes | memoryview, position: int, stop: int, name: str, bodies: bool = True) -> Message:
    """The message of the record between `position` and `stop` of `payload`. Raises ValueError, RecursionError."""
    _, _, _, seq, _, flags, priority, timestamp, expires, n_type, n_dup, n_props = FRAMED_MESSAGE.unpack_from(
        payload, position
    )
    i = position + FRAMED_MESSAGE.size
    j = i + n_type
    k = j + n_dup
    m = k + n_props
    if m > stop or priority > _PRIORITY_MAX:
        raise ValueError("impossible lengths or priority")
    duplicate_id = str(payload[j:k], "utf-8") if n_dup else ""
    if not bodies:
        return Message(name, b"", None, "", priority, True, timestamp, expires, duplicate_id, flags & TEXT, seq)
    body, content_type = bytes(payload[m:stop]), str(payload[i:j], "utf-8") if n_type else ""
    if not n_props:
        return Message(
            name, body, None, content_type, priority, True, timestamp, expires, duplicate_id, flags & TEXT, seq
        )
    properties, content, envelope = decode_section(payload[k:m], flags)
    return Message(
        name, body, properties, content_type, priority, True, timestamp, expires, duplicate_id, content, seq, envelope
    )


def is_extended(record: bytes | memoryview) -> bool:
    """Does the framed `record` of a message say more than JSON can?"""
    return bool(record[_FLAGS_AT] & EXTENDED)


def body_offset(head: bytes) -> int:
    """How many bytes of a message's record, of which `head` is the beginning, are before its body."""
    *_, content_type, duplicate_id, properties = FRAMED_MESSAGE.unpack_from(head)
    return int(FRAMED_MESSAGE.size + content_type + duplicate_id + properties)


def message_bytes(message: Message) -> int:
    """How many bytes its record takes, also before it has a seq. Raises struct.error, as its encoding would."""
    return RECORD_BYTES + MESSAGE_BYTES + tail_bytes(message)


def tail_bytes(message: Message) -> int:
    """How many bytes content type, duplicate id, properties and body of `message` take in a record. Raises
    struct.error, as their encoding would."""
    size = len(message.body)
    if message.content_type or message.duplicate_id:
        names = message.content_type, message.duplicate_id
        lengths = [len(name) if name.isascii() else len(name.encode()) for name in names]
        if max(lengths) > 0xFFFF:
            raise struct.error("content type and duplicate id have at most 65535 bytes")
        size += sum(lengths)
    if message.envelope is not None:
        size += len(encode_section(message)[1])
    elif message.properties:
        size += len(json.dumps(message.properties))  # all of it is ASCII
    return size


def renumbered(record: memoryview, destination: int) -> tuple[bytes, memoryview]:
    """The framed record of a message, with another number for its destination: beginning and rest."""
    rest = record[RECORD_BYTES + 12 :]
    head = bytes(record[RECORD_BYTES : RECORD_BYTES + 8]) + _U32.pack(destination)
    return RECORD.pack(len(record) - RECORD_BYTES, crc32(rest, crc32(head, MESSAGE)), MESSAGE) + head, rest


def describe_message(message: Message, bodies: bool) -> dict[str, Any]:
    """See `BaseRecord.describe`: the body as text, or `body_base64` where it is not UTF-8."""
    facts: dict[str, Any] = {
        "type": "message",
        "destination": message.destination,
        "seq": message.seq,
        "body_bytes": len(message.body),
        "priority": message.priority,
        "timestamp_ms": message.timestamp_ms,
        "expires_ms": message.expires_ms,
        "duplicate_id": given(message.duplicate_id),
        "content_type": message.content_type,
        **describe_section(message),
    }
    if user := owner_of(message.duplicate_id):
        facts["duplicate_id_user"] = user
    if bodies:
        try:
            facts["body"] = message.body.decode()
        except UnicodeDecodeError:
            facts["body_base64"] = base64.b64encode(message.body).decode("ascii")
    return facts


def lead_crcs(seqs: range, head: bytes) -> list[int]:
    """The CRCs of records of messages up to `head`, which is behind their seqs."""
    pack = struct.Struct(f"<Q{len(head)}s").pack
    if len(head) > LEAD_BYTES_MAX:
        return [crc32(pack(seq, head), MESSAGE) for seq in seqs]
    changes = _changes(_U64.size + len(head))
    found: list[int] = []
    for begin in range(seqs.start & -256, seqs.stop, 256):
        crc = crc32(pack(begin, head), MESSAGE)
        found += map(crc.__xor__, changes[max(seqs.start - begin, 0) : seqs.stop - begin])
    return found


@lru_cache(maxsize=LEAD_BYTES_MAX)
def _changes(size: int) -> list[int]:
    """How the CRC of `size` bytes changes with the first one: a CRC is linear, so whatever the others are."""
    rest, none = bytes(size - 1), crc32(bytes(size))
    return [crc32(bytes((first,)) + rest) ^ none for first in range(256)]


class Storing(Protocol[S]):
    """The method of a fold that a record of messages calls."""

    def store(self, message: Message, segment: S) -> None:
        """`message` is in `segment`: it is stored, or was copied there."""


class Staging(Storing[S], Protocol[S]):
    """The methods of the state that a run calls."""

    def stage(self, run: Run, segment: S) -> None:
        """The messages of `run` are stored in a hidden queue."""

    def store_run(self, run: Run, segment: S) -> None:
        """`store` for each message of `run`."""


class Run(BaseRecord):
    """`like` is what the messages are but for seq, body and headers. They have no ids. The headers of `like` are those
    of all.

    bodies        at least one
    sections      of their properties, where a message has some and there are no natives: see `encode_sections`
    header_bytes  that all these properties take in memory
    natives       data of the native forms, where the messages have these beside `like`
    seq           of the first, 0 = not given yet; those of the others follow
    sizes         of their records, bytes, once they are measured
    offset, size  where the first record is in its segment, and bytes of all
    body_bytes    of all bodies, once they are measured
    largest       bytes of the largest body, once they are measured
    """

    type_name = "message"  # as each of its records is
    __slots__ = (
        "bodies",
        "body_bytes",
        "header_bytes",
        "largest",
        "like",
        "natives",
        "offset",
        "sections",
        "seq",
        "size",
        "sizes",
    )

    def __init__(
        self,
        like: Message,
        bodies: list[bytes],
        sections: list[bytes] | None = None,
        header_bytes: int = 0,
        natives: list[bytes] | None = None,
    ) -> None:
        self.like = like
        self.bodies = bodies
        self.natives = natives
        if like.properties and sections is None:
            sections = [json.dumps(like.properties).encode()] * len(bodies)
            header_bytes = like.header_bytes * len(bodies)
        elif natives is not None and sections is None:
            header_bytes = header_bytes_of_natives(natives)
        self.sections = sections
        self.header_bytes = header_bytes
        self.seq = self.offset = self.size = self.body_bytes = self.largest = 0
        self.sizes = array("I")

    @property
    def destination(self) -> str:
        return self.like.destination

    @property
    def queue_name(self) -> str:
        """Full name of the queue that holds them, or will."""
        return self.like.destination

    def send_to(self, queue_name: str) -> None:
        """They go to the queue of that full name instead."""
        self.like.send_to(queue_name)

    @property
    def persistent(self) -> bool:
        return self.like.persistent

    @property
    def seqs(self) -> range:
        return range(self.seq, self.seq + len(self.bodies))

    def messages(self) -> list[Message]:
        """The messages one by one, with all that is known of each."""
        found = self._made(0, len(self.bodies))
        for message, seq in zip(found, self.seqs if self.seq else (), strict=False):
            message.seq = seq
        for message, size in zip(found, self.sizes, strict=False):
            message.size = size
        return found

    def stored(self, begin: int = 0, end: int | None = None, segment: object = None) -> list[Message]:
        """Messages `begin` to `end`, with the places where they stand in `segment`."""
        end = len(self.bodies) if end is None else end
        offset = self.offset + sum(self.sizes[:begin])
        if self.sections is None:
            sizes = self.sizes[begin:end].tolist()
            facts = self.seqs[begin:end], repeat(self.like.timestamp_ms), accumulate(sizes, initial=offset), sizes
            return stood(self.like, self.bodies[begin:end], facts, self.natives and self.natives[begin:end], segment)
        found = self._made(begin, end)
        for message, seq, size in zip(found, self.seqs[begin:end], self.sizes[begin:end], strict=True):
            message.seq, message.offset, message.size = seq, offset, size
            offset += size
        return found

    def _made(self, begin: int, end: int) -> list[Message]:
        if self.natives is not None:
            return alike(self.like, self.bodies[begin:end], None, self.natives[begin:end])
        sections = self.sections if not self.like.properties else None
        headers = None if sections is None else [json.loads(each) if each else {} for each in sections[begin:end]]
        return alike(self.like, self.bodies[begin:end], headers)

    def encode(self, ids: dict[str, int], /) -> bytes:
        """The records of its messages, each as `encode_message` makes it."""
        like, content_type = self.like, self.like.content_type.encode()
        head = MESSAGE_HEAD.pack(
            0,
            ids[like.destination],
            like.content if self.natives is None else EXTENDED | (like.content == TEXT),
            like.priority,
            like.timestamp_ms,
            like.expires_ms,
            len(content_type),
            0,
            0,
        )[_U64.size :]
        parts: list[bytes] = []
        pack = RECORD.pack
        self.record_bytes()
        if self.natives is not None:
            begin = content_type + native_begin(*native_like(like))
            beside = len(begin) + _U32.size - len(content_type)
            start = struct.Struct(f"<Q{len(head) - _U32.size}sI{len(begin)}sI")
            pack_start, start_bytes = start.pack, start.size
            for seq, body, data in zip(self.seqs, self.bodies, self.natives, strict=True):
                size = len(data)
                lead = pack_start(seq, head, beside + size, begin, size)
                crc = crc32(body, crc32(data, crc32(lead, MESSAGE)))
                parts += pack(start_bytes + size + len(body), crc, MESSAGE), lead, data, body
        elif self.sections is None:
            head += content_type
            seqs = self.seqs
            crcs = map(crc32, self.bodies, lead_crcs(seqs, head))
            sizes = map((-RECORD_BYTES).__add__, self.sizes)
            start = struct.Struct(f"{RECORD.format}Q{len(head)}s")
            parts = [b""] * (2 * len(self.bodies))
            parts[::2] = map(start.pack, sizes, crcs, repeat(MESSAGE), seqs, repeat(head))
            parts[1::2] = self.bodies
        else:
            head = head[: -_U32.size]
            beside = _U64.size + len(head) + _U32.size + len(content_type)
            pack_lead = struct.Struct(f"<Q{len(head)}sI{len(content_type)}s").pack
            for seq, body, section in zip(self.seqs, self.bodies, self.sections, strict=True):
                size = len(section)
                lead = pack_lead(seq, head, size, content_type)
                crc = crc32(body, crc32(section, crc32(lead, MESSAGE)))
                parts += pack(beside + size + len(body), crc, MESSAGE), lead, section, body
        return b"".join(parts)

    def record_bytes(self) -> int:
        """Of all its records, which it measures once."""
        if not self.sizes:
            beside = RECORD_BYTES + MESSAGE_BYTES + len(self.like.content_type.encode())
            lengths, count = [*map(len, self.bodies)], len(self.bodies)
            self.largest = lengths[0]
            is_even = lengths.count(self.largest) == count  # as they often are: in a third of the time
            if not is_even:
                self.largest = max(lengths)
            self.body_bytes = self.largest * count if is_even else sum(lengths)
            if self.natives is not None:
                beside += len(native_begin(*native_like(self.like))) + _U32.size
                lengths, is_even = [*map(add, lengths, map(len, self.natives))], False
            elif self.sections is not None:
                lengths, is_even = [*map(add, lengths, map(len, self.sections))], False
            if is_even or lengths.count(lengths[0]) == count:
                self.sizes = array("I", (beside + lengths[0],)) * count
                self.size = count * (beside + lengths[0])
            else:
                self.sizes = array("I", map(beside.__add__, lengths))
                self.size = sum(lengths) + beside * count
        return self.size

    def place(self, offset: int, size: int) -> None:
        self.offset, self.size = offset, size

    def apply(self, fold: Staging[S], segment: S, /) -> None:
        if is_hidden(self.queue_name):
            fold.stage(self, segment)
        else:
            fold.store_run(self, segment)

    def message_count(self) -> int:
        return len(self.bodies)

    def pieces(self, count: int) -> Iterator[Run]:
        if is_hidden(self.queue_name):
            yield self
            return
        for begin in range(0, len(self.bodies), count):
            end = begin + count
            piece = Run(
                self.like,
                self.bodies[begin:end],
                self.sections and self.sections[begin:end],
                0,
                self.natives and self.natives[begin:end],
            )
            piece.seq, piece.sizes = self.seq + begin, self.sizes[begin:end]
            piece.offset, piece.size = self.offset + sum(self.sizes[:begin]), sum(piece.sizes)
            piece.body_bytes, piece.largest = sum(map(len, piece.bodies)), self.largest
            yield piece

    def destinations(self) -> tuple[str]:
        return (self.destination,)

    def takes_space(self) -> bool:
        return True
