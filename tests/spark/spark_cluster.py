"""A standalone cluster of Spark: a master and its workers, each a separate process, on loopback addresses."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Self

from tests.ports import free_port
from tests.processes import with_descendants

CORES = 2
PAUSE_S = 0.1
WAIT_S = 600.0  # JVMs start in that time on a machine that has a lot else to do
_MAIN = "org.apache.spark.deploy"
_EXECUTOR = b"CoarseGrainedExecutorBackend"


class Cluster:
    """Use it in `with`. Its processes end with the block. `environ` = `tests.spark.session.environment` and more. The
    master keeps in `directory` what a successor needs. The `workers` have `CORES` together."""

    def __init__(self, environ: dict[str, str], directory: Path, workers: int = CORES) -> None:
        self._count = workers
        self._directory = directory
        self._port = free_port()
        self.url = f"spark://127.0.0.1:{self._port}"
        recovery = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={directory}/recovery"
        options = f"{environ['SPARK_SUBMIT_OPTS']} {recovery} -Dspark.worker.timeout=20"
        self._environ = environ | {"SPARK_DAEMON_MEMORY": "512m", "SPARK_DAEMON_JAVA_OPTS": options}
        self._environ.pop("PYTHONPATH", None)
        (directory / "recovery").mkdir(parents=True, exist_ok=True)
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._start_master()
        for number in range(2, 2 + self._count):
            words = [
                "--host",
                f"127.0.0.{number}",
                "--webui-port",
                "0",
                "--cores",
                str(CORES // self._count),
                "--memory",
                "1g",
                "--work-dir",
                str(self._directory / f"work-{number}"),
                self.url,
            ]
            self._workers.append(self._start("worker.Worker", words))
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self._workers, self._master):
            for pid in with_descendants(process.pid):
                _kill(pid)
            process.wait()

    def kill_master(self) -> None:
        """With -9; another one takes its place."""
        self._master.kill()
        self._master.wait()
        self._start_master()

    def kill_executor(self, luck: random.Random) -> None:
        """With -9, one that luck chooses. Where none runs it waits: Spark starts one."""
        pause = threading.Event()
        for _ in range(round(WAIT_S / PAUSE_S)):
            running = [
                pid for worker in self._workers for pid in with_descendants(worker.pid) if _EXECUTOR in _command(pid)
            ]
            if running:
                _kill(luck.choice(running))
                return
            pause.wait(PAUSE_S)
        raise AssertionError("no executor runs")

    def _start_master(self) -> None:
        words = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0"]
        self._master = self._start("master.Master", words)
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
            except OSError:
                assert self._master.poll() is None, "the master of the cluster ended"
                assert time.monotonic() < deadline, "the master of the cluster does not listen"
                time.sleep(0.1)
            else:
                return

    def _start(self, name: str, words: list[str]) -> subprocess.Popen[bytes]:
        command = [f"{self._environ['SPARK_HOME']}/bin/spark-class", f"{_MAIN}.{name}", *words]
        log = (self._directory / f"{name}.log").open("ab")
        with log:
            return subprocess.Popen(
                command, env=self._environ, cwd=self._directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
        os.kill(pid, signal.SIGKILL)
