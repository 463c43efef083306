"""`amq cluster place` and `where`, and the steps of a change: what the stores say decides."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from amq.cli import cluster as cluster_commands
from amq.cli import cluster_moving, cluster_placing
from amq.cli.main import main
from amq.cluster.directory import Cluster, StoreTable
from amq.cluster.placement import Placement
from amq.cluster.placing import Await, Grant, Older, Revert, StoreSeen, decide


def amq(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    assert amq("cluster", "init", "--cluster", tmp_path / "c", "--stores", 3).exit_code == 0
    return tmp_path / "c"


@pytest.fixture
def place(directory: Path) -> Callable[..., Result]:
    return lambda *words: amq("cluster", "place", "--cluster", directory, *words)


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> dict[str, StoreSeen]:
    """By store: what its master says, in place of a master. The number 99 = it obeys every table that there is."""
    said = {f"s{number}": StoreSeen(1) for number in (1, 2, 3)}

    def seen(found: Cluster, name: str) -> StoreSeen:
        return said[name] if said[name].number < 99 else replace(said[name], number=found.table().number)

    monkeypatch.setattr(cluster_placing, "store_seen", seen)
    return said


def where(directory: Path, *names: str) -> list[dict[str, Any]]:
    done = amq("cluster", "where", "--cluster", directory, *names, "--json")
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.output)["destinations"]
    return found


def test_a_cluster_that_never_ran_is_placed_at_once(directory: Path, place: Callable[..., Result]) -> None:
    assert place("orders.>", "s2").output == "table 3: orders.> lives in s2\n"
    assert place("clicks", "spread").output == "table 5: clicks lives in every store\n"
    assert place("clicks", "spread").output == "table 5: clicks lives in every store\n"
    assert [each["home"] for each in where(directory, "orders.eu", "queue://DLQ.orders.eu", "clicks")] == [
        "s2",
        "s2",
        "spread",
    ]
    assert place("--remove", "clicks").output == "table 7: clicks has no rule\n"
    (found,) = where(directory, "clicks")
    assert (found["rule"], found["key"], found["slot"]) == (None, "clicks", 188)
    assert "orders.>" in amq("cluster", "where", "--cluster", directory, "orders.eu").output


def test_status_shows_the_table(directory: Path, place: Callable[..., Result]) -> None:
    place("orders.>", "s2")
    assert amq("cluster", "add-store", "--cluster", directory, "s4").output.endswith("PATTERN s4\n")
    found = json.loads(amq("cluster", "status", "--cluster", directory, "--json").output)
    assert (found["table"], found["moving"], found["rules"]) == (4, False, [{"pattern": "orders.>", "home": "s2"}])
    assert [store["slots"] for store in found["stores"]] == [342, 341, 341, 0]
    assert "table 4 of the placement" in amq("cluster", "status", "--cluster", directory).output


def test_the_stores_must_have_taken_the_first_table_over(
    directory: Path, place: Callable[..., Result], stores: dict[str, StoreSeen]
) -> None:
    stores["s3"] = StoreSeen()
    done = place("a", "s2", "--wait", 0.1)
    assert (done.exit_code, "s3 did not take table 1 over in time" in done.output) == (7, True)
    assert Cluster(str(directory)).table().number == 1


def test_a_store_that_does_not_take_it_over_in_time_takes_the_change_back(
    directory: Path, place: Callable[..., Result], stores: dict[str, StoreSeen]
) -> None:
    stores["s1"] = stores["s2"] = StoreSeen(99)
    done = place("a", "s2", "--wait", 0.1)
    assert (done.exit_code, "s3 did not take table 2 over in time" in done.output) == (7, True)
    found = Cluster(str(directory)).table().placement
    assert (found.number, found.before, dict(found.layout.rules)) == (3, None, {})


@pytest.mark.parametrize(
    "words",
    [("place", "a", "s2"), ("move", "a", "s2"), ("remove-store", "s3"), ("add-store", "s4"), ("moves", "--cancel")],
)
def test_no_table_follows_one_that_is_older_than_what_stores_obey(
    directory: Path,
    stores: dict[str, StoreSeen],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    """A third change would give table 4 a second meaning, and a destination two homes."""
    stores["s2"] = StoreSeen(3)
    for module in (cluster_commands, cluster_moving):
        monkeypatch.setattr(module, "WAIT_S", 0.1)
    wait = ("--wait", "0.1") if words[0] == "place" else ()
    done = amq("cluster", words[0], "--cluster", directory, *words[1:], *wait)
    assert (done.exit_code, "[CLUSTER_SET_BACK]" in done.output) == (4, True), done.output
    assert "store s2 obeys table 3, and the newest one of the cluster is 1" in done.output
    assert Cluster(str(directory)).table().number == 1


def test_a_change_that_is_under_way_is_not_taken_back_by_an_older_table(
    directory: Path, place: Callable[..., Result], stores: dict[str, StoreSeen]
) -> None:
    cluster = Cluster(str(directory))
    cluster.place(cluster.table().placement.placed("a", "s2"))
    stores["s1"] = StoreSeen(5)
    assert place("b", "s1", "--wait", 0.1).exit_code == 4
    assert cluster.table().number == 2


def test_a_host_may_see_a_table_later_than_stores_do(
    directory: Path, place: Callable[..., Result], stores: dict[str, StoreSeen], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(str(directory))
    after = cluster.table().placement.placed("a", "s2")
    stores.update({name: StoreSeen(2) for name in stores})

    def see(_: float) -> None:
        if cluster.table().number == 1:
            cluster.place(after)
            stores.update({name: StoreSeen(99) for name in stores})

    monkeypatch.setattr(cluster_placing.time, "sleep", see)
    done = place("b", "s1")
    assert "waiting until this host sees the table that store s1 obeys" in done.output
    assert "table 5: b lives in s1" in done.output
    assert dict(cluster.table().placement.layout.rules) == {"a": "s2", "b": "s1"}


def test_what_would_be_stranded_is_named(
    directory: Path, place: Callable[..., Result], stores: dict[str, StoreSeen]
) -> None:
    stores["s1"] = StoreSeen(1, ("/queue/a",), refused=2)
    done = place("a", "s2")
    assert (done.exit_code, "store s1 holds /queue/a. Consume or move them first" in done.output) == (7, True)
    assert not Cluster(str(directory)).table().placement.layout.rules


def test_ids_that_a_store_remembers_move_first(
    directory: Path, place: Callable[..., Result], stores: dict[str, StoreSeen]
) -> None:
    stores.update({name: StoreSeen(99) for name in stores})
    stores["s1"] = StoreSeen(99, remembers=True)
    assert place("a", "s2").output == "table 4: a lives in s2\n"
    stores["s1"] = StoreSeen(99, remembers=True, left=1)
    done = place("b", "s2", "--wait", 0.1)
    assert (done.exit_code, "have not arrived in time (table 6)" in done.output) == (7, True)
    assert Cluster(str(directory)).table().placement.step is not None, "the nodes go on"


def test_a_change_that_was_left_halfway_is_finished_first(
    directory: Path, place: Callable[..., Result], stores: dict[str, StoreSeen]
) -> None:
    cluster = Cluster(str(directory))
    cluster.place(cluster.table().placement.placed("a", "s2"))
    stores.update({name: StoreSeen(99) for name in stores})
    assert place("b", "s1").output == "table 5: b lives in s1\n"
    assert dict(cluster.table().placement.layout.rules) == {"a": "s2", "b": "s1"}


@pytest.mark.parametrize("remembers", [False, True])
def test_two_commands_carry_one_change_through(
    place: Callable[..., Result], stores: dict[str, StoreSeen], monkeypatch: pytest.MonkeyPatch, remembers: bool
) -> None:
    """The other one makes the next table between the look at the stores and the table that this one makes of it."""
    stores.update({name: StoreSeen(99, remembers=remembers) for name in stores})
    wanted, others = Cluster.place, [Cluster.place]

    def late_place(found: Cluster, placement: Placement) -> StoreTable:
        if others and placement.number == 3:
            others.pop()(found, placement)
        return wanted(found, placement)

    monkeypatch.setattr(Cluster, "place", late_place)
    assert place("a", "s2").output == f"table {4 if remembers else 3}: a lives in s2\n"
    assert not others


@pytest.mark.parametrize("words", [("a",), ("a", "s1", "--remove"), ("a", "s1", "--force")])
def test_what_makes_no_sense_is_refused(place: Callable[..., Result], words: tuple[str, ...]) -> None:
    assert place(*words).exit_code == 2


def test_the_options_by_which_names_are_read_belong_to_the_cluster(tmp_path: Path) -> None:
    made = amq("cluster", "init", "--cluster", tmp_path / "c", "-o", "deadLetterPrefix=dead.")
    assert made.exit_code == 0
    assert where(tmp_path / "c", "dead.a")[0]["key"] == "a"
    done = amq("start", "--cluster", tmp_path / "c", "--name", "a", "--transport", "auto://127.0.0.1:0")
    assert done.exit_code == 3
    assert "deadLetterPrefix='DLQ.': the cluster was made with 'dead.'" in done.output
    assert amq("cluster", "init", "--cluster", tmp_path / "d", "-o", "storeLimit=1").exit_code == 2


MOVING = Placement.even(1, ["a", "b"]).placed("x", "a")


@pytest.mark.parametrize(
    ("seen", "step"),
    [
        ([StoreSeen(2), StoreSeen(2)], Grant()),
        ([StoreSeen(2), StoreSeen(3)], Older(("b",))),
        ([StoreSeen(2, ("x",)), StoreSeen(3)], Older(("b",))),
        ([StoreSeen(2), StoreSeen(is_unused=True)], Grant()),
        ([StoreSeen(2), StoreSeen(1)], Await(("b",))),
        ([StoreSeen(), StoreSeen(1)], Await(("a", "b"))),
        ([StoreSeen(2, ("x",)), StoreSeen(1)], Revert({"a": ("x",)})),
        ([StoreSeen(1, ("x",), refused=2), StoreSeen(1)], Revert({"a": ("x",)})),
        ([StoreSeen(1, ("x",)), StoreSeen(1)], Await(("a", "b"))),  # since before this change
        ([StoreSeen(1, ("x",), refused=1), StoreSeen(2)], Await(("a",))),
    ],
)
def test_what_the_stores_say_decides(seen: list[StoreSeen], step: object) -> None:
    assert decide(MOVING, dict(zip("ab", seen, strict=True))) == step
