"""Real brokers as real processes, for tests that kill, stop and starve them.

Invariant: whatever a `Brokers` started is gone when its block is left, by process id, whatever the test did to it; a
broker dies with the test run even when that is killed. Nothing is waited for by time: a broker's log is read as it is
written, and every wait ends at the line waited for, at the end of the process (an error that shows the log), or at a
deadline (the same).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from amq.store.open import open_store
from amq.store.presence import read_presence
from bench.wire import WireConnection
from tests.patience import DEADLINE_S
from tests.ports import free_port
from tests.preloaded import ROOT, AmqProcess
from tests.processes import LEASH

# Of a master that a test stops, for those that wait for the end of its lease.
SHORT: Final = {"lockKeepAlivePeriod": "2s"}
SERVING = "master: serving clients"
WAITING = "slave: waiting for the lock"


class Broker:
    """One broker process. `name` and `port` stay over restarts; `log` is what it wrote since its last start. `code` is
    the directory in which the package `amq` lies that the next start runs: another one is another version. `scheme` =
    of the URL at which it listens: stomp, or auto for all protocols. `files_max` = how many files it may open, 0 = as
    many as the test run. `inside` = words before its command, which run it elsewhere."""

    files_max = 0
    inside: Sequence[str] = ()

    scheme = "stomp"
    host = "127.0.0.1"

    def __init__(
        self,
        store: Path | str,
        name: str,
        port: int,
        options: Mapping[str, object],
        config: Path | None = None,
        code: Path = ROOT,
        scheme: str = "stomp",
    ) -> None:
        self.config = config
        self.scheme = scheme
        self.code = code
        self.store = store
        self.name = name
        self.port = port
        self.options = dict(options)
        self.log: list[dict[str, Any]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._changed = threading.Condition()
        self._ended = True

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> Broker:
        """Start the process; see `wait_serving` and `wait_slave`."""
        assert not self.alive, f"{self.name} runs already"
        config = [str(self.config)] if self.config is not None else []
        pairs = [word for key, value in self.options.items() for word in ("-o", f"{key}={value}")]
        words = [
            "start",
            *config,
            "--name",
            self.name,
            "--store",
            str(self.store),
            "--transport",
            f"{self.scheme}://{self.host}:{self.port}",
            *pairs,
        ]
        started: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "cwd": self.code,
        }
        if self.files_max:
            limited = ["sh", "-c", f'ulimit -n {self.files_max} && exec "$@"', "sh", sys.executable, "-m", "amq"]
            self.adopt(subprocess.Popen([sys.executable, "-c", LEASH, "/bin/sh", *limited[1:], *words], **started))
        elif self.inside:
            own = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "amq"]
            self.adopt(subprocess.Popen([*self.inside, *own, *words], **started))
        else:
            self.adopt(AmqProcess(words, **started))
        return self

    def adopt(self, process: subprocess.Popen[bytes]) -> threading.Thread:
        """`process` is this broker from now on. The thread reads its log, and ends with it."""
        self.log, self._ended, self._process = [], False, process
        self._reader = reader = threading.Thread(target=self._read_log, args=(process,), name=f"log of {self.name}")
        reader.start()
        return reader

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def freeze(self) -> None:
        """Stop the process as it stands; returns when none of its threads runs any more.

        A signal alone comes later than the next line of a test: a master that still runs makes a lock file that the
        test removed again, and pauses with its lock.
        """
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, and wait until the kernel has buried it."""
        assert self._process is not None
        assert self._reader is not None
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def wait_exit(self, timeout_s: float = DEADLINE_S) -> int:
        """The exit code, negative where a signal ended it. Fails when the process goes on."""
        assert self._process is not None
        assert self._reader is not None
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end:\n{self.log_text()}") from None
        self._reader.join()
        return code

    def stop(self, timeout_s: float = DEADLINE_S) -> int:
        """SIGTERM; returns the exit code. Fails when it takes longer than `timeout_s`."""
        self.signal(signal.SIGTERM)
        return self.wait_exit(timeout_s)

    # -- what it says -------------------------------------------------------------------------------------------------

    def wait_event(self, event: str, timeout_s: float = DEADLINE_S, after: int = 0) -> dict[str, Any]:
        """The first log line, from number `after` on, whose `event` is or begins with `event`."""
        return self.wait_line(lambda line: str(line.get("event", "")).startswith(event), event, timeout_s, after)

    def wait_line(
        self, wanted: Callable[[dict[str, Any]], bool], what: str, timeout_s: float = DEADLINE_S, after: int = 0
    ) -> dict[str, Any]:
        """The first log line, from number `after` on, that is `wanted`."""
        found: list[dict[str, Any]] = []

        def ready() -> bool:
            found[:] = [line for line in self.log[after:] if wanted(line)]
            return bool(found) or self._ended

        with self._changed:
            self._changed.wait_for(ready, timeout_s)
            ended = self._ended
        if found:
            return found[0]
        why = "has ended" if ended else f"has not said so within {timeout_s:g} s"
        raise AssertionError(f"waited for {self.name} to say {what!r}, but it {why}:\n{self.log_text()}")

    def wait_serving(self, timeout_s: float = DEADLINE_S, after: int = 0) -> dict[str, Any]:
        return self.wait_event(SERVING, timeout_s, after)

    def wait_slave(self, timeout_s: float = DEADLINE_S, after: int = 0) -> dict[str, Any]:
        return self.wait_event(WAITING, timeout_s, after)

    def wait_ready(self) -> None:
        """Until this slave says in the store that it could take over."""
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            running = read_presence(open_store(str(self.store)).board)
            if any(each.name == self.name and each.not_ready == "" for each in running):
                return
            time.sleep(0.02)
        raise AssertionError(f"{self.name} is not ready to take over:\n{self.log_text()}")

    def said(self, event: str) -> list[dict[str, Any]]:
        """The log lines whose `event` begins so, up to now."""
        return [line for line in self.log if str(line.get("event", "")).startswith(event)]

    def log_text(self) -> str:
        return "\n".join(json.dumps(line, ensure_ascii=False) for line in self.log[-40:])

    def connect(self, **options: Any) -> WireConnection:
        """A raw STOMP 1.2 connection (its parser is not the broker's)."""
        return WireConnection(self.port, **{"timeout_s": DEADLINE_S, **options})

    def _read_log(self, process: subprocess.Popen[bytes]) -> None:
        pipe = process.stderr or process.stdout
        assert pipe is not None
        with pipe as stream:
            for raw in stream:
                try:
                    line = json.loads(raw)
                except ValueError:
                    line = {"text": raw.decode(errors="replace").rstrip("\n")}
                with self._changed:
                    self.log.append(line if isinstance(line, dict) else {"text": str(line)})
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class Brokers:
    """Brokers on one store directory, `directory`/store unless said otherwise. A context manager.

    Options are those of `amq start -o`, `config` its file, `scheme` that of its one transport. The keep-alive period is
    so long that no broker loses its lease on a busy machine: a test in which one must lose it says `**SHORT`.
    """

    def __init__(
        self,
        directory: Path,
        store: Path | str | None = None,
        config: Path | None = None,
        scheme: str = "stomp",
        **options: object,
    ) -> None:
        self.directory = directory
        self.scheme = scheme
        self.config = config
        self.store = store or directory / "store"
        self.options = {
            "lockKeepAlivePeriod": "10s",
            "lockAcquireSleepInterval": "100ms",
            "logFormat": "json",
        } | options
        self.brokers: dict[str, Broker] = {}

    def add(self, name: str, code: Path = ROOT, **options: object) -> Broker:
        """A broker that is not yet started."""
        broker = Broker(self.store, name, free_port(), self.options | options, self.config, code, self.scheme)
        self.brokers[f"{name}#{len(self.brokers)}"] = broker
        return broker

    def master(self, name: str = "a", code: Path = ROOT, **options: object) -> Broker:
        """Start a broker and wait until it serves clients."""
        broker = self.add(name, code, **options).start()
        broker.wait_serving()
        return broker

    def slave(self, name: str, code: Path = ROOT, **options: object) -> Broker:
        """Start a broker and wait until it waits for the lock."""
        broker = self.add(name, code, **options).start()
        broker.wait_slave()
        return broker

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, *_: object) -> None:
        running = [broker for broker in self.brokers.values() if broker.alive]
        for broker in running:
            broker.kill()
