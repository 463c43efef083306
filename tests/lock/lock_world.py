"""A small world for the lock tests: brokers on a shared directory with fake clocks and hosts.

`Broker` does what a service does with the lock: it checks its lease every third of a period, appends to a segment and
confirms by the confirm rule. `Broker.confirmed` against the sealed lengths is what the safety rules promise (P3).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from fakes import FakeClock, FakeHost, FaultyVfs

from amq.core.errors import OwnershipLostError
from amq.store.epoch import Epoch
from amq.store.host import Owner
from amq.store.lease import Lease
from amq.store.locker import Locker, Term
from amq.store.open import store_behind

PERIOD_S = 3.0
STEP_S = 0.01


class Broker:
    """One broker. Each has a separate host unless `host` says otherwise."""

    def __init__(
        self,
        store: Path,
        name: str,
        base: FakeClock,
        *,
        rate: float = 1.0,
        period_s: float = PERIOD_S,
        host: FakeHost | None = None,
    ) -> None:
        self.store = str(store)
        self.name = name
        self.vfs = FaultyVfs()
        self.clock = FakeClock(base, rate)
        self.host = host or FakeHost(host_name=f"host-of-{name}", boot=f"boot-of-{name}")
        self.owner = Owner.make(
            self.host,
            name=name,
            uuid=f"uuid-of-{name}",
            transport_urls=(f"stomp://{name}:61613",),
            lock_keep_alive_period_s=period_s,
        )
        self.locker = Locker(store_behind(self.vfs, self.store), self.clock, self.host, self.owner)
        self.mastership: Term | None = None
        self.confirmed: dict[str, int] = {}
        self.works_meanwhile: Callable[[], None] = lambda: None
        self._written = 0
        self._check_due = 0.0

    # what a service does ---------------------------------------------------------------------------------------------

    def become_master(self, *, locked: bool = False) -> Term:
        """Get the lock (it must be free) and take over."""
        assert locked or self.locker.try_acquire()
        mastership = self.locker.take_over(self.pause, self.seal)
        assert mastership is not None
        self.mastership = mastership
        self._check_due = self.clock.monotonic() + self.owner.lock_keep_alive_period_s / 3
        return mastership

    def pause(self, seconds: float) -> bool:
        """Time passes in small steps; others work meanwhile."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.clock.advance(STEP_S)
            self.works_meanwhile()
        return False

    def seal(self, previous: Epoch | None) -> Mapping[str, int]:
        if previous is None:
            return {}
        sealed = dict(previous.sealed)
        name = segment(previous.number)
        path = os.path.join(self.store, name)
        sealed[name] = os.path.getsize(path) if os.path.exists(path) else 0
        return sealed

    def step(self) -> None:
        """Check the lease if that is due, write a record, confirm it by the confirm rule. Nothing once fenced."""
        if self.mastership is None:
            return
        if self.clock.monotonic() >= self._check_due:
            self._check_due = self.clock.monotonic() + self.owner.lock_keep_alive_period_s / 3
            try:
                self.lease.check()
            except OwnershipLostError:
                self.fence()
                return
        self.write()
        if self.lease.valid():
            self.confirmed[segment(self.mastership.epoch.number)] = self._written

    def write(self) -> None:
        assert self.mastership is not None
        with open(os.path.join(self.store, segment(self.mastership.epoch.number)), "ab") as file:
            file.write(b"record\n")
        self._written += 7

    def stop_checking(self) -> None:
        """From now on the lease thread hangs in the store."""
        self._check_due = math.inf

    def fence(self) -> None:
        self.mastership = None
        self.locker.abandon()

    @property
    def lease(self) -> Lease:
        assert self.mastership is not None
        return self.mastership.lease


def segment(number: int) -> str:
    return f"segment-of-{number}"


def never_pause(_seconds: float) -> bool:
    raise AssertionError("nothing to wait for here")
