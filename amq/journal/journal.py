"""Journal: group commit, the confirm rule, segments coming and going. Runs on the event loop; the disk is a JobRunner.

Records gather in the open batch while the one before is written and synced; an idle journal writes at once. At any
time at most one batch is unsynced. The confirm rule (safety argument, rule 5): write → fsync → is the lease valid? →
`committed`. A batch that is durable while the lease is in doubt waits; it is committed when the lease is proved
again, and forgotten when the broker fences. A failed fsync is final (`failed`); a full disk is not (`rejected`).
"""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import cast

from amq.config.store_options import StoreOptions
from amq.core.errors import CommandError, CorruptError
from amq.core.histogram import Histogram
from amq.core.message import Message
from amq.doors.clock import Clock
from amq.doors.threads import JobRunner
from amq.journal import format as journal_format
from amq.journal.batch import JournalOwner, OpenBatch, Waiter
from amq.journal.checkpoint import CheckpointFile
from amq.journal.follower import Position
from amq.journal.format import BATCH_BYTES, HAS_TRIM_MARK, HEADER_BYTES, Chunk, SegmentHeader, batch_pieces
from amq.journal.live import Segment
from amq.journal.reader import JournalReader
from amq.journal.records import (
    ACKED,
    Consumed,
    Destination,
    Group,
    Previous,
    Record,
    Trimmed,
    destinations_of,
    encode_record,
    is_larger,
    takes_space,
)
from amq.journal.records import group as groups
from amq.journal.records.message import Run, encode_message
from amq.journal.recovery import Recovered
from amq.journal.segment import FILL, PREPARE_AT, OpenSegment, SegmentMaker
from amq.journal.space import StoreLimit, measure
from amq.store.segment_log import NoRoomError, PatientWriter, SegmentLog, SegmentTooLargeError

# A batch of so few records may be synced on the event loop, where the disk answers within this time.
# Measured: a lone client with a window of 1 gains a factor of 1.6, at 0.1 ms a sync; for 32 producers with a window of
# 1 the broker takes 58 µs a message instead of 72.
INLINE_RECORDS_MAX = 2  # of few clients
CROWD_RECORDS_MAX = 64  # of many, each with a single one
INLINE_SYNC_S_MAX = 0.0005
INLINE_SYNCS = 6  # the quickest of the last ones: a slow disk makes all slow, a busy processor only some
INLINE_BYTES_MAX = 256 << 10  # a large record, or a group, takes longer to be encoded and written


class _Busy(Enum):
    """The reasons for which the batch in flight waits."""

    NOTHING = "there is none"
    SEGMENT = "the next segment to be made"
    WRITE = "write and fsync"
    ROOM = "room on the disk"
    LEASE = "the lease to be proved again"
    EFFECT = "its owner, to whom it is committed: it takes effect in slices"


