"""Spark beside Kafka: what a sink and a source of `local[2]` take a second, and the processor time of each process.

A broker of ours and a node of Kafka (KRaft, as its own example configures it, but on loopback and with topics of four
partitions) run beside one Spark. Trials take turns. A sink writes a micro-batch of rows, exactly once to ours and at
least once to Kafka; a source reads them with `Trigger.AvailableNow` into a sink that drops rows: ours from the files of
the store and by socket, and Kafka's. The whole query is measured, and its `addBatch` alone. Kafka does not sync. A run
of each goes before, to warm up. Invariant: a figure is returned only when as many rows came as were sent.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

import amq
from amq.core.errors import AmqError
from bench import brokers, cli, floor, host
from bench.load import LoadError
from bench.stats import Spread, spread
from tests.processes import with_descendants
from tests.spark.session import environment, start, stop_jvm, why_no_spark

EXAMPLES = ("--fetch /opt/kafka-jars --quick", "--kafka /opt/kafka-jars --rows 400000 --trials 5 --json kafka.json")
SERVER, CONNECTOR = "server", "spark"  # directories of jars
ARTIFACTS = {  # whose jars they hold. Spark's Kafka format of 4.2 also serves PySpark 4.3, for which there is none
    SERVER: ("org.apache.kafka", "kafka_2.13", "4.1.0"),
    CONNECTOR: ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
}
COPY = ("mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=.")
IN_SPARK = ("hadoop-", "scala-", "slf4j-", "spark-tags", "jsr305", "lz4-", "snappy-")  # Spark brings these itself
BODY_BYTES, PARTITIONS = 100, 4
TIMEOUT_S, PROBE_S = 600, 0.1
CURSOR, LEASES_ALL = "bench", (1 << 63) - 1
SINK_AMQ, SINK_KAFKA = "sink amq, exactly once", "sink Kafka, at least once"
DIRECT, SOCKET, SOURCE_KAFKA = "source amq, direct", "source amq, socket", "source Kafka"
ALL = (SINK_AMQ, SINK_KAFKA, DIRECT, SOCKET, SOURCE_KAFKA)
POM = """\
<project><modelVersion>4.0.0</modelVersion><groupId>amq</groupId><artifactId>bench</artifactId><version>1</version>
<packaging>pom</packaging><dependencies><dependency><groupId>{0}</groupId><artifactId>{1}</artifactId>
<version>{2}</version></dependency></dependencies></project>
"""
KAFKA_CONF = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={directory}/logs
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class KafkaError(Exception):
    """Kafka is not there, or does not start."""


class Trial(NamedTuple):
    """A query that handled all rows. Times are of processors but for the first two."""

    seconds: float
    batch_s: float
    jvm_s: float
    python_s: float
    broker_s: float


def how_to_get() -> str:
    """The commands that get Kafka, for people."""
    lines = [
        "this bench needs the jars of Kafka and of Spark's Kafka format. It gets them from Maven Central if you ask:",
        "  python -m bench.spark_kafka --fetch DIR",
        "or, by hand (Maven 3, 150 MB):",
    ]
    for name, coordinates in ARTIFACTS.items():
        pom = POM.format(*coordinates).replace("\n", "")
        lines += [
            f"  mkdir -p DIR/{name} && cd DIR/{name} && echo '{pom}' > pom.xml",
            f"  {' '.join(COPY)}",
        ]
    lines.append("and then: python -m bench.spark_kafka --kafka DIR")
    return "\n".join(lines)


def fetch(directory: Path) -> None:
    """Get the jars from Maven Central. Raises KafkaError."""
    if not shutil.which("mvn"):
        raise KafkaError("no mvn: apt-get install --no-install-recommends maven")
    for name, coordinates in ARTIFACTS.items():
        cli.progress(f"fetching {':'.join(coordinates)}")
        where = directory / name
        where.mkdir(parents=True, exist_ok=True)
        (where / "pom.xml").write_text(POM.format(*coordinates))
        done = subprocess.run(COPY, cwd=where, capture_output=True, text=True, check=False)
        if done.returncode:
            raise KafkaError(f"mvn failed for {':'.join(coordinates)}:\n{(done.stdout + done.stderr)[-2000:]}")


def why_no_kafka(directory: Path | None) -> str:
    """Return what is missing, and how to get it; "" = nothing."""
    if directory is None:
        return how_to_get()
    wanted = [directory / name / f"{artifact}-*.jar" for name, (_, artifact, _) in ARTIFACTS.items()]
    lacks = [str(jar) for jar in wanted if not list(jar.parent.glob(jar.name))]
    return f"missing: {', '.join(lacks)}\n{how_to_get()}" if lacks else ""


def connector_jars(directory: Path) -> str:
    """The jars for `spark.jars`."""
    jars = sorted((directory / CONNECTOR).glob("*.jar"))
    return ",".join(str(jar.resolve()) for jar in jars if not jar.name.startswith(IN_SPARK))


class Kafka:
    """A node of Kafka. Use it in `with`: its process and its directory end with the block."""

    def __init__(self, jars: Path, directory: str | None) -> None:
        self._class_path = str((jars / SERVER).resolve() / "*")
        self._parent = directory
        self.port = brokers.free_port()

    def __enter__(self) -> Kafka:
        self._home = tempfile.TemporaryDirectory(prefix="bench-kafka-", dir=self._parent)
        home = Path(self._home.name)
        conf = home / "server.properties"
        conf.write_text(
            KAFKA_CONF.format(port=self.port, controller=brokers.free_port(), directory=home, partitions=PARTITIONS)
        )
        self._log = home / "log"
        java = ["java", "-Xmx1g", "-Xms1g", "-XX:+UseG1GC", "-cp", self._class_path]
        with self._log.open("wb") as log:
            formatted = [*java, "kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(conf)]
            done = subprocess.run(formatted, stdout=log, stderr=log, check=False)
            if done.returncode:
                raise KafkaError(f"Kafka cannot format its directory:\n{self._log.read_text()[-2000:]}")
            self._process = subprocess.Popen(
                [*java, "kafka.Kafka", str(conf)], stdout=log, stderr=log, preexec_fn=brokers.die_with_parent
            )
        deadline_s = time.monotonic() + TIMEOUT_S
        while not _listens(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.__exit__()
                raise KafkaError(f"Kafka does not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(PROBE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._home.cleanup()

    def cpu_s(self) -> float:
        return sum(_times(self._process.pid)[:2])


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _times(pid: int) -> list[float]:
    """User and system time of a process, and of its children that ended; nothing where it ended meanwhile."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return [0.0] * 4
    return [int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:15]]


