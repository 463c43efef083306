"""Pipelines: figures against a history that is known, files and journals through a real broker, and what is said when
something is missing."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from brokers import Broker, Brokers
from click.testing import CliRunner
from traffic import drain

from amq.cli.main import main
from amq.core.message import Copy, Message
from amq.journal.records import ACKED, EXPIRED, Consumed, Group, Moved, Record, Redelivered
from amq.journal.records.multicast import Multicast
from pyspark_amq import journal
from pyspark_amq.pipelines import NAMES, frame, load, page
from tests.cli.amq_process import amq, amq_json, command, one_line
from tests.journal.journal_world import World
from tests.spark.journal_stores import made

FIRST = 1 << 44
DEADLINE_S = 600.0  # a JVM begins, on a machine that has other work
DRAIN = ["drain", "--url", "stomp://127.0.0.1:1", "--destination", "/queue/a", "--output", "/proc/self"]


# -- audit -------------------------------------------------------------------------------------------------------------


def history(path: Path) -> tuple[World, int]:
    """A store, and the moment at which it begins, ms. Of each message the seq says what becomes of it."""
    world = made(path)
    begun_ms = world.clock.wall_ms()

    def sent(name: str, seq: int, at_s: int, size: int = 100) -> Message:
        return Message(name, b"x" * size, timestamp_ms=begun_ms + 1000 * at_s, seq=FIRST + seq)

    def store(at_s: int, *records: Record) -> None:
        world.clock.advance(begun_ms / 1000 + at_s - world.clock.wall_ms() / 1000)
        for record in records:
            if isinstance(record, Message):
                world.journal.append(record)
            else:
                world.journal.append_record(record)
        world.commit()

    orders, staged = "queue://orders", "sent://queue://orders"
    store(9, *(sent(orders, seq, seq) for seq in range(10)))
    store(10, sent(staged, 10, 10), sent(staged, 11, 10), sent(staged, 12, 10))
    store(11, Moved(staged, orders, [FIRST + 10]), Consumed(staged, ACKED, [FIRST + 11]))  # committed, rolled back
    store(20, Consumed(orders, ACKED, [FIRST + seq for seq in (0, 1, 2, 3)]), Redelivered(orders, [(FIRST + 6, 1, 1)]))
    store(30, Consumed(orders, ACKED, [FIRST + 4, FIRST + 10]), Redelivered(orders, [(FIRST + 6, 3, 2)]))
    store(31, Consumed(orders, EXPIRED, [FIRST + 5]), Moved(orders, "held://queue://orders", [FIRST + 7]))
    store(32, Consumed("held://queue://orders", ACKED, [FIRST + 7]), Moved(orders, "queue://bills", [FIRST + 8]))
    store(33, Group([sent(orders, 6, 6), sent("queue://bills", 8, 8)]))  # compaction copied them
    store(40, sent("queue://<b>large</b>", 20, 40, 70_000), Consumed(orders, ACKED, [5]))  # what was sent before
    world.end()
    return world, begun_ms


@pytest.mark.deep
def test_audit(spark: Any, tmp_path: Path) -> None:
    world, begun_ms = history(tmp_path / "store")
    output = tmp_path / "out"
    options = {
        "store": world.store,
        "output": str(output),
        "destination": [],
        "starting_timestamp": None,
        "ending_timestamp": None,
    }
    audit, said = load("audit"), []
    audit.check(options)
    figures = audit.run(spark, options, said.append)
    assert figures == {
        "destinations": 2,
        "messages": 14,
        "bytes": 1300 + 70_000,
        "redelivered": 1,
        "acked": 7,
        "expired": 1,
        "dead_lettered": 0,
        "purged": 0,
        "fired": 0,
        "rolled_back": 1,
        "prepared": 1,
        "waiting": 4,
        "left_before": 1,
        "page": str(output / "audit.html"),
    }
    assert said == ["14 messages of 2 destinations"]
    rows = {row["destination"]: row for row in spark.read.parquet(str(output / "destinations")).toArrow().to_pylist()}
    orders = rows["queue://orders"]
    waits = sorted([20, 19, 18, 17, 26, 20, 25])  # of 0, 1, 2, 3, 4, 10 and 7
    assert orders["wait_s_max"] == max(waits)
    assert orders["wait_s_mean"] == pytest.approx(sum(waits) / 7)
    assert (orders["wait_s_p50"], orders["wait_s_p99"]) == (20, 26)
    assert (orders["redeliveries"], orders["failures"], orders["body_bytes_p50"]) == (3, 2, 100)
    assert orders["messages_per_s"] == pytest.approx(13 / 10)
    assert orders["oldest"] == datetime.fromtimestamp(begun_ms / 1000 + 6, UTC)
    series = spark.read.parquet(str(output / "series")).toArrow().to_pylist()
    assert sum(row["sent_messages"] for row in series) == 14
    assert sum(row["left_messages"] for row in series) == 9
    twenty = [row for row in series if row["second"] == begun_ms // 1000 + 20]
    assert [(row["destination"], row["sent_messages"], row["left_messages"]) for row in twenty] == [
        ("queue://orders", 0, 4)
    ]
    text = (output / "audit.html").read_text()
    assert "queue://&lt;b&gt;large&lt;/b&gt;" in text
    assert text.count("<svg") == 2
    assert "<b>" not in text
    assert "http" not in text.replace("http://www.w3.org", ""), "it loads nothing"
    some = options | {
        "destination": ["queue://orders"],
        "starting_timestamp": begun_ms + 6000,
        "ending_timestamp": begun_ms + 9000,
    }
    figures = audit.run(spark, some, said.append)
    assert (figures["messages"], figures["acked"], figures["waiting"]) == (3, 1, 2)
    nothing = audit.run(spark, options | {"destination": ["queue://none"]}, said.append)
    assert (nothing["messages"], nothing["destinations"]) == (0, 0)


@pytest.mark.deep
def test_audit_of_a_durable_subscription(spark: Any, tmp_path: Path) -> None:
    """What was leased, or received in a prepared transaction, and given back waits where it was."""
    world, seqs = made(tmp_path / "store"), [FIRST, FIRST + 1]
    queues = ["subscription://:etl:7", "queue://news"]
    sent = Message("topic://news", b"x", timestamp_ms=world.clock.wall_ms())
    copies = [Copy.of(sent, name, seq) for name, seq in zip(queues, seqs, strict=True)]
    world.journal.append_record(Multicast(sent, queues, seqs, copies))
    for name, seq in zip(queues, seqs, strict=True):
        world.journal.append_record(Moved(name, f"held://{name}", [seq]))
        world.journal.append_record(Moved(f"held://{name}", name, [seq]))
    world.journal.append_record(Consumed("queue://orders", ACKED, [5]))
    world.commit()
    world.end()
    options = {
        "store": world.store,
        "output": str(tmp_path / "out"),
        "starting_timestamp": None,
        "ending_timestamp": None,
    }
    figures = load("audit").run(spark, options | {"destination": []}, str)
    assert (figures["messages"], figures["waiting"], figures["left_before"]) == (2, 2, 1)
    figures = load("audit").run(spark, options | {"destination": ["topic://news"]}, str)
    assert (figures["messages"], figures["waiting"], figures["left_before"]) == (1, 1, 0)


def test_a_curve_shows_what_happened() -> None:
    points = [
        {"second": 100, "sent_messages": 4, "left_messages": 0},
        {"second": 120, "sent_messages": 0, "left_messages": 2},
    ]
    drawn = page.chart(points, 10)
    sent, left = (line.split('"')[0].split() for line in drawn.split('points="')[1:])
    heights = [[float(point.partition(",")[2]) for point in line] for line in (sent, left)]
    assert [len(line) for line in heights] == [3, 3], "nothing happened in the second ten seconds, which shows"
    top, bottom = 16.0, float(page.HEIGHT - page.BOTTOM)
    assert heights == [[top, bottom, bottom], [bottom, bottom, (top + bottom) / 2]]
    assert "0.4/s" in drawn
    assert page.chart([], 10) == ""
    assert "<circle" in page.chart(points[:1], 10)


# -- through a broker --------------------------------------------------------------------------------------------------


def received(master: Broker, queue: str, expected: int) -> list[str]:
    """All bodies of a queue, sorted; it is empty then."""
    with master.connect() as connection:
        return sorted(body.decode() for body in drain(connection, expected, queue))


def last_offset(store: Path) -> int:
    """Of all messages in a store."""
    parts = [journal.read_part(part, journal.schema()) for part in journal.plan(str(store))]
    return max(row["offset"] for part in parts for batch in part for row in batch.to_pylist())


@pytest.mark.deep
def test_files_to_a_queue_and_the_journal_to_another(spark: Any, brokers: Brokers, tmp_path: Path) -> None:
    master = brokers.master("a")
    url = f"failover:(stomp://127.0.0.1:{master.port})"
    shared = {"url": url, "user": "", "password": "", "delivery": "exactly-once"}
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    lines = [f"line {number} of the file" for number in range(600)]
    (inbox / "1.txt").write_text("\n".join(lines[:400]) + "\n")
    ingest = load("ingest")
    options = shared | {
        "input": str(inbox),
        "format": "text",
        "destination": "/queue/in",
        "value": "",
        "key": "",
        "checkpoint": str(tmp_path / "checkpoint"),
        "option": [("maxFilesPerTrigger", "1")],
    }
    ingest.check(options)
    assert ingest.run(spark, options, str)["messages"] == 400
    (inbox / "2.txt").write_text("\n".join(lines[400:]) + "\n")
    assert ingest.run(spark, options, str)["messages"] == 200
    assert ingest.run(spark, options, str)["messages"] == 0
    (inbox / "3.txt").write_text("äöü of long ago\n")
    os.utime(inbox / "3.txt", (1e9, 1e9))
    assert ingest.run(spark, options, str)["messages"] == 1
    lines.append("äöü of long ago")
    table = tmp_path / "table.json"
    table.write_text("".join(json.dumps({"id": number, "text": f"é{number}"}) + "\n" for number in range(5)))
    table_options = options | {"input": str(table), "format": "json", "destination": "/queue/rows", "key": "id"}
    table_options["checkpoint"] = ""
    assert ingest.run(spark, table_options, str) == {"messages": 5}
    csv = tmp_path / "csv"
    csv.mkdir()
    (csv / "1.csv").write_text("a.b,`c`\n1,2\n")
    csv_options = table_options | {"input": str(csv), "format": "csv", "destination": "/queue/csv"}
    csv_options |= {"value": "a.b", "key": "`c`"}
    assert ingest.run(spark, csv_options, str) == {"messages": 1}
    (csv / "2.csv").write_text("`c`,a.b\n3,4\n")
    with pytest.raises(Exception, match="CSV header"):
        ingest.run(spark, csv_options, str)

    replay = load("replay")
    bounds = dict.fromkeys(("starting_offset", "ending_offset", "starting_timestamp", "ending_timestamp"))
    again = (
        shared
        | bounds
        | {
            "store": str(brokers.store),
            "parquet": None,
            "source": ["queue://in"],
            "destination": "/queue/again",
            "ordered": True,
        }
    )
    again["ending_offset"] = last_offset(brokers.store) + 1  # behind it stands what `received` sends
    assert received(master, "/queue/in", 601) == sorted(lines)
    replay.check(again)
    assert replay.run(spark, again, str) == {"messages": 601, "bytes": sum(len(line.encode()) for line in lines)}
    assert received(master, "/queue/again", 601) == sorted(lines)
    moved = tmp_path / "rows.parquet"
    rows = spark.read.format("amq-journal").option("destination", "rows").load(str(brokers.store))
    rows.select("key", "value").write.parquet(str(moved))
    parquet = again | bounds | {"store": None, "parquet": str(moved), "source": [], "ordered": False}
    replay.check(parquet)
    assert replay.run(spark, parquet, str)["messages"] == 5
    assert [json.loads(body)["id"] for body in received(master, "/queue/again", 5)] == list(range(5))


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_the_command_from_end_to_end(spark: Any, tmp_path: Path) -> None:  # noqa: ARG001
    """In a separate process, as a user starts it."""
    world, _ = history(tmp_path / "store")
    words = ["pipeline", "run", "audit", "--store", world.store, "--output", str(tmp_path / "out"), "--json"]
    words += ["--master", "local[1]", "--conf", "spark.sql.shuffle.partitions=1"]
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "14 messages of 2 destinations" in done.stderr
    figures = json.loads(done.stdout)
    assert (figures["pipeline"], figures["messages"], figures["acked"]) == ("audit", 14, 7)
    assert figures["duration_s"] > 0
    assert os.path.exists(figures["page"])


def test_list() -> None:
    assert [each["name"] for each in amq_json("pipeline", "list")] == list(NAMES)
    text = amq("pipeline", "list").stdout
    assert all(name in text for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_help_has_examples_that_the_command_takes(name: str) -> None:
    pipeline = load(name)
    done = CliRunner().invoke(main, ["pipeline", "run", name, "--help"])
    assert done.exit_code == 0
    for example in pipeline.examples:
        assert f"amq pipeline run {name} {example}" in done.output
    assert "--master" in done.output
    assert len(pipeline.title) < 100


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else find(name))


@pytest.mark.usefixtures("without_spark")
def test_a_host_without_spark_says_how_to_get_it() -> None:
    with pytest.raises(frame.PipelineError, match=r"pyspark is not installed here: pip install 'amq\[spark\]'") as told:
        frame.execute(load("audit"), {}, "local[1]", {}, {}, str)
    assert told.value.code == "SPARK_MISSING"


@pytest.mark.parametrize(("master", "environ"), [("sc://host", {}), ("local[1]", {"SPARK_REMOTE": "sc://host"})])
def test_a_session_of_spark_connect_is_refused(master: str, environ: dict[str, str]) -> None:
    with pytest.raises(frame.PipelineError, match="not in that of Spark Connect: unset SPARK_REMOTE and give --master"):
        frame.execute(load("audit"), {}, master, {}, environ | {frame._SUBMITTED: "1"}, str)


def test_commands_load_no_spark() -> None:
    code = (
        "import sys; from pyspark_amq.pipelines import NAMES, load; [load(name) for name in NAMES]; "
        "print([name for name in sys.modules if name.split('.')[0] in ('pyspark', 'pyarrow', 'numpy', 'pandas')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["audit", "--store", "/nowhere", "--output", "/tmp"], 4, "STORE_MISSING"),
        (["replay", "--url", "stomp://127.0.0.1:1"], 2, "give either --store.*or --parquet"),
        (["replay", "--url", "stomp://127.0.0.1:1", "--store", "/nowhere"], 2, "give --from"),
        (["replay", "--url", "stomp://127.0.0.1:1", "--parquet", "/nowhere", "--starting-offset", "1"], 2, "range"),
        (["replay", "--url", "stomp://127.0.0.1:1", "--parquet", "/nowhere"], 1, "no such file.*PIPELINE_FAILED"),
        (["ingest", "--url", "stomp://127.0.0.1:1", "--input", "/nowhere", "--destination", "a"], 1, "no such file"),
        (["ingest", "--url", "stomp://127.0.0.1:1", "--input", "file:/nowhere", "--destination", "a"], 6, "no broker"),
        ([*DRAIN, "--option", "startingOffsets=soon"], 3, "'startingOffsets' must.*'soon'.*OPTION_INVALID"),
        ([*DRAIN, "--option", "startingOffsets=latest"], 3, "must be earliest.*OPTION_INVALID"),
        ([*DRAIN, "--option", "includeHeaders"], 2, "'includeHeaders': write NAME=VALUE"),
        ([*DRAIN, "--destination", "/topic/a"], 2, "--subscription"),
        ([*DRAIN, "--interval", "soon"], 2, "'soon': write a duration"),
        (DRAIN, 1, "/proc/self has files that no drain wrote.*PIPELINE_FAILED"),
        (["audit", "--store", "/nowhere", "--output", "/tmp", "--starting-timestamp", "noon"], 2, "'noon'.*write 20"),
        (["audit", "--store", "/nowhere", "--output", "/tmp", "--destination", "/queue/"], 2, "must be a destination"),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, list) else None,
)
def test_what_cannot_work_is_told_before_spark_starts(words: list[str], code: int, why: str) -> None:
    done = amq("pipeline", "run", *words)
    assert done.returncode == code, done.stderr
    assert re.search(why, done.stderr, re.DOTALL)
    assert "Spark" not in done.stderr
    if code != 2:
        one_line(done)


def test_an_audit_writes_where_its_page_can_stand(tmp_path: Path) -> None:
    store, output = made(tmp_path / "store").store, "s3a://lake/audit"
    done = subprocess.run(
        command("pipeline", "run", "audit", "--store", store, "--output", output),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, "s3a://lake/audit: is a URI" in one_line(done)) == (1, True)
    assert not (tmp_path / "s3a:").exists()


def test_a_moment() -> None:
    for text in ("2026-01-31T06:00:00", "2026-01-31T07:00:00+01:00", "1769839200000"):
        assert frame.moment_ms(None, None, text) == 1769839200000
    assert frame.moment_ms(None, None, None) is None
    assert frame.moment_ms(None, None, "20260131") == frame.moment_ms(None, None, "2026-01-31") == 1769817600000
    for wrong in ("soon", "20260132", "²"):
        with pytest.raises(click.BadParameter, match=f"'{wrong}': write 2026"):
            frame.moment_ms(None, None, wrong)


def test_what_java_says_is_no_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what PySpark has no name for: a file system that is not there, a job that was aborted."""
    protocol = pytest.importorskip("py4j.protocol")
    java = (
        "An error occurred while calling o35.getFileSystem.\n: org.apache.hadoop.fs.UnsupportedFileSystemException: No "
        'FileSystem for scheme "s4"\n\tat org.apache…'
    )

    def run(*_words: Any) -> dict[str, Any]:
        raise protocol.Py4JError(java)

    pipeline = frame.Pipeline("drain", "", [], [], lambda _options: None, run)
    monkeypatch.setattr(frame, "session", lambda *_words: contextlib.nullcontext())
    with pytest.raises(frame.PipelineError, match=r'^drain: org\.apache\.\S+: No FileSystem for scheme "s4"$'):
        frame.execute(pipeline, {}, "local[1]", {}, {frame._SUBMITTED: "1"}, str)


