"""`amq cluster import-store`: a lone group's store becomes one of a cluster, and keeps what it holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import amq as client
from amq.cli.main import main
from amq.cluster.adopting import RULES_FOR_ONE, adopting_rules
from amq.cluster.directory import Cluster
from amq.cluster.placement import RULES_MAX, Placement
from amq.core.errors import ConfigError
from amq.journal.format import segment_name
from amq.journal.records import ObeyedTable, Subscribed
from amq.store.files.vfs import SystemVfs
from amq.store.open import store_behind
from tests.cluster.nodes import Nodes, each_as_it_should_be
from tests.patience import DEADLINE_S
from tests.written_store import write_store

TWO = Placement.even(7, ["s1", "s2"])
DURABLE = {"client_id": "c", "name": "s", "selector": "", "message_id_prefix": "x", "no_local": False}


def amq(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def import_store(cluster: Cluster, store: Path, *words: str) -> Result:
    return amq("cluster", "import-store", "--cluster", cluster.directory, store, *words)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster.create(str(tmp_path / "c"), {"s1": "", "s2": ""})


# -- rules -------------------------------------------------------------------------------------------------------------


def test_each_destination_gets_a_rule_while_they_are_few() -> None:
    assert adopting_rules(TWO, "old", ["a", "b.c", "{eu}"], {"b": "s1", "b.d": "s2"}) == dict.fromkeys(
        ["a", "b.c", "{eu}"], "old"
    )


def test_of_many_those_that_begin_alike_are_gathered_and_none_of_another_store() -> None:
    keys = [f"orders.{region}.{number}" for region in ("eu", "us") for number in range(5000)]
    assert adopting_rules(TWO, "old", [*keys, "a"], {}) == {"a": "old", "orders.>": "old"}
    found = adopting_rules(TWO, "old", [*keys, "a"], {"orders.mars.1": "s1"})
    assert found == {"a": "old", "orders.eu.>": "old", "orders.us.>": "old"}


def test_a_store_of_many_names_without_a_beginning_is_the_home_of_all_the_rest() -> None:
    """What other stores hold by its slot keeps its home by rules."""
    keys = [f"q{number}" for number in range(10_000)]
    assert adopting_rules(TWO, "old", keys, {}) == {">": "old"}
    placed = TWO.placed("bar.>", "s2").settled()
    found = adopting_rules(placed, "old", keys, {"foo": "s1", "bar.x": "s2"})
    assert found == {">": "old", "foo": "s1"}
    after = placed.adopting("old", found).settled()
    assert [after.home_of(f"queue://{name}") for name in ("q17", "new", "foo", "bar.y")] == ["old", "old", "s1", "s2"]
    with pytest.raises(ConfigError, match="more destinations than rules"):
        adopting_rules(TWO, "old", keys, {f"p{number}": "s1" for number in range(RULES_MAX)})


def test_a_name_that_no_rule_can_say_goes_with_its_family() -> None:
    """An empty word, or a star in a name."""
    assert adopting_rules(TWO, "old", ["a..b", "c.*"], {}) == {"a.>": "old", "c.>": "old"}
    assert adopting_rules(TWO, "old", ["x y"], {}) == {">": "old"}


def test_a_rule_of_the_cluster_counts_where_it_says_so_and_is_refused_where_it_says_another_store() -> None:
    placed = TWO.placed("wide", "spread").settled().placed("q.>", "s1").settled().placed("taken", "s2").settled()
    assert adopting_rules(placed, "old", ["wide"], {}) == {}
    assert adopting_rules(placed, "old", ["q.1"], {}) == {"q.1": "old"}
    with pytest.raises(ConfigError, match=r"place taken in other stores: .*--remove"):
        adopting_rules(placed, "old", ["taken", "a"], {})


def test_rules_have_a_bound() -> None:
    keys = [f"f{number}.{each}" for number in range(RULES_FOR_ONE + 1) for each in range(2)]
    assert adopting_rules(TWO, "old", keys, {}) == {">": "old"}
    assert len(adopting_rules(TWO, "old", keys[4:], {})) <= RULES_FOR_ONE


def test_while_a_store_joins_what_it_holds_has_no_home() -> None:
    joining = TWO.adopting("old", {"a": "old"})
    assert joining.stores == TWO.stores
    assert not any(joining.is_home(store, "queue://a") for store in TWO.stores)
    assert joining.is_home("s1", "queue://b") is TWO.is_home("s1", "queue://b")
    assert Placement.from_json(8, joining.to_json()) == joining
    after = joining.settled()
    assert (after.stores, after.joining, after.is_home("old", "queue://a")) == ((*TWO.stores, "old"), "", True)
    back = joining.reverted()
    assert (back.stores, back.joining, back.layout, back.before) == (TWO.stores, "", TWO.layout, None)
    for text in ("nowhere", 5):
        with pytest.raises(ValueError, match="damaged"):
            Placement.from_json(8, {**joining.to_json(), "joining": text})


# -- the command -------------------------------------------------------------------------------------------------------


def test_what_lives_in_a_store_keeps_its_home(cluster: Cluster, tmp_path: Path) -> None:
    """Messages, durable subscriptions, retained ones, and what waits for later; not the broker's own destinations."""
    names = ["queue://orders", "queue://DLQ.orders", "retained://topic://news", "schedule://queue.later"]
    durable = Subscribed("subscription://c:s:1", {**DURABLE, "topics": ["topic://prices", "topic://p.>"]})
    store = write_store(tmp_path / "old", [*names, "queue://ActiveMQ.DLQ", "temp-queue://1-1.x"], durable)
    before = cluster.table()
    dry = import_store(cluster, store, "--dry-run", "--json")
    assert dry.exit_code == 0, dry.output
    assert cluster.table() == before
    rules = dict.fromkeys(["later", "news", "orders", "prices"], "s3")
    assert json.loads(dry.stdout) == {
        "cluster": cluster.directory,
        "store": "s3",
        "at": str(store),
        "destinations": 6,
        "rules": [list(rule) for rule in rules.items()],
        "imported": False,
    }
    done = import_store(cluster, store)
    assert done.exit_code == 0, done.output
    assert "amq start --cluster" in done.output
    table = cluster.table()
    assert (list(table.stores), cluster.location("s3")) == (["s1", "s2", "s3"], str(store))
    assert (table.placement.layout.rules, table.placement.before) == (rules, None)
    again = import_store(cluster, store, "--json")
    assert (again.exit_code, json.loads(again.stdout)["store"]) == (0, "s3"), "it is done"
    assert cluster.table() == table


