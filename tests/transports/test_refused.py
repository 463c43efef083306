"""Clients that come back at once, whatever they were refused for: their sockets stay open for a while."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import structlog

from amq.core.errors import AccessError
from amq.protocols.openwire import table
from amq.security.login import Claim, Login
from amq.transports import doorkeeper
from tests.protocols.openwire.conversation import frames, greeting, login
from tests.transports.served import CONNECT, Peer, Served, serve

NEVER_S = 1e6


async def refuse(_: Claim) -> Login:
    raise AccessError("the login is wrong", code="LOGIN_REFUSED")


async def refused(served: Served) -> Peer:
    """A client of OpenWire that was told so."""
    peer = await served.connect(greeting() + login())
    await served.until(lambda: [peer.read(), b"LOGIN_REFUSED" in peer.said][1], "the error")
    assert [each.type for each in frames(peer.said)][-1] == table.EXCEPTION_RESPONSE
    return peer


def is_open(served: Served, peer: Peer) -> bool:
    return peer.connection.number in served.connections


@pytest.fixture(autouse=True)
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "KEPT_S", NEVER_S)


def test_the_socket_of_a_refused_client_stays_open(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        served.hub.authenticate = refuse
        peer = await refused(served)
        await served.rest()
        assert is_open(served, peer)
        await served.say(peer, b"whatever it says")
        assert is_open(served, peer)
        peer.connection.close()  # the broker ends
        peer.close()
        await served.until(lambda: not is_open(served, peer), "its end")
        assert not served.hub.door._kept

    serve(tmp_path, test)


def test_it_is_closed_when_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "KEPT_S", 0.001)

    async def test(served: Served) -> None:
        served.hub.authenticate = refuse
        peer = await refused(served)
        await served.until(lambda: peer.connection.socket.is_over, "the goodbye")
        assert not served.hub.door._kept or is_open(served, peer)

    serve(tmp_path, test)


def test_only_some_may_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "KEPT_MAX", 2)

    async def test(served: Served) -> None:
        served.hub.authenticate = refuse
        peers = [await refused(served) for _ in range(4)]
        await served.rest()
        assert [peer.connection.socket.is_over for peer in peers] == [False, False, True, True]
        await served.hang_up(peers[0])
        another = await refused(served)
        await served.rest()
        assert not another.connection.socket.is_over

    serve(tmp_path, test)


def test_a_client_whose_link_was_stolen_stays_open_and_holds_nothing(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        first, second = [await served.connect(greeting() + login()) for _ in range(2)]
        await served.until(lambda: [first.read(), b"LINK_STOLEN" in first.said][1], "the error")
        await served.rest()
        assert is_open(served, first)
        assert not first.connection.socket.is_over
        assert second.connection.client is not None

    serve(tmp_path, test, allow_link_stealing=True)


def test_others_are_closed_at_once(tmp_path: Path) -> None:
    """Clients of STOMP wait for the end of the socket."""

    async def test(served: Served) -> None:
        served.hub.authenticate = refuse
        peer = await served.connect(CONNECT)
        await served.until(lambda: peer.connection.socket.is_over, "the goodbye")

    serve(tmp_path, test)


def test_refusals_do_not_fill_the_log(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        served.hub.authenticate = refuse
        for _ in range(doorkeeper.LINES_MAX * 2):
            await served.connect(CONNECT)
        await served.rest()

    logged: list[Any]
    with structlog.testing.capture_logs() as logged:
        serve(tmp_path, test)
    lines = [each for each in logged if each["event"] in ("connection refused", "login refused")]
    assert 0 < len(lines) <= doorkeeper.LINES_MAX
