"""The workshop in a database: the directory `journal.before-repair-NAME` has second names of the originals and, below
`repaired/`, a second journal."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from amq.store.epoch import Epoch, encode_epoch, epoch_name, epoch_numbers
from amq.store.postgres.database import CHECKPOINTS, EPOCHS, JOURNAL, Database
from amq.store.postgres.log import SqlLog

KEPT_PREFIX = "journal.before-repair-"
SCRATCH = "repaired"
MARKER = "repair.json"


class SqlAside:
    """See `amq.store.workshop.Aside`."""

    def __init__(self, database: Database, directory: str) -> None:
        self._database = database
        self._directory = directory
        self._scratch = f"{directory}/{SCRATCH}"
        self.log = SqlLog(database, self._scratch)

    def names(self) -> list[str]:
        return self._database.names(self._directory)

    def write_mark(self, data: bytes) -> None:
        self._database.create(self._directory, MARKER, data, replace=True)

    def read_mark(self) -> bytes:
        return self._database.load(self._directory, MARKER)

    def move_in(self, names: Iterable[str]) -> None:
        self._database.link(f"{self._scratch}/{JOURNAL}", list(names), JOURNAL)

    def clear(self) -> None:
        for directory in (f"{self._scratch}/{JOURNAL}", self._scratch):
            with suppress(FileNotFoundError):
                self._database.delete(directory, self._database.names(directory))
                above, _, name = directory.rpartition("/")
                self._database.delete(above, [name])


class SqlWorkshop:
    """See `amq.store.workshop.Workshop`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def check(self) -> None:
        """No other product has tables of these names."""

    def unfinished(self) -> list[str]:
        kept = sorted(name for name in self._database.names("") if name.startswith(KEPT_PREFIX))
        return [self._database.place(name) for name in kept if SCRATCH in self._database.names(name)]

    def aside(self, place: str) -> SqlAside:
        return SqlAside(self._database, self._below(place))

    def keep(self, name: str, segments: Iterable[str], checkpoints: Iterable[str]) -> str:
        directory = KEPT_PREFIX + name
        self._database.make_directory(directory)
        self._database.link(JOURNAL, list(segments), directory)
        with suppress(FileNotFoundError):
            numbers = epoch_numbers(self._database.names(EPOCHS))
            self._database.link(EPOCHS, [epoch_name(number) for number in numbers], directory)
        self._database.link(CHECKPOINTS, list(checkpoints), directory)
        return self._database.place(directory)

    def rebuild(self, epoch: Epoch, attempt: str) -> None:  # noqa: ARG002 (one statement needs no other name)
        self._database.make_directory(EPOCHS)
        self._database.create(EPOCHS, epoch_name(epoch.number), encode_epoch(epoch), replace=True)

    def take_out(self, place: str) -> bool:
        directory, name = os.path.split(self._below(place))
        return bool(self._database.delete(directory, [name]))

    def _below(self, place: str) -> str:
        return place.removeprefix(f"{self._database.url.text}/")
