"""The door to threads and to waiting. Code that may hang in the store runs in a thread that comes from here.

The simulation replaces it: its threads are tasks that one scheduler runs in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class Event(Protocol):
    """A flag that threads wait for, as `threading.Event`."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Thread(Protocol):
    """A running thread. `join` waits for its end, at most `timeout` seconds."""

    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


class Threads(Protocol):
    def start(self, name: str, target: Callable[[], None]) -> Thread:
        """Run `target` in a thread of its own. It must not keep the process from ending."""
        ...

    def event(self) -> Event: ...


class SystemThreads:
    """The threads of this process."""

    event = staticmethod(threading.Event)

    @staticmethod
    def start(name: str, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread
