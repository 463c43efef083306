"""Direct reads of leases: tasks find messages in the files of the store, and ask the broker for what is not there."""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="no PySpark: run make .venv/.installed-test")
pytest.importorskip("pyarrow", reason="no pyarrow: run make .venv/.installed-test")

import amq
from amq.store.segment_log import JOURNAL_DIRECTORY
from pyspark_amq import direct
from pyspark_amq.direct import CHECKSUM, GONE, NO_MOUNT, STALE, StoreDiffersError
from pyspark_amq.leases import DataLossError
from pyspark_amq.options import SourceOptions, read
from pyspark_amq.source import AmqStreamReader
from tests.brokers import Broker, Brokers

QUEUE, ROWS = "/queue/a", 300
DIRECT = {"directReads": "*"}


def filled(brokers: Brokers, options: dict[str, str] = DIRECT) -> Broker:
    """A master with rows, of which some have a key."""
    broker = brokers.master("a", **options)
    with amq.connect(f"stomp://127.0.0.1:{broker.port}") as connection, connection.session() as session:
        producer = session.producer(QUEUE)
        for number in range(ROWS):
            headers = {"correlation-id": f"k{number}"} if number % 3 == 0 else None
            producer.send(b"%d" % number, headers=headers, priority=4 + (number % 100 == 7), wait=False)
        producer.flush()
    return broker


def stream(broker: Broker, **given: str) -> AmqStreamReader:
    found = {"url": f"stomp://127.0.0.1:{broker.port}", "destination": QUEUE, "subscription": "c", **given}
    return AmqStreamReader(read(SourceOptions, found))


def planned(reader: AmqStreamReader) -> list[Any]:
    start = reader.initialOffset()
    return list(reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit())))


def rows_of(reader: AmqStreamReader, parts: list[Any]) -> list[dict[str, Any]]:
    copy = pickle.loads(pickle.dumps(reader))
    return [row for part in pickle.loads(pickle.dumps(parts)) for batch in copy.read(part) for row in batch.to_pylist()]


def told(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """What the last task wrote of itself."""
    found: dict[str, Any] = json.loads(caplog.messages[-1])
    return found


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pyspark_amq.source")


def test_rows_equal_those_of_the_broker(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    broker = filled(brokers)
    plain = stream(broker)
    wanted = rows_of(plain, planned(plain))
    assert len(wanted) == ROWS
    plain.stop()
    reader = stream(broker, store=str(broker.store))
    found = rows_of(reader, planned(reader))
    assert found == wanted
    assert (told(caplog)["direct"], told(caplog)["fallback"]) == (ROWS, {})
    reader.stop()


def test_who_may_not_asks_the_broker(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    broker = filled(brokers, {})
    reader = stream(broker, store=str(broker.store))
    assert len(rows_of(reader, planned(reader))) == ROWS
    assert told(caplog)["fallback"] == {"not-permitted": ROWS}
    reader.stop()


def _segments(store: Path) -> list[Path]:
    return sorted((store / JOURNAL_DIRECTORY).glob("*.seg"))


def _no_directory(store: Path) -> None:
    shutil.rmtree(store)


def _no_segments(store: Path) -> None:
    for segment in _segments(store):
        segment.unlink()


def _short(store: Path) -> None:
    for segment in _segments(store):
        os.truncate(segment, min(segment.stat().st_size, 3000))


def _damaged(store: Path) -> None:
    for segment in _segments(store):
        data = bytearray(segment.read_bytes())
        for at in range(3000, len(data), 5000):
            data[at] ^= 1
        segment.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "reason"), [(_no_directory, NO_MOUNT), (_no_segments, STALE), (_short, STALE), (_damaged, CHECKSUM)]
)
def test_what_cannot_be_read_comes_from_the_broker(
    brokers: Brokers, caplog: pytest.LogCaptureFixture, tmp_path: Path, harm: Callable[[Path], None], reason: str
) -> None:
    broker = filled(brokers)
    mount = tmp_path / "mount"
    shutil.copytree(broker.store, mount)
    reader = stream(broker, store=str(mount))
    parts = planned(reader)
    harm(mount)
    assert sorted(int(row["value"]) for row in rows_of(reader, parts)) == list(range(ROWS))
    assert (told(caplog)["direct"], told(caplog)["fallback"]) == (0, {reason: ROWS})
    reader.stop()


def test_a_segment_that_went_in_a_takeover_comes_from_the_broker(
    brokers: Brokers, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A part of the segments is gone; the newest is there."""
    broker = filled(brokers)
    reader = stream(broker, store=str(tmp_path / "mount"))
    planned(reader)
    broker.kill()
    again = brokers.master("b", **DIRECT)
    reader.stop()
    reader = stream(again, store=str(tmp_path / "mount"))
    parts = planned(reader)
    shutil.copytree(again.store, tmp_path / "mount")
    _segments(tmp_path / "mount")[0].unlink()
    assert sorted(int(row["value"]) for row in rows_of(reader, parts)) == list(range(ROWS))
    assert told(caplog)["fallback"] == {GONE: ROWS}
    reader.stop()


def test_the_store_of_another_broker_is_refused(brokers: Brokers, tmp_path: Path) -> None:
    broker = filled(brokers)
    (tmp_path / "other").mkdir()
    with Brokers(tmp_path / "other") as others:
        foreign = others.master("a")
        with amq.connect(f"stomp://127.0.0.1:{foreign.port}") as connection, connection.session() as session:
            session.producer(QUEUE).send("x")
        reader = stream(broker, store=str(foreign.store))
        with pytest.raises(StoreDiffersError, match="is not the store of this broker"):
            rows_of(reader, planned(reader))
        reader.stop()


def test_a_lease_that_ends_while_it_is_read_fails_the_task(brokers: Brokers) -> None:
    broker = filled(brokers)
    reader = stream(broker, store=str(broker.store))
    parts = planned(reader)
    with amq.connect(f"stomp://127.0.0.1:{broker.port}") as connection:
        connection.settle(QUEUE, "c", (1 << 63) - 1, acknowledge=False)
    with pytest.raises(DataLossError, match="ended while it was read"):
        rows_of(reader, parts)
    reader.stop()


def test_chunks_end_with_their_segment_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    np = pytest.importorskip("numpy")
    monkeypatch.setattr(direct, "CHUNK_BYTES", 100)
    index, sizes = np.array([0, 0, 0, 1, 1, 0]), np.array([60, 30, 30, 500, 10, 10])
    ends, start = [], 0
    while start < 6:
        start = direct._chunk_end(index, sizes, start, 6)
        ends.append(start)
    assert ends == [2, 3, 4, 5, 6]
