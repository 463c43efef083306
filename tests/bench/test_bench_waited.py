"""The bench of attacks: another client is measured beside each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import cli, waited
from tests.certificates import needs_openssl


@needs_openssl
@pytest.mark.deep
def test_each_attack_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "terminate_on_signal", lambda: None)
    names = ("none", "COMMIT of a series", "records of one byte, TLS")
    words = [word for name in names for word in ("--attack", name)]
    file = tmp_path / "waited.json"
    words += ["--seconds", "0.5", "--json", str(file), "--dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["waited", *words])
    waited.main()
    rows = json.loads(file.read_text())["rows"]
    assert [row["attack"] for row in rows] == list(names)
    assert all(row["sent"] and 0 < row["median_ms"] <= row["p99_ms"] <= row["max_ms"] for row in rows)
    assert [path.name for path in tmp_path.iterdir()] == [file.name], "the stores are gone"
