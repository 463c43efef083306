"""The bench beside Kafka: without Kafka it says how to get it, and with the jars each way gives its figures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="no PySpark: run make .venv/.installed-test")
pytest.importorskip("pyarrow", reason="no pyarrow: run make .venv/.installed-test")

from bench import spark_kafka
from bench.load import LoadError
from tests.brokers import ROOT
from tests.spark.conftest import need_spark

KAFKA_JARS = "AMQ_KAFKA_JARS"  # a directory that `--fetch` filled; nothing else brings Kafka here


def test_without_kafka_it_says_how_to_get_it(tmp_path: Path) -> None:
    need_spark()
    command = [sys.executable, "-m", "bench.spark_kafka"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("failed: this bench needs the jars of Kafka")
    for words in ("--fetch DIR", "--kafka DIR", "dependency:copy-dependencies", "<artifactId>kafka_2.13</artifactId>"):
        assert words in done.stderr
    why = spark_kafka.why_no_kafka(tmp_path)
    assert why.startswith(
        f"missing: {tmp_path}/server/kafka_2.13-*.jar, {tmp_path}/spark/spark-sql-kafka-0-10_2.13-*.jar\n"
    )
    assert why.endswith(spark_kafka.how_to_get())


def test_fetch_runs_those_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "mvn").write_text(
        "#!/bin/sh\n"
        'echo "$@" > words\n'
        "name=$(sed -n 's/.*<artifactId>\\(kafka_2.13\\|spark-sql.*\\)<.artifactId>.*/\\1/p' pom.xml)\n"
        ': > "$name-1.jar"; : > commons-pool2-1.jar; : > hadoop-client-api-1.jar\n'
    )
    (tools / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    spark_kafka.fetch(tmp_path / "jars")
    assert spark_kafka.why_no_kafka(tmp_path / "jars") == ""
    assert (tmp_path / "jars" / "server" / "words").read_text().split() == [*spark_kafka.COPY[1:]]
    names = [Path(jar).name for jar in spark_kafka.connector_jars(tmp_path / "jars").split(",")]
    assert names == ["commons-pool2-1.jar", "spark-sql-kafka-0-10_2.13-1.jar"], "Spark has the others"


def test_an_error_of_maven_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mvn").write_text("#!/bin/sh\necho no network; exit 1\n")
    (tmp_path / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(spark_kafka.KafkaError, match=r"org.apache.kafka:kafka_2.13:[0-9.]+:\nno network"):
        spark_kafka.fetch(tmp_path / "jars")


class Counted(spark_kafka.Bench):
    """Each query takes a second for all rows, its first half in addBatch."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def trial(self, what: str, name: str, rows: int) -> spark_kafka.Trial:
        self.asked.append((what, name))
        if rows < 0:
            raise LoadError("0 rows came")
        return spark_kafka.Trial(0.5 if what == spark_kafka.DIRECT else 1.0, 0.5, 1e-6 * rows, 2e-6 * rows, 3e-6 * rows)


def test_ways_take_turns_and_the_first_round_warms_up() -> None:
    bench, said = Counted(), list[str]()
    results = spark_kafka.measure(bench, 1000, 2, said.append)
    assert [what for what, _ in bench.asked] == [spark_kafka.SINK_AMQ, *spark_kafka.ALL] * 3
    assert len(set(bench.asked)) == len(bench.asked), "each reads what nobody has read"
    shown = spark_kafka.table(results)
    cells = [list(column.cells) for column in shown.columns]
    assert cells[0] == [*spark_kafka.ALL]
    assert cells[1][0] == "1,000 (1,000 to 1,000)"
    assert cells[2] == ["1.00", "1.00", "2.00", "1.00", "1.00"]
    assert [column[2] for column in cells[3:]] == ["2,000", "1.0", "2.0", "3.0"]
    with pytest.raises(LoadError, match="0 rows came"):
        spark_kafka.measure(bench, -1, 1, said.append)


@pytest.mark.deep
def test_beside_kafka(tmp_path: Path) -> None:
    """A separate process: jars are given to a JVM that starts."""
    need_spark()
    if KAFKA_JARS not in os.environ:
        pytest.skip(f"{KAFKA_JARS} names no directory with Kafka: python -m bench.spark_kafka --fetch DIR")
    words = ["--kafka", os.environ[KAFKA_JARS], "--rows", "2000", "--trials", "1", "--dir", str(tmp_path)]
    command = [sys.executable, "-m", "bench.spark_kafka", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert all(what in done.stdout for what in spark_kafka.ALL)
