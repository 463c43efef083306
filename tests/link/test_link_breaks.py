"""A link that breaks, is silent, never reads, or says garbage: its clients end, and nothing else does."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from amq.core.message import LARGE_BODY_BYTES, Message
from amq.core.proof import NONCE_BYTES
from amq.link import calls, commands
from amq.link import server as server_module
from amq.link import socket as socket_module
from amq.link.calls import OPENING, ClientOpening
from amq.link.channel import WINDOW_BYTES
from amq.link.framing import Kind, LinkFrame, LinkFrames, framed
from amq.link.hello import HELLO_BYTES, LinkHello
from amq.protocols.commands import Commit, Flow, Mode, Scope, Send, Subscribe
from tests.fakes import FakeClock
from tests.large import large_from
from tests.link.linking import SECRET, Linked, serve
from tests.transports.served import CONNECT, Peer, frame

SUBSCRIBE = frame("SUBSCRIBE", {"id": 1, "destination": "/queue/a", "ack": "client-individual", "receipt": "s"})
SEND = frame("SEND", {"destination": "/queue/a", "receipt": "r"}, b"hello")


class Gateway:
    """The gateway's end of a link as bytes, over a socket that is read when a test says so."""

    def __init__(self, served: Linked) -> None:
        self._served = served
        self.hello = LinkHello(False, SECRET, b"g" * NONCE_BYTES)
        self.frames = LinkFrames()
        self.found: list[LinkFrame] = []
        self.socket: socket.socket

    async def connect(self) -> None:
        ours, self.socket = socket.socketpair()
        self.socket.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
        await self._served._loop.connect_accepted_socket(self._served.server.make, ours)

    async def link(self) -> None:
        """Prove the secret."""
        await self.connect()
        self.socket.send(self.hello.begin())
        await self._served.until(lambda: self._greet(), "the hello")
        await self._served.until(lambda: self.read() is not None and bool(self.found), "the welcome")

    def _greet(self) -> bool:
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return False
        answer, rest = self.hello.receive(data)
        if answer:
            self.socket.send(answer)
        self.found += self.frames.receive(rest)
        return self.hello.is_done

    def say(self, kind: int, data: bytes, body: bytes = b"") -> None:
        self.socket.send(framed(kind, data, body))

    def open(self, number: int = 1, owner: str = "77-1.") -> None:
        opening = ClientOpening("alice", (), "", "", False, owner, "stomp", "", ())
        self.say(Kind.OPEN, calls.stated(number, OPENING, opening))

    def read(self) -> bytes:
        """What has come; b"" where the home has closed."""
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return b"nothing yet"
        except ConnectionError:
            return b""
        if self.hello.is_done:
            self.found += self.frames.receive(data)
        return data

    def kinds(self) -> list[int]:
        """Of the frames that have come, beats left out."""
        self.read()
        return [frame.kind for frame in self.found if frame.kind != Kind.BEAT]

    async def is_refused(self) -> None:
        await self._served.until(lambda: not self.read(), "the end of the link")
        assert not self._served.server.strangers
        self.socket.close()


def waiting(served: Linked, name: str) -> int:
    """The messages that wait in that queue."""
    return served.world.broker.state.queues[f"queue://{name}"].waiting


def play(path: Path, test: Callable[[Linked], Awaitable[None]], **config: Any) -> None:
    serve(path, test, **config)


async def consumer(served: Linked) -> Peer:
    peer = await served.connect(CONNECT, SUBSCRIBE)
    await served.until(lambda: [peer.read(), b"RECEIPT" in peer.said][1], "the receipt")
    return peer


def test_clients_of_a_broken_link_learn_so_and_what_they_held_waits_again(tmp_path: Path) -> None:
    async def test(served: Linked) -> None:
        peer = await consumer(served)
        await served.say(peer, SEND)
        await served.until(lambda: [peer.read(), b"hello" in peer.said][1], "the message")
        assert waiting(served, "a") == 0
        (link,) = served.server.links
        link.socket.cut()
        await served.until(lambda: [peer.read(), b"LINK_LOST" in peer.said][1], "the error")
        assert not served.home.connections
        assert waiting(served, "a") == 1
        assert served.link.is_lost

    play(tmp_path, test)


def test_a_link_that_breaks_within_a_large_body_stores_nothing_of_it(tmp_path: Path) -> None:
    async def test(served: Linked) -> None:
        gateway = Gateway(served)
        await gateway.link()
        gateway.open()
        kind, head, body = commands.written(1, Send(Message("queue://a", b"x" * (4 * LARGE_BODY_BYTES))), 1)
        gateway.say(Kind.LARGE, calls.large(1, kind, len(head), len(body)))
        gateway.say(Kind.PART, calls.numbered(1), head)
        gateway.say(Kind.PART, calls.numbered(1), body[:1000])
        await served.rest()
        assert len(served.home.connections) == 1
        gateway.socket.close()
        await served.until(lambda: not served.home.connections, "the end")
        assert not served.world.broker.state.queues.get("queue://a")

    play(tmp_path, test)


