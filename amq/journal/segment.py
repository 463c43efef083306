"""Segment files: making them, listing them, reading their batches. One file belongs to one epoch and is never
appended to by a later one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

from amq.core.errors import CorruptError, StoreError
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
from amq.store.files.vfs import FULL_ERRNOS, Vfs, listdir_fresh, write_all

# A segment is given space in so many steps: what is set aside and not written yet is hardly more than what is written,
# and a write seldom has to ask for any.
RESERVE_STEPS = 32
FILL = 3 / 4  # of `journalSegmentSize` that a segment takes: what is behind it before it can go has room in the rest
# The first write to a block that was only set aside makes the file system note that it is written now, and the sync
# waits for that note too: on ext4 it takes 0.22 ms instead of 0.09. So zeros are written behind a small batch, and the
# next hundred find blocks that are written. No reader can tell: space that was only set aside reads as zeros as well.
ZEROS_BYTES = 128 << 10
SMALL_BATCH_BYTES = 64 << 10  # larger ones fill many blocks, and to write these twice would cost more than the note
BLOCK_BYTES = 4096
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


def list_segments(vfs: Vfs, directory: str, probe: str = "") -> list[str]:
    """Names of the segments in the journal directory, oldest first.

    With `probe`, the name of a file that nobody else uses, the server answers; without it a network client may answer
    from a cache that is seconds old.
    """
    names = listdir_fresh(vfs, directory, probe) if probe else vfs.listdir(directory)
    found = [(key, name) for name in names if (key := parse_segment_name(name)) is not None]
    return [name for _, name in sorted(found)]


def read_file(vfs: Vfs, path: str, size_max: int | None = None) -> bytes:
    """The content of `path`, opened anew (close-to-open), up to `size_max` bytes."""
    fd = vfs.open(path, os.O_RDONLY)
    try:
        size = vfs.fstat(fd).st_size
        if size_max is not None:
            size = min(size, size_max)
        check_size(path, size)
        data = vfs.pread(fd, size, 0)  # in one piece: joining pieces took as long as reading them
        while len(data) < size and (more := vfs.pread(fd, size - len(data), len(data))):
            data += more
        return data
    finally:
        vfs.close(fd)


def check_size(path: str, size: int) -> None:
    """Raises CorruptError where a file is larger than any that a broker writes: such a file, which may be sparse, does
    not fit into memory."""
    if size > SEGMENT_BYTES_MAX:
        raise CorruptError(
            path, SEGMENT_BYTES_MAX, f"file is {size} bytes long, a journal file has at most {SEGMENT_BYTES_MAX}"
        )


def read_at(vfs: Vfs, fd: int, offset: int, size: int) -> bytes:
    """`size` bytes, or what there is up to the end of the file."""
    data = vfs.pread(fd, size, offset)
    while len(data) < size and (more := vfs.pread(fd, size - len(data), offset + len(data))):
        data += more
    return data


def read_header(path: str, data: bytes) -> SegmentHeader | None:
    """The segment's header, checked against the file's name; None where the segment was never begun."""
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
            if sealed is not None or _later_batch(data, start, header, number):
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


def _later_batch(data: bytes, offset: int, header: SegmentHeader, number: int) -> bool:
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
    """The file that this master writes now. Written only through a descriptor that holds its own exclusive lock, so
    that an NFSv4 server refuses the writes of a deposed master.
    """

    __slots__ = ("fd", "name", "number", "reserved", "salt", "size", "zeroed")

    def __init__(self, fd: int, name: str, number: int, salt: int, size: int) -> None:
        self.fd = fd
        self.name = name
        self.number = number
        self.salt = salt
        self.size = size
        self.reserved = 0
        self.zeroed = 0  # blocks are written up to here, perhaps with zeros: a small batch has nothing to ask for

    def reserve(self, vfs: Vfs, start: int, end: int) -> None:
        """Have space set aside up to `end`, and some more, for a batch that begins at `start`. Raises OSError."""
        if end > self.reserved:
            wanted = max(end, min(self.reserved + self.size // RESERVE_STEPS, self.size))
            if not vfs.allocate(self.fd, wanted):
                self.zeroed = self.size  # nothing is set aside here, so no block has to be noted
            self.reserved = wanted
        zeroed = min((end + ZEROS_BYTES) // BLOCK_BYTES * BLOCK_BYTES, self.reserved)
        if end > self.zeroed and end - start <= SMALL_BATCH_BYTES and zeroed - end >= BLOCK_BYTES:
            write_all(vfs, self.fd, bytes(zeroed - end), end)
            self.zeroed = zeroed

    def give_back(self, vfs: Vfs, reserved: int) -> None:
        """The disk is full: free the space that was taken behind the part that had been set aside before."""
        self.reserved = reserved
        self.zeroed = min(self.zeroed, reserved)
        if vfs.fstat(self.fd).st_size > reserved:
            vfs.ftruncate(self.fd, reserved)


def create_segment(vfs: Vfs, directory: str, header: SegmentHeader, size: int) -> OpenSegment:
    """Make, lock, reserve and head a new segment, durable with its name. Raises OSError; a full disk leaves no file."""
    name = segment_name(header.epoch, header.number)
    path = os.path.join(directory, name)
    fd = vfs.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        if not vfs.try_lock(fd):
            raise OSError(errno.EACCES, "a new segment is locked by somebody else", path)
        file = OpenSegment(fd, name, header.number, header.salt, size)
        file.reserve(vfs, 0, HEADER_BYTES)
        write_all(vfs, fd, header.encode(), 0)
        vfs.fsync(fd)
        vfs.fsync_directory(directory)
        if vfs.stat(path).st_ino != vfs.fstat(fd).st_ino:  # a crash of the server took the name before it was durable
            raise OSError(errno.ESTALE, "a new segment has lost its name", path)
    except OSError as error:
        vfs.close(fd)
        if error.errno in FULL_ERRNOS:
            vfs.unlink(path)
        raise
    return file


class SegmentMaker:
    """Makes segments where nothing else touches the disk meanwhile. `made` = the last one, until somebody takes it."""

    def __init__(self, vfs: Vfs, directory: str) -> None:
        self.made: OpenSegment | None = None
        self._vfs = vfs
        self._directory = directory

    def make(self, header: SegmentHeader, size: int) -> OpenSegment:
        """See `create_segment`."""
        self.made = create_segment(self._vfs, self._directory, header, size)
        return self.made

    def close(self) -> None:
        """Nobody will take the segment that was made."""
        made, self.made = self.made, None
        if made is not None:
            self._vfs.close(made.fd)


def finish_segment(vfs: Vfs, fd: int, end: int) -> None:
    """Close a segment that is written no more and give back what was reserved behind `end`. The caller has
    synced all its batches: no seal, even of a master that deposed it, lies behind `end`.
    """
    try:
        vfs.ftruncate(fd, end)
    finally:
        vfs.close(fd)
