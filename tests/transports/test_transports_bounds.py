"""What a client may make the broker hold: next to nothing before its login, and no more answers than it reads."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import pytest

from amq.core.errors import AccessError
from amq.protocols.commands import Failure, Scope
from amq.security.login import Claim, Login
from amq.transports import shares
from amq.transports import socket as socket_module
from tests.protocols.openwire.conversation import greeting, login
from tests.transports.served import CONNECT, Peer, Served, frame, serve

MIB = 1 << 20
GENEROUS = {
    "max_header_count": 100_000,
    "max_header_size_bytes": MIB,
    "max_header_block_size_bytes": MIB,
    "max_frame_size_bytes": 100 * MIB,
}
LIMIT = {"consumer_buffer_size_bytes": 64 << 10}
SEND = b"SEND\ndestination:/topic/nobody\nreceipt:%d\n\nx\0"


# -- before the login -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"CONNECT\naccept-version:1.2\ncontent-length:104857600\n\nabc", b"BODY_UNEXPECTED"),
        (b"STOMP\naccept-version:1.2\n\nbody", b"BODY_UNEXPECTED"),
        (b"SEND\ndestination:/queue/a\ncontent-length:100\n\n", b"NOT_CONNECTED"),
        (b"SEND\ndestination:/queue/a\n\nbody", b"NOT_CONNECTED"),
        (b"CONNECT\n" + b"a:%s\n" % (b"x" * 1000) * 66, b"HEADERS_TOO_BIG"),
    ],
)
def test_a_stranger_sends_no_body_and_few_headers(tmp_path: Path, said: bytes, code: bytes) -> None:
    """Also where those who have logged in may send more."""

    async def test(served: Served) -> None:
        peer = await served.connect(said)
        assert b"code:" + code in peer.read()

    serve(tmp_path, test, **GENEROUS)


def test_those_who_are_connected_may_send_more(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        peer = await served.connect(CONNECT)
        headers = {f"h{number}": "x" * 1000 for number in range(90)}
        await served.say(peer, frame("SEND", {"destination": "/queue/a", "receipt": 1, **headers}, b"x" * MIB))
        await served.until(lambda: b"RECEIPT" in peer.read(), "the receipt")

    serve(tmp_path, test, **GENEROUS)


def test_strangers_cost_nearly_nothing(tmp_path: Path) -> None:
    """Twenty that send as much as they can before the broker has refused them."""

    async def test(served: Served) -> None:
        checked = asyncio.Event()

        async def authenticate(_: Claim) -> Login:
            await checked.wait()
            raise AccessError("no")

        served.hub.authenticate = authenticate
        behind = b"SEND\ndestination:/queue/a\ncontent-length:104857600\n\n" + bytes(2 * MIB)
        tracemalloc.start()
        try:
            strangers = [await served.connect() for _ in range(20)]
            for said in (CONNECT + behind, b"CONNECT\ncontent-length:104857600\n\n" + bytes(2 * MIB)):
                for stranger in strangers[:10] if said.startswith(CONNECT) else strangers[10:]:
                    rest = said
                    while taken := stranger.write(rest):  # until nobody reads
                        rest = rest[taken:]
                        await served.rest()
            held, _ = tracemalloc.get_traced_memory()
            assert held < 20 * MIB, "of 20 that sent 2 MiB each and had not logged in"
            checked.set()
            await served.rest()
            for stranger in strangers:
                assert b"ERROR" in stranger.read()
        finally:
            tracemalloc.stop()

    serve(tmp_path, test)


# -- answers that nobody reads ----------------------------------------------------------------------------------------


async def flood_until_unread(served: Served, peer: Peer) -> None:
    """Commands with receipts until the broker reads no more. The last one may be cut."""
    for base in range(0, 100_000, 500):
        peer.write(b"".join(SEND % number for number in range(base, base + 500)))
        await served.rest()
        if peer.connection.socket.unread_for:
            return
    raise AssertionError("the broker reads on from a client that reads nothing")


async def flood(served: Served, peer: Peer) -> int:
    """Commands with receipts until the broker reads no more; returns how many were sent whole."""
    count, rest, refused = 0, b"", 0
    while refused < 50:
        rest = rest or b"".join(SEND % number for number in range(count, count + 500))
        taken = peer.write(rest)
        rest = rest[taken:]
        count += 0 if rest else 500
        refused = 0 if taken else refused + 1
        await served.rest()
        assert count < 200_000, "the broker reads on from a client that reads nothing"
    while rest:  # the client reads again, and says the rest
        peer.read()
        rest = rest[peer.write(rest) :]
        await served.rest()
    return count + 500


def test_a_client_that_does_not_read_is_not_read_either(tmp_path: Path) -> None:
    """Until it does: then every answer is there."""

    async def test(served: Served) -> None:
        peer = await served.connect(CONNECT)
        count = await flood(served, peer)
        await served.until(
            lambda: peer.read() is not None and b"receipt-id:%d\n" % (count - 1) in peer.said, "the last receipt"
        )
        assert peer.said.count(b"RECEIPT\n") == count
        await served.say(peer, SEND % 999_999)
        await served.until(lambda: b"receipt-id:999999\n" in peer.read(), "it is read as before")

    serve(tmp_path, test, **LIMIT)


def test_answers_that_nobody_reads_are_bounded(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        peer = await served.connect(CONNECT)
        stream = peer.connection.socket.stream
        assert stream is not None
        transport = stream._transport
        held = 0
        for base in range(0, 100_000, 500):
            peer.write(b"".join(SEND % number for number in range(base, base + 500)))
            await served.rest()
            held = max(held, transport.get_write_buffer_size() + peer.connection.output_bytes)
        assert 64 << 10 < held < 512 << 10

    serve(tmp_path, test, **LIMIT)


def test_deliveries_alone_do_not_stop_the_reading(tmp_path: Path) -> None:
    """A consumer may be busy writing acknowledgements while its messages wait in the socket: if the broker did not
    read these, both would wait for ever."""

    async def test(served: Served) -> None:
        producer = await served.connect(CONNECT)
        peer = await served.connect(CONNECT, frame("SUBSCRIBE", {"id": 1, "destination": "/queue/a", "ack": "client"}))
        message = frame("SEND", {"destination": "/queue/a", "persistent": "false"}, b"x" * 1000)
        for _ in range(20):
            await served.say(producer, message * 100)
        assert peer.connection.socket.is_full
        await served.say(peer, frame("SEND", {"destination": "/queue/b"}, b"x" * 100) * 20_000)

    serve(tmp_path, test, **LIMIT)


def test_a_client_that_is_not_read_is_not_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its heart-beats wait in the kernel."""

    async def test(served: Served) -> None:
        clock = served.hub.clock = Clock()
        peer = await served.connect(CONNECT.replace(b"host:x", b"heart-beat:10000,10000"))
        assert peer.connection.socket.hears_s == 10.0
        await flood_until_unread(served, peer)
        clock.now_s += 1000.0
        peer.connection.socket.tick()
        assert not peer.connection.is_closing
        await served.until(
            lambda: peer.read() is not None and not peer.connection.socket.unread_for, "it is read again"
        )
        peer.connection.socket.tick()
        assert not peer.connection.is_closing
        clock.now_s += 21.0
        peer.connection.socket.tick()
        await served.until(lambda: b"HEARTBEAT_TIMEOUT" in peer.read(), "silence is noticed when it is read")

    monkeypatch.setattr(socket_module, "SECOND_LOOK_S", 0.001)
    serve(tmp_path, test, **LIMIT)


