"""A store in memory: adapters of all ports, for tests that need a store and no files.

A `Shelves` is what the members of a group share; `store_on` gives the ports of one more member. Nothing hangs and
nothing fails here: `tests/store/test_port_faults.py` wraps its ports, the simulation fails real adapters from below.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from amq.core.errors import OwnershipLostError, StoreError
from amq.doors.clock import Clock
from amq.doors.threads import Threads
from amq.store.board import Posted, SeatTakenError
from amq.store.document import decode
from amq.store.election import IN_STORE, LockPlace, Sign
from amq.store.epoch import EPOCHS_KEPT, Epoch
from amq.store.port import Store
from amq.store.segment_log import RESERVE_NAME

FREE_BYTES = 1 << 40


@dataclass(eq=False)
class _Lock:
    """A lock of the store; another one may take its place."""

    number: int
    holder: object = None
    records: dict[str, bytes] = field(default_factory=dict)


@dataclass(eq=False)
class _Entry:
    """A seat: its document, and the member that holds it."""

    data: bytes = b""
    holder: object = None


@dataclass
class Shelves:
    """All that the members of one store share."""

    name: str = "memory"
    lock: _Lock | None = None
    claim: bytes | None = None
    claims: int = 0
    epochs: dict[int, tuple[Epoch, str]] = field(default_factory=dict)
    segments: dict[str, bytearray] | None = None
    writers: dict[str, object] = field(default_factory=dict)
    checkpoints: dict[str, bytes] | None = None
    seats: dict[str, _Entry] = field(default_factory=dict)
    slots: dict[str, bytes] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))


def store_on(shelves: Shelves) -> Store:
    """The ports of one more member."""
    election = MemoryElection(shelves)
    store = Store(
        shelves.name, election, MemoryEpochs(shelves), MemoryLog(shelves), MemoryBoard(shelves), lambda _url: election
    )
    store.make()
    return store


def _missing(shelves: Shelves, name: str) -> FileNotFoundError:
    return FileNotFoundError(2, "is not in the store", f"{shelves.name}/{name}")


class MemoryElection:
    """See `amq.store.election.Election`."""

    shuts_out = can_vouch = False

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves
        self._lock: _Lock | None = None

    def place(self) -> LockPlace:
        return IN_STORE

    def make(self) -> None:
        """Nothing is missing for a lock."""

    def watch(
        self, _wake: Callable[[], None], _threads: Threads, _is_slave: Callable[[], bool]
    ) -> AbstractContextManager[OSError | None]:
        return nullcontext(OSError("nothing is watched in memory"))

    def look(self) -> Sign | None:
        lock = self._shelves.lock
        claimed = self._shelves.claims or None
        return lock and Sign(lock.number, lock.records.get("heartbeat", b""), claimed, self._shelves.claim or b"")

    def is_held(self) -> bool:
        return self._there().holder not in (None, self)

    def read(self, kind: str) -> dict[str, Any] | None:
        data = self._there().records.get(kind)
        return None if data is None else decode(kind, data, kind)

    def try_acquire(self, leave: Callable[[], bool]) -> bool:
        if self._shelves.lock is None:
            if leave():
                return False
            self._shelves.lock = self._new()
        if self._shelves.lock.holder not in (None, self):
            return False
        self._lock = self._shelves.lock
        self._lock.holder = self
        return True

    def holds(self) -> bool:
        return self._held() is self._shelves.lock

    def regain(self, asker: str) -> None:
        self.let_go()
        if not self.try_acquire(lambda: False):
            raise OwnershipLostError(
                f"the lock was removed or replaced and another broker than {asker} locked it first"
            )

    def vouches(self) -> bool:
        return False

    def can_replace(self) -> bool:
        return True

    def replace(self, asker: str) -> bool:  # noqa: ARG002
        self.let_go()
        self._lock = self._shelves.lock = self._new()
        self._lock.holder = self
        return True

    def write(self, kind: str, data: bytes) -> None:
        self._held().records[kind] = data

    def let_go(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.holder = None

    def claim(self, data: bytes) -> None:
        self._shelves.claim = data
        self._shelves.claims += 1

    def read_claim(self) -> bytes:
        if self._shelves.claim is None:
            raise _missing(self._shelves, "claim")
        return self._shelves.claim

    def _new(self) -> _Lock:
        return _Lock(next(self._shelves.numbers))

    def _there(self) -> _Lock:
        if self._shelves.lock is None:
            raise _missing(self._shelves, "lock")
        return self._shelves.lock

    def _held(self) -> _Lock:
        if self._lock is None:
            raise OwnershipLostError("the lock was given up")
        return self._lock


class MemoryEpochs:
    """See `amq.store.epoch.Epochs`."""

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves

    def check(self) -> None:
        if not self._shelves.epochs:
            raise StoreError(f"{self._shelves.name}: no broker was ever master here", code="STORE_MISSING")

    def numbers(self) -> list[int]:
        return sorted(self._shelves.epochs)

    def newest_number(self) -> int:
        return max(self._shelves.epochs, default=0)

    def read(self, number: int) -> Epoch:
        if number not in self._shelves.epochs:
            raise _missing(self._shelves, f"epoch {number}")
        return self._shelves.epochs[number][0]

    def newest(self, asker: str = "") -> Epoch | None:  # noqa: ARG002
        number = self.newest_number()
        return self.read(number) if number else None

    def all(self) -> list[Epoch]:
        return [self.read(number) for number in self.numbers()]

    def place(self, number: int) -> str:
        return f"{self._shelves.name}/epochs/{number}"

    def size(self, number: int) -> int:
        return len(repr(self.read(number)))

    def make(self) -> None:
        """Nothing is missing for epochs."""

    def link(self, epoch: Epoch, attempt: str) -> bool:
        return self._shelves.epochs.setdefault(epoch.number, (epoch, attempt)) == (epoch, attempt)

    def prune(self, own: Epoch, keep: int = EPOCHS_KEPT) -> int:
        old = [number for number in self._shelves.epochs if number <= own.number - keep]
        for number in old:
            del self._shelves.epochs[number]
        return len(old)


class _Bytes:
    """See `amq.store.segment_log.Reader`."""

    def __init__(self, data: bytes | bytearray, place: str) -> None:
        self._data = data
        self.place = place

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._data[offset : offset + size])

    def size(self) -> int:
        return len(self._data)

    def refresh(self) -> None:
        """There is no cache."""

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Held(_Bytes):
    """See `amq.store.segment_log.Held`."""

    def __init__(self, data: bytearray, place: str, let_go: Callable[[], object]) -> None:
        super().__init__(data, place)
        self.close = let_go  # type: ignore[assignment,method-assign]


class _Writer:
    """See `amq.store.segment_log.Writer`."""

    def __init__(self, data: bytearray, let_go: Callable[[], object]) -> None:
        self._data = data
        self.close = let_go

    def append(self, start: int, end: int, pieces: Iterable[bytes | bytearray | memoryview]) -> float:
        self._data[start:end] = b"".join(pieces)
        return 0.0

    def finish(self, end: int) -> None:
        del self._data[end:]
        self.close()


class _Draft:
    """See `amq.store.segment_log.Draft`."""

    def __init__(self, shelves: Shelves, name: str) -> None:
        self._shelves = shelves
        self._name = name
        self._data = b""

    def write(self, data: bytes) -> None:
        if self._shelves.checkpoints is None:
            self._shelves.checkpoints = {}
        self._data += data
        self._shelves.checkpoints[self._name] = self._data

    def publish(self, name: str) -> None:
        assert self._shelves.checkpoints is not None
        self._shelves.checkpoints.setdefault(name, self._data)
        self.discard()

    def discard(self) -> None:
        if self._data:
            with suppress(KeyError, TypeError):
                del self._shelves.checkpoints[self._name]  # type: ignore[union-attr]

    def close(self) -> None:
        """Nothing is held."""


class MemoryCheckpoints:
    """See `amq.store.segment_log.Checkpoints`."""

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves

    def names(self, *, fresh: bool = False) -> list[str]:  # noqa: ARG002
        return list(self._all())

    def place(self, name: str = "") -> str:
        return f"{self._shelves.name}/checkpoints/{name}".rstrip("/")

    def open(self, name: str) -> _Bytes:
        if name not in self._all():
            raise _missing(self._shelves, name)
        return _Bytes(self._all()[name], self.place(name))

    def size(self, name: str) -> int:
        return self.open(name).size()

    def written_wall_ms(self, name: str) -> int:
        self.open(name)
        return 1

    def draft(self, name: str) -> _Draft:
        return _Draft(self._shelves, name)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._all().pop(name, None)

    def settle(self) -> None:
        """Names are durable as soon as they are made."""

    def _all(self) -> dict[str, bytes]:
        if self._shelves.checkpoints is None:
            raise _missing(self._shelves, "checkpoints")
        return self._shelves.checkpoints


class MemoryLog:
    """See `amq.store.segment_log.SegmentLog`."""

    is_patient = False

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves
        self.checkpoints = MemoryCheckpoints(shelves)

    def make(self) -> None:
        if self._shelves.segments is None:
            self._shelves.segments = {}

    def names(self, *, fresh: bool = False) -> list[str]:  # noqa: ARG002
        return list(self._all())

    def place(self, name: str = "") -> str:
        return f"{self._shelves.name}/journal/{name}".rstrip("/")

    def open(self, name: str) -> _Bytes:
        return _Bytes(self._segment(name), self.place(name))

    def size(self, name: str) -> int:
        return len(self._segment(name))

    def create(self, name: str, head: bytes, size: int, clock: Clock) -> _Writer:  # noqa: ARG002
        if name in self._all():
            raise FileExistsError(17, "is there already", self.place(name))
        data = self._all()[name] = bytearray(head)
        self._shelves.writers[name] = self
        return _Writer(data, partial(self._shelves.writers.pop, name, None))

    def hold(self, name: str) -> _Held | None:
        data = self._segment(name)
        if self._shelves.writers.setdefault(name, self) is not self:
            return None
        return _Held(data, self.place(name), partial(self._shelves.writers.pop, name, None))

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._segment(name)
            del self._all()[name]

    def settle(self) -> None:
        """Names are durable as soon as they are made."""

    def free_bytes(self) -> int | None:
        return FREE_BYTES

    def set_aside(self, size: int) -> None:
        self._all().setdefault(RESERVE_NAME, bytearray(size))

    def give_back(self) -> None:
        self.delete([RESERVE_NAME])

    def _segment(self, name: str) -> bytearray:
        if name not in self._all():
            raise _missing(self._shelves, name)
        return self._all()[name]

    def _all(self) -> dict[str, bytearray]:
        if self._shelves.segments is None:
            raise _missing(self._shelves, "journal")
        return self._shelves.segments


class _Seat:
    """See `amq.store.board.Seat`."""

    def __init__(self, board: MemoryBoard, name: str) -> None:
        self.place = f"{board.shelves.name}/seats/{name}"
        self._board = board
        self._name = name
        self._entry = self._take()

    def write(self, data: bytes) -> None:
        self._entry.data = data

    def keep(self) -> bool:
        if self._board.shelves.seats.get(self._name) is self._entry:
            return False
        self._entry = self._take()
        return True

    def close(self) -> None:
        self._entry.holder = None

    def _take(self) -> _Entry:
        entry = self._board.shelves.seats.setdefault(self._name, _Entry())
        if entry.holder is not None:
            raise SeatTakenError(lambda: entry.data)
        entry.holder = self
        return entry


class MemoryBoard:
    """See `amq.store.board.Board`."""

    def __init__(self, shelves: Shelves) -> None:
        self.shelves = shelves

    def take(self, name: str) -> _Seat:
        return _Seat(self, name)

    def seats(self, *, held: bool) -> Iterator[Posted]:
        for name, entry in sorted(self.shelves.seats.items()):
            if (entry.holder is not None) is held:
                yield Posted(name, f"{self.shelves.name}/seats/{name}", partial(getattr, entry, "data"))

    def make_slot(self, name: str) -> None:
        self.shelves.slots.setdefault(name, b"")

    def read_slot(self, name: str) -> bytes | None:
        self.make_slot(name)
        return self.shelves.slots[name] or None

    def write_slot(self, name: str, data: bytes) -> bool:
        if name not in self.shelves.slots:
            return False
        self.shelves.slots[name] = data
        return True

    def place_of_slot(self, name: str) -> str:
        return f"{self.shelves.name}/slots/{name}"

    def forget(self, name: str) -> None:
        self.shelves.seats.pop(name, None)
        self.shelves.slots.pop(name, None)
