"""The churn soak, with small numbers: a real broker keeps its memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import churn, cli


@pytest.mark.deep
def test_a_real_broker_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(churn, "SETTLE_S", 0.3)
    monkeypatch.setattr(churn, "ROUNDS", 20)
    monkeypatch.setattr(cli, "terminate_on_signal", lambda: None)
    words = ["--connections", "600", "--subscriptions", "3000", "--queues", "600", "--broken", "20"]
    files = ["--json", str(tmp_path / "churn.json"), "--png", str(tmp_path / "churn.png"), "--dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["churn", *words, *files])
    with pytest.raises(SystemExit) as caught:
        churn.main()
    report = json.loads((tmp_path / "churn.json").read_text())
    assert caught.value.code == 0, report
    assert report["passed"]
    assert report["end_bytes"] < report["base_bytes"] * 1.3
    assert len(report["samples"]) == churn.ROUNDS + 1
    assert (tmp_path / "churn.png").stat().st_size < 60_000
