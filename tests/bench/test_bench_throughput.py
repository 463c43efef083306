"""The benches of throughput, takeover and recovery, with small numbers."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from bench import brokers, floor, recovery, takeover
from bench.throughput import DRAIN_NAME, ROWS, Scale, measure, table


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
def test_the_floor_of_each_row(tmp_path: Path) -> None:
    """The generator accepts no message that is missing or comes twice: the floor keeps what a broker promises."""
    if floor.compiler() is None:
        assert not os.environ.get("CI"), "no C compiler"
        pytest.skip("no C compiler")
    kinds, rows = ["amq", "floor"], list(ROWS.values())
    report = measure(kinds, rows, Scale(1, 0.1, 0.1, 400), 100, str(tmp_path), {}, lambda _text: None)
    assert all(line["floor"]["amq"]["rate"] > 0 for line in report["rows"])
    assert "rate, CPU in the floor's" in [column.header for column in table(report["rows"], kinds).columns]
    assert "ratio" not in report["rows"][0], "the floor is not a peer"


@pytest.mark.deep
def test_takeover_and_recovery(tmp_path: Path) -> None:
    result = takeover.measure("amq", 100, 1, 1, 500, str(tmp_path), {}, lambda _text: None)
    assert 0 < result["spread"]["first_message_s"]["median"] < 30
    assert 0 < result["spread"]["first_receipt_s"]["median"] < 30
    empty, full = recovery.measure("amq", [200], 1, str(tmp_path), {}, lambda _text: None)
    assert (empty["messages"], full["messages"]) == (0, 200)
    assert full["spread"]["store_bytes"]["median"] >= 200 * 1024
    assert list(tmp_path.iterdir()) == []
