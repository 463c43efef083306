"""The rules of "The lock alone in a coordinator" (docs/master-slave.md), with mutants, on a coordinator in memory.

At each of the old master's calls of the coordinator in turn something happens: the call is lost, or its answer; its
session ends and another broker takes over, while the old master stands still before the call or after it. The two run
on different hosts.
"""

from __future__ import annotations

import errno
from functools import partial

import pytest

from amq.core.errors import OwnershipLostError, StoreError
from amq.store.board import SeatTakenError
from amq.store.coordinated.board import CoordinatedBoard
from amq.store.coordinated.election import CoordinatedElection
from amq.store.coordinated.session_time import FORGOTTEN_S
from tests.election_contract import Member, no
from tests.fakes import FakeClock, FakeHost
from tests.fault_course import (
    LOST,
    OVER,
    PERIOD_S,
    Candidate,
    Course,
    CourseMutant,
    Fault,
    Step,
    check_all,
    claim_not_looked_at,
    lease_not_asked,
    must_be_caught,
    no_wait,
)
from tests.memory_coordinator import SESSION_S, Ensemble, MemoryCoordinator, coordinated
from tests.memory_store import Shelves, store_on

FAULTS = (*LOST, *OVER)


class QuorumBroker(Candidate):
    """It checks its lease after each batch."""

    def __init__(self, shelves: Shelves, ensemble: Ensemble, name: str) -> None:
        self.coordinator = MemoryCoordinator(ensemble)
        super().__init__(coordinated(store_on(shelves), self.coordinator, alone=True), name, ensemble.clock)

    def work(self) -> None:
        for number in range(1, 5):
            self.write(number, 1)


def _lose() -> None:
    raise OSError(errno.ETIMEDOUT, "the call is lost, or its answer")


class QuorumCourse(Course):
    """`alive`: the old master checks its lease while its successor waits."""

    def __init__(self, fault: Fault, at: int, alive: bool) -> None:
        self.ensemble, shelves = Ensemble(), Shelves()
        old, new = (QuorumBroker(shelves, self.ensemble, name) for name in ("old", "new"))
        super().__init__(old, new, fault, at)
        self._coordinator = old.coordinator
        if alive:
            new.meanwhile = old.check_lease
        for name in ("read", "compare_and_set", "remove", "open_session"):
            real = getattr(old.coordinator, name)
            call = lambda *given, _real=real: self.call(Step(partial(_real, *given), _lose))  # noqa: E731
            setattr(old.coordinator, name, call)

    def free(self) -> None:
        for session in list(self._coordinator.sessions):
            self.ensemble.expire(session)

    def check(self) -> None:
        super().check()
        newest = self.new.store.epochs.newest()
        assert newest is not None
        assert newest.lock.url == "memory://"


def dead(_: pytest.MonkeyPatch, fault: Fault, at: int) -> Course:
    return QuorumCourse(fault, at, alive=False)


def alive(_: pytest.MonkeyPatch, fault: Fault, at: int) -> Course:
    return QuorumCourse(fault, at, alive=True)


def test_what_was_confirmed_lies_inside_the_seal_whatever_happens_at_the_coordinator() -> None:
    assert check_all(dead, FAULTS) + check_all(alive, FAULTS) > 60


def coordinator_fences(patch: pytest.MonkeyPatch) -> None:
    """As if it could keep a broker from the files."""
    patch.setattr(CoordinatedElection, "shuts_out", True)


def claim_and_heartbeats_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """And the session is taken for the proof, which its owner believes to go on."""
    claim_not_looked_at(patch)
    patch.setattr(CoordinatedElection, "write", lambda *_: None)
    patch.setattr(CoordinatedElection, "holds", lambda _election: True)


MUTANTS = [no_wait, coordinator_fences, claim_and_heartbeats_not_looked_at, lease_not_asked]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_without_a_rule_some_history_breaks_the_promise(mutant: CourseMutant) -> None:
    must_be_caught(mutant, alive, FAULTS)


def members(ensemble: Ensemble) -> tuple[Member, Member, MemoryCoordinator, MemoryCoordinator]:
    shelves = Shelves()
    views = MemoryCoordinator(ensemble), MemoryCoordinator(ensemble)
    one, other = (
        Member(coordinated(store_on(shelves), view, alone=True), name, ensemble.clock)
        for name, view in zip("ab", views, strict=True)
    )
    return one, other, *views


