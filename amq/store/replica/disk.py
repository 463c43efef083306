"""The disk of one copy: segments and checkpoints as a store in files has them, and a small document.

    copy.json      its id, what it promised, the term whose log it has, and that term's epoch
    copy.lock      held by the process that keeps the copy
    journal/ checkpoints/
    oldreplica.N/  bytes that count no more, for a person; the oldest go

A position is a segment's number << 40 | where a write of it ends. Invariants: what was carried out is durable; after a
crash the copy has everything that it said, and each later write whole or not at all.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, NamedTuple, Self

from amq.core.errors import StoreError
from amq.doors.clock import Clock
from amq.store.document import decode, encode, field
from amq.store.files.log import FileLog, FileWriter
from amq.store.files.vfs import ToolVfs, Vfs, is_at, read_file, write_all
from amq.store.replica.keeper import KeptState
from amq.store.replica.messages import (
    DiskRequest,
    Fetched,
    KeepData,
    KeepMark,
    KeepPiece,
    KeepSegments,
    ReadBack,
    SegmentWrite,
    SetAside,
    StartOver,
)
from amq.store.segment_log import (
    CHECKPOINTS_DIRECTORY,
    FULL_ERRNOS,
    JOURNAL_DIRECTORY,
    NoRoomError,
    SegmentFormat,
)

KIND = "copy"
MARK_NAME, LOCK_NAME = "copy.json", "copy.lock"
SEGMENT_BYTES = 64 << 20  # a copy takes room in steps as if all its segments were so large
CHUNK_BYTES = 4 << 20  # read at once for a copy that lacks more
WRITES_MAX = 100  # in a piece
_OFFSET_BITS = 40
_OFFSET = (1 << _OFFSET_BITS) - 1
_SAVED = re.compile(r"oldreplica\.([0-9]{1,9})")


def position_of(number: int, offset: int) -> int:
    return number << _OFFSET_BITS | offset


def split(position: int) -> tuple[int, int]:
    """Number of the segment, and offset."""
    return position >> _OFFSET_BITS, position & _OFFSET


@contextmanager
def _room(path: str) -> Iterator[None]:
    """A call that fails here has changed nothing that counts: a disk that is only full is no end of the copy."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL_ERRNOS:
            raise NoRoomError(error.errno, error.strerror, path) from error
        raise


class _Chunk(NamedTuple):
    """Several writes that came at once: they may be torn anywhere until the next one comes."""

    name: str = ""
    start: int = 0
    end: int = 0


class _Coming:
    """The head of a segment, and the write that comes: all that `end_within` reads. See `Reader`."""

    __slots__ = ("_head", "_write", "place")

    def __init__(self, place: str, head: bytes, write: SegmentWrite) -> None:
        self.place = place
        self._head, self._write = head, write

    def read(self, offset: int, size: int) -> bytes:
        at = offset - self._write.start
        return bytes(self._write.data[at : at + size]) if at >= 0 else self._head[offset : offset + size]

    def size(self) -> int:
        return self._write.start + len(self._write.data)

    def refresh(self) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def copy_id(vfs: Vfs, directory: str) -> str:
    """The id of the copy in `directory`, which may be in use; "" = there is none. Raises AmqError, OSError."""
    place = os.path.join(directory, MARK_NAME)
    try:
        return str(field(decode(KIND, read_file(vfs, place), place), "id", str, place))
    except FileNotFoundError:
        return ""


