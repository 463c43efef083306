"""Probes: what the broker says itself, and that strangers cannot keep a probe out."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from brokers import Brokers

from amq.core.errors import ConfigError
from amq.management import probes
from amq.management.probes import CONNECTIONS_MAX, HEAD_BYTES_MAX, Health, ProbeServer, told
from tests.patience import DEADLINE_S
from tests.ports import free_port

Ask = Callable[..., Awaitable[bytes]]


@pytest.mark.parametrize(
    ("condition", "live", "ready", "master"),
    [
        (Health("starting", "it has just started"), 200, 503, 503),
        (Health("slave", "the journal is not read yet"), 200, 503, 503),
        (Health("slave"), 200, 200, 503),
        (Health("master", "it has just started"), 200, 200, 200),
        (Health("stopped"), 200, 503, 503),
    ],
)
def test_what_the_probes_say(condition: Health, live: int, ready: int, master: int) -> None:
    assert [told(path, condition)[0] for path in ("/livez", "/readyz", "/masterz")] == [live, ready, master]
    assert all(told(path, condition)[1] for path in ("/livez", "/readyz", "/masterz"))
    assert told("/", condition)[0] == 404


def served(test: Callable[[int, ProbeServer], Awaitable[None]]) -> None:
    async def main() -> None:
        server = ProbeServer("127.0.0.1", 0, lambda: Health("master"))
        port = int((await server.start()).rpartition(":")[2])
        try:
            async with asyncio.timeout(DEADLINE_S):
                await test(port, server)
        finally:
            await server.close()

    asyncio.run(main())


async def ask(port: int, request: bytes) -> bytes:
    """All that comes back until the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("request_", "begin", "end"),
    [
        (b"GET /masterz HTTP/1.1\r\nHost: 10.1.2.3:8162\r\n\r\n", b"HTTP/1.1 200", b"\r\n\r\nmaster\n"),
        (b"GET /masterz HTTP/1.0\r\n\r\n", b"HTTP/1.1 200", b"master\n"),
        (b"HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200", b"\r\n\r\n"),
        (b"GET /livez?x=1 HTTP/1.1\r\nHost: x\r\n\r\n" * 50, b"HTTP/1.1 200", b"alive\n"),
        (b"GET /api/v1/queues HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 404", b"/masterz\n"),
        (b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n", b"HTTP/1.1 405", b"GET only\n"),
        (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 400", b"bad request\n"),
        (b"\x16\x03\x01\x00\xff\r\n\r\n", b"HTTP/1.1 400", b"bad request\n"),
        (b"GET /" + b"a" * HEAD_BYTES_MAX, b"HTTP/1.1 431", b"bad request\n"),
    ],
)
def test_one_request_and_the_end(request_: bytes, begin: bytes, end: bytes) -> None:
    async def test(port: int, server: ProbeServer) -> None:
        answer = await ask(port, request_)
        assert answer.startswith(begin)
        assert answer.endswith(end)
        assert answer.count(b"HTTP/1.1") == 1
        while server.connections:
            await asyncio.sleep(0.01)

    served(test)


def test_silent_connections_keep_no_probe_out() -> None:
    async def test(port: int, server: ProbeServer) -> None:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10 * CONNECTIONS_MAX)]
        assert (await ask(port, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(b"alive\n")
        assert len(server.connections) <= CONNECTIONS_MAX
        for _, writer in held:
            writer.close()

    served(test)


def test_a_drip_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "REQUEST_S", 0.2)

    async def test(port: int, server: ProbeServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"G")
                await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 0.02)
        assert not server.connections
        writer.close()

    served(test)


async def test_a_port_that_is_taken_is_an_error_with_its_name() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = ProbeServer("127.0.0.1", taken.getsockname()[1], lambda: Health("slave"))
        with pytest.raises(ConfigError, match="probeListen"):
            await server.start()


def probe(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=DEADLINE_S) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode().strip()


@pytest.mark.deep
def test_a_master_and_a_slave_say_what_they_are(brokers: Brokers) -> None:
    ports = free_port(), free_port()
    brokers.master("a", probeListen=f"127.0.0.1:{ports[0]}")
    slave = brokers.slave("b", probeListen=f"127.0.0.1:{ports[1]}")
    assert [probe(ports[0], path) for path in ("/livez", "/readyz", "/masterz")] == [
        (200, "alive"),
        (200, "master"),
        (200, "master"),
    ]
    slave.wait_ready()
    assert [probe(ports[1], path) for path in ("/livez", "/readyz", "/masterz")] == [
        (200, "alive"),
        (200, "slave"),
        (503, "slave"),
    ]
    taken = brokers.add("c", probeListen=f"127.0.0.1:{ports[0]}").start()
    assert "probeListen" in json.dumps(taken.wait_event("no probes"))
    taken.wait_slave()
    wrong = brokers.add("d", probeListen="8162").start()
    assert wrong.wait_exit() == 3
