"""Worlds with each feature: no promise is broken in them, and the feature is used."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.pool import report, run_seed
from tests.simulation.swarm import FEATURES

SEEDS = (1, 2)
MORE_SEEDS = {"two-phase": (3,)}  # two worlds have too little of what is rare
WANTED = {
    "durable": {"for durable subscriptions": 400, "not missed": 300},
    "leases": {"leases": 55, "leased messages read": 200, "leases given back": 10},
    "successions": {"orders": 25, "handed to whom it named": 1},
    "glitched": {"interrupted": 30, "reattached": 6, "failover": 15, "broken down": 3},
    "bulky": {"taking effect in slices": 10, "large transactions read": 1},
    "hung": {"lock files replaced": 2, "woken and deposed": 2, "hang_replacing": 3},
    "openwire": {
        "JMS messages": 300,
        "JMS commits": 250,
        "JMS moves": 35,
        "JMS acknowledgements confirmed": 120,
        "JMS commits in doubt": 8,
        "JMS rollbacks": 20,
        "JMS sends refused": 5,
        "XA commits": 15,
        "XA rollbacks": 5,
        "lines lost": 100,
    },
    "two-phase": {
        "prepared": 50,
        "two-phase commits": 40,
        "batch committed": 10,
        "ended by a later master": 3,
        "runs prepared": 45,
        "runs committed": 40,
        "runs rolled back": 3,
        "runs taken over": 3,
        "prepared messages copied": 5,
        "repetitions refused": 2,
        "batch of many transactions": 5,
    },
}


@pytest.mark.deep
@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_keeps_its_promises(feature: str) -> None:
    counts: Counter[str] = Counter()
    for seed in (*SEEDS, *MORE_SEEDS.get(feature, ())):
        result = run_seed(seed, features=(feature,))
        assert not result.violation, report(result)
        counts += result.counts
    short = {kind: counts[kind] for kind, least in WANTED[feature].items() if counts[kind] < least}
    assert not short, f"too little happened: {short} of {counts}"
