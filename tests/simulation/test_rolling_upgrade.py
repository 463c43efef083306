"""Groups with brokers of 0.1 and of today: no promise is broken while they are upgraded, and both get their turn."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sampling import only
from tests.simulation.pool import report, run_seed
from tests.simulation.world import Result

FEATURES = ("upgrade",)
QUICK_SEEDS = (3, 4)
DEEP_SEEDS = range(5, 9)
THOROUGH_SEEDS = range(5, 18)  # `python -m tests.simulation --features upgrade` goes on without an end
WANTED = {
    "epochs of 0.1": 17,
    "epochs of today": 22,
    "masters of 0.1": 15,
    "refused": 8,
    "installed": 30,
    "confirmed": 2_200,
    "locks lost": 8,
    "checkpoints read": 18,
}


@pytest.mark.parametrize("seed", only(QUICK_SEEDS, 3))
def test_a_group_is_upgraded(seed: int) -> None:
    counts = _kept(run_seed(seed, features=FEATURES))
    assert counts["epochs of 0.1"]
    assert counts["epochs of today"]


@pytest.mark.deep
def test_no_promise_is_broken_while_groups_are_upgraded() -> None:
    _explore(DEEP_SEEDS, {kind: least // 6 for kind, least in WANTED.items()})


@pytest.mark.thorough
def test_no_promise_is_broken_while_more_groups_are_upgraded() -> None:
    _explore(THOROUGH_SEEDS, WANTED)


def _explore(seeds: range, wanted: dict[str, int]) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts += _kept(run_seed(seed, features=FEATURES))
    short = {kind: counts[kind] for kind, least in wanted.items() if counts[kind] < least}
    assert not short, f"too little happened: {short} of {counts}"


def _kept(result: Result) -> Counter[str]:
    assert not result.violation, report(result)
    return result.counts
