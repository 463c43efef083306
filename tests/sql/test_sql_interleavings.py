"""The rules of "A store in a database" (docs/master-slave.md), each with mutants, on the real door and a real server.

Before each statement of the old master in turn a fault comes: its connection is lost before the statement or with the
answer, or it pauses while another broker takes over. The lock service lies (every broker gets the lock at once), and
nobody waits. Nothing of the old master may take effect behind the seal.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from amq.store.open import store_in
from amq.store.postgres import database as tables
from amq.store.postgres.database import Database
from tests.fakes import FakeClock
from tests.fault_course import (
    LOST,
    OVER,
    CourseMutant,
    Fault,
    Make,
    Violation,
    check_all,
    must_be_caught,
)
from tests.postgres import Postgres, needs_postgres
from tests.simulation.sql_mutants import claim_as_any_record
from tests.sql.sql_course import SqlBroker, SqlCourse, database_in, new_urls

pytestmark = [needs_postgres, pytest.mark.deep, pytest.mark.usefixtures("lying")]


class JournalBroker(SqlBroker):
    """Everything of it is in a database."""

    def __init__(self, url: str, name: str) -> None:
        self.database = database_in(url)
        super().__init__(store_in(self.database), name, FakeClock())

    def pause(self, _seconds: float) -> bool:
        raise AssertionError("a database needs no wait")

    def work(self) -> None:
        super().work()
        draft = self.store.log.checkpoints.draft("1.tmp")
        draft.write(b"all of it")
        draft.publish("1.ckpt")


class JournalCourse(SqlCourse):
    """It looks at the whole journal behind the seal."""

    waits = False

    def __init__(self, url: str, patch: pytest.MonkeyPatch, fault: Fault, at: int) -> None:
        super().__init__(JournalBroker(url, "old"), JournalBroker(url, "new"), patch, fault, at)

    def succeed(self) -> None:
        is_first = not self._is_over
        try:
            super().succeed()
        except OSError as error:
            raise AssertionError("the successor could not take over") from error
        if is_first:
            self._before = self._journal()

    def check(self) -> None:
        super().check()
        if self._journal() != self._before:
            raise Violation("the old master changed the journal behind the seal")

    def _journal(self) -> list[tuple[str, bytes]]:
        log, found = self.new.store.log, []
        for shelf in (log, log.checkpoints):
            with suppress(FileNotFoundError):
                for name in sorted(shelf.names()):
                    with shelf.open(name) as each:
                        found.append((name, each.read(0, 1 << 16)))
        return found


@pytest.fixture
def make(server: Postgres, database: str) -> Make:
    url = new_urls(server, database)
    return lambda patch, fault, at: JournalCourse(url(), patch, fault, at)


def test_every_fault_before_every_statement(make: Make) -> None:
    assert check_all(make, (*LOST, *OVER)) > 60


def no_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tables, "_FENCE", tables._OPEN)


def claim_without_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Database, "claim", claim_as_any_record)


def names_not_fenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tables, "FENCED", frozenset(("epochs",)))


def lost_answer_is_success(patch: pytest.MonkeyPatch) -> None:
    """An error of a commit is passed over."""
    real = Database.append

    def append(self: Database, *arguments: Any) -> None:
        with suppress(OSError):
            real(self, *arguments)

    patch.setattr(Database, "append", append)


MUTANTS = [no_fence, claim_without_fence, names_not_fenced, lost_answer_is_success]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_without_a_rule_some_history_breaks_the_promise(mutant: CourseMutant, make: Make) -> None:
    must_be_caught(mutant, make, (*OVER[::-1], *LOST[::-1]))
