"""Bucket: how much somebody may still do, of something that comes back with time.

Invariant: over any time, no more is taken than `rate` allows for it, what a full bucket holds, and one piece.
"""

from __future__ import annotations


class Bucket:
    """`rate` = units that come back in a second; `size` = units that a full bucket holds. Reads no clock."""

    __slots__ = ("_at_s", "_left")

    def __init__(self, size: float, now_s: float) -> None:
        self._left = size
        self._at_s = now_s

    def take(self, amount: float, rate: float, size: float, now_s: float) -> float:
        """Take `amount`, also where there is less. Returns for how many seconds nothing more may be taken."""
        self._fill(rate, size, now_s)
        self._left -= amount
        return max(0.0, -self._left / rate)

    def take_whole(self, amount: float, rate: float, size: float, now_s: float) -> bool:
        """Take `amount` if there is as much. Returns whether it was."""
        self._fill(rate, size, now_s)
        if self._left < amount:
            return False
        self._left -= amount
        return True

    def is_full(self, rate: float, size: float, now_s: float) -> bool:
        """Is it as if nothing had been taken?"""
        self._fill(rate, size, now_s)
        return self._left >= size

    def _fill(self, rate: float, size: float, now_s: float) -> None:
        self._left = min(size, self._left + (now_s - self._at_s) * rate)
        self._at_s = now_s
