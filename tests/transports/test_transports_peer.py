"""Peer: what becomes of a login that takes longer than a client may take to connect."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from amq.doors.clock import SystemClock
from amq.protocols.stomp.codec import StompCodec
from amq.security.login import Claim, Login, User
from amq.transports.doorkeeper import Doorkeeper
from amq.transports.hosts import is_loopback
from amq.transports.peer import Peer
from amq.transports.places import Places
from amq.transports.socket import Socket
from amq.transports.turn import Turn
from tests.broker.world import World


def test_a_login_of_a_connection_that_closes_meanwhile_lets_nobody_in(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def main() -> None:
        loop, checked = asyncio.get_running_loop(), asyncio.Event()
        turn = Turn(loop)

        async def authenticate(_: Claim) -> Login:
            await checked.wait()
            return Login(User("alice"), "password")

        codecs: Any = SimpleNamespace(codec=lambda first, owner: StompCodec(owner=owner))  # noqa: ARG005
        hub: Any = SimpleNamespace(
            clock=SystemClock(),
            turn=turn,
            epoch=world.epoch,
            config=world.config,
            loop=loop,
            authenticate=authenticate,
            opened=lambda _: True,
            closed=lambda _: None,
            door=Doorkeeper(SystemClock(), lambda: world.config),
            places=Places(SystemClock(), lambda: world.config.max_connections),
        )
        turn.serve(world.broker, world.journal, lambda: True)
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        connection = Peer(hub, 1, codecs)
        await loop.connect_accepted_socket(lambda: Socket(hub, connection), ours)
        connect, subscribe = b"CONNECT\naccept-version:1.2\n\n\0", b"SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0"
        await loop.sock_sendall(theirs, connect + subscribe)
        while (login := connection._login) is None:
            await asyncio.sleep(0)
        connection.close()
        assert await loop.sock_recv(theirs, 4096) == b""
        checked.set()
        await login
        assert connection.client is None, "what it sent behind its CONNECT is not carried out"
        assert connection.socket._timer is not None
        assert not connection.socket._timer.cancelled(), "and it is cut when it does not close by itself"
        connection.abort()
        theirs.close()
        turn.stop()

    try:
        asyncio.run(main())
    finally:
        world.close()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::1%lo", True),
        ("::1:abcd", False),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("1270.0.0.1", False),
        ("fe80::1%eth0", False),
        ("::", False),
        ("0.0.0.0", False),
        ("", False),
        ("localhost", False),
    ],
)
def test_who_is_on_this_host(address: str, expected: bool) -> None:
    """`::1:abcd` begins as the loopback address does, and is that of another host."""
    assert is_loopback(address) is expected
