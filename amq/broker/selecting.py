"""Selecting: how much one turn may do with selectors, in the whole broker.

A queue or topic that is out of steps goes on in the next turn, so that other clients are served between them.
Invariants: a turn does not much more than `TURN_STEPS`, however many of them have selectors; each gets on by a few
steps in each turn. Browses have a separate share: see `queues/viewing.py`.
"""

from __future__ import annotations

from typing import Final

TURN_STEPS: Final = 20_000  # of `Selector.steps`, and messages looked at: 5 to 10 ms
STEPS_MIN: Final = 50


class Selecting:
    """`left` = steps of this turn."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = TURN_STEPS

    def take(self, most: int) -> int:
        """Take up to `most` steps from those that are left, and a few where none is left. Give back unused ones."""
        found = min(most, max(self.left, STEPS_MIN))
        self.left -= found
        return found
