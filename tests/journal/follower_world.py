"""A follower of the journal of journal_world, which notes what it was given."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from amq.core.message import Message
from amq.journal.follower import Follower, Start, replay
from amq.journal.live import Segment
from amq.journal.records import Record
from amq.store.files.log import FileLog
from amq.store.files.vfs import SystemVfs, Vfs
from tests.journal.journal_world import World

ALL = 1 << 30


class Reader:
    """A follower, and the seqs of the messages that it gave out."""

    def __init__(self, world: World, vfs: Vfs | None = None, start: Start | None = None) -> None:
        self.seqs: list[int] = []
        self.names: set[str] = set()
        self.world = world
        self.vfs = vfs or SystemVfs()
        self.follower = Follower(FileLog(self.vfs, world.store), self._apply, start)

    def _apply(self, record: Record, _segment: Segment) -> None:
        if isinstance(record, Message):
            self.seqs.append(record.seq)
            self.names.add(record.destination)

    def follow(self, budget_bytes: int = ALL) -> list[int]:
        """All that can be had now."""
        while self.follower.follow(self.world.epoch, self.world.sealed, budget_bytes):
            pass
        return self.seqs

    def finish(self, sealed: dict[str, int]) -> list[int]:
        self.follower.finish(sealed, lambda _done, _total: None)
        return self.seqs


class CountingVfs(SystemVfs):
    """How much is read."""

    read_bytes = 0

    def pread(self, fd: int, size: int, offset: int) -> bytes:  # type: ignore[override]
        data = os.pread(fd, size, offset)
        self.read_bytes += len(data)
        return data


class Slow(SystemVfs):
    """Before the `left`th call from now on it pauses, and `meanwhile` happens."""

    left = -1

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile

    def __getattribute__(self, name: str) -> Any:
        if name in _READING:
            self.left -= 1
            if not self.left:
                self._meanwhile()
        return super().__getattribute__(name)


_READING = frozenset(("open", "close", "pread", "listdir", "stat", "fstat"))


def write(world: World, batches: int = 1, size: int = 100, name: str = "queue://a") -> None:
    for _ in range(batches):
        world.send(1, size, name=name)
        world.commit()


def path_of(world: World, index: int = 0) -> str:
    return os.path.join(world.directory, world.segments()[index])


def upto(last: int) -> list[int]:
    return list(range(1, last + 1))


def replayed(world: World, sealed: dict[str, int]) -> list[int]:
    found: list[int] = []
    replay(
        FileLog(SystemVfs(), world.store),
        sealed,
        lambda record, _segment: found.append(record.seq) if isinstance(record, Message) else None,
        lambda _done, _total: None,
    )
    return found
