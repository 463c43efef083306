"""Message groups in simulated worlds; and the checker sees it when their rule is taken out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest.mock import patch

import pytest

from amq.broker import groups
from amq.broker.groups import Groups
from tests.simulation.grouped import GroupedWorld

SEEDS = range(1, 9)
Mutant = Callable[[], AbstractContextManager[object]]


def test_no_group_is_with_two_consumers_at_once() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        result = GroupedWorld(seed).run()
        assert not result.violation, f"seed {seed}: {result.violation}\n" + "\n".join(result.tail[-60:])
        counts += result.counts
    assert counts["in groups"] > 500, counts


MUTANTS: dict[str, Mutant] = {
    "a bucket is free while its owner holds some of it": lambda: patch.object(groups, "_holds", lambda *_: False),
    "groups belong to nobody": lambda: patch.object(Groups, "is_owned", lambda *_: False),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_checker_bites(name: str) -> None:
    with MUTANTS[name]():
        found = [result.violation for seed in SEEDS if (result := GroupedWorld(seed).run()).violation]
    assert any(violation.startswith("groups:") for violation in found), found
