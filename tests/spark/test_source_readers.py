"""The source as Spark's driver and tasks call it, with real brokers and without Spark."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="no PySpark: run make .venv/.installed-test")
pytest.importorskip("pyarrow", reason="no pyarrow: run make .venv/.installed-test")

import amq
from amq.errors import ConfigError
from pyspark_amq.data_source import AmqDataSource
from pyspark_amq.messages import schema
from pyspark_amq.options import SourceOptions, read
from pyspark_amq.source import AmqReader, AmqStreamReader, CursorTakenError
from tests.brokers import Brokers

QUEUE = "/queue/a"


def options(**given: str) -> SourceOptions:
    return read(SourceOptions, {"url": "stomp://127.0.0.1:1", "destination": QUEUE, **given})


def rows(reader: AmqStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """What tasks read, each with a copy of the reader."""
    parts = pickle.loads(pickle.dumps(list(reader.partitions(start, end))))
    copy = pickle.loads(pickle.dumps(reader))
    return [int(row["value"]) for part in parts for batch in copy.read(part) for row in batch.to_pylist()]


def test_the_newer_query_has_the_cursor_also_on_the_next_master(brokers: Brokers) -> None:
    master, slave = brokers.master("a"), brokers.slave("b")
    where = f"failover:(stomp://127.0.0.1:{master.port},stomp://127.0.0.1:{slave.port})"
    with amq.connect(where) as connection, connection.session() as session:
        producer = session.producer(QUEUE)
        for number in range(30):
            producer.send(str(number))
    given = options(url=where, subscription="c", maxOffsetsPerTrigger="20")
    first, second = AmqStreamReader(given), AmqStreamReader(given)
    start = first.initialOffset()
    end = first.latestOffset(start, first.getDefaultReadLimit())
    assert rows(first, start, end) == list(range(20))
    planned = first.partitions(start, end)
    assert second.latestOffset(second.initialOffset(), second.getDefaultReadLimit()) == end
    master.kill()
    with pytest.raises(CursorTakenError, match=r"another query, started later, reads /queue/a .* subscription 'c'"):
        first.commit(end)
    with pytest.raises(CursorTakenError):
        list(first.read(planned[0]))
    assert rows(second, start, end) == list(range(20))
    second.commit(end)
    last = second.latestOffset(end, second.getDefaultReadLimit())
    assert rows(second, end, last) == list(range(20, 30))
    for reader in (first, second):
        reader.stop()


@pytest.mark.parametrize("name", ["minPartitions", "maxOffsetsPerTrigger"])
def test_options_of_streams_are_refused_in_a_batch_read(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"option '{name}' is for streams: a batch read has one partition for each"):
        AmqReader(options(**{name: "8"}))


@pytest.mark.parametrize("destination", ["/queue/>", "/queue/b,/queue/orders.*", "queue://>"])
def test_a_stream_of_a_pattern_of_queues_is_refused(destination: str) -> None:
    with pytest.raises(ConfigError, match="a stream cannot lease from a pattern of queues"):
        AmqStreamReader(options(destination=destination, subscription="c"))
    AmqStreamReader(options(destination="/topic/prices.>", subscription="c"))
    AmqReader(options(destination=destination))


def test_a_schema_that_is_not_ours_is_refused() -> None:
    source = AmqDataSource({"url": "stomp://127.0.0.1:1", "destination": QUEUE, "subscription": "c"})
    source.reader(source.schema())
    for make in (source.reader, source.streamReader):
        with pytest.raises(ConfigError, match=r"its own columns \(key string, .*, and was given struct<"):
            make(schema(include_headers=True))
