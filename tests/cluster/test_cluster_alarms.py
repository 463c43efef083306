"""Alarms of a cluster: each is there when it should be, and not otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from amq.cluster.alarms import Alarm, alarms
from amq.cluster.directory import Cluster, ClusterNode, GatewaySeen, StoreTable
from amq.cluster.masters import StoreNow
from amq.store.epoch import Epoch
from amq.store.host import Owner
from amq.store.presence import MASTER, BrokerPresence
from amq.store.status import StoreStatus

NOW_MS = 10_000_000
NODES = [ClusterNode(name, True, began_ms=1) for name in "ab"]
ORDER = {"s1": ["a", "b"]}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> StoreTable:
    return Cluster.create(str(tmp_path_factory.mktemp("c") / "c"), {"s1": ""}).table()


def owner(name: str) -> Owner:
    return Owner(name, name, "host", "", "", 1, 1, (), 5.0)


def served_by(name: str, began_s: float = 1000, number: int = 1, not_ready: str = "", delay: str = "5s") -> StoreNow:
    facts: dict[str, Any] = {"placement": {"number": number}, "options": {"values": {"failbackDelay": delay}}}
    master = BrokerPresence(name, MASTER, owner(name), {}, facts)
    slave = BrokerPresence("b" if name == "a" else "a", "slave", owner("other"), {}, {"not_ready": not_ready})
    epoch = Epoch(1, owner(name), {}, int(NOW_MS - 1000 * began_s), "first")
    return StoreNow("s1", "/c/s1", StoreStatus("held", epoch, False, None, [master, slave]))


def told(table: StoreTable, store: StoreNow, *nodes: ClusterNode) -> list[Alarm]:
    return alarms(table, [store], nodes or NODES, ORDER, NOW_MS)


def late(table: StoreTable, kind: str, said: dict[str, Any]) -> tuple[StoreNow, Alarm]:
    """A store whose master has said this of itself since 31 s ago, and its one alarm; there is none after 29 s."""
    store = served_by("a")
    assert store.master is not None
    said["since_ms"] = NOW_MS - 29_000
    store.master.facts["placement"][kind] = said
    assert told(table, store) == []
    said["since_ms"] = NOW_MS - 31_000
    (alarm,) = told(table, store)
    return store, alarm


def test_all_is_well(table: StoreTable) -> None:
    assert told(table, served_by("a")) == []


def test_stores(table: StoreTable) -> None:
    (alarm,) = told(table, StoreNow("s1", "/c/s1"))
    assert (alarm.code, alarm.store) == ("STORE_WITHOUT_MASTER", "s1")
    (alarm,) = told(table, StoreNow("s1", "/c/s1", None, "it hangs"))
    assert alarm.code == "STORE_UNREADABLE"
    assert "it hangs" in alarm.text


def test_a_store_whose_last_master_forbade_a_failover(table: StoreTable) -> None:
    """A node that was configured after Artemis' default: its clean stop leaves the store to nobody."""
    slave = BrokerPresence("b", "slave", owner("b"), {}, {"passive": True})
    epoch = Epoch(1, owner("a"), {}, NOW_MS, "first")
    (alarm,) = told(table, StoreNow("s1", "/c/s1", StoreStatus("free", epoch, True, None, [slave])))
    assert alarm.code == "STORE_WITHOUT_MASTER"
    assert "failoverOnShutdown" in alarm.text
    assert "amq cluster rebalance" in alarm.text


def test_a_store_is_unbalanced_after_its_delay(table: StoreTable) -> None:
    assert told(table, served_by("b", began_s=34)) == []
    (alarm,) = told(table, served_by("b", began_s=36))
    assert (alarm.code, alarm.node) == ("STORE_UNBALANCED", "a")
    assert "rebalance" in alarm.text
    assert told(table, served_by("b", began_s=60, delay="1min")) == []
    assert "has not caught up" in told(table, served_by("b", not_ready="has not caught up"))[0].text
    came_back = replace(NODES[0], began_ms=NOW_MS - 20_000)
    assert told(table, served_by("b"), came_back, NODES[1]) == []


def test_messages_that_do_not_leave(table: StoreTable) -> None:
    _, alarm = late(table, "outbox", {"destination": "queue://x", "reason": "the link broke"})
    assert (alarm.code, alarm.store, alarm.node) == ("OUTBOX_WAITS", "s1", "a")
    assert "queue://x that do not leave: the link broke" in alarm.text


def test_a_move_that_stands_still(table: StoreTable) -> None:
    _, alarm = late(table, "stuck", {"destination": "/topic/x", "store": "s2", "reason": "UNSUBSCRIBE it first"})
    assert (alarm.code, alarm.store, alarm.node) == ("MOVE_STANDS_STILL", "s1", "a")
    assert "/topic/x does not move from store s1 to s2, which refuses it: UNSUBSCRIBE it first" in alarm.text


def test_a_transaction_of_which_another_store_does_not_say_what_became(table: StoreTable) -> None:
    store, alarm = late(table, "doubt", {"xid": "span:s2:7", "waits_for": "s2", "reason": ""})
    assert store.master is not None
    assert alarm == Alarm(
        "TRANSACTION_IN_DOUBT",
        "transaction span:s2:7 of store s1 waits 31 s for s2: it has not answered",
        "s1",
        "a",
    )
    store.master.facts["placement"]["doubt"] = {"since_ms": "of another version"}
    assert told(table, store) == []


def test_a_table_that_is_not_in_force(table: StoreTable) -> None:
    assert told(table, served_by("a", number=0, began_s=20)) == []
    (alarm,) = told(table, served_by("a", number=0))
    assert alarm.code == "TABLE_NOT_IN_FORCE"


def test_a_cluster_that_lacks_a_table(table: StoreTable) -> None:
    (alarm,) = told(table, served_by("a", number=3)._replace(lacks_table=3))
    assert (alarm.code, alarm.store, alarm.node) == ("CLUSTER_SET_BACK", "s1", "a")
    assert "store s1 obeys table 3, and the newest one of the cluster is 1" in alarm.text


def test_nodes(table: StoreTable) -> None:
    a, b = NODES
    (alarm,) = told(table, served_by("a"), a, replace(b, running=False))
    assert (alarm.code, alarm.node) == ("NODE_ABSENT", "b")
    assert told(table, served_by("a"), a, replace(b, running=False, drained=True)) == []
    (alarm,) = told(table, served_by("a"), a, replace(b, failing=("gateway 1", "s1")))
    assert alarm.code == "PROCESS_RESTARTS"
    assert "gateway 1, s1" in alarm.text
    (alarm,) = told(table, served_by("a"), a, replace(b, gateways=(GatewaySeen(1, refused=2),)))
    assert alarm.code == "LINK_REFUSED"


def test_what_a_gateway_of_another_version_says() -> None:
    assert GatewaySeen.of(7, {"connections": 3, "news": 4, "links": "x"}, 2) == GatewaySeen(7, 3, restarts=2)
