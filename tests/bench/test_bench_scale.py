"""The rows of bench.scale with tiny numbers on real brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.scale import backlog, disk, machine, plot, points, rates

TINY = {"journalReserve": "64KiB", "journalBatchSize": "64KiB"}


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is idle for a moment counts as idle; rates of a fraction of a second are enough."""
    monkeypatch.setattr(machine, "IDLE_WINDOW_S", 0.05)
    monkeypatch.setattr("bench.throughput.FIRST_TURN_S", 0.05)


@pytest.mark.deep
@pytest.mark.usefixtures("short_waits")
def test_a_point(tmp_path: Path) -> None:
    wanted = {points.TAKEOVER, points.MEMORY, points.RATES}
    said: list[str] = []
    point = points.measure(300, wanted, 1, str(tmp_path), {}, said.append)
    for name in ("takeover_s", "warm_start_s", "cold_start_s"):
        assert 0 < point[name]["median"] < 60
    for sizes in point["memory"].values():
        assert 10e6 < sizes["pss_bytes"] <= sizes["rss_bytes"] <= sizes["peak_bytes"]
    assert point["store_bytes"] > 300 * 1024
    assert point["drain_per_s"] > 0
    assert points.table([point]).row_count == 1
    assert said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.deep
@pytest.mark.usefixtures("short_waits")
def test_queues(tmp_path: Path) -> None:
    result = points.measure_queues(300, str(tmp_path), {}, backlog.quiet)
    assert result["memory"]["master"]["rss_bytes"] > result["empty_memory"]["master"]["rss_bytes"]
    assert points.queues_table(result).row_count == 1


@pytest.mark.deep
@pytest.mark.usefixtures("short_waits")
def test_disk(tmp_path: Path) -> None:
    scale = disk.Scale(2e6, 600e3, 8, "64KiB", "256KiB")
    results = disk.measure_all(scale, {"disk", "pinning"}, str(tmp_path), TINY, backlog.quiet)
    assert [result["pattern"] for result in results] == [
        "mixed",
        "one in each segment",
        "chained acknowledgements",
        "every other lives",
    ]
    assert disk.table(results).row_count == 4
    for result in results:
        assert 10 < result["record_overhead_bytes"] < 200  # the broker says itself what lives: as much as we left there
        assert result["used_bytes_max"] >= result["live_bytes_max"]
        assert result["sent_bytes"] >= 8 * 65536
    assert 500e3 < results[0]["live_bytes"] < 900e3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.deep
@pytest.mark.usefixtures("short_waits")
def test_throughput_beside_compaction(tmp_path: Path) -> None:
    scale = rates.Throughput(1, 0.2, 0.1, 600e3, alone_options={"prefetchSize": "900"})
    options = {"journalSegmentSize": "256KiB", "journalBatchSize": "256KiB"}
    result = rates.measure_throughput(scale, str(tmp_path), options, backlog.quiet)
    assert len(result["turns"]) == 2
    assert result["ratio"]["low"] > 0
    moved = result["pinned_segments_moved"]  # how many depends on how much went through in so little time
    assert 0 <= moved <= result["pinned_segments"]
    assert ("compaction had nothing to do" in " ".join(rates.misses({"throughput": result}))) == (moved == 0)
    assert rates.table({"throughput": result}).row_count == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.deep
@pytest.mark.usefixtures("short_waits")
def test_drain_from_disk_and_memory(tmp_path: Path) -> None:
    result = rates.measure_drain(500e3, 1, str(tmp_path), {}, backlog.quiet)
    disk_rate, memory_rates = result["rates"]["disk"], result["rates"]["memory"]
    assert result["ratio"]["median"] == pytest.approx(2 * disk_rate[0] / sum(memory_rates))
    assert rates.table({"drain": result}).row_count == 1
    assert rates.misses({"drain": result | {"met": True}}) == []
    assert len(rates.misses({"drain": result | {"met": False}})) == 1


def some_points() -> list[dict[str, Any]]:
    memory = {"master": {"rss_bytes": 5e7}, "slave": {"rss_bytes": 4e7}}
    full = {"takeover_s": {"median": 0.3}, "warm_start_s": {"median": 0.4}, "cold_start_s": {"median": 0.5}}
    return [
        {"messages": 100, "send_per_s": 5e4, "drain_per_s": 6e4, "memory": memory, **full},
        {"messages": 10, "send_per_s": 4e4, "memory": memory},
    ]


@pytest.mark.deep
def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot.draw(some_points(), tmp_path / "scale.png")
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")
