"""Nodes of a cluster as real processes, for tests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from amq.cli.cluster_moving import progress
from amq.cli.cluster_status import facts_of
from amq.cluster.directory import Cluster
from amq.config.transport_url import parse_transport_url
from amq.core.errors import StoreError, TransportError
from tests.cli.amq_process import ROOT, amq
from tests.patience import DEADLINE_S
from tests.processes import LEASH, naming

STORES = 4
HIGH_PORTS = range(61_000, 65_536)


class Node:
    """`amq start --cluster` as a process; its log is in a file."""

    def __init__(self, cluster: str, name: str, logs: Path, first_port: int = 0) -> None:
        """`first_port` = that of its gateways, behind which those of its stores are; 0 = any free ports."""
        self.name = name
        self._first_port = first_port
        self.cluster = cluster
        self.options: dict[str, str] = {}
        self.log = logs / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *config: str) -> Node:
        words = [
            "start",
            *config,
            "--cluster",
            self.cluster,
            "--name",
            self.name,
            "--transport",
            f"auto://127.0.0.1:{self._first_port}",
        ]
        words += ["--gateways", "1"]  # the one that is killed is that of all clients
        pairs = {"logFormat": "json", "failbackDelay": "200ms", "lockAcquireSleepInterval": "100ms"} | self.options
        options = [word for key, value in pairs.items() for word in ("-o", f"{key}={value}")]
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

    def bury(self) -> None:
        """It was killed, or never started."""
        if self._process is not None:
            self._process.wait()

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(DEADLINE_S)

    @property
    def ports(self) -> list[int]:
        """Those of its gateways, in the order of its transports, as it said when it started last."""
        lines = [json.loads(line) for line in self.log.read_text().split("\n") if '"the ports are open"' in line]
        return [parse_transport_url(url).port for url in lines[-1]["urls"]] if lines else []

    @property
    def port(self) -> int:
        if not self.ports:
            raise ConnectionRefusedError(f"{self.name} does not listen yet")
        return self.ports[0]

    def log_text(self) -> str:
        return self.log.read_text()[-4000:]

    @property
    def gateways(self) -> list[int]:
        return [pid for pid, words in naming(self.cluster) if "--gateway" in words and self.name in words]

    @property
    def members(self) -> list[int]:
        return [pid for pid, words in naming(self.cluster) if "--member" in words and self.name in words]

    def members_of(self, store: str) -> list[int]:
        found = naming(self.cluster)
        return [pid for pid, words in found if words[-3:-1] == ["--member", store] and self.name in words]


def free_ports(count: int) -> int:
    """The first of consecutive ports that nobody listens on: above those of outgoing connections, where no other test
    looks for ports."""
    starts = range(HIGH_PORTS.start, HIGH_PORTS.stop - count, count)
    first = os.getpid() % len(starts)
    for start in (*starts[first:], *starts[:first]):
        with ExitStack() as opened, suppress(OSError):
            for port in range(start, start + count):
                opened.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return start
    raise AssertionError(f"{count} consecutive ports are not free")


class Nodes:
    """Nodes `a` and `b` of a new cluster, in `directory` or in the database that `cluster` names. With `fixed_ports` a
    store is at a known port of each node, so that its clients find the next master."""

    def __init__(self, directory: Path, stores: int = STORES, cluster: str = "", fixed_ports: bool = False) -> None:
        self.cluster = cluster or str(directory / "c")
        amq("cluster", "init", "--cluster", self.cluster, "--stores", str(stores)).check_returncode()
        ports = free_ports(2 * (stores + 1)) if fixed_ports else 0
        self.nodes = {
            name: Node(self.cluster, name, directory, ports and ports + place * (stores + 1))
            for place, name in enumerate("ab")
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """kill -9 of everything."""
        for pid, _ in naming(self.cluster):
            if pid != os.getpid():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for node in self.nodes.values():
            node.bury()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(amq("cluster", "status", "--cluster", self.cluster, "--json").stdout)
        return found

    def look(self) -> dict[str, Any]:
        """What `amq cluster status` shows; of a directory, without a process for it. Raises AmqError."""
        if "://" in self.cluster:
            return self.status()
        found: dict[str, Any] = json.loads(json.dumps(facts_of(Cluster(self.cluster))))
        return found

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """What is then seen."""
        until, why = time.monotonic() + DEADLINE_S, ""
        while True:
            try:
                if wanted(found := self.look()):
                    return found
                why = json.dumps(found)
            except TransportError as error:  # the busy machine let it wait
                why = str(error)
            assert time.monotonic() < until, f"{why}\n{self.logs()}"
            time.sleep(0.1)

    def place(self, *words: str) -> subprocess.CompletedProcess[str]:
        return amq("cluster", "place", "--cluster", self.cluster, *words, "--wait", DEADLINE_S)

    def begin(self, change: str, *words: str) -> None:
        """Begin what nodes carry through, as `move`. A busy machine hears late of the change before it: then again."""
        until = time.monotonic() + DEADLINE_S
        while True:
            done = amq("cluster", change, "--cluster", self.cluster, *words, "--wait", "0")
            if not done.returncode or "goes on without this command" in done.stderr:
                return
            assert time.monotonic() < until, done.stderr

    def moves(self) -> dict[str, Any]:
        """What `amq cluster moves` shows; `why` where a store cannot be read now."""
        found = Cluster(self.cluster)
        try:
            return progress(found, found.table().placement)
        except StoreError as error:
            return {"moving": True, "why": str(error)}

    def settle(self) -> None:
        """Until nothing moves."""
        until = time.monotonic() + DEADLINE_S
        while (found := self.moves())["moving"]:
            assert time.monotonic() < until, f"{found}\n{self.logs()}"
            time.sleep(0.1)

    def logs(self) -> str:
        return "\n".join(node.log.read_text()[-4000:] for node in self.nodes.values() if node.log.exists())


def each_as_it_should_be(found: dict[str, Any]) -> bool:
    return all(store["master"] == store["preferred"] is not None for store in found["stores"])


def all_served(found: dict[str, Any]) -> bool:
    """Has each store a master? After many kills it may take minutes until that is the one that should be: the brakes
    against a store that goes to and fro hold it back."""
    return all(store["master"] for store in found["stores"])


def served_by(*names: str) -> Callable[[dict[str, Any]], bool]:
    return lambda found: {store["master"] for store in found["stores"]} == set(names)
