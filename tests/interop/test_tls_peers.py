"""Clients of others over TLS: stomp.py and `openssl s_client`, with and without a client certificate, after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("stomp")

from brokers import Broker, Brokers
from stock import Stock

from tests.certificates import Authority, Pair, needs_openssl, s_client

pytestmark = [needs_openssl, pytest.mark.deep]
CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"
BROWSE = b"SUBSCRIBE\nid:1\ndestination:%b\nbrowser:true\n\n\0"


@pytest.fixture(params=["none", "need"])
def pair(request: pytest.FixtureRequest, authority: Authority) -> Pair | None:
    return authority.pair("alice") if request.param == "need" else None


def group(directory: Path, authority: Authority, needs: bool) -> Brokers:
    server = authority.pair("server")
    options = {
        "certificate": server.certificate,
        "certificateKey": server.key,
        "trust": authority.trust,
        "clientCertificate": "need" if needs else "none",
    }
    return Brokers(directory, scheme="stomp+ssl", **options)


def browsed(broker: Broker, authority: Authority, pair: Pair | None, wanted: bytes, queue: str = "/queue/b") -> bytes:
    """Lines of a browse that `openssl s_client` reads until one of them is `wanted` or the connection ends."""
    return s_client(broker.port, authority, CONNECT + BROWSE % queue.encode(), wanted, pair)


def test_others_go_on_after_a_kill(authority: Authority, pair: Pair | None, tmp_path: Path) -> None:
    with group(tmp_path, authority, pair is not None) as brokers:
        first, second = brokers.master("a"), brokers.slave("b")
        stock = Stock([first, second])
        own = {} if pair is None else {"cert_file": str(pair.certificate), "key_file": str(pair.key)}
        stock.connection.set_ssl(
            [("127.0.0.1", each.port) for each in (first, second)], ca_certs=str(authority.trust), **own
        )
        with stock:
            stock.send("before the kill")
            shown = browsed(first, authority, pair, b"before the kill", "/queue/a")
            assert shown.startswith(b"CONNECTED\n")
            assert b"before the kill" in shown
            first.kill()
            second.wait_serving()  # over TLS stomp.py tells its listener nothing of an end without a goodbye
        again = Stock([first, second])
        again.connection.set_ssl(
            [("127.0.0.1", each.port) for each in (first, second)], ca_certs=str(authority.trust), **own
        )
        with again:
            again.subscribe()
            (message,) = again.listener.wait_messages(1)
            assert message.body == "before the kill"
            again.send("after the kill", queue="/queue/b")
        assert again.listener.errors == []
        found = browsed(second, authority, pair, b"after the kill")
        assert found.startswith(b"CONNECTED\n")
        assert b"after the kill" in found
        if pair is not None:
            assert browsed(second, authority, None, b"CONNECTED") == b""
