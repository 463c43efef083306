"""What a stream reads moves to another store while it runs, without Spark: nodes with two stores, and the readers that
Spark would ask."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="no PySpark: run make .venv/.installed-test")
pytest.importorskip("pyarrow", reason="no pyarrow: run make .venv/.installed-test")

import amq
from pyspark_amq.offsets import OffsetError
from pyspark_amq.options import SourceOptions, read
from pyspark_amq.streams import ClusterStreamReader
from tests.cluster.nodes import Nodes
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep
EACH = 20


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    made = Nodes(tmp_path_factory.mktemp("nodes"), 2, fixed_ports=True)
    try:
        made.nodes["a"].start("-o", "directReads=*")
        made.until(lambda found: all(store["master"] for store in found["stores"]))
        yield made
    finally:
        made.kill()


def url_of(nodes: Nodes) -> str:
    return f"failover:(stomp://127.0.0.1:{nodes.nodes['a'].port})"


def homes_of(nodes: Nodes, *names: str) -> tuple[str, ...]:
    with amq.connect(url_of(nodes)) as connection:
        found = connection.where(*names)
    assert found is not None
    return found.homes


class Stream:
    """A query, as Spark carries it out: its offsets are those of a checkpoint, and its tasks have copies of readers."""

    def __init__(self, nodes: Nodes, destination: str, **given: str) -> None:
        self.nodes = nodes
        self.url = url_of(nodes)
        self.options = {
            "url": self.url,
            "destination": destination,
            "subscription": "etl",
            "pollInterval": "20ms",
        } | given
        self.found: list[int] = []
        self.start()
        self.at: dict[str, Any] = self.reader.initialOffset()

    def start(self) -> None:
        self.reader = ClusterStreamReader(read(SourceOptions, self.options))

    def trigger(self) -> bool:
        """One micro-batch, if there is something."""
        end = json.loads(json.dumps(self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())))
        if end == self.at:
            return False
        self.reader.commit(self.at)
        parts = pickle.loads(pickle.dumps(list(self.reader.partitions(self.at, end))))
        copy = pickle.loads(pickle.dumps(self.reader))
        for part in parts:
            for rows in copy.read(part):
                self.found += [int(row["value"]) for row in rows.to_pylist()]
        self.at = end
        return True

    def until(self, wanted: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not wanted():
            if not self.trigger():
                time.sleep(0.05)
            assert time.monotonic() < deadline, self.nodes.logs()

    def send(self, numbers: range, name: str = "") -> None:
        with amq.connect(self.url) as connection, connection.session() as session:
            producer = session.producer(name or self.options["destination"])
            for number in numbers:
                producer.send(str(number), wait=False)
            producer.flush()

    def home(self, name: str) -> str:
        return homes_of(self.nodes, name)[0]

    def move(self, name: str = "") -> None:
        """Begin a move to the other store."""
        name = name or self.options["destination"]
        store = "s2" if self.home(name) == "s1" else "s1"
        self.nodes.begin("move", name.rpartition("/")[2], store)

    def is_moving(self) -> bool:
        return bool(self.nodes.moves()["moving"])


@pytest.mark.parametrize("redirect", ["true", "false"])
def test_a_stream_goes_on_where_its_destination_moves(nodes: Nodes, redirect: str) -> None:
    stream = Stream(nodes, f"/queue/in-{redirect}", redirect=redirect, store=nodes.cluster)
    name, count = stream.options["destination"], 0

    def more() -> None:
        nonlocal count
        stream.send(range(count, count + EACH))
        count += EACH

    more()
    before = stream.home(name)
    assert stream.trigger()
    more()
    assert stream.trigger()
    assert len(stream.found) == count
    stream.move()
    more()
    stream.until(lambda: stream.home(name) != before and not stream.is_moving())
    stream.until(lambda: len(stream.found) == count)
    more()
    stream.reader.stop()
    stream.start()  # from the checkpoint
    stream.until(lambda: len(stream.found) == count)
    assert stream.found == [*range(count)]
    stream.reader.stop()


def test_a_stream_through_a_gateway_reads_one_store(nodes: Nodes) -> None:
    """Of two destinations the one that has moved waits until the other one has; two new ones are refused."""
    names = [f"/queue/two-{number}" for number in range(20)]
    homes = dict(zip(names, homes_of(nodes, *names), strict=True))
    one, two = [name for name in names if homes[name] == "s1"][:2]
    other = next(name for name in names if homes[name] == "s2")
    refused = Stream(nodes, f"{one},{other}", redirect="false")
    with pytest.raises(OffsetError, match="reads from one store"):
        refused.trigger()
    refused.reader.stop()
    stream = Stream(nodes, f"{one},{two}", redirect="false")
    stream.send(range(5), one)
    stream.send(range(5, 10), two)
    stream.until(lambda: len(stream.found) == 10)
    stream.move(one)
    stream.until(lambda: stream.home(one) == "s2" and not stream.is_moving())
    stream.send(range(10, 15), one)
    stream.send(range(15, 20), two)
    stream.until(lambda: len(stream.found) == 15)
    assert sorted(stream.found) == [*range(10), *range(15, 20)], "what has moved waits"
    stream.move(two)
    stream.until(lambda: len(stream.found) == 20)
    assert sorted(stream.found) == [*range(20)]
    stream.reader.stop()
