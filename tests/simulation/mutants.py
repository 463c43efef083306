"""Holes made on purpose: each mutant takes one rule out of the code by replacing one function. A simulation that lets a
mutant live has a hole itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import amq.journal.follower
import amq.journal.recovery
import amq.journal.segment
import amq.node.takeover
import amq.store.locker
from amq.broker.broker import Broker
from amq.broker.queues.queue import Queue
from amq.broker.queues.redelivery import Redelivery
from amq.broker.state.state import State
from amq.broker.waiters import Call
from amq.core.errors import OwnershipLostError
from amq.core.message import Message
from amq.journal import journal as journal_module
from amq.journal.follower import Follower
from amq.journal.format import BATCH_BYTES, SegmentHeader, decode_batch_header
from amq.journal.journal import Journal
from amq.journal.live import Segment
from amq.journal.records import Consumed, Group, Record
from amq.journal.recovery import list_segments
from amq.store.epoch import Epoch
from amq.store.files.epochs import FileEpochs
from amq.store.files.log import FileWriter
from amq.store.files.vfs import write_all
from amq.store.lease import Lease
from amq.store.locker import Locker, LockerEvent
from amq.store.segment_log import SegmentLog
from amq.transports.turn import Turn

Mutant = Callable[[], AbstractContextManager[object]]
MUTANTS: dict[str, Mutant] = {}
# Mutants for which rare things must come together: to which faults their hunt is limited.
FOCUS: dict[str, tuple[str, ...]] = {
    "claim_not_looked_at": ("lose_locks",),
    "no_wait_after_the_claim": ("lose_locks",),
    "no_lease_check_before_confirming": ("late batch", "late bytes"),
    "journal_commits_without_lease": ("late batch", "late bytes"),
    "nothing_waits_for_the_lease_to_be_sent": ("late batch", "late bytes"),
    "pid_alone_proves_death": ("late batch", "late bytes", "lose_locks"),
    "lease_moved_from_the_end_of_the_check": ("slow check", "slow look at the claim"),
    "own_period_instead_of_the_old_masters": ("slow look at the claim", "slow check", "lose_locks"),
    "old_segments_not_synced_before_the_seal": ("sealed in memory",),
    "seal_measures_old_segments_again": ("late bytes",),
    "master_reads_past_the_seal": ("late bytes",),
    "epoch_not_exclusive": ("late link", "late epoch", "lose_locks"),
    "torn_batch_accepted": ("torn batch",),
    "damage_taken_for_a_torn_tail": ("rot", "hand_over"),
    "payload_not_summed": ("rot", "rot", "lose_locks"),
    "failed_sync_tried_again": ("fail_sync", "power_off"),
    "memory_trusted_after_a_failed_sync": ("fail_sync", "crash_server"),
    "the_lease_is_not_looked_at_inside_a_group": ("restart_all",),
    "a_replaced_lock_file_needs_no_claim": ("late link", "hang"),
}


def mutant(make: Mutant) -> Mutant:
    MUTANTS[make.__name__] = make
    return make


def _patch(target: Any, name: str, value: Any) -> AbstractContextManager[object]:
    return patch.object(target, name, value)


# -- lease and confirm rule --------------------------------------------------------------------------------------------


@mutant
def no_lease_check_before_confirming() -> AbstractContextManager[object]:
    return _patch(Lease, "valid", lambda _lease: True)


@mutant
def journal_commits_without_lease() -> AbstractContextManager[object]:
    def finish(journal: Journal) -> None:
        batch, journal._batch, journal._busy = journal._batch, None, journal_module._Busy.NOTHING
        assert batch is not None
        journal._owner.committed(batch)

    return _patch(Journal, "_finish", finish)


@mutant
def confirmed_before_the_sync() -> AbstractContextManager[object]:
    def append(writer: FileWriter, start: int, _end: int, pieces: Iterable[bytes]) -> float:
        for piece in pieces:
            write_all(writer._vfs, writer._fd, piece, start)
            start += len(piece)
        return 0.0

    return _patch(FileWriter, "append", append)


@mutant
def failed_sync_tried_again() -> AbstractContextManager[object]:
    """A second sync that succeeds proves nothing: the pages are gone."""
    from tests.simulation.door import SimVfs

    real = SimVfs.fdatasync

    def fdatasync(vfs: SimVfs, fd: int) -> None:
        try:
            real(vfs, fd)
        except OSError:
            real(vfs, fd)

    return _patch(SimVfs, "fdatasync", fdatasync)


@mutant
def lease_moved_from_the_end_of_the_check() -> AbstractContextManager[object]:
    def check(lease: Lease) -> None:
        if lease._revoked:
            raise OwnershipLostError("this lease was given up")
        try:
            lease._prove()
        except OSError as error:
            lease.revoke()
            raise OwnershipLostError(str(error)) from error
        except BaseException:
            lease.revoke()
            raise
        lease.proved = lease._clock.monotonic()
        lease.deadline = lease.proved + lease.period_s

    return _patch(Lease, "check", check)


@mutant
def lease_on_the_wall_clock() -> AbstractContextManager[object]:
    real = Lease.__init__

    class WallClock:
        def __init__(self, clock: Any) -> None:
            self.wall_ms = clock.wall_ms

        def monotonic(self) -> float:
            return float(self.wall_ms()) / 1000

    def init(lease: Lease, prove: Any, clock: Any, *others: Any) -> None:
        real(lease, prove, WallClock(clock), *others)

    return _patch(Lease, "__init__", init)


@mutant
def errors_of_a_check_only_warned_about() -> AbstractContextManager[object]:
    real = Locker._prove

    def prove(locker: Locker) -> None:
        with suppress(OSError, OwnershipLostError):
            real(locker)

    return _patch(Locker, "_prove", prove)


@mutant
def claim_not_looked_at() -> AbstractContextManager[object]:
    return _patch(Locker, "_check_claim", lambda _locker: None)


# -- takeover ----------------------------------------------------------------------------------------------------------


@mutant
def no_wait_after_the_claim() -> AbstractContextManager[object]:
    return _patch(Locker, "_wait_for", lambda _locker, _previous: (0.0, "impatient"))


@mutant
def own_period_instead_of_the_old_masters() -> AbstractContextManager[object]:
    real = Locker._wait_for

    def wait_for(locker: Locker, previous: Epoch | None) -> tuple[float, str]:
        if previous is not None:
            owner = replace(previous.owner, lock_keep_alive_period_s=locker.owner.lock_keep_alive_period_s)
            previous = replace(previous, owner=owner)
        return real(locker, previous)

    return _patch(Locker, "_wait_for", wait_for)


@mutant
def pid_alone_proves_death() -> AbstractContextManager[object]:
    def gone(owner: Any, host: Any) -> bool:
        return not host.is_running(owner.pid, owner.pid_start)

    return _patch(amq.store.locker, "provably_gone", gone)


@mutant
def seal_before_the_wait() -> AbstractContextManager[object]:
    real = Locker._take_over

    def take_over(locker: Locker, pause: Any, seal: Callable[[Epoch | None], Mapping[str, int]]) -> Any:
        previous = locker._epochs.newest()
        sealed = seal(previous)
        return real(locker, pause, lambda _previous: sealed)

    return _patch(Locker, "_take_over", take_over)


@mutant
def claim_written_after_the_wait() -> AbstractContextManager[object]:
    write = Locker._write_claim
    enter = Locker._enter
    held: dict[int, tuple[int, str]] = {}

    def later(locker: Locker, number: int, attempt: str) -> None:
        held[id(locker)] = (number, attempt)
        enter(locker, LockerEvent.CLAIM)

    def prove(locker: Locker) -> None:
        if id(locker) in held:
            with _patch(Locker, "_enter", lambda *_: None):
                write(locker, *held.pop(id(locker)))
        real(locker)

    real = Locker._prove
    return _both(_patch(Locker, "_write_claim", later), _patch(Locker, "_prove", prove))


@mutant
def epoch_not_exclusive() -> AbstractContextManager[object]:
    real = FileEpochs.link

    def link(epochs: FileEpochs, epoch: Epoch, attempt: str) -> bool:
        with suppress(FileNotFoundError):
            epochs._vfs.unlink(epochs.place(epoch.number))
        return real(epochs, epoch, attempt)

    return _patch(FileEpochs, "link", link)


@mutant
def old_segments_not_synced_before_the_seal() -> AbstractContextManager[object]:
    return _patch(amq.node.takeover, "lock_segments", lambda _log, _sign: [])


@mutant
def seal_measures_old_segments_again() -> AbstractContextManager[object]:
    real = amq.node.takeover.seal

    def seal(
        log: SegmentLog, last_epoch: int, known: Mapping[str, int], followed: Any = None, sign: Any = None
    ) -> dict[str, int]:
        sealed = real(log, last_epoch, known, followed, sign)
        for name in known:
            if name in sealed:
                sealed[name] = amq.journal.recovery._measure(log, name, None).end
        return sealed

    no_assertion = patch.object(amq.store.locker, "all", lambda _parts: True, create=True)
    return _both(_patch(amq.node.takeover, "seal", seal), no_assertion)


@mutant
def master_reads_past_the_seal() -> AbstractContextManager[object]:
    real = Follower.finish

    def finish(follower: Follower, sealed: Mapping[str, int], progress: Any) -> Any:
        log = follower._log
        ends = {n: amq.journal.recovery._measure(log, n, None).end for n in list_segments(log)}
        return real(follower, {**sealed, **ends}, progress)

    return _patch(Follower, "finish", finish)


# -- journal -----------------------------------------------------------------------------------------------------------


@mutant
def memory_trusted_after_a_failed_sync() -> AbstractContextManager[object]:
    from tests.simulation.door import SimVfs

    return _patch(SimVfs, "drop_cache", lambda _vfs, _fd: None)


@mutant
def torn_batch_accepted() -> AbstractContextManager[object]:
    return _patch(amq.journal.segment, "batch_at", _batch_unsummed)


def _batch_unsummed(data: memoryview, offset: int, header: SegmentHeader, number: int, end: int) -> Any:
    head = decode_batch_header(data, offset, header.salt)
    if head is None or (number and head.number != number + 1) or offset + BATCH_BYTES + head.payload_bytes > end:
        return None, "no valid batch header"
    return head, ""


@mutant
def damage_taken_for_a_torn_tail() -> AbstractContextManager[object]:
    return _patch(amq.journal.segment, "later_batch", lambda *_: False)


@mutant
def payload_not_summed() -> AbstractContextManager[object]:
    return _patch(amq.journal.follower, "batch_at", _batch_unsummed)


# -- broker ------------------------------------------------------------------------------------------------------------


@mutant
def a_resend_is_stored_twice() -> AbstractContextManager[object]:
    return _patch(Broker, "is_duplicate", lambda _broker, _message: False)


@mutant
def acknowledgements_not_in_the_journal() -> AbstractContextManager[object]:
    def consumed(broker: Broker, queue: Any, message: Message) -> None:
        broker.state.remove(queue, message)

    return _patch(Broker, "consumed", consumed)


@mutant
def transaction_applied_half() -> AbstractContextManager[object]:
    real = State.apply

    def apply(state: State, record: Record, segment: Segment | None) -> None:
        if isinstance(record, Group) and record.outcome_id and not state.serves:
            record = Group([part for part in record.records if not isinstance(part, Consumed)], record.outcome_id)
        real(state, record, segment)

    return _patch(State, "apply", apply)


@mutant
def outcomes_forgotten_at_takeover() -> AbstractContextManager[object]:
    real = Broker.begin

    def start(broker: Broker, *arguments: Any) -> None:
        broker.state.outcomes.clear()
        real(broker, *arguments)

    return _patch(Broker, "begin", start)


@mutant
def sequence_numbers_begin_anew() -> AbstractContextManager[object]:
    real = Broker.begin

    def start(broker: Broker, *arguments: Any) -> None:
        real(broker, *arguments)
        broker._seq = 1 << 44

    return _patch(Broker, "begin", start)


@mutant
def returned_messages_lost() -> AbstractContextManager[object]:
    return _patch(Redelivery, "give_back", lambda *_, **__: None)


def _nothing() -> None:
    """Nobody waits."""


@mutant
def confirmed_at_once() -> AbstractContextManager[object]:
    real = Broker.store

    def store(broker: Broker, message: Message, waiter: Any) -> None:
        real(broker, message, Call(_nothing, lambda _error: None))
        waiter.done()

    return _patch(Broker, "store", store)


@mutant
def nothing_waits_for_the_lease_to_be_sent() -> AbstractContextManager[object]:
    """The gate at the end of a turn and the confirm rule, both off."""
    real = Turn.serve

    def serve(turn: Turn, broker: Any, journal: Any, _valid: Any) -> None:
        real(turn, broker, journal, lambda: True)

    finish = journal_commits_without_lease()
    return _both(_patch(Turn, "serve", serve), finish)


# -- compaction, limits ------------------------------------------------------------------------------------------------


@mutant
def the_youngest_is_dropped() -> AbstractContextManager[object]:
    def take_oldest(queue: Queue, _size_bytes: int) -> list[Message]:
        level = max(queue.levels, key=len)
        return [level.pop()] if level else []

    return _patch(Queue, "take_oldest", take_oldest)


@contextmanager
def _both(one: AbstractContextManager[object], other: AbstractContextManager[object]) -> Iterator[None]:
    with one, other:
        yield
