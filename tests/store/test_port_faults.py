"""The rules above the ports, on the store in memory: whatever a master confirmed lies inside the seal of its successor.

A master makes segments, appends, checks its lease, deletes. At each call of a port in turn something happens: the call
is lost, or its answer; its lock is lost, before the call, after it, or in the middle of an append, and another broker
takes over, while the old master stands still or works on. Nothing of this can be asked of a real store.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from fakes import FakeClock

from amq.core.errors import OwnershipLostError
from amq.store.lease import Lease
from amq.store.locker import Locker
from tests.memory_store import Shelves, store_on
from tests.sql.candidates import BATCH, Candidate, Violation

Call = Callable[[], Any]


class Port:
    """A port, or what it returned, each of whose calls goes through `watch`."""

    def __init__(self, inner: Any, watch: Callable[[str, Any, tuple[Any, ...]], Any]) -> None:
        self._inner, self._watch = inner, watch

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found
        return lambda *arguments, **options: self._watch(name, partial(found, **options), arguments)


class Master(Candidate):
    """Writes what a master writes, until the first error."""

    def work(self) -> None:
        log = self.store.log
        for number in (1, 2):
            name = f"{self.epoch:08d}-{number:08d}.seg"
            writer = log.create(name, BATCH, 1 << 16, self.clock)
            for batch in (1, 2):
                end = (batch + 1) * len(BATCH)
                writer.append(end - len(BATCH), end, [BATCH[:5], BATCH[5:]])
                if self.lease.valid():
                    self.confirmed[name] = end
            self.lease.check()
        del self.confirmed[f"{self.epoch:08d}-00000001.seg"]  # its messages are copied: nobody needs it
        log.delete([f"{self.epoch:08d}-00000001.seg"])


def lost(_world: World, _name: str, _call: Any, _arguments: tuple[Any, ...]) -> Any:
    raise OSError(errno.EIO, "the call is lost")


def answer_lost(_world: World, _name: str, call: Any, arguments: tuple[Any, ...]) -> Any:
    call(*arguments)
    raise OSError(errno.EIO, "the answer is lost")


def over_before(world: World, _name: str, call: Any, arguments: tuple[Any, ...]) -> Any:
    world.succeed()
    return call(*arguments)


def over_after(world: World, _name: str, call: Any, arguments: tuple[Any, ...]) -> Any:
    found = call(*arguments)
    world.succeed()
    return found


def over_in_the_middle(world: World, name: str, call: Any, arguments: tuple[Any, ...]) -> Any:
    """Of an append: a half of it is there when the successor seals."""
    if name == "append":
        start, end, (first, second) = arguments
        call(start, start + len(first), [first])
        world.succeed()
        return call(start + len(first), end, [second])
    return over_before(world, name, call, arguments)


FAULTS = (lost, answer_lost, over_before, over_after, over_in_the_middle)


class World:
    """One store, an old master and its successor. The fault comes at call `at` of the old master's work. `alive`: it
    works on while its successor waits."""

    def __init__(self, fault: Callable[..., Any], at: int, alive: bool) -> None:
        self.shelves, clock = Shelves(), FakeClock()
        self.calls, self._at, self._fault, self._alive = 0, at, fault, alive
        self._working = False
        self._sealed: dict[str, int] | None = None
        store = store_on(self.shelves)
        ports = {name: Port(getattr(store, name), self._watch) for name in ("election", "epochs", "log")}
        self.old = Master(replace(store, **ports), "old", clock)  # type: ignore[arg-type]
        self.new = Master(store_on(self.shelves), "new", clock)
        self.new.pause = self._wait  # type: ignore[method-assign]

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
        if self._sealed is not None:
            return
        working, self._working = self._working, False
        assert self.shelves.lock is not None
        self.shelves.lock.holder = None  # without a word to the one that had it
        self.new.become_master()
        self._sealed = dict(self.new.sealed)
        self._working = working

    def check(self) -> None:
        assert self._sealed is not None
        for name, length in self.old.confirmed.items():
            if length > self._sealed.get(name, 0):
                raise Violation(f"{name}: {length} bytes confirmed, {self._sealed.get(name, 0)} sealed")
        newest = self.new.store.epochs.newest()
        assert newest is not None
        assert newest.owner.name == "new"

    def _wait(self, seconds: float) -> bool:
        self.new.clock.advance(seconds)
        if self._alive:
            with suppress(OwnershipLostError):
                self.old.lease.check()
        return False

    def _watch(self, name: str, call: Any, arguments: tuple[Any, ...]) -> Any:
        fault: Any = None
        if self._working:
            self.calls += 1
            fault = self._fault if self.calls == self._at else None
        found = fault(self, name, call, arguments) if fault else call(*arguments)
        return Port(found, self._watch) if name == "create" else found


def histories(alive: tuple[bool, ...] = (False, True)) -> Iterator[World]:
    """Every fault at every call."""
    for fault, is_alive in itertools.product(FAULTS, alive):
        for at in itertools.count(1):
            world = World(fault, at, is_alive)
            if not world.play():
                break
            yield world


def test_what_was_confirmed_lies_inside_the_seal_whatever_happens_at_a_port() -> None:
    played = 0
    for world in histories():
        world.check()
        played += 1
    assert played > 100


def no_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Locker, "_wait_for", lambda _locker, _previous: (0.0, ""))


def claim_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Locker, "_check_claim", lambda _locker: None)


def lease_not_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "valid", lambda _lease: True)


@pytest.mark.parametrize("mutant", [no_wait, claim_not_looked_at, lease_not_asked], ids=lambda mutant: mutant.__name__)
def test_without_a_rule_some_history_breaks_the_promise(
    monkeypatch: pytest.MonkeyPatch, mutant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mutant(monkeypatch)
    with pytest.raises(Violation):
        for world in histories():
            world.check()
