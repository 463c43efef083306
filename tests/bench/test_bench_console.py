"""The bench of the console: one broker, watched and not."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.console import ALONE, NO_LOAD, VIEWED, measure
from bench.throughput import ROWS, Scale


@pytest.mark.deep
def test_the_same_broker_is_measured_with_viewers_and_without(tmp_path: Path) -> None:
    report = measure([ROWS["4/4 window 256"]], Scale(1, 1.0, 0.5), 1200, 2, 100, str(tmp_path), {}, 3.0, print)
    (line,) = report["rows"]
    assert set(line["per_s"]) == {VIEWED, ALONE}
    assert set(report["pages"]) == {"/queues", "/", "/figures.json", "/queue/NAME"}
    assert all(found["count"] >= 2 for found in report["pages"].values())
    assert set(report["loop_lag_p99_s"]) == {VIEWED, ALONE, NO_LOAD}
    assert not list(tmp_path.iterdir()), "the store is gone"
