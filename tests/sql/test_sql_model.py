"""The simulation's model of PostgreSQL answers as a real server does, so that what it finds is real."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from test_sql_vfs import FENCES, answer, conversation

from amq.core.errors import StoreError
from amq.store.postgres import vfs as sql_vfs
from amq.store.postgres.url import SqlUrl
from amq.store.postgres.vfs import SqlVfs
from tests.postgres import Postgres, needs_postgres
from tests.simulation import sql_client, sql_tables
from tests.simulation.database import POSTGRES, DatabaseHost
from tests.simulation.scheduler import Machine, Process, Scheduler
from tests.simulation.sql_client import connecting
from tests.simulation.sql_server import SqlServer
from tests.simulation.storage import PlainVfs

STORE = "/store"
Open = Callable[[], SqlVfs]


class Lab:
    """One modelled server, and one process that uses it."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(Random(1))
        self.errors: list[Exception] = []
        self.scheduler.on_crash = lambda _task, error: self.errors.append(error)
        self.server = SqlServer(Random(2), True, 64 << 20)
        self.server.scheduler, self.server.store = self.scheduler, STORE
        machine = Machine(self.scheduler, "host", 1.0, Random(3))
        self.host = DatabaseHost(self.scheduler, machine, self.server, POSTGRES, Random(4))
        self.process: Process = machine.spawn("broker")

    def promote(self) -> None:
        self.server.by_hand(lambda tables: setattr(tables, "server", "another"))

    def connected(self) -> Any:
        return connecting(self.scheduler, lambda _process: self.host, lambda: True, 0.001)

    def do(self, call: Callable[[], Any]) -> Any:
        """What it returns, in a thread of the process."""
        found: list[Any] = []
        self.begin(lambda: found.append(call()))
        self.go_on(60.0)
        return found[0]

    def begin(self, call: Callable[[], Any]) -> None:
        self.process.start("test", call)

    def go_on(self, seconds: float) -> None:
        self.scheduler.run(self.scheduler.now + seconds)
        if self.errors:
            raise self.errors.pop()


@contextmanager
def used_statements() -> Iterator[set[str]]:
    """The names of those that the model was asked while the block ran."""
    used: set[str] = set()
    real = [(pattern, statement) for pattern, statement in sql_tables._KNOWN]

    def counted(statement: Any) -> Any:
        def run(call: Any) -> Any:
            used.add(statement.name)
            return statement.run(call)

        return sql_tables.Statement(statement.name, statement.kind, statement.locks, run)

    sql_tables._KNOWN[:] = [(pattern, counted(statement)) for pattern, statement in real]
    sql_client._plan.cache_clear()
    try:
        yield used
    finally:
        sql_tables._KNOWN[:] = real
        sql_client._plan.cache_clear()


def claim(door: SqlVfs, store: str, who: bytes) -> None:
    fd = door.open(f"{store}/claim", os.O_RDWR | os.O_CREAT)
    door.pwrite(fd, who.ljust(4096), 0)
    door.fsync(fd)
    door.close(fd)


