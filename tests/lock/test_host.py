"""Owner, provably_gone, SystemHost, presence and status."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeClock, FakeHost, FaultyVfs
from lock_world import PERIOD_S, Broker

from amq.core.errors import ConfigError, CorruptError
from amq.store.document import encode
from amq.store.files.board import FileBoard
from amq.store.files.election import HEARTBEAT_OFFSET, FileElection
from amq.store.files.vfs import SystemVfs
from amq.store.host import Owner, SystemHost, provably_gone
from amq.store.open import store_behind
from amq.store.presence import TELL_S, NameInUseError, Presence, read_presence
from amq.store.status import silence, store_status

HERE = FakeHost(running=frozenset({(1, 1)}))


def owner(name: str = "a", period_s: float = 2.0, host: FakeHost = HERE, urls: tuple[str, ...] = ()) -> Owner:
    return Owner.make(host, name=name, uuid=f"uuid-{name}", transport_urls=urls, lock_keep_alive_period_s=period_s)


@pytest.mark.parametrize("period_s", [0, 0.0, -1, float("inf"), float("nan")])
def test_impossible_period_is_refused_with_the_reason(period_s: float) -> None:
    with pytest.raises(ConfigError, match="two masters can exist"):
        owner(period_s=period_s)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a b", "-a", "x" * 65, "ä", "a\n"])
def test_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="broker name"):
        owner(name)


def test_owner_round_trip() -> None:
    one = owner(urls=("stomp://a:1", "stomp+ssl://a:2"))
    assert Owner.from_json(one.to_json(), "path") == one


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        ({}, True),
        ({"pid": 1, "pid_start": 1}, False),  # runs
        ({"pid": 1, "pid_start": 2}, True),  # the number was given to another process
        ({"boot_id": "other"}, False),
        ({"namespaces": "other"}, False),
        ({"host": "renamed"}, True),
    ],
)
def test_provably_gone(change: dict[str, object], gone: bool) -> None:
    assert provably_gone(replace(owner(), **change), HERE) is gone  # type: ignore[arg-type]


@pytest.mark.parametrize("unknown", [{"boot": ""}, {"spaces": ""}])
def test_what_is_unknown_proves_nothing(unknown: dict[str, str]) -> None:
    host = replace(HERE, **unknown)
    assert not provably_gone(owner(host=host), host)


def test_system_host_knows_this_process() -> None:
    host = SystemHost()
    assert host.is_running(host.pid(), host.pid_start())
    assert not host.is_running(host.pid(), host.pid_start() + 1)
    assert host.boot_id()
    assert host.namespaces()
    assert host.name()


def test_system_host_knows_dead_and_unreaped_processes() -> None:
    host = SystemHost()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    start = int(fields[19])
    assert host.is_running(child.pid, start)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not host.is_running(child.pid, start), "a zombie runs no more"
    child.communicate()
    assert not host.is_running(child.pid, start)


def test_first_thread_may_end_before_the_others() -> None:
    """A process whose first thread ended is a zombie by its state letter and still works."""
    code = (
        "import ctypes, threading, sys\n"
        "def work():\n"
        "    print('up', flush=True); sys.stdin.readline()\n"
        "threading.Thread(target=work).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    host = SystemHost()
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        stat = Path(f"/proc/{child.pid}/stat")
        for _ in range(10_000):
            state, *fields = stat.read_text().rpartition(")")[2].split()
            if state == "Z":
                break
            os.sched_yield()
        assert state == "Z"
        assert host.is_running(child.pid, int(fields[18]))
    finally:
        child.kill()
        child.communicate()


# -- presence and status ----------------------------------------------------------------------------------------------


def test_second_broker_of_a_name_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    vfs = SystemVfs()
    first = Presence.open(FileBoard(vfs, str(tmp_path)), owner("a"))
    with pytest.raises(NameInUseError, match="pid 100, which is this process") as caught:
        Presence.open(FileBoard(vfs, str(tmp_path)), replace(owner("a"), uuid="of another broker"))
    assert caught.value.code == "NAME_IN_USE"
    with pytest.raises(NameInUseError) as caught:
        Presence.open(FileBoard(vfs, str(tmp_path)), replace(owner("a", host=FakeHost(own_pid=7)), uuid="other"))
    assert "this process" not in str(caught.value)
    other = Presence.open(FileBoard(vfs, str(tmp_path)), owner("b"))
    first.close()
    Presence.open(FileBoard(vfs, str(tmp_path)), owner("a")).close()
    other.close()


def test_presence_is_listed_while_it_is_held(tmp_path: Path) -> None:
    vfs = SystemVfs()
    assert read_presence(FileBoard(vfs, str(tmp_path))) == []
    one = Presence.open(FileBoard(vfs, str(tmp_path)), owner("a", urls=("stomp://a:1",)))
    two = Presence.open(FileBoard(vfs, str(tmp_path)), owner("b"))
    one.update("master")
    found = read_presence(FileBoard(vfs, str(tmp_path)))
    assert [(broker.name, broker.role) for broker in found] == [("a", "master"), ("b", "slave")]
    assert found[0].owner == owner("a", urls=("stomp://a:1",))
    one.close()
    assert [broker.name for broker in read_presence(FileBoard(vfs, str(tmp_path)))] == ["b"]
    two.close()


def test_presence_being_written_is_listed_without_details(tmp_path: Path) -> None:
    vfs = SystemVfs()
    presence = Presence.open(FileBoard(vfs, str(tmp_path)), owner("a"))
    with open(tmp_path / "brokers" / "a.json", "r+b") as file:
        file.write(b"torn")
    found = read_presence(FileBoard(vfs, str(tmp_path)))
    assert [(broker.name, broker.role, broker.owner) for broker in found] == [("a", "", None)]
    with pytest.raises(NameInUseError, match="another broker"):
        Presence.open(FileBoard(vfs, str(tmp_path)), owner("a"))
    presence.close()


def test_more_urls_than_fit_are_left_out(tmp_path: Path) -> None:
    presence = Presence.open(FileBoard(SystemVfs(), str(tmp_path)), owner("a", urls=("stomp://a:1",) * 5000))
    (found,) = read_presence(FileBoard(SystemVfs(), str(tmp_path)))
    assert found.owner is not None
    assert found.owner.transport_urls == ()
    presence.close()


def test_details_are_told_now_and_then(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "a", FakeClock())
    presence = Presence.open(FileBoard(broker.vfs, str(tmp_path)), broker.owner)

    def told() -> dict[str, Any]:
        (found,) = read_presence(FileBoard(SystemVfs(), str(tmp_path)))
        assert found.role == "slave"
        return found.details

    assert told() == {}
    assert presence.tell(lambda: {"followed": {"messages": 1}}, 10.0)
    assert told() == {"followed": {"messages": 1}}
    assert not presence.tell(lambda: {"followed": {"messages": 2}}, 10.0 + TELL_S - 0.1)
    assert told() == {"followed": {"messages": 1}}
    broker.vfs.calls.clear()
    assert presence.tell(lambda: {"followed": {"messages": 1}}, 20.0)
    assert broker.vfs.calls == [], "nothing new, nothing written"
    broker.vfs.fail("pwrite", times=2)
    assert presence.tell(lambda: {"followed": {"messages": 3}}, 30.0), "an error ends nothing"
    assert presence.tell(lambda: {"followed": {"messages": 3}}, 40.0)
    assert told() == {"followed": {"messages": 1}}
    presence.tell(lambda: {"followed": {"messages": 3}}, 50.0)
    assert told() == {"followed": {"messages": 3}}
    presence.update("slave")
    assert told() == {}
    presence.close()


def test_the_broker_that_takes_over_is_no_master_yet(tmp_path: Path) -> None:
    vfs = SystemVfs()
    broker = Broker(tmp_path, "a", FakeClock())
    presence = Presence.open(FileBoard(vfs, str(tmp_path)), broker.owner)
    slave = Presence.open(FileBoard(vfs, str(tmp_path)), owner("s"))
    assert broker.locker.try_acquire()
    status = store_status(store_behind(vfs, str(tmp_path)))
    assert (status.master, status.successor) == (None, None), "who has the lock cannot be told yet"
    presence.tell(lambda: {"reading": {"read_bytes": 1}}, 0.0)
    broker.become_master(locked=True)
    status = store_status(store_behind(vfs, str(tmp_path)))
    assert status.master is None
    assert status.successor is not None
    assert (status.successor.name, status.successor.details) == ("a", {"reading": {"read_bytes": 1}})
    assert [found.name for found in status.slaves] == ["s"]
    presence.update("master")
    status = store_status(store_behind(vfs, str(tmp_path)))
    assert status.master is not None
    assert (status.master.name, status.successor) == ("a", None)
    presence.close()
    slave.close()


def test_presence_file_removed_at_the_wrong_moment(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "a", FakeClock())
    broker.vfs.before("try_lock", lambda: os.unlink(tmp_path / "brokers" / "a.json"))
    presence = Presence.open(FileBoard(broker.vfs, str(tmp_path)), broker.owner)
    assert [found.name for found in read_presence(FileBoard(SystemVfs(), str(tmp_path)))] == ["a"]
    presence.close()


def test_status_through_the_life_of_a_store(tmp_path: Path) -> None:
    vfs = SystemVfs()
    status = store_status(store_behind(vfs, str(tmp_path)))
    assert (status.lock, status.epoch, status.released, status.heartbeat_wall_ms) == ("missing", None, False, None)
    broker = Broker(tmp_path, "a", FakeClock())
    presence = Presence.open(FileBoard(vfs, str(tmp_path)), broker.owner, role="master")
    slave = Presence.open(FileBoard(vfs, str(tmp_path)), owner("s"))
    epoch = broker.become_master().epoch
    status = store_status(store_behind(vfs, str(tmp_path)))
    assert (status.lock, status.epoch, status.released) == ("held", epoch, False)
    assert status.heartbeat_wall_ms == broker.clock.wall_ms()
    assert status.master is not None
    assert status.master.name == "a"
    assert [found.name for found in status.slaves] == ["s"]
    broker.locker.release()
    status = store_status(store_behind(vfs, str(tmp_path)))
    assert (status.lock, status.released, status.master) == ("free", True, None)
    presence.close()
    slave.close()


def test_a_heartbeat_that_is_being_written_is_read_again(tmp_path: Path) -> None:
    broker, vfs, lock = Broker(tmp_path, "a", FakeClock()), FaultyVfs(), tmp_path / "lock"
    broker.become_master()
    whole = lock.read_bytes()
    half = bytearray(whole)
    half[HEARTBEAT_OFFSET + 60 : HEARTBEAT_OFFSET + 90] = bytes(30)
    vfs.before("pread", lambda: write_over(lock, half), nth=2, path="lock")  # the first reads the release
    vfs.after("pread", lambda: write_over(lock, whole), nth=2, path="lock")
    found = store_status(store_behind(vfs, str(tmp_path))).heartbeat
    assert found is not None
    assert found[0] == broker.owner.uuid
    write_over(lock, half)
    with pytest.raises(CorruptError):
        store_status(store_behind(vfs, str(tmp_path)))


def write_over(path: Path, data: bytes) -> None:
    """In place: the lock is of the file."""
    with path.open("r+b") as file:
        file.write(data)


def test_a_silent_master_is_told_from_one_whose_clock_differs(tmp_path: Path) -> None:
    vfs, clock = SystemVfs(), FakeClock()
    broker = Broker(tmp_path, "a", clock)
    broker.become_master()

    def seen() -> float | None:
        return silence(
            FileElection(vfs, str(tmp_path)), clock, store_status(store_behind(vfs, str(tmp_path))), clock.advance
        )

    assert seen() is None
    clock.advance(PERIOD_S)
    assert seen() is None, "it may be that old"
    clock.advance(17.0)
    found = seen()
    assert found is not None
    assert 20.0 <= found <= 20.0 + 2 * PERIOD_S, "the age, and what was watched"

    def works(seconds: float) -> None:
        broker.locker.prove()
        clock.advance(seconds)

    status = store_status(store_behind(vfs, str(tmp_path)))
    assert silence(FileElection(vfs, str(tmp_path)), clock, status, works) is None, "its clock is far behind ours"
    broker.locker.release()
    assert seen() is None


def test_the_age_of_a_heartbeat_from_the_future_proves_nothing(tmp_path: Path) -> None:
    """The clock of the master's host is ahead of the reader's, and the master pauses."""
    vfs, clock, reader = SystemVfs(), FakeClock(), FakeClock()
    clock.advance(500.0)
    broker = Broker(tmp_path, "a", clock)
    broker.become_master()
    status = store_status(store_behind(vfs, str(tmp_path)))
    assert silence(FileElection(vfs, str(tmp_path)), reader, status, reader.advance) == pytest.approx(PERIOD_S, abs=0.1)

    def works(seconds: float) -> None:
        broker.locker.prove()
        reader.advance(seconds)

    assert silence(FileElection(vfs, str(tmp_path)), reader, status, works) is None


def test_a_master_that_stands_still_from_its_first_moment_is_silent(tmp_path: Path) -> None:
    """The heartbeat in the file is that of the master before it."""
    vfs, clock = SystemVfs(), FakeClock()
    first, second = Broker(tmp_path, "a", clock), Broker(tmp_path, "b", clock)
    first.become_master()
    first.locker.release()
    assert second.locker.try_acquire()
    mastership = second.become_master(locked=True)
    with open(tmp_path / "lock", "r+b") as file:  # as if no heartbeat of it had come through yet
        file.write(encode("heartbeat", {"owner": first.owner.to_json(), "epoch": 1, "count": 9, "wall_ms": 1}, 4096))
    status = store_status(store_behind(vfs, str(tmp_path)))
    assert status.last_sign_wall_ms == mastership.epoch.started_wall_ms
    clock.advance(20.0)
    found = silence(FileElection(vfs, str(tmp_path)), clock, status, clock.advance)
    assert found is not None
    assert found >= 20.0


def test_status_changes_nothing(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "a", FakeClock())
    broker.become_master()
    broker.vfs.calls.clear()
    store_status(store_behind(broker.vfs, str(tmp_path)))  # type: ignore[arg-type]
    assert {method for method, _ in broker.vfs.calls} <= {"open", "close", "fstat", "pread", "listdir", "lock_held"}
    broker.lease.check()
