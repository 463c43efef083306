"""The door to the file system. Lock and journal reach files through a `Vfs` and through nothing else.

The simulation replaces this one class. Every method is one system call (or the smallest group that has one meaning),
may block for any time on a network file system, and raises `OSError` as the kernel does. Writes name their offset:
append mode from two NFS clients overwrites.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
from contextlib import suppress
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Protocol

from amq.core.errors import CorruptError
from amq.store.segment_log import NotAFileError

if TYPE_CHECKING:
    from portalocker.portalocker import BaseLocker

DOCUMENT_BYTES_MAX = 16 << 20
LOCK_OFFSET = 1 << 40  # far beyond any content, so that SMB's mandatory locks leave the content readable
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, len, pid
LOCKLESS_ERRNOS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # of a file system that has no locks
_NFS = 0x6969  # NFS_SUPER_MAGIC
_SMB = (0xFE534D42, 0xFF534D42)  # SMB2_SUPER_MAGIC, CIFS_SUPER_MAGIC
_HELD_ERRNOS = (errno.EAGAIN, errno.EACCES)  # SMB says EACCES where the others say EAGAIN


def _try_lock(fd: int) -> bool:
    """Lock the open file `fd` without waiting. False = somebody else holds the lock."""
    import portalocker  # only brokers lock: programs that read a store do without it

    try:
        _locker().lock(fd, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
    except portalocker.AlreadyLocked:
        return False
    return True


@cache
def _locker() -> BaseLocker:
    import portalocker
    from portalocker.portalocker import BaseLocker

    class OfdLocker(BaseLocker):
        """Open-file-description lock on one byte at `LOCK_OFFSET`.

        Excludes on NFSv4, GFS2 and SMB. flock blocks on GFS2 even when asked not to; a POSIX lock is dropped when any
        descriptor of the file is closed in the process.
        """

        def lock(self, file_obj: portalocker.types.FileArgument, flags: portalocker.LockFlags) -> None:
            fd = file_obj if isinstance(file_obj, int) else file_obj.fileno()
            command = fcntl.F_OFD_SETLK if flags & portalocker.LockFlags.NON_BLOCKING else fcntl.F_OFD_SETLKW
            kind = fcntl.F_WRLCK if flags & portalocker.LockFlags.EXCLUSIVE else fcntl.F_RDLCK
            try:
                fcntl.fcntl(fd, command, _FLOCK.pack(kind, os.SEEK_SET, LOCK_OFFSET, 1, 0))
            except OSError as error:
                if error.errno in _HELD_ERRNOS:
                    raise portalocker.AlreadyLocked(error) from error
                raise

        def unlock(self, file_obj: portalocker.types.FileArgument) -> None:
            fd = file_obj if isinstance(file_obj, int) else file_obj.fileno()
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, LOCK_OFFSET, 1, 0))

    return OfdLocker()


class Vfs(Protocol):
    """A file system as lock and journal need it. Descriptors are integers."""

    def open(self, path: str, flags: int, mode: int = 0o640) -> int: ...
    def close(self, fd: int) -> None: ...
    def pread(self, fd: int, size: int, offset: int) -> bytes: ...
    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int: ...
    def fdatasync(self, fd: int) -> None: ...
    def fsync(self, fd: int) -> None: ...
    def fsync_directory(self, path: str) -> None: ...
    def drop_cache(self, fd: int) -> None: ...
    def fstat(self, fd: int) -> os.stat_result: ...
    def stat(self, path: str) -> os.stat_result: ...
    def listdir(self, path: str) -> list[str]: ...
    def mkdir(self, path: str) -> None: ...
    def link(self, source: str, target: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def ftruncate(self, fd: int, size: int) -> None: ...
    def allocate(self, fd: int, size: int) -> bool: ...
    def try_lock(self, fd: int) -> bool: ...
    def lock_held(self, fd: int) -> bool: ...
    def free_bytes(self, path: str) -> int | None: ...
    def frees_names(self, path: str) -> bool: ...


class ToolVfs(Vfs, Protocol):
    """The same, with the calls that a repair needs and no broker."""

    def replace(self, source: str, target: str) -> None: ...
    def rmdir(self, path: str) -> None: ...


class SystemVfs:
    """The kernel's file systems."""

    _libc = ctypes.CDLL(None, use_errno=True)

    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    fdatasync = staticmethod(os.fdatasync)
    fsync = staticmethod(os.fsync)
    fstat = staticmethod(os.fstat)
    stat = staticmethod(os.stat)
    listdir = staticmethod(os.listdir)
    mkdir = staticmethod(lambda path: os.mkdir(path, 0o750))
    link = staticmethod(os.link)
    unlink = staticmethod(os.unlink)
    replace = staticmethod(os.replace)
    rmdir = staticmethod(os.rmdir)
    ftruncate = staticmethod(os.ftruncate)

    @staticmethod
    def open(path: str, flags: int, mode: int = 0o640) -> int:
        """Open a regular file. Raises NotAFileError for anything else: a symbolic link would lead writes of a
        privileged broker to other files, and the open of a FIFO would wait for ever.

        On NFS without a delegation: a server that cannot call one back, because the host is frozen or gone, makes
        every other host wait with its opens for writing, its links and unlinks of that file until the lease is over.
        The client asks for none where the open has O_DIRECT, which does no harm when it is gone before the first read.
        """
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW
        opening = os.O_NONBLOCK | (os.O_DIRECT if _is_on_nfs(os.path.dirname(path) or ".") else 0)
        try:
            fd = os.open(path, flags | opening, mode)
        except BlockingIOError:  # a local file server has given the file to a remote host: wait until it has it back
            _check_regular(path, os.lstat(path).st_mode)
            return os.open(path, flags, mode)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # ENXIO: a FIFO or a socket
                _check_regular(path, os.lstat(path).st_mode)
            raise
        try:
            _check_regular(path, os.fstat(fd).st_mode)
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~opening)
        except BaseException:
            os.close(fd)
            raise
        return fd

    @staticmethod
    def fsync_directory(path: str) -> None:
        """Make names created in or removed from directory `path` durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    @staticmethod
    def drop_cache(fd: int) -> None:
        """Let the next read of the file come from the disk or the server, not from this host's memory.

        After a failed fsync memory may hold bytes, as if clean, that were never stored, and a later fsync says "done".
        """
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def allocate(self, fd: int, size: int) -> bool:
        """Reserve `size` bytes on disk from offset 0. False where the file system cannot (glibc would emulate it
        slowly).

        ENOSPC and every other error is raised.
        """
        if self._libc.fallocate(fd, 0, ctypes.c_int64(0), ctypes.c_int64(size)) == 0:
            return True
        number = ctypes.get_errno()
        if number in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            return False
        raise OSError(number, os.strerror(number))

    def try_lock(self, fd: int) -> bool:
        """Take the exclusive lock of the open file `fd` without waiting; False where somebody else holds it.

        The lock belongs to this descriptor alone and goes with its close. The request itself can hang on a network
        file system: call it in a thread that may.
        """
        return _try_lock(fd)

    @staticmethod
    def lock_held(fd: int) -> bool:
        """Whether another descriptor than `fd`, of any process, holds the lock of its file. Takes nothing, wakes
        nobody.

        An answer for people: on NFS it may come from a cache, so it never proves that a lock is held.
        """
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, LOCK_OFFSET, 1, 0)
        kind: int = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0]
        return kind != fcntl.F_UNLCK

    @staticmethod
    def free_bytes(path: str) -> int:
        """Bytes that an unprivileged writer can still store on the file system of `path`. A door to a database says
        None: nobody can tell."""
        info = os.statvfs(path)
        return info.f_bavail * info.f_frsize

    @staticmethod
    def frees_names(path: str) -> bool:
        """Whether a name that is removed in directory `path` can be given to another file at once, though others have
        the first one open. On SMB it is free when all have closed it. Raises OSError."""
        return _file_system(path) not in _SMB


def _is_on_nfs(directory: str) -> bool:
    """False where that cannot be told: the call that follows meets the same error."""
    try:
        return _file_system(directory) == _NFS
    except OSError:
        return False


@lru_cache(maxsize=64)
def _file_system(directory: str) -> int:
    """The kernel's number for its kind. Raises OSError."""
    found = (ctypes.c_long * 32)()  # struct statfs, whose first word it is, and room
    if SystemVfs._libc.statfs(os.fsencode(directory), found) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), directory)
    return int(found[0]) & 0xFFFFFFFF


