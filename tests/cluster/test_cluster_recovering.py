"""A cluster that was restored from an older backup: it says so, changes nothing, and gets its table from a journal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from amq.cli.main import main
from amq.cluster.directory import TABLES_DIRECTORY, Cluster
from amq.cluster.masters import Masters, StoreNow
from tests.cluster.served import ServedCluster, served_cluster

SPREAD = "clicks"


def amq(*words: object) -> Result:
    return CliRunner().invoke(main, ["cluster", *map(str, words)])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    """Its stores obey table 3."""
    with served_cluster(tmp_path_factory.mktemp("c"), stores=2, spread=SPREAD) as made:
        yield made


@pytest.fixture
def set_back(served: ServedCluster, tmp_path: Path) -> Iterator[Cluster]:
    """Its tables 2 and 3 are gone, as after the restore of a backup."""
    tables = Path(served.directory, TABLES_DIRECTORY)
    shutil.copytree(tables, tmp_path / "all")
    for number in (2, 3):
        (tables / f"{number}.json").unlink()
    yield served.cluster
    shutil.rmtree(tables)
    shutil.copytree(tmp_path / "all", tables)


def alarms(cluster: Cluster) -> list[tuple[str, str]]:
    found: dict[str, Any] = json.loads(amq("status", "--cluster", cluster.directory, "--json").output)
    return [(each["code"], each["store"]) for each in found["alarms"] if each["code"] == "CLUSTER_SET_BACK"]


def test_the_table_comes_from_the_journal_of_a_store(set_back: Cluster) -> None:
    directory = set_back.directory
    assert set_back.table().number == 1
    assert alarms(set_back) == [("CLUSTER_SET_BACK", "s1"), ("CLUSTER_SET_BACK", "s2")]
    refused = amq("place", "--cluster", directory, "orders", "s2", "--wait", 0.1)
    assert (refused.exit_code, "`amq cluster recover`" in refused.output) == (4, True)

    done = json.loads(amq("recover", "--cluster", directory, "--json").output)
    assert done == {"cluster": directory, "table": 3, "recovered_from": "s1"}
    assert (set_back.table().number, dict(set_back.table().placement.layout.rules)) == (3, {SPREAD: "spread"})
    assert alarms(set_back) == []
    again = amq("recover", "--cluster", directory)
    assert (again.exit_code, again.output) == (0, "nothing is missing: no store obeys a later table than 3\n")


def test_a_table_that_is_made_during_a_look_is_not_missing(set_back: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    first, whole = set_back.table(), Masters._look

    def look(masters: Masters, name: str, table: Any) -> StoreNow:
        found = whole(masters, name, table)
        if name == "s2":
            assert amq("recover", "--cluster", set_back.directory).exit_code == 0  # makes table 3
        return found

    monkeypatch.setattr(Masters, "_look", look)
    with closing(Masters(set_back)) as masters:
        assert [(each.obeys, each.lacks_table) for each in masters.look(first)] == [(3, 0), (3, 0)]


def test_a_store_that_came_after_the_backup(served: ServedCluster, set_back: Cluster, tmp_path: Path) -> None:
    """The table that the others obey has a store whose place only the lost tables said."""
    tables = Path(set_back.directory, TABLES_DIRECTORY)
    placement = set_back.table().placement
    (tables / "1.json").unlink()
    lone = Cluster.create(str(tmp_path / "lone"), {"s1": ""})  # a table of one store
    shutil.copy(Path(lone.directory, TABLES_DIRECTORY, "1.json"), tables / "1.json")
    assert [*set_back.table().stores] == ["s1"]

    done = amq("recover", "--cluster", set_back.directory)  # s2 is inside the cluster
    assert (done.exit_code, done.output) == (0, "table 3 is in the cluster again, from the journal of store s1\n")
    assert set_back.table().stores == {"s1": "", "s2": ""}
    assert set_back.table().placement.stores == placement.stores

    (tables / "3.json").unlink()
    elsewhere = tmp_path / "s2"
    shutil.move(served.cluster.own_place("s2"), elsewhere)
    try:
        unknown = amq("recover", "--cluster", set_back.directory)
        assert (unknown.exit_code, "say with --at s2=PATH where it is" in unknown.output) == (3, True)
        assert amq("recover", "--cluster", set_back.directory, "--at", f"s2={elsewhere}").exit_code == 0
        assert set_back.table().stores == {"s1": "", "s2": str(elsewhere)}
    finally:
        shutil.move(elsewhere, served.cluster.own_place("s2"))


def test_a_store_that_cannot_be_read_may_obey_a_newer_table(set_back: Cluster) -> None:
    journal = Path(set_back.own_place("s2"), "journal")
    journal.rename(journal.with_suffix(".away"))
    try:
        done = amq("recover", "--cluster", set_back.directory)
        assert (done.exit_code, "nothing was changed: store s2 cannot be read" in done.output) == (7, True)
        assert set_back.table().number == 1
    finally:
        journal.with_suffix(".away").rename(journal)


def test_a_store_of_another_cluster_says_nothing_of_this_one(served: ServedCluster, tmp_path: Path) -> None:
    other = Cluster.create(str(tmp_path / "c"), {"s1": ""})
    shutil.copytree(served.cluster.own_place("s1"), other.own_place("s1"), dirs_exist_ok=True)
    done = amq("recover", "--cluster", other.directory)
    assert (done.exit_code, "store s1 obeys the table of another cluster" in done.output) == (4, True)


@pytest.mark.parametrize("at", ["s2", "=x", "s2="])
def test_a_place_that_makes_no_sense(tmp_path: Path, at: str) -> None:
    made = Cluster.create(str(tmp_path / "c"), {"s1": ""})
    assert amq("recover", "--cluster", made.directory, "--at", at).exit_code == 2


def test_a_cluster_that_never_ran_lacks_nothing(tmp_path: Path) -> None:
    made = Cluster.create(str(tmp_path / "c"), {"s1": ""})
    done = amq("recover", "--cluster", made.directory)
    assert (done.exit_code, done.output) == (0, "nothing is missing: no store obeys a later table than 1\n")
