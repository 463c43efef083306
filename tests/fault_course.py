"""The course that tests of the rules of mastership play (docs/master-slave.md): an old master works; at one of its
calls something happens; its successor takes the store over; whatever was confirmed must lie inside the seal.

A world makes the two brokers and leads those calls through `call`. It says how a call is lost, and what the successor
needs to become master. `histories` plays every fault at every call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from amq.core.errors import OwnershipLostError
from amq.journal.segment import list_segments
from amq.store.epoch import Epoch
from amq.store.host import Owner
from amq.store.lease import Lease
from amq.store.locker import Locker
from amq.store.port import Store
from tests.fakes import FakeClock, FakeHost

PERIOD_S = 3.0
BATCH = b"batch of ours\n"


class Violation(AssertionError):
    """The promise was broken."""


class Candidate:
    """A broker on a separate host. `confirmed` = segment → bytes that were confirmed; `meanwhile` is called while it
    waits."""

    def __init__(self, store: Store, name: str, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock
        host = FakeHost(host_name=f"host-of-{name}", boot=f"boot-of-{name}")
        owner = Owner.make(
            host, name=name, uuid=f"uuid-of-{name}", transport_urls=(), lock_keep_alive_period_s=PERIOD_S
        )
        self.locker = Locker(store, clock, host, owner)
        self.meanwhile: Callable[[], object] = lambda: None
        self.confirmed: dict[str, int] = {}
        self.sealed: Mapping[str, int] = {}

    def become_master(self) -> None:
        self.store.make()
        while not self.locker.try_acquire():  # a lock that is missing is left to its master for a period
            self.pause(PERIOD_S / 3)
        mastership = self.locker.take_over(self.pause, self.seal)
        assert mastership is not None
        self.lease, self.epoch = mastership.lease, mastership.epoch.number
        self.sealed = mastership.epoch.sealed

    def pause(self, seconds: float) -> bool:
        self.clock.advance(seconds)
        self.meanwhile()
        return False

    def seal(self, previous: Epoch | None) -> Mapping[str, int]:
        log = self.store.log
        known = dict(previous.sealed) if previous is not None else {}
        return {name: known.get(name, log.size(name)) for name in list_segments(log, fresh=True)}

    def work(self) -> None:
        """Two segments of two batches, a check behind each, and the first one is no longer needed. Ends at the first
        error."""
        self.write(1, 2)
        self.write(2, 2)
        name = self._segment(1)
        del self.confirmed[name]  # its messages are copied: nobody needs it
        self.store.log.delete([name])

    def write(self, number: int, batches: int) -> None:
        name = self._segment(number)
        writer = self.store.log.create(name, BATCH, 1 << 16, self.clock)
        end = len(BATCH)
        for _ in range(batches):
            start, end = end, end + len(BATCH)
            writer.append(start, end, [BATCH[:5], BATCH[5:]])
            if self.lease.valid():
                self.confirmed[name] = end
        writer.finish(end)
        self.lease.check()

    def check_lease(self) -> None:
        with suppress(OwnershipLostError):
            self.lease.check()

    def _segment(self, number: int) -> str:
        return f"{self.epoch:08d}-{number:08d}.seg"


@dataclass(frozen=True)
class Step:
    """A call of the old master: `run` carries it out, `lose` = raises what its caller gets where it is lost, None = it
    cannot be."""

    run: Callable[[], Any]
    lose: Callable[[], Any] | None = None


Fault = Callable[["Course", Any], Any]


def lost(_course: Course, step: Step) -> Any:
    assert step.lose is not None
    return step.lose()


def answer_lost(_course: Course, step: Step) -> Any:
    assert step.lose is not None
    step.run()
    return step.lose()


def over_before(course: Course, step: Step) -> Any:
    """The old master stands still before the call, while the other one takes over."""
    course.succeed()
    return step.run()


def over_after(course: Course, step: Step) -> Any:
    found = step.run()
    course.succeed()
    return found


LOST: tuple[Fault, ...] = (lost, answer_lost)
OVER: tuple[Fault, ...] = (over_before, over_after)


class Course:
    """One store, an old master and its successor. `fault` comes at call `at` of the old master's work. `waits`: the
    successor waits until the lease of the old master has ended."""

    waits = True

    def __init__(self, old: Candidate, new: Candidate, fault: Fault, at: int) -> None:
        self.old, self.new = old, new
        self.calls = 0
        self._fault, self._at = fault, at
        self._is_working = self._is_over = False

    def play(self) -> bool:
        """True where the old master made that many calls."""
        self.old.become_master()
        self._is_working = True
        with suppress(OSError, OwnershipLostError):
            self.old.work()
        self._is_working = False
        self.succeed()
        return self.calls >= self._at

    def call(self, step: Step) -> Any:
        """A call of the old master."""
        if self._is_working and (step.lose is not None or self._fault not in LOST):
            self.calls += 1
            if self.calls == self._at:
                return self._fault(self, step)
        return step.run()

    def succeed(self) -> None:
        """The successor takes over, once."""
        if self._is_over:
            return
        self._is_over = True
        working, self._is_working = self._is_working, False
        self.free()
        self.new.become_master()
        if self.waits and self.old.lease.valid():
            raise Violation("two masters serve at once")
        self._is_working = working

    def free(self) -> None:
        """The successor gets the lock, and the old master hears nothing of that."""

    def check(self) -> None:
        for name, length in self.old.confirmed.items():
            if length > self.new.sealed.get(name, 0):
                raise Violation(f"{name}: {length} bytes confirmed, {self.new.sealed.get(name, 0)} sealed")
        newest = self.new.store.epochs.newest()
        assert newest is not None
        if newest.owner.name != "new":
            raise Violation("the successor lost the store to a broker that it had shut out")

    def close(self) -> None:
        """Nothing of this course is needed any more."""


Make = Callable[[pytest.MonkeyPatch, Fault, int], Course]


def histories(make: Make, faults: Sequence[Fault]) -> Iterator[Course]:
    """Every fault at every call. A course may patch, until the next one."""
    for fault in faults:
        for at in itertools.count(1):
            with pytest.MonkeyPatch.context() as patch:
                course = make(patch, fault, at)
                played = course.play()
                if played:
                    yield course
                course.close()
                if not played:
                    break


def check_all(make: Make, faults: Sequence[Fault]) -> int:
    """How many histories there are; Violation where one of them breaks the promise."""
    return sum(course.check() is None for course in histories(make, faults))


# -- mutants that several worlds have ----------------------------------------------------------------------------------

CourseMutant = Callable[[pytest.MonkeyPatch], None]


def no_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Locker, "_wait_for", lambda _locker, _previous: (0.0, ""))


def claim_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Locker, "_check_claim", lambda _locker: None)


def lease_not_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "valid", lambda _lease: True)


def must_be_caught(mutant: CourseMutant, make: Make, faults: Sequence[Fault]) -> None:
    """Some history breaks the promise without the rule that `mutant` takes out."""
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        with pytest.raises(Violation):
            check_all(make, faults)
