"""The network between clients and brokers: streams of bytes that are delayed, split, held up by partitions, and cut at
any byte. Bytes never change their order and never change. What a cut loses is unknown to the sender, as with TCP.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.scheduler import Machine, Process, Scheduler


class Endpoint(asyncio.Transport):
    """One end of a stream."""

    def __init__(self, network: Network, process: Process, local: tuple[str, int], remote: tuple[str, int]) -> None:
        super().__init__()
        self.process = process
        self.local = local
        self.remote = remote
        self.peer: Endpoint | None = None
        self.protocol: Any = None
        self._network = network
        self._closing = False
        self._lost = False
        self._paused = False
        self._arrived: deque[bytes] = deque()  # and not read yet
        self._unread = 0  # reads that met a pause
        self._arrival = 0.0  # when the last piece that we sent arrives
        self.is_mute = False  # nothing that this end says arrives any more, not even its end
        self.slow_s = 0.0  # more that each piece takes

    # -- asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return self if self.process.name.startswith("client") else None
        return {"peername": self.remote, "sockname": self.local}.get(name, default)

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def setsockopt(self, *_: int) -> None:
        """As a socket: the client's driver sets TCP options."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: bytes) -> None:
        self.process.check()
        if not self._closing:
            self._network.send(self, bytes(data))

    def write_eof(self) -> None:
        self._network.send(self, b"")

    def close(self) -> None:
        if not self._closing:
            self._network.send(self, b"")
            self._end(None)

    def abort(self) -> None:
        if not self._closing or not self._lost:
            self._network.cut(self, None)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        unread, self._unread = self._unread, 0
        for _ in range(unread):
            self._post(self._read)

    # -- the network's side

    def arrive(self, data: bytes) -> None:
        """A piece of the stream is here; b"" = its end."""
        if self._closing or not self.process.alive:
            return
        self._arrived.append(data)
        self._post(self._read)

    def _read(self) -> None:
        """The oldest piece that is here: one that came before a pause had ended must not pass those that met it."""
        if self._closing:
            return
        if self._paused:
            self._unread += 1
        elif data := self._arrived.popleft():
            self.protocol.data_received(data)
        elif not self.protocol.eof_received():
            self.close()

    def reset(self, error: Exception | None) -> None:
        """The stream is broken."""
        if self.process.alive and not self._lost:
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        self._closing = True
        if not self._lost:
            self._lost = True
            self._post(lambda: self.protocol.connection_lost(error))

    def _post(self, callback: Callable[[], None]) -> None:
        self.process.loop.call_soon_threadsafe(callback)


class Server:
    """A listening socket."""

    def __init__(self, network: Network, process: Process, factory: Any, address: tuple[str, int]) -> None:
        self.process = process
        self.factory = factory
        self._network = network
        self._address = address

    @property
    def sockets(self) -> list[Server]:
        return [self]

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def close(self) -> None:
        if self._network.servers.get(self._address) is self:
            del self._network.servers[self._address]


