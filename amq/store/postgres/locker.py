"""A store in a directory whose lock is in a database. Spec: docs/master-slave.md, "The lock alone in a database".

The lock, the claim, orders and what brokers say of themselves are rows of a database, by the same door as a whole store
in one (`SqlVfs`); epochs, journal and checkpoints are files. Above this door nothing knows of it.

Invariants:
- Each path leads to one of the two, for ever: no name of one is looked for in the other.
- Nothing fences. A database cannot keep a broker from a file, so the locker waits and seals as on any file system.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from amq.store.files.vfs import LOCKLESS_ERRNOS, LockPlace, SystemVfs, ToolVfs
from amq.store.postgres.url import SqlUrl
from amq.store.postgres.vfs import CLAIM, RECORDS, SqlVfs

LOCK = "lock"


class SqlLockedVfs:
    """The store in the directory `store`, with its lock in the database at `url`."""

    def __init__(self, store: str, url: SqlUrl, files: ToolVfs | None = None) -> None:
        self._store = store.rstrip("/")
        self._url = url
        self._files = files or SystemVfs()
        self._lock = SqlVfs(url)

    def lock_place(self, path: str) -> LockPlace:  # noqa: ARG002
        return LockPlace(self._lock.identity(), self._url.text)

    def lock_queue(self, path: str) -> Callable[[], bool]:  # noqa: ARG002
        return self._lock.lock_queue(self._url.text)

    # -- paths --------------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o640) -> int:
        door, path = self._at(path)
        fd = door.open(path, flags, mode)
        return fd if door is self._files else ~fd

    def stat(self, path: str) -> os.stat_result:
        door, path = self._at(path)
        return door.stat(path)

    def listdir(self, path: str) -> list[str]:
        door, path = self._at(path)
        return door.listdir(path)

    def mkdir(self, path: str) -> None:
        if path.rstrip("/") == self._store:
            self._lock.make_tables(self._url.text)
        door, path = self._at(path)
        door.mkdir(path)

    def link(self, source: str, target: str) -> None:
        door, source = self._at(source)
        other, target = self._at(target)
        if door is not other:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)
        door.link(source, target)

    def unlink(self, path: str) -> None:
        door, path = self._at(path)
        door.unlink(path)

    def replace(self, source: str, target: str) -> None:
        door, source = self._at(source)
        other, target = self._at(target)
        if door is not other:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)
        door.replace(source, target)

    def rmdir(self, path: str) -> None:
        door, path = self._at(path)
        door.rmdir(path)

    def fsync_directory(self, path: str) -> None:
        door, path = self._at(path)
        door.fsync_directory(path)

    def free_bytes(self, path: str) -> int | None:
        return self._files.free_bytes(path)

    def frees_names(self, path: str) -> bool:  # noqa: ARG002 (asked of the lock)
        return True

    def fences(self, path: str) -> bool:  # noqa: ARG002
        return False

    def _at(self, path: str) -> tuple[ToolVfs, str]:
        """The door to `path`, and the path behind it."""
        below = path.removeprefix(self._store)
        directory, _, name = below.strip("/").rpartition("/")
        if directory:
            is_ours = directory in RECORDS
        else:
            is_ours = name in RECORDS - {""} or name in (LOCK, CLAIM) or name.startswith(f"{LOCK}.")
        if below == path or not is_ours:
            return self._files, path
        return self._lock, self._url.text + below

    # -- descriptors: those of the database are below 0 ---------------------------------------------------------------

    def close(self, fd: int) -> None:
        door, fd = self._of(fd)
        door.close(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        door, fd = self._of(fd)
        return door.pread(fd, size, offset)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        door, fd = self._of(fd)
        return door.pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        door, fd = self._of(fd)
        door.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        door, fd = self._of(fd)
        door.fsync(fd)

    def drop_cache(self, fd: int) -> None:
        door, fd = self._of(fd)
        door.drop_cache(fd)

    def fstat(self, fd: int) -> os.stat_result:
        door, fd = self._of(fd)
        return door.fstat(fd)

    def ftruncate(self, fd: int, size: int) -> None:
        door, fd = self._of(fd)
        door.ftruncate(fd, size)

    def allocate(self, fd: int, size: int) -> bool:
        door, fd = self._of(fd)
        return door.allocate(fd, size)

    def try_lock(self, fd: int) -> bool:
        """The lock of a file is a second belt of a segment: where the file system has none, it is missing."""
        door, fd = self._of(fd)
        try:
            return door.try_lock(fd)
        except OSError as error:
            if door is self._lock or error.errno not in LOCKLESS_ERRNOS:
                raise
            return True

    def lock_held(self, fd: int) -> bool:
        door, fd = self._of(fd)
        return door.lock_held(fd)

    def _of(self, fd: int) -> tuple[ToolVfs, int]:
        return (self._files, fd) if fd >= 0 else (self._lock, ~fd)
