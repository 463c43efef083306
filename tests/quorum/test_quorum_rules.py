"""The rules of "The lock alone in a coordinator" (docs/master-slave.md), with mutants, on a coordinator in memory.

An old master appends and checks its lease. At each of its calls of the coordinator in turn something happens: the call
is lost, or its answer; its session ends and another broker takes over, while the old master stands still before the
call or after it. The two run on different hosts. Whatever was confirmed must lie inside the seal.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from fakes import FakeClock, FakeHost

from amq.core.errors import OwnershipLostError, StoreError
from amq.store.board import SeatTakenError
from amq.store.coordinated.board import CoordinatedBoard
from amq.store.coordinated.election import CoordinatedElection
from amq.store.lease import Lease
from amq.store.locker import Locker
from tests.election_contract import Member, no
from tests.memory_coordinator import SESSION_S, Ensemble, MemoryCoordinator, coordinated
from tests.memory_store import Shelves, store_on
from tests.sql.candidates import BATCH, PERIOD_S, Candidate, Violation

Call = Callable[[], Any]


class Broker(Candidate):
    """Writes what a master writes, until the first error."""

    def __init__(self, shelves: Shelves, ensemble: Ensemble, name: str, clock: FakeClock) -> None:
        self.coordinator = MemoryCoordinator(ensemble)
        super().__init__(coordinated(store_on(shelves), self.coordinator, alone=True), name, clock)

    def work(self) -> None:
        name = f"{self.epoch:08d}-00000001.seg"
        writer = self.store.log.create(name, BATCH, 1 << 16, self.clock)
        for batch in range(1, 5):
            end = (batch + 1) * len(BATCH)
            writer.append(end - len(BATCH), end, [BATCH])
            if self.lease.valid():
                self.confirmed[name] = end
            self.lease.check()


def lost(_world: World, _call: Call) -> Any:
    raise OSError(errno.ETIMEDOUT, "the call is lost")


def answer_lost(_world: World, call: Call) -> Any:
    call()
    raise OSError(errno.ETIMEDOUT, "the answer is lost")


def over_before(world: World, call: Call) -> Any:
    world.succeed()
    return call()


def over_after(world: World, call: Call) -> Any:
    found = call()
    world.succeed()
    return found


FAULTS = (lost, answer_lost, over_before, over_after)


class World:
    """The fault comes at call `at` of the old master's work. `alive`: it checks its lease while its successor waits."""

    def __init__(self, fault: Callable[[World, Call], Any], at: int, alive: bool) -> None:
        self.ensemble, shelves = Ensemble(), Shelves()
        self.old = Broker(shelves, self.ensemble, "old", self.ensemble.clock)
        self.new = Broker(shelves, self.ensemble, "new", self.ensemble.clock)
        self.calls, self._at, self._fault = 0, at, fault
        self._working = self._succeeded = False
        if alive:
            self.new.pause = self._wait  # type: ignore[method-assign]
        for name in ("read", "compare_and_set", "remove", "open_session"):
            real = getattr(self.old.coordinator, name)
            setattr(self.old.coordinator, name, lambda *given, _real=real: self._call(lambda: _real(*given)))

    def play(self) -> bool:
        """True where the old master made that many calls."""
        self.old.become_master()
        self._working = True
        with suppress(OSError, OwnershipLostError):
            self.old.work()
        self._working = False
        self.succeed()
        return self.calls >= self._at

    def succeed(self) -> None:
        if self._succeeded:
            return
        self._succeeded = True
        working, self._working = self._working, False
        for session in list(self.old.coordinator.sessions):
            self.ensemble.expire(session)
        self.new.become_master()
        if self.old.lease.valid():
            raise Violation("two masters serve at once")
        self._working = working

    def check(self) -> None:
        for name, length in self.old.confirmed.items():
            if length > self.new.sealed.get(name, 0):
                raise Violation(f"{name}: {length} bytes confirmed, {self.new.sealed.get(name, 0)} sealed")
        newest = self.new.store.epochs.newest()
        assert newest is not None
        assert (newest.owner.name, newest.lock.url) == ("new", "memory://")

    def _wait(self, seconds: float) -> bool:
        self.ensemble.clock.advance(seconds)
        with suppress(OwnershipLostError):
            self.old.lease.check()
        return False

    def _call(self, call: Call) -> Any:
        if self._working:
            self.calls += 1
            if self.calls == self._at:
                return self._fault(self, call)
        return call()


def histories() -> Iterator[World]:
    """Every fault at every call, and one history without a fault."""
    for fault, alive in itertools.product(FAULTS, (False, True)):
        played, at = True, 0
        while played:
            at += 1
            world = World(fault, at, alive)
            played = world.play()
            yield world


def test_what_was_confirmed_lies_inside_the_seal_whatever_happens_at_the_coordinator() -> None:
    played = 0
    for world in histories():
        world.check()
        played += 1
    assert played > 60


def no_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Locker, "_wait_for", lambda _locker, _previous: (0.0, ""))


def coordinator_fences(patch: pytest.MonkeyPatch) -> None:
    """As if it could keep a broker from the files."""
    patch.setattr(CoordinatedElection, "shuts_out", True)


def claim_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Nor the heartbeats of others; and the session taken for the proof, which its owner believes to go on."""
    patch.setattr(Locker, "_check_claim", lambda _locker: None)
    patch.setattr(CoordinatedElection, "write", lambda *_: None)
    patch.setattr(CoordinatedElection, "holds", lambda _election: True)


def lease_not_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "valid", lambda _lease: True)


MUTANTS = [no_wait, coordinator_fences, claim_not_looked_at, lease_not_asked]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_without_a_rule_some_history_breaks_the_promise(
    monkeypatch: pytest.MonkeyPatch, mutant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mutant(monkeypatch)
    with pytest.raises(Violation):
        for world in histories():
            world.check()


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


def test_a_master_whose_session_ended_goes_on_where_no_other_broker_was_quicker() -> None:
    ensemble = Ensemble()
    one, other, its, _ = members(ensemble)
    assert one.locker.try_acquire()
    one.take_over({})
    for session in list(its.sessions):
        ensemble.expire(session)
    one.lease.check()
    assert one.lease.valid()
    assert not other.locker.try_acquire()


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
