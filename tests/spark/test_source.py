"""The source under Spark, with real brokers, hurt at each step. Always the whole set is compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import amq
from amq.core.errors import CommandError
from pyspark_amq import options
from pyspark_amq.batch import AmqReader
from tests.brokers import ROOT, Broker, Brokers
from tests.patience import DEADLINE_S
from tests.spark.source_driver import patiently

QUEUE = "/queue/a"
SPARK_DEADLINE_S = 180.0  # a JVM starts in that time on the slowest machine


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    (tmp_path / "brokers").mkdir()
    with Brokers(tmp_path / "brokers") as brokers:
        yield brokers


def url(*brokers: Broker) -> str:
    return f"failover:({','.join(f'stomp://127.0.0.1:{broker.port}' for broker in brokers)})"


def send(where: str, numbers: Iterable[int], destination: str = QUEUE, **fields: Any) -> None:
    with amq.connect(where) as connection, connection.session() as session:
        producer = session.producer(destination)
        for number in numbers:
            producer.send(b"%d" % number, wait=False, **fields)
        producer.flush()


def left(where: str, destination: str = QUEUE) -> list[int]:
    """What consumers could get."""
    with amq.connect(where) as connection, connection.session() as session:
        browser, found = session.browser(destination), []
        while (message := browser.receive(DEADLINE_S)) is not None:
            found.append(int(message.body))
        assert browser.finished
    return found


def values(frame: Any) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


class Stream:
    """A stream whose batches `work` gets. `seen`: what it saw of each batch, attempt by attempt."""

    def __init__(self, spark: Any, tmp_path: Path, where: str, **options: str) -> None:
        self._spark = spark
        self.checkpoint = str(tmp_path / "checkpoint")
        self.options = {"url": where, "destination": QUEUE, "subscription": "c", **options}
        self.seen: dict[int, list[list[int]]] = {}
        self.work: Callable[[Any, int], None] = lambda _frame, _batch: None

    def run(self, *, available_now: bool = False, **options: str) -> Any:
        """Until everything is read. Raises what the query died of."""
        return patiently(lambda: self._run(available_now, options))

    def _run(self, available_now: bool, options: dict[str, str]) -> Any:
        stream = self._spark.readStream.format("amq").options(**{**self.options, **options}).load()
        writer = stream.writeStream.foreachBatch(self._batch).option("checkpointLocation", self.checkpoint)
        query = (writer.trigger(availableNow=True) if available_now else writer).start()
        try:
            if available_now:
                assert query.awaitTermination(SPARK_DEADLINE_S)
            else:
                query.processAllAvailable()
        finally:
            query.stop()
        return query

    def _batch(self, frame: Any, batch: int) -> None:
        self.seen.setdefault(batch, []).append(values(frame))
        self.work(frame, batch)

    def read(self) -> list[int]:
        """What the last attempts of all batches saw."""
        return sorted(value for attempts in self.seen.values() for value in attempts[-1])


def test_a_stream_through_failures(spark: Any, brokers: Brokers, tmp_path: Path) -> None:
    """A consumer works beside it, the master is killed while a batch runs, the next one fails and is run again."""
    master, slave = brokers.master("a"), brokers.slave("b")
    where = url(master, slave)
    send(where, range(6000))
    stream = Stream(spark, tmp_path, where, maxOffsetsPerTrigger="2000", minPartitions="3")
    consumed: list[int] = []

    def work(frame: Any, batch: int) -> None:
        attempts = stream.seen[batch]
        if batch == 0:
            assert frame.rdd.getNumPartitions() == 3
            with amq.connect(where) as connection, connection.session(ack="auto") as session:
                consumer = session.consumer(QUEUE, prefetch=10)
                consumed.extend(
                    int(message.body)
                    for message in (consumer.receive(DEADLINE_S) for _ in range(300))
                    if message is not None
                )
        if batch == 1:
            master.kill()
            assert values(frame) == attempts[0], "another batch on the next master"
        if batch == 2 and len(attempts) == 1:
            raise RuntimeError("this batch fails")

    stream.work = work
    with pytest.raises(Exception, match="this batch fails"):
        stream.run()
    stream.run()
    assert stream.seen[2][0] == stream.seen[2][1], "another batch after the restart"
    assert [len(stream.seen[batch][-1]) for batch in range(3)] == [2000, 2000, 1700]
    assert len(consumed) == 300
    assert sorted(stream.read() + consumed) == list(range(6000))
    assert left(where) == []
    send(where, range(6000, 6010))
    query = stream.run()
    assert sorted(stream.read() + consumed) == list(range(6010))
    with amq.connect(where) as connection:
        assert connection.recover() == [], "what was done is acknowledged"
    told = json.loads(query.lastProgress["sources"][0]["latestOffset"] or "")
    assert told.pop("leased") in (10, 0), "of the last batch, or of the question behind it"
    assert told == {"subscription": "c", "waiting": {QUEUE: 0}, "waitingBytes": {QUEUE: 0}}


def test_a_driver_that_is_killed(spark: Any, brokers: Brokers, tmp_path: Path) -> None:
    """kill -9 of the driver, in the middle of a batch; the next one reads that batch again."""
    where = url(brokers.master("a"))
    send(where, range(3000))
    stream = Stream(spark, tmp_path, where, maxOffsetsPerTrigger="1000")
    told = tmp_path / "told"
    told.mkdir()
    given = {
        "directory": str(tmp_path / "driver"),
        "options": stream.options,
        "checkpoint": stream.checkpoint,
        "die_in": 1,
        "told": str(told),
    }
    command = [sys.executable, "-m", "tests.spark.source_driver", json.dumps(given)]
    driver = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        assert driver.wait(SPARK_DEADLINE_S) == -signal.SIGKILL
        gone = threading.Event()
        for _ in range(1000):  # its JVM notices, and ends itself
            try:
                os.killpg(driver.pid, 0)
            except ProcessLookupError:
                break
            gone.wait(SPARK_DEADLINE_S / 1000)
        else:
            raise AssertionError("the JVM outlives its driver")
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
    assert left(where) == list(range(2000, 3000))
    stream.run()
    assert sorted(stream.seen) == [1, 2]
    for batch in (0, 1):
        stream.seen.setdefault(batch, []).insert(0, json.loads((told / f"{batch}.json").read_text()))
    assert stream.seen[1][0] == stream.seen[1][1]
    assert stream.read() == list(range(3000))


def test_a_durable_subscription_and_what_is_lost(spark: Any, brokers: Brokers, tmp_path: Path) -> None:
    master = brokers.master("a")
    where, topic = url(master), "/topic/t"
    stream = Stream(spark, tmp_path, where, destination=topic, startingOffsets="latest")
    stream.run(available_now=True)
    assert stream.read() == []
    send(where, range(500), topic)
    stream.run(available_now=True)
    assert stream.read() == list(range(500))

    def fail(_frame: Any, _batch: int) -> None:
        raise RuntimeError("this batch fails")

    stream.work = fail
    send(where, range(500, 900), topic)
    with pytest.raises(Exception, match="this batch fails"):
        stream.run()
    (last,) = sorted(stream.seen)[-1:]
    with amq.connect(where) as connection:  # somebody gives back what the query had
        connection.settle(topic, "c", (1 << 63) - 1, acknowledge=False)
    stream.work = lambda _frame, _batch: None
    with pytest.raises(Exception, match=r"lease \d+ of /topic/t is over"):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert stream.seen[last][-1] == []
    assert stream.read() == list(range(900)), "what was given back comes in a later batch"


def test_a_batch_read(spark: Any, brokers: Brokers) -> None:
    where = url(brokers.master("a"))
    send(where, range(10))
    send(where, range(10, 20), priority=9, headers={"correlation-id": "k", "colour": "red"})
    send(where, range(20, 25), "/queue/b")

    def read(**options: str) -> Any:
        return spark.read.format("amq").options(url=where, destination=f"{QUEUE},/queue/b", **options).load()

    rows = patiently(lambda: read(includeHeaders="true").collect())
    assert [int(row.value) for row in rows if row.destination == QUEUE] == [*range(10, 20), *range(10)]
    assert sorted(int(row.value) for row in rows) == list(range(25))
    assert {row.key for row in rows} == {"k", None}
    assert {row.headers.get("colour") for row in rows} == {"red", None}
    assert not any(row.redelivered for row in rows)
    assert {row.timestamp.year for row in rows} == {rows[0].timestamp.year}
    by_value = {int(row.value): row for row in rows}
    assert all(row.messageId.endswith(f"-{row.offset}") for row in rows)
    bounds = {QUEUE: by_value[3].offset}, {QUEUE: by_value[7].offset, "/queue/b": by_value[21].offset}
    found = read(startingOffsets=json.dumps(bounds[0]), endingOffsets=json.dumps(bounds[1]))
    assert patiently(lambda: values(found)) == [4, 5, 6, 7, 20, 21]
    assert patiently(lambda: read(startingTimestamp="32503680000000").count()) == 0
    assert len(left(where)) == 20, "nothing is taken"
    with pytest.raises(Exception, match="option 'destination' must be a queue for a batch read"):
        spark.read.format("amq").options(url=where, destination="/topic/t").load().collect()


def test_a_batch_read_of_a_durable_subscription(brokers: Brokers) -> None:
    """As Spark's tasks do it, without Spark."""
    master, slave = brokers.master("a"), brokers.slave("b")
    where, topic = url(master, slave), "/topic/t"
    with amq.connect(where) as connection, connection.session() as session:
        session.consumer(topic, prefetch=0, subscription="etl").close()
    send(where, range(10), topic)
    send(where, range(10, 15))

    def read(destination: str, subscription: str) -> list[tuple[str, int]]:
        given = {"url": where, "destination": destination, "subscription": subscription, "prefetch": "3"}
        reader = AmqReader(options.read(options.SourceOptions, given))
        rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        return [(row["destination"], int(row["value"])) for row in rows]

    both = [*((topic, number) for number in range(10)), *((QUEUE, number) for number in range(10, 15))]
    assert read(f"{topic},{QUEUE}", "etl") == both
    master.kill()
    assert read(f"{topic},{QUEUE}", "etl") == both, "nothing was taken"
    with pytest.raises(CommandError, match="no durable subscription 'none'"):
        read(topic, "none")


