"""The rules of "The lock alone in a database" (docs/master-slave.md), with mutants, on a real server and real files.

Before or after each statement and each file call of the old master in turn it pauses while another broker takes over,
or the connection of that statement is lost, before it or with its answer. The lock service lies (every broker gets the
lock at once), and the two run on different hosts: the candidate has to wait.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from amq.core.errors import OwnershipLostError, StoreError
from amq.store.epoch import Epoch
from amq.store.files.vfs import SystemVfs
from amq.store.locker import Locker
from amq.store.open import locked_in, open_directory, store_behind
from amq.store.postgres import database as tables
from amq.store.postgres.database import Database
from amq.store.postgres.election import SqlElection
from tests.fakes import FakeClock, FakeHost
from tests.fault_course import (
    BATCH,
    LOST,
    OVER,
    CourseMutant,
    Fault,
    Make,
    Step,
    Violation,
    check_all,
    must_be_caught,
    no_wait,
)
from tests.postgres import Postgres, needs_postgres, postgres
from tests.sql.sql_course import SqlBroker, SqlCourse, database_in, new_urls

pytestmark = needs_postgres


class LockBroker(SqlBroker):
    """Its journal is in files, which it writes itself."""

    def __init__(self, store: str, locker: str, name: str, clock: FakeClock, files: SystemVfs | None = None) -> None:
        self.vfs = files or SystemVfs()
        self.directory = store
        ports = store_behind(self.vfs, store)
        self.database = database_in(locker) if locker else None
        super().__init__(locked_in(ports, self.database) if self.database is not None else ports, name, clock)

    def begin(self) -> None:
        self.name = self._segment(1)
        self.fd = self.vfs.open(f"{self.directory}/journal/{self.name}", os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def batch(self) -> None:
        length = self.confirmed.get(self.name, 0)
        self.vfs.pwrite(self.fd, BATCH, length)
        self.vfs.fdatasync(self.fd)
        if self.lease.valid():
            self.confirmed[self.name] = length + len(BATCH)

    def work(self) -> None:
        """Four batches, with checks between them."""
        self.begin()
        for _ in range(2):
            self.batch()
            self.lease.check()
            self.batch()


class LockCourse(SqlCourse):
    """The fault comes at a statement, or at a call of the file system, which cannot be lost."""

    def __init__(self, store: Path, url: str, patch: pytest.MonkeyPatch, fault: Fault, at: int) -> None:
        clock, files = FakeClock(), SystemVfs()
        store.mkdir()
        old = LockBroker(str(store), url, "old", clock, files)
        super().__init__(old, LockBroker(str(store), url, "new", clock), patch, fault, at)
        for name in ("open", "pwrite", "fdatasync", "listdir"):
            real = getattr(files, name)
            setattr(files, name, lambda *given, _real=real: self.call(Step(partial(_real, *given))))


@pytest.fixture
def make(server: Postgres, database: str, tmp_path: Path) -> Make:
    url = new_urls(server, database)
    return lambda patch, fault, at: LockCourse(tmp_path / f"{fault.__name__}{at}", url(), patch, fault, at)


@pytest.mark.deep
@pytest.mark.usefixtures("lying")
def test_every_fault_at_every_call(make: Make) -> None:
    assert check_all(make, (*OVER, *LOST)) > 40


def files_fence(patch: pytest.MonkeyPatch) -> None:
    """As if the database could keep a broker from the files."""
    real = SqlElection.__init__

    def fencing(self: SqlElection, database: Database, *, alone: bool = False) -> None:
        real(self, database, alone=alone)
        self.shuts_out = True

    patch.setattr(SqlElection, "__init__", fencing)


@pytest.mark.deep
@pytest.mark.usefixtures("lying")
@pytest.mark.parametrize("mutant", [no_wait, files_fence], ids=lambda mutant: mutant.__name__)
def test_without_the_wait_some_history_breaks_the_promise(mutant: CourseMutant, make: Make) -> None:
    must_be_caught(mutant, make, OVER)


def taken_over_beside_a_master_that_works(
    server: Postgres, database: str, store: Path, lockers: tuple[str, str]
) -> None:
    """The old master checks its lease while the candidate waits, and writes behind the seal."""
    store.mkdir()
    url, clock = new_urls(server, database)(), FakeClock()
    old, new = (
        LockBroker(str(store), url if each else "", name, clock)
        for each, name in zip(lockers, ("old", "new"), strict=True)
    )
    old.become_master()
    old.begin()
    old.batch()
    new.meanwhile = old.check_lease
    new.become_master()
    old.batch()
    if old.confirmed[old.name] > new.sealed[old.name]:
        raise Violation("confirmed behind the seal")


@pytest.mark.usefixtures("lying")
def test_no_check_succeeds_once_a_claim_stands_in_the_database(
    server: Postgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat finds out, and the look at the claim, too: each is enough."""
    taken_over_beside_a_master_that_works(server, database, tmp_path / "a", ("sql", "sql"))
    with monkeypatch.context() as patch:
        patch.setattr(tables, "_FENCE", tables._OPEN)
        taken_over_beside_a_master_that_works(server, database, tmp_path / "c", ("sql", "sql"))
    monkeypatch.setattr(Locker, "_check_claim", lambda _self: None)
    taken_over_beside_a_master_that_works(server, database, tmp_path / "d", ("sql", "sql"))
    monkeypatch.setattr(tables, "_FENCE", tables._OPEN)
    with pytest.raises(Violation):
        taken_over_beside_a_master_that_works(server, database, tmp_path / "b", ("sql", "sql"))


