"""Backup of a live store, as docs/operations.md describes it: its script is run here, word for word."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from brokers import ROOT, Broker, Brokers
from traffic import Producer, drain, send

from bench.wire import WireError
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep
CHURN = "/queue/churn"


def script() -> str:
    text = (ROOT / "docs/operations.md").read_text()
    found = re.search(r"```bash\n(# live-copy.*?)```", text, re.DOTALL)
    assert found
    return found[1]


def live_copy(store: Path, copy: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run the script; `amq` is this one."""
    tools = directory / "bin"
    tools.mkdir(exist_ok=True)
    (tools / "amq").write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m amq "$@"\n')
    (tools / "amq").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-c", script(), "live-copy", store, copy],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def check(store: Path) -> None:
    done = checked(store)
    assert done.returncode == 0, done.stdout + done.stderr


def checked(store: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "amq", "journal", "check", "--store", store],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


class Churn(threading.Thread):
    """Messages that come and go, so that segments are begun, trimmed and deleted all the time."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(name="churn")
        self._broker = broker
        self._stopping = threading.Event()
        self.rounds = 0

    def run(self) -> None:
        with self._broker.connect() as connection:
            while not self._stopping.is_set():
                try:
                    for _ in range(4):
                        send(connection, b"x" * 4000, queue=CHURN)
                    drain(connection, 4, CHURN)
                except WireError:
                    if not self._stopping.is_set():
                        raise
                self.rounds += 1

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def restored(brokers: Brokers, copy: Path) -> set[bytes]:
    """What a broker on the copy has in its queue."""
    with Brokers(brokers.directory, copy) as others:
        broker = others.add("restored", duplicateWindow="50")
        broker.start()
        broker.wait_serving()
        with broker.connect() as connection:
            bodies = drain(connection, 100_000)
        assert broker.stop() == 0
    check(copy)
    return set(bodies)


def test_a_copy_of_the_live_store(brokers: Brokers) -> None:
    master = brokers.master(
        "a", journalSegmentSize="256KiB", journalBatchSize="64KiB", duplicateWindow="50", checkpointDistance="20KiB"
    )
    producer, churn = Producer([master]), Churn(master)
    producer.start()
    churn.start()
    try:
        producer.wait_confirmed(500)
        segments = set((master.store / "journal").glob("*.seg"))
        deadline = time.monotonic() + DEADLINE_S
        while set((master.store / "journal").glob("*.seg")) == segments:  # until segments came or went meanwhile
            assert time.monotonic() < deadline, "nothing changes"
            before = list(producer.confirmed)
            done = live_copy(master.store, brokers.directory / "copy", brokers.directory)
            assert done.returncode == 0, done.stdout + done.stderr
    finally:
        churn.stop()
        after = set(producer.stop())
    assert churn.rounds
    assert before
    with_checkpoints = brokers.directory / "with checkpoints"
    shutil.copytree(brokers.directory / "copy", with_checkpoints)
    shutil.copytree(master.store / "checkpoints", with_checkpoints / "checkpoints")
    assert list((with_checkpoints / "checkpoints").glob("*.ckpt")), "newer than the copy"
    copied = restored(brokers, brokers.directory / "copy")
    assert restored(brokers, with_checkpoints) == copied
    assert {f"message {number}".encode() for number in before} <= copied
    assert copied <= {f"message {number}".encode() for number in range(max(after) + 30)}


def test_a_snapshot(brokers: Brokers) -> None:
    """One moment for all files: the group pauses while they are copied."""
    master = brokers.master("a", journalSegmentSize="64KiB", journalBatchSize="16KiB")
    producer = Producer([master])
    producer.start()
    producer.wait_confirmed(300)
    master.freeze()
    before = list(producer.confirmed)
    shutil.copytree(master.store, brokers.directory / "snapshot")
    master.thaw()
    producer.wait_confirmed(100)
    producer.stop()
    check(brokers.directory / "snapshot")
    assert {f"message {number}".encode() for number in before} <= restored(brokers, brokers.directory / "snapshot")


def test_parts_of_two_moments_are_refused(brokers: Brokers) -> None:
    """An old epochs/ beside a new journal/."""
    master = brokers.master("a")
    with master.connect() as connection:
        send(connection, b"one")
    assert master.stop() == 0
    old = brokers.directory / "old"
    shutil.copytree(master.store / "epochs", old)
    again = brokers.master("b")
    with again.connect() as connection:
        send(connection, b"two")
    assert again.stop() == 0
    shutil.rmtree(master.store / "epochs")
    shutil.copytree(old, master.store / "epochs")
    broker = brokers.add("c").start()
    assert broker.wait_exit() == 4
    assert "STORE_INCOMPLETE" in broker.log_text()
    told = checked(master.store)
    assert told.returncode == 4, told.stdout + told.stderr
    assert "epochs/ is missing or older than journal/" in told.stderr
