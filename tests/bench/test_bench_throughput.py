"""Turns, ratios and targets; takeover and recovery on the real broker."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from bench import brokers, recovery, takeover
from bench.throughput import DRAIN_NAME, ROWS, Scale, Turn, measure, summarise, table

LATENCIES = {"p50": 1000, "p99": 2000}


def turns(row: str, **rates: list[float]) -> list[Turn]:
    return [Turn(row, kind, rate, 10.0, 5.0, LATENCIES, {}) for kind, values in rates.items() for rate in values]


def test_ratio_is_the_median_of_neighbours() -> None:
    row = ROWS["1/1 window 1"]
    (line,) = summarise(turns(row.name, ours=[100, 300, 200], peer=[100, 100, 100]), [row], ["ours", "peer"])
    assert line["per_s"]["ours"] == {"median": 200, "low": 100, "high": 300}
    assert line["ratio"] == {"median": 2.0, "low": 1.0, "high": 3.0}
    assert line["met"]
    (line,) = summarise(turns(row.name, ours=[100, 120, 140], peer=[100, 100, 100]), [row], ["ours", "peer"])
    assert not line["met"]
    assert table([line], ["ours", "peer"]).row_count == 1


def test_one_kind_has_no_ratio() -> None:
    row = ROWS["1/1 window 1"]
    (line,) = summarise(turns(row.name, ours=[1.0]), [row], ["ours"])
    assert "ratio" not in line
    assert table([line], ["ours"]).row_count == 1


@pytest.mark.deep
def test_beside_another_checkout(tmp_path: Path) -> None:
    """Each broker runs the code of its own checkout."""
    other = tmp_path / "other"
    shutil.copytree(brokers.ROOT / "amq", other / "amq")
    (other / ".venv").symlink_to(sys.prefix)
    (other / "amq" / "cli").symlink_to(brokers.ROOT / "cli")
    report = measure(["amq", str(other)], [ROWS["1/1 window 1"]], Scale(1, 0.1, 0.1), 100, str(tmp_path), {}, print)
    assert report["rows"][0]["ratio"]["median"] > 0
    with brokers.Group(str(other), directory=str(tmp_path)) as group:
        running = Path(f"/proc/{group.brokers[0].pid}/cwd").resolve()
    assert running == other


def test_a_peer_that_is_none_is_named() -> None:
    with pytest.raises(brokers.BrokerError, match=r"'kafka' is no peer: name one of amq, activemq, or a checkout"):
        brokers.broker_class("kafka")


@pytest.mark.deep
def test_short_run(memory_kind: str, tmp_path: Path) -> None:
    rows = [ROWS["4/4 window 256"], ROWS["send only, 4 producers"]]
    said: list[str] = []
    report = measure([memory_kind], rows, Scale(2, 0.1, 0.1, 400), 100, str(tmp_path), {}, said.append)
    assert [line["row"] for line in report["rows"]] == [row.name for row in rows] + [DRAIN_NAME]
    assert all(line["per_s"][memory_kind]["high"] > 0 for line in report["rows"])
    assert len(report["turns"]) == 6
    assert said


@pytest.mark.deep
def test_takeover_and_recovery(tmp_path: Path) -> None:
    result = takeover.measure("amq", 100, 1, 1, 500, str(tmp_path), {}, lambda _text: None)
    assert 0 < result["spread"]["first_message_s"]["median"] < 30
    assert 0 < result["spread"]["first_receipt_s"]["median"] < 30
    empty, full = recovery.measure("amq", [200], 1, str(tmp_path), {}, lambda _text: None)
    assert (empty["messages"], full["messages"]) == (0, 200)
    assert full["spread"]["store_bytes"]["median"] >= 200 * 1024
    assert list(tmp_path.iterdir()) == []
