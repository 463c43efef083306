"""A client id that a JMS program has given belongs to one connection of the whole cluster; its login waits for that."""

from __future__ import annotations

import asyncio
import socket
from itertools import count
from pathlib import Path

import pytest

from amq.core.destination import TOPIC_SCHEME
from amq.core.errors import AmqError
from amq.gateway import lookout
from amq.protocols.openwire import table
from amq.protocols.openwire.table import structure
from amq_migrate.openwire.peer import OtherBroker
from tests.gateway.test_gateway_stores import World, run
from tests.openwire_client import new_peer, peer_as
from tests.patience import DEADLINE_S
from tests.service_world import until


def id_in(world: World, store: str) -> str:
    """A client id that this store watches over."""
    home_of = world.gateway.ways.placement.home_of
    return next(name for n in count() if home_of(TOPIC_SCHEME + (name := f"client-{n}")) == store)


def at(listener: socket.socket) -> str:
    return f"tcp://127.0.0.1:{listener.getsockname()[1]}"


async def enter(listener: socket.socket, client_id: str) -> OtherBroker:
    return await asyncio.to_thread(peer_as, at(listener), client_id)


async def login_without_a_master(world: World) -> tuple[str, asyncio.Future[OtherBroker]]:
    """A client id, and the login with it, which waits for the store that watches over it."""
    client_id = id_in(world, "s1")
    await world.members.pop("s1").stop()
    entering = asyncio.ensure_future(enter(world.listener, client_id))
    await until(lambda: world.gateway.ways.links.held_up == 1)
    return client_id, entering


async def leave(peer: OtherBroker) -> None:
    await asyncio.to_thread(peer.leave)


def test_a_client_id_is_refused_at_the_login_at_each_gateway_until_it_is_free(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        other, listener = world.new_gateway()
        await other.start()
        try:
            for store in ("s1", "s2"):
                client_id = id_in(world, store)
                first = await enter(world.listener, client_id)
                for port in (listener, world.listener):
                    with pytest.raises(AmqError, match=r"in use by another connection, of 127\.0\.0\.1:"):
                        await enter(port, client_id)
                await leave(first)
                await leave(await enter(listener, client_id))
            kept = await enter(listener, client_id)
            await other.stop()
            kept.close()
            await leave(await enter(world.listener, client_id))
        finally:
            listener.close()

    run(tmp_path, story)


def test_a_client_id_is_free_when_its_client_hears_that_it_may_go(tmp_path: Path) -> None:
    """Its next connection may be at another gateway, which hears of it before the end of the old one's socket."""

    async def story(world: World) -> None:
        other, listener = world.new_gateway()
        await other.start()
        try:
            for store in ("s1", "s2"):
                client_id = id_in(world, store)
                first = await enter(world.listener, client_id)
                going = structure(table.REMOVE_INFO, id=first.wire.id)
                first.wire.send(going)  # nobody waits for this answer
                await asyncio.to_thread(first.request, going, DEADLINE_S)
                second = await enter(listener, client_id)
                await leave(first)
                with pytest.raises(AmqError, match="in use"):
                    await enter(world.listener, client_id)
                await leave(second)
        finally:
            await other.stop()
            listener.close()

    run(tmp_path, story)


def test_a_login_waits_for_the_store_that_watches_over_its_client_id(tmp_path: Path) -> None:
    """An id that a library has made belongs to nobody else, and its login waits for nothing."""

    async def story(world: World) -> None:
        client_id, entering = await login_without_a_master(world)
        others = [await asyncio.to_thread(new_peer, at(world.listener)) for _ in range(8)]
        assert not entering.done()
        await world.serve("s1")
        first = await entering
        with pytest.raises(AmqError, match="in use"):
            await enter(world.listener, client_id)
        for each in (first, *others):
            await leave(each)

    run(tmp_path, story)


def test_a_client_that_leaves_while_its_login_waits_leaves_nothing(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        client_id, entering = await login_without_a_master(world)
        for connection in [*world.gateway.hub.connections.values()]:
            connection.abort()
        with pytest.raises(AmqError, match="closed the connection"):
            await entering
        await until(lambda: not world.gateway.hub.connections)
        await world.serve("s1")  # it hears of the client that came and went
        await until(lambda: not world.gateway.ways.links.held_up)
        await leave(await enter(world.listener, client_id))

    run(tmp_path, story)


def test_a_client_id_stays_taken_when_another_store_watches_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "LOOK_S", 0.05)

    async def story(world: World) -> None:
        client_id = id_in(world, "s1")
        first = await enter(world.listener, client_id)
        assert world.gateway.ways.links.linked == ["s1"]
        world.cluster.place(world.cluster.table().placement.placed(client_id, "s2"))
        await until(lambda: "s2" in world.gateway.ways.links.linked)
        with pytest.raises(AmqError, match="in use"):
            await enter(world.listener, client_id)
        await leave(first)
        await leave(await enter(world.listener, client_id))

    run(tmp_path, story)
