"""Histogram: how often something took how long, in fixed buckets. One writer, and readers on any thread."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Histogram:
    """`counts` = how many were at most so long as the bound of the same place, and longer than the one before; the last
    one = longer than all. `sum_s` of all."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """It took so long once more."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def to_json(self) -> dict[str, object]:
        """`buckets` = [bound, how many took at most so long]; bound None = any time."""
        total, buckets = 0, []
        for bound, count in zip((*BOUNDS_S, None), self.counts, strict=True):
            total += count
            buckets.append([bound, total])
        return {"buckets": buckets, "sum": self.sum_s, "count": total}
