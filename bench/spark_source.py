"""What Spark reads a second: a queue as a stream and as a batch, and the journal, each into a sink that drops rows.

A broker is filled with messages of one size; nothing else runs. Stream: `Trigger.AvailableNow`, from its start to its
end, so with leases and acknowledgements; the same in frames of single messages, as it was before there were others
(through a relay: see `bench.plain`); and the same with the option `store`, also cut into 1, 2 and 8 partitions. Batch:
a look at the whole queue, without and with `store`. Journal: `format("amq-journal")`, which asks
no broker. Stores: as many queues as stores of a
cluster, each in another one, read together by one stream with `store`; with the processor time of Spark as well.
Beside them a client, which gives each message to a loop and to no Spark: stomp.py; and the ceiling: a data
source that cuts bodies out of bytes that somebody sends as fast as a socket takes them. Before each some rows are
read, so that workers are there. Of a stream the start, the reading and the end are measured apart. Invariant: a rate
is returned only when as many rows came as there are messages.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

import amq
from amq.client.uri import parse
from amq.core.errors import AmqError
from bench import brokers, cli, floor, host, plain
from bench.load import LoadError
from bench.stats import Spread, spread
from pyspark_amq.options import SourceOptions
from pyspark_amq.pipelines import frame
from tests.spark.session import environment, start, stop_jvm, why_no_spark

EXAMPLES = ("--quick", "--rows 1000000 --trials 5 --json spark_source.json", "--only direct")
QUICK_JVM = False  # one that starts soon and compiles little, for tests
QUEUE, WARM_UP_QUEUE = "/queue/bench.rows", "/queue/bench.warmup"
CURSOR, LEASES_ALL = "bench", (1 << 63) - 1
WARM_UP_ROWS = 100_000  # with fewer the JVM compiles during the first trials, which read a quarter less
STREAM, BATCH, JOURNAL, JOURNAL_HEADS = "queue, stream", "queue, batch", "journal", "journal, no bodies"
SINGLE = "queue, stream, single frames"
SOCKET, LOOP = "the socket alone", "stomp.py, no Spark"
DIRECT, BATCH_DIRECT = "queue, stream, direct", "queue, batch, direct"
SCALING = {f"queue, stream, direct, {parts} part{'s' if parts > 1 else ''}": str(parts) for parts in (1, 2, 8)}
STORES = {f"cluster, direct, {count} store{'s' if count > 1 else ''}": count for count in (1, 2, 4)}
TAKES = (STREAM, DIRECT, *SCALING, SINGLE, LOOP, *STORES)
ALL = (SOCKET, BATCH, BATCH_DIRECT, JOURNAL, JOURNAL_HEADS, STREAM, DIRECT, *SCALING, SINGLE, LOOP, *STORES)
HEAD = b"MESSAGE\nsubscription:1\nmessage-id:1\ndestination:/queue/bench\ntimestamp:1\npersistent:true\n\n"
PIECE_FRAMES = 2000
PLANNING = ("latestOffset", "walCommit", "getBatch", "queryPlanning")  # parts of a micro-batch before its tasks run
SILENT_S = 30.0  # then nothing more comes


class Phases(NamedTuple):
    """The parts of a stream's time: until Spark has planned the first micro-batch, until the tasks of the last one are
    done, and until the query has ended."""

    start_s: float
    reading_s: float
    end_s: float


class SourceReading(NamedTuple):
    """One reading of all rows; `broker_cpu_s` = what the broker worked meanwhile, `spark_cpu_s` what Spark did;
    `phases` of a stream."""

    seconds: float
    broker_cpu_s: float
    phases: Phases | None = None
    spark_cpu_s: float = 0.0


class SourceBench:
    """Rows in one broker, and a Spark that reads them. `url`, `store`: of the broker; `cpu_s`: what it has worked."""

    def __init__(
        self, spark: Any, url: str, before: str, store: str, size_bytes: int, cpu_s: Callable[[], float]
    ) -> None:
        """`before` = the URL of a relay whose clients get single messages."""
        self._spark = spark
        self._url = url
        self._before = before
        self._store = store
        self._size_bytes = size_bytes
        self._cpu_s = cpu_s
        self._phases: Phases | None = None  # of the last stream

    def fill(self, queue: str, rows: int) -> None:
        """Send them. Raises AmqError."""
        with amq.connect(self._url) as connection, connection.session() as session:
            producer = session.producer(queue)
            for number in range(rows):
                producer.send(b"%d;" % number + b"x" * (self._size_bytes - len(b"%d;" % number)), wait=False)
            producer.flush()

    def read(self, what: str, queue: str, rows: int) -> SourceReading:
        """Read all `rows` of `queue`. A stream takes them. Raises LoadError where others came."""
        self._phases = None
        cpu_s, below_s, start_s = self._cpu_s(), self._below_s(), time.monotonic()
        ways = {
            STREAM: self._stream,
            DIRECT: partial(self._stream, store=self._store),
            **{name: partial(self._stream, store=self._store, minPartitions=parts) for name, parts in SCALING.items()},
            **dict.fromkeys(STORES, partial(self._stream, store=self._store)),
            SINGLE: partial(self._stream, url=self._before),
            LOOP: self._loop,
        }
        found = ways.get(what, partial(self._once, what))(queue, rows)
        worked_s = self._below_s() - below_s
        trial = SourceReading(time.monotonic() - start_s, self._cpu_s() - cpu_s, self._phases, worked_s)
        if found != rows:
            raise LoadError(f"{what}: {found:,} rows came, there are {rows:,}")
        return trial

    def _below_s(self) -> float:
        return brokers.cpu_s_below(os.getpid()) - self._cpu_s()  # brokers are below this process, too

    def _stream(self, queue: str, _rows: int, **more: str) -> int:
        given = {"url": self._url, "destination": queue, "subscription": CURSOR, **more}
        source = self._spark.readStream.format("amq").options(**given)
        with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as checkpoint:
            writer = source.load().writeStream.format("noop").option("checkpointLocation", checkpoint)
            began_s, queries = [0.0], []

            def begin() -> Any:
                began_s[0] = time.time()
                queries.append(writer.trigger(availableNow=True).start())
                return queries[-1]

            found: int = frame.follow(begin, lambda _: None)["messages"]
            progress = [json.loads(each.json) for each in queries[-1].recentProgress]
            self._phases = phases_of(progress, began_s[0], time.time())
        with amq.connect(self._url) as connection:  # Spark leaves the last micro-batch to the next query
            for name in queue.split(","):
                connection.settle(name, CURSOR, LEASES_ALL)
        return found

    def _loop(self, queue: str, rows: int) -> int:
        import stomp

        class SourceRows(stomp.ConnectionListener):  # type: ignore[misc]
            def __init__(self) -> None:
                self.bodies: list[bytes] = []
                self.all_came = threading.Event()

            def on_message(self, frame: Any) -> None:
                self.bodies.append(frame.body)
                if len(self.bodies) == rows:
                    self.all_came.set()

        found, before = SourceRows(), -1
        connection = stomp.StompConnection12([parse(self._url).uris[0].address], auto_decode=False)
        connection.set_listener("", found)
        connection.connect(wait=True)
        prefetch = str(SourceOptions.prefetch_messages)  # as our source has it
        connection.subscribe(queue, id=1, ack="auto", headers={"activemq.prefetchSize": prefetch})
        while not found.all_came.wait(SILENT_S) and len(found.bodies) > before:
            before = len(found.bodies)
        connection.disconnect()
        return len(found.bodies)

    def _once(self, what: str, queue: str, count: int) -> int:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        with contextlib.ExitStack() as stack:
            if what == SOCKET:
                port = stack.enter_context(sending(count, self._size_bytes))
                from_socket(self._spark)
                options = {"port": port, "frame": len(frame_of(self._size_bytes))}
                rows = self._spark.read.format("from-socket").options(**options).load()
            elif what in (BATCH, BATCH_DIRECT):
                store = {"store": self._store} if what == BATCH_DIRECT else {}
                rows = self._spark.read.format("amq").options(url=self._url, destination=queue, **store).load()
            else:
                bodies = str(what == JOURNAL).lower()
                reader = self._spark.read.format("amq-journal").options(destination=queue, includeValue=bodies)
                rows = reader.load(self._store)
            seen = Observation("seen")
            rows.observe(seen, F.count(F.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
        found: int = seen.get["rows"]
        return found


def names_in_stores(url: str, queue: str, count: int) -> list[str]:
    """Names of queues that begin with `queue`, each of which lives in another store of the cluster at `url`."""
    found: dict[str, str] = {}
    with amq.connect(url) as connection:
        for number in range(1000):
            name = f"{queue}.{number}"
            where = connection.where(name)
            assert where is not None, "it is a gateway"
            found.setdefault(where.homes[0], name)
            if len(found) == count:
                break
    return [*found.values()]


class StoresBench(SourceBench):
    """The same of a cluster: in place of a queue are `count` queues, each in another store."""

    def __init__(
        self, spark: Any, node: brokers.BrokerProcess, size_bytes: int, count: int, cpu_s: Callable[[], float]
    ) -> None:
        url = f"failover:(stomp://127.0.0.1:{node.port})"
        super().__init__(spark, url, url, str(node.store), size_bytes, cpu_s)
        self._count = count

    def fill(self, queue: str, rows: int) -> None:
        names = names_in_stores(self._url, queue, self._count)
        for name in names:
            super().fill(name, rows // len(names))

    def _stream(self, queue: str, rows: int, **more: str) -> int:
        return super()._stream(",".join(names_in_stores(self._url, queue, self._count)), rows, **more)


def frame_of(size_bytes: int) -> bytes:
    """One delivery."""
    return HEAD + b"x" * size_bytes + b"\0"


@contextlib.contextmanager
def sending(rows: int, size_bytes: int) -> Iterator[int]:
    """The port of somebody who sends this many deliveries to who connects first."""
    piece = frame_of(size_bytes) * PIECE_FRAMES

    def send() -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as sock:
            for done in range(0, rows, PIECE_FRAMES):
                sock.sendall(piece[: (rows - done) * len(piece) // PIECE_FRAMES])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def from_socket(spark: Any) -> None:
    """Register a separate data source, whose task takes deliveries of one size from a socket, and no more."""
    from pyspark.sql.datasource import DataSource, DataSourceReader

    class FromSocket(DataSourceReader):
        def __init__(self, options: Any) -> None:
            self._port, self._frame = int(options["port"]), int(options["frame"])

        def read(self, _partition: Any) -> Iterator[Any]:
            import pyarrow as pa

            size, head, rest = self._frame, len(HEAD), b""
            with socket.create_connection(("127.0.0.1", self._port)) as sock:
                while data := sock.recv(256 << 10):
                    data = rest + data
                    end = len(data) // size * size
                    rest = data[end:]
                    bodies = [data[start + head : start + size - 1] for start in range(0, end, size)]
                    yield pa.RecordBatch.from_arrays([pa.array(bodies, pa.binary())], ["value"])

    class Sending(DataSource):
        @classmethod
        def name(cls) -> str:
            return "from-socket"

        def schema(self) -> str:
            return "value binary"

        def reader(self, schema: Any) -> Any:  # noqa: ARG002
            return FromSocket(self.options)

    spark.dataSource.register(Sending)


def phases_of(progress: Sequence[Mapping[str, Any]], began_s: float, ended_s: float) -> Phases | None:
    """The parts of the time of a query, by the `progress` of its micro-batches; None if none had rows."""
    batches = [each for each in progress if each["numInputRows"]]
    if not batches:
        return None
    starts_s = [datetime.fromisoformat(each["timestamp"]).timestamp() for each in (batches[0], batches[-1])]
    first, last = batches[0]["durationMs"], batches[-1]["durationMs"]
    planned_s = starts_s[0] + sum(first.get(name, 0) for name in PLANNING) / 1000
    read_s = starts_s[1] + (sum(last.get(name, 0) for name in PLANNING) + last["addBatch"]) / 1000
    return Phases(planned_s - began_s, read_s - planned_s, ended_s - read_s)


def measure(
    bench: SourceBench, rows: int, trials: int, progress: Callable[[str], None], kinds: Sequence[str] = ALL
) -> list[dict[str, Any]]:
    """The readings `kinds` of `rows` rows, `trials` times each. Raises LoadError, AmqError."""
    progress(f"sending {rows:,} rows")
    bench.fill(WARM_UP_QUEUE, WARM_UP_ROWS)
    bench.fill(QUEUE, rows)
    found: dict[str, list[SourceReading]] = {}
    taken: set[str] = set()

    def read(what: str, queue: str, count: int) -> SourceReading:
        if queue in taken:
            bench.fill(queue, count)
            taken.remove(queue)
        if what in TAKES:
            taken.add(queue)
        return bench.read(what, queue, count)

    for what in kinds:
        progress(f"{what}: warming up")
        read(what, WARM_UP_QUEUE, WARM_UP_ROWS)
        found[what] = []
        for number in range(trials):
            trial = read(what, QUEUE, rows)
            found[what].append(trial)
            progress(f"{what}: {number + 1} of {trials}: {rows / trial.seconds:,.0f} rows/s")
    return [
        {
            "what": what,
            "rows": rows,
            "per_s": spread([rows / trial.seconds for trial in done])._asdict(),
            "broker_cpu_us": spread([1e6 * trial.broker_cpu_s / rows for trial in done])._asdict(),
            "spark_cpu_us": spread([1e6 * trial.spark_cpu_s / rows for trial in done])._asdict(),
            **{
                name: spread([getattr(trial.phases, name) for trial in done if trial.phases])._asdict()
                for name in (Phases._fields if any(trial.phases for trial in done) else ())
            },
        }
        for what, done in found.items()
    ]


def run(
    rows: int, size_bytes: int, trials: int, directory: str | None, options: dict[str, str], kinds: Sequence[str]
) -> list[dict[str, Any]]:
    """`measure` with a broker and a separate Spark."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=directory)))
        given = {"directReads": "*", **options}
        broker = stack.enter_context(brokers.BrokerGroup("amq", directory=directory, options=given)).wait_master()
        os.environ.update(environment(home, quick=QUICK_JVM))
        cli.progress("starting Spark")
        spark = start(home, "local[2]")
        stack.callback(stop_jvm)
        stack.callback(spark.stop)
        url = f"failover:(stomp://127.0.0.1:{broker.port})"
        before = f"failover:(stomp://127.0.0.1:{stack.enter_context(plain.before(broker.port))})"
        bench = SourceBench(spark, url, before, str(broker.store), size_bytes, broker.cpu_s)
        alone = [each for each in kinds if each not in STORES]
        results = measure(bench, rows, trials, cli.progress, alone) if alone else []
        together = {name: STORES[name] for name in kinds if name in STORES}
        if together:
            node = stack.enter_context(brokers.BrokerGroup("stores", directory=directory, options=given)).wait_master()
            for name, count in together.items():
                of_stores = StoresBench(spark, node, size_bytes, count, node.cpu_s)
                results += measure(of_stores, rows, trials, cli.progress, [name])
        return results


