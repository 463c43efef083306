"""What Spark costs where there are next to no rows: the time of a short query from its start to its end, and of one
micro-batch after the other, beside Spark's floor.

Floors: Spark's own `rate-micro-batch` into its sink that drops rows; and a source in Python that asks nobody, for what
Spark needs to call Python. Beside them `format("amq")` as a source, by socket and direct, and as a sink. Ways take
turns. A query reads all rows in one micro-batch (`Trigger.AvailableNow`); the micro-batches are those of another query,
without the first, which warms up. Processor times tell more than the clock on a busy machine.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.table import Table

import amq
from amq.core.errors import AmqError
from bench import brokers, cli, host
from bench.load import LoadError
from bench.spark_kafka import spark_cpu_s
from bench.spark_source import CURSOR, LEASES_ALL
from bench.stats import Spread, spread
from tests.spark.session import environment, start, stop_jvm, why_no_spark

EXAMPLES = ("--quick", "--trials 9 --json fixed.json")
RATE, PYTHON = "Spark's floor", "floor of a source in Python"
SOCKET, DIRECT, SINK = "source by socket", "source direct", "sink exactly once"
ALL = (RATE, PYTHON, SOCKET, DIRECT, SINK)
QUERY_ROWS, BATCH_ROWS, BATCHES = 1000, 100, 10
TIMEOUT_S = 300.0
LOOK_S = 0.005
QUERY_GOAL_S, BATCH_GOAL_MS = 1.0, 60.0


class Fixed(NamedTuple):
    """Of one turn: a query, a micro-batch, and the processor time of a micro-batch in Spark's JVM and in Python."""

    query_s: float
    batch_ms: float
    jvm_ms: float
    python_ms: float


