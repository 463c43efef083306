"""Viewing: what all browses together do in a turn.

Invariant: they look at no more than one of them would look at alone, but for `ROWS_MIN` of each: no browse waits for
another one to end. Browses that looked at something in the turn before share this one.
"""

from __future__ import annotations

ROWS_MIN = 4


class Viewing:
    """Of one broker. `Broker.dispatch` calls `turn` at the begin of each turn while `looked` holds something.

    looked        something, if a browse did something in this turn or the last
    before, now   browses that had something to do in the last turn, and in this one so far
    spent         the part of this turn that they have taken
    """

    __slots__ = ("before", "looked", "now", "spent")

    def __init__(self) -> None:
        self.looked: list[bool] = []
        self.before = self.now = 0
        self.spent = 0.0

    def turn(self) -> None:
        self.before, self.now, self.spent = self.now, 0, 0.0
        if not self.before:
            self.looked.clear()

    def share(self, most: int) -> int:
        """The rows that the next browse may look at, of `most` in a turn; say with `spend` how many it were."""
        if not self.looked:
            self.looked.append(True)
        self.now += 1
        least = min(ROWS_MIN, most)
        return least if self.spent >= 1 else max(least, most // max(1, self.before))

    def spend(self, rows: int, most: int) -> None:
        self.spent += rows / most
