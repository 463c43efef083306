"""The rules above the ports, on the store in memory: whatever a master confirmed lies inside the seal of its successor.

At each call of a port in turn something happens: the call is lost, or its answer; its lock is lost, before the call,
after it, or in the middle of an append, and another broker takes over, while the old master stands still or works on.
Nothing of this can be asked of a real store.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from tests.fakes import FakeClock
from tests.fault_course import (
    LOST,
    OVER,
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
    over_before,
)
from tests.memory_store import Shelves, store_on


class Port:
    """A port, or what it returned, each of whose calls goes through `watch`."""

    def __init__(self, inner: Any, watch: Callable[[str, Any, tuple[Any, ...]], Any]) -> None:
        self._inner, self._watch = inner, watch

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found
        return lambda *arguments, **options: self._watch(name, partial(found, **options), arguments)


def _lose() -> None:
    raise OSError(errno.EIO, "the call is lost, or its answer")


@dataclass(frozen=True)
class PortStep(Step):
    """`append` where it is one, with its arguments."""

    append: Any = None
    arguments: tuple[Any, ...] = ()


def over_in_the_middle(course: Course, step: PortStep) -> Any:
    """Of an append: a half of it is there when the successor seals."""
    if step.append is None:
        return over_before(course, step)
    start, end, (first, second) = step.arguments
    step.append(start, start + len(first), [first])
    course.succeed()
    return step.append(start + len(first), end, [second])


FAULTS = (*LOST, *OVER, over_in_the_middle)


class PortCourse(Course):
    """`alive`: the old master checks its lease while its successor waits."""

    def __init__(self, fault: Fault, at: int, alive: bool) -> None:
        self.shelves, clock = Shelves(), FakeClock()
        store = store_on(self.shelves)
        ports = {name: Port(getattr(store, name), self._watch) for name in ("election", "epochs", "log")}
        old = Candidate(replace(store, **ports), "old", clock)  # type: ignore[arg-type]
        super().__init__(old, Candidate(store_on(self.shelves), "new", clock), fault, at)
        if alive:
            self.new.meanwhile = self.old.check_lease

    def free(self) -> None:
        assert self.shelves.lock is not None
        self.shelves.lock.holder = None

    def _watch(self, name: str, call: Any, arguments: tuple[Any, ...]) -> Any:
        found = self.call(PortStep(partial(call, *arguments), _lose, call if name == "append" else None, arguments))
        return Port(found, self._watch) if name == "create" else found


def dead(_: pytest.MonkeyPatch, fault: Fault, at: int) -> Course:
    return PortCourse(fault, at, alive=False)


def alive(_: pytest.MonkeyPatch, fault: Fault, at: int) -> Course:
    return PortCourse(fault, at, alive=True)


def test_what_was_confirmed_lies_inside_the_seal_whatever_happens_at_a_port() -> None:
    assert check_all(dead, FAULTS) + check_all(alive, FAULTS) > 100


@pytest.mark.parametrize("mutant", [no_wait, claim_not_looked_at, lease_not_asked], ids=lambda mutant: mutant.__name__)
def test_without_a_rule_some_history_breaks_the_promise(mutant: CourseMutant) -> None:
    must_be_caught(mutant, alive, FAULTS)
