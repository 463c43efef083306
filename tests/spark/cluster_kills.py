"""Kills on a standalone cluster of Spark while a stream copies, and the count of what came.

`python -m tests.spark.cluster_kills --kills 30` kills 30 of each kind with -9, in an order and at moments that its seed
decides: executors, the driver, Spark's master and the master of the brokers. It prints what came, and fails where a
message was lost or came twice. The count reads files that the driver wrote, and asks neither Spark nor the broker.
Ctrl-C ends the kills: what was sent comes, and is counted. A second one ends the run at once, and counts what came.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import amq
from tests.brokers import ROOT, Brokers
from tests.processes import interrupts, with_descendants
from tests.spark.group import QUEUE, Group
from tests.spark.session import environment, why_no_spark
from tests.spark.spark_cluster import CORES, WAIT_S, Cluster

KINDS = ("executor", "driver", "spark master", "broker")
PER_KILL = 1500
PAUSE_S = 0.1
INTERRUPTED = "the run was interrupted"
DELAY_S = 1.0  # a kill comes at some moment of that time after a batch; tasks of the next one run then


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
        """Wait until this many batches are done."""
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


class Outcome(NamedTuple):
    """What a run counted. `ended` = why it ended before all that was sent could come, "" = all could. `lost` has not
    come, `doubled` came more than once: numbers of messages."""

    ended: str
    sent: int
    came: int
    lost: list[int]
    doubled: list[int]
    kills: Counter[str]
    direct: int
    fallback: int
    log: str

    @property
    def is_good(self) -> bool:
        is_complete = not self.lost and self.came == self.sent
        return not self.doubled and (is_complete if not self.ended else self.ended == INTERRUPTED)

    def verdict(self) -> str:
        missing = f"messages have not come yet: {self.ended}" if self.ended else "messages lost"
        text = f"{self.sent:,} messages sent, {self.came:,} rows came, {len(self.lost):,} {missing},\n"
        text += f"{len(self.doubled):,} came twice; kills: {dict(self.kills)}; read from the store: {self.direct:,}"
        if not self.is_good:
            text += f"\nfailed: missing {self.lost[:10]}, twice {self.doubled[:10]}\n{self.log}"
        return text


def of_store(connection: amq.Connection) -> Counter[str]:
    """Messages that tasks read from the store, and others."""
    direct, fallback = connection.lease(QUEUE, "c", messages=0).reads
    return Counter(direct=direct, fallback=fallback)


def count(told: Path) -> Counter[int]:
    """How often each message came: the files that the driver wrote, a file for each batch."""
    return Counter(value for path in told.glob("*.json") for value in json.loads(path.read_text()))


def run(
    brokers: Brokers,
    directory: Path,
    kinds: Iterable[str],
    luck: random.Random,
    say: Callable[[str], None],
    workers: int = CORES,
) -> Outcome:
    """Kill `kinds` one after the other, and count. Each driver starts a JVM on each of the `workers`."""
    group, sent, kills, reads, moment = Group(brokers), 0, Counter[str](), Counter[str](), threading.Event()
    options = {
        "url": group.url,
        "destination": QUEUE,
        "subscription": "c",
        "store": str(group.master.store),
        "minPartitions": "4",
        "maxOffsetsPerTrigger": "500",
        "pollInterval": "20ms",
    }
    work = directory / "run"
    work.mkdir()
    with Cluster(os.environ | environment(directory / "spark"), directory, workers) as cluster:
        driver = Driver(work, cluster.url, options)
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
                    moment.wait(luck.uniform(0, DELAY_S))
                    if kind == "executor":
                        cluster.kill_executor(luck)
                    elif kind == "driver":
                        driver.kill()
                        driver.start()
                    elif kind == "spark master":
                        cluster.kill_master()
                    else:
                        reads += of_store(connection)  # the next master counts anew
                        group.kill()
                    kills[kind] += 1
                    say(f"{sent:,} messages, {driver.batches():,} batches, kills: {dict(kills)}")
                driver.end()
                reads += of_store(connection)
            ended = ""
        except KeyboardInterrupt:
            ended = INTERRUPTED
        except AssertionError as error:
            ended = str(error)
        finally:
            if driver.process.poll() is None:
                driver.kill()
    came = count(work / "told")
    lost, doubled = sorted(set(range(sent)) - came.keys()), sorted(value for value, times in came.items() if times > 1)
    return Outcome(ended, sent, came.total(), lost, doubled, kills, reads["direct"], reads["fallback"], driver.log())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.cluster_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="of each kind (default %(default)s)")
    parser.add_argument("--only", choices=KINDS, action="append", help="kinds (default: all)")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    args = parser.parse_args()
    if why := why_no_spark():
        sys.exit(f"failed: {why}")
    luck = random.Random(args.seed)
    kinds = [*(args.only or KINDS)] * args.kills
    luck.shuffle(kinds)
    print(f"seed {args.seed}", flush=True)
    asked = interrupts()
    until_asked = itertools.takewhile(lambda _: not asked.is_set(), kinds)
    with tempfile.TemporaryDirectory(prefix="cluster-kills-") as home, Brokers(Path(home)) as brokers:
        found = run(brokers, Path(home), until_asked, luck, lambda text: print(text, flush=True))
    print(found.verdict())
    sys.exit(0 if found.is_good else 1)


if __name__ == "__main__":
    main()
