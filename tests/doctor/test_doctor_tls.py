"""`amq doctor --tls`: what it says of real brokers, and its exit codes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from amq.cli import exits
from tests.brokers import Broker, Brokers
from tests.certificates import Authority, needs_openssl
from tests.ports import free_port
from tests.sampling import only

pytestmark = needs_openssl


def ask(url: str, code: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "amq.cli.main", "doctor", "--tls", url, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def levels(broker: dict[str, Any]) -> dict[str, str]:
    return {finding["topic"]: finding["level"] for finding in broker["findings"]}


def group(directory: Path, authority: Authority, days: int = 60, **more: object) -> Brokers:
    server = authority.pair("server", days=days, file=f"server-{days}")
    return Brokers(
        directory,
        scheme="auto+ssl",
        certificate=server.certificate,
        certificateKey=server.key,
        trust=authority.trust,
        **more,
    )


def url(broker: Broker, authority: Authority, more: str = "") -> str:
    return f"stomp+ssl://localhost:{broker.port}?trust={authority.trust}{more}"


def test_a_good_port_and_a_slave_that_does_not_listen(authority: Authority, tmp_path: Path) -> None:
    with group(tmp_path, authority) as brokers:
        broker = brokers.master()
        both = f"failover:({url(broker, authority).partition('?')[0]},stomp+ssl://127.0.0.1:{free_port()})"
        report = ask(f"{both}?trust={authority.trust}", exits.OK)
        assert report["verdict"] == "fit"
        first, second = report["brokers"]
        assert (first["accepted"], first["protocol"], first["versions"]) == (True, "TLSv1.3", ["1.3"])
        assert first["client_certificate"] == "none"
        assert first["certificate"]["subject"] == "CN=server, O=example, C=DE"
        assert "DNS:localhost" in first["certificate"]["names"]
        assert first["certificate"]["days_left"] in (59, 60)
        assert not second["reachable"]
        people = subprocess.run(
            [sys.executable, "-m", "amq.cli.main", "doctor", "--tls", url(broker, authority)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "CN=server" in people.stdout
        assert people.stdout.rstrip().endswith("fit")


@pytest.mark.parametrize("minimum", only(["1.2", "1.3"], "1.3"))
def test_a_port_that_needs_a_certificate(authority: Authority, tmp_path: Path, minimum: str) -> None:
    alice = authority.pair("alice")
    with group(tmp_path, authority, clientCertificate="need", tlsMinimumVersion=minimum) as brokers:
        broker = brokers.master()
        (without,) = ask(url(broker, authority), exits.FAILED)["brokers"]
        assert (without["client_certificate"], without["accepted"]) == ("need", False)
        assert levels(without)["client certificate"] == "unfit"
        assert "it wants a certificate of this client" in str(without["findings"]) or minimum == "1.2"
        stranger = Authority(tmp_path / "other").pair("alice")
        shown = f"&certificate={stranger.certificate}&certificateKey={stranger.key}"
        (refused,) = ask(url(broker, authority, shown), exits.FAILED)["brokers"]
        assert "it refuses the certificate of this client" in str(refused["findings"])
        (with_one,) = ask(url(broker, authority, f"&certificate={alice.certificate}&certificateKey={alice.key}"), 0)[
            "brokers"
        ]
        assert with_one["accepted"]
        assert with_one["versions"] == (["1.2", "1.3"] if minimum == "1.2" else ["1.3"])


def test_a_port_that_wants_one_and_a_certificate_that_ends_soon(authority: Authority, tmp_path: Path) -> None:
    with group(tmp_path, authority, days=10, clientCertificate="want") as brokers:
        report = ask(url(brokers.master(), authority), exits.OK)
        assert report["verdict"] == "fit with warnings"
        (met,) = report["brokers"]
        assert met["client_certificate"] == "want"
        assert levels(met)["valid until"] == "warning"


def test_what_a_client_would_refuse(authority: Authority, tmp_path: Path) -> None:
    with group(tmp_path, authority) as brokers:
        broker = brokers.master()
        (stranger,) = ask(f"stomp+ssl://localhost:{broker.port}", exits.FAILED)["brokers"]
        assert levels(stranger)["trust"] == "unfit"
        assert stranger["certificate"]["issuer"] == "CN=test CA"
        wrong = url(broker, authority, "&serverName=elsewhere.example")
        (named,) = ask(wrong, exits.FAILED)["brokers"]
        assert "or set serverName" in str(named["findings"])


@pytest.mark.deep
def test_nobody_listens_or_speaks_no_tls(tmp_path: Path) -> None:
    report = ask(f"stomp+ssl://127.0.0.1:{free_port()}", exits.TRANSPORT)
    assert report["verdict"] == "unreachable"
    with Brokers(tmp_path) as brokers:
        (plain,) = ask(f"stomp+ssl://127.0.0.1:{brokers.master().port}?connectTimeout=1000", exits.FAILED)["brokers"]
        assert levels(plain) == {"handshake": "unfit"}
    with socket.create_server(("127.0.0.1", 0)) as mute:
        report = ask(f"stomp+ssl://127.0.0.1:{mute.getsockname()[1]}?connectTimeout=300", exits.TRANSPORT)
        assert report["verdict"] == "unreachable"
