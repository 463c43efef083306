"""The protocol of a replicated store: no promise is broken in these worlds, each hole in it is seen, and one seed is
one history."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sampling import sampled, thorough
from tests.simulation.pool import report, run_seed
from tests.simulation.replica_mutants import CAUGHT_AT, FOCUS, MUTANTS
from tests.simulation.replicas import NAME

QUICK_SEEDS = range(1, 5)
DEEP_SEEDS = range(5, 80)
THOROUGH_SEEDS = range(80, 230)
WANTED = {  # of 150 seeds
    "terms": 250,
    "confirmed": 40_000,
    "smaller": 150,
    "other members": 500,
    "pieces": 1_000,
    "masters deposed": 80,
    "disks lost": 40,
    "rival": 100,
    "away": 100,
    "kill when promised": 8,
    "kill when sealed": 6,
    "kill when regrouped": 5,
}


def test_a_replicated_store_keeps_its_promises() -> None:
    results = [run_seed(seed, features=(NAME,)) for seed in QUICK_SEEDS]
    for result in results:
        assert not result.violation, report(result)
    assert run_seed(QUICK_SEEDS[0], features=(NAME,)).digest == results[0].digest


@pytest.mark.parametrize("name", sampled(CAUGHT_AT, 5))
def test_a_hole_in_the_protocol_is_seen(name: str) -> None:
    result = run_seed(CAUGHT_AT[name], name, FOCUS[name], (NAME,))
    assert result.violation
    assert not run_seed(CAUGHT_AT[name], "", FOCUS[name], (NAME,)).violation


def test_each_hole_has_a_seed() -> None:
    assert set(CAUGHT_AT) == set(MUTANTS)


@pytest.mark.parametrize(
    "seeds", [pytest.param(DEEP_SEEDS, marks=pytest.mark.deep), *thorough(THOROUGH_SEEDS)], ids=len
)
def test_no_promise_is_broken_in_many_worlds(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        result = run_seed(seed, features=(NAME,))
        assert not result.violation, report(result)
        counts += result.counts
    wanted = {kind: least * len(seeds) // 150 for kind, least in WANTED.items()}
    short = {kind: counts[kind] for kind, least in wanted.items() if counts[kind] < least}
    assert not short, f"too little happened: {short} of {counts}"
