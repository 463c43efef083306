"""The operations of a probe in the tested directory, on files of its own.

A probe has two pairs of hands: of one process (two descriptors), of two processes, or of two hosts. `remote` provides
the hands of another process through a socket; this module has those of this process. Invariant: every operation
touches only files whose names begin with the prefix of the run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from amq.doors.clock import Clock
from amq.doors.threads import Threads
from amq.store.files.vfs import Vfs, listdir_fresh, read_file, write_all

PREFIX = "amq-doctor-"
OPERATIONS = frozenset(("lock", "unlock", "put", "read", "link", "look", "listed", "remove", "time"))
LOOK_INTERVAL_S = 0.005
_NAME = re.compile(r"[a-z0-9-]{1,40}")
_RUN = re.compile(r"[0-9a-f]{32}")


class Hands(Protocol):
    """Operations by name. Each raises OSError as the kernel does."""

    def call(self, operation: str, *arguments: Any) -> Any:
        """Carry out the operation and return its result."""
        ...

    def start(self, operation: str, *arguments: Any) -> Callable[[], Any]:
        """Start the operation. The returned function waits for the result and returns it."""
        ...


class LocalHands:
    """The hands of this process.

    lock(name) → bool           take the lock of the file without waiting; holds it until `unlock(name)`
    unlock(name)
    put(name, text)             give the file this content, on the server
    read(name) → text or None   opened afresh; None = no such file
    link(source, target) → bool whether this call made the name `target`
    look(name, how, patience_s) → s or None   time until the name is visible; None = not within patience_s.
                                `how`: "open", "stat" or "list"
    listed(name) → bool         is the name in a fresh listing, as a takeover makes it?
    remove(name)
    time() → s                  the clock on which leases run
    """

    def __init__(self, vfs: Vfs, clock: Clock, threads: Threads, directory: str, run: str, who: str = "a") -> None:
        if not _RUN.fullmatch(run):
            raise ValueError("the name of a run is 32 hexadecimal digits")
        self._vfs = vfs
        self._clock = clock
        self._pause = threads.event()  # never set: its wait is a pause
        self._directory = directory
        self._prefix = f"{PREFIX}{run}-"
        self._probe = f"probe-{who}"  # of this pair of hands alone
        self._held: dict[str, int] = {}

    def call(self, operation: str, *arguments: Any) -> Any:
        if operation not in OPERATIONS:
            raise ValueError(f"no such operation: {operation!r}")
        return getattr(self, f"_{operation}")(*arguments)

    def start(self, operation: str, *arguments: Any) -> Callable[[], Any]:
        outcome = self.call(operation, *arguments)
        return lambda: outcome

    def close(self) -> None:
        """Release every lock."""
        while self._held:
            self._vfs.close(self._held.popitem()[1])

    def path(self, name: str) -> str:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"not a name: {name!r}")
        return os.path.join(self._directory, self._prefix + name)

    # -- operations ---------------------------------------------------------------------------------------------------

    def _lock(self, name: str) -> bool:
        assert name not in self._held
        fd = self._vfs.open(self.path(name), os.O_RDWR | os.O_CREAT)
        try:
            got = self._vfs.try_lock(fd)
        except BaseException:
            self._vfs.close(fd)
            raise
        if got:
            self._held[name] = fd
        else:
            self._vfs.close(fd)
        return got

    def _unlock(self, name: str) -> None:
        fd = self._held.pop(name, None)
        if fd is not None:
            self._vfs.close(fd)

    def _put(self, name: str, text: str) -> None:
        fd = self._vfs.open(self.path(name), os.O_WRONLY | os.O_CREAT)
        try:
            write_all(self._vfs, fd, text.encode(), 0)
            self._vfs.ftruncate(fd, len(text.encode()))
            self._vfs.fsync(fd)
        finally:
            self._vfs.close(fd)

    def _read(self, name: str) -> str | None:
        try:
            return read_file(self._vfs, self.path(name)).decode("utf-8", "replace")
        except FileNotFoundError:
            return None

    def _link(self, source: str, target: str) -> bool:
        try:
            self._vfs.link(self.path(source), self.path(target))
        except FileExistsError:
            return False
        return True

    def _look(self, name: str, how: str, patience_s: float) -> float | None:
        started = self._clock.monotonic()
        while not self._seen(name, how):
            if self._clock.monotonic() - started >= patience_s:
                return None
            self._pause.wait(LOOK_INTERVAL_S)
        return self._clock.monotonic() - started

    def _seen(self, name: str, how: str) -> bool:
        path = self.path(name)
        if how == "list":
            return os.path.basename(path) in self._vfs.listdir(self._directory)
        try:
            if how == "stat":
                self._vfs.stat(path)
            else:
                self._vfs.close(self._vfs.open(path, os.O_RDONLY))
        except FileNotFoundError:
            return False
        return True

    def _listed(self, name: str) -> bool:
        probe = os.path.basename(self.path(self._probe))
        return os.path.basename(self.path(name)) in listdir_fresh(self._vfs, self._directory, probe)

    def _remove(self, name: str) -> None:
        self._unlock(name)
        with suppress(FileNotFoundError):
            self._vfs.unlink(self.path(name))

    def _time(self) -> float:
        return self._clock.monotonic()


def clean(vfs: Vfs, directory: str, run: str) -> None:
    """Remove every file of the run. Raises OSError."""
    for name in vfs.listdir(directory):
        if name.startswith(f"{PREFIX}{run}-"):
            with suppress(FileNotFoundError):
                vfs.unlink(os.path.join(directory, name))
