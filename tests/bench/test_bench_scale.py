"""The rows of bench.scale with tiny numbers on real brokers; what they must not believe, on brokers that lie."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from bench import brokers
from bench.load import LoadError
from bench.scale import backlog, disk, machine, plot, points, rates
from bench.scale.__main__ import ROWS, arguments, main, quick

QUEUE = "/queue/test"
TINY = {"journalReserve": "64KiB", "journalBatchSize": "64KiB"}


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is idle for a moment counts as idle; rates of a fraction of a second are enough."""
    monkeypatch.setattr(machine, "IDLE_WINDOW_S", 0.05)
    monkeypatch.setattr("bench.throughput.FIRST_TURN_S", 0.05)


@pytest.mark.parametrize("messages", [1, 256, 1000])
def test_fill_and_drain(memory_port: int, messages: int) -> None:
    assert backlog.fill(memory_port, messages, QUEUE) > 0
    assert backlog.drain(memory_port, messages, QUEUE, consumers=2) > 0


def test_a_queue_for_each_message(memory_port: int) -> None:
    backlog.fill(memory_port, 300, QUEUE, queues=True)
    assert backlog.drain(memory_port, 1, f"{QUEUE}.{0:012d}", consumers=1) > 0
    with pytest.raises(LoadError, match="a message came that was not sent"):
        backlog.drain(memory_port, 1, f"{QUEUE}.{299:012d}", consumers=1)


@pytest.mark.parametrize(
    ("flaw", "why"), [("lose", "then nothing"), ("double", "came twice"), ("corrupt", "something else than messages")]
)
def test_no_drain_rate_for_a_liar(memory_kind: str, monkeypatch: pytest.MonkeyPatch, flaw: str, why: str) -> None:
    monkeypatch.setattr(backlog, "PATIENCE_S", 1.0)
    with brokers.Group(memory_kind, options={"flaw": flaw}) as group:
        backlog.fill(group.ports[0], 600, QUEUE)
        with pytest.raises(LoadError, match=why):
            backlog.drain(group.ports[0], 600, QUEUE, consumers=1)


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


def test_misses_of_points() -> None:
    small, large = {"rss_bytes": 10**8}, {"rss_bytes": 2 * 10**9}
    good = {"messages": 5, "memory": {"master": small}, "takeover_s": {"median": 0.9}, "cold_start_s": {"median": 9.0}}
    assert points.misses([good]) == []
    bad = {"messages": 5, "memory": {"slave": large}, "takeover_s": {"median": 1.1}, "cold_start_s": {"median": 11.0}}
    assert len(points.misses([good, bad])) == 3


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
def test_a_pump_takes_more_than_the_prefetch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disk, "PATIENCE_S", 5.0)
    with brokers.Group("amq", directory=str(tmp_path), options={"prefetchSize": "10"}) as group:
        pump = disk.Pump(group.ports[0], group.store, backlog.quiet)
        pump.send([(disk.LATE, 200)] * 100)
        pump.queues[disk.LATE].take(50 * 200)
        pump.close()
        assert len(pump.queues[disk.LATE].live) == 50
        assert disk.record_overhead_bytes(group.store) > 0


def test_disk_promise() -> None:
    def sample(live_bytes: int, used_bytes: int) -> disk.Sample:
        return disk.Sample(0.0, 10, live_bytes, used_bytes, used_bytes, 0)

    kept = disk.summarise("kept", [sample(400, 2000), sample(0, 1000)], 10.0, 1000)
    assert (kept["met"], kept["over_segments"], kept["live_bytes_max"]) == (True, 0.0, 500)
    broken = disk.summarise("broken", [sample(400, 2000), sample(0, 1700)], 10.0, 1000)
    assert (broken["met"], broken["over_segments"], broken["used_bytes_max"]) == (False, 0.5, 2000)
    assert disk.misses([kept, broken]) == ["disk, broken: 0.50 segments more than 2 × live + one segment"]


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


def test_a_disk_that_is_too_small(tmp_path: Path) -> None:
    with pytest.raises(machine.SpaceError, match=r"ten things needs about .* GB free .* or ask for less"):
        machine.require_space(str(tmp_path), 1e18, "ten things", "ask for less")


def some_points() -> list[dict[str, Any]]:
    memory = {"master": {"rss_bytes": 5e7}, "slave": {"rss_bytes": 4e7}}
    full = {"takeover_s": {"median": 0.3}, "warm_start_s": {"median": 0.4}, "cold_start_s": {"median": 0.5}}
    return [
        {"messages": 100, "send_per_s": 5e4, "drain_per_s": 6e4, "memory": memory, **full},
        {"messages": 10, "send_per_s": 4e4, "memory": memory},
    ]


def test_curves_are_sorted_and_leave_out_what_was_not_measured() -> None:
    send, drain = plot.PANELS[0].curves.values()
    assert plot.series(send, some_points()) == [(10, 4e4), (100, 5e4)]
    assert plot.series(drain, some_points()) == [(100, 6e4)]


@pytest.mark.deep
def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot.draw(some_points(), tmp_path / "scale.png")
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(plot.PlotError, match=r"pip install -e '\.\[bench\]'"):
        plot.require()


def test_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    args = arguments().parse_args(["disk", "--quick", "--gigabytes", "1", "--directory", str(tmp_path)])
    quick(args)
    assert (args.rows, args.gigabytes, args.repeat, args.dir) == (["disk"], 1.0, 1, str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["scale", "sideways"])
    with pytest.raises(SystemExit):
        main()
    assert f"no row is called sideways: there are {', '.join(ROWS)}" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["takeover", "--messages", "1" + 15 * "0"], ["drain", "--backlog-gigabytes", "1e9"]])
def test_a_run_that_will_not_fit_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scale", *words, "--directory", str(tmp_path), "--output", str(tmp_path / "out")])
    monkeypatch.setattr(brokers, "Group", None)  # none is started
    with pytest.raises(SystemExit, match=r"GB free in .* name another disk with --directory"):
        main()
