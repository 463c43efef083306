"""A store is removed from nodes that serve it, while a producer sends there, and its master is killed."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from amq.cluster.removing import NOTE_FILE
from tests.cluster.nodes import Nodes, each_as_it_should_be
from tests.cluster.test_cluster_moving_nodes import NAME, acknowledge
from tests.patience import DEADLINE_S
from tests.traffic import Producer, connect_any, drain

pytestmark = pytest.mark.deep


def test_a_store_is_removed_under_traffic_and_kills(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, stores=3)
    try:
        for node in nodes.nodes.values():
            node.start()
        found = nodes.until(each_as_it_should_be)
        masters = {store["store"]: store["master"] for store in found["stores"]}
        nodes.place(NAME, "s1").check_returncode()
        producer = Producer([nodes.nodes["a"]])  # type: ignore[list-item]
        producer.start()
        producer.wait_confirmed(1000)
        with connect_any([nodes.nodes["a"]]) as connection:  # type: ignore[list-item]
            acknowledged = acknowledge(connection, 100)
        nodes.begin("remove-store", "s1", "--to", "s2")
        for store in ("s1", "s2"):
            for pid in nodes.nodes[masters[store]].members_of(store):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        nodes.settle()
        assert [store["store"] for store in nodes.status()["stores"]] == ["s2", "s3"]
        assert (Path(nodes.cluster) / "stores" / "s1" / NOTE_FILE).exists()
        producer.wait_confirmed(100)
        until = time.monotonic() + DEADLINE_S
        while any(node.members_of("s1") for node in nodes.nodes.values()):
            assert time.monotonic() < until, nodes.logs()
            time.sleep(0.1)
        producer.wait_confirmed(100)  # its gateway has let go of the store
        confirmed = producer.stop()
        nodes.until(each_as_it_should_be)
        with connect_any([nodes.nodes["b"]]) as connection:  # type: ignore[list-item]
            bodies = [int(body.split()[1]) for body in drain(connection, len(confirmed))]
            assert drain(connection, 0) == []
        assert bodies == sorted(set(bodies)), "stored twice, or out of order"
        assert not acknowledged & set(bodies), "their acknowledgement was confirmed"
        assert set(confirmed) <= acknowledged | set(bodies)
        assert producer.failovers == 0, "its connection has held"
    finally:
        nodes.kill()
