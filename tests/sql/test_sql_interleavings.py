"""The rules of "A store in a database" (docs/master-slave.md), each with mutants, on the real door and a real server.

An old master writes, rolls to a new segment and checks its lease. Before each of its statements in turn a fault comes:
its connection is lost before the statement or with the answer, or it pauses while another broker takes over.
The lock service lies (every broker gets the lock at once), and nobody waits. Whatever was confirmed must lie inside the
seal, and nothing of the old master may take effect behind it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from fakes import FakeClock

from amq.core.errors import OwnershipLostError
from amq.store.open import store_in
from amq.store.postgres import vfs as sql_vfs
from amq.store.postgres.sessions import ServerConnection
from amq.store.postgres.url import SqlUrl
from amq.store.postgres.vfs import SqlVfs
from tests.postgres import Postgres, needs_postgres
from tests.sql.candidates import BATCH, Candidate, Violation

pytestmark = needs_postgres
_prefixes = (f"t{number}_" for number in itertools.count(1))


class Broker(Candidate):
    """Writes what a master writes."""

    def __init__(self, url: str, name: str) -> None:
        self.vfs, self.url = SqlVfs(SqlUrl.parse(url)), url
        super().__init__(store_in(self.vfs), name, FakeClock())

    def pause(self, _seconds: float) -> bool:
        raise AssertionError("a database needs no wait")

    def work(self) -> None:
        """Two segments of two batches, a check, and one segment that is no longer needed. Ends at the first error."""
        for number in (1, 2):
            name = f"{self.epoch:08d}-{number:08d}.seg"
            fd = self.vfs.open(f"{self.url}/journal/{name}", os.O_RDWR | os.O_CREAT | os.O_EXCL)
            for batch in range(2):
                self.vfs.pwrite(fd, BATCH, batch * len(BATCH))
                self.vfs.fdatasync(fd)
                if self.lease.valid():
                    self.confirmed[name] = (batch + 1) * len(BATCH)
            self.lease.check()
        del self.confirmed[f"{self.epoch:08d}-00000001.seg"]  # its messages are copied: nobody needs it
        self.vfs.unlink(f"{self.url}/journal/{self.epoch:08d}-00000001.seg")


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
        self._real = sql_vfs._run
        monkeypatch.setattr(sql_vfs, "_run", self._run)

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
        vfs = self.new.vfs
        found = []
        for name in sorted(vfs.listdir(f"{self.url}/journal")):
            fd = vfs.open(f"{self.url}/journal/{name}", os.O_RDONLY)
            found.append((name, vfs.pread(fd, 1 << 16, 0)))
            vfs.close(fd)
        return found


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every broker gets every lock."""
    monkeypatch.setattr(SqlVfs, "try_lock", lambda _self, _fd: True)


def histories(
    server: Postgres, database: str, monkeypatch: pytest.MonkeyPatch, faults: list[Fault] = FAULTS
) -> Iterator[World]:
    """Every fault before every statement."""
    for fault in faults:
        for at in itertools.count(1):
            with monkeypatch.context() as patch:
                world = World(server.url(database, f"tablePrefix={next(_prefixes)}"), patch, fault, at)
                if not world.play():
                    break
                yield world


@pytest.mark.deep
@pytest.mark.usefixtures("lying")
def test_every_fault_before_every_statement(server: Postgres, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    played = 0
    for world in histories(server, database, monkeypatch):
        world.check()
        played += 1
    assert played > 60


def no_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sql_vfs, "_FENCE", sql_vfs._OPEN)


def claim_without_fence(patch: pytest.MonkeyPatch) -> None:
    """The claim is written as any file, and the digest stays."""
    patch.setattr(SqlVfs, "_claim_path", property(lambda _self: ""))
    patch.setattr(sql_vfs, "_FENCE", sql_vfs._FENCE.replace("fence = %(claim)s", "fence = '' OR fence = %(claim)s"))


def names_not_fenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sql_vfs, "_is_fenced", lambda directory, name: directory == "epochs" and name[0] != ".")


def lost_answer_is_success(patch: pytest.MonkeyPatch) -> None:
    """An error of a commit is passed over."""
    real = SqlVfs._write

    def write(self: SqlVfs, file: Any) -> None:
        with suppress(OSError):
            real(self, file)

    patch.setattr(SqlVfs, "_write", write)


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
