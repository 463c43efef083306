"""Groups whose store is in a database: no promise is broken in them, whatever happens to their statements."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sampling import thorough
from tests.simulation.database import NAME
from tests.simulation.pool import report, run_seed
from tests.simulation.world import Result

QUICK_SEEDS = (21,)  # a failover that loses commits
DEEP_SEEDS = (19, 20, 22, 23, 25)  # the last: one that loses none
THOROUGH_SEEDS = range(9, 26)  # `python -m tests.simulation` goes on without an end
OTHERS = ("two-phase", "durable", "leases", "successions")
WANTED = {
    "epochs": 55,
    "confirmed": 4_000,
    "locks lost": 12,
    "checkpoints read": 50,
    "trims": 350,
    "failovers": 2,
    "failovers that lost commits": 1,
    "statement cancel": 1,
    "statement lose": 3,
    "statement late_and_lose": 1,
    "statement pause_and_lose": 1,
    "crash_server": 1,
    "restart_server": 6,
}


@pytest.mark.parametrize("seed", QUICK_SEEDS)
def test_a_group_on_a_database_keeps_its_promises(seed: int) -> None:
    counts = _kept(run_seed(seed, features=(NAME,)))
    assert counts["failovers"]


@pytest.mark.deep
def test_no_promise_is_broken_on_a_database() -> None:
    _explore(DEEP_SEEDS, {kind: least // 4 for kind, least in WANTED.items()})


@pytest.mark.thorough
def test_no_promise_is_broken_in_more_worlds_with_a_database() -> None:
    _explore(THOROUGH_SEEDS, WANTED)


def _explore(seeds: range, wanted: dict[str, int]) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts += _kept(run_seed(seed, features=(NAME,)))
    short = {kind: counts[kind] for kind, least in wanted.items() if counts[kind] < least}
    assert not short, f"too little happened: {short} of {counts}"


@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.deep), *thorough(2, 3)])
def test_features_keep_their_promises_on_a_database(seed: int) -> None:
    _kept(run_seed(seed, features=(NAME, *OTHERS)))


def _kept(result: Result) -> Counter[str]:
    assert not result.violation, report(result)
    return result.counts
