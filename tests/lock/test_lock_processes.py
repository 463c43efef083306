"""The lock component in real processes: kill -9, SIGSTOP, a lock file removed or replaced, races."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest
from lock_process import Process

from amq.doors.clock import SystemClock
from amq.store.election import RETRY_DELAYS_S
from amq.store.files.board import FileBoard
from amq.store.files.election import LOCK_FILE, watch
from amq.store.files.epochs import FileEpochs
from amq.store.files.vfs import SystemVfs
from amq.store.host import Owner, SystemHost
from amq.store.locker import Locker
from amq.store.open import store_behind
from amq.store.presence import read_presence
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep
LONG_S = 600.0  # a period that no test could wait for


def wait_until(condition, description: str, limit_s: float = DEADLINE_S) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, description
        time.sleep(0.002)


def test_killed_master_is_followed_at_once(tmp_path: Path) -> None:
    with Process(tmp_path, "a", LONG_S) as a, Process(tmp_path, "b", LONG_S) as b:
        assert a.ask("acquire") == {"got": True}
        assert a.ask("take_over")["epoch"] == 1
        assert b.ask("acquire") == {"got": False}
        assert f"pid {a.pid}" in b.ask("holder")["holder"]
        a.kill()
        wait_until(lambda: b.ask("acquire")["got"], "the kernel frees the lock of a dead process")
        taken = b.ask("take_over")
        assert (taken["epoch"], taken["waited_s"]) == (2, 0.0)
        assert "gone" in taken["reason"]


def test_one_of_many_candidates_wins(tmp_path: Path) -> None:
    with ExitStack() as stack:
        brokers = [stack.enter_context(Process(tmp_path, f"b{number}")) for number in range(6)]
        for epoch in range(1, 6):
            for broker in brokers:
                broker.send("acquire")
            winners = [broker for broker in brokers if broker.receive()["got"]]
            assert len(winners) == 1
            assert winners[0].ask("take_over")["epoch"] == epoch
            winners[0].ask("release")


def test_epoch_link_has_one_winner(tmp_path: Path) -> None:
    with ExitStack() as stack:
        brokers = [stack.enter_context(Process(tmp_path, f"b{number}")) for number in range(8)]
        for number in range(1, 26):
            for broker in brokers:
                broker.send("link", number=number)
            assert sum(broker.receive()["won"] for broker in brokers) == 1
        assert [epoch.number for epoch in FileEpochs(SystemVfs(), str(tmp_path)).all()] == list(range(1, 26))
        assert not list((tmp_path / "epochs").glob(".*")), "no temporary file is left"


def test_name_is_taken_for_as_long_as_its_broker_lives(tmp_path: Path) -> None:
    with Process(tmp_path, "a") as first, Process(tmp_path, "a") as second:
        assert first.ask("presence") == {}
        refused = second.ask("presence")
        assert refused["error"] == "NAME_IN_USE"
        assert f"pid {first.pid}" in refused["description"]
        assert [broker.name for broker in read_presence(FileBoard(SystemVfs(), str(tmp_path)))] == ["a"]
        first.kill()
        assert second.ask("presence") == {}


def test_slave_wakes_when_the_master_is_killed(tmp_path: Path) -> None:
    host = SystemHost()
    owner = Owner.make(host, name="slave", uuid=str(uuid.uuid4()), transport_urls=(), lock_keep_alive_period_s=LONG_S)
    locker = Locker(store_behind(SystemVfs(), str(tmp_path)), SystemClock(), host, owner)
    woken = threading.Event()
    with Process(tmp_path, "master") as master, watch(SystemVfs(), str(tmp_path / LOCK_FILE), woken.set) as failure:
        assert failure is None
        master.ask("acquire")
        master.ask("take_over")
        assert not locker.try_acquire()
        woken.clear()
        for _ in range(3):  # what a slave does while it waits, and what a master does, is not an event
            assert not locker.try_acquire()
            assert locker.holder()
            master.ask("check")
        assert not woken.wait(0.2)
        master.kill()
        assert woken.wait(DEADLINE_S), "the close of the dead process's descriptor is an event"
        assert any(not threading.Event().wait(delay) and locker.try_acquire() for delay in RETRY_DELAYS_S)
        mastership = locker.take_over(threading.Event().wait, lambda _previous: {})
        assert mastership is not None
        locker.release()


@pytest.mark.parametrize("change", ["unlink", "rename over", "create"])
def test_slave_wakes_when_the_lock_file_changes(tmp_path: Path, change: str) -> None:
    lock, other = tmp_path / "lock", tmp_path / "other"
    other.touch()
    if change != "create":
        lock.touch()
    woken = threading.Event()
    with watch(SystemVfs(), str(tmp_path / LOCK_FILE), woken.set) as failure:
        assert failure is None
        other.write_bytes(b"not the lock file")
        assert not woken.wait(0.1)
        if change == "unlink":
            lock.unlink()
        elif change == "rename over":
            other.rename(lock)
        else:
            lock.touch()
        assert woken.wait(DEADLINE_S)


def test_where_nothing_can_be_watched_the_reason_is_given(tmp_path: Path) -> None:
    with watch(SystemVfs(), str(tmp_path / "missing" / LOCK_FILE), lambda: None) as failure:
        assert isinstance(failure, OSError)


def test_two_services_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    vfs, clock, host = SystemVfs(), SystemClock(), SystemHost()
    first, second = (
        Locker(
            store_behind(vfs, str(tmp_path)),
            clock,
            host,
            Owner.make(host, name=name, uuid=name, transport_urls=(), lock_keep_alive_period_s=0.1),
        )
        for name in ("one", "two")
    )
    assert first.try_acquire()
    mastership = first.take_over(threading.Event().wait, lambda _previous: {})
    assert mastership is not None
    assert not second.try_acquire()
    assert "this process" in second.holder()
    first.abandon()
    assert second.try_acquire()
    taken = second.take_over(threading.Event().wait, lambda _previous: {})
    assert taken is not None
    assert taken.waited_s > 0, "its process is alive: nothing is proved"
    second.release()
