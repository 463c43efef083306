"""The journal as Arrow batches: each row that the decoder's records stand for, no other; of one moment; damage is told.

What is expected is made of the records that `amq.journal.inspect` finds, which is how `amq journal dump` reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from amq.core.errors import CorruptError, StoreError
from amq.core.message import Copy, Message, headers
from amq.core.message import plain as as_text
from amq.core.ownership import given
from amq.journal.format import BATCH_BYTES, HEADER_BYTES
from amq.journal.inspect import Inspection
from amq.journal.records import REASONS, Consumed, Group, Moved, Record, Redelivered, Trimmed
from amq.journal.records.multicast import Multicast
from amq.store.files.vfs import SystemVfs
from amq.store.open import store_behind
from pyspark_amq import journal
from pyspark_amq.journal import Wanted
from pyspark_amq.options import JOURNAL_KINDS, LEFT, MESSAGES
from tests.fakes import FaultyVfs
from tests.journal.journal_world import World
from tests.spark.journal_stores import fill, filled, made, message, take_over


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Only to be read."""
    return filled(tmp_path_factory.mktemp("store"))


def rows(
    world: World, wanted: Wanted | None = None, *, headers: bool = True, parts: list[journal.SegmentPart] | None = None
) -> list[dict[str, Any]]:
    """Rows as the reader gives them, in the order of offsets and positions."""
    columns = journal.schema(headers=headers)
    found = []
    for part in journal.plan(world.store, wanted) if parts is None else parts:
        for batch in journal.read_part(part, columns, wanted):
            assert batch.schema.equals(columns)
            batch.validate(full=True)
            found += batch.to_pylist()
    return sorted(found, key=order)


