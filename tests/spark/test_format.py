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
