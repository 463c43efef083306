"""How many rows a second Spark writes to the broker, beside what else one could do, and beside the socket alone.

Each way writes the same rows as one micro-batch of a stream, on local[2]; what counts is the time of that micro-batch,
of its commit too, without the start of the query. A small one goes before, to warm up. Ways: `format("amq")`, with a
value alone, with a key, with a key and three headers, and the same in frames of single messages, as it was before there
were others (through a relay: see `bench.plain`); foreachBatch with a loop over rows that sends each with a client
(ours, pipelined, or stomp.py); and the ceiling: frames to a socket whose other end throws them away. The floor moves
and syncs the same bytes with no broker and no Spark (bench/floor/floor.c). With `--stores` in place of all that: the
rows go to a queue in each of 1, 2 and 4 stores of a cluster, whose tasks write to the masters themselves. Invariant: a
result is returned only when the queues held each row once.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from bench import brokers, cli, floor, host, plain
from bench.load import LoadError
from bench.spark_source import names_in_stores
from bench.wire import WireConnection, WireError
from tests.spark.session import environment, start, stop_jvm, why_no_spark

EXAMPLES = ("--quick", "--rows 1000000 --json spark.json", "--stores")
STORES = (1, 2, 4)
WARM_UP_ROWS = 20_000
QUICK_JVM = False  # one that starts soon and compiles little, for tests
BODY_BYTES = 100
TIMEOUT_S = 600
READ_TIMEOUT_S = 30.0
# Throws away what comes, of any number of connections, in a separate process.
SINK = """
import selectors, socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
selector = selectors.DefaultSelector()
selector.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in selector.select():
        if key.fileobj is listener:
            selector.register(listener.accept()[0], selectors.EVENT_READ)
        elif not key.fileobj.recv(1 << 20):
            selector.unregister(key.fileobj)
            key.fileobj.close()
"""
VALUE, KEY, HEADERS = "", ", keys", ", keys and headers"
_KEY = "concat('key-', value) AS key"
_MAP = "map('colour', 'red', 'region', concat('eu-', value % 100), 'trace', hex(value * 7919)) AS headers"
COLUMNS = {VALUE: (), KEY: (_KEY,), HEADERS: (_KEY, _MAP)}  # beside the value
SINGLE = ", single frames"
Start = Callable[[Any, str], Any]  # (rows, queue) → the writer of a stream


def to_amq(url: str, delivery: str) -> Start:
    def writer(rows: Any, queue: str) -> Any:
        return rows.writeStream.format("amq").options(url=url, destination=queue, delivery=delivery)

    return writer


def row_by_row(send_all: Callable[[Iterator[Any], str], None]) -> Start:
    def writer(rows: Any, queue: str) -> Any:
        def one(batch: Any, _: int) -> None:
            batch.foreachPartition(lambda partition: send_all(partition, queue))

        return rows.writeStream.foreachBatch(one)

    return writer


def with_our_client(url: str) -> Callable[[Iterator[Any], str], None]:
    def send_all(rows: Iterator[Any], queue: str) -> None:
        import amq

        with amq.connect(url) as connection, connection.session() as session:
            producer = session.producer(queue)
            for row in rows:
                producer.send(row.value, wait=False)

    return send_all


def with_stomp_py(port: int) -> Callable[[Iterator[Any], str], None]:
    def send_all(rows: Iterator[Any], queue: str) -> None:
        import stomp
        from stomp.listener import WaitingListener

        connection = stomp.StompConnection12([("127.0.0.1", port)])
        last = WaitingListener("last")
        connection.set_listener("", last)
        connection.connect(wait=True)
        for row in rows:
            connection.send(queue, row.value)
        connection.send(queue + ".end", "", receipt="last")
        last.wait_on_receipt()
        connection.disconnect()

    return send_all


def to_socket(spark: Any, port: int) -> Start:
    """A separate data source, whose tasks do what those of `format("amq")` do, less the broker."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

    class ToSocket(DataSourceStreamArrowWriter):
        def write(self, iterator: Iterator[Any]) -> Any:
            import pyarrow as pa

            from amq.client import bulk

            head = b"SEND\ndestination:/queue/bench\ntransaction:1"
            with socket.create_connection(("127.0.0.1", port)) as sock:
                for batch in iterator:
                    bodies = batch.column("value").cast(pa.binary()).to_pylist()
                    for part in bulk.pieces(bodies):
                        sock.sendall(bulk.encode(head, bodies[part], None, True))
            return WriterCommitMessage()

    class Discarding(DataSource):
        @classmethod
        def name(cls) -> str:
            return "discarding"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: ARG002
            return ToSocket()

    spark.dataSource.register(Discarding)
    return lambda rows, _: rows.writeStream.format("discarding")


