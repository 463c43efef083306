"""A disk in memory that logs every system call, and what a crash may leave of it.

`Disk` is what running processes see; `Log` entries say how it came about; `Remains` walks along a log and, at any
point of it, enumerates the images that a crash there may leave. The rules are those of docs/crash-states.md: what was
not synced is there, is not there, or is torn, each part on its own. Invariant: an image never lacks what was synced.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SECTOR_BYTES = 512
ROOT = 1
WRITE, SIZE, NAME, SYNC = "write", "size", "name", "sync"


class Call(NamedTuple):
    """One system call that changed something, or made changes durable.

    WRITE  `data` at `offset` of file `node`           SIZE  file `node` is `offset` bytes long
    NAME   `name` in directory `node` leads to `target`, 0 = to nothing; `directory` = it is a new directory
    SYNC   all of file or directory `node` so far is durable
    """

    kind: str
    node: int
    path: str
    offset: int = 0
    data: bytes = b""
    name: str = ""
    target: int = 0
    directory: bool = False

    def __str__(self) -> str:
        detail = {
            WRITE: f" {len(self.data)} bytes at {self.offset}",
            SIZE: f" {self.offset}",
            NAME: f" {self.name} -> {self.target or 'nothing'}",
        }
        return f"{self.kind} {self.path}{detail.get(self.kind, '')}"


@dataclass(slots=True)
class Image:
    """Content of a disk. Numbers of files → bytes, numbers of directories → {name: number}."""

    files: dict[int, bytes] = field(default_factory=dict)
    directories: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})

    def key(self) -> int:
        """The same for images that no program can tell apart. Never leaves this process."""
        return hash(self._tree(ROOT))

    def _tree(self, node: int) -> tuple[Any, ...]:
        names = self.directories[node]
        return tuple(
            (name, self._tree(names[name]) if names[name] in self.directories else self.files[names[name]])
            for name in sorted(names)
        )


class Disk:
    """The running disk. `capacity` bytes; `allocates` = it can reserve space (fallocate)."""

    def __init__(self, image: Image | None = None, capacity: int = 1 << 40, allocates: bool = True) -> None:
        image = image or Image()
        self.log: list[Call] = []
        self.image = image
        self.capacity = capacity
        self.allocates = allocates
        self.files = {node: bytearray(data) for node, data in image.files.items()}
        self.directories = {node: dict(names) for node, names in image.directories.items()}
        self.sync_breaks = False  # the writer dies in its next fsync: the call is never made
        self.locks: dict[int, tuple[DiskVfs, int]] = {}
        self._newest = max([ROOT, *self.files, *self.directories])

    def new_node(self) -> int:
        self._newest += 1
        return self._newest

    def used(self) -> int:
        named = {node for names in self.directories.values() for node in names.values()}
        return sum(len(data) for node, data in self.files.items() if node in named)

    def find(self, path: str) -> int:
        node = ROOT
        for part in path.strip("/").split("/"):
            if part:
                if node not in self.directories:
                    raise _error(errno.ENOTDIR, path)
                found = self.directories[node].get(part)
                if found is None:
                    raise _error(errno.ENOENT, path)
                node = found
        return node

    def parent(self, path: str) -> tuple[int, str]:
        head, _, name = path.rpartition("/")
        return self.find(head), name

    def set_name(self, directory: int, name: str, target: int, path: str) -> None:
        """Let `name` lead to node `target`, 0 = to nothing."""
        if target:
            self.directories[directory][name] = target
        else:
            del self.directories[directory][name]
        self.log.append(Call(NAME, directory, path, name=name, target=target, directory=target in self.directories))


class DiskVfs:
    """One process's door to a disk. Dies with `die`: its descriptors and locks are gone, what it wrote is not."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._open: dict[int, tuple[int, str]] = {}
        self._next = 3

    def die(self) -> None:
        self._open.clear()
        self.disk.locks = {node: owner for node, owner in self.disk.locks.items() if owner[0] is not self}

    def open(self, path: str, flags: int, mode: int = 0o640) -> int:  # noqa: ARG002
        disk = self.disk
        directory, name = disk.parent(path)
        node = disk.directories[directory].get(name)
        if node is None:
            if not flags & os.O_CREAT:
                raise _error(errno.ENOENT, path)
            node = disk.new_node()
            disk.files[node] = bytearray()
            disk.set_name(directory, name, node, path)
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            raise _error(errno.EEXIST, path)
        elif node in disk.directories:
            raise _error(errno.EISDIR, path)
        fd, self._next = self._next, self._next + 1
        self._open[fd] = node, path
        return fd

    def close(self, fd: int) -> None:
        node, _ = self._file(fd)
        if self.disk.locks.get(node) == (self, fd):
            del self.disk.locks[node]
        del self._open[fd]

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return bytes(self.disk.files[self._file(fd)[0]][offset : offset + size])

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        node, path = self._file(fd)
        content = self.disk.files[node]
        room = self.disk.capacity - self.disk.used()
        count = min(len(data), max(len(content) - offset, 0) + room)
        if data and count <= 0:
            raise _error(errno.ENOSPC, path)
        piece = bytes(data[:count])
        if offset > len(content):
            content.extend(bytes(offset - len(content)))
        content[offset : offset + count] = piece
        self.disk.log.append(Call(WRITE, node, path, offset, piece))
        return count

    def fsync(self, fd: int) -> None:
        node, path = self._file(fd)
        if self.disk.sync_breaks:
            raise _error(errno.EINTR, path)
        self.disk.log.append(Call(SYNC, node, path))

    fdatasync = fsync

    def drop_cache(self, fd: int) -> None:
        """Nothing to do: here a failed sync leaves no memory that differs from the disk."""
        self._file(fd)

    def fsync_directory(self, path: str) -> None:
        self.disk.log.append(Call(SYNC, self.disk.find(path), path))

    def fstat(self, fd: int) -> os.stat_result:
        return self._stat(self._file(fd)[0])

    def stat(self, path: str) -> os.stat_result:
        return self._stat(self.disk.find(path))

    def listdir(self, path: str) -> list[str]:
        node = self.disk.find(path)
        if node not in self.disk.directories:
            raise _error(errno.ENOTDIR, path)
        return list(self.disk.directories[node])

    def mkdir(self, path: str) -> None:
        directory, name = self.disk.parent(path)
        if name in self.disk.directories[directory]:
            raise _error(errno.EEXIST, path)
        node = self.disk.new_node()
        self.disk.directories[node] = {}
        self.disk.set_name(directory, name, node, path)

    def link(self, source: str, target: str) -> None:
        node = self.disk.find(source)
        directory, name = self.disk.parent(target)
        if name in self.disk.directories[directory]:
            raise _error(errno.EEXIST, target)
        self.disk.set_name(directory, name, node, target)

    def unlink(self, path: str) -> None:
        self.disk.find(path)
        directory, name = self.disk.parent(path)
        self.disk.set_name(directory, name, 0, path)

    def ftruncate(self, fd: int, size: int) -> None:
        node, path = self._file(fd)
        content = self.disk.files[node]
        del content[size:]
        content.extend(bytes(size - len(content)))
        self.disk.log.append(Call(SIZE, node, path, size))

    def allocate(self, fd: int, size: int) -> bool:
        node, path = self._file(fd)
        if not self.disk.allocates:
            return False
        missing = size - len(self.disk.files[node])
        if missing > self.disk.capacity - self.disk.used():
            raise _error(errno.ENOSPC, path)
        if missing > 0:
            self.ftruncate(fd, size)
        return True

    def try_lock(self, fd: int) -> bool:
        node, _ = self._file(fd)
        return self.disk.locks.setdefault(node, (self, fd)) == (self, fd)

    def lock_held(self, fd: int) -> bool:
        node, _ = self._file(fd)
        return self.disk.locks.get(node, (self, fd)) != (self, fd)

    def free_bytes(self, path: str) -> int:
        self.disk.find(path)
        return max(self.disk.capacity - self.disk.used(), 0)

    def _file(self, fd: int) -> tuple[int, str]:
        try:
            return self._open[fd]
        except KeyError:
            raise _error(errno.EBADF, f"descriptor {fd}") from None

    def _stat(self, node: int) -> os.stat_result:
        directory = node in self.disk.directories
        size = 0 if directory else len(self.disk.files[node])
        return os.stat_result(((stat.S_IFDIR if directory else stat.S_IFREG) | 0o640, node, 1, 1, 0, 0, size, 0, 0, 0))


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


