"""The storm of logins: all clients get in, and those with wrong passwords do not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import cli, logins


@pytest.mark.deep
def test_a_small_storm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "terminate_on_signal", lambda: None)
    monkeypatch.setattr(logins, "CONNECTING_MAX", 7)  # the others wait for their turn
    words = ["--clients", "40", "--users", "1", "--users", "4", "-o", "failedLoginsPerMinute=5"]
    files = ["--json", str(tmp_path / "logins.json"), "--dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["logins", *words, *files])
    logins.main()
    rows = json.loads((tmp_path / "logins.json").read_text())["storms"]
    assert [(row["row"], row["refused"], row["closed"]) for row in rows] == [
        ("one user", 0, 0),
        ("4 users", 0, 0),
        ("tokens", 0, 0),
        ("wrong passwords, one address", 40, 0),
    ]
    assert all(row["clients"] == 40 and 0 < row["half_s"] <= row["all_s"] for row in rows)
    assert all(row["probes"] and 0 < row["probe_p99_ms"] <= row["probe_max_ms"] for row in rows)
