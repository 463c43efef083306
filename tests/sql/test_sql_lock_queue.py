"""Slaves wait for the lock in the server's queue: they wake when it is free, and nobody keeps it by waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from amq.doors.threads import SystemThreads
from amq.store import waiting as waiting_module
from amq.store.postgres.election import _QUEUE
from amq.store.waiting import waiting
from tests.brokers import Brokers
from tests.election_contract import no
from tests.patience import DEADLINE_S
from tests.postgres import Postgres, needs_postgres
from tests.sampling import sampled
from tests.sql.test_sql_database import open_store

pytestmark = needs_postgres


def wait_free(wait: Callable[[], bool]) -> None:
    """Until it is free; fails where that takes longer than any machine needs."""
    for _ in range(int(DEADLINE_S / 0.5)):
        if wait():
            return
    raise AssertionError("it never got free")


def test_all_who_wait_wake_when_the_holders_connection_ends_and_none_of_them_keeps_the_lock(
    server: Postgres, database: str
) -> None:
    url = server.url(database)
    holder, others = open_store(url).election, [open_store(url).election for _ in range(3)]
    queues = [other.wait_free for other in others]
    assert all(wait() for wait in queues), "there is no lock yet"
    assert holder.try_acquire(no)
    assert not any(wait() for wait in queues), "somebody holds it"
    threads = [threading.Thread(target=wait_free, args=[wait]) for wait in queues]
    for thread in threads:
        thread.start()
    # Other tests may hold locks in databases of their own.
    here = "FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = %s)"
    ended = server.ask(f"SELECT pg_terminate_backend(pid) {here} AND mode = 'ExclusiveLock' AND granted", [database])
    assert ended == [(True,)]
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert server.ask(f"SELECT count(*) {here}", [database]) == [(0,)]
    assert others[0].try_acquire(no)
    assert not queues[1]()
    others[0].let_go()  # a clean end
    wait_free(queues[1])


def test_a_lock_that_was_replaced_is_waited_for_under_its_new_number(server: Postgres, database: str) -> None:
    url = server.url(database)
    one, other = open_store(url).election, open_store(url).election
    for _ in range(2):
        assert one.replace("one")
        assert not other.wait_free()
    one.let_go()
    assert other.wait_free()


def test_the_lock_ends_with_the_transaction(server: Postgres, database: str) -> None:
    """A broker that waited kept it where the time ran out just when the master had died: no rollback takes a lock of
    the session back. It locked itself out until `hungMasterTimeout`."""
    url = server.url(database)
    opened = open_store(url)
    assert opened.election.try_acquire(no)
    opened.election.let_go()
    mine = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    with psycopg.connect(server.conninfo(database), autocommit=True) as session:
        for end in ("COMMIT", "ROLLBACK"):
            session.execute("BEGIN")
            session.execute(opened.database.sessions.tables.statement(_QUEUE))
            assert session.execute(mine).fetchone() == (1,)
            session.execute(end)
            assert session.execute(mine).fetchone() == (0,)


# -- the thread that wakes ---------------------------------------------------------------------------------------------


class Door:
    """A store whose lock can be waited for. `answers` = of one wait after the other, then for ever the last."""

    def __init__(self, *answers: bool | OSError) -> None:
        self.answers = list(answers)
        self.waits = 0
        self.waited = threading.Condition()

    def wait(self) -> bool:
        with self.waited:
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            self.waits += 1
            self.waited.notify_all()
        if isinstance(answer, OSError):
            raise answer
        return answer

    def wait_for(self, waits: int) -> None:
        with self.waited:
            assert self.waited.wait_for(lambda: self.waits >= waits, DEADLINE_S)


def test_a_slave_is_woken_when_the_lock_is_free_also_after_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_module, "PAUSE_S", 0.001)
    door, woken = Door(False, OSError("gone"), OSError("gone"), False, True), threading.Event()
    with waiting(door.wait, woken.set, SystemThreads(), lambda: True) as unwatched:
        assert unwatched is None
        assert woken.wait(DEADLINE_S)
    assert door.waits >= 5


def test_a_master_does_not_wait_for_its_own_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_module, "ROLE_S", 0.001)
    door, looked, woken = Door(True), threading.Semaphore(0), threading.Event()
    is_slave = False

    def look() -> bool:
        looked.release()
        return is_slave

    with waiting(door.wait, woken.set, SystemThreads(), look):
        for _ in range(5):
            assert looked.acquire(timeout=DEADLINE_S)
        assert door.waits == 0
        is_slave = True
        assert woken.wait(DEADLINE_S)


# -- real brokers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alone", sampled([False, True]), ids=["store", "lock alone"])
def test_a_slave_takes_over_long_before_it_would_have_tried_again(
    server: Postgres, database: str, tmp_path: Path, alone: bool
) -> None:
    """After kill -9, and after a clean stop."""
    url = server.url(database)
    options = {"lockAcquireSleepInterval": "1h", "hungMasterTimeout": "0", "locker": url if alone else ""}
    with Brokers(tmp_path, None if alone else url, **options) as brokers:
        first, second = brokers.master("a"), brokers.slave("b")
        first.kill()
        second.wait_serving()
        third = brokers.slave("c")
        assert second.stop() == 0
        third.wait_serving()
