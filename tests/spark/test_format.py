"""`format("amq")` as Spark finds it: without a word of registration, and with refusals that a user can read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def write(frame: Any, **options: str) -> None:
    frame.write.format("amq").mode("append").options(**options).save()


def refused(frame: Any, **options: str) -> str:
    """What Spark says of a write."""
    with pytest.raises(Exception) as caught:
        write(frame, **options)
    return str(caught.value)


def test_a_bad_option_is_refused(spark: Any) -> None:
    rows = spark.createDataFrame([("x",)], "value string")
    assert "option 'url' is missing" in refused(rows, destination="/queue/x")
    said = refused(rows, url="stomp://127.0.0.1:1", windowRows="ten", password="hunter2-hunter2")
    assert "option 'windowRows' must be an integer from 1 to 9223372036854775807, got 'ten'" in said
    assert "hunter2" not in said
    said = refused(rows, url="stomp://me:hunter2-hunter2@a:1", destination="/queue/x")
    assert "option 'url' must not hold a password, since Spark shows it in plans" in said
    assert "hunter2" not in said
    broker = {"url": "stomp://127.0.0.1:1", "destination": "/queue/x"}
    said = refused(rows, idColumn="id", delivery="dedup", **broker)
    assert "option 'idColumn' names 'id', and there is no such column" in said
    with pytest.raises(Exception, match="option 'path' is missing: write"):
        spark.read.format("amq-journal").load().collect()


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ("value int", "column 'value' is int, it must be string or binary"),
        ("colour string", "column 'colour' is not known"),
        ("key string", "column 'value' is missing"),
        ("value string, headers map<string,int>", "column 'headers' is map<string,int>"),
        ("value string, key int", "column 'key' is int, it must be string"),
    ],
)
def test_a_frame_that_cannot_become_messages_is_refused(spark: Any, columns: str, why: str) -> None:
    assert why in refused(spark.createDataFrame([], columns), url="stomp://127.0.0.1:1", destination="/queue/x")


def test_a_stream_fails_with_what_is_wrong(spark: Any, tmp_path: Path) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    query = (
        stream.writeStream.format("amq")
        .option("url", "stomp://127.0.0.1:1")
        .option("delivery", "twice")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    with pytest.raises(Exception, match="option 'delivery' must be one of exactly-once, dedup, at-least-once"):
        query.awaitTermination(60)


def test_a_queue_cannot_be_overwritten(spark: Any) -> None:
    rows = spark.createDataFrame([("x",)], "value string")
    with pytest.raises(Exception, match="cannot be overwritten"):
        rows.write.format("amq").mode("overwrite").options(url="stomp://127.0.0.1:1", destination="x").save()


def test_a_continuous_stream_is_refused_before_it_reads(spark: Any, tmp_path: Path) -> None:
    """Spark would drop its rows: it never calls the sink's `write`."""
    stream = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    query = (
        stream.writeStream.format("amq")
        .options(url="stomp://127.0.0.1:1", destination="/queue/x")
        .option("checkpointLocation", str(tmp_path / "new"))
        .trigger(continuous="1 second")
        .start()
    )
    with pytest.raises(Exception, match=r"cannot be used with trigger\(continuous=…\): .* trigger\(processingTime="):
        query.awaitTermination(60)
    assert list((tmp_path / "new" / "offsets").glob("*")) == []


def test_a_commit_without_results_of_tasks_is_refused() -> None:
    """Spark commits so where a continuous stream has its checkpoint on storage that the driver cannot list."""
    from pyspark.sql.types import StructType

    from pyspark_amq import sink
    from pyspark_amq.options import OptionError, SinkOptions, read

    options = read(SinkOptions, {"url": "stomp://127.0.0.1:1", "destination": "/queue/x"})
    writer = sink.AmqStreamWriter(options, StructType().add("value", "string"))
    with pytest.raises(OptionError, match=r"trigger\(continuous=…\)"):
        writer.commit([None, None], 0)


@pytest.mark.parametrize(
    ("offsets", "commits", "is_continuous"),
    [([0], [], False), ([*range(12)], [*range(11)], False), ([], [], True), ([0, 1], [0, 1], True)],
)
def test_a_checkpoint_says_whether_a_micro_batch_began(
    tmp_path: Path, offsets: list[int], commits: list[int], is_continuous: bool
) -> None:
    from pyspark_amq import sink
    from pyspark_amq.options import OptionError

    sink.refuse_continuous(str(tmp_path))  # nothing is there: the checkpoint is elsewhere
    (tmp_path / "metadata").write_text("{}")
    for name, numbers in (("offsets", offsets), ("commits", commits)):
        (tmp_path / name).mkdir()
        for number in numbers:
            (tmp_path / name / str(number)).write_text("v1")
            (tmp_path / name / f".{number}.crc").write_text("")
    if not is_continuous:
        sink.refuse_continuous(str(tmp_path))
        return
    for scheme in ("", "file:", "file://"):
        with pytest.raises(OptionError):
            sink.refuse_continuous(f"{scheme}{tmp_path}")
