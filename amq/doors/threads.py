"""The door to threads and to waiting. Code that may hang in the store runs in a thread that comes from here.

The simulation replaces it: its threads are tasks that one scheduler runs in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol


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


Job = Callable[[], Any]
Done = Callable[[Any, Exception | None], None]  # (what the job returned, the error that ended it)


class JobRunner(Protocol):
    """Where blocking work happens: jobs run one at a time in the order given, and each ends in a call of `done`."""

    def submit(self, job: Job, done: Done) -> None: ...

    def close(self) -> None:
        """Accept no more jobs. Does not wait: a hung store must not hang the caller."""
        ...

    def is_alive(self) -> bool:
        """False when the last job is done."""
        ...


class JobThread:
    """A JobRunner on a separate thread, which starts with the first job. The journal has one that writes, syncs and
    deletes segments. A job that hangs in the store hangs this thread and nothing else. `post` is the event loop's
    thread-safe door."""

    def __init__(self, threads: Threads, post: Callable[..., object]) -> None:
        self._threads = threads
        self._post = post
        self._is_closed = False
        self._jobs: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        self._thread: Thread | None = None

    def submit(self, job: Job, done: Done) -> None:
        if self._thread is None:
            self._thread = self._threads.start("amq-journal", self._run)
        self._jobs.put((job, done))

    def close(self) -> None:
        self._is_closed = True
        self._jobs.put(None)

    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            del item
            result, failure = None, None
            try:
                result = job()
            except Exception as error:  # noqa: BLE001 (the owner of the job decides about any error)
                failure = error
            del job  # before anybody hears of its end: it may have 100 MiB with it, and this thread may have to wait
            try:
                self._post(done, result, failure)
            except RuntimeError:  # the event loop has ended: after a fence nobody waits for the last jobs
                if not self._is_closed:
                    raise
            failure = None  # its traceback leads here: a circle that would hold on to the job
            del done, result
