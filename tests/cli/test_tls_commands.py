"""Commands that open sockets of their own, on a TLS port: `amq perf`, `amq status --url`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.brokers import Brokers
from tests.certificates import Authority, needs_openssl
from tests.cli.amq_process import amq, amq_json

pytestmark = [needs_openssl, pytest.mark.deep]


def test_perf_and_status_speak_tls(authority: Authority, tmp_path: Path) -> None:
    pair = authority.pair("server")
    with Brokers(tmp_path, scheme="stomp+ssl", certificate=pair.certificate, certificateKey=pair.key) as brokers:
        url = f"stomp+ssl://127.0.0.1:{brokers.master().port}"
        found = amq_json("perf", "--url", f"{url}?trust={authority.trust}", "--count", 2000, "--window", 32)
        assert found["result"]["messages"] == 2000
        assert "tls" not in found["load"]
        refused = amq("perf", "--url", url, "--count", 10)
        assert (refused.returncode != 0, "its certificate is refused" in refused.stderr) == (True, True)
        (told,) = amq_json("status", "--url", f"{url}?trust={authority.trust}")["brokers"]
        assert told["state"] == "serving"
