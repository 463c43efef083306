"""Outboxes over real links: two stores whose masters are one node of this process."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

import amq
from amq.cli import exits
from amq.cli.main import main
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


def test_operators_see_what_waits_for_which_store_and_why(tmp_path: Path) -> None:
    diverts = (DestinationOptions("in.>", {"divert": "out", "divert_exclusive": True}),)
    with served_cluster(tmp_path, stores=2, destinations=diverts) as cluster:
        words = ["cluster", "outboxes", "--cluster", cluster.directory, "--limit", "5"]
        home = cluster.home("out")
        other = next(store for store in cluster.names if store != home)
        assert run(words, "--json") == (exits.OK, "[]")
        cluster.stop_member(home)
        cluster.fill(next(name for number in range(99) if cluster.home(name := f"in.{number}") == other), 3)
        of_one = [*words, "--store", other]
        (row,) = json.loads(run(of_one, "--json")[1])
        assert (row["name"], row["to_store"], row["messages"]) == ("/queue/out", home, 3)
        assert row["since_ms"] > 0
        code, text = run(of_one)
        assert (code, text.split("\n")[0].split()[:2]) == (exits.OK, ["DESTINATION", "TO"])
        assert row["reason"] == f"store {home} has no master"
        assert row["reason"] in text
        assert run(of_one, "--late", "0")[0] == exits.FAILED
        code, text = run(words)
        assert code == exits.TRANSPORT
        assert "/queue/out" in text


def run(words: list[str], *more: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, [*words, *more])
    return done.exit_code, done.stdout.strip()
