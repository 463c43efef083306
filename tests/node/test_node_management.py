"""The management socket of a process with several stores: which of them a request is about."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from amq.core.errors import CommandError
from amq.management.client import ManagementClient
from amq.management.openapi import STORES
from amq.management.resources import DESCRIPTION, status_of
from amq.management.routes import ROUTES
from amq.store.name import real_name
from tests.node.test_node import nodes
from tests.patience import DEADLINE_S

SOCKET = "node.sock"


async def ask(folder: Path, method: str, path: str, store: str = "") -> dict[str, Any]:
    def through() -> dict[str, Any]:
        with ManagementClient(str(folder / SOCKET), store=store) as client:
            return client.ask(method, path)

    return await asyncio.wait_for(asyncio.to_thread(through), DEADLINE_S)


async def test_every_path_is_about_the_store_that_it_names(tmp_path: Path) -> None:
    async with nodes(tmp_path, management_socket=str(tmp_path / SOCKET)) as world:
        await (await world.connect("one")).store(b"of one", name="/queue/a")
        rows = (await ask(tmp_path, "GET", "/stores"))["items"]
        assert [(row["name"], row["role"], row["healthy"], row["reason"]) for row in rows] == [
            ("one", "master", True, ""),
            ("two", "master", True, ""),
        ]
        assert [row["store"] for row in rows] == [real_name(str(tmp_path / name)) for name in ("one", "two")]
        for name, queues in ("one", ["a"]), ("two", []):
            below = f"/stores/{quote(name)}"
            assert (await ask(tmp_path, "GET", f"{below}/broker"))["store"] == str(tmp_path / name)
            assert [row["name"] for row in (await ask(tmp_path, "GET", f"{below}/queues"))["items"]] == queues
        assert await ask(tmp_path, "POST", "/stores/one/queues/a/purge") == {"count": 1}


async def test_paths_without_a_store_are_refused_and_name_the_stores(tmp_path: Path) -> None:
    async with nodes(tmp_path, management_socket=str(tmp_path / SOCKET)):
        for route in ROUTES:
            if route.path in (STORES, DESCRIPTION):
                assert await ask(tmp_path, route.method, route.path)
                continue
            with pytest.raises(CommandError, match="/stores/NAME, NAME being one of one, two") as caught:
                await ask(tmp_path, route.method, route.path.format(name="x", id="x", client="x"))
            assert (caught.value.code, status_of(caught.value)) == ("STORE_AMBIGUOUS", HTTPStatus.CONFLICT)
        for path in ("/stores/three/queues", "/stores//queues", "/stores/%00/broker"):
            with pytest.raises(CommandError, match="it has one, two") as caught:
                await ask(tmp_path, "GET", path)
            assert (caught.value.code, status_of(caught.value)) == ("STORE_UNKNOWN", HTTPStatus.NOT_FOUND)
        for path in ("/stores/one", "/stores/one/", "/stores/one/stores/two/queues"):
            with pytest.raises(CommandError, match=f"there is no /api/v1{path}"):
                await ask(tmp_path, "GET", path)


async def test_a_client_that_knows_its_store_finds_it(tmp_path: Path) -> None:
    """So the commands and the console need no name: they know the store, and its master says where its socket is."""
    async with nodes(tmp_path, management_socket=str(tmp_path / SOCKET)) as world:
        await (await world.connect("two")).store(b"of two", name="/queue/b")
        (tmp_path / "link").symlink_to(tmp_path / "two")
        for store in (tmp_path / "two", tmp_path / "link"):
            found = await ask(tmp_path, "GET", "/queues", real_name(str(store)))
            assert [row["name"] for row in found["items"]] == ["b"]
        with pytest.raises(CommandError, match="is not about the store /elsewhere"):
            await ask(tmp_path, "GET", "/queues", "/elsewhere")


async def test_a_store_that_stops_ends_no_request_about_another_one(tmp_path: Path) -> None:
    async with nodes(tmp_path, management_socket=str(tmp_path / SOCKET)) as world:
        with ManagementClient(str(tmp_path / SOCKET)) as one, ManagementClient(str(tmp_path / SOCKET)) as two:
            await asyncio.to_thread(one.get, "/stores/one/broker")
            await asyncio.to_thread(two.get, "/stores/two/broker")
            await asyncio.wait_for(world.node.members["two"].stop(), DEADLINE_S)
            assert await asyncio.to_thread(two._http.sock.recv, 1) == b""
            assert (await asyncio.to_thread(one.get, "/stores/one/broker"))["role"] == "master"
            rows = (await asyncio.to_thread(one.get, "/stores"))["items"]
            assert [(row["role"], row["healthy"]) for row in rows] == [("master", True), ("stopped", False)]


async def test_the_only_store_needs_no_name(tmp_path: Path) -> None:
    async with nodes(tmp_path, "one", management_socket=str(tmp_path / SOCKET)):
        assert [row["name"] for row in (await ask(tmp_path, "GET", "/stores"))["items"]] == ["one"]
        for path in ("/queues", "/stores/one/queues"):
            assert (await ask(tmp_path, "GET", path))["items"] == []
