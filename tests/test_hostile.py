"""Acceptance: whatever strangers send to the port, they learn why and closed, and a healthy client goes on."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from brokers import Broker, Brokers
from traffic import Producer, connect_any, drain

from bench.wire import encode
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep
LIMITS = {"connectTimeout": "500ms", "unfinishedFrameTimeout": "500ms", "maxConnections": 20}
MEMORY_GROWTH_BYTES_MAX = 32 << 20
LOGIN = encode("CONNECT", {"accept-version": "1.2", "host": "/"})


@pytest.fixture
def broker(brokers: Brokers) -> Iterator[Broker]:
    """A broker with a healthy client, which must have been served all the time when the test ends."""
    broker = brokers.master("a", **LIMITS)
    healthy = Producer([broker])
    healthy.start()
    healthy.wait_confirmed(10)
    yield broker
    healthy.wait_confirmed(10)
    confirmed = healthy.stop()
    assert healthy.failovers == 0, "the healthy client was disconnected"
    with connect_any([broker]) as connection:
        assert drain(connection, len(confirmed)) == [b"message %d" % number for number in confirmed]
    assert broker.stop() == 0
    assert not broker.said("internal error")


def stranger(broker: Broker) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), DEADLINE_S)


def read_to_end(sock: socket.socket) -> bytes:
    """All that the broker says until it closes; TimeoutError where it does not."""
    parts = []
    sock.settimeout(DEADLINE_S)
    try:
        while data := sock.recv(1 << 16):
            parts.append(data)
    except ConnectionResetError:
        pass  # it closed while bytes of ours were on their way: as good as an end
    return b"".join(parts)


def answer(broker: Broker, data: bytes) -> bytes:
    with stranger(broker) as sock:
        with suppress(ConnectionError):  # closed before we had said everything
            sock.sendall(data)
        return read_to_end(sock)


def test_half_a_frame_is_given_up(broker: Broker) -> None:
    for length in (1, 7, 20, 28):
        assert b"ERROR\n" in answer(broker, LOGIN[:length])
        said = answer(broker, LOGIN + encode("SEND", {"destination": "/queue/a"}, b"x")[:length])
        assert b"CONNECTED\n" in said
        assert b"FRAME_TIMEOUT" in said


def test_silence_is_given_up(broker: Broker) -> None:
    assert b"CONNECT_TIMEOUT" in answer(broker, b"")


def test_a_header_without_end_costs_nothing(broker: Broker) -> None:
    """100 MiB and more are thrown away unread while the client is given time to see why, then the line is cut."""
    before = memory_bytes(broker)
    started = time.monotonic()
    sent = 0
    with stranger(broker) as sock:
        sock.sendall(b"CONNECT\nx:")
        while sent < 100 << 20:
            sent += sock.send(b"y" * 65536)
        assert b"HEADER_TOO_LONG" in sock.recv(1 << 16)
        assert memory_bytes(broker) - before < MEMORY_GROWTH_BYTES_MAX
        with pytest.raises(ConnectionError):
            while time.monotonic() - started < DEADLINE_S:
                sock.sendall(b"y")


@pytest.mark.parametrize("logged_in", [False, True])
def test_slowloris_is_given_up(broker: Broker, logged_in: bool) -> None:
    """Many connections that drip a byte at a time, each too slow to be worth a place."""
    drips = b"SEND\ndestination:/queue/a\n" + b"x:y\n" * 1000
    ends: list[bytes] = []
    whole: list[socket.socket] = []

    def drip() -> None:
        with stranger(broker) as sock:
            if logged_in:
                sock.sendall(LOGIN)
            pause = threading.Event()
            for byte in drips:
                try:
                    sock.sendall(bytes([byte]))
                except ConnectionError:
                    break
                pause.wait(0.05)
            else:
                whole.append(sock)
            ends.append(read_to_end(sock))

    threads = [threading.Thread(target=drip) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ends) == 10
    assert not whole, "dripping for 200 s was let go on"


def memory_bytes(broker: Broker) -> int:
    """Resident memory of the broker's process."""
    lines = Path(f"/proc/{broker.pid}/status").read_text().split("\n")
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))
