"""A login that ends, as that of a token: its connection ends then, with a word of why, and not before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from amq.security.login import Claim, Login, User
from amq.transports import peer as peer_module
from tests.transports import served as harness
from tests.transports.served import CONNECT, Served, Uncollected, frame
from tests.transports.test_transports_reattach import Returning, bodies, send

SUBSCRIBE = frame("SUBSCRIBE", {"id": "s", "destination": "/queue/a", "ack": "client"})


class Ends:
    """Logins count for `left_s` from now on, by the clock of the broker; `roles` = those that they bring."""

    def __init__(self, served: Served, left_s: float) -> None:
        self.served = served
        self.left_s = left_s
        self.roles: frozenset[str] = frozenset()
        served.hub.authenticate = self.authenticate

    async def authenticate(self, _: Claim) -> Login:
        return Login(User("alice", self.roles), "token", self.served.hub.clock.wall_ms() / 1000 + self.left_s)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "LOGIN_LOOK_S", 0.001)  # the clock of the broker pauses, until it is set


def serve(path: Path, test: Callable[[Served, Ends], Awaitable[None]], **config: Any) -> None:
    async def with_one_clock(served: Served) -> None:
        served.hub.clock = served.world.clock
        await test(served, Ends(served, 100))

    harness.serve(path, with_one_clock, **config)


def test_a_connection_ends_with_its_login(tmp_path: Path) -> None:
    async def test(served: Served, _: Ends) -> None:
        peer = await served.connect(CONNECT)
        served.world.clock.advance(99)
        await served.say(peer, frame("BEGIN", {"transaction": "t"}) + send("kept", "r1") + SUBSCRIBE)
        await served.say(peer, send("lost", "r2", transaction="t"))
        await served.until(lambda: b"receipt-id:r1" in [peer.read(), peer.said][1], "the receipt")
        assert b"ERROR" not in peer.said
        served.world.clock.advance(2)
        await served.until(lambda: b"ERROR" in [peer.read(), peer.said][1], "the end of the login")
        assert b"code:LOGIN_EXPIRED\n" in peer.said
        await served.hang_up(peer)
        other = await served.connect(CONNECT, SUBSCRIBE)
        await served.until(lambda: bodies([other.read(), other.said][1]), "what was not acknowledged")
        assert bodies(other.said) == [b"kept"], "the open transaction was rolled back"

    serve(tmp_path, test)


def test_a_lost_connection_is_not_kept_beyond_its_login(tmp_path: Path) -> None:
    async def test(served: Served, _: Ends) -> None:
        client = Returning(served)
        await client.connect()
        await client.lose()
        assert len(served.hub.parking.parked) == 1
        served.world.clock.advance(101)
        await served.until(lambda: not served.hub.parking.parked, "the end of the login")
        assert not await client.come_back()

    serve(tmp_path, test, reconnect_window_s=3600.0)


def test_a_client_that_comes_back_with_a_newer_token_has_its_end_and_its_roles(tmp_path: Path) -> None:
    async def test(served: Served, ends: Ends) -> None:
        client = Returning(served)
        await client.connect()
        served.world.clock.advance(90)
        await client.lose()
        assert await client.come_back()
        served.world.clock.advance(90)
        await client.say(send("later", "r"))
        assert b"receipt-id:r\n" in await client.listen()
        await client.lose()
        ends.roles = frozenset({"audit"})
        assert not await client.come_back(), "the rights of the older one are not those of the newer"

    serve(tmp_path, test, reconnect_window_s=3600.0)


def test_an_end_that_has_passed_lets_nobody_do_anything(tmp_path: Path) -> None:
    async def test(served: Served, ends: Ends) -> None:
        ends.left_s = -1
        peer = await served.connect(CONNECT + send("x", "r"))
        await served.until(lambda: b"ERROR" in [peer.read(), peer.said][1], "the end of the login")
        assert b"LOGIN_EXPIRED" in peer.said
        assert b"RECEIPT" not in peer.said
        assert not served.world.broker.state.queues

    serve(tmp_path, test)


def test_ended_connections_leave_nothing_behind(tmp_path: Path) -> None:
    async def test(served: Served, _: Ends) -> None:
        with Uncollected() as left:
            for number in range(40):
                peer = await served.connect(CONNECT)
                if number % 2:
                    served.world.clock.advance(101)
                    await served.until(lambda peer=peer: b"ERROR" in [peer.read(), peer.said][1], "the end")
                await served.hang_up(peer)
                del peer
            assert left.found()["amq.transports.peer.Peer"] == 0

    serve(tmp_path, test)
