"""The bytes of a segment. Spec: docs/journal-format.md. Invariant: zero is never a valid batch magic or record type, so
space that was reserved and not written is recognised; every byte of header, batch and record is under a CRC-32.

    segment  = header batch* (zeros | torn batch)?

    header, 64 bytes                            batch, 44 bytes + payload
    +--------+-------+-------+----------+       +-------+---------+-------+--------+
    | magic 8| ver 2 | res 2 | size 4   |       |magic 4| bytes 4 |epoch 8| no. 8  |
    +--------+-------+-------+----------+       +-------+----+----+-------+--------+
    | epoch 8        | number 8         |       | records 4  | payload CRC 4        |
    +----------------+------------------+       +------------+----------+-----------+
    | store uuid 16                     |       | wall s 4   | flags 4  | CRC 4     |
    +----------------+------------------+       +------------+----------+-----------+
    | salt 4 | zero 8         | CRC 4   |       | record*                           |
    +--------+----------------+---------+       +-----------------------------------+

    record = body bytes 4 | CRC 4 | type 1 | body

All integers are little-endian. A record's CRC starts from its type and covers its body. The salt is random for each
segment and is the start value of the two CRCs of every batch in it, so bytes of another segment (a message may carry
one) never validate here. Batches are numbered through the segments of an epoch,
from 1. The header is durable before the first batch is written. The first record of a segment is `previous`: the sealed
length of the segment before it in the same epoch. Flag 1: the batch holds a trim mark.

`ver` is 2 in every segment that this amq makes, and 1 in those of 0.1. A record of version 1 means the same in a
segment of version 2, so records are copied from one to the other byte for byte.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

from amq.core.errors import CorruptError, NewerFormatError, StoreError
from amq.core.message import LARGE_BODY_BYTES

MAGIC = b"AMQJRNL\x01"
VERSION = 2
BATCH_MAGIC = b"\xb7BAT"
HEADER = struct.Struct("<8sHHIQQ16sI8xI")
BATCH = struct.Struct("<4sIQQIIIII")
RECORD = struct.Struct("<IIB")
HEADER_BYTES = HEADER.size
BATCH_BYTES = BATCH.size
RECORD_BYTES = RECORD.size
BATCH_BYTES_MAX = (1 << 32) - 1
# Of one record, so that its batch ends before byte 2^32 of its segment: a batch that has begun holds 1 GiB at most.
RECORD_BYTES_MAX = 5 << 29
HAS_TRIM_MARK = 1
NAMES_KNOWN = 64  # of segments: they are asked for with each batch
assert (HEADER_BYTES, BATCH_BYTES, RECORD_BYTES) == (64, 44, 9)

_NAME = re.compile(r"([0-9]{8})-([0-9]{8})\.seg")
crc32 = zlib.crc32


@lru_cache(NAMES_KNOWN)
def segment_name(epoch: int, number: int) -> str:
    """File name of a segment: sorts by epoch, then number."""
    return f"{epoch:08d}-{number:08d}.seg"


@lru_cache(NAMES_KNOWN)
def parse_segment_name(name: str) -> tuple[int, int] | None:
    """(epoch, number), or None where `name` is not a segment's."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def segment_key(name: str) -> tuple[int, int]:
    """(epoch, number): what segments sort by; (0, 0), before all, where `name` is not a segment's."""
    return parse_segment_name(name) or (0, 0)


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    epoch: int
    number: int
    store_uuid: bytes
    salt: int
    version: int = VERSION

    def encode(self) -> bytes:
        body = HEADER.pack(
            MAGIC, self.version, 0, HEADER_BYTES, self.epoch, self.number, self.store_uuid, self.salt, 0
        )[:-4]
        return body + crc32(body).to_bytes(4, "little")


def decode_header(path: str, data: bytes) -> SegmentHeader | None:
    """The header at the start of `data`, a whole segment; None where it was never completely written.

    A crash while the file was made leaves a damaged header and zeros after it. Raises NewerFormatError, StoreError for
    a foreign file, CorruptError for a header damaged later.
    """
    begun = data[HEADER_BYTES : 1 << 20].strip(b"\0")
    if len(data) < HEADER_BYTES or not any(data[:HEADER_BYTES]):
        if begun:
            raise CorruptError(path, 0, "segment header is missing but batches follow")
        return None
    magic, version, _, _, epoch, number, uuid, salt, crc = HEADER.unpack_from(data)
    torn = all(byte in (0, right) for byte, right in zip(magic, MAGIC, strict=True))
    if magic[:7] != MAGIC[:7] and (begun or not torn):
        raise StoreError(f"{path} is not a journal segment of amq: move it out of the store", code="STORE_FOREIGN_FILE")
    if version > VERSION:
        raise NewerFormatError(f"{path} has journal format {version}, this amq reads to {VERSION}: upgrade this broker")
    if crc32(data[: HEADER_BYTES - 4]) != crc:
        if begun:
            raise CorruptError(path, 0, "segment header fails its checksum")
        return None
    return SegmentHeader(epoch, number, uuid, salt, version)