def spark_cpu_s(jvm: int) -> tuple[float, float]:
    """Of Spark's JVM, and of the Python processes below it, those that ended too."""
    own = _times(jvm)
    below = sum(sum(_times(pid)) for pid in with_descendants(jvm)[1:])
    return sum(own[:2]), sum(own[2:]) + below


class SideBySide:
    """One Spark beside both brokers. `cpu_s`: of ours and of Kafka."""

    def __init__(
        self, spark: Any, jvm: int, url: str, store: str, kafka_port: int, cpu_s: Sequence[Callable[[], float]]
    ) -> None:
        self._spark = spark
        self._jvm = jvm
        self._url = url
        self._store = store
        self._kafka = f"127.0.0.1:{kafka_port}"
        self._cpu_s = cpu_s

    def trial(self, what: str, name: str, rows: int) -> Trial:
        """Write `rows` rows to the queue or topic `name`, or read as many. Raises LoadError, AmqError."""
        writes = what in (SINK_AMQ, SINK_KAFKA)
        source = self._rows(rows) if writes else self._source(what, name)
        with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as checkpoint:
            writer = self._sink(what, source, name).option("checkpointLocation", checkpoint).trigger(availableNow=True)
            cpu_s = self._cpu_s[what in (SINK_KAFKA, SOURCE_KAFKA)]
            before, broker_s, start_s = spark_cpu_s(self._jvm), cpu_s(), time.monotonic()
            query = writer.start()
            if not query.awaitTermination(TIMEOUT_S):
                raise LoadError(f"{what}: the query does not end")
            seconds = time.monotonic() - start_s
            after, broker_s = spark_cpu_s(self._jvm), cpu_s() - broker_s
            done = query.recentProgress
        came = sum(progress["numInputRows"] for progress in done)
        if what == SINK_KAFKA:
            came = self._spark.read.format("kafka").options(**self._of_kafka(name)).load().count()
        if what in (DIRECT, SOCKET):  # Spark leaves the last micro-batch to the next query
            with amq.connect(self._url) as connection:
                connection.settle(f"/queue/{name}", CURSOR, LEASES_ALL)
        if came != rows:
            raise LoadError(f"{what}: {came:,} rows came, there are {rows:,}")
        batch_s = sum(progress["durationMs"].get("addBatch", 0) for progress in done) / 1000
        return Trial(seconds, batch_s, after[0] - before[0], after[1] - before[1], broker_s)

    def _of_kafka(self, topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._kafka, "subscribe": topic, "startingOffsets": "earliest"}

    def _rows(self, rows: int) -> Any:
        stream = self._spark.readStream.format("rate-micro-batch")
        made = stream.option("rowsPerBatch", rows).option("numPartitions", 2).load()
        return made.selectExpr(f"lpad(CAST(value AS STRING), {BODY_BYTES}, '.') AS value")

    def _source(self, what: str, name: str) -> Any:
        if what == SOURCE_KAFKA:
            return self._spark.readStream.format("kafka").options(**self._of_kafka(name)).load()
        options = {"url": self._url, "destination": f"/queue/{name}", "subscription": CURSOR}
        options |= {"store": self._store} if what == DIRECT else {}
        return self._spark.readStream.format("amq").options(**options).load()

    def _sink(self, what: str, rows: Any, name: str) -> Any:
        writer = rows.writeStream
        if what == SINK_AMQ:
            return writer.format("amq").options(url=self._url, destination=f"/queue/{name}")
        if what == SINK_KAFKA:
            return writer.format("kafka").options(**{"kafka.bootstrap.servers": self._kafka, "topic": name})
        return writer.format("noop")


