"""The links of a gateway: who waits for a master, and what happens when it changes, refuses, hangs or is not there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from amq.broker.sessions.links import NOBODY
from amq.core.errors import AmqError, StoreError
from amq.doors.threads import SystemThreads
from amq.gateway import links, lookout
from amq.gateway.homes import Loss
from amq.gateway.links import HomeUnavailableError, StoreLinks
from amq.gateway.lookout import Master
from amq.link.framing import LinkError
from amq.link.link import Link
from tests.patience import DEADLINE_S

ONE, TWO = Master("a", "tcp://a:1"), Master("b", "tcp://b:2")


class Guest:
    """A client's connection, as it sees one store: it notes why it lost it."""

    def __init__(self) -> None:
        self.why = ""
        self.then: Callable[[], object] = lambda: None
        self.peer = SimpleNamespace(codec=SimpleNamespace(survives=frozenset()), peer_name="somewhere")

    def lost(self, loss: Loss) -> None:
        self.why = loss.error.code
        self.then()


class SomeLink:
    """A link that says where it was connected."""

    def __init__(self) -> None:
        self.is_lost = self.is_orderly = False
        self.address = ""
        self.home = None
        self.lost: Callable[[Any, AmqError], None]
        self.connections: list[Any] = []

    def open(self, *_: object, **__: object) -> Any:
        self.connections.append(SimpleNamespace(unanswered=[]))
        return self.connections[-1]

    def lose(self, error: AmqError) -> None:
        self.is_lost = True
        for each in self.connections:
            each.lost(each, error)
        self.lost(self, error)


class World:
    """A gateway's links to stores, whose masters are `masters`."""

    def __init__(self) -> None:
        self.masters: dict[str, Master] = {}
        self.hanging: dict[str, threading.Event] = {}  # stores that do not answer before this is set
        self.made: list[SomeLink] = []
        self.tried: list[str] = []
        self.refuse: Callable[[str], Awaitable[object]] | None = None
        self.links = StoreLinks(SystemThreads(), self._make, self._connect, str, self._find)

    def _make(self) -> Link:
        self.made.append(SomeLink())
        return cast(Link, self.made[-1])

    async def _connect(self, link: Link, address: str) -> None:
        self.tried.append(address)
        if self.refuse is not None:
            await self.refuse(address)
        cast(SomeLink, link).address = address

    def _find(self, store: str) -> Master | None:
        if store in self.hanging:
            self.hanging[store].wait(DEADLINE_S)
        return self.masters.get(store)

    def guest(self, store: str) -> Guest:
        guest = Guest()
        self.links.open(store, cast(Any, guest), NOBODY, "1-1.", "stomp")
        return guest


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "LOOK_S", 0.01)
    monkeypatch.setattr(lookout, "WANTED_LOOK_S", 0.01)


@asynccontextmanager
async def linked_world() -> AsyncIterator[World]:
    world = World()
    try:
        yield world
    finally:
        world.links.close()
        for event in world.hanging.values():
            event.set()


async def until(wanted: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not wanted():
            await asyncio.sleep(0.002)


async def test_clients_of_a_store_wait_for_its_master_and_share_a_link() -> None:
    async with linked_world() as world:
        first, second = world.guest("s1"), world.guest("s1")
        await until(lambda: world.links.waiting == ["s1"])
        world.masters["s1"] = ONE
        await until(lambda: world.links.linked == ["s1"])
        assert [link.address for link in world.made] == [ONE.address]
        assert (first.why, second.why) == ("", "")
        assert len(world.made[0].connections) == 2


async def test_a_store_that_hangs_keeps_nobody_from_another_one() -> None:
    async with linked_world() as world:
        world.masters = {"s1": ONE, "s2": TWO}
        world.hanging["s1"] = threading.Event()
        world.guest("s1")
        world.guest("s2")
        await until(lambda: world.links.linked == ["s2"])
        assert world.links.waiting == ["s1"]
        world.hanging["s1"].set()
        await until(lambda: world.links.linked == ["s1", "s2"])


async def test_clients_hear_that_no_master_has_come_and_the_next_one_waits_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "PATIENCE_S", 0.05)
    async with linked_world() as world:
        guest = world.guest("s1")
        await until(lambda: guest.why == HomeUnavailableError.code)
        assert world.links.waiting == []
        monkeypatch.setattr(links, "PATIENCE_S", DEADLINE_S)
        world.guest("s1")
        world.masters["s1"] = ONE
        await until(lambda: world.links.linked == ["s1"])


