"""Our client over TLS with real brokers: both faces, whose certificate it takes, and a takeover. Real certificates."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from faces import AsyncFace, SyncFace
from fake_broker import Broker as PlainBroker
from fake_broker import Store

from amq.client import ConnectError, UriError
from tests.brokers import Broker, Brokers
from tests.certificates import Authority, Pair, needs_openssl
from tests.patience import DEADLINE_S

pytestmark = needs_openssl
Q = "/queue/q"
BIG = bytes(range(256)) * 8192  # two MiB: many records, and more than the kernel takes at once
faces = pytest.mark.parametrize("face", [SyncFace, AsyncFace], ids=lambda face: face.name)


@pytest.fixture(scope="module")
def server(authority: Authority) -> Pair:
    return authority.pair("server")


def group(directory: Path, authority: Authority, server: Pair, **more: object) -> Brokers:
    options: dict[str, Any] = {
        "certificate": server.certificate,
        "certificateKey": server.key,
        "trust": authority.trust,
        **more,
    }
    return Brokers(directory, scheme="stomp+ssl", **options)


def address(broker: Broker, host: str = "localhost") -> str:
    return f"stomp+ssl://{host}:{broker.port}"


def url_of(brokers: list[Broker], authority: Authority, more: str = "") -> str:
    return f"failover:({','.join(map(address, brokers))})?trust={authority.trust}{more}"


@faces
async def test_messages_go_both_ways_and_on_after_a_kill(
    face: Any, authority: Authority, server: Pair, tmp_path: Path
) -> None:
    with group(tmp_path, authority, server) as brokers:
        first = brokers.master("a")
        second = brokers.slave("b")
        second.wait_ready()
        async with await face.connect(url_of([first, second], authority)) as connection:
            assert str(connection.uri).startswith("stomp+ssl://")
            session = connection.session()
            producer = session.producer(Q)
            await producer.send(BIG)
            await producer.send("before")
            first.kill()
            await producer.send("after")
            assert connection.uri.port == second.port
            consumer = await session.consumer(Q)
            for expected in (BIG, b"before", b"after"):
                message = await consumer.receive(timeout=DEADLINE_S)
                assert message is not None
                assert message.body == expected
                await message.ack()


@faces
async def test_a_client_certificate_is_the_login(face: Any, authority: Authority, server: Pair, tmp_path: Path) -> None:
    alice, mallory = authority.pair("alice"), authority.pair("mallory")
    crl = authority.revoke(mallory)
    more = {"clientCertificate": "need", "certificateUser": "cn", "anonymous": "no", "revokedCertificates": crl}
    users = tmp_path / "users"
    users.write_text("")
    with group(tmp_path, authority, server, usersFile=users, **more) as brokers:
        broker = brokers.master()
        with_alice = f"&certificate={alice.certificate}&certificateKey={alice.key}"
        async with await face.connect(url_of([broker], authority, with_alice)) as connection:
            await connection.session().producer(Q).send("mine")
        with pytest.raises(ConnectError) as none:
            await face.connect(f"{address(broker)}?trust={authority.trust}")
        assert "it wants a certificate of this client: set certificate" in str(none.value)
        with pytest.raises(ConnectError) as revoked:
            pair = f"certificate={mallory.certificate}&certificateKey={mallory.key}"
            await face.connect(f"{address(broker)}?trust={authority.trust}&{pair}")
        assert "it refuses the certificate of this client" in str(revoked.value)


@faces
async def test_what_cannot_be_trusted_is_told_with_the_cure(face: Any, authority: Authority, tmp_path: Path) -> None:
    other = authority.pair("elsewhere", names="DNS:elsewhere.example")

    async def refusal(url: str) -> str:
        with pytest.raises(ConnectError) as raised:
            await face.connect(url)
        return str(raised.value)

    with group(tmp_path, authority, other) as brokers:
        broker = brokers.master()
        uri, trust = address(broker), f"trust={authority.trust}"
        assert "set trust to a PEM file with the CA" in await refusal(uri)
        assert "or set serverName" in await refusal(f"{uri}?{trust}")
        assert "or set serverName" in await refusal(f"{address(broker, '127.0.0.1')}?{trust}")
        named = f"{uri}?{trust}&serverName=elsewhere.example"
        async with await face.connect(named) as connection:
            await connection.session().producer(Q).send("x")
        with PlainBroker(Store()) as plain:
            said = await refusal(f"{str(plain.uri).replace('stomp', 'stomp+ssl')}?{trust}")
            assert "does not speak TLS" in said or "closed the connection during the TLS handshake" in said
            # A failover list goes on to the next one.
            both = f"failover:({address(broker, '127.0.0.1')}?{trust},{named})?randomize=false"
            async with await face.connect(both) as connection:
                assert connection.uri.host == "localhost"
        text = await refusal(f"stomp://localhost:{broker.port}")
        assert "is it a STOMP port, and one without TLS?" in text or "write stomp+ssl://" in text


@faces
async def test_files_that_cannot_be_used_are_told_at_once(
    face: Any, authority: Authority, server: Pair, tmp_path: Path
) -> None:
    other = authority.pair("other")
    absent = tmp_path / "absent.pem"
    for options, says in (
        (f"trust={absent}", "option trust: .*no such file"),
        (f"trust={server.key}", "option trust: "),
        (f"trust={authority.trust}&certificate={server.certificate}&certificateKey={other.key}", "mismatch"),
        (
            f"certificate={server.certificate}&certificateKey={server.key}&certificateKeyPasswordFile={absent}",
            "certificateKeyPasswordFile",
        ),
    ):
        with pytest.raises(UriError, match=says):
            await face.connect(f"failover:(stomp+ssl://localhost:1)?{options}")


@faces
async def test_a_renewed_client_certificate_is_used_for_the_next_connection(
    face: Any, authority: Authority, server: Pair, tmp_path: Path
) -> None:
    live = Pair(tmp_path / "live.pem", tmp_path / "live.key")

    def copy(pair: Pair) -> None:
        shutil.copy(pair.certificate, live.certificate)
        shutil.copy(pair.key, live.key)

    copy(authority.pair("carol"))
    more = {"clientCertificate": "need", "certificateUser": "cn"}
    only_dave = tmp_path / "users.properties"
    only_dave.write_text("dave=CN=dave, O=example, C=DE\n")
    with group(tmp_path, authority, server, **more) as brokers:
        first = brokers.master("a")
        second = brokers.slave("b", certificateUsersFile=only_dave)
        pair = f"&certificate={live.certificate}&certificateKey={live.key}"
        async with await face.connect(url_of([first, second], authority, pair)) as connection:
            copy(authority.pair("dave"))
            os.utime(live.key)
            first.kill()
            await connection.session().producer(Q).send("by dave")
            assert connection.uri.port == second.port


def test_the_commands_speak_tls(authority: Authority, server: Pair, tmp_path: Path) -> None:
    with group(tmp_path, authority, server) as brokers:
        broker = brokers.master()
        amq = [sys.executable, "-m", "amq.cli.main"]
        there = ["--url", url_of([broker], authority, f"&timeout={DEADLINE_S * 1000:.0f}"), "--destination", Q]
        subprocess.run([*amq, "producer", *there, "--count", "3", "--size", "10"], check=True, capture_output=True)
        done = subprocess.run(
            [*amq, "consumer", *there, "--count", "3", "--json"], check=True, capture_output=True, text=True
        )
        assert '"messages": 3' in done.stdout or done.stdout.count("\n") >= 1, done.stdout
