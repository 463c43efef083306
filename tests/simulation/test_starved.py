"""Members that stand still for longer than their sessions, again and again, depose each other, and serve all the same.

Each process stands still for more than half of the time, so two of three run together in less than half of it. Service
goes on in most of that, and comes back soon after.
"""

from __future__ import annotations

import pytest

from amq.store.coordinated import session_time
from tests.simulation.starved import Starvation, StarvedWorld

SEEDS = range(12)
BACK_S = 15.0
CASES = {
    "long": (Starvation((2.0, 10.0), (5.5, 10.0)), 0.5),
    "slow coordinator": (Starvation((2.0, 10.0), (5.5, 10.0), call_s=0.3), 0.35),
}


def played(starvation: Starvation) -> tuple[float, int]:
    """The part of what was possible, and how often a member became the master."""
    served, masters = 0.0, 0
    for seed in SEEDS:
        world = StarvedWorld(seed, starvation)
        part, back_s = world.play()
        assert back_s < BACK_S, world.oracle.history
        served += part / len(SEEDS)
        masters += world.oracle.counts["terms"]
    return served, masters


@pytest.mark.parametrize("case", CASES)
def test_starved_members_serve_when_they_can_and_soon_after(case: str) -> None:
    starvation, least = CASES[case]
    served, _ = played(starvation)
    assert served > least


def test_longer_sessions_after_one_that_ended_too_early_spare_takeovers(monkeypatch: pytest.MonkeyPatch) -> None:
    starvation, _ = CASES["long"]
    _, masters = played(starvation)
    monkeypatch.setattr(session_time, "TIMES", 1)
    _, with_short_ones = played(starvation)
    assert masters < 0.75 * with_short_ones


def test_one_seed_is_one_history() -> None:
    first, second = (StarvedWorld(3, CASES["long"][0]) for _ in range(2))
    assert first.play() == second.play()
    assert first.oracle.history == second.oracle.history
    assert "slave again" in "".join(first.oracle.history)
