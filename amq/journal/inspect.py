"""Reading a store's journal without being a broker on it: `amq journal check`, `dump`, `stat` and more.

Invariants: nothing is written, locked or kept open; every batch and record that counts is checked against its CRC;
damage is reported with file and offset and never ends the inspection. A master may be at work meanwhile: the end of its
newest segment grows, old segments vanish. The inspection looks again before it reports such a change as damage.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from amq.core.errors import CorruptError, StoreError
from amq.journal.decoder import Decoder
from amq.journal.format import (
    BATCH_BYTES,
    BATCH_MAGIC,
    HEADER_BYTES,
    RECORD,
    RECORD_BYTES,
    BatchHeader,
    SegmentHeader,
    crc32,
    decode_batch_header,
    parse_segment_name,
    segment_key,
    segment_name,
)
from amq.journal.liveness import Liveness
from amq.journal.records import PREVIOUS, Previous, Record, Trimmed
from amq.journal.recovery import missing_before, newest_mark
from amq.journal.segment import list_segments, read_header, read_segment
from amq.store.segment_log import RESERVE_NAME, SegmentLog

ROUNDS_MAX = 8  # looks at a store that changes while we look
SEALED, OPEN, EMPTY, IGNORED, GONE = "sealed", "open", "empty", "ignored", "gone"

Sealing = tuple[int, Mapping[str, int]]  # number of the newest epoch (0 = none), the lengths that it sealed
ONE_COPY: Final[Sealing] = (-1, {})  # of one copy alone: without epochs, each segment counts as far as it is whole
Progress = Callable[[int, int], None]


def _untold(_done: int, _total: int) -> None:
    """No progress is reported."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the store that no crash explains. `code` is that of the error which a broker would raise."""

    code: str
    path: str
    offset: int
    why: str

    def __str__(self) -> str:
        return f"{self.path}: offset {self.offset}: {self.why}"


@dataclass(slots=True)
class SegmentReport:
    """One segment as it was found.

    state       sealed (its length is known), open (a master may still write it), empty (never begun), ignored (written
                by a broker after it was deposed: nothing in it counts), gone (deleted while we looked)
    file_bytes  size of the file, reserved space included
    end         bytes of it that count
    torn_bytes  written behind the last whole batch of an open segment: never confirmed, normal after a crash
    version     of its format; 0 = not read
    """

    name: str
    epoch: int
    number: int
    state: str = OPEN
    file_bytes: int = 0
    end: int = 0
    batches: int = 0
    records: int = 0
    torn_bytes: int = 0
    version: int = 0


class Found(NamedTuple):
    """One record and where it stands; `data` are its bytes, framing included (a view of the whole segment's)."""

    segment: SegmentReport
    batch: BatchHeader
    offset: int
    record: Record
    data: memoryview


class _Names(dict[int, str]):
    """Destinations by number in a segment of which a part is lost: where that was the definition, `?number`."""

    def __missing__(self, number: int) -> str:
        return f"?{number}"

    def get(self, number: int, default: Any = None) -> Any:  # noqa: ARG002
        return self[number]