def measure(bench: SideBySide, rows: int, trials: int, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Each of `ALL` takes its turn, after one to warm up. Raises LoadError, AmqError."""
    found: dict[str, list[Trial]] = {what: [] for what in ALL}
    for number in range(trials + 1):
        topic, first, second = f"bench-{number}", f"bench-{number}", f"bench-{number}-socket"
        bench.trial(SINK_AMQ, second, rows)  # what the source by socket reads
        for what, name in zip(ALL, (first, topic, first, second, topic), strict=True):
            trial = bench.trial(what, name, rows)
            progress(f"{number} of {trials}: {what}: {rows / trial.seconds:,.0f} rows/s")
            if number:
                found[what].append(trial)
    return [
        {
            "what": what,
            "rows": rows,
            "per_s": _figures(done, lambda trial: rows / trial.seconds),
            "batch_per_s": _figures(done, lambda trial: rows / trial.batch_s),
            "jvm_cpu_us": _figures(done, lambda trial: 1e6 * trial.jvm_s / rows),
            "python_cpu_us": _figures(done, lambda trial: 1e6 * trial.python_s / rows),
            "broker_cpu_us": _figures(done, lambda trial: 1e6 * trial.broker_s / rows),
        }
        for what, done in found.items()
    ]


def _figures(done: Sequence[Trial], figure: Callable[[Trial], float]) -> dict[str, float]:
    return spread([figure(trial) for trial in done])._asdict()


def floors(rows: int, directory: str | None) -> dict[str, floor.RowsFloor]:
    """What moves the same rows with no broker and no Spark, by what is measured. Raises FloorError."""
    way_of = {SINK_AMQ: floor.SINK, SINK_KAFKA: floor.SINK, DIRECT: floor.DIRECT}
    ways = {what: way_of.get(what, floor.BY_SOCKET) for what in ALL}
    found = {way: floor.rows(way, rows, BODY_BYTES, directory) for way in {*ways.values()}}
    return {what: least for what, way in ways.items() if (least := found[way])}


def table(results: Sequence[dict[str, Any]], least: Mapping[str, floor.RowsFloor]) -> Table:
    rows = results[0]["rows"]
    shown = Table(title=f"{rows:,} rows of {BODY_BYTES} B through Spark local[2]; medians, lowest to highest")
    for heading in (
        "",
        "rows/s, whole query",
        "× Kafka",
        "rows/s, addBatch",
        "CPU µs a row: JVM",
        "Python",
        "broker",
        "of the floor",
    ):
        shown.add_column(heading, justify="right" if heading else "left")
    rates = {result["what"]: result["per_s"]["median"] for result in results}
    for result in results:
        what, (rate, low, high) = result["what"], Spread(**result["per_s"])
        beside = rates[SINK_KAFKA if what in (SINK_AMQ, SINK_KAFKA) else SOURCE_KAFKA]
        cpu = (f"{result[f'{name}_cpu_us']['median']:.1f}" for name in ("jvm", "python", "broker"))
        batch = f"{result['batch_per_s']['median']:,.0f}"
        share = f"{least[what].share(rate):.3f}" if what in least else ""
        shown.add_row(what, f"{rate:,.0f} ({low:,.0f} to {high:,.0f})", f"{rate / beside:.2f}", batch, *cpu, share)
    return shown


@contextlib.contextmanager
def running(jars: Path, directory: str | None, options: dict[str, str]) -> Iterator[SideBySide]:
    """A bench with a broker, a node of Kafka and a separate Spark. Raises KafkaError, BrokerError."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=directory)))
        group = brokers.BrokerGroup("amq", directory=directory, options={"directReads": "*", **options})
        broker = stack.enter_context(group).wait_master()
        cli.progress("starting Kafka")
        kafka = stack.enter_context(Kafka(jars, directory))
        os.environ.update(environment(home, quick=False))
        cli.progress("starting Spark")
        spark = start(home, "local[2]", **{"spark.jars": connector_jars(jars)})
        stack.callback(stop_jvm)
        stack.callback(spark.stop)
        url = f"failover:(stomp://127.0.0.1:{broker.port})"
        jvm = spark.sparkContext._gateway.proc.pid
        yield SideBySide(spark, jvm, url, str(broker.store), kafka.port, (broker.cpu_s, kafka.cpu_s))


def arguments() -> argparse.ArgumentParser:
    parser = cli.parser("spark_kafka", __doc__, EXAMPLES, peers=False)
    parser.add_argument("--kafka", type=Path, metavar="DIR", help="where the jars are; without it: how to get them")
    parser.add_argument("--fetch", type=Path, metavar="DIR", help="get the jars from Maven Central first, into DIR")
    parser.add_argument("--rows", type=int, default=400_000, help="default %(default)s")
    parser.add_argument("--trials", type=int, default=5, help="default %(default)s")
    return parser


def main() -> None:
    args = arguments().parse_args()
    cli.terminate_on_signal()
    if why := why_no_spark():
        sys.exit(f"failed: {why}")
    jars = args.fetch or args.kafka
    rows, trials = (20_000, 1) if args.quick else (args.rows, args.trials)
    try:
        if args.fetch:
            fetch(args.fetch)
        if why := why_no_kafka(jars):
            sys.exit(f"failed: {why}")
        with running(jars, args.dir, cli.amq_options(args)) as bench:
            results = measure(bench, rows, trials, cli.progress)
        least = floors(rows, args.dir)
    except (KafkaError, floor.FloorError, LoadError, AmqError, OSError, brokers.BrokerProcessError) as error:
        sys.exit(f"failed: {error}")
    report = {"host": host.describe(args.dir), "spark_kafka": results}
    report["floor"] = {what: each._asdict() for what, each in least.items()}
    cli.show(args, report, table(results, least))


if __name__ == "__main__":
    main()
