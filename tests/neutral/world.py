"""Clients of both protocols beside each other, over sockets, to a broker that serves both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from amq.node.catalogue import PROTOCOLS
from tests.neutral.client import Delivered, NeutralClient
from tests.neutral.codec import NEUTRAL
from tests.transports.served import Peer, Served, frame, serve

TABLE = (*PROTOCOLS, NEUTRAL)


class Link(NeutralClient):
    """A client of the neutral protocol, and its socket."""

    def __init__(self, served: Served, peer: Peer) -> None:
        super().__init__()
        self._served = served
        self._peer = peer

    async def say(self, *frames: bytes) -> int:
        """All of it in one piece. Returns the number of the last command, when the broker has come to rest."""
        number = self.number
        await self._served.say(self._peer, b"".join(frames))
        self.hear()
        return number

    async def do(self, *frames: bytes) -> None:
        """Commands that succeed."""
        number, before = self.number, len(self.errors)
        await self.say(*frames)
        assert self.errors[before:] == []
        await self.until(lambda: number in self.done, "the answer")

    async def until(self, ready: Callable[[], object], what: str) -> None:
        def look() -> object:
            self.hear()
            return ready()

        await self._served.until(look, what)

    async def gets(self, count: int) -> list[Delivered]:
        """The next deliveries, exactly so many."""
        await self.until(lambda: len(self.deliveries) >= count, f"{count} deliveries")
        await self._served.rest()
        self.hear()
        found, self.deliveries = self.deliveries, []
        assert len(found) == count, found
        return found

    def hear(self) -> None:
        self.receive(self._peer.read())

    @property
    def is_open(self) -> bool:
        return self._peer.connection.number in self._served.connections and not self._peer.connection.is_closing

    async def hang_up(self) -> None:
        await self._served.hang_up(self._peer)


async def link(served: Served, client_id: str = "", instance: str = "") -> Link:
    """One that is connected."""
    link = Link(served, await served.connect())
    await link.say(link.connect(client_id, instance))
    await link.until(lambda: link.connected, "the login")
    return link


class Stomp:
    """A client of STOMP 1.2: what it hears are frames, as they are."""

    def __init__(self, served: Served, peer: Peer) -> None:
        self._served = served
        self._peer = peer

    async def say(self, command: str, body: bytes = b"", **headers: object) -> None:
        """And wait for the receipt. `_` in the names of headers stands for `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        before = self._peer.said.count(b"RECEIPT\n")
        await self._served.say(self._peer, frame(command, {**named, "receipt": "r"}, body))
        await self._served.until(lambda: self.heard().count(b"RECEIPT\n") > before, "the receipt")

    def heard(self) -> bytes:
        self._peer.read()
        return self._peer.said

    async def messages(self, count: int) -> list[bytes]:
        """Those that it has got, exactly so many, each from its headers to its end."""
        await self._served.until(lambda: self.heard().count(b"MESSAGE\n") >= count, f"{count} messages")
        await self._served.rest()
        found = [each for each in self.heard().split(b"\0") if each.startswith(b"MESSAGE\n")]
        assert len(found) == count, found
        return found

    async def hang_up(self) -> None:
        await self._served.hang_up(self._peer)


async def stomp(served: Served, client_id: str = "") -> Stomp:
    """One that is connected."""
    headers = {"accept-version": "1.2", "host": "x", **({"client-id": client_id} if client_id else {})}
    peer = await served.connect(frame("CONNECT", headers))
    stomp = Stomp(served, peer)
    await served.until(lambda: b"CONNECTED\n" in stomp.heard(), "the login")
    return stomp


def play(path: Path, test: Callable[[Served], Awaitable[None]], **config: Any) -> None:
    """Run `test` with a broker that serves both protocols."""
    serve(path, test, TABLE, **config)
