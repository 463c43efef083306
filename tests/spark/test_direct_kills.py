"""Direct reads while everything is killed with -9 and the journal is compacted: each message comes once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.patience import DEADLINE_S

pytest.importorskip("pyspark", reason="no PySpark: run make .venv/.installed-test")
pytest.importorskip("pyarrow", reason="no pyarrow: run make .venv/.installed-test")

import amq
from tests.brokers import ROOT, Brokers
from tests.spark.group import IN_FLIGHT, QUEUE, Group

OLD = "/queue/old"
ROUNDS = 2  # of kills of each kind
DRIVER_KILLS = ("planned", "read", "marked")
PER_ROUND = IN_FLIGHT


class Run:
    """The driver, which starts again whenever it was killed."""

    def __init__(self, directory: Path, url: str, store: Path) -> None:
        self.directory = directory
        given = {
            "url": url,
            "destination": QUEUE,
            "subscription": "c",
            "store": str(store),
            "minPartitions": "3",
            "maxOffsetsPerTrigger": "150",
            "pollInterval": "20ms",
        }
        self._command = [sys.executable, "-m", "tests.spark.direct_driver", str(directory), json.dumps(given)]
        self.kills = 0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        log = (self.directory / "driver.log").open("ab")
        with log:
            return subprocess.Popen(self._command, cwd=ROOT, stderr=log)

    def ask(self, what: str) -> None:
        """Kill that when it comes by; wait until it was."""
        path = self.directory / f"kill-{what}"
        path.touch()
        pause = threading.Event()
        for _ in range(round(10 * DEADLINE_S)):
            if not path.exists():
                break
            if self._process.poll() is not None:
                raise AssertionError(f"the driver ended with {self._process.returncode}: {self.log()}")
            pause.wait(0.1)
        else:
            raise AssertionError(f"{what} does not come by: {self.log()}")
        self.kills += 1
        if what in DRIVER_KILLS:
            assert self._process.wait(DEADLINE_S) == -signal.SIGKILL, self.log()
            self._process = self._start()

    def end(self) -> None:
        (self.directory / "end").touch()
        assert self._process.wait(4 * DEADLINE_S) == 0, self.log()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        return (self.directory / "driver.log").read_text()[-3000:]

    def rows(self) -> Counter[int]:
        """Values of all batches that are done."""
        done = {path.name for path in (self.directory / "marks").iterdir()}
        files = [path for path in (self.directory / "output").glob("*.json") if path.name.partition("-")[0] in done]
        return Counter(value for path in files for value in json.loads(path.read_text()))

    def counts(self) -> tuple[int, Counter[str]]:
        """Messages that tasks read from the store, and others by reason."""
        direct, fallback = 0, Counter[str]()
        for line in (self.directory / "tasks.log").read_text().splitlines():
            if line.startswith("{"):
                facts = json.loads(line)
                direct += facts["direct"]
                fallback.update(facts["fallback"])
        return direct, fallback


def segments(store: Path) -> set[str]:
    return {path.name for path in (store / "journal").glob("*.seg")}


@pytest.mark.deep
def test_each_message_comes_once(brokers: Brokers, tmp_path: Path) -> None:
    """One message of twenty stays in a queue that nobody reads, so that segments are copied forward while tasks read
    from them."""
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    dice = random.Random(seed)
    group = Group(brokers)
    store = group.master.store
    directory = tmp_path / "run"
    directory.mkdir()
    driver = Run(directory, group.url, store)
    sent, seen = 0, segments(store)

    def send(connection: Any, count: int) -> None:
        nonlocal sent
        with connection.session() as session:
            producer, old = session.producer(QUEUE), session.producer(OLD)
            for number in range(sent, sent + count):
                producer.send(str(number), wait=False)
                if number % 20 == 0:
                    old.send("x" * 1000, wait=False)
            producer.flush()
            old.flush()
        sent += count

    try:
        with amq.connect(group.url) as connection:
            for _ in range(ROUNDS):
                kinds = ["task", dice.choice(DRIVER_KILLS), "master"]
                dice.shuffle(kinds)
                for kind in kinds:
                    sender = threading.Thread(target=send, args=(connection, PER_ROUND))
                    sender.start()
                    if kind == "master":
                        group.kill()
                    else:
                        driver.ask(kind)
                    sender.join()
                    seen |= segments(store)
            driver.end()
            stay = segments(store)
            with connection.session() as session:
                old = sum(1 for _ in session.browser(OLD))
    finally:
        driver.kill()
    rows, (direct, fallback) = driver.rows(), driver.counts()
    lost, doubled = set(range(sent)) - rows.keys(), [value for value, times in rows.items() if times > 1]
    assert (len(rows), sorted(lost)[:10], doubled[:10]) == (sent, [], []), f"seed {seed}: {driver.log()}"
    assert (driver.kills, group.kills) == (2 * ROUNDS, ROUNDS)
    gone = seen - stay
    print(f"{sent} messages, {direct} read directly, {dict(fallback)} not; {len(gone)} of {len(seen)} segments gone")
    assert direct > sent / 2
    assert len(gone) > ROUNDS, "the journal was not compacted meanwhile"
    assert old == sent / 20, "compaction lost messages, or doubled them"
