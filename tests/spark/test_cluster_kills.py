"""A stream on a standalone cluster, with direct reads: executors, the driver, Spark's master and the master of the
brokers are killed with -9, and each message comes once."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="no PySpark: run make .venv/.installed-test")
pytest.importorskip("pyarrow", reason="no pyarrow: run make .venv/.installed-test")

from tests.brokers import Brokers
from tests.spark import cluster_kills
from tests.spark.conftest import need_spark


@pytest.mark.deep
def test_each_message_comes_once_on_a_cluster(brokers: Brokers, tmp_path: Path) -> None:
    need_spark()
    seed = int.from_bytes(os.urandom(4), "big")
    luck, kinds = random.Random(seed), [*cluster_kills.KINDS]
    luck.shuffle(kinds)
    print(f"seed {seed}: {kinds}")
    found = cluster_kills.run(brokers, tmp_path, kinds, luck, print)
    assert (found.came, found.lost[:10], found.doubled[:10]) == (found.sent, [], []), f"seed {seed}: {found.log}"
    assert found.kills == Counter(cluster_kills.KINDS)
    assert found.direct > found.fallback


def test_the_count_finds_what_came_twice(tmp_path: Path) -> None:
    for batch, values in enumerate(([1, 2], [2, 3])):
        (tmp_path / f"{batch}.json").write_text(json.dumps(values))
    (tmp_path / "2.tmp").write_text("[9]")  # of a batch that a killed driver did not end
    assert cluster_kills.count(tmp_path) == {1: 1, 2: 2, 3: 1}