def test_garbage_ends_the_link_and_no_other(tmp_path: Path) -> None:
    async def test(served: Linked) -> None:
        peer = await consumer(served)
        for kind, data in (
            (Kind.SEND, calls.numbered(9) + b"of a connection that is not open"),
            (Kind.DELIVER, calls.numbered(1) + b"what only a home says"),
            (Kind.GRANT, calls.of_size(1, 1 << 40)),
            (Kind.OPEN, calls.numbered(5) + b"garbage"),
            (99, calls.numbered(1)),
        ):
            gateway = Gateway(served)
            await gateway.link()
            gateway.open()
            gateway.say(kind, data)
            await gateway.is_refused()
        gateway = Gateway(served)
        await gateway.link()
        gateway.socket.send(b"\xff" * 100)
        await gateway.is_refused()
        await served.until(lambda: len(served.home.connections) == 1, "the end of their clients")
        await served.say(peer, SEND)
        await served.until(lambda: [peer.read(), b"hello" in peer.said][1], "the message")

    play(tmp_path, test)


def test_a_command_that_cannot_be_read_ends_its_connection_and_no_other(tmp_path: Path) -> None:
    async def test(served: Linked) -> None:
        gateway = Gateway(served)
        await gateway.link()
        gateway.open(1)
        gateway.open(2, "77-2.")
        gateway.say(Kind.SEND, calls.numbered(1) + b"no message")
        await served.until(lambda: Kind.CLOSE in gateway.kinds(), "the end of that connection")
        failed, closed = [frame for frame in gateway.found if frame.kind in (Kind.FAIL, Kind.CLOSE)]
        failure = calls.statement(failed, calls.FAILURE)
        assert (failure.error.code, failure.scope) == ("LINK_BROKEN", Scope.CONNECTION)
        assert LinkFrame(Kind.CLOSE, calls.numbered(1)).data == closed.data
        assert len(served.home.connections) == 1
        gateway.socket.close()

    play(tmp_path, test)


def test_strangers_are_few_and_say_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "STRANGERS_MAX", 2)

    async def test(served: Linked) -> None:
        peer = await consumer(served)
        strange = [Gateway(served), Gateway(served)]
        for gateway in strange:
            await gateway.connect()
        third = Gateway(served)
        await third.connect()
        await served.until(lambda: not third.read(), "its refusal")
        third.socket.close()
        assert len(served.server.strangers) == 2
        strange[0].socket.send(b"GET / HTTP/1.1\r\n\r\n")
        await served.until(lambda: not strange[0].read(), "its end")
        strange[0].socket.close()
        said = bytearray(strange[1].hello.begin())
        said[8] += 1
        strange[1].socket.send(said)
        heard = b""

        def hears() -> bool:
            nonlocal heard
            data = strange[1].read()
            heard += data if data != b"nothing yet" else b""
            return not data

        await served.until(hears, "its end")
        assert len(heard) == HELLO_BYTES, "it learns the version"
        strange[1].socket.close()
        assert not served.server.strangers
        wrong = Gateway(served)
        wrong.hello = LinkHello(False, b"another secret, as long", b"g" * NONCE_BYTES)
        await wrong.connect()
        wrong.socket.send(wrong.hello.begin() + b"p" * 32)
        await served.until(lambda: not wrong.read(), "its end")
        wrong.socket.close()
        assert len(served.server.links) == 1
        await served.say(peer, SEND)

    play(tmp_path, test)


def test_a_gateway_that_never_reads_holds_back_its_own_clients(tmp_path: Path) -> None:
    async def test(served: Linked) -> None:
        peer = await consumer(served)
        gateway = Gateway(served)
        await gateway.link()
        gateway.open()
        subscribe = Subscribe("c", "queue://b", Mode(True), Flow(100_000))
        gateway.say(*commands.written(1, subscribe, 0, 1)[:2])
        send = frame("SEND", {"destination": "/queue/b"}, b"x" * 10_000)
        for _ in range(40):
            await served.say(peer, send * 10)
        (client,) = [each for each in served.home.connections.values() if each.owner == "77-1."]
        assert not client.client.is_writable
        assert client._outlet.flight_bytes <= WINDOW_BYTES + (1 << 20)
        assert waiting(served, "b") > 200
        await served.say(peer, SEND)
        await served.until(lambda: [peer.read(), b"hello" in peer.said][1], "the message of the other link")
        gateway.socket.close()
        await served.until(lambda: len(served.home.connections) == 1, "the end")
        assert waiting(served, "b") == 400

    play(tmp_path, test)


