"""Rows go through Spark into a queue, and come back through Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.brokers import Brokers
from tests.spark.pipeline import QUERY_S_MAX
from tests.spark.source_driver import patiently

ROWS = 200


@pytest.mark.deep
def test_rows_to_a_queue_and_back(spark: Any, brokers: Brokers, tmp_path: Path) -> None:
    where = {"url": f"failover:(stomp://127.0.0.1:{brokers.master().port})", "destination": "/queue/rows"}
    rows = spark.range(0, ROWS, 1, 2).selectExpr("cast(id as string) as value", "cast(id % 7 as string) as key")
    rows.write.format("amq").options(**where).mode("append").save()
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"

    def read() -> None:
        stream = spark.readStream.format("amq").options(**where, subscription="etl").load().select("key", "value")
        query = stream.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
        started = query.trigger(availableNow=True).start(str(out))
        assert started.awaitTermination(QUERY_S_MAX), "the query does not end"

    patiently(read)
    found = sorted((int(row.value), row.key) for row in spark.read.parquet(str(out)).collect())
    assert found == [(number, str(number % 7)) for number in range(ROWS)]
