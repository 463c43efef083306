"""Guests: strangers that say nothing, drip, or do not read cost the console a place for a while, nobody an answer."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from amq.console import guests
from amq.console.app import Guarded
from amq.console.guests import GUESTS_MAX, HEAD_BYTES_MAX, PER_ADDRESS_MAX, GuestConnection, Guests, server_of
from tests.certificates import Authority
from tests.patience import DEADLINE_S

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
Talk = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def here(request: Request) -> Response:
    await request.body()
    return Response(b"here")


async def large(request: Request) -> Response:
    return Response(bytes(int(request.query_params["mebibytes"]) << 20))


def served(test: Callable[[Callable[[], Awaitable[Talk]], Guests], Awaitable[None]], **tls: str) -> None:
    """`test(connect, guests)` beside a server of `app`."""

    async def main() -> None:
        app = Guarded(routes=[Route("/", here, methods=["GET", "POST"]), Route("/large", large)])
        server = server_of(app, "127.0.0.1", 0, **tls)
        running = asyncio.ensure_future(server._serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        held: list[asyncio.StreamWriter] = []

        async def connect() -> Talk:
            talk = await asyncio.open_connection("127.0.0.1", port)
            held.append(talk[1])
            return talk

        try:
            async with asyncio.timeout(DEADLINE_S):
                await test(connect, server.config.http_protocol_class.guests)  # type: ignore[attr-defined]
        finally:
            for writer in held:
                writer.transport.abort()
            server.should_exit = True
            await running

    asyncio.run(main())


async def answer(talk: Talk, request: bytes = GET) -> bytes:
    reader, writer = talk
    writer.write(request)
    return (await reader.readuntil(b"\r\n\r\n")) + await reader.readexactly(4)


async def ended(reader: asyncio.StreamReader) -> None:
    """Until the console has closed the connection."""
    with suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass


def test_silent_connections_keep_nobody_out() -> None:
    async def test(connect: Callable[[], Awaitable[Talk]], inside: Guests) -> None:
        friend = await connect()
        assert b"200 OK" in await answer(friend)
        for _ in range(PER_ADDRESS_MAX + 50):
            await connect()
        assert b"200 OK" in await answer(await connect())
        assert len(inside) <= PER_ADDRESS_MAX

    served(test)


@pytest.mark.parametrize("begin", [b"", b"G", GET[:-2]], ids=["nothing", "a byte", "most of a head"])
def test_who_sends_no_whole_head_is_cut(monkeypatch: pytest.MonkeyPatch, begin: bytes) -> None:
    monkeypatch.setattr(guests, "HEAD_S", 0.2)

    async def test(connect: Callable[[], Awaitable[Talk]], inside: Guests) -> None:
        reader, writer = await connect()
        writer.write(begin)
        await ended(reader)
        assert len(inside) == 0

    served(test)


def test_a_head_that_drips_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "HEAD_S", 0.2)
    dripped = 0

    async def test(connect: Callable[[], Awaitable[Talk]], _: Guests) -> None:
        reader, writer = await connect()

        async def drip() -> None:
            nonlocal dripped
            writer.write(GET[:-2])
            while dripped < HEAD_BYTES_MAX:
                writer.write(b"x")
                dripped += 1
                await asyncio.sleep(0.01)

        dripping = asyncio.ensure_future(drip())
        await ended(reader)
        dripping.cancel()

    served(test)
    assert dripped < HEAD_BYTES_MAX


def test_a_body_that_drips_is_cut_and_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guests, "BODY_S", 0.2)

    async def test(connect: Callable[[], Awaitable[Talk]], inside: Guests) -> None:
        reader, writer = await connect()
        writer.write(POST + b"x")

        async def drip() -> None:
            while True:
                writer.write(b"x")
                await asyncio.sleep(0.01)

        dripping = asyncio.ensure_future(drip())
        await ended(reader)
        dripping.cancel()
        assert len(inside) == 0

    served(test)
    assert not [line for line in caplog.records if line.levelname == "ERROR"]


def test_slow_bodies_hold_up_nobody_else() -> None:
    """Each is a request that has begun; others are answered meanwhile, and those that go on in the end, too."""

    async def test(connect: Callable[[], Awaitable[Talk]], _: Guests) -> None:
        slow = [await connect() for _ in range(PER_ADDRESS_MAX - 1)]
        for _, writer in slow:
            writer.write(POST)
        other = await connect()
        for left in range(5, 0, -1):
            for _, writer in slow:
                writer.write(b"x" * 10)
            assert (await answer(other)).endswith(b"here"), left
        reader, writer = slow[-1]
        writer.write(bytes(1_000_000 - 50))
        assert b"200" in await reader.readuntil(b"\r\n\r\n")

    served(test)


@pytest.mark.parametrize("mebibytes", [4, 64], ids=["the kernel takes nearly all of it", "far more than it takes"])
def test_an_answer_that_is_not_read_is_cut(monkeypatch: pytest.MonkeyPatch, mebibytes: int) -> None:
    monkeypatch.setattr(guests, "WRITE_S", 0.2)
    monkeypatch.setattr(guests, "IDLE_S", 1)

    async def test(connect: Callable[[], Awaitable[Talk]], inside: Guests) -> None:
        reader, writer = await connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /large?mebibytes=%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % mebibytes)
        while not inside:
            await asyncio.sleep(0.01)
        while inside:
            await asyncio.sleep(0.01)
        del reader

    served(test)


def test_one_connection_serves_many_requests_and_waits_between_them() -> None:
    async def test(connect: Callable[[], Awaitable[Talk]], inside: Guests) -> None:
        talk = await connect()
        for _ in range(3):
            assert b"200 OK" in await answer(talk)
            (guest,) = inside
            assert guest._timer is None, "between requests the limit is IDLE_S"
        posted = POST.replace(b"1000000", b"3") + b"abc"
        assert (await answer(talk, posted + GET)).endswith(b"here")
        assert (await answer(talk, b"")).endswith(b"here")

    served(test)


def test_a_handshake_that_never_ends_is_cut(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(guests, "HANDSHAKE_S", 0.2)
    pair = Authority(tmp_path).pair("server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=context)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        async with asyncio.timeout(DEADLINE_S):
            await ended(reader)
        writer.close()
        server.close()

    with asyncio.Runner(loop_factory=guests._Loop) as runner:
        runner.run(main())


class Sitting(GuestConnection):
    """A guest without a socket."""

    def __init__(self, waits: bool = True) -> None:
        self.waits = waits
        self.ended = False
        self.inside: Guests | None = None
        self._address = ""

    @property
    def is_waiting(self) -> bool:
        return self.waits

    def end(self) -> None:
        self.ended = True
        assert self.inside is not None
        self.inside.leave(self, self._address)

    def come(self, inside: Guests, address: str) -> bool:
        self.inside, self._address = inside, address
        return inside.enter(self, address)


def test_limits_for_each_address_and_for_all() -> None:
    inside = Guests(["10.9.0.0/16"])
    first = [Sitting() for _ in range(PER_ADDRESS_MAX)]
    assert all(each.come(inside, "10.0.0.1") for each in first)
    busy = Sitting(waits=False)
    assert busy.come(inside, "10.0.0.1")
    assert [each.ended for each in first[:2]] == [True, False], "the oldest of its address gives way"
    behind_proxy = [Sitting() for _ in range(PER_ADDRESS_MAX + 10)]
    assert all(each.come(inside, "10.9.0.7") for each in behind_proxy)
    assert not any(each.ended for each in behind_proxy)
    others = [Sitting(waits=False) for _ in range(GUESTS_MAX)]
    came = [each.come(inside, f"10.1.{n // 200}.{n % 200}") for n, each in enumerate(others)]
    assert len(inside) == GUESTS_MAX
    assert not busy.ended
    assert all(each.ended for each in (*first, *behind_proxy)), "those that wait give way to all others"
    assert came.count(False) == 1, "and those that are answered do not"


def test_addresses_that_come_and_go_leave_nothing() -> None:
    inside = Guests()
    for number in range(10_000):
        guest = Sitting()
        assert guest.come(inside, f"10.0.{number // 250}.{number % 250}")
        guest.end()
    assert not inside._of
    assert not inside
