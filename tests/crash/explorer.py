"""Explorer: every prefix of a log of system calls, with what a crash there may leave, is recovered and judged.

A recovery is the whole road of a broker that starts: lock, claim, wait, seal, link, replay, serve. It is judged by the
oracle; then it serves a client, dies, and a second recovery must find the same, and what that client was told.
Everything is deterministic: a failure names the prefix and the choice, and comes again.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from amq.errors import AmqError
from amq.journal.inspect import Inspection
from amq.lock.epoch import read_newest_epoch
from tests.crash.disk import Call, Disk, DiskVfs, Image, Remains
from tests.crash.oracle import Fixed, State, Violation, observed
from tests.crash.process import STORE, Process

PROBE = b"<probe>"


class Judge(Protocol):
    def allowed(self, at: int) -> list[State]: ...


@dataclass(slots=True)
class Explorer:
    """`limit` = images at each prefix. `deep_every` = each so many-th recovery is itself cut short at each of its calls
    (0 = none), with `deep_limit` images there."""

    config: dict[str, Any] = field(default_factory=dict)
    limit: int = 16
    deep_every: int = 0
    deep_limit: int = 6
    prefixes: int = 0
    states: int = 0
    _names: Iterator[int] = field(default_factory=itertools.count)
    _seen: set[tuple[int, int]] = field(default_factory=set)  # what was recovered already: (image, what was allowed)
    _allowed: dict[int, list[State]] = field(default_factory=dict)  # kept, so that an id names one list for ever

    def explore(self, image: Image, log: list[Call], judge: Judge, deep: bool = False) -> None:
        """All of `log`, which began on `image`. Raises Violation."""
        remains = Remains(image)
        for at in range(len(log) + 1):
            if at:
                remains.follow(log[at - 1])
            allowed = judge.allowed(at)
            self._allowed[id(allowed)] = allowed
            self.prefixes += not deep
            dice = random.Random(at)
            for left, choice in remains.images(self.deep_limit if deep else self.limit, dice):
                key = left.key(), id(allowed)  # judges give the same list as long as the same is allowed
                if key in self._seen:
                    continue
                self._seen.add(key)
                self.states += 1
                where = f"crash after {at} of {len(log)} calls, the last: {log[at - 1] if at else 'none'}; {choice}"
                self._judge(left, allowed, where, deep)

    def _judge(self, image: Image, allowed: list[State], where: str, deep: bool) -> None:
        try:
            recovery = _recover(image, allowed, self.config, next(self._names))
        except (AssertionError, AmqError, OSError, LookupError, ValueError) as error:
            raise Violation(f"{'a crash of a recovery: ' if deep else ''}{where}:\n{error!r}") from error
        if self.deep_every and not deep and self.states % self.deep_every == 0:
            disk = recovery.disk
            fixed = Fixed(allowed, recovery.shown_at, recovery.found)
            try:
                self.explore(image, disk.log[: recovery.ready_at], fixed, deep=True)
            except Violation as violation:
                raise Violation(f"{where};\nand then {violation}") from violation


def _recover(image: Image, allowed: list[State], config: dict[str, Any], number: int) -> Process:
    """Recover twice; returns the first recovery. Raises AssertionError or what the recovery raises."""
    disk = Disk(image)
    _inspect(disk)
    first = Process(disk, f"recovery-{number}", **config)
    first.ready_at = len(disk.log)
    assert first.found in allowed, f"found {first.found},\nallowed {allowed}"
    assert observed(first.broker, first.vfs, STORE) == first.found, "serving changed what was stored"
    first.check()
    client = first.connect()
    ids = [(queue, id) for queue, kept in first.found.ids.items() for id in kept]
    for queue, id in ids:
        client.send(b"a duplicate", queue, duplicate_id=id)
    receipt = client.send(PROBE, "probe")
    first.settle()
    assert not first.failures
    assert len(client.confirmed) == len(ids) + 1, "resent duplicates are confirmed"
    assert receipt in client.confirmed
    expected = State({**first.found.queues, "probe": [PROBE]}, first.found.ids, first.found.outcomes)
    first.kill()
    second = Process(disk, f"again-{number}", settle=False, **config)
    assert second.found == expected, f"second recovery: found {second.found}, expected {expected}"
    return first


def _inspect(disk: Disk) -> None:
    """`amq journal check` finds nothing wrong with what a crash left."""
    vfs = DiskVfs(disk)
    try:
        newest = read_newest_epoch(vfs, STORE)
        sealing = (newest.number, newest.sealed) if newest is not None else (0, {})
        inspection = Inspection(vfs, STORE, sealing)
    except FileNotFoundError:
        return  # there is no journal yet
    for _ in inspection.records():
        pass
    inspection.check_complete()
    assert not inspection.problems, f"amq journal check: {inspection.problems}"
