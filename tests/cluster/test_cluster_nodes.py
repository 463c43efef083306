"""Nodes as processes: who serves what after one is killed, drained and started again, with messages on their way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from amq.config.transport_url import parse_transport_url
from tests.cli.amq_process import amq
from tests.cluster.nodes import STORES, Nodes, each_as_it_should_be, served_by
from tests.patience import DEADLINE_S
from tests.traffic import Producer, connect_any, drain

pytestmark = pytest.mark.deep


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    try:
        yield made
    finally:
        made.kill()


class Place:
    """Where a store is served now, for a client of tests: it asks for the status of the cluster when it must."""

    def __init__(self, nodes: Nodes, store: str) -> None:
        self.name = store
        self._nodes = nodes

    @property
    def port(self) -> int:
        (found,) = (each for each in self._nodes.status()["stores"] if each["store"] == self.name)
        if not found["urls"]:
            raise ConnectionRefusedError(f"nobody serves {self.name}")
        return parse_transport_url(found["urls"][0]).port

    def log_text(self) -> str:
        return self._nodes.logs()


def test_nodes_share_the_stores_and_take_over_from_one_that_is_killed(nodes: Nodes) -> None:
    for node in nodes.nodes.values():
        node.start()
    found = nodes.until(each_as_it_should_be)
    assert [len(node["serves"]) for node in found["nodes"]] == [STORES // 2, STORES // 2]

    a, b = nodes.nodes["a"], nodes.nodes["b"]
    of_a = next(store["store"] for store in found["stores"] if store["master"] == "a")
    other = next(store["store"] for store in found["stores"] if store["store"] != of_a)
    nodes.place(">", of_a).check_returncode()
    producer = Producer([Place(nodes, of_a)])  # type: ignore[list-item]
    producer.start()
    producer.wait_confirmed(100)
    refused = nodes.place(">", other)
    assert refused.returncode == 7
    assert f"store {of_a} holds /queue/" in refused.stderr
    table = nodes.until(lambda found: {store["obeys_table"] for store in found["stores"]} == {found["table"]})
    assert table["rules"] == [{"pattern": ">", "home": of_a}]

    a.kill()
    nodes.until(served_by("b"))
    producer.wait_confirmed(100)
    until = time.monotonic() + DEADLINE_S
    while a.members:
        assert time.monotonic() < until, "members outlive their node"
        time.sleep(0.05)

    a.start()
    nodes.until(each_as_it_should_be)
    producer.wait_confirmed(100)
    amq("cluster", "drain", "--cluster", nodes.cluster, "b", "--wait", DEADLINE_S).check_returncode()
    nodes.until(served_by("a"))
    producer.wait_confirmed(100)
    assert b.stop() == 0
    confirmed = producer.stop()
    with connect_any([Place(nodes, of_a)]) as connection:  # type: ignore[list-item]
        bodies = [int(body.split()[1]) for body in drain(connection, len(confirmed))]
    assert bodies == sorted(set(bodies)), "stored twice, or out of order"
    assert set(confirmed) <= set(bodies)
    assert a.stop() == 0
