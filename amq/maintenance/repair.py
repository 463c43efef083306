"""`amq journal repair` turns a store that no broker can start from into one with all records that can still be read.

The repair writes the credible records (`amq.journal.salvage`) with the journal's own code into segments of the next
epoch. Then the locker links that epoch, as in any takeover; the epoch names exactly those segments. The link is the
moment in which the store changes its meaning: before it, brokers see the damaged store, after it the repaired one. If
the repair is killed later, the next run does the rest (`_finish`). Until the new segments are in place, brokers refuse
the store, because its epoch names segments that are missing.

Invariant: nothing that counted before is removed unless STORE/journal.before-repair-TIME/ has a link to it. The
argument is in docs/journal-tools.md "Why a repair is safe".
"""

from __future__ import annotations

import os
import random
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from amq.config.store_options import StoreOptions
from amq.core.errors import AmqError, CorruptError, StoreError, StoreFullError
from amq.doors.clock import Clock
from amq.doors.threads import Done, Event, Job
from amq.journal.batch import Confirm, OpenBatch
from amq.journal.checkpoint import list_checkpoints, parse_checkpoint_name
from amq.journal.export import MessageReader
from amq.journal.follower import replay
from amq.journal.format import segment_key
from amq.journal.inspect import Inspection, Sealing, inspect
from amq.journal.journal import Journal
from amq.journal.liveness import Liveness
from amq.journal.records import Duplicates, Outcomes, Record, Redelivered, Trimmed
from amq.journal.recovery import Recovered, lock_segments
from amq.journal.salvage import Damage, Salvage
from amq.journal.segment import list_segments
from amq.store.document import decode, encode
from amq.store.election import HEARTBEAT
from amq.store.epoch import EPOCH_MAX, Epoch
from amq.store.host import Host, Owner
from amq.store.lease import Lease
from amq.store.locker import Locker
from amq.store.port import Store
from amq.store.presence import Presence
from amq.store.segment_log import FULL_ERRNOS, RESERVE_STEPS, Held, SegmentLog
from amq.store.workshop import Aside, Workshop

NAME = "amq-journal-repair"
MARKER_KIND = "repair"
UNKNOWN_PERIOD_S = 30.0  # the wait for an unknown master, unless an epoch names a longer period
FLUSH_BYTES = 1 << 20
MIB = 1 << 20
ROOM_BYTES = 256 << 10  # directories, the epoch file, the marker, this repair's own entry in brokers/
ID_BYTES = 16  # of a remembered id, beside the id
GROWTH = 1.25  # heads of batches and records, and what was stored once for several queues
IDS_PER_RECORD = 1000


@dataclass(frozen=True, slots=True)
class EpochFiles:
    """The contents of epochs/. `newest` = the newest readable epoch; `number` = the newest number that existed."""

    newest: Epoch | None
    number: int
    damaged: list[Damage]
    period_s: float

    @property
    def must_be_rebuilt(self) -> bool:
        return self.number > (self.newest.number if self.newest is not None else 0)


@dataclass(slots=True)
class Plan:
    """Findings of a repair. `liveness` = what it would save; `unfinished` = directories of killed repairs."""

    epochs: EpochFiles
    salvage: Salvage
    liveness: Liveness
    unfinished: list[str]
    damages: list[Damage] = field(default_factory=list)

    @property
    def needed(self) -> bool:
        return bool(self.damages or self.unfinished)


def make_plan(store: Store, workshop: Workshop, config: StoreOptions) -> Plan:
    """Read everything, change nothing. Raises NewerFormatError, OSError."""
    epochs = read_epoch_files(store)
    salvage = Salvage(store.log, _sealing(epochs))
    liveness = Liveness(config.duplicate_window, config.outcome_window)
    salvage.fold(liveness)
    return Plan(epochs, salvage, liveness, workshop.unfinished(), [*epochs.damaged, *salvage.damages])


def is_whole(store: Store, workshop: Workshop) -> bool:
    """Is nothing damaged? Also correct for a store in use. Raises NewerFormatError, OSError."""
    if read_epoch_files(store).damaged or workshop.unfinished():
        return False
    inspection, _ = inspect(store.log, lambda: _sealing(read_epoch_files(store)))
    return not inspection.problems