def order(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["epoch"], row["segment"], row["position"], row["offset"], row["kind"]


def expected(world: World) -> list[dict[str, Any]]:
    """What the records say, one by one."""
    found: list[dict[str, Any]] = []
    sealing = (world.epoch, world.sealed)
    inspection = Inspection(world.log, sealing)
    for item in inspection.records():
        place = {"epoch": item.segment.epoch, "segment": item.segment.number}
        wall = 1000 * item.batch.wall_s
        for part, position in flat(item.record, item.offset):
            for row in rows_of(part, wall):
                found.append(NOTHING | {"position": position} | place | row)
    assert not inspection.problems
    return sorted(found, key=order)


NOTHING = dict.fromkeys(journal.schema(headers=True).names)


def flat(record: Record, offset: int) -> Iterator[tuple[Record, int]]:
    """Messages know where they stand; of what else is in a group the reader knows it, and this does not."""
    parts = record.records if isinstance(record, Group) else [record]
    for part in parts:
        yield part, part.offset if isinstance(part, Message | Multicast) else offset if part is record else -1


def rows_of(record: Record, wall_ms: int) -> Iterator[dict[str, Any]]:
    if isinstance(record, Multicast):
        for copy in record.held():
            yield from rows_of(copy, wall_ms)
    elif isinstance(record, Message):
        shown = as_text(record)  # as consumers of text see it
        properties = headers(shown)
        yield {
            "kind": "message",
            "key": properties.get("correlation-id"),
            "value": shown.body,
            "offset": record.seq,
            "destination": record.destination.replace("sent://", ""),
            "queue": record.queue_name,
            "timestamp": record.timestamp_ms,
            "messageId": given(record.duplicate_id) or None,
            "redelivered": False,
            "headers": list(properties.items()),
            "bodyBytes": len(shown.body),
            "priority": record.priority,
            "contentType": shown.content_type or None,
            "expires": record.expires_ms or None,
        }
    elif isinstance(record, Consumed):
        reason, queue = REASONS[record.reason], record.destination
        same = {"kind": "consumed", "reason": reason, "queue": queue, "destination": queue, "timestamp": wall_ms}
        yield from ({"offset": seq, **same} for seq in record.seqs)
    elif isinstance(record, Redelivered):
        queue = record.destination
        for seq, deliveries, failures in record.counts:
            yield {
                "kind": "redelivered",
                "offset": seq,
                "deliveries": deliveries,
                "failures": failures,
                "queue": queue,
                "destination": queue,
                "redelivered": True,
                "timestamp": wall_ms,
            }
    elif isinstance(record, Moved):
        for seq in record.seqs:
            yield {
                "kind": "moved",
                "offset": seq,
                "queue": record.source,
                "target": record.target,
                "destination": record.source.replace("sent://", ""),
                "timestamp": wall_ms,
            }


def plain(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Moments as milliseconds; the position of what is in a group left out where it is not a message."""
    for row in found:
        for name in ("timestamp", "expires"):
            if hasattr(row[name], "timestamp"):
                row[name] = round(row[name].timestamp() * 1000)
    return found


def test_rows_are_what_the_records_say(world: World) -> None:
    right, found = expected(world), plain(rows(world))
    assert len({row["segment"] for row in right if row["epoch"] == 1}) > 2
    assert {row["kind"] for row in right} == set(JOURNAL_KINDS)
    in_groups = {json.dumps({**row, "value": None, "position": -1}) for row in right if row["position"] == -1}
    for row in found:
        if json.dumps({**row, "value": None, "position": -1}) in in_groups:
            row["position"] = -1
    assert sorted(found, key=order) == right


@pytest.mark.parametrize(
    ("expires_ms", "shown"),
    [
        (253_402_300_799_999, "9999-12-31T23:59:59.999000+00:00"),
        (253_402_300_800_000, None),
        (2**63 - 1, None),
    ],
)
def test_who_expires_after_the_last_moment_there_is_never_does(
    tmp_path: Path, expires_ms: int, shown: str | None
) -> None:
    """Java's Long.MAX_VALUE is what some clients say for never; neither Python nor Arrow has such a moment."""
    world = made(tmp_path)
    world.journal.append(message(world, "queue://a", expires_ms=expires_ms))
    sent = message(world, "queue://a", expires_ms=expires_ms)
    names = ["queue://a", "queue://b"]
    copies = [Copy.of(sent, name, sent.seq + number) for number, name in enumerate(names)]
    world.journal.append_record(Multicast(sent, names, [copy.seq for copy in copies], copies))
    world.commit()
    moments = [row["expires"] for row in rows(world)]
    assert [moment and moment.isoformat() for moment in moments] == [shown] * 3


def test_a_batch_is_cut_by_rows_and_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = made(tmp_path)
    world.send(50, 400)
    world.send(1, 5000)
    world.send(50, 10)
    world.commit()
    world.end()
    (part,) = [part for part in journal.plan(world.store) if part.end > 20_000]
    monkeypatch.setattr(journal, "ROWS_PER_BATCH", 20)
    monkeypatch.setattr(journal, "BYTES_PER_BATCH", 3000)
    sizes = [batch.num_rows for batch in journal.read_part(part, journal.schema())]
    assert sum(sizes) == 101
    assert max(sizes) == 20
    assert 5 < min(sizes[:5]) < 10
    assert [row["bodyBytes"] for row in rows(world)] == [400] * 50 + [5000] + [10] * 50


def test_a_body_for_many_queues_is_many_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the journal once. A column of bodies has 2 GiB at most, and a task not as much memory."""
    world = made(tmp_path)
    sent = message(world, "topic://t")
    sent.body = b"x" * 1000
    copies = [Copy.of(sent, f"queue://{number}", sent.seq + number) for number in range(40)]
    names, seqs = [copy.queue_name for copy in copies], [copy.seq for copy in copies]
    world.journal.append_record(Multicast(sent, names, seqs, copies))
    world.commit()
    monkeypatch.setattr(journal, "BYTES_PER_BATCH", 3500)
    (part,) = journal.plan(world.store)
    assert [batch.num_rows for batch in journal.read_part(part, journal.schema())] == [3] * 13 + [1]
    assert [batch.num_rows for batch in journal.read_part(part, journal.schema(values=False))] == [40]


EVERYTHING = Wanted()


@pytest.mark.parametrize(
    "narrow",
    [
        {"kinds": frozenset({MESSAGES})},
        {"kinds": frozenset({LEFT, "moved"})},
        {"kinds": frozenset()},
        {"destinations": frozenset({"queue://b"})},
        {"destinations": frozenset({"queue://DLQ", "topic://news"})},
        {"offsets": ((1 << 44) + 50, (1 << 44) + 90)},
        {"offsets": (2 << 44, journal.SEQ_MAX)},
        {"times_us": (1_700_000_000_050_000, 1_700_000_000_099_000)},
        {"times_us": (-1, 1_600_000_000_000_000)},
        {"kinds": frozenset({MESSAGES}), "destinations": frozenset({"queue://a"}), "offsets": (0, 1 << 45)},
    ],
    ids=["messages", "left", "no-kind", "queue", "destinations", "offsets", "epochs", "times", "never", "each"],
)
def test_what_is_wanted_is_what_a_filter_leaves(world: World, narrow: dict[str, Any]) -> None:
    wanted = EVERYTHING.within(**narrow)

    def fits(row: dict[str, Any]) -> bool:
        time_us = round(row["timestamp"].timestamp() * 1e6)
        return (
            row["kind"] in wanted.kinds
            and (wanted.destinations is None or row["destination"] in wanted.destinations)
            and wanted.offsets[0] <= row["offset"] <= wanted.offsets[1]
            and wanted.times_us[0] <= time_us <= wanted.times_us[1]
        )

    everything = rows(world)
    right = [row for row in everything if fits(row)]
    assert len(right) < len(everything)
    assert rows(world, wanted) == right
    assert bool(right) == (wanted.kinds != frozenset() and wanted.times_us[0] != -1)


def test_segments_that_cannot_hold_an_offset_are_no_parts(world: World) -> None:
    second = journal.plan(world.store, Wanted(offsets=(2 << 44, journal.SEQ_MAX)))
    assert {part.segment[:8] for part in second} == {"00000002"}
    assert journal.plan(world.store, EVERYTHING.within(kinds=frozenset())) == []


def test_columns(world: World) -> None:
    columns = journal.schema(values=False)
    assert "value" not in columns.names
    assert "headers" not in columns.names
    found = [pa.Table.from_batches(list(journal.read_part(part, columns))) for part in journal.plan(world.store)]
    whole = rows(world)
    assert sum(table.num_rows for table in found) == len(whole)
    assert sum(pa.compute.sum(table["bodyBytes"]).as_py() for table in found) == sum(
        len(row["value"]) for row in whole if row["value"] is not None
    )


# -- a store at work ---------------------------------------------------------------------------------------------------


def test_a_plan_is_of_one_moment(tmp_path: Path) -> None:
    world = made(tmp_path)
    fill(world, 10)
    before, parts = rows(world), journal.plan(world.store)
    fill(world, 10)
    assert rows(world, parts=parts) == before
    assert len(rows(world)) > len(before)
    take_over(world)
    assert rows(world, parts=parts) == before
    world.end()


def test_a_torn_tail_is_no_error(tmp_path: Path) -> None:
    world = made(tmp_path)
    fill(world, 3)
    before = rows(world)
    world.end()
    (name,) = [part.segment for part in journal.plan(world.store)][-1:]
    path = os.path.join(world.directory, name)
    with open(path, "r+b") as file:
        data = file.read()
        end = journal.plan(world.store)[-1].end
        file.seek(end)
        file.write(data[end - 200 : end - 100])  # as a batch that a crash cut
    assert rows(world) == before


def test_it_reads_and_does_nothing_else(world: World) -> None:
    vfs = FaultyVfs()
    for part in journal.plan(world.store, found=store_behind(vfs, world.store)):
        for _ in journal.read_part(part, journal.schema(), found=store_behind(vfs, world.store)):
            pass
    assert {method for method, _ in vfs.calls} <= {"open", "close", "pread", "fstat", "stat", "listdir"}


def test_a_segment_that_was_trimmed_meanwhile(tmp_path: Path) -> None:
    world = made(tmp_path)
    fill(world, 10)
    world.end()
    first, second = journal.plan(world.store)[:2]
    os.unlink(os.path.join(world.directory, first.segment))
    with pytest.raises(journal.TrimmedError, match=r"00000001-00000001\.seg was trimmed.*failOnDataLoss=false"):
        rows(world, parts=[first])
    assert rows(world, parts=[second])


def test_a_segment_that_goes_while_a_plan_is_made(tmp_path: Path) -> None:
    """Its live messages are in another one by then: the plan is made again."""
    world = made(tmp_path)
    fill(world, 10)
    world.journal.trim(Trimmed(1, 1))
    world.commit()
    world.end()

    class Trimming(SystemVfs):
        """The oldest segment goes when all were listed."""

        lists = 0

        def listdir(self, path: str) -> list[str]:  # type: ignore[override]
            names = os.listdir(path)
            if path.endswith("journal"):
                self.lists += 1
                if self.lists == 1:
                    os.unlink(os.path.join(path, "00000001-00000001.seg"))
            return names

    vfs = Trimming()
    names = [part.segment for part in journal.plan(world.store, found=store_behind(vfs, world.store))]
    assert vfs.lists == 4  # twice, each before and after
    assert names[0] == "00000001-00000002.seg"


def test_a_listing_of_epochs_that_is_out_of_date(tmp_path: Path) -> None:
    """What a newer epoch sealed is not known then: nothing is read."""
    world = made(tmp_path)
    fill(world, 2)
    world.end()
    world.begin()
    with pytest.raises(StoreError, match="read again"):
        journal.plan(world.store)
    world.end()


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["sealed", "open"])
def test_damage_is_told_with_file_and_offset(tmp_path: Path, where: str) -> None:
    world = made(tmp_path)
    fill(world, 10)
    world.end()
    name = [part.segment for part in journal.plan(world.store)][0 if where == "sealed" else -1]
    path = os.path.join(world.directory, name)
    with open(path, "r+b") as file:
        file.seek(HEADER_BYTES + BATCH_BYTES + 3)
        file.write(b"\xff")
    with pytest.raises(CorruptError, match="fails its checksum") as told:
        rows(world)
    assert (told.value.path, told.value.offset) == (path, HEADER_BYTES)


def test_a_truncated_segment(tmp_path: Path) -> None:
    world = made(tmp_path)
    fill(world, 10)
    world.end()
    first = journal.plan(world.store)[0]
    os.truncate(os.path.join(world.directory, first.segment), first.end - 1)
    with pytest.raises(CorruptError, match="truncated"):
        rows(world)
    with pytest.raises(CorruptError, match="truncated"):
        rows(world, parts=[replace(first, end=first.end + 10)])


@pytest.mark.parametrize(("name", "why"), [("missing", "No such file"), (".", "is empty")])
def test_what_is_no_store(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(StoreError, match=f"{why}.*amq start --store") as told:
        journal.plan(os.path.join(tmp_path, name))
    assert told.value.code == "STORE_MISSING"


@pytest.mark.parametrize("lost", [0, 2, -1])
def test_a_segment_that_somebody_removed_fails_the_query(tmp_path: Path, lost: int) -> None:
    """The first, one in between, the last one of an epoch that is over. One that was trimmed is not needed."""
    world = made(tmp_path)
    fill(world, 30)
    segments = [part.segment for part in journal.plan(world.store)]
    take_over(world)
    fill(world, 1)
    assert len(segments) > 4
    assert [part.segment for part in journal.plan(world.store)][: len(segments)] == segments
    os.unlink(os.path.join(world.directory, segments[lost]))
    with pytest.raises(CorruptError, match="missing, and nothing says that it was trimmed") as told:
        journal.plan(world.store)
    assert "amq journal repair" in str(told.value)
    last = segments[lost]
    world.journal.trim(Trimmed(1, int(last[9:17])))
    world.commit()
    world.end()
    if lost == 0:
        assert [part.segment for part in journal.plan(world.store)][: len(segments) - 1] == segments[1:]


def test_extended_messages_are_as_consumers_of_text_see_them(world: World) -> None:
    found = [row for row in rows(world) if row["kind"] == "message" and row["key"] is not None]
    first = next(row for row in found if row["key"] == "ID:AMQP_BINARY:01FF")
    assert dict(first["headers"]) == {
        "correlation-id": "ID:AMQP_BINARY:01FF",
        "reply-to": "/queue/r",
        "type": "order",
        "n": "7",
        "yes": "true",
        "raw": "AA==",
    }
    assert (first["value"], first["contentType"], first["bodyBytes"]) == (b"extended", "a/b", 8)
    maps = [row for row in found if row["key"] == "c-1"]
    assert {row["contentType"] for row in maps} == {"application/json"}
    assert {row["value"] for row in maps} == {b'{"n": %d}' % number for number in range(30)}
    bare = next(row for row in found if row["key"] == "c-2")
    assert (bare["value"], dict(bare["headers"])) == (b"extended", {"correlation-id": "c-2", "JMSXGroupID": "g"})
