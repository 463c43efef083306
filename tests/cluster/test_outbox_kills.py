"""Outboxes as processes: what one store leads to another arrives once, whichever of the two masters is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.cluster.nodes import Nodes
from tests.cluster.test_cluster_nodes import Place
from tests.traffic import Producer, connect_any, drain

pytestmark = pytest.mark.deep
KILLED = ("s1", "s2", "s1")


def test_a_divert_survives_kills_of_both_masters(nodes: Nodes, tmp_path: Path) -> None:
    config = tmp_path / "amq.toml"
    config.write_text('[destinations."in"]\ndivert = "out"\ndivertExclusive = true\n')
    node = nodes.nodes["a"].start(str(config))
    nodes.until(lambda found: all(store["master"] for store in found["stores"]))
    nodes.place("in", "s1").check_returncode()
    nodes.place("out", "s2").check_returncode()
    here, there = Place(nodes, "s1"), Place(nodes, "s2")
    producer = Producer([here], queue="/queue/in")  # type: ignore[list-item]
    producer.start()
    for store in KILLED:
        producer.wait_confirmed(200)
        for pid in node.members_of(store):
            os.kill(pid, signal.SIGKILL)
    producer.wait_confirmed(200)
    confirmed = set(producer.stop())
    arrived: list[int] = []
    with connect_any([there]) as connection:  # type: ignore[list-item]
        while not confirmed <= set(arrived):
            arrived += [int(body.split()[1]) for body in drain(connection, len(confirmed), "/queue/out")]
    assert arrived == sorted(set(arrived)), "arrived twice, or out of order"
