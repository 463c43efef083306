"""One Spark session for all tests that need one: it takes seconds to start, and a JVM holds one.

Without Java, or without PySpark, these tests are skipped; with CI=true that fails. `local[2,2]`: two tasks at a time,
and each may fail once, so that retries happen.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.session import environment, start, stop_jvm, why_no_spark

QUICK = "test_round_trip.py"


@pytest.fixture(scope="session")
def spark_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark keeps its files while the tests run."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, spark_directory: Path) -> Iterator[Any]:
    """The SparkSession of all tests."""
    need_spark()
    is_alone = sum("spark" in getattr(item, "fixturenames", ()) for item in request.session.items) == 1
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(spark_directory, makes_archive=not is_alone).items():
            patch.setenv(name, value)
        session = start(spark_directory, "local[2,2]")
        patch.delenv("PYTHONWARNINGS")  # Spark's workers have it; brokers of later tests would be other interpreters
        try:
            yield session
        finally:
            session.stop()
            stop_jvm()


def need_spark() -> None:
    """Skip the test, or fail it in CI, where Spark cannot run."""
    if why := why_no_spark():
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's own warnings are none of ours: it leaves sockets to the garbage collector. A test that needs Spark is
    deep, except the round trip."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            if item.path.name != QUICK:
                item.add_marker("deep")


@pytest.fixture(autouse=True)
def _no_connection_stays() -> Iterator[None]:
    """Tasks keep their connection for the next one of their process; a test is that process."""
    yield
    if "pyspark_amq.connections" in sys.modules:
        sys.modules["pyspark_amq.connections"].forget()
