"""Spark Connect: the server finds the formats, and the client needs none of our code."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.brokers import ROOT, Brokers
from tests.spark.conftest import need_spark
from tests.spark.pipeline import QUERY_S_MAX


@pytest.mark.deep
def test_rows_go_both_ways(brokers: Brokers, tmp_path: Path) -> None:
    need_spark()
    if importlib.util.find_spec("grpc") is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("no client of Spark Connect: pyspark[connect]")
    broker = brokers.master()
    given = {"directory": str(tmp_path), "url": f"stomp://127.0.0.1:{broker.port}", "rows": 100}
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_driver", json.dumps(given)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=QUERY_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"kind": "pyspark.sql.connect.session", "looked": 100, "streamed": 100}
