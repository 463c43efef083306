"""A query of Spark that writes to several stores while what takes part is killed: a process, for it has a JVM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.brokers import ROOT
from tests.patience import DEADLINE_S
from tests.spark.conftest import need_spark

TURNS = 4


@pytest.mark.thorough
def test_each_micro_batch_is_there_wholly_or_not_at_all(tmp_path: Path) -> None:
    need_spark()
    command = [sys.executable, "-m", "tests.cluster.spanning_kills", "--spark", "--turns", str(TURNS)]
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, timeout=8 * DEADLINE_S)
    said = (tmp_path / "log").read_text()
    assert done.returncode == 0, said[-4000:]
    assert f"{TURNS} kills; committed " in said
    assert said.endswith("each in all stores or in none, and once\n")
