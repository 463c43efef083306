"""A slave that pauses before any of its calls, while the master does any part of its work: what is sealed with
its help is what is sealed without.

Each scenario: the slave has caught up with the first `start` steps of a master; before its n-th call from there on the
master takes some steps more; then it goes on, and so does the master, to the end of the script.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from amq.core.errors import AmqError
from amq.journal.follower import DivergedError
from amq.journal.records import Trimmed
from amq.journal.recovery import seal
from amq.store.files.log import FileLog
from amq.store.files.vfs import SystemVfs
from tests.journal.follower_world import Reader, Slow, replayed, upto, write
from tests.journal.journal_world import World
from tests.sampling import sampled

# w: a batch; t: the oldest segments go; g: some go from the middle; b: the next master begins.
SCRIPT = "wwwwwwwwwwwwwwwwwwwwwwwwgwwwwwwwwwwtwwwwwwwwwwwwwwbwwwwwwwwwwwwwwwwwwwgwww"
CALLS = 12  # of the slave, before one of which it pauses
STEPS = (1, 2, 4, 12)  # of the master meanwhile


class Quick(SystemVfs):
    """The master's: nobody pulls the plug here."""

    def fdatasync(self, fd: int) -> None: ...

    def fsync(self, fd: int) -> None: ...

    def fsync_directory(self, path: str) -> None: ...


class Master:
    """Does what the script says, a step at a time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.done = 0

    def go_on(self, steps: int) -> None:
        for step in SCRIPT[self.done : self.done + steps]:
            getattr(self, f"_{step}")()
        self.done += steps

    def _w(self) -> None:
        write(self.world, 1, 500)

    def _b(self) -> None:
        self.world.begin()

    def _t(self) -> None:
        self._delete(Trimmed(*self.world.journal.segments[self.world.journal.closed() - 1].key))

    def _g(self) -> None:
        segments = list(self.world.journal.segments)[: self.world.journal.closed()]
        if len(segments) > 2:
            self._delete(Trimmed(*segments[-2].key, {segments[0].key: segments[0].end}))

    def _delete(self, mark: Trimmed) -> None:
        """As the broker does: nothing goes before the mark is durable."""
        self.world.journal.trim(mark)
        self.world.commit()
        for segment in list(self.world.journal.segments):
            if segment.key in mark:
                os.unlink(os.path.join(self.world.directory, segment.name))
                self.world.journal.segments.remove(segment)


def play(path: Path, start: int, call: int, steps: int) -> bool:
    """One scenario; False where the slave made fewer calls."""
    world = World(path, Quick())
    master = Master(world)
    master.go_on(start)
    vfs = Slow(lambda: master.go_on(steps))
    reader = Reader(world, vfs)
    reader.follow()
    master.go_on(1)
    vfs.left = call
    reader = followed(reader)
    reached = vfs.left <= 0
    vfs.left = -1
    master.go_on(1)
    reader = followed(reader)
    master.go_on(1)
    right = seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed)
    assert seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed, reader.follower.followed) == right
    with suppress(DivergedError):  # then the new master reads all
        reader.finish(right)
        assert set(replayed(world, right)) <= set(reader.seqs)
        assert set(reader.seqs) <= set(upto(world.sent))
    world.end()
    return reached


def followed(reader: Reader) -> Reader:
    """As `amq.node.following` does it: what went wrong may pass, and who has diverged begins anew."""
    try:
        reader.follow()
    except DivergedError:
        return Reader(reader.world, reader.vfs)
    except (AmqError, OSError):
        pass
    return reader


@pytest.mark.parametrize("start", sampled(range(1, len(SCRIPT), 3), 4))
def test_a_slave_that_stands_still_anywhere_misleads_no_seal(tmp_path: Path, start: int) -> None:
    reached = 0
    for call in range(1, CALLS + 1):
        for steps in STEPS:
            reached += play(tmp_path / f"{call}-{steps}", start, call, steps)
    assert reached
