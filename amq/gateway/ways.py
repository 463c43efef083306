"""Ways: how clients of a gateway reach the stores of its cluster: the newest table that is known here, and the links.

Lives on the event loop; a lookout reads the cluster's directory. Invariants: the event loop never waits for a file
system; a table with a lower number never replaces one with a higher.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Protocol

import structlog

from amq.broker.sessions.links import Client
from amq.cluster.directory import ClusterNode, StoreTable
from amq.cluster.placement import Placement
from amq.doors.clock import Clock
from amq.doors.threads import Threads
from amq.gateway.homes import RoutedHome
from amq.gateway.links import StoreLinks
from amq.gateway.lookout import Lookout, Master, find_master
from amq.link.link import Link
from amq.link.socket import LinkHub
from amq.transports.hub import ServedConnection

_log = structlog.get_logger("amq.gateway")


class ClusterTables(Protocol):
    """The cluster, as `amq.cluster.directory.Cluster` reads it. All calls may hang, and raise AmqError."""

    def table(self) -> StoreTable: ...
    def location(self, name: str, table: StoreTable | None = None) -> str: ...
    def nodes(self) -> Sequence[ClusterNode]: ...


@dataclass(frozen=True, slots=True)
class WayDoors:
    """The ways of a gateway to the outside. `tls()` makes the context of links to other hosts; `find(location)` = the
    master of the store that is there. Both may hang."""

    clock: Clock
    threads: Threads
    entropy: Random
    tls: Callable[[], ssl.SSLContext]
    find: Callable[[str], Master | None] = find_master


class Ways:
    """Implements `amq.gateway.homes.GatewayCluster` for a gateway of node `name`; `table` is the first known one."""

    def __init__(self, cluster: ClusterTables, table: StoreTable, name: str, secret: bytes, doors: WayDoors) -> None:
        self.clock = doors.clock
        self._cluster = cluster
        self._table = table
        self._name = name
        self._secret = secret
        self._doors = doors
        self._loop = asyncio.get_running_loop()
        self._renewing: list[tuple[int, Callable[[bool], None]]] = []
        self.repeats = 0  # how often commands waited for a newer table
        self._answering: set[asyncio.Task[None]] = set()  # one for each client that is not read meanwhile
        self._lookout: Lookout | None = None
        self._is_stopped = False
        self.links = StoreLinks(doors.threads, self._make_link, self._connect, self._locate, doors.find)

    def serve(self, hub: LinkHub) -> None:
        """The clients of `hub` may need stores from now on."""
        self._hub = hub

    def watch(self, meet: Callable[[tuple[str, ...]], None]) -> None:
        """Begin to look at the cluster; `meet` hears where the other nodes are."""
        self._meet = meet
        self._lookout = Lookout(self._doors.threads, "the cluster", self._look)

    def look(self) -> None:
        """Look at the cluster soon: there may be another table."""
        if self._lookout is not None:
            self._lookout.want(True)

    def stop(self) -> None:
        """Look no more; the links go on until `close`."""
        self._is_stopped = True
        if self._lookout is not None:
            self._lookout.stop()

    def close(self) -> None:
        self.links.close()

    # -- links --------------------------------------------------------------------------------------------------------

    def _locate(self, store: str) -> str:
        """In the thread of a lookout."""
        return self._cluster.location(store, self._table)

    def _make_link(self) -> Link:
        return Link(self._hub, self._secret, self._doors.entropy)

    async def _connect(self, link: Link, address: str) -> None:
        context: ssl.SSLContext | None = None
        if address.startswith("ssl:"):  # rarely: the files may have changed
            context = await self._loop.run_in_executor(None, self._doors.tls)
        await link.connect(address, context)

    # -- the directory ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """In the thread of a lookout."""
        table: StoreTable | None = None
        neighbours: tuple[str, ...] = ()
        try:
            table = self._cluster.table()
            others = [node for node in self._cluster.nodes() if node.running and node.name != self._name]
            neighbours = tuple(url for node in others for url in node.addresses)
        finally:
            with suppress(RuntimeError):  # the event loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._seen, table, neighbours)

    def _seen(self, table: StoreTable | None, neighbours: tuple[str, ...]) -> None:
        if self._is_stopped:
            return
        if table is not None:
            if table.number > self._table.number:
                gone = set(self._table.stores) - set(table.stores)
                self._table = table
                for store in gone:
                    self.links.forget(store)
                _log.info("the cluster has changed", stores=list(table.stores), table=table.number)
            self._meet(neighbours)
        renewing, self._renewing = self._renewing, []
        assert self._lookout is not None
        self._lookout.want(False)
        for number, done in renewing:
            done(self._table.number > number)

    # -- what clients' connections ask of the cluster -----------------------------------------------------------------

    @property
    def placement(self) -> Placement:
        return self._table.placement

    def open_home(self, store: str, home: RoutedHome, client: Client, owner: str, protocol: str) -> ServedConnection:
        return self.links.open(store, home, client, owner, protocol)

    def renew(self, done: Callable[[bool], None]) -> None:
        self.repeats += 1
        self._renewing.append((self._table.number, done))
        if self._lookout is not None:
            self._lookout.want(True)

    def locate(self, stores: Sequence[str], done: Callable[[Mapping[str, Sequence[str]]], None]) -> None:
        async def answer() -> None:
            done(await self.links.locate(stores))

        task = self._loop.create_task(answer())
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def give_up(self) -> None:
        self.links.give_up()

    def later(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)
