"""The bench of what Spark reads, against a real broker: it counts, and says so where rows are missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from bench import plain, spark_source
from bench.load import LoadError
from tests.brokers import Brokers
from tests.spark.source_driver import patiently


class PatientBench(spark_source.Bench):
    """Where the machine is too busy to start a worker within Spark's 10 s, it reads again."""

    def read(self, what: str, queue: str, rows: int) -> spark_source.Trial:
        read = super().read
        return patiently(lambda: read(what, queue, rows))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.deep
def test_all_is_read_and_counted(spark: Any, brokers: Brokers, stack: ExitStack) -> None:
    master, said, worked = brokers.master("a", directReads="*"), [], iter(range(1000))
    url = f"failover:(stomp://127.0.0.1:{master.port})"
    relay = stack.enter_context(plain.before(master.port))
    before = f"failover:(stomp://127.0.0.1:{relay})"
    bench = PatientBench(spark, url, before, str(brokers.store), 100, lambda: next(worked))
    results = spark_source.measure(bench, 500, 1, said.append)
    assert [result["what"] for result in results] == [*spark_source.ALL]
    for result in results:
        assert 0 < result["per_s"]["low"] <= result["per_s"]["median"] <= result["per_s"]["high"]
        assert result["broker_cpu_us"]["median"] == 1e6 / 500, "a second for each reading"
        is_stream = "stream" in result["what"]
        assert [name in result for name in spark_source.Phases._fields] == 3 * [is_stream]
    assert said[0] == "sending 500 rows"
    assert len(said) == 1 + len(spark_source.ALL) * 2
    with pytest.raises(LoadError, match=r"queue, batch: 0 rows came, there are 500"):
        bench.read(spark_source.BATCH, spark_source.QUEUE, 500)


def test_the_table_shows_each_kind() -> None:
    spread = {"median": 123456.0, "low": 1.0, "high": 2.0}
    phases = {name: {**spread, "median": place} for place, name in enumerate(spark_source.Phases._fields)}
    cpu = {"broker_cpu_us": {**spread, "median": 9.87}}
    results = [
        {"what": spark_source.STREAM, "rows": 10, "per_s": spread, **cpu, **phases},
        {"what": spark_source.BATCH, "rows": 10, "per_s": spread, **cpu},
    ]
    shown = spark_source.table(results, 100)
    cells = [list(column.cells) for column in shown.columns]
    assert cells[0] == [spark_source.STREAM, spark_source.BATCH]
    assert [each[0] for each in cells[1:]] == ["123,456", "1", "2", "9.9", "0.00", "1.00", "2.00"]
    assert [each[1] for each in cells[5:]] == ["", "", ""]
    assert shown.title == "10 rows of 100 B through Spark local[2]"


def test_the_parts_of_a_query() -> None:
    """Two micro-batches of 2 s each, which begin 1 s and 4 s after the query, and one without rows."""
    durations = {"latestOffset": 200, "walCommit": 100, "queryPlanning": 200, "addBatch": 1000, "commitOffsets": 500}
    progress = [
        {"timestamp": f"1970-01-01T00:01:{second:02}.000Z", "numInputRows": rows, "durationMs": durations}
        for second, rows in ((1, 5), (4, 5), (7, 0))
    ]
    found = spark_source.phases_of(progress, 60.0, 68.0)
    assert found == pytest.approx((1.5, 4.0, 2.5))
    assert spark_source.phases_of(progress[2:], 60.0, 68.0) is None
