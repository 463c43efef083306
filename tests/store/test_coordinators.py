"""Coordinators keep the contract of all coordinators: here those without servers, `tests/quorum` has the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.coordinator_contract import CHECKS, Coordinators
from tests.memory_coordinator import Ensemble, MemoryCoordinator


@pytest.fixture
def coordinators() -> Coordinators:
    ensemble = Ensemble()
    return lambda: MemoryCoordinator(ensemble)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract(coordinators: Coordinators, check: Callable[[Coordinators, str], None]) -> None:
    check(coordinators, "k")