def test_a_batch_read_of_a_pattern(brokers: Brokers) -> None:
    """Queue by queue: the second has messages that are older than the last ones of the first."""
    where = url(brokers.master("a"))
    for number in range(20):
        send(where, [number], f"/queue/p.{number % 2}")
    given = {"url": where, "destination": "/queue/p.>", "prefetch": "3"}
    reader = AmqReader(options.read(options.SourceOptions, given))
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert sorted(int(row["value"]) for row in rows) == list(range(20))


def test_what_a_batch_read_or_a_stream_cannot_do_is_refused(spark: Any) -> None:
    given = {"url": "stomp://127.0.0.1:1", "destination": QUEUE}

    def refused(**more: str) -> str:
        with pytest.raises(Exception) as caught:
            spark.read.format("amq").options(**given, **more).load().collect()
        return str(caught.value)

    assert "option 'maxOffsetsPerTrigger' is for streams: a batch read reads all" in refused(maxOffsetsPerTrigger="8")
    for text in (_of_schema(spark.read, given), _of_schema(spark.readStream, {**given, "subscription": "c"})):
        assert "column 'value' of format amq cannot be bigint: it has key string or binary, value binary or" in text


def test_sql_reads_a_view_and_makes_no_table(spark: Any, brokers: Brokers) -> None:
    where = url(brokers.master("a"))
    send(where, range(10))
    given = f"USING amq OPTIONS (url '{where}', destination '{QUEUE}')"
    spark.sql(f"CREATE TEMPORARY VIEW seen {given}")
    assert patiently(lambda: spark.sql("SELECT COUNT(*) AS rows FROM seen").collect())[0].rows == 10
    no_table = "CREATE TABLE … USING `amq` does not work: .* Write CREATE TEMPORARY VIEW"
    with pytest.raises(Exception, match=no_table):
        spark.sql(f"CREATE TABLE kept {given}")
    with pytest.raises(Exception, match="CREATE TABLE … USING `amq-journal` does not work"):
        spark.sql("CREATE TABLE kept USING `amq-journal` OPTIONS (path '/nowhere')")
    columns = ", ".join(f"{name} {kind}" for name, kind in spark.table("seen").dtypes)
    spark.sql(f"CREATE TABLE kept ({columns}) {given}")  # Spark asks no format about it
    try:
        with pytest.raises(Exception, match=no_table):
            spark.sql("SELECT * FROM kept").collect()
        with pytest.raises(Exception, match=no_table):
            spark.sql("INSERT INTO kept SELECT * FROM seen")
        spark.sql(f"CREATE TEMPORARY VIEW sent (value STRING) {given}")
        spark.sql("INSERT INTO sent VALUES ('10')")
        assert left(where) == list(range(11))
    finally:
        spark.sql("DROP TABLE kept")
        spark.catalog.dropTempView("seen")
        spark.catalog.dropTempView("sent")


def _of_schema(reader: Any, given: dict[str, str]) -> str:
    """What is said of a schema that is not ours."""
    with pytest.raises(Exception) as caught:
        frame = reader.format("amq").schema("value long").options(**given).load()
        if frame.isStreaming:
            _start(frame)
        else:
            frame.collect()
    return str(caught.value)


def test_a_stream_that_cannot_begin_ends_with_the_reason(spark: Any) -> None:
    frame = spark.readStream.format("amq").options(url="stomp://127.0.0.1:1", destination=QUEUE).load()
    with pytest.raises(Exception, match="option 'subscription' is missing: it must name the cursor of the stream"):
        _start(frame)


def _start(stream: Any) -> None:
    query = stream.writeStream.format("noop").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
