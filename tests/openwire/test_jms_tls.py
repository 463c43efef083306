"""The unmodified Java client over TLS: key stores, client certificates, tokens, and a master that is killed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from java_suite import Program

from tests.brokers import Brokers
from tests.certificates import Authority, needs_openssl
from tests.oidc import Issuer

pytestmark = [needs_openssl, pytest.mark.deep]
PASSWORD = "changeit"


def stores(authority: Authority, client: str) -> list[str]:
    """Options of a JVM that trusts the CA, and shows the certificate of `client`, "" = none."""
    trust = authority.folder / "trust.p12"
    if not trust.exists():
        keytool = shutil.which("keytool")
        assert keytool is not None, "it comes with Java"
        subprocess.run(
            [
                keytool,
                "-importcert",
                "-noprompt",
                "-alias",
                "ca",
                "-file",
                authority.trust,
                "-keystore",
                trust,
                "-storetype",
                "PKCS12",
                "-storepass",
                PASSWORD,
            ],
            check=True,
            capture_output=True,
        )
    found = [f"-Djavax.net.ssl.trustStore={trust}", f"-Djavax.net.ssl.trustStorePassword={PASSWORD}"]
    if client:
        pair, store = authority.pair(client), authority.folder / f"{client}.p12"
        subprocess.run(
            [
                "openssl",
                "pkcs12",
                "-export",
                "-in",
                pair.certificate,
                "-inkey",
                pair.key,
                "-out",
                store,
                "-passout",
                f"pass:{PASSWORD}",
            ],
            check=True,
            capture_output=True,
        )
        found += [f"-Djavax.net.ssl.keyStore={store}", f"-Djavax.net.ssl.keyStorePassword={PASSWORD}"]
    return found


class Client:
    """The program `OverTls`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._orders, self._answers = process.stdin, process.stdout

    def ask(self, order: str) -> str:
        self._orders.write(f"{order}\n")
        self._orders.flush()
        return self.answer()

    def answer(self) -> str:
        return self._answers.readline().rstrip("\n")


@contextmanager
def started(java: Program, options: list[str], url: str, *login: str) -> Iterator[Client]:
    command = java.command("suite.OverTls", url, "q", *login)
    process = subprocess.Popen(
        [command[0], *options, *command[1:]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Client(process)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("client", ["", "alice"])
def test_java_goes_on_over_tls_after_a_kill(java: Program, authority: Authority, tmp_path: Path, client: str) -> None:
    server = authority.pair("server")
    options = {
        "certificate": server.certificate,
        "certificateKey": server.key,
        "trust": authority.trust,
        "clientCertificate": "need" if client else "none",
    }
    with Brokers(tmp_path, scheme="openwire+ssl", **options) as brokers:
        first, second = brokers.master("a"), brokers.slave("b")
        url = f"failover:(ssl://localhost:{first.port},ssl://localhost:{second.port})?randomize=false"
        with started(java, stores(authority, client), url) as program:
            assert program.answer() == "connected"
            assert program.ask("send before") == "sent"
            first.kill()
            assert program.ask("send after") == "sent"
            assert program.ask("receive") == "before"
            assert program.ask("receive") == "after"


def test_java_without_a_certificate_is_not_let_in(java: Program, authority: Authority, tmp_path: Path) -> None:
    server = authority.pair("server")
    options = {
        "certificate": server.certificate,
        "certificateKey": server.key,
        "trust": authority.trust,
        "clientCertificate": "need",
    }
    with Brokers(tmp_path, scheme="ssl", **options) as brokers:
        broker = brokers.master()
        with started(java, stores(authority, ""), f"ssl://localhost:{broker.port}") as program:
            assert program.answer() == "", "it ended instead"
        assert broker.wait_event("TLS handshake failed")["reason"].startswith("the client sent no certificate")


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    yield issuer
    issuer.close()


def test_java_logs_in_with_a_token(java: Program, authority: Authority, issuer: Issuer, tmp_path: Path) -> None:
    """As its password, over TLS, and again at the next master; the roles of the token say what it may."""
    server, rules = authority.pair("server"), tmp_path / "permissions.toml"
    rules.write_text('[roles]\nshop = []\n[queues."q"]\nread = ["shop"]\nwrite = ["shop"]\n')
    options = {
        **issuer.options,
        "certificate": server.certificate,
        "certificateKey": server.key,
        "anonymous": "no",
        "permissionsFile": rules,
        "auditLog": "all",
    }
    with Brokers(tmp_path, scheme="openwire+ssl", **options) as brokers:
        first, second = brokers.master("a"), brokers.slave("b")
        url = f"failover:(ssl://localhost:{first.port},ssl://localhost:{second.port})?randomize=false"
        trusting = stores(authority, "")
        token = issuer.token(realm_access={"roles": ["shop"]})
        with started(java, trusting, url, "alice", token) as program:
            assert program.answer() == "connected"
            assert program.ask("send before") == "sent"
            first.kill()
            assert program.ask("receive") == "before"
            assert second.wait_event("login")["shown"] == "token"
        with started(java, trusting, f"ssl://localhost:{second.port}", "alice", issuer.token()) as program:
            assert program.answer() == "connected"
            assert program.ask("send x") == "", "it has no role that may send"
        expired = issuer.token(exp=1)
        with started(java, trusting, f"ssl://localhost:{second.port}", "alice", expired) as program:
            assert program.answer() == "", "it ended instead"
        assert second.wait_event("login refused")["code"] == "LOGIN_REFUSED"
        assert not any(token in str(line) for broker in (first, second) for line in broker.said("login"))
