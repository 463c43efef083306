"""The one thread that writes, syncs and deletes segments. It knows nothing of batches, leases or messages.

Jobs run one at a time in the order given; each ends in a call of `done` through `post` (the event loop's thread-safe
door).
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

from amq.doors.threads import Thread, Threads

Job = Callable[[], Any]
Done = Callable[[Any, Exception | None], None]  # (what the job returned, the error that ended it)


class JobRunner(Protocol):
    """Where the journal's blocking work happens. The simulation brings its own."""

    def submit(self, job: Job, done: Done) -> None: ...

    def close(self) -> None:
        """Accept no more jobs. Does not wait: a hung store must not hang the caller."""
        ...

    def is_alive(self) -> bool:
        """False when the last job is done."""
        ...


class JournalThread:
    """A JobRunner on a separate thread, which starts with the first job. A job that hangs in the store hangs this
    thread and nothing else."""

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
