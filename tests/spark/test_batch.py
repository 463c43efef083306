"""Batch reads as Spark does them, without Spark: pages of queues, from the store or from the broker."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="no PySpark: run make .venv/.installed-test")
pytest.importorskip("pyarrow", reason="no pyarrow: run make .venv/.installed-test")

import pyarrow as pa

import amq
from amq.broker.transactions import direct as broker_direct
from amq.client import Run
from amq.core.errors import ProtocolError
from pyspark_amq import batch
from pyspark_amq.batch import NOT_PERSISTENT, AmqReader, Page, QueuePages, Stretch
from pyspark_amq.columns import tables_of
from pyspark_amq.direct import CHECKSUM
from pyspark_amq.frames import FrameColumns
from pyspark_amq.options import SourceOptions, read
from tests.brokers import Broker, Brokers

QUEUE, ROWS = "/queue/a", 300
ALLOWED = {"directReads": "*"}


def filled(brokers: Brokers, **options: str) -> Broker:
    """A master with rows, some with headers, some with another priority."""
    broker = brokers.master("a", **options)
    with amq.connect(f"stomp://127.0.0.1:{broker.port}") as connection, connection.session() as session:
        producer = session.producer(QUEUE)
        for number in range(ROWS):
            headers = {"correlation-id": f"k{number}", "n": str(number)} if number % 3 == 0 else None
            producer.send(b"%d" % number, headers=headers, priority=4 + (number % 100 == 7), wait=False)
        producer.flush()
    return broker


def rows_of(broker: Broker, **given: str) -> list[dict[str, Any]]:
    found = {"url": f"stomp://127.0.0.1:{broker.port}", "destination": QUEUE, "includeHeaders": "true", **given}
    reader = AmqReader(read(SourceOptions, found))
    parts = pickle.loads(pickle.dumps(reader.partitions()))
    return [row for part in parts for each in reader.read(part) for row in each.to_pylist()]


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pyspark_amq.source")


def told(caplog: pytest.LogCaptureFixture) -> tuple[int, dict[str, int]]:
    """Rows read directly, and by the broker for some reason, of all tasks since the last call."""
    direct, fallback = 0, {}
    for message in caplog.messages:
        facts = json.loads(message)
        direct += facts["direct"]
        for reason, count in facts["fallback"].items():
            fallback[reason] = fallback.get(reason, 0) + count
    caplog.clear()
    return direct, fallback


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["value"]) for row in rows]


def in_order() -> list[int]:
    """As the queue delivers them."""
    return sorted(range(ROWS), key=lambda number: (number % 100 != 7, number))


def test_rows_equal_those_of_the_broker(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    broker = filled(brokers, **ALLOWED)
    wanted = rows_of(broker)
    assert numbers(wanted) == in_order()
    assert told(caplog) == (0, {})
    assert rows_of(broker, store=str(broker.store)) == wanted
    assert told(caplog) == (ROWS, {})
    some = {
        "startingOffsets": json.dumps({QUEUE: wanted[20]["offset"]}),
        "endingOffsets": json.dumps({QUEUE: wanted[250]["offset"]}),
    }
    chosen = [row for row in wanted if wanted[20]["offset"] < row["offset"] <= wanted[250]["offset"]]
    assert rows_of(broker, **some) == rows_of(broker, store=str(broker.store), **some) == chosen
    time = wanted[150]["timestamp"]
    since = str(round(1000 * time.timestamp()))
    later = [row for row in wanted if row["timestamp"] >= time]
    assert rows_of(broker, startingTimestamp=since) == later
    assert rows_of(broker, startingTimestamp=since, store=str(broker.store)) == later
    earlier = [row for row in wanted if row["timestamp"] < time]
    assert rows_of(broker, endingTimestamp=since) == earlier
    assert rows_of(broker, endingTimestamp=since, store=str(broker.store)) == earlier
    assert rows_of(broker, startingTimestamp=since, endingTimestamp=since) == []


def test_null_values_and_headers_of_bytes_are_read_as_they_were_written(brokers: Brokers) -> None:
    """By the broker and from the store, alone and among messages with other headers."""
    broker = brokers.master("a", **ALLOWED)
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    raw = [(None, [("a", b"\xff")]), (b"", []), (b"x", [("a", b"1")]), (None, [])]
    raw += [(None if n % 7 == 0 else b"%d" % n, [(f"h{n % 90}", b"\xfe%d" % n)]) for n in range(200)]
    pairs = [[{"key": key, "value": value} for key, value in each] for _, each in raw]
    frame = pa.record_batch(
        {"value": pa.array([value for value, _ in raw], pa.binary()), "headers": pa.array(pairs, kind)}
    )
    described = FrameColumns(text=False, key=False, destination=False, headers=True, id=None)
    with amq.connect(f"stomp://127.0.0.1:{broker.port}") as connection, connection.session(transacted=True) as session:
        for table in tables_of(frame, described, QUEUE):
            for piece in table.pieces():
                sent = piece.sent()
                assert sent is not None
                session.producer(QUEUE).send_columns(sent)
        session.commit()
    given = {"url": f"stomp://127.0.0.1:{broker.port}", "destination": QUEUE}
    fields = {"value": pa.field("value", pa.binary()), "headers": pa.field("headers", kind)}
    for names in (["value", "headers"], ["value"], ["headers"]):
        wanted = pa.schema([fields[name] for name in names])
        for store in ({}, {"store": str(broker.store)}):
            reader = AmqReader(read(SourceOptions, given | store), wanted)
            rows = [row for part in reader.partitions() for each in reader.read(part) for row in each.to_pylist()]
            columns = {"value": [value for value, _ in raw], "headers": pairs}
            assert rows == [{name: columns[name][place] for name in names} for place in range(len(raw))]


def test_a_queue_is_cut_into_pages(brokers: Brokers) -> None:
    """Of a broker whose pages have 10,000 messages at most: 25,000 messages are at least three pages."""
    broker = brokers.master("a", **ALLOWED)
    count = 2 * broker_direct.ROWS_MAX + 5000
    url = f"stomp://127.0.0.1:{broker.port}"
    with amq.connect(url) as connection, connection.session(transacted=True) as session:
        session.producer(QUEUE).send_many([b"%d" % number for number in range(count)])
        session.commit()
    for store in ({}, {"store": str(broker.store)}):
        given = {"url": url, "destination": QUEUE, "minPartitions": "3", **store}
        reader = AmqReader(read(SourceOptions, given))
        parts = reader.partitions()
        assert len(parts) == 3
        found = [[int(value) for each in reader.read(part) for value in each["value"].to_pylist()] for part in parts]
        assert [number for part in found for number in part] == list(range(count))
        assert all(found)


def test_a_part_that_is_read_twice_is_the_same(brokers: Brokers) -> None:
    """Spark repeats a task; meanwhile new messages came."""
    broker = filled(brokers)
    url = f"stomp://127.0.0.1:{broker.port}"
    reader = AmqReader(read(SourceOptions, {"url": url, "destination": QUEUE}))
    (part,) = reader.partitions()
    assert isinstance(part, QueuePages)
    first = [row for each in reader.read(part) for row in each.to_pylist()]
    with amq.connect(url) as connection, connection.session() as session:
        session.producer(QUEUE).send("new", priority=9)
        session.producer(QUEUE).send("new")
    assert [row for each in reader.read(part) for row in each.to_pylist()] == first


def test_what_the_store_does_not_show_comes_from_the_broker(
    brokers: Brokers, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    broker = filled(brokers, **ALLOWED)
    mount = tmp_path / "mount"
    shutil.copytree(broker.store, mount)
    for segment in (mount / "journal").glob("*.seg"):
        data = bytearray(segment.read_bytes())
        at = data.index(b'n": "150"')  # in the properties of a message
        data[at + 5] ^= 1
        segment.write_bytes(data)
    assert numbers(rows_of(broker, store=str(mount))) == in_order()
    direct, fallback = told(caplog)
    assert (direct + sum(fallback.values()), list(fallback)) == (ROWS, [CHECKSUM])
    assert numbers(rows_of(broker, store=str(tmp_path / "none"))) == in_order()
    assert told(caplog) == (0, {"no-mount": ROWS})


def test_a_user_without_the_right_gets_them_from_the_broker(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    broker = filled(brokers)
    assert numbers(rows_of(broker, store=str(broker.store))) == in_order()
    assert told(caplog) == (0, {"not-permitted": ROWS})


def test_messages_that_are_not_stored_come_from_the_broker(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    broker = brokers.master("a", **ALLOWED)
    with amq.connect(f"stomp://127.0.0.1:{broker.port}") as connection, connection.session() as session:
        producer = session.producer(QUEUE)
        for number in range(10):
            producer.send(b"%d" % number, persistent=number % 2 == 0)
    assert numbers(rows_of(broker, store=str(broker.store))) == list(range(10))
    assert told(caplog) == (0, {NOT_PERSISTENT: 10})


def test_a_queue_without_messages_and_a_pattern(brokers: Brokers) -> None:
    broker = filled(brokers, **ALLOWED)
    assert rows_of(broker, destination="/queue/none") == []
    assert rows_of(broker, destination="/queue/b.>", store=str(broker.store)) == []
    assert numbers(rows_of(broker, destination="/queue/>", store=str(broker.store))) == in_order()


def test_a_page_of_an_old_broker_is_refused() -> None:
    for body in (b"17", b"{}", b"text", b'{"first": 1, "last": 2}'):
        with pytest.raises(ProtocolError, match="does not know pages"):
            Page.parse(body)


def test_pages_are_cut_by_bytes() -> None:
    pages = [Page(QUEUE, (4, n), (4, n), 1, size, None) for n, size in enumerate([100, 100, 100, 900, 100, 100])]
    found = [[page.size for page in part] for part in batch.cut(pages, 700)]
    assert [size for part in found for size in part] == [page.size for page in pages]
    assert len(found) == 2
    assert list(batch.cut([], 10)) == []


def test_a_takeover_repeats_nothing(brokers: Brokers) -> None:
    """The next master begins the browse again."""
    master, slave = filled(brokers), brokers.slave("b")
    url = f"failover:(stomp://127.0.0.1:{master.port},stomp://127.0.0.1:{slave.port})"
    given = {"url": url, "destination": QUEUE, "prefetch": "20", "minPartitions": "1"}
    reader = AmqReader(read(SourceOptions, given))
    (part,) = reader.partitions()
    batches = reader.read(part)
    first = next(batches)
    assert 0 < first.num_rows < ROWS
    master.kill()
    found = [row for each in (first, *batches) for row in each.to_pylist()]
    assert numbers(found) == in_order()


def test_stretches_that_follow_each_other_are_one_browse() -> None:
    run = Run("/queue/a", "", [1], memoryview(b""), {})
    parts = [Stretch("a", (4, n), (4, n)) for n in range(4)] + [Stretch("b", (4, 4), (4, 9))]
    found = [*batch.joined([parts[0], parts[1], run, run, parts[2], parts[3], parts[4]])]
    assert found == [
        Stretch("a", (4, 0), (4, 1)),
        run,
        run,
        Stretch("a", (4, 2), (4, 3)),
        Stretch("b", (4, 4), (4, 9)),
    ]
    assert [*batch.joined([])] == []
