"""Stream: what is written leaves at once, in order, and nothing is lost where the socket does not take it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from amq.transports.socket import Stream, stream_over

Test = Callable[[Stream, socket.socket, asyncio.Future[Exception | None]], Awaitable[None]]


class Server(asyncio.Protocol):
    """Our end of a connection; `lost` = what ended it."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.stream = stream_over(transport, 1 << 20)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self.stream.lost()
        self.lost.set_result(exc)


@pytest.fixture(params=["uvloop", "asyncio"])
def with_stream(request: pytest.FixtureRequest) -> Callable[[Test], None]:
    """Runs a test with a stream and the client's socket."""

    async def main(test: Test) -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        with theirs:
            transport, server = await asyncio.get_running_loop().connect_accepted_socket(Server, ours)
            await test(server.stream, theirs, server.lost)
            transport.abort()
            await server.lost

    def run(test: Test) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main(test))

    return run


def test_the_client_has_it_before_the_round_ends(with_stream: Callable[[Test], None]) -> None:
    async def test(stream: Stream, client: socket.socket, lost: asyncio.Future[Exception | None]) -> None:
        stream.write_now(b"receipt")
        assert client.recv(100) == b"receipt"
        assert not lost.done()

    with_stream(test)


def test_all_comes_in_order_whatever_the_socket_takes(with_stream: Callable[[Test], None]) -> None:
    async def test(stream: Stream, client: socket.socket, lost: asyncio.Future[Exception | None]) -> None:
        pieces = [bytes([number]) * (100_000 + number) for number in range(20)]
        for piece in pieces:
            stream.write_now(piece)
        read = b""
        while len(read) < sum(map(len, pieces)):
            read += await asyncio.get_running_loop().sock_recv(client, 1 << 16)
            assert not lost.done()
        assert read == b"".join(pieces)
        stream.write_now(b"on")
        assert client.recv(100) == b"on"

    with_stream(test)


def test_a_broken_connection_ends_as_its_transport_ends_it(with_stream: Callable[[Test], None]) -> None:
    async def test(stream: Stream, client: socket.socket, lost: asyncio.Future[Exception | None]) -> None:
        client.close()
        stream.write_now(b"to nobody")
        await lost

    with_stream(test)
