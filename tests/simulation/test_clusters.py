"""Clusters: in none of these worlds a promise is broken, and enough happened in them. Their mutants are hunted with all
others (`test_mutants`)."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from tests.sampling import thorough
from tests.simulation.cluster import NAME, ClusterWorld, spanning
from tests.simulation.cluster_database import IN_DATABASE
from tests.simulation.cluster_features import CLUSTER_FEATURES
from tests.simulation.cluster_moving import MOVES
from tests.simulation.cluster_rolling import ROLLING
from tests.simulation.faults import Fault
from tests.simulation.pool import report, run_seed

SEEDS = [1, 77100129, 2, 3, 4]  # `make test-deep` runs the first two
WANTED = {
    "confirmed": 1000,
    "acknowledged": 800,
    "homes lost": 60,
    "homes lost unnoticed": 20,
    "tables obeyed": 8,
    "parcels": 50,
}


class ShortWorld(ClusterWorld):
    """A few seconds of faults."""

    faults_s = 4.0


class SpanningWorld(ClusterWorld):
    """Transactions over two stores alone, and many kills."""

    faults_s = 8.0

    def _applications(self, rng: Random) -> list[Any]:
        return spanning(rng)


KILLS = ("kill", "kill_gateway", "cut_link")


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(1, 4))
def test_transactions_over_two_stores_are_committed_in_both_or_in_none(seed: int) -> None:
    result = SpanningWorld(seed, focus=KILLS).run()
    assert not result.violation, report(result)
    assert result.counts["confirmed"]


def test_a_cluster_keeps_its_promises_for_a_few_seconds() -> None:
    faults = [Fault(1.5, "cut_link", 1, 0.0, store=0), Fault(2.5, "kill_gateway", 0, 0.0, store=0)]
    result = ShortWorld(1, faults).run()
    assert not result.violation, report(result)
    assert result.counts["confirmed"]
    assert result.counts["homes lost"]


@pytest.mark.parametrize("seeds", [pytest.param(SEEDS[:2], marks=pytest.mark.deep), *thorough(SEEDS)], ids=len)
def test_clusters_keep_their_promises(seeds: list[int]) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        result = run_seed(seed, features=(NAME,))
        assert not result.violation, report(result)
        counts += result.counts
    wanted = {kind: least * len(seeds) // len(SEEDS) for kind, least in WANTED.items()}
    short = {kind: counts[kind] for kind, least in wanted.items() if counts[kind] < least}
    assert not short, f"too little happened: {short} of {counts}"


@pytest.mark.deep
def test_moves_keep_their_promises() -> None:
    """At seed 8 a move that came to a second store stood still for ever."""
    counts: Counter[str] = Counter()
    for seed in (4, 6, 8):
        result = run_seed(seed, features=(MOVES,))
        assert not result.violation, report(result)
        counts += result.counts
    wanted = {"move": 6, "parcels": 20, "tables obeyed": 25, "killed at _come": 1, "killed at _send": 1, "cancel": 1}
    short = {kind: counts[kind] for kind, least in wanted.items() if counts[kind] < least}
    assert not short, f"too little happened: {short} of {counts}"


@pytest.mark.deep
def test_what_a_store_does_for_clients_of_gateways_keeps_its_promises() -> None:
    result = run_seed(1, features=(NAME, *CLUSTER_FEATURES))
    assert not result.violation, report(result)
    missing = [kind for kind in ("for durable subscriptions", "leases") if not result.counts[kind]]
    assert not missing, f"too little happened: {missing} of {result.counts}"


@pytest.mark.deep
def test_nodes_whose_links_are_of_two_versions_keep_their_promises() -> None:
    """They are upgraded one after the other, and some go back."""
    result = run_seed(1, features=(NAME, ROLLING))
    assert not result.violation, report(result)
    wanted = {"confirmed": 500, "upgraded": 3, "taken back": 1, "versions refused": 50}
    short = {kind: result.counts[kind] for kind, least in wanted.items() if result.counts[kind] < least}
    assert not short, f"too little happened: {short} of {result.counts}"


@pytest.mark.deep
def test_a_cluster_in_a_database_keeps_its_promises() -> None:
    """Operators change the placement at the same time, and statements that write tables are struck."""
    counts: Counter[str] = Counter()
    for seed in (1, 2):
        result = ShortWorld(seed, features=(NAME, IN_DATABASE)).run()
        assert not result.violation, report(result)
        counts += result.counts
    wanted = {"confirmed": 200, "tables obeyed": 4, "placed": 1, "places refused": 1}
    short = {kind: counts[kind] for kind, least in wanted.items() if counts[kind] < least}
    assert not short, f"too little happened: {short} of {counts}"


@pytest.mark.deep
def test_clients_of_openwire_at_gateways_have_what_clients_of_a_broker_have() -> None:
    """In history 11 a message without receipt waits for room while its store is handed over."""
    other = ShortWorld(11, features=(NAME, "openwire")).run()
    assert not other.violation, report(other)
    result = ShortWorld(1, features=(NAME, "openwire")).run()
    assert not result.violation, report(result)
    wanted = {"JMS messages": 100, "JMS commits": 50, "JMS moves": 10, "JMS acknowledgements confirmed": 30}
    short = {kind: result.counts[kind] for kind, least in wanted.items() if result.counts[kind] < least}
    assert not short, f"too little happened: {short} of {result.counts}"
