"""`format("amq-journal")`: what Spark gets is what `pyspark_amq.journal` reads, also where it lets us filter.

What needs no Java is tested without.
"""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from pyspark_amq import journal
from pyspark_amq.data_source import AmqJournalDataSource
from pyspark_amq.journal_source import JournalRowsReader, PushdownJournalReader
from pyspark_amq.options import OptionError
from tests.journal.journal_world import World
from tests.spark.journal_stores import filled

FIRST = 1 << journal.SEQ_EPOCH_BITS


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Only to be read."""
    return filled(tmp_path_factory.mktemp("store"))


def reader(world: World, **options: str) -> Any:
    source = AmqJournalDataSource({"path": world.store, **options})
    return source.reader(source.schema())


def table(reader: JournalRowsReader) -> pa.Table:
    """All rows, as Spark asks for them."""
    return pa.Table.from_batches(
        [batch for part in reader.partitions() for batch in reader.read(part)], schema=reader._columns
    )


def test_options_choose_rows_and_columns(world: World) -> None:
    everything = table(reader(world, kinds="all", includeheaders="true"))
    assert everything.schema == journal.schema(headers=True)
    messages = table(reader(world))
    assert messages.num_rows == everything["kind"].to_pylist().count("message") > 0
    assert set(messages["kind"].to_pylist()) == {"message"}
    some = table(reader(world, kinds="consumed, moved", destination="/queue/a,queue://b", includevalue="false"))
    assert set(zip(some["kind"].to_pylist(), some["destination"].to_pylist(), strict=True)) == {
        ("consumed", "queue://a"),
        ("consumed", "queue://b"),
        ("moved", "queue://b"),
    }
    assert "value" not in some.column_names
    offsets = table(reader(world, startingoffset=str(FIRST + 5), endingoffset=str(FIRST + 9)))["offset"].to_pylist()
    assert set(offsets) == {FIRST + 5, FIRST + 6, FIRST + 7, FIRST + 8}
    times = {"startingtimestamp": "1700000000005", "endingtimestamp": "1700000000007"}
    found = table(reader(world, **times))["timestamp"].to_pylist()
    assert {round(moment.timestamp() * 1000) % 1000 for moment in found} == {5, 6}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kinds": "messages"}, r"option 'kinds' must be all, or some of message.*got 'messages'.*\"kinds\", \"all\""),
        ({"startingoffset": "first"}, r"option 'startingOffset' must be an integer.*got 'first'"),
        ({"destination": "/queue/"}, r"option 'destination' must be a destination"),
        ({"pushdwn": "true"}, r"option 'pushdwn' is not known.*\"pushdown\", \"true\""),
        ({"maxoffsetspertrigger": "5"}, r"is for reading, not for reading the journal"),
    ],
    ids=str,
)
def test_a_bad_option_is_told(world: World, options: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        reader(world, **options)


def test_a_trimmed_segment_fails_the_task_unless_told_otherwise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = filled(tmp_path)
    strict, lenient = reader(world), reader(world, failondataloss="false")
    parts = strict.partitions()
    os.unlink(os.path.join(world.directory, parts[0].part.segment))
    with pytest.raises(journal.TrimmedError):
        list(strict.read(parts[0]))
    with caplog.at_level(logging.WARNING):
        assert list(lenient.read(parts[0])) == []
    assert f"{parts[0].part.segment} was trimmed" in caplog.text
    assert list(lenient.read(parts[1]))


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp((1_700_000_000_000 + ms) / 1000, UTC)


def keeps(given: Filter, row: dict[str, Any]) -> bool:
    """What Spark would do with a row."""
    value, bound = row[given.attribute[0]], given.value  # type: ignore[attr-defined]
    return bool(
        {
            EqualTo: lambda: value == bound,
            In: lambda: value in bound,
            GreaterThan: lambda: value > bound,
            GreaterThanOrEqual: lambda: value >= bound,
            LessThan: lambda: value < bound,
            LessThanOrEqual: lambda: value <= bound,
        }[type(given)]()
    )


KNOWN = [
    EqualTo(("destination",), "queue://b"),
    In(("destination",), ("queue://a", "queue://DLQ")),
    EqualTo(("kind",), "moved"),
    In(("kind",), ("consumed", "nonsense")),
    EqualTo(("offset",), FIRST + 17),
    GreaterThan(("offset",), FIRST + 200),
    GreaterThanOrEqual(("offset",), FIRST + 200),
    LessThan(("offset",), FIRST + 200),
    LessThanOrEqual(("offset",), FIRST + 200),
    EqualTo(("timestamp",), moment(40)),
    GreaterThan(("timestamp",), moment(40)),
    GreaterThanOrEqual(("timestamp",), moment(40)),
    LessThan(("timestamp",), moment(40)),
    LessThanOrEqual(("timestamp",), moment(40)),
]


@pytest.mark.parametrize("given", KNOWN, ids=lambda given: f"{type(given).__name__} {given.attribute[0]}")
def test_a_filter_that_is_pushed_down_leaves_what_spark_would(world: World, given: Filter) -> None:
    pushed = reader(world, kinds="all", pushdown="true")
    assert isinstance(pushed, PushdownJournalReader)
    assert list(pushed.pushFilters([given])) == []
    right = [row for row in table(reader(world, kinds="all")).to_pylist() if keeps(given, row)]
    assert table(pushed).to_pylist() == right
    assert right


def test_filters_that_are_not_known_are_left_to_spark(world: World) -> None:
    pushed = reader(world, pushdown="true")
    unknown: list[Filter] = [
        EqualTo(("messageId",), "x"),
        IsNotNull(("offset",)),
        Not(EqualTo(("offset",), 1)),
        EqualNullSafe(("offset",), None),
        EqualTo(("headers", "offset"), "x"),
        In(("offset",), (1, 2)),
        GreaterThan(("timestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001
        EqualTo(("offset",), None),
        LessThan(("kind",), "z"),
    ]
    known = EqualTo(("offset",), FIRST + 3)
    assert list(pushed.pushFilters([unknown[0], known, *unknown[1:]])) == unknown
    assert set(table(pushed)["offset"].to_pylist()) == {FIRST + 3}


def test_a_plan_without_parts(world: World) -> None:
    """PySpark makes one partition of it, which says nothing."""
    empty = reader(world, startingoffset=str(9 * FIRST))
    assert empty.partitions() == []
    assert list(empty.read(InputPartition(None))) == []


@pytest.mark.deep
def test_through_spark(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    world = filled(tmp_path, journal_segment_size_bytes=24 << 10)
    read = spark.read.format("amq-journal").option("kinds", "all").option("includeHeaders", "true")
    frame = read.load(world.store)
    assert len(journal.plan(world.store)) > 2
    order = [("epoch", "ascending"), ("segment", "ascending"), ("position", "ascending"), ("offset", "ascending")]
    right = table(reader(world, kinds="all", includeheaders="true")).sort_by(order)
    assert frame.toArrow().cast(right.schema).sort_by(order).to_pylist() == right.to_pylist()
    wanted = (F.col("destination") == "queue://a") & (F.col("offset") > FIRST + 100) & (F.col("kind") == "message")
    wanted &= F.col("timestamp") < F.lit(moment(300))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = read.option("pushdown", "true").load(world.store).where(wanted)
        assert "queue://a" not in pushed._jdf.queryExecution().executedPlan().toString()
        found = pushed.toArrow().num_rows
        messages = spark.read.format("amq-journal").option("pushdown", "true").load(world.store)
        assert messages.where("kind = 'consumed'").count() == 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert found == frame.where(wanted).count() > 0