def asking_nobody(spark: Any) -> None:
    """Register a source in Python, `asking-nobody`, whose rows come from no server."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Empty(DataSourceStreamReader):
        def __init__(self, options: Any) -> None:
            self._rows, self._most, self._given = int(options["rows"]), int(options["most"]), 0

        def initialOffset(self) -> dict[str, int]:
            return {"row": 0}

        def latestOffset(self) -> dict[str, int]:
            self._given = min(self._rows, self._given + self._most)
            return {"row": self._given}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Any]:
            return [InputPartition((end["row"] - start["row"]) // 2)] * 2

        def read(self, partition: Any) -> Iterator[Any]:
            import pyarrow as pa

            yield pa.RecordBatch.from_arrays([pa.array([b"x" * 100] * partition.value, pa.binary())], ["value"])

    class AskingNobody(DataSource):
        @classmethod
        def name(cls) -> str:
            return "asking-nobody"

        def schema(self) -> str:
            return "value binary"

        def streamReader(self, schema: Any) -> Any:  # noqa: ARG002
            return Empty(self.options)

    spark.dataSource.register(AskingNobody)


class FixedBench:
    """A Spark and a broker. `jvm` = the process of Spark."""

    def __init__(self, spark: Any, jvm: int, url: str, store: str) -> None:
        self._spark = spark
        self._jvm = jvm
        self._url = url
        self._store = store
        self._queues = 0

    def turn(self, what: str) -> Fixed:
        """Raises LoadError, AmqError."""
        with self._writer(what, QUERY_ROWS, QUERY_ROWS) as writer:
            began_s = time.monotonic()
            query = writer.trigger(availableNow=True).start()
            if not query.awaitTermination(TIMEOUT_S):
                raise LoadError(f"{what}: the query does not end")
            query_s = time.monotonic() - began_s
        with self._writer(what, BATCH_ROWS * (BATCHES + 1), BATCH_ROWS) as writer:
            query = writer.trigger(processingTime="0 seconds").start()
            self._wait(query, 1)
            before = spark_cpu_s(self._jvm)
            first = len(done_of(query))
            done = self._wait(query, BATCHES + 1)
            jvm_s, python_s = (now - then for now, then in zip(spark_cpu_s(self._jvm), before, strict=True))
            query.stop()
        batches = len(done) - first
        times = [each["durationMs"]["triggerExecution"] for each in done[1:]]
        return Fixed(query_s, median(times), 1e3 * jvm_s / batches, 1e3 * python_s / batches)

    def _wait(self, query: Any, count: int) -> list[Any]:
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(done := done_of(query)) < count:
            if time.monotonic() > deadline_s or not query.isActive:
                raise LoadError(f"{len(done)} of {count} micro-batches ended: {query.exception()}")
            time.sleep(LOOK_S)
        return done

    @contextlib.contextmanager
    def _writer(self, what: str, rows: int, most: int) -> Iterator[Any]:
        """A stream that is ready to start, of `rows` rows, `most` in a micro-batch."""
        self._queues += 1
        queue = f"/queue/fixed.{self._queues}"
        reads = what in (SOCKET, DIRECT)
        if reads:
            with amq.connect(self._url) as connection, connection.session() as session:
                producer = session.producer(queue)
                for _ in range(rows):
                    producer.send(b"x" * 100, wait=False)
                producer.flush()
        writer = self._source(what, queue, rows, most).load().selectExpr("CAST(value AS STRING) AS value").writeStream
        given = {"url": self._url, "destination": queue}
        writer = writer.format("amq").options(**given) if what == SINK else writer.format("noop")
        with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as checkpoint:
            yield writer.option("checkpointLocation", checkpoint)
        if reads:
            with amq.connect(self._url) as connection:
                connection.settle(queue, CURSOR, LEASES_ALL)

    def _source(self, what: str, queue: str, rows: int, most: int) -> Any:
        reader = self._spark.readStream
        if what in (RATE, SINK):
            return reader.format("rate-micro-batch").options(rowsPerBatch=most, numPartitions=2)
        if what == PYTHON:
            return reader.format("asking-nobody").options(rows=rows, most=most)
        direct = {"store": self._store} if what == DIRECT else {}
        given = {"url": self._url, "destination": queue, "subscription": CURSOR, **direct}
        return reader.format("amq").options(**given, maxOffsetsPerTrigger=most)


def done_of(query: Any) -> list[Any]:
    """The progress of each micro-batch that had rows."""
    return [each for each in query.recentProgress if each["numInputRows"]]


def measure(bench: FixedBench, trials: int, progress: Callable[[str], None]) -> dict[str, dict[str, dict[str, float]]]:
    """By way and figure: the spread over `trials` turns, after one to warm up. Raises LoadError, AmqError."""
    found: dict[str, list[Fixed]] = {what: [] for what in ALL}
    for number in range(trials + 1):
        for what in ALL:
            turn = bench.turn(what)
            progress(f"{number} of {trials}: {what}: {turn.query_s:.2f} s, {turn.batch_ms:.0f} ms")
            if number:
                found[what].append(turn)
    return {
        what: {name: spread([getattr(turn, name) for turn in turns])._asdict() for name in Fixed._fields}
        for what, turns in found.items()
    }


def table(found: dict[str, dict[str, dict[str, float]]]) -> Table:
    shown = Table(title=f"a query of {QUERY_ROWS:,} rows; micro-batches of {BATCH_ROWS}; Spark local[2]; medians")
    headings = ("", "query s", "lowest", "highest", "micro-batch ms", "over the floor", "CPU ms: JVM", "Python")
    for heading in headings:
        shown.add_column(heading, justify="right" if heading else "left")
    least = found[RATE]["batch_ms"]["median"]
    for what, figures in found.items():
        query, batch = Spread(**figures["query_s"]), figures["batch_ms"]["median"]
        cpu = (f"{figures[name]['median']:.0f}" for name in ("jvm_ms", "python_ms"))
        shown.add_row(what, *(f"{value:.2f}" for value in query), f"{batch:.0f}", f"{batch - least:+.0f}", *cpu)
    return shown


def run(trials: int, directory: str | None, options: dict[str, str]) -> dict[str, dict[str, dict[str, float]]]:
    """`measure` with a broker and a separate Spark."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=directory)))
        group = brokers.BrokerGroup("amq", directory=directory, options={"directReads": "*", **options})
        broker = stack.enter_context(group).wait_master()
        os.environ.update(environment(home, quick=False))
        cli.progress("starting Spark")
        spark = start(home, "local[2]")
        stack.callback(stop_jvm)
        stack.callback(spark.stop)
        asking_nobody(spark)
        url = f"failover:(stomp://127.0.0.1:{broker.port})"
        jvm = spark.sparkContext._gateway.proc.pid
        return measure(FixedBench(spark, jvm, url, str(broker.store)), trials, cli.progress)


def main() -> None:
    parser = cli.parser("spark_fixed", __doc__, EXAMPLES, peers=False)
    parser.add_argument("--trials", type=int, default=5, help="default %(default)s")
    args = parser.parse_args()
    cli.terminate_on_signal()
    if why := why_no_spark():
        sys.exit(f"failed: {why}")
    try:
        found = run(1 if args.quick else args.trials, args.dir, cli.amq_options(args))
    except (LoadError, AmqError, OSError, brokers.BrokerProcessError) as error:
        sys.exit(f"failed: {error}")
    cli.show(args, {"host": host.describe(args.dir), "spark_fixed": found}, table(found))
    least = found[RATE]["batch_ms"]["median"]
    missed = [
        what
        for what in (SOCKET, DIRECT, SINK)
        if found[what]["query_s"]["median"] > QUERY_GOAL_S or found[what]["batch_ms"]["median"] > least + BATCH_GOAL_MS
    ]
    if missed:
        goals = f"a query {QUERY_GOAL_S:g} s, a micro-batch {BATCH_GOAL_MS:g} ms over Spark's floor"
        sys.exit(f"a target was missed by {', '.join(missed)}: {goals}")


if __name__ == "__main__":
    main()
