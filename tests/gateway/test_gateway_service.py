"""A gateway in this process: its ports, logins and files, the addresses that clients hear, and its end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from amq.cluster.directory import Cluster, ClusterNode, node_document
from amq.config.schema import BrokerConfig
from amq.core.message import Message
from amq.gateway import hub, lookout
from amq.gateway.homes import INDEX_BITS
from amq.gateway.process import Gateway
from amq.node.catalogue import PROTOCOLS
from amq.node.service import PLAIN, Source
from amq.protocols.openwire.codec import OpenWireCodec
from amq.protocols.stomp.frame import Frame
from amq.security.users_edit import add_user
from amq.transports import places
from tests.patience import DEADLINE_S
from tests.service_world import Client, until

OTHER = "stomp://127.0.0.1:4711"


class World:
    """A gateway of node `a` at a port of its own, in a cluster of two stores that nobody serves."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self.cluster = Cluster.create(str(folder / "c"), {"s1": "", "s2": ""})
        self.users = folder / "users"
        add_user(str(self.users), "alice", "first")
        self.clients: list[Client] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.config = BrokerConfig(
            name="a",
            store=self.cluster.directory,
            transports=("stomp://127.0.0.1:0",),
            users_file=str(self.users),
            anonymous="no",
            **{"failed_logins_per_minute": 0} | options,
        )
        self.gateway = Gateway(self.config, Source(lambda: self.config), PLAIN, self.cluster, [[self.listener]])

    async def is_let_in(self, passcode: str) -> bool:
        return (await self.answer(passcode)).command == "CONNECTED"

    async def answer(self, passcode: str) -> Frame:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        login = ("login", "alice"), ("passcode", passcode), ("amq-brokers-receipt", "group")
        await client.send("CONNECT", ("accept-version", "1.2"), ("host", "/"), *login)
        return await client.receive()

    async def log_in(self) -> Client:
        assert await self.is_let_in("first")
        return self.clients[-1]


@asynccontextmanager
async def serving(folder: Path, options: dict[str, Any]) -> AsyncIterator[World]:
    world = World(folder, options)
    await world.gateway.start()
    try:
        yield world
    finally:
        if not world.gateway.is_stopping:
            await world.gateway.stop()
        world.listener.close()
        for client in world.clients:
            await client.close()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "LOOK_S", 0.02)


@pytest.fixture
def play(tmp_path: Path) -> Play:
    def run(story: Callable[[World], Coroutine[Any, Any, None]], **options: Any) -> None:
        async def whole() -> None:
            async with serving(tmp_path, options) as world:
                await story(world)

        asyncio.run(asyncio.wait_for(whole(), DEADLINE_S))

    return run


Play = Callable[..., None]


def test_it_knows_the_users_of_the_file_as_it_is_now(play: Play) -> None:
    async def story(world: World) -> None:
        assert await world.is_let_in("first")
        assert not await world.is_let_in("second")
        add_user(str(world.users), "alice", "second", replace=True)
        world.gateway.read_files_again()
        while not await world.is_let_in("second"):
            await asyncio.sleep(0.01)

    play(story)


def test_failed_logins_are_limited_at_a_gateway(play: Play) -> None:
    async def story(world: World) -> None:
        for _ in range(2):
            assert not await world.is_let_in("wrong")
        assert not await world.is_let_in("first"), "its address has to wait"

    play(story, failed_logins_per_minute=2)


def test_a_user_has_no_more_connections_at_a_gateway_than_it_may(play: Play) -> None:
    async def story(world: World) -> None:
        client = await world.log_in()
        refused = await world.answer("first")
        assert refused.command == "ERROR"
        assert "maxConnectionsPerUser" in refused.headers["message"]
        for each in (client, world.clients[-1]):
            await each.close()
        await until(lambda: not world.gateway.hub.connections)
        assert await world.is_let_in("first")

    play(story, max_connections_per_user=1)


def test_strangers_take_no_place_of_a_gateway_for_long(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest gives way to who comes next. Clients keep their places."""
    monkeypatch.setattr(places, "GIVES_WAY_S", 0.0)

    async def story(world: World) -> None:
        client = await world.log_in()
        strangers = [await asyncio.open_connection("127.0.0.1", world.port) for _ in range(5)]
        world.clients += [Client(*each) for each in strangers]
        for reader, _ in strangers[:3]:
            assert await reader.read() == b""
        await world.log_in()
        assert await strangers[3][0].read() == b""
        await client.send("BEGIN", ("transaction", "t"), ("receipt", "still here"))
        assert (await client.receive()).headers["receipt-id"] == "still here"

    play(story, max_connections=3)


def test_clients_hear_where_other_nodes_are_and_of_no_others_at_the_end(play: Play) -> None:
    async def story(world: World) -> None:
        client = await world.log_in()
        seat = world.cluster.join("b", 1.0, "there", 1)
        try:
            seat.write(node_document(ClusterNode("b", True, addresses=(OTHER,))))
            own = f"stomp://127.0.0.1:{world.port}"
            assert (await client.receive()).headers["brokers"] == f"{own},{OTHER}"
            await world.gateway.stop()
            assert (await client.receive()).headers["brokers"] == OTHER
            with pytest.raises(EOFError):
                await client.receive()
        finally:
            seat.close()

    play(story)


def test_a_client_that_comes_from_another_gateway_gets_messages_by_new_ids(play: Play) -> None:
    """Its library takes a message that comes a second time by the same id for a duplicate."""

    async def story(world: World) -> None:
        (openwire,) = [each for each in PROTOCOLS if each.name == "openwire"]
        codec = openwire.make(world.gateway.hub._surroundings(), "1-1.")
        assert isinstance(codec, OpenWireCodec)
        codec._ids.known_to = codec._identity.newest_seq  # as where `failover_reconnect` is set
        assert codec._ids.may_know(Message("queue://q", b"", seq=(1 << 63) << INDEX_BITS))

    play(story)


def test_a_client_that_waits_for_a_master_is_closed_when_the_gateway_stops(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the gateway waits for no answer that cannot come."""
    monkeypatch.setattr(hub, "ANSWERS_S", 1e9)

    async def story(world: World) -> None:
        client = await world.log_in()
        await client.send("SEND", ("destination", "/queue/q"), ("receipt", "r"), body=b"")
        await until(lambda: bool(world.gateway.ways.links.waiting))
        await world.gateway.stop()
        error = await client.receive()
        assert (error.command, error.headers["code"]) == ("ERROR", "STORE_LOST")
        with pytest.raises(EOFError):  # so the client tries elsewhere
            await client.receive()

    play(story)
