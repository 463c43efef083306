"""Gateway: a process that holds the connections of clients of a cluster, from its start to its end.

It is a service (`amq.node.service`) with a reception of clients and no store: its node may kill it and start it again
at any moment. The sockets at which it listens are its node's, too.

Invariant: the event loop never waits for a file system.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import SystemRandom
from socket import socket

import structlog

from amq.broker.events import Events
from amq.broker.sessions.links import Client
from amq.cluster.directory import Cluster, StoreTable
from amq.cluster.placement import Placement
from amq.cluster.supervisor import COUNTS
from amq.config.schema import BrokerConfig
from amq.core.errors import AmqError
from amq.doors.clock import Clock, SystemClock
from amq.doors.threads import SystemThreads
from amq.gateway.homes import RoutedHome
from amq.gateway.hub import GatewayHub
from amq.gateway.links import StoreLinks
from amq.gateway.lookout import Lookout
from amq.link.link import Link
from amq.node import process
from amq.node.reception import Shared
from amq.node.service import Readers, Service, Source
from amq.security.credentials import link_context
from amq.store.host import SystemHost
from amq.transports.hub import ServedConnection

TELL_S = 1.0  # between two looks at what the node is told
_log = structlog.get_logger("amq.gateway")


class Gateway(Service):
    """One gateway of node `config.name`. `sockets` = those of each transport."""

    goodbye = "closing connections"

    def __init__(
        self,
        config: BrokerConfig,
        source: Source,
        readers: Readers,
        cluster: Cluster,
        sockets: Sequence[Sequence[socket]],
        configure_log: Callable[[BrokerConfig], None] = lambda _: None,
    ) -> None:
        """Raises ConfigError, StoreError."""
        super().__init__(config, readers, configure_log)
        self._read_again(config, source, self._post_apply)
        self._cluster = cluster
        self._table = cluster.table()
        self._secret = cluster.secret()
        self._sockets = sockets
        self._entropy, self._threads = SystemRandom(), SystemThreads()
        self.clock: Clock = SystemClock()
        self._ended = asyncio.Event()
        self._told = ""
        self._renewing: list[tuple[int, Callable[[bool], None]]] = []

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._warn()
        self.links = StoreLinks(self._threads, self._make_link, self._connect, self._locate)
        shared = Shared(Events(), self._entrance, self._gate.authenticate, self._certificate.credentials)
        host_name = SystemHost().name()
        self.hub = GatewayHub(
            self.config,
            self.clock,
            self._entropy,
            self._threads,
            shared,
            self.config.name or host_name,
            host_name,
            self._cluster.id,
            self,
        )
        await self.hub.listen(given=self._sockets)
        self._lookout = Lookout(self._threads, "the cluster", self._look)
        _log.info("gateway: serving clients", urls=self.hub.urls)
        process.notify("READY=1")
        self._tell()

    async def _begin_to_stop(self) -> None:
        self._lookout.stop()
        await self.hub.stop()
        self.links.close()
        self._ended.set()

    async def ended(self) -> AmqError | None:
        await self._ended.wait()
        self._gate.close()
        return None

    # -- the cluster --------------------------------------------------------------------------------------------------

    def _locate(self, store: str) -> str:
        """In the thread of a lookout."""
        return self._cluster.location(store, self._table)

    def _make_link(self) -> Link:
        return Link(self.hub, self._secret, self._entropy)

    async def _connect(self, link: Link, address: str) -> None:
        context: ssl.SSLContext | None = None
        if address.startswith("ssl:"):  # rarely: the files may have changed
            context = await self._loop.run_in_executor(None, link_context, self.config)
        await link.connect(address, context)

    def _look(self) -> None:
        """In the thread of a lookout."""
        table: StoreTable | None = None
        neighbours: tuple[str, ...] = ()
        try:
            table = self._cluster.table()
            others = [node for node in self._cluster.nodes() if node.running and node.name != self.config.name]
            neighbours = tuple(url for node in others for url in node.addresses)
        finally:
            with suppress(RuntimeError):  # the event loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._seen, table, neighbours)

    def _seen(self, table: StoreTable | None, neighbours: tuple[str, ...]) -> None:
        if self._stop is not None:
            return
        if table is not None:
            if table.number > self._table.number:
                self._table = table
                _log.info("the cluster has changed", stores=list(table.stores), table=table.number)
            self.hub.meet(neighbours)
        renewing, self._renewing = self._renewing, []
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
        self._renewing.append((self._table.number, done))
        self._lookout.want(True)

    def later(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    # -- what its node is told ----------------------------------------------------------------------------------------

    def _tell(self) -> None:
        if self._stop is not None:
            return
        linked, waiting = self.links.linked, self.links.waiting
        counts = json.dumps({"connections": len(self.hub.connections), "links": len(linked)})
        status = f"{len(self.hub.connections)} clients, linked to {', '.join(linked) or 'no store'}"
        if waiting:
            status += f", waiting for {', '.join(waiting)}"
        told = f"STATUS={status}\n{COUNTS}={counts}"
        if told != self._told:
            self._told = told
            process.notify(told)
        self._loop.call_later(TELL_S, self._tell)

    # -- files that are read again ------------------------------------------------------------------------------------

    def _post_apply(self, config: BrokerConfig) -> None:
        with suppress(RuntimeError):  # the event loop has ended meanwhile
            self._loop.call_soon_threadsafe(self._apply, config)

    def _apply(self, config: BrokerConfig) -> None:
        self._take(config)
        self.hub.reconfigure(config)
