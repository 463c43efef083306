"""The same Connection over TCP and over TLS, on both event loops: real sockets, real certificates.

TLS has no half-close, closes in a separate way, and holds bytes back in one more place. Nothing of that reaches a
protocol or a client.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from amq.protocols.commands import Failure, Scope
from amq.transports import liveness, shares
from amq.transports import peer as peer_module
from amq.transports import socket as socket_module
from amq.transports.socket import Stream, TlsStream
from tests.certificates import Authority, needs_openssl
from tests.transports.served import CONNECT, Peer, Served, Tls, TlsPeer, frame, serve

pytestmark = needs_openssl
SUBSCRIBE = frame("SUBSCRIBE", {"id": "1", "destination": "/queue/q", "ack": "client-individual"})
LARGE = bytes(range(256)) * (12 << 10)  # 3 MiB
WRONG = frame("SEND", {})  # without a destination
Run = Callable[..., None]


@pytest.fixture(scope="module")
def tls(authority: Authority) -> Tls:
    pair = authority.pair("server")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pair.certificate, pair.key)
    return Tls(server, ssl.create_default_context(cafile=str(authority.trust)))


@pytest.fixture(params=["tcp-uvloop", "tls-uvloop", "tls-asyncio"])
def run(request: pytest.FixtureRequest, tmp_path: Path, tls: Tls) -> Run:
    """`run(test, **config)` runs `test(served, the TLS of its connections or None)`."""
    carrier, loop = request.param.split("-")
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.SelectorEventLoop

    def runs(test: Callable[[Served, Tls | None], Awaitable[None]], **config: Any) -> None:
        serve(tmp_path, lambda served: test(served, tls if carrier == "tls" else None), loop_factory=factory, **config)

    return runs


async def read_until(served: Served, peer: Peer, wanted: bytes) -> None:
    await served.until(lambda: [peer.read(), wanted in peer.said][1], f"{wanted[:40]!r}")


def test_login_send_and_receive(run: Run) -> None:
    async def test(served: Served, tls: Tls | None) -> None:
        peer = await served.connect(CONNECT, tls=tls, tcp=True)
        stream = peer.connection.socket.stream
        assert type(stream) is (Stream if tls is None else TlsStream)
        assert stream.peer_address == "127.0.0.1"
        await served.say(peer, SUBSCRIBE)
        await served.say(peer, frame("SEND", {"destination": "/queue/q", "receipt": "stored"}, b"order"))
        await read_until(served, peer, b"order\0")
        assert peer.said.startswith(b"CONNECTED\n")
        assert b"receipt-id:stored" in peer.said
        await served.hang_up(peer)

    run(test)


def test_a_large_body_to_a_client_that_reads_slowly(run: Run) -> None:
    async def test(served: Served, tls: Tls | None) -> None:
        peer = await served.connect(CONNECT, SUBSCRIBE, tls=tls, tcp=True)
        producer = await served.connect(CONNECT, tls=tls, tcp=True)
        header = {"destination": "/queue/q", "content-length": len(LARGE), "receipt": "stored"}
        await served.say(producer, frame("SEND", header, LARGE))
        await read_until(served, producer, b"receipt-id:stored")
        await served.rest()
        assert peer.connection._slices, "the client has not read, so most of it is here"
        await read_until(served, peer, LARGE + b"\0")
        await served.until(lambda: not peer.connection._lent_bytes, "the memory is free again")

    run(test)


def test_a_client_that_comes_back_on_another_socket(run: Run) -> None:
    """Also while the broker takes the older one for alive, and in the middle of a large body."""
    window = {"amq-reconnect-window": 60000, "amq-confirmation-window": 4096}
    hello = frame("CONNECT", {"accept-version": "1.2", "host": "x", **window})

    async def test(served: Served, tls: Tls | None) -> None:
        peer = await served.connect(hello, tls=tls, tcp=True)
        await served.say(peer, SUBSCRIBE)
        header = {"destination": "/queue/q", "content-length": len(LARGE), "receipt": "stored"}
        await served.say(peer, frame("SEND", header, LARGE))
        await read_until(served, peer, LARGE[:300_000])
        connection, heard = peer.connection, peer.said
        token = heard.partition(b"amq-reconnect-token:")[2][:32].decode()
        shown = {"amq-reconnect-token": token, "amq-received": len(heard), "amq-repeats-from": 0}
        again = frame("CONNECT", {"accept-version": "1.2", "host": "x", **window, **shown})
        newer = await served.connect(again, tls=tls, tcp=True)
        await served.until(lambda: newer.read() or newer.said, "the answer")
        peer.close()
        await served.say(newer, frame("SEND", {"destination": "/queue/q"}, b"goes on"))
        await served.until(lambda: [newer.read(), b"goes on\0" in newer.said[-100:]][1], "the next message")
        answer, _, rest = newer.said.partition(b"\0")
        assert b"\namq-received:" in answer
        whole = heard + rest
        assert whole.count(LARGE + b"\0") == whole.count(b"receipt-id:stored") == 1
        assert list(served.connections.values()) == [connection]

    run(test, confirmation_window_size_bytes=8 << 20)


def test_an_error_is_read_before_the_connection_is_gone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the client talks on. Closing a socket with unread input would throw the error away."""
    monkeypatch.setattr(socket_module, "QUIET_S", 3600.0)  # the test says when it is over

    async def test(served: Served, tls: Tls | None) -> None:
        peer = await served.connect(CONNECT, tls=tls, tcp=True)
        await served.say(peer, WRONG)
        for _ in range(20):
            await served.say(peer, frame("SEND", {"destination": "/queue/q"}, b"x" * 50_000))
        await read_until(served, peer, b"ERROR\n")
        if isinstance(peer, TlsPeer):
            stream = peer.connection.socket.stream
            assert isinstance(stream, TlsStream)
            assert stream.ignored_bytes > 0
            stream._close_when_quiet(asyncio.get_running_loop(), 0)  # it has said something since
            assert not stream.is_closing()
            stream._close_when_quiet(asyncio.get_running_loop(), stream.ignored_bytes)
            await served.until(lambda: peer.read() is not None and peer.told_end, "the end, as TLS tells it")
            peer.say_end()
        await served.hang_up(peer)

    run(test)


