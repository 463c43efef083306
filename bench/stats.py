"""Numbers → the few numbers that people compare."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


def percentiles(values: Sequence[int]) -> dict[str, int]:
    """p50, p99, p99.9 and max of `values` by nearest rank; empty for no values."""
    if not values:
        return {}
    ordered = sorted(values)
    ranks = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    return {name: ordered[math.ceil(len(ordered) * share) - 1] for name, share in ranks.items()}


class Spread(NamedTuple):
    """Repetitions of one measurement: only these three are shown, for a mean hides what a noisy machine did."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median, minimum, maximum of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))
