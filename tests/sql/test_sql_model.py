"""The simulation's model of PostgreSQL answers as a real server does, so that what it finds is real."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from test_sql_database import FENCES, Opened, S, T, answer

from amq.core.errors import StoreError
from amq.store.election import HEARTBEAT, RECORD_BYTES
from amq.store.epoch import Epoch
from amq.store.postgres import database as tables
from amq.store.postgres.url import SqlUrl
from amq.store.segment_log import RESERVE_NAME
from tests.election_contract import OWNER, no
from tests.postgres import Postgres, needs_postgres
from tests.simulation import sql_client, sql_tables
from tests.simulation.database import POSTGRES, DatabaseHost
from tests.simulation.scheduler import Machine, Process, Scheduler
from tests.simulation.sql_client import connecting
from tests.simulation.sql_server import SqlServer
from tests.simulation.storage import PlainVfs

STORE = "/store"
Open = Callable[[], Opened]


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


def claim(opened: Opened, who: bytes) -> None:
    opened.election.claim(who.ljust(RECORD_BYTES))


def dialogue(make: Open, promote: Callable[[], Any]) -> list[Any]:
    """Answers of two members, of which the second claims the store of the first; at the end `promote` is called."""
    old, new = make(), make()
    said: list[Any] = []

    def ask(*calls: Callable[[], Any]) -> None:
        said.extend(answer(call) for call in calls)

    ask(old.store.make, new.store.make, old.epochs.make, old.election.look, old.election.read_claim)
    claim(old, b"old")
    ask(old.election.read_claim, old.log.names, lambda: old.log.checkpoints.names(), lambda: old.log.size(S))
    writer = old.segment(S, b"first")
    ask(lambda: new.segment(S, b"other"), lambda: new.segment(T, b"not its claim"))
    large = bytes(range(256)) * (tables.ROW_BYTES_MAX // 200)
    writer.append(5, 5 + len(large), [b"", large])
    writer.append(5 + len(large), 9 + len(large), [b"last"])
    said += [old.content(S) == b"first" + large + b"last", new.log.size(S)]
    with new.log.open(S) as segment:
        said += [segment.read(3, 9), segment.read(tables.ROW_BYTES_MAX, 30), segment.read(9 + len(large), 5)]
    entry = old.database.find("journal", S)
    ask(lambda: old.database.append(entry, 5, [b"twice"]), lambda: old.log.set_aside(1000))
    said += [old.log.size(RESERVE_NAME), old.content(RESERVE_NAME).strip(b"\0")]
    ask(old.log.give_back, old.log.give_back, lambda: sorted(old.log.names()))
    for name in ("1.ckpt", "1.ckpt", "2.ckpt"):
        draft = old.log.checkpoints.draft("1.tmp")
        draft.write(b"of")
        draft.write(name.encode())
        draft.publish(name)
        said += [sorted(new.log.checkpoints.names()), new.log.checkpoints.size("1.ckpt")]
    first = Epoch(1, OWNER, {"s": 1}, 2, "")
    ask(lambda: old.epochs.link(first, "a"), lambda: old.epochs.link(first, "b"), lambda: new.epochs.newest() == first)
    ask(lambda: old.epochs.prune(Epoch(99, OWNER, {}, 0, "")), lambda: old.epochs.link(first, "c"))

    # The lock, and what is written through it.
    ask(new.election.is_held, lambda: old.election.try_acquire(lambda: True), lambda: old.election.try_acquire(no))
    ask(
        lambda: new.election.try_acquire(no),
        new.election.is_held,
        old.election.holds,
        lambda: new.election.read("heartbeat"),
    )
    ask(lambda: old.election.write(HEARTBEAT, b"beat"), lambda: old.database.record("", "lock")[1])
    ask(lambda: old.election.write(HEARTBEAT, b"again"), lambda: old.database.record("", "lock")[1])
    seat = old.board.take("a")
    seat.write(b"here")
    said += [[(each.name, each.read()) for each in new.board.seats(held=True)], list(new.board.seats(held=False))]
    ask(lambda: new.board.write_slot("a", b"x"), lambda: old.board.read_slot("a"))
    ask(lambda: new.board.write_slot("a", b"x"), lambda: old.board.read_slot("a"))
    assert old.database._holder is not None
    old.database._holder.close()  # as if it were lost
    ask(old.election.holds, lambda: old.election.write(HEARTBEAT, b"late"), lambda: seat.write(b"late"))
    old.election.let_go()
    ask(seat.keep, seat.keep, lambda: old.election.try_acquire(no), lambda: new.election.replace("new"))
    ask(old.election.holds, lambda: old.election.write(HEARTBEAT, b"late"), new.election.holds, old.election.let_go)
    ask(lambda: old.election.try_acquire(no), new.election.let_go, lambda: old.election.try_acquire(no), seat.close)

    # The fence.
    claim(new, b"new")
    draft = new.log.checkpoints.draft("3.tmp")
    ask(lambda: writer.append(9 + len(large), 13 + len(large), [b"late"]), lambda: old.log.delete([S]))
    ask(lambda: old.segment(T, b"late"), lambda: old.epochs.link(Epoch(2, OWNER, {}, 0, ""), "d"))
    ask(lambda: old.election.write(HEARTBEAT, b"late"), lambda: old.log.checkpoints.delete(["1.ckpt"]))
    ask(
        lambda: draft.write(b"mine"),
        lambda: draft.publish("3.ckpt"),
        lambda: new.log.checkpoints.delete(["1.ckpt", "x"]),
    )
    with old.log.open(S) as segment:
        ask(lambda: new.log.delete([S]), lambda: new.log.delete([S]), lambda: segment.read(0, 5), segment.size)
    new.database._full = True
    said += [new.log.free_bytes()]
    sessions = new.database.sessions
    with sessions.use(STORE) as session:
        sessions.accept(session)
        said += [sessions.tables.upgrade(session), sessions.servers(session)[0] == sessions.servers(session)[1]]

    # A server that lacks what was seen.
    new.segment(T, b"seen")
    said += [_connected(new), old.content(T)]
    new.log.delete([T])
    said += [_connected(new), _connected(old)]  # the old one misses it
    old.database.sessions._seen = None
    sessions.close()
    promote()
    with pytest.raises(StoreError) as told:
        new.log.names()
    return [*said, told.value.code]


def _connected(opened: Opened) -> Any:
    """What a new connection says."""
    sessions = opened.database.sessions
    try:
        sessions.drop(sessions.connect(STORE))
    except StoreError as error:
        return error.code
    return "connected"


@needs_postgres
def test_the_model_answers_as_a_server_does(server: Postgres, database: str) -> None:
    """The same calls on both. They use every statement that the model knows."""
    url = server.url(database)

    def promote() -> None:
        server.ask("UPDATE amq_store SET server = 'another'", database=database)

    right = dialogue(lambda: Opened(url), promote)
    lab = Lab()
    with used_statements() as used, lab.connected():
        answered = lab.do(lambda: dialogue(_opened, lab.promote))
    assert answered == right
    assert used == sql_tables.known()


def _opened() -> Opened:
    return Opened(SqlUrl(STORE, {"dbname": "amq"}, "", True, 0, ""))


@pytest.mark.parametrize(("fence", "is_hole"), FENCES.values(), ids=FENCES)
def test_a_write_of_the_model_meets_a_claim_in_flight(
    monkeypatch: pytest.MonkeyPatch, fence: str, is_hole: bool
) -> None:
    """As `test_a_write_that_meets_a_claim_in_flight` sees it on a real server."""
    monkeypatch.setattr(tables, "_FENCE", fence)
    lab = Lab()
    with lab.connected():
        old, new = _opened(), _opened()

        def prepare() -> Any:
            old.store.make()
            claim(old, b"old")
            return old.segment(S, b"1")

        segment = lab.do(prepare)
        said: list[Any] = []

        def write() -> None:
            said.append(answer(lambda: segment.append(1, 2, [b"2"])))

        lab.server.slow_s = 5.0
        lab.begin(lambda: claim(new, b"new"))
        lab.go_on(2.0)
        lab.begin(write)
        lab.go_on(2.0)
        assert bool(said) is is_hole
        lab.go_on(9.0)
    assert (said == ["EIO"]) is not is_hole


def test_what_a_lagging_standby_of_the_model_lacks() -> None:
    """As real ones: a confirmed row is gone after the promotion, and with a synchronous one it is there. A cancelled
    wait "succeeds" with a warning, which the door takes for a failure."""
    for synchronous, cancelled in ((False, False), (True, False), (True, True)):
        lab = Lab()
        lab.server.synchronous, lab.server.lag_s = synchronous, 0.5
        with lab.connected():
            opened = _opened()

            def prepare(opened: Opened = opened) -> Any:
                opened.store.make()
                claim(opened, b"a")
                return opened.segment(S, b"1")

            segment = lab.do(prepare)
            lab.go_on(1.0)
            said: list[Any] = []

            def write(segment: Any = segment, said: list[Any] = said) -> None:
                said.append(answer(lambda: segment.append(1, 2, [b"2"])))

            lab.server.hung_until = lab.scheduler.now + (5.0 if cancelled else 0.0)
            lab.begin(write)
            lab.go_on(0.3)
            assert bool(said) is not synchronous
            if cancelled:
                lab.server.cancel_waits()
            lab.go_on(0.1 if not synchronous or cancelled else 1.0)
            lab.server.fail_over()
            reader = PlainVfs(lab.server)
            stored = reader.pread(reader.open(f"{STORE}/journal/{S}", os.O_RDONLY), 9, 0)
            assert stored == (b"12" if synchronous and not cancelled else b"1")
            assert len(said) == 1
            assert (said == [errno.errorcode[errno.EIO]]) is cancelled
