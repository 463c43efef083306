"""Real coordinators for tests: three servers of etcd or ZooKeeper, from Debian's packages, in a separate directory.

Invariant: the servers are gone when their block is left, and when the test run is killed.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.patience import DEADLINE_S
from tests.ports import free_port

JAR = Path("/usr/share/java/zookeeper.jar")
_IN_CI = os.environ.get("CI") == "true"
needs_etcd = pytest.mark.skipif(
    shutil.which("etcd") is None and not _IN_CI, reason="etcd is not installed: apt-get install etcd-server"
)
needs_zookeeper = pytest.mark.skipif(
    not JAR.exists() and not _IN_CI, reason="ZooKeeper is not installed: apt-get install zookeeper"
)


class Ensemble:
    """Servers of one kind, by number from 0. `hosts`, `ports` = where their clients come in. `victims` = those
    that a test lets fail, one after the other: a new start of some costs seconds."""

    kind = ""
    servers = 3
    victims: tuple[int, ...] = (0, 1, 2)

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.hosts = ["127.0.0.1"] * self.servers
        self.ports = [free_port() for _ in range(self.servers)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(self.servers):
            (directory / str(number)).mkdir(parents=True)

    def url(self, *options: str, ports: list[int] | None = None, user: str = "") -> str:
        given = zip(self.hosts, ports or self.ports, strict=True)
        servers = ",".join(f"{host}:{port}" for host, port in given)
        return f"{self.kind}://{user}{servers}?{'&'.join(options)}".rstrip("?")

    def start(self, *numbers: int) -> None:
        """Start these servers, or all."""
        for number in numbers or range(self.servers):
            with open(self.directory / f"{number}.log", "ab") as log:
                self._processes[number] = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", *self.command(number)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.directory / str(number),
                )

    def signal(self, number: int, what: signal.Signals) -> None:
        self._processes[number].send_signal(what)

    def kill(self, *numbers: int) -> None:
        """kill -9 of these servers, or of all."""
        for number in numbers or list(self._processes):
            process = self._processes.pop(number)
            process.kill()
            process.wait(DEADLINE_S)

    def command(self, number: int) -> list[str]:
        raise NotImplementedError

    def log(self) -> str:
        return "\n".join(file.read_text()[-3000:] for file in sorted(self.directory.glob("*.log")))


class EtcdEnsemble(Ensemble):
    kind = "etcd"
    scheme = "http"  # of its clients

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.peers = [free_port() for _ in range(self.servers)]

    def command(self, number: int) -> list[str]:
        client = f"{self.scheme}://{self.hosts[number]}:{self.ports[number]}"
        peer = f"http://{self.hosts[number]}:{self.peers[number]}"
        members = ",".join(f"n{each}=http://{self.hosts[each]}:{port}" for each, port in enumerate(self.peers))
        given = {
            "name": f"n{number}",
            "data-dir": str(self.directory / str(number) / "data"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": members,
            "logger": "zap",
        }
        return ["etcd", *(f"--{key}={value}" for key, value in given.items())]


class ZooKeeperEnsemble(Ensemble):
    kind = "zookeeper"
    victims = (2,)  # at first the one of the highest number leads

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.peers = [(free_port(), free_port()) for _ in range(self.servers)]

    def command(self, number: int) -> list[str]:
        own = self.directory / str(number)
        lines = [
            "tickTime=500",
            "initLimit=60",
            "syncLimit=20",
            "maxSessionTimeout=60000",
            f"dataDir={own}",
            f"clientPort={self.ports[number]}",
            "clientPortAddress=127.0.0.1",
            "admin.enableServer=false",
            "4lw.commands.whitelist=*",
            *(f"server.{each + 1}=127.0.0.1:{one}:{two}" for each, (one, two) in enumerate(self.peers)),
        ]
        (own / "zoo.cfg").write_text("\n".join(lines))
        (own / "myid").write_text(str(number + 1))
        jars = ":".join(map(str, [JAR, *JAR.parent.glob("*.jar")]))
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return [
            "java",
            "-Xmx64m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            jars,
            main,
            str(own / "zoo.cfg"),
        ]


@contextmanager
def ensemble(kind: type[Ensemble], directory: Path) -> Iterator[Ensemble]:
    """Three servers that run."""
    servers = kind(directory)
    try:
        servers.start()
        yield servers
    finally:
        for client in clients():
            client.stop()
            client.close()
        servers.kill()


def clients() -> list[KazooClient]:
    """Those of this process, which keeps them. Without servers their threads try for ever to come back, and draw random
    pauses beside other tests."""
    return [each for each in gc.get_objects() if isinstance(each, KazooClient)]


def wait_until(is_so: object, what: str, every_s: float = 0.05) -> None:
    """Until `is_so()`, which may fail with an OSError meanwhile. `every_s`: more where it takes long itself."""
    assert callable(is_so)
    until = time.monotonic() + DEADLINE_S
    while True:
        try:
            if is_so():
                return
        except OSError as error:
            what = f"{what}: {error}"[:2000]
        assert time.monotonic() < until, what
        time.sleep(every_s)
