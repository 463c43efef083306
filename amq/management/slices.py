"""Slices: viewers share the event loop with clients.

Invariant: in one round of the event loop one viewer works, for about `SLICE_S`, whoever else waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice
from types import TracebackType
from typing import TypeVar

from amq.doors.clock import Clock

SLICE_S = 0.0005
SLICE_ROWS = 500  # looked at in one round at most
PIECE_ROWS = 20  # between two looks at the clock: about 50 µs
T = TypeVar("T")


def pieces(rows: Iterable[T], size: int = PIECE_ROWS) -> Iterator[list[T]]:
    """`rows` in lists of `size`."""
    each = iter(rows)
    while piece := list(islice(each, size)):
        yield piece


class Slices:
    """The work of all viewers of a broker."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.turn = asyncio.Lock()

    def work(self) -> Work:
        """`async with slices.work() as work:` around a loop that calls `await work.did(rows)` after each piece. Nothing
        else is awaited in there."""
        return Work(self)


class Work:
    """The work of one viewer."""

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._until = 0.0
        self._rows = 0

    async def __aenter__(self) -> Work:
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._until:  # it may have been cancelled while it waited for its turn
            await self._end()

    async def did(self, rows: int) -> None:
        """Note that `rows` are done, and go on now or in a later round."""
        self._rows += rows
        if self._rows >= SLICE_ROWS or self._slices.clock.monotonic() >= self._until:
            await self._end()
            await self._begin()

    async def _end(self) -> None:
        """The turn is another one's, from the next round on."""
        self._until = 0.0
        try:
            await asyncio.sleep(0)
        finally:
            self._slices.turn.release()

    async def _begin(self) -> None:
        await self._slices.turn.acquire()
        self._rows = 0
        self._until = self._slices.clock.monotonic() + SLICE_S
