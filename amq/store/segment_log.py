"""The port of the log: segments, which grow at their end and are deleted whole, and the checkpoints beside them.

An adapter stores bytes under names and knows nothing of what they mean (`amq.journal`). Invariants: what `append` was
given is durable when it returns; a segment has its name durably before the first append; a checkpoint gets its name
when all of it is durable. Every call may hang in the store, and raises OSError where the store fails.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import Protocol, Self

from amq.doors.clock import Clock

# A segment takes room in so many steps at least: what is set aside and not written yet is hardly more than what is
# written.
RESERVE_STEPS = 32
JOURNAL_DIRECTORY = "journal"  # the last part but one of the place of a segment
CHECKPOINTS_DIRECTORY = "checkpoints"
RESERVE_NAME = "reserve"  # what `names` calls the room that is kept for acknowledgements


# An OSError with one of these says that there is no room: on the disk, in the quota of this user or directory, in a
# file (`ulimit -f`, or the file system's limit).
FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class NotAFileError(OSError):
    """A name in the store is no regular file: a symbolic link, a FIFO, a directory. No broker made it, so a person must
    look; trying again changes nothing."""


class NoRoomError(OSError):
    """The store has no room for it. Nothing of the append counts, and nothing of it stays."""


class SegmentTooLargeError(NoRoomError):
    """The store has room, but this segment cannot become so large."""


class SyncError(OSError):
    """The store failed to make an append durable: final, whatever the errno. The bytes may be gone or not; a retry that
    succeeds proves nothing."""


class Reader(Protocol):
    """A segment or checkpoint that is open for reading. It shows what the store had at `open`, or something later."""

    @property
    def place(self) -> str:
        """Where it is, for people. It ends with "/" and the name."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset`, less only at the end."""
        ...

    def size(self) -> int: ...

    def refresh(self) -> None:
        """Let the next read ask the store: the memory of this host may have bytes that are not stored."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Held(Protocol):
    """An old segment that is durable, and to which no other broker writes, as far as the store can tell."""

    def refresh(self) -> None:
        """See `Reader.refresh`."""
        ...

    def close(self) -> None:
        """Let it go. Raises nothing: nobody relies on what was written through it."""
        ...


class Writer(Protocol):
    """The end of a segment of this master."""

    def append(self, start: int, end: int, pieces: Iterable[bytes | bytearray | memoryview]) -> float:
        """Write `pieces` from `start`, where all before them ends, to `end`. They are durable when it returns. Returns
        how many seconds the store took to say so. Raises NoRoomError; SyncError and other OSErrors are final."""
        ...

    def finish(self, end: int) -> None:
        """Close it, and give back the room behind `end`. All appends before have succeeded."""
        ...

    def close(self) -> None:
        """Close it as it is."""
        ...


Told = Callable[[Exception | None], None]


class PatientWriter(Writer, Protocol):
    """The end of a segment of a log that is patient."""

    def begin(
        self,
        start: int,
        end: int,
        pieces: Iterable[bytes | bytearray | memoryview],
        told: Told,
        *,
        waits: bool,
        lingers: bool = False,
    ) -> bool:
        """Append as `append` does, and wait for no other host: `told` is called in the event loop of `Store.hear_on`,
        once, when all is durable, or with the error that ends it; in that loop perhaps before this returns. Not `waits`
        = where another thread is at the disk of this host, or that disk is slow, return False, and nothing was done.
        `lingers` = the caller has nothing else to do: where other hosts answer within a moment, wait for that moment.
        Raises OSError, and then `told` is not called; NoRoomError."""
        ...


class Draft(Protocol):
    """A checkpoint that is being written."""

    def write(self, data: bytes) -> None:
        """Add `data`, durably."""
        ...

    def publish(self, name: str) -> None:
        """Give it its name, durably, and close it. An existing file of that name stays."""
        ...

    def discard(self) -> None:
        """Close it, and give back its room. Also where it was closed, or nothing was written."""
        ...

    def close(self) -> None: ...


class Shelf(Protocol):
    """Things with names."""

    def names(self, *, fresh: bool = False) -> list[str]:
        """All names, in no order. `fresh`: the store answers, where otherwise a network client may from a cache that
        is seconds old; for the holder of the lock alone. Raises FileNotFoundError where the whole shelf is missing."""
        ...

    def place(self, name: str = "") -> str:
        """Where `name` is, for people; without one, where all are."""
        ...

    def open(self, name: str) -> Reader:
        """Raises FileNotFoundError."""
        ...

    def size(self, name: str) -> int:
        """In bytes, with the room that was set aside, as this host knows it: it may be seconds old. Raises
        FileNotFoundError."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete them, in this order."""
        ...

    def settle(self) -> None:
        """Make the names durable that are seen, and that some are gone."""
        ...


class Checkpoints(Shelf, Protocol):
    """The checkpoints of a store. `delete` does not mind a name that is gone, and a crash may undo it."""

    def written_wall_ms(self, name: str) -> int:
        """When it was written, by the clock of the store. Raises FileNotFoundError."""
        ...

    def draft(self, name: str) -> Draft:
        """A new checkpoint; until it is published it has `name`, of a broker alone. An earlier draft of it goes."""
        ...


class SegmentLog(Shelf, Protocol):
    """The segments of a store. `delete` is durable when it returns. `is_patient`: an append waits for other hosts as
    long as they take, so no event loop may wait for it; its writers are `PatientWriter`s."""

    @property
    def is_patient(self) -> bool: ...

    @property
    def checkpoints(self) -> Checkpoints: ...

    def make(self) -> None:
        """Make what is missing of the log, inside what exists. Raises StoreError where a person must act."""
        ...

    def create(self, name: str, head: bytes, size: int, clock: Clock) -> Writer:
        """A new segment that begins with `head`, durable with its name, and written by this broker alone as far as the
        store can tell. It will have about `size` bytes. Raises FileExistsError; NoRoomError, which leaves nothing."""
        ...

    def hold(self, name: str) -> Held | None:
        """See `Held`: None where the store can tell that another broker still writes to it."""
        ...

    def free_bytes(self) -> int | None:
        """How much can still be stored; None = nobody can tell."""
        ...

    def set_aside(self, size: int) -> None:
        """Keep room of `size` bytes, unless it is kept already. Raises NoRoomError."""
        ...

    def give_back(self) -> None:
        """Free the room that `set_aside` keeps. Raises FileNotFoundError where none is kept."""
        ...


class SegmentFormat(Protocol):
    """The journal's knowledge of segments, which a store only stores. `head_bytes` of each come before all writes."""

    @property
    def head_bytes(self) -> int: ...

    def key(self, name: str) -> tuple[int, int] | None:
        """Epoch and number of the segment `name`, both from 1; None = no segment has such a name."""
        ...

    def name(self, epoch: int, number: int) -> str: ...

    def whole(self, segment: Reader, torn: tuple[int, int] = (0, 0)) -> int:
        """Where the last whole write of a segment ends that may be torn at its end; 0 = it has none. Several writes
        between the offsets `torn` may be there in part, if nothing follows. Raises CorruptError."""
        ...

    def end_within(self, segment: Reader, start: int, end: int, size: int) -> int:
        """Where the last write ends that begins at `start` or behind it and ends by `start + size`; else the first.
        The segment is whole up to `end`, and a write begins at `start`; 0 = at its head. Raises CorruptError."""
        ...