@pytest.mark.parametrize("lockers", [("sql", ""), ("", "sql")])
def test_brokers_whose_locks_are_elsewhere_are_refused(
    server: Postgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lockers: tuple[str, str]
) -> None:
    """A master does not see a claim that stands elsewhere."""
    with pytest.raises(StoreError, match="give all brokers the same") as told:
        taken_over_beside_a_master_that_works(server, database, tmp_path / "a", lockers)
    assert told.value.code == "LOCK_ELSEWHERE"
    monkeypatch.setattr(Locker, "_check_place", lambda self, *_: self._election.place())
    with pytest.raises(Violation):
        taken_over_beside_a_master_that_works(server, database, tmp_path / "b", lockers)


def test_the_lock_moves_when_the_last_master_has_left_its_mark(server: Postgres, database: str, tmp_path: Path) -> None:
    """To a database, to another one, and back; never behind a master that may live."""
    store, clock = str(tmp_path), FakeClock()
    url = new_urls(server, database)
    urls = [url(), url()]
    for number, url in enumerate(("", urls[0], urls[1], "")):
        broker, other = (
            LockBroker(store, url, f"n{number}", clock),
            LockBroker(store, urls[url == urls[0]], "other", clock),
        )
        broker.become_master()
        other.store.make()
        with pytest.raises(StoreError, match="stop all of them in good order"):
            other.locker.check_place()
        newest = open_directory(store).epochs.newest()
        assert newest is not None
        assert (newest.number, newest.lock.url) == (number + 1, url)
        broker.locker.release()


def test_two_brokers_of_one_first_start_cannot_both_be_master(server: Postgres, database: str, tmp_path: Path) -> None:
    """No epoch says yet where the lock is: the link of the first one decides."""
    store, clock = str(tmp_path), FakeClock()
    first = LockBroker(store, "", "first", clock)
    second = LockBroker(store, new_urls(server, database)(), "second", clock)
    seal = first.seal
    masters = []

    def overtaken(previous: Epoch | None) -> Mapping[str, int]:
        second.become_master()
        masters.append(second)
        return seal(previous)

    first.seal = overtaken  # type: ignore[method-assign]
    with pytest.raises(OwnershipLostError, match="another broker took epoch 1"):
        first.become_master()
    assert masters == [second]
    second.lease.check()
    with pytest.raises(StoreError, match="same `locker`"):
        first.locker.check_place()


def test_where_the_database_of_the_lock_is_lost_the_host_of_the_last_master_goes_on(tmp_path: Path) -> None:
    """There it can be proved that nothing more comes from it; elsewhere it cannot."""
    with postgres() as server:
        gone = LockBroker(str(tmp_path), server.url("postgres"), "gone", FakeClock())
        gone.become_master()
    with pytest.raises(StoreError, match="stop all of them in good order"):
        LockBroker(str(tmp_path), "", "elsewhere", FakeClock()).locker.check_place()
    here = LockBroker(str(tmp_path), "", "here", FakeClock())
    here.locker._host = FakeHost(host_name="host-of-gone", boot="boot-of-gone", own_pid=200)
    here.become_master()
    assert here.epoch == gone.epoch + 1
