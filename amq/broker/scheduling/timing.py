"""Timing: what the scheduling headers of a message say, and what becomes of it each time it falls due.

The names are those of ActiveMQ, and Artemis' `_AMQ_SCHED_DELIVERY`. Pure functions of headers and times.
Invariant: what is missed while there is no master is not made up for: a message falls due once for that, and then at
its next time.
"""

from __future__ import annotations

import re
from functools import partial
from typing import NamedTuple

from amq.broker.scheduling.cron import Cron
from amq.core.errors import CommandError
from amq.core.values import Properties, Value, text

DELAY, PERIOD, REPEAT = "AMQ_SCHEDULED_DELAY", "AMQ_SCHEDULED_PERIOD", "AMQ_SCHEDULED_REPEAT"
CRON, DELIVERY = "AMQ_SCHEDULED_CRON", "_AMQ_SCHED_DELIVERY"
TIMES = frozenset({DELAY, PERIOD, REPEAT, CRON, DELIVERY})
TIME_MAX_MS = 10**14  # the year 5138, or a delay of 3,000 years
REPEAT_MAX = 2**31 - 1
FOREVER = -1
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)


class Timing(NamedTuple):
    """Times in milliseconds; `at_ms` since 1970, 0 = not given. `repeat` = times after the first, FOREVER = no end."""

    delay_ms: int
    period_ms: int
    repeat: int
    cron: Cron | None
    at_ms: int

    @classmethod
    def parse(cls, properties: Properties) -> Timing:
        """Raises CommandError with the value, and an example of a good one."""
        number = partial(_number, properties)
        repeat = text(properties.get(REPEAT, "0"))
        timing = cls(
            number(DELAY, "60000 for one minute", TIME_MAX_MS),
            number(PERIOD, "60000 for one minute", TIME_MAX_MS),
            FOREVER if repeat == str(FOREVER) else number(REPEAT, "9 for ten deliveries, or -1 for no end", REPEAT_MAX),
            Cron(text(properties[CRON])) if CRON in properties else None,
            number(DELIVERY, "1893456000000, milliseconds since 1970", TIME_MAX_MS),
        )
        if timing.repeat and not timing.period_ms:
            raise _invalid(REPEAT, repeat, f"it needs {PERIOD}, the milliseconds between two deliveries, such as 60000")
        if DELIVERY in properties and (DELAY in properties or CRON in properties):
            written = text(properties[DELIVERY])
            raise _invalid(DELIVERY, written, f"give either this or {DELAY} or {CRON}: {DELAY}:60000")
        return timing

    def first_ms(self, now_ms: int) -> int:
        """When a message that is sent now falls due first."""
        if self.cron is not None:
            return self.cron.next_ms(now_ms)
        return self.at_ms or now_ms + (self.delay_ms or self.period_ms)


class Due(NamedTuple):
    """The fate of a message that fell due: is it delivered now, and (when, with which headers) it comes again."""

    is_delivered: bool
    again: list[tuple[int, dict[str, Value]]]


def fall_due(properties: Properties, due_ms: int, now_ms: int) -> Due:
    """A message with these headers fell due at `due_ms`, and it is `now_ms`, the same or later.

    With a cron entry that begins a separate series each time, where headers ask for one: first after the delay.
    """
    timing = Timing.parse(properties)
    again: list[tuple[int, dict[str, Value]]] = []
    rest = {name: value for name, value in properties.items() if name not in (CRON, DELAY, DELIVERY)}
    if timing.cron is not None:
        again.append((timing.cron.next_ms(max(due_ms, now_ms)), dict(properties)))
        due_ms += timing.delay_ms
        if due_ms > now_ms:
            return Due(False, [*again, (due_ms, rest)])
    if timing.repeat:
        next_ms = due_ms + ((now_ms - due_ms) // timing.period_ms + 1) * timing.period_ms
        again.append((next_ms, {**rest, REPEAT: str(timing.repeat - 1 if timing.repeat > 0 else FOREVER)}))
    return Due(True, again)


def _number(properties: Properties, name: str, example: str, maximum: int) -> int:
    written = text(properties.get(name, "0"))
    if not _NUMBER.fullmatch(written) or int(written) > maximum:
        raise _invalid(name, written, f"it is not a number from 0 to {maximum}; give, for example, {example}")
    return int(written)


def _invalid(name: str, written: str, why: str) -> CommandError:
    return CommandError(f"{name} {written[:80]!r}: {why}", code="SCHEDULE_INVALID")
