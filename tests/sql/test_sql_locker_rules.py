"""The rules of "The lock alone in a database" (docs/master-slave.md), with mutants, on a real server and real files.

An old master writes batches and checks its lease. Before or after each of its statements and each of its file calls in
turn it pauses while another broker takes over, or the connection of that statement is lost, before it or with its
answer. The lock service lies (every broker gets the lock at once), and the two run on different hosts: the candidate
has to wait. Whatever was confirmed must lie inside the seal.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fakes import FakeClock, FakeHost

from amq.core.errors import OwnershipLostError, StoreError
from amq.store.epoch import Epoch
from amq.store.files.vfs import SystemVfs
from amq.store.locker import Locker
from amq.store.open import locked_in, open_directory, store_behind
from amq.store.postgres import database as tables
from amq.store.postgres.database import Database
from amq.store.postgres.election import SqlElection
from amq.store.postgres.sessions import ServerConnection
from amq.store.postgres.url import SqlUrl
from tests.postgres import Postgres, needs_postgres, postgres
from tests.sql.candidates import BATCH, Candidate, Violation, grant_all_locks

pytestmark = needs_postgres
_prefixes = (f"l{number}_" for number in itertools.count(1))


class Broker(Candidate):
    """Writes what a master writes."""

    def __init__(self, store: str, locker: str, name: str, clock: FakeClock, files: SystemVfs | None = None) -> None:
        self.vfs = files or SystemVfs()
        self.directory = store
        ports = store_behind(self.vfs, store)
        self.database = Database(SqlUrl.parse(locker)) if locker else None
        super().__init__(locked_in(ports, self.database) if self.database is not None else ports, name, clock)
        self.meanwhile: Callable[[], None] = lambda: None  # while this broker waits

    def pause(self, seconds: float) -> bool:
        super().pause(seconds)
        self.meanwhile()
        return False

    def begin(self) -> None:
        self.name = f"{self.epoch:08d}-00000001.seg"
        self.fd = self.vfs.open(f"{self.directory}/journal/{self.name}", os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def batch(self) -> None:
        length = self.confirmed.get(self.name, 0)
        self.vfs.pwrite(self.fd, BATCH, length)
        self.vfs.fdatasync(self.fd)
        if self.lease.valid():
            self.confirmed[self.name] = length + len(BATCH)

    def work(self) -> None:
        """Four batches, with checks between them. Ends at the first error."""
        self.begin()
        for _ in range(2):
            self.batch()
            self.lease.check()
            self.batch()


Fault = Callable[[Callable[[], Any], Callable[[], None], "ServerConnection | None"], Any]


def lost_before(_call: Callable[[], Any], _other: Callable[[], None], session: ServerConnection | None) -> Any:
    assert session is not None
    session.close()
    raise psycopg.OperationalError("the connection is lost")


def answer_lost(call: Callable[[], Any], _other: Callable[[], None], session: ServerConnection | None) -> Any:
    assert session is not None
    call()
    session.close()
    raise psycopg.OperationalError("the connection is lost")


def stands_still_before(call: Callable[[], Any], other: Callable[[], None], _session: ServerConnection | None) -> Any:
    other()
    return call()


def stands_still_after(call: Callable[[], Any], other: Callable[[], None], _session: ServerConnection | None) -> Any:
    found = call()
    other()
    return found


STILL: list[Fault] = [stands_still_before, stands_still_after]
LOST: list[Fault] = [lost_before, answer_lost]


class World:
    """One store, an old master, and its successor. The fault comes at call `at` of the old master's work: a statement,
    or a call of the file system."""

    def __init__(self, store: Path, url: str, patch: pytest.MonkeyPatch, fault: Fault, at: int) -> None:
        self.clock = FakeClock()
        store.mkdir()
        self.old = Broker(str(store), url, "old", self.clock, self._watched())
        self.new = Broker(str(store), url, "new", self.clock)
        self.calls = 0
        self._at, self._fault = at, fault
        self._working = self._succeeded = False
        real = tables._run
        patch.setattr(
            tables,
            "_run",
            lambda session, statement, asked: self._call(lambda: real(session, statement, asked), session),
        )

    def play(self) -> bool:
        """True where the old master made that many calls."""
        self.old.become_master()
        self._working = True
        with suppress(OSError, OwnershipLostError):
            self.old.work()
        self._working = False
        self._succeed()
        return self.calls >= self._at

    def check(self) -> None:
        for name, length in self.old.confirmed.items():
            if length > self.new.sealed.get(name, 0):
                raise Violation(f"{name}: {length} bytes confirmed, {self.new.sealed.get(name, 0)} sealed")
        newest = self.new.store.epochs.newest()
        assert newest is not None
        assert newest.owner.name == "new"

    def close(self) -> None:
        """The server admits few connections at a time."""
        for broker in (self.old, self.new):
            assert broker.database is not None
            for session in list(broker.database.sessions._made):
                session.close()

    def _succeed(self) -> None:
        if self._succeeded:
            return
        self._succeeded = True
        working, self._working = self._working, False
        self.new.become_master()
        if self.old.lease.valid():
            raise Violation("two masters serve at once")
        self._working = working

    def _call(self, call: Callable[[], Any], session: ServerConnection | None) -> Any:
        if self._working and (session is not None or self._fault in STILL):
            self.calls += 1
            if self.calls == self._at:
                return self._fault(call, self._succeed, session)
        return call()

    def _watched(self) -> SystemVfs:
        files = SystemVfs()
        for name in ("open", "pwrite", "fdatasync", "listdir"):
            real = getattr(files, name)
            setattr(files, name, lambda *args, _real=real: self._call(lambda: _real(*args), None))
        return files


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every broker gets every lock."""
    grant_all_locks(monkeypatch)
    monkeypatch.setattr(SystemVfs, "try_lock", lambda _self, _fd: True)


