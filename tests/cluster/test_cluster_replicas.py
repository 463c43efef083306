"""A cluster without a shared file system: its table is in a coordinator, and its stores are replicated."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import amq as client
from amq.cli.start_cluster import member_config
from amq.cluster.directory import Cluster
from amq.config.schema import BrokerConfig
from amq.core.errors import ConfigError, StoreError
from amq.store.name import at_node
from amq.store.open import open_coordinator
from tests.cli.amq_process import amq
from tests.cluster.nodes import Node
from tests.ensemble import (
    Ensemble,
    EtcdEnsemble,
    ZooKeeperEnsemble,
    ensemble,
    needs_etcd,
    needs_zookeeper,
    wait_until,
)
from tests.patience import DEADLINE_S
from tests.processes import naming


def replicated(directory: Path) -> tuple[str, str]:
    """The cluster, and where its store is."""
    (directory / "small").mkdir()
    table = f"file://{directory}/small"
    return table, f"replica://{directory}/{{node}}/s1?group=s1&listen={{host}}:0&coordinator={table}"


def test_the_table_is_made_once_and_changed_by_one_at_a_time(tmp_path: Path) -> None:
    table, store = replicated(tmp_path)
    with pytest.raises(StoreError, match="amq cluster init"):
        Cluster(table)
    with pytest.raises(ConfigError, match="say where each store is"):
        Cluster.create(table, {"s1": ""})
    made = Cluster.create(table, {"s1": store})
    with pytest.raises(StoreError, match="is a cluster already"):
        Cluster.create(table, {"s1": store})
    again = Cluster(table)
    assert (again.id, again.secret(), again.location("s1")) == (made.id, made.secret(), store)
    before = again.table().placement
    made.place(before.placed("a", "s1"))
    with pytest.raises(StoreError, match="at the same time"):
        again.place(before.placed("b", "s1"))
    seat = again.join("a", 2.0, "host7", 4711)
    assert [(each.name, each.running, each.weight) for each in made.nodes()] == [("a", True, 2.0)]
    seat.close()
    assert not made.nodes()[0].running


def test_each_node_has_its_own_words_in_the_url_of_a_replicated_store(tmp_path: Path) -> None:
    table, store = replicated(tmp_path)
    made = Cluster.create(table, {"s1": store, "s2": f"{tmp_path}/{{node}}"})

    def read(location: str) -> BrokerConfig:
        return BrokerConfig(store=location, name="a")

    found = member_config(made.directory, "s1", read)
    assert found.store.startswith(f"replica://{tmp_path}/a/s1?group=s1&listen=")
    assert "{" not in found.store
    assert at_node(store, "b", "far.example").partition("listen=")[2].startswith("far.example:0&")
    assert member_config(made.directory, "s2", read).store == f"{tmp_path}/{{node}}", "a path is what it is"


@contextmanager
def running_nodes(cluster: str, directory: Path, names: str = "abc") -> Iterator[list[Node]]:
    nodes = [Node(cluster, name, directory) for name in names]
    try:
        for node in nodes:
            node.options["lockKeepAlivePeriod"] = "20s"
            node.start()
        yield nodes
    finally:
        for pid, _ in naming(cluster):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for node in nodes:
            node.bury()


@pytest.mark.deep
def test_a_node_with_its_disk_is_lost_and_the_others_serve(tmp_path: Path) -> None:
    table, store = replicated(tmp_path)
    amq("cluster", "init", "--cluster", table, "--store", store.replace("{host}", "127.0.0.1")).check_returncode()
    for name in "abc":
        (tmp_path / name).mkdir()
    with running_nodes(table, tmp_path) as nodes:
        wait_until(lambda: all(node.port for node in nodes), "all nodes listen")
        urls = ",".join(f"stomp://127.0.0.1:{node.port}" for node in nodes)
        with client.connect(f"failover:({urls})") as connection:
            producer = connection.session().producer("/queue/q")
            wait_until(lambda: counting(table) == 3, "all copies count")
            for number in range(20):
                producer.send(b"%d" % number)
            wait_until(lambda: master_in(table), "the status names the master")
            served = master_in(table) or "a"
            next(node for node in nodes if node.name == served).kill()
            producer.send(b"20")
        left = ",".join(f"stomp://127.0.0.1:{node.port}" for node in nodes if node.name != served)
        with client.connect(f"failover:({left})") as connection:
            consumer = connection.session().consumer("/queue/q")
            bodies = [message.body for _ in range(21) if (message := consumer.receive(DEADLINE_S)) is not None]
    assert bodies == [b"%d" % number for number in range(21)]


class OneEtcd(EtcdEnsemble):
    servers = 1


class OneZooKeeper(ZooKeeperEnsemble):
    servers = 1


@pytest.mark.deep
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(OneEtcd, marks=needs_etcd, id="etcd"),
        pytest.param(OneZooKeeper, marks=needs_zookeeper, id="zookeeper"),
    ],
)
def test_the_table_is_in_a_real_server_and_the_other_node_serves(kind: type[Ensemble], tmp_path: Path) -> None:
    with ensemble(kind, tmp_path / "servers") as servers:
        wait_until(lambda: open_coordinator(servers.url()).read("any") is None, "the server answers")
        table = servers.url("namespace=shop")
        copies = f"replica://{tmp_path}/{{node}}?group=s1&members=2&leastCopies=1&coordinator={servers.url()}"
        amq("cluster", "init", "--cluster", table, "--store", copies).check_returncode()
        one, other = Cluster(table), Cluster(table)
        before = one.table().placement
        one.place(before.placed("q", "s1"))
        with pytest.raises(StoreError, match="at the same time"):
            other.place(before.placed("q", "s1"))
        with running_nodes(table, tmp_path, "ab") as nodes:
            wait_until(lambda: all(node.port for node in nodes), "all nodes listen")
            with client.connect(f"failover:({','.join(f'stomp://127.0.0.1:{node.port}' for node in nodes)})") as sender:
                wait_until(lambda: counting(table) == 2, "both copies count")
                for number in range(20):
                    sender.session().producer("/queue/q").send(b"%d" % number)
            wait_until(lambda: master_in(table), "the status names the master")
            dead = next((node for node in nodes if node.name == master_in(table)), nodes[0])
            wait_until(lambda: counting(table) == 2, "both copies count again, where the machine was busy")
            dead.kill()
            (left,) = (node for node in nodes if node is not dead)
            with client.connect(f"failover:(stomp://127.0.0.1:{left.port})") as receiver:
                consumer = receiver.session().consumer("/queue/q")
                bodies = [message.body for _ in range(20) if (message := consumer.receive(DEADLINE_S)) is not None]
    assert bodies == [b"%d" % number for number in range(20)]


def master_in(table: str) -> str | None:
    """Of the one store of the cluster."""
    found = amq("cluster", "status", "--cluster", table, "--json")
    return json.loads(found.stdout)["stores"][0]["master"] if found.returncode == 0 else None


def counting(table: str) -> int:
    found = amq("status", "--cluster", table, "--store", "s1", "--json")
    return len(json.loads(found.stdout)["copies"]["counting"]) if found.returncode == 0 else 0
