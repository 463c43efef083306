"""One PostgreSQL for the tests of this folder that a process runs, and a separate database for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

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
