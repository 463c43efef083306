"""A member of a failover list that is a TLS port: the client goes on, and the error at the end names it. Real TLS."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from faces import AsyncFace, SyncFace
from fake_broker import Broker, Store

from amq.client import ConnectError
from tests.certificates import Authority

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None and os.environ.get("CI") != "true",  # CI installs it, and fails without it
    reason="openssl is not installed: no certificate",
)
Q = "/queue/q"


@pytest.fixture
def tls_port(authority: Authority) -> Iterator[int]:
    """A server that expects TLS, and what OpenSSL makes of a client that speaks none."""
    pair = authority.pair("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:  # the test is over
                return
            with sock, pytest.raises(ssl.SSLError):
                context.wrap_socket(sock, server_side=True)

    server = threading.Thread(target=serve, name="tls server")
    server.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    server.join()


@pytest.mark.parametrize("face", [SyncFace, AsyncFace], ids=lambda face: face.name)
async def test_the_client_goes_on_and_names_it_at_the_end(tls_port: int, face: Any) -> None:
    tls = f"stomp://127.0.0.1:{tls_port}"
    with Broker(Store()) as broker:
        async with await face.connect(f"failover:({tls},{broker.uri})?randomize=false") as connection:
            await connection.session().producer(Q).send("by the second")
        assert broker.store.bodies(Q) == [b"by the second"]
    with pytest.raises(ConnectError) as raised:
        await face.connect(f"failover:({tls},{broker.uri})?maxReconnectAttempts=2")
    assert "before it answered CONNECT: is it a STOMP port, and one without TLS?" in str(raised.value)
    assert f"{tls}" in str(raised.value)
    assert f"{broker.uri}: Connection refused" in str(raised.value)
