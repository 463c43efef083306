"""Each bench runs, with the smallest numbers with which it can do something, and writes its figures.

The benches check themselves whether a figure is right: no rate for load of which a message was lost, doubled or
changed (`tests/cli/test_load.py`), and promises kept over faults (`test_bench_checker.py`). Speed does not matter here:
a bench whose target was missed has run, too.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import floor, jvm, replication
from tests.brokers import ROOT
from tests.patience import DEADLINE_S
from tests.processes import naming
from tests.sampling import only, thorough
from tests.spark.conftest import need_spark

SHORT = "--repeat 1 --seconds 0.2 --warm-up 0"
ROWS = "--row '4/4 window 256' --row 'send only, 4 producers' --row 'topic, 1/100' --backlog 400"
# A bench and its words → the figures of its report.
BENCHES = {
    f"throughput {ROWS} {SHORT}": "rows",
    "takeover --messages 500 --repeat 1 --keep-alive-ms 500": "takeovers",
    "takeover --client jms --messages 100 --repeat 1": "takeovers",
    f"jms --row 'async 4/4 with ProducerAck' --row 'transactions of 100, 4/4' {SHORT}": "rows",
    f"tls --row '4/4 window 256' {SHORT}": "rows",
    "recovery --backlog 200 --repeat 1": "starts",
    "scale takeover memory --messages 300 --queues 2000 --repeat 1 --output OUTPUT": "points",
    "soak --minutes 0.1 --round 4 --every 0.8 --seed 20": "totals",
    "churn --connections 200 --subscriptions 1000 --queues 200 --broken 5": "samples",
    "console --row '4/4 window 256' --queues 1200 --viewers 2 --repeat 1 --seconds 1 --warm-up 0": "pages",
    "logins --clients 10 --users 2": "storms",
    "waited --attack none --attack 'records of one byte, TLS' --seconds 0.5": "rows",
    "profile --row 'non-persistent 4/4' --quick": "calls",
    "steps --quick": "steps",
    f"gateway --row '4/4 window 256' --idle 20 {SHORT}": "gateway",
    "scaling --quick": "rows",
    "store_takeover --messages 500 --repeat 1 --stores 2": "store_takeover",
    f"replication --row '1/1 window 1' --messages 300 --takeovers 1 {SHORT}": "takeovers",
    "resync --gib 0.002": "resync",
    "moving --messages 500 --repeat 1": "moving",
    "scale_down --messages 300 --later 20 --idle 2 --turns 1": "scale_down",
    "spanning --clients 2 --seconds 0.2 --repeat 1": "spanning",
    "clusters --quick": "clusters",
    "subscriptions --subscriptions 50 --messages 300": "subscriptions",
    "transactions --kind plain --messages 30": "transactions",
    "scheduling --messages 300 --near 45 --span 0.3": "scheduling",
    "spark_sink --rows 1000": "spark_sink",
    "staging --rows 300": "us_per_row",
    "spark_source --rows 500 --trials 1 --only 'queue, batch'": "spark_source",
    "spark_fixed --quick": "spark_fixed",
}
# What would take most of the time, for good figures alone; and what a busy machine would exceed.
CONSTANTS = {
    "resync": {"CALM_S": 0.5, "AFTER_S": 0.1, "TARGET_S": DEADLINE_S},
    "churn": {"ROUNDS": 20, "SETTLE_S": 0.1},
    "clusters": {"QUICK": [400, 0.3, 2.0]},
    "console": {"IDLE_S": 3.0},
    "spark_fixed": {"QUERY_ROWS": 20, "BATCH_ROWS": 10, "BATCHES": 2},
    "soak": {"DRAIN_IDLE_S": DEADLINE_S, "SERVICE_TIMEOUT_S": DEADLINE_S, "JOIN_S": DEADLINE_S},
    "spark_sink": {"WARM_UP_ROWS": 0, "QUICK_JVM": True},
    "spark_source": {"WARM_UP_ROWS": 500, "QUICK_JVM": True},
    "transactions": {"SETTLE_S": 0.1},
}
PROGRAM = """
import importlib, json, sys
bench = importlib.import_module(sys.argv.pop(1))
vars(bench).update(json.loads(sys.argv.pop(1)))
bench.main()
"""
QUICK = "transactions --kind plain --messages 30"
# One of each way to load a broker and to read a figure; `make test-thorough` runs all others.
DEEP = ("throughput", "recovery", "jms", "console", "gateway")


def programs() -> list[Any]:
    deep = [words for words in BENCHES if words.partition(" ")[0] in DEEP]
    others = [words for words in BENCHES if words != QUICK and words not in deep]
    return [QUICK, *only(deep), *thorough(*others)]


@pytest.mark.parametrize("words", programs())
def test_a_bench_runs(words: str, tmp_path: Path) -> None:
    """In a separate process: this one may hold the JVM of other tests."""
    module, *options = shlex.split(words.replace("OUTPUT", str(tmp_path / "output")))
    if module in ("spark_sink", "staging", "spark_source", "spark_fixed"):
        need_spark()
    if "jms" in words or module == "profile":
        why = jvm.missing()
        assert why is None or not os.environ.get("CI"), why
        if why is not None:
            pytest.skip(why)
    directory, report = tmp_path / "stores", tmp_path / "report.json"
    directory.mkdir()
    name, constants = "scale.__main__" if module == "scale" else module, json.dumps(CONSTANTS.get(module, {}))
    words_too = [f"bench.{name}", constants, *options, "--dir", str(directory), "--json", str(report)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words_too], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert report.exists(), done.stderr[-3000:]
    figures = json.loads(report.read_text())
    assert figures[BENCHES[words]]
    assert not figures.get("violations")
    assert not list(directory.iterdir()), "the stores are gone"
    assert not naming(directory), "the brokers are gone"


def test_missed_goals_of_replication_are_named() -> None:
    ratio = {"median": 0.394, "low": 0.3, "high": 0.5, "goal": 1.0, "met": False}
    kept = {"median": 7.2, "low": 7.0, "high": 8.0, "goal": 5.0, "met": True}
    pair, ours = replication.PAIR, f"{replication.REPLICA}-2"
    rows = [
        {"row": "1/1 window 1", "ratios": {f"{ours} : {pair}": ratio}},
        {"row": "4/4", "ratios": {f"{ours} : amq": kept}},
    ]
    took = {"connected_s": {"median": 0.2}, "first_receipt_s": {"median": 2.21}}
    takeovers = [{"kind": pair, "spread": took}, {"kind": ours, "spread": took}]
    missed = replication.missed({"rows": rows, "takeovers": takeovers})
    assert missed == ["1/1 window 1: replica-2 : artemis pair 0.39, goal 1", "takeover of replica-2 2.21 s, goal 1"]
    assert not replication.missed({"rows": rows[1:], "takeovers": takeovers[:1]})


@pytest.mark.deep
@pytest.mark.parametrize("way", [floor.SINK, floor.BY_SOCKET, floor.DIRECT])
def test_rows_have_a_floor(way: str, tmp_path: Path) -> None:
    found = floor.rows(way, 4000, 100, str(tmp_path))
    if found is None:
        pytest.skip("no C compiler here")
    assert found.per_s > 0
    assert found.share(found.per_s / 2) == 0.5
    assert not list(tmp_path.iterdir())


def test_without_kafka_its_bench_says_how_to_get_it() -> None:
    need_spark()
    command = [sys.executable, "-m", "bench.spark_kafka"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("failed: this bench needs the jars of Kafka")
    assert "--fetch DIR" in done.stderr
