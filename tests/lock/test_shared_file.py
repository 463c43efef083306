"""Locker: what it does when calls fail, hang or are interrupted at any point."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from fakes import FakeClock, FakeHost
from lock_world import PERIOD_S, STEP_S, Broker, never_pause

from amq.core.errors import CorruptError, NewerFormatError, OwnershipLostError, StoreError, StoreFullError
from amq.store.epoch import EPOCHS_KEPT
from amq.store.files.election import CLAIM_FILE, LOCK_FILE
from amq.store.files.epochs import FileEpochs, epoch_path
from amq.store.files.vfs import SystemVfs
from amq.store.locker import TRANSITIONS, LockerEvent, LockerState, LockerStateError, next_state
from tests.patience import DEADLINE_S


class Crash(BaseException):
    """The process ends here."""


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- the state table --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", LockerState)
@pytest.mark.parametrize("event", LockerEvent)
def test_table(state: LockerState, event: LockerEvent) -> None:
    if event in TRANSITIONS[state]:
        assert next_state(state, event) in LockerState
    else:
        with pytest.raises(LockerStateError):
            next_state(state, event)


def test_illegal_calls_change_nothing(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "a", FakeClock())
    with pytest.raises(LockerStateError):
        broker.locker.take_over(never_pause, broker.seal)
    assert broker.locker.state is LockerState.UNLOCKED
    broker.become_master()
    with pytest.raises(LockerStateError):
        broker.locker.try_acquire()
    with pytest.raises(LockerStateError):
        broker.locker.take_over(never_pause, broker.seal)
    assert broker.locker.state is LockerState.MASTER
    broker.lease.check()
    broker.locker.release()
    assert broker.locker.state is LockerState.UNLOCKED


# -- acquire ----------------------------------------------------------------------------------------------------------


def test_polling_keeps_one_descriptor_and_closes_none_that_could_write(tmp_path: Path) -> None:
    base = FakeClock()
    a, b = Broker(tmp_path, "a", base), Broker(tmp_path, "b", base)
    a.become_master()
    assert not b.locker.try_acquire()
    before = open_descriptors()
    b.vfs.calls.clear()
    for _ in range(3):
        assert not b.locker.try_acquire()
    assert open_descriptors() == before
    assert {method for method, _ in b.vfs.calls} <= {"stat", "fstat", "try_lock"}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EISDIR])
def test_lock_file_that_cannot_be_opened(tmp_path: Path, number: int) -> None:
    broker = Broker(tmp_path, "a", FakeClock())
    broker.vfs.fail("open", number, path=LOCK_FILE)
    with pytest.raises(StoreError) as caught:
        broker.locker.try_acquire()
    assert caught.value.code == "LOCK_FILE_UNUSABLE"
    assert broker.locker.try_acquire(), "mended: works"


def test_file_system_without_locks(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "a", FakeClock())
    broker.vfs.fail("try_lock", errno.ENOLCK)
    with pytest.raises(StoreError) as caught:
        broker.locker.try_acquire()
    assert caught.value.code == "LOCKS_UNSUPPORTED"


def test_error_while_polling_drops_the_descriptor(tmp_path: Path) -> None:
    base = FakeClock()
    a, b = Broker(tmp_path, "a", base), Broker(tmp_path, "b", base)
    a.become_master()
    before = open_descriptors()
    assert not b.locker.try_acquire()
    b.vfs.fail("try_lock", errno.ESTALE)
    with pytest.raises(OSError, match="Stale"):
        b.locker.try_acquire()
    assert open_descriptors() == before
    a.locker.release()
    assert b.locker.try_acquire()


def test_lock_of_an_orphan_is_not_taken_for_the_lock(tmp_path: Path) -> None:
    base = FakeClock()
    a, b = Broker(tmp_path, "a", base), Broker(tmp_path, "b", base)
    a.vfs.before("try_lock", lambda: os.unlink(tmp_path / LOCK_FILE))
    assert a.locker.try_acquire()
    assert not b.locker.try_acquire()
    assert (tmp_path / LOCK_FILE).exists()


def test_missing_lock_file_is_left_to_a_living_master_for_a_period(tmp_path: Path) -> None:
    base = FakeClock()
    a, b = Broker(tmp_path, "a", base), Broker(tmp_path, "b", base)
    a.become_master()
    os.unlink(tmp_path / LOCK_FILE)
    assert not b.locker.try_acquire()
    base.advance(PERIOD_S / 2)
    assert not b.locker.try_acquire()
    base.advance(PERIOD_S)
    assert b.locker.try_acquire()


def test_missing_lock_file_of_a_dead_master_is_made_at_once(tmp_path: Path) -> None:
    base = FakeClock()
    a, b = Broker(tmp_path, "a", base, host=FakeHost()), Broker(tmp_path, "b", base, host=FakeHost(own_pid=7))
    a.become_master()
    a.locker.abandon()
    os.unlink(tmp_path / LOCK_FILE)
    assert b.locker.try_acquire()


# -- take over --------------------------------------------------------------------------------------------------------


def test_first_start_waits_for_nobody_but_claims(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "a", FakeClock())
    assert broker.locker.try_acquire()
    mastership = broker.locker.take_over(never_pause, broker.seal)
    assert mastership is not None
    assert (mastership.epoch.number, mastership.previous, mastership.waited_s) == (1, None, 0.0)
    assert (tmp_path / CLAIM_FILE).stat().st_size > 0
    assert mastership.lease.valid()


def test_wait_is_the_old_masters_period_and_one_percent(tmp_path: Path) -> None:
    base = FakeClock()
    Broker(tmp_path, "a", base, period_s=20.0).become_master()
    b = Broker(tmp_path, "b", base, period_s=1.0)
    b.vfs.answer("try_lock", True)
    started = base.monotonic()
    assert b.become_master().waited_s == pytest.approx(20.2, abs=2 * STEP_S)
    assert base.monotonic() - started >= 20.2 - 1e-9


def test_pause_that_returns_early_does_not_shorten_the_wait(tmp_path: Path) -> None:
    base = FakeClock()
    Broker(tmp_path, "a", base).become_master()
    b = Broker(tmp_path, "b", base)
    b.vfs.answer("try_lock", True)
    assert b.locker.try_acquire()
    started = base.monotonic()

    def pause(seconds: float) -> bool:
        base.advance(min(seconds, 0.1))
        return False

    assert b.locker.take_over(pause, b.seal) is not None
    assert base.monotonic() - started > PERIOD_S * 1.01 - 1e-9


def test_the_wait_ends_when_the_old_master_is_seen_to_be_gone(tmp_path: Path) -> None:
    """Killed with -9 it frees its lock before its process is gone: the next master looks again while it waits."""
    base = FakeClock()
    a = FakeHost(own_pid=1, running=frozenset([(1, 5000)]))
    Broker(tmp_path, "a", base, host=a).become_master()
    here = FakeHost(own_pid=2, running=a.running)
    b = Broker(tmp_path, "b", base, host=here)
    b.vfs.answer("try_lock", True)
    assert b.locker.try_acquire()
    started = base.monotonic()

    def pause(seconds: float) -> bool:
        base.advance(min(seconds, 0.05))
        here.running = frozenset()
        return False

    mastership = b.locker.take_over(pause, b.seal)
    assert mastership is not None
    assert base.monotonic() - started < PERIOD_S / 2
    assert "is gone" in mastership.epoch.reason


def test_own_last_epoch_needs_no_wait(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "a", FakeClock())
    broker.become_master()
    old_lease = broker.lease
    broker.fence()
    assert not old_lease.valid()
    assert broker.locker.try_acquire()
    mastership = broker.locker.take_over(never_pause, broker.seal)
    assert mastership is not None
    assert mastership.epoch.number == 2
    with pytest.raises(OwnershipLostError):
        old_lease.check()


def test_candidate_that_died_does_not_shorten_the_wait_for_the_epoch_owner(tmp_path: Path) -> None:
    """`b` claims and dies before its epoch; `a`, whose lease may still run, is whom `c` waits for."""
    base = FakeClock()
    here = FakeHost(boot="boot-of-b")
    Broker(tmp_path, "a", base).become_master()
    b, c = Broker(tmp_path, "b", base, host=here), Broker(tmp_path, "c", base, host=here)
    for broker in (b, c):
        broker.vfs.answer("try_lock", True)
    assert b.locker.try_acquire()

    def die(_seconds: float) -> bool:
        raise Crash

    with pytest.raises(Crash):
        b.locker.take_over(die, b.seal)
    assert c.become_master().waited_s == pytest.approx(PERIOD_S * 1.01, abs=2 * STEP_S)


def test_stop_during_the_wait_gives_the_lock_up(tmp_path: Path) -> None:
    base = FakeClock()
    a = Broker(tmp_path, "a", base)
    a.become_master()
    a.fence()
    b, c = Broker(tmp_path, "b", base), Broker(tmp_path, "c", base)
    assert b.locker.try_acquire()
    assert b.locker.take_over(lambda _seconds: True, b.seal) is None
    assert b.locker.state is LockerState.UNLOCKED
    assert c.locker.try_acquire()


def test_sealed_lengths_are_inherited_and_cannot_be_changed(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "a", FakeClock())
    broker.become_master()
    broker.write()
    broker.fence()
    broker.become_master()
    broker.fence()
    assert broker.locker.try_acquire()
    with pytest.raises(AssertionError, match="seal was broken"):
        broker.locker.take_over(never_pause, lambda _previous: {"segment-of-1": 14})
    broker.become_master()
    newest = FileEpochs(SystemVfs(), str(tmp_path)).newest()
    assert newest is not None
    assert dict(newest.sealed) == {"segment-of-1": 7, "segment-of-2": 0}


@pytest.mark.parametrize("damage", [b"", b"\0" * 100, b"{}", b'{"amq":"epoch"'])
def test_damaged_newest_epoch_stops_everyone(tmp_path: Path, damage: bytes) -> None:
    broker = Broker(tmp_path, "a", FakeClock())
    broker.become_master()
    broker.fence()
    Path(epoch_path(str(tmp_path), 1)).write_bytes(damage)
    assert broker.locker.try_acquire()
    with pytest.raises(CorruptError):
        broker.locker.take_over(never_pause, broker.seal)
    assert broker.locker.state is LockerState.UNLOCKED


def test_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "a", FakeClock())
    broker.become_master()
    broker.fence()
    path = Path(epoch_path(str(tmp_path), 1))
    path.write_bytes(path.read_bytes().replace(b'"format":2', b'"format":3'))
    claim = (tmp_path / CLAIM_FILE).read_bytes()
    assert broker.locker.try_acquire()
    with pytest.raises(NewerFormatError, match="upgrade"):
        broker.locker.take_over(never_pause, broker.seal)
    assert (tmp_path / CLAIM_FILE).read_bytes() == claim


def test_full_disk_is_said(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "a", FakeClock())
    assert broker.locker.try_acquire()
    broker.vfs.fail("pwrite", errno.ENOSPC)
    with pytest.raises(StoreFullError, match="free some space"):
        broker.locker.take_over(never_pause, broker.seal)
    broker.become_master()


def test_link_that_succeeded_but_was_reported_as_existing(tmp_path: Path) -> None:
    """A network client that repeats a lost LINK is told EEXIST about its own success."""
    broker = Broker(tmp_path, "a", FakeClock())

    def twice() -> None:
        raise FileExistsError(errno.EEXIST, "exists")

    broker.vfs.after("link", twice)
    assert broker.become_master().epoch.number == 1


def calls_of_a_takeover(store: Path, poison: str = "") -> int:
    """How many calls the second takeover of a store makes."""
    base = FakeClock()
    a = Broker(store, "a" + poison, base)
    a.become_master()
    a.fence()
    b = Broker(store, "b" + poison, base)
    b.become_master()
    count = len(b.vfs.calls)
    b.locker.release()
    return count


@pytest.mark.parametrize("kind", ["error", "crash"])
def test_failure_at_every_call_of_a_takeover(tmp_path: Path, kind: str) -> None:
    """Whichever call fails, or the process dies before it or right after it: nothing stays open or locked, no second
    master, and the next candidate takes over."""
    (tmp_path / "count").mkdir()
    total = calls_of_a_takeover(tmp_path / "count")
    assert total > 20
    for nth in range(1, total + 1):
        for moment in ("before", "after") if kind == "crash" else ("before",):
            store = tmp_path / f"{nth}-{moment}"
            store.mkdir()
            base = FakeClock()
            a, b, c = (Broker(store, name, base) for name in "abc")
            a.become_master()
            a.write()
            a.fence()
            before = open_descriptors()
            countdown = [nth]
            failed: list[str] = []

            def act(countdown: list[int] = countdown, failed: list[str] = failed, b: Broker = b) -> None:
                countdown[0] -= 1
                if countdown[0] == 0:
                    failed.append(b.vfs.calls[-1][0])
                    raise Crash if kind == "crash" else OSError(errno.EIO, "broken")

            for method in {name for name in dir(SystemVfs) if not name.startswith("_")}:
                getattr(b.vfs, moment)(method, act, times=0)
            try:
                b.become_master()
            except (Crash, OSError, OwnershipLostError):
                pass
            else:
                assert failed == ["close"] or (not failed and moment == "after"), "only a failing close is survived"
            b.vfs.heal()
            b.locker.abandon()
            assert b.locker.state is LockerState.UNLOCKED
            lost_by_the_fake = (failed[:1], moment) in ((["close"], "before"), (["open"], "after"))
            assert open_descriptors() == before + lost_by_the_fake
            third = c.become_master()
            numbers = [epoch.number for epoch in FileEpochs(SystemVfs(), str(store)).all()]
            assert numbers == list(range(1, third.epoch.number + 1))
            assert third.epoch.sealed["segment-of-1"] == 7
            c.locker.release()


# -- the lease's proof ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [errno.EIO, errno.ESTALE, errno.EBADF, errno.EACCES, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.ENOLCK, errno.ENOSPC],
)
def test_any_error_in_any_call_of_a_check_is_loss(tmp_path: Path, number: int) -> None:
    probe = Broker(tmp_path, "probe", FakeClock())
    probe.become_master()
    probe.vfs.calls.clear()
    probe.lease.check()
    calls = [method for method, _ in probe.vfs.calls]
    probe.locker.release()
    assert {"open", "fstat", "pwrite", "fsync", "pread", "listdir"} <= set(calls)
    for nth, method in enumerate(calls):
        broker = Broker(tmp_path, f"b{nth}", FakeClock())
        broker.become_master()
        lease = broker.lease
        broker.vfs.fail(method, number, nth=calls[: nth + 1].count(method))
        with pytest.raises(OwnershipLostError):
            lease.check()
        assert not lease.valid()
        broker.vfs.heal()
        with pytest.raises(OwnershipLostError):
            lease.check()
        broker.locker.abandon()


def test_nothing_is_written_through_a_lost_descriptor(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "a", FakeClock())
    broker.become_master()
    lease = broker.lease
    broker.vfs.fail("fsync", errno.EIO)
    with pytest.raises(OwnershipLostError):
        lease.check()
    broker.vfs.calls.clear()
    with pytest.raises(OwnershipLostError):
        lease.check()
    broker.locker.abandon()
    assert {method for method, _ in broker.vfs.calls} <= {"close"}


def test_removed_claim_is_loss(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "a", FakeClock())
    broker.become_master()
    os.unlink(tmp_path / CLAIM_FILE)
    with pytest.raises(OwnershipLostError, match="removed"):
        broker.lease.check()


def test_replaced_lock_file_with_foreign_content_is_regained(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "a", FakeClock())
    broker.become_master()
    os.unlink(tmp_path / LOCK_FILE)
    (tmp_path / LOCK_FILE).write_bytes(b"an operator was here")
    broker.lease.check()
    assert broker.lease.valid()
    assert not Broker(tmp_path, "b", FakeClock()).locker.try_acquire()


def test_abandon_does_not_wait_for_a_call_that_hangs(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "a", FakeClock())
    mastership = broker.become_master()
    entered, go = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        assert go.wait(DEADLINE_S)

    broker.vfs.before("fsync", hang)
    caught: list[Exception] = []

    def check() -> None:
        try:
            mastership.lease.check()
        except OwnershipLostError as error:
            caught.append(error)

    thread = threading.Thread(target=check)
    thread.start()
    assert entered.wait(DEADLINE_S)
    assert broker.locker.abandon() is False
    assert not mastership.lease.valid()
    with pytest.raises(OwnershipLostError, match="hangs"):
        broker.locker.try_acquire()
    broker.vfs.calls.clear()
    go.set()
    thread.join(DEADLINE_S)
    assert len(caught) == 1
    assert broker.locker.state is LockerState.UNLOCKED
    assert {method for method, _ in broker.vfs.calls} <= {"close"}, "the call that came back touched nothing more"
    assert broker.locker.try_acquire()


def test_abandon_twice_and_release_of_a_slave_are_harmless(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "a", FakeClock())
    assert broker.locker.abandon()
    assert broker.locker.abandon()
    broker.locker.release()
    assert broker.locker.try_acquire()
    broker.locker.release()
    assert Broker(tmp_path, "b", FakeClock()).locker.try_acquire()


def test_old_epoch_files_are_removed(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "a", FakeClock())
    for _ in range(EPOCHS_KEPT + 3):
        broker.become_master()
        broker.fence()
    numbers = [epoch.number for epoch in FileEpochs(SystemVfs(), str(tmp_path)).all()]
    assert numbers == list(range(4, EPOCHS_KEPT + 4))


def test_failed_release_mark_is_said_and_makes_the_next_one_wait(tmp_path: Path) -> None:
    base = FakeClock()
    a, b = Broker(tmp_path, "a", base), Broker(tmp_path, "b", base)
    a.become_master()
    a.vfs.fail("pwrite", errno.EIO)
    with pytest.raises(OSError):
        a.locker.release()
    assert a.locker.state is LockerState.UNLOCKED
    assert b.become_master().waited_s > 0


def test_torn_release_mark_is_none(tmp_path: Path) -> None:
    base = FakeClock()
    a, b = Broker(tmp_path, "a", base), Broker(tmp_path, "b", base)
    a.become_master()
    a.locker.release()
    with open(tmp_path / LOCK_FILE, "r+b") as file:
        file.seek((64 << 10) + 30)
        file.write(b"???")
    assert b.become_master().waited_s > 0
