"""Connections of clients without heart-beats: the broker notices a host that vanished, and spares one that is slow."""

from __future__ import annotations

import ctypes
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from brokers import Brokers

from amq.transports import liveness
from bench.wire import WireConnection
from tests.patience import DEADLINE_S

SO_ATTACH_FILTER = 26
TTL_S = 1.0
ASK_EVERY_S = 0.1


def vanish(sock: socket.socket) -> None:
    """Throw away every packet that arrives for `sock`: to the other end its host is gone."""
    drop_all = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))
    program = struct.pack("=HxxxxxxQ", 1, ctypes.addressof(drop_all))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """(accepted, client) of one TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            yield accepted, client


def ask_until_vanished(sock: socket.socket, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if liveness.vanished(sock, TTL_S):
            return True
        select.select([], [], [], ASK_EVERY_S)
    return False


@pytest.mark.deep
def test_the_kernel_ends_an_idle_connection_whose_peer_is_gone() -> None:
    with connected() as (accepted, client):
        assert liveness.watch(accepted, 2.0)
        vanish(client)
        readable, _, _ = select.select([accepted], [], [], DEADLINE_S)
        assert readable
        with pytest.raises(TimeoutError):
            accepted.recv(1)


def test_output_that_nobody_acknowledges() -> None:
    with connected() as (accepted, client):
        assert not liveness.vanished(accepted, TTL_S)
        vanish(client)
        accepted.send(b"a delivery")
        assert ask_until_vanished(accepted, DEADLINE_S)


def test_a_living_peer_that_does_not_read_is_spared() -> None:
    """TCP_USER_TIMEOUT would end this connection after `TTL_S`."""
    with connected() as (accepted, _client):
        liveness.watch(accepted, TTL_S)
        accepted.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                accepted.send(b"x" * 65536)
        assert not ask_until_vanished(accepted, 2.5 * TTL_S)
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


def test_a_socket_that_is_not_tcp_is_not_watched() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not liveness.watch(ours, TTL_S)


@pytest.mark.deep
@pytest.mark.parametrize("in_flight", [False, True], ids=["idle", "in flight"])
def test_messages_of_a_vanished_host_go_to_another_consumer(brokers: Brokers, in_flight: bool) -> None:
    broker = brokers.master("a", connectionTtl="2s")
    subscribe = {"destination": "/queue/q", "ack": "client-individual", "receipt": "subscribed"}
    with WireConnection(broker.port) as lost, WireConnection(broker.port) as other:
        lost.send("SUBSCRIBE", {"id": "1", **subscribe})
        lost.receipt("subscribed", DEADLINE_S)
        if in_flight:
            vanish(lost.socket)
        other.send("SEND", {"destination": "/queue/q", "receipt": "stored"}, b"order")
        other.receipt("stored", DEADLINE_S)
        if not in_flight:
            assert lost.next_frame(DEADLINE_S).body == b"order"
            vanish(lost.socket)
        other.send("SUBSCRIBE", {"id": "2", **subscribe})
        other.receipt("subscribed", DEADLINE_S)
        assert other.next_frame(DEADLINE_S).body == b"order"
        if in_flight:  # an idle one the kernel may find first
            broker.wait_event("connection closed: the client's host")
