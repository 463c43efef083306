"""The door to threads and to waiting. Code that may hang in the store runs in a thread that comes from here.

The simulation replaces it: its threads are tasks that one scheduler runs in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
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
        """Run `target` in a separate thread. It must not keep the process from ending."""
        ...

    def event(self) -> Event: ...


class SystemThreads:
    """The threads of this process. A thread has the log context of the one that started it."""

    event = staticmethod(threading.Event)

    def start(self, name: str, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=partial(copy_context().run, target), name=name, daemon=True)
        thread.start()
        return thread