_KINDS = ((stat.S_ISLNK, "symbolic link"), (stat.S_ISDIR, "directory"), (stat.S_ISFIFO, "FIFO"))


def _check_regular(path: str, mode: int) -> None:
    """Raises NotAFileError where `mode` is not that of a regular file."""
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "device or socket")
        number = errno.ELOOP if stat.S_ISLNK(mode) else errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise NotAFileError(number, f"is a {kind}, not a regular file: no broker made it, remove it", path)


def write_all(vfs: Vfs, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """`pwrite` until every byte is in; a short write is not a separate error."""
    view = memoryview(data)
    while view:
        written = vfs.pwrite(fd, view, offset)
        view = view[written:]
        offset += written


def listdir_fresh(vfs: Vfs, path: str, probe: str) -> list[str]:
    """The names in directory `path` as they are on the server, not as this host remembers them.

    A network client may answer `listdir` from a cache that is seconds old. Making a name in the directory moves its
    change attribute, which the client must follow. `probe` is a file name that nobody else uses; it is gone afterwards.
    """
    name = os.path.join(path, probe)
    try:
        fd = vfs.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:  # left by a crash
        vfs.unlink(name)
        fd = vfs.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    vfs.close(fd)
    names = vfs.listdir(path)
    with suppress(FileNotFoundError):  # a crash of the file server may have taken it
        vfs.unlink(name)
    return [found for found in names if found != probe]


def is_at(vfs: Vfs, fd: int, path: str) -> bool:
    """Whether the open file `fd` is the one that `path` names now: nobody has removed or replaced it."""
    try:
        found = vfs.stat(path)
    except FileNotFoundError:
        return False
    held = vfs.fstat(fd)
    return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)


def read_file(vfs: Vfs, path: str) -> bytes:
    """The content of the small file `path`, opened afresh (close-to-open). Raises CorruptError where it is absurdly
    large."""
    fd = vfs.open(path, os.O_RDONLY)
    try:
        size = vfs.fstat(fd).st_size
        if size > DOCUMENT_BYTES_MAX:
            raise CorruptError(path, DOCUMENT_BYTES_MAX, f"file is {size} bytes long, far more than amq writes here")
        return read_all(vfs, fd, size, 0)
    finally:
        vfs.close(fd)


def read_all(vfs: Vfs, fd: int, size: int, offset: int) -> bytes:
    """Read `size` bytes from `offset`, fewer only at the end of the file."""
    data = b""
    while len(data) < size:
        part = vfs.pread(fd, size - len(data), offset + len(data))
        if not part:
            break
        data += part
    return data
