"""Pins: segments that are not deleted yet, because somebody learned that messages are there, and reads the files.

A pin is a courtesy, not a promise: whoever finds no file asks the broker for the messages. So pins are in memory alone,
a new master has none, and they are few and short: `directReadSegments` and `directReadTime`. Invariant: a pinned
segment counts for trimming as one in which a message lives: those that refer to it stay as well. (Otherwise the word
that its messages have left would go before them, and the next master would deliver them again.)
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable
from collections.abc import Set as AbstractSet

from amq.doors.clock import Clock

ENTRIES_MAX = 10_000


class Pins:
    """Keys, each with the segments that it pins. The newest stay where there are too many."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: OrderedDict[Hashable, tuple[float, frozenset[int]]] = OrderedDict()  # until when, codes
        self._counts: Counter[int] = Counter()  # code of a segment → entries that name it

    def pin(self, key: Hashable, codes: Iterable[int], time_s: float, segments_max: int) -> None:
        """Keep these segments for `time_s`, in place of what `key` pinned before, and `segments_max` in all."""
        self.release(key)
        self.sweep()
        found = frozenset(codes)
        if not found or time_s <= 0:
            return
        self._entries[key] = self._clock.monotonic() + time_s, found
        self._counts.update(found)
        while len(self._counts) > segments_max or len(self._entries) > ENTRIES_MAX:
            self.release(next(iter(self._entries)))

    def release(self, key: Hashable) -> None:
        """`key` pins nothing more."""
        _, codes = self._entries.pop(key, (0.0, frozenset[int]()))
        for code in codes:
            self._counts[code] -= 1
            if not self._counts[code]:
                del self._counts[code]

    def sweep(self) -> None:
        """Forget pins whose time is over."""
        now = self._clock.monotonic()
        for key in [key for key, (until, _) in self._entries.items() if until <= now]:
            self.release(key)

    @property
    def codes(self) -> AbstractSet[int]:
        """Codes of the segments that are pinned now."""
        if self._entries:
            self.sweep()
        return self._counts.keys()
