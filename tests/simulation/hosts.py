"""A host's view of the file server: caches, late writes, partitions, locks that are lost.

Modelled as measured on NFSv4, GFS2 and SMB (docs/simulation.md): close-to-open, attribute caches, unsynced bytes that
reach the server late, in any order and after the death of their writer; a deposed host whose writes are refused
through descriptors that held a lock (`fenced`) or land all the same.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.simulation.scheduler import Machine, Process, Scheduler
from tests.simulation.storage import Inode, Server, Stat, fail, splice


@dataclass(frozen=True)
class Mount:
    """How a run's file system behaves.

    kind             for the report
    write_back       unsynced bytes stay on the host for a while; else the server has them at once, volatile
    attributes_s     how long names, attributes and listings may come from a cache; 0 = never
    fenced           the server refuses writes through a descriptor whose lock was lost (NFSv4)
    lock_refuses     it refuses writes to a file that another host has locked (SMB)
    soft_s           a call fails with EIO after so long without the server; 0 = it hangs (hard)
    lease_s          the locks of a host that was silent for so long go to whoever asks
    sync_names       names are durable at once
    """

    kind: str
    write_back: bool
    attributes_s: float
    fenced: bool
    lock_refuses: bool
    soft_s: float
    lease_s: float
    sync_names: bool


class OpenFile:
    """An open file description."""

    def __init__(self, inode: Inode, host: HostCache, process: Process, path: str, writable: bool) -> None:
        self.inode = inode
        self.host = host
        self.process = process
        self.path = path
        self.writable = writable
        self.fenced = False
        self.lost_pages = False


class Dirty:
    """Bytes written on a host and not yet known to be durable."""

    __slots__ = ("data", "file", "offset", "sent")

    def __init__(self, file: OpenFile, offset: int, data: bytes) -> None:
        self.file = file
        self.offset = offset
        self.data = data
        self.sent = False


class Pages:
    """What a host has of one file."""

    __slots__ = ("dirty", "snapshot", "version")

    def __init__(self) -> None:
        self.snapshot = b""
        self.version = -1
        self.dirty: list[Dirty] = []

    def view(self) -> bytes:
        data = self.snapshot
        for piece in self.dirty:
            data = splice(data, piece.offset, piece.data)
        return data


class HostCache:
    """One machine's file system client. Shared by its processes, and outlives them."""

    def __init__(self, scheduler: Scheduler, machine: Machine, server: Server, mount: Mount, rng: Random) -> None:
        self.machine = machine
        self.server = server
        self.mount = mount
        self.cut_until = 0.0  # no way to the server before
        self.silent_since = 0.0
        self.faults: list[tuple[str, int]] = []  # (method, errno) of calls that fail once
        self.late_writes = 0
        self.locks_lost = 0
        self._scheduler = scheduler
        self._rng = rng
        self._pages: dict[Inode, Pages] = {}
        self._stats: dict[str, tuple[float, Stat | None]] = {}
        self._lists: dict[str, tuple[float, list[str]]] = {}
        self.files: list[OpenFile] = []
        self.watchers: list[tuple[Process, Callable[[], None]]] = []  # who learns when the lock file is closed

    def connected(self) -> bool:
        return self.machine.up and self._scheduler.now >= self.cut_until

    def cut(self, seconds: float) -> None:
        """No way to the file server for a while."""
        if self.connected():
            self.silent_since = self._scheduler.now
        self.cut_until = max(self.cut_until, self._scheduler.now + seconds)

    def lease_over(self) -> bool:
        silent = not self.connected()
        return silent and self._scheduler.now - self.silent_since > self.mount.lease_s

    def power_off(self) -> None:
        """The machine loses what it had in memory."""
        if self.machine.up:
            self.silent_since = self._scheduler.now
        self.machine.up = False
        self._pages.clear()
        self._stats.clear()
        self._lists.clear()

    def power_on(self) -> None:
        """The new boot tells the server that the old one is gone, with all its locks."""
        self.machine.up = True
        self.machine.boots += 1
        for file in self.files:
            if file.inode.holder is file:
                file.inode.holder = None
        self.files.clear()

    # -- pages --------------------------------------------------------------------------------------------------------

    def pages(self, inode: Inode) -> Pages:
        pages = self._pages.get(inode)
        if pages is None:
            pages = self._pages[inode] = Pages()
        return pages

    def revalidate(self, inode: Inode) -> None:
        """Close-to-open: what is on the server now is what a reader sees who opens now."""
        if inode.liar not in (None, self):
            self.server.reread(inode)
        pages = self.pages(inode)
        if pages.version != inode.version:
            pages.snapshot, pages.version = inode.data, inode.version

    def write(self, file: OpenFile, offset: int, data: bytes) -> None:
        """A page holds each byte once: what stood there and is not committed is never sent again."""
        pages = self.pages(file.inode)
        end = offset + len(data)
        for old in [old for old in pages.dirty if old.offset < end and offset < old.offset + len(old.data)]:
            pages.dirty.remove(old)
            for start, stop in ((old.offset, offset), (end, old.offset + len(old.data))):
                if start < stop:
                    rest = Dirty(old.file, start, old.data[start - old.offset : stop - old.offset])
                    rest.sent = old.sent
                    self._keep(rest)
        dirty = Dirty(file, offset, data)
        if not self.mount.write_back:
            pages.dirty.append(dirty)
            self.send(dirty)
        else:
            self._keep(dirty)

    def _keep(self, dirty: Dirty) -> None:
        """In the cache, to be sent some time."""
        self.pages(dirty.file.inode).dirty.append(dirty)
        if not dirty.sent:
            self._scheduler.after(self._rng.expovariate(1 / 1.5), lambda: self._send_later(dirty))

    def _send_later(self, dirty: Dirty) -> None:
        if dirty.sent or not self.machine.up or dirty not in self.pages(dirty.file.inode).dirty:
            return
        if self.connected():
            self.send(dirty)
        else:
            self._scheduler.after(0.1 + self._rng.random(), lambda: self._send_later(dirty))

    def send(self, dirty: Dirty) -> bool:
        """One WRITE to the server. False = refused; the bytes are gone."""
        file, inode, pages = dirty.file, dirty.file.inode, self.pages(dirty.file.inode)
        if dirty.sent:
            return True
        if dirty not in pages.dirty:
            return False
        holder = inode.holder
        foreign = isinstance(holder, OpenFile) and holder.host is not self
        if file.fenced or inode.gone or (self.mount.lock_refuses and foreign):
            pages.dirty.remove(dirty)
            file.lost_pages = True
            return False
        self.late_writes += not file.process.alive or foreign
        before = inode.version
        self.server.write(inode, dirty.offset, dirty.data)
        dirty.sent = True
        # The client takes the new change attribute for the effect of its own write: a change that another host made
        # just before stays unseen.
        if pages.version == before or self.mount.attributes_s:
            pages.snapshot, pages.version = splice(pages.snapshot, dirty.offset, dirty.data), inode.version
        return True

    def flush(self, file: OpenFile, step: Callable[[], None]) -> None:
        """Everything that this host has of the file goes to the server and is made durable. Raises EIO, ESTALE.

        What a crash of the server lost meanwhile is sent again: the COMMIT would bring another write verifier.
        """
        pages = self.pages(file.inode)
        while True:
            self.check_handle(file)
            if file.lost_pages:
                raise fail(errno.EIO, file.path)
            unsent = [dirty for dirty in pages.dirty if not dirty.sent]
            if not unsent:
                break
            for dirty in self._rng.sample(unsent, len(unsent)):
                if dirty in pages.dirty and not dirty.sent:
                    self.send(dirty)
                    step()
        self.server.commit(file.inode)
        for dirty in pages.dirty:
            if dirty.sent:  # clean now, and still in the cache
                pages.snapshot = splice(pages.snapshot, dirty.offset, dirty.data)
        pages.dirty = [dirty for dirty in pages.dirty if not dirty.sent]

    def check_handle(self, file: OpenFile) -> None:
        if file.inode.gone:
            raise fail(errno.ESTALE, file.path)

    def drop_dirty(self, file: OpenFile) -> None:
        """A failed writeback: the kernel marks the pages clean, their bytes never reach the server."""
        pages = self.pages(file.inode)
        pages.snapshot = pages.view()
        if not self.mount.write_back:
            self.server.forget_unstable(file.inode, self)
        pages.dirty = []

    def drop_cache(self, inode: Inode) -> None:
        """The next read comes from the server, and there from the disk."""
        if inode.liar is self:
            self.server.reread(inode)
        pages = self.pages(inode)
        pages.version = -1
        self.revalidate(inode)

    def server_restarted(self) -> None:
        """What was sent and not committed is sent again."""
        for pages in self._pages.values():
            for dirty in pages.dirty:
                if dirty.sent:
                    dirty.sent = False
                    self._scheduler.after(self._rng.random(), lambda dirty=dirty: self._send_later(dirty))

    # -- names --------------------------------------------------------------------------------------------------------

    def stat(self, path: str) -> Stat:
        now = self._scheduler.now
        expires, found = self._stats.get(path, (0.0, None))
        if now >= expires:
            try:
                found = self.server.find(path).stat()
            except FileNotFoundError:
                found = None
            self._stats[path] = (now + self.mount.attributes_s * self._rng.random(), found)
        if found is None:
            raise fail(errno.ENOENT, path)
        return found

    def absent(self, path: str) -> bool:
        """Whether this host believes, from a while ago, that there is no such name."""
        expires, found = self._stats.get(path, (0.0, None))
        return found is None and self._scheduler.now < expires

    def listdir(self, path: str) -> list[str]:
        now = self._scheduler.now
        expires, names = self._lists.get(path, (0.0, []))
        if now >= expires:
            found = self.server.find(path).names
            if found is None:
                raise fail(errno.ENOTDIR, path)
            names = self._rng.sample(list(found), len(found))
            self._lists[path] = (now + self.mount.attributes_s * 0.3 * self._rng.random(), names)
        return list(names)

    def touched(self, path: str) -> None:
        """This host changed a name: what it knows of that directory is fresh."""
        directory = path.rpartition("/")[0]
        self._lists.pop(directory, None)
        for known in [known for known in self._stats if known.rpartition("/")[0] == directory]:
            del self._stats[known]

    # -- locks --------------------------------------------------------------------------------------------------------

    def try_lock(self, file: OpenFile) -> bool:
        self.check_handle(file)
        holder = file.inode.holder
        if isinstance(holder, OpenFile) and holder is not file:
            if holder.host is self or not holder.host.lease_over():
                return False
            holder.host.lose_locks()
        file.inode.holder = file
        return True

    def lose_locks(self, only: str = "") -> None:
        """The server forgets the locks of this host (whose path ends with `only`). Nobody is told."""
        for file in self.files:
            if file.inode.holder is file and file.path.endswith(only):
                file.inode.holder = None
                self.locks_lost += 1
                file.fenced = self.mount.fenced

    def kernel_close(self, file: OpenFile) -> None:
        """A process that died had this open: the kernel writes what it has, then gives the lock back."""
        if not self.machine.up or file not in self.files:
            return
        if not self.connected():
            self._scheduler.after(0.2, lambda: self.kernel_close(file))
            return
        for dirty in list(self.pages(file.inode).dirty):
            if dirty.file is file:
                self.send(dirty)
        self.let_go(file)

    def let_go(self, file: OpenFile) -> None:
        if file in self.files:
            self.files.remove(file)
        if file.inode.holder is file:
            file.inode.holder = None
        if file.writable and file.path.endswith("/lock"):
            for process, wake in self.watchers:
                self._scheduler.after(self._rng.random() * 0.001, wake, process)