class Network:
    """All streams. `latency_s`, `split_chance` and `cut_chance` (for each piece sent) vary by seed."""

    def __init__(self, scheduler: Scheduler, rng: Random, latency_s: float, split_chance: float, cut_chance: float):
        self.servers: dict[tuple[str, int], Server] = {}
        self.latency_s = latency_s
        self.split_chance = split_chance
        self.cut_chance = cut_chance
        self.cuts = 0
        self.deaf: Callable[[str, int], bool] = lambda _host, _port: False  # whether an address cannot be opened now
        self.streams: list[Endpoint] = []
        self._scheduler = scheduler
        self._rng = rng
        self._apart: dict[tuple[str, str], float] = {}  # pair of hosts → until when nothing passes

    def listen(self, process: Process, factory: Any, host: str, port: int) -> Server:
        address = (host, port)
        if self.deaf(host, port):
            raise OSError(errno.EADDRNOTAVAIL, "address not available")
        old = self.servers.get(address)
        if old is not None and old.process.alive:
            raise OSError(errno.EADDRINUSE, "address in use")
        self.servers[address] = server = Server(self, process, factory, address)
        return server

    async def connect(self, process: Process, factory: Any, host: str, port: int) -> tuple[Endpoint, Any]:
        await asyncio.sleep(self._delay_s(process.host.name, host))
        server = self.servers.get((host, port))
        if server is None or not server.process.alive:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
        port_there = self._rng.randrange(30_000, 60_000)
        here = Endpoint(self, process, (process.host.name, port_there), (host, port))
        there = Endpoint(self, server.process, (host, port), (process.host.name, port_there))
        here.peer, there.peer = there, here
        here.protocol, there.protocol = factory(), server.factory()
        self.streams = [end for end in self.streams if end.process.alive and not end.is_closing()] + [here, there]
        server.process.loop.call_soon_threadsafe(lambda: there.protocol.connection_made(there))
        here.protocol.connection_made(here)
        return here, here.protocol

    def send(self, end: Endpoint, data: bytes) -> None:
        """Put `data` on its way, in pieces; b"" = the end of the stream."""
        if data and self._rng.random() < self.cut_chance:
            self._piece(end, data[: self._rng.randrange(len(data) + 1)])
            self.cuts += 1
            self.cut(end, ConnectionResetError(errno.ECONNRESET, "connection reset"))
            return
        while len(data) > 1 and self._rng.random() < self.split_chance:
            at = self._rng.randrange(1, len(data))
            self._piece(end, data[:at])
            data = data[at:]
        self._piece(end, data)

    def _piece(self, end: Endpoint, data: bytes) -> None:
        peer = end.peer
        assert peer is not None
        if end.is_mute:
            return
        delay_s = end.slow_s + self._delay_s(end.process.host.name, peer.process.host.name)
        end._arrival = max(end._arrival + 1e-6, self._scheduler.now + delay_s)
        self._scheduler.at(end._arrival, lambda: peer.arrive(data), peer.process)

    def cut(self, end: Endpoint, error: Exception | None) -> None:
        """Break the stream: this end knows at once, the other one a little later."""
        end.reset(error)
        peer = end.peer
        assert peer is not None
        if end.is_mute:
            return
        when = max(end._arrival, self._scheduler.now + self._delay_s(end.process.host.name, peer.process.host.name))
        reset = ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
        self._scheduler.at(when + 1e-6, lambda: peer.reset(reset), peer.process)

    def process_died(self, process: Process, silent: bool) -> None:
        """The kernel closes what a dead process had open; a host that lost its power says nothing (`silent`)."""
        for address in [address for address, server in self.servers.items() if server.process is process]:
            del self.servers[address]
        for end in list(self.streams):
            if end.process is process and end.peer is not None and not end.is_mute:
                peer = end.peer
                wait_s = 15.0 if silent else 0.0
                error = ConnectionResetError(errno.ECONNRESET, "the other side is gone")
                delay_s = wait_s + self._delay_s(process.host.name, peer.process.host.name)
                self._scheduler.after(delay_s, lambda peer=peer, error=error: peer.reset(error), peer.process)

    def part(self, one: Machine, other: Machine, seconds: float) -> None:
        """Nothing passes between two hosts for a while; then it arrives late."""
        self._apart[min(one.name, other.name), max(one.name, other.name)] = self._scheduler.now + seconds

    def hold(self, end: Endpoint, seconds: float) -> None:
        """What this end says arrives no earlier than after `seconds`."""
        end._arrival = max(end._arrival, self._scheduler.now + seconds)

    def heal(self) -> None:
        self._apart.clear()
        self.cut_chance = 0.0
        for end in self.streams:
            end.slow_s = 0.0

    def _delay_s(self, one: str, other: str) -> float:
        until = self._apart.get((min(one, other), max(one, other)), 0.0)
        return max(0.0, until - self._scheduler.now) + self.latency_s * (0.2 + self._rng.expovariate(1.0))
