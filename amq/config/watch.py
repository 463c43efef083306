"""FileWatcher: the door to the file system's events, for files that people and tools change while the broker runs.

Invariant: a file that is being written is not reported before its writer has closed it and it has been left alone for
`settle_s`. Half of a configuration file is often valid and means something else: an empty one, `usersFile` unset.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from types import MappingProxyType

import structlog
from watchdog.events import (
    EVENT_TYPE_CLOSED,
    EVENT_TYPE_CREATED,
    EVENT_TYPE_MODIFIED,
    EVENT_TYPE_MOVED,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers.inotify import InotifyObserver

from amq.core.errors import ConfigError

SETTLE_S = 0.1  # far more than an event needs to arrive
STOP_PATIENCE_S = 2.0  # for a thread that may hang in a file system
LINKS_MAX = 40  # as the kernel follows

_log = structlog.get_logger("amq.config")


class FileWatcher:
    """Calls back when one of a few files was replaced, or written to its end.

    The callback runs in a thread of the watcher with the path as it was given: hand over to the event loop there. It is
    not called for a file that is only taken away. Changes made on another host of a network file system raise no event.
    """

    def __init__(self, paths: Iterable[str], on_change: Callable[[str], None], settle_s: float = SETTLE_S) -> None:
        self._paths = tuple(dict.fromkeys(paths))
        self._on_change = on_change
        self._settle_s = settle_s
        self._due_s: dict[str, float] = {}  # path → monotonic time at which it will have been left alone long enough
        self._stopping = False
        self._changed = threading.Condition()
        self._handler = _Handler(self._paths, self._on_event)
        self._watched: set[str] = set()
        self._observer = InotifyObserver(generate_full_events=True)  # else what is moved in looks as if it were begun
        self._worker = threading.Thread(target=self._report, name="amq-watch", daemon=True)

    def start(self) -> None:
        """Start to watch. ConfigError where a directory cannot be watched."""
        self._watch_directories()
        try:
            self._observer.start()
        except OSError as error:
            raise ConfigError(
                f"files cannot be watched for changes: {error}; raise fs.inotify.max_user_watches or max_user_instances"
            ) from error
        self._worker.start()

    def stop(self) -> None:
        """Stop and wait for the threads, for a bounded time: one that hangs in a file system does not keep the process.
        Safe to call twice, and without start."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._observer.is_alive():
            self._observer.stop()
            self._observer.join(STOP_PATIENCE_S)
        if self._worker.is_alive():
            self._worker.join(STOP_PATIENCE_S)

    def __enter__(self) -> FileWatcher:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _watch_directories(self) -> None:
        """Files that are not watched yet; a link that was swapped leads to others. Raises ConfigError."""
        for directory in dict.fromkeys(directory for path in self._paths for directory in directories_of(path)):
            if directory in self._watched:
                continue
            try:
                self._observer.schedule(self._handler, directory)
            except OSError as error:
                raise ConfigError(f"{directory}: cannot be watched for changes: {error.strerror}") from error
            self._watched.add(directory)

    def _on_event(self, path: str, ready: bool) -> None:
        """`path` is whole (again) or being written; the observer's thread."""
        with self._changed:
            if ready:
                self._due_s[path] = time.monotonic() + self._settle_s
                self._changed.notify()
            else:
                self._due_s.pop(path, None)

    def _report(self) -> None:
        while True:
            with self._changed:
                path = self._next()
            if path is None:
                return
            try:
                self._watch_directories()  # before the file is read: what is changed later raises an event
            except ConfigError as error:
                _log.warning("a file is no longer watched", path=path, reason=str(error))
            self._on_change(path)

    def _next(self) -> str | None:
        """Wait for a file that was left alone long enough; None at the end. Holds `_changed` but while it waits."""
        while not self._stopping:
            if not self._due_s:
                self._changed.wait()
                continue
            path = min(self._due_s, key=self._due_s.__getitem__)
            wait_s = self._due_s[path] - time.monotonic()
            if wait_s <= 0:
                del self._due_s[path]
                return path
            self._changed.wait(wait_s)
        return None


def directories_of(path: str) -> list[str]:
    """Where something can change what `path` leads to: where it stands, its file does, and each link on the way."""
    found = [os.path.dirname(os.path.abspath(path))]
    left = os.path.abspath(path).split(os.sep)[::-1]
    here, links = os.sep, 0
    while left and links < LINKS_MAX:
        part = left.pop()
        if part in ("", os.curdir):
            continue
        if part == os.pardir:
            here = os.path.dirname(here)
            continue
        name = os.path.join(here, part)
        if os.path.islink(name):
            found.append(here)
            links += 1
            target = os.readlink(name)
            left += target.split(os.sep)[::-1]
            here = os.sep if os.path.isabs(target) else here
        else:
            here = name
    return list(dict.fromkeys([*found, os.path.dirname(here)]))


# What an event says of the file that it names: True = whole, False = being written. Reading raises other events.
_READY = MappingProxyType({EVENT_TYPE_CLOSED: True, EVENT_TYPE_CREATED: False, EVENT_TYPE_MODIFIED: False})


class _Handler(FileSystemEventHandler):
    """Turns events of the directories into `on_event(path, ready)`."""

    def __init__(self, paths: tuple[str, ...], on_event: Callable[[str, bool], None]) -> None:
        self._paths = paths
        self._on_event = on_event

    def dispatch(self, event: FileSystemEvent) -> None:
        source, target = (
            os.path.abspath(os.fsdecode(name)) if name else "" for name in (event.src_path, event.dest_path)
        )
        new_link = event.event_type in (EVENT_TYPE_MOVED, EVENT_TYPE_CREATED) and os.path.islink(target or source)
        for path in self._paths:
            names = (os.path.abspath(path), os.path.realpath(path))
            # A link may lead through another link that is swapped, as Kubernetes does with ConfigMaps.
            if new_link and names[0] != names[1]:
                self._on_event(path, True)
            elif event.event_type == EVENT_TYPE_MOVED:
                if target in names or source in names:
                    self._on_event(path, target in names)
            elif source in names and event.event_type in _READY:
                self._on_event(path, _READY[event.event_type])