def test_the_end_of_a_client_that_was_not_read_is_noticed(tmp_path: Path) -> None:
    """Refused while it is not read: it learns why, and its closing is seen at once."""

    async def test(served: Served) -> None:
        peer = await served.connect(CONNECT)
        await flood_until_unread(served, peer)
        peer.connection.fail(Failure(AccessError("enough"), Scope.CONNECTION))
        await served.until(lambda: peer.read() is not None and b"enough" in peer.said, "the reason")
        await served.hang_up(peer)

    serve(tmp_path, test, **LIMIT)


@pytest.mark.parametrize(
    ("said", "speaks_s", "hears_s"), [(0, 0.0, 0.0), (6_000, 2.0, 3.0), (90_000, 10.0, 15.0), (1, 1.0, 1.0)]
)
def test_keep_alives_of_openwire_are_as_its_client_says(
    tmp_path: Path, said: int, speaks_s: float, hears_s: float
) -> None:
    """The heart-beats that the broker offers to clients of STOMP do not count; a client cannot ask for more than one a
    second."""

    async def test(served: Served) -> None:
        peer = await served.connect(greeting(MaxInactivityDuration=said))
        assert peer.connection.codec is not None
        await served.say(peer, login())
        socket = peer.connection.socket
        assert socket is not None
        assert (socket.speaks_s, socket.hears_s) == (speaks_s, hears_s)

    serve(tmp_path, test, heart_beat_send_s=0.0, heart_beat_receive_s=60.0)