def read_epoch_files(store: Store) -> EpochFiles:
    """Raises NewerFormatError, OSError."""
    epochs = store.epochs
    numbers: list[int] = []
    with suppress(FileNotFoundError):
        numbers = epochs.numbers()
    newest, damaged, period_s = None, [], UNKNOWN_PERIOD_S
    for number in filter(None, numbers):
        try:
            epoch = epochs.read(number)
        except CorruptError as error:
            size = epochs.size(number)
            damaged.append(Damage(error.code, error.path, error.offset, size, error.why, counts=False))
            continue
        newest, period_s = epoch, max(period_s, epoch.owner.lock_keep_alive_period_s)
    last = max((segment_key(name)[0] for name in list_segments(store.log)), default=0)
    newest_known = max((each for each in numbers if each <= EPOCH_MAX), default=0)
    number = max(newest_known, last)
    if last > newest_known:
        why = "epoch file is missing: there are segments of it"
        damaged.append(Damage("STORE_INCOMPLETE", epochs.place(last), 0, 0, why, counts=False))
    return EpochFiles(newest, number, damaged, period_s)


class Repair:
    """One repair of `store`, by this process. It reports each step by `told(sentence)`."""

    def __init__(
        self,
        store: Store,
        workshop: Workshop,
        clock: Clock,
        host: Host,
        entropy: random.Random,
        stop: Event,
        config: StoreOptions,
        told: Callable[[str], None],
    ) -> None:
        self.kept = ""
        self.plan: Plan | None = None
        self._store = store
        self._workshop = workshop
        self._clock = clock
        self._stop = stop
        self._entropy = entropy
        self._config = config
        self._told = told
        self._owner = Owner.make(
            host,
            name=NAME,
            uuid=str(uuid.UUID(bytes=entropy.randbytes(16))),
            transport_urls=(),
            lock_keep_alive_period_s=config.lock_keep_alive_period_s,
        )
        self._locker = Locker(store, clock, host, self._owner)

    def run(self) -> Plan:
        """Take the store, finish earlier repairs, repair. Returns the findings; `kept` = where the originals are, "" if
        there was nothing to do. Raises AmqError STORE_LOCKED, StoreError, StoreFullError, OwnershipLostError,
        OSError; run it again then.
        """
        try:
            return self._run()
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                raise StoreFullError(self._no_room(self.plan)) from error
            raise

    def _run(self) -> Plan:
        self._workshop.check()
        with closing(Presence.open(self._store.board, self._owner)):
            try:
                self._lock()
                self._locker.claim()  # a store that fences takes no change without one
                for place in self._workshop.unfinished():
                    self._told(f"finishing the repair of {os.path.basename(place)}")
                    self._finish(place)
                plan = self.plan = make_plan(self._store, self._workshop, self._config)
                if plan.damages:
                    self._repair(plan)
                self._locker.release()
            finally:
                self._locker.abandon()
        return plan

    def _lock(self) -> None:
        if not self._locker.try_acquire(at_once=True):
            raise AmqError(
                f"the store is locked by {self._locker.holder() or 'another process'}; stop its brokers, then repair",
                code="STORE_LOCKED",
            )

    def _repair(self, plan: Plan) -> None:
        self._check_room(plan)
        self._make_kept()
        if plan.epochs.must_be_rebuilt:
            self._rebuild_epoch(plan)
        self._set_aside(plan)
        if not any(damage.counts for damage in plan.damages):
            return
        held: list[Held] = []
        try:
            mastership = self._locker.take_over(self._stop.wait, lambda previous: self._write(previous, held))
            if mastership is None:
                raise StoreError("the repair was stopped before it changed anything")
            self._finish(self.kept, mastership.lease)
        finally:
            for segment in held:
                segment.close()

    # -- the originals ------------------------------------------------------------------------------------------------

    def _make_kept(self) -> None:
        """Keep every segment, epoch and checkpoint."""
        wall = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
        log, segments = self._store.log, list[str]()
        with suppress(FileNotFoundError):
            segments = [name for name in log.names() if segment_key(name) != (0, 0)]
        name = f"{wall:%Y%m%dT%H%M%S}-{self._owner.uuid[:8]}"
        self.kept = self._workshop.keep(name, segments, list_checkpoints(log.checkpoints))
        self._told(f"the originals are kept in {self.kept}")

    def _rebuild_epoch(self, plan: Plan) -> None:
        """Replace the newest epoch file by a readable one, with its owner and sealed lengths, if known. A
        length that is too great only reports damage again; no length is too small.
        """
        epochs = plan.epochs
        sealed = dict(epochs.newest.sealed) if epochs.newest is not None else {}
        for report in plan.salvage.segments:
            if report.epoch < epochs.number and (epochs.newest is None or report.epoch >= epochs.newest.number):
                sealed[report.name] = report.end
        reason = "rebuilt by amq journal repair: the file was damaged or missing"
        place = self._store.election.place()
        epoch = Epoch(epochs.number, self._last_owner(epochs), sealed, self._clock.wall_ms(), reason, lock=place)
        self._workshop.rebuild(epoch, self._owner.uuid)
        self._told(f"epoch {epochs.number} was rebuilt; its owner was {epoch.owner.describe()}")

    def _set_aside(self, plan: Plan) -> None:
        """Remove files that hold no data and keep brokers from starting, now that a copy exists: unreadable old epochs,
        and segments of other stores under names that no epoch sealed.
        """
        for damage in plan.damages:
            rebuilt = plan.epochs.must_be_rebuilt and damage.path == self._store.epochs.place(plan.epochs.number)
            if not damage.counts and not rebuilt and self._workshop.take_out(damage.path):
                self._told(f"{damage.path} was taken out")

    def _last_owner(self, epochs: EpochFiles) -> Owner:
        """The broker that may still think it is master, from the last heartbeat, else unknown. The repair waits."""
        try:
            body = self._store.election.read(HEARTBEAT)
            if body is not None and body.get("epoch") == epochs.number:
                return Owner.from_json(body["owner"], HEARTBEAT)
        except (StoreError, LookupError, TypeError, AttributeError):
            self._told("the last heartbeat cannot be read")
        return Owner("unknown", "unknown", "unknown", "", "", 1, 0, (), epochs.period_s)

    # -- the new journal ----------------------------------------------------------------------------------------------

    def _write(self, previous: Epoch | None, held: list[Held]) -> dict[str, int]:
        """Runs in place of sealing: read the journal again, now that no broker can confirm anything, and write the
        credible records as segments of the next epoch, in a directory aside. Returns their names and lengths.
        """
        held += lock_segments(self._store.log)
        for segment in held:
            segment.refresh()  # the cache may hold bytes that a master of this host failed to sync
        assert previous is not None, "a store without epochs was rebuilt"
        plan = self.plan = make_plan(self._store, self._workshop, self._config)
        number = previous.number + 1
        aside = self._workshop.aside(self.kept)
        aside.write_mark(encode(MARKER_KIND, {"epoch": number, "uuid": self._owner.uuid}))
        aside.log.make()
        live_bytes = _live_bytes(plan)
        self._check_room(plan)
        self._told(f"writing {len(plan.liveness.live)} messages, {live_bytes} bytes")
        sealed = _Scratch(aside.log, self._clock, number, plan, self._config, self._entropy).write(
            _messages(self._store.log, plan.liveness)
        )
        self._verify(aside.log, number, sealed, plan.liveness)
        return sealed

    def _check_room(self, plan: Plan) -> None:
        """Raises StoreFullError where the new journal would not fit beside the old one, which stays until the end."""
        free = self._store.log.free_bytes()
        if free is not None and free < self._needed_bytes(plan):
            raise StoreFullError(self._no_room(plan))

    def _needed_bytes(self, plan: Plan) -> int:
        """The most that the new journal takes: live records, remembered ids, and space that segments set aside ahead.
        The originals are links and take nothing."""
        if not any(damage.counts for damage in plan.damages):
            return ROOM_BYTES
        saved = plan.liveness
        ids = [*saved.duplicates.values(), saved.outcomes]
        remembered = sum(len(id) + ID_BYTES for each in ids for id in each)
        ahead = 2 * self._config.journal_segment_size_bytes // RESERVE_STEPS
        return int(GROWTH * (_live_bytes(plan) + remembered)) + ahead + ROOM_BYTES

    def _no_room(self, plan: Plan | None) -> str:
        free = self._store.log.free_bytes()
        needed = ROOM_BYTES if plan is None else self._needed_bytes(plan)
        needs = f"no room for a repair of {self._store.name}: it needs about {needed / MIB:.1f} MiB"
        if free is None:
            return f"{needs}: nothing was repaired; give the store more room and run it again"
        return (
            f"{needs}, {free / MIB:.1f} MiB are free: nothing was repaired; free {max(needed - free, 0) / MIB:.1f} MiB "
            "more where the store is, and run it again"
        )

    def _verify(self, log: SegmentLog, number: int, sealed: dict[str, int], saved: Liveness) -> None:
        """Read the new journal as a new master does, and compare."""
        replay(log, sealed, lambda _record, _segment: None, lambda _done, _total: None)
        inspection, found = self._inspect(log, number, sealed)
        same = len(found.live) == len(saved.live) and all(
            mine == theirs and found.live[mine].destination == saved.live[mine].destination
            for mine, theirs in zip(found.live.seqs(), saved.live.seqs(), strict=True)
        )
        if inspection.problems or not same or found.redelivered != saved.redelivered:
            raise StoreError(
                f"{log.place()}: the new journal reads differently from what was written; nothing was changed"
            )

    def _inspect(self, log: SegmentLog, number: int, sealed: dict[str, int]) -> tuple[Inspection, Liveness]:
        windows = self._config.duplicate_window, self._config.outcome_window
        return inspect(log, lambda: (number, sealed), lambda: Liveness(*windows))

    # -- the end, also of a repair that was killed --------------------------------------------------------------------

    def _finish(self, kept: str, lease: Lease | None = None) -> None:
        """After the link: put the new segments in place and remove the old ones. Before it: drop the new segments."""
        aside, log = self._workshop.aside(kept), self._store.log
        number = self._committed(aside)
        if number:
            newest = read_epoch_files(self._store).newest
            sealed = newest.sealed if newest is not None else {}
            self._remove_checkpoints(number)
            present = set(list_segments(log))
            aside.move_in(name for name in _prepared(aside) if sealed.get(name) and name not in present)
            if lease is not None:
                lease.check()
            originals = sorted(present & set(aside.names()))
            log.delete(name for name in originals if segment_key(name)[0] < number and not sealed.get(name))
        aside.clear()

    def _remove_checkpoints(self, epoch: int) -> None:
        """Remove checkpoints from before `epoch`: they describe the old journal. Done before new segments move in."""
        checkpoints = self._store.log.checkpoints
        names = list_checkpoints(checkpoints)
        checkpoints.delete(name for name in names if (parse_checkpoint_name(name) or (epoch,))[0] < epoch)
        if names:
            checkpoints.settle()

    def _committed(self, aside: Aside) -> int:
        """The number of the epoch that this repair linked; 0 = it linked none. Brokers that refused the store
        again and again may have pruned that epoch's file; the newest epoch seals the same lengths.
        """
        try:
            marker = decode(MARKER_KIND, aside.read_mark(), MARKER_KIND)
            epoch = self._store.epochs.read(int(marker["epoch"]))
        except (FileNotFoundError, CorruptError):
            names, newest = _prepared(aside), read_epoch_files(self._store).newest
            number = max([segment_key(name)[0] for name in names], default=0)
            lengths = newest.sealed if newest is not None else {}
            sealed = {name: end for name, end in lengths.items() if segment_key(name)[0] == number}
            known = bool(sealed) and sealed.keys() <= set(names)
            return number if known and not self._inspect(aside.log, number, sealed)[0].problems else 0
        return epoch.number if epoch.owner.uuid == marker["uuid"] else 0


