"""The log in files: `journal/` with a file for each segment and one for the room that is set aside, `checkpoints/`.

Invariants: a segment is written only through a descriptor that holds its own exclusive lock, so that an NFSv4 server
refuses the writes of a deposed master. A file is opened anew for each reader: close-to-open.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Self

from amq.core.errors import StoreError
from amq.doors.clock import Clock
from amq.store.files.others import check_own
from amq.store.files.vfs import LOCKLESS_ERRNOS, Vfs, listdir_fresh, write_all
from amq.store.segment_log import (
    CHECKPOINTS_DIRECTORY,
    FULL_ERRNOS,
    JOURNAL_DIRECTORY,
    RESERVE_NAME,
    RESERVE_STEPS,
    NoRoomError,
    SegmentTooLargeError,
    SyncError,
)

PROBE_NAME = ".seal.probe"  # only the holder of the lock asks for fresh names
# The first write to a block that was only set aside makes the file system note that it is written now, and the sync
# waits for that note too: on ext4 it takes 0.22 ms instead of 0.09. So zeros are written behind a small batch, and the
# next hundred find blocks that are written. No reader can tell: space that was only set aside reads as zeros as well.
ZEROS_BYTES = 128 << 10
SMALL_BATCH_BYTES = 64 << 10  # larger ones fill many blocks, and to write these twice would cost more than the note
BLOCK_BYTES = 4096


class FileReader:
    """See `amq.store.segment_log.Reader` and `Held`."""

    __slots__ = ("_fd", "_vfs", "place")

    def __init__(self, vfs: Vfs, fd: int, place: str) -> None:
        self.place = place
        self._vfs = vfs
        self._fd = fd

    def read(self, offset: int, size: int) -> bytes:
        data = self._vfs.pread(self._fd, size, offset)  # in one piece: joining pieces took as long as reading them
        while len(data) < size and (more := self._vfs.pread(self._fd, size - len(data), offset + len(data))):
            data += more
        return data

    def size(self) -> int:
        return self._vfs.fstat(self._fd).st_size

    def refresh(self) -> None:
        self._vfs.drop_cache(self._fd)

    def close(self) -> None:
        self._vfs.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._vfs.close(self._fd)


class FileHeld(FileReader):
    """A segment whose lock this broker has. Nothing was written through it, so an error of its end is of no matter."""

    __slots__ = ()

    def close(self) -> None:
        with suppress(OSError):  # the descriptor is gone either way
            self._vfs.close(self._fd)


class FileWriter:
    """See `amq.store.segment_log.Writer`. `reserved` = space is set aside up to here. `zeroed` = blocks are written up
    to here, perhaps with zeros: a small batch has nothing to ask for."""

    __slots__ = ("_clock", "_fd", "_size", "_vfs", "reserved", "zeroed")

    def __init__(self, vfs: Vfs, fd: int, size: int, clock: Clock) -> None:
        self._vfs = vfs
        self._fd = fd
        self._size = size
        self._clock = clock
        self.reserved = 0
        self.zeroed = 0

    def append(
        self, start: int, end: int, pieces: Iterable[bytes | bytearray | memoryview], *, durably: bool = True
    ) -> float:
        """Not `durably` = `sync` follows."""
        vfs, fd, kept = self._vfs, self._fd, max(self.reserved, start)
        try:
            if end > self.zeroed:
                self.reserve(start, end)
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    written = vfs.pwrite(fd, left, start)
                    left, start = left[written:], start + written
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            self._give_back(kept)
            kind = SegmentTooLargeError if error.errno == errno.EFBIG else NoRoomError
            raise kind(error.errno, error.strerror) from error
        began = self._clock.monotonic()
        if not durably:
            return 0.0
        try:
            vfs.fdatasync(fd)
        except OSError as error:
            raise SyncError(error.errno, error.strerror) from error
        return self._clock.monotonic() - began

    def sync(self) -> None:
        """Make durable what was written. Raises SyncError."""
        try:
            self._vfs.fdatasync(self._fd)
        except OSError as error:
            raise SyncError(error.errno, error.strerror) from error

    def reserve(self, start: int, end: int) -> None:
        """Have space set aside up to `end`, and some more, for a batch that begins at `start`. Raises OSError."""
        if end > self.reserved:
            wanted = max(end, min(self.reserved + self._size // RESERVE_STEPS, self._size))
            if not self._vfs.allocate(self._fd, wanted):
                self.zeroed = self._size  # nothing is set aside here, so no block has to be noted
            self.reserved = wanted
        zeroed = min((end + ZEROS_BYTES) // BLOCK_BYTES * BLOCK_BYTES, self.reserved)
        if end > self.zeroed and end - start <= SMALL_BATCH_BYTES and zeroed - end >= BLOCK_BYTES:
            write_all(self._vfs, self._fd, bytes(zeroed - end), end)
            self.zeroed = zeroed

    def _give_back(self, reserved: int) -> None:
        """The disk is full: free the space that was taken behind the part that had been set aside before, and behind
        what is there: a segment that was opened again has it, and nothing is set aside."""
        self.reserved = reserved
        self.zeroed = min(self.zeroed, reserved)
        if self._vfs.fstat(self._fd).st_size > reserved:
            self._vfs.ftruncate(self._fd, reserved)

    def finish(self, end: int) -> None:
        """No seal, even of a master that deposed this one, lies behind `end`."""
        try:
            self._vfs.ftruncate(self._fd, end)
        finally:
            self._vfs.close(self._fd)

    def close(self) -> None:
        self._vfs.close(self._fd)


class FileDraft:
    """See `amq.store.segment_log.Draft`. The file is made by the first write. It is synced little by little, so that
    the syncs of the journal find little to wait for."""

    def __init__(self, vfs: Vfs, directory: str, name: str) -> None:
        self._vfs = vfs
        self._directory = directory
        self._path = os.path.join(directory, name)
        self._fd: int | None = None
        self._made = False
        self._size = 0

    def write(self, data: bytes) -> None:
        if self._fd is None:
            with suppress(FileExistsError):
                self._vfs.mkdir(self._directory)
            with suppress(FileNotFoundError):
                self._vfs.unlink(self._path)  # of an attempt that failed
            self._fd = self._vfs.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            self._made = True
        write_all(self._vfs, self._fd, data, self._size)
        self._vfs.fdatasync(self._fd)
        self._size += len(data)

    def publish(self, name: str) -> None:
        assert self._fd is not None
        self._vfs.fsync(self._fd)
        self.close()
        with suppress(FileExistsError):  # the same position, so the same state
            self._vfs.link(self._path, os.path.join(self._directory, name))
        self._vfs.unlink(self._path)
        self._vfs.fsync_directory(self._directory)

    def discard(self) -> None:
        self.close()
        if self._made:
            with suppress(FileNotFoundError):
                self._vfs.unlink(self._path)

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            self._vfs.close(fd)


class _FileShelf:
    """See `amq.store.segment_log.Shelf`."""

    def __init__(self, vfs: Vfs, directory: str) -> None:
        self._vfs = vfs
        self._directory = directory

    def names(self, *, fresh: bool = False) -> list[str]:
        if fresh:
            return listdir_fresh(self._vfs, self._directory, PROBE_NAME)
        return self._vfs.listdir(self._directory)

    def place(self, name: str = "") -> str:
        return f"{self._directory}/{name}" if name else self._directory

    def open(self, name: str) -> FileReader:
        path = f"{self._directory}/{name}"
        return FileReader(self._vfs, self._vfs.open(path, os.O_RDONLY), path)

    def size(self, name: str) -> int:
        return self._vfs.stat(f"{self._directory}/{name}").st_size

    def settle(self) -> None:
        self._vfs.fsync_directory(self._directory)


class FileCheckpoints(_FileShelf):
    """See `amq.store.segment_log.Checkpoints`."""

    def written_wall_ms(self, name: str) -> int:
        return int(self._vfs.stat(f"{self._directory}/{name}").st_mtime * 1000)

    def draft(self, name: str) -> FileDraft:
        return FileDraft(self._vfs, self._directory, name)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._vfs.unlink(f"{self._directory}/{name}")


class FileLog(_FileShelf):
    """See `amq.store.segment_log.SegmentLog`: the log of the store in directory `store`."""

    is_patient = False

    def __init__(self, vfs: Vfs, store: str) -> None:
        super().__init__(vfs, os.path.join(store, JOURNAL_DIRECTORY))
        self._store = store
        self.checkpoints = FileCheckpoints(vfs, os.path.join(store, CHECKPOINTS_DIRECTORY))

    def make(self) -> None:
        for path in (self._store, self._directory):
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
                import structlog  # programs that only read a store do without it

                structlog.get_logger("amq.lock").info(
                    "cannot make the name of the store durable: left to the file system", reason=str(error)
                )

    def create(self, name: str, head: bytes, size: int, clock: Clock) -> FileWriter:
        vfs, path = self._vfs, f"{self._directory}/{name}"
        try:
            fd = vfs.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            raise NoRoomError(error.errno, error.strerror, path) from error
        try:
            if not self._try_lock(fd):
                raise OSError(errno.EACCES, "a new segment is locked by somebody else", path)
            writer = FileWriter(vfs, fd, size, clock)
            writer.reserve(0, len(head))
            write_all(vfs, fd, head, 0)
            vfs.fsync(fd)
            vfs.fsync_directory(self._directory)
            # A crash of the server may have taken the name before it was durable.
            if vfs.stat(path).st_ino != vfs.fstat(fd).st_ino:
                raise OSError(errno.ESTALE, "a new segment has lost its name", path)
        except OSError as error:
            vfs.close(fd)
            if error.errno not in FULL_ERRNOS:
                raise
            vfs.unlink(path)
            raise NoRoomError(error.errno, error.strerror, path) from error
        return writer

    def hold(self, name: str) -> FileHeld | None:
        """The sync is for what a killed process of this host left in memory. SMB needs the lock: there a deposed
        master's client takes its locks again and writes on, unless we hold them. Elsewhere it is a second belt; a
        segment that a frozen master still holds is safe by its sealed length."""
        path = f"{self._directory}/{name}"
        fd = self._vfs.open(path, os.O_RDWR)
        held = FileHeld(self._vfs, fd, path)
        try:
            self._vfs.fsync(fd)
            if self._try_lock(fd):
                return held
        except BaseException:
            held.close()
            raise
        self._vfs.close(fd)
        return None

    def _try_lock(self, fd: int) -> bool:
        """The lock of a segment is a second belt: a file system that has no locks does without."""
        try:
            return self._vfs.try_lock(fd)
        except OSError as error:
            if error.errno not in LOCKLESS_ERRNOS:
                raise
            return True

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._vfs.unlink(f"{self._directory}/{name}")
        self._vfs.fsync_directory(self._directory)

    def free_bytes(self) -> int | None:
        return self._vfs.free_bytes(self._directory)

    def set_aside(self, size: int) -> None:
        try:
            self._set_aside(size)
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                raise NoRoomError(error.errno, error.strerror) from error
            raise

    def _set_aside(self, size: int) -> None:
        fd = self._vfs.open(f"{self._directory}/{RESERVE_NAME}", os.O_RDWR | os.O_CREAT)
        try:
            if self._vfs.fstat(fd).st_size < size:
                if not self._vfs.allocate(fd, size):
                    write_all(self._vfs, fd, bytes(size), 0)
                self._vfs.fsync(fd)
        finally:
            self._vfs.close(fd)

    def give_back(self) -> None:
        self._vfs.unlink(f"{self._directory}/{RESERVE_NAME}")
