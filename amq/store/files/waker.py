"""Wakes a slave when something happens to the lock file, where the kernel tells us.

Other hosts' changes of a file give no events; there the slave finds out by polling, so polling never stops. A wake-up
proves nothing: the slave tries for the lock, as at any other moment. Invariant: what
brokers do while they wait (open for reading, try the lock, write heartbeats) is no event, so slaves do not wake each
other in a loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from amq.store.files.vfs import Vfs

_WAKING = frozenset(("created", "closed", "deleted", "moved"))  # "closed" is a close after opening for writing


class _Handler(FileSystemEventHandler):
    def __init__(self, path: str, wake: Callable[[], None]) -> None:
        self._path = path
        self._wake = wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type in _WAKING and self._path in (os.fsdecode(event.src_path), os.fsdecode(event.dest_path)):
            self._wake()


@contextmanager
def watch(vfs: Vfs, store_directory: str, wake: Callable[[], None], name: str) -> Iterator[OSError | None]:
    """While the block runs, call `wake()` from another thread whenever the file `name` is closed, removed or made.

    Yields None, or the error why nothing can be watched here (no inotify, its limits used up): poll.
    """
    directory = os.path.abspath(store_directory)
    failure = None
    try:
        vfs.stat(directory)  # an observer that was made and cannot start leaves its inotify thread behind
        observer = Observer()
        observer.schedule(_Handler(os.path.join(directory, name), wake), directory, recursive=False)
        observer.start()
    except OSError as error:
        failure = error
    try:
        yield failure
    finally:
        if failure is None:
            observer.stop()
            observer.join()
