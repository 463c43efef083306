"""Numbers → the few numbers that people compare."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from amq.cli.load import percentiles

__all__ = ["Spread", "percentiles", "spread"]


class Spread(NamedTuple):
    """Repetitions of one measurement: only these three are shown, for a mean hides what a noisy machine did."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median, minimum, maximum of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))
