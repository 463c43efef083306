"""The management interface of a whole cluster: which masters are asked, and what becomes of their answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from amq.cluster import masters as masters_module
from amq.cluster.directory import Cluster, ClusterNode, GatewaySeen
from amq.cluster.masters import Masters
from amq.cluster.whole import ROWS_MAX, Merged, WholeCluster
from amq.core.errors import AccessError, AmqError, CommandError
from amq.management.client import ManagementClient
from amq.security.login import User
from tests.cluster.served import PatientCluster, ServedCluster, served_cluster
from tests.patience import DEADLINE_S

SPREAD = "clicks"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    with served_cluster(tmp_path_factory.mktemp("c"), spread=SPREAD) as made:
        for number in range(30):
            made.fill(f"orders.{number:02}", number % 7 + 1)
        for store in made.names:
            made.fill(SPREAD, 2, store)
        yield made


@pytest.fixture
def whole(served: ServedCluster) -> Iterator[WholeCluster]:
    masters = Masters(served.cluster)
    yield PatientCluster(masters)
    masters.close()


def _lasting(row: Mapping[str, Any]) -> dict[str, Any]:
    """Without rates, which are others a second later."""
    return {key: value for key, value in row.items() if not key.endswith("_per_s")}


def test_lists_are_merged_in_the_order_that_is_asked_for(whole: WholeCluster, served: ServedCluster) -> None:
    for sort in "name", "-name", "messages", "-messages":
        everything = whole.ask("GET", f"/queues?sort={sort}&name=orders.*")["items"]
        assert len(everything) == 30
        assert all(row["store"] == served.home(row["name"]) and row["node"] == "a" for row in everything)
        keys = [row[sort.removeprefix("-")] for row in everything]
        assert keys == sorted(keys, reverse=sort.startswith("-"))
        pages = [
            whole.ask("GET", f"/queues?sort={sort}&name=orders.*&offset={offset}&limit=7") for offset in range(0, 30, 7)
        ]
        rows = [row for page in pages for row in page["items"]]
        assert [_lasting(row) for row in rows] == [_lasting(row) for row in everything]
        assert {page["total"] for page in pages} == {30}
        assert {len(page["missing"]) for page in pages} == {0}
    page = whole.ask("GET", "/queues?filter=messages>6")
    assert {row["messages"] for row in page["items"]} == {7}


def test_a_list_asks_each_store_for_pages(whole: WholeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from amq.cluster import whole as module

    monkeypatch.setattr(module, "PAGE_MIN", 2)
    merged = Merged(whole.masters, "/queues", {"name": "orders.*"}, None, DEADLINE_S, 1)
    assert len(list(merged)) == 30
    assert all(len(answer.found["items"]) <= 2 for answer in merged.answers.values())


def test_a_destination_is_asked_at_its_home(whole: WholeCluster, served: ServedCluster) -> None:
    for store in served.names:
        name = served.queue_in(store)
        assert whole.ask("POST", f"/queues/{name}/messages", {"body": "x"}) == {"count": 1, "store": store, "node": "a"}
        assert whole.ask("GET", f"/queues/{name}")["store"] == store
        (message,) = whole.ask("GET", f"/queues/{name}/messages")["items"]
        assert whole.ask("GET", f"/messages/{message['id']}")["store"] == store
        assert whole.ask("POST", f"/queues/{name}/purge", {})["count"] == 1
        whole.ask("POST", f"/queues/{name}/messages", {"body": "y"})  # a queue that holds nothing may go by itself
        assert whole.ask("DELETE", f"/queues/{name}")["count"] == 1


def test_one_store_is_asked_below_its_name(whole: WholeCluster) -> None:
    rows = whole.ask("GET", "/stores")["items"]
    assert [(row["name"], row["node"], row["healthy"], row["reason"]) for row in rows] == [
        (store, "a", True, "") for store in ("s1", "s2", "s3")
    ]
    assert {row["obeys_table"] for row in rows} == {whole.masters.table().number}
    counts = [whole.ask("GET", f"/stores/{row['name']}/queues?name=orders.*")["total"] for row in rows]
    assert (sum(counts), min(counts) > 0) == (30, True)
    with pytest.raises(AmqError, match="the cluster has no store 's9'"):
        whole.ask("GET", "/stores/s9/queues")


def test_the_cluster_tells_its_nodes_and_alarms(
    whole: WholeCluster, served: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = GatewaySeen(pid=7, connections=3), GatewaySeen(pid=0)
    nodes = [ClusterNode("a", True, gateways=seen, restarts=2), ClusterNode("b", False, gateways=seen)]
    monkeypatch.setattr(whole.masters.cluster, "nodes", lambda: nodes)
    monkeypatch.setattr(whole.masters.cluster, "preferences", lambda *_: {name: ["a", "b"] for name in served.names})
    found = whole.ask("GET", "/broker")
    assert (found["role"], found["stores_without_master"]) == ("cluster", 0)
    rows = [(row["name"], row["stores"], row["gateways"], row["connections"]) for row in found["nodes"]]
    assert rows == [("a", served.names, 1, 3), ("b", [], 0, 0)]
    assert [(alarm["code"], alarm["node"]) for alarm in found["alarms"]] == [("NODE_ABSENT", "b")]


def test_a_spread_queue_is_changed_in_every_store(whole: WholeCluster, served: ServedCluster) -> None:
    row = whole.ask("GET", f"/queues/{SPREAD}")
    assert (row["messages"], row["store"], [each["store"] for each in row["stores"]]) == (6, "spread", served.names)
    found: list[Any] = []
    after: str | None = ""
    while after is not None:
        page = whole.ask("GET", f"/queues/{SPREAD}/messages?limit=1&after={after}")
        found, after = found + page["items"], page["after"]
    assert [each["store"] for each in found] == ["s1", "s1", "s2", "s2", "s3", "s3"]
    last = found[-1]["id"]
    assert whole.ask("GET", f"/queues/{SPREAD}/messages/{last}")["store"] == "s3"
    assert whole.ask("DELETE", f"/queues/{SPREAD}/messages/{last}")["store"] == "s3"
    assert whole.ask("POST", f"/queues/{SPREAD}/pause", {})["paused"] is True
    assert {each["paused"] for each in whole.ask("GET", f"/queues/{SPREAD}")["stores"]} == {True}
    whole.ask("POST", f"/queues/{SPREAD}/resume", {})
    assert whole.ask("POST", f"/queues/{SPREAD}/purge", {"limit": 3})["count"] == 3
    assert whole.ask("POST", f"/queues/{SPREAD}/purge", {})["count"] == 2
    assert whole.ask("POST", f"/queues/{SPREAD}/messages", {"body": "again"})["count"] == 1


def test_a_move_stays_in_a_store(whole: WholeCluster, served: ServedCluster) -> None:
    here, there = served.queue_in("s1"), served.queue_in("s2")
    served.fill(here, 2)
    with pytest.raises(CommandError, match="s2"):
        whole.ask("POST", f"/queues/{here}/move", {"to": there})
    assert whole.ask("POST", f"/queues/{here}/move", {"to": SPREAD})["count"] == 2
    whole.ask("POST", f"/queues/{SPREAD}/purge", {})


def test_figures_are_added_up(whole: WholeCluster) -> None:
    totals = whole.ask("GET", "/totals")
    assert totals["messages"] == sum(row["messages"] for row in totals["stores"]) > 0
    assert [row["store"] for row in totals["stores"]] == ["s1", "s2", "s3"]
    rates = whole.ask("GET", "/rates")
    assert {"in", "out", "messages"} <= set(rates)
    found = whole.ask("GET", "/search?text=orders.1&limit=100")
    assert len(found["items"]) == found["totals"]["queue"] == found["total"] == 10
    assert whole.ask("GET", "/dead-letters")["complete"] is True


def test_errors_are_those_of_one_store(whole: WholeCluster) -> None:
    for method, path, code in (
        ("GET", "/queues/nothing", "NOT_FOUND"),
        ("GET", "/queues/clicks.none/messages/ID:5f1d3c2ab901-17592186044417", "NOT_FOUND"),
        ("GET", "/messages/ID:5f1d3c2ab901-17592186044417", "MESSAGE_UNKNOWN"),
        ("DELETE", "/connections/nothing", "NOT_FOUND"),
        ("DELETE", "/subscriptions/-/nothing", "UNKNOWN_SUBSCRIPTION"),
        ("GET", "/queues?sort=colour", "REQUEST_INVALID"),
        ("GET", f"/queues?offset={ROWS_MAX}", "REQUEST_INVALID"),
        ("POST", "/login", "NOT_FOUND"),
        ("GET", "/nothing", "NOT_FOUND"),
    ):
        with pytest.raises(AmqError) as caught:
            whole.ask(method, path)
        assert caught.value.code == code, path


def test_masters_of_other_hosts_are_asked_through_their_links(tmp_path: Path) -> None:
    with served_cluster(tmp_path, stores=2) as served:
        served.ask_by_links()
        masters = Masters(served.cluster)
        whole = PatientCluster(masters)
        served.fill("orders", 3)
        (row,) = whole.ask("GET", "/queues")["items"]
        assert (row["name"], row["store"], row["messages"]) == ("orders", served.home("orders"), 3)
        url = served.member("s1").master.link  # type: ignore[union-attr]
        with ManagementClient(url, dial=masters.dial(url), store=served.cluster.location("s1")) as client:
            assert client.get("/broker")["epoch"] == 1
            assert client.get("/broker")["role"] == "master"
        other = Cluster.create(str(tmp_path / "other"), {"s1": ""})
        with pytest.raises(AmqError, match="another secret") as caught:
            ManagementClient(url, dial=Masters(other).dial(url)).get("/broker")
        assert caught.value.code == "LINK_REFUSED"
        masters.close()


def hold(masters: Masters, store: str) -> threading.Event:
    """Nothing that is asked of `store` begins before the event is set."""
    began, hangs = threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        hangs.wait()

    masters._begin(store, hang)
    assert began.wait(DEADLINE_S)
    for _ in range(masters_module.JOBS_MAX):
        masters._begin(store, hang)
    return hangs


def test_a_store_that_does_not_answer_costs_its_own_part(tmp_path: Path) -> None:
    with served_cluster(tmp_path, stores=4, served=3) as served:
        for store in served.names:
            served.fill(served.queue_in(store), 1)
        masters = Masters(served.cluster)
        whole = PatientCluster(masters)
        served.stop_member("s1")
        hangs = hold(masters, "s2")
        try:
            page = whole.ask("GET", "/queues")
            assert [row["store"] for row in page["items"]] == ["s3"]
            assert {each["store"]: each["code"] for each in page["missing"]} == {
                "s1": "TRANSPORT_UNAVAILABLE",
                "s2": "TRANSPORT_UNAVAILABLE",
                "s4": "TRANSPORT_UNAVAILABLE",
            }
            rows = {row["name"]: row for row in whole.ask("GET", "/stores")["items"]}
            assert [rows[name]["healthy"] for name in ("s1", "s2", "s3", "s4")] == [False, False, True, False]
            assert "hangs" in rows["s2"]["reason"]
            with pytest.raises(AmqError, match="no node serves it now"):
                whole.ask("GET", f"/queues/{served.queue_in('s1')}")
            assert whole.ask("GET", f"/queues/{served.queue_in('s3')}")["messages"] == 1
            assert [each["store"] for each in whole.ask("GET", "/totals")["missing"]] == [
                "s1",
                "s2",
                "s4",
            ]
        finally:
            hangs.set()
            masters.close()


def test_every_master_decides_what_a_user_may_do(tmp_path: Path) -> None:
    rights = tmp_path / "permissions.toml"
    rights.write_text('[roles]\nreaders = ["alice"]\n[queues."orders.*"]\nbrowse = ["readers"]\n')
    with served_cluster(tmp_path, permissions_file=str(rights)) as served:
        masters = Masters(served.cluster)
        whole, alice, eve = PatientCluster(masters), User("alice"), User("eve")
        for number in range(6):
            whole.ask("POST", f"/queues/orders.{number}/messages", {"body": "x"})
        assert whole.ask("GET", "/queues", user=alice)["total"] == 6
        assert whole.ask("GET", "/queues", user=eve)["total"] == 0
        for path in "/queues/orders.1/purge", "/queues/orders.1/pause":
            with pytest.raises(AccessError):
                whole.ask("POST", path, {}, alice)
        with pytest.raises(AccessError):
            whole.ask("GET", "/connections", user=alice)
        masters.close()


def test_a_hung_lane_takes_no_more_than_its_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster.create(str(tmp_path / "c"), {"s1": ""})
    masters, hangs = Masters(cluster), threading.Event()
    monkeypatch.setattr(masters, "_look", lambda *_: hangs.wait())
    monkeypatch.setattr(masters_module, "LOOK_S", 0.01)
    try:
        for _ in range(3 * masters_module.JOBS_MAX):
            (seen,) = masters.look()
            assert "does not answer" in seen.trouble
        assert masters._lanes["s1"]._jobs.qsize() <= masters_module.JOBS_MAX
    finally:
        hangs.set()
        masters.close()


def test_strangers_reach_no_management(tmp_path: Path) -> None:
    with served_cluster(tmp_path, stores=1) as served:
        url = served.member("s1").master.link  # type: ignore[union-attr]
        port = int(url.rpartition(":")[2])
        for said in (b"GET /api/v1/queues HTTP/1.1\r\n\r\n", b"AMQMNGT\n" + b"\1\0" + bytes(64)):
            with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as stranger:
                stranger.sendall(said)
                heard = b""
                while part := stranger.recv(4096):
                    heard += part
            assert b"HTTP" not in heard
