"""Real connections over socket pairs to a broker in this process, on the event loop that brokers use.

Invariant: nothing is waited for by time; a `Served` goes on until what was asked for is there, or fails.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import uvloop

from amq.broker.queues.redelivery import shown
from amq.broker.sessions.connection import ClientConnection
from amq.doors.clock import SystemClock
from amq.node.catalogue import PROTOCOLS, PortCodecs, ServedProtocol, Surroundings
from amq.security.login import Claim, Login, User
from amq.transports.doorkeeper import Doorkeeper
from amq.transports.parking import Parking
from amq.transports.peer import Peer as Connection
from amq.transports.places import Places
from amq.transports.socket import Socket
from amq.transports.translating import Translator
from amq.transports.turn import Turn
from tests.broker.world import World

ROUNDS_MAX = 20_000  # of the event loop: what has not come by then never will
QUIET_ROUNDS = 20
SOCKET_BYTES = 128 << 10


def frame(command: str, headers: dict[str, object] | None = None, body: bytes = b"") -> bytes:
    lines = "".join(f"{name}:{value}\n" for name, value in (headers or {}).items())
    return f"{command}\n{lines}\n".encode() + body + b"\0"


CONNECT = frame("CONNECT", {"accept-version": "1.2", "host": "x", "client-id": "c"})


class Peer:
    """The client's end of a connection. Writes what the socket takes, and reads when told to."""

    def __init__(self, sock: socket.socket, connection: Connection) -> None:
        sock.setblocking(False)
        self._socket = sock
        self.connection = connection
        self.said = b""

    def write(self, data: bytes) -> int:
        """How many bytes of `data` the socket took now."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def read(self) -> bytes:
        """All that has come since the last time; it is also in `said`."""
        parts = []
        try:
            while part := self._socket.recv(1 << 20):
                parts.append(part)
        except (BlockingIOError, ConnectionError):
            pass
        self.said += b"".join(parts)
        return b"".join(parts)

    def close(self) -> None:
        self._socket.close()


class Tls(NamedTuple):
    """What both ends of a TLS connection know."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class TlsPeer(Peer):
    """The same over TLS: what the client says is encrypted here, and lies in `_out` until the socket takes it."""

    def __init__(self, sock: socket.socket, connection: Connection, context: ssl.SSLContext) -> None:
        super().__init__(sock, connection)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        self._unsent = b""
        self.told_end = False  # by TLS, not by the socket

    def _exchange(self) -> None:
        self._unsent += self._out.read()
        if self._unsent:
            self._unsent = self._unsent[super().write(self._unsent) :]
        try:
            while part := self._socket.recv(1 << 20):
                self._in.write(part)
        except (BlockingIOError, ConnectionError):
            pass

    def shakes_hands(self) -> bool:
        """True when the client has done its part."""
        self._exchange()
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self._exchange()
        return True

    def write(self, data: bytes) -> int:
        """Not more than the socket takes, as TLS could not take it back."""
        self._exchange()
        if self._unsent or not data:
            return 0
        count = self._tls.write(data)
        self._exchange()
        return count

    def read(self) -> bytes:
        parts = []
        self._exchange()
        try:
            while part := self._tls.read(1 << 20):
                parts.append(part)
                self._exchange()
            self.told_end = True
        except ssl.SSLWantReadError:
            pass
        self.said += b"".join(parts)
        return b"".join(parts)

    def say_end(self) -> None:
        """TLS's own way to close."""
        with suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        self._exchange()


