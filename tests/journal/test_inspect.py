"""Inspection: whole journals are whole, damage is found where it is, a store at work is not called damaged."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journal_world import World

from amq.core.errors import CorruptError, StoreError
from amq.core.message import Message
from amq.core.ownership import owned
from amq.journal.format import BATCH_BYTES, HEADER_BYTES, VERSION
from amq.journal.inspect import (
    EMPTY,
    GONE,
    IGNORED,
    OPEN,
    SEALED,
    Inspection,
    Problem,
    Sealing,
    foreign_files,
    inspect,
    scan,
)
from amq.journal.liveness import Liveness
from amq.journal.records import (
    ACKED,
    BatchContent,
    Consumed,
    Destination,
    Group,
    Marker,
    Moved,
    Outcomes,
    Prepared,
    Previous,
    Redelivered,
    Resolved,
    Trimmed,
    describe,
    kind_name,
)
from amq.journal.segment import read_batches, read_header, read_segment
from amq.store.files.log import FileLog
from amq.store.files.vfs import SystemVfs
from tests.files import flip, patch
from tests.sampling import examples


def sealing(world: World) -> Sealing:
    return world.epoch, world.sealed


def look(world: World) -> tuple[Inspection, Liveness]:
    return inspect(world.log, lambda: sealing(world))


def damage(world: World, name: str, offset: int, data: bytes | None = None) -> None:
    """Without data: one bit."""
    path = os.path.join(world.directory, name)
    flip(path, offset) if data is None else patch(path, offset, data)


def filled(path: Path) -> World:
    """A store of two epochs: the first has several segments, in the second a few messages were sent."""
    world = World(path)
    for _ in range(8):
        world.send(10, 200)
        world.commit()
    world.begin()
    world.send(3)
    world.commit()
    return world


def test_a_whole_journal(tmp_path: Path) -> None:
    world = filled(tmp_path)
    inspection, statistics = look(world)
    assert inspection.problems == []
    assert [report.name for report in inspection.segments] == world.segments()
    first = [report for report in inspection.segments if report.epoch == 1]
    assert len(first) > 2
    for report in first:
        assert report.end == world.sealed[report.name]
        assert report.state == (SEALED if report.end else EMPTY)
    assert {report.state for report in inspection.segments if report.epoch == 2} <= {OPEN, EMPTY, SEALED}
    assert statistics.destinations["queue://a"].messages == 83
    assert sum(tally.messages for tally in statistics.segments.values()) == 83


def test_the_records_are_those_that_a_new_master_reads(tmp_path: Path) -> None:
    world = filled(tmp_path)
    found = list(Inspection(world.log, sealing(world)).records())
    world.begin()
    assert [(item.segment.name, kind_name(item.record)) for item in found] == [
        (segment.name, kind_name(record)) for record, segment in world.replayed
    ]


def test_each_record_stands_where_it_is_said_to(tmp_path: Path) -> None:
    world = filled(tmp_path)
    for item in Inspection(world.log, sealing(world)).records():
        if isinstance(item.record, Message):
            data = read_segment(world.log, item.segment.name)
            assert item.record.body in data[item.offset : item.offset + len(item.record.body) + 200]


@pytest.mark.parametrize("where", ["batch header", "payload", "last byte"])
def test_damage_in_a_sealed_segment(tmp_path: Path, where: str) -> None:
    world = filled(tmp_path)
    name = world.segments()[1]
    offset = {"batch header": HEADER_BYTES + 5, "payload": HEADER_BYTES + BATCH_BYTES + 60}.get(
        where, world.sealed[name] - 1
    )
    whole, _ = look(world)
    damage(world, name, offset)
    inspection, statistics = look(world)
    (problem,) = inspection.problems
    assert problem.code == "STORE_CORRUPT"
    assert problem.path == os.path.join(world.directory, name)
    assert HEADER_BYTES <= problem.offset <= offset
    assert str(problem).startswith(f"{problem.path}: offset {problem.offset}: ")
    lost = sum(report.batches for report in whole.segments) - sum(report.batches for report in inspection.segments)
    assert lost == 1, "the batches behind the damage are read"
    assert statistics.destinations["queue://a"].messages < 83


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(200))
@given(st.data())
def test_the_verdict_is_that_of_the_broker(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever bytes are changed: `scan` finds damage at the place, and only if, the broker's own reader does."""
    if not (tmp_path / "journal").exists():
        filled(tmp_path)
    directory = tmp_path / "journal"
    path = str(directory / sorted(name for name in os.listdir(directory) if name.endswith(".seg"))[0])
    content = bytearray(Path(path).read_bytes())
    header = read_header(path, bytes(content))
    assert header is not None
    end = max(batch.end for batch in read_batches(path, bytes(content), header, None))
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(HEADER_BYTES, end - 1))] ^= data.draw(st.integers(1, 255))
    sealed = data.draw(st.sampled_from([None, end]))
    cut = data.draw(st.integers(HEADER_BYTES, len(content)))
    changed = bytes(content[:cut])
    ours = list(scan(path, changed, header, sealed))
    theirs: list[int] = []
    failure = None
    try:
        theirs.extend(batch.offset for batch in read_batches(path, changed, header, sealed))
    except CorruptError as error:
        failure = error.offset
    problems = [item for item in ours if isinstance(item, Problem)]
    assert (failure is None) == (not problems)
    first = min((problem.offset for problem in problems), default=len(changed))
    assert [item[0] for item in ours if not isinstance(item, Problem) and item[0] < first][: len(theirs)] == theirs