def test_a_second_store_may_come_before_any_node_has_started(cluster: Cluster, tmp_path: Path) -> None:
    for name in ("one", "two"):
        done = import_store(cluster, write_store(tmp_path / name, [f"queue://{name}"]), "--name", name)
        assert done.exit_code == 0, done.output
    assert cluster.table().placement.layout.rules == {"one": "one", "two": "two"}


def test_names_that_another_store_has_are_refused_with_a_list(cluster: Cluster, tmp_path: Path) -> None:
    assert import_store(cluster, write_store(tmp_path / "one", ["queue://a", "topic://b", "queue://c"])).exit_code == 0
    before = cluster.table()
    refused = import_store(cluster, write_store(tmp_path / "two", ["queue://DLQ.a", "queue://b", "queue://d"]))
    assert refused.exit_code == 7
    assert "2 destinations would have two homes: /queue/DLQ.a (store s3), /queue/b (store s3)" in refused.output
    assert "amq journal export" in refused.output
    assert cluster.table() == before


def test_what_cannot_be_imported_is_one_line_with_the_cure(cluster: Cluster, tmp_path: Path) -> None:
    store = write_store(tmp_path / "old", ["queue://a"])
    obeyed = ObeyedTable("another", "s9", 3, Placement.even(3, ["s9"]).to_json())
    member = write_store(tmp_path / "member", ["queue://a"], obeyed)
    for words, code, told in (
        ((tmp_path / "nothing",), 4, "amq start"),
        ((store, "--name", "s1"), 3, "give --name"),
        ((store, "--name", "a/b"), 3, "not a name"),
        ((member,), 4, "is a store of cluster another"),
    ):
        done = import_store(cluster, *words)  # type: ignore[arg-type]
        assert (done.exit_code, told in done.output) == (code, True), f"{words}: {done.output}"
    with open(store / "journal" / segment_name(1, 1), "r+b") as segment:
        segment.seek(60)
        segment.write(b"\xff\xff")
    assert import_store(cluster, store).exit_code == 4
    assert cluster.table().number == 1


