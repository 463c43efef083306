"""The journal: group commit, the confirm rule, full disks, failing disks. Removing a rule breaks its test."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import random
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from amq.core.message import Message
from amq.doors.clock import Clock
from amq.doors.threads import JobThread, SystemThreads
from amq.journal.format import APART_BYTES
from amq.journal.journal import CROWD_RECORDS_MAX, INLINE_RECORDS_MAX, INLINE_SYNC_S_MAX, Journal
from amq.journal.records import Consumed, Group
from amq.store.files.log import BLOCK_BYTES, SMALL_BATCH_BYTES, ZEROS_BYTES, FileLog, FileWriter
from amq.store.segment_log import FULL_ERRNOS, RESERVE_NAME, SyncError, Told
from tests.fakes import FaultyVfs, open_files
from tests.journal.journal_world import Waiter, World
from tests.patience import DEADLINE_S


@pytest.fixture
def vfs() -> FaultyVfs:
    return FaultyVfs()


@pytest.fixture
def world(tmp_path: Path, vfs: FaultyVfs) -> World:
    return World(tmp_path, vfs)


def calls(vfs: FaultyVfs, method: str) -> int:
    return sum(name == method for name, path in vfs.calls if path.endswith(".seg"))


def test_one_write_and_one_sync_for_all_that_gathered(world: World, vfs: FaultyVfs) -> None:
    waiter = Waiter()
    world.send(1, waiter=waiter)
    world.journal.flush()
    world.send(20, 20, waiter)  # while the first is on its way
    world.journal.flush()
    writes, syncs, headers = calls(vfs, "pwrite"), calls(vfs, "fdatasync"), calls(vfs, "fsync")
    world.runner.drain()
    writes += calls(vfs, "fsync") - headers  # the next segment is made meanwhile
    assert len(waiter.receipts) == 21
    assert (calls(vfs, "pwrite") - writes, calls(vfs, "fdatasync") - syncs) == (2, 2)


def test_an_idle_journal_writes_at_once(world: World) -> None:
    world.send()
    world.journal.flush()
    world.runner.step()
    assert len(world.records) == 1


def test_nothing_is_confirmed_before_the_sync(world: World, vfs: FaultyVfs) -> None:
    waiter = Waiter()
    world.send(1, waiter=waiter)
    seen: list[int] = []
    vfs.before("fdatasync", lambda: seen.append(len(waiter.receipts) + len(world.records)), path=".seg")
    world.commit()
    assert seen == [0]
    assert len(waiter.receipts) == 1


def test_nothing_is_confirmed_while_the_lease_is_in_doubt(world: World) -> None:
    waiter = Waiter()
    world.valid = False
    world.send(1, waiter=waiter)
    world.commit()
    world.send(1, waiter=waiter)
    world.commit()
    assert not waiter.receipts
    assert not world.records
    world.valid = True
    world.journal.lease_renewed()
    world.runner.drain()
    assert len(waiter.receipts) == 2


def test_what_is_durable_when_the_broker_fences_is_never_confirmed(world: World) -> None:
    waiter = Waiter()
    world.send(1, waiter=waiter)
    world.journal.flush()
    world.journal.abandon()
    world.runner.drain()
    world.journal.lease_renewed()
    assert not waiter.receipts
    assert not world.failures


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.ESTALE])
def test_a_failed_sync_is_final(world: World, vfs: FaultyVfs, number: int) -> None:
    waiter = Waiter()
    world.send(1, waiter=waiter)
    vfs.fail("fdatasync", number, path=".seg")
    world.commit()
    assert len(world.failures) == 1
    world.send(1, waiter=waiter)
    world.commit()
    assert not waiter.receipts
    assert calls(vfs, "fdatasync") == 1  # never retried


@pytest.mark.parametrize("number", [errno.EIO, errno.EBADF, errno.EACCES, errno.EROFS])
def test_a_failed_write_is_final(world: World, vfs: FaultyVfs, number: int) -> None:
    waiter = Waiter()
    world.send(1, waiter=waiter)
    vfs.fail("pwrite", number, path=".seg")
    world.commit()
    assert len(world.failures) == 1
    assert not waiter.receipts


def test_short_writes_are_completed(world: World, vfs: FaultyVfs) -> None:
    real = vfs.inner.pwrite
    vfs.inner.pwrite = lambda fd, data, offset: real(fd, bytes(data[:7]), offset)  # type: ignore[method-assign]
    try:
        waiter = Waiter()
        world.send(3, waiter=waiter)
        world.commit()
    finally:
        del vfs.inner.pwrite
    world.begin()
    assert [str(message.seq) for message in world.messages()] == waiter.receipts


def test_directory_is_synced_when_a_segment_is_made(world: World, vfs: FaultyVfs) -> None:
    for _ in range(30):
        world.send(1, 1000)
        world.commit()
    history = [(method, os.path.basename(path)) for method, path in vfs.calls]
    for name in world.segments():
        made = history.index(("open", name))
        written = [i for i, call in enumerate(history) if call == ("fdatasync", name)]
        synced = [i for i, (method, _) in enumerate(history) if method == "fsync_directory" and i > made]
        assert synced
        assert not written or synced[0] < written[0]


def test_every_segment_is_locked_before_its_first_byte(world: World, vfs: FaultyVfs) -> None:
    for _ in range(30):
        world.send(1, 1000)
        world.commit()
    for name in world.segments():
        mine = [method for method, path in vfs.calls if path.endswith(name)]
        assert mine.index("try_lock") < mine.index("pwrite")


def test_a_message_larger_than_a_segment_is_stored(world: World) -> None:
    waiter = Waiter()
    for size in (100, 50_000, 100):
        world.send(1, size, waiter)
        world.commit()
    world.begin()
    assert [len(message.body) for message in world.messages()] == [100, 50_000, 100]


def test_a_batch_is_bounded(world: World) -> None:
    world.config = dataclasses.replace(world.config, journal_segment_size_bytes=1 << 20, journal_batch_size_bytes=5000)
    world.begin()
    before = world.journal.batches
    world.send(20, 1000)
    world.commit()
    assert world.journal.batches - before >= 4


def test_acknowledgements_of_one_batch_are_one_record(world: World) -> None:
    for seq in range(1000):
        world.journal.open.consumed["queue://a"].append(seq)
    world.commit()
    consumed = [record for record in world.records if isinstance(record, Consumed)]
    assert [len(record.seqs) for record in consumed] == [1000]


def test_acknowledgements_that_nobody_asked_about_wait_for_company(world: World) -> None:
    world.journal.open.consumed["queue://a"].append(1)
    world.journal.flush()
    assert not world.runner.jobs
    world.send()
    world.journal.flush()
    world.runner.step()
    assert len(world.records) == 2


def test_blocks_behind_small_batches_are_written_ahead(tmp_path: Path, vfs: FaultyVfs) -> None:
    """A sync need not wait until the file system has noted that a block is written: one write in many does that."""
    world = World(tmp_path, vfs, journal_segment_size_bytes=32 << 20)
    count, size = 300, 1000
    writes = calls(vfs, "pwrite")
    for _ in range(count):
        world.send(size=size)
        world.commit()
    ahead = calls(vfs, "pwrite") - writes - count
    assert 0 < ahead <= count * (size + 100) / ZEROS_BYTES + 1
    end = world.journal.segments[-1].end
    assert end % BLOCK_BYTES
    data = Path(world.directory, world.segments()[0]).read_bytes()
    assert not any(data[end:])
    assert len(data) > end
    world.end()
    world.begin()
    assert [message.seq for message in world.messages()] == list(range(1, count + 1))


@pytest.mark.parametrize("case", ["large batches", "nothing can be set aside"])
def test_no_block_is_written_twice_where_that_gains_nothing(tmp_path: Path, vfs: FaultyVfs, case: str) -> None:
    if case != "large batches":
        vfs.answer("allocate", False)
    world = World(tmp_path, vfs, journal_segment_size_bytes=32 << 20)
    size = SMALL_BATCH_BYTES if case == "large batches" else 1000
    pieces = 2 if size > APART_BYTES else 1  # of a batch: its head, and what is not copied
    writes, count = calls(vfs, "pwrite"), 3 * ZEROS_BYTES // size
    for _ in range(count):
        world.send(size=size)
        world.commit()
    assert calls(vfs, "pwrite") - writes == pieces * count


def test_one_slow_sync_does_not_end_the_syncs_in_place(world: World, vfs: FaultyVfs) -> None:
    """A lone client is served by the event loop itself as long as most syncs are quick."""

    def is_inline(sync_s: float) -> bool:
        vfs.before("fdatasync", lambda: world.clock.advance(sync_s))
        world.send()
        world.journal.flush(inline=True)
        is_inline = len(world.records) == world.sent
        world.runner.drain()
        assert len(world.records) == world.sent
        return is_inline

    quick, slow = INLINE_SYNC_S_MAX / 4, 100 * INLINE_SYNC_S_MAX
    assert all(is_inline(quick) for _ in range(20))
    assert is_inline(slow)
    assert all(is_inline(quick) for _ in range(5))
    assert [is_inline(slow) for _ in range(10)].count(True) < 8
    assert not is_inline(slow)
    assert [is_inline(quick) for _ in range(20)][-1]


class EarlyWriter:
    """A `PatientWriter` on one disk: it tells before `begin` returns."""

    def __init__(self, files: FileWriter, busy: Callable[[], bool]) -> None:
        self._files, self._busy = files, busy
        self.finish, self.close = files.finish, files.close
        self.lingers = False

    def begin(
        self, start: int, end: int, pieces: Iterable[bytes], told: Told, *, waits: bool, lingers: bool = False
    ) -> bool:
        if self._busy() and not waits:
            return False
        self.lingers = lingers
        self._files.append(start, end, pieces)
        told(None)
        return True


class PatientLog(FileLog):
    is_patient = True
    is_busy = False

    def create(self, name: str, head: bytes, size: int, clock: Clock) -> Any:
        return EarlyWriter(super().create(name, head, size, clock), lambda: self.is_busy)


class PatientWorld(World):
    @property
    def log(self) -> PatientLog:
        log = self.__dict__.setdefault("patient", PatientLog(self.vfs, self.store))
        assert isinstance(log, PatientLog)
        return log


def test_an_append_that_other_hosts_have_before_it_has_begun_takes_effect_in_this_turn(tmp_path: Path) -> None:
    world = PatientWorld(tmp_path)
    world.send()
    world.commit()
    for number, size in enumerate((10, 3000, 3000, 3000, 10)):  # some begin a segment
        for _ in range(3 if number % 2 else 1):
            world.send(size=size)
        world.journal.flush(inline=not number % 2, crowd=bool(number % 2))
        if world.journal._next_file is not None:
            assert len(world.records) == world.sent
        world.runner.drain()
        assert len(world.records) == world.sent
    world.log.is_busy = True
    world.send()
    world.journal.flush(inline=True)
    assert len(world.records) == world.sent - 1
    world.runner.drain()
    assert len(world.records) == world.sent


def test_only_for_a_lone_client_that_waits_the_event_loop_waits_for_other_hosts(tmp_path: Path) -> None:
    world, client = PatientWorld(tmp_path), Waiter()
    world.send()
    world.commit()

    def lingers(count: int, *, inline: bool = False, crowd: bool = False, waiter: Waiter | None = client) -> bool:
        world.send(count, waiter=waiter)
        world.journal.flush(inline, crowd=crowd)
        world.runner.drain()
        assert world.journal._file is not None
        writer = world.journal._file.writer
        assert isinstance(writer, EarlyWriter)
        return writer.lingers

    assert lingers(1, inline=True)
    assert not lingers(1, inline=True, waiter=None)
    assert not lingers(1, crowd=True)
    assert not lingers(INLINE_RECORDS_MAX + 1, inline=True, crowd=True)
    assert not lingers(1)


def test_single_records_of_a_crowd_are_synced_in_place(world: World) -> None:
    """Also those that came while a thread synced, but neither a run nor more than a few."""

    def left(count: int, *, run: bool = False) -> int:
        """How many of these are left to a thread."""
        for _ in range(count):
            world.send()
        if run:
            world.journal.open.in_runs = 1
        world.journal.flush(crowd=True)
        found = world.sent - len(world.records)
        world.runner.drain()
        assert len(world.records) == world.sent
        return found

    assert left(CROWD_RECORDS_MAX) == 0
    assert left(CROWD_RECORDS_MAX + 1) == CROWD_RECORDS_MAX + 1
    assert left(2, run=True) == 2
    world.send()
    world.journal.flush()
    world.send()
    assert world.sent - len(world.records) == 2
    world.runner.step()
    assert world.sent == len(world.records), "the second one is synced as soon as the first is"


# -- a full disk ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", FULL_ERRNOS)
def test_full_disk_refuses_messages_and_stores_acknowledgements(world: World, vfs: FaultyVfs, number: int) -> None:
    sender, acker = Waiter(), Waiter()
    vfs.fail("pwrite", number, path=".seg")
    world.send(3, waiter=sender)
    world.journal.append_record(Group([Message("queue://a", b"x")], "outcome"))
    world.journal.open.consumed["queue://a"].append(7)
    world.journal.confirm(acker.of("ack"))
    world.commit()
    assert len(world.refused) == 4
    assert not sender.receipts
    assert acker.receipts == ["ack"]
    assert world.journal.full
    assert world.full == [True]
    assert not world.failures
    world.begin()
    assert not world.messages()
    assert [record.seqs for record, _ in world.replayed if isinstance(record, Consumed)] == [[7]]


def test_a_file_that_may_not_grow_is_followed_by_the_next(world: World, vfs: FaultyVfs) -> None:
    """`ulimit -f`, or the limit of a file system: smaller segments serve as well."""
    waiter = Waiter()
    world.send(waiter=waiter)
    world.commit()
    for method in ("allocate", "pwrite"):
        before = len(world.segments())
        vfs.fail(method, errno.EFBIG, path=".seg")
        world.send(1, 1000, waiter)
        world.commit()
        assert len(world.segments()) > before
    assert len(waiter.receipts) == 3
    assert not world.refused
    assert not world.full
    assert not world.failures
    world.begin()
    assert [str(message.seq) for message in world.messages()] == waiter.receipts


@pytest.mark.parametrize("number", [number for number in FULL_ERRNOS if number != errno.EFBIG])
def test_the_reserve_is_given_up_for_acknowledgements(world: World, vfs: FaultyVfs, number: int) -> None:
    assert RESERVE_NAME in os.listdir(world.directory)
    acker = Waiter()
    world.send()
    world.commit()
    vfs.fail("pwrite", number, path=".seg", times=2)
    world.journal.open.consumed["queue://a"].append(7)
    world.journal.confirm(acker.of("ack"))
    world.journal.flush()
    world.runner.step()  # full: there is nothing to refuse, so the reserve goes
    world.runner.step()
    assert RESERVE_NAME not in os.listdir(world.directory)
    world.runner.drain()  # full again: now it waits for room
    assert not acker.receipts
    world.journal.check_space()
    world.runner.drain()
    assert acker.receipts == ["ack"]
    assert RESERVE_NAME in os.listdir(world.directory)


def test_a_reserve_that_was_seen_just_before_it_was_given_up_is_made_again(world: World, vfs: FaultyVfs) -> None:
    acker = Waiter()
    world.send()
    world.commit()
    vfs.fail("pwrite", errno.ENOSPC, path=".seg")
    world.journal.open.consumed["queue://a"].append(7)
    world.journal.confirm(acker.of("ack"))
    world.journal.flush()
    world.journal.check_space()
    while world.runner.jobs:  # both are done before anybody hears of the first
        world.runner.work()
    while world.runner.finished:
        world.runner.post()
    world.runner.drain()
    assert acker.receipts == ["ack"]
    assert RESERVE_NAME not in os.listdir(world.directory)
    world.journal.check_space()
    world.runner.drain()
    assert RESERVE_NAME in os.listdir(world.directory)
    assert not world.journal.full


def test_a_store_that_cannot_tell_its_free_space_has_room(world: World, vfs: FaultyVfs) -> None:
    for free, full in ((None, []), (0, [True]), (None, [True, False])):
        vfs.answer("free_bytes", free)
        world.journal.check_space()
        world.runner.drain()
        assert world.full == full
    assert RESERVE_NAME in os.listdir(world.directory)


def test_service_resumes_when_space_is_back(world: World, vfs: FaultyVfs) -> None:
    vfs.answer("free_bytes", 1000)
    world.journal.check_space()
    world.runner.drain()
    assert world.journal.full
    vfs.heal()
    world.journal.check_space()
    world.runner.drain()
    assert not world.journal.full
    assert world.full == [True, False]
    waiter = Waiter()
    world.send(1, waiter=waiter)
    world.commit()
    assert len(waiter.receipts) == 1


@pytest.mark.parametrize("number", FULL_ERRNOS)
def test_no_room_for_more_of_a_segment(world: World, vfs: FaultyVfs, number: int) -> None:
    """The disk fills up; what still fits is stored, then only acknowledgements are."""
    waiter, acker = Waiter(), Waiter()
    for count in range(40):
        if count == 3:
            vfs.fail("allocate", number, times=0)
        world.send(1, 1000, waiter)
        world.commit()
    assert world.journal.full
    assert 0 < len(waiter.receipts) < 40
    assert len(waiter.receipts) + len(world.refused) == 40
    vfs.heal()
    world.journal.open.consumed["queue://a"].append(7)
    world.journal.confirm(acker.of("ack"))
    world.commit()
    world.journal.check_space()
    world.runner.drain()
    assert acker.receipts == ["ack"]
    assert not world.journal.full
    world.send(1, 1000, waiter)
    world.commit()
    world.begin()
    assert [str(message.seq) for message in world.messages()] == waiter.receipts
    assert not world.failures


def test_sync_error_is_an_os_error_of_its_own() -> None:
    assert isinstance(SyncError(errno.ENOSPC, "no space"), OSError)


@pytest.mark.deep
def test_every_call_that_fails_once_loses_nothing_confirmed(tmp_path: Path) -> None:
    """Fail the Nth call, for every N: whatever was confirmed is there afterwards."""
    survived = 0
    for nth in range(1, 400):
        vfs = FaultyVfs()
        store = tmp_path / str(nth)
        store.mkdir()
        world = World(store, vfs)
        start = len(vfs.calls)
        waiter = Waiter()
        for method in ("pwrite", "fdatasync", "fsync", "open", "allocate", "fsync_directory", "try_lock", "close"):
            vfs.fail(method, errno.EIO, nth=nth)
        for _ in range(25):
            if world.failures:
                break
            world.send(1, 1000, waiter)
            world.commit()
        vfs.heal()
        world.end()
        world.journal = world.begin()
        found = [str(message.seq) for message in world.messages()]
        assert found[: len(waiter.receipts)] == waiter.receipts
        assert len(found) <= len(waiter.receipts) + 1  # at most the batch that was in flight
        world.end()
        if not world.failures and len(waiter.receipts) == 25:
            survived += 1
            if len(vfs.calls) - start < nth:
                break
    assert survived


def test_a_segment_that_is_being_made_when_the_journal_ends_is_closed(tmp_path: Path) -> None:
    """Its lock would be held, and its space be taken, for as long as this process lives."""
    world = World(tmp_path)
    world.end()
    posted: list[Callable[[], object]] = []
    making, ended = threading.Event(), threading.Event()
    vfs = FaultyVfs()
    vfs.before("try_lock", lambda: (making.set(), ended.wait(DEADLINE_S)), path=".seg")
    runner = JobThread(SystemThreads(), lambda callback, *args: posted.append(partial(callback, *args)))
    journal = Journal(
        FileLog(vfs, world.store),
        world.clock,
        runner,
        world,
        world.config,
        random.Random(1),
    )
    journal.begin(2, bytes(16), world.recovered, lambda: True)
    assert making.wait(DEADLINE_S)
    journal.abandon()
    runner.close()
    ended.set()
    runner._thread.join(DEADLINE_S)
    for callback in posted:
        callback()
    assert not [found for found in open_files() if str(tmp_path) in found]


@pytest.mark.parametrize("closed", [True, False])
def test_the_last_job_of_a_closed_thread_may_outlive_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    """After a fence nobody waits for it. Of a thread that is in use it would be a mistake, and shows."""
    loop = asyncio.new_event_loop()
    mistakes: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda mistake: mistakes.append(mistake.exc_value))
    thread = JobThread(SystemThreads(), loop.call_soon_threadsafe)
    go_on = threading.Event()
    thread.submit(go_on.wait, lambda _result, _error: None)
    if closed:
        thread.close()
    loop.close()
    go_on.set()
    thread._thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert [type(mistake) for mistake in mistakes] == ([] if closed else [RuntimeError])
