"""`amq demo-spark`: its verdict is earned, it sees rows that are lost, doubled or strange, it leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from amq.cli.demo_spark import BATCHES, KILL_BEHIND, SparkKill, SparkVerdict, compare, make_rows, micro_batches
from pyspark_amq.pipelines.drain import written_files
from tests.cli.amq_process import amq, one_line, running
from tests.processes import naming
from tests.sampling import thorough
from tests.spark.conftest import need_spark
from tests.spark.session import environment

DEADLINE_S = 900.0  # two JVMs begin, on a machine that has other work


def started(tmp_path: Path, *words: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """The demo, below `tmp_path`/demo."""
    need_spark()
    (tmp_path / "demo").mkdir()
    places = {"TMPDIR": f"{tmp_path}/demo", "PYTHONUNBUFFERED": "1"}
    return running("demo-spark", *words, env=environment(tmp_path / "spark") | places)


@pytest.mark.deep
def test_both_masters_are_killed_and_all_rows_come_once(tmp_path: Path) -> None:
    with started(tmp_path, "--rows", "2000", "--json") as demo:
        output, error = demo.communicate(timeout=DEADLINE_S)
    assert demo.returncode == 0, output.decode() + error.decode()
    verdict = json.loads(output)
    assert verdict["ok"] is True
    assert (verdict["rows"], verdict["arrived"]) == (2000, 2000)
    assert (verdict["lost"], verdict["duplicated"], verdict["foreign"]) == (0, 0, 0)
    assert (verdict["left"], verdict["problems"]) == (0, [])
    first, second = verdict["kills"]
    assert (first["pipeline"], second["pipeline"]) == ("ingest", "drain")
    assert (first["epoch"], second["epoch"], second["broker"]) == (2, 3, first["next_broker"])
    for kill in (first, second):
        assert BATCHES // 2 <= kill["batch"] < BATCHES
        assert kill["serving_s"] > 0
    assert verdict["spark_kills"] == [f"{kind} of {name}" for name in ("ingest", "drain") for kind in KILL_BEHIND]
    assert verdict["rows_per_s"].keys() == {"ingest", "drain"}
    assert all(verdict["rows_per_s"].values())
    assert naming(tmp_path / "demo") == []
    assert list((tmp_path / "demo").iterdir()) == []


@pytest.mark.parametrize("number", [pytest.param(signal.SIGKILL, marks=pytest.mark.deep), *thorough(signal.SIGINT)])
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path, "--rows", "2000") as demo:
        assert demo.stdout is not None
        while b"ingest: starting Spark" not in demo.stdout.readline():
            assert demo.poll() is None
        assert len(naming(tmp_path / "demo")) >= 4, "three brokers, and a pipeline"
        demo.send_signal(number)
        output, _ = demo.communicate(timeout=DEADLINE_S)
    assert b"micro-batch" not in output, "it went on"
    if number is signal.SIGINT:
        assert demo.returncode == 130
        assert list((tmp_path / "demo").glob("amq-demo-spark-*")) == []
    deadline = time.monotonic() + DEADLINE_S
    while left := naming(tmp_path / "demo"):  # a JVM that has just begun ends when it has begun
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


@pytest.mark.parametrize("home", ["", "/nowhere"])
def test_a_host_without_java_is_told_what_is_needed(tmp_path: Path, home: str) -> None:
    done = amq("demo-spark", env={"PATH": str(tmp_path), "JAVA_HOME": home, "TMPDIR": str(tmp_path)})
    assert (done.returncode, done.stdout) == (1, "")
    told = one_line(done)
    assert "Spark needs Java 17 or later" in told
    assert told.endswith("[SPARK_MISSING]")
    assert home in told
    assert list(tmp_path.iterdir()) == []


def verdict(**changes: Any) -> SparkVerdict:
    facts: dict[str, Any] = {
        "rows": 10,
        "arrived": 10,
        "seconds": 1.0,
        "lost": 0,
        "duplicated": 0,
        "foreign": 0,
        "kills": [SparkKill("a", "b", 2, 0.1, "ingest", 5), SparkKill("b", "a", 3, 0.1, "drain", 5)],
        "left": 0,
        "problems": [],
        "spark_kills": ["driver of drain"],
        "spark_kills_planned": ["driver of drain"],
        "rows_per_s": {"drain": 1200},
        "direct": 10,
    }
    return SparkVerdict(**facts | changes)


def test_a_good_verdict() -> None:
    assert verdict().ok
    text = " ".join(sentence for _, sentence in verdict().sentences())
    assert "lost 0, duplicated 0, never sent 0" in text
    assert "killed with -9 as well: driver of drain; each pipeline since its last start: drain 1,200 rows/s" in text
    assert "10 rows of drain read from the store" in text
    assert "2 of 2 masters killed with -9, in micro-batch 5 of ingest, in micro-batch 5 of drain" in text


@pytest.mark.parametrize(
    "flaw",
    [
        {"spark_kills": []},
        {"lost": 1},
        {"duplicated": 1},
        {"foreign": 1},
        {"left": 1},
        {"problems": ["x"]},
        {"kills": []},
        {"kills": [SparkKill("a", "b", 2, 0.1, "ingest", 5)]},
        {"kills": [SparkKill("a", "b", 2, 0.1, "ingest", 5), SparkKill("b", "", 0, 0.0, "drain", 5)]},
    ],
)
def test_each_broken_promise_spoils_the_verdict(flaw: dict[str, Any]) -> None:
    assert not verdict(**flaw).ok
    assert sum(not good for good, _ in verdict(**flaw).sentences()) == 1


def test_rows_are_compared_one_by_one() -> None:
    assert compare(["a", "b", "c"], ["c", "a", "b"]) == (0, 0, 0)
    assert compare(["a", "b", "c"], ["a", "a", "a", "b", "x", "x"]) == (1, 2, 2)
    assert compare(["a", "b"], []) == (2, 0, 0)


def test_input(tmp_path: Path) -> None:
    rows = make_rows(tmp_path / "input", 1003)
    assert len(set(rows)) == 1003
    assert {len(row) for row in rows} == {100}
    files = sorted((tmp_path / "input").iterdir())
    assert len(files) == BATCHES
    assert [row for path in files for row in path.read_text().splitlines()] == rows
    (tmp_path / "again").mkdir()
    assert make_rows(tmp_path / "again" / "input", 1003) == rows


def test_micro_batches(tmp_path: Path) -> None:
    assert micro_batches(tmp_path) == (0, 0)
    for name in ("offsets/0", "offsets/1", "offsets/.1.crc", "offsets/.2.5b.tmp", "commits/0"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert micro_batches(tmp_path) == (2, 1)


def test_files_that_count(tmp_path: Path) -> None:
    lists = tmp_path / "_spark_metadata"
    lists.mkdir()
    assert written_files(str(tmp_path)) == []

    def entry(name: str) -> str:
        return json.dumps({"path": f"file:///a%20b/{name}.parquet", "size": 1, "action": "add"})

    (lists / "0").write_text(f"v1\n{entry('a')}\n{entry('b')}")
    (lists / "1").write_text("v1")
    (lists / ".1.crc").write_bytes(b"\xff")
    assert written_files(str(tmp_path)) == ["/a b/a.parquet", "/a b/b.parquet"]
    (lists / "9.compact").write_text(f"v1\n{entry('a')}\n{entry('b')}\n{entry('c')}\n")
    (lists / "10").write_text(f"v1\n{entry('d')}\n")
    assert written_files(str(tmp_path)) == [f"/a b/{name}.parquet" for name in "abcd"]
