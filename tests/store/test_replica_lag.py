"""How far the copies of a replicated store are: what their master sees, and what people read of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from amq.cli.main import main
from amq.cli.status import _copy_text
from amq.cluster.alarms import Alarm, alarms
from amq.cluster.directory import Cluster
from amq.cluster.masters import StoreNow
from amq.console import overview
from amq.console.link import Seen
from amq.console.metrics import broker_text
from amq.core.errors import StoreError
from amq.doctor.copy import judge_copy
from amq.doctor.filesystems import ALONE_TOPIC
from amq.doctor.finding import Level
from amq.doctor.stores import examine_quickly
from amq.journal.format import HEADER_BYTES
from amq.store.copies import CopiesNow, CopyNow, CopyState
from amq.store.epoch import Epoch
from amq.store.host import Owner
from amq.store.open import check_directory, copy_in, open_workshop
from amq.store.port import StoreCopies
from amq.store.presence import MASTER, BrokerPresence
from amq.store.replica.leader import Leader
from amq.store.replica.messages import CompareAndSet, Piece, Stored
from amq.store.status import StoreStatus
from tests.copies import CopyMember, GroupOfCopies
from tests.store.test_replica_machines import SECOND, leader
from tests.store.test_replica_store import record_members, three, until

LEVEL = CopyNow("a-1", CopyState.LEVEL, True, 0, 0.0)
BEHIND = CopyNow("b-2", CopyState.BEHIND, True, 5 << 20, 4.0)
FILLING = CopyNow("c-3", CopyState.FILLING, False, 3 << 30, 9.0)
SILENT = CopyNow("d-4", CopyState.SILENT, True, None, 40.0, 40.0)
GONE = CopyNow("e-5", CopyState.GONE, False, None, 0.0, 12.0)
SPARE = CopyNow("f-6", CopyState.SPARE, False, 0, 0.0)
ALL = CopiesNow(True, (LEVEL, BEHIND, FILLING, SILENT, GONE, SPARE))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[GroupOfCopies]:
    with GroupOfCopies(tmp_path) as found:
        yield found


def seen_by(member: CopyMember) -> CopiesNow:
    found = member.store.copies_seen()
    assert found is not None
    return found


def the(member: CopyMember, of: CopyMember) -> CopyNow:
    return next((each for each in seen_by(of).copies if each.id == member.id), SILENT)


def status(copies: CopiesNow | None, known: StoreCopies | None = None) -> StoreStatus:
    owner = Owner("u", "a", "host", "", "", 1, 1, (), 5.0)
    details = {} if copies is None else {"copies": copies.to_json()}
    master = BrokerPresence("a", MASTER, owner, details, {})
    return StoreStatus("held", Epoch(1, owner, {}, 0, "first"), False, None, [master], copies=known)


# -- the master --------------------------------------------------------------------------------------------------------


def ticked(master: Leader, *answering: str, times: int = 4) -> Leader:
    """`answering` say again what they have."""
    for _ in range(times):
        for member in answering:
            master.handle(member, Stored(7, master.stream.positions[member]))
        master.tick()
    master.take()
    return master


def test_a_store_is_blocked_when_fewer_answer_than_must_have_a_write() -> None:
    assert not ticked(leader(), "a", "b").is_blocked
    assert ticked(leader(), "a").is_blocked
    assert ticked(leader(), "a").stream.silent_ticks("b") == 4


def test_while_a_change_of_the_record_is_in_doubt_both_must_answer() -> None:
    master = leader()
    master.handle("d", Stored(7, 0))
    for _ in range(4):
        for member in ("a", "b", "d"):
            master.handle(member, Stored(7, 0))
        master.tick()
    assert master.pending is not None, "the spare takes the place of the silent one"
    assert any(isinstance(each, CompareAndSet) for each in master.take())
    assert not master.is_blocked
    for _ in range(4):
        master.handle("a", Stored(7, 0))
        master.handle("b", Stored(7, 0))
        master.tick()
    assert not master.is_blocked, "two of each record answer"
    assert ticked(master, "a").is_blocked


def test_a_copy_that_has_what_was_there_a_tick_before_is_level() -> None:
    master = leader()
    for number in range(1, 9):
        master.append(number, 1, b"")
        master.tick()
        for member in "ab":
            master.handle(member, Stored(7, number))
        assert master.stream.behind_ticks("b") == 0, "it is always a write behind, and level all the same"
    master.append(9, 1, b"")
    for ticks in range(3):
        master.handle("a", Stored(7, 9))
        assert master.stream.behind_ticks("b") == max(ticks - 1, 0)
        master.tick()
    assert SECOND.holds(["a", "b"])


def test_the_lag_of_a_copy_is_what_it_lacks_over_segments(group: GroupOfCopies) -> None:
    a, b, c = three(group)
    assert b.store.copies_seen() is None, "only the master knows"
    assert {each.state for each in seen_by(a).copies} == {CopyState.LEVEL}
    first = a.create(1)
    end = a.append(first, HEADER_BYTES, b"both have it")
    until(lambda: the(c, a).lag_bytes == 0, "it has all")
    group.network.away.add(c.id)
    more = a.append(first, end, b"x" * 1000)
    first.finish(more)
    second = a.append(a.create(2), HEADER_BYTES, b"y" * 500)
    lost = more - end + second
    assert the(c, a).lag_bytes == lost, "a position jumps by 2**40 with each segment, and says nothing of bytes"
    assert the(b, a).lag_bytes == 0
    until(lambda: the(c, a).state is CopyState.SILENT, "it is silent")
    assert the(c, a).silent_s >= 1.5
    assert not seen_by(a).blocked
    group.network.away.clear()
    until(lambda: the(c, a).state is CopyState.LEVEL, "it is level again")
    assert the(c, a).lag_bytes == 0


def test_a_master_without_enough_copies_says_that_it_is_blocked(group: GroupOfCopies) -> None:
    a, b, c = three(group)
    group.network.away |= {b.id, c.id}
    done = threading.Event()
    writer = a.create(1)
    thread = threading.Thread(target=lambda: (a.append(writer, HEADER_BYTES, b"one"), done.set()))
    thread.start()
    until(lambda: seen_by(a).blocked, "it says so, and does not wait for the append")
    assert {each.id for each in seen_by(a).silent} == {b.id, c.id}
    assert not done.is_set()
    group.network.away.clear()
    until(done.is_set, "it is confirmed")
    until(lambda: not seen_by(a).blocked, "and that is over")
    thread.join()


def test_a_copy_that_is_filled_says_how_much_it_lacks(group: GroupOfCopies) -> None:
    a, *_ = three(group)
    end = a.append(a.create(1), HEADER_BYTES, b"of the first epoch" * 1000)
    a.locker.release()
    a.take_over()
    group.network.lose = lambda _sender, _to, message: isinstance(message, Piece)
    d = CopyMember(group.store("d"), "d")
    try:
        until(lambda: the(d, a).lag_bytes == end, "it lacks all, while nothing arrives")
        assert the(d, a).state is CopyState.FILLING
        group.network.lose = lambda _sender, _to, _message: False
        until(lambda: the(d, a).state is CopyState.SPARE, "it has all, and three count already")
        assert the(d, a).lag_bytes == 0
        assert not the(d, a).counts
    finally:
        d.stop()


def test_a_copy_in_whose_place_another_one_counts_is_gone(group: GroupOfCopies) -> None:
    a, b, c = three(group)
    lost = c.id
    c.stop()
    d = CopyMember(group.store("d"), "d")
    try:
        until(lambda: record_members(a) == {a.id, b.id, d.id}, "it takes the place of the lost one")
        until(lambda: {each.id: each.state for each in seen_by(a).copies}[lost] is CopyState.GONE, "it is gone")
        found = next(each for each in seen_by(a).to_json()["copies"] if each["id"] == lost)
        assert (found["counts"], found["lag_bytes"]) == (False, None)
        words = f"{lost} is gone: the group goes on without it, and it has not answered for "
        assert _copy_text(found).startswith(words)
        assert lost not in {each.id for each in seen_by(a).silent}
    finally:
        d.stop()


# -- what people see ---------------------------------------------------------------------------------------------------


def test_what_a_broker_tells_of_its_copies() -> None:
    assert CopiesNow.from_json(json.loads(json.dumps(ALL.to_json()))) == ALL
    many = CopiesNow(False, (*(replace(FILLING, id=f"s-{number}") for number in range(1000)), SILENT))
    told = CopiesNow.from_json(many.to_json())
    assert told is not None
    assert len(told.copies) == 32, "what a board holds is bounded"
    assert SILENT in told.copies, "copies that count come first"


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (None, None),
        ([], None),
        ({"copies": 3}, None),
        ({"copies": ["x", {}, {"state": "level"}, {"state": "odd", "id": "a", "behind_s": 0}]}, CopiesNow(False, ())),
        (
            {"copies": [{"id": "a", "state": "level", "behind_s": 1, "lag_bytes": "x", "new": 1}], "blocked": 1},
            CopiesNow(False, (CopyNow("a", CopyState.LEVEL, False, None, 1),)),
        ),
    ],
)
def test_what_another_version_or_a_stranger_tells(told: Any, found: CopiesNow | None) -> None:
    assert CopiesNow.from_json(told) == found


def test_alarms_of_copies(tmp_path: Path) -> None:
    table = Cluster.create(str(tmp_path / "c"), {"s1": ""}).table()

    def found(copies: CopiesNow) -> list[Alarm]:
        return [
            each
            for each in alarms(table, [StoreNow("s1", "/c/s1", status(copies))], [], {}, 0)
            if each.code in ("STORE_BLOCKED", "COPY_SILENT", "COPY_BEHIND")
        ]

    assert [(each.code, each.store, each.node) for each in found(ALL)] == [
        ("STORE_BLOCKED", "s1", "a"),
        ("COPY_SILENT", "s1", "a"),
    ]
    assert "because d-4 do not answer" in found(ALL)[0].text
    assert found(CopiesNow(False, (LEVEL, BEHIND, FILLING, replace(SILENT, silent_s=29.0)))) == []
    (late,) = found(CopiesNow(False, (LEVEL, replace(BEHIND, behind_s=31.0), replace(FILLING, behind_s=99.0))))
    assert late.code == "COPY_BEHIND"
    assert "its copy b-2 has been behind for 31 s" in late.text
    assert "too few copies count" in found(CopiesNow(True, (LEVEL,)))[0].text
    told = overview.alarms(Seen(status(ALL), None, None), None)
    assert len(told) == 2
    assert "confirms nothing" in told[0]


def test_metrics_and_the_page_of_the_store() -> None:
    known = StoreCopies(["a-1", "b-2", "d-4"], 2, ["a-1", "b-2", "c-3"])
    seen = Seen(status(ALL, known), None, None)
    text = broker_text(seen, None, None, 0)
    for line in (
        "amq_store_copies 3",
        "amq_store_copies_needed 2",
        "amq_store_copies_silent 1",
        "amq_store_blocked 1",
        f'amq_store_copy_lag_bytes{{copy="c-3"}} {3 << 30}',
        'amq_store_copy_behind_seconds{copy="b-2"} 4.0',
    ):
        assert f"\n{line}\n" in text
    assert 'amq_store_copy_lag_bytes{copy="d-4"}' not in text, "unknown is not 0"
    assert 'copy="e-5"' not in text, "it is gone"
    assert "amq_store_copies" not in broker_text(Seen(status(None), None, None), None, None, 0)
    assert [each["state"] for each in overview.copies(seen)] == [
        "level",
        "behind for 4.0 s, lacks 5.0 MiB",
        "is filled, lacks 3.0 GiB",
        "has not answered for 40 s",
        "gone: the group goes on without it, and it has not answered for 12 s",
        "spare",
    ]
    assert [each["counts"] for each in overview.copies(seen)] == ["yes", "yes", "no", "yes", "no", "no"]
    masterless = overview.copies(Seen(status(None, known), None, None))
    assert {each["id"]: each["state"] for each in masterless}["d-4"] == "does not run"


def test_the_doctor_looks_at_the_copy_of_this_member(group: GroupOfCopies) -> None:
    a, b, _ = three(group)
    directory, ids = b.directory, [a.id, b.id]
    known = StoreCopies(ids, 2, ids)

    def told(copies: CopiesNow | None, known: StoreCopies = known) -> list[tuple[Level, str]]:
        return [(each.level, each.found) for each in judge_copy(directory, status(copies, known))]

    level = CopiesNow(False, (replace(LEVEL, id=b.id),))
    assert told(level) == [(Level.OK, f"{b.id} counts, and has everything")]
    spare = CopiesNow(False, (replace(SPARE, id=b.id),))
    assert told(spare, StoreCopies([a.id], 1, ids)) == [(Level.OK, f"{b.id} is a spare, and has everything")]
    behind = CopiesNow(False, (replace(BEHIND, id=b.id),))
    assert told(behind) == [(Level.WARNING, f"{b.id} is behind for 4 s, by {5 << 20} bytes")]
    assert told(None, StoreCopies([a.id], 1, ids)) == [(Level.WARNING, f"{b.id} does not count")]
    assert told(None, StoreCopies(ids, 2, [a.id]))[0] == (Level.WARNING, f"{b.id} does not run")
    assert [level for level, _ in told(ALL)] == [Level.WARNING, Level.WARNING, Level.NOTE]
    assert judge_copy(str(group.root), status(level, known))[0].found == "none yet"
    (small := group.root / "small").mkdir()
    found = examine_quickly(f"replica://{group.root}?group=g&coordinator=file://{small}").findings
    assert [each.topic for each in found].count(ALONE_TOPIC) == 1, "the coordinator is shared, and the copy is not"


# -- one copy alone ----------------------------------------------------------------------------------------------------


def test_tools_say_that_a_directory_is_one_copy_and_what_would_change_it_is_refused(group: GroupOfCopies) -> None:
    a, b, _ = three(group)
    a.append(a.create(1), HEADER_BYTES, b"not a record")
    until(lambda: the(b, a).lag_bytes == 0, "it has all")
    assert copy_in(b.directory) == b.id
    answer = CliRunner().invoke(main, ["journal", "check", "--store", b.directory])
    assert answer.stderr.count(f"is one copy of a replicated store, {b.id}: not the whole truth alone") == 1
    assert "00000001-00000001.seg" in answer.stdout
    assert "epochs/ is missing" not in answer.output
    before = Path(b.directory, "copy.json").read_bytes()
    for change in (lambda: check_directory(b.directory), lambda: open_workshop(b.directory)):
        with pytest.raises(StoreError, match="one copy of a replicated store, which only"):
            change()
    answer = CliRunner().invoke(main, ["journal", "import", "--store", b.directory, "-"], input="{}")
    assert answer.exit_code != 0
    assert Path(b.directory, "copy.json").read_bytes() == before
    assert not Path(b.directory, "epochs").exists()