class Inspection:
    """One look at the journal in `log`, whose newest epoch and sealed lengths are `sealing`.

    `segments`, `problems` and `trimmed` fill while `records` runs.
    """

    def __init__(self, log: SegmentLog, sealing: Sealing) -> None:
        """Raises OSError where there is no journal."""
        self.segments: list[SegmentReport] = []
        self.problems: list[Problem] = []
        self.trimmed = Trimmed()
        self.names = list_segments(log)
        self._log = log
        self._epoch, self._sealed = sealing
        self._mark: Trimmed | None = None  # says where segments end before a gap, once it was looked for
        self._store_uuid: bytes | None = None  # that of the first segment with records

    def records(self, only: str = "", progress: Progress = _untold) -> Iterator[Found]:
        """Every record that counts, oldest first; of one segment where `only` names it."""
        for number, name in enumerate(self.names, start=1):
            if not only or name == only:
                yield from self._segment(name)
                progress(number, len(self.names))

    def lengths(self) -> dict[str, int]:
        """How many bytes of each segment count, oldest first: a snapshot, which later writes do not change. Only the
        open segment is read whole; segments in which nothing counts, and that are gone meanwhile, are left out.
        Damage of the open one is a problem; the reader of the others finds theirs.
        """
        found = {}
        for name in self.names:
            report = SegmentReport(name, *segment_key(name))
            try:
                end = self._end(report)
                if end is None:
                    self._batches(report)
                    end = report.end
            except FileNotFoundError:
                continue
            if end > HEADER_BYTES:
                found[name] = end
        return found

    def check_complete(self) -> None:
        """After all `records`: is a segment missing that nobody trimmed?

        Damage may hide the mark that trimmed all before it, so those are not reported until it is repaired.
        """
        damaged = max([segment_key(os.path.basename(problem.path)) for problem in self.problems], default=(0, 0))
        trimmed = self.trimmed.newest(Trimmed(*damaged))
        counted = {report.name for report in self.segments if report.state in (SEALED, OPEN)}
        missing = {name for name, end in self._sealed.items() if end and name not in counted}
        missing |= {report.name for report in self.segments if report.state == GONE}
        there = [(report.epoch, report.number) for report in self.segments if report.name in counted]
        for key in missing_before(there, trimmed):
            why = "the segment before it is missing: somebody removed it from the store"
            self._problem("STORE_CORRUPT", segment_name(*key), 0, why)
        for name in sorted(missing):
            if segment_key(name) not in trimmed:
                self._problem("STORE_CORRUPT", name, 0, "segment is missing: somebody removed it")

    def missing(self) -> list[str]:
        """Segments that are needed and are not there, or before which such a one is missing. Unlike `check_complete` it
        reads no segment but where there is a gap. Raises OSError."""
        names, counting = set(self.names), []
        for name in self.names:
            if self._sealed[name] if name in self._sealed else segment_key(name)[0] >= self._epoch:
                counting.append(segment_key(name))
        gone = [name for name, end in self._sealed.items() if end and name not in names]
        if not gone and not any(missing_before(counting, Trimmed())):
            return []
        trimmed = Trimmed()
        for epoch in sorted({key[0] for key in map(segment_key, self.names)}, reverse=True):
            trimmed = newest_mark(self._log, self.names, epoch)
            if trimmed.through > (0, 0):
                break
        found = [segment_name(*key) for key in missing_before(counting, trimmed)]
        return sorted({*found, *(name for name in gone if segment_key(name) not in trimmed)})

    def check_epoch(self) -> None:
        """Is the newest epoch file missing?"""
        newest = self.names[-1] if self.names else ""
        if segment_key(newest)[0] > self._epoch and self._epoch != ONE_COPY[0]:
            why = f"the newest epoch file is of {self._epoch}: epochs/ is missing or older than journal/"
            self._problem("STORE_INCOMPLETE", newest, 0, why)

    # -- one segment --------------------------------------------------------------------------------------------------

    def _segment(self, name: str) -> Iterator[Found]:
        epoch, number = segment_key(name)
        report = SegmentReport(name, epoch, number)
        self.segments.append(report)
        path = self._log.place(name)
        problems = len(self.problems)
        try:
            batches = self._batches(report)
        except FileNotFoundError:
            report.state = GONE
            return
        except StoreError as error:
            offset = error.offset if isinstance(error, CorruptError) else 0
            why = error.why if isinstance(error, CorruptError) else error.description.removeprefix(f"{path} ")
            self._problem(error.code, name, offset, why)
            return
        decoder = Decoder(path)
        if len(self.problems) > problems:
            decoder.names = _Names()
        for start, head, payload in batches:
            report.batches += 1
            for offset, data, record in self._decode(report, decoder, payload, start + BATCH_BYTES):
                report.records += 1
                if isinstance(record, Trimmed):
                    self.trimmed = record
                yield Found(report, head, offset, record, data)

    def _batches(self, report: SegmentReport) -> list[tuple[int, BatchHeader, memoryview]]:
        """Read the segment until two looks agree on what is wrong with it. Raises StoreError, OSError."""
        before: list[Problem] | None = None
        path = self._log.place(report.name)
        for _ in range(ROUNDS_MAX):
            end = self._end(report)
            data = read_segment(self._log, report.name)
            report.file_bytes = len(data)
            if end == 0:
                report.state = IGNORED if data[HEADER_BYTES:].strip(b"\0") else EMPTY
                if report.name not in self._sealed:
                    read_header(path, data)  # as sealing does: it refuses what is not a segment
                return []
            header = read_header(path, data)
            if header is None:
                if end is not None:
                    raise CorruptError(path, 0, "segment header is gone")
                report.state = EMPTY
                return []
            report.version = header.version
            if self._store_uuid not in (None, header.store_uuid):  # as replay does
                raise StoreError(f"{path} belongs to another store: move it out", code="STORE_FOREIGN_FILE")
            batches: list[tuple[int, BatchHeader, memoryview]] = []
            problems: list[Problem] = []
            for item in scan(path, data, header, end):
                if isinstance(item, Problem):
                    problems.append(item)
                else:
                    batches.append(item)
                    self._store_uuid = header.store_uuid
            if end is not None or not problems or problems == before:
                break
            before = problems
        self.problems += problems
        whole = max([start + BATCH_BYTES + head.payload_bytes for start, head, _ in batches], default=HEADER_BYTES)
        report.state, report.end = (OPEN, whole) if end is None else (SEALED, end)
        if end is None:
            report.torn_bytes = len(data[whole:].rstrip(b"\0"))
        return batches

    def _end(self, report: SegmentReport) -> int | None:
        """Bytes of the segment that count; None = open end."""
        if report.name in self._sealed:
            return self._sealed[report.name]
        if report.epoch < self._epoch:
            return 0
        successor = segment_name(report.epoch, report.number + 1)
        if successor in self.names:
            return self._previous_end(successor)
        if not any(successor < name and segment_key(name)[0] == report.epoch for name in self.names):
            return None
        if self._mark is None:
            self._mark = newest_mark(self._log, self.names, report.epoch)
        return self._mark.kept.get((report.epoch, report.number))

    def _previous_end(self, name: str) -> int | None:
        """The end of the segment before `name`, as `name` says it; None where it does not say so yet."""
        data = read_segment(self._log, name, HEADER_BYTES + BATCH_BYTES + RECORD_BYTES + 8)
        try:
            header = read_header(self._log.place(name), data)
        except StoreError:
            return None  # its own problem, reported when its turn comes
        whole = len(data) == HEADER_BYTES + BATCH_BYTES + RECORD_BYTES + 8
        if header is None or not whole or decode_batch_header(data, HEADER_BYTES, header.salt) is None:
            return None
        size, crc, kind = RECORD.unpack_from(data, HEADER_BYTES + BATCH_BYTES)
        body = data[HEADER_BYTES + BATCH_BYTES + RECORD_BYTES :]
        says = kind == PREVIOUS and size == len(body) and crc32(body, kind) == crc
        return Previous.decode(body).end if says else None

    def _decode(
        self, report: SegmentReport, decoder: Decoder, payload: memoryview, at: int
    ) -> Iterator[tuple[int, memoryview, Record]]:
        """(offset, bytes, record) of each record of a batch whose CRC is right."""
        position = 0
        while position < len(payload):
            stop = len(payload)
            if stop - position >= RECORD_BYTES:
                stop = min(stop, position + RECORD_BYTES + RECORD.unpack_from(payload, position)[0])
            try:
                for record in decoder.decode(payload[position:stop], at + position):
                    yield at + position, payload[position:stop], record
            except StoreError as error:
                why = error.why if isinstance(error, CorruptError) else error.description
                self._problem(error.code, report.name, at + position, why)
            except (ValueError, LookupError, struct.error) as error:
                self._problem("STORE_CORRUPT", report.name, at + position, f"record cannot be read: {error}")
            position = stop

    def _problem(self, code: str, name: str, offset: int, why: str) -> None:
        self.problems.append(Problem(code, self._log.place(name), offset, why))