# -- what a crash leaves -----------------------------------------------------------------------------------------------

Pieces = tuple[tuple[int, bytes], ...]  # (offset, bytes) of what arrived of one write


class Remains:
    """The disk at one point of its log, seen from after a crash: what is durable, and what may be there or not."""

    def __init__(self, image: Image) -> None:
        self._files = dict(image.files)
        self._names = {node: dict(names) for node, names in image.directories.items()}
        self._writes: dict[int, list[Call]] = {}  # of each file, unsynced, oldest first
        self._sizes: dict[int, list[int]] = {}  # sizes that each file had since it was synced, the durable one first
        self._entries: dict[tuple[int, str], list[int]] = {}  # what each name led to since, the durable one first

    def follow(self, call: Call) -> None:
        """The next call of the log took place."""
        node = call.node
        if call.kind == NAME:
            if call.directory:
                self._names.setdefault(call.target, {})
            durable = self._names.setdefault(node, {}).get(call.name, 0)
            self._entries.setdefault((node, call.name), [durable]).append(call.target)
        elif call.kind == SYNC:
            self._sync(node)
        else:
            sizes = self._sizes.setdefault(node, [len(self._files.setdefault(node, b""))])
            writes = self._writes.setdefault(node, [])
            if call.kind == SIZE:
                sizes.append(call.offset)
            else:
                writes.append(call)
                sizes.append(max(sizes[-1], call.offset + len(call.data)))

    def _sync(self, node: int) -> None:
        if node in self._sizes:
            writes: list[Pieces] = [((call.offset, call.data),) for call in self._writes.pop(node)]
            self._files[node] = _written(self._files[node], self._sizes.pop(node)[-1], writes)
        for key in [key for key in self._entries if key[0] == node]:
            self._point(self._names, key, self._entries.pop(key)[-1])

    def images(self, limit: int, dice: random.Random) -> Iterator[tuple[Image, str]]:
        """Images that a crash may leave here, each with what it chose: all of them where that is at most `limit`, else
        the extremes, each single deviation from them, and a random selection."""
        writes = [(node, call) for node, calls in self._writes.items() for call in calls]
        sizes = [(node, list(dict.fromkeys(values))) for node, values in self._sizes.items()]
        entries = [(key, list(dict.fromkeys(targets))) for key, targets in self._entries.items()]
        torn = [_torn(call) for _, call in writes]
        axes = [len(options) for options in torn]
        axes += [len(options) for _, options in sizes] + [len(options) for _, options in entries]
        for choice in _choices(axes, limit, dice):
            at = iter(choice)
            arrived: dict[int, list[Pieces]] = {}
            for (node, _), options in zip(writes, torn, strict=True):
                arrived.setdefault(node, []).append(options[next(at)])
            files = dict(self._files)
            for node, options_bytes in sizes:
                files[node] = _written(files[node], options_bytes[next(at)], arrived.get(node, []))
            names = {node: dict(found) for node, found in self._names.items()}
            for key, targets in entries:
                self._point(names, key, targets[next(at)])
            nodes = {node for found in names.values() for node in found.values()}
            for node in nodes - names.keys() - files.keys():  # empty: nothing was ever written to it
                files[node] = b""
            yield Image(files, names), f"choice {choice} of {axes}"

    @staticmethod
    def _point(names: dict[int, dict[str, int]], key: tuple[int, str], target: int) -> None:
        node, name = key
        if target:
            names.setdefault(node, {})[name] = target
        else:
            names.setdefault(node, {}).pop(name, None)