class CopyDisk:
    """The copy in `directory`. One thread at a time. `saved` = how many oldreplica.N stay."""

    def __init__(self, vfs: ToolVfs, directory: str, segments: SegmentFormat, saved: int, clock: Clock) -> None:
        self.id = ""
        self.log = FileLog(vfs, directory)
        self.epoch = 0
        self.position = 0  # what is durable
        self.written = 0  # and what this master has written on top
        self._vfs, self._directory, self._segments, self._saved, self._clock = vfs, directory, segments, saved, clock
        self._mark = KeepMark(0, 0, True)
        self._chunk = _Chunk()
        self._writers: dict[str, FileWriter] = {}
        self._head = "", b""  # of the segment that others write to: its name, and how it begins
        self._ends: dict[int, int] = {}  # of segments of the epoch that are written no more
        self._lock: int | None = None

    # -- start and end ------------------------------------------------------------------------------------------------

    def open(self, name: str, entropy: Random) -> KeptState:
        """Take the copy into use; where there is none, make an empty one, whose id begins with `name`. Raises
        StoreError, OSError."""
        try:
            self._vfs.listdir(self._directory)
        except FileNotFoundError:
            self.log.make()
        self._lock = self._vfs.open(self._path(LOCK_NAME), os.O_RDWR | os.O_CREAT)
        if not self._vfs.try_lock(self._lock):
            raise StoreError(
                f"{self._directory} is used by another broker: each member of a replicated store needs a directory of "
                "its own",
                code="STORE_LOCKED",
            )
        if MARK_NAME not in self._vfs.listdir(self._directory):
            self._make_new(name, entropy)
        return self.load()

    def load(self) -> KeptState:
        """The state of the copy. The rest of a write that a crash cut off is removed. Raises CorruptError, OSError."""
        self._close_writers()
        place = self._path(MARK_NAME)
        body = decode(KIND, read_file(self._vfs, place), place)
        self.id = field(body, "id", str, place)
        numbers = [field(body, key, int, place) for key in ("promised", "term", "epoch")]
        whole = field(body, "whole", int, place) != 0
        self._mark = KeepMark(numbers[0], numbers[1], whole, numbers[2])
        self._chunk = _Chunk(*field(body, "chunk", list, place))
        self.epoch, self._ends = numbers[2], {}
        self.position = self.written = self._measure() if whole else 0
        return KeptState(numbers[0], numbers[1], whole, self.position, self.epoch)

    def check(self) -> None:
        """Raises StoreError where somebody removed or replaced the directory; OSError."""
        assert self._lock is not None
        if not is_at(self._vfs, self._lock, self._path(LOCK_NAME)):
            raise StoreError(
                f"{self._directory} was removed or replaced while this broker used it, so this copy is lost: start the "
                "broker again, and it fills a new copy",
                code="STORE_MISSING",
            )

    def close(self) -> None:
        self._close_writers()
        lock, self._lock = self._lock, None
        if lock is not None:
            self._vfs.close(lock)

    def _make_new(self, name: str, entropy: Random) -> None:
        found = {each for each in self._vfs.listdir(self._directory) if not _SAVED.fullmatch(each)} - {LOCK_NAME}
        with suppress(FileNotFoundError):
            if found == {JOURNAL_DIRECTORY} and not self.log.names():
                found = set()  # made by a broker that died at once
        if found:
            raise StoreError(
                f"{self._directory} holds {', '.join(sorted(found)[:5])}, and is not a copy of a replicated "
                "store: give replica:// a separate directory, and move messages of another store with "
                "`amq journal export` and `amq journal import`",
                code="STORE_FOREIGN_FILE",
            )
        self.log.make()
        self.id = f"{re.sub('[^A-Za-z0-9_.-]', '-', name)[:64]}-{entropy.randbytes(6).hex()}"
        self._write_mark()

    # -- what a copy is asked for -------------------------------------------------------------------------------------

    def carry_out(self, request: DiskRequest) -> Any:
        """Carry it out, durably. Returns the answer of a ReadBack."""
        match request:
            case KeepData(upto, data):
                self._keep(upto, data)
            case KeepMark():
                self._mark = request
                if request.epoch != self.epoch:
                    self._close_writers()
                    self.epoch, self.position, self.written, self._ends = request.epoch, 0, 0, {}
                self._write_mark()
            case SetAside(position):
                self._set_aside(position)
            case StartOver():
                self._start_over()
            case KeepPiece(data):
                for write in data:
                    self._add(write)
            case KeepSegments(position, names):
                self._keep_segments(position, set(names))
            case ReadBack(term, after):
                upto, found = self.read(after, self.position)
                return Fetched(term, after, upto, found)
        return None

    def _keep(self, upto: int, write: SegmentWrite | None) -> None:
        """Returns None if nothing up to there counts any more."""
        if write is not None and upto <= self.written and write.name in self._writers:
            self._writers[write.name].sync()  # this master's own
        elif write is not None:
            head = self._segments.head_bytes if not write.start else 0
            if head:
                self._begin(write.name, write.data[:head])
            start, end = write.start + head, write.start + len(write.data)
            writer = self._writers.get(write.name) or self._open_again(write.name)
            self._note_chunk(write)
            writer.append(start, end, [write.data[head:]])
        self.position = upto
        self.written = max(self.written, upto)

    def _begin(self, name: str, head: bytes) -> None:
        """Make a segment. The head is durable before anything follows: without it a reader cannot tell what is torn."""
        self._close_writers()
        with suppress(FileNotFoundError):  # what a master had made ahead
            self._vfs.unlink(self.log.place(name))
        self._writers[name] = self.log.create(name, head, SEGMENT_BYTES, self._clock)

    def _open_again(self, name: str) -> FileWriter:
        fd = self._vfs.open(self.log.place(name), os.O_RDWR)
        self._writers[name] = writer = FileWriter(self._vfs, fd, SEGMENT_BYTES, self._clock)
        return writer

    def _note_chunk(self, write: SegmentWrite) -> None:
        """Several writes that are synced at once may be there in part after a crash, a later one without an earlier."""
        end = write.start + len(write.data)
        if self._head[0] != write.name:
            with self.log.open(write.name) as segment:
                self._head = write.name, segment.read(0, self._segments.head_bytes)
        coming = _Coming(self.log.place(write.name), self._head[1], write)
        first = self._segments.end_within(coming, write.start, end, 0)
        if first < end:
            self._chunk = _Chunk(write.name, write.start, end)
            self._write_mark()

    def _add(self, write: SegmentWrite) -> None:
        """Add a part of a segment that counts before the term, durably. It may follow one that is trimmed meanwhile."""
        path = self.log.place(write.name)
        with _room(path):
            fd = self._vfs.open(path, os.O_RDWR | (0 if write.start else os.O_CREAT))
            try:
                write_all(self._vfs, fd, write.data, write.start)
                self._vfs.fsync(fd)
            finally:
                self._vfs.close(fd)
        if not write.start:
            self.log.settle()

    def _set_aside(self, position: int) -> None:
        """See `SetAside`. A crash in the middle, and the same again, is harmless."""
        self._close_writers()
        last, offset = split(position)
        aside: list[tuple[str, int, int]] = []
        for number in self._numbers():
            name = self._segments.name(self.epoch, number)
            end = self._end_of(number) if number >= last else 0
            if number > last or (number == last and end > offset):
                aside.append((name, offset if number == last else 0, end))
        if any(end for _, _, end in aside):
            saved = self._new_saved()
            for name, start, end in aside:
                with self.log.open(name) as segment:
                    data = segment.read(start, end - start)
                if data:
                    self._save(os.path.join(saved, name), data)
            self._vfs.fsync_directory(saved)
            self._prune_saved()
        for name, start, _ in aside:
            if start:
                self._cut(name, start)
            else:
                self._vfs.unlink(self.log.place(name))
        self.log.settle()
        self._ends.clear()

    def _start_over(self) -> None:
        self._close_writers()
        saved = self._new_saved()
        for name in (JOURNAL_DIRECTORY, CHECKPOINTS_DIRECTORY):
            with suppress(FileNotFoundError):
                self._vfs.replace(self._path(name), os.path.join(saved, name))
        self.log.make()
        self._vfs.fsync_directory(saved)
        self._vfs.fsync_directory(self._directory)
        self._prune_saved()

    def _keep_segments(self, position: int, names: set[str]) -> None:
        last = (self.epoch, split(position)[0])
        gone = [
            name
            for name in self.log.names()
            if name not in names and (key := self._segments.key(name)) is not None and key <= last
        ]
        self.log.delete(sorted(gone))

    # -- what a master does with its copy -----------------------------------------------------------------------------

    def create(self, name: str, head: bytes, size: int, clock: Clock) -> None:
        """A segment of the master's own, with its head."""
        self._writers[name] = self.log.create(name, head, size, clock)

    def write(self, name: str, start: int, end: int, pieces: Iterable[bytes]) -> None:
        """Write what this master is about to append; it is durable when the copy keeps it. Raises NoRoomError."""
        writer = self._writers.get(name)
        if writer is None:
            raise OSError(errno.EBADF, "the segment is closed: this member is not the master any more", name)
        writer.append(start, end, pieces, durably=False)
        number = self._segments.key(name)
        assert number is not None
        self.written = position_of(number[1], end)

    def finish(self, name: str, end: int | None) -> None:
        """Segment `name` ends at `end` (None = where it ends now), and gets no further write."""
        writer = self._writers.pop(name, None)
        if writer is not None:
            writer.close() if end is None else writer.finish(end)

    def cut(self) -> None:
        """Remove the writes that the copy does not keep, so that the files end where the copy says."""
        self._close_writers()
        last, offset = split(self.position)
        for number in self._numbers():
            name = self._segments.name(self.epoch, number)
            if number > last:
                self._vfs.unlink(self.log.place(name))
            elif number == last:
                self._cut(name, offset)
        self.log.settle()
        self.written = self.position

    def read(self, after: int, limit: int) -> tuple[int, SegmentWrite | None]:
        """Read on after `after` in the log of the term, up to `limit`. Returns where that ends, and the bytes; None =
        nothing is there. Raises CorruptError, OSError."""
        return self._read(self.epoch, after, limit, self._end_of)

    def read_before(self, after: int, limit: int, sealed: Mapping[str, int]) -> tuple[int, SegmentWrite | None]:
        """Read as `read` does, in the term before, whose segments are `sealed`."""
        epoch = self.epoch - 1
        return self._read(epoch, after, limit, lambda number: sealed.get(self._segments.name(epoch, number), 0))

    def _read(
        self, epoch: int, after: int, limit: int, end_of: Callable[[int], int]
    ) -> tuple[int, SegmentWrite | None]:
        number, offset = split(after)
        last, end_last = split(limit)
        for each in [each for each in self._numbers(epoch) if number <= each <= last]:
            end = end_last if each == last else end_of(each)
            start = offset if each == number else 0
            if start < end:
                name = self._segments.name(epoch, each)
                with self.log.open(name) as segment:
                    stop = self._segments.end_within(segment, start, end, CHUNK_BYTES)
                    return position_of(each, stop), SegmentWrite(name, start, segment.read(start, stop - start))
        return after, None

    def base(self, sealed: Mapping[str, int]) -> list[list[tuple[str, int, int]]]:
        """All that counts before the term, whose seals are `sealed`, in pieces: segment, from where, how much."""
        pieces: list[list[tuple[str, int, int]]] = [[]]
        room = CHUNK_BYTES
        for name in sorted(set(self.log.names()) & sealed.keys()):
            start, end = 0, sealed[name]
            while start < end:
                if not room or len(pieces[-1]) == WRITES_MAX:
                    pieces.append([])
                    room = CHUNK_BYTES
                size = min(end - start, room)
                pieces[-1].append((name, start, size))
                start, room = start + size, room - size
        return pieces

    def read_piece(self, piece: list[tuple[str, int, int]]) -> tuple[SegmentWrite, ...]:
        """The bytes of that piece, without those of segments that are gone: they count no more."""
        found = []
        for name, start, size in piece:
            with suppress(FileNotFoundError), self.log.open(name) as segment:
                found.append(SegmentWrite(name, start, segment.read(start, size)))
        return tuple(found)

    # -- files --------------------------------------------------------------------------------------------------------

    def _measure(self) -> int:
        numbers = self._numbers()
        while numbers:
            number = numbers.pop()
            name = self._segments.name(self.epoch, number)
            with self.log.open(name) as segment:
                segment.refresh()
                torn = (self._chunk.start, self._chunk.end) if self._chunk.name == name else (0, 0)
                end = self._segments.whole(segment, torn)
            if end:
                self._cut(name, end)
                self.log.settle()
                return position_of(number, end)
            self._vfs.unlink(self.log.place(name))
        return 0

    def _numbers(self, epoch: int | None = None) -> list[int]:
        """The numbers of the segments of `epoch`, in order; None = the epoch of this copy."""
        keys = [self._segments.key(name) for name in self.log.names()]
        return sorted(key[1] for key in keys if key is not None and key[0] == (epoch or self.epoch))

    def _end_of(self, number: int) -> int:
        """Where an old segment of the epoch ends."""
        if number not in self._ends:
            with self.log.open(self._segments.name(self.epoch, number)) as segment:
                self._ends[number] = self._segments.whole(segment)
        return self._ends[number]

    def _cut(self, name: str, end: int) -> None:
        fd = self._vfs.open(self.log.place(name), os.O_RDWR)
        try:
            self._vfs.ftruncate(fd, end)
            self._vfs.fsync(fd)
        finally:
            self._vfs.close(fd)

    def _close_writers(self) -> None:
        writers, self._writers = self._writers, {}
        self._head = "", b""
        for writer in writers.values():
            writer.close()

    def _write_mark(self) -> None:
        body: Mapping[str, Any] = {
            **self._mark._asdict(),
            "whole": int(self._mark.whole),
            "id": self.id,
            "chunk": list(self._chunk),
        }
        self._save(self._path(f"{MARK_NAME}.new"), encode(KIND, body))
        with _room(self._path(MARK_NAME)):
            self._vfs.replace(self._path(f"{MARK_NAME}.new"), self._path(MARK_NAME))
        self._vfs.fsync_directory(self._directory)

    def _save(self, path: str, data: bytes) -> None:
        with suppress(FileNotFoundError):
            self._vfs.unlink(path)
        with _room(path):
            fd = self._vfs.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                write_all(self._vfs, fd, data, 0)
                self._vfs.fsync(fd)
            finally:
                self._vfs.close(fd)

    def _new_saved(self) -> str:
        path = self._path(f"oldreplica.{max(self._saved_numbers(), default=0) + 1}")
        with _room(path):
            self._vfs.mkdir(path)
        return path

    def _saved_numbers(self) -> list[int]:
        found = [_SAVED.fullmatch(name) for name in self._vfs.listdir(self._directory)]
        return sorted(int(match[1]) for match in found if match is not None)

    def _prune_saved(self) -> None:
        numbers = self._saved_numbers()
        for number in numbers[: max(len(numbers) - self._saved, 0)]:
            self._remove_tree(self._path(f"oldreplica.{number}"))

    def _remove_tree(self, path: str) -> None:
        for name in self._vfs.listdir(path):
            below = os.path.join(path, name)
            if name in (JOURNAL_DIRECTORY, CHECKPOINTS_DIRECTORY):
                self._remove_tree(below)
            else:
                self._vfs.unlink(below)
        self._vfs.rmdir(path)

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)
