"""The file server: files, names, locks, and what of them survives its crash. Nothing here takes time or can fail; the
hosts' side (`hosts.py`) does that.

Invariants: bytes that a COMMIT covered, and names that a directory sync covered, survive a crash; of everything later
each 512-byte sector, and each name, survives or not by chance. A lock belongs to one open file.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from random import Random

from amq.store.files.vfs import Vfs

SECTOR_BYTES = 512


@dataclass(slots=True)
class Stat:
    """What the code under test reads of `os.stat_result`."""

    st_dev: int
    st_ino: int
    st_size: int
    st_nlink: int


class Inode:
    """A file or a directory. `unstable`: writes since the last commit, (offset, bytes) or (size, None) = length set."""

    __slots__ = (
        "allocated",
        "data",
        "durable",
        "durable_names",
        "gone",
        "holder",
        "liar",
        "links",
        "names",
        "number",
        "unstable",
        "version",
    )

    def __init__(self, number: int, directory: bool) -> None:
        self.number = number
        self.data = b""
        self.durable = b""
        self.unstable: list[tuple[int, bytes | None]] = []
        self.version = 0
        self.allocated = 0
        self.links = 0
        self.holder: object = None  # the open file that holds the lock
        self.liar: object = None  # the host that sees, in `data`, bytes which the disk does not have
        self.gone = False  # it had no durable name when the server crashed: its handles are stale
        self.names: dict[str, Inode] | None = {} if directory else None
        self.durable_names: dict[str, Inode] | None = {} if directory else None

    def stat(self) -> Stat:
        return Stat(1, self.number, len(self.data), self.links)


def splice(data: bytes, offset: int, piece: bytes) -> bytes:
    """`data` with `piece` written at `offset`."""
    if offset > len(data):
        data = data.ljust(offset, b"\0")
    return data[:offset] + piece + data[offset + len(piece) :]


def resized(data: bytes, size: int) -> bytes:
    return data[:size].ljust(size, b"\0")


def replayed(inode: Inode) -> bytes:
    """What is on the disk and on its way there."""
    data = inode.durable
    for offset, piece in inode.unstable:
        data = resized(data, offset) if piece is None else splice(data, offset, piece)
    return data


def fail(number: int, path: str = "") -> OSError:
    return OSError(number, os.strerror(number), path)


class Server:
    """The tree of files, as the server has it. `sync_names`: names are durable at once (an NFS export with `sync`)."""

    def __init__(self, rng: Random, sync_names: bool, capacity_bytes: int) -> None:
        self.root = Inode(1, True)
        self.sync_names = sync_names
        self.capacity_bytes = capacity_bytes
        self.crashes = 0
        self.torn_writes = 0
        self._rng = rng
        self._numbers = 1
        self._files: list[Inode] = []

    # -- names --------------------------------------------------------------------------------------------------------

    def find(self, path: str) -> Inode:
        inode = self.root
        for part in path.strip("/").split("/"):
            if inode.names is None:
                raise fail(errno.ENOTDIR, path)
            found = inode.names.get(part)
            if found is None:
                raise fail(errno.ENOENT, path)
            inode = found
        return inode

    def parent(self, path: str) -> tuple[dict[str, Inode], str, Inode]:
        """(names of the directory of `path`, last part, that directory)."""
        directory, _, name = path.rpartition("/")
        inode = self.find(directory) if directory else self.root
        if inode.names is None:
            raise fail(errno.ENOTDIR, path)
        return inode.names, name, inode

    def create(self, path: str, directory: bool = False) -> Inode:
        names, name, parent = self.parent(path)
        if name in names:
            raise fail(errno.EEXIST, path)
        self._numbers += 1
        names[name] = inode = Inode(self._numbers, directory)
        inode.links = 1
        self._files.append(inode)
        self._named(parent)
        return inode

    def link(self, source: str, target: str) -> None:
        inode = self.find(source)
        names, name, parent = self.parent(target)
        if name in names:
            raise fail(errno.EEXIST, target)
        names[name] = inode
        inode.links += 1
        inode.version += 1
        self._named(parent)

    def unlink(self, path: str) -> None:
        names, name, parent = self.parent(path)
        if name not in names:
            raise fail(errno.ENOENT, path)
        names.pop(name).links -= 1
        self._named(parent)

    def sync_directory(self, inode: Inode) -> None:
        assert inode.names is not None
        inode.durable_names = dict(inode.names)

    def _named(self, parent: Inode) -> None:
        parent.version += 1
        if self.sync_names:
            self.sync_directory(parent)

    # -- bytes --------------------------------------------------------------------------------------------------------

    def used_bytes(self) -> int:
        return sum(max(len(inode.data), inode.allocated) for inode in self._files if inode.links)

    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.used_bytes())

    def write(self, inode: Inode, offset: int, piece: bytes) -> None:
        inode.data = splice(inode.data, offset, piece)
        inode.unstable.append((offset, piece))
        inode.version += 1

    def resize(self, inode: Inode, size: int) -> None:
        inode.data = resized(inode.data, size)
        inode.unstable.append((size, None))
        inode.version += 1

    def commit(self, inode: Inode) -> None:
        if inode.liar is None:
            inode.durable = inode.data
        else:
            inode.durable = replayed(inode)
        inode.unstable = []

    def forget_unstable(self, inode: Inode, liar: object) -> None:
        """The disk refused what was not committed; the host that wrote it goes on seeing it in its memory."""
        if inode.unstable:
            inode.unstable = []
            inode.liar = liar

    def reread(self, inode: Inode) -> None:
        """Somebody reads the disk and not that memory."""
        inode.data = replayed(inode)
        inode.liar = None
        inode.version += 1

    def crash(self) -> None:
        """Power off and on: what was not committed survives by chance, sector by sector, name by name."""
        self.crashes += 1
        for inode in self._files:
            inode.holder = None
            if inode.names is None:
                self._crash_file(inode)
        self._crash_names(self.root)
        for inode in self._files:
            inode.links = 0
        self._count_links(self.root)
        for inode in self._files:
            inode.gone = not inode.links
        self._files = [inode for inode in self._files if inode.links]

    def _crash_file(self, inode: Inode) -> None:
        data, rng = inode.durable, self._rng
        for offset, piece in inode.unstable:
            if piece is None:
                data = resized(data, offset) if rng.random() < 0.5 else data
                continue
            whole = rng.random()
            if whole < 0.3:
                continue
            kept = 0
            at = offset
            while at < offset + len(piece):
                end = min((at // SECTOR_BYTES + 1) * SECTOR_BYTES, offset + len(piece))
                if whole < 0.6 or rng.random() < 0.5:
                    data = splice(data, at, piece[at - offset : end - offset])
                    kept += end - at
                at = end
            self.torn_writes += 0 < kept < len(piece)
        inode.data = inode.durable = data
        inode.unstable = []
        inode.liar = None
        inode.version += 1

    def _crash_names(self, directory: Inode) -> None:
        names, durable = directory.names, directory.durable_names
        assert names is not None
        assert durable is not None
        survivors = {}
        for name in {**durable, **names}:
            now, then = names.get(name), durable.get(name)
            inode = now if now is then or self._rng.random() < 0.5 else then
            if inode is not None:
                survivors[name] = inode
        directory.names = survivors
        directory.durable_names = dict(survivors)
        directory.version += 1
        for inode in survivors.values():
            if inode.names is not None:
                self._crash_names(inode)

    def _count_links(self, directory: Inode) -> None:
        assert directory.names is not None
        for inode in directory.names.values():
            inode.links += 1
            if inode.names is not None:
                self._count_links(inode)

    def rot(self, inode: Inode, offset: int, byte: int) -> None:
        """One byte of a stored file becomes another."""
        inode.data = splice(inode.data, offset, bytes([byte]))
        inode.durable = splice(inode.durable, offset, bytes([byte]))
        inode.version += 1


class PlainVfs(Vfs):
    """The server's files as they are now, without a host in between: for checkers. Reads at once, never writes."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._open: dict[int, Inode] = {}
        self._next_fd = 3

    def open(self, path: str, flags: int, _mode: int = 0o640) -> int:
        assert flags & (os.O_ACCMODE | os.O_CREAT) == os.O_RDONLY
        self._next_fd += 1
        self._open[self._next_fd] = self.server.find(path)
        return self._next_fd

    def close(self, fd: int) -> None:
        del self._open[fd]

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return self._open[fd].data[offset : offset + size]

    def fstat(self, fd: int) -> os.stat_result:
        return self._open[fd].stat()  # type: ignore[return-value]

    def stat(self, path: str) -> os.stat_result:
        return self.server.find(path).stat()  # type: ignore[return-value]

    def listdir(self, path: str) -> list[str]:
        names = self.server.find(path).names
        assert names is not None
        return list(names)

    def lock_held(self, fd: int) -> bool:
        return self._open[fd].holder is not None
