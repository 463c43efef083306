"""The board in a database: the directory `brokers` for seats, `orders` for slots. The lock of a seat's entry says
whether its broker runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from amq.store.board import Posted, SeatTakenError
from amq.store.postgres.database import BROKERS, ORDERS, Database, EntryLock

_SUFFIX = ".json"


class SqlSeat:
    """See `amq.store.board.Seat`."""

    def __init__(self, database: Database, name: str) -> None:
        self.place = database.place(BROKERS, name)
        self._database = database
        self._name = name
        self._lock: EntryLock | None = self._take()

    def write(self, data: bytes) -> None:
        assert self._lock is not None
        self._database.put(self._lock.entry, data, lock=self._lock)

    def keep(self) -> bool:
        """It asks through the connection that holds the lock, which may have ended without a word."""
        lock = self._lock
        assert lock is not None
        if not lock.session.closed:
            with suppress(FileNotFoundError):
                if self._database.find(BROKERS, self._name, lock).number == lock.entry.number:
                    return False
        self._lock = self._take()
        self._database.unlock(lock)
        return True

    def close(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            with suppress(OSError):  # it ends with its connection
                self._database.unlock(lock)

    def _take(self) -> EntryLock:
        """The locked entry, which is made where it is missing. Raises SeatTakenError, OSError."""
        self._database.make_directory(BROKERS)
        lock = self._database.take(BROKERS, self._name) or self._database.try_lock(BROKERS, self._name)
        if lock is None:
            raise SeatTakenError(lambda: self._database.record(BROKERS, self._name)[1])
        return lock


class SqlBoard:
    """See `amq.store.board.Board`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def take(self, name: str) -> SqlSeat:
        return SqlSeat(self._database, name + _SUFFIX)

    def seats(self, *, held: bool) -> Iterator[Posted]:
        for name, is_held in self._database.held(BROKERS).items():
            if is_held is held and name.endswith(_SUFFIX):
                yield Posted(name.removesuffix(_SUFFIX), self._database.place(BROKERS, name), partial(self._read, name))

    def make_slot(self, name: str) -> None:
        self._database.make_directory(ORDERS)
        with suppress(FileExistsError):
            self._database.create(ORDERS, name + _SUFFIX)

    def read_slot(self, name: str) -> bytes | None:
        try:
            data = self._database.record(ORDERS, name + _SUFFIX)[1]
        except FileNotFoundError:
            self.make_slot(name)
            return None
        return data if data.strip(b"\0") else None

    def write_slot(self, name: str, data: bytes) -> bool:
        try:
            self._database.put(self._database.find(ORDERS, name + _SUFFIX), data)
        except FileNotFoundError:
            return False
        return True

    def place_of_slot(self, name: str) -> str:
        return self._database.place(ORDERS, name + _SUFFIX)

    def forget(self, name: str) -> None:
        for directory in (BROKERS, ORDERS):
            self._database.delete(directory, [name + _SUFFIX])

    def _read(self, name: str) -> bytes:
        """Nothing where the seat was removed meanwhile."""
        with suppress(FileNotFoundError):
            return self._database.record(BROKERS, name)[1]
        return b""
