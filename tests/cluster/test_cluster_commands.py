"""`amq cluster` and `amq start --cluster`: what they print, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from amq.cli.main import main
from amq.cluster.directory import Cluster, check_lone
from amq.core.errors import StoreError
from amq.store.open import open_store
from amq.store.presence import Presence
from tests.files import OWNER, flip, write_epoch


def amq(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    made = amq("cluster", "init", "--cluster", tmp_path / "c", "--stores", 3)
    assert made.exit_code == 0, made.output
    return tmp_path / "c"


@pytest.fixture
def node(cluster: Path) -> Iterator[str]:
    """A node that runs, without members."""
    seat = Cluster(str(cluster)).join("a", 1.0, "host7", 4711)
    yield "a"
    seat.close()


def facts(*words: object) -> dict[str, Any]:
    done = amq(*words, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


def test_a_new_cluster_says_how_to_start_a_node(tmp_path: Path) -> None:
    made = amq("cluster", "init", "--cluster", tmp_path / "c")
    assert f"amq start --cluster {tmp_path}/c --name NODE" in made.output
    assert list(Cluster(str(tmp_path / "c")).table().stores) == ["s1", "s2", "s3", "s4"]
    odd = amq("cluster", "init", "--cluster", tmp_path / "a c", "--stores", 1)
    assert f"amq start --cluster '{tmp_path}/a c' --name NODE" in odd.output  # for a shell


def test_stores_may_be_elsewhere(tmp_path: Path) -> None:
    made = facts("cluster", "init", "--cluster", tmp_path / "c", "--store", "/mnt/x", "--store", "postgresql://db/amq")
    assert made["stores"] == {"s1": "/mnt/x", "s2": "postgresql://db/amq"}
    added = facts("cluster", "add-store", "--cluster", tmp_path / "c", "more")
    assert added["at"] == f"{tmp_path}/c/stores/more"


def test_status_tells_stores_that_nobody_serves(cluster: Path, node: str) -> None:
    done = amq("cluster", "status", "--cluster", cluster, "--json")
    assert done.exit_code == 1
    found = json.loads(done.output)
    assert [(store["store"], store["master"], store["preferred"]) for store in found["stores"]] == [
        ("s1", None, node),
        ("s2", None, node),
        ("s3", None, node),
    ]
    assert found["nodes"] == [
        {
            "node": node,
            "running": True,
            "host": "host7",
            "pid": 4711,
            "weight": 1.0,
            "drained": False,
            "stopped": False,
            "scale_down": None,
            "addresses": [],
            "gateways": [],
            "restarts": 0,
            "failing": [],
            "serves": [],
            "should_serve": ["s1", "s2", "s3"],
        }
    ]
    assert "should be" in amq("cluster", "status", "--cluster", cluster).output


def test_a_drain_that_is_not_done_in_time_says_why_and_stays_wanted(cluster: Path, node: str) -> None:
    done = amq("cluster", "drain", "--cluster", cluster, node)
    assert done.exit_code == 0, done.output  # it serves nothing
    assert Cluster(str(cluster)).node(node).drained
    assert amq("cluster", "resume", "--cluster", cluster, node).exit_code == 0
    assert not Cluster(str(cluster)).node(node).drained


def test_what_cannot_be_done_is_one_line_with_the_cure(cluster: Path, node: str, tmp_path: Path) -> None:
    for words, code, told in (
        (("cluster", "status", "--cluster", tmp_path), 4, "amq cluster init"),
        (("cluster", "init", "--cluster", cluster), 4, "is a cluster already"),
        (("cluster", "init", "--cluster", tmp_path / "d", "--stores", 1, "--store", "/x"), 2, "give one of"),
        (("cluster", "drain", "--cluster", cluster, "z"), 3, "no node 'z'"),
        (("cluster", "forget", "--cluster", cluster, node), 3, "stop it first"),
        (("cluster", "add-store", "--cluster", cluster, "s1"), 3, "already"),
        (("cluster", "where", "--cluster", cluster, "queue://"), 3, "is not a name"),
        (("cluster", "add-store", "--cluster", cluster, "x", "--at", cluster), 4, "is a cluster, not a store"),
        (("start", "--store", cluster, "--name", "b"), 4, "is a cluster, not a store"),
        (("start", "--store", cluster / "stores" / "s2", "--name", "b"), 4, "is store 's2' of the cluster"),
        (("cluster", "rebalance", "--cluster", cluster, "--wait", 0), 7, "s1, s2, s3: no broker of it runs, of node a"),
        (("start", "--cluster", cluster, "--store", "/x"), 2, "give one of --store and --cluster"),
        (("start", "--store", "/x", "--weight", 2), 2, "--cluster DIR"),
        (("start", "--cluster", cluster, "--wait-for-activation"), 2, "never master of all"),
        (("start", "--cluster", tmp_path, "--name", "b"), 4, "amq cluster init"),
        (("start", "--cluster", cluster, "--name", node), 5, "already runs as 'a'"),
        (
            ("start", "--cluster", cluster, "--name", node, "-o", "failoverOnShutdown=false"),
            5,
            "no other node takes over",
        ),
        (("start", "--cluster", cluster, "--name", "b", "-o", "priority=3"), 3, "--weight"),
        (
            (
                *("start", "--cluster", cluster, "--name", "b"),
                *("--transport", "stomp://h:61613", "--transport", "tcp://h:61615"),
            ),
            3,
            "at least 4 apart",
        ),
        (("start", "--cluster", cluster, "--name", "b", "--transport", "stomp://h:65535"), 3, "more than 65535"),
    ):
        done = amq(*words)
        assert (done.exit_code, told in done.output) == (code, True), f"{words}: {done.exit_code} {done.output}"
    assert [each.name for each in Cluster(str(cluster)).nodes()] == [node], "who is refused has not joined"


def test_a_store_that_brokers_have_served_is_imported_and_not_made_into_something_else(
    cluster: Path, tmp_path: Path
) -> None:
    used = tmp_path / "lone"
    used.mkdir()
    write_epoch(str(used), 1, {})
    for words in (
        ("init", "--cluster", used),
        ("init", "--cluster", tmp_path / "d", "--store", used),
        ("add-store", "--cluster", cluster, "x", "--at", used),
    ):
        done = amq("cluster", *words)
        assert (done.exit_code, f"import-store --cluster DIR {used} [STORE_IN_USE]" in done.output) == (4, True), done
    assert [*Cluster(str(cluster)).table().stores] == ["s1", "s2", "s3"]
    assert not (tmp_path / "d").exists()


def test_a_damaged_table_is_restored_from_a_backup_and_not_repaired_as_a_journal(cluster: Path) -> None:
    flip(cluster / "tables" / "1.json", 40)
    done = amq("cluster", "status", "--cluster", cluster)
    assert done.exit_code == 4
    assert "tables/1.json" in done.output
    assert "restore the file from a backup of the cluster's directory" in done.output
    assert "journal repair" not in done.output


@pytest.mark.parametrize("placement", [{}, {"number": 3}])
def test_a_broker_of_the_old_group_does_not_join_a_store_that_nodes_serve(
    tmp_path: Path, placement: dict[str, int]
) -> None:
    """Its service starts it again after the import."""
    store = open_store(str(tmp_path))
    store.make()
    write_epoch(str(tmp_path), 1, {})
    assert store.election.try_acquire(lambda: False)
    presence = Presence.open(store.board, OWNER, "master", {"placement": placement} if placement else {})
    try:
        with pytest.raises(StoreError, match="a cluster, and node 'a'") if placement else nullcontext():
            check_lone(str(tmp_path))
    finally:
        presence.close()
        store.election.let_go()
    check_lone(str(tmp_path))


def test_a_command_that_waits_says_for_what(cluster: Path, node: str) -> None:
    """Nobody serves a store yet, and one node is all that there are."""
    done = amq("cluster", "rebalance", "--cluster", cluster, "--wait", 0.1)
    assert done.exit_code == 7
    assert "waiting for s1, s2, s3: no broker of it runs, of node a\n" in done.stderr
    assert "not done for 3 stores: s1, s2, s3: no broker of it runs, of node a" in done.stderr
    Cluster(str(cluster)).drain(node, True)
    assert (
        "s1, s2, s3: the cluster has no node that is not drained: start or `amq cluster resume` one"
        in amq("cluster", "rebalance", "--cluster", cluster, "--wait", 0.1).stderr
    )


def test_the_doctor_finds_the_cluster_in_the_environment(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AMQ_STORE", raising=False)
    monkeypatch.setenv("AMQ_CLUSTER", str(cluster))
    assert json.loads(amq("doctor", "--json").output)["path"] == str(cluster)
