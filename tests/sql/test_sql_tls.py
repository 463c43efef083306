"""TLS between brokers and a real PostgreSQL with a certificate of a private CA."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from amq.cli import exits
from amq.cli.main import main
from tests.brokers import Brokers
from tests.certificates import Authority, Pair, needs_openssl
from tests.postgres import Postgres, needs_postgres, postgres
from tests.traffic import drain, send

pytestmark = [needs_postgres, needs_openssl]


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.pair("server", names="DNS:localhost")


@pytest.fixture(scope="module")
def secured(authority: Authority, pair: Pair) -> Iterator[Postgres]:
    with postgres(listen_addresses="*") as server:
        server.serve_tls(pair, authority.trust)
        server.let_in("hostssl all certified all cert", "host all all all scram-sha-256")
        server.ask("CREATE ROLE certified LOGIN SUPERUSER")
        yield server


def doctor(*words: str) -> tuple[int, dict[str, Any], str]:
    """(exit code, the finding about the connection, stderr)."""
    done = CliRunner().invoke(main, ["doctor", *words, "--quick", "--json"])
    findings = json.loads(done.stdout)["findings"] if done.stdout else []
    return done.exit_code, next((each for each in findings if each["topic"] == "connection"), {}), done.stderr


def verified(authority: Authority) -> tuple[str, str]:
    return "sslmode=verify-full", f"sslrootcert={authority.trust}"


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["store", "locker"])
def test_a_master_whose_server_shows_another_name_is_deposed_and_comes_back(
    secured: Postgres, authority: Authority, pair: Pair, tmp_path: Path, kind: str
) -> None:
    secured.ask(f"CREATE DATABASE {kind}")
    url = secured.tcp_url(kind, *verified(authority))
    options = {"locker": url} if kind == "locker" else {}
    with Brokers(tmp_path, url if kind == "store" else None, **options) as brokers:
        master = brokers.master("a")
        used = secured.ask(
            "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE datname = %s", [kind]
        )
        assert used == [(True,)]
        with master.connect() as connection:
            send(connection, b"kept")
        secured.serve_tls(authority.pair("elsewhere", names="DNS:elsewhere"), authority.trust)
        try:
            before = len(master.log)
            secured.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'amq'")
            master.wait_line(lambda line: "does not match host name" in str(line), "the name", after=before)
            assert not master.said("stopped"), master.log_text()
        finally:
            secured.serve_tls(pair, authority.trust)
        master.wait_serving(after=before)
        with master.connect() as connection:
            assert drain(connection, 1) == [b"kept"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("ca", "did not sign"),
        ("name", "Use a name in the URL that the server's certificate has"),
        ("no tls", "Set ssl = on"),
        ("no file", "does not exist"),
    ],
)
def test_a_server_that_is_not_the_one_meant_is_refused(
    secured: Postgres, authority: Authority, pair: Pair, tmp_path: Path, wrong: str, why: str
) -> None:
    trust = authority.trust
    if wrong == "ca":
        trust = Authority(tmp_path / "other").trust
    if wrong == "no file":
        trust = tmp_path / "none.pem"
    host = "127.0.0.1" if wrong == "name" else "localhost"
    url = secured.tcp_url("postgres", "sslmode=verify-full", f"sslrootcert={trust}", host=host)
    if wrong == "no tls":
        secured.serve_tls(None, trust)
    try:
        code, _, told = doctor(url)
        assert (code, why in told) == (exits.STORE, True), told
        listen = ["--transport", "stomp://127.0.0.1:0", "-o", "logFormat=json"]
        for store in (["--store", url], ["--store", str(tmp_path / "store"), "-o", f"locker={url}"]):
            done = CliRunner().invoke(main, ["start", *store, *listen])
            assert (done.exit_code, why in done.output) == (4, True), done.output
    finally:
        if wrong == "no tls":
            secured.serve_tls(pair, authority.trust)


@pytest.mark.deep
def test_a_certificate_of_the_client_is_its_login(secured: Postgres, authority: Authority, tmp_path: Path) -> None:
    secured.ask("CREATE DATABASE certified")
    client = authority.pair("certified")
    url = secured.tcp_url("certified", *verified(authority)).replace("owner@", "certified@")
    with Brokers(tmp_path, f"{url}&sslcert={client.certificate}&sslkey={client.key}") as brokers:
        with brokers.master("a").connect() as connection:
            send(connection, b"1")
        assert {
            row[0]
            for row in secured.ask(
                "SELECT client_dn FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'certified'"
            )
        } == {"/C=DE/O=example/CN=certified"}
    code, _, told = doctor(url)
    assert (code, "client certificate" in told) == (exits.STORE, True), told


def test_the_doctor_says_whether_the_connection_is_encrypted_and_verified(
    secured: Postgres, authority: Authority
) -> None:
    code, found, _ = doctor(secured.tcp_url("postgres", *verified(authority)))
    assert (code, found["level"]) == (0, "ok")
    assert "sslmode=verify-full" in found["found"]
    assert "TLSv1.3" in found["found"]
    assert doctor(secured.url("postgres"))[1]["found"] == "unencrypted, on this host"
    assert doctor(secured.tcp_url("postgres", "sslmode=disable"))[1]["level"] == "ok"
    for mode, why in (
        ("disable", "can be read"),
        ("require", "anybody on the way"),
        ("verify-ca", "any holder of a certificate"),
    ):
        options = [f"sslmode={mode}", *([f"sslrootcert={authority.trust}"] if mode == "verify-ca" else [])]
        found = doctor(secured.tcp_url("postgres", *options, host=_address()))[1]
        assert (found["level"], why in found["why"]) == ("warning", True), found


def _address() -> str:
    """Of this host, and not the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this host has no address but the loopback's")
        return str(sock.getsockname()[0])