def floors(rows: int, size_bytes: int, directory: str | None) -> dict[str, floor.RowsFloor]:
    """By way; nothing where there is no compiler. Raises FloorError."""
    found = {way: floor.rows(way, rows, size_bytes, directory) for way in (floor.BY_SOCKET, floor.DIRECT)}
    return {way: least for way, least in found.items() if least}


def table(results: Sequence[dict[str, Any]], size_bytes: int, least: Mapping[str, floor.RowsFloor]) -> Table:
    shown = Table(title=f"{results[0]['rows']:,} rows of {size_bytes} B through Spark local[2]")
    for heading in (
        "",
        "rows/s",
        "lowest",
        "highest",
        "broker: CPU µs a row",
        "Spark: CPU µs a row",
        "start s",
        "reading s",
        "end s",
        "of the floor",
    ):
        shown.add_column(heading, justify="right" if heading else "left")
    for result in results:
        rate, cpu, worked = (Spread(**result[name]) for name in ("per_s", "broker_cpu_us", "spark_cpu_us"))
        phases = [f"{result[name]['median']:.2f}" if name in result else "" for name in Phases._fields]
        way = floor.DIRECT if "direct" in result["what"] or JOURNAL in result["what"] else floor.BY_SOCKET
        shown.add_row(
            result["what"],
            *(f"{value:,.0f}" for value in rate),
            f"{cpu.median:.1f}",
            f"{worked.median:.1f}",
            *(phases or [""] * len(Phases._fields)),
            f"{least[way].share(rate.median):.3f}" if least else "",
        )
    for way, each in least.items():
        shown.add_row(
            f"floor, {way}",
            f"{each.per_s:,.0f}",
            "",
            "",
            f"{each.server_us:.2f}",
            f"{each.task_us:.2f}",
            "",
            "",
            "",
            "1",
        )
    return shown


