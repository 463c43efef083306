"""The election in files: the lock file and the claim of a store. Spec and argument: docs/master-slave.md.

    STORE/lock      byte 2^40: the exclusive lock
                    offset 0: heartbeat of the holder; offset 64 KiB: release mark, the last act of a master
    STORE/claim     the broker that got the lock last, written once by each candidate

Invariants:
- A descriptor on which ownership was lost is closed, never locked or written again.
- One descriptor of `lock` stays open between polls: its close would wake every other slave through inotify.
- `look` returns the answer of the file server, not of a cache: it opens the files afresh, and drops their cached pages.
- `watch` sees none of what brokers do while they wait (open for reading, try the lock, write heartbeats), so slaves do
  not wake each other in a loop.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from amq.core.errors import OwnershipLostError, StoreError
from amq.doors.threads import Threads
from amq.store.document import decode
from amq.store.election import HEARTBEAT, IN_STORE, RECORD_BYTES, RELEASE, LockPlace, Sign
from amq.store.files.vfs import LOCKLESS_ERRNOS, Vfs, read_all, write_all
from amq.store.segment_log import NotAFileError

LOCK_FILE = "lock"
CLAIM_FILE = "claim"
HEARTBEAT_OFFSET = 0
RELEASE_OFFSET = 64 << 10
_OFFSETS: Mapping[str, int] = {HEARTBEAT: HEARTBEAT_OFFSET, RELEASE: RELEASE_OFFSET}
_WAKING = frozenset(("created", "closed", "deleted", "moved"))  # "closed" is a close after opening for writing
_UNUSABLE_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ELOOP)


class FileElection:
    """See `amq.store.election.Election`: that of the store in directory `store`."""

    shuts_out = can_vouch = False

    def __init__(self, vfs: Vfs, store: str) -> None:
        self._vfs = vfs
        self._store = store
        self._lock_path = os.path.join(store, LOCK_FILE)
        self._claim_path = os.path.join(store, CLAIM_FILE)
        self._fd: int | None = None

    def place(self) -> LockPlace:
        return IN_STORE

    def make(self) -> None:
        """The lock lies in the directory that the log makes."""

    def watch(
        self,
        wake: Callable[[], None],
        threads: Threads,  # noqa: ARG002
        is_slave: Callable[[], bool],  # noqa: ARG002
    ) -> AbstractContextManager[OSError | None]:
        return watch(self._vfs, os.path.abspath(self._lock_path), wake)

    # -- looking ------------------------------------------------------------------------------------------------------

    def look(self) -> Sign | None:
        try:
            lock = self._file(self._lock_path, HEARTBEAT_OFFSET)
        except FileNotFoundError:
            return None
        try:
            return Sign(*lock, *self._file(self._claim_path, 0))
        except FileNotFoundError:
            return Sign(*lock, None, b"")

    def is_held(self) -> bool:
        fd = self._vfs.open(self._lock_path, os.O_RDONLY)
        try:
            return self._vfs.lock_held(fd)
        finally:
            self._vfs.close(fd)

    def read(self, kind: str) -> dict[str, Any] | None:
        offset = _OFFSETS[kind]
        data = self._read(self._lock_path, offset)
        return decode(kind, data, self._lock_path, offset) if data.strip(b"\0") else None

    # -- holding ------------------------------------------------------------------------------------------------------

    def try_acquire(self, leave: Callable[[], bool]) -> bool:
        for _ in range(2):
            fd = self._open(leave)
            if fd is None or not self._try_lock(fd):
                return False
            if self._is_at_path(fd):
                return True
            self.let_go()  # we locked a file that is no longer at the path
        return False

    def holds(self) -> bool:
        return self._is_at_path(self._held_fd())

    def regain(self, asker: str) -> None:
        self.let_go()
        self._fd = self._make_locked(asker)
        if self._fd is None:
            self._fd = self._vfs.open(self._lock_path, os.O_RDWR | os.O_CREAT)
        if not self._try_lock(self._fd) or not self._is_at_path(self._fd):
            raise OwnershipLostError(f"{self._lock_path} was removed or replaced and another broker locked it first")
        self._vfs.fsync_directory(self._store)

    def vouches(self) -> bool:
        return False

    def can_replace(self) -> bool:
        return self._vfs.frees_names(self._store)

    def replace(self, asker: str) -> bool:
        self.let_go()
        with suppress(FileNotFoundError):
            self._vfs.unlink(self._lock_path)
        self._fd = self._make_locked(asker)
        if self._fd is None:
            return False
        self._vfs.fsync_directory(self._store)
        return True

    def write(self, kind: str, data: bytes) -> None:
        fd = self._held_fd()
        write_all(self._vfs, fd, data, _OFFSETS[kind])
        self._vfs.fsync(fd)

    def let_go(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):  # the descriptor is gone either way, and what it could still write does not count
                self._vfs.close(fd)

    # -- claiming -----------------------------------------------------------------------------------------------------

    def claim(self, data: bytes) -> None:
        created = False
        try:
            fd = self._vfs.open(self._claim_path, os.O_WRONLY)
        except FileNotFoundError:
            fd = self._vfs.open(self._claim_path, os.O_WRONLY | os.O_CREAT)
            created = True
        try:
            write_all(self._vfs, fd, data, 0)
            self._vfs.fsync(fd)
        finally:
            self._vfs.close(fd)
        if created:
            self._vfs.fsync_directory(self._store)

    def read_claim(self) -> bytes:
        return self._read(self._claim_path, 0)

    # -- files --------------------------------------------------------------------------------------------------------

    def _file(self, path: str, offset: int) -> tuple[tuple[int, int], bytes]:
        fd = self._vfs.open(path, os.O_RDONLY)
        try:
            self._vfs.drop_cache(fd)
            return _identity(self._vfs.fstat(fd)), read_all(self._vfs, fd, RECORD_BYTES, offset)
        finally:
            self._vfs.close(fd)

    def _read(self, path: str, offset: int) -> bytes:
        fd = self._vfs.open(path, os.O_RDONLY)
        try:
            return read_all(self._vfs, fd, RECORD_BYTES, offset)
        finally:
            self._vfs.close(fd)

    def _open(self, leave: Callable[[], bool]) -> int | None:
        """A descriptor of the file to which the path leads. None = missing, and left so."""
        try:
            found = self._vfs.stat(self._lock_path)
        except FileNotFoundError:
            found = None
        if self._fd is not None and (found is None or _identity(found) != _identity(self._vfs.fstat(self._fd))):
            self.let_go()
        if self._fd is None:
            if found is None and leave():
                return None
            self._fd = self._open_or_create()
        return self._fd

    def _open_or_create(self) -> int:
        try:
            try:
                return self._vfs.open(self._lock_path, os.O_RDWR)
            except FileNotFoundError:
                fd = self._vfs.open(self._lock_path, os.O_RDWR | os.O_CREAT)
                self._vfs.fsync_directory(self._store)
                return fd
        except NotAFileError as error:
            raise StoreError(f"{self._lock_path} {error.strerror}", code="LOCK_FILE_UNUSABLE") from error
        except OSError as error:
            if error.errno in _UNUSABLE_ERRNOS:
                raise StoreError(
                    f"{self._lock_path} cannot be opened for writing ({error.strerror}): give this broker's user write "
                    f"access to the store, and mount it read-write",
                    code="LOCK_FILE_UNUSABLE",
                ) from error
            raise

    def _try_lock(self, fd: int) -> bool:
        try:
            return self._vfs.try_lock(fd)
        except OSError as error:
            if error.errno in LOCKLESS_ERRNOS:
                raise StoreError(
                    f"the file system of {self._lock_path} refuses locks ({error.strerror}): mount it with locking "
                    f"(NFSv4 brings its own; NFSv3 needs statd, and no 'nolock')",
                    code="LOCKS_UNSUPPORTED",
                ) from error
            raise

    def _make_locked(self, asker: str) -> int | None:
        """A new lock file that is locked before it has its name: slaves that wake when it appears come too late. None =
        there is one already."""
        temporary = f"{self._lock_path}.{asker}"
        fd = self._vfs.open(temporary, os.O_RDWR | os.O_CREAT)
        try:
            if self._try_lock(fd):
                self._vfs.link(temporary, self._lock_path)
                return fd
        except FileExistsError:
            pass
        except BaseException:
            self._vfs.close(fd)
            raise
        finally:
            self._vfs.unlink(temporary)
        self._vfs.close(fd)
        return None

    def _is_at_path(self, fd: int) -> bool:
        """Whether the path leads to the file of `fd`. Opened afresh: `stat` may answer from a cache."""
        try:
            fresh = self._vfs.open(self._lock_path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return _identity(self._vfs.fstat(fresh)) == _identity(self._vfs.fstat(fd))
        finally:
            self._vfs.close(fresh)

    def _held_fd(self) -> int:
        if self._fd is None:
            raise OwnershipLostError("the lock was given up")
        return self._fd


def _identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino


@contextmanager
def watch(vfs: Vfs, path: str, wake: Callable[[], None]) -> Iterator[OSError | None]:
    """While the block runs, call `wake()` from another thread whenever the file `path` is closed, removed or made.

    Yields None, or the error why nothing can be watched here (no inotify, its limits used up). A wake-up proves
    nothing, and changes by other hosts give no events: the slave polls in any case.
    """
    from watchdog.events import FileSystemEvent, FileSystemEventHandler  # programs that only read a store do without
    from watchdog.observers import Observer

    class Handler(FileSystemEventHandler):
        def on_any_event(self, event: FileSystemEvent) -> None:
            if event.event_type in _WAKING and path in (os.fsdecode(event.src_path), os.fsdecode(event.dest_path)):
                wake()

    directory = os.path.dirname(path)
    failure = None
    try:
        vfs.stat(directory)  # an observer that was made and cannot start leaves its inotify thread behind
        observer = Observer()
        observer.schedule(Handler(), directory, recursive=False)
        observer.start()
    except OSError as error:
        failure = error
    try:
        yield failure
    finally:
        if failure is None:
            observer.stop()
            observer.join()
