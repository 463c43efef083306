"""Reads single messages back from the journal, wherever they stand. Every record is proved by its checksum.

Files are opened anew for each read: the segment may be another host's, or be gone since (FileNotFoundError: its
messages were copied forward).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from amq.errors import CorruptError
from amq.journal.format import (
    BATCH_BYTES,
    HEADER_BYTES,
    RECORD,
    RECORD_BYTES,
    BatchHeader,
    crc32,
    decode_batch_header,
    segment_name,
)
from amq.journal.live import Segment
from amq.journal.records.message import MESSAGE, MESSAGE_BYTES, body_offset, decode_message, is_extended
from amq.journal.records.multicast import MULTICAST, MULTICAST_BYTES, decode_copy, multicast_body_offset
from amq.journal.segment import read_at, read_header
from amq.journal.writer import JobRunner
from amq.message import LARGE_BODY_BYTES, Message
from amq.vfs import Vfs

T = TypeVar("T")
Found = Callable[[list[Message] | None, Exception | None], None]  # messages that were read, or why not
FoundRecords = Callable[[list[bytes | Message] | None, Exception | None], None]
Payload = tuple[int, memoryview]  # where in the segment it starts, the bytes
GAP_BYTES = 16 << 10  # records that are no further apart are read with one call


class PlacedInSegment(Protocol):
    """Where in its segment a message stands: offset and size of its record in bytes; and its seq, as several may stand
    there."""

    @property
    def seq(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def size(self) -> int: ...


class Placed(PlacedInSegment, Protocol):
    """The same, and in which segment: its code."""

    @property
    def segment(self) -> int: ...


def read_messages(vfs: Vfs, directory: str, places: Sequence[tuple[Placed, str]]) -> list[Message]:
    """The messages at `places`, each with the name of its destination, in that order. Raises CorruptError, OSError."""
    return _read(vfs, directory, places, _messages_in)


def read_records(vfs: Vfs, directory: str, places: Sequence[tuple[Placed, str]]) -> list[bytes | Message]:
    """The same, but of a plain message the bytes of its record: it is neither large nor held by several queues, and its
    properties are text. Raises CorruptError, OSError."""
    return _read(vfs, directory, places, _records_in)


def _read(
    vfs: Vfs, directory: str, places: Sequence[tuple[Placed, str]],
    read: Callable[[str, bytes, int, Sequence[tuple[Placed, str]]], list[T]],
) -> list[T | Message]:  # fmt: skip
    """`read` makes something of messages that stand near to each other: path, bytes, their offset, and the places."""
    messages: list[T | Message] = []
    fd, path, opened, i = -1, "", -1, 0
    try:
        while i < len(places):
            first = places[i][0]
            if first.segment != opened:
                if fd >= 0:
                    vfs.close(fd)
                    fd = -1
                path = os.path.join(directory, segment_name(first.segment >> 32, first.segment & 0xFFFFFFFF))
                fd, opened = vfs.open(path, os.O_RDONLY), first.segment
            if first.size > LARGE_BODY_BYTES:
                messages.append(_read_large(vfs, fd, path, first, places[i][1]))
                i += 1
                continue
            last, stop = _near(places, i)
            messages += read(path, read_at(vfs, fd, first.offset, stop - first.offset), first.offset, places[i:last])
            i = last
    finally:
        if fd >= 0:
            vfs.close(fd)
    return messages


def _near(places: Sequence[tuple[Placed, str]], i: int) -> tuple[int, int]:
    """The first of `places` behind `i` that is not read together with that one, and where those before it end."""
    first, last = places[i][0], i + 1
    stop, segment = first.offset + first.size, first.segment
    while last < len(places):
        place = places[last][0]
        offset, size = place.offset, place.size
        near = place.segment == segment and stop <= offset <= stop + GAP_BYTES
        if not near or size > LARGE_BODY_BYTES:
            break
        stop = offset + size
        last += 1
    return last, stop


def _messages_in(path: str, data: bytes, start: int, places: Sequence[tuple[Placed, str]]) -> list[Message]:
    view, found = memoryview(data), []
    for place, destination in places:
        piece = view[place.offset - start : place.offset - start + place.size]
        found.append(decode_at(path, piece, place, destination))
    return found


def _records_in(path: str, data: bytes, start: int, places: Sequence[tuple[Placed, str]]) -> list[bytes | Message]:
    """Measured: 0.45 µs a record."""
    unpack = RECORD.unpack_from
    found: list[bytes | Message] = []
    for place, destination in places:
        at, size = place.offset - start, place.size
        record = data[at : at + size]
        if len(record) == size >= RECORD_BYTES + MESSAGE_BYTES and not is_extended(record):
            body_bytes, crc, kind = unpack(record)
            # A copy of the few bytes costs less than a view.
            if kind == MESSAGE and body_bytes == size - RECORD_BYTES and crc32(record[RECORD_BYTES:], kind) == crc:
                found.append(record)
                continue
        found.append(decode_at(path, record, place, destination))
    return found


def _read_large(vfs: Vfs, fd: int, path: str, place: Placed, destination: str) -> Message:
    """One message, its body read into the very bytes that it then has."""
    head = read_at(vfs, fd, place.offset, RECORD_BYTES + MULTICAST_BYTES)
    if len(head) == RECORD_BYTES + MULTICAST_BYTES:
        of_kind = multicast_body_offset if head[RECORD_BYTES - 1] == MULTICAST else body_offset
        start = min(of_kind(head), place.size)
        head = read_at(vfs, fd, place.offset, start)
        return decode_at(
            path, head, place, destination,
            read_at(vfs, fd, place.offset + start, place.size - start),
        )  # fmt: skip
    return decode_at(path, head, place, destination)


class Scan:
    """Walks over the records of one segment, a piece at a time. One caller at a time. `end` = bytes that count."""

    def __init__(self, vfs: Vfs, directory: str, name: str, end: int) -> None:
        self._vfs = vfs
        self.path = os.path.join(directory, name)
        self._end = end
        self._offset = HEADER_BYTES
        self._salt: int | None = None

    def next(self, size: int) -> list[Payload] | None:
        """The payloads of the next batches, about `size` bytes; None at the end. Raises CorruptError, OSError."""
        if self._offset >= self._end:
            return None
        fd = self._vfs.open(self.path, os.O_RDONLY)
        try:
            if self._salt is None:
                header = read_header(self.path, read_at(self._vfs, fd, 0, HEADER_BYTES))
                if header is None:
                    raise CorruptError(self.path, 0, "segment header is gone")
                self._salt = header.salt
            data = memoryview(read_at(self._vfs, fd, self._offset, min(size, self._end - self._offset)))
            whole = self._whole(data)
            if not whole:  # one batch larger than `size`
                data = memoryview(read_at(self._vfs, fd, self._offset, BATCH_BYTES + self._batch(data).payload_bytes))
                whole = self._whole(data)
                if not whole:
                    why = f"file is shorter than the {self._end} bytes of it that count: it was truncated"
                    raise CorruptError(self.path, self._offset + len(data), why)
        finally:
            self._vfs.close(fd)
        payloads: list[Payload] = []
        position = 0
        while position < whole:
            batch = self._batch(data[position:])
            start, stop = position + BATCH_BYTES, position + BATCH_BYTES + batch.payload_bytes
            if crc32(data[start:stop], self._salt) != batch.payload_crc:
                raise CorruptError(self.path, self._offset + position, f"batch {batch.number} fails its checksum")
            payloads.append((self._offset + start, data[start:stop]))
            position = stop
        self._offset += whole
        return payloads

    def _whole(self, data: memoryview) -> int:
        """Bytes of `data` up to the end of the last batch that is whole in it."""
        position = 0
        while len(data) - position >= BATCH_BYTES:
            stop = position + BATCH_BYTES + self._batch(data[position:]).payload_bytes
            if stop > len(data):
                break
            position = stop
        return position

    def _batch(self, data: memoryview) -> BatchHeader:
        assert self._salt is not None
        batch = decode_batch_header(data, 0, self._salt)
        if batch is None:
            raise CorruptError(self.path, self._offset, "no valid batch header")
        return batch


class JournalReader:
    """Reads for a live broker, off its event loop. After `abandon` it makes no callbacks."""

    def __init__(self, vfs: Vfs, directory: str, runner: JobRunner) -> None:
        self._vfs = vfs
        self._directory = directory
        self._runner = runner
        self._abandoned = False

    def read(self, places: Sequence[tuple[Placed, str]], done: Found) -> None:
        """Read stored messages back: see `read_messages`."""
        self.run(partial(read_messages, self._vfs, self._directory, places), done)

    def read_records(self, places: Sequence[tuple[Placed, str]], done: FoundRecords) -> None:
        """The same, but as they stand there: see `read_records`."""
        self.run(partial(read_records, self._vfs, self._directory, places), done)

    def scan(self, segment: Segment) -> Scan:
        """For `scan_on`: the records of one segment."""
        return Scan(self._vfs, self._directory, segment.name, segment.end)

    def scan_on(self, scan: Scan, size: int, done: Callable[[list[Payload] | None, Exception | None], None]) -> None:
        """The next piece of a scan."""
        self.run(partial(scan.next, size), done)

    def measure(self, segments: Sequence[Segment], done: Callable[[list[int] | None, Exception | None], None]) -> None:
        """How large their files are; 0 where one is gone."""
        paths = [os.path.join(self._directory, segment.name) for segment in segments]
        self.run(lambda: [self._file_bytes(path) for path in paths], done)

    def _file_bytes(self, path: str) -> int:
        try:
            return self._vfs.stat(path).st_size
        except FileNotFoundError:
            return 0

    def abandon(self) -> None:
        self._abandoned = True

    def run(self, job: Callable[[], T], done: Callable[[T | None, Exception | None], None]) -> None:
        """Run `job` among the readings."""

        def finished(result: T | None, error: Exception | None) -> None:
            if not self._abandoned:
                done(result, error)

        if not self._abandoned:
            self._runner.submit(job, finished)


def decode_at(
    path: str, piece: bytes | memoryview, place: PlacedInSegment, destination: str, body: bytes = b""
) -> Message:
    """The message that queue `destination` holds at `place`, a record of `path` that was read as `piece`, or as `piece`
    up to the body and `body`. Raises CorruptError."""
    offset, size = place.offset, place.size
    if offset < HEADER_BYTES or len(piece) + len(body) < size or size < RECORD_BYTES:
        raise CorruptError(path, offset, "file ends inside a message that was stored: it was truncated")
    body_bytes, crc, kind = RECORD.unpack_from(piece)
    bytes_min = {MESSAGE: MESSAGE_BYTES, MULTICAST: MULTICAST_BYTES}.get(kind, size)
    whole = bytes_min <= body_bytes == size - RECORD_BYTES
    if not whole or crc32(body, crc32(piece[RECORD_BYTES:], kind)) != crc:
        raise CorruptError(path, offset, "record fails its checksum")
    try:
        stop = size - len(body)
        message: Message
        if kind == MESSAGE:
            message = decode_message(piece, 0, stop, destination)
        else:
            message = decode_copy(piece, stop, destination, place.seq)
    except (ValueError, struct.error, RecursionError) as error:
        raise CorruptError(path, offset, f"message: {error}") from error
    message.body = body or message.body
    message.offset, message.size = offset, size
    return message
