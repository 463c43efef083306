"""Gateway: a process that holds the connections of clients of a cluster, from its start to its end.

It is a service (`amq.node.service`) with a reception of clients and no store: its node may kill it and start it again
at any moment. The sockets at which it listens are its node's, too.

Invariant: the event loop never waits for a file system.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import SystemRandom
from socket import socket

import structlog

from amq.broker.events import Events
from amq.cluster.directory import Cluster
from amq.cluster.supervisor import COUNTS
from amq.config.schema import BrokerConfig
from amq.core.errors import AmqError
from amq.doors.clock import SystemClock
from amq.doors.threads import SystemThreads
from amq.gateway.hub import GatewayHub
from amq.gateway.ways import WayDoors, Ways
from amq.node import process
from amq.node.reception import Shared
from amq.node.service import Readers, Service, Source
from amq.security.credentials import link_context
from amq.store.host import SystemHost

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
        self._ended = asyncio.Event()
        self._told = ""

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._warn()
        host_name = SystemHost().name()
        name, clock, threads, entropy = self.config.name or host_name, SystemClock(), SystemThreads(), SystemRandom()
        doors = WayDoors(clock, threads, entropy, lambda: link_context(self.config))
        self.ways = Ways(self._cluster, self._table, name, self._secret, doors)
        shared = Shared(Events(), self._entrance, self._gate.authenticate, self._certificate.credentials)
        self.hub = GatewayHub(
            self.config, clock, entropy, threads, shared, name, host_name, self._cluster.id, self.ways
        )
        self.ways.serve(self.hub)
        await self.hub.listen(given=self._sockets)
        self.ways.watch(self.hub.meet)
        _log.info("gateway: serving clients", urls=self.hub.urls)
        process.notify("READY=1")
        self._tell()

    async def _begin_to_stop(self) -> None:
        self.ways.stop()
        await self.hub.stop()
        self.ways.close()
        self._ended.set()

    async def ended(self) -> AmqError | None:
        await self._ended.wait()
        self._gate.close()
        return None

    # -- what its node is told ----------------------------------------------------------------------------------------

    def _tell(self) -> None:
        if self._stop is not None:
            return
        linked, waiting = self.ways.links.linked, self.ways.links.waiting
        counts = json.dumps(
            {
                "connections": len(self.hub.connections),
                "links": len(linked),
                "waiting": self.ways.links.held_up,
                "refused": len(self.ways.links.refused),
                "received": sum(each.received for each in self.hub.traffic.values()),
                "delivered": sum(each.delivered for each in self.hub.traffic.values()),
                "links_lost": self.ways.links.lost,
                "repeats": self.ways.repeats,
                "table": self.ways.placement.number,
            }
        )
        status = f"{len(self.hub.connections)} clients, linked to {', '.join(linked) or 'no store'}"
        if waiting:
            status += f", waiting for {', '.join(waiting)}"
        told = f"STATUS={status}\n{COUNTS}={counts}"
        if told != self._told:
            self._told = told
            process.notify(told)
        self._loop.call_later(TELL_S, self._tell)

    # -- files that are read again ------------------------------------------------------------------------------------

    def read_files_again(self) -> None:
        super().read_files_again()
        self.ways.look()

    def _post_apply(self, config: BrokerConfig) -> None:
        with suppress(RuntimeError):  # the event loop has ended meanwhile
            self._loop.call_soon_threadsafe(self._apply, config)

    def _apply(self, config: BrokerConfig) -> None:
        self._take(config)
        self.hub.reconfigure(config)
