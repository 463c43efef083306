"""Cron: a time table in five fields, as crontab and ActiveMQ have them: minute, hour, day of month, month, weekday.

Each field is `*`, a number, a range, either of these in steps, or a list of such with commas: `0,30 8-17 * * 1-5`,
`*/15 * * * *`. Weekdays are 0 to 7, and both 0 and 7 are Sunday. Where day of month and weekday are both given, a day
counts that is one of the two. All times are UTC. Invariant: an entry that is accepted has a next time, always.
"""

from __future__ import annotations

from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterator
from datetime import date

from amq.core.errors import CommandError

EXAMPLE = '"30 8 * * 1-5" is half past eight on working days (minute hour day month weekday, UTC)'
TEXT_CHARS_MAX = 200
MINUTE_MS = 60_000
DAY_MINUTES = 24 * 60
YEARS_MAX = 41  # a leap day that is a Sunday comes after 40 years at the latest
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("weekday", 0, 7))


class Cron:
    """One entry. Raises CommandError where `text` is none."""

    __slots__ = ("_days", "_either", "_months", "_times", "_weekdays")

    def __init__(self, text: str) -> None:
        fields = text.split() if len(text) <= TEXT_CHARS_MAX else []
        if len(fields) != len(_FIELDS):
            raise _invalid(text, "it must have five fields")
        minutes, hours, days, months, weekdays = (
            _values(text, field, *kind) for field, kind in zip(fields, _FIELDS, strict=True)
        )
        self._days, self._months = sorted(days), sorted(months)
        self._weekdays = {weekday % 7 for weekday in weekdays}
        self._either = not fields[2].startswith("*") and not fields[4].startswith("*")
        self._times = [60 * hour + minute for hour in sorted(hours) for minute in sorted(minutes)]  # of a day
        longest = max({2: 29, 4: 30, 6: 30, 9: 30, 11: 30}.get(month, 31) for month in self._months)
        if not self._either and self._days[0] > longest:
            raise _invalid(text, "no such month has such a day")

    def next_ms(self, after_ms: int) -> int:
        """The first time later than `after_ms`; both in milliseconds since 1970, UTC."""
        day, minute = divmod(after_ms // MINUTE_MS + 1, DAY_MINUTES)
        for found in self._from(date.fromordinal(_EPOCH_DAY + day)):
            ahead = found - _EPOCH_DAY - day
            row = bisect_left(self._times, 0 if ahead else minute)
            if row < len(self._times):
                return ((day + ahead) * DAY_MINUTES + self._times[row]) * MINUTE_MS
        raise AssertionError("an entry without a next time was accepted")

    def _from(self, first: date) -> Iterator[int]:
        """The days that count, as ordinals, from `first` on. It looks at the months and days that are named and passes
        over all others: it must be quick also where one day in 40 years counts."""
        begin = first.toordinal()
        months = ((year, month) for year in range(first.year, first.year + YEARS_MAX) for month in self._months)
        for year, month in months:
            _, length = monthrange(year, month)
            start = date(year, month, 1).toordinal()
            if start + length <= begin:
                continue
            for day in range(1, length + 1) if self._either else self._days:
                is_weekday = (start + day - 1) % 7 in self._weekdays
                counts = is_weekday or day in self._days if self._either else is_weekday
                if counts and day <= length and start + day > begin:
                    yield start + day - 1


def _values(text: str, field: str, kind: str, first: int, last: int) -> set[int]:
    """The numbers that one field stands for."""
    values: set[int] = set()
    for part in field.split(","):
        span, slash, step = part.partition("/")
        start, dash, stop = span.partition("-")
        if span == "*":
            low, high = first, last
        elif _is_number(start) and (_is_number(stop) or not dash):
            low = int(start)
            high = int(stop) if dash else last if slash else low
        else:
            raise _invalid(text, f"{part!r} in its {kind} is not a number, range or *")
        if slash and not (_is_number(step) and int(step) > 0):
            raise _invalid(text, f"{part!r} in its {kind} has no number of 1 or more after the /")
        if not first <= low <= high <= last:
            raise _invalid(text, f"{part!r} in its {kind} is not within {first}-{last}")
        values.update(range(low, high + 1, int(step) if slash else 1))
    return values


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 4


def _invalid(text: str, why: str) -> CommandError:
    return CommandError(f"AMQ_SCHEDULED_CRON {text[:80]!r}: {why}; {EXAMPLE}", code="SCHEDULE_INVALID")
