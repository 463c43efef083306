"""Gateways of a simulated cluster: the real hub, router and links of `amq.gateway`, with doors of the simulation.

`Directory` is what `amq.cluster.directory` is to a process: tables with compare-and-set, which a host may see late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from amq.broker.events import Events
from amq.cluster.directory import ClusterNode, StoreTable
from amq.cluster.placement import Placement
from amq.config.schema import BrokerConfig
from amq.core.errors import AmqError, StoreError
from amq.gateway.hub import GatewayHub
from amq.gateway.lookout import Master, master_of
from amq.gateway.ways import WayDoors, Ways
from amq.node.entrance import Entrance
from amq.node.reception import Shared
from amq.security.login import Claim, Login, User
from amq.transports.translating import Translator
from tests.simulation.oracle import STORE
from tests.simulation.scheduler import Machine, Process

if TYPE_CHECKING:
    from tests.simulation.cluster import ClusterWorld

SECRET = b"a secret of the simulated cluster"
CLUSTER_ID = "0123456789abcdef"


async def anybody(_: Claim) -> Login:
    return Login(User("anybody"), "password")


class Tables:
    """The tables of the cluster, as its file server has them. A host sees a new one after `lag_s` of its own, and
    never an older one than before."""

    def __init__(self, stores: Sequence[str]) -> None:
        self.made: list[tuple[float, StoreTable]] = []
        self.lag_s: dict[str, float] = {}
        self.hung_until = 0.0
        self._seen: dict[str, int] = {}
        first = Placement.even(1, stores)
        self.made.append((-1e9, StoreTable(dict.fromkeys(stores, ""), first)))

    @property
    def newest(self) -> StoreTable:
        return self.made[-1][1]

    def seen(self, machine: Machine, now: float) -> StoreTable:
        """The newest one that this host sees."""
        lag_s, least = self.lag_s.get(machine.name, 0.0), self._seen.get(machine.name, 0)
        at = max(i for i, (made, _) in enumerate(self.made) if made + lag_s <= now or i <= least)
        self._seen[machine.name] = at
        return self.made[at][1]

    def add(self, table: StoreTable, machine: Machine, now: float) -> StoreTable:
        """Raises StoreError where another one was quicker."""
        if table.number != self.newest.number + 1:
            raise StoreError("somebody else changed the cluster at the same time: try again", code="CONFLICT")
        self.made.append((now, table))
        self._seen[machine.name] = len(self.made) - 1
        return table


class Directory:
    """The cluster for one process. Its calls take time, and may hang."""

    directory = "/mnt/cluster"

    def __init__(self, world: ClusterWorld, process: Process) -> None:
        self._world = world
        self._process = process

    def _reach(self) -> None:
        scheduler, tables = self._world.scheduler, self._world.tables
        self._process.check()
        scheduler.sleep(0.0005 + 0.002 * self._process.rng.random())
        while scheduler.now < tables.hung_until:
            scheduler.sleep(0.05 + 0.05 * self._process.rng.random())

    def table(self) -> StoreTable:
        self._reach()
        return self._world.tables.seen(self._process.host, self._world.scheduler.now)

    def place(self, placement: Placement) -> StoreTable:
        self._reach()
        table = StoreTable(self.table().locations, placement)
        self._world.oracle.log(f"table {placement.number} is made{', something moves' if placement.before else ''}")
        return self._world.tables.add(table, self._process.host, self._world.scheduler.now)

    def location(self, name: str, table: StoreTable | None = None) -> str:  # noqa: ARG002
        return name

    def nodes(self) -> list[ClusterNode]:
        return []


class GatewaySlot:
    """One gateway as its node sees it: started again whenever it ends."""

    def __init__(self, world: ClusterWorld, name: str, machine: Machine, config: BrokerConfig) -> None:
        self.name = name
        self.machine = machine
        self.config = config
        self.process: Process | None = None
        self.hub: GatewayHub | None = None
        self.ways: Ways | None = None
        self._world = world

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        if not self.machine.up or self.is_alive:
            return
        self.process = process = self.machine.spawn(self.name)
        self.hub = self.ways = None
        self._world.equip(process)
        self._world.oracle.log(f"{self.name} starts as pid {process.pid}")
        process.run_loop(lambda: self._main(process))

    async def _main(self, process: Process) -> None:
        world = self._world
        clock: Any = process
        cluster, table = await self._look(process)
        find = world.finder(process)
        dice = Random(process.rng.getrandbits(64))
        self.ways = ways = Ways(
            cluster,
            table,
            self.config.name,
            SECRET,
            WayDoors(clock, clock, dice, no_tls, find),
        )
        shared = Shared(Events(), Entrance(clock, lambda: self.config), anybody)
        hub = GatewayHub(self.config, clock, dice, clock, shared, self.config.name, self.machine.name, CLUSTER_ID, ways)
        hub.translator = Translator(hub.memory, lambda: process.runner(hub.loop.call_soon_threadsafe), hub.turn.wake)
        ways.serve(hub)
        await hub.listen()
        ways.watch(hub.meet)
        self.hub = hub

    async def _look(self, process: Process) -> tuple[Any, StoreTable]:
        """At the cluster. A database may not answer: a real node starts the process again then."""
        world = self._world
        if world.database is None:
            return Directory(world, process), world.tables.seen(self.machine, world.scheduler.now)
        while True:
            with suppress(AmqError):
                found = world.directory(process)
                return found, found.table()
            await asyncio.sleep(0.5)

    def stop(self) -> None:
        """In good order; its node starts it again."""
        process, hub, ways = self.process, self.hub, self.ways
        if process is None or not process.alive or hub is None or ways is None:
            return

        async def end() -> None:
            ways.stop()
            await hub.stop()
            ways.close()
            self._world.scheduler.after(0.001, lambda: self._world.end_process(process))

        process.loop.call_soon_threadsafe(lambda: process.loop.keep(process.loop.create_task(end())))

    def left(self) -> list[str]:
        """What it holds when it has no clients."""
        if self.hub is None or self.ways is None:
            return []
        found = [f"connection {number}" for number in self.hub.connections]
        found += [f"{len(self.ways._renewing)} who wait for a table"] * bool(self.ways._renewing)
        for name, store in self.ways.links._stores.items():
            link = store.link
            if link is not None:
                held = [len(link.connections), len(link._held), len(link._early)]
                found += [f"of {name}: connections, held, early: {held}"] * any(held)
        return [f"{self.name} holds {each}" for each in found]


def no_tls() -> Any:
    raise AssertionError("no link of the simulation has TLS")


def finder(door: Callable[[str], Any]) -> Callable[[str], Master | None]:
    """`find_master` through the doors of a simulated process. `door(name)` = the one to the store of that name."""
    doors: dict[str, Any] = {}

    def find(name: str) -> Master | None:
        if name not in doors:
            doors[name] = door(name).store(STORE)
        return master_of(doors[name])

    return find