def _prepared(aside: Aside) -> list[str]:
    """The new segments that are not cleared yet."""
    with suppress(FileNotFoundError):
        return list_segments(aside.log)
    return []


class _Scratch:
    """Writes a whole journal in one go. It is also the journal's owner and its disk thread."""

    def __init__(
        self, log: SegmentLog, clock: Clock, epoch: int, plan: Plan, config: StoreOptions, entropy: random.Random
    ) -> None:
        self._log = log
        self._plan = plan
        self._jobs: deque[tuple[Job, Done]] = deque()
        self._failure: AmqError | None = None
        nothing = Recovered([], [], Trimmed(), plan.salvage.store_uuid, 0, 0)
        self._journal = Journal(log, clock, self, self, config, entropy)
        self._journal.begin(epoch, plan.salvage.store_uuid, nothing, lambda: True)
        self._run()

    def write(self, messages: Iterator[Record]) -> dict[str, int]:
        """Remembered ids, then `messages`. Returns {segment: bytes that count}, all durable."""
        journal, liveness = self._journal, self._plan.liveness
        for name, ids in sorted(liveness.duplicates.items()):
            pairs = [(id, seq) for id, (seq, _) in ids.items()]
            for i in range(0, len(pairs), IDS_PER_RECORD):
                journal.append_record(Duplicates(name, pairs[i : i + IDS_PER_RECORD]))
        if outcomes := [(id, seq) for id, (seq, _) in liveness.outcomes.items()]:
            journal.append_record(Outcomes(outcomes))
        for prepared, _ in liveness.prepared.values():
            journal.append_record(prepared)
        for marker, _ in liveness.markers.values():
            journal.append_record(marker)
        if liveness.placed is not None:
            journal.append_record(liveness.placed[0])
        for parcel, _ in liveness.parcels.values():
            journal.append_record(parcel)
        for record in messages:
            journal.append_record(record)
            if journal.open.size > FLUSH_BYTES:
                self._run()
        self._run()
        sealed = {segment.name: segment.end for segment in journal.segments}
        journal.abandon()
        self._run()
        # the segment made ahead of need, and the reserve
        self._log.delete([name for name in self._log.names() if name not in sealed])
        return sealed

    def _run(self) -> None:
        """Wait until everything is on disk."""
        self._journal.flush(unasked=True)
        while self._jobs:
            job, done = self._jobs.popleft()
            result, failure = None, None
            try:
                result = job()
            except OSError as error:
                failure = error
            done(result, failure)
            if self._failure is not None:
                raise self._failure
            self._journal.flush(unasked=True)

    # -- JobRunner, JournalOwner

    def submit(self, job: Job, done: Done) -> None:
        self._jobs.append((job, done))

    def close(self) -> None:
        self._jobs.clear()

    def is_alive(self) -> bool:
        return bool(self._jobs)

    def committed(self, batch: OpenBatch) -> None:
        assert batch.segment is not None

    def rejected(self, _refused: list[Confirm], _records: list[Record]) -> None:
        self._failure = StoreFullError("the disk is full: nothing was repaired; free some space and run it again")

    def store_full(self, full: bool) -> None:
        """A repair goes on below the brokers' free-space floor; a full disk ends in `rejected`."""

    def store_at_limit(self, reached: bool) -> None:
        """A repair ignores `storeLimit`: its journal replaces the old one."""

    def failed(self, why: str, damage: CorruptError | None = None) -> None:  # noqa: ARG002
        self._failure = StoreError(f"nothing was repaired: {why}")


def _messages(log: SegmentLog, liveness: Liveness) -> Iterator[Record]:
    """Every live message, oldest first, each followed by its redelivery count."""
    reader = MessageReader(log)
    yield from (record for record, _ in liveness.subscriptions.values())
    try:
        for seq in liveness.live.seqs():
            place = liveness.live[seq]
            if (place.segment, place.offset) not in liveness.shared:
                yield reader.read(seq, place)
            elif record := reader.read_shared(seq, place, liveness.live):
                yield record
            if seq in liveness.redelivered:
                yield Redelivered(place.destination, [(seq, *liveness.redelivered[seq])])
    finally:
        reader.close()


def _live_bytes(plan: Plan) -> int:
    return sum(tally.live_record_bytes for tally in plan.liveness.segments.values())


def _sealing(epochs: EpochFiles) -> Sealing:
    return (epochs.newest.number, epochs.newest.sealed) if epochs.newest is not None else (0, {})