def test_a_master_that_is_none_is_no_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol, sql = pytest.importorskip("py4j.protocol"), pytest.importorskip("pyspark.sql")

    class Builder:
        def __getattr__(self, _name: str) -> Any:
            return lambda *_words: self

        def getOrCreate(self) -> Any:
            raise protocol.Py4JError(
                "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n: "
                "org.apache.spark.SparkException: Could not parse Master URL: 'lokal'\n\tat org.apache…"
            )

    monkeypatch.setattr(sql.SparkSession, "builder", Builder())
    why = r"^Spark did not start: .*Could not parse Master URL: 'lokal'$"
    with pytest.raises(frame.PipelineError, match=why) as told, frame.session("drain", "lokal", {}, {}):
        pytest.fail("there is no session")
    assert "Java 17" not in str(told.value)


def test_what_a_task_says_is_what_the_user_reads() -> None:
    spark_says = (
        "An exception was thrown from Python worker. Please see the stack trace below.\n"
        "Traceback (most recent call last):\n  File …\n"
        "amq.core.errors.CorruptError: /s/journal/1.seg: offset 64: batch 1 fails its checksum\n\tat org.apache…"
    )
    assert frame._reason(RuntimeError(spark_says)) == "/s/journal/1.seg: offset 64: batch 1 fails its checksum"
    assert frame._reason(RuntimeError("Path does not exist\nand more")) == "Path does not exist"


def test_workers_import_modules_that_have_byte_code(tmp_path: Path) -> None:
    import pyspark

    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    for _ in range(2):  # a later run uses the same links
        environ.pop("SPARK_HOME", None)
        frame.use_compiled_modules(environ)
        home = Path(environ["SPARK_HOME"])
        assert sorted(each.name for each in home.iterdir()) == ["bin", "jars"], "and no archive of modules"
        assert (home / "jars").resolve() == Path(pyspark.__file__).parent / "jars"
    for chosen in ({"SPARK_HOME": "/opt/spark", "HOME": str(tmp_path)}, {}):
        given = dict(chosen)
        frame.use_compiled_modules(given)
        assert given == chosen
