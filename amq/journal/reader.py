"""Reads single messages back from the journal, wherever they stand. Every record is proved by its checksum.

Segments are opened anew for each read: one may be another host's, or be gone since (FileNotFoundError: its messages
were copied forward).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple, Protocol, Self, TypeVar

from amq.core.errors import CorruptError
from amq.core.message import LARGE_BODY_BYTES, Message
from amq.doors.threads import JobRunner
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
from amq.journal.segment import read_header
from amq.store.segment_log import Reader, SegmentLog

T = TypeVar("T")
Found = Callable[[list[Message] | None, Exception | None], None]  # messages that were read, or why not
Payload = tuple[int, memoryview]  # where in the segment it starts, the bytes
GAP_BYTES = 16 << 10  # records that are no further apart are read with one call
FoundRuns = Callable[["list[RecordRun | Message] | None", Exception | None], None]


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


def read_messages(log: SegmentLog, places: Sequence[tuple[Placed, str]]) -> list[Message]:
    """The messages at `places`, each with the name of its destination, in that order. Raises CorruptError, OSError."""
    messages: list[Message] = []
    with _Opened(log) as segments:
        i = 0
        while i < len(places):
            first = places[i][0]
            segment = segments.get(first.segment)
            if first.size > LARGE_BODY_BYTES:
                messages.append(_read_large(segment, first, places[i][1]))
                i += 1
                continue
            last, stop = _near(places, i)
            data = segment.read(first.offset, stop - first.offset)
            messages += _messages_in(segment.place, data, first.offset, places[i:last])
            i = last
    return messages


class RecordRun(NamedTuple):
    """Records of plain messages, one after the other, and the size of each."""

    data: bytes | memoryview
    sizes: Sequence[int]


def read_runs(log: SegmentLog, columns: Sequence[array[int]], destination: str) -> list[RecordRun | Message]:
    """The messages of `destination` that are at the places whose seqs, segments, offsets and sizes are `columns`, in
    that order: plain ones in runs, others one by one. A plain message is neither large nor held by several queues, and
    its properties are text. Raises CorruptError, OSError. Measured: 0.35 µs a record."""
    found: list[RecordRun | Message] = []
    seqs, codes, offsets, sizes = columns
    with _Opened(log) as segments:
        start = 0
        while start < len(seqs):
            segment = segments.get(codes[start])
            if sizes[start] > LARGE_BODY_BYTES:
                place = _At(seqs[start], offsets[start], sizes[start])
                found.append(_read_large(segment, place, destination))
                start += 1
                continue
            stop, end = _near_rows(columns, start)
            data = segment.read(offsets[start], end - offsets[start])
            found += _runs_in(segment.place, data, [column[start:stop] for column in columns], destination)
            start = stop
    return [*_joined(found)]


def _joined(found: Iterable[RecordRun | Message]) -> Iterator[RecordRun | Message]:
    """The same, with runs that follow each other as one."""
    runs: list[RecordRun] = []
    for each in found:
        if isinstance(each, RecordRun):
            runs.append(each)
            continue
        yield from _as_one(runs)
        runs = []
        yield each
    yield from _as_one(runs)


def _as_one(runs: list[RecordRun]) -> list[RecordRun]:
    if len(runs) < 2:
        return runs
    return [RecordRun(b"".join([run.data for run in runs]), [*chain.from_iterable(run.sizes for run in runs)])]


def _near_rows(columns: Sequence[array[int]], start: int) -> tuple[int, int]:
    """The first row behind `start` that is not read together with that one, and where those before it end."""
    _, codes, offsets, sizes = columns
    code, end, row = codes[start], offsets[start], start
    for row in range(start, len(codes)):
        offset, size = offsets[row], sizes[row]
        if not end <= offset <= end + GAP_BYTES or size > LARGE_BODY_BYTES or codes[row] != code:
            return row, end
        end = offset + size
    return row + 1, end


def _runs_in(path: str, data: bytes, columns: Sequence[array[int]], destination: str) -> Iterator[RecordRun | Message]:
    """The messages in `data`, which begins with the first of these."""
    seqs, _, offsets, sizes = columns
    unpack, view, first = RECORD.unpack_from, memoryview(data), offsets[0]
    begin, end = 0, 0  # of the run, in bytes
    row = begun = 0
    for row, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        at = offset - first
        record = data[at : at + size]  # a copy of the few bytes costs less than a view
        is_plain = False
        if len(record) == size >= RECORD_BYTES + MESSAGE_BYTES and not is_extended(record):
            body_bytes, crc, kind = unpack(record)
            is_plain = (
                kind == MESSAGE and body_bytes == size - RECORD_BYTES and crc32(record[RECORD_BYTES:], kind) == crc
            )
        if is_plain and at == end:
            end += size
            continue
        if begun < row:
            yield RecordRun(view[begin:end], sizes[begun:row])
        begun, begin = row, at
        end = at + size
        if not is_plain:
            yield decode_at(path, record, _At(seqs[row], offset, size), destination)
            begun, begin = row + 1, end
    if begun <= row:
        yield RecordRun(view[begin:end], sizes[begun:])


class _At(NamedTuple):
    seq: int
    offset: int
    size: int


class _Opened:
    """One segment at a time, open for reading."""

    def __init__(self, log: SegmentLog) -> None:
        self._log = log
        self._code = -1
        self._segment: Reader | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()

    def get(self, code: int) -> Reader:
        """Raises OSError."""
        if self._segment is None or code != self._code:
            self._close()
            self._segment, self._code = self._log.open(segment_name(code >> 32, code & 0xFFFFFFFF)), code
        return self._segment


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


def _read_large(segment: Reader, place: PlacedInSegment, destination: str) -> Message:
    """One message, its body read into the very bytes that it then has."""
    head = segment.read(place.offset, RECORD_BYTES + MULTICAST_BYTES)
    if len(head) == RECORD_BYTES + MULTICAST_BYTES:
        of_kind = multicast_body_offset if head[RECORD_BYTES - 1] == MULTICAST else body_offset
        start = min(of_kind(head), place.size)
        head, body = segment.read(place.offset, start), segment.read(place.offset + start, place.size - start)
        return decode_at(segment.place, head, place, destination, body)
    return decode_at(segment.place, head, place, destination)


class Scan:
    """Walks over the records of one segment, a piece at a time. One caller at a time. `end` = bytes that count."""

    def __init__(self, log: SegmentLog, name: str, end: int) -> None:
        self._log = log
        self._name = name
        self.path = log.place(name)
        self._end = end
        self._offset = HEADER_BYTES
        self._salt: int | None = None

    def next(self, size: int) -> list[Payload] | None:
        """The payloads of the next batches, about `size` bytes; None at the end. Raises CorruptError, OSError."""
        if self._offset >= self._end:
            return None
        with self._log.open(self._name) as segment:
            if self._salt is None:
                header = read_header(self.path, segment.read(0, HEADER_BYTES))
                if header is None:
                    raise CorruptError(self.path, 0, "segment header is gone")
                self._salt = header.salt
            data = memoryview(segment.read(self._offset, min(size, self._end - self._offset)))
            whole = self._whole(data)
            if not whole:  # one batch larger than `size`
                data = memoryview(segment.read(self._offset, BATCH_BYTES + self._batch(data).payload_bytes))
                whole = self._whole(data)
                if not whole:
                    why = f"file is shorter than the {self._end} bytes of it that count: it was truncated"
                    raise CorruptError(self.path, self._offset + len(data), why)
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

    def __init__(self, log: SegmentLog, runner: JobRunner) -> None:
        self._log = log
        self._runner = runner
        self._abandoned = False

    def read(self, places: Sequence[tuple[Placed, str]], done: Found) -> None:
        """Read stored messages back: see `read_messages`."""
        self.run(partial(read_messages, self._log, places), done)

    def read_runs(self, columns: Sequence[array[int]], destination: str, done: FoundRuns) -> None:
        """The same, but as they are there: see `read_runs`."""
        self.run(partial(read_runs, self._log, columns, destination), done)

    def scan(self, segment: Segment) -> Scan:
        """Scan the records of one segment, for `scan_on`."""
        return Scan(self._log, segment.name, segment.end)

    def scan_on(self, scan: Scan, size: int, done: Callable[[list[Payload] | None, Exception | None], None]) -> None:
        """The next piece of a scan."""
        self.run(partial(scan.next, size), done)

    def measure(self, segments: Sequence[Segment], done: Callable[[list[int] | None, Exception | None], None]) -> None:
        """How large their files are; 0 where one is gone."""
        names = [segment.name for segment in segments]
        self.run(lambda: [self._file_bytes(name) for name in names], done)

    def _file_bytes(self, name: str) -> int:
        try:
            return self._log.size(name)
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
