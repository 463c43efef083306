"""The source as Spark's driver and tasks call it, with real brokers and without Spark."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="no PySpark: run make .venv/.installed-test")
pytest.importorskip("pyarrow", reason="no pyarrow: run make .venv/.installed-test")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

import amq
from amq.core.errors import ConfigError
from pyspark_amq import connections
from pyspark_amq.batch import AmqReader
from pyspark_amq.data_source import AmqDataSource
from pyspark_amq.leases import CursorTakenError
from pyspark_amq.messages import schema
from pyspark_amq.options import SourceOptions, read
from pyspark_amq.source import AmqStreamReader
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


OF_STREAMS = {
    "maxOffsetsPerTrigger": "8",
    "maxBytesPerTrigger": "8",
    "minOffsetsPerTrigger": "8",
}


@pytest.mark.parametrize("name", OF_STREAMS)
def test_options_of_streams_are_refused_in_a_batch_read(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"option '{name}' is for streams: a batch read reads all messages"):
        AmqReader(options(**{name: OF_STREAMS[name]}))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"startingTimestamp": "7"},
            r"'startingTimestamp' is for batch reads: .*where\(\"timestamp >= …\"\).*, got '7'",
        ),
        ({"endingTimestamp": "7"}, r"'endingTimestamp' is for batch reads: .*where\(\"timestamp < …\"\)"),
        ({"endingOffsets": '{"/queue/a": 7}'}, "'endingOffsets' is for batch reads, not for streams"),
        ({"startingOffsets": "latest"}, "'startingOffsets' must be earliest or JSON for a queue"),
        ({"startingOffsets": '{"/queue/a": 7}'}, "'startingOffsets' must be an offset of a stream, with leases"),
        ({"subscription": ""}, "'subscription' must not be empty"),
        ({"destination": "/queue/"}, "'destination' must be a destination"),
    ],
)
def test_a_stream_that_cannot_be_read_ends_in_its_first_call(given: dict[str, str], why: str) -> None:
    where = {"url": "stomp://127.0.0.1:1", "destination": QUEUE, "subscription": "c"}
    with pytest.raises(ConfigError, match=why):
        AmqDataSource(where | given).streamReader(schema(include_headers=False)).initialOffset()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"startingOffsets": "latest"}, "'startingOffsets' must be earliest or JSON for a batch read"),
        ({"endingOffsets": "earliest"}, "'endingOffsets' must be latest or JSON"),
        ({"startingOffsets": '{"v": 1}'}, "'startingOffsets' must have numbers of messages by destination"),
        (
            {"startingOffsets": '{"/queue/b": 1}'},
            "'startingOffsets' names '/queue/b', which the option destination does",
        ),
        ({"endingOffsets": '{"/queue/a": "x"}'}, "'endingOffsets' must have numbers by destination"),
        ({"destination": "/topic/t"}, "'destination' must be a queue for a batch read, or come with .* subscription"),
        ({"endingTimestamp": "7", "endingOffsets": '{"/queue/a": 7}'}, "excludes endingOffsets"),
    ],
)
def test_a_batch_read_that_cannot_be_done_ends_before_it_connects(given: dict[str, str], why: str) -> None:
    where = {"url": "stomp://127.0.0.1:1", "destination": QUEUE}
    with pytest.raises(ConfigError, match=why):
        AmqDataSource(where | given).reader(schema(include_headers=False)).partitions()


def test_a_schema_is_a_projection() -> None:
    source = AmqDataSource({"url": "stomp://127.0.0.1:1", "destination": QUEUE, "subscription": "c"})
    pairs = "headers array<struct<key:string,value:binary>>"
    for make in (source.reader, source.streamReader):
        all_of_them = schema(include_headers=True)
        for given in (source.schema(), all_of_them, "value binary", f"offset long, key binary, {pairs}"):
            wanted = given if isinstance(given, StructType) else parsed(given)
            assert make(wanted)._wanted.names == wanted.names


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("value binary, topic string", "format amq has no column 'topic': it has key string or binary, value binary"),
        ("offset int", "column 'offset' of format amq cannot be int"),
        ("headers map<string,binary>", r"column 'headers' of format amq cannot be map<string,binary>"),
        ("value binary not null", "column 'value' of format amq may be null: leave NOT NULL out"),
    ],
)
def test_a_schema_that_is_not_ours_is_refused(given: str, why: str) -> None:
    source = AmqDataSource({"url": "stomp://127.0.0.1:1", "destination": QUEUE, "subscription": "c"})
    with pytest.raises(ConfigError, match=why):
        source.reader(parsed(given))
    with pytest.raises(ConfigError, match=why):
        source.streamReader(parsed(given)).initialOffset()


def parsed(text: str) -> StructType:
    """`text` as a schema, without a JVM."""
    kinds: dict[str, DataType] = {
        "binary": BinaryType(),
        "string": StringType(),
        "long": LongType(),
        "int": IntegerType(),
        "map<string,binary>": MapType(StringType(), BinaryType()),
        "array<struct<key:string,value:binary>>": ArrayType(StructType().add("key", "string").add("value", "binary")),
    }
    fields = StructType()
    for field in text.split(", "):
        name, kind = field.removesuffix(" not null").split(" ", 1)
        fields.add(name, kinds[kind], not field.endswith(" not null"))
    return fields


def test_a_stream_reads_the_queues_of_a_pattern(brokers: Brokers) -> None:
    """Also one that is made later, and one of which only a lease is left."""
    broker = brokers.master("a")
    url = f"stomp://127.0.0.1:{broker.port}"

    def send(numbers: range, queue: str) -> None:
        with amq.connect(url) as connection, connection.session() as session:
            for number in numbers:
                session.producer(queue).send(str(number))

    send(range(10), "/queue/eu.a")
    send(range(10), "/queue/us.a")
    given = options(url=url, destination="/queue/eu.>", subscription="c")
    reader = AmqStreamReader(given)
    start = reader.initialOffset()
    assert start["at"] == {}
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert rows(reader, start, end) == list(range(10))
    send(range(10, 20), "/queue/eu.b")
    reader._idle_until = 0.0
    last = reader.latestOffset(end, reader.getDefaultReadLimit())
    assert rows(reader, end, last) == list(range(10, 20))
    assert set(last["at"]) == {"/queue/eu.a", "/queue/eu.b"}
    reader.stop()
    again = AmqStreamReader(given)
    assert rows(again, start, again.latestOffset(start, again.getDefaultReadLimit())) == list(range(20))
    again.commit(last)
    with amq.connect(url) as connection:
        assert connection.recover() == []
    again.stop()


def test_the_connection_of_a_task_is_kept_for_the_next(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = brokers.master("a")
    made: list[object] = []
    known = connections._connect
    monkeypatch.setattr(connections, "_connect", lambda given: made.append(given) or known(given))
    given = options(url=f"stomp://127.0.0.1:{broker.port}", subscription="c")
    for _ in range(3):
        with connections.connected(given) as connection:
            assert connection.lease(QUEUE, "c", messages=0).waiting == 0
    assert len(made) == 1
    with pytest.raises(RuntimeError), connections.connected(given):
        raise RuntimeError("a task fails")
    assert connection.closed, "it may be in the middle of something"
    with connections.connected(given) as connection:
        pass
    assert len(made) == 2
    connections.forget()
    assert connection.closed
