"""Processes of a demo, brokers or nodes: it starts, kills, restarts them. They end with the demo, however it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

from amq.core.errors import AmqError

STOP_S = 20.0
PORTS = range(10_240, 32_768)  # Linux gives 32768 and above to outgoing connections (ip_local_port_range)
MASTER, SLAVE, STARTING, DEAD = "master", "slave", "starting", "dead"
SERVING = "serving"  # of a node: its gateway serves clients
ROLES = {"master: serving clients": MASTER, "slave: waiting for the lock": SLAVE}
_PR_SET_PDEATHSIG = 1
# The kernel kills the child when the demo dies; then it becomes the command. (A preexec_fn is unsafe beside threads.)
_LEASH = (
    f"import ctypes, os, sys; ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(); os.execv(sys.argv[2], sys.argv[2:])"
)


def leashed(command: list[str]) -> list[str]:
    """The command as a process that dies with this one. Only the main thread may start it: the leash is tied to it."""
    assert threading.current_thread() is threading.main_thread()
    return [sys.executable, "-SEc", _LEASH, str(os.getpid()), *command]


def descendants(pid: int) -> list[int]:
    """Process ids of the children of a process, of their children, and so on."""
    found = [pid]
    for each in found:
        with suppress(OSError):  # it ended meanwhile
            for tasks in Path(f"/proc/{each}/task").glob("*/children"):
                with suppress(OSError):
                    found += map(int, tasks.read_text().split())
    return found[1:]


def free_port(count: int = 1) -> int:
    """The first of `count` free ports in a row, of the loopback interface. No outgoing connection takes one while its
    broker is dead."""
    while True:
        first = Random().choice(PORTS[: len(PORTS) - count])
        with suppress(OSError), ExitStack() as stack:
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


class DemoProcess(ABC):
    """`amq start` as a process, over its several lives. `name` and `port` stay.

    role   what its log said last
    kills  how often the demo has killed it
    """

    stop_s = STOP_S

    def __init__(self, name: str, port: int, log_path: str, words: Sequence[str], options: Sequence[str] = ()) -> None:
        """`words` = options of `amq start`; `options` = NAME=VALUE of the configuration."""
        self.name = name
        self.port = port
        self.role = DEAD
        self.kills = 0
        options = [word for option in ("logFormat=json", *options) for word in ("-o", option)]
        start = [sys.executable, "-P", "-m", "amq", "start", "--name", name, "--transport", self.url]
        self._command = [*start, *words, *options]
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._last_lines: list[str] = []
        self._wanted = False  # should it be running?

    @property
    def url(self) -> str:
        return f"stomp://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    @abstractmethod
    def detail(self) -> str:
        """The picture shows it besides the role: the epoch of a master, the stores of a node."""

    def start(self) -> None:
        """Start a process. From the main thread."""
        self.role = STARTING
        self._wanted = True
        self._process = subprocess.Popen(
            leashed(self._command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for the demo, which stops them: a second signal would end them at once
        )
        self._reader = threading.Thread(target=self._read_log, args=(self._process,), name=f"log of {self.name}")
        self._reader.start()

    def kill(self) -> float:
        """kill -9. Monotonic seconds of that moment."""
        assert self._process is not None
        self._wanted = False
        self.kills += 1
        self._kill(self._process)
        killed_at = time.monotonic()
        self._reap()
        return killed_at

    def stop(self) -> None:
        """SIGTERM, then wait for a clean hand-over. Raises AmqError if the process does not stop."""
        if self._process is None or not self._wanted:
            return
        self._wanted = False
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(self.stop_s)
        except subprocess.TimeoutExpired:
            self.end()
            raise AmqError(f"{self.name} did not stop within {self.stop_s:g} s", code="DEMO_FAILED") from None
        self._reap()
        if code != 0:
            raise AmqError(f"{self.name} ended with exit code {code}: {self.last_words()}", code="DEMO_FAILED")

    def end(self) -> None:
        """Be gone, whatever the state."""
        self._wanted = False
        if self._process is not None and self._process.poll() is None:
            self._kill(self._process)
        self._reap()

    def check(self) -> None:
        """Raises AmqError if the process has ended by itself."""
        if self._wanted and self._process is not None and self._process.poll() is not None:
            code = self._process.returncode
            raise AmqError(f"{self.name} ended by itself, exit code {code}: {self.last_words()}", code="DEMO_FAILED")

    def last_words(self) -> str:
        return " | ".join(self._last_lines[-3:])

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
        if self._reader is not None:
            self._reader.join()
        self.role = DEAD

    def _read_log(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with process.stderr as stream, open(self._log_path, "ab") as log:
            for raw in stream:
                log.write(raw)
                self._last_lines = [*self._last_lines[-9:], raw.decode(errors="replace").strip()]
                try:
                    line: dict[str, Any] = json.loads(raw)
                except ValueError:
                    continue  # a traceback; it stays in the log file and in `last_words`
                self._hear(line.get("event", ""), line)

    @abstractmethod
    def _hear(self, event: str, line: dict[str, Any]) -> None:
        """It has written this line to its log. From the thread that reads it."""


class DemoBroker(DemoProcess):
    """One broker.

    epoch    of its last mastership
    serving_at  monotonic seconds when it said that it serves clients
    """

    def __init__(
        self,
        name: str,
        store: str,
        log_path: str,
        changed: Callable[[DemoBroker, str], None],
        options: Sequence[str] = (),
    ) -> None:
        """`options` = NAME=VALUE."""
        super().__init__(name, free_port(), log_path, ["--store", store], options)
        self.epoch = 0
        self.serving_at = 0.0
        self._changed = changed

    @property
    def detail(self) -> str:
        return str(self.epoch) if self.role == MASTER else ""

    def _hear(self, event: str, line: dict[str, Any]) -> None:
        role = ROLES.get(event)
        if role is None:
            return
        if role == MASTER:
            self.serving_at = time.monotonic()
            self.epoch = line["epoch"]
        self.role = role
        self._changed(self, str(line.get("reason", "")))


class DemoNode(DemoProcess):
    """A node of a cluster, with one gateway, and a member for each store.

    serves   store → epoch, of the stores whose master it is
    follows  the stores of which it is a slave
    """

    stop_s = 3 * STOP_S  # it waits for its gateway first, then for its members

    def __init__(
        self, name: str, port: int, cluster: str, log_path: str, changed: Callable[[DemoNode, str, str], None]
    ) -> None:
        """It has `port` and one more for each store. `changed(node, store, reason)` when it has become master."""
        options = ["failbackDelay=1s", "lockAcquireSleepInterval=100ms"]
        super().__init__(name, port, log_path, ["--cluster", cluster, "--gateways", "1"], options)
        self.serves: dict[str, int] = {}
        self.follows: set[str] = set()
        self._changed = changed

    @property
    def detail(self) -> str:
        return ", ".join(sorted(self.serves))

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """As a host that dies: the node and all its processes. While it is stopped, it neither starts nor reaps any."""
        with suppress(ChildProcessError):  # it has ended by itself
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        for child in descendants(process.pid):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        process.kill()

    def _reap(self) -> None:
        super()._reap()
        self.serves = {}
        self.follows = set()

    def _hear(self, event: str, line: dict[str, Any]) -> None:
        if event == "gateway: serving clients":
            self.role = SERVING
        store = line.get("in_store", "")
        role = ROLES.get(event)
        if role == SLAVE:
            self.serves = {name: epoch for name, epoch in self.serves.items() if name != store}
            self.follows = self.follows | {store}
        elif role == MASTER:
            self.follows = self.follows - {store}
            self.serves = self.serves | {store: line["epoch"]}
            self._changed(self, store, str(line.get("reason", "")))