def main() -> None:
    parser = cli.parser("spark_source", __doc__, EXAMPLES, peers=False)
    parser.add_argument("--rows", type=int, default=1_000_000, help="default %(default)s")
    parser.add_argument("--size", type=int, default=100, metavar="BYTES", help="of a body (default %(default)s)")
    parser.add_argument("--trials", type=int, default=3, help="default %(default)s")
    parser.add_argument("--only", metavar="TEXT", default="", help="only the kinds with this in their name")
    args = parser.parse_args()
    kinds = [each for each in ALL if args.only in each]
    if not kinds:
        parser.error(f"--only {args.only!r}: no kind has that in its name: {'; '.join(ALL)}")
    cli.terminate_on_signal()
    if why := why_no_spark():
        sys.exit(f"failed: {why}")
    rows, trials = (20_000, 1) if args.quick else (args.rows, args.trials)
    try:
        results = run(rows, args.size, trials, args.dir, cli.amq_options(args), kinds)
        least = floors(rows, args.size, args.dir)
    except (LoadError, AmqError, OSError, floor.FloorError, brokers.BrokerProcessError) as error:
        sys.exit(f"failed: {error}")
    report = {"host": host.describe(args.dir), "spark_source": results}
    report["floor"] = {way: each._asdict() for way, each in least.items()}
    cli.show(args, report, table(results, args.size, least))


if __name__ == "__main__":
    main()