class BatchHeader(NamedTuple):
    payload_bytes: int
    epoch: int
    number: int
    records: int
    payload_crc: int
    wall_s: int
    flags: int


def encode_batch(
    payload: bytes, salt: int, epoch: int, number: int, records: int, wall_s: int, flags: int = 0
) -> bytes:
    """Header and payload in one piece."""
    return b"".join(batch_pieces([payload], salt, epoch, number, records, wall_s, flags))


def decode_batch_header(data: bytes | memoryview, offset: int, salt: int) -> BatchHeader | None:
    """The batch header at `offset`, or None where no valid one is there."""
    if len(data) - offset < BATCH_BYTES:
        return None
    magic, size, epoch, number, records, payload_crc, wall_s, flags, crc = BATCH.unpack_from(data, offset)
    if magic != BATCH_MAGIC or crc32(data[offset : offset + BATCH_BYTES - 4], salt) != crc:
        return None
    return BatchHeader(size, epoch, number, records, payload_crc, wall_s, flags)


def frame_record(kind: int, body: bytes) -> bytes:
    """One record with its length and CRC (over type and body)."""
    assert kind
    kind_byte = kind.to_bytes(1, "little")
    return b"".join((len(body).to_bytes(4, "little"), crc32(body, kind).to_bytes(4, "little"), kind_byte, body))


class LargeRecord:
    """A record in pieces, of which only small ones are joined: large bodies stay where they are. As long as its bytes
    are (`len`) is known at once; the checksum is taken when they are written, so not on the event loop.
    """

    __slots__ = ("_kind", "_make", "_size")

    def __init__(self, kind: int, parts: Iterable[Chunk] | Callable[[], Iterable[Chunk]], size: int = 0) -> None:
        """`parts` may be a function, called when they are written, in the thread that writes: with the `size` of all,
        framing included."""
        self._kind = kind
        if callable(parts):
            self._make, self._size = parts, size
            return
        known = list(gathered(parts))
        self._make = lambda: known
        self._size = RECORD_BYTES + sum(map(len, known))

    def __len__(self) -> int:
        return self._size

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the record, in order."""
        pieces = list(pieces_of(gathered(self._make())))
        assert self._size == RECORD_BYTES + sum(map(len, pieces)), "a record is not as long as was said"
        crc = self._kind
        for piece in pieces:
            crc = crc32(piece, crc)
        yield RECORD.pack(self._size - RECORD_BYTES, crc, self._kind)
        yield from pieces


APART_BYTES = 32 << 10  # a longer chunk is not copied: to write it alone costs less
Chunk = bytes | LargeRecord  # one record
AnyChunk = TypeVar("AnyChunk", bytes, Chunk)


def pieces_of(chunks: Iterable[Chunk]) -> Iterator[bytes]:
    """The bytes of `chunks`, in order."""
    for chunk in chunks:
        if isinstance(chunk, LargeRecord):
            yield from chunk.pieces()
        else:
            yield chunk


def gathered(chunks: Iterable[AnyChunk], apart_bytes: int = 0) -> Iterator[AnyChunk | bytes]:
    """The bytes of `chunks`, small ones joined to pieces of `apart_bytes` (0: `LARGE_BODY_BYTES`) or little more."""
    small: list[bytes] = []
    size, apart_bytes = 0, apart_bytes or LARGE_BODY_BYTES
    for chunk in chunks:
        if isinstance(chunk, LargeRecord) or len(chunk) > apart_bytes:
            if small:
                yield b"".join(small)
                small, size = [], 0
            yield chunk
            continue
        small.append(chunk)
        size += len(chunk)
        if size > apart_bytes:
            yield b"".join(small)
            small, size = [], 0
    if small:
        yield b"".join(small)


def batch_pieces(
    chunks: list[Chunk], salt: int, epoch: int, number: int, records: int, wall_s: int, flags: int = 0
) -> Iterable[bytes]:
    """A batch as pieces to be written one after the other: chunks of more than `APART_BYTES` where they lie, all others
    joined. Pieces longer than 5 KiB are summed without the GIL."""
    is_large, crc = LargeRecord in map(type, chunks), salt
    size = 0 if is_large else sum(map(len, chunks))
    if not is_large and size <= APART_BYTES:
        pieces = [b"".join(chunks)]  # type: ignore[arg-type]
    else:
        pieces = list(gathered(pieces_of(chunks), APART_BYTES))
        size = sum(map(len, pieces))
    for piece in pieces:
        crc = crc32(piece, crc)
    assert 0 < size <= BATCH_BYTES_MAX
    head = BATCH.pack(BATCH_MAGIC, size, epoch, number, records, crc, wall_s & 0xFFFFFFFF, flags, 0)[:-4]
    head += crc32(head, salt).to_bytes(4, "little")
    if len(pieces[0]) > APART_BYTES:
        return head, *pieces
    return head + pieces[0], *pieces[1:]
