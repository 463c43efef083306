"""Time tables, against an oracle that tries every minute, and against croniter."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

import pytest
from croniter import croniter
from hypothesis import given
from hypothesis import strategies as st

from amq.broker.scheduling import cron
from amq.broker.scheduling.cron import Cron
from amq.core.errors import CommandError

RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TRIED_MINUTES = 300  # of those before the time that is found, at most


def ms(text: str) -> int:
    return int((datetime.fromisoformat(text).replace(tzinfo=UTC) - EPOCH).total_seconds()) * 1000


def text_of(at_ms: int) -> str:
    return (EPOCH + timedelta(milliseconds=at_ms)).strftime("%Y-%m-%d %H:%M")


@st.composite
def fields(draw: st.DrawFn) -> list[str]:
    made = []
    for low, high in RANGES:
        parts = []
        for _ in range(draw(st.integers(1, 3))):
            first = draw(st.integers(low, high))
            last = draw(st.integers(first, high))
            step = draw(st.integers(1, 20))
            parts.append(
                draw(
                    st.sampled_from(
                        [
                            "*",
                            f"{first}",
                            f"{first}-{last}",
                            f"*/{step}",
                            f"{first}-{last}/{step}",
                            f"{first}/{step}",
                        ]
                    )
                )
            )
        made.append(",".join(parts))
    return made


def means(field: str, value: int, low: int, high: int) -> bool:
    """The oracle's reading of one field: is `value` meant?"""
    for part in field.split(","):
        found = re.fullmatch(r"(\*|\d+)(?:-(\d+))?(?:/(\d+))?", part)
        assert found
        start, stop, step = found.groups()
        first = low if start == "*" else int(start)
        last = int(stop) if stop else high if start == "*" or step else first
        if first <= value <= last and (value - first) % int(step or 1) == 0:
            return True
    return False


def due(entry: list[str], at: datetime) -> bool:
    minute, hour, day, month, weekday = entry
    days = means(day, at.day, 1, 31)
    sunday_is_0 = at.isoweekday() % 7
    weekdays = means(weekday, sunday_is_0, 0, 7) or (sunday_is_0 == 0 and means(weekday, 7, 0, 7))
    both = not day.startswith("*") and not weekday.startswith("*")
    return (
        means(minute, at.minute, 0, 59)
        and means(hour, at.hour, 0, 23)
        and means(month, at.month, 1, 12)
        and (days or weekdays if both else days and weekdays)
    )


def has_days(entry: list[str]) -> bool:
    """Is there a day in a leap year that is meant, on whichever weekday?"""
    _, _, day, month, weekday = entry
    either = not day.startswith("*") and not weekday.startswith("*")
    leap_year = [date(2024, 1, 1) + timedelta(days=number) for number in range(366)]
    return any(means(month, at.month, 1, 12) and (either or means(day, at.day, 1, 31)) for at in leap_year)


