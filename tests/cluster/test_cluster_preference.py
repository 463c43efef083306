"""Which node should serve which store: shares, order, and how little moves."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from amq.cluster.preference import preferences, priorities

names = st.text("abcdefghij0123456789", min_size=1, max_size=4)
stores_of_a_cluster = st.sets(names, min_size=1, max_size=12)
GOLDEN = {"s1": "cba", "s2": "bca", "s3": "abc", "s4": "cab", "s5": "cab", "s6": "acb"}
weights_of_nodes = st.dictionaries(names, st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0, 7.5]), max_size=6)


@given(stores_of_a_cluster, weights_of_nodes)
def test_each_store_has_all_nodes_in_some_order(stores: set[str], weights: dict[str, float]) -> None:
    found = preferences(stores, weights)
    assert set(found) == stores
    for order in found.values():
        assert sorted(order) == sorted(node for node, weight in weights.items() if weight)


@given(stores_of_a_cluster, weights_of_nodes)
def test_no_node_gets_more_or_less_than_its_share_rounded(stores: set[str], weights: dict[str, float]) -> None:
    total = sum(weights.values())
    found = Counter(order[0] for order in preferences(stores, weights).values() if order)
    if total and len(stores) > 1:
        for node, weight in weights.items():
            assert abs(found[node] - len(stores) * weight / total) < 1 + 1e-9


@given(stores_of_a_cluster, weights_of_nodes)
def test_nodes_that_look_at_different_times_in_different_order_agree(
    stores: set[str], weights: dict[str, float]
) -> None:
    turned = dict(reversed(weights.items()))
    assert preferences(sorted(stores), weights) == preferences(sorted(stores, reverse=True), turned)


@given(stores_of_a_cluster, weights_of_nodes)
def test_priorities_are_the_orders_of_preference(stores: set[str], weights: dict[str, float]) -> None:
    by_node = {node: priorities(stores, weights, node) for node in weights}
    for store, order in preferences(stores, weights).items():
        assert sorted(order, key=lambda node: -by_node[node][store]) == order
        assert len({by_node[node][store] for node in order}) == len(order)
        assert all(by_node[node][store] == 0 for node in weights if node not in order)


def test_the_stores_of_one_node_are_shared_among_all_others() -> None:
    stores = [f"s{number}" for number in range(1, 13)]
    for gone in "abcd":
        found = preferences(stores, dict.fromkeys("abcd", 1.0))
        heirs = Counter(order[1] for order in found.values() if order[0] == gone)
        assert sorted(heirs.values()) == [1, 1, 1], heirs


def test_a_node_that_joins_takes_its_share_and_moves_little_else() -> None:
    stores = [f"s{number}" for number in range(1, 61)]
    before = preferences(stores, dict.fromkeys("abcde", 1.0))
    after = preferences(stores, dict.fromkeys("abcdef", 1.0))
    moved = [store for store in stores if before[store][0] != after[store][0]]
    assert sum(after[store][0] == "f" for store in stores) == 10
    assert len(moved) <= 20, "more than half of what moved went from one old node to another"


def test_nodes_of_all_versions_compute_the_same() -> None:
    """Two nodes of other opinions would take a store from each other. These orders are those of version 0.2.0."""
    found = preferences(["s1", "s2", "s3", "s4", "s5", "s6"], {"a": 1.0, "b": 1.0, "c": 2.0})
    assert {store: "".join(order) for store, order in found.items()} == GOLDEN
