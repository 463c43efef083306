"""The benches of the Spark sink: each row is counted, and a small run of everything gives a figure for each way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import spark_sink, staging, wire
from bench.load import LoadError
from bench.wire import Connection, encode
from tests.brokers import ROOT, Broker
from tests.spark.conftest import need_spark

WAYS = (
    "socket only",
    *(
        f"exactly-once{columns}{frames}"
        for columns in ("", ", keys", ", keys and headers")
        for frames in ("", ", single frames")
    ),
    "at-least-once",
    "dedup",
    "loop, amq client",
    "loop, stomp.py",
)


def put(broker: Broker, *rows: int) -> None:
    with Connection(broker.port) as connection:
        for row in rows:
            body = str(row).rjust(spark_sink.BODY_BYTES, ".").encode()
            connection.send_bytes(encode("SEND", {"destination": "/queue/q", "receipt": "r"}, body))
            connection.receipt("r", 30.0)


def test_each_row_once_is_what_must_be_there(broker: Broker) -> None:
    put(broker, 2, 0, 1)
    spark_sink.take_all(broker.port, "/queue/q", 3)


def test_a_row_that_came_twice_is_told(broker: Broker) -> None:
    put(broker, 0, 1, 1)
    with pytest.raises(LoadError, match="1 rows are missing, 1 came twice"):
        spark_sink.take_all(broker.port, "/queue/q", 3)


def test_rows_that_come_again_behind_all_others_are_told(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a batch that was committed twice: many more than come in one piece."""
    monkeypatch.setattr(wire, "RECV_BYTES", 300)
    put(broker, 0, 1, 2, 3, 0, 1, 2, 3)
    with pytest.raises(LoadError, match="0 rows are missing, 4 came twice"):
        spark_sink.take_all(broker.port, "/queue/q", 4)


def test_rows_that_do_not_come_are_told(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_sink, "READ_TIMEOUT_S", 1.0)
    put(broker, 0, 1)
    with pytest.raises(LoadError, match="2 of 3 rows"):
        spark_sink.take_all(broker.port, "/queue/q", 3)


def test_the_steps_of_a_row_are_measured(tmp_path: Path) -> None:
    need_spark()
    found = staging.once(300, 100, "key and headers", str(tmp_path))
    assert tuple(found) == staging.STEPS
    assert all(spent_us >= 0 for spent_us in found.values())
    assert sum(found.values()) > 0


@pytest.mark.deep
def test_a_small_run_of_all_ways(tmp_path: Path) -> None:
    """In a process of its own: this one may hold the JVM of other tests."""
    need_spark()
    words = [sys.executable, "-m", "bench.spark_sink", "--rows", "1000", "--dir", str(tmp_path), "--json", "-"]
    ended = subprocess.run(words, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    results = json.loads(ended.stdout.splitlines()[-1])["spark_sink"]
    assert [result["way"] for result in results] == list(WAYS)
    assert all(result["rows"] == 1000 and result["rows_per_s"] > 0 for result in results)
