"""Reading what can still be read of a damaged journal: `amq journal repair`. Changes nothing.

Invariants: a record is believed only where its own CRC holds and it is where a record must stand: behind the last
whole batch, chained from the start of its batch, or in a batch that is whole. A record behind damage inside a batch is
believed only where the chain of lengths ends exactly with the batch. Every byte that counts and is not believed is in
a `Damage`. Bytes that do not count (a torn tail, what a deposed master wrote) are not looked at.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from amq.core.errors import CorruptError, NewerFormatError, StoreError
from amq.core.message import Message
from amq.journal.decoder import Decoder
from amq.journal.format import (
    BATCH,
    BATCH_BYTES,
    BATCH_MAGIC,
    HEADER,
    HEADER_BYTES,
    RECORD,
    RECORD_BYTES,
    BatchHeader,
    SegmentHeader,
    crc32,
    decode_batch_header,
    decode_header,
    segment_key,
    segment_name,
)
from amq.journal.inspect import (
    EMPTY,
    GONE,
    IGNORED,
    OPEN,
    SEALED,
    Found,
    Inspection,
    Problem,
    Sealing,
    SegmentReport,
    scan,
)
from amq.journal.liveness import Liveness
from amq.journal.records import GROUP, Consumed, Destination, Group, Moved, Record, Redelivered, Trimmed
from amq.journal.records.message import MESSAGE
from amq.journal.records.multicast import MULTICAST, Multicast, numbers_in
from amq.journal.segment import read_segment
from amq.store.segment_log import SegmentLog

LOST_DESTINATION = "queue://amq.repair.{epoch}.{number}"  # where messages go whose destination's name is lost
SEQ_GAP_MAX = 1 << 40  # a greater one is between two epochs and says nothing
_DESTINATION_AT = RECORD_BYTES + 8  # in the record of a message: behind its seq
_GROUP_RECORDS_AT = len(Group([]).encode({}))  # in the record of a group without an outcome id


OVERSIZED_BYTES = 1 << 30  # read of a file that is too large: the largest journalSegmentSize


@dataclass(slots=True)
class Damage:
    """Bytes that count and cannot be believed.

    bytes           from `offset` on; what was saved from among them is included
    batches         that are lost or damaged, at least
    records_lost    None = unknown, because no whole batch header says how many there were
    records_saved   from among the damaged bytes
    messages        lost ones by destination, as far as what is left of them tells
    messages_max    messages that may be lost here, by the gap in their seqs; None = no bound
    counts          False = nothing in it counted, but no broker starts as long as it is there
    """

    code: str
    path: str
    offset: int
    bytes: int
    why: str
    batches: int = 0
    records_lost: int | None = None
    records_saved: int = 0
    messages: Counter[str] = field(default_factory=Counter)
    messages_max: int | None = None
    counts: bool = True

    def __str__(self) -> str:
        return f"{self.path}: offset {self.offset}, {self.bytes} bytes: {self.why}"


class _Names(dict[int, str]):
    """Destinations of a segment by number; where the definition is lost, as other segments of the epoch have it."""

    def __init__(self, salvage: Salvage, epoch: int) -> None:
        super().__init__()
        self._salvage = salvage
        self._epoch = epoch

    def __missing__(self, number: int) -> str:
        name = self._salvage.epoch_names(self._epoch).get(number)
        return name or LOST_DESTINATION.format(epoch=self._epoch, number=number)

    def get(self, number: int, _default: Any = None) -> Any:
        return self[number]


class Salvage(Inspection):
    """One look at a damaged journal. `records` gives all that can be believed; then `damages` says what cannot.

    `sealing` is the newest epoch that can be read. Raises NewerFormatError: that is no damage.
    """

    def __init__(self, log: SegmentLog, sealing: Sealing) -> None:
        super().__init__(log, sealing)
        self.damages: list[Damage] = []
        self.lost: dict[int, str] = {}  # seq → destination of messages that are surely lost: they came back once
        self.store_uuid = self._vote()
        self._epoch_names: dict[int, Mapping[int, str]] = {}
        self._seq: int | None = None  # of the last message
        self._open_gaps: list[tuple[Damage, int | None]] = []  # no message was seen behind them yet

    def fold(self, liveness: Liveness) -> None:
        """All records into `liveness`; then `lost` and `damages` are complete."""
        for found in self.records():
            for part in found.record.records if isinstance(found.record, Group) else (found.record,):
                self._note(part, liveness)
            liveness.add(found.segment.name, found.offset, found.data, found.record)
        liveness.settle()
        self.check_complete()
        for problem in self.problems:
            if not any(problem.path == damage.path for damage in self.damages):  # a segment that is missing
                size = self._sealed.get(os.path.basename(problem.path), 0)
                self.damages.append(Damage(problem.code, problem.path, problem.offset, size, problem.why))

    def epoch_names(self, epoch: int) -> Mapping[int, str]:
        """Destinations by number, as the whole segments of `epoch` define them; without those that contradict."""
        names = self._epoch_names.get(epoch)
        if names is None:
            found: dict[int, str | None] = {}
            reader = Inspection(self._log, (self._epoch, self._sealed))
            reader._store_uuid = self.store_uuid
            for name in self.names:
                if segment_key(name)[0] == epoch:
                    for record in (each.record for each in reader.records(name)):
                        if isinstance(record, Destination):
                            same = found.setdefault(record.id, record.name) == record.name
                            found[record.id] = record.name if same else None
            names = self._epoch_names[epoch] = {number: name for number, name in found.items() if name}
        return names

    def _note(self, record: Record, liveness: Liveness) -> None:
        if isinstance(record, Multicast):
            for copy in record.held():
                self._note(copy, liveness)
        elif isinstance(record, Message):
            self._seq = record.seq
            self.lost.pop(record.seq, None)
            for damage, before in self._open_gaps:
                if before is not None and 0 < record.seq - before <= SEQ_GAP_MAX:
                    damage.messages_max = record.seq - before - 1
            self._open_gaps.clear()
        elif isinstance(record, Redelivered):
            unknown = (seq for seq, _, _ in record.counts if liveness.live.get(seq) is None)
            self.lost.update(dict.fromkeys(unknown, record.destination))
        elif isinstance(record, Moved):
            for seq in record.seqs:
                if seq in self.lost:
                    self.lost[seq] = record.target
        elif isinstance(record, Consumed):
            for seq in record.seqs:
                self.lost.pop(seq, None)

    # -- one segment --------------------------------------------------------------------------------------------------

    def _vote(self) -> bytes:
        """The uuid that most segments have: others are of another store. Zeros where nothing can be read."""
        votes: Counter[bytes] = Counter()
        for name in self.names:
            try:
                header = decode_header(name, read_segment(self._log, name, HEADER_BYTES))
            except StoreError:
                continue  # told when it is read
            if header is not None:
                votes[header.store_uuid] += 1
        return votes.most_common(1)[0][0] if votes else bytes(16)

    def _segment(self, name: str) -> Iterator[Found]:
        epoch, number = segment_key(name)
        report = SegmentReport(name, epoch, number)
        self.segments.append(report)
        path = self._log.place(name)
        try:
            end = self._end(report)
            data = read_segment(self._log, name)
        except FileNotFoundError:
            report.state = GONE
            return
        except CorruptError as error:  # larger than any that a broker writes
            data = read_segment(self._log, name, OVERSIZED_BYTES)
            rest = self._log.size(name) - len(data)
            self._add(report, Damage(error.code, path, len(data), rest, error.why))
        report.file_bytes = len(data)
        decoder = Decoder(path)
        decoder.names = _Names(self, epoch)
        for head, at, frame in self._frames(report, path, data, end):
            try:
                (record,) = decoder.decode(frame, at)
            except NewerFormatError:
                raise
            except (StoreError, ValueError, LookupError) as error:
                self._add(report, Damage("STORE_CORRUPT", path, at, len(frame), f"record cannot be read: {error}"))
                continue
            report.records += 1
            if isinstance(record, Trimmed):
                self.trimmed = record
            yield Found(report, head, at, record, frame)

    def _end(self, report: SegmentReport) -> int | None:
        try:
            return super()._end(report)
        except StoreError:
            return None  # the next segment, which says so, is damaged itself

    def _frames(
        self, report: SegmentReport, path: str, data: bytes, end: int | None
    ) -> Iterator[tuple[BatchHeader, int, memoryview]]:
        """(batch, offset, framed record) of all that can be believed in the segment."""
        header, why = self._header(report, path, data)
        if end == 0:
            report.state = IGNORED if data[HEADER_BYTES:].strip(b"\0") else EMPTY
            if why and report.name not in self._sealed:  # sealing refuses it, though nothing in it counts
                self._add(report, Damage("STORE_FOREIGN_FILE", path, 0, len(data), why, counts=False))
            return
        report.state = OPEN if end is None else SEALED
        report.end = end if end is not None else HEADER_BYTES
        if header is None and not why:
            report.state, report.end = (report.state, report.end) if end else (EMPTY, 0)
            if end:
                self._add(report, Damage("STORE_CORRUPT", path, 0, end, "segment header is gone, and all after it"))
            return
        if header is None:
            yield from self._without_header(report, path, data, end, why)
            return
        gap: Problem | None = None
        previous = 0
        for item in scan(path, data, header, end):
            if isinstance(item, Problem):
                gap = item if gap is None else replace(gap, why=f"{gap.why}; {item.why}")
                continue
            offset, head, payload = item
            if gap is not None:
                yield from self._gap(report, data, header, gap, offset, (previous, head.number))
                gap = None
            report.batches += 1
            previous, report.end = head.number, max(report.end, offset + BATCH_BYTES + len(payload))
            for at, frame, _ in chain(payload, offset + BATCH_BYTES):
                yield head, at, frame
        if gap is not None:
            yield from self._gap(report, data, header, gap, end or len(data), (previous, 0))

    def _header(self, report: SegmentReport, path: str, data: bytes) -> tuple[SegmentHeader | None, str]:
        """The header, or (None, why it is not one of this store); (None, "") where it was never begun."""
        try:
            header = decode_header(path, data)
        except NewerFormatError:
            if crc32(data[: HEADER_BYTES - 4]) == int.from_bytes(data[HEADER_BYTES - 4 : HEADER_BYTES], "little"):
                raise
            return None, "segment header fails its checksum"
        except CorruptError as error:
            return None, error.why
        except StoreError as error:
            return None, error.description.removeprefix(f"{path} ")
        if header is None:
            return None, ""
        name = segment_name(header.epoch, header.number)
        if name != report.name:
            return None, f"says that it is segment {name}: it was renamed or copied in from elsewhere"
        if header.store_uuid != self.store_uuid:
            return None, "belongs to another store"
        return header, ""

    def _without_header(
        self, report: SegmentReport, path: str, data: bytes, end: int | None, why: str
    ) -> Iterator[tuple[BatchHeader, int, memoryview]]:
        """The start value of the batches' CRCs is lost with the header: go by the records' own. Where the header is
        whole and says that the file is not ours, nothing in it is.
        """
        stop = HEADER_BYTES
        size = min(end or len(data), len(data))
        foreign = _header_is_whole(data)
        batches = [] if foreign else list(_by_records(data, report.epoch, size))
        for offset, head in batches:
            stop = offset + BATCH_BYTES + head.payload_bytes
            report.batches += 1
            for at, frame, _ in chain(memoryview(data)[offset + BATCH_BYTES : stop], offset + BATCH_BYTES):
                yield head, at, frame
        report.end = end or max(stop, len(data.rstrip(b"\0")))
        saved = sum(head.records for _, head in batches)
        code = "STORE_CORRUPT" if batches else "STORE_FOREIGN_FILE"
        if batches and (stop >= size or not data[stop:size].strip(b"\0")):
            self._add(report, Damage(code, path, 0, HEADER_BYTES, why, records_lost=0, records_saved=saved))
            return
        self._add(report, Damage(code, path, 0, report.end, why, records_saved=saved))

    def _gap(
        self,
        report: SegmentReport,
        data: bytes,
        header: SegmentHeader,
        gap: Problem,
        stop: int,
        numbers: tuple[int, int],
    ) -> Iterator[tuple[BatchHeader, int, memoryview]]:
        """Damage from `gap.offset` to `stop`, between batches `numbers`: single records of the first batch in it."""
        start = gap.offset
        stop_read = min(stop, len(data))
        head = decode_batch_header(data, start, header.salt)
        if head is not None and head.epoch != header.epoch:
            head = None
        before, after = (head.number - 1, numbers[1]) if head is not None else numbers
        known = after and (before or head is not None)  # the first batch of a segment may have any number
        batches = max(1, after - before - 1) if known else 1
        damage = Damage(gap.code, gap.path, start, stop - start, gap.why, batches)
        self._add(report, damage)
        first = memoryview(data)[start + BATCH_BYTES : stop_read]
        if head is not None:
            first = first[: head.payload_bytes]
        frames = list(chain(first, start + BATCH_BYTES))
        complete = (
            head is not None
            and len(frames) == head.records
            and sum(len(each[1]) for each in frames) == (head.payload_bytes)
        )
        if not complete:  # a length may be damaged: only what is before the first doubt
            good = next((i for i, (_, _, whole) in enumerate(frames) if not whole), len(frames))
            frames = frames[:good]
        whole = head or BatchHeader(len(first), header.epoch, before + 1, len(frames), 0, 0, 0)
        names = _Names(self, header.epoch)
        for at, frame, right in frames:
            if right:
                damage.records_saved += 1
                yield whole, at, frame
            else:
                damage.messages.update(names[number] for number in _messages_in(frame))
        if head is not None and batches == 1:
            damage.records_lost = head.records - damage.records_saved

    def _add(self, report: SegmentReport, damage: Damage) -> None:
        self.damages.append(damage)
        self._open_gaps.append((damage, self._seq))
        self._problem(damage.code, report.name, damage.offset, damage.why)


def chain(payload: memoryview, at: int) -> Iterator[tuple[int, memoryview, bool]]:
    """(offset, framed bytes, its CRC is right) of records that follow each other by their lengths, to the first length
    that cannot be."""
    position = 0
    while len(payload) - position >= RECORD_BYTES:
        size, crc, kind = RECORD.unpack_from(payload, position)
        stop = position + RECORD_BYTES + size
        if not kind or stop > len(payload):
            return
        yield at + position, payload[position:stop], crc32(payload[position + RECORD_BYTES : stop], kind) == crc
        position = stop


def _messages_in(frame: memoryview) -> Iterator[int]:
    """Numbers of the destinations of the messages in a damaged record, as far as what is left of it tells. A group is
    never saved in part: a transaction takes effect whole or not at all.
    """
    kind = frame[RECORD_BYTES - 1]
    if kind == MESSAGE and len(frame) >= _DESTINATION_AT + 4:
        yield int.from_bytes(frame[_DESTINATION_AT : _DESTINATION_AT + 4], "little")
    elif kind == MULTICAST:
        yield from numbers_in(frame)
    elif kind == GROUP and len(frame) >= _GROUP_RECORDS_AT:
        outcome_bytes = int.from_bytes(frame[_GROUP_RECORDS_AT - 4 : _GROUP_RECORDS_AT], "little")
        for _, part, _ in chain(frame[_GROUP_RECORDS_AT + outcome_bytes :], 0):
            if part[RECORD_BYTES - 1] in (MESSAGE, MULTICAST):
                yield from _messages_in(part)


def _by_records(data: bytes, epoch: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Batches from the start of a segment whose header is lost, as long as every record in them is right."""
    offset, number = HEADER_BYTES, 0
    while end - offset >= BATCH_BYTES:
        magic, size, batch_epoch, batch_number, records, payload_crc, wall_s, flags, _ = BATCH.unpack_from(data, offset)
        stop = offset + BATCH_BYTES + size
        follows = batch_epoch == epoch and (not number or batch_number == number + 1)
        if magic != BATCH_MAGIC or not follows or stop > end:
            return
        frames = list(chain(memoryview(data)[offset + BATCH_BYTES : stop], 0))
        whole = sum(len(frame) for _, frame, right in frames if right) == size
        if not whole or len(frames) != records:
            return
        yield offset, BatchHeader(size, batch_epoch, batch_number, records, payload_crc, wall_s, flags)
        offset, number = stop, batch_number


def _header_is_whole(data: bytes) -> bool:
    return len(data) >= HEADER_BYTES and crc32(data[: HEADER_BYTES - 4]) == HEADER.unpack_from(data)[-1]
