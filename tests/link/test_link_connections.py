"""Clients of two protocols reach a broker over a link, and what becomes of them when it breaks."""

from __future__ import annotations

from pathlib import Path

from tests.link.linking import Linked, serve
from tests.transports.served import CONNECT, frame

SUBSCRIBE = frame("SUBSCRIBE", {"id": 1, "destination": "/queue/a", "ack": "client-individual", "receipt": "s"})


def test_a_client_sends_and_gets_over_a_link(tmp_path: Path) -> None:
    async def play(served: Linked) -> None:
        peer = await served.connect(CONNECT, SUBSCRIBE)
        assert b"RECEIPT" in peer.read()
        await served.say(peer, frame("SEND", {"destination": "/queue/a", "receipt": "r"}, b"hello"))
        said = peer.read()
        assert b"hello" in said
        assert b"receipt-id:r" in said
        assert served.home_of().client.user.name == "alice"
        await served.hang_up(peer)
        assert not served.home.connections
        assert not served.link.connections

    serve(tmp_path, play)
