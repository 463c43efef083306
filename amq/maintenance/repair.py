"""`amq journal repair`: a store that no broker can start from becomes one that holds all that can still be read.

What can be believed (`amq.journal.salvage`) is written, by the journal's own code, into segments of the next epoch.
Then that epoch is linked by the locker, as in any takeover, and names exactly those segments. The link is the one
moment in which the store changes its meaning: before it brokers see the damaged store, after it the repaired one, and
what is left to do (`_finish`) is done by whoever runs the repair again. Until the new segments are in place brokers
refuse the store, because its epoch names segments that are missing.

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

from amq.clock import Clock
from amq.config.schema import BrokerConfig
from amq.errors import AmqError, CorruptError, StoreError, StoreFullError
from amq.journal.batch import Confirmable, OpenBatch
from amq.journal.checkpoint import CHECKPOINTS_DIRECTORY, list_checkpoints, parse_checkpoint_name
from amq.journal.export import MessageReader
from amq.journal.follower import replay
from amq.journal.format import segment_key
from amq.journal.inspect import Inspection, Sealing, inspect
from amq.journal.journal import Journal
from amq.journal.liveness import Liveness
from amq.journal.records import Duplicates, Marker, Outcomes, Record, Redelivered, Trimmed
from amq.journal.recovery import JOURNAL_DIRECTORY, Recovered, lock_segments
from amq.journal.salvage import Damage, Salvage
from amq.journal.segment import list_segments
from amq.journal.writer import Done, Job
from amq.lock.document import decode, encode, read_file
from amq.lock.epoch import EPOCHS_DIRECTORY, Epoch, epoch_path, newest_number, read_epoch
from amq.lock.host import Host, Owner
from amq.lock.lease import Lease
from amq.lock.presence import Presence
from amq.lock.shared_file import HEARTBEAT_OFFSET, LOCK_FILE, SharedFileLocker, read_record
from amq.threads import Event
from amq.vfs import Vfs, close_all, write_all

NAME = "amq-journal-repair"
KEPT_PREFIX = "journal.before-repair-"
SCRATCH = "repaired"  # in it, until the repair is finished: a journal that will be the store's
MARKER = "repair.json"
MARKER_KIND = "repair"
UNKNOWN_PERIOD_S = 30.0  # to wait for a master of whom nothing can be read, unless an epoch tells a longer period
FLUSH_BYTES = 1 << 20
IDS_PER_RECORD = 1000


@dataclass(frozen=True, slots=True)
class EpochFiles:
    """What epochs/ says. `newest` = the newest that can be read; `number` = the newest that there was."""

    newest: Epoch | None
    number: int
    damaged: list[Damage]
    period_s: float

    @property
    def must_be_rebuilt(self) -> bool:
        return self.number > (self.newest.number if self.newest is not None else 0)


@dataclass(slots=True)
class Plan:
    """What a repair finds. `liveness` is what would be saved; `unfinished` directories of repairs that were killed."""

    epochs: EpochFiles
    salvage: Salvage
    liveness: Liveness
    unfinished: list[str]
    damages: list[Damage] = field(default_factory=list)

    @property
    def needed(self) -> bool:
        return bool(self.damages or self.unfinished)


def make_plan(vfs: Vfs, store: str, config: BrokerConfig) -> Plan:
    """Read everything, change nothing. Raises NewerFormatError, OSError."""
    epochs = read_epoch_files(vfs, store)
    salvage = Salvage(vfs, store, _sealing(epochs))
    liveness = Liveness(config.duplicate_window, config.outcome_window)
    salvage.fold(liveness)
    return Plan(epochs, salvage, liveness, unfinished(vfs, store), [*epochs.damaged, *salvage.damages])


def is_whole(vfs: Vfs, store: str) -> bool:
    """Nothing is damaged. Also says the truth of a store at work. Raises NewerFormatError, OSError."""
    epochs = read_epoch_files(vfs, store)
    if epochs.damaged or unfinished(vfs, store):
        return False
    inspection, _ = inspect(vfs, store, lambda: _sealing(read_epoch_files(vfs, store)))
    return not inspection.problems


def read_epoch_files(vfs: Vfs, store: str) -> EpochFiles:
    """Raises NewerFormatError, OSError."""
    directory = os.path.join(store, EPOCHS_DIRECTORY)
    try:
        names = vfs.listdir(directory)
    except FileNotFoundError:
        names = []
    newest, damaged, period_s = None, [], UNKNOWN_PERIOD_S
    for name in sorted(names):
        number = newest_number([name])
        if not number:
            continue
        try:
            epoch = read_epoch(vfs, store, number)
        except CorruptError as error:
            size = vfs.stat(epoch_path(store, number)).st_size
            damaged.append(Damage(error.code, error.path, error.offset, size, error.why, counts=False))
            continue
        newest, period_s = epoch, max(period_s, epoch.owner.lock_keep_alive_period_s)
    last = max((segment_key(name)[0] for name in list_segments(vfs, os.path.join(store, JOURNAL_DIRECTORY))), default=0)
    number = max(newest_number(names), last)
    if last > newest_number(names):
        path = epoch_path(store, last)
        why = "epoch file is missing: there are segments of it"
        damaged.append(Damage("STORE_INCOMPLETE", path, 0, 0, why, counts=False))
    return EpochFiles(newest, number, damaged, period_s)


def unfinished(vfs: Vfs, store: str) -> list[str]:
    """Directories of repairs that were killed."""
    found = []
    for name in sorted(vfs.listdir(store)):
        if name.startswith(KEPT_PREFIX):
            directory = os.path.join(store, name)
            with suppress(NotADirectoryError, FileNotFoundError):  # somebody archived it, or took it away
                if SCRATCH in vfs.listdir(directory):
                    found.append(directory)
    return found


class Repair:
    """One repair of `store`, by this process. `told(sentence)` says what it does."""

    def __init__(
        self, vfs: Vfs, clock: Clock, host: Host, entropy: random.Random, stop: Event, config: BrokerConfig,
        told: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.kept = ""
        self.plan: Plan | None = None
        self._vfs = vfs
        self._clock = clock
        self._stop = stop
        self._entropy = entropy
        self._config = config
        self._store = config.store
        self._directory = os.path.join(config.store, JOURNAL_DIRECTORY)
        self._told = told
        self._owner = Owner.make(
            host, name=NAME, uuid=str(uuid.UUID(bytes=entropy.randbytes(16))), transport_urls=(),
            lock_keep_alive_period_s=config.lock_keep_alive_period_s,
        )  # fmt: skip
        self._locker = SharedFileLocker(vfs, clock, host, config.store, self._owner)

    def run(self) -> Plan:
        """Take the store, finish earlier repairs, repair. Returns what was found; `kept` is where the originals are, ""
        where nothing had to be done. Raises AmqError STORE_LOCKED, StoreError, StoreFullError, OwnershipLostError,
        OSError; run it again then.
        """
        with closing(Presence.open(self._vfs, self._store, self._owner)):
            try:
                self._lock()
                for directory in unfinished(self._vfs, self._store):
                    self._told(f"finishing the repair of {os.path.basename(directory)}")
                    self._finish(directory)
                plan = self.plan = make_plan(self._vfs, self._store, self._config)
                if plan.damages:
                    self._repair(plan)
                self._locker.release()
            finally:
                self._locker.abandon()
        return plan

    def _lock(self) -> None:
        path = os.path.join(self._store, LOCK_FILE)
        if LOCK_FILE not in self._vfs.listdir(self._store):
            self._vfs.close(self._vfs.open(path, os.O_RDWR | os.O_CREAT))
        if not self._locker.try_acquire():
            raise AmqError(
                f"the store is locked by {self._locker.holder() or 'another process'}: stop its brokers, then repair",
                code="STORE_LOCKED",
            )

    def _repair(self, plan: Plan) -> None:
        self._make_kept()
        if plan.epochs.must_be_rebuilt:
            self._rebuild_epoch(plan)
        self._set_aside(plan)
        if not any(damage.counts for damage in plan.damages):
            return
        held: list[int] = []
        try:
            mastership = self._locker.take_over(self._stop.wait, lambda previous: self._write(previous, held))
            if mastership is None:
                raise StoreError("the repair was stopped before it changed anything")
            self._finish(self.kept, mastership.lease)
        finally:
            close_all(self._vfs, held)

    # -- the originals ------------------------------------------------------------------------------------------------

    def _make_kept(self) -> None:
        """A directory with a link to every segment, epoch file and checkpoint as they are."""
        wall = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
        self.kept = os.path.join(self._store, f"{KEPT_PREFIX}{wall:%Y%m%dT%H%M%S}-{self._owner.uuid[:8]}")
        self._vfs.mkdir(self.kept)
        for directory in (JOURNAL_DIRECTORY, EPOCHS_DIRECTORY, CHECKPOINTS_DIRECTORY):
            directory = os.path.join(self._store, directory)
            with suppress(FileNotFoundError):
                for name in self._vfs.listdir(directory):
                    if segment_key(name) != (0, 0) or newest_number([name]) or parse_checkpoint_name(name):
                        self._vfs.link(os.path.join(directory, name), os.path.join(self.kept, name))
        self._vfs.fsync_directory(self.kept)
        self._vfs.fsync_directory(self._store)
        self._told(f"the originals are kept in {self.kept}")

    def _rebuild_epoch(self, plan: Plan) -> None:
        """Put a readable file in the place of the newest epoch's: who its owner was and which lengths it had sealed, as
        far as that can be known. A length that is too great only makes damage be told again; none is too small.
        """
        epochs = plan.epochs
        sealed = dict(epochs.newest.sealed) if epochs.newest is not None else {}
        for report in plan.salvage.segments:
            if report.epoch < epochs.number and (epochs.newest is None or report.epoch >= epochs.newest.number):
                sealed[report.name] = report.end
        reason = "rebuilt by amq journal repair: the file was damaged or missing"
        epoch = Epoch(epochs.number, self._last_owner(epochs), sealed, self._clock.wall_ms(), reason)
        path = epoch_path(self._store, epochs.number)
        temporary = f"{path}.{self._owner.uuid}"
        with suppress(FileExistsError):
            self._vfs.mkdir(os.path.dirname(path))
        self._write_file(temporary, encode("epoch", epoch.to_json()))
        os.replace(temporary, path)
        self._vfs.fsync_directory(os.path.dirname(path))
        self._told(f"epoch {epochs.number} was rebuilt; its owner was {epoch.owner.describe()}")

    def _set_aside(self, plan: Plan) -> None:
        """Take away, now that they are kept, files that count nothing and keep brokers from starting: old epochs that
        cannot be read, segments of others under names that nobody sealed.
        """
        for damage in plan.damages:
            directory, name = os.path.split(damage.path)
            rebuilt = plan.epochs.must_be_rebuilt and damage.path == epoch_path(self._store, plan.epochs.number)
            if not damage.counts and not rebuilt and name in self._vfs.listdir(directory):
                self._vfs.unlink(damage.path)
                self._vfs.fsync_directory(directory)
                self._told(f"{damage.path} was taken out")

    def _last_owner(self, epochs: EpochFiles) -> Owner:
        """Who may still believe to be master: the last heartbeat tells; else somebody unknown, to be waited for."""
        try:
            body = read_record(self._vfs, os.path.join(self._store, LOCK_FILE), "heartbeat", HEARTBEAT_OFFSET)
            if body is not None and body.get("epoch") == epochs.number:
                return Owner.from_json(body["owner"], self._store)
        except (StoreError, LookupError, TypeError, AttributeError):
            self._told("the last heartbeat cannot be read")
        return Owner("unknown", "unknown", "unknown", "", "", 1, 0, (), epochs.period_s)

    # -- the new journal ----------------------------------------------------------------------------------------------

    def _write(self, previous: Epoch | None, held: list[int]) -> dict[str, int]:
        """Instead of sealing: read what is there once more, now that nobody can confirm anything, and write what can be
        believed of it as segments of the next epoch, aside. Returns their names and lengths.
        """
        held += lock_segments(self._vfs, self._store)
        for fd in held:
            self._vfs.drop_cache(fd)  # what a master of this host could not sync may be in memory alone
        assert previous is not None, "a store without epochs was rebuilt"
        plan = self.plan = make_plan(self._vfs, self._store, self._config)
        number = previous.number + 1
        scratch = os.path.join(self.kept, SCRATCH)
        marker = encode(MARKER_KIND, {"epoch": number, "uuid": self._owner.uuid})
        self._write_file(os.path.join(self.kept, MARKER), marker)
        for path in (scratch, os.path.join(scratch, JOURNAL_DIRECTORY)):
            self._vfs.mkdir(path)
            self._vfs.fsync_directory(os.path.dirname(path))
        live_bytes = sum(tally.live_record_bytes for tally in plan.liveness.segments.values())
        self._check_room(live_bytes)
        self._told(f"writing {len(plan.liveness.live)} messages, {live_bytes} bytes")
        sealed = _Scratch(self._vfs, self._clock, scratch, number, plan, self._config, self._entropy).write(
            _messages(self._vfs, self._store, plan.liveness)
        )
        self._verify(scratch, number, sealed, plan.liveness)
        return sealed

    def _check_room(self, live_bytes: int) -> None:
        needed = live_bytes + 2 * self._config.journal_segment_size_bytes
        free = self._vfs.free_bytes(self._store)
        if free < needed:
            raise StoreFullError(f"a repair needs {needed} free bytes in {self._store}, {free} are there: free some")

    def _verify(self, scratch: str, number: int, sealed: dict[str, int], saved: Liveness) -> None:
        """Read it back as a new master will, and compare."""
        replay(self._vfs, scratch, sealed, lambda _record, _segment: None, lambda _done, _total: None)
        inspection, found = self._inspect(scratch, number, sealed)
        same = len(found.live) == len(saved.live) and all(
            mine == theirs and found.live[mine].destination == saved.live[mine].destination
            for mine, theirs in zip(found.live.seqs(), saved.live.seqs(), strict=True)
        )
        if inspection.problems or not same or found.redelivered != saved.redelivered:
            raise StoreError(f"{scratch}: what was written is not what is read: nothing was changed")

    def _inspect(self, scratch: str, number: int, sealed: dict[str, int]) -> tuple[Inspection, Liveness]:
        windows = self._config.duplicate_window, self._config.outcome_window
        return inspect(self._vfs, scratch, lambda: (number, sealed), lambda: Liveness(*windows))

    # -- the end, also of a repair that was killed --------------------------------------------------------------------

    def _finish(self, kept: str, lease: Lease | None = None) -> None:
        """Committed: put the new segments in place and take the old ones away. Else: forget what was prepared."""
        vfs = self._vfs
        scratch = os.path.join(kept, SCRATCH)
        prepared = os.path.join(scratch, JOURNAL_DIRECTORY)
        number = self._committed(kept)
        if number:
            newest = read_epoch_files(vfs, self._store).newest
            sealed = newest.sealed if newest is not None else {}
            self._remove_checkpoints(number)
            present = set(list_segments(vfs, self._directory))
            for name in self._prepared(kept):
                if sealed.get(name) and name not in present:
                    vfs.link(os.path.join(prepared, name), os.path.join(self._directory, name))
            vfs.fsync_directory(self._directory)
            if lease is not None:
                lease.check()
            kept_names = set(vfs.listdir(kept))
            for name in sorted(present & kept_names):
                if segment_key(name)[0] < number and not sealed.get(name):
                    vfs.unlink(os.path.join(self._directory, name))
            vfs.fsync_directory(self._directory)
        for directory in (prepared, scratch):
            with suppress(FileNotFoundError):
                for name in vfs.listdir(directory):
                    if name != JOURNAL_DIRECTORY:
                        vfs.unlink(os.path.join(directory, name))
                os.rmdir(directory)
        vfs.fsync_directory(kept)

    def _remove_checkpoints(self, epoch: int) -> None:
        """Those of before `epoch` speak of the old journal. They are gone before any of the new one is there."""
        names = list_checkpoints(self._vfs, self._store)
        for name in names:
            if (parse_checkpoint_name(name) or (epoch,))[0] < epoch:
                self._vfs.unlink(os.path.join(self._store, CHECKPOINTS_DIRECTORY, name))
        if names:
            self._vfs.fsync_directory(os.path.join(self._store, CHECKPOINTS_DIRECTORY))

    def _prepared(self, kept: str) -> list[str]:
        """The new segments that are still in `kept`."""
        with suppress(FileNotFoundError):
            return list_segments(self._vfs, os.path.join(kept, SCRATCH, JOURNAL_DIRECTORY))
        return []

    def _committed(self, kept: str) -> int:
        """The number of the epoch that the repair of `kept` linked, 0 = it did not get so far. Brokers that refused the
        store again and again may have pruned the file of that epoch; the newest one seals what it sealed."""
        try:
            path = os.path.join(kept, MARKER)
            marker = decode(MARKER_KIND, read_file(self._vfs, path), path)
            epoch = read_epoch(self._vfs, self._store, int(marker["epoch"]))
        except (FileNotFoundError, CorruptError):
            names, newest = self._prepared(kept), read_epoch_files(self._vfs, self._store).newest
            number = max([segment_key(name)[0] for name in names], default=0)
            lengths = newest.sealed if newest is not None else {}
            sealed = {name: end for name, end in lengths.items() if segment_key(name)[0] == number}
            known = bool(sealed) and sealed.keys() <= set(names)
            return number if known and not self._inspect(os.path.join(kept, SCRATCH), number, sealed)[0].problems else 0
        return epoch.number if epoch.owner.uuid == marker["uuid"] else 0

    def _write_file(self, path: str, data: bytes) -> None:
        fd = self._vfs.open(path, os.O_WRONLY | os.O_CREAT)
        try:
            write_all(self._vfs, fd, data, 0)
            self._vfs.fsync(fd)
        finally:
            self._vfs.close(fd)
        self._vfs.fsync_directory(os.path.dirname(path))


class _Scratch:
    """A journal that is written from its first record to its last, in one go. Also its owner and its disk thread."""

    def __init__(
        self, vfs: Vfs, clock: Clock, store: str, epoch: int, plan: Plan, config: BrokerConfig, entropy: random.Random
    ) -> None:
        self._vfs = vfs
        self._store = store
        self._plan = plan
        self._jobs: deque[tuple[Job, Done]] = deque()
        self._failure: AmqError | None = None
        nothing = Recovered([], [], Trimmed(), plan.salvage.store_uuid, 0, 0)
        self._journal = Journal(
            vfs, clock, self, self, lambda: True, store, epoch, plan.salvage.store_uuid, nothing, config, entropy
        )
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
        for owner, (batch, _) in liveness.markers.items():
            journal.append_record(Marker(owner, batch))
        for record in messages:
            journal.append_record(record)
            if journal.open.size > FLUSH_BYTES:
                self._run()
        self._run()
        sealed = {segment.name: segment.end for segment in journal.segments}
        journal.abandon()
        self._run()
        directory = os.path.join(self._store, JOURNAL_DIRECTORY)
        for name in self._vfs.listdir(directory):
            if name not in sealed:  # the segment that was made ahead of need, and the reserve
                self._vfs.unlink(os.path.join(directory, name))
        self._vfs.fsync_directory(directory)
        return sealed

    def _run(self) -> None:
        """Until all is on the disk."""
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

    def rejected(self, _refused: list[tuple[Confirmable, str, Record | None]], _records: list[Record]) -> None:
        self._failure = StoreFullError("the disk is full: nothing was repaired; free some space and run it again")

    def store_full(self, full: bool) -> None:
        """Below the floor for brokers a repair goes on; a disk that is really full ends in `rejected`."""

    def store_at_limit(self, reached: bool) -> None:
        """A repair goes on: what it writes takes the place of what is there."""

    def failed(self, why: str, damage: CorruptError | None = None) -> None:  # noqa: ARG002
        self._failure = StoreError(f"nothing was repaired: {why}")


def _messages(vfs: Vfs, store: str, liveness: Liveness) -> Iterator[Record]:
    """Every live message, oldest first, each followed by how often it came back."""
    reader = MessageReader(vfs, store)
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


def _sealing(epochs: EpochFiles) -> Sealing:
    return (epochs.newest.number, epochs.newest.sealed) if epochs.newest is not None else (0, {})
