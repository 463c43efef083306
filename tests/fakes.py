"""Fakes that replace the doors to the outside: time, the file system, the machine. Shared by all tests.

Invariant: a fake does what the real door does unless a test told it otherwise, call by call.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from amq.store.files.vfs import SystemVfs, Vfs


class FakeClock:
    """A clock that moves when it is told to. With a `rate` it is another host's, faster or slower than `base`."""

    def __init__(self, base: FakeClock | None = None, rate: float = 1.0) -> None:
        self._base = base
        self._rate = rate
        self._now_s = 1000.0

    def monotonic(self) -> float:
        return self._base.monotonic() * self._rate if self._base is not None else self._now_s

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self.monotonic() * 1000)

    def advance(self, seconds: float) -> None:
        assert seconds >= 0
        if self._base is not None:
            self._base.advance(seconds / self._rate)
        else:
            self._now_s += seconds


@dataclass
class FakeHost:
    """A machine with one process of ours and a table of those that run: {(pid, start)}."""

    host_name: str = "alpha"
    boot: str = "boot-1"
    spaces: str = "pid:[1] time:[1]"
    own_pid: int = 100
    own_start: int = 5000
    running: frozenset[tuple[int, int]] = frozenset()

    def name(self) -> str:
        return self.host_name

    def boot_id(self) -> str:
        return self.boot

    def namespaces(self) -> str:
        return self.spaces

    def pid(self) -> int:
        return self.own_pid

    def pid_start(self) -> int:
        return self.own_start

    def is_running(self, pid: int, pid_start: int) -> bool:
        return (pid, pid_start) in self.running


@dataclass
class _Rule:
    method: str
    nth: int
    times: int
    path: str
    act: Callable[[], None]
    after: bool
    seen: int = 0


class FaultyVfs:
    """A file system (`inner`, the real one by default) in which chosen calls go wrong.

    `path` limits a rule to calls on paths, or on descriptors of paths, that end with it. `nth` counts from 1 the calls
    that match from now on; the rule holds for `times` calls (0 = for ever). `calls` is the history: (method, path).
    """

    def __init__(self, inner: Vfs | None = None) -> None:
        self.inner: Vfs = inner or SystemVfs()
        self.calls: list[tuple[str, str]] = []
        self._rules: list[_Rule] = []
        self._answers: dict[str, Any] = {}
        self._paths: dict[int, str] = {}

    def fail(self, method: str, number: int = errno.EIO, *, nth: int = 1, times: int = 1, path: str = "") -> None:
        """The call raises OSError(number) and has no effect."""

        def act() -> None:
            raise OSError(number, os.strerror(number))

        self.before(method, act, nth=nth, times=times, path=path)

    def before(self, method: str, act: Callable[[], None], *, nth: int = 1, times: int = 1, path: str = "") -> None:
        """`act()` runs just before the call: let time pass, wait for an event (a call that hangs), let others act."""
        self._rules.append(_Rule(method, nth, times, path, act, after=False))

    def after(self, method: str, act: Callable[[], None], *, nth: int = 1, times: int = 1, path: str = "") -> None:
        """`act()` runs when the call has taken effect, before it returns."""
        self._rules.append(_Rule(method, nth, times, path, act, after=True))

    def answer(self, method: str, value: Any) -> None:
        """Every call of `method` returns `value` without reaching the file system (a lock service that lies, say)."""
        self._answers[method] = value

    def heal(self) -> None:
        """Forget all rules and answers."""
        self._rules.clear()
        self._answers.clear()

    def __getattr__(self, method: str) -> Any:
        function = getattr(self.inner, method)

        def call(*arguments: Any, **options: Any) -> Any:
            first = arguments[0]
            path = self._paths.get(first, "") if isinstance(first, int) else str(first)
            self.calls.append((method, path))
            due = [rule for rule in list(self._rules) if self._due(rule, method, path)]
            for rule in due:
                if not rule.after:
                    rule.act()
            result = self._answers[method] if method in self._answers else function(*arguments, **options)
            if method == "open":
                self._paths[result] = path
            for rule in due:
                if rule.after:
                    rule.act()
            return result

        return call

    @staticmethod
    def _due(rule: _Rule, method: str, path: str) -> bool:
        if rule.method != method or not path.endswith(rule.path):
            return False
        rule.seen += 1
        return rule.seen >= rule.nth and (rule.times == 0 or rule.seen < rule.nth + rule.times)


def open_files() -> list[str]:
    """Of this process."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found
