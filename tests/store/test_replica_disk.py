"""The disk of a copy: what is durable when an answer leaves, and what a crash leaves."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from amq.core.errors import CorruptError
from amq.doors.clock import SystemClock
from amq.journal.copies import JournalFormat
from amq.journal.format import HEADER_BYTES, SegmentHeader, encode_batch, segment_name
from amq.store.files.vfs import SystemVfs
from amq.store.replica.copyist import FULL_PAUSE_S, Copyist
from amq.store.replica.disk import CopyDisk, position_of
from amq.store.replica.group import GroupRecord
from amq.store.replica.messages import Adopt, Append, AskPromise, Promised, SegmentWrite, Stored
from amq.store.segment_log import NoRoomError
from tests.copies import SALT
from tests.fakes import FakeClock

RECORD = GroupRecord(5, frozenset("ab"), 2, 0, 0, epoch=1)
NAME = segment_name(1, 1)
HEAD = SegmentHeader(1, 1, bytes(16), SALT).encode()


class Watched(SystemVfs):
    """It knows what is not durable yet: the files that were written, and the directories in which names changed."""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}
        self.unsynced: set[str] = set()

    def open(self, path: str, flags: int, mode: int = 0o640) -> int:  # type: ignore[override]
        is_new = not Path(path).exists()
        fd = SystemVfs.open(path, flags, mode)
        self.paths[fd] = path
        if is_new and not path.endswith((".lock", ".new")):
            self.unsynced.add(str(Path(path).parent))
        return fd

    def pwrite(self, fd: int, data: Any, offset: int) -> int:  # type: ignore[override]
        self.unsynced.add(self.paths[fd])
        return SystemVfs.pwrite(fd, data, offset)

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        SystemVfs.fsync(fd)
        self.unsynced.discard(self.paths[fd])

    fdatasync = fsync  # type: ignore[assignment]

    def replace(self, source: str, target: str) -> None:  # type: ignore[override]
        assert source not in self.unsynced, "renamed before it is durable"
        SystemVfs.replace(source, target)
        self.unsynced.add(str(Path(target).parent))

    def fsync_directory(self, path: str) -> None:  # type: ignore[override]
        SystemVfs.fsync_directory(path)
        self.unsynced.discard(path)


def opened(directory: Path, vfs: SystemVfs | None = None) -> Copyist:
    disk = CopyDisk(vfs or SystemVfs(), str(directory), JournalFormat(), 2, SystemClock())
    return Copyist(disk, disk.open("a", Random(1)), SystemClock())


def batch(number: int, payload: bytes = b"payload") -> bytes:
    return encode_batch(payload, SALT, 1, number, 1, 0)


def appended(after: int, start: int, data: bytes) -> Append:
    return Append(5, 5, after, position_of(1, start + len(data)), SegmentWrite(NAME, start, data))


FIRST = appended(0, 0, HEAD + batch(1))
SECOND = appended(FIRST.upto, len(FIRST.data.data), batch(2))
CHUNK = appended(FIRST.upto, len(FIRST.data.data), batch(2, b"x" * 9000) + batch(3, b"y" * 9000))


def test_whatever_an_answer_says_is_durable_when_it_leaves(tmp_path: Path) -> None:
    vfs = Watched()
    copyist = opened(tmp_path / "a", vfs)
    for message, answer in (
        (AskPromise(4), Promised(4, 0, 0, True)),
        (Adopt(5, RECORD), Stored(5, 0)),
        (FIRST, Stored(5, FIRST.upto)),
        (SECOND, Stored(5, SECOND.upto)),
        (AskPromise(9), Promised(9, 5, SECOND.upto, True)),
    ):
        assert copyist.handle(message) == answer
        assert vfs.unsynced == set(), f"not durable when {answer} leaves"
    copyist.close()
    again = opened(tmp_path / "a")
    assert (again.keeper.promised, again.keeper.term, again.keeper.position) == (9, 5, SECOND.upto)
    again.close()


def torn(path: Path, offset: int, size: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(bytes(size))


@pytest.mark.parametrize(
    ("messages", "damage", "position"),
    [
        ([FIRST, SECOND], lambda: (SECOND.data.start + 10, 20), FIRST.upto),
        ([FIRST, CHUNK], lambda: (CHUNK.data.start + 100, 20), FIRST.upto),
        ([FIRST], lambda: (HEADER_BYTES, 20), 0),
    ],
    ids=["the last write", "the first of several that came at once", "the only one"],
)
def test_what_a_crash_left_of_the_last_write_goes(
    tmp_path: Path, messages: list[Append], damage: Callable[[], tuple[int, int]], position: int
) -> None:
    copyist = opened(tmp_path / "a")
    for message in (Adopt(5, RECORD), *messages):
        copyist.handle(message)
    copyist.close()
    torn(tmp_path / "a" / "journal" / NAME, *damage())
    again = opened(tmp_path / "a")
    assert again.keeper.position == position
    again.close()


class Full(SystemVfs):
    """A disk that gives a file no more room while `full`."""

    full = False

    def allocate(self, fd: int, size: int) -> bool:  # type: ignore[override]
        if self.full and SystemVfs.fstat(fd).st_size < size:
            raise OSError(errno.ENOSPC, "no space left on device")
        return super().allocate(fd, size)


def test_a_disk_that_stays_full_takes_nothing_from_what_the_copy_has(tmp_path: Path) -> None:
    vfs, clock = Full(), FakeClock()
    disk = CopyDisk(vfs, str(tmp_path / "a"), JournalFormat(), 2, clock)
    copyist = Copyist(disk, disk.open("a", Random(1)), clock)
    for message in (Adopt(5, RECORD), FIRST):
        copyist.handle(message)
    disk.load()  # the segment is opened again, as after the first write that found no room
    vfs.full = True
    for _ in range(3):
        with pytest.raises(NoRoomError):
            copyist.handle(SECOND)
        clock.advance(FULL_PAUSE_S)
    vfs.full = False
    assert copyist.handle(SECOND) == Stored(5, SECOND.upto)
    copyist.close()
    again = opened(tmp_path / "a")
    assert again.keeper.position == SECOND.upto
    again.close()


def test_damage_that_no_crash_leaves_is_told(tmp_path: Path) -> None:
    copyist = opened(tmp_path / "a")
    for message in (Adopt(5, RECORD), FIRST, SECOND):
        copyist.handle(message)
    copyist.close()
    torn(tmp_path / "a" / "journal" / NAME, HEADER_BYTES + 10, 20)
    with pytest.raises(CorruptError):
        opened(tmp_path / "a")
