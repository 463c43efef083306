"""A replicated store: the contracts of its ports, and what its members do together, in one process with real disks."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from socket import socketpair
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from amq.core.errors import OwnershipLostError, StoreError
from amq.doors.clock import SystemClock
from amq.journal.format import HEADER_BYTES, encode_batch
from amq.store.epoch import Epoch
from amq.store.port import Store
from amq.store.replica import member as members
from amq.store.replica import store as stores
from amq.store.replica.leader import Leader
from amq.store.replica.member import INLINE_S_MAX, LINGER_LOOKS_MAX, LINGER_S_MAX
from amq.store.replica.messages import Append
from amq.store.replica.store import ReplicaElection
from amq.store.segment_log import NoRoomError, PatientWriter, SyncError, Told, Writer
from tests.board_contract import check_board
from tests.copies import SALT, CopyMember, GroupOfCopies, content
from tests.election_contract import check_election, check_epochs, check_terms
from tests.fakes import FakeClock
from tests.log_contract import check_log
from tests.memory_coordinator import Ensemble
from tests.patience import DEADLINE_S


@pytest.fixture
def group(tmp_path: Path) -> Iterator[GroupOfCopies]:
    with GroupOfCopies(tmp_path) as found:
        yield found


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[GroupOfCopies]:
    with GroupOfCopies(tmp_path, "&members=1") as found:
        yield found


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def three(group: GroupOfCopies) -> list[CopyMember]:
    """The first is the master, of all of them."""
    members = [group.member(name) for name in "abc"]
    members[0].take_over()
    until(lambda: record_members(members[0]) == {each.id for each in members}, "all copies count")
    return members


def record_members(member: CopyMember) -> frozenset[str]:
    return member.at_work._book.read().record.members


def why_not(member: CopyMember) -> str:
    return member.at_work.why_not(member.at_work._book.read())


def views(member: CopyMember) -> Callable[[], Store]:
    """One copy, and several who try to be its master."""
    first = member.store.election
    assert isinstance(first, ReplicaElection)

    def new() -> Store:
        return replace(
            member.store, election=ReplicaElection(first._part, first._coordinator, first._host, SystemClock())
        )

    return new


# -- contracts ---------------------------------------------------------------------------------------------------------


def test_the_election_keeps_its_contract(alone: GroupOfCopies) -> None:
    check_election(views(alone.member("a")))


def test_the_epochs_keep_their_contract(alone: GroupOfCopies) -> None:
    member = alone.member("a")

    class Claiming:
        """Epochs of a broker that claims before it links."""

        def __init__(self) -> None:
            self._epochs = member.store.epochs

        def __getattr__(self, name: str) -> object:
            return getattr(self._epochs, name)

        def link(self, epoch: Epoch, attempt: str) -> bool:
            member.store.election.claim(attempt.encode())
            return self._epochs.link(epoch, attempt)

        def prune(self, own: Epoch, keep: int) -> None:
            before = self._epochs.numbers()
            self._epochs.prune(own, keep)
            until(lambda: self._epochs.numbers() == before[-keep:], "the member prunes when it has time")

    check_epochs(lambda: replace(member.store, epochs=Claiming()))  # type: ignore[arg-type]


def test_terms_keep_their_contract(alone: GroupOfCopies) -> None:
    check_terms(views(alone.member("a")))


def test_the_log_keeps_its_contract(alone: GroupOfCopies) -> None:
    alone.options += "&leastCopies=1"
    member = alone.member("a")
    member.take_over()
    check_log(lambda: member.store.log, fences=True)


def test_the_board_keeps_its_contract(group: GroupOfCopies) -> None:
    check_board(lambda: group.store("a").board)


# -- together ----------------------------------------------------------------------------------------------------------


def test_an_append_returns_when_two_of_three_have_it_and_the_third_catches_up(group: GroupOfCopies) -> None:
    a, b, c = three(group)
    writer = a.create(1)
    group.network.away.add(c.id)
    end = a.append(writer, HEADER_BYTES, b"one")
    assert content(b.store) == content(a.store)
    assert content(c.store) == {}
    for number in range(50):
        end = a.append(writer, end, b"%d" % number * 1000)
    group.network.away.clear()
    until(lambda: content(c.store) == content(a.store), "the third has all")
    assert content(b.store) == content(a.store)


class ToldLoop:
    """The event loop of a master, in which `hear` takes what was posted."""

    def __init__(self) -> None:
        self._posted: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]]] = SimpleQueue()

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        self._posted.put((callback, args))

    call_soon_threadsafe = call_soon

    def hear(self) -> None:
        callback, args = self._posted.get(timeout=DEADLINE_S)
        callback(*args)

    def hear_all(self, told: list[Exception | None]) -> None:
        """Until something was told."""
        while not told:
            self.hear()

    def add_reader(self, _fd: int, _callback: Callable[..., Any], *_: Any) -> None:
        raise AssertionError("the network of these tests has no sockets")

    def remove_reader(self, _fd: int) -> None: ...

    @property
    def is_quiet(self) -> bool:
        return self._posted.empty()


async def test_what_a_copy_answers_in_the_loop_takes_effect_before_the_next_turn() -> None:
    loop, part, told, is_over = asyncio.get_running_loop(), stores.ReplicaPart(), list[Any](), asyncio.Event()
    part.hear_on(loop)
    reading = stores._TellingLoop(loop, part)
    here, there = socketpair()
    with here, there:

        def answered() -> None:
            reading.remove_reader(here.fileno())
            loop.call_soon(told.append, "next turn")
            part.post(told.append, None)
            is_over.set()

        reading.add_reader(here.fileno(), answered)
        there.send(b"1")
        await is_over.wait()
    assert told == [None, "next turn"]


def begin(
    member: CopyMember, writer: Writer, number: int, told: Told, *, waits: bool = False, lingers: bool = False
) -> bool:
    """The first write of a segment."""
    data = encode_batch(b"one", SALT, member.term.epoch.number, number, 1, 0)
    patient = cast(PatientWriter, writer)
    return patient.begin(HEADER_BYTES, HEADER_BYTES + len(data), [data], told, waits=waits, lingers=lingers)


def test_an_append_that_has_begun_is_told_when_two_of_three_have_it(group: GroupOfCopies) -> None:
    a, b, c = three(group)
    loop, told = ToldLoop(), list[Exception | None]()
    a.store.hear_on(loop)
    writer = a.create(1)
    group.network.away |= {b.id, c.id}
    until(lambda: begin(a, writer, 1, told.append), "it waits for no other copy")
    assert loop.is_quiet
    assert content(b.store) == content(c.store) == {}
    group.network.away.discard(b.id)
    loop.hear()
    assert told == [None]
    assert content(b.store) == content(a.store)
    assert loop.is_quiet, "once"


def test_an_append_in_the_event_loop_waits_for_no_other_thread_at_the_disk(group: GroupOfCopies) -> None:
    a, _, _ = three(group)
    loop, told = ToldLoop(), list[Exception | None]()
    a.store.hear_on(loop)
    writer = a.create(1)
    is_held, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with a.at_work.copyist.mutex:
            is_held.set()
            may_go.wait(DEADLINE_S)

    other = threading.Thread(target=hold)
    other.start()
    assert is_held.wait(DEADLINE_S)
    written = a.at_work.copyist.disk.written
    assert not begin(a, writer, 1, told.append)
    assert a.at_work.copyist.disk.written == written
    may_go.set()
    other.join()
    assert begin(a, writer, 1, told.append, waits=True)
    loop.hear_all(told)
    assert told == [None]


def test_an_append_in_the_event_loop_is_told_at_once_where_other_copies_were_quicker(
    group: GroupOfCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = three(group)
    loop, told = ToldLoop(), list[Exception | None]()
    a.store.hear_on(loop)
    writer = a.create(1)
    group.network.away.add(c.id)
    leader, handle = a.at_work._machine, a.at_work.copyist.handle
    assert isinstance(leader, Leader)

    def slowly(message: Any) -> Any:
        if isinstance(message, Append):
            until(lambda: bool(leader.stream.positions.get(b.id)), "another copy has it")
        return handle(message)

    monkeypatch.setattr(a.at_work.copyist, "handle", slowly)
    assert begin(a, writer, 1, told.append, waits=True)
    assert told == [None]
    assert loop.is_quiet


def test_an_event_loop_waits_for_no_slow_disk(group: GroupOfCopies, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = three(group)
    group.network.away |= {b.id, c.id}
    loop, told = ToldLoop(), list[Exception | None]()
    a.store.hear_on(loop)
    writer, synced = a.create(1), list[int]()
    handle = a.at_work.copyist.handle

    def noted(message: Any) -> Any:
        if isinstance(message, Append):
            synced.append(threading.get_ident())
        return handle(message)

    monkeypatch.setattr(a.at_work.copyist, "handle", noted)
    a.at_work._writes_s.append(2 * INLINE_S_MAX)
    assert not begin(a, writer, 1, told.append)
    a.at_work._writes_s.clear()
    a.at_work._syncs_s.append(2 * INLINE_S_MAX)
    until(lambda: begin(a, writer, 1, told.append), "no other thread is at the disk")
    until(lambda: bool(synced), "it syncs")
    assert synced != [threading.get_ident()]
    assert not told
    group.network.away.clear()
    loop.hear_all(told)
    assert told == [None]
    assert content(b.store) == content(a.store) or content(c.store) == content(a.store)


@pytest.mark.parametrize("answers_s", [(), (LINGER_S_MAX / 2, 1.0), (1.0,)])
def test_an_event_loop_with_nothing_else_to_do_looks_for_answers_where_these_are_quick(
    group: GroupOfCopies, monkeypatch: pytest.MonkeyPatch, answers_s: tuple[float, ...]
) -> None:
    a, b, c = three(group)
    group.network.away |= {b.id, c.id}
    a.store.hear_on(ToldLoop())
    writer, looks, told = a.create(1), list[int](), list[Exception | None]()
    monkeypatch.setattr(a.at_work._peers, "hear", lambda: looks.append(1))
    a.at_work._answers_s.clear()
    a.at_work._answers_s.extend(answers_s)
    until(lambda: begin(a, writer, 1, told.append, lingers=True), "no other thread is at the disk")
    assert not told
    assert len(looks) in (range(1) if answers_s == (1.0,) else range(1, LINGER_LOOKS_MAX + 1))


def test_an_append_that_was_not_confirmed_hears_of_the_end_of_the_mastership(group: GroupOfCopies) -> None:
    a, b, c = three(group)
    loop, told = ToldLoop(), list[Exception | None]()
    a.store.hear_on(loop)
    writer = a.create(1)
    group.network.away |= {b.id, c.id}
    assert begin(a, writer, 1, told.append, waits=True)
    a.at_work.leave(a.at_work.ballot)
    loop.hear()
    (error,) = told
    assert isinstance(error, SyncError)
    with pytest.raises(SyncError):
        begin(a, writer, 2, told.append, waits=True)
    assert len(told) == 1


def test_without_a_second_copy_nothing_is_confirmed_until_one_is_back(group: GroupOfCopies) -> None:
    a, b, c = three(group)
    writer = a.create(1)
    group.network.away |= {b.id, c.id}
    done = threading.Event()
    thread = threading.Thread(target=lambda: (a.append(writer, HEADER_BYTES, b"one"), done.set()))
    thread.start()
    assert not done.wait(0.5)
    assert record_members(a) == {a.id, b.id, c.id}
    group.network.away.discard(b.id)
    assert done.wait(DEADLINE_S)
    thread.join()


def test_the_next_master_has_all_that_was_confirmed_and_the_old_one_confirms_nothing(group: GroupOfCopies) -> None:
    a, b, c = three(group)
    writer = a.create(1)
    end = a.append(writer, HEADER_BYTES, b"confirmed")
    group.network.away.add(a.id)
    failed: list[OSError] = []

    def late() -> None:
        try:
            a.append(writer, end, b"not confirmed")
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=late)
    thread.start()
    for session in set(group.ensemble.owners.values()):
        group.ensemble.expire(session)
    b.take_over()
    assert b.term.epoch.number == 2
    assert b.term.epoch.sealed == {"00000001-00000001.seg": end}
    following = b.append(b.create(1), HEADER_BYTES, b"of the second")
    assert following
    assert not failed
    group.network.away.clear()
    thread.join(DEADLINE_S)
    assert failed[0].errno == errno.ESTALE
    with pytest.raises(OwnershipLostError):
        a.term.lease.check()
    until(lambda: content(a.store) == content(b.store) == content(c.store), "all copies are alike")
    saved = list(Path(a.directory).glob("oldreplica.*/*"))
    assert [b"not confirmed" in path.read_bytes() for path in saved] == [True]


def test_a_full_disk_of_the_master_is_told_before_any_copy_hears_of_the_write(group: GroupOfCopies) -> None:
    a, b, c = three(group)
    writer = a.create(1)
    end = a.append(writer, HEADER_BYTES, b"one")
    real = a.at_work.copyist.disk._writers["00000001-00000001.seg"]
    until(lambda: content(a.store) == content(b.store) == content(c.store) != {}, "all copies are alike")
    before, allocate = content(b.store), group.vfs.allocate

    def full(_fd: int, _size: int) -> bool:
        raise OSError(errno.ENOSPC, "no space left")

    real.reserved = real.zeroed = end
    group.vfs.allocate = full  # type: ignore[method-assign]
    with pytest.raises(NoRoomError):
        a.append(writer, end, b"two" * 100_000)
    group.vfs.allocate = allocate  # type: ignore[method-assign]
    assert content(b.store) == content(c.store) == before
    a.batch -= 1
    a.append(writer, end, b"three")
    assert (
        b"three" in content(b.store)["00000001-00000001.seg"] or b"three" in content(c.store)["00000001-00000001.seg"]
    )


def test_a_new_disk_becomes_a_copy_that_counts_with_all_that_came_before(group: GroupOfCopies) -> None:
    a, b, _ = three(group)
    a.append(a.create(1), HEADER_BYTES, b"first epoch" * 1000)
    a.locker.release()
    until(lambda: why_not(b) == "", "it has all")
    b.take_over()
    writer = b.create(1)
    end = b.append(writer, HEADER_BYTES, b"second epoch")
    d = group.member("d")
    with suppress(StoreError):
        assert not d.locker.try_acquire()
    until(lambda: content(d.store) == content(b.store), "the new one has all")
    group.network.away.add(a.id)
    until(lambda: d.id in record_members(b), "it takes the place of the lost one")
    assert a.id not in record_members(b)
    b.append(writer, end, b"more")


def test_all_stop_and_start_and_what_was_torn_goes(group: GroupOfCopies, monkeypatch: pytest.MonkeyPatch) -> None:
    found = three(group)
    end = found[0].append(found[0].create(1), HEADER_BYTES, b"kept")
    until(lambda: all(content(each.store) == content(found[0].store) for each in found), "all have it")
    for each in found:
        each.stop()
    monkeypatch.setattr(members, "PATIENCE_S", 0.1)
    with open(tmp := Path(found[1].directory) / "journal" / "00000001-00000001.seg", "r+b") as file:
        file.truncate(end)
        file.seek(end)
        file.write(b"torn")
    for session in set(group.ensemble.owners.values()):
        group.ensemble.expire(session)
    c = group.member("c")
    with pytest.raises(OSError, match=r"no answer of .*: start their brokers"):
        c.take_over()
    monkeypatch.setattr(members, "PATIENCE_S", DEADLINE_S)
    b = group.member("b")
    assert tmp.stat().st_size == end
    c.locker.abandon()
    c.take_over()
    assert c.term.epoch.sealed == {"00000001-00000001.seg": end}
    c.append(c.create(1), HEADER_BYTES, b"of the second")
    until(lambda: content(b.store) == content(c.store), "they are alike")


def test_two_processes_cannot_keep_one_copy(group: GroupOfCopies) -> None:
    group.member("a")
    with pytest.raises(StoreError, match="used by another broker"):
        group.member("a")


@pytest.mark.parametrize("removed", ["master", "slave"])
def test_a_member_whose_directory_is_removed_counts_it_as_lost(group: GroupOfCopies, removed: str) -> None:
    """A master writes on into files without names, for they are open."""
    a, b, _ = three(group)
    writer = a.create(1)
    end = a.append(writer, HEADER_BYTES, b"kept")
    lost = a if removed == "master" else b
    shutil.rmtree(lost.directory)
    with pytest.raises(StoreError, match="start the broker again, and it fills a new copy") as raised:
        why_not(lost)
    assert raised.value.code == "STORE_MISSING"
    if removed == "slave":
        a.append(writer, end, b"more")
        return
    until(lambda: a.at_work.seen() is None, "it is the master no more")
    a.locker.abandon()
    with pytest.raises(OSError, match=r"not the master any more|removed or replaced"):
        a.append(writer, end, b"more")
    b.take_over()
    assert b.term.epoch.sealed == {"00000001-00000001.seg": end}


def test_a_store_of_another_kind_is_left_alone(group: GroupOfCopies) -> None:
    (group.root / "a" / "epochs").mkdir(parents=True)
    with pytest.raises(StoreError, match="not a copy of a replicated store"):
        group.member("a")


def test_a_coordinator_that_has_lost_its_record_makes_no_master(group: GroupOfCopies) -> None:
    a, *_ = three(group)
    a.locker.release()
    group.ensemble.drop("g/group")
    with pytest.raises(StoreError, match="the coordinator has lost what it kept"):
        a.locker.try_acquire()


def test_a_coordinator_that_was_set_back_is_told_before_any_member_hears_of_it(group: GroupOfCopies) -> None:
    """A copy that has promised what the coordinator has forgotten would refuse every master."""
    a, b, c = three(group)
    a.append(a.create(1), HEADER_BYTES, b"one")
    forgotten = group.ensemble.entries["g/group"]
    a.locker.release()
    until(lambda: why_not(b) == "", "it has all")
    b.take_over()
    until(lambda: c.at_work.copyist.keeper.term == b.at_work.ballot, "it has the log of the new term")
    b.append(b.create(1), HEADER_BYTES, b"two")
    b.stop()
    c.stop()
    group.ensemble.put("g/group", forgotten.value)
    met = set(group.network.ends)
    with pytest.raises(StoreError, match=r"has term \d+, and the copy of this member has a log of term") as raised:
        group.member("c")
    assert raised.value.code == "STORE_INCOMPLETE"
    assert set(group.network.ends) == met


# -- without the coordinator -------------------------------------------------------------------------------------------


def test_a_master_proves_itself_by_copies_while_the_coordinator_is_away(
    group: GroupOfCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = three(group)
    group.coordinators["a"].away = True
    a.append(a.create(1), HEADER_BYTES, b"one")
    for _ in range(2):
        a.term.lease.check()
    group.network.away.add(b.id)
    a.term.lease.check()
    monkeypatch.setattr(stores, "RENEW_S", 0.2)
    group.network.away.add(c.id)
    with pytest.raises(OwnershipLostError, match="cannot be proved"):
        a.term.lease.check()


def test_a_coordinator_that_is_slow_again_and_again_is_told_of_once(
    group: GroupOfCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at each check: that it is slow no more is known when the copies were not needed for a while."""
    a, *_ = three(group)
    clock = FakeClock()
    election = cast(ReplicaElection, a.store.election)
    monkeypatch.setattr(election, "_clock", clock)
    with capture_logs() as logs:
        for _ in range(5):
            assert a.term.lease.extend()
            clock.advance(stores.CALM_S / 2)
            a.term.lease.check()
        assert [line["event"].partition(":")[0] for line in logs] == ["coordinator is slow or does not answer"]
        clock.advance(stores.CALM_S / 2)
        a.term.lease.check()
        assert logs.pop()["event"] == "coordinator answers in time again"
        assert a.term.lease.extend()
        assert len(logs) == 2


