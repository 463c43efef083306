"""A broker process on a `Disk`: the real locker, takeover, recovery, journal and broker, driven step by step.

Start-up takes the road of `amq.node.contender`: make a store, lock, take over (claim, wait, seal, link), replay.
Invariant: a client's receipt is told to `decided` at the end of the turn in which the client got it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from zlib import crc32

from amq.broker.broker import Broker
from amq.config.schema import BrokerConfig
from amq.doors.threads import SystemThreads
from amq.journal.journal import Journal
from amq.node.following import Following
from amq.node.mastership import Doors
from amq.node.takeover import Takeover
from amq.store.host import Owner
from amq.store.locker import Locker
from amq.store.open import store_behind
from tests.broker.disk import StepRunner
from tests.broker.world import Client, World
from tests.crash.disk import Disk, DiskVfs
from tests.crash.oracle import State, observed
from tests.fakes import FakeClock, FakeHost
from tests.stored import with_files

STORE = "/store"
CONFIG: dict[str, Any] = {
    "journal_segment_size_bytes": 4 << 10,
    "journal_reserve_bytes": 1 << 10,
    "store_free_floor_bytes": 1 << 10,
    "duplicate_window": 6,
    "outcome_window": 6,
    "checkpoint_distance_bytes": 0,
}


class Process(World):
    """Made = master and serving. `found` = what the replay gave; `shown_at` = the point of the log at which it may have
    been shown to clients, `ready_at` the point at which the takeover was over."""

    def __init__(self, disk: Disk, name: str, host: str = "", settle: bool = True, **config: Any) -> None:
        self.disk = disk
        self.name = name
        self.store = STORE
        self.config = BrokerConfig(store=STORE, **with_files({**CONFIG, **config}))
        self.clock = FakeClock()
        self.files = DiskVfs(disk)  # type: ignore[assignment]
        self.vfs = self.files  # type: ignore[assignment]
        self.valid = True
        self.failures: list[str] = []
        self.clients: list[Client] = []
        self.on_deliver = lambda *_: None
        self.decided: Callable[[Client, str, str], None] = lambda *_: None  # (client, receipt, error's code or "")
        self._receipts = 0
        self._told: dict[Client, tuple[int, int]] = {}
        self._host = FakeHost(host or name, f"boot of {host or name}", own_start=crc32(name.encode()))
        self.start()
        if settle:
            self.settle()

    def start(self) -> None:
        """The road of `Contender._wait_and_serve` and `Reign.serve`, without their threads."""
        store = store_behind(self.vfs, STORE)
        slave = Following(store, self.clock, self.config)
        doors = Doors(store, self.clock, self._host, SystemThreads(), random.Random(0), lambda _: StepRunner())
        takeover = Takeover(doors, slave, lambda _: None)
        store.make()
        owner = Owner.make(
            self._host, name=self.name, uuid=f"uuid of {self.name}", transport_urls=(), lock_keep_alive_period_s=2.0
        )
        self.locker = Locker(store, self.clock, self._host, owner)
        assert self.locker.try_acquire(), "the lock of a dead process is free"
        mastership = self.locker.take_over(self._pause, lambda previous: takeover.seal(previous, self.locker.sign))
        assert mastership is not None
        self.lease = mastership.lease
        self.epoch = mastership.epoch.number
        self.sealed = dict(mastership.epoch.sealed)
        self.runner = StepRunner()
        self.woken = False
        state, recovered = slave.finish(self.config, mastership.epoch, lambda *_: None)
        self.found: State = observed(state, self.vfs, STORE, recovered.trimmed)
        self.lease.check()
        self.journal = Journal(
            self.log,
            self.clock,
            self.runner,
            self,
            self.config,
            random.Random(self.epoch),
        )
        self.broker = Broker(state, self.journal, self.config, self.clock, self.wake)
        self.journal.begin(self.epoch, recovered.store_uuid or bytes(16), recovered, self.lease.valid)
        self.shown_at = self.ready_at = len(self.disk.log)
        self.broker.begin(self.epoch, recovered.read_bytes)
        self.journal.delete(recovered.unused)

    def _pause(self, seconds: float) -> bool:
        self.clock.advance(seconds)
        return False

    def turn(self, *, inline: bool = False, unasked: bool = False) -> None:
        super().turn(inline=inline, unasked=unasked)
        for client in self.clients:
            confirmed, failed = self._told.get(client, (0, 0))
            for receipt in client.confirmed[confirmed:]:
                self.decided(client, receipt, "")
            for code, receipt in client.errors[failed:]:
                self.decided(client, receipt, code)
            self._told[client] = len(client.confirmed), len(client.errors)

    def kill(self) -> None:
        """kill -9: what it wrote is in the memory of its host, what it synced is on the disk."""
        self.files.die()
        for client in self.clients:
            client.connected = False
        self.clients = []

    def stop(self) -> None:
        """A clean end: all committed, the store released."""
        self.settle()
        assert self.journal.idle()
        self.locker.release()
        self.files.die()