def test_a_store_that_a_broker_has_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    place = write_store(tmp_path / "old", ["queue://a"])
    store = store_behind(SystemVfs(), str(place))
    store.make()
    seat = store.board.take("west")
    assert import_store(cluster, place, "--dry-run").exit_code == 0, "while the group serves"
    refused = import_store(cluster, place)
    assert (refused.exit_code, "west" in refused.output, "Stop them" in refused.output) == (5, True, True)
    seat.close()
    assert store.election.try_acquire(lambda: False)
    refused = import_store(cluster, place)
    assert (refused.exit_code, "is locked by another process" in refused.output) == (5, True)
    store.election.let_go()
    assert import_store(cluster, place).exit_code == 0


class Killed(BaseException):
    """kill -9: nothing that handles errors sees it."""


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("step", [1, 2])
def test_a_command_that_is_killed_is_repeated(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, written: bool
) -> None:
    """Before and after each of the two tables. The store may have got more names meanwhile."""
    store = write_store(tmp_path / "old", ["queue://a"])
    place, calls = Cluster.place, iter(range(1, 99))

    def until_killed(self: Cluster, *words: Any) -> Any:
        last = next(calls) == step
        if last and not written:
            raise Killed
        table = place(self, *words)
        if last:
            raise Killed
        return table

    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "place", until_killed)
        with pytest.raises(Killed):
            CliRunner().invoke(
                main, ["cluster", "import-store", "--cluster", cluster.directory, str(store)], catch_exceptions=False
            )
    table = cluster.table()
    assert list(table.stores) == ["s1", "s2", "s3"] if (step, written) == (2, True) else ["s1", "s2"]
    if not (step == 2 and written):
        write_store(store, ["queue://a", "queue://b"])
    done = import_store(cluster, store)
    assert done.exit_code == 0, done.output
    table = cluster.table()
    assert list(table.stores) == ["s1", "s2", "s3"]
    assert table.placement.before is None
    names = ["a"] if (step, written) == (2, True) else ["a", "b"]
    assert table.placement.layout.rules == dict.fromkeys(names, "s3")


def test_an_import_that_was_killed_is_in_no_change_that_comes_after_it(cluster: Cluster, tmp_path: Path) -> None:
    before = cluster.table().placement
    place = str(write_store(tmp_path / "old", ["queue://a"]))
    cluster.place(before.adopting("old", {"a": "old"}), {"old": place})
    assert list(Cluster(cluster.directory).preferences()) == ["s1", "s2"], "nobody serves it"
    assert amq("cluster", "place", "--cluster", cluster.directory, "b", "s1").exit_code == 0
    table = cluster.table()
    assert (list(table.locations), table.placement.layout.rules) == (["s1", "s2"], {"b": "s1"})


@pytest.mark.deep
def test_nodes_that_run_serve_an_imported_store(tmp_path: Path) -> None:
    store = write_store(tmp_path / "old", ["queue://old.1", "queue://old.2"])
    nodes = Nodes(tmp_path, 2)
    try:
        nodes.nodes["a"].start()
        nodes.until(each_as_it_should_be)
        port = nodes.nodes["a"].port
        with client.connect(f"failover:(stomp://127.0.0.1:{port})") as connection:
            for number in range(8):
                connection.session().producer(f"/queue/new.{number}").send("new")
            done = import_store(Cluster(nodes.cluster), store, "--name", "old")
            assert done.exit_code == 0, done.output
            found = nodes.until(lambda found: len(found["stores"]) == 3 and each_as_it_should_be(found))
            assert {rule["pattern"] for rule in found["rules"]} == {"old.1", "old.2"}
            for name in ("old.1", "old.2", *(f"new.{number}" for number in range(8))):
                consumer = connection.session().consumer(f"/queue/{name}")
                message = consumer.receive(DEADLINE_S)
                assert message is not None
                assert message.text == (f"queue://{name}" if name.startswith("old") else "new")
        nodes.place("fresh", "old").check_returncode()
        assert nodes.nodes["a"].stop() == 0
    finally:
        nodes.kill()
