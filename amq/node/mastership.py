"""Mastership: everything that exists only while this member is master: queues, journal, connections, listening sockets.

Lives on the event loop. A slave makes it ahead of time, so that a takeover only begins it: `begin` with a finished
replay, `listen`. It ends in one of two ways: `stop` (in good order, everything committed) or `fence` (dirty: sockets
closed at once, nothing written, state forgotten). Fence also a mastership that was never begun.

Invariant: before `begin` it looks at nothing that is stored, and has no socket and no thread.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import NamedTuple

import structlog

from amq.broker.broker import Broker
from amq.broker.events import Events, StoreFull, StoreHasRoom, StoreLimitLeft, StoreLimitReached
from amq.broker.queues.redelivery import shown
from amq.broker.sessions.connection import ClientConnection
from amq.broker.sessions.links import Client
from amq.broker.sessions.traffic import Traffic
from amq.broker.state.state import State
from amq.config import addresses
from amq.config.schema import BrokerConfig
from amq.config.transport_url import TransportUrl, parse_transport_url, reachable
from amq.core.errors import AmqError, CorruptError, TransportError
from amq.doors.clock import Clock
from amq.doors.threads import Threads
from amq.journal.journal import Journal
from amq.journal.recovery import Recovered
from amq.journal.writer import JobRunner
from amq.node.catalogue import PROTOCOLS, PortCodecs, ServedProtocol, Surroundings, served_at
from amq.node.entrance import Entrance
from amq.security.credentials import Credentials
from amq.security.login import Authenticate, Claim, Login
from amq.security.permissions import Permissions
from amq.store.epoch import Epoch
from amq.store.host import Host
from amq.store.port import Store
from amq.transports.announcer import Announcer
from amq.transports.handshakes import TlsPort, listening_sockets
from amq.transports.parking import Parking
from amq.transports.peer import Peer
from amq.transports.places import PlacesTakenError
from amq.transports.socket import Socket
from amq.transports.translating import Translator
from amq.transports.turn import Turn

LISTEN_RETRY_S = 0.2
LISTEN_PATIENCE_S = 5.0  # a port may still be in use by the process that was master a moment ago
UPKEEP_S = 1.0
GOODBYE_S = 0.5  # how long clients may take to close their side when the broker hands over
_log = structlog.get_logger("amq.master")


MakeRunner = Callable[[Callable[..., object]], JobRunner]  # from the event loop's `call_soon_threadsafe`


@dataclass(frozen=True, slots=True)
class Doors:
    """The ways to the outside that a member has."""

    store: Store
    clock: Clock
    host: Host
    threads: Threads
    entropy: Random
    make_runner: MakeRunner


@dataclass(frozen=True, slots=True)
class Shared:
    """The things that all masterships of a member have in common. Most of them are the node's.

    alone  nothing else is served by this event loop, which may thus wait for a quick disk
    """

    events: Events
    entrance: Entrance
    authenticate: Authenticate
    credentials: Credentials | None = None
    protocols: Sequence[ServedProtocol] = PROTOCOLS
    alone: bool = True


class _Port(NamedTuple):
    """A transport, as configured. `known` = its address for clients, unless it is another one when it is open."""

    text: str
    url: TransportUrl
    make: Callable[[], asyncio.Protocol]
    known: str


class Mastership:
    """One mastership. The journal is being read into `state`, by another thread until `begin`."""

    epoch: int
    message_id_prefix: str
    _failed: Callable[[str, AmqError | None], None]

    def __init__(
        self,
        config: BrokerConfig,
        doors: Doors,
        shared: Shared,
        state: State,
        permissions: Permissions | None,
        name: str,
    ) -> None:
        clock, entropy, make_runner = doors.clock, doors.entropy, doors.make_runner
        self.config = config
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.turn = Turn(self.loop, inline=shared.alone)
        self.connections: dict[int, Peer] = {}
        self.parking: Parking[Peer] = Parking(entropy, lambda: self.config)
        self.urls: list[str] = []  # as clients write them
        self.full = False  # the store's disk
        self.traffic: defaultdict[str, Traffic] = defaultdict(Traffic)  # by protocol
        self._shared = shared
        self._name, self._host_name = name, doors.host.name()
        self._entropy = entropy
        self._ports = [
            _Port(
                text,
                url := parse_transport_url(text),
                partial(self._make_socket, served_at(shared.protocols, url.carried), url.tls),
                reachable(str(url), self._host_name),
            )
            for text in config.transports
        ]
        self.door, self.places = shared.entrance.door, shared.entrance.places
        shared.entrance.serve(self.connections)
        self._announcer = Announcer(self.loop, shared.events)
        self._neighbours: tuple[str, ...] = ()
        self._servers: list[asyncio.Server | TlsPort] = []
        self._upkeep: asyncio.TimerHandle | None = None
        self._runner = make_runner(self.loop.call_soon_threadsafe)
        self._reader = make_runner(self.loop.call_soon_threadsafe)
        self.journal = Journal(doors.store.log, clock, self._runner, self, config, entropy, self._reader)
        self.broker = broker = Broker(state, self.journal, config, clock, self.turn.wake, shared.events)
        broker.advisories.broker_name = name
        broker.permit(permissions)
        self.committed, self.rejected = broker.committed, broker.rejected
        self.lend, self.take_back, self.shown = broker.lend, broker.take_back, shown
        self.translator = Translator(broker.memory, partial(make_runner, self.loop.call_soon_threadsafe), broker.wake)

    def begin(
        self,
        epoch: Epoch,
        recovered: Recovered,
        valid: Callable[[], bool],
        failed: Callable[[str, AmqError | None], None],
    ) -> None:
        """All of the journal was read into the state. `valid()` tells whether the lease is valid now; `failed(why)` is
        called when the journal cannot go on. Raises StoreError."""
        self.epoch, self._failed = epoch.number, failed
        store_uuid = recovered.store_uuid or self._entropy.randbytes(16)
        self.message_id_prefix = f"ID:{store_uuid.hex()[:12]}-"
        self.journal.begin(self.epoch, store_uuid, recovered, valid)
        self.broker.begin(self.epoch, recovered.read_bytes)
        self.turn.serve(self.broker, self.journal, valid)
        self.journal.delete(recovered.unused)

    async def listen(self, neighbours: tuple[str, ...] = ()) -> None:
        """Open the transports. Raises TransportError where an address cannot be had. See `meet`."""
        for port in self._ports:
            server = await self._open(port)
            self._servers.append(server)
            for opened in server.sockets:
                at = opened.getsockname()[:2]
                if at == (port.url.host, port.url.port):
                    self.urls.append(port.known)
                else:
                    self.urls.append(reachable(str(TransportUrl(port.url.scheme, *at)), self._host_name))
        self.meet(neighbours)
        self._upkeep = self.loop.call_later(UPKEEP_S, self._keep_up)

    def meet(self, neighbours: tuple[str, ...]) -> None:
        """The other brokers of the group are at `neighbours`: clients are told."""
        self._neighbours = neighbours
        own = addresses.of_broker(self.config, self.urls, self._host_name)
        self.broker.advisories.broker_url = own[0] if own else ""
        told = addresses.bounded((*own, *neighbours)) if self.config.update_cluster_clients else ()
        self._announcer.change(told, self.connections.values())

    async def _open(self, port: _Port) -> asyncio.Server | TlsPort:
        url, make = port.url, port.make
        deadline = self.clock.monotonic() + LISTEN_PATIENCE_S
        while True:
            try:
                if url.tls:
                    sockets = await listening_sockets(self.loop, url.host, url.port)
                    return self._shared.entrance.tls_port(sockets, self._context, make)
                return await self.loop.create_server(make, url.host, url.port, backlog=4096, reuse_address=True)
            except OSError as error:
                if self.clock.monotonic() > deadline:
                    raise TransportError(
                        f"cannot listen on {port.text}: {error.strerror or error}; "
                        "another program has the port, or the address is not of this host"
                    ) from error
            await asyncio.sleep(LISTEN_RETRY_S)

    async def stop(self, timeout_s: float = 30.0) -> bool:
        """End in good order: no new input, what came in is committed and confirmed. False where that took too long."""
        self._close_servers()
        for connection in list(self.connections.values()):
            connection.pause_reading()
        self.parking.close()
        deadline = self.clock.monotonic() + timeout_s
        while not (self.journal.idle() and not self.turn.unsent and not self.turn.shares.waiting):
            if self.clock.monotonic() > deadline:
                return False
            self.turn.wake()
            await asyncio.sleep(0.005)
        for connection in list(self.connections.values()):
            connection.resume_reading()
            connection.close()
        goodbye = self.clock.monotonic() + GOODBYE_S
        while self.connections and self.clock.monotonic() < goodbye:
            self.turn.wake()
            await asyncio.sleep(0.005)
        for connection in list(self.connections.values()):
            connection.abort()
        while not self.journal.idle():  # connections that closed gave messages back
            if self.clock.monotonic() > deadline:
                return False
            self.turn.wake()
            await asyncio.sleep(0.005)
        self._end()
        while self._runner.is_alive() or self._reader.is_alive() or self.translator.is_alive():
            if self.clock.monotonic() > deadline:
                return False
            await asyncio.sleep(0.005)
        return True

    def fence(self) -> None:
        """Ownership is lost or in doubt for too long: be gone. Writes nothing, waits for nothing."""
        self._close_servers()
        for connection in list(self.connections.values()):
            connection.abort()
        self.parking.close()
        self._end()

    def cut(self) -> None:
        """Shut every client's socket down, from any thread, also while the event loop is stuck in the store."""
        for connection in list(self.connections.values()):
            connection.cut()

    def _end(self) -> None:
        self.turn.stop()
        self._shared.entrance.leave(self.connections)
        self._announcer.stop()
        self.broker.stop_serving()
        self.journal.abandon()
        self._runner.close()
        self._reader.close()
        self.translator.close()
        if self._upkeep is not None:
            self._upkeep.cancel()

    def _close_servers(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    def _context(self) -> ssl.SSLContext | None:
        """For new handshakes."""
        return None if self._shared.credentials is None else self._shared.credentials.context

    def lease_renewed(self) -> None:
        """The lease had run out and was proved again: what waited for it goes on."""
        self.journal.lease_renewed()
        self.turn.wake()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Take over the limits that may change while clients are served."""
        self.config = config
        self.broker.reconfigure(config)
        self.meet(self._neighbours)

    def permit(self, permissions: Permissions | None) -> None:
        """From now on these decide who may do what; None = everybody may do everything."""
        self.broker.permit(permissions)

    # -- JournalOwner, beside `committed` and `rejected`, which are the broker's own --------------------------------

    def store_full(self, full: bool) -> None:
        self.full = full
        store = self.config.store
        self._shared.events.tell(StoreFull(store, self.config.store_free_floor_bytes) if full else StoreHasRoom(store))

    def store_at_limit(self, reached: bool) -> None:
        limit = self.config.store_limit_bytes
        self._shared.events.tell(StoreLimitReached(limit) if reached else StoreLimitLeft(limit))

    def failed(self, why: str, damage: CorruptError | None = None) -> None:
        self._failed(why, damage)

    # -- Hub ----------------------------------------------------------------------------------------------------------

    def _surroundings(self) -> Surroundings:
        return Surroundings(self.config, self._name, self.epoch, self.message_id_prefix, self.broker.newest_seq)

    def admit(self, peer: Peer, owner: str, client: Client, protocol: str) -> ClientConnection:
        """Serve a client that has logged in by `protocol`. `owner` = what the names of its temporary destinations begin
        with."""
        return ClientConnection(self.broker, peer, owner, client, self.traffic[protocol])

    async def authenticate(self, claim: Claim) -> Login:
        return await self._shared.authenticate(claim)

    def brokers(self, loopback: bool, tls: bool = False) -> tuple[str, ...]:
        """Where a client finds the group; () = it is not told."""
        return self._announcer.brokers(loopback, tls)

    def opened(self, peer: Peer) -> bool:
        try:
            self._shared.entrance.enter(peer)
        except PlacesTakenError:
            return False
        self.connections[peer.number] = peer
        return True

    def reopened(self, peer: Peer) -> None:
        """It has a socket again: that of a peer which is closed now."""
        self.connections[peer.number] = peer

    def closed(self, peer: Peer) -> None:
        self.connections.pop(peer.number, None)
        self.places.leave(peer)
        self.turn.unsent.pop(peer, None)

    def _make_socket(self, protocols: Sequence[ServedProtocol], has_arrived: bool) -> Socket:
        """Of a new peer. `has_arrived`: the door heard of it before the TLS handshake."""
        peer = Peer(self, next(self._shared.entrance.numbers), PortCodecs(protocols, self._surroundings))
        return Socket(self, peer, has_arrived)

    def _keep_up(self) -> None:
        self.broker.sweep()
        self.translator.step()
        self.journal.check_space()
        self._upkeep = self.loop.call_later(UPKEEP_S, self._keep_up)
