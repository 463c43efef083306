"""The rules of "A store in a database" (docs/master-slave.md), each with mutants, on the real door and a real server.

An old master writes, rolls to a new segment and checks its lease. Before each of its statements in turn a fault comes:
its connection is lost before the statement or with the answer, or it pauses while another broker takes over.
The lock service lies (every broker gets the lock at once), and nobody waits. Whatever was confirmed must lie inside the
seal, and nothing of the old master may take effect behind it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from fakes import FakeClock

from amq.core.errors import OwnershipLostError
from amq.store.open import store_in
from amq.store.postgres import database as tables
from amq.store.postgres.database import Database
from amq.store.postgres.sessions import ServerConnection
from amq.store.postgres.url import SqlUrl
from tests.postgres import Postgres, needs_postgres
from tests.simulation.sql_mutants import claim_as_any_record
from tests.sql.candidates import BATCH, Candidate, Violation, grant_all_locks

pytestmark = needs_postgres
_prefixes = (f"t{number}_" for number in itertools.count(1))


class Broker(Candidate):
    """Writes what a master writes."""

    def __init__(self, url: str, name: str) -> None:
        self.database = Database(SqlUrl.parse(url))
        super().__init__(store_in(self.database), name, FakeClock())

    def pause(self, _seconds: float) -> bool:
        raise AssertionError("a database needs no wait")

    def work(self) -> None:
        """Two segments of two batches, a check, and one segment that is no longer needed. Ends at the first error."""
        for number in (1, 2):
            name = f"{self.epoch:08d}-{number:08d}.seg"
            writer = self.store.log.create(name, BATCH, 1 << 16, self.clock)
            for batch in range(1, 3):
                end = (batch + 1) * len(BATCH)
                writer.append(batch * len(BATCH), end, [BATCH])
                if self.lease.valid():
                    self.confirmed[name] = end
            writer.finish(end)
            self.lease.check()
        draft = self.store.log.checkpoints.draft("1.tmp")
        draft.write(b"all of it")
        draft.publish("1.ckpt")
        del self.confirmed[f"{self.epoch:08d}-00000001.seg"]  # its messages are copied: nobody needs it
        self.store.log.delete([f"{self.epoch:08d}-00000001.seg"])


# -- faults: called instead of the statement ---------------------------------------------------------------------------

Fault = Callable[[ServerConnection, Callable[[], list[Any]], Callable[[], None]], list[Any]]


def lost_before(session: ServerConnection, _run: Callable[[], list[Any]], _other: Callable[[], None]) -> list[Any]:
    session.close()
    raise psycopg.OperationalError("the connection is lost")


def answer_lost(session: ServerConnection, run: Callable[[], list[Any]], _other: Callable[[], None]) -> list[Any]:
    run()
    session.close()
    raise psycopg.OperationalError("the connection is lost")


def stands_still_before(
    _session: ServerConnection, run: Callable[[], list[Any]], other: Callable[[], None]
) -> list[Any]:
    other()
    return run()


def stands_still_after(
    _session: ServerConnection, run: Callable[[], list[Any]], other: Callable[[], None]
) -> list[Any]:
    rows = run()
    other()
    return rows


FAULTS: list[Fault] = [lost_before, answer_lost, stands_still_before, stands_still_after]


class World:
    """One store, an old master, and its successor. The fault comes at statement `at` of the old master's work."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch, fault: Fault, at: int) -> None:
        self.url = url
        self.old, self.new = Broker(url, "old"), Broker(url, "new")
        self.statements = 0
        self._at = at
        self._working = False
        self._fault = fault
        self._succeeded = False
        self._real = tables._run
        monkeypatch.setattr(tables, "_run", self._run)

    def play(self) -> bool:
        """True where the old master made that many statements."""
        self.old.become_master()
        self._working = True
        with suppress(OSError, OwnershipLostError):
            self.old.work()
        self._working = False
        self._succeed()
        return self.statements >= self._at

    def _succeed(self) -> None:
        if self._succeeded:
            return
        self._succeeded = True
        working, self._working = self._working, False
        self.old_confirmed = dict(self.old.confirmed)
        try:
            self.new.become_master()
        except OSError as error:
            raise AssertionError("the successor could not take over") from error
        self.before = self._journal()
        self._working = working

    def _run(self, session: ServerConnection, statement: bytes, asked: dict[str, Any]) -> list[Any]:
        if self._working:
            self.statements += 1
            if self.statements == self._at:
                return self._fault(session, lambda: self._real(session, statement, asked), self._succeed)
        return self._real(session, statement, asked)

    def close(self) -> None:
        """The server admits few connections at a time."""
        for broker in (self.old, self.new):
            for session in list(broker.database.sessions._made):
                session.close()

    def check(self) -> None:
        for name, length in self.old.confirmed.items():
            if length > self.new.sealed.get(name, 0):
                raise Violation(f"{name}: {length} bytes confirmed, {self.new.sealed.get(name, 0)} sealed")
        if self._journal() != self.before:
            raise Violation("the old master changed the journal behind the seal")
        newest = self.new.store.epochs.newest()
        assert newest is not None
        if newest.owner.name != "new":
            raise Violation("the successor lost the store to a broker that it had shut out")

    def _journal(self) -> list[tuple[str, bytes]]:
        log, found = self.new.store.log, []
        for shelf in (log, log.checkpoints):
            with suppress(FileNotFoundError):
                for name in sorted(shelf.names()):
                    with shelf.open(name) as each:
                        found.append((name, each.read(0, 1 << 16)))
        return found


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every broker gets every lock."""
    grant_all_locks(monkeypatch)


def histories(
    server: Postgres, database: str, monkeypatch: pytest.MonkeyPatch, faults: list[Fault] = FAULTS
) -> Iterator[World]:
    """Every fault before every statement."""
    for fault in faults:
        for at in itertools.count(1):
            with monkeypatch.context() as patch:
                world = World(server.url(database, f"tablePrefix={next(_prefixes)}"), patch, fault, at)
                played = world.play()
                if played:
                    yield world
                world.close()
                if not played:
                    break


@pytest.mark.deep
@pytest.mark.usefixtures("lying")
def test_every_fault_before_every_statement(server: Postgres, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    played = 0
    for world in histories(server, database, monkeypatch):
        world.check()
        played += 1
    assert played > 60


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


@pytest.mark.deep
@pytest.mark.usefixtures("lying")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_without_a_rule_some_history_breaks_the_promise(
    server: Postgres, database: str, monkeypatch: pytest.MonkeyPatch, mutant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mutant(monkeypatch)
    with pytest.raises(Violation):
        for world in histories(server, database, monkeypatch, FAULTS[::-1]):
            world.check()
