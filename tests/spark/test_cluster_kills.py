"""A stream on a standalone cluster, with direct reads: executors, the driver, Spark's master and the master of the
brokers are killed with -9, and each message comes once."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="no PySpark: run make .venv/.installed-test")
pytest.importorskip("pyarrow", reason="no pyarrow: run make .venv/.installed-test")

import amq
from tests.brokers import ROOT, Brokers
from tests.processes import with_descendants
from tests.spark.conftest import need_spark
from tests.spark.session import environment
from tests.spark.spark_cluster import WAIT_S, Cluster
from tests.spark.test_direct_kills import QUEUE, Group

KINDS = ("executor", "driver", "spark master", "broker")
PER_KILL = 1500
PAUSE_S = 0.1


class Driver:
    """Starts again where it was killed."""

    def __init__(self, directory: Path, master: str, options: dict[str, str]) -> None:
        self.directory = directory
        given = {"directory": str(directory), "master": master, "options": options}
        self._command = [sys.executable, "-m", "tests.spark.cluster_driver", json.dumps(given)]
        self.start()

    def start(self) -> None:
        log = (self.directory / "driver.log").open("ab")
        with log:
            self.process = subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log)

    def kill(self) -> None:
        for pid in with_descendants(self.process.pid):
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def batches(self) -> int:
        return sum(1 for _ in (self.directory / "told").glob("*.json"))

    def log(self) -> str:
        return (self.directory / "driver.log").read_text()[-4000:]

    def wait_batches(self, count: int) -> None:
        """Wait until so many batches are done."""
        pause = threading.Event()
        for _ in range(round(WAIT_S / PAUSE_S)):
            if self.batches() >= count:
                return
            assert self.process.poll() is None, f"the driver ended: {self.log()}"
            pause.wait(PAUSE_S)
        raise AssertionError(f"{self.batches()} batches of {count}: {self.log()}")

    def end(self) -> None:
        (self.directory / "end").touch()
        assert self.process.wait(WAIT_S) == 0, self.log()


def of_store(connection: amq.Connection) -> dict[str, int]:
    """Messages that tasks read from the store, and others."""
    direct, fallback = connection.lease(QUEUE, "c", messages=0).reads
    return {"direct": direct, "fallback": fallback}


@pytest.mark.deep
def test_each_message_comes_once_on_a_cluster(brokers: Brokers, tmp_path: Path) -> None:
    need_spark()
    seed = int.from_bytes(os.urandom(4), "big")
    kinds = [*KINDS]
    random.Random(seed).shuffle(kinds)
    print(f"seed {seed}: {kinds}")
    group = Group(brokers)
    store, sent, kills, reads = group.master.store, 0, Counter[str](), Counter[str]()
    options = {
        "url": group.url,
        "destination": QUEUE,
        "subscription": "c",
        "store": str(store),
        "minPartitions": "4",
        "maxOffsetsPerTrigger": "500",
        "pollInterval": "20ms",
    }
    directory = tmp_path / "run"
    directory.mkdir()
    with Cluster(os.environ | environment(tmp_path / "spark"), tmp_path) as cluster:
        driver = Driver(directory, cluster.url, options)
        try:
            with amq.connect(group.url) as connection, connection.session() as session:
                producer = session.producer(QUEUE)
                for kind in kinds:
                    before = driver.batches()
                    for number in range(sent, sent + PER_KILL):
                        producer.send(str(number), wait=False)
                    producer.flush()
                    sent += PER_KILL
                    driver.wait_batches(before + 1)  # others wait, or are read
                    if kind == "executor":
                        assert cluster.kill_executor()
                    elif kind == "driver":
                        driver.kill()
                        driver.start()
                    elif kind == "spark master":
                        cluster.kill_master()
                    else:
                        reads += Counter(of_store(connection))  # the next master counts anew
                        group.kill()
                    kills[kind] += 1
                driver.end()
                reads += Counter(of_store(connection))
        finally:
            if driver.process.poll() is None:
                driver.kill()
    rows = Counter(value for path in (directory / "told").glob("*.json") for value in json.loads(path.read_text()))
    lost, doubled = set(range(sent)) - rows.keys(), [value for value, times in rows.items() if times > 1]
    assert (len(rows), sorted(lost)[:10], doubled[:10]) == (sent, [], []), f"seed {seed}: {driver.log()}"
    assert kills == Counter(KINDS)
    print(f"{sent} messages, {dict(reads)}")
    assert reads["direct"] > reads["fallback"]
