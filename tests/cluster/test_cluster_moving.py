"""A move of destinations with what they hold: its tables, and the step that each of them may be followed by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from amq.cli import cluster_moving, cluster_placing
from amq.cli.main import main
from amq.cluster import moving
from amq.cluster.directory import Cluster, ClusterNode, GatewaySeen, StoreTable, node_document
from amq.cluster.masters import Masters
from amq.cluster.placement import ALL_SLOTS, SLOTS, SPREAD, STEP_BYTES, MoveStep, Placement, even_slots, slot_of
from amq.cluster.placing import Await, StoreSeen, next_step
from amq.cluster.seeing import store_seen

STORES = ("s1", "s2", "s3")
TABLE = Placement.even(1, STORES)
NAMES = [f"queue://n{number}" for number in range(12)]


def everywhere(number: int, **of_s1: object) -> dict[str, StoreSeen]:
    return {name: StoreSeen(number, **(of_s1 if name == "s1" else {})) for name in STORES}  # type: ignore[arg-type]


def stepped(placement: Placement, stores: Mapping[str, StoreSeen]) -> Placement:
    found = next_step(placement, stores)
    assert isinstance(found, Placement)
    return Placement.from_json(found.number, found.to_json())


def owners(placement: Placement, name: str) -> set[str]:
    return {store for store in STORES if placement.is_home(store, name)}


@pytest.mark.parametrize("seed", range(5))
def test_no_two_neighbours_give_a_destination_to_two_stores(seed: int) -> None:
    random = Random(seed)
    turns = random.randrange(3)
    tables = [TABLE, TABLE.carried(random.choice(["*", "n1", ">"]), random.choice(STORES))]
    while tables[-1].before is not None:
        newest = tables[-1]
        if turns and newest.step is not None and not newest.step.returns and random.random() < 0.2:
            turns -= 1
            tables.append(newest.returning())
            continue
        due = {slot_of(name.removeprefix("queue://")): random.randrange(STEP_BYTES) for name in NAMES}
        assert newest.step is not None
        waiting = sorted((slot, size) for slot, size in due.items() if slot in newest.step.waiting)
        seen = everywhere(newest.number, due=tuple(waiting[:3]), is_cut=len(waiting) > 3)
        tables.append(stepped(newest, seen))
        for name in NAMES:
            assert len(owners(tables[-2], name) | owners(tables[-1], name)) <= 1, name
    assert {owners(tables[-1], name).pop() for name in NAMES} <= set(STORES)


def test_a_move_that_is_taken_back_ends_where_it_began() -> None:
    table = TABLE.carried(">", "s2")
    table = stepped(table, everywhere(2, due=((5, STEP_BYTES), (9, STEP_BYTES))))
    assert table.step == MoveStep(frozenset(), ALL_SLOTS - {9})
    table = table.returning()
    assert isinstance(next_step(table, everywhere(table.number, left=1)), Await), "what is moving arrives first"
    table = stepped(table, everywhere(table.number))
    assert table.step == MoveStep(moved=frozenset({9}))
    while table.before is not None:
        table = stepped(table, everywhere(table.number))
    assert [table.home_of(name) for name in NAMES] == [TABLE.home_of(name) for name in NAMES]


def test_a_step_waits_for_every_store_and_for_what_is_held() -> None:
    table = stepped(TABLE.carried("*", "s2"), everywhere(2))
    for seen in (
        {**everywhere(table.number), "s3": StoreSeen(table.number - 1)},
        everywhere(table.number, left=1),
        everywhere(table.number, held=("/queue/n1",)),
    ):
        assert isinstance(next_step(table, seen), Await)
    assert stepped(table, everywhere(table.number)).before is None


def test_a_step_takes_what_it_can_carry_and_leaves_what_is_bound() -> None:
    table = TABLE.carried("*", "s2")
    half = STEP_BYTES // 2
    table = stepped(table, everywhere(2, due=((1, half), (4, half), (7, 1), (8, 5)), busy=(8,), is_cut=True))
    assert table.step is not None
    assert table.step.moving == frozenset(range(7))
    table = stepped(table, everywhere(table.number, due=((7, 1), (8, 5)), busy=(8,)))
    assert table.step is not None
    assert table.step.moving == ALL_SLOTS - set(range(7)) - {8}
    table = stepped(table, everywhere(table.number, due=((8, 5),), busy=(8,)))
    late = next_step(table, everywhere(table.number, due=((8, 5),), busy=(8,)))
    assert late == Await(("s1",)), "a transaction is prepared there"


def test_what_leaves_comes_and_waits() -> None:
    name = next(each for each in NAMES if TABLE.home_of(each) == "s1")
    table = TABLE.carried("*", "s2")
    assert (table.home_of(name), table.waits("s1", name), table.is_moving(name)) == ("s1", True, False)
    moving = table.stepped(ALL_SLOTS)
    assert (moving.home_of(name), moving.leaves("s1", name), moving.is_moving(name)) == ("s2", True, True)
    assert (moving.comes("s2", name), moving.comes("s3", name), moving.waits("s1", name)) == (True, False, False)
    assert owners(moving, name) == set()
    settled = moving.settled()
    assert (settled.home_of(name), settled.comes("s2", name), owners(settled, name)) == ("s2", False, {"s2"})


def test_what_is_spread_comes_together() -> None:
    spread = TABLE.placed("n1", SPREAD).settled()
    moving = spread.carried("n1", "s2").stepped(ALL_SLOTS)
    assert [moving.leaves(store, "queue://n1") for store in STORES] == [True, False, True]


def test_a_table_of_a_move_that_is_damaged_is_refused() -> None:
    found = TABLE.carried("*", "s2").to_json()
    for step in ({"moved": [[0, SLOTS]], "moving": []}, {"moved": [[1, 2]], "moving": [[2, 2]]}, {}, 7):
        with pytest.raises(ValueError, match="damaged"):
            Placement.from_json(2, found | {"step": step})
    with pytest.raises(ValueError, match="goes from nowhere"):
        Placement.from_json(2, {key: value for key, value in found.items() if key != "before"})


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7])
def test_shares_are_even_and_few_slots_change(count: int) -> None:
    before = TABLE.layout.slots
    stores = [*STORES, "s4", "s5", "s6", "s7"][:count]
    slots = even_slots(before, stores)
    sizes = [slots.count(store) for store in stores]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == SLOTS
    changed = sum(old != new for old, new in zip(before, slots, strict=True))
    assert changed <= SLOTS - sum(min(before.count(store), SLOTS // count + 1) for store in stores) + count


# -- the commands ------------------------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> str:
    Cluster.create(str(tmp_path / "c"), dict.fromkeys(STORES, ""))
    return str(tmp_path / "c")


def amq(*words: object) -> Result:
    return CliRunner().invoke(main, ["cluster", *map(str, words)])


def facts(directory: str, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(amq("moves", "--cluster", directory, "--json", *words).output)
    return found


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> dict[str, StoreSeen]:
    """By store: what its master says, in place of a master."""
    said = everywhere(1)
    for module in (cluster_moving, cluster_placing, moving):
        monkeypatch.setattr(module, "store_seen", lambda found, name: obedient(found, said[name]))
    monkeypatch.setattr(cluster_moving, "MOVING_LOOK_S", 0.01)
    return said


def obedient(found: Cluster, seen: StoreSeen) -> StoreSeen:
    """No store obeys a table that is not there."""
    return replace(seen, number=min(seen.number, found.table().number))


def test_a_cluster_that_never_ran_moves_at_once(directory: str) -> None:
    done = amq("move", "--cluster", directory, "orders.>", "s2")
    assert (done.exit_code, done.stdout) == (0, "table 4: orders.> lives in s2\n")
    assert amq("move", "--cluster", directory, "orders.>", "s2").exit_code == 0, "it does so already"
    done = amq("add-store", "--cluster", directory, "s4", "--share")
    assert (done.exit_code, done.stdout.endswith("store s4 has its share of the slots\n")) == (0, True)
    slots = Cluster(directory).table().placement.layout.slots
    assert [slots.count(store) for store in (*STORES, "s4")] == [256, 256, 256, 256]
    assert facts(directory) == {"moving": False, "table": Cluster(directory).table().number}


def test_a_move_is_told_slowed_down_and_taken_back(directory: str, stores: dict[str, StoreSeen]) -> None:
    begun = amq("move", "--cluster", directory, "n1", "s2", "--wait", 0, "--rate", "20MiB", "--json")
    assert begun.exit_code == 7
    assert "goes on without this command" in begun.stderr
    assert "destinations are moving" in amq("place", "--cluster", directory, "n1", "s3").stderr
    stores |= everywhere(1, waits=("/queue/n1",))
    assert facts(directory)["waits_for"] == {"s1": ["/queue/n1"], "s2": [], "s3": []}
    stores |= everywhere(2, due=((3, 100),), due_bytes=100, bytes_a_second=10)
    now = facts(directory)
    assert (now["left_bytes"], now["eta_s"], now["rate"], now["waits_for"]) == (100, 10, 20 << 20, {})
    stores |= everywhere(
        2, due=((3, 90),), due_bytes=90, copying=True, to_copy=3, to_copy_bytes=30, copied=600_000, bytes_a_second=10
    )
    now = facts(directory)
    assert (now["copying"], now["copied_messages"], now["to_copy_messages"]) == (True, 600_000, 3)
    assert (now["copy_eta_s"], now["step_eta_s"], now["waits_for"]) == (3, 4, {})
    told = "copying: 0 KiB of 3 messages before the next step, about 3 s, for which clients will wait about 4 s"
    assert told in amq("moves", "--cluster", directory).stdout
    stores |= everywhere(2)
    stores["s1"] = StoreSeen(1, left=3, stuck="store s2 refuses /topic/n1: UNSUBSCRIBE it first")
    assert facts(directory)["waits_for"] == {"s1": ["store s2 refuses /topic/n1: UNSUBSCRIBE it first"]}
    stands = "; waits for s1: store s2 refuses /topic/n1: UNSUBSCRIBE it first\n"
    assert amq("moves", "--cluster", directory).stdout.endswith(stands)
    assert facts(directory, "--rate", "0")["rate"] is None
    assert facts(directory, "--cancel")["returns"] is True
    stores |= everywhere(9)
    amq("move", "--cluster", directory, "n1", "s2")
    while facts(directory)["moving"]:
        moving.advance(Cluster(directory), lambda name: obedient(Cluster(directory), stores[name]))
    assert Cluster(directory).table().placement.layout == TABLE.layout
    assert "moves" in amq("moves", "--cluster", directory).output
    assert amq("moves", "--cluster", directory, "--rate", "x").exit_code == 0, "nothing moves"


@pytest.mark.parametrize("looks", [moving, cluster_moving], ids=lambda module: module.__name__)
def test_a_store_may_leave_between_the_table_and_the_look_at_it(
    directory: str, monkeypatch: pytest.MonkeyPatch, looks: ModuleType
) -> None:
    """A node makes the last tables of a removal while the command that began it looks at the stores."""
    tables = []

    def late_look(found: Cluster, name: str) -> StoreSeen:
        while found.table().placement.step is not None:
            tables.append(moving.advance(found, lambda _: StoreSeen(is_unused=True)).number)
        return store_seen(found, name)

    monkeypatch.setattr(looks, "store_seen", late_look)
    done = amq("remove-store", "--cluster", directory, "s3")
    assert (done.exit_code, "store s3 is none of the cluster any more" in done.stdout) == (0, True)
    assert tables
    assert [*Cluster(directory).table().stores] == ["s1", "s2"]
    assert amq("remove-store", "--cluster", directory, "s3").stderr.endswith("it has s1, s2 [STORE_UNKNOWN]\n")


def test_a_change_ends_when_stores_and_gateways_obey_it(directory: str, stores: dict[str, StoreSeen]) -> None:
    seat = Cluster(directory).join("a", 1.0, "host7", 4711)

    def place(store: str, gateway: int) -> Result:
        node = ClusterNode("a", True, gateways=(GatewaySeen(7, table=gateway), GatewaySeen(0, table=1)))
        seat.write(node_document(node))
        return amq("place", "--cluster", directory, "n1", store, "--wait", "0.3")

    with closing(seat):
        stores |= everywhere(2)
        late = place("s2", 3)
        assert (late.exit_code, "(table 3), but s1, s2, s3 did not take it over" in late.stderr) == (7, True)
        stores |= everywhere(3)
        late = place("s2", 2)
        assert (late.exit_code, "but a gateway of node a did not take it over" in late.stderr) == (7, True)
        assert place("s2", 3).exit_code == 0
        assert place("s2", 0).exit_code == 0, "an older version does not say"


@pytest.mark.parametrize("words", [("--cancel",), ("--rate", "1MiB"), ("--cancel", "--rate", "1MiB")], ids=" ".join)
def test_a_move_is_changed_while_a_node_makes_its_next_table(
    directory: str, stores: dict[str, StoreSeen], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Between the newest table and the one that the command makes of it."""
    stores |= everywhere(9)
    assert amq("move", "--cluster", directory, "n1", "s2", "--wait", "0").exit_code == 7
    place, steps = Cluster.place, ["the node"]

    def late_place(found: Cluster, placement: Placement) -> StoreTable:
        if steps:
            steps.pop()
            moving.advance(found, lambda name: obedient(found, stores[name]))
        return place(found, placement)

    monkeypatch.setattr(Cluster, "place", late_place)
    done = amq("moves", "--cluster", directory, *words)
    step = Cluster(directory).table().placement.step
    assert (done.exit_code, steps) == (0, []), done.output
    assert step is not None
    assert (step.returns, step.rate_bytes) == ("--cancel" in words, 1 << 20 if "--rate" in words else 0)


def test_the_status_of_a_cluster_is_that_of_one_table(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node makes the last tables of a removal while the command looks."""
    newest = Masters.table

    def then_removed(masters: Masters) -> StoreTable:
        found = newest(masters)
        moving.remove_store(masters.cluster, "s3", seen=lambda _: StoreSeen(1))
        while masters.cluster.table().placement.step is not None:
            moving.advance(masters.cluster, lambda _: StoreSeen(is_unused=True))
        return found

    monkeypatch.setattr(Masters, "table", then_removed)
    done = amq("status", "--cluster", directory, "--json")
    facts = json.loads(done.stdout)
    assert [each["store"] for each in facts["stores"]] == ["s1", "s2", "s3"]
    assert (facts["table"], facts["moving"]) == (1, False)
    monkeypatch.undo()
    facts = json.loads(amq("status", "--cluster", directory, "--json").stdout)
    assert [each["store"] for each in facts["stores"]] == ["s1", "s2"]
