"""The election in a store that a door of files leads to: see `shared_file` for the lock, `waker` for its events.

Invariant: what `sign` returns is the answer of the file server, not of a cache: the files are opened afresh, and their
cached pages dropped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import structlog

from amq.core.errors import AmqError, StoreError
from amq.doors.clock import Clock
from amq.doors.threads import Threads
from amq.store.document import decode, read_all
from amq.store.files.others import check_own
from amq.store.files.shared_file import CLAIM_FILE, HEARTBEAT_OFFSET, LOCK_FILE, RECORD_BYTES, SharedFileLocker
from amq.store.files.vfs import LockPlace, Vfs
from amq.store.files.waker import watch
from amq.store.host import Host, Owner

_log = structlog.get_logger("amq.lock")


@dataclass(frozen=True, slots=True)
class FileSign:
    """The heartbeat and the claim, and the files (device and inode) that hold them."""

    lock_file: tuple[int, int]
    heartbeat: bytes
    claim_file: tuple[int, int] | None
    claim: bytes

    def period_s(self) -> float | None:
        try:
            owner = decode("heartbeat", self.heartbeat, LOCK_FILE)["owner"]
            return Owner.from_json(owner, LOCK_FILE).lock_keep_alive_period_s
        except (AmqError, LookupError, AttributeError):
            return None  # being written just now, or never written


class FileElection:
    """See `amq.store.election.Election`."""

    def __init__(
        self,
        vfs: Vfs,
        clock: Clock,
        host: Host,
        store: str,
        directories: Sequence[str] = (),
        door_to: Callable[[LockPlace], Vfs] | None = None,
    ) -> None:
        """`directories` that `make` makes below `store`; `door_to`: see `SharedFileLocker`."""
        self._vfs = vfs
        self._clock = clock
        self._host = host
        self._store = store
        self._directories = directories
        self._door_to = door_to

    def make(self) -> None:
        for path in (self._store, *(os.path.join(self._store, name) for name in self._directories)):
            try:
                self._vfs.mkdir(path)
            except FileExistsError:
                # It may be new, made by a broker that died before it could make the name durable.
                if path == self._store:
                    check_own(self._vfs, path)
            except FileNotFoundError as error:
                raise StoreError(
                    f"{os.path.dirname(os.path.abspath(path))} does not exist: mount the shared file system or "
                    "make the directory; a store is only made inside an existing one"
                ) from error
            try:
                self._vfs.fsync_directory(os.path.dirname(path) or ".")
            except PermissionError as error:
                _log.info("cannot make the name of the store durable: left to the file system", reason=str(error))

    def locker(self, owner: Owner) -> SharedFileLocker:
        locker = SharedFileLocker(self._vfs, self._clock, self._host, self._store, owner, self._door_to)
        locker.check_place()
        return locker

    def watch(
        self, wake: Callable[[], None], threads: Threads, is_slave: Callable[[], bool]
    ) -> AbstractContextManager[OSError | None]:
        return watch(self._vfs, self._store, wake, threads, is_slave)

    def sign(self) -> FileSign | None:
        try:
            lock = self._file(LOCK_FILE, HEARTBEAT_OFFSET)
        except FileNotFoundError:
            return None
        try:
            return FileSign(*lock, *self._file(CLAIM_FILE, 0))
        except FileNotFoundError:
            return FileSign(*lock, None, b"")

    def is_held(self) -> bool:
        fd = self._vfs.open(os.path.join(self._store, LOCK_FILE), os.O_RDONLY)
        try:
            return self._vfs.lock_held(fd)
        finally:
            self._vfs.close(fd)

    def _file(self, name: str, offset: int) -> tuple[tuple[int, int], bytes]:
        fd = self._vfs.open(os.path.join(self._store, name), os.O_RDONLY)
        try:
            self._vfs.drop_cache(fd)
            found = self._vfs.fstat(fd)
            return (found.st_dev, found.st_ino), read_all(self._vfs, fd, RECORD_BYTES, offset)
        finally:
            self._vfs.close(fd)
