"""Deadlines: which prepared transactions have waited for too long, the earliest first.

Invariant: to look costs as much as there is due, whatever waits; what has ended is forgotten, at the latest when the
heap has twice as many entries as there are transactions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from amq.core.xid import Key
from amq.journal.live import Segment
from amq.journal.records import Prepared

SLACK = 1000  # entries of ended transactions that do not matter


class Deadlines:
    """Deadlines of `there`, the transactions that are prepared."""

    def __init__(self, there: Mapping[Key, tuple[Prepared, Segment]]) -> None:
        self._there = there
        self._heap: list[tuple[int, int, Key]] = []  # (deadline, seq, key)
        self._seqs: dict[Key, int] = {}  # of those in the heap

    def add(self, prepared: Prepared) -> None:
        """Watch `prepared`, which is prepared or whose record was written again."""
        if not prepared.timeout_ms or self._seqs.get(prepared.key) == prepared.seq:
            return
        self._seqs[prepared.key] = prepared.seq
        heappush(self._heap, (prepared.created_ms + prepared.timeout_ms, prepared.seq, prepared.key))
        if len(self._heap) > 2 * len(self._there) + SLACK:
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapify(self._heap)
            self._seqs = {key: seq for _, seq, key in self._heap}

    def _counts(self, entry: tuple[int, int, Key]) -> bool:
        _, seq, key = entry
        found = self._there.get(key)
        return found is not None and found[0].seq == seq

    def due(self, now_ms: int) -> Iterator[Prepared]:
        """Take out those whose time is over, one by one."""
        while self._heap and self._heap[0][0] <= now_ms:
            entry = heappop(self._heap)
            _, seq, key = entry
            if self._seqs.get(key) == seq:
                del self._seqs[key]
            if self._counts(entry):
                yield self._there[key][0]
