"""A stream over the stores of a cluster, with two real brokers as its stores and a gateway that only says where they
are; without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="no PySpark: run make .venv/.installed-test")
pytest.importorskip("pyarrow", reason="no pyarrow: run make .venv/.installed-test")

import pyarrow as pa

import amq
from amq.client import FailoverTimeoutError, Whereabouts
from amq.client.uri import parse
from amq.core.errors import CommandError, TransactionRolledBackError
from pyspark_amq import batch as batch_module
from pyspark_amq import connections, homes, offsets, sink, staging, streams
from pyspark_amq.frames import FrameColumns
from pyspark_amq.homes import StorePart
from pyspark_amq.leases import DataLossError
from pyspark_amq.offsets import OffsetError
from pyspark_amq.options import OptionError, SinkOptions, SourceOptions, read
from pyspark_amq.source import AmqStreamReader
from pyspark_amq.staging import Attempt, StagedInStores
from pyspark_amq.streams import ClusterStreamReader
from tests.brokers import Broker, Brokers
from tests.patience import DEADLINE_S

QUEUE = "/queue/a"
ONLY_FIRST, ONLY_SECOND = "/queue/one", "/queue/two"


class Gateway:
    """Says where destinations live."""

    closed = False
    uri = None

    def __init__(self, stores: dict[str, Broker]) -> None:
        self.stores = stores
        self.masters = dict(stores)
        self.rules = {QUEUE: "", ONLY_FIRST: "s1", ONLY_SECOND: "s2"}
        self.asked = 0

    def where(self, *names: str) -> Whereabouts:
        self.asked += 1
        found = {
            name: (parse(f"stomp://127.0.0.1:{broker.port}").uris if name in self.masters else ())
            for name, broker in self.stores.items()
        }
        return Whereabouts("c1", 1, tuple(self.rules.get(name, "") for name in names), found)

    def abort(self) -> None:
        """Nothing is open."""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with Brokers(tmp_path / "one") as one, Brokers(tmp_path / "two") as two:
        yield Gateway({"s1": one.master("a"), "s2": two.master("b")})


@pytest.fixture
def query(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes readers of the query."""
    made: list[ClusterStreamReader] = []
    monkeypatch.setattr(streams, "LEAVE_OUT_S", DEADLINE_S)
    monkeypatch.setattr(homes, "LOOK_S", 0.0)

    def make(destination: str = QUEUE, **given: str) -> ClusterStreamReader:
        words = {"url": "stomp://gateway:1", "destination": destination, "subscription": "c", "pollInterval": "1ms"}
        made.append(ClusterStreamReader(read(SourceOptions, words | given)))
        made[-1]._alone._connection = gateway  # type: ignore[assignment]
        return made[-1]

    yield make
    for each in made:
        each.stop()


def send(broker: Broker, numbers: range, queue: str = QUEUE) -> None:
    with amq.connect(f"stomp://127.0.0.1:{broker.port}") as connection, connection.session() as session:
        producer = session.producer(queue)
        for number in numbers:
            producer.send(str(number), wait=False)
        producer.flush()


