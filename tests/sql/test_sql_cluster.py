"""A cluster whose tables, nodes, orders and secret are in a database: as `tests/cluster` has it in a directory."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import amq as client
from amq.cluster.directory import Cluster, NodeTakenError
from amq.core.errors import ConfigError, StoreError
from amq.store.open import open_register, open_store
from tests.cli.amq_process import amq
from tests.cluster.nodes import Nodes, each_as_it_should_be
from tests.patience import DEADLINE_S
from tests.postgres import Postgres, needs_postgres

pytestmark = needs_postgres


def test_a_cluster_is_made_once_and_changed_by_one_at_a_time(url: str) -> None:
    with pytest.raises(StoreError, match="amq cluster init") as caught:
        Cluster(url)
    assert caught.value.code == "CLUSTER_MISSING"
    made = Cluster.create(url, {"s1": "", "s2": ""})
    with pytest.raises(StoreError, match="is a cluster already"):
        Cluster.create(url, {"s1": ""})
    again = Cluster(url)
    assert (again.id, again.secret()) == (made.id, made.secret())
    before = again.table().placement
    made.place(before.placed("a", "s1"))
    with pytest.raises(StoreError, match="at the same time"):
        again.place(before.placed("b", "s1"))
    assert again.table() == made.table()
    assert again.table().number == 2


def test_stores_are_in_tables_beside_those_of_the_cluster(url: str, server: Postgres, database: str) -> None:
    """Their prefix ends with the store's name; their URL has the role of the one who asks."""
    made = Cluster.create(f"{url}&tablePrefix=shop_", {"s1": "", "far": "/mnt/far"})
    assert made.location("s1") == f"{url}&tablePrefix=shop_s1_"
    assert made.location("far") == "/mnt/far"
    tables = [
        row[0] for row in server.ask("SELECT relname FROM pg_class WHERE relname LIKE '%amq_store'", None, database)
    ]
    assert sorted(tables) == ["shop_amq_store", "shop_s1_amq_store"]
    assert open_store(made.location("s1")).epochs.newest() is None
    for name, why in (("S1", "2 stores"), ("x" * 40, "short name"), ("s1", "already")):
        with pytest.raises(ConfigError, match=why):
            made.add_store(name)
    assert list(made.table().stores) == ["s1", "far"]


def test_nodes_take_part_and_are_forgotten(url: str) -> None:
    made = Cluster.create(url, {"s1": "", "s2": ""})
    seat = made.join("a", 2.0, "host7", 4711)
    with pytest.raises(NodeTakenError, match="on host host7, pid 4711, already runs as 'a'"):
        Cluster(url).join("a", 1.0, "other", 1)
    made.drain("a", True)
    (node,) = Cluster(url).nodes()
    assert (node.name, node.running, node.weight, node.drained) == ("a", True, 2.0, True)
    seat.close()
    assert not made.node("a").running
    made.forget("a")
    assert made.nodes() == []


def test_a_role_that_has_only_its_rights_is_a_node(url: str, server: Postgres, database: str) -> None:
    """docs/postgresql.md names them: the owner makes the cluster, and brokers run as another role."""
    Cluster.create(url, {"s1": ""})
    server.ask(f"CREATE ROLE {database}_broker LOGIN; CREATE ROLE {database}_stranger LOGIN")
    rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON"
    for prefix in ("", "s1_"):
        names = ", ".join(f"{prefix}amq_{name}" for name in ("store", "name", "file", "chunk", "record"))
        server.ask(f"{rights} {names} TO {database}_broker", None, database)
    ours = Cluster(server.url(database, user=f"{database}_broker"))
    assert f"{database}_broker@" in ours.location("s1")
    assert len(ours.secret()) >= 32
    ours.join("a", 1.0, "host", 1).close()
    ours.place(ours.table().placement.placed("a", "s1"))
    with pytest.raises((StoreError, OSError), match="denied"):
        open_register(server.url(database, user=f"{database}_stranger")).read("", "secret")


@pytest.mark.deep
def test_a_node_has_its_seat_again_after_the_database_was_away(url: str, server: Postgres) -> None:
    cluster = Cluster.create(url, {"s1": ""})
    seat = cluster.join("a", 1.0, "host", 1)
    server.stop()
    try:
        with pytest.raises((StoreError, OSError)):
            seat.keep()
        with pytest.raises((StoreError, OSError)):
            cluster.table()
    finally:
        server.start()
    until = time.monotonic() + DEADLINE_S
    while True:  # each connection that was lost costs one error
        try:
            assert seat.keep(), "it is lost with its connection"
            break
        except OSError:
            assert time.monotonic() < until
    assert cluster.table().number == 1
    assert [node.running for node in Cluster(url).nodes()] == [True]
    seat.close()


@pytest.mark.deep
def test_nodes_serve_a_cluster_in_a_database(tmp_path: Path, url: str, server: Postgres) -> None:
    """A node takes over what another one served, clients reach all stores through its gateway, and the nodes outlive a
    restart of the server."""
    nodes = Nodes(tmp_path, 2, cluster=url)
    try:
        for node in nodes.nodes.values():
            node.start()
        found = nodes.until(each_as_it_should_be)
        assert [len(node["serves"]) for node in found["nodes"]] == [1, 1]
        assert all("tablePrefix=s" in store["at"] for store in found["stores"])
        a, b = nodes.nodes["a"], nodes.nodes["b"]
        queues = [f"q{number}" for number in range(8)]
        producers = client.connect(f"failover:(stomp://127.0.0.1:{a.port},stomp://127.0.0.1:{b.port})")
        session = producers.session()
        for queue in queues:
            session.producer(f"/queue/{queue}").send(queue)
        homes = json.loads(amq("cluster", "where", "--cluster", url, *queues, "--json").stdout)["destinations"]
        assert {home["home"] for home in homes} == {"s1", "s2"}

        a.kill()
        nodes.until(lambda found: {store["master"] for store in found["stores"]} == {"b"})
        server.stop()
        server.start()
        for queue in queues:
            session.producer(f"/queue/{queue}").send("later")
        producers.close()
        with client.connect(f"failover:(stomp://127.0.0.1:{b.port})") as consumers:
            for queue in queues:
                consumer = consumers.session().consumer(f"/queue/{queue}")
                found = [consumer.receive(DEADLINE_S) for _ in range(2)]
                assert [message.text if message else None for message in found] == [queue, "later"]
        assert b.stop() == 0
    finally:
        nodes.kill()
