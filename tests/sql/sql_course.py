"""The course of `tests/fault_course.py` where one of the ports is in a database: a fault strikes a statement."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest

from amq.store.postgres import database as tables
from amq.store.postgres.database import Database
from amq.store.postgres.sessions import ServerConnection
from amq.store.postgres.url import SqlUrl
from tests.fault_course import Candidate, Course, Fault, Step
from tests.postgres import Postgres

_numbers = itertools.count(1)


class SqlBroker(Candidate):
    """`database` is None where it has none."""

    database: Database | None


class SqlCourse(Course):
    """The fault comes at a statement of the old master's work."""

    def __init__(self, old: SqlBroker, new: SqlBroker, patch: pytest.MonkeyPatch, fault: Fault, at: int) -> None:
        super().__init__(old, new, fault, at)
        self._databases = [each.database for each in (old, new) if each.database is not None]
        real = tables._run

        def run(session: ServerConnection, statement: bytes, asked: dict[str, Any]) -> Any:
            return self.call(Step(partial(real, session, statement, asked), partial(_lose, session)))

        patch.setattr(tables, "_run", run)

    def close(self) -> None:
        """The server admits few connections at a time."""
        for database in self._databases:
            for session in list(database.sessions._made):
                session.close()


def _lose(session: ServerConnection) -> None:
    session.close()
    raise psycopg.OperationalError("the connection is lost")


def database_in(url: str) -> Database:
    return Database(SqlUrl.parse(url))


def new_urls(server: Postgres, database: str) -> Callable[[], str]:
    """Each call gives the URL of tables that no other test has."""
    return lambda: server.url(database, f"tablePrefix=t{next(_numbers)}_")
