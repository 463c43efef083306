"""The door Vfs of a simulated process: a host's view of the file server, in which every call takes time, may be stopped
before and after its effect, and may fail.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable
from typing import Any

from amq.store.files.vfs import Vfs
from amq.store.open import store_behind
from amq.store.port import Store
from tests.simulation.hosts import HostCache, OpenFile
from tests.simulation.scheduler import Process
from tests.simulation.storage import Stat, fail, resized


class SimVfs(Vfs):
    """Door Vfs of one process. Every call takes time, may be stopped before and after its effect, and may fail."""

    def __init__(self, cache: HostCache, process: Process, server_ready: Callable[[], float]) -> None:
        self.cache = cache
        self.process = process
        self.on_call: Callable[[str, str, bool, str], None] = lambda _method, _path, _after, _detail: None
        self.short_chance = 0.0
        self.latency_s = 0.0005
        self._server = cache.server
        self._server_ready = server_ready  # true time at which the server answers again
        self._files: dict[int, OpenFile] = {}
        self._next_fd = 10
        self._scheduler = process.scheduler
        self._rng = process.rng

    # -- time and trouble ---------------------------------------------------------------------------------------------

    def _begin(self, method: str, path: str, remote: bool = True, detail: str = "") -> None:
        self.process.check()
        self.on_call(method, path, False, detail)
        self.process.check()
        self._trouble(method, path)
        if remote:
            self._scheduler.sleep(self.latency_s * (0.1 + self._rng.random()))
            self._reach(path)
        self.process.stall()

    def _end(self, method: str, path: str, remote: bool = True) -> None:
        self.process.check()
        self.on_call(method, path, True, "")
        self.process.check()
        if remote:
            self._scheduler.sleep(self.latency_s * (0.1 + self._rng.random()))
        self.process.stall()

    def _trouble(self, method: str, path: str) -> None:
        for fault in self.cache.faults:
            if fault[0] == method:
                self.cache.faults.remove(fault)
                raise fail(fault[1], path)

    def _reach(self, path: str) -> None:
        """Wait for the server; with a soft mount not for ever."""
        since = self._scheduler.now
        while not self.cache.connected() or self._scheduler.now < self._server_ready():
            soft_s = self.cache.mount.soft_s
            if soft_s and self._scheduler.now - since > soft_s:
                raise fail(errno.EIO, path)
            self._scheduler.sleep(0.05 + 0.05 * self._rng.random())

    def _file(self, fd: int) -> OpenFile:
        file = self._files.get(fd)
        if file is None:
            raise fail(errno.EBADF)
        return file

    def died(self) -> None:
        """The process is dead: what it had open is the kernel's now."""
        for file in self._files.values():
            delay_s = self._rng.random() * 0.2
            self._scheduler.after(delay_s, lambda file=file: self.cache.kernel_close(file))

    # -- Vfs ----------------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int, _mode: int = 0o640) -> int:
        self._begin("open", path)
        if not flags & os.O_CREAT and self.cache.absent(path):
            raise fail(errno.ENOENT, path)
        try:
            inode = self._server.find(path)
            if flags & os.O_CREAT and flags & os.O_EXCL:
                raise fail(errno.EEXIST, path)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            self._room(1, path)
            inode = self._server.create(path)
            self.cache.touched(path)
        if inode.names is not None:
            raise fail(errno.EISDIR, path)
        self.cache.revalidate(inode)
        self._next_fd += 1
        self._files[self._next_fd] = file = OpenFile(inode, self.cache, self.process, path, bool(flags & os.O_ACCMODE))
        self.cache.files.append(file)
        fd = self._next_fd
        self._end("open", path)
        return fd

    def close(self, fd: int) -> None:
        """The descriptor is gone in any case, also where this raises."""
        file = self._file(fd)
        try:
            self._begin("close", file.path, remote=False)
            dirty = [piece for piece in self.cache.pages(file.inode).dirty if piece.file is file]
            if dirty or file.inode.holder is file:
                self._reach(file.path)
                for piece in dirty:
                    self.cache.send(piece)
        except OSError:
            self._files.pop(fd, None)
            self.cache.kernel_close(file)
            raise
        self._files.pop(fd, None)  # not before: whoever is killed on the way leaves it to the kernel
        self.cache.let_go(file)
        self._end("close", file.path, remote=False)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        file = self._file(fd)
        self._begin("pread", file.path, remote=False)
        return self.cache.pages(file.inode).view()[offset : offset + size]

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        file = self._file(fd)
        piece = bytes(data)
        detail = f"{len(piece)} at {offset}, CRC {zlib.crc32(piece):08x}"
        self._begin("pwrite", file.path, remote=False, detail=detail)
        if len(piece) > 1 and self._rng.random() < self.short_chance:
            piece = piece[: self._rng.randrange(1, len(piece))]
        inode = file.inode
        size = max(len(inode.data), inode.allocated, len(self.cache.pages(inode).snapshot))
        self._room(offset + len(piece) - size, file.path)
        if file.fenced:
            raise fail(errno.EIO, file.path)
        self.cache.write(file, offset, piece)
        self._end("pwrite", file.path, remote=False)
        return len(piece)

    def fdatasync(self, fd: int) -> None:
        self._sync("fdatasync", self._file(fd))

    def fsync(self, fd: int) -> None:
        self._sync("fsync", self._file(fd))

    def _sync(self, method: str, file: OpenFile) -> None:
        try:
            self._begin(method, file.path)
            self.cache.flush(file, lambda: self._between(file.path))
        except OSError:
            if self.cache.connected():
                self.cache.drop_dirty(file)
            raise
        self._end(method, file.path)

    def _between(self, path: str) -> None:
        """The server has some of the bytes, and none of them for sure."""
        self.on_call("send", path, True, "")
        self._scheduler.sleep(self.latency_s * 0.1)
        self._reach(path)

    def fsync_directory(self, path: str) -> None:
        self._begin("fsync_directory", path)
        self._server.sync_directory(self._server.find(path))
        self._end("fsync_directory", path)

    def drop_cache(self, fd: int) -> None:
        file = self._file(fd)
        self._begin("drop_cache", file.path)
        self.cache.drop_cache(file.inode)

    def fstat(self, fd: int) -> Any:
        file = self._file(fd)
        self._begin("fstat", file.path, remote=False)
        pages = self.cache.pages(file.inode)
        return Stat(1, file.inode.number, len(pages.view()), 1)

    def stat(self, path: str) -> Any:
        self._begin("stat", path)
        return self.cache.stat(path)

    def listdir(self, path: str) -> list[str]:
        self._begin("listdir", path)
        return self.cache.listdir(path)

    def mkdir(self, path: str) -> None:
        self._begin("mkdir", path)
        self._server.create(path, directory=True)
        self.cache.touched(path)
        self._end("mkdir", path)

    def link(self, source: str, target: str) -> None:
        self._begin("link", target)
        self._server.link(source, target)
        self.cache.touched(target)
        self._end("link", target)

    def unlink(self, path: str) -> None:
        self._begin("unlink", path)
        self._server.unlink(path)
        self.cache.touched(path)
        self._end("unlink", path)

    def ftruncate(self, fd: int, size: int) -> None:
        file = self._file(fd)
        self._begin("ftruncate", file.path)
        if file.fenced:
            raise fail(errno.EBADF, file.path)
        self._server.resize(file.inode, size)
        self.cache.revalidate(file.inode)
        self._end("ftruncate", file.path)

    def allocate(self, fd: int, size: int) -> bool:
        file = self._file(fd)
        self._begin("allocate", file.path)
        self.cache.check_handle(file)
        inode = file.inode
        self._room(size - max(len(inode.data), inode.allocated), file.path)
        inode.allocated = max(inode.allocated, size)
        if len(inode.data) < size:
            self._server.resize(inode, size)
            pages = self.cache.pages(inode)
            pages.snapshot, pages.version = resized(pages.snapshot, size), inode.version
        self._end("allocate", file.path)
        return True

    def try_lock(self, fd: int) -> bool:
        file = self._file(fd)
        self._begin("try_lock", file.path)
        got = self.cache.try_lock(file)
        self._end("try_lock", file.path)
        return got

    def lock_held(self, fd: int) -> bool:
        holder = self._file(fd).inode.holder
        return holder is not None and holder is not self._file(fd)

    def store(self, path: str) -> Store:
        """The ports of the store at `path`, behind this door."""
        return store_behind(self, path)

    def free_bytes(self, path: str) -> int:
        self._begin("free_bytes", path)
        return self._server.free_bytes()

    def frees_names(self, path: str) -> bool:
        self._begin("frees_names", path)
        return not self.cache.mount.lock_refuses

    def _room(self, more: int, path: str) -> None:
        if more > 0 and more > self._server.free_bytes():
            raise fail(errno.ENOSPC, path)
