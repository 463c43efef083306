"""A cluster of three stores, and a client with transactions over several: for tests that lose any of these at any
step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from amq.broker.transactions import spanning
from amq.core.message import Message
from amq.gateway.homes import RoutedHome
from amq.protocols.commands import Begin, Command, Failure, Scope, Send
from tests.gateway.routed import Cluster, PeerWays, RoutedClient

NAMES = ["queue://n0", "queue://n1", "queue://n2"]  # each in the store of its number


class Stage:
    """A cluster, and a client that commits in several of its stores."""

    def __init__(self, path: Path, **config: Any) -> None:
        self.cluster = Cluster(path, 3, **config)
        self.cluster.placement.rules |= {name: f"s{n}" for n, name in enumerate(NAMES)} | {"topic://t": "s1"}
        self.ways = PeerWays(self.cluster)
        self.client = self.cluster.connect()
        self.client.fail = self._failed  # type: ignore[method-assign]
        self.rest()

    def _failed(self, failure: Failure) -> None:
        """It survives what OpenWire survives."""
        if failure.scope is Scope.CONNECTION:
            RoutedClient.fail(self.client, failure)
        else:
            error: Any = failure.error
            self.client.errors.append((error.code, str(failure.receipt or "")))

    def rest(self) -> None:
        for world in self.cluster.worlds:
            world.broker.peers = self.ways
            world.wake()
        self.cluster.settle()

    def says(self, *commands: Any, client: RoutedClient | None = None) -> RoutedClient:
        client = client or self.client
        client.session.handle([*commands])
        self.rest()
        return client

    def home(self, store: int) -> RoutedHome:
        return self.client.session.homes[store]  # type: ignore[attr-defined,no-any-return]

    def cut(self, store: int) -> None:
        """The gateway hears nothing more from that store, whose master does what it was asked before."""
        connection: Any = self.home(store).connection
        connection.peer.is_cut = True

    def lose(self, store: int) -> None:
        self.cluster.cut(self.client.session, f"s{store}")  # type: ignore[arg-type]
        self.rest()

    def crash(self, store: int) -> None:
        """The master of that store ends, and another one begins."""
        connection: Any = self.home(store).connection
        asked = dict(connection.peer.asked)
        world = self.cluster.worlds[store]
        world.broker.spanning.stop()
        clients = [client for client in world.clients if isinstance(client, RoutedClient)]
        world.crash_and_recover()
        for client in clients:  # they are clients of the gateway
            client.connected = True
            world.clients.append(client)
        self.ways.lose(f"s{store}")
        connection.peer.asked = asked
        self.lose(store)

    def wait(self, seconds: float = spanning.DOUBT_S + 1) -> None:
        """Time passes."""
        for world in self.cluster.worlds:
            world.clock.advance(seconds)
            world.broker.sweep()
        self.rest()

    @property
    def stored(self) -> list[list[bytes]]:
        return [self.cluster.stored(name[8:]) for name in NAMES]

    @property
    def prepared(self) -> int:
        return sum(len(world.broker.state.prepared) for world in self.cluster.worlds)


def sends(*stores: int, body: bytes = b"m") -> list[Command]:
    return [Begin("t"), *(Send(Message(NAMES[store], body), None, "t") for store in stores)]


Loss = Callable[[Stage, int], None]


def losing(stage: Stage, store: int) -> None:
    stage.lose(store)


def crashing(stage: Stage, store: int) -> None:
    stage.crash(store)


STEPS = range(14)


def steps(stage: Stage, count: int) -> None:
    """Each is a turn of each broker and a job of its disk, and what the gateway had put off."""
    for _ in range(count):
        for world in stage.cluster.worlds:
            world.turn()
            world.runner.step()
        soon, stage.cluster._soon[:] = [*stage.cluster._soon], []
        for call in soon:
            call()
