"""Reception: ports, and the clients that come in by them. It is the `Hub` of their peers.

A mastership is one with a broker (`amq.node.mastership`); that of a gateway leads to brokers elsewhere.

Invariants: it has no socket before `listen`; each of its connections has a place in the `Entrance` of its process.
"""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from socket import socket
from typing import Any, NamedTuple

from amq.broker.events import Events
from amq.broker.sessions.links import Client
from amq.broker.sessions.traffic import Traffic
from amq.config import addresses
from amq.config.schema import BrokerConfig
from amq.config.transport_url import TransportUrl, parse_transport_url, reachable
from amq.core.errors import TransportError
from amq.core.message import Message
from amq.doors.clock import Clock
from amq.node.catalogue import PROTOCOLS, PortCodecs, ServedProtocol, Surroundings, served_at
from amq.node.entrance import Entrance, Served
from amq.security.credentials import Credentials
from amq.security.login import Authenticate, Claim, Login
from amq.transports.announcer import Announcer
from amq.transports.handshakes import BACKLOG, TlsPort, listening_sockets
from amq.transports.hub import PeerTurn, ServedConnection
from amq.transports.parking import Parking
from amq.transports.peer import Peer
from amq.transports.places import PlacesTakenError
from amq.transports.socket import Socket
from amq.transports.translating import Translator

LISTEN_RETRY_S = 0.2
LISTEN_PATIENCE_S = 5.0  # a port may still be in use by the process that was master a moment ago
GOODBYE_S = 0.5  # how long clients may take to close their side at the end
POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Shared:
    """The things that all receptions of a process have in common. Most of them are the node's.

    alone    nothing else is served by this event loop, which may thus wait for a quick disk
    manager  makes the protocol of a socket by which a program of the cluster manages this process, None = there is none
    """

    events: Events
    entrance: Entrance
    authenticate: Authenticate
    credentials: Credentials | None = None
    protocols: Sequence[ServedProtocol] = PROTOCOLS
    alone: bool = True
    manager: Callable[[], Callable[[], asyncio.Protocol] | None] = lambda: None


class _Port(NamedTuple):
    """A transport, as configured. `known` = its address for clients, unless it is another one when it is open."""

    text: str
    url: TransportUrl
    make: Callable[[], asyncio.Protocol]
    known: str


