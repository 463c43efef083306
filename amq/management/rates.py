"""Rates: how fast messages came and went lately, of the broker, of its queues and of its topics.

A sample every `EVERY_S` compares counters with those of the sample before. An hour of samples is kept, and a day of
minutes. A slave has no counters of clients: its samples say how many messages it knows, so the backlog of the last hour
goes on through a takeover, and the rates have a gap.

Invariants: at most `NAMES_MAX` queues and topics have a history, and each history has a fixed size (26 KB); a sample
gives way to clients as all management does.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from typing import Final

from amq.doors.clock import Clock
from amq.management.listing import Row
from amq.management.slices import Slices, pieces
from amq.management.views import Counted

EVERY_S: Final = 5.0
HOUR: Final = 720  # samples
MINUTE: Final = 12  # samples
DAY: Final = 1440  # minutes
NAMES_MAX: Final = 200
SPANS: Final = ("hour", "day")
ALL: Final = ""  # the name of the whole broker
UNKNOWN: Final = math.nan
Point = tuple[float, float, float]  # messages in and out a second, messages that are there
_GAP: Final[Point] = (UNKNOWN, UNKNOWN, UNKNOWN)
_DIGITS: Final = 2


class Series:
    """The last `size` points, each at a number that grows by 1; points that nobody added are unknown."""

    __slots__ = ("_columns", "_newest", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._columns = [array("f", [UNKNOWN]) * size for _ in _GAP]
        self._newest = -1

    def add(self, number: int, point: Point) -> None:
        """Add the point of that number, which is newer than all before."""
        for missed in range(max(self._newest + 1, number - self._size + 1), number):
            self._put(missed, _GAP)
        self._put(number, point)
        self._newest = number

    def _put(self, number: int, point: Point) -> None:
        for column, value in zip(self._columns, point, strict=True):
            column[number % self._size] = value

    def up_to(self, number: int, count: int) -> Iterator[list[float | None]]:
        """Yield, for each part of a point, its values at the last `count` numbers up to `number`; None = unknown."""
        for column in self._columns:
            yield [
                _plain(column[each % self._size]) if self._has(each) else None
                for each in range(number - count + 1, number + 1)
            ]

    def mean(self, number: int, count: int) -> Point:
        """The mean rates of the last `count` points up to `number`, and the newest count of messages."""
        into, out, messages = ([each for each in values if each is not None] for values in self.up_to(number, count))
        return (
            sum(into) / len(into) if into else UNKNOWN,
            sum(out) / len(out) if out else UNKNOWN,
            messages[-1] if messages else UNKNOWN,
        )

    def _has(self, number: int) -> bool:
        return max(0, self._newest - self._size + 1) <= number <= self._newest


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else round(value, _DIGITS)


class Track:
    """The history of one name. `moved` = number of the last sample in which a message came or went."""

    __slots__ = ("_minute", "day", "hour", "moved")

    def __init__(self) -> None:
        self.hour, self.day, self.moved = Series(HOUR), Series(DAY), -1
        self._minute = -1  # of the newest sample

    def add(self, number: int, point: Point) -> None:
        """Add a sample. The first one of a minute completes the minute before."""
        minute = number // MINUTE
        if minute > self._minute >= 0:
            last = (self._minute + 1) * MINUTE - 1
            self.day.add(self._minute, self.hour.mean(last, MINUTE))
        self._minute = minute
        self.hour.add(number, point)


class Rates:
    """The histories of one process, whichever role it has."""

    def __init__(self, clock: Clock, slices: Slices) -> None:
        self._clock = clock
        self._slices = slices
        self._tracks: dict[str, Track] = {ALL: Track()}
        self._before: dict[str, tuple[int, int]] = {}  # counters of the last sample
        self._epoch: int | None = None
        self._number = -1  # of the last sample
        self._sampled_s = 0.0
        self._sampled_wall_ms = 0

    async def sample(
        self,
        counted: Iterable[Counted] | None,
        epoch: int | None = None,
        known: int = 0,
        forgotten: tuple[int, int] = (0, 0),
    ) -> None:
        """Look at the counters of all queues and topics. `counted` = None for a slave, which knows of `known` messages.
        `forgotten` = what queues had counted that the broker has forgotten since its mastership began."""
        now_s = self._clock.monotonic()
        number, seconds = int(now_s // EVERY_S), now_s - self._sampled_s
        if number <= self._number:
            return
        goes_on = counted is not None and epoch == self._epoch and bool(self._before)
        self._epoch, self._sampled_s, self._sampled_wall_ms = epoch, now_s, self._clock.wall_ms()
        if counted is None:
            self._before = {}
            self._number = number
            self._tracks[ALL].add(number, (UNKNOWN, UNKNOWN, known))
            return
        total, counters = [*forgotten, 0], dict[str, tuple[int, int]]()
        async with self._slices.work() as work:
            for piece in pieces(counted):
                for name, into, out, messages in piece:
                    self._look(number, name, (into, out), messages, seconds if goes_on else 0.0)
                    counters[name] = into, out
                    if name.startswith("queue://"):
                        total = [total[0] + into, total[1] + out, total[2] + messages]
                await work.did(len(piece))
        self._look(number, ALL, (total[0], total[1]), total[2], seconds if goes_on else 0.0)
        counters[ALL] = total[0], total[1]
        self._before, self._number = counters, number

    def _look(self, number: int, name: str, now: tuple[int, int], messages: int, seconds: float) -> None:
        """Note what `name` has counted. `seconds` = since the sample before; 0 = that is not to be compared."""
        before = self._before.get(name, (0, 0))
        moved = now != before
        track = self._tracks.get(name) or (self._admit(number) if moved and seconds else None)
        if track is None:
            return
        self._tracks[name] = track
        if moved:
            track.moved = number
        into, out = (max(0, a - b) / seconds if seconds else UNKNOWN for a, b in zip(now, before, strict=True))
        track.add(number, (into, out, messages))

    def _admit(self, number: int) -> Track | None:
        """Make a history; where there are too many, in place of the one that has been quiet for longest."""
        if len(self._tracks) > NAMES_MAX:
            quiet = min((name for name in self._tracks if name != ALL), key=lambda name: self._tracks[name].moved)
            if self._tracks[quiet].moved >= number - 1:
                return None
            del self._tracks[quiet]
        return Track()

    def row(self, name: str, span: str) -> Row:
        """The history of the full name `name`, "" = of all queues together. `in`, `out` (a second) and `messages` are
        lists of numbers `every_s` apart that end at `until_ms` by the wall clock. None = unknown."""
        track = self._tracks.get(name)
        newest, count, every_s = self._number, HOUR, EVERY_S
        if span == "day":  # up to the last whole minute
            newest, count, every_s = self._number // MINUTE - 1, DAY, EVERY_S * MINUTE
        series = Series(1) if track is None else track.day if span == "day" else track.hour
        into, out, messages = series.up_to(newest, count)
        ago_s = (self._number + 1) * EVERY_S - (newest + 1) * every_s
        return {
            "every_s": every_s,
            "until_ms": self._sampled_wall_ms - int(1000 * ago_s),
            "in": into,
            "out": out,
            "messages": messages,
        }

    def latest(self, name: str) -> tuple[float | None, float | None]:
        """Messages in and out a second in the last sample; None = unknown."""
        if ALL not in self._before:
            return None, None
        track = self._tracks.get(name)
        if track is None:
            return 0.0, 0.0
        into, out, _ = (values[0] for values in track.hour.up_to(self._number, 1))
        return into, out
