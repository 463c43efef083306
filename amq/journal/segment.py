"""Segment files: making them, listing them, reading their batches. One file belongs to one epoch and is never
appended to by a later one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from amq.core.errors import CorruptError, StoreError
from amq.doors.clock import Clock
from amq.journal.format import (
    BATCH_BYTES,
    BATCH_MAGIC,
    HEADER_BYTES,
    BatchHeader,
    SegmentHeader,
    crc32,
    decode_batch_header,
    decode_header,
    parse_segment_name,
    segment_name,
)
from amq.store.segment_log import SegmentLog, Writer

FILL = 3 / 4  # of `journalSegmentSize` that a segment takes: what is behind it before it can go has room in the rest
SEGMENT_BYTES_MAX = 4 << 30  # of any file: the largest journalSegmentSize, and the largest batch behind it
# How far it is filled when the next one is made. Late, because until then compaction may use its room; and early enough
# that no batch of usual size waits for it.
PREPARE_AT = 7 / 8


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One valid batch of a segment: where it starts, what its header says, its records' bytes."""

    offset: int
    header: BatchHeader
    payload: memoryview

    @property
    def end(self) -> int:
        return self.offset + BATCH_BYTES + self.header.payload_bytes


def list_segments(log: SegmentLog, *, fresh: bool = False) -> list[str]:
    """Names of the segments of `log`, oldest first. `fresh`: see `Shelf.names`."""
    found = [(key, name) for name in log.names(fresh=fresh) if (key := parse_segment_name(name)) is not None]
    return [name for _, name in sorted(found)]


def read_segment(log: SegmentLog, name: str, size_max: int | None = None) -> bytes:
    """The content of segment `name`, up to `size_max` bytes."""
    with log.open(name) as segment:
        size = segment.size()
        if size_max is not None:
            size = min(size, size_max)
        check_size(segment.place, size)
        return segment.read(0, size)


def check_size(path: str, size: int) -> None:
    """Raises CorruptError where a file is larger than any that a broker writes: such a file, which may be sparse, does
    not fit into memory."""
    if size > SEGMENT_BYTES_MAX:
        raise CorruptError(
            path, SEGMENT_BYTES_MAX, f"file is {size} bytes long, a journal file has at most {SEGMENT_BYTES_MAX}"
        )


def read_header(path: str, data: bytes) -> SegmentHeader | None:
    """The segment's header, checked against its name, which ends `path`; None where the segment was never begun."""
    header = decode_header(path, data)
    if header is not None and segment_name(header.epoch, header.number) != os.path.basename(path):
        raise StoreError(
            f"{path} says that it is segment {segment_name(header.epoch, header.number)}: "
            "it was renamed or copied in from elsewhere; move it out of the store",
            code="STORE_FOREIGN_FILE",
        )
    return header


def read_batches(
    path: str,
    data: bytes,
    header: SegmentHeader,
    sealed: int | None,
    offset: int = HEADER_BYTES,
    number: int = 0,
    base: int = 0,
) -> Iterator[StoredBatch]:
    """The valid batches of one segment, in order, from `offset` on, behind batch `number`. `data` = what is in it
    from `base` on.

    `sealed` is the length up to which the segment is known to be whole: damage before it is a CorruptError, what
    stands after it is ignored. None = the open end of an epoch: a torn last batch was never confirmed and ends the
    segment; damage with a later batch behind it is a CorruptError (only one batch at a time is ever unsynced).
    """
    view = memoryview(data)
    end = base + len(data) if sealed is None else sealed
    if end > base + len(data):
        raise CorruptError(path, base + len(data), f"file is shorter than its sealed length {end}: it was truncated")
    while offset < end:
        start = offset - base
        head, why = batch_at(view, start, header, number, end - base)
        if head is None:
            if sealed is not None or later_batch(data, start, header, number):
                raise CorruptError(path, offset, why)
            return
        batch = StoredBatch(offset, head, view[start + BATCH_BYTES : start + BATCH_BYTES + head.payload_bytes])
        yield batch
        number = head.number
        offset = batch.end


def batch_at(
    data: memoryview, offset: int, header: SegmentHeader, number: int, end: int
) -> tuple[BatchHeader | None, str]:
    """The header of the batch at `offset`, or None and why no valid one is there that ends by `end`. `number` =
    that of the batch before it, 0 = unknown.
    """
    head = decode_batch_header(data, offset, header.salt)
    if head is None:
        return None, "no valid batch header"
    if head.epoch != header.epoch or (number and head.number != number + 1):
        why = f"batch {head.number} of epoch {head.epoch} does not follow batch {number} of epoch {header.epoch}"
        return None, why
    stop = offset + BATCH_BYTES + head.payload_bytes
    if stop > end:
        return None, "batch is longer than the segment"
    if crc32(data[offset + BATCH_BYTES : stop], header.salt) != head.payload_crc:
        return None, f"batch {head.number} fails its checksum"
    return head, ""


def later_batch(data: bytes, offset: int, header: SegmentHeader, number: int) -> bool:
    """Does a valid batch that was written after the damage at `offset` stand there or behind it?

    The damaged batch itself would be `number` + 1, so a later one has a greater number.
    """
    position = data.find(BATCH_MAGIC, offset if number else offset + 1)
    while position >= 0:
        head = decode_batch_header(data, position, header.salt)
        if head is not None and head.epoch == header.epoch and head.number > number + 1:
            return True
        position = data.find(BATCH_MAGIC, position + 1)
    return False


class OpenSegment:
    """The segment that this master writes now, of about `size` bytes."""

    __slots__ = ("name", "number", "salt", "size", "writer")

    def __init__(self, writer: Writer, name: str, number: int, salt: int, size: int) -> None:
        self.writer = writer
        self.name = name
        self.number = number
        self.salt = salt
        self.size = size


class SegmentMaker:
    """Makes segments where nothing else touches the disk meanwhile. `made` = the last one, until somebody takes it."""

    def __init__(self, log: SegmentLog, clock: Clock) -> None:
        self.made: OpenSegment | None = None
        self._log = log
        self._clock = clock

    def make(self, header: SegmentHeader, size: int) -> OpenSegment:
        """A new segment, durable with its name. Raises OSError; NoRoomError leaves nothing."""
        name = segment_name(header.epoch, header.number)
        writer = self._log.create(name, header.encode(), size, self._clock)
        self.made = OpenSegment(writer, name, header.number, header.salt, size)
        return self.made

    def close(self) -> None:
        """Nobody will take the segment that was made."""
        made, self.made = self.made, None
        if made is not None:
            made.writer.close()
