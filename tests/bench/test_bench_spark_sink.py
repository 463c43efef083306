"""The benches of the Spark sink: a small run of everything gives a figure for each way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import staging
from tests.brokers import ROOT
from tests.spark.conftest import need_spark

WAYS = (
    "socket only",
    *(
        f"exactly-once{columns}{frames}"
        for columns in ("", ", keys", ", keys and headers")
        for frames in ("", ", single frames")
    ),
    "at-least-once",
    "dedup",
    "loop, amq client",
    "loop, stomp.py",
)


def test_the_steps_of_a_row_are_measured(tmp_path: Path) -> None:
    need_spark()
    found = staging.once(300, 100, "key and headers", str(tmp_path))
    assert tuple(found) == staging.STEPS
    assert all(spent_us >= 0 for spent_us in found.values())
    assert sum(found.values()) > 0


@pytest.mark.deep
def test_a_small_run_of_all_ways(tmp_path: Path) -> None:
    """In a separate process: this one may hold the JVM of other tests."""
    need_spark()
    words = [sys.executable, "-m", "bench.spark_sink", "--rows", "1000", "--dir", str(tmp_path), "--json", "-"]
    ended = subprocess.run(words, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    results = json.loads(ended.stdout.splitlines()[-1])["spark_sink"]
    assert [result["way"] for result in results] == list(WAYS)
    assert all(result["rows"] == 1000 and result["rows_per_s"] > 0 for result in results)
