"""`amq demo-spark` sends rows through Spark to a queue and from there to Parquet, kills an executor, the driver and the
master with -9 in both directions, and gives a verdict.

It runs the pipelines `ingest` and `drain` as processes, as users do. Invariant: the demo compares the files as they
were before the first pipeline ran with the rows that Spark reads from the Parquet files.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import click

from amq.cli import demo_common
from amq.cli.demo_brokers import descendants, leashed
from amq.cli.demo_common import DemoGroup
from amq.cli.demo_view import REFRESH_S, Picture, PlainView
from amq.cli.options import valued
from amq.cli.output import examples, json_option
from amq.core.errors import AmqError
from pyspark_amq.pipelines.drain import written_files
from pyspark_amq.pipelines.frame import need_spark
from pyspark_amq.pipelines.progress import CHECKPOINT

ROWS = 100_000
BATCHES = 10  # micro-batches each way
EXECUTOR, DRIVER = "executor", "driver"
KILL_BEHIND = {EXECUTOR: 1, DRIVER: 3}  # so many micro-batches that are begun; the master is killed in the middle
_EXECUTORS = "local-cluster"  # a master of Spark with executors that are processes of this host
_EXECUTOR_CLASS = b"CoarseGrainedExecutorBackend"
QUEUE = "/queue/demo.spark"
SILENCE_S = 300.0  # a JVM starts in that time, whatever else the machine has to do
_SAID = "amq: "  # begins what pipelines say; Spark says other things
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # of a JVM that does little
_WAYS = ("ingest", "drain")
_EPILOG = examples("amq demo-spark", "amq demo-spark --rows 1000000 --json", "amq demo-spark --keep")


@click.command("demo-spark", epilog=_EPILOG)
@valued("--rows", type=click.IntRange(min=10 * BATCHES), default=ROWS, help="Send N rows of 100 bytes.")
@valued("--brokers", "count", type=click.IntRange(2, 9), default=3, help="Start N brokers.")
@click.option(
    "--master",
    metavar="URL",
    default="local-cluster[1,2,1024]",
    show_default=True,
    help="Where Spark runs. Only executors of local-cluster[N,CORES,MEGABYTES] are killed.",
)
@click.option("--keep", is_flag=True, help="Keep store, logs, rows and Parquet files, and print their directory.")
@json_option
def demo_spark(rows: int, count: int, master: str, keep: bool, as_json: bool) -> None:
    """Kill brokers and Spark while rows go to a queue and come back.

    The command starts brokers as processes on one store. Spark sends the rows of files to a queue (amq pipeline run
    ingest) and writes the messages of the queue to Parquet files (amq pipeline run drain), which it reads from the
    files of the store. In each direction the command kills with -9 an executor of Spark, then the driver, which it
    starts again, then the master: a slave takes over, and the command starts the killed broker again. In the end it
    compares the rows of the Parquet files with the input and checks the journal.

    Exit code 0 if every row arrived exactly once and every promise was kept, otherwise 1. No process is left behind.
    The demo takes two to four minutes and needs Java 17 and `pip install 'amq[spark]'`.
    """
    need_spark(os.environ)
    demo_common.play(
        "amq-demo-spark-", keep, as_json, lambda directory, view: _Demo(Path(directory), rows, count, master, view)
    )


@dataclass(slots=True)
class SparkKill(demo_common.Kill):
    """One kill -9 of the master, in a micro-batch of one of the pipelines."""

    pipeline: str = ""
    batch: int = 0


@dataclass(slots=True)
class SparkVerdict(demo_common.DemoVerdict):
    """The result. `foreign` = rows in the output that were never in the input; `rows_per_s` of each pipeline since its
    last start; `direct` = messages that were read from the store, as far as the broker has heard of it."""

    rows: int
    arrived: int
    seconds: float
    lost: int
    duplicated: int
    foreign: int
    kills: list[SparkKill]
    left: int
    problems: list[str] = field(default_factory=list)
    spark_kills: list[str] = field(default_factory=list)
    spark_kills_planned: list[str] = field(default_factory=list)
    rows_per_s: dict[str, int] = field(default_factory=dict)
    direct: int = 0

    def sentences(self) -> Iterator[tuple[bool, str]]:
        took = f"{self.rows:,} rows in, {self.arrived:,} out, in {self.seconds:.1f} s with the starts of Spark"
        good = not (self.lost or self.duplicated or self.foreign)
        yield good, f"{took}: lost {self.lost:,}, duplicated {self.duplicated:,}, never sent {self.foreign:,}"
        where = ", ".join(f"in micro-batch {kill.batch} of {kill.pipeline}" for kill in self.kills)
        times = ", ".join(f"{kill.serving_s * 1000:.0f} ms" for kill in self.kills)
        followed = [kill.pipeline for kill in self.kills if kill.epoch]
        killed = f"{len(self.kills)} of {len(_WAYS)} masters killed with -9, {where or 'too late'}"
        yield followed == list(_WAYS), f"{killed}; from the kill to the next master: {times or '-'}"
        rates = ", ".join(f"{name} {rate:,} rows/s" for name, rate in self.rows_per_s.items())
        spark = f"killed with -9 as well: {', '.join(self.spark_kills) or 'nothing'}"
        since = f"since its last start: {rates}, {self.direct:,} rows of drain read from the store"
        yield self.spark_kills == self.spark_kills_planned, f"{spark}; each pipeline {since}"
        yield demo_common.left_sentence(self.left, self.problems)


def compare(sent: list[str], arrived: list[str]) -> tuple[int, int, int]:
    """Numbers of lost, duplicated and foreign rows. All rows of `sent` are distinct."""
    rows, found = set(sent), Counter(arrived)
    duplicated = sum(number - 1 for row, number in found.items() if row in rows)
    foreign = sum(number for row, number in found.items() if row not in rows)
    return len(rows - found.keys()), duplicated, foreign


class PipelineRun:
    """`amq pipeline run …` as a process group: it, its JVM, and what that started. All end together.

    heard  how many lines it has said
    """

    def __init__(self, name: str, words: list[str], directory: Path, said: Callable[[str], None]) -> None:
        self.name = name
        self.heard = 0
        self._said = said
        self._last_lines: list[str] = []
        self._log = directory / f"{name}.log"
        self._figures = directory / f"{name}.json"
        said(f"amq pipeline run {name}")
        command = [sys.executable, "-P", "-m", "amq", "pipeline", "run", name, *words, "--json"]
        with self._figures.open("wb") as figures:
            self._process = subprocess.Popen(
                leashed(command),
                stdin=subprocess.DEVNULL,
                stdout=figures,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        self._ended = threading.Event()  # no thread that is joined: Ctrl-C would make a join believe that it ended
        threading.Thread(target=self._read_log, name=f"log of {name}").start()

    def kill_executor(self) -> bool:
        """Kill an executor with -9. False where none runs yet."""
        for pid in descendants(self._process.pid):
            with suppress(OSError):  # it ended meanwhile
                if _EXECUTOR_CLASS in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
                    return True
        return False

    def is_running(self, wait_s: float) -> bool:
        """Is any process of it still running? Waits at most `wait_s`."""
        return not self._ended.wait(wait_s)

    def result(self) -> dict[str, Any]:
        """Its figures, at the end. AmqError where it failed."""
        if code := self._process.wait():
            raise AmqError(f"{self.name} ended with exit code {code}: {self.last_words()}", code="DEMO_FAILED")
        figures: dict[str, Any] = json.loads(self._figures.read_bytes())
        return figures

    def end(self) -> None:
        """Be gone, whatever the state."""
        if not self._ended.is_set():
            with suppress(ProcessLookupError):  # all that is left is on its way out, in a separate group
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._ended.wait()

    def last_words(self) -> str:
        return " | ".join(self._last_lines[-3:])

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream, self._log.open("ab") as log:
            for raw in stream:
                log.write(raw)
                self.heard += 1
                line = raw.decode(errors="replace").strip()
                if line.startswith(_SAID):
                    self._last_lines = [*self._last_lines[-9:], line]
                    self._said(f"{self.name}: {line.removeprefix(_SAID)}")
        self._ended.set()  # the log ends when the last process has gone


class _Demo:
    """One run, all of it on the main thread."""

    def __init__(self, directory: Path, rows: int, count: int, master: str, view: PlainView) -> None:
        self._directory = directory
        self._rows = rows
        self._master = master
        self._view = view
        self._store = str(directory / "store")
        self._input = directory / "input"
        self._output = directory / "output"
        self._checkpoints = {"ingest": directory / "checkpoint", "drain": self._output / CHECKPOINT}
        self._group = DemoGroup(count, self._store, str(directory), view.event, ["directReads=*"])
        self._kills: list[SparkKill] = []
        self._spark_kills: list[str] = []
        self._figures: dict[str, dict[str, Any]] = {}
        self._pipeline: PipelineRun | None = None
        self._progress: tuple[int, ...] = ()
        self._moved_at = 0.0

    def run(self) -> SparkVerdict:
        """Raises AmqError where the demo cannot go on."""
        self._view.event(f"{len(self._group.brokers)} brokers on {self._store}; {self._rows:,} rows in {self._input}")
        sent = make_rows(self._input, self._rows)
        self._group.start()
        began = time.monotonic()
        per_batch = -(-self._rows // BATCHES)
        self._run(
            "ingest",
            [
                "--input",
                str(self._input),
                "--checkpoint",
                str(self._checkpoints["ingest"]),
                "--option",
                "maxFilesPerTrigger=1",
            ],
        )
        self._run(
            "drain",
            [
                "--output",
                str(self._output),
                "--text",
                "--store",
                self._store,
                "--option",
                f"maxOffsetsPerTrigger={per_batch}",
            ],
        )
        seconds = time.monotonic() - began
        self._group.until(lambda: self._group.is_whole, "group in which every broker is up", self._look)
        self._group.stop()
        arrived = read_rows(str(self._output))
        return SparkVerdict(
            self._rows,
            len(arrived),
            seconds,
            *compare(sent, arrived),
            self._kills,
            *demo_common.left_in(self._store),
            self._spark_kills,
            [f"{kind} of {name}" for name in _WAYS for kind in self._spark_kinds()],
            {name: figures.get("messages_per_s", 0) for name, figures in self._figures.items()},
            self._figures["drain"].get("direct", 0),
        )

    def end(self) -> None:
        """Leave no process behind."""
        if self._pipeline is not None:
            self._pipeline.end()
        self._group.end()

    def _spark_kinds(self) -> list[str]:
        return [kind for kind in KILL_BEHIND if kind != EXECUTOR or self._master.startswith(_EXECUTORS)]

    def _run(self, name: str, words: list[str]) -> None:
        """One way, with its kills."""
        self._group.until(lambda: self._group.is_whole, "group in which every broker is up", self._look)
        given = [
            "--url",
            self._group.url,
            "--destination",
            QUEUE,
            "--master",
            self._master,
            "--conf",
            f"spark.local.dir={self._directory / 'spark'}",
            "--conf",
            f"spark.driver.extraJavaOptions={_QUICK_START}",
            "--conf",
            f"spark.executor.extraJavaOptions={_QUICK_START}",
            "--conf",
            "spark.sql.shuffle.partitions=2",
            *words,
        ]
        self._pipeline = run = PipelineRun(name, given, self._directory, self._view.event)
        killed, waiting = False, self._spark_kinds()
        while run.is_running(REFRESH_S / 5):
            self._look()
            begun, _ = micro_batches(self._checkpoints[name])
            master = self._group.master
            for kind in waiting[:1]:
                if begun > KILL_BEHIND[kind] and (kind == DRIVER or run.kill_executor()):
                    waiting.remove(kind)
                    self._view.event(f"kill -9 of the {kind}, in micro-batch {begun - 1} of {name}")
                    self._spark_kills.append(f"{kind} of {name}")
                    if kind == DRIVER:
                        run.end()
                        self._pipeline = run = PipelineRun(name, given, self._directory, self._view.event)
            if not killed and not waiting and begun > BATCHES // 2 and self._group.is_ready and master is not None:
                killed = True
                self._group.kill(master, f"in micro-batch {begun - 1} of {name}")
                self._kills.append(SparkKill(master.name, pipeline=name, batch=begun - 1))
            self._check_progress(run)
        self._pipeline = None
        self._figures[name] = run.result()

    def _look(self) -> None:
        """AmqError where a broker has failed; start a killed one again; draw."""
        self._group.check()
        if self._kills:
            self._group.follow(self._kills[-1])
        done = [micro_batches(checkpoint)[1] for checkpoint in self._checkpoints.values()]
        shares = [f"{name}: {number} of {BATCHES} micro-batches" for name, number in zip(_WAYS, done, strict=True)]
        times = ", ".join(f"{kill.serving_s * 1000:.0f} ms" for kill in self._kills if kill.epoch)
        notes = [", ".join(shares), f"from kill to the next master: {times or '-'}"]
        self._view.show(Picture(self._group.brokers, len(_WAYS) * BATCHES, sum(done), notes))

    def _check_progress(self, run: PipelineRun) -> None:
        """AmqError where nothing moves."""
        batches = [number for checkpoint in self._checkpoints.values() for number in micro_batches(checkpoint)]
        progress = (run.heard, len(self._kills), *batches)
        if progress != self._progress:
            self._progress, self._moved_at = progress, time.monotonic()
        if time.monotonic() - self._moved_at > SILENCE_S:
            why = f"{run.name} has not moved for {SILENCE_S:g} s: {run.last_words()}; {self._group.state()}"
            raise AmqError(why, code="DEMO_FAILED")


def make_rows(directory: Path, count: int) -> list[str]:
    """Rows of 100 characters, all different, written to as many files as there are to be micro-batches."""
    directory.mkdir()
    rows = [f"{number:09} {blake2b(b'%d' % number, digest_size=45).hexdigest()}" for number in range(count)]
    size = -(-count // BATCHES)
    for start in range(0, count, size):
        path = directory / f"rows-{start:09}.txt"
        path.write_text("\n".join(rows[start : start + size]) + "\n")
    return rows


def read_rows(output: str) -> list[str]:
    """The rows that Spark counts in the Parquet files."""
    from pyarrow import parquet

    files = written_files(output)
    return [row for path in files for row in parquet.ParquetFile(path).read(["value"])["value"].to_pylist()]


def micro_batches(checkpoint: Path) -> tuple[int, int]:
    """How many of them a stream has begun, and how many are done."""
    begun, done = (
        sum(name.isdecimal() for name in os.listdir(path)) if path.exists() else 0
        for path in (checkpoint / "offsets", checkpoint / "commits")
    )
    return begun, done