def test_an_end_that_hears_nothing_gives_the_link_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends have a clock that a test moves; beats and second looks come at once."""
    monkeypatch.setattr(socket_module, "BEAT_S", 0.001)
    monkeypatch.setattr(socket_module, "SECOND_LOOK_S", 0.001)

    async def test(served: Linked) -> None:
        clock = FakeClock()
        served.home.clock = clock
        gateway = Gateway(served)
        await gateway.link()
        gateway.open()
        await served.until(lambda: len(served.home.connections) == 1, "the client")

        def beats() -> bool:
            gateway.read()
            return sum(each.kind == Kind.BEAT for each in gateway.found) > 3

        await served.until(beats, "several beats, of which none ends it")
        assert len(served.server.links) == 1
        clock.advance(socket_module.SILENCE_S + 1)
        await served.until(lambda: not served.home.connections, "the end of a silent link")
        gateway.socket.close()

    play(tmp_path, test)


def test_a_gateway_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_module, "BEAT_S", 0.001)

    async def test(served: Linked) -> None:
        gateway = Gateway(served)
        await gateway.link()

        def beats() -> bool:
            gateway.read()
            return any(each.kind == Kind.BEAT for each in gateway.found)

        await served.until(beats, "a beat")
        gateway.socket.close()

    play(tmp_path, test)


def test_a_client_that_reads_nothing_holds_back_itself_alone(tmp_path: Path) -> None:
    """Its gateway keeps what its window allows."""

    async def test(served: Linked) -> None:
        slow, quick = await consumer(served), await served.connect(CONNECT)
        await served.say(slow, frame("SUBSCRIBE", {"id": 2, "destination": "/queue/b", "ack": "auto"}))
        send = frame("SEND", {"destination": "/queue/b"}, b"x" * 10_000)
        for _ in range(50):
            await served.say(quick, send * 10)
        connection = next(iter(served.link.connections.values()))
        assert connection._kept_bytes <= 2 * WINDOW_BYTES
        assert waiting(served, "b") > 200
        await served.until(lambda: [slow.read(), slow.said.count(b"MESSAGE\n") == 500][1], "all messages")
        assert not connection._kept
        assert waiting(served, "b") == 0

    play(tmp_path, test, consumer_buffer_size_bytes=64 << 10)


def test_a_large_body_crosses_both_ways(tmp_path: Path) -> None:
    async def test(served: Linked) -> None:
        peer = await consumer(served)
        body = bytes(range(1, 256)) * 40_000
        headers = {"destination": "/queue/a", "receipt": "large", "content-length": len(body)}
        await served.say(peer, frame("SEND", headers, body))
        await served.until(lambda: [peer.read(), body in peer.said and b"id:large" in peer.said][1], "all of it")
        await served.rest()
        assert served.world.broker.memory.taken_bytes < len(body)
        await served.hang_up(peer)

    play(tmp_path, test)


def test_a_large_body_that_goes_in_one_frame_gives_its_memory_back(tmp_path: Path) -> None:
    """Large messages that wait on disk were read no more while it was lent."""

    async def test(served: Linked) -> None:
        peer = await consumer(served)
        await served.say(peer, frame("SEND", {"destination": "/queue/a"}, b"x" * 2_000))
        await served.until(lambda: [peer.read(), b"x" * 2_000 in peer.said][1], "the message")
        assert served.world.broker.memory.lent_bytes == 0

    with large_from(1_000):
        play(tmp_path, test)


def test_an_error_of_a_question_ends_no_connection(tmp_path: Path) -> None:
    """A gateway asks each home about a thing that one of them knows. The protocol of this client survives no error."""

    async def test(served: Linked) -> None:
        gateway = Gateway(served)
        await gateway.link()
        gateway.open()
        gateway.say(*commands.written(1, Commit("t", None, "an outcome"), 1 | commands.SURVIVED)[:2])
        await served.until(lambda: Kind.FAIL in gateway.kinds(), "the error")
        assert calls.statement(gateway.found[-1], calls.FAILURE).receipt == 1 | commands.SURVIVED
        await served.rest()
        assert Kind.CLOSE not in gateway.kinds()
        gateway.say(*commands.written(1, Commit("t", None, "an outcome"), 2)[:2])
        await served.until(lambda: Kind.CLOSE in gateway.kinds(), "the end")
        gateway.socket.close()

    play(tmp_path, test)