async def test_a_master_that_refuses_or_hangs_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "CONNECT_S", 0.02)
    async with linked_world() as world:

        async def refuse(_: str) -> None:
            if len(world.tried) == 1:
                raise StoreError("this one speaks another version")
            if len(world.tried) == 2:
                raise ConnectionRefusedError
            if len(world.tried) == 3:
                await asyncio.Event().wait()  # for ever

        world.refuse = refuse
        world.masters["s1"] = ONE
        guest = world.guest("s1")
        await until(lambda: world.links.linked == ["s1"])
        assert world.tried == [ONE.address] * 4
        assert guest.why == ""


async def test_a_link_is_lost_when_its_store_has_another_master_and_the_next_client_reaches_that() -> None:
    async with linked_world() as world:
        world.masters["s1"] = ONE
        guest = world.guest("s1")
        await until(lambda: world.links.linked == ["s1"])
        world.masters["s1"] = TWO
        await until(lambda: guest.why == HomeUnavailableError.code)
        world.guest("s1")
        await until(lambda: world.links.linked == ["s1"])
        assert [link.address for link in world.made] == [ONE.address, TWO.address]


async def test_a_client_may_begin_another_link_while_the_lost_one_is_still_ending() -> None:
    async with linked_world() as world:
        world.masters["s1"] = ONE
        guest = world.guest("s1")
        guest.then = lambda: world.guest("s1")
        await until(lambda: world.links.linked == ["s1"])
        del world.masters["s1"]
        world.made[0].lose(StoreError("the master has gone"))
        assert (world.links.linked, world.links.waiting) == ([], ["s1"])
        world.masters["s1"] = TWO
        await until(lambda: world.links.linked == ["s1"])
        assert [link.is_lost for link in world.made] == [True, False]


async def test_a_gateway_that_ends_lets_nobody_wait_for_a_master() -> None:
    async with linked_world() as world:
        world.masters["s1"] = ONE
        served, waiting = world.guest("s1"), world.guest("s2")
        await until(lambda: world.links.linked == ["s1"])
        world.links.give_up()
        assert (served.why, waiting.why) == ("", HomeUnavailableError.code)
        with pytest.raises(HomeUnavailableError):
            world.guest("s2")


async def test_all_links_end_with_the_gateway() -> None:
    async with linked_world() as world:
        world.masters["s1"] = ONE
        guests = [world.guest("s1"), world.guest("s2")]
        await until(lambda: world.links.linked == ["s1"])
        world.links.close()
        assert [guest.why for guest in guests] == [HomeUnavailableError.code] * 2
        with pytest.raises(HomeUnavailableError):
            world.guest("s1")


async def test_where_masters_are_is_known_as_soon_as_a_store_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LOCATE_S", 0.05)
    async with linked_world() as world:
        world.masters["s1"] = Master("a", "tcp://a:1", ("auto://a:2", "auto://b:2"))
        world.hanging["s3"] = threading.Event()
        found = await world.links.locate(["s1", "s2", "s3"])
        assert found == {"s1": ("auto://a:2", "auto://b:2"), "s2": (), "s3": ()}, "a store that hangs delays, no more"
        assert world.made == []


def test_other_addresses_of_a_master_break_no_link() -> None:
    assert Master("a", "tcp://a:1", ("auto://a:2",)) == ONE


async def test_a_master_that_refuses_is_known_until_it_takes_the_link() -> None:
    async with linked_world() as world:

        async def refuse(address: str) -> None:
            raise LinkError(f"{address} has another secret", code="LINK_REFUSED")

        world.masters["s1"] = Master("a", "tcp://a:1")
        world.refuse = refuse
        world.guest("s1")
        await until(lambda: world.links.refused == ["s1"])
        world.refuse = None
        await until(lambda: world.links.linked == ["s1"])
        assert world.links.refused == []


async def test_a_refusal_is_forgotten_with_its_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one may have been corrected, and may not answer yet."""
    monkeypatch.setattr(links, "PATIENCE_S", 1000.0)
    monkeypatch.setattr(links, "CONNECT_S", 1000.0)
    async with linked_world() as world:

        async def refuse(address: str) -> None:
            if address == "tcp://b:1":
                await asyncio.Event().wait()
            raise LinkError(f"{address} has another secret", code="LINK_REFUSED")

        world.masters["s1"] = Master("a", "tcp://a:1")
        world.refuse = refuse
        world.guest("s1")
        await until(lambda: world.links.refused == ["s1"])
        world.masters["s1"] = Master("b", "tcp://b:1")
        await until(lambda: world.links.refused == [])