def dialogue(make: Open, store: str, promote: Callable[[], Any]) -> list[Any]:
    """Answers of two doors, of which the second claims the store of the first; at the end `promote` is called."""
    old, new = make(), make()
    said: list[Any] = [answer(lambda: old.mkdir(store)), answer(lambda: new.mkdir(store))]
    claim(old, store, b"old")
    for name in ("journal", "epochs", "brokers"):
        old.mkdir(f"{store}/{name}")
    segment = old.open(f"{store}/journal/s", os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def write(door: SqlVfs, fd: int, *pieces: tuple[bytes, int]) -> Any:
        for data, offset in pieces:
            door.pwrite(fd, data, offset)
        return answer(lambda: door.fdatasync(fd))

    said += [write(old, segment, (b"first", 0)), write(old, segment, (b"second", 5), (b"far", 100))]
    said += [write(old, segment, (b"\0" * 50, 200)), old.fstat(segment).st_size, old.pread(segment, 300, 3)]
    other = new.open(f"{store}/journal/s", os.O_RDWR)
    said += [write(old, segment, (b"no", 1)), old.pread(segment, 10, 0)]
    temporary = old.open(f"{store}/epochs/.t", os.O_RDWR | os.O_CREAT)
    said += [write(old, temporary, (b"epoch", 0)), answer(lambda: old.link(f"{store}/epochs/.t", f"{store}/epochs/1"))]
    said += [answer(lambda: old.link(f"{store}/epochs/.t", f"{store}/epochs/1"))]
    said += [write(new, other, (b"not mine", 250)), answer(lambda: new.unlink(f"{store}/journal/s"))]
    lock, theirs = (door.open(f"{store}/lock", os.O_RDWR | os.O_CREAT) for door in (old, new))
    said += [old.try_lock(lock), new.try_lock(theirs), new.lock_held(theirs), old.lock_held(lock)]
    assert old._locks is not None
    old._locks.close()  # as if it were lost
    said += [answer(lambda: old.pwrite(lock, b"beat", 0)), answer(lambda: old.fsync(lock)), old.close(lock)]
    again = old.open(f"{store}/lock", os.O_RDWR)
    said += [old.try_lock(again), new.try_lock(theirs), old.close(again), new.try_lock(theirs)]
    claim(new, store, b"new")
    said += [
        write(old, segment, (b"late", 250)),
        answer(lambda: old.ftruncate(segment, 3)),
        answer(lambda: old.unlink(f"{store}/journal/s")),
        answer(lambda: old.open(f"{store}/journal/t", os.O_RDWR | os.O_CREAT | os.O_EXCL)),
        answer(lambda: old.link(f"{store}/epochs/.t", f"{store}/epochs/2")),
        sorted(old.listdir(f"{store}/journal")),
    ]
    said += [answer(lambda: old.ftruncate(temporary, 3)), old.stat(f"{store}/epochs/1").st_size]
    mine = new.open(f"{store}/journal/s", os.O_RDWR)
    said += [write(new, mine, (b"mine", 250)), new.pread(mine, 400, 240), answer(lambda: new.ftruncate(mine, 103))]
    said += [answer(lambda: old.fdatasync(segment)), old.fstat(segment).st_size]
    said += [answer(lambda: new.unlink(f"{store}/journal/s"))]
    said += [answer(lambda: old.pread(segment, 5, 0)), answer(lambda: write(new, mine, (b"x", 103)))]
    new._full = True
    said += [new.free_bytes(store)]
    with new._sessions.use(store) as session:
        new._sessions.accept(session)
        said += [new._tables.upgrade(session)]  # type: ignore[arg-type]
        said += [new._sessions.servers(session)[0] == new._sessions.servers(session)[1]]
    left = new.open(f"{store}/journal/u", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    said += [write(new, left, (b"seen", 0)), _connected(new, store)]
    said += [answer(lambda: old.pread(old.open(f"{store}/journal/u", os.O_RDONLY), 9, 0))]
    new.unlink(f"{store}/journal/u")
    said += [_connected(new, store), _connected(old, store)]  # the old one misses it
    old._sessions._seen = None
    new._sessions.close()
    promote()
    with pytest.raises(StoreError) as told:
        new.listdir(store)
    said += [told.value.code, write(old, temporary, (b"more", 5))]
    return said


def _connected(door: SqlVfs, store: str) -> Any:
    """What a new connection says."""
    try:
        door._sessions.drop(door._sessions.connect(store))
    except StoreError as error:
        return error.code
    return "connected"


@needs_postgres
def test_the_model_answers_as_a_server_does(server: Postgres, database: str) -> None:
    """The same calls of the same doors, on both. They use every statement that the model knows."""
    url = server.url(database)

    def promote() -> None:
        server.ask("UPDATE amq_store SET server = 'another'", database=database)

    right = conversation(SqlVfs(SqlUrl.parse(url)), url), dialogue(lambda: SqlVfs(SqlUrl.parse(url)), url, promote)
    labs = Lab(), Lab()
    with used_statements() as used:
        with labs[0].connected():
            talked = labs[0].do(lambda: conversation(_door(), STORE))
        with labs[1].connected():
            answered = labs[1].do(lambda: dialogue(_door, STORE, labs[1].promote))
    assert (talked, answered) == right
    assert used == sql_tables.known()


def _door() -> SqlVfs:
    return SqlVfs(SqlUrl(STORE, {"dbname": "amq"}, "", True, 0, ""))


@pytest.mark.parametrize(("fence", "is_hole"), FENCES.values(), ids=FENCES)
def test_a_write_of_the_model_meets_a_claim_in_flight(
    monkeypatch: pytest.MonkeyPatch, fence: str, is_hole: bool
) -> None:
    """As `test_a_write_that_meets_a_claim_in_flight` sees it on a real server."""
    monkeypatch.setattr(sql_vfs, "_FENCE", fence)
    lab = Lab()
    with lab.connected():
        old, new = _door(), _door()

        def prepare() -> int:
            with pytest.raises(FileExistsError):
                old.mkdir(STORE)
            claim(old, STORE, b"old")
            old.mkdir(f"{STORE}/journal")
            return old.open(f"{STORE}/journal/s", os.O_RDWR | os.O_CREAT)

        segment = lab.do(prepare)
        said: list[Any] = []

        def write() -> None:
            old.pwrite(segment, b"2", 0)
            said.append(answer(lambda: old.fdatasync(segment)))

        lab.server.slow_s = 5.0
        lab.begin(lambda: claim(new, STORE, b"new"))
        lab.go_on(2.0)
        lab.begin(write)
        lab.go_on(2.0)
        assert bool(said) is is_hole
        lab.go_on(9.0)
    assert said == ([None] if is_hole else ["EIO"])


def test_what_a_lagging_standby_of_the_model_lacks() -> None:
    """As real ones: a confirmed row is gone after the promotion, and with a synchronous one it is there. A cancelled
    wait "succeeds" with a warning, which the door takes for a failure."""
    for synchronous, cancelled in ((False, False), (True, False), (True, True)):
        lab = Lab()
        lab.server.synchronous, lab.server.lag_s = synchronous, 0.5
        with lab.connected():
            door = _door()

            def prepare(door: SqlVfs = door) -> int:
                with pytest.raises(FileExistsError):
                    door.mkdir(STORE)
                claim(door, STORE, b"a")
                door.mkdir(f"{STORE}/journal")
                return door.open(f"{STORE}/journal/s", os.O_RDWR | os.O_CREAT)

            segment = lab.do(prepare)
            said: list[Any] = []

            def write(door: SqlVfs = door, segment: int = segment, said: list[Any] = said) -> None:
                door.pwrite(segment, b"1", 0)
                said.append(answer(lambda: door.fdatasync(segment)))

            lab.server.hung_until = lab.scheduler.now + (5.0 if cancelled else 0.0)
            lab.begin(write)
            lab.go_on(0.3)
            assert bool(said) is not synchronous
            if cancelled:
                lab.server.cancel_waits()
            lab.go_on(0.1 if not synchronous or cancelled else 1.0)
            lab.server.fail_over()
            reader = PlainVfs(lab.server)
            stored = reader.pread(reader.open(f"{STORE}/journal/s", os.O_RDONLY), 9, 0)
            assert (said, stored) == (
                [errno.errorcode[errno.EIO] if cancelled else None],
                b"1" if synchronous and not cancelled else b"",
            )