def test_a_master_whose_session_ended_meanwhile_gets_the_lock_again_and_stays_the_master(group: GroupOfCopies) -> None:
    a, *_ = three(group)
    group.coordinators["a"].away = True
    a.term.lease.check()
    for session in set(group.ensemble.owners.values()):
        group.ensemble.expire(session)
    a.term.lease.check()
    group.coordinators["a"].away = False
    for _ in range(2):
        a.term.lease.check()
        assert a.store.election.holds()
    a.append(a.create(1), HEADER_BYTES, b"one")
    assert a.at_work._book.read().record.epoch == 1


def test_a_deposed_master_that_cannot_reach_the_coordinator_proves_nothing(group: GroupOfCopies) -> None:
    a, b, _ = three(group)
    group.coordinators["a"].away = True
    a.term.lease.check()
    for session in set(group.ensemble.owners.values()):
        group.ensemble.expire(session)
    b.take_over()
    with pytest.raises(OwnershipLostError):
        a.term.lease.check()
    b.term.lease.check()


@pytest.mark.parametrize("call", range(1, 6))
def test_each_call_of_a_check_may_be_the_one_that_fails(group: GroupOfCopies, call: int) -> None:
    """Or its answer is lost; and the next check is as good as any."""
    a, *_ = three(group)
    coordinator, calls = group.coordinators["a"], 0
    reach = coordinator.reach

    def failing(what: str) -> Ensemble:
        nonlocal calls
        calls += 1
        if calls == call:
            raise OSError(errno.ETIMEDOUT, "no answer", what)
        return reach(what)

    coordinator.reach = failing  # type: ignore[method-assign]
    coordinator.lost_answers = call % 2
    for _ in range(3):
        a.term.lease.check()
    assert calls > call
