"""`drain` with real brokers, hurt at each step: what is read back from its Parquet files is what was sent, each message
once; what is acknowledged is there; a checkpoint and an output that do not belong together are refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
import pytest
from brokers import Broker, Brokers
from click.testing import CliRunner

import amq
from amq.cli.pipeline import pipeline as commands
from pyspark_amq.pipelines import drain, frame, load
from pyspark_amq.pipelines.progress import CHECKPOINT, STATUS, read_status
from tests.cli.amq_process import ROOT, command
from tests.spark.session import environment
from tests.spark.source_driver import patiently

QUEUE = "/queue/orders"
DEADLINE_S = 600.0  # a JVM begins, on a machine that has other work


def url(*brokers: Broker) -> str:
    return f"failover:({','.join(f'stomp://127.0.0.1:{broker.port}' for broker in brokers)})"


def options(where: str, output: Path | str, **changes: Any) -> dict[str, Any]:
    """As the command line has them."""
    given = {
        "url": where,
        "user": "",
        "password": "",
        "destination": QUEUE,
        "subscription": "drain",
        "output": str(output),
        "checkpoint": "",
        "store": "",
        "interval": None,
        "text": True,
        "option": [("maxOffsetsPerTrigger", "1000")],
    }
    return given | changes


def send(where: str, numbers: Iterable[int], destination: str = QUEUE) -> None:
    with amq.connect(where) as connection, connection.session() as session:
        producer = session.producer(destination)
        for number in numbers:
            producer.send(b"%d" % number, wait=False)
        producer.flush()


def written(spark: Any, output: Path | str) -> list[int]:
    return sorted(int(row.value) for row in spark.read.parquet(str(output)).select("value").collect())


def kept(where: str) -> list[dict[str, int]]:
    """What is leased still."""
    with amq.connect(where) as connection:
        return [dict(each.acks) for each in connection.recover()]


# -- with Spark --------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_a_queue_through_a_takeover_and_again(spark: Any, brokers: Brokers, tmp_path: Path) -> None:
    master, slave = brokers.master("a"), brokers.slave("b")
    where, output, said = url(master, slave), tmp_path / "out", []
    send(where, range(3000))
    pipeline = load("drain")

    def say(text: str) -> None:
        said.append(text)
        if master.alive and text.startswith("micro-batch"):
            master.kill()

    def run(**changes: Any) -> Any:
        given = options(where, output, **changes)
        pipeline.check(given)
        return patiently(lambda: pipeline.run(spark, given, say))

    figures = run()
    assert figures.pop("messages_per_s") > 0
    assert figures == {"messages": 3000, "batches": 3, "output": str(output)}
    assert not master.alive
    assert said[0] == f"writing {QUEUE} to {output}"
    figures_of_batch = r"1,000 messages, [\d,]+/s; [\d,]+ wait \([\d.]+ MB\), 1,000 leased"
    for number, line in enumerate(said[1:]):
        assert re.match(f"micro-batch {number}: {figures_of_batch}", line)
    assert len(said) == 4
    status = read_status(str(output / CHECKPOINT))
    assert (status["state"], status["messages"], status["waiting"], status["last_batch"]) == ("ended", 3000, 0, 2)
    assert written(spark, output) == list(range(3000))
    assert kept(where) == [], "the last micro-batch is acknowledged too"
    assert run()["messages"] == 0
    send(where, range(3000, 3010))
    assert run()["messages"] == 10
    assert written(spark, output) == list(range(3010))
    assert kept(where) == []
    (row,) = spark.read.parquet(str(output)).where("value = '7'").collect()
    assert (row.destination, row.redelivered, row.key) == (QUEUE, False, None)

    send(where, [3010])
    for elsewhere in (f"file://{output}", str(output)):
        with pytest.raises(frame.PipelineError, match=r"do not belong together: .* up to 3, the checkpoint -1"):
            pipeline.run(spark, options(where, elsewhere, checkpoint=f"file://{tmp_path}/other"), say)
    assert kept(where) == [], "nothing was read for what is refused"
    shutil.rmtree(output)
    with amq.connect(where) as connection, connection.session() as session:
        session.producer(QUEUE).send(b"\xff", headers={"colour": "red", "correlation-id": "k"})
    assert run(text=False, option=[("includeHeaders", "true")])["messages"] == 2, "a new beginning"
    assert {bytes(row.value) for row in spark.read.parquet(str(output)).collect()} == {b"3010", b"\xff"}
    bounds = dict.fromkeys(("starting_offset", "ending_offset", "starting_timestamp", "ending_timestamp"))
    again = bounds | {
        "url": where,
        "user": "",
        "password": "",
        "delivery": "exactly-once",
        "store": None,
        "parquet": str(output),
        "source": ["queue://orders"],
        "destination": "/queue/again",
        "ordered": True,
    }
    assert patiently(lambda: load("replay").run(spark, again, str)) == {"messages": 2, "bytes": 5}
    with amq.connect(where) as connection, connection.session() as session:
        browser = session.browser("/queue/again")
        first, second = browser.receive(DEADLINE_S), browser.receive(DEADLINE_S)
    assert first is not None
    assert second is not None
    assert (first.body, second.body, second.headers["colour"]) == (b"3010", b"\xff", "red")
    assert second.headers["correlation-id"] == "k"


@pytest.mark.deep
def test_a_topic_without_end_whose_driver_is_killed(spark: Any, brokers: Brokers, tmp_path: Path) -> None:
    """A command that begins on a machine that is busy, and goes on until it is killed with -9, in the middle of a
    micro-batch; the next run finishes that."""
    where, topic, output = url(brokers.master("a")), "/topic/prices", tmp_path / "out"
    with amq.connect(where) as connection, connection.session() as session:
        session.consumer(topic, prefetch=0, subscription="lake").close()
    send(where, range(1500), topic)
    words = ["--url", where, "--destination", topic, "--subscription", "lake", "--output", output, "--text"]
    words += ["--interval", "10ms", "--master", "local[1]", "--option", "maxOffsetsPerTrigger=500"]
    with (tmp_path / "log").open("wb") as log:
        driver = subprocess.Popen(
            command("pipeline", "run", "drain", *words),
            cwd=ROOT,
            start_new_session=True,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=os.environ | environment(tmp_path / "driver") | busy(tmp_path),
        )
    try:
        wait_for((output / "_checkpoint" / "offsets" / "1").exists, driver, tmp_path / "log")
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert f"start 2 of {frame.STARTS_MAX}" in (tmp_path / "log").read_text()
    send(where, range(1500, 1600), topic)
    given = options(where, output, destination=topic, subscription="lake")
    pipeline = load("drain")
    pipeline.check(given)
    patiently(lambda: pipeline.run(spark, given, str))
    assert written(spark, output) == list(range(1600))
    assert kept(where) == []


def busy(directory: Path) -> dict[str, str]:
    """What makes Spark start a Python that is the source of a stream later than Spark waits for it, once."""
    python = directory / "python"
    python.write_text(
        f"#!/bin/sh\ncase $* in *streaming_source*) mkdir {directory}/was-late && sleep 11;; esac\n"
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    return {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}


def wait_for(there: Callable[[], bool], driver: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not there():
        assert driver.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.002)


# -- without -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "planned", "committed", "fits"),
    [
        ([], [], [], True),
        ([], ["0"], [], True),
        (["0"], ["0"], [], True),
        (["0"], ["0"], ["0"], True),
        (["0", ".0.crc", "9.compact", "10"], ["9", "10", "11"], ["9", "10"], True),
        (["9.compact"], ["0"], [], False),
        (["0"], [], [], False),
        ([], ["0"], ["0"], False),
        (["8"], ["8", "9"], ["8", "9"], False),
    ],
)
def test_a_checkpoint_and_an_output_belong_together(
    written: list[str], planned: list[str], committed: list[str], fits: bool
) -> None:
    there = {"o/_spark_metadata": written, "c/offsets": planned, "c/commits": committed, "o": []}
    if fits:
        drain.check_pair(there.__getitem__, "o", "c")
    else:
        with pytest.raises(frame.PipelineError, match="do not belong together"):
            drain.check_pair(there.__getitem__, "o", "c")


def test_files_of_somebody_else_are_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "_checkpoint").mkdir()
    (tmp_path / ".hidden").touch()
    drain.check_pair(drain._local_names, str(tmp_path), str(tmp_path / "_checkpoint"))
    (tmp_path / "table.parquet").touch()
    with pytest.raises(frame.PipelineError, match="has files that no drain wrote"):
        drain.check_pair(drain._local_names, str(tmp_path), str(tmp_path / "_checkpoint"))


class Query:
    """A stream as Spark shows it: with the progress of its last two micro-batches."""

    def __init__(self, *rows: int, error: Exception | None = None) -> None:
        self.recentProgress: list[dict[str, Any]] = []
        self.stopped = False
        self._rows = list(enumerate(rows))
        self._error = error

    def awaitTermination(self, _timeout_s: float) -> bool:
        if not self._rows:
            if self._error is not None:
                raise self._error
            return True
        number, rows = self._rows.pop(0)
        idle = {"batchId": number + 1, "numInputRows": 0}
        told = {
            "waiting": {"/queue/a": 7, "/queue/b": 1},
            "waitingBytes": {"/queue/a": 2_000_000},
            "leased": rows,
            "direct": 10 * number,
            "fallback": number,
        }
        done = {
            "batchId": number,
            "numInputRows": rows,
            "durationMs": {"triggerExecution": 500},
            "processedRowsPerSecond": 1234.5,
            "sources": [{"latestOffset": json.dumps(told)}],
        }
        self.recentProgress = [*self.recentProgress[-2:-1], done, idle]
        return False

    def stop(self) -> None:
        self.stopped = True


def test_micro_batches_are_counted_once_though_spark_forgets_them(tmp_path: Path) -> None:
    query, said = Query(5, 0, 1000, 2, 3), []
    figures = frame.follow(lambda: query, said.append, "drain", str(tmp_path))
    assert figures == {"messages": 1010, "batches": 4, "messages_per_s": 505, "direct": 40, "fallback": 4}
    assert said[1] == (
        "micro-batch 2: 1,000 messages, 1,234/s; 8 wait (2.0 MB), 1,000 leased; "
        "20 read from the store, 2 from the broker"
    )
    assert [line.split(" messages")[0] for line in said] == [
        f"micro-batch {text}" for text in ("0: 5", "2: 1,000", "3: 2", "4: 3")
    ]
    assert query.stopped
    shown = CliRunner().invoke(commands, ["status", "--checkpoint", str(tmp_path), "--json"])
    status = json.loads(shown.output)
    names = ("state", "messages", "waiting", "waiting_bytes", "leased", "last_per_s")
    assert {name: status[name] for name in names} == {
        "state": "ended",
        "messages": 1010,
        "waiting": 8,
        "waiting_bytes": 2_000_000,
        "leased": 3,
        "last_per_s": 1234,
    }
    assert "waiting bytes: 2,000,000" in CliRunner().invoke(commands, ["status", "--checkpoint", str(tmp_path)]).output
    query = Query(1, error=ValueError("it died"))
    with pytest.raises(ValueError, match="it died"):
        frame.follow(lambda: query, str, "drain", str(tmp_path))
    assert query.stopped
    assert read_status(str(tmp_path))["state"] == "failed"


def test_the_list_shows_the_figures_of_all_runs(tmp_path: Path) -> None:
    places = {"ingest": tmp_path / "orders", "drain": tmp_path / "out[1]" / CHECKPOINT}
    for name, place in places.items():
        frame.follow(lambda: Query(5, 1000), str, name, str(place))
    given = ["list", "--checkpoint", str(tmp_path)]
    shown = json.loads(CliRunner().invoke(commands, [*given, "--json"]).output)
    assert {each["pipeline"]: each.pop("checkpoint") for each in shown} == {
        name: str(place) for name, place in places.items()
    }
    for each in shown:
        status = (
            CliRunner().invoke(commands, ["status", "--checkpoint", str(places[each["pipeline"]]), "--json"]).output
        )
        assert each == json.loads(status)
    text = CliRunner(env={"COLUMNS": "200"}).invoke(commands, given).output
    for word in ("1,234", "2,000,000", "bytes waiting", str(places["drain"])):
        assert word in text or word.replace(",", "") in text
    twice = [*given, "--checkpoint", str(places["ingest"]), "--json"]
    assert len(json.loads(CliRunner().invoke(commands, twice).output)) == 2
    nothing = CliRunner().invoke(commands, ["list", "--checkpoint", str(tmp_path / "nowhere")])
    assert nothing.exit_code == 2
    assert f"no {STATUS} in {tmp_path / 'nowhere'}" in nothing.output


def test_a_directory_without_progress_is_refused(tmp_path: Path) -> None:
    found = CliRunner().invoke(commands, ["status", "--checkpoint", str(tmp_path)])
    assert found.exit_code == 2
    assert "give the checkpoint of an ingest or drain" in found.output
    for text in ("17", "{}", "no json"):
        (tmp_path / STATUS).write_text(text)
        assert CliRunner().invoke(commands, ["status", "--checkpoint", str(tmp_path)]).exit_code == 2


def test_a_source_that_is_not_up_in_time_is_started_again() -> None:
    errors = pytest.importorskip("pyspark.errors")

    def slow(*rows: int) -> Query:
        return Query(*rows, error=errors.StreamingQueryException(f"STREAM_FAILED: {frame._TOO_SLOW}."))

    started = [slow(), slow(3), Query(3, 4)]
    queries, said = iter(started), []
    figures = frame.follow(lambda: next(queries), said.append)
    assert (figures["messages"], figures["batches"]) == (7, 2)
    assert [text.partition(":")[2] for text in said if "in the 10 s" in text] == [" start 2 of 10", " start 3 of 10"]
    assert all(query.stopped for query in started)
    slow_ones = [slow() for _ in range(frame.STARTS_MAX + 1)]
    with pytest.raises(errors.StreamingQueryException, match=frame._TOO_SLOW):
        frame.follow(iter(slow_ones).__next__, str)
    assert [query.stopped for query in slow_ones] == [True] * frame.STARTS_MAX + [False]
    other = Query(error=errors.StreamingQueryException("STREAM_FAILED: something else"))
    with pytest.raises(errors.StreamingQueryException, match="something else"):
        frame.follow(iter([other]).__next__, str)


def test_options() -> None:
    given = options("u", "/o", password="secret", option=[("includeHeaders", "true"), ("failOnDataLoss", "false")])
    assert drain.source_settings(given) == {
        "url": "u",
        "password": "secret",
        "destination": QUEUE,
        "subscription": "drain",
        "includeHeaders": "true",
        "failOnDataLoss": "false",
    }
    assert drain._checkpoint(given) == "/o/_checkpoint"
    assert drain._checkpoint(given | {"checkpoint": "/c"}) == "/c"


def test_a_duration() -> None:
    assert [frame.duration_s(None, None, text) for text in ("500ms", "10s", "1.5m", None)] == [0.5, 10, 90, None]
    for wrong in ("0", "soon", "-1s"):
        with pytest.raises(click.BadParameter, match=f"'{wrong}': write a duration"):
            frame.duration_s(None, None, wrong)