def scan(
    path: str, data: bytes, header: SegmentHeader, sealed: int | None
) -> Iterator[tuple[int, BatchHeader, memoryview] | Problem]:
    """Batches as (offset, header, payload) and the damage between them. Judges as `segment.read_batches` does, which
    stops at the first damage; this goes on behind it."""
    view = memoryview(data)
    end = len(data) if sealed is None else min(sealed, len(data))
    offset, number = HEADER_BYTES, 0
    while offset < end:
        head = decode_batch_header(view, offset, header.salt)
        stop = offset + BATCH_BYTES + (head.payload_bytes if head is not None else 0)
        why = ""
        if head is None:
            why = "no valid batch header"
        elif head.epoch != header.epoch or (number and head.number != number + 1):
            why = f"batch {head.number} of epoch {head.epoch} does not follow batch {number} of epoch {header.epoch}"
        elif stop > end:
            why = "batch is longer than the segment"
        elif crc32(view[offset + BATCH_BYTES : stop], header.salt) != head.payload_crc:
            why = f"batch {head.number} fails its checksum"
        if head is not None and not why:
            yield offset, head, view[offset + BATCH_BYTES : stop]
            offset, number = stop, head.number
            continue
        following = _next_batch(data, offset, end, header, number)
        if following is not None:
            yield Problem("STORE_CORRUPT", path, offset, f"{why}; the next whole batch begins at offset {following[0]}")
            offset, number = following[0], following[1] - 1
            continue
        if sealed is not None:
            yield Problem("STORE_CORRUPT", path, offset, why)
        break
    if sealed is not None and sealed > len(data):
        why = f"file is shorter than its sealed length {sealed}: it was truncated"
        yield Problem("STORE_CORRUPT", path, len(data), why)