def run(spark: Any, way: Start, queue: str, rows: int, columns: str = VALUE, more: Sequence[str] = ()) -> float:
    """Seconds of a micro-batch of this many rows. `more` columns are beside those of `columns`."""
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2).load()
    values = stream.selectExpr(f"lpad(CAST(value AS STRING), {BODY_BYTES}, '.') AS value", *COLUMNS[columns], *more)
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = way(values, queue).option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = writer.start()
        if not query.awaitTermination(TIMEOUT_S):
            raise LoadError("the query does not end")
        return sum(progress["durationMs"]["addBatch"] for progress in query.recentProgress) / 1000


def take_all(port: int, queues: Sequence[str], rows: int) -> None:
    """Consume the queues, which must hold each row once, and no more. Raises LoadError, WireError."""
    told = " and ".join(queues)
    seen = bytearray(rows)
    with WireConnection(port) as connection:
        for id, queue in enumerate(queues):
            headers = {"id": str(id), "destination": queue, "ack": "auto", "activemq.prefetchSize": 10_000}
            connection.send("SUBSCRIBE", headers)
        count = 0
        while count < rows:
            try:
                frames = connection.read(READ_TIMEOUT_S)
            except TimeoutError as error:
                raise LoadError(f"{told} held {count} of {rows} rows") from error
            for frame in frames:
                seen[int(frame.body.lstrip(b"."))] += 1
            count += len(frames)
        for id in range(len(queues)):  # what there is beyond comes before that receipt
            connection.send("UNSUBSCRIBE", {"id": str(id), "receipt": "end"})
            for frame in connection.receipt("end", READ_TIMEOUT_S):
                seen[int(frame.body.lstrip(b"."))] += 1
    if set(seen) != {1}:
        missing = seen.count(0)
        raise LoadError(f"{told}: {missing} rows are missing, {rows - missing - seen.count(1)} came twice")


def _spark(stack: contextlib.ExitStack, directory: str | None) -> Any:
    home = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=directory)))
    os.environ.update(environment(home, quick=QUICK_JVM))
    cli.progress("starting Spark")
    spark = start(home, "local[2]")
    stack.callback(stop_jvm)
    stack.callback(spark.stop)
    return spark


def measure_stores(rows: int, directory: str | None, options: dict[str, str]) -> list[dict[str, Any]]:
    """Write rows to a queue in each of several stores. Raises LoadError, WireError."""
    results = []
    with contextlib.ExitStack() as stack:
        spark = _spark(stack, directory)
        node = stack.enter_context(brokers.BrokerGroup("stores", directory=directory, options=options)).wait_master()
        url = f"failover:(stomp://127.0.0.1:{node.port})"

        def way(written: Any, _: str) -> Any:
            return written.writeStream.format("amq").options(url=url, delivery="exactly-once")

        for stores in STORES:
            cli.progress(f"{stores} stores")
            for part, count in enumerate(filter(None, (min(WARM_UP_ROWS, rows), rows))):
                queues = names_in_stores(url, f"/queue/bench.{stores}.{part}", stores)
                column = f"array({', '.join(map(repr, queues))})[CAST(value % {stores} AS INT)] AS destination"
                before_s = node.cpu_s()
                seconds = run(spark, way, "", count, more=[column])
                cpu_us = (node.cpu_s() - before_s) * 1e6 / count
                take_all(node.port, queues, count)
            line = {"way": f"exactly-once, {stores} stores", "rows": rows, "seconds": seconds}
            results.append({**line, "rows_per_s": rows / seconds, "broker_us_per_row": cpu_us})
    return results


def table_of_stores(results: Sequence[dict[str, Any]]) -> Table:
    first = results[0]["rows_per_s"]
    shown = Table(title=f"Spark local[2] to the stores of a cluster, {results[0]['rows']:,} rows of {BODY_BYTES} bytes")
    for heading in ("", "rows/s", "of one store", "CPU µs/row of the node"):
        shown.add_column(heading, justify="right" if heading else "left")
    for line in results:
        rate = line["rows_per_s"]
        shown.add_row(line["way"], f"{rate:,.0f}", f"{rate / first:.2f}", f"{line['broker_us_per_row']:.1f}")
    return shown


