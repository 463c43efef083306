"""The TLS ports of real brokers: who gets in, as whom, what strangers cost, and a certificate that is renewed."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import Broker, Brokers
from tests.certificates import Authority, Pair, needs_openssl, s_client
from tests.patience import DEADLINE_S

pytestmark = needs_openssl
CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"
OLD_CONNECTIONS = 10
RENEWALS = 2


@pytest.fixture(scope="module")
def server(authority: Authority) -> Pair:
    return authority.pair("server")


def options(authority: Authority, server: Pair, **more: object) -> dict[str, Any]:
    return {
        "scheme": "auto+ssl",
        "certificate": server.certificate,
        "certificateKey": server.key,
        "trust": authority.trust,
        **more,
    }


def client_context(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.trust))
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


def dial(broker: Broker, context: ssl.SSLContext) -> ssl.SSLSocket:
    sock = socket.create_connection(("127.0.0.1", broker.port), DEADLINE_S)
    return context.wrap_socket(sock, server_hostname="localhost")


def ask(sock: socket.socket, frame: bytes = CONNECT) -> bytes:
    """The answer to `frame`, b"" where the broker closes instead."""
    said = b""
    try:
        sock.sendall(frame)
        while b"\0" not in said and (data := sock.recv(4096)):
            said += data
    except (ssl.SSLError, ConnectionError):
        return b""
    return said


def memory_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


def test_openssl_gets_in(authority: Authority, server: Pair, tmp_path: Path) -> None:
    with Brokers(tmp_path, **options(authority, server)) as brokers:
        broker = brokers.master()
        assert s_client(broker.port, authority, CONNECT, b"CONNECTED") == b"CONNECTED\n"


def test_client_certificates_name_users_and_are_needed(authority: Authority, server: Pair, tmp_path: Path) -> None:
    alice, mallory = authority.pair("alice"), authority.pair("mallory")
    crl = authority.revoke(mallory)
    more = {"clientCertificate": "need", "certificateUser": "cn", "revokedCertificates": crl, "logLevel": "debug"}
    with Brokers(tmp_path, **options(authority, server, **more)) as brokers:
        broker = brokers.master()
        with dial(broker, client_context(authority, alice)) as sock:
            assert ask(sock).startswith(b"CONNECTED\n")
        for stranger in (None, mallory):
            with dial(broker, client_context(authority, stranger)) as sock:
                assert ask(sock) == b""
        wrong = CONNECT.replace(b"\n\n", b"\nlogin:bob\n\n")
        with dial(broker, client_context(authority, alice)) as sock:
            assert b"the client's certificate is of another user" in ask(sock, wrong)
        reasons = [line["reason"] for line in broker.said("TLS handshake failed")]
        assert reasons[0] == "the client sent no certificate, and clientCertificate is need"


def refusal(broker: Broker, context: ssl.SSLContext) -> str:
    """The alert by which the broker refuses a client."""
    with pytest.raises(ssl.SSLError) as refused, dial(broker, context) as sock:
        sock.sendall(CONNECT)
        sock.recv(4096)
    return str(refused.value.reason)


def test_refused_clients_are_told_why(authority: Authority, server: Pair, tmp_path: Path) -> None:
    """By an alert of TLS, which every client can show, not by the mere end of the connection."""
    mallory, stranger = authority.pair("mallory"), Authority(tmp_path / "other").pair("alice")
    old = client_context(authority, authority.pair("alice"))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    more = {"clientCertificate": "need", "certificateUser": "cn", "revokedCertificates": authority.revoke(mallory)}
    with Brokers(tmp_path, **options(authority, server, **more)) as brokers:
        broker = brokers.master()
        assert refusal(broker, old) == "TLSV1_ALERT_PROTOCOL_VERSION"
        assert refusal(broker, client_context(authority)) == "TLSV13_ALERT_CERTIFICATE_REQUIRED"
        assert refusal(broker, client_context(authority, mallory)) == "SSLV3_ALERT_CERTIFICATE_REVOKED"
        assert refusal(broker, client_context(authority, stranger)) == "TLSV1_ALERT_UNKNOWN_CA"


def test_another_master_serves_tls_after_a_kill(authority: Authority, server: Pair, tmp_path: Path) -> None:
    with Brokers(tmp_path, **options(authority, server)) as brokers:
        first = brokers.master("a")
        second = brokers.slave("b")
        send = b"SEND\ndestination:/queue/q\nreceipt:1\n\norder\0"
        with dial(first, client_context(authority)) as sock:
            assert ask(sock).startswith(b"CONNECTED\n")
            assert b"receipt-id:1" in ask(sock, send)
            first.kill()
        second.wait_serving()
        with dial(second, client_context(authority)) as sock:
            assert ask(sock).startswith(b"CONNECTED\n")
            assert b"order" in ask(sock, b"SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0")


def test_a_port_with_and_without_tls(authority: Authority, server: Pair, tmp_path: Path) -> None:
    with Brokers(tmp_path, **options(authority, server, tlsOptional="true")) as brokers:
        broker = brokers.master()
        with socket.create_connection(("127.0.0.1", broker.port), DEADLINE_S) as sock:
            assert ask(sock).startswith(b"CONNECTED\n")
        with dial(broker, client_context(authority)) as secure:
            assert ask(secure).startswith(b"CONNECTED\n")


def test_older_versions_are_an_option(authority: Authority, server: Pair, tmp_path: Path) -> None:
    old = client_context(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with Brokers(tmp_path, **options(authority, server)) as brokers:
        broker = brokers.master()
        with pytest.raises(ssl.SSLError):
            dial(broker, old)
    both = options(authority, server, tlsMinimumVersion="1.2")
    with Brokers(tmp_path, **both) as brokers, dial(brokers.master(), old) as sock:
        assert sock.version() == "TLSv1.2"
        assert ask(sock).startswith(b"CONNECTED\n")


class Traffic:
    """Old connections that send and wait for receipts, and new ones again and again, until told to stop."""

    def __init__(self, broker: Broker, context: ssl.SSLContext) -> None:
        self.broker = broker
        self.context = context
        self.failed: list[str] = []
        self.made = self.confirmed = 0
        self.done = threading.Event()
        self.old = [dial(broker, context) for _ in range(OLD_CONNECTIONS)]
        for sock in self.old:
            assert ask(sock).startswith(b"CONNECTED\n")
        self.threads = [threading.Thread(target=self._connect), threading.Thread(target=self._send)]

    def __enter__(self) -> Traffic:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        for thread in self.threads:
            thread.join()
        for sock in self.old:
            sock.close()

    def _connect(self) -> None:
        while not self.done.is_set():
            try:
                with dial(self.broker, self.context) as sock:
                    if not ask(sock).startswith(b"CONNECTED\n"):
                        self.failed.append("a new connection: no answer")
                self.made += 1
            except OSError as error:
                self.failed.append(f"a new connection: {error}")

    def _send(self) -> None:
        while not self.done.is_set():
            for number, sock in enumerate(self.old):
                if b"receipt-id:1" not in ask(sock, b"SEND\ndestination:/queue/q\nreceipt:1\n\nx\0"):
                    self.failed.append(f"the old connection {number}")
                    return
                self.confirmed += 1


def test_a_certificate_is_renewed_under_load(authority: Authority, server: Pair, tmp_path: Path) -> None:
    """No new connection fails and no old one is dropped, also while only one of two files is written."""
    live = Pair(tmp_path / "live.pem", tmp_path / "live.key")
    shutil.copy(server.certificate, live.certificate)
    shutil.copy(server.key, live.key)
    with Brokers(tmp_path, **options(authority, live)) as brokers:
        broker = brokers.master()
        with Traffic(broker, client_context(authority)) as traffic:
            serials = {(traffic.old[0].getpeercert() or {})["serialNumber"]}
            for number in range(RENEWALS):
                renewed = authority.pair("server", file=f"renewed{number}")
                seen, made = len(broker.log), traffic.made
                shutil.copy(renewed.certificate, live.certificate)
                told = broker.wait_event("certificates not changed", after=seen)
                assert "do not belong together" in told["reason"]
                with dial(broker, client_context(authority)) as sock:
                    assert (sock.getpeercert() or {})["serialNumber"] in serials, "a wrong pair changes nothing"
                shutil.copy(renewed.key, live.key)
                broker.wait_event("certificates read: new connections get them", after=seen)
                with dial(broker, client_context(authority)) as new:
                    serial = (new.getpeercert() or {})["serialNumber"]
                    assert serial not in serials
                    serials.add(serial)
                    assert ask(new).startswith(b"CONNECTED\n")
                assert traffic.made > made, "there was load meanwhile"
        assert traffic.failed == []
        assert traffic.confirmed > OLD_CONNECTIONS
        status = json.loads(
            subprocess.run(
                [sys.executable, "-m", "amq.cli.main", "status", "--store", brokers.store, "--json"],
                check=True,
                capture_output=True,
            ).stdout
        )
        assert status["master"]["certificate"]["subject"] == "CN=server, O=example, C=DE"