def _next_batch(data: bytes, offset: int, end: int, header: SegmentHeader, number: int) -> tuple[int, int] | None:
    """(offset, number) of the first batch between the damage at `offset` and `end` that was written after the damaged
    one."""
    end -= BATCH_BYTES - len(BATCH_MAGIC)  # a header is before it
    position = data.find(BATCH_MAGIC, offset + 1, end)
    while position >= 0:
        head = decode_batch_header(data, position, header.salt)
        if head is not None and head.epoch == header.epoch and head.number > number + 1:
            return position, head.number
        position = data.find(BATCH_MAGIC, position + 1, end)
    return None


def inspect(
    log: SegmentLog,
    read_sealing: Callable[[], Sealing],
    make_liveness: Callable[[], Liveness] = Liveness,
    progress: Progress = _untold,
) -> tuple[Inspection, Liveness]:
    """Read and verify the whole journal. A takeover or a deletion meanwhile makes it begin anew, a few times at most.

    `read_sealing` reads the newest epoch; `progress(segments read, segments in all)` is called after each segment.
    Raises OSError where there is no journal, and what `read_sealing` raises.
    """
    sealing = read_sealing()
    for _ in range(ROUNDS_MAX):
        inspection, liveness = Inspection(log, sealing), make_liveness()
        for found in inspection.records(progress=progress):
            liveness.add(found.segment.name, found.offset, found.data, found.record)
        liveness.settle()
        inspection.check_complete()
        inspection.check_epoch()
        before, sealing = sealing, read_sealing()
        settled = sealing[0] == before[0] and list_segments(log) == inspection.names
        if settled or not inspection.problems:
            break
    return inspection, liveness


def foreign_files(log: SegmentLog) -> list[str]:
    """Names in `log` that no broker gave: somebody put them there."""
    return sorted(name for name in log.names() if parse_segment_name(name) is None and name != RESERVE_NAME)
