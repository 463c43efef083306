"""Mutants of the argument for a store in a database: docs/master-slave.md, "A store in a database"."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from typing import Any
from unittest.mock import patch

from amq.store.postgres import database as tables
from amq.store.postgres.database import CLAIM, Database
from amq.store.postgres.sessions import ServerConnection, Sessions
from tests.simulation.database import NAME
from tests.simulation.mutants import Mutant
from tests.simulation.sql_client import SimSession

MUTANTS: dict[str, Mutant] = {}
FOCUS: dict[str, tuple[str, ...]] = {}
FEATURES: dict[str, tuple[str, ...]] = {}


def _mutant(*focus: str) -> Any:
    """Its hunt is limited to these faults."""

    def add(make: Mutant) -> Mutant:
        MUTANTS[make.__name__], FOCUS[make.__name__], FEATURES[make.__name__] = make, focus, (NAME,)
        return make

    return add


def _fence(text: str) -> AbstractContextManager[object]:
    return patch.object(tables, "_FENCE", text)


@_mutant("old master", "late insert")
def no_fence_in_the_database() -> AbstractContextManager[object]:
    return _fence(tables._OPEN)


@_mutant("late insert")
def a_fence_that_locks_nothing() -> AbstractContextManager[object]:
    """Variant A."""
    return _fence(tables._FENCE.replace(" FOR SHARE", ""))


@_mutant("late insert")
def a_fence_that_locks_the_key() -> AbstractContextManager[object]:
    """Variant C."""
    return _fence(tables._FENCE.replace("FOR SHARE", "FOR KEY SHARE"))


@_mutant("old master", "late insert")
def a_claim_is_not_the_fence() -> AbstractContextManager[object]:
    return patch.object(Database, "claim", claim_as_any_record)


def claim_as_any_record(database: Database, data: bytes) -> None:
    """The fence stays where it is."""
    with suppress(FileExistsError):
        database.create("", CLAIM)
    database.put(database.find("", CLAIM), data)


@_mutant("old master", "late insert")
def journal_without_the_fence() -> AbstractContextManager[object]:
    return patch.object(tables, "FENCED", tables.FENCED - {tables.JOURNAL})


@_mutant("insert in doubt", "crash_server")
def an_error_of_a_commit_passed_over() -> AbstractContextManager[object]:
    real = Database.append

    def append(database: Database, *arguments: Any) -> None:
        with suppress(OSError):
            real(database, *arguments)

    return patch.object(Database, "append", append)


@_mutant("cancelled commit")
def a_warning_passed_over() -> AbstractContextManager[object]:
    """A cancelled commit "succeeds"."""
    return patch.object(SimSession, "note", lambda _session, _diag: None)


@_mutant("lagging standby")
def any_server_is_as_good() -> AbstractContextManager[object]:
    return patch.object(Sessions, "_check", lambda _sessions, _session: None)


@_mutant("stopped at a lock")
def a_transaction_stays_open_between_two_statements() -> AbstractContextManager[object]:
    real = tables._run

    def run(session: ServerConnection, statement: bytes, asked: dict[str, Any]) -> list[Any]:
        with session.transaction():
            return real(session, statement, asked)

    return patch.object(tables, "_run", run)