class Served:
    """A broker that serves. `authenticate` lets everybody in unless a test replaces it."""

    quiet_rounds = QUIET_ROUNDS

    def __init__(self, world: World, protocols: Sequence[ServedProtocol]) -> None:
        self.world = world
        self._protocols = protocols
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self.connections: dict[int, Connection] = {}
        self._peers: dict[int, Peer] = {}
        self.brokers: tuple[str, ...] = ()  # where clients find the group
        self._serve()

    def take_over(self) -> None:
        """The broker's process dies, and the sockets of its clients with it. Another master serves."""
        self.stop()
        self.connections = {}
        self._peers = {}
        self.world.on_wake = lambda: None
        self.world.crash_and_recover()
        self._serve()

    def _serve(self) -> None:
        world, protocols = self.world, self._protocols
        self._turn = Turn(self._loop)
        surroundings = Surroundings(world.config, "broker", world.epoch, world.broker.message_id_prefix)
        self._codecs = PortCodecs(protocols, lambda: surroundings)

        async def authenticate(_: Claim) -> Login:
            return Login(User("alice"), "password")

        self.hub: Any = SimpleNamespace(
            clock=SystemClock(),
            turn=self._turn,
            epoch=world.epoch,
            config=world.config,
            loop=self._loop,
            admit=lambda peer, owner, client, _: ClientConnection(world.broker, peer, owner, client),
            waits_for=lambda _: None,
            lend=world.broker.lend,
            shown=shown,
            take_back=world.broker.take_back,
            translator=Translator(world.broker.memory, lambda: self.world.runner, world.broker.wake),
            authenticate=authenticate,
            brokers=self._brokers,
            opened=self._opened,
            reopened=self._opened,
            door=Doorkeeper(SystemClock(), lambda: world.config),
            places=Places(SystemClock(), lambda: world.config.max_connections),
            closed=self._closed,
            parking=Parking(Random(1), lambda: self.hub.config),
        )
        world.on_wake = self._turn.wake
        self._turn.serve(world.broker, world.journal, lambda: True)

    async def _ready(self) -> None:
        """Before a client comes."""

    def _brokers(self, loopback: bool, tls: bool) -> tuple[str, ...]:
        return tuple(url for url in self.brokers if (loopback or "127.0.0.1" not in url) and ("ssl://" in url) == tls)

    def _opened(self, connection: Connection) -> bool:
        self.connections[connection.number] = connection
        return True

    def _closed(self, connection: Connection) -> None:
        self.connections.pop(connection.number, None)
        self._turn.unsent.pop(connection, None)

    async def connect(self, *frames: bytes, tls: Tls | None = None, tcp: bool = False) -> Peer:
        """A client that has said `frames`, over TCP or TLS where that is asked for."""
        await self._ready()
        self._count += 1
        ours, theirs = _tcp() if tcp or tls is not None else socket.socketpair()
        connection = Connection(self.hub, self._count, self._codecs)
        accepting = Socket(self.hub, connection)
        peer: Peer
        if tls is None:
            await self._loop.connect_accepted_socket(lambda: accepting, ours)
            peer = Peer(theirs, connection)
        else:
            peer = secret = TlsPeer(theirs, connection, tls.client)
            accepted = self._loop.create_task(
                self._loop.connect_accepted_socket(lambda: accepting, ours, ssl=tls.server)
            )
            await self.until(lambda: secret.shakes_hands() and accepted.done(), "the handshake")
            await accepted
        self._peers[self._count] = peer
        for data in frames:
            await self.say(peer, data)
        return peer

    async def say(self, peer: Peer, data: bytes) -> None:
        """All of `data`; the broker must read it, and comes to rest."""
        rest = memoryview(data)
        for _ in range(ROUNDS_MAX):
            rest = rest[peer.write(bytes(rest[: 1 << 18])) :]
            await self._round()
            if not rest:
                await self.rest()
                return
        raise AssertionError("the broker does not read")

    async def until(self, ready: Callable[[], object], what: str) -> None:
        for _ in range(ROUNDS_MAX):
            if ready():
                return
            await self._round()
        raise AssertionError(f"waited in vain for: {what}")

    async def rest(self) -> None:
        """Until everything has been done that can be."""
        quiet = 0
        while quiet < self.quiet_rounds:
            quiet = 0 if await self._round() else quiet + 1

    async def _round(self) -> bool:
        worked = self.world.runner.step()
        await asyncio.sleep(0)
        return bool(worked)

    async def hang_up(self, peer: Peer) -> None:
        """The client closes its end, and the broker notices."""
        number = peer.connection.number
        self._peers.pop(number).close()
        await self.until(lambda: number not in self.connections, "the end of a connection")
        await self.rest()

    def stop(self) -> None:
        for connection in list(self.connections.values()):
            connection.abort()
        self.hub.parking.close()
        for peer in self._peers.values():
            peer.close()
        self._turn.stop()


KIND = Served  # a test may put another one here


def serve(
    path: Path,
    test: Callable[[Served], Awaitable[None]],
    protocols: Sequence[ServedProtocol] = PROTOCOLS,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
    **config: Any,
) -> None:
    """Run `test` with a broker of that configuration, which serves `protocols`."""
    world = World(path, journal_segment_size_bytes=64 << 20, **config)

    async def main() -> None:
        served = KIND(world, protocols)
        try:
            await test(served)
        finally:
            served.stop()

    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())
    finally:
        world.close()


def _tcp() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection: ours, the client's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)  # or the kernel lets it grow to megabytes
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
    return ours, theirs


class Uncollected:
    """While it is entered, the garbage collector does not run by itself. `found()` = what was made since and
    reference counting alone has not freed, by type. The collector no longer looks at what was there before, for an
    earlier test's thread may let go of it meanwhile. It is not asked to look at it again later: each collection would
    take 0.2 s, as it would look at all collected tests."""

    def __enter__(self) -> Uncollected:
        gc.collect()
        gc.freeze()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        return self

    def __exit__(self, *_: object) -> None:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()

    def found(self) -> Counter[str]:
        gc.collect()
        found = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage)
        gc.garbage.clear()
        return found
