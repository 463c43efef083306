"""Spark over a cluster of real nodes: it reads and writes all homes at once. When a node is killed in the middle, it
loses and doubles nothing."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="no PySpark: run make .venv/.installed-test")

import amq
from amq.cluster.directory import Cluster
from amq.core.destination import QUEUE_SCHEME
from tests.cluster.nodes import Nodes, each_as_it_should_be, served_by
from tests.patience import DEADLINE_S

STORES, EACH = 3, 1500
IN = "/queue/in"
STARTS_MAX = 8
SPARK_DEADLINE_S = 180.0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path, STORES, fixed_ports=True)
    try:
        made.place("in", "spread").check_returncode()
        for node in made.nodes.values():
            node.start("-o", "directReads=*")
        made.until(each_as_it_should_be)
        yield made
    finally:
        made.kill()


def url_of(nodes: Nodes) -> str:
    return "failover:(" + ",".join(f"stomp://127.0.0.1:{node.port}" for node in nodes.nodes.values()) + ")"


def outputs(nodes: Nodes) -> list[str]:
    """A queue in each store."""
    home_of = Cluster(nodes.cluster).table().placement.home_of
    names = (f"out{number}" for number in count())
    found: dict[str, str] = {}
    while len(found) < STORES:
        found.setdefault(home_of(QUEUE_SCHEME + (name := next(names))), f"/queue/{name}")
    return [*found.values()]


def fill(nodes: Nodes) -> None:
    """Each store gets its part of the numbers, at its own port."""
    with amq.connect(url_of(nodes)) as connection:
        found = connection.where(IN)
    assert found is not None
    assert len(found.stores) == STORES
    for place, (master, *_) in enumerate(found.stores.values()):
        with amq.connect(str(master)) as connection, connection.session() as session:
            producer = session.producer(IN)
            for number in range(place * EACH, (place + 1) * EACH):
                producer.send(str(number), wait=False)
            producer.flush()


def until(wanted: Callable[[], object]) -> None:
    deadline = time.monotonic() + SPARK_DEADLINE_S
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def run(query: Callable[[], Any], work: Callable[[Any], None]) -> None:
    """Until the query is idle; one that fails because brokers are away, or a worker was late, is started again."""
    for left in reversed(range(STARTS_MAX)):
        running = query()
        try:
            work(running)
            running.processAllAvailable()
        except Exception:
            if not left:
                raise
        else:
            return
        finally:
            running.stop()


def test_a_query_over_all_homes_survives_a_node(spark: Any, nodes: Nodes, tmp_path: Path) -> None:
    fill(nodes)
    names = outputs(nodes)
    rows = spark.readStream.format("amq").options(
        url=url_of(nodes), destination=IN, subscription="etl", maxOffsetsPerTrigger="900", store=nodes.cluster
    )
    texts = rows.load().selectExpr("CAST(value AS STRING) AS value")
    targets = f"array({', '.join(map(repr, names))})"
    out = texts.selectExpr("value", f"element_at({targets}, 1 + CAST(value AS INT) % {STORES}) AS destination")
    writer = out.writeStream.format("amq").options(url=url_of(nodes), checkpointLocation=str(tmp_path / "checkpoint"))
    killed: list[str] = []

    def kill(query: Any) -> None:
        if killed:
            return
        until(lambda: query.exception() is not None or len(query.recentProgress) > 1)
        if query.exception() is None:
            node = nodes.nodes["a"]
            for pid in (*node.members, *node.gateways):
                os.kill(pid, signal.SIGKILL)
            node.kill()
            killed.append(node.name)

    run(writer.start, kill)
    assert killed, "the query has never begun"
    nodes.until(served_by("b"))
    run(writer.start, lambda _: None)
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    first = json.loads(offsets[0].read_text().splitlines()[-1])
    assert len(first["stores"]) == STORES, "the first batch had messages of all stores"
    found: Counter[int] = Counter()
    with amq.connect(f"failover:(stomp://127.0.0.1:{nodes.nodes['b'].port})") as connection:
        for name in names:
            with connection.session() as session:
                browser = session.browser(name)
                while (message := browser.receive(DEADLINE_S)) is not None:
                    found[int(message.text)] += 1
                assert browser.finished
    assert found == Counter(range(STORES * EACH))
    assert nodes.nodes["b"].stop() == 0


@pytest.mark.thorough
@pytest.mark.parametrize("redirect", ["true", "false"])
def test_a_query_goes_on_while_its_queue_moves(spark: Any, nodes: Nodes, tmp_path: Path, redirect: str) -> None:
    """Nobody does anything but move the queue: the query is not started again."""
    name = f"moved-{redirect}"
    rows = spark.readStream.format("amq").options(
        url=url_of(nodes), destination=f"/queue/{name}", subscription="etl", redirect=redirect, store=nodes.cluster
    )
    checkpoint, output = str(tmp_path / "checkpoint"), str(tmp_path / "rows")
    writer = rows.load().selectExpr("CAST(value AS STRING) AS value").writeStream.format("parquet")
    query = writer.options(path=output, checkpointLocation=checkpoint).start()

    def found() -> list[int]:
        return sorted(int(row.value) for row in spark.read.schema("value STRING").parquet(output).collect())

    def moved(store: str) -> bool:
        assert query.exception() is None, query.exception()
        table = Cluster(nodes.cluster).table().placement
        return table.step is None and table.home_of(f"{QUEUE_SCHEME}{name}") == store

    try:
        sent = 0
        with amq.connect(url_of(nodes)) as connection, connection.session() as session:
            producer = session.producer(f"/queue/{name}")
            for store in ("s1", "s2", "s3"):
                nodes.begin("move", name, store)
                while not moved(store):
                    producer.send(str(sent))
                    sent += 1
            for _ in range(100):
                producer.send(str(sent))
                sent += 1
        until(lambda: query.exception() is not None or len(found()) >= sent)
        assert query.exception() is None
        assert found() == [*range(sent)]
    finally:
        query.stop()
