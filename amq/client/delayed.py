"""When a message shall be delivered: `delay`, `period`, `repeat` and `cron` of `send`, as the headers that ask for it.

Invariant: what the broker would refuse for its kind or sign is refused here, before anything is sent; the syntax of a
cron entry is the broker's business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypedDict

from amq.core.errors import CommandError

SECONDS_MAX = 10**10  # some 300 years
DELAY, PERIOD, REPEAT, CRON = (f"AMQ_SCHEDULED_{what}" for what in ("DELAY", "PERIOD", "REPEAT", "CRON"))


class DeliveryTimes(TypedDict, total=False):
    """The arguments of `send` that say when: see there. `delay` and `period` are seconds."""

    delay: float
    period: float
    repeat: int
    cron: str


def delayed(
    headers: Mapping[str, object] | None, delay: float = 0.0, period: float = 0.0, repeat: int = 0, cron: str = ""
) -> dict[str, object]:
    """`headers` with what `send` was asked for: `delay` and `period` in seconds, 0 = none. Raises CommandError."""
    for name, value_s in (("delay", delay), ("period", period)):
        _check_seconds(name, value_s)
    if repeat < -1:
        raise CommandError(f"repeat={repeat}: write how often it comes again after the first time, or -1 for ever")
    if repeat and not period:
        raise CommandError(f"repeat={repeat} needs a period: write the seconds from one delivery to the next")
    asked: dict[str, object] = {
        DELAY: _ms(delay),
        PERIOD: _ms(period),
        REPEAT: repeat,
        CRON: cron,
    }
    asked = {name: value for name, value in asked.items() if value}
    for name in headers or {}:
        if name in asked:
            raise CommandError(f"header {name!r} is set by an argument of send: leave one of them out")
    return {**(headers or {}), **asked}


def expires_ms(time_to_live: float, wall_ms: int) -> int:
    """When a message with that `time_to_live` in seconds expires; 0 = never. Raises CommandError."""
    if not time_to_live:
        return 0
    _check_seconds("time_to_live", time_to_live)
    return wall_ms + _ms(time_to_live)


def _check_seconds(name: str, value_s: float) -> None:
    if not isinstance(value_s, int | float) or not 0 <= value_s <= SECONDS_MAX:
        raise CommandError(f"{name}={value_s!r}: write seconds, from 0 to {SECONDS_MAX}")


def _ms(value_s: float) -> int:
    """Milliseconds, and not 0 where something was asked for."""
    return math.ceil(value_s * 1000)
