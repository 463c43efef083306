"""A broker of the tests of rules: it takes a store over with the real locker, through a door to a database."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from fakes import FakeClock, FakeHost

from amq.journal.segment import list_segments
from amq.store.epoch import Epoch
from amq.store.host import Owner
from amq.store.locker import Locker
from amq.store.port import Store
from amq.store.postgres.database import Database, EntryLock

PERIOD_S = 3.0
BATCH = b"batch of ours\n"


def grant_all_locks(patch: pytest.MonkeyPatch) -> None:
    """Every broker gets every lock of a database."""

    def granted(database: Database, directory: str, name: str) -> EntryLock:
        return EntryLock(database.find(directory, name), database._session_of_locks())

    patch.setattr(Database, "try_lock", granted)


class Violation(AssertionError):
    """The promise was broken."""


class Candidate:
    """A broker on a separate host. `confirmed` = segment → bytes that were confirmed."""

    def __init__(self, store: Store, name: str, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock
        host = FakeHost(host_name=f"host-of-{name}", boot=f"boot-of-{name}")
        owner = Owner.make(
            host, name=name, uuid=f"uuid-of-{name}", transport_urls=(), lock_keep_alive_period_s=PERIOD_S
        )
        self.locker = Locker(store, clock, host, owner)
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
        return False

    def seal(self, previous: Epoch | None) -> Mapping[str, int]:
        log = self.store.log
        known = dict(previous.sealed) if previous is not None else {}
        return {name: known.get(name, log.size(name)) for name in list_segments(log, fresh=True)}
