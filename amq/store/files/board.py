"""The board in files: `brokers/NAME.json` for seats, `orders/NAME.json` for slots.

Invariants: the lock of a seat's file says whether its broker runs, its content says the rest. It is overwritten in
place, and so is a slot, because a network client that has once seen no such name may see none for seconds. A file that
is removed while its broker runs is made again, but not where nothing at all is there: the file system is not mounted.
A lock that the file server has lost is taken again: gateways would never find that master.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from amq.store.board import Posted, SeatTakenError
from amq.store.files.vfs import Vfs, is_at, read_all, write_all
from amq.store.segment_log import NotAFileError

BROKERS_DIRECTORY = "brokers"
ORDERS_DIRECTORY = "orders"
SEAT_BYTES = 16 << 10
SLOT_BYTES = 4096
_SUFFIX = ".json"


class FileSeat:
    """See `amq.store.board.Seat`."""

    def __init__(self, vfs: Vfs, store: str, path: str) -> None:
        self.place = path
        self._vfs = vfs
        self._store = store
        self._fd: int | None = self._take()
        self._has_failed = False  # to write: NFS refuses what is written with a descriptor whose lock it has lost

    def write(self, data: bytes) -> None:
        if self._fd is None:
            raise OSError(errno.ENOLCK, "the lock of this file was lost, and is not had again", self.place)
        self._has_failed = True
        write_all(self._vfs, self._fd, data, 0)
        self._vfs.fsync(self._fd)
        self._has_failed = False

    def keep(self) -> bool:
        fd = self._fd
        if fd is not None and not self._has_failed and is_at(self._vfs, fd, self.place):
            if not self._is_locked() and not self._vfs.try_lock(fd):  # the file server has lost our lock
                raise SeatTakenError(self._read_other)
            return False
        if not self._vfs.listdir(self._store):
            return False
        if self._has_failed:
            self.close()  # this host may count the lock as held by that descriptor
        lost, self._fd = self._fd, self._take()
        self._has_failed = False
        if lost is not None:
            self._vfs.close(lost)
        return True

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            self._vfs.close(fd)

    def _take(self) -> int:
        """The locked file, which is made where it is missing. Raises SeatTakenError, OSError."""
        with suppress(FileExistsError):
            self._vfs.mkdir(os.path.dirname(self.place))
        while True:
            fd = self._vfs.open(self.place, os.O_RDWR | os.O_CREAT)
            try:
                if not self._vfs.try_lock(fd):
                    raise SeatTakenError(self._read_other)
                if is_at(self._vfs, fd, self.place):
                    return fd
            except BaseException:
                self._vfs.close(fd)
                raise
            self._vfs.close(fd)  # somebody removed the file between our open and our lock

    def _read_other(self) -> bytes:
        fd = self._vfs.open(self.place, os.O_RDONLY)
        try:
            return read_all(self._vfs, fd, SEAT_BYTES, 0)
        finally:
            self._vfs.close(fd)

    def _is_locked(self) -> bool:
        """As others see it. To ask for a lock that is held by the same descriptor fails on SMB."""
        fd = self._vfs.open(self.place, os.O_RDONLY)
        try:
            return self._vfs.lock_held(fd)
        finally:
            self._vfs.close(fd)


class FileBoard:
    """See `amq.store.board.Board`."""

    def __init__(self, vfs: Vfs, store: str) -> None:
        self._vfs = vfs
        self._store = store

    def take(self, name: str) -> FileSeat:
        return FileSeat(self._vfs, self._store, os.path.join(self._store, BROKERS_DIRECTORY, name + _SUFFIX))

    def seats(self, *, held: bool) -> Iterator[Posted]:
        directory = os.path.join(self._store, BROKERS_DIRECTORY)
        try:
            names = self._vfs.listdir(directory)
        except FileNotFoundError:
            return
        for name in sorted(names):
            if not name.endswith(_SUFFIX):
                continue
            path = os.path.join(directory, name)
            try:
                fd = self._vfs.open(path, os.O_RDONLY)
            except (FileNotFoundError, NotAFileError):  # NotAFileError: no broker runs as a FIFO or a link
                continue
            try:
                if self._vfs.lock_held(fd) is held:
                    yield Posted(name.removesuffix(_SUFFIX), path, partial(read_all, self._vfs, fd, SEAT_BYTES, 0))
            finally:
                self._vfs.close(fd)

    def make_slot(self, name: str) -> None:
        with suppress(FileExistsError):
            self._vfs.mkdir(os.path.join(self._store, ORDERS_DIRECTORY))
        self._vfs.close(self._vfs.open(self.place_of_slot(name), os.O_RDWR | os.O_CREAT))

    def read_slot(self, name: str) -> bytes | None:
        try:
            fd = self._vfs.open(self.place_of_slot(name), os.O_RDONLY)
        except FileNotFoundError:
            if self._vfs.listdir(self._store):
                self.make_slot(name)
            return None
        try:
            data = read_all(self._vfs, fd, SLOT_BYTES, 0)
        finally:
            self._vfs.close(fd)
        return data if data.strip(b"\0") else None

    def write_slot(self, name: str, data: bytes) -> bool:
        try:
            fd = self._vfs.open(self.place_of_slot(name), os.O_WRONLY)
        except FileNotFoundError:
            return False
        try:
            write_all(self._vfs, fd, data, 0)
            self._vfs.fsync(fd)
        finally:
            self._vfs.close(fd)
        return True

    def place_of_slot(self, name: str) -> str:
        return os.path.join(self._store, ORDERS_DIRECTORY, name + _SUFFIX)

    def forget(self, name: str) -> None:
        for path in (os.path.join(self._store, BROKERS_DIRECTORY, name + _SUFFIX), self.place_of_slot(name)):
            with suppress(FileNotFoundError):
                self._vfs.unlink(path)
