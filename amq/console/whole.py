"""ClusterLink: asks the masters of a whole cluster, as `Link` asks the broker of this host.

A request goes from here to the master that can answer it, and no further. Invariants: as those of `Link`; one store
that hangs takes part of the time of a request, and none of the other stores' answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from amq.cluster.alarms import Alarm, alarms
from amq.cluster.directory import Cluster, ClusterNode
from amq.cluster.masters import Masters, StoreAnswer, StoreNow
from amq.cluster.whole import Merged, WholeCluster
from amq.console.link import ASK_S, STORE_S, Link, Seen
from amq.core.errors import TransportError
from amq.doors.clock import Clock
from amq.management.listing import Row
from amq.management.resources import LOGIN
from amq.security.login import User
from amq.store.host import SystemHost

TOTALS_S: Final = 10.0


class ClusterSeen(NamedTuple):
    """The cluster as seen a moment ago. `own` = the names of the nodes of this host of which this is the console."""

    stores: list[StoreNow]
    nodes: list[ClusterNode]
    order: Mapping[str, list[str]]
    alarms: list[Alarm]
    own: list[str]

    @property
    def own_stores(self) -> list[str]:
        """The stores that these nodes serve."""
        return [each.name for each in self.stores if each.node in self.own]


class ClusterLink(Link):
    """`name` = the node of which this is the console, "" = all of this host."""

    def __init__(self, directory: str, name: str, clock: Clock) -> None:
        self._begin(directory, name, clock)
        self.whole = WholeCluster(Masters(Cluster(directory), clock=clock))

    async def seen(self) -> Seen:
        """Refused: a cluster has several stores. Raises TransportError."""
        raise TransportError("this is the console of a cluster: it shows no single store")

    async def look(self) -> ClusterSeen:
        """Raises AmqError."""
        return await self._in_thread(self._look_at_cluster, 3 * STORE_S)

    def _look_at_cluster(self) -> ClusterSeen:
        masters = self.whole.masters
        table, nodes = masters.table(), masters.cluster.nodes()
        stores, order = masters.look(table), masters.cluster.preferences(table, nodes)
        told = alarms(table, stores, nodes, order, self._clock.wall_ms())
        here = SystemHost().name()
        own = [each.name for each in nodes if (each.name == self._name if self._name else each.host == here)]
        return ClusterSeen(stores, nodes, order, told, own)

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        user: User | None = None,
        timeout_s: float = ASK_S,
    ) -> Row:
        if method != "GET":
            self._shared.clear()
        if urlsplit(path).path == LOGIN:
            near = self.whole.masters.ask_near
            return await self._in_thread(lambda: near(method, path, body, user, timeout_s), timeout_s + 1)
        return await self._in_thread(lambda: self.whole.ask(method, path, body, user, timeout_s), 2 * timeout_s + 1)

    async def totals(self, seen: ClusterSeen) -> list[StoreAnswer]:
        """Of the stores that the nodes of this host serve."""
        masters, stores = self.whole.masters, seen.own_stores
        return await self._in_thread(lambda: masters.ask_all("/totals", None, TOTALS_S, stores), 2 * TOTALS_S)

    async def rows(self, path: str) -> list[Row]:
        """Of the stores that the nodes of this host serve."""
        stores = (await self.look()).own_stores
        return await self._in_thread(
            lambda: list(Merged(self.whole.masters, path, {}, stores=stores)) if stores else [], ASK_S
        )

    async def announce(self, url: str) -> None:
        """Each page shows the whole cluster: no console needs to know another one."""
