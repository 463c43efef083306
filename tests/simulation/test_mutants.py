"""The simulation is tested too: it must find each hole that is made on purpose."""

from __future__ import annotations

import pytest

from tests.simulation.pool import MUTANTS, first_caught, hunt
from tests.simulation.world import Result

SEEDS = range(1, 61)
QUICK = (
    "claim_not_looked_at", "no_wait_after_the_claim", "acknowledgements_not_in_the_journal", "groups_belong_to_nobody",
)  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_quick_ones_are_caught_at_once(name: str) -> None:
    assert first_caught(name, range(1, 11)) is not None


@pytest.mark.slow
def test_every_mutant_is_caught() -> None:
    found = hunt([name for name in MUTANTS if name not in QUICK], SEEDS)
    alive = [name for name, result in found.items() if result is None]
    assert not alive, f"not caught within {len(SEEDS)} seeds: {alive}"
    stale = {name: result.violation for name, result in found.items() if result and _is_stale(result)}
    assert not stale, f"these no longer fit the code that they replace, and fail by themselves: {stale}"


def _is_stale(result: Result) -> bool:
    return any(error in result.violation for error in ("TypeError", "AttributeError", "NameError", "argument"))