def _written(old: bytes, size: int, writes: list[Pieces]) -> bytes:
    content = bytearray(old)
    for pieces in writes:
        for offset, data in pieces:
            content.extend(bytes(max(offset - len(content), 0)))
            content[offset : offset + len(data)] = data
    del content[size:]
    content.extend(bytes(size - len(content)))
    return bytes(content)


def _torn(call: Call) -> list[Pieces]:
    """What may arrive of one write: nothing first, all of it last; between them sectors in any order, and cut bytes."""
    offset, data = call.offset, call.data
    cuts = [0, *range(SECTOR_BYTES - offset % SECTOR_BYTES, len(data), SECTOR_BYTES), len(data)]
    sectors = [(offset + a, data[a:b]) for a, b in itertools.pairwise(cuts)]
    options: list[Pieces] = [()]
    if len(sectors) > 1:
        options += [
            tuple(sectors[:1]),
            tuple(sectors[1:]),
            tuple(sectors[:-1]),
            tuple(sectors[-1:]),
            tuple(sectors[::2]),
        ]
    options += [((offset, data[:count]),) for count in (1, 44, len(data) // 2, len(data) - 1) if 0 < count < len(data)]
    options.append(((offset, data),))
    return list(dict.fromkeys(options))


def _choices(axes: list[int], limit: int, dice: random.Random) -> Iterator[tuple[int, ...]]:
    """Index vectors below `axes`."""
    total = 1
    for count in axes:
        total *= count
    if total <= limit:
        yield from itertools.product(*map(range, axes))
        return
    seen: set[tuple[int, ...]] = set()
    nothing, everything = [0] * len(axes), [count - 1 for count in axes]
    single = [
        (*base[:axis], option, *base[axis + 1 :])
        for axis, count in enumerate(axes)
        for option in range(count)
        for base in (nothing, everything)
    ]
    dice.shuffle(single)
    chosen = itertools.chain(
        [tuple(nothing), tuple(everything)], single[: limit * 2 // 3], iter(lambda: _random(axes, dice), None)
    )
    for choice in chosen:
        if choice not in seen:
            seen.add(choice)
            yield choice
        if len(seen) >= limit:
            return


def _random(axes: list[int], dice: random.Random) -> tuple[int, ...]:
    return tuple(dice.randrange(count) for count in axes)
