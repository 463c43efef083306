"""The pipelines on a cluster, as docs/spark.md says it: spark-submit, and Pythons that have pyarrow but no amq."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
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

PACKAGES = {"amq": "amq", "pyspark_amq": "spark", "pyspark_amq_journal": "spark/pyspark_amq_journal"}


def bare_python(directory: Path) -> Path:
    """One that has all that is installed here but amq."""
    venv.create(directory, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "amq" not in path.name:
            (site / path.name).symlink_to(path)
    return directory / "bin" / "python"


def packed(path: Path) -> Path:
    """A zip of what `pip wheel` would pack."""
    with zipfile.ZipFile(path, "w") as archive:
        for package, folder in PACKAGES.items():
            for file in (ROOT / folder).rglob("*.py"):
                archive.write(file, package / file.relative_to(ROOT / folder))
    return path


@pytest.mark.slow
def test_executors_get_amq_from_spark_submit(brokers: Brokers, tmp_path: Path) -> None:
    need_spark()
    where, output = f"stomp://127.0.0.1:{brokers.master().port}", tmp_path / "out"
    python = bare_python(tmp_path / "venv")
    probe = [python, "-c", "import pyspark, pyarrow, amq"]
    assert "No module named 'amq'" in subprocess.run(probe, capture_output=True, text=True, cwd=tmp_path).stderr
    with amq.connect(where) as connection, connection.session() as session:
        producer = session.producer("/queue/orders")
        for number in range(500):
            producer.send(f"order {number}", wait=False)
        producer.flush()
    archive, main = packed(tmp_path / "amq.zip"), tmp_path / "pipelines.py"
    main.write_bytes(zipfile.ZipFile(archive).read("pyspark_amq/pipelines/__main__.py"))
    environ = os.environ | environment(tmp_path / "spark") | {"PYTHONPATH": str(archive)}
    conf = settings(tmp_path / "spark", "local-cluster[2,1,900]") | {"spark.executorEnv.PYTHONPATH": ""}  # not theirs
    done = subprocess.run(
        [
            f"{environ['SPARK_HOME']}/bin/spark-submit", "--master", conf.pop("spark.master"),
            *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")), "--py-files", archive,
            main, "drain", "--url", where, "--destination", "/queue/orders", "--output", output, "--text",
        ],
        env=environ | {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)},
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=QUERY_S_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *said, figures = done.stdout.splitlines()
    assert "amq: micro-batch 0: 500 messages" in said
    assert json.loads(figures)["messages"] == 500

    from pyarrow import parquet

    tables = [parquet.ParquetFile(path).read() for path in written_files(str(output))]
    rows = sorted(row for table in tables for row in table["value"].to_pylist())
    assert rows == sorted(f"order {number}" for number in range(500))
