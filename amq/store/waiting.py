"""Waiting until nobody holds the lock of a store, in a thread of its own, where that can be waited for.

A wake-up proves nothing: the slave tries for the lock as at any other moment, and polls in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from amq.core.errors import AmqError
from amq.doors.threads import Threads

PAUSE_S = 1.0  # after the lock was found free, or could not be waited for: others may want it, or nobody
ROLE_S = 0.1  # between two looks whether this broker is a slave again
_log = structlog.get_logger("amq.lock")


@contextmanager
def waiting(
    wait: Callable[[], bool], wake: Callable[[], None], threads: Threads, is_slave: Callable[[], bool]
) -> Iterator[OSError | None]:
    """While the block runs and this broker `is_slave()`, call `wake()` from another thread when the lock is free.
    `wait()` waits for that, not for long: True = so it was at one moment."""
    queue = _Queue(threads, wait, wake, is_slave)
    try:
        yield None
    finally:
        queue.stop()


class _Queue:
    """Calls `wake()` when the lock is free, in a thread, as long as this broker `is_slave()`."""

    def __init__(
        self, threads: Threads, wait: Callable[[], bool], wake: Callable[[], None], is_slave: Callable[[], bool]
    ) -> None:
        self._wait, self._wake, self._is_slave = wait, wake, is_slave
        self._stopping = threads.event()
        self._trouble = ""
        threads.start("amq-lock-queue", self._run)

    def stop(self) -> None:
        """It may hang at the server: nobody waits for its end."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self._is_slave():
                self._stopping.wait(ROLE_S)
            elif self._free():
                self._stopping.wait(PAUSE_S)

    def _free(self) -> bool:
        """True where it is time to pause."""
        try:
            if not self._wait():
                return False
        except (AmqError, OSError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.info("cannot wait in the queue for the lock, polling alone", reason=self._trouble)
            return True
        self._trouble = ""
        if not self._stopping.is_set():
            self._wake()
        return True
