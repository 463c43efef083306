"""Wakes a slave when something happens to the lock: to its file, where the kernel tells us, or at a server in whose
queue for the lock it can wait.

Other hosts' changes of a file give no events; there the slave finds out by polling, so polling never stops. A wake-up
proves nothing: the slave tries for the lock, as at any other moment. Invariant: what
brokers do while they wait (open for reading, try the lock, write heartbeats) is no event, so slaves do not wake each
other in a loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from amq.core.errors import AmqError
from amq.doors.threads import SystemThreads, Threads
from amq.store.files.shared_file import LOCK_FILE
from amq.store.files.vfs import Vfs

PAUSE_S = 1.0  # after the lock was found free, or could not be waited for: others may want it, or nobody
_log = structlog.get_logger("amq.lock")
ROLE_S = 0.1  # between two looks whether this broker is a slave again
_WAKING = frozenset(("created", "closed", "deleted", "moved"))  # "closed" is a close after opening for writing


class _Handler(FileSystemEventHandler):
    def __init__(self, path: str, wake: Callable[[], None]) -> None:
        self._path = path
        self._wake = wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type in _WAKING and self._path in (os.fsdecode(event.src_path), os.fsdecode(event.dest_path)):
            self._wake()


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


@contextmanager
def watch(
    vfs: Vfs,
    store_directory: str,
    wake: Callable[[], None],
    threads: Threads | None = None,
    is_slave: Callable[[], bool] = lambda: True,
) -> Iterator[OSError | None]:
    """While the block runs, call `wake()` from another thread whenever the lock file is closed, removed or made, or the
    lock is free while `is_slave()`.

    Yields None, or the error why nothing can be watched here (no inotify, its limits used up): poll.
    """
    wait = vfs.lock_queue(store_directory)
    if wait is not None:
        queue = _Queue(threads or SystemThreads(), wait, wake, is_slave)
        try:
            yield None
        finally:
            queue.stop()
        return
    directory = os.path.abspath(store_directory)
    failure = None
    try:
        vfs.stat(directory)  # an observer that was made and cannot start leaves its inotify thread behind
        observer = Observer()
        observer.schedule(_Handler(os.path.join(directory, LOCK_FILE), wake), directory, recursive=False)
        observer.start()
    except OSError as error:
        failure = error
    try:
        yield failure
    finally:
        if failure is None:
            observer.stop()
            observer.join()