def test_without_the_coordinator_the_master_confirms_for_one_period_and_no_other_broker_becomes_master() -> None:
    ensemble = Ensemble()
    one, other, its, others = members(ensemble)
    assert one.locker.try_acquire()
    one.take_over({})
    checked = ensemble.clock.monotonic()
    one.lease.check()
    its.away = others.away = True
    ensemble.clock.advance(PERIOD_S - 0.1)
    assert one.lease.valid()
    for call in (other.locker.try_acquire, lambda: other.locker.replace(100.0, lambda: True)):
        with pytest.raises(OSError, match="does not answer"):
            call()
    ensemble.clock.advance(0.1)
    assert not one.lease.valid()
    assert one.lease.deadline == checked + PERIOD_S


def serve_on_without_session(ensemble: Ensemble, one: Member, its: MemoryCoordinator) -> None:
    """It becomes the master, and its session ends too early."""
    assert one.locker.try_acquire()
    one.take_over({})
    for session in list(its.sessions):
        ensemble.expire(session)
    one.lease.check()


def test_a_master_whose_session_ended_goes_on_where_no_other_broker_was_quicker() -> None:
    ensemble = Ensemble()
    one, other, its, _ = members(ensemble)
    serve_on_without_session(ensemble, one, its)
    assert one.lease.valid()
    assert not other.locker.try_acquire()


def test_a_session_that_ended_too_early_makes_the_next_ones_longer_for_a_while() -> None:
    ensemble = Ensemble()
    one, _, its, _ = members(ensemble)
    serve_on_without_session(ensemble, one, its)
    one.locker.release()
    assert one.locker.try_acquire()
    one.locker.release()
    ensemble.clock.advance(FORGOTTEN_S)
    assert one.locker.try_acquire()
    assert its.lasts_s == [SESSION_S, 2 * SESSION_S, 2 * SESSION_S, SESSION_S], "released ones count nothing"


def test_a_master_that_is_cut_off_alone_is_followed_and_never_checks_again() -> None:
    ensemble = Ensemble()
    one, other, its, _ = members(ensemble)
    assert one.locker.try_acquire()
    one.take_over({})
    its.away = True
    assert not other.locker.try_acquire()
    ensemble.clock.advance(SESSION_S)
    assert other.locker.try_acquire()
    other.take_over({})
    assert other.waited_s > PERIOD_S, "the session says nothing of the lease"
    its.away = False
    with pytest.raises(OwnershipLostError):
        one.lease.check()


def test_a_coordinator_that_lost_everything_is_another_one() -> None:
    shelves, clock = Shelves(), FakeClock()
    one = Member(coordinated(store_on(shelves), MemoryCoordinator(Ensemble(clock)), alone=True), "a", clock)
    assert one.locker.try_acquire()
    one.take_over({})
    clock.advance(0.001)
    other = Member(coordinated(store_on(shelves), MemoryCoordinator(Ensemble(clock)), alone=True), "b", clock)
    with pytest.raises(StoreError) as raised:
        other.locker.check_place()
    assert raised.value.code == "LOCK_ELSEWHERE"


def test_a_process_that_is_gone_keeps_nothing_on_its_own_host() -> None:
    ensemble, clock = Ensemble(), FakeClock()
    gone, here, away = FakeHost(own_pid=7), FakeHost(running=frozenset({(100, 5000)})), FakeHost(boot="another")
    dead = CoordinatedElection(MemoryCoordinator(ensemble), gone, clock)
    assert dead.try_acquire(no)
    elsewhere = CoordinatedElection(MemoryCoordinator(ensemble), away, clock)
    assert not elsewhere.try_acquire(no)
    assert elsewhere.is_held()
    local = CoordinatedElection(MemoryCoordinator(ensemble), here, clock)
    assert not local.is_held()
    assert local.try_acquire(no)
    assert not dead.holds()

    CoordinatedBoard(MemoryCoordinator(ensemble), gone).take("a")
    began = ensemble.clock.monotonic()
    assert CoordinatedBoard(MemoryCoordinator(ensemble), here).take("a")
    assert ensemble.clock.monotonic() == began


def test_a_broker_that_was_killed_waits_for_the_end_of_its_own_seat() -> None:
    ensemble = Ensemble()
    host = FakeHost(running=frozenset({(100, 5000)}))
    killed = MemoryCoordinator(ensemble)
    CoordinatedBoard(killed, host).take("a")
    with pytest.raises(SeatTakenError):
        CoordinatedBoard(MemoryCoordinator(ensemble), host).take("a")
    killed.away = True
    assert CoordinatedBoard(MemoryCoordinator(ensemble), host).take("a")
