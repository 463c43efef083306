"""A real broker in a guest: started, watched by its log, killed."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lab.errors import ExpectationError
from lab.guest import Guest, Place
from lab.history import now_s

PORT = 61613
SERVING = "master: serving clients"
WAITING = "slave: waiting for the lock"
NOT_FOLLOWED = "the journal cannot be followed now"
DEADLINE_S = 60.0
Line = dict[str, Any]


class Broker:
    """The broker of `guest`, named as it is. `lines` is its whole log: (seconds on the lab's clock, line). `command` is
    the `amq` that its next start runs."""

    where = "--store"  # the option for what `store` is
    host = "0.0.0.0"  # at which it listens, "" = the address of its guest

    def __init__(
        self,
        guest: Guest,
        place: Place,
        command: Sequence[str],
        store: str,
        options: Mapping[str, object],
        on_line: Callable[[Broker, Line, float], None],
        flags: Sequence[str] = (),
    ) -> None:
        self.guest = guest
        self.name = guest.name
        self.url = f"stomp://{guest.address}:{PORT}"
        self.lines: list[tuple[float, Line]] = []
        self.exit_code: int | None = None
        self.command = command
        self._words = [
            "start",
            "--name",
            self.name,
            self.where,
            store,
            "--transport",
            f"stomp://{self.host or guest.address}:{PORT}",
            *flags,
            *(word for key, value in options.items() for word in ("-o", f"{key}={value}")),
        ]
        self._on_line = on_line
        self._file = place.logs / f"{self.name}.log"
        self._pid = 0
        self._changed = threading.Condition()

    def start(self) -> Broker:
        self.exit_code = None
        self._pid = self.guest.spawn([*self.command, *self._words], self._read, self._exited)
        return self

    def kill(self) -> None:
        """kill -9."""
        self.guest.signal(self._pid, signal.SIGKILL)

    def freeze(self) -> None:
        """Stop the process where it is (SIGSTOP); its host goes on, and keeps its locks."""
        self.guest.signal(self._pid, signal.SIGSTOP)

    def thaw(self) -> None:
        self.guest.signal(self._pid, signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        self.guest.signal(self._pid, signal.SIGTERM)
        with self._changed:
            ended = self._changed.wait_for(lambda: self.exit_code is not None, DEADLINE_S)
        if not ended:
            raise ExpectationError(f"{self.name} does not stop: {self.tail()}")

    def wait_exit(self) -> int:
        """Until it ends by itself; its exit code."""
        with self._changed:
            self._changed.wait_for(lambda: self.exit_code is not None, DEADLINE_S)
            code = self.exit_code
        if code is None:
            raise ExpectationError(f"{self.name} does not end: {self.tail()}")
        return code

    @property
    def marker(self) -> int:
        """How many lines there are now, for `wait_event`."""
        with self._changed:
            return len(self.lines)

    def wait_event(self, event: str, timeout_s: float = DEADLINE_S, after: int = 0) -> tuple[float, Line]:
        """The first line, from number `after` on, whose event begins so, and when it was read. Or ExpectationError."""
        found = wait_any([(self, after)], event, timeout_s)
        return found[1], found[2]

    def said(self, event: str, after: int = 0) -> list[tuple[float, Line]]:
        with self._changed:
            return [(at_s, line) for at_s, line in self.lines[after:] if str(line.get("event", "")).startswith(event)]

    def tail(self) -> str:
        with self._changed:
            return "\n".join(json.dumps(line) for _, line in self.lines[-15:])

    def _read(self, text: str) -> None:
        at_s = now_s()
        try:
            line = json.loads(text)
        except ValueError:
            line = {"text": text}
        with open(self._file, "a") as file:
            file.write(f"{at_s:.3f} {text}\n")
        with self._changed:
            self.lines.append((at_s, line))
            self._changed.notify_all()
        self._on_line(self, line, at_s)

    def _exited(self, code: int) -> None:
        with self._changed:
            self.exit_code = code
            self._changed.notify_all()


def wait_any(
    brokers: Sequence[tuple[Broker, int]], event: str, timeout_s: float = DEADLINE_S
) -> tuple[Broker, float, Line]:
    """The first broker that says `event` after its line number, when, and what."""
    deadline = time.monotonic() + timeout_s
    while True:
        for broker, after in brokers:
            if found := broker.said(event, after):
                return broker, *found[0]
        if time.monotonic() > deadline or all(broker.exit_code is not None for broker, _ in brokers):
            logs = "\n".join(f"--- {one.name}, exit code {one.exit_code}\n{one.tail()}" for one, _ in brokers)
            raise ExpectationError(f"no broker said {event!r} within {timeout_s:g} s\n{logs}")
        time.sleep(0.02)