def test_a_torn_tail_is_normal(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.send(3)
    world.commit()
    (report,) = [report for report in look(world)[0].segments if report.records]
    damage(world, report.name, report.end, b"\xb7BAT" + b"\x01" * 30)
    inspection, statistics = look(world)
    assert inspection.problems == []
    (torn,) = [report for report in inspection.segments if report.records]
    assert (torn.end, torn.torn_bytes) == (report.end, 34)
    assert statistics.destinations["queue://a"].live == 3


def test_truncated_missing_and_foreign_files(tmp_path: Path) -> None:
    world = filled(tmp_path)
    first, second, third = world.segments()[:3]
    os.truncate(os.path.join(world.directory, first), world.sealed[first] - 10)
    os.unlink(os.path.join(world.directory, third))
    with open(os.path.join(world.directory, second), "wb") as file:
        file.write(b"this is a letter to my aunt, and no segment at all" * 3)
    (tmp_path / "journal" / "notes.txt").write_text("x")
    inspection, _ = look(world)
    codes = {(os.path.basename(problem.path), problem.code) for problem in inspection.problems}
    assert {(first, "STORE_CORRUPT"), (second, "STORE_FOREIGN_FILE"), (third, "STORE_CORRUPT")} <= codes
    assert foreign_files(world.log) == ["notes.txt"]


def test_nobody_is_blamed_for_what_a_damaged_segment_may_have_trimmed(tmp_path: Path) -> None:
    """Its mark cannot be read: found by a bit that turned over in the simulation."""
    world = filled(tmp_path)
    first, second = world.segments()[:2]
    os.unlink(os.path.join(world.directory, first))
    os.truncate(os.path.join(world.directory, second), world.sealed[second] - 10)
    inspection, _ = look(world)
    assert {os.path.basename(problem.path) for problem in inspection.problems} == {second}


def test_a_damaged_header_is_not_blamed_on_the_segment_before(tmp_path: Path) -> None:
    """Which asks its successor where it ends: found by a bit that turned over in the simulation."""
    world = World(tmp_path)
    for _ in range(8):
        world.send(10, 200)
        world.commit()
    second = world.segments()[1]
    damage(world, second, 25)
    inspection, _ = look(world)
    assert {os.path.basename(problem.path) for problem in inspection.problems} == {second}


def test_a_newer_format_is_named(tmp_path: Path) -> None:
    world = filled(tmp_path)
    damage(world, world.segments()[0], 8, (VERSION + 1).to_bytes(2, "little"))
    (problem,) = look(world)[0].problems
    assert problem.code == "STORE_NEWER_FORMAT"
    assert "upgrade" in problem.why


def test_what_a_deposed_master_wrote_does_not_count(tmp_path: Path) -> None:
    world = filled(tmp_path)
    path = os.path.join(world.directory, world.segments()[0])
    data = Path(path).read_bytes()
    header = read_header(path, data)
    assert header is not None
    late = Path(world.directory, "00000001-00000099.seg")
    late.write_bytes(replace(header, number=99).encode() + data[HEADER_BYTES:])
    inspection, statistics = look(world)
    assert inspection.problems == []
    (report,) = [report for report in inspection.segments if report.number == 99]
    assert (report.state, report.records) == (IGNORED, 0)
    assert statistics.destinations["queue://a"].messages == 83


def test_a_file_that_sealing_would_refuse_is_a_problem(tmp_path: Path) -> None:
    """It counts nothing, but no broker starts with it."""
    world = filled(tmp_path)
    stranger = Path(world.directory, "00000001-00000099.seg")
    stranger.write_bytes(Path(world.directory, world.segments()[0]).read_bytes())
    inspection, _ = look(world)
    with pytest.raises(StoreError, match="renamed"):
        world.begin()
    (problem,) = inspection.problems
    assert (problem.code, problem.path) == ("STORE_FOREIGN_FILE", str(stranger))


def test_a_segment_of_another_store_in_the_place_of_the_newest(tmp_path: Path) -> None:
    """Nobody has sealed that name, and each of its sums is right."""
    world, other = filled(tmp_path / "here"), filled(tmp_path / "there")
    world.end()
    newest = world.segments()[-1]
    data = Path(other.directory, newest).read_bytes()
    header = read_header(newest, data)
    assert header is not None
    foreign = replace(header, store_uuid=b"another store...").encode()
    Path(world.directory, newest).write_bytes(foreign + data[HEADER_BYTES:])
    (problem,) = look(world)[0].problems
    with pytest.raises(StoreError, match="another store") as caught:
        world.begin()
    assert (problem.code, problem.path) == (caught.value.code, os.path.join(world.directory, newest))


def test_the_newest_epoch_file_is_missing(tmp_path: Path) -> None:
    """A backup for which epochs/ was copied first."""
    world = filled(tmp_path)
    world.end()
    inspection, _ = inspect(world.log, lambda: (1, {}))
    (problem,) = inspection.problems
    world.epoch, world.sealed = 1, {}
    with pytest.raises(StoreError, match="newest epoch file is of 1") as caught:
        world.begin()
    assert (problem.code, problem.path) == (caught.value.code, os.path.join(world.directory, world.segments()[-1]))


class BusyVfs(SystemVfs):
    """Between the first and the second read of a segment its master goes on."""

    def __init__(self) -> None:
        self.before_read: list[str] = []
        self.meanwhile = lambda: None

    def pread(self, fd: int, size: int, offset: int) -> bytes:  # type: ignore[override]
        data = os.pread(fd, size, offset)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return data


def test_a_tail_that_grows_while_it_is_read(tmp_path: Path) -> None:
    """The first look sees a hole with a later batch behind it, as it stands while pages of two batches are written."""
    world = World(tmp_path, journal_segment_size_bytes=1 << 20)
    for _ in range(3):
        world.send(2)
        world.commit()
    (report,) = [report for report in look(world)[0].segments if report.records]
    path = os.path.join(world.directory, report.name)
    whole = Path(path).read_bytes()
    header = read_header(path, whole)
    assert header is not None
    *_, second, _third = read_batches(path, whole, header, None)
    damage(world, report.name, second.offset, bytes(BATCH_BYTES))

    vfs = BusyVfs()
    torn = whole[second.offset : second.offset + BATCH_BYTES]
    vfs.meanwhile = lambda: damage(world, report.name, second.offset, torn)
    inspection, _ = inspect(FileLog(vfs, world.store), lambda: sealing(world))
    assert inspection.problems == []
    assert sum(found.records for found in inspection.segments) == report.records


def test_a_segment_deleted_while_we_look(tmp_path: Path) -> None:
    world = filled(tmp_path)
    first = world.segments()[0]
    world.journal.append_record(Trimmed(1, 1))
    world.commit()
    inspection = Inspection(world.log, sealing(world))
    os.unlink(os.path.join(world.directory, first))
    records = list(inspection.records())
    inspection.check_complete()
    assert inspection.problems == []
    assert inspection.segments[0].state == GONE
    assert all(found.segment.name != first for found in records)


def test_a_takeover_while_we_look_begins_anew(tmp_path: Path) -> None:
    world = filled(tmp_path)
    before = sealing(world)
    world.begin()
    world.send(1)
    world.commit()
    damage(world, world.segments()[1], HEADER_BYTES + 5)  # something to complain of, in both looks
    answers = [before, sealing(world), sealing(world)]
    inspection, statistics = inspect(world.log, lambda: answers.pop(0))
    assert answers == []
    assert len(inspection.problems) == 1
    assert sum(tally.messages for tally in statistics.destinations.values()) == 84 - 10, "the new epoch is read too"


def test_descriptions() -> None:
    text = Message("queue://a", "grüß".encode(), {"k": "v"}, seq=5, duplicate_id="d")
    assert describe(text)["properties"] == {"k": "v"}
    assert "body" not in describe(text)
    assert describe(text, bodies=True)["body"] == "grüß"
    assert describe(Message("queue://a", b"\xff"), bodies=True)["body_base64"] == "/w=="
    group = describe(Group([Consumed("queue://a", ACKED, [5]), text], "t1"))
    assert (group["type"], group["outcome_id"]) == ("group", "t1")
    assert [part["type"] for part in group["records"]] == ["consumed", "message"]
    assert describe(Redelivered("queue://a", [(5, 2, 1)]))["counts"] == [{"seq": 5, "deliveries": 2, "failures": 1}]
    facts = describe(Prepared("x", 3, 1, 2, "job", 7, {"queue://a": [1]}))
    assert (facts["type"], facts["xid"], facts["batch"], facts["sends"]) == ("prepared", "x", 7, {"queue://a": [1]})
    assert describe(Resolved("x", False, 4)) == {"type": "resolved", "xid": "x", "committed": False, "seq": 4}
    assert describe(Marker("job", 7)) == {"type": "marker", "owner": "job", "batch": 7}
    facts = describe(Marker("job", 7, BatchContent(3, 9)))
    assert facts == {"type": "marker", "owner": "job", "batch": 7, "rows": 3, "checksum": 9}
    moved = describe(Moved("queue://a", "held://queue://a", [5], [("x", 5)]))
    assert (moved["type"], moved["source"], moved["seqs"], moved["ids"]) == ("moved", "queue://a", [5], [("x", 5)])
    assert describe(Destination(3, "queue://b")) == {"type": "destination", "id": 3, "destination": "queue://b"}
    facts = describe(Group([Message("queue://a", b"", duplicate_id=owned("ann", "d"))], owned("bob", "t1")))
    (part,) = facts["records"]
    assert (facts["outcome_id"], facts["outcome_id_user"]) == ("t1", "bob")
    assert (part["duplicate_id"], part["duplicate_id_user"]) == ("d", "ann")
    assert describe(Outcomes([("x", 7)])) == {"type": "outcomes", "ids": [("x", 7)]}
    assert describe(Trimmed(1, 2)) == {"type": "trimmed", "epoch": 1, "number": 2, "kept": []}
    assert describe(Previous(7)) == {"type": "previous", "end": 7}
