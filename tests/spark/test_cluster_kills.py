"""A stream on a standalone cluster, with direct reads: executors, the driver, Spark's master and the master of the
brokers are killed with -9, and each message comes once."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="no PySpark: run make .venv/.installed-test")
pytest.importorskip("pyarrow", reason="no pyarrow: run make .venv/.installed-test")

from tests.brokers import ROOT, Brokers
from tests.patience import DEADLINE_S
from tests.spark import cluster_kills
from tests.spark.conftest import need_spark


@pytest.mark.deep
def test_each_message_comes_once_on_a_cluster(brokers: Brokers, tmp_path: Path) -> None:
    need_spark()
    seed = int.from_bytes(os.urandom(4), "big")
    luck, kinds = random.Random(seed), [*cluster_kills.KINDS]
    luck.shuffle(kinds)
    print(f"seed {seed}: {kinds}")
    found = cluster_kills.run(brokers, tmp_path, kinds, luck, print, workers=1)
    assert found.is_good, f"seed {seed}: {found.verdict()}"
    assert found.kills == Counter(cluster_kills.KINDS)
    assert found.direct > found.fallback


def test_the_count_finds_what_came_twice(tmp_path: Path) -> None:
    for batch, values in enumerate(([1, 2], [2, 3])):
        (tmp_path / f"{batch}.json").write_text(json.dumps(values))
    (tmp_path / "2.tmp").write_text("[9]")  # of a batch that a killed driver did not end
    assert cluster_kills.count(tmp_path) == {1: 1, 2: 2, 3: 1}


@pytest.mark.parametrize(
    ("ended", "lost", "doubled", "is_good", "said"),
    [
        ("", [], [], True, "3 messages sent, 3 rows came, 0 messages lost,\n0 came twice"),
        ("", [2], [], False, "1 messages lost,\n0 came twice"),
        ("", [], [2], False, "1 came twice"),
        (
            cluster_kills.INTERRUPTED,
            [2],
            [],
            True,
            "1 messages have not come yet: the run was interrupted,\n0 came twice",
        ),
        (cluster_kills.INTERRUPTED, [], [2], False, "failed: missing [], twice [2]"),
        ("the driver ended: of old age", [2], [], False, "1 messages have not come yet: the driver ended: of old age"),
    ],
)
def test_the_verdict(ended: str, lost: list[int], doubled: list[int], is_good: bool, said: str) -> None:
    came = 3 - len(lost) + len(doubled)
    found = cluster_kills.Outcome(ended, 3, came, lost, doubled, Counter(driver=1), 3, 0, "the log of the driver")
    assert found.is_good == is_good
    text = found.verdict()
    assert said in text
    assert "driver" in text
    assert ("failed: " in text) == ("the log of the driver" in text) == (not is_good)


INTERRUPTED = """
import os, signal, subprocess, time
from tests.patience import DEADLINE_S
from tests.spark.cluster_kills import interrupts
from tests.patience import DEADLINE_S

asked = interrupts()
with subprocess.Popen(["sleep", "600"]) as child:
    os.killpg(0, signal.SIGINT)
    assert asked.wait(DEADLINE_S)
    try:
        os.killpg(0, signal.SIGINT)
        while child.poll() is None:
            time.sleep(0.01)
    except KeyboardInterrupt:
        print("interrupted" if child.poll() is None else "the child ended")
    child.kill()
"""


def test_the_first_interrupt_is_asked_for_and_the_second_ends_and_no_child_gets_either() -> None:
    """As a terminal sends it: to each process of the group."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=2 * DEADLINE_S,
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
