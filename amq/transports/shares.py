"""Shares: how long one connection works in a round of the event loop, whatever its commands cost.

A connection that has used up its share keeps what it has received, is not read meanwhile, and goes on in a later round.
Invariants: in one round all connections that were just read work for about `ROUND_S` together, each for at least
`LEAST_S` and at most `SHARE_S`; those that go on work for about `SHARE_S` together, one after the other; none of them
is passed over. Between two looks at the clock there are at most `FRAMES_MAX` frames or `LOOK_AFTER` commands.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

SHARE_S: Final = 0.003
ROUND_S: Final = 0.006
LEAST_S: Final = 0.0002
FRAMES_MAX: Final = 128  # read between two looks at the clock: about 0.5 ms
# The event loop reads up to 32 full buffers from one socket before it looks at any other: with small messages that took
# seconds. So a second full read ends the turn of its connection. Not the first one: a producer with a window of 256
# messages of 1 KiB sends a little more at a time, and to stop it there cost a fifth of the rate.
FULL_READS_MAX: Final = 2


class Worker(Protocol):
    """A connection that has received more than it could carry out."""

    def go_on(self, share_s: float) -> float:
        """Work for as long. Returns how much of that is left, below 0 where it took longer."""
        ...


class Shares:
    """`loop` runs the rounds. Reads no clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.round_until_s = 0.0  # monotonic; the turn sets it to 0 when the round ends
        self.waiting: dict[Worker, None] = {}  # the one that has waited longest comes first
        self._next: asyncio.Handle | None = None

    def until_s(self, now_s: float) -> float:
        """How long a connection that was just read may work, monotonic."""
        if not self.round_until_s:
            self.round_until_s = now_s + ROUND_S
        return min(now_s + SHARE_S, max(self.round_until_s, now_s + LEAST_S))

    def wait(self, worker: Worker) -> None:
        """`worker` goes on after all that wait already."""
        self.waiting[worker] = None
        if self._next is None:
            self._next = self._loop.call_soon(self._serve)

    def forget(self, worker: Worker) -> None:
        self.waiting.pop(worker, None)

    def stop(self) -> None:
        self.waiting.clear()
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _serve(self) -> None:
        self._next = None
        left_s = SHARE_S
        try:
            for worker in list(self.waiting):
                if self.waiting.pop(worker, self) is None:  # else it has ended meanwhile
                    left_s = worker.go_on(left_s)
                if left_s <= 0:
                    break
        finally:
            if self.waiting and self._next is None:
                self._next = self._loop.call_soon(self._serve)