def histories(
    server: Postgres, database: str, directory: Path, monkeypatch: pytest.MonkeyPatch, faults: list[Fault]
) -> Iterator[World]:
    """Every fault at every call."""
    for fault in faults:
        for at in itertools.count(1):
            with monkeypatch.context() as patch:
                prefix = next(_prefixes)
                world = World(directory / prefix, server.url(database, f"tablePrefix={prefix}"), patch, fault, at)
                played = world.play()
                if played:
                    yield world
                world.close()
                if not played:
                    break


@pytest.mark.deep
@pytest.mark.usefixtures("lying")
def test_every_fault_at_every_call(
    server: Postgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = 0
    for world in histories(server, database, tmp_path, monkeypatch, STILL + LOST):
        world.check()
        played += 1
    assert played > 40


def no_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Locker, "_wait_for", lambda _self, _previous: (0.0, ""))


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
def test_without_the_wait_some_history_breaks_the_promise(
    server: Postgres,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mutant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    mutant(monkeypatch)
    with pytest.raises(Violation):
        for world in histories(server, database, tmp_path, monkeypatch, STILL):
            world.check()


def taken_over_beside_a_master_that_works(
    server: Postgres, database: str, store: Path, lockers: tuple[str, str]
) -> None:
    """The old master checks its lease while the candidate waits, and writes behind the seal."""
    store.mkdir()
    prefix = next(_prefixes)
    urls = [server.url(database, f"tablePrefix={prefix}") if each else "" for each in lockers]
    clock = FakeClock()
    old, new = (Broker(str(store), url, name, clock) for url, name in zip(urls, ("old", "new"), strict=True))
    old.become_master()
    old.begin()
    old.batch()

    def check() -> None:
        with suppress(OwnershipLostError):
            old.lease.check()

    new.meanwhile = check
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
    urls = [server.url(database, f"tablePrefix={next(_prefixes)}") for _ in range(2)]
    for number, url in enumerate(("", urls[0], urls[1], "")):
        broker, other = Broker(store, url, f"n{number}", clock), Broker(store, urls[url == urls[0]], "other", clock)
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
    first = Broker(store, "", "first", clock)
    second = Broker(store, server.url(database, f"tablePrefix={next(_prefixes)}"), "second", clock)
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
        gone = Broker(str(tmp_path), server.url("postgres"), "gone", FakeClock())
        gone.become_master()
    with pytest.raises(StoreError, match="stop all of them in good order"):
        Broker(str(tmp_path), "", "elsewhere", FakeClock()).locker.check_place()
    here = Broker(str(tmp_path), "", "here", FakeClock())
    here.locker._host = FakeHost(host_name="host-of-gone", boot="boot-of-gone", own_pid=200)
    here.become_master()
    assert here.epoch == gone.epoch + 1