@given(fields(), st.integers(0, 4_000_000_000_000))
def test_the_next_time_is_the_first_one_that_fits(entry: list[str], after_ms: int) -> None:
    text = " ".join(entry)
    if not has_days(entry):
        with pytest.raises(CommandError, match="no such month has such a day"):
            Cron(text)
        return
    found_ms = Cron(text).next_ms(after_ms)
    assert found_ms > after_ms
    assert found_ms % 60_000 == 0
    assert due(entry, EPOCH + timedelta(milliseconds=found_ms))
    at = EPOCH + timedelta(minutes=after_ms // 60_000 + 1)
    found = EPOCH + timedelta(milliseconds=found_ms)
    for _ in range(TRIED_MINUTES):
        if at == found:
            break
        assert not due(entry, at)
        at += timedelta(minutes=1)
    at = at.replace(hour=found.hour, minute=found.minute) + timedelta(days=1)
    while at < found:  # on the days between, at the time of day that was found
        assert not due(entry, at)
        at += timedelta(days=1)


@given(fields(), st.integers(0, 4_000_000_000_000))
def test_croniter_finds_the_same_time(entry: list[str], after_ms: int) -> None:
    text = " ".join(entry)
    if not has_days(entry):
        return
    # Days are spelled out, since there 0-7, 5/2, 3-3 and 1,* mean something else. A field that begins with * does not
    # widen the other, as in Vixie's cron.
    days = {number for number in range(1, 32) if means(entry[2], number, 1, 31)}
    weekdays = {number % 7 for number in range(8) if means(entry[4], number, 0, 7)}
    either = not entry[2].startswith("*") and not entry[4].startswith("*")
    if either and (len(days) == 31 or len(weekdays) == 7):
        days, weekdays = set(range(1, 32)), set(range(7))
    times = re.sub(r"\b(\d+)-\1\b(/\d+)?", r"\1", f"{entry[0]} {entry[1]}")
    months = {number for number in range(1, 13) if means(entry[3], number, 1, 12)}
    theirs = " ".join([times, *(",".join(map(str, sorted(each))) for each in (days, months, weekdays))])
    found = croniter(theirs, after_ms / 1000, day_or=either, max_years_between_matches=50)
    assert Cron(text).next_ms(after_ms) == int(found.get_next()) * 1000, text


class _Days(date):
    """Counts how many dates are made."""

    made = 0

    def __new__(cls, *words: int) -> _Days:
        cls.made += 1
        return super().__new__(cls, *words)


@pytest.mark.parametrize("entry", ["0 0 29 2 */7", "0 0 */31 1 */7", "0 0 31 */12 1"])
def test_a_time_that_is_decades_away_is_found_at_once(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SEND with such an entry must not hold up the others: day by day it took 0.6 ms."""
    monkeypatch.setattr(cron, "date", _Days)
    after_ms = ms("2088-03-01 00:00")
    made = _Days.made
    assert Cron(entry).next_ms(after_ms) > after_ms
    assert _Days.made - made <= 42 * 2


@pytest.mark.parametrize(
    ("entry", "after", "times"),
    [
        ("*/15 * * * *", "2026-03-01 10:07", ["2026-03-01 10:15", "2026-03-01 10:30"]),
        ("30 8 * * 1-5", "2026-11-20 08:30", ["2026-11-23 08:30", "2026-11-24 08:30"]),  # a Friday
        ("0 0 1 1 *", "2026-01-01 00:00", ["2027-01-01 00:00"]),
        ("59 23 31 12 *", "2026-12-31 23:58", ["2026-12-31 23:59", "2027-12-31 23:59"]),
        ("0 12 29 2 *", "2096-02-29 12:00", ["2104-02-29 12:00"]),
        ("0 12 13 * 5", "2026-11-01 00:00", ["2026-11-06 12:00", "2026-11-13 12:00", "2026-11-20 12:00"]),
        ("0 0 * * 7", "2026-11-21 00:00", ["2026-11-22 00:00", "2026-11-29 00:00"]),
        ("0 0 29 2 */7", "2032-02-29 00:00", ["2060-02-29 00:00"]),  # leap days that are Sundays
        ("0 0 29 2 */7", "2088-02-29 00:00", ["2128-02-29 00:00"]),
    ],
)
def test_times(entry: str, after: str, times: list[str]) -> None:
    at_ms, found = ms(after), []
    for _ in times:
        at_ms = Cron(entry).next_ms(at_ms)
        found.append(text_of(at_ms))
    assert found == times


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("", "five fields"),
        ("* * * *", "five fields"),
        ("* * * * * *", "five fields"),
        ("* " * 200, "five fields"),
        ("60 * * * *", "'60' in its minute is not within 0-59"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day of month"),
        ("* * * 13 *", "month is not within 1-12"),
        ("* * * * 8", "weekday"),
        ("5-1 * * * *", "'5-1' in its minute"),
        ("*/0 * * * *", "number of 1 or more"),
        ("*/ * * * *", "number of 1 or more"),
        ("a * * * *", "not a number"),
        ("1,,2 * * * *", "'' in its minute"),
        ("-1 * * * *", "not a number"),
        ("1- * * * *", "not a number"),
        ("١ * * * *", "not a number"),
        ("0 0 31 2,4 *", "no such month has such a day"),
        ("0 0 30-31 2 *", "no such month has such a day"),
    ],
)
def test_what_is_no_entry_is_refused_with_a_good_one(entry: str, why: str) -> None:
    with pytest.raises(CommandError, match=re.escape(why)) as refused:
        Cron(entry)
    assert "30 8 * * 1-5" in str(refused.value)
    assert refused.value.code == "SCHEDULE_INVALID"
