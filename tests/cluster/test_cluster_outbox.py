"""Outboxes over real links: two stores whose masters are one node of this process."""

from __future__ import annotations

from pathlib import Path

import amq
from amq.config.destination_options import DestinationOptions
from tests.cluster.served import ServedCluster, served_cluster
from tests.patience import DEADLINE_S

COUNT = 300


def test_a_divert_crosses_a_link_in_order(tmp_path: Path) -> None:
    diverts = (DestinationOptions("in.>", {"divert": "out", "divert_exclusive": True}),)
    with served_cluster(tmp_path, stores=2, destinations=diverts) as cluster:
        there = cluster.home("out")
        (here,) = {"s1", "s2"} - {there}
        name = next(f"in.{number}" for number in range(1000) if cluster.home(f"in.{number}") == here)
        cluster.fill(name, COUNT)
        assert received(cluster, there) == [f"{name} {number}" for number in range(COUNT)]
        assert cluster.member(here).master.broker.outbox.senders  # type: ignore[union-attr]
        assert [*cluster.member(here).master.broker.outbox.rows()] == []  # type: ignore[union-attr]


def received(cluster: ServedCluster, store: str) -> list[str]:
    found: list[str] = []
    with amq.connect(cluster.url(store)) as connection, connection.session() as session:
        consumer = session.consumer("/queue/out")
        while len(found) < COUNT and (message := consumer.receive(timeout=DEADLINE_S)) is not None:
            found.append(str(message.text))
            message.ack()
    return found
