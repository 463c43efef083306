"""Broker services in this process, on the event loop of the test, and a client that speaks just enough STOMP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from amq.config.schema import BrokerConfig
from amq.node.member import Member, Role
from amq.protocols.stomp.frame import Frame, FrameLimits, FrameReader, encode
from amq.security.login import Claim, Login, User
from amq.store.files.vfs import Vfs
from amq.store.open import store_behind
from tests.patience import DEADLINE_S
from tests.ports import free_port

PERIOD_S = 10.0  # so long that no broker loses its lease on a busy machine


async def anybody(_: Claim) -> Login:
    return Login(User("anybody"), "password")


class Client:
    """One STOMP 1.2 connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = FrameReader(FrameLimits(), "1.2")
        self._ready: list[Frame] = []

    @classmethod
    async def connect(cls, port: int, *headers: tuple[str, str]) -> Client:
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        await client.send("CONNECT", ("accept-version", "1.2"), ("host", "/"), *headers)
        assert (await client.receive()).command == "CONNECTED"
        return client

    async def send(self, command: str, *headers: tuple[str, str], body: bytes = b"") -> None:
        self._writer.write(encode(command, headers, body, "1.2"))
        await self._writer.drain()

    async def receive(self, timeout_s: float = DEADLINE_S) -> Frame:
        """The next frame; EOFError when the broker closed."""
        while not self._ready:
            data = await asyncio.wait_for(self._reader.read(1 << 16), timeout_s)
            if not data:
                raise EOFError
            self._ready = self._frames.feed(data)
        return self._ready.pop(0)

    async def store(self, body: bytes, receipt: str = "r", name: str = "/queue/a") -> None:
        """Send a persistent message and wait for its receipt."""
        await self.send("SEND", ("destination", name), ("receipt", receipt), body=body)
        frame = await self.receive()
        assert (frame.command, frame.headers["receipt-id"]) == ("RECEIPT", receipt), frame

    async def subscribe(self, name: str = "/queue/a") -> None:
        await self.send("SUBSCRIBE", ("id", "0"), ("destination", name), ("ack", "client-individual"))

    async def ack(self, message: Frame) -> None:
        await self.send("ACK", ("id", message.headers["ack"]), ("receipt", "ack"))
        frame = await self.receive()
        while frame.command == "MESSAGE":
            frame = await self.receive()
        assert frame.command == "RECEIPT"

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


class Services:
    """Makes services on one store and stops them at the end of the test."""

    def __init__(self, store: Path) -> None:
        self.store = store / "store"
        self.made: list[tuple[Member, int]] = []
        self.clients: list[Client] = []
        self.period_s = PERIOD_S
        self.scheme = "stomp"  # of the transport

    async def connect(self, port: int) -> Client:
        client = await Client.connect(port)
        self.clients.append(client)
        return client

    async def start(
        self, name: str = "a", port: int | None = None, vfs: Vfs | None = None, **doors: Any
    ) -> tuple[Member, int]:
        port = port or free_port()
        config = BrokerConfig(
            name=name,
            store=str(self.store),
            transports=(f"{self.scheme}://127.0.0.1:{port}",),
            lock_keep_alive_period_s=self.period_s,
            lock_acquire_sleep_interval_s=0.1,
        )
        service = Member(config, anybody, store=vfs and store_behind(vfs, config.store), **doors)
        self.made.append((service, port))
        await service.start()
        return service, port

    async def master(self, name: str = "a", **doors: Any) -> tuple[Member, int]:
        service, port = await self.start(name, **doors)
        assert await asyncio.wait_for(service.wait_for(Role.MASTER), DEADLINE_S) is Role.MASTER, service.failure
        return service, port

    async def leave_one_message(self) -> None:
        """A master stores `kept` in the queue of the client, and hands the store over."""
        first, port = await self.master("a")
        client = await self.connect(port)
        await client.store(b"kept")
        await first.stop()

    async def stop(self) -> None:
        for client in self.clients:
            await client.close()
        for service, _ in self.made:
            if service.role is not Role.STOPPED:
                await asyncio.wait_for(service.stop(), DEADLINE_S)


@asynccontextmanager
async def services(store: Path) -> AsyncIterator[Services]:
    made = Services(store)
    try:
        yield made
    finally:
        await made.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Wait, on the event loop, until `condition()`; TimeoutError after `DEADLINE_S`."""

    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.002)

    await asyncio.wait_for(poll(), DEADLINE_S)