class Reception(ABC):
    """Lives on the event loop. Implements `amq.transports.hub.Hub`."""

    epoch: int
    turn: PeerTurn
    translator: Translator
    # `queue` is that of a `QueueConsumer`
    lend: Callable[[Any, Message], int]
    take_back: Callable[[int], None]
    shown: Callable[[Any, Message], Message]

    def __init__(
        self, config: BrokerConfig, clock: Clock, entropy: Random, shared: Shared, name: str, host_name: str
    ) -> None:
        """`name` is the broker's, `host_name` that of its host."""
        self.config = config
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.connections: dict[int, Served] = {}
        self.parking: Parking[Peer] = Parking(entropy, lambda: self.config)
        self.urls: list[str] = []  # as clients write them
        self.traffic: defaultdict[str, Traffic] = defaultdict(Traffic)  # by protocol
        self._shared = shared
        self._name, self._host_name = name, host_name
        self._ports = [
            _Port(
                text,
                url := parse_transport_url(text),
                partial(self._make_socket, served_at(shared.protocols, url.carried), url.tls),
                reachable(str(url), host_name),
            )
            for text in config.transports
        ]
        self.door, self.places = shared.entrance.door, shared.entrance.places
        shared.entrance.serve(self.connections)
        self._announcer = Announcer(self.loop, shared.events)
        self._neighbours: tuple[str, ...] = ()
        self._servers: list[asyncio.Server | TlsPort] = []

    # -- ports --------------------------------------------------------------------------------------------------------

    async def listen(self, neighbours: tuple[str, ...] = (), given: Sequence[Sequence[socket]] = ()) -> None:
        """Open the transports: `given` = the sockets of each, where they listen already. See `meet`. Raises
        TransportError where an address cannot be had."""
        for number, port in enumerate(self._ports):
            self.urls += self._listening(port, await (self._serve(port, given[number]) if given else self._open(port)))
        self.meet(neighbours)

    async def open_port(self, text: str, make: Callable[[], asyncio.Protocol]) -> list[str]:
        """Open a further port, of something else than clients: its addresses as others write them. Raises
        TransportError."""
        url = parse_transport_url(text)
        port = _Port(text, url, make, reachable(str(url), self._host_name))
        return self._listening(port, await self._open(port))

    def _listening(self, port: _Port, servers: Sequence[asyncio.Server | TlsPort]) -> list[str]:
        """The addresses at which these listen."""
        self._servers += servers
        places = [opened.getsockname()[:2] for server in servers for opened in server.sockets]
        return [
            port.known
            if place == (port.url.host, port.url.port)
            else reachable(str(TransportUrl(port.url.scheme, *place)), self._host_name)
            for place in places
        ]

    async def _open(self, port: _Port) -> Sequence[asyncio.Server | TlsPort]:
        url = port.url
        deadline = self.clock.monotonic() + LISTEN_PATIENCE_S
        while True:
            try:
                if url.tls:
                    return await self._serve(port, await listening_sockets(self.loop, url.host, url.port))
                return [
                    await self.loop.create_server(port.make, url.host, url.port, backlog=BACKLOG, reuse_address=True)
                ]
            except OSError as error:
                if self.clock.monotonic() > deadline:
                    raise TransportError(
                        f"cannot listen on {port.text}: {error.strerror or error}; "
                        "another program has the port, or the address is not of this host"
                    ) from error
            await asyncio.sleep(LISTEN_RETRY_S)

    async def _serve(self, port: _Port, sockets: Sequence[socket]) -> Sequence[asyncio.Server | TlsPort]:
        if port.url.tls:
            return [self._shared.entrance.tls_port(sockets, self._context, port.make)]
        return [await self.loop.create_server(port.make, sock=each, backlog=BACKLOG) for each in sockets]

    def _close_servers(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    def _context(self) -> ssl.SSLContext | None:
        """For new handshakes."""
        return None if self._shared.credentials is None else self._shared.credentials.context

    def _make_socket(self, protocols: Sequence[ServedProtocol], has_arrived: bool) -> Socket:
        """Of a new peer. `has_arrived`: the door heard of it before the TLS handshake."""
        peer = Peer(self, next(self._shared.entrance.numbers), PortCodecs(protocols, self._surroundings))
        return Socket(self, peer, has_arrived)

    @abstractmethod
    def _surroundings(self) -> Surroundings:
        """For the codecs of new connections."""

    # -- the addresses of the group -----------------------------------------------------------------------------------

    def own_addresses(self) -> tuple[str, ...]:
        """Where clients find it."""
        return addresses.of_broker(self.config, self.urls, self._host_name)

    def meet(self, neighbours: tuple[str, ...]) -> None:
        """The other brokers of the group are at `neighbours`: clients are told."""
        self._neighbours = neighbours
        self._announce(*self.own_addresses(), *neighbours)

    def _announce(self, *urls: str) -> None:
        told = addresses.bounded(urls) if self.config.update_cluster_clients else ()
        self._announcer.change(told, self.connections.values())

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _close_connections(self) -> None:
        """In good order: each has its last answers, and some time to read them."""
        for connection in list(self.connections.values()):
            connection.resume_reading()
            connection.close()
        goodbye = self.clock.monotonic() + GOODBYE_S
        while self.connections and self.clock.monotonic() < goodbye:
            self.turn.wake()
            await asyncio.sleep(POLL_S)
        for connection in list(self.connections.values()):
            connection.abort()

    def _close_at_once(self) -> None:
        self._close_servers()
        for connection in list(self.connections.values()):
            connection.abort()
        self.parking.close()

    def cut(self) -> None:
        """Shut every client's socket down, from any thread, also while the event loop is stuck in the store."""
        for connection in list(self.connections.values()):
            connection.cut()

    def _leave(self) -> None:
        """It has no connections any more."""
        self._shared.entrance.leave(self.connections)
        self._announcer.stop()
        self.translator.close()

    # -- Hub ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def admit(self, peer: Peer, owner: str, client: Client, protocol: str) -> ServedConnection:
        """Serve a client that has logged in by `protocol`. `owner` = what the names of its temporary destinations begin
        with."""

    def waits_for(self, served: ServedConnection) -> Awaitable[None] | None:  # noqa: ARG002
        return None

    async def authenticate(self, claim: Claim) -> Login:
        return await self._shared.authenticate(claim)

    def brokers(self, loopback: bool, tls: bool = False) -> tuple[str, ...]:
        """Where a client finds the group; () = it is not told."""
        return self._announcer.brokers(loopback, tls)

    def opened(self, peer: Served) -> bool:
        try:
            self._shared.entrance.enter(peer)
        except PlacesTakenError:
            return False
        self.connections[peer.number] = peer
        return True

    def reopened(self, peer: Peer) -> None:
        """It has a socket again: that of a peer which is closed now."""
        self.connections[peer.number] = peer

    def closed(self, peer: Served) -> None:
        self.connections.pop(peer.number, None)
        self.places.leave(peer)
        if isinstance(peer, Peer):
            self.turn.unsent.pop(peer, None)
