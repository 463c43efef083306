"""One PostgreSQL for the tests of this folder that a process runs, and a separate database for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from amq.store.files.vfs import SystemVfs
from amq.store.postgres.database import Database, EntryLock
from tests.postgres import Postgres, postgres

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    with postgres() as made:
        yield made


@pytest.fixture
def database(server: Postgres) -> str:
    """The name of a new database."""
    name = f"amq{next(_numbers)}"
    server.ask(f"CREATE DATABASE {name}")
    return name


@pytest.fixture
def url(server: Postgres, database: str) -> str:
    """Of that database."""
    return server.url(database)


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every broker gets every lock, in a database and in files."""

    def granted(database: Database, directory: str, name: str) -> EntryLock:
        return EntryLock(database.find(directory, name), database._session_of_locks())

    monkeypatch.setattr(Database, "try_lock", granted)
    monkeypatch.setattr(SystemVfs, "try_lock", lambda _self, _fd: True)
