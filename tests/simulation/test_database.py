"""Groups whose store is in a database: no promise is broken in them, whatever happens to their statements."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.database import NAME
from tests.simulation.pool import report, run_seed, run_seeds
from tests.simulation.world import Result

QUICK_SEEDS = (21, 25)  # a failover that loses commits, and one that loses none
DEEP_SEEDS = range(9, 26)  # `python -m tests.simulation` goes on without an end
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
    counts: Counter[str] = Counter()
    for result in run_seeds(DEEP_SEEDS, features=(NAME,)):
        counts += _kept(result)
    short = {kind: counts[kind] for kind, least in WANTED.items() if counts[kind] < least}
    assert not short, f"too little happened: {short} of {counts}"


@pytest.mark.deep
def test_features_keep_their_promises_on_a_database() -> None:
    for result in run_seeds(range(1, 4), features=(NAME, *OTHERS)):
        _kept(result)


def _kept(result: Result) -> Counter[str]:
    assert not result.violation, report(result)
    return result.counts
