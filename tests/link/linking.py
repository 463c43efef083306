"""`Linked`: the clients of a `Served` come in by a gateway, which has one link to its broker. All in this process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from amq.broker.sessions.connection import ClientConnection
from amq.gateway.turn import GatewayTurn
from amq.link.calls import Home
from amq.link.link import Link, RemoteConnection
from amq.link.server import LinkServer
from amq.node.catalogue import PROTOCOLS, ServedProtocol
from amq.transports.peer import Peer
from tests.broker.world import World
from tests.transports import served
from tests.transports.served import Served

SECRET = b"the secret of this cluster"


class Linked(Served):
    """`hub` is that of the gateway, `home` the broker's; `link` and `server` are the ends of the link."""

    quiet_rounds = 60  # there and back by two sockets

    def _serve(self) -> None:
        super()._serve()
        self.home, loop = self.hub, self._loop
        self.home.opened, self.home.closed = self._entered, self._left
        self.home.connections = {}
        known = Home("broker", self.world.epoch, self.world.broker.message_id_prefix, 0)
        self.server = LinkServer(self.home, SECRET, lambda: known, Random(2), itertools.count(1000))
        self._turns = GatewayTurn(loop)
        self.hub = SimpleNamespace(**vars(self.home))
        self.hub.turn = self._turns
        self.hub.epoch = (1 << 40) + self.world.epoch
        self.hub.admit = self._admit
        self.hub.lend = lambda queue, message: 0  # noqa: ARG005
        self.hub.take_back = lambda size: None  # noqa: ARG005
        self.hub.shown = lambda queue, message: message  # noqa: ARG005
        self.hub.opened = self.hub.reopened = self._opened
        self.hub.closed = self._closed
        self.link = Link(self.hub, SECRET, Random(3))
        self._listening: asyncio.Server | None = None

    async def _ready(self) -> None:
        if self._listening is None:
            path = str(Path(self.world.store) / "link")
            Path(path).unlink(missing_ok=True)
            self._listening = await self._loop.create_unix_server(self.server.make, path)
            await self.link.connect(f"unix://{path}")

    def _admit(self, peer: Peer, owner: str, client: Any, protocol: str) -> RemoteConnection:
        assert peer.codec is not None
        return self.link.open(peer, client, owner, protocol, survives=peer.codec.survives, peer_name=peer.peer_name)

    def _closed(self, connection: Any) -> None:
        self.connections.pop(connection.number, None)
        self._turns.unsent.pop(connection, None)

    def _entered(self, client: Any) -> bool:
        self.home.connections[client.number] = client
        return True

    def _left(self, client: Any) -> None:
        self.home.connections.pop(client.number, None)
        self._turn.unsent.pop(client, None)

    def stop(self) -> None:
        super().stop()
        self.link.close()
        self.server.abort()
        if self._listening is not None:
            self._listening.close()

    def home_of(self, number: int = 0) -> ClientConnection:
        """The connection of a client, as the broker has it: the one that came `number`th of those that are there."""
        found: ClientConnection = [*self.home.connections.values()][number].client
        return found


def serve(path: Path, test: Any, protocols: Sequence[ServedProtocol] = PROTOCOLS, **config: Any) -> None:
    """As `tests.transports.served.serve`, over a link."""
    before, served.KIND = served.KIND, Linked
    try:
        served.serve(path, test, protocols, **config)
    finally:
        served.KIND = before


__all__ = ["Linked", "World", "serve"]