def batch(reader: ClusterStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """The end of the next batch, as a checkpoint has it."""
    found: dict[str, Any] = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
    return found


def rows(reader: ClusterStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """What tasks read, each with a copy of the reader."""
    parts = pickle.loads(pickle.dumps(list(reader.partitions(start, end))))
    copy = pickle.loads(pickle.dumps(reader))
    return sorted(int(row["value"]) for part in parts for each in copy.read(part) for row in each.to_pylist())


def test_a_batch_has_messages_of_all_stores_and_each_once(gateway: Gateway, query: Any) -> None:
    one, two = gateway.stores.values()
    send(one, range(50))
    send(two, range(50, 80))
    send(one, range(100, 110), ONLY_FIRST)
    send(two, range(110, 120), ONLY_SECOND)
    reader = query(f"{QUEUE},{ONLY_FIRST},{ONLY_SECOND}")
    start = reader.initialOffset()
    end = batch(reader, start)
    assert {*offsets.by_store(end)} == {"s1", "s2"}
    expected = [*range(80), *range(100, 120)]
    assert rows(reader, start, end) == expected
    assert {part.store for part in reader.partitions(start, end)} == {"s1", "s2"}
    told = reader.reportLatestOffset()
    assert told is not None
    assert told["leased"] == 100
    again = query(f"{QUEUE},{ONLY_FIRST},{ONLY_SECOND}")
    assert rows(again, start, end) == expected, "the restart reads the same"
    again.commit(end)
    with amq.connect(f"stomp://127.0.0.1:{one.port}") as connection:
        assert connection.lease(QUEUE, "c", messages=0).number == 0, "acknowledged"
    send(two, range(200, 203))
    following = batch(again, end)
    assert offsets.by_store(following)["s1"] == offsets.by_store(end)["s1"]
    assert rows(again, end, following) == [200, 201, 202]


def test_an_idle_query_holds_no_lease(gateway: Gateway, query: Any) -> None:
    one, two = gateway.stores.values()
    send(one, range(50))
    send(two, range(50, 80))
    reader = query()
    start = reader.initialOffset()
    end = batch(reader, start)
    assert len(rows(reader, start, end)) == 80
    idle = query()
    assert batch(idle, end) == end, "Spark asks when the batch is done, and nothing waits"
    assert (idle.reportLatestOffset() or {})["leased"] == 0
    for broker in (one, two):
        with amq.connect(f"stomp://127.0.0.1:{broker.port}") as connection:
            assert connection.lease(QUEUE, "c", messages=0).number == 0
    send(one, range(80, 90))
    idle.commit(end)
    following = batch(idle, end)
    assert rows(idle, end, following) == [*range(80, 90)]
    older = query()
    with pytest.raises(DataLossError, match="is over"):
        rows(older, start, end)
    assert rows(query(), end, following) == [*range(80, 90)], "the restart reads the same"


def test_ack_none_settles_nothing(gateway: Gateway, query: Any) -> None:
    one = gateway.stores["s1"]
    send(one, range(5), ONLY_FIRST)
    reader = query(ONLY_FIRST, ack="none")
    end = batch(reader, reader.initialOffset())
    assert batch(reader, end) == end
    with amq.connect(f"stomp://127.0.0.1:{one.port}") as connection:
        assert connection.lease(ONLY_FIRST, "c", messages=0).messages == 5


def test_the_sizes_of_batches_hold_for_all_stores_together(gateway: Gateway, query: Any) -> None:
    one, two = gateway.stores.values()
    send(one, range(40))
    send(two, range(40, 50))
    for most in ("1", "20"):
        reader = query(maxOffsetsPerTrigger=most, subscription=f"c{most}")
        end, sizes = reader.initialOffset(), []
        for _ in range(2):
            start, end = end, batch(reader, end)
            sizes.append(len(rows(reader, start, end)))
        assert max(sizes) <= int(most)
        assert min(sizes) >= 1
    reader = query(minOffsetsPerTrigger="1000", maxTriggerDelay="1h", subscription="patient")
    reader._batch_s = 0.0 if streams.time.monotonic() < 3600 else streams.time.monotonic()
    start = reader.initialOffset()
    assert batch(reader, start) == start, "it waits for more"


def test_a_store_without_master_delays_only_what_it_has(
    gateway: Gateway, query: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = gateway.stores.values()
    send(one, range(10))
    send(two, range(10, 20))
    reader = query()
    start = reader.initialOffset()
    end = batch(reader, start)
    assert len(rows(reader, start, end)) == 20
    reader.commit(end)
    send(one, range(20, 30))
    two.kill()
    monkeypatch.setattr(streams, "LEAVE_OUT_S", 0.2)
    gateway.masters.pop("s2")
    following = end
    while following == end:  # until the living store has answered
        following = batch(reader, end)
    assert offsets.by_store(following)["s2"] == offsets.by_store(end)["s2"]
    assert rows(reader, end, following) == [*range(20, 30)]
    assert (reader.reportLatestOffset() or {})["leftOut"] == ["s2"]
    reader.commit(following)
    two.start()
    two.wait_serving()
    send(two, range(30, 35))
    last = following
    while last == following:
        last = batch(reader, following)
    assert rows(reader, following, last) == [*range(30, 35)]


def test_a_destination_that_moves_is_looked_for_again(gateway: Gateway, query: Any) -> None:
    one, two = gateway.stores.values()
    send(one, range(5), ONLY_FIRST)
    reader = query(ONLY_FIRST)
    start = reader.initialOffset()
    end = batch(reader, start)
    assert rows(reader, start, end) == [*range(5)]
    gateway.rules[ONLY_FIRST] = "s2"
    send(two, range(5, 8), ONLY_FIRST)
    following = batch(reader, end)
    assert rows(reader, end, following) == [5, 6, 7]
    reader.commit(following)


def test_a_store_that_is_added_is_read(gateway: Gateway, query: Any) -> None:
    (_, one), second = gateway.stores.items()
    del gateway.stores["s2"]
    send(one, range(5))
    send(second[1], range(5, 9))
    reader = query()
    start = reader.initialOffset()
    end = batch(reader, start)
    assert rows(reader, start, end) == [*range(5)]
    gateway.stores["s2"] = second[1]
    following = batch(reader, end)
    assert rows(reader, end, following) == [5, 6, 7, 8]


def test_available_now_reads_what_waits_in_every_store(gateway: Gateway, query: Any) -> None:
    one, two = gateway.stores.values()
    send(one, range(5))
    send(two, range(5, 9))
    reader = query(maxOffsetsPerTrigger="3")
    reader.prepareForTriggerAvailableNow()
    send(one, range(20, 30))
    end, found = reader.initialOffset(), []
    while (following := batch(reader, end)) != end:
        found += rows(reader, end, following)
        end = following
    assert sorted(found) == [*range(9)]


def test_a_checkpoint_of_one_store_goes_on_in_the_cluster_that_has_it(gateway: Gateway, query: Any) -> None:
    one, two = gateway.stores.values()
    send(one, range(5))
    words = {"url": f"stomp://127.0.0.1:{one.port}", "destination": QUEUE, "subscription": "c"}
    alone = AmqStreamReader(read(SourceOptions, words))
    end = alone.latestOffset(alone.initialOffset(), alone.getDefaultReadLimit())
    alone.stop()
    send(one, range(5, 8))
    send(two, range(8, 10))
    reader = query()
    following = batch(reader, end)
    assert rows(reader, end, following) == [5, 6, 7, 8, 9]
    reader.commit(following)
    with pytest.raises(OffsetError, match="of a stream over a cluster"):
        alone.latestOffset(following, alone.getDefaultReadLimit())
    with pytest.raises(OffsetError, match="not one of this cluster"):
        query().latestOffset({**end, "store": "0" * 32}, reader.getDefaultReadLimit())


def test_the_address_of_a_broker_is_that_of_a_stream_of_one_store(gateway: Gateway) -> None:
    one = gateway.stores["s1"]
    send(one, range(5))
    words = {"url": f"stomp://127.0.0.1:{one.port}", "destination": QUEUE, "subscription": "c"}
    reader = ClusterStreamReader(read(SourceOptions, words))
    start = reader.initialOffset()
    assert start["v"] == 1
    end = batch(reader, start)
    assert not isinstance(reader.partitions(start, end)[0], StorePart)
    assert rows(reader, start, end) == [*range(5)]
    reader.commit(end)
    reader.stop()


@pytest.fixture
def targets(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> SinkOptions:
    """Options of a sink with the address of the gateway."""

    @contextmanager
    def connected(options: SinkOptions, *words: Any) -> Iterator[Any]:  # noqa: ARG001
        yield gateway

    monkeypatch.setattr(homes, "connected", connected)
    return read(SinkOptions, {"url": "stomp://gateway:1", "windowRows": "10"})


def stage(options: SinkOptions, batch: int, partition: int, rows: dict[str, range]) -> StagedInStores:
    table = pa.table(
        {
            "value": [str(number) for numbers in rows.values() for number in numbers],
            "destination": [name for name, numbers in rows.items() for _ in numbers],
        }
    )
    columns = FrameColumns(text=True, key=False, destination=True, headers=False, id=None)
    found = staging.stage(table.to_batches(max_chunksize=7), Attempt("q", batch, partition, 0), options, columns)
    assert isinstance(found, StagedInStores)
    return found


def stored(broker: Broker, queue: str) -> list[int]:
    """All that is in the queue, in order."""
    with amq.connect(f"stomp://127.0.0.1:{broker.port}") as connection, connection.session() as session:
        browser, found = session.browser(queue), []
        while (message := browser.receive(DEADLINE_S)) is not None:
            found.append(int(message.body))
    return found


def test_a_batch_goes_to_all_homes_once_however_often_it_comes(gateway: Gateway, targets: SinkOptions) -> None:
    one, two = gateway.stores.values()
    rows = {ONLY_FIRST: range(20), ONLY_SECOND: range(20, 30), QUEUE: range(30, 35)}
    first = [stage(targets, 0, partition, rows) for partition in range(2)]
    assert stored(one, ONLY_FIRST) == stored(two, ONLY_SECOND) == []
    two.kill()
    with pytest.raises(FailoverTimeoutError):
        sink._commit(replace(targets, send_timeout_s=0.2), sink._staged(first, 0))
    assert stored(one, ONLY_FIRST) == [*range(20), *range(20)], "this home has committed its part"
    two.start()
    two.wait_serving()
    again = [stage(targets, 0, partition, rows) for partition in range(2)]
    sink._commit(targets, sink._staged(again, 0))
    assert stored(one, ONLY_FIRST) == [*range(20), *range(20)]
    assert stored(two, ONLY_SECOND) == [*range(20, 30), *range(20, 30)]
    assert stored(one, QUEUE) == stored(two, QUEUE) == [*range(30, 35)], "each task has one store of a spread queue"
    with amq.connect(f"stomp://127.0.0.1:{two.port}") as connection:
        assert connection.recover() == []


def test_a_batch_whose_rows_would_go_elsewhere_is_refused(gateway: Gateway, targets: SinkOptions) -> None:
    (one, two), rows = gateway.stores.values(), {QUEUE: range(20)}
    sink._commit(targets, sink._staged([stage(targets, 0, 0, rows)], 0))
    assert (stored(one, QUEUE), stored(two, QUEUE)) == ([*range(20)], [])
    with pytest.raises(CommandError, match="comes again with 0 rows"):
        sink._commit(targets, sink._staged([stage(targets, 0, 1, rows)], 0))  # the store of another partition
    assert (stored(one, QUEUE), stored(two, QUEUE)) == ([*range(20)], [])


def test_rows_follow_a_destination_that_moves(
    gateway: Gateway, targets: SinkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = gateway.stores.values()
    known = staging.Task.send

    def send(task: staging.Task, chunk: Any) -> bool:
        if gateway.rules[ONLY_FIRST] == "s1":
            gateway.rules[ONLY_FIRST] = "s2"
            raise TransactionRolledBackError("it lives in store s2", code="MOVED")
        return known(task, chunk)

    monkeypatch.setattr(staging.Task, "send", send)
    sink._commit(targets, sink._staged([stage(targets, 0, 0, {ONLY_FIRST: range(20)})], 0))
    assert (stored(one, ONLY_FIRST), stored(two, ONLY_FIRST)) == ([], [*range(20)])


def test_rows_follow_a_destination_that_moves_before_they_are_prepared(
    gateway: Gateway, targets: SinkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task hears of it when it has the next rows already."""
    one, two = gateway.stores.values()
    known = staging.Task.send

    def send(task: staging.Task, chunk: Any) -> bool:
        done, answer = known(task, chunk), task._answer
        assert answer is not None

        def moved(timeout: float | None) -> None:
            answer(timeout)
            with amq.connect(f"stomp://127.0.0.1:{one.port}") as connection:
                connection.rollback_prepared(task._xid)
            gateway.rules[ONLY_FIRST] = "s2"
            raise TransactionRolledBackError("it lives in store s2", code="MOVED")

        if gateway.rules[ONLY_FIRST] == "s1":
            task._answer = moved
        return done

    monkeypatch.setattr(staging.Task, "send", send)
    rows = {ONLY_FIRST: range(20), ONLY_SECOND: range(20, 30)}
    staged = stage(targets, 0, 0, rows)
    assert [part.rows for part in staged.parts.values()] == [0, 30]
    sink._commit(targets, sink._staged([staged], 0))
    assert (stored(one, ONLY_FIRST), stored(two, ONLY_FIRST)) == ([], [*range(20)])
    assert stored(two, ONLY_SECOND) == [*range(20, 30)]


def test_a_batch_read_shows_what_all_stores_hold(
    gateway: Gateway, targets: SinkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = gateway.stores.values()
    send(one, range(5))
    send(two, range(5, 9))
    send(two, range(20, 22), ONLY_SECOND)
    monkeypatch.setattr(batch_module, "connected", lambda options: closing_not(gateway, options))
    words = {"url": targets.url, "destination": f"{QUEUE},{ONLY_SECOND}"}
    reader = batch_module.ClusterReader(read(SourceOptions, words))
    parts = pickle.loads(pickle.dumps(reader.partitions()))
    found = [int(row["value"]) for part in parts for each in reader.read(part) for row in each.to_pylist()]
    assert sorted(found) == [*range(9), 20, 21]
    with pytest.raises(OptionError, match="lives in several stores"):
        numbers = json.dumps({QUEUE: 3})
        batch_module.ClusterReader(read(SourceOptions, words | {"startingOffsets": numbers})).partitions()


@contextmanager
def closing_not(gateway: Gateway, options: SourceOptions) -> Iterator[Any]:
    """A connection to the gateway, or to what `options` name."""
    if options.url == "stomp://gateway:1":
        yield gateway
    else:
        with connections.connected(options) as connection:
            yield connection


def test_room_is_shared_by_what_waits() -> None:
    assert homes.shares(10, {"a": 0, "b": 0}) == {"a": 5, "b": 5}
    assert homes.shares(10, {"a": 90, "b": 10}) == {"a": 8, "b": 1}
    assert homes.shares(2, {"a": 1, "b": 9, "c": 5}) == {"a": 1, "b": 1}


def test_the_store_of_a_part_is_below_that_of_the_cluster() -> None:
    given = read(SourceOptions, {"url": "stomp://a:1", "destination": QUEUE, "store": "/mnt/c"})
    found = homes.at(given, "s1", "stomp://b:2")
    assert (found.url, found.store) == ("stomp://b:2", "/mnt/c/stores/s1")
