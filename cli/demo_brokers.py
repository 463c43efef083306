"""Broker processes of a demo: it starts, kills and restarts them. They end with the demo, however it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from amq.core.errors import AmqError

STOP_S = 20.0
PORTS = range(10_240, 32_768)  # Linux gives 32768 and above to outgoing connections (ip_local_port_range)
MASTER, SLAVE, STARTING, DEAD = "master", "slave", "starting", "dead"
_ROLES = {"master: serving clients": MASTER, "slave: waiting for the lock": SLAVE}
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


def free_port() -> int:
    """A free port of the loopback interface. No outgoing connection takes it while its broker is dead."""
    while True:
        port = Random().choice(PORTS)
        with suppress(OSError), socket.socket() as sock:
            sock.bind(("127.0.0.1", port))
            return port


class DemoBroker:
    """One broker, over its several processes. `name` and `port` stay.

    role     what its log said last
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
        self.name = name
        self._options = [word for option in ("logFormat=json", *options) for word in ("-o", option)]
        self.port = free_port()
        self.role = DEAD
        self.epoch = 0
        self.serving_at = 0.0
        self.kills = 0
        self._store = store
        self._log_path = log_path
        self._changed = changed
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

    def start(self) -> None:
        """Start a process. From the main thread."""
        self.role = STARTING
        self._wanted = True
        command = [
            sys.executable,
            "-P",
            "-m",
            "amq",
            "start",
            "--store",
            self._store,
            "--name",
            self.name,
            "--transport",
            self.url,
            *self._options,
        ]
        self._process = subprocess.Popen(
            leashed(command),
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
        self._process.kill()
        killed_at = time.monotonic()
        self._reap()
        return killed_at

    def stop(self) -> None:
        """SIGTERM, then wait for a clean hand-over. Raises AmqError if the broker does not stop."""
        if self._process is None or not self._wanted:
            return
        self._wanted = False
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.end()
            raise AmqError(f"{self.name} did not stop within {STOP_S:g} s", code="DEMO_FAILED") from None
        self._reap()
        if code != 0:
            raise AmqError(f"{self.name} ended with exit code {code}: {self.last_words()}", code="DEMO_FAILED")

    def end(self) -> None:
        """Be gone, whatever the state."""
        self._wanted = False
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        self._reap()

    def check(self) -> None:
        """Raises AmqError if the process has ended by itself."""
        if self._wanted and self._process is not None and self._process.poll() is not None:
            code = self._process.returncode
            raise AmqError(f"{self.name} ended by itself, exit code {code}: {self.last_words()}", code="DEMO_FAILED")

    def last_words(self) -> str:
        return " | ".join(self._last_lines[-3:])

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
                self._hear(raw)

    def _hear(self, raw: bytes) -> None:
        try:
            line: dict[str, Any] = json.loads(raw)
        except ValueError:
            return  # a traceback; it stays in the log file and in `last_words`
        role = _ROLES.get(line.get("event", ""))
        if role is None:
            return
        if role == MASTER:
            self.serving_at = time.monotonic()
            self.epoch = line["epoch"]
        self.role = role
        self._changed(self, str(line.get("reason", "")))