def measure(rows: int, directory: str | None, options: dict[str, str]) -> list[dict[str, Any]]:
    results = []
    with contextlib.ExitStack() as stack:
        spark = _spark(stack, directory)
        sink = subprocess.Popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE)
        stack.callback(sink.wait)
        stack.callback(sink.kill)
        assert sink.stdout is not None
        discarding = int(sink.stdout.readline())
        broker = stack.enter_context(brokers.BrokerGroup("amq", directory=directory, options=options)).wait_master()
        url = f"failover:(stomp://127.0.0.1:{broker.port})"
        before = f"failover:(stomp://127.0.0.1:{stack.enter_context(plain.before(broker.port))})"
        once, single = to_amq(url, "exactly-once"), to_amq(before, "exactly-once")
        ways = {
            "socket only": to_socket(spark, discarding),
            "exactly-once": once,
            f"exactly-once{SINGLE}": single,
            f"exactly-once{KEY}": once,
            f"exactly-once{KEY}{SINGLE}": single,
            f"exactly-once{HEADERS}": once,
            f"exactly-once{HEADERS}{SINGLE}": single,
            "at-least-once": to_amq(url, "at-least-once"),
            "dedup": to_amq(url, "dedup"),
            "loop, amq client": row_by_row(with_our_client(url)),
            "loop, stomp.py": row_by_row(with_stomp_py(broker.port)),
        }
        for number, (name, way) in enumerate(ways.items()):
            columns = next(kind for kind in (HEADERS, KEY, VALUE) if kind in name)
            cli.progress(name)
            stored = name != "socket only"
            for part, count in enumerate(filter(None, (min(WARM_UP_ROWS, rows), rows))):
                queue = f"/queue/bench.{number}.{part}"
                before_s = broker.cpu_s()
                seconds = run(spark, way, queue, count, columns)
                cpu_us = (broker.cpu_s() - before_s) * 1e6 / count
                if stored:
                    take_all(broker.port, [queue], count)
            results.append(
                {
                    "way": name,
                    "rows": rows,
                    "seconds": seconds,
                    "rows_per_s": rows / seconds,
                    "broker_us_per_row": cpu_us if stored else 0.0,
                }
            )
    return results


def table(results: list[dict[str, Any]], least: floor.RowsFloor | None) -> Table:
    ceiling = results[0]["rows_per_s"]
    plain = {result["way"]: result["rows_per_s"] for result in results}
    shown = Table(title=f"Spark local[2] to the broker, {results[0]['rows']:,} rows of {BODY_BYTES} bytes")
    for heading in (
        "",
        "rows/s",
        "of the socket",
        "× loop, amq client",
        "× loop, stomp.py",
        "broker CPU µs/row",
        "of the floor",
    ):
        shown.add_column(heading, justify="right" if heading else "left")
    for result in results:
        rate = result["rows_per_s"]
        shown.add_row(
            result["way"],
            f"{rate:,.0f}",
            f"{rate / ceiling:.2f}",
            f"{rate / plain['loop, amq client']:.1f}",
            f"{rate / plain['loop, stomp.py']:.1f}",
            f"{result['broker_us_per_row']:.1f}",
            f"{least.share(rate):.3f}" if least else "",
        )
    if least:
        shown.add_row("floor", f"{least.per_s:,.0f}", "", "", "", f"{least.server_us:.2f}", "1")
    return shown


def main() -> None:
    parser = cli.parser("spark_sink", __doc__, EXAMPLES, peers=False)
    parser.add_argument("--rows", type=int, default=1_000_000, help="(default %(default)s)")
    parser.add_argument(
        "--stores", action="store_true", help="write to 1, 2 and 4 stores of a cluster, and nothing else"
    )
    args = parser.parse_args()
    cli.terminate_on_signal()
    if why := why_no_spark():
        sys.exit(f"failed: {why}")
    rows = 50_000 if args.quick else args.rows
    try:
        if args.stores:
            results = measure_stores(rows, args.dir, cli.amq_options(args))
            cli.show(args, {"host": host.describe(args.dir), "spark_sink": results}, table_of_stores(results))
            return
        results = measure(rows, args.dir, cli.amq_options(args))
        least = floor.rows(floor.SINK, rows, BODY_BYTES, args.dir)
    except (LoadError, WireError, OSError, floor.FloorError, brokers.BrokerProcessError) as error:
        sys.exit(f"failed: {error}")
    report = {"host": host.describe(args.dir), "spark_sink": results, "floor": least and least._asdict()}
    cli.show(args, report, table(results, least))


if __name__ == "__main__":
    main()