class Journal:
    """The journal of one epoch, written to `log` from `begin` on."""

    store_uuid: bytes
    _valid: Callable[[], bool]
    _epoch: int

    def __init__(
        self,
        log: SegmentLog,
        clock: Clock,
        runner: JobRunner,
        owner: JournalOwner,
        config: StoreOptions,
        entropy: random.Random,
        reader: JobRunner | None = None,
    ) -> None:
        """`reader` runs what only reads; without one `runner` does."""
        self._log = log
        self._clock = clock
        self._runner = runner
        self._owner = owner
        self.reader = JournalReader(log, reader or runner)
        self._maker = SegmentMaker(log, clock)
        self._config = config
        self._entropy = entropy
        self.segments: deque[Segment] = deque()
        self.open = OpenBatch()
        self.full = self.disk_full = self.at_limit = False  # `full`, which is one of the others: producers are refused
        self._limit = StoreLimit(config.store_limit_bytes, config.journal_segment_size_bytes)
        self.bytes_written = 0
        self.batches = 0
        self._exhausted = False  # the store found no room
        self._waiting: deque[OpenBatch] = deque()  # closed by size, behind the one in flight
        self._batch: OpenBatch | None = None  # in flight
        self._busy = _Busy.NOTHING
        self._ids: dict[str, int] = {}
        self._defined: set[str] = set()  # destinations that the current segment defines
        self._file: OpenSegment | None = None
        self._next_file: OpenSegment | None = None
        self._preparing = False
        self._newest_number = 0
        self._position = 0
        self._last = 0  # where the batch before begins
        self._previous_end = 0
        self._last_syncs_s: deque[float] = deque(maxlen=INLINE_SYNCS)
        self._crowd = False
        self.syncs = Histogram()
        self._begins = False  # a batch, here
        self._early: tuple[int, Exception | None] | None = None  # what became of it meanwhile
        self._reserved = False
        self._dead = False

    def begin(self, epoch: int, store_uuid: bytes, recovered: Recovered, valid: Callable[[], bool]) -> None:
        """From now on the journal of `epoch` is written, after what was `recovered`. `valid()` tells whether the lease
        is valid now."""
        self._epoch, self.store_uuid, self._valid = epoch, store_uuid, valid
        self.segments.extend(recovered.segments)
        if self._limit.limit_bytes:
            self._check_limit()
        self._prepare()
        self.check_space()

    # -- what the broker calls ----------------------------------------------------------------------------------------

    def append(self, message: Message) -> None:
        """Store a message with the open batch. The hot path: one call, one encode."""
        batch = self.open
        name = message.destination
        chunk = encode_message(message, self._ids.get(name) or self.number_of(name))
        batch.names[name] = None
        batch.records.append(message)
        batch.chunks.append(chunk)
        batch.size += len(chunk)
        if batch.size > self._config.journal_batch_size_bytes:
            self._rotate()

    def append_run(self, run: Run) -> bool:
        """Store the messages of `run`, as `append` would one after the other. False: the open batch would be closed in
        the middle of them, and nothing is stored."""
        batch, name = self.open, run.destination
        if batch.size + run.record_bytes() > self._config.journal_batch_size_bytes:
            return False
        self.number_of(name)
        chunk = run.encode(self._ids)
        batch.names[name] = None
        batch.records.append(run)
        batch.chunks.append(chunk)
        batch.size += len(chunk)
        batch.in_runs += len(run.bodies) - 1
        return True

    def append_record(self, record: Record) -> None:
        """Store any other record with the open batch. Raises CommandError where it is too large, and stores nothing."""
        batch = self.open
        names = destinations_of((record,))
        for name in names:
            self.number_of(name)
        chunk = encode_record(record, self._ids)
        if len(chunk) > journal_format.RECORD_BYTES_MAX:
            raise CommandError(
                f"the transaction would take {len(chunk)} bytes of the journal, more than the "
                f"{journal_format.RECORD_BYTES_MAX} that one can have: commit more often",
                code="TRANSACTION_TOO_LARGE",
            )
        batch.names |= names
        batch.records.append(record)
        batch.chunks.append(chunk)
        batch.size += len(chunk)
        batch.in_slices = batch.in_slices or is_larger(record, groups.LATE_RECORDS)
        if batch.size > self._config.journal_batch_size_bytes:
            self._rotate()

    def confirm(self, waiter: Waiter, record: Record | None = None) -> None:
        """Tell `waiter` when everything appended so far is committed. With `record`: unless that is rejected."""
        self.open.confirms.append((waiter, record))

    def closed(self) -> int:
        """How many of `segments` are written no more: all but the newest, and that too if it is another master's."""
        return len(self.segments) - (self._file is not None)

    def idle(self) -> bool:
        """Nothing is pending, on disk or in memory."""
        return self._busy is _Busy.NOTHING and not self.open and not self._waiting

    def flush(self, inline: bool = False, unasked: bool = False, crowd: bool = False) -> bool:
        """End of a turn of the event loop: write what gathered, unless a batch is on its way. Returns whether all that
        is left is acknowledgements that nobody waits for.

        `inline`: few clients wait, so a small batch may be synced right here; on a fast disk that saves the two thread
        switches that cost a lone client a good part of its rate. `unasked`: write also what nobody waits for. `crowd`:
        so may a batch of single records, also later on: the many clients that sent them wait, and what the switches
        cost is more than what could be done meanwhile.
        """
        self._crowd = self._crowd or crowd
        while self._busy is _Busy.NOTHING and not self._dead:
            batch = self.open
            if self._waiting:
                batch = self._waiting.popleft()
            elif batch.records or batch.confirms or (unasked and batch.consumed):
                self.open = OpenBatch()
            else:
                return bool(batch.consumed)
            if batch.consumed:
                self._add_consumed(batch)
            self._batch = batch
            records, is_patient = len(batch.records), self._log.is_patient
            is_lone = inline and records + batch.in_runs <= INLINE_RECORDS_MAX
            is_small = is_lone or (crowd and records <= CROWD_RECORDS_MAX and not batch.in_runs)
            is_fast = is_patient or min(self._last_syncs_s, default=0.0) < INLINE_SYNC_S_MAX
            is_awaited = is_lone and bool(batch.confirms)
            self._write(is_small and is_fast and batch.size <= INLINE_BYTES_MAX, is_awaited)
        return False

    def on_their_way(self) -> list[OpenBatch]:
        """Batches that have not taken effect yet, or not wholly, oldest first."""
        return [*([self._batch] if self._batch is not None else []), *self._waiting, self.open]

    def leaving(self) -> set[int]:
        """Seqs of the messages whose leaving is on its way to the disk."""
        found: set[int] = set()
        for batch in self.on_their_way():
            for seqs in batch.consumed.values():
                found.update(seqs)
            for record in batch.records:
                if record.__class__ is Message:
                    continue  # as nearly all are
                for part in record.records if isinstance(record, Group) else (record,):
                    if not isinstance(part, Message):
                        found.update(part.leaving())
        return found

    def only_unasked(self) -> bool:
        """All that gathered is acknowledgements without receipt: nobody waits for them, they may wait for company."""
        return bool(self.open.consumed) and not (self.open.records or self.open.confirms)

    def lease_renewed(self) -> None:
        """Ownership was proved again: what became durable in the meantime counts."""
        if self._busy is _Busy.LEASE:
            self._finish()
            self.flush()

    def hold(self, batch: OpenBatch) -> None:
        """`batch` is committed, and takes effect bit by bit: nothing else is written or committed until `release`."""
        assert self._busy is _Busy.NOTHING
        self._batch, self._busy = batch, _Busy.EFFECT

    def release(self) -> None:
        """The batch that was held has taken effect. The next `flush` goes on."""
        assert self._busy is _Busy.EFFECT
        self._batch, self._busy = None, _Busy.NOTHING

    def position(self) -> Position | None:
        """Behind the last batch that is committed; None where its segment has none, where that is in doubt, or has not
        taken effect yet."""
        file = self._file
        if file is None or self._busy in (_Busy.LEASE, _Busy.EFFECT) or self._position == HEADER_BYTES:
            return None
        names = {self._ids[name]: name for name in sorted(self._defined)}
        return Position(self._epoch, file.number, self._position, self._last, self.batches, file.salt, names)

    def newest_segment(self) -> tuple[int, int, int] | None:
        """Epoch, number and salt of the segment that is being written, or is next, whose header is durable; None =
        there is none yet. No other store has such a one."""
        file = self._file or self._next_file
        return None if file is None else (self._epoch, file.number, file.salt)

    def checkpoint(self, position: Position) -> CheckpointFile:
        """A file for a checkpoint at `position`, to be written in `reader`."""
        return CheckpointFile(self._log.checkpoints, position)

    def check_space(self) -> None:
        """Look for room on the disk, in the runner. Call about once a second."""
        if not self._dead:
            self._runner.submit(lambda: measure(self._log, self._config, self._reserved), self._space_measured)

    def set_limit(self, store_limit_bytes: int) -> None:
        self._limit.limit_bytes = store_limit_bytes
        self._check_limit()

    def trim(self, mark: Trimmed) -> None:
        """Segments that `mark` does not keep are not needed: their live records were appended again before."""
        batch = self.open
        self.append_record(mark)
        batch.flags |= HAS_TRIM_MARK

    def delete_trimmed(self, mark: Trimmed) -> None:
        """The trim mark is committed, so the lease was valid after that: delete the segments, oldest first."""
        doomed = [segment for segment in self.segments if segment.key in mark]
        codes = {segment.code for segment in doomed}
        self.segments = deque(segment for segment in self.segments if segment.code not in codes)
        for segment in self.segments:
            segment.refers -= codes
        self.delete([segment.name for segment in doomed])
        self._check_limit()

    def delete(self, names: list[str]) -> None:
        """Delete segments in which nothing counts, in this order. Only right after the lease was proved (rule 8)."""
        if names:
            self._runner.submit(partial(self._log.delete, names), self._done)

    def fail_reading(self, error: Exception) -> None:
        """Stored bytes cannot be read: damage is for a person to look at, other errors may be those of this broker
        only.
        """
        if isinstance(error, CorruptError):
            self._owner.failed(f"journal: {error}", error)
        else:
            self._fail(error)

    def abandon(self) -> None:
        """Fencing or end: forget everything, write nothing more. The runner closes the files when it can."""
        self._dead = True
        self.reader.abandon()
        for file in (self._file, self._next_file):
            if file is not None:
                self._close(file)
        self._file = self._next_file = None
        if self._preparing:
            self._runner.submit(self._maker.close, self._done)

    # -- batches ------------------------------------------------------------------------------------------------------

    def number_of(self, name: str) -> int:
        """The number of the destination in the bytes: the same in all segments of this epoch."""
        return self._ids.setdefault(name, len(self._ids) + 1)

    def _rotate(self) -> None:
        self._waiting.append(self.open)
        self.open = OpenBatch()

    def _add_consumed(self, batch: OpenBatch) -> None:
        """The acknowledgements that gathered become records: one for each queue."""
        for name, seqs in batch.consumed.items():
            record = Consumed(name, ACKED, seqs)
            if name not in self._ids:
                self.number_of(name)
            batch.names[name] = None
            batch.records.append(record)
            chunk = record.encode(self._ids)
            batch.chunks.append(chunk)
            batch.size += len(chunk)
            batch.in_slices = batch.in_slices or len(seqs) > groups.LATE_RECORDS
        batch.consumed.clear()

    def _write(self, inline: bool = False, lingers: bool = False) -> None:
        """Write the batch in flight: into the current segment, or the next one where it does not fit."""
        batch = self._batch
        assert batch is not None
        if self._exhausted:
            self._reject(batch)
        if not batch.records:
            self._finish()  # only confirmations, of what is committed already
            return
        file, names = self._file, batch.names
        size = BATCH_BYTES + batch.size + 32 * len(names) + 4 * sum(map(len, names)) + 64
        if file is None or (self._position + size > file.size and self._position > HEADER_BYTES):
            if self._next_file is None:
                self._busy = _Busy.SEGMENT
                self._prepare()
                return
            file = self._roll(self._next_file)
        self._busy = _Busy.WRITE
        chunks = batch.chunks
        batch.offset = self._position + BATCH_BYTES
        if self._position == HEADER_BYTES or not names.keys() <= self._defined:
            before = self._before(names)
            batch.offset += sum(map(len, before))
            chunks = before + chunks
        position, number, wall_s = self._position, self.batches + 1, self._clock.wall_ms() // 1000
        records = len(chunks) + batch.in_runs
        job = partial(self._write_batch, file, chunks, records, position, number, wall_s, batch.flags)
        outcome: tuple[int, Exception | None] | None = None
        if self._log.is_patient:
            self._early = None
            begin = partial(self._begin_batch, batch, file, chunks, records, position, number, wall_s, batch.flags)
            self._begins = inline
            try:
                begun = inline and begin(waits=False, lingers=lingers)
                outcome = self._early
            except OSError as error:
                begun, outcome = True, (0, error)
            self._begins = False
            if not begun:
                self._runner.submit(begin, self._begun)
        elif not inline:
            self._runner.submit(job, self._written)
        if self._next_file is None and not self._exhausted and self._position + size > PREPARE_AT * file.size:
            self._prepare()  # behind the batch, which waits for nothing
        if outcome is not None:
            self._written(*outcome)
        if not inline or self._log.is_patient:
            return
        try:
            end = job()
        except OSError as error:
            self._written(0, error)
        else:
            self._written(end, None, is_here=True)

    def _before(self, names: Iterable[str]) -> list[Chunk]:
        """The records that a segment needs before the first that names these destinations."""
        before: list[Chunk] = [Previous(self._previous_end).encode({})] if self._position == HEADER_BYTES else []
        before += [Destination(self._ids[name], name).encode({}) for name in names if name not in self._defined]
        return before

    def _write_batch(
        self, file: OpenSegment, chunks: list[Chunk], records: int, position: int, number: int, wall_s: int, flags: int
    ) -> int:
        """In the runner: one piece (one more for each large body), one sync. `records` of them are in `chunks`.
        Returns where the batch ends."""
        end = position + BATCH_BYTES + sum(map(len, chunks))
        pieces = batch_pieces(chunks, file.salt, self._epoch, number, records, wall_s, flags)
        took_s = file.writer.append(position, end, pieces)
        self.syncs.add(took_s)
        self._last_syncs_s.append(took_s)
        return end

    def _begin_batch(
        self,
        batch: OpenBatch,
        file: OpenSegment,
        chunks: list[Chunk],
        records: int,
        position: int,
        number: int,
        wall_s: int,
        flags: int,
        *,
        waits: bool = True,
        lingers: bool = False,
    ) -> bool:
        """Write a batch to a log that is patient: `_told` hears when the batch is durable on enough hosts."""
        began_s = self._clock.monotonic()
        end = position + BATCH_BYTES + sum(map(len, chunks))
        pieces = batch_pieces(chunks, file.salt, self._epoch, number, records, wall_s, flags)
        writer = cast(PatientWriter, file.writer)
        told = partial(self._told, batch, began_s, end)
        return writer.begin(position, end, pieces, told, waits=waits, lingers=lingers)

    def _begun(self, _: object, error: Exception | None) -> None:
        if error is not None:
            self._written(0, error)

    def _told(self, batch: OpenBatch, began_s: float, end: int, error: Exception | None) -> None:
        if self._batch is batch:
            self.syncs.add(self._clock.monotonic() - began_s)
            if self._begins:
                self._early = end, error
            else:
                self._written(end, error)

    def _written(self, end: int, error: Exception | None, is_here: bool = False) -> None:
        if self._dead:
            return
        batch = self._batch
        assert batch is not None
        if error is not None:
            if isinstance(error, SegmentTooLargeError) and self._position > HEADER_BYTES:
                assert self._file is not None
                self._file.size = self._position  # the batch goes into the next one
                self._write()
            elif isinstance(error, NoRoomError):
                self._no_room(batch)
            else:
                self._fail(error)
            return
        self.batches += 1
        self.bytes_written += end - self._position
        self._last, self._position = self._position, end
        self._defined.update(batch.names)
        batch.segment = self.segments[-1]
        batch.segment.end = end
        self._finish()
        if self._waiting or self.open.records or self.open.confirms:
            self.flush(crowd=self._crowd and not is_here)

    def _finish(self) -> None:
        """The confirm rule: the batch is durable; it counts if the lease is valid now."""
        batch = self._batch
        assert batch is not None
        if self._valid():
            self._batch, self._busy = None, _Busy.NOTHING
            self._owner.committed(batch)
        else:
            self._busy = _Busy.LEASE

    # -- segments -----------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Make the next segment ahead of need, off the path of the batches."""
        if self._preparing or self._dead:
            return
        self._preparing = True
        header = SegmentHeader(self._epoch, self._newest_number + 1, self.store_uuid, self._entropy.getrandbits(32))
        config = self._config
        size = config.journal_reserve_bytes // 2 if self._exhausted else int(FILL * config.journal_segment_size_bytes)
        self._runner.submit(partial(self._maker.make, header, size), self._prepared)

    def _prepared(self, file: OpenSegment | None, error: Exception | None) -> None:
        if self._dead:
            return  # the job that `abandon` gave the runner closes the segment that was made
        self._preparing = False
        if file is not None:
            self._maker.made = None
            self._newest_number = file.number
            self._next_file = file
            self._resume(_Busy.SEGMENT)
        elif isinstance(error, NoRoomError):
            self._set_full(exhausted=True)
            if self._busy is _Busy.SEGMENT and self._batch is not None:
                self._no_room(self._batch)
        elif error is not None:
            self._fail(error)

    def _roll(self, file: OpenSegment) -> OpenSegment:
        if self._file is not None:
            self.segments[-1].file_bytes = self._position
            self._runner.submit(partial(self._file.writer.finish, self._position), self._done)
        self._previous_end = self._position
        self._file, self._next_file, self._position = file, None, HEADER_BYTES
        self._defined = set()
        self.segments.append(Segment(file.name, self._epoch, file.number, HEADER_BYTES, file_bytes=file.size))
        self._check_limit()
        return file

    def _close(self, file: OpenSegment) -> None:
        self._runner.submit(file.writer.close, self._done)

    def _done(self, _: object, error: Exception | None) -> None:
        if error is not None and not self._dead:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._owner.failed(f"journal: {error} ({errno.errorcode.get(_errno(error), type(error).__name__)})")

    # -- a full disk --------------------------------------------------------------------------------------------------

    def _set_full(self, exhausted: bool) -> None:
        self._exhausted = self._exhausted or exhausted
        if not self.disk_full:
            self.full = self.disk_full = True
            self._owner.store_full(True)

    def _check_limit(self) -> None:
        """Segments came or went."""
        if self._limit.check(self.segments):
            self.at_limit = self._limit.reached
            self.full = self.disk_full or self.at_limit
            self._owner.store_at_limit(self.at_limit)

    def _reject(self, batch: OpenBatch) -> bool:
        """Take the records that need room out of the batch, so that acknowledgements, which free some, go through.
        Those in the batches behind it are rejected too, also where there is room again when their turn comes: a
        producer that sends rejected messages again must not find later ones stored before them.
        """
        waited, refused = batch.take_out(takes_space)
        if not refused:
            return False
        for behind in (*self._waiting, self.open):
            also_waited, also_refused = behind.take_out(takes_space)
            waited += also_waited
            refused += also_refused
        self._owner.rejected(waited, refused)
        return True

    def _no_room(self, batch: OpenBatch) -> None:
        """The batch in flight found no room: without its messages, then in the reserve, then when there is room."""
        self._set_full(exhausted=True)
        self._busy = _Busy.ROOM
        if self._reject(batch):
            self._resume(_Busy.ROOM)
        elif self._reserved:
            self._reserved = False
            # Told as a look at the disk is: one that was made before it may say just then that the reserve is there.
            self._runner.submit(self._log.give_back, lambda *_: self._space_measured((False, False), None))

    def _resume(self, waited_for: _Busy) -> None:
        if self._busy is waited_for and not self._dead:
            self._write()
            self.flush()

    def _space_measured(self, measured: tuple[bool, bool] | None, error: Exception | None) -> None:
        if self._dead:
            return
        if error is not None and not isinstance(error, NoRoomError):
            self._fail(error)
            return
        has_room, self._reserved = measured or (False, False)
        if not has_room or not self._reserved:
            self._set_full(exhausted=False)
        elif self.disk_full:
            self.disk_full = self._exhausted = False
            self.full = self.at_limit
            self._owner.store_full(False)
            if self._next_file is None:
                self._prepare()
        self._resume(_Busy.ROOM)


def _errno(error: Exception) -> int:
    return (error.errno or 0) if isinstance(error, OSError) else 0
