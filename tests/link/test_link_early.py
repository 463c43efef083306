"""Clients that come and go before a link has begun: what they leave in it is bounded, and goes on where it may."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from amq.broker.sessions.links import NOBODY
from amq.core.message import LARGE_BODY_BYTES, Message
from amq.link.link import LEFT_BYTES, LEFT_BYTES_MAX, Link, RemoteConnection
from amq.protocols.commands import Send
from tests.link.linking import SECRET, Linked, serve
from tests.link.test_link_breaks import waiting
from tests.transports.served import CONNECT

GUESTS = 1000
BODY = b"x" * 1000


class EarlyWorld:
    """A link that has not begun, and the clients that come to it."""

    def __init__(self, served: Linked) -> None:
        self.served = served
        self.link = Link(served.hub, SECRET, Random(4))
        self._came = 0

    def enter(self) -> RemoteConnection:
        self._came += 1
        guest: Any = SimpleNamespace(pause_reading=lambda: None, resume_reading=lambda: None, fail=lambda _: None)
        return self.link.open(guest, NOBODY, f"99-{self._came}.", "none")

    async def begin(self) -> None:
        await self.link.connect(f"unix://{self.served.world.store}/link")

    async def stored(self, count: int) -> None:
        await self.served.until(
            lambda: "queue://a" in self.served.world.broker.state.queues and waiting(self.served, "a") == count,
            f"{count} messages",
        )


def send(body: bytes) -> list[Any]:
    return [Send(Message("queue://a", body))]


def test_clients_that_come_and_go_before_a_link_begins_leave_nothing_in_it(tmp_path: Path) -> None:
    async def test(served: Linked) -> None:
        await served.connect(CONNECT)
        world = EarlyWorld(served)
        stays = world.enter()
        tracemalloc.start()
        try:
            for _ in range(GUESTS):
                world.enter().close()
            assert tracemalloc.get_traced_memory()[0] < GUESTS * LEFT_BYTES // 8
        finally:
            tracemalloc.stop()
        assert [*world.link.connections.values()] == [stays]
        stays.handle(send(BODY))
        await world.begin()
        await world.stored(1)
        world.link.close()

    serve(tmp_path, test)


def test_what_clients_have_sent_that_left_before_a_link_begins_is_bounded_and_stored(tmp_path: Path) -> None:
    async def test(served: Linked) -> None:
        await served.connect(CONNECT)
        world = EarlyWorld(served)
        cut = world.enter()
        cut.handle(send(b"x" * 4 * LARGE_BODY_BYTES))
        cut.close()
        assert not world.link.connections, "its message goes in parts, of which some are not written"
        tracemalloc.start()
        try:
            for _ in range(GUESTS):
                guest = world.enter()
                guest.handle(send(BODY))
                guest.close()
            assert tracemalloc.get_traced_memory()[0] < 2 * LEFT_BYTES_MAX
        finally:
            tracemalloc.stop()
        kept = len(world.link.connections)
        assert LEFT_BYTES_MAX // (LEFT_BYTES + 2 * len(BODY)) <= kept <= LEFT_BYTES_MAX // (LEFT_BYTES + len(BODY))
        assert kept < GUESTS
        await world.begin()
        await world.stored(kept)
        await served.until(lambda: not world.link.connections, "the end of those that left")
        assert not served.server.owners.keys() & {f"99-{number}." for number in range(GUESTS + 2)}
        world.link.close()

    serve(tmp_path, test)
