"""The directory of a cluster: made once, changed by one at a time, and read by nodes that see it at any moment."""

from __future__ import annotations

import json
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from amq.cluster import directory
from amq.cluster.directory import Cluster, NodeTakenError
from amq.cluster.placement import Naming, Placement
from amq.core.errors import AmqError, ConfigError, CorruptError, StoreError
from amq.store.document import encode


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster.create(str(tmp_path / "c"), {"s1": "", "s2": ""})


def test_it_has_the_stores_with_which_it_was_made(cluster: Cluster) -> None:
    again = Cluster(cluster.directory)
    assert again.id == cluster.id
    assert dict(again.table().stores) == {"s1": "", "s2": ""}
    assert again.location("s2") == f"{cluster.directory}/stores/s2"
    assert Path(again.location("s1")).is_dir()


def test_a_directory_that_is_none_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"is not a cluster: .*amq cluster init") as caught:
        Cluster(str(tmp_path))
    assert caught.value.code == "CLUSTER_MISSING"


def test_it_is_made_once(cluster: Cluster) -> None:
    with pytest.raises(StoreError, match="is a cluster already"):
        Cluster.create(cluster.directory, {"s1": ""})


def test_two_who_make_it_at_the_same_time_get_one_cluster(tmp_path: Path) -> None:
    """The one whose stores are others is told so."""
    made: list[Cluster | AmqError] = []
    barrier = threading.Barrier(8)

    def make(count: int) -> None:
        barrier.wait()
        try:
            made.append(Cluster.create(str(tmp_path / "c"), {f"s{number}": "" for number in range(count)}))
        except AmqError as error:
            made.append(error)

    threads = [threading.Thread(target=make, args=(count,)) for count in (1, 2, 3, 4, 5, 6, 7, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(each, Cluster) for each in made) == 1, made
    assert all(isinstance(each, Cluster) or each.code == "CLUSTER_EXISTS" for each in made)
    assert Cluster(str(tmp_path / "c")).table().number == 1


@pytest.mark.parametrize(
    "stores", [{}, {"": ""}, {"../s": ""}, {"s": "relative"}, {"a": "/x", "b": "/x"}, {"-x": ""}, {"spread": ""}]
)
def test_a_table_that_makes_no_sense_is_refused(tmp_path: Path, stores: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        Cluster.create(str(tmp_path / "c"), stores)
    assert not (tmp_path / "c" / "cluster.json").exists()


def test_stores_may_be_in_databases(tmp_path: Path) -> None:
    made = Cluster.create(str(tmp_path / "c"), {"s1": "postgresql://amq@db/amq"})
    assert made.location("s1") == "postgresql://amq@db/amq"


def test_stores_stay_in_the_order_in_which_they_were_added(cluster: Cluster) -> None:
    """Their ports follow it."""
    cluster.add_store("archive")
    assert list(cluster.table().stores) == ["s1", "s2", "archive"]


def test_a_new_store_has_no_slots(cluster: Cluster) -> None:
    before = cluster.table().placement
    after = cluster.add_store("s3").placement
    assert cluster.table().placement == after == before.with_store("s3")


def test_a_table_of_an_amq_without_placement_is_read(cluster: Cluster) -> None:
    path = Path(cluster.directory, "tables", "2.json")
    path.write_bytes(encode("cluster-table", {"stores": {"s1": "", "s2": "", "s3": ""}}))
    assert cluster.table().placement == Placement.even(2, ["s1", "s2", "s3"])
    changed = cluster.place(cluster.table().placement.placed("a", "s2"))
    assert cluster.table() == changed
    assert changed.number == 3


def test_a_placement_is_changed_by_one_at_a_time(cluster: Cluster) -> None:
    before = cluster.table().placement
    cluster.place(before.placed("a", "s1"))
    with pytest.raises(StoreError, match="at the same time"):
        cluster.place(before.placed("b", "s1"))


def test_a_placement_of_other_stores_is_damage(cluster: Cluster) -> None:
    body = {"stores": {"s1": "", "s2": ""}, "placement": Placement.even(2, ["s1", "s3"]).to_json()}
    Path(cluster.directory, "tables", "2.json").write_bytes(encode("cluster-table", body))
    with pytest.raises(CorruptError, match="of other stores"):
        cluster.table()


def test_the_naming_is_that_with_which_it_was_made(tmp_path: Path) -> None:
    naming = Naming(dead_letter_prefix="dead.")
    made = Cluster.create(str(tmp_path / "c"), {"s1": ""}, naming)
    assert made.table().placement.naming == naming


def test_a_store_is_added_by_one_at_a_time(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    table = cluster.add_store("s3")
    assert (table.number, list(table.stores)) == (2, ["s1", "s2", "s3"])
    with pytest.raises(ConfigError, match="already"):
        cluster.add_store("s3")
    first = directory.StoreTable({"s1": "", "s2": ""}, Placement.even(1, ["s1", "s2"]))
    monkeypatch.setattr(cluster, "table", lambda: first)
    with pytest.raises(StoreError, match="at the same time"):
        cluster.add_store("s4")
    assert list(Cluster(cluster.directory).table().stores) == ["s1", "s2", "s3"]


def test_a_damaged_table_is_told_and_never_guessed(cluster: Cluster) -> None:
    path = Path(cluster.directory) / "tables" / "1.json"
    path.write_text(path.read_text().replace("s2", "sX"))
    with pytest.raises(CorruptError, match="checksum"):
        cluster.table()
    path.unlink()
    with pytest.raises(CorruptError, match="no table"):
        cluster.table()


def test_a_name_is_taken_as_long_as_the_node_runs(cluster: Cluster) -> None:
    seat = cluster.join("a", 2.0, "host7", 4711)
    with pytest.raises(NodeTakenError, match="on host host7, pid 4711, already runs as 'a'"):
        Cluster(cluster.directory).join("a", 1.0, "other", 1)
    (node,) = cluster.nodes()
    assert (node.name, node.running, node.weight, node.host, node.pid) == ("a", True, 2.0, "host7", 4711)
    seat.close()
    assert not cluster.node("a").running
    cluster.join("a", 1.0, "other", 1).close()
    assert cluster.node("a").host == "other"


@pytest.mark.parametrize(("name", "weight"), [("", 1.0), ("a/b", 1.0), ("x" * 65, 1.0), ("a", -1.0), ("a", 1e9)])
def test_a_node_that_makes_no_sense_is_refused(cluster: Cluster, name: str, weight: float) -> None:
    with pytest.raises(ConfigError):
        cluster.join(name, weight, "host", 1)
    assert cluster.nodes() == []


def test_a_cluster_has_a_bound_of_nodes(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "NODES_MAX", 3)
    for name in "abc":
        cluster.join(name, 1.0, "host", 1).close()
    with pytest.raises(ConfigError, match="amq cluster forget"):
        cluster.join("d", 1.0, "host", 1)
    cluster.join("b", 1.0, "host", 1).close()
    cluster.forget("c")
    cluster.join("d", 1.0, "host", 1).close()
    assert [node.name for node in cluster.nodes()] == ["a", "b", "d"]


def test_a_drained_node_should_serve_nothing(cluster: Cluster) -> None:
    seats = [cluster.join(name, 1.0, "host", 1) for name in "ab"]
    assert sorted(order[0] for order in cluster.preferences().values()) == ["a", "b"]
    cluster.drain("a", True)
    assert cluster.preferences() == {"s1": ["b"], "s2": ["b"]}
    assert cluster.priorities("a") == {"s1": 0, "s2": 0}
    cluster.drain("a", False)
    assert sorted(order[0] for order in cluster.preferences().values()) == ["a", "b"]
    with pytest.raises(ConfigError, match="no node 'z' has ever joined this cluster; nodes: a, b"):
        cluster.drain("z", True)
    for seat in seats:
        seat.close()


def test_a_node_is_forgotten_only_when_it_is_gone(cluster: Cluster) -> None:
    seat = cluster.join("a", 1.0, "host", 1)
    cluster.drain("a", True)
    with pytest.raises(ConfigError, match="runs: stop it first"):
        cluster.forget("a")
    seat.close()
    cluster.forget("a")
    assert cluster.nodes() == []
    cluster.join("a", 1.0, "host", 1).close()
    assert not cluster.node("a").drained, "what was wanted of a node is forgotten with it"


def test_a_seat_that_cannot_be_read_is_a_node_of_weight_one(cluster: Cluster) -> None:
    cluster.join("a", 3.0, "host", 1).close()
    path = Path(cluster.directory) / "brokers" / "a.json"
    for content in (
        b"",
        b"{}",
        b"\0" * 4096,
        json.dumps({"amq": "node", "format": 9, "crc32": "", "body": {}}).encode(),
    ):
        path.write_bytes(content)
        (node,) = cluster.nodes()
        assert (node.name, node.weight, node.running) == ("a", 1.0, False)


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may have more than 16 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_told_with_the_file_that_finds_no_room(cluster: Cluster) -> None:
    with full_disk(), pytest.raises(OSError, match=f"{cluster.directory}/tables/2.json"):
        cluster.add_store("s3")
    with full_disk(), pytest.raises(StoreError, match=f"{cluster.directory}.*: cannot join the cluster"):
        cluster.join("a", 1.0, "host7", 4711)
    assert [*cluster.add_store("s3").stores] == ["s1", "s2", "s3"]
    cluster.join("a", 1.0, "host7", 4711).close()