def test_an_error_is_read_by_a_client_that_reads_late(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers before it fill the socket; the last one is read all the same."""
    monkeypatch.setattr(socket_module, "QUIET_S", 0.001)

    async def test(served: Served, tls: Tls | None) -> None:
        peer = await served.connect(CONNECT, tls=tls, tcp=True)
        receipts = b"".join(
            frame("SEND", {"destination": "/topic/nobody", "receipt": f"{n:0500}"}) for n in range(1000)
        )
        for _ in range(20):
            peer.write(receipts)
            await served.rest()
        peer.connection.fail(Failure(peer_module.ProtocolError("the last word"), Scope.CONNECTION))
        await read_until(served, peer, b"the last word")
        await served.hang_up(peer)

    run(test)


def test_a_silent_client_is_closed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It neither closes nor says anything: the broker does after a while."""
    monkeypatch.setattr(peer_module, "LINGER_S", 0.01)
    monkeypatch.setattr(socket_module, "QUIET_S", 0.001)

    async def test(served: Served, tls: Tls | None) -> None:
        peer = await served.connect(CONNECT, tls=tls, tcp=True)
        await served.say(peer, WRONG)
        await served.until(lambda: not served.connections, "the end")
        await read_until(served, peer, b"ERROR\n")

    run(test)


def test_a_client_that_vanishes_gives_back_what_it_held(run: Run) -> None:
    async def test(served: Served, tls: Tls | None) -> None:
        lost = await served.connect(CONNECT, SUBSCRIBE, tls=tls, tcp=True)
        await served.say(lost, frame("SEND", {"destination": "/queue/q"}, b"order"))
        await read_until(served, lost, b"order\0")
        await served.hang_up(lost)  # TLS was told nothing
        other = await served.connect(CONNECT, SUBSCRIBE, tls=tls, tcp=True)
        await read_until(served, other, b"order\0")
        assert b"redelivered:true" in other.said

    run(test)


def test_another_thread_cuts_it(run: Run) -> None:
    """A watchdog does so while the event loop is stuck; nothing that is said later leaves the broker."""

    async def test(served: Served, tls: Tls | None) -> None:
        peer = await served.connect(CONNECT, SUBSCRIBE, tls=tls, tcp=True)
        thread = threading.Thread(target=peer.connection.cut)
        thread.start()
        thread.join()
        peer.read()
        said = peer.said
        peer.connection.confirm("too late")
        await served.until(lambda: not served.connections, "the end")
        peer.read()
        assert peer.said == said
        peer.connection.cut()  # and once more, when the number may be another file's

    run(test)


def test_the_kernel_watches_its_peer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(served: Served, tls: Tls | None) -> None:
        peer = await served.connect(CONNECT, tls=tls, tcp=True)
        handle = peer.connection.socket._watched
        assert handle is not None
        assert not liveness.vanished(handle, 60.0)
        monkeypatch.setattr(liveness, "vanished", lambda *_: True)
        peer.connection.socket.tick()
        await served.until(lambda: not served.connections, "the end")

    run(test, connection_ttl_s=60.0)


# -- its turn ----------------------------------------------------------------------------------------------------------


def test_a_client_of_many_small_records_gives_others_their_turn(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop reads on from a socket that fills its buffer, and small records fill it with few bytes."""
    monkeypatch.setattr(shares, "SHARE_S", 60.0)
    monkeypatch.setattr(shares, "ROUND_S", 60.0)
    send = frame("SEND", {"destination": "/topic/nobody"}, b"x")

    async def test(served: Served, tls: Tls | None) -> None:
        peer = await served.connect(CONNECT, tls=tls, tcp=True)
        stream = peer.connection.socket.stream
        assert stream is not None
        full = send * (stream.full_read_bytes // len(send) + 1)
        for data in (full, send, full):
            assert not peer.connection.socket.unread_for
            peer.connection.socket.data_received(data)
        assert peer.connection.socket.unread_for == {socket_module.TURN}
        await served.until(lambda: not peer.connection.socket.unread_for, "the next turn")
        await served.say(peer, frame("SEND", {"destination": "/topic/nobody", "receipt": "last"}))
        await read_until(served, peer, b"receipt-id:last")

    run(test)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_full_read_of_the_smallest_records_counts_as_one(tls: Tls, version: ssl.TLSVersion) -> None:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode, client.maximum_version = False, ssl.CERT_NONE, version
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there), tls.server.wrap_bio(there, back, server_side=True)]
    while ends[0].version() is None or there.pending or back.pending:
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
                end.read(1)
    assert ends[0].version() == version.name.replace("v1_", "v1.")
    ends[0].write(b"x")
    assert TlsStream.full_read_bytes < (256 << 10) // len(there.read()) < 12_000
