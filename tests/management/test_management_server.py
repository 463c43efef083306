"""The management socket: who may connect, and that no client can hurt the broker, whatever it sends."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import stat
from pathlib import Path

import pytest

from amq.core.errors import AmqError, ConfigError
from amq.management import server as management_server
from amq.management.client import ManagementClient
from amq.management.server import BODY_BYTES_MAX, CONNECTIONS_MAX, ManagementServer
from tests.management.managed import Managed, managed
from tests.patience import DEADLINE_S


async def exchange(made: Managed, data: bytes, ends: bool = True) -> bytes:
    """All that the broker answers to these bytes until it closes, or until we do."""
    reader, writer = await asyncio.open_unix_connection(made.socket)
    try:
        writer.write(data)
        if ends:
            writer.write_eof()
        return await asyncio.wait_for(reader.read(-1), DEADLINE_S)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_the_socket_is_ours_alone(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        assert stat.S_IMODE(os.stat(made.socket).st_mode) == 0o600
        found = await made.through("GET", "/broker")
        assert (found["name"], found["role"]) == ("a", "master")
        await made.stop()
        assert not os.path.exists(made.socket)
        with pytest.raises(AmqError) as caught:
            await made.through("GET", "/broker")
        assert caught.value.code == "TRANSPORT_UNAVAILABLE"
        await made.start()


async def test_a_path_that_is_taken(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        second = ManagementServer(made.socket, made.resources, made.own._slices)  # type: ignore[union-attr]
        with pytest.raises(ConfigError, match="another process serves there"):
            await second.start()
        file = tmp_path / "file"
        file.write_text("kept")
        with pytest.raises(ConfigError, match="not a socket"):
            await ManagementServer(str(file), made.resources, second.slices).start()
        assert file.read_text() == "kept"
        left = tmp_path / "left.sock"  # of a broker that was killed
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(left))
        third = ManagementServer(str(left), made.resources, second.slices)
        await third.start()
        await third.close()
        with pytest.raises(ConfigError, match="107 bytes"):
            await ManagementServer(str(tmp_path / ("x" * 120)), made.resources, second.slices).start()


async def test_errors_are_problem_details(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        found = await exchange(made, b"GET /api/v1/queues/none HTTP/1.1\r\nhost: x\r\n\r\n")
        head, _, body = found.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 404")
        assert b"application/problem+json" in head
        assert json.loads(body)["code"] == "NOT_FOUND"
        for target, status in (
            (b"GET /api/v1/broker", 200),
            (b"HEAD /api/v1/broker", 200),
            (b"PUT /api/v1/queues", 405),
            (b"GET /api/v1/queues?limit=1000", 400),
            (b"GET /", 404),
            (b"GET /api/v1/queues/%00", 404),
            (b"GET /api/v1/queues?" + b"a=1&" * 30, 400),
        ):
            found = await exchange(made, target + b" HTTP/1.1\r\nhost: x\r\n\r\n")
            assert found.startswith(b"HTTP/1.1 %d" % status), (target, found)


async def test_requests_are_bounded(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        head = b"POST /api/v1/queues/q/purge HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1)
        assert (await exchange(made, head + b" " * (BODY_BYTES_MAX + 1))).startswith(b"HTTP/1.1 413")
        assert (await exchange(made, b"GET / HTTP/1.1\r\nx: " + b"y" * 20_000)).startswith(b"HTTP/1.1 431")
        body = b"[" * 100_000
        head = b"POST /api/v1/queues/q/purge HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        assert (await exchange(made, head + body)).startswith(b"HTTP/1.1 400")
        some = [await asyncio.open_unix_connection(made.socket) for _ in range(CONNECTIONS_MAX)]
        reader, writer = await asyncio.open_unix_connection(made.socket)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), DEADLINE_S)
        for _, each in [*some, (reader, writer)]:
            each.close()


async def test_whatever_bytes_come_the_broker_goes_on(tmp_path: Path) -> None:
    chance = random.Random(25)
    good = b"GET /api/v1/queues?sort=name HTTP/1.1\r\nhost: x\r\namq-user: u\r\n\r\n"
    pieces = [
        good,
        b"\r\n",
        b"POST ",
        b"HTTP/1.1",
        b"\0",
        b"content-length: 5\r\n",
        b"transfer-encoding: chunked\r\n",
        b"ffffffffffffffff\r\n",
        b"/api/v1/queues/",
        b"%ff%fe%2f",
        b"{}",
        b"\xff" * 40,
    ]

    def garbage() -> bytes:
        if chance.random() < 0.3:
            return chance.randbytes(chance.randrange(300))
        if chance.random() < 0.5:
            changed = bytearray(good)
            for _ in range(chance.randrange(1, 6)):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            return bytes(changed)
        return b"".join(chance.choices(pieces, k=chance.randrange(1, 12)))

    async with managed(tmp_path) as made:
        await made.fill("q", 1)
        for _ in range(300):
            data = garbage()
            found = await exchange(made, data)
            assert not found or found.startswith(b"HTTP/1.1 "), (data, found)
            assert b"HTTP/1.1 500" not in found, (data, found)
        assert (await made.through("GET", "/queues"))["total"] == 1
        while made.own._server.connections:  # type: ignore[union-attr]
            await asyncio.sleep(0.001)


async def test_a_client_that_does_not_read_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(management_server, "WRITE_S", 0.05)
    async with managed(tmp_path) as made:
        for number in range(300):
            made.broker.state.queue(f"queue://{'long' * 200}.{number}").stays = True
        request = b"GET /api/v1/queues HTTP/1.1\r\nhost: x\r\n\r\n"
        with socket.socket(socket.AF_UNIX) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            await asyncio.get_running_loop().sock_connect(slow, made.socket)
            await asyncio.get_running_loop().sock_sendall(slow, request * 50)
            while not made.own._server.connections:  # type: ignore[union-attr]
                await asyncio.sleep(0.001)
            while made.own._server.connections:  # type: ignore[union-attr]
                await asyncio.sleep(0.001)


async def test_clients_go_when_the_role_changes(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        with ManagementClient(made.socket) as client:
            assert (await asyncio.to_thread(client.get, "/broker"))["role"] == "master"
            made.own._server.forget()  # type: ignore[union-attr]
            while made.own._server.connections:  # type: ignore[union-attr]
                await asyncio.sleep(0.001)


async def test_all_rows_come_page_by_page(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        for number in range(1200):
            made.broker.state.queue(f"queue://q.{number}").stays = True

        def ask() -> list[str]:
            with ManagementClient(made.socket) as client:
                return [row["name"] for row in client.all("/queues", name="q.*", sort="-name")]

        assert await asyncio.to_thread(ask) == sorted((f"q.{number}" for number in range(1200)), reverse=True)
