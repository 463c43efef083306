"""The churn soak: a real broker keeps its memory, and one that does not is found out."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest

from bench import brokers, churn, cli
from bench.churn import Amounts, Churn, Sample


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


def test_all_is_done_in_parts() -> None:
    whole = Amounts(1001, 7, 50, 3, 10)
    parts = [whole.part(number, 50) for number in range(50)]
    for name in ("connections", "subscriptions", "queues", "broken"):
        assert sum(getattr(part, name) for part in parts) == getattr(whole, name)
    assert {part.broken_bytes for part in parts} == {10}


def test_a_broker_that_grows_is_found_out(memory_kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is the end, against the memory after the first tenth."""
    monkeypatch.setattr(churn, "SETTLE_S", 0.0)
    with brokers.Group(memory_kind) as group:
        grown = itertools.chain([10], itertools.count(100, 3))
        monkeypatch.setattr(group.brokers[0], "memory_bytes", lambda: next(grown))
        trial = Churn(group.brokers[0], Amounts(0, 0, 0, 0), rounds=20)
        monkeypatch.setattr(trial, "_subscribe", lambda _count: None)
        monkeypatch.setattr(trial, "_use_queues", lambda _count: None)
        trial.run()
        assert [sample.rss_bytes for sample in trial.samples[:3]] == [10, 100, 103]
        assert trial.base_bytes == 103
        assert trial.growth == pytest.approx(157 / 103)
        assert not trial.passed
        assert not trial.report()["passed"]
        trial.samples[-1] = Sample(1.0, 1.0, 120)
        assert trial.passed


def test_a_broker_that_dies_is_no_success(memory_kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(churn, "SETTLE_S", 0.0)
    with brokers.Group(memory_kind) as group:
        trial = Churn(group.brokers[0], Amounts(0, 0, 0, 0), rounds=2)
        group.brokers[0].kill()
        with pytest.raises(brokers.BrokerError, match="is gone"):
            trial.run()
