"""The log in a database: segments in the directory `journal`, checkpoints in `checkpoints`.

Invariant: each append, and each change of names, is behind the fence. So nobody has to hold a segment.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Self

from amq.doors.clock import Clock
from amq.store.postgres.database import CHECKPOINTS, JOURNAL, Database, TableEntry
from amq.store.segment_log import FULL_ERRNOS, RESERVE_NAME, NoRoomError, SyncError


class SqlReader:
    """See `amq.store.segment_log.Reader` and `Held`."""

    def __init__(self, database: Database, directory: str, name: str) -> None:
        self.place = database.place(directory, name)
        self._database = database
        self._entry = database.find(directory, name)

    def read(self, offset: int, size: int) -> bytes:
        return self._database.read(self._entry, offset, size)

    def size(self) -> int:
        return self._database.size(self._entry.directory, self._entry.name)[0]

    def refresh(self) -> None:
        """Every read asks the database."""

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""


class SqlWriter:
    """See `amq.store.segment_log.Writer`."""

    def __init__(self, database: Database, entry: TableEntry, end: int, clock: Clock) -> None:
        self._database = database
        self._entry = entry
        self._end = end
        self._clock = clock

    def append(self, start: int, end: int, pieces: Iterable[bytes | bytearray | memoryview]) -> float:
        assert start == self._end, "the rows of a segment never overlap"
        began = self._clock.monotonic()
        try:
            self._database.append(self._entry, start, pieces)
        except OSError as error:
            kind = NoRoomError if error.errno in FULL_ERRNOS else SyncError
            raise kind(error.errno, error.strerror) from error
        self._end = end
        return self._clock.monotonic() - began

    def finish(self, end: int) -> None:
        """No room was taken behind `end`."""

    def close(self) -> None:
        """Nothing is held."""


class SqlDraft:
    """See `amq.store.segment_log.Draft`. The first write makes it."""

    def __init__(self, database: Database, directory: str, name: str) -> None:
        self._database = database
        self._directory, self._name = directory, name
        self._entry: TableEntry | None = None
        self._size = 0

    def write(self, data: bytes) -> None:
        if self._entry is None:
            self._database.make_directory(self._directory)
            self._database.delete(self._directory, [self._name])  # of an attempt that failed
            self._entry = self._database.create(self._directory, self._name)
        self._database.append(self._entry, self._size, [data])
        self._size += len(data)

    def publish(self, name: str) -> None:
        assert self._entry is not None
        if self._database.rename(self._entry, name):
            self._entry = None
        else:  # the same position, so the same state
            self.discard()

    def discard(self) -> None:
        entry, self._entry = self._entry, None
        if entry is not None:
            self._database.delete(entry.directory, [entry.name], entry.claim)

    def close(self) -> None:
        """Nothing is held."""


class _SqlShelf:
    """See `amq.store.segment_log.Shelf`."""

    def __init__(self, database: Database, directory: str) -> None:
        self._database = database
        self._directory = directory

    def names(self, *, fresh: bool = False) -> list[str]:  # noqa: ARG002 (the database always answers itself)
        return self._database.names(self._directory)

    def place(self, name: str = "") -> str:
        return self._database.place(self._directory, name)

    def open(self, name: str) -> SqlReader:
        return SqlReader(self._database, self._directory, name)

    def size(self, name: str) -> int:
        return self._database.size(self._directory, name)[0]

    def settle(self) -> None:
        """Names are durable as soon as they are made."""


class SqlCheckpoints(_SqlShelf):
    """See `amq.store.segment_log.Checkpoints`."""

    def written_wall_ms(self, name: str) -> int:
        return int(self._database.size(self._directory, name)[1] * 1000)

    def draft(self, name: str) -> SqlDraft:
        return SqlDraft(self._database, self._directory, name)

    def delete(self, names: Iterable[str]) -> None:
        self._database.delete(self._directory, names)


class SqlLog(_SqlShelf):
    """See `amq.store.segment_log.SegmentLog`: the log of the store, or one `below` a directory of it."""

    is_patient = False  # the server has a time limit

    def __init__(self, database: Database, below: str = "") -> None:
        super().__init__(database, f"{below}/{JOURNAL}".lstrip("/"))
        self._below = below
        self.checkpoints = SqlCheckpoints(database, f"{below}/{CHECKPOINTS}".lstrip("/"))

    def make(self) -> None:
        if self._below:
            self._database.make_directory(self._below)
        else:
            self._database.make_tables()
        self._database.make_directory(self._directory)

    def create(self, name: str, head: bytes, size: int, clock: Clock) -> SqlWriter:  # noqa: ARG002
        try:
            return SqlWriter(self._database, self._database.create(self._directory, name, head), len(head), clock)
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                raise NoRoomError(error.errno, error.strerror, self.place(name)) from error
            raise

    def hold(self, name: str) -> SqlReader | None:
        return self.open(name)

    def delete(self, names: Iterable[str]) -> None:
        names = list(names)
        for name in set(names) - self._database.delete(self._directory, names):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.place(name))

    def free_bytes(self) -> int | None:
        return self._database.free_bytes()

    def set_aside(self, size: int) -> None:
        """Nothing can be set aside in a database: its name says that the master wants it so."""
        with suppress(FileExistsError):
            self._database.create(self._directory, RESERVE_NAME, extent=size)

    def give_back(self) -> None:
        self.delete([RESERVE_NAME])
