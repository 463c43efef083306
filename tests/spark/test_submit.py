"""A standalone cluster, as docs/spark.md says it: spark-submit --py-files, and Pythons that have no amq."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

import amq
from pyspark_amq.pipelines.drain import written_files
from tests.brokers import ROOT, Brokers
from tests.spark.conftest import need_spark
from tests.spark.pipeline import QUERY_S_MAX
from tests.spark.session import environment, settings
from tests.spark.spark_cluster import Cluster

PACKAGES = {"amq": "amq", "pyspark_amq": "spark", "pyspark_amq_journal": "spark/pyspark_amq_journal"}
OF_SPARK = ("pyspark", "py4j", "pyarrow", "numpy")  # what an executor has
JOB = """
import json, sys
from pyspark.sql import SparkSession
from pyspark_amq import DefaultSource
from pyspark_amq_journal import DefaultSource as Journal

url, store, directory = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(DefaultSource)
spark.dataSource.register(Journal)
rows = spark.range(0, 500, 1, 4).selectExpr("CAST(id AS STRING) AS value")
rows.write.format("amq").mode("append").options(url=url, destination="/queue/jobs").save()
kept = spark.read.format("amq-journal").option("destination", "/queue/jobs").load(store)
hosts = kept.rdd.mapPartitions(lambda _: [__import__("importlib").util.find_spec("structlog") is None]).collect()
print(json.dumps({"journal": kept.count(), "bare": all(hosts)}))
"""


def bare_python(directory: Path, *names: str) -> Path:
    """One that has these packages, and the libraries beside them, and nothing else."""
    venv.create(directory, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    for name in names:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        path = Path(spec.origin).parent
        for each in (path, path.with_name(f"{name}.libs")):
            if each.exists():
                (site / each.name).symlink_to(each)
    return directory / "bin" / "python"


def packed(path: Path) -> Path:
    """A zip of what `pip wheel` would pack."""
    with zipfile.ZipFile(path, "w") as archive:
        for package, folder in PACKAGES.items():
            for file in (ROOT / folder).rglob("*.py"):
                archive.write(file, package / file.relative_to(ROOT / folder))
    return path


@pytest.mark.deep
def test_executors_get_amq_from_spark_submit(brokers: Brokers, tmp_path: Path) -> None:
    """A job, and a pipeline, on a cluster whose Pythons have PySpark, PyArrow and NumPy alone: amq is in the zip. The
    driver of a pipeline also needs click."""
    need_spark()
    master = brokers.master()
    where, output = f"stomp://127.0.0.1:{master.port}", tmp_path / "out"
    executor, driver = bare_python(tmp_path / "bare", *OF_SPARK), bare_python(tmp_path / "cli", *OF_SPARK, "click")
    for missing in ("amq", "structlog", "portalocker"):
        probe = [executor, "-c", f"import pyspark, pyarrow, {missing}"]
        said = subprocess.run(probe, capture_output=True, text=True, cwd=tmp_path, check=False).stderr
        assert f"No module named '{missing}'" in said
    with amq.connect(where) as connection, connection.session() as session:
        producer = session.producer("/queue/orders")
        for number in range(500):
            producer.send(f"order {number}", wait=False)
        producer.flush()
    archive, main, job = packed(tmp_path / "amq.zip"), tmp_path / "pipelines.py", tmp_path / "job.py"
    main.write_bytes(zipfile.ZipFile(archive).read("pyspark_amq/pipelines/__main__.py"))
    job.write_text(JOB)
    environ = os.environ | environment(tmp_path / "spark") | {"PYTHONPATH": str(archive)}

    def submit(url: str, python: Path, *words: object) -> list[str]:
        conf = settings(tmp_path / "spark", url) | {"spark.executorEnv.PYTHONPATH": ""}  # not theirs
        done = subprocess.run(
            [
                f"{environ['SPARK_HOME']}/bin/spark-submit",
                "--master",
                conf.pop("spark.master"),
                *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
                "--py-files",
                archive,
                *map(str, words),
            ],
            env=environ | {"PYSPARK_PYTHON": str(executor), "PYSPARK_DRIVER_PYTHON": str(python)},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=QUERY_S_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    with Cluster(environ, tmp_path) as cluster:
        *_, figures = submit(cluster.url, executor, job, where, brokers.store, tmp_path)
        assert json.loads(figures) == {"journal": 500, "bare": True}
        *said, figures = submit(
            cluster.url,
            driver,
            main,
            "drain",
            "--url",
            where,
            "--destination",
            "/queue/orders",
            "--output",
            output,
            "--text",
        )
    assert any(line.startswith("amq: micro-batch 0: 500 messages, ") for line in said)
    assert json.loads(figures)["messages"] == 500

    from pyarrow import parquet

    tables = [parquet.ParquetFile(path).read() for path in written_files(str(output))]
    rows = sorted(row for table in tables for row in table["value"].to_pylist())
    assert rows == sorted(f"order {number}" for number in range(500))
