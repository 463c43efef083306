"""Nodes as processes: who serves what after one is killed, drained and started again, with messages on their way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amq.config.transport_url import parse_transport_url
from tests.cli.amq_process import ROOT, amq
from tests.patience import DEADLINE_S
from tests.processes import LEASH, naming
from tests.traffic import Producer, connect_any, drain

pytestmark = pytest.mark.deep
STORES = 4


class Node:
    """`amq start --cluster` as a process; its log is in a file."""

    def __init__(self, cluster: Path, name: str) -> None:
        self.name = name
        self.cluster = cluster
        self.log = cluster.parent / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Node:
        words = ["start", "--cluster", str(self.cluster), "--name", self.name, "--transport", "auto://127.0.0.1:0"]
        options = ["-o", "logFormat=json", "-o", "failbackDelay=200ms", "-o", "lockAcquireSleepInterval=100ms"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-SEc", LEASH, sys.executable, "-m", "amq", *words, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )
        return self

    def kill(self) -> None:
        """kill -9 of the node alone: its members notice it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(DEADLINE_S)

    @property
    def members(self) -> list[int]:
        return [pid for pid, words in naming(self.cluster) if "--member" in words and self.name in words]


class Nodes:
    def __init__(self, directory: Path) -> None:
        self.cluster = directory / "c"
        amq("cluster", "init", "--cluster", str(self.cluster), "--stores", str(STORES)).check_returncode()
        self.nodes = {name: Node(self.cluster, name) for name in "ab"}

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(amq("cluster", "status", "--cluster", str(self.cluster), "--json").stdout)
        return found

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        until = time.monotonic() + DEADLINE_S
        while not wanted(found := self.status()):
            assert time.monotonic() < until, f"{json.dumps(found)}\n{self.logs()}"
            time.sleep(0.1)
        return found

    def logs(self) -> str:
        return "\n".join(node.log.read_text()[-4000:] for node in self.nodes.values() if node.log.exists())


def each_as_it_should_be(found: dict[str, Any]) -> bool:
    return all(store["master"] == store["preferred"] is not None for store in found["stores"])


def served_by(*names: str) -> Callable[[dict[str, Any]], bool]:
    return lambda found: {store["master"] for store in found["stores"]} == set(names)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    try:
        yield made
    finally:
        for pid, _ in naming(made.cluster):
            if pid != os.getpid():
                os.kill(pid, signal.SIGKILL)


class Place:
    """Where a store is served now, for a client of tests: it asks for the status of the cluster when it must."""

    def __init__(self, nodes: Nodes, store: str) -> None:
        self.name = store
        self._nodes = nodes

    @property
    def port(self) -> int:
        (found,) = (each for each in self._nodes.status()["stores"] if each["store"] == self.name)
        if not found["urls"]:
            raise ConnectionRefusedError(f"nobody serves {self.name}")
        return parse_transport_url(found["urls"][0]).port

    def log_text(self) -> str:
        return self._nodes.logs()


def test_nodes_share_the_stores_and_take_over_from_one_that_is_killed(nodes: Nodes) -> None:
    for node in nodes.nodes.values():
        node.start()
    found = nodes.until(each_as_it_should_be)
    assert [len(node["serves"]) for node in found["nodes"]] == [STORES // 2, STORES // 2]

    a, b = nodes.nodes["a"], nodes.nodes["b"]
    of_a = next(store["store"] for store in found["stores"] if store["master"] == "a")
    producer = Producer([Place(nodes, of_a)])  # type: ignore[list-item]
    producer.start()
    producer.wait_confirmed(100)

    a.kill()
    nodes.until(served_by("b"))
    producer.wait_confirmed(100)
    until = time.monotonic() + DEADLINE_S
    while a.members:
        assert time.monotonic() < until, "members outlive their node"
        time.sleep(0.05)

    a.start()
    nodes.until(each_as_it_should_be)
    producer.wait_confirmed(100)
    amq("cluster", "drain", "--cluster", str(nodes.cluster), "b").check_returncode()
    nodes.until(served_by("a"))
    producer.wait_confirmed(100)
    assert b.stop() == 0
    confirmed = producer.stop()
    with connect_any([Place(nodes, of_a)]) as connection:  # type: ignore[list-item]
        bodies = [int(body.split()[1]) for body in drain(connection, len(confirmed))]
    assert bodies == sorted(set(bodies)), "stored twice, or out of order"
    assert set(confirmed) <= set(bodies)
    assert a.stop() == 0