# -- an event loop that is held up ------------------------------------------------------------------------------------


class Clock:
    """Stands still until a test lets time pass."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 1_700_000_000_000


def test_a_client_is_not_cut_for_what_the_broker_has_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop pauses for longer than heart-beats may be late. Timers go off first then; the sockets are
    read before anybody is called silent."""

    async def test(served: Served) -> None:
        clock = served.hub.clock = Clock()
        beating = await served.connect(CONNECT.replace(b"host:x", b"heart-beat:10000,0"))
        mute = await served.connect()
        begun = await served.connect(CONNECT, b"SEND\ndestination:/queue/a\n\n")
        beating.write(b"\n")
        mute.write(CONNECT)
        begun.write(b"body\0")
        clock.now_s += 100.0
        for peer in (beating, begun):
            peer.connection.socket.tick()
        mute.connection.socket._connect_late()
        assert all(peer.connection.socket.seems_silent for peer in (beating, mute, begun))
        await served.until(
            lambda: not any(peer.connection.socket.seems_silent for peer in (beating, mute, begun)), "they are heard"
        )
        assert not [peer for peer in (beating, mute, begun) if peer.connection.is_closing]
        assert b"CONNECTED" in mute.read()
        clock.now_s += 100.0
        beating.connection.socket.tick()
        await served.until(lambda: b"HEARTBEAT_TIMEOUT" in beating.read(), "one that is silent is cut")

    monkeypatch.setattr(socket_module, "SECOND_LOOK_S", 0.001)
    serve(tmp_path, test)


def test_a_frame_has_time_for_the_bytes_that_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame whose bytes stop coming has not."""
    head, part = b"SEND\ndestination:/queue/a\ncontent-length:104857600\n\n", bytes(MIB)

    async def test(served: Served) -> None:
        clock = served.hub.clock = Clock()
        peer = await served.connect(CONNECT)
        limit_s = served.hub.config.unfinished_frame_timeout_s
        await served.say(peer, head)
        for megabytes in range(1, 9):
            await served.say(peer, part)
            clock.now_s += limit_s / 8 + MIB / socket_module.FRAME_RATE_BYTES_MIN - 0.1
            peer.connection.socket.tick()
            assert not peer.connection.socket.seems_silent, f"after {megabytes} MiB"
        clock.now_s += 1.0
        peer.connection.socket.tick()
        await served.until(lambda: b"FRAME_TIMEOUT" in peer.read(), "a frame that is not finished is given up")

    monkeypatch.setattr(socket_module, "SECOND_LOOK_S", 0.001)
    serve(tmp_path, test, **GENEROUS)


# -- its turn ----------------------------------------------------------------------------------------------------------


def test_a_client_that_fills_two_whole_reads_gives_others_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libuv read on from its socket, up to 32 such buffers, before it looked at any other."""
    monkeypatch.setattr(shares, "SHARE_S", 60.0)
    monkeypatch.setattr(shares, "ROUND_S", 60.0)

    async def test(served: Served) -> None:
        peer = await served.connect(CONNECT)
        stream = peer.connection.socket.stream
        assert stream is not None
        transport = stream._transport
        send = frame("SEND", {"destination": "/topic/nobody"}, b"x")
        full = send * (stream.full_read_bytes // len(send) + 1)
        for data in (full, send, full):
            assert transport.is_reading()
            peer.connection.socket.data_received(data)
        assert not transport.is_reading()
        await served.until(transport.is_reading, "the next turn")
        await served.say(peer, frame("SEND", {"destination": "/topic/nobody", "receipt": "last"}))
        await served.until(lambda: b"receipt-id:last" in peer.read(), "the receipt")

    serve(tmp_path, test)
