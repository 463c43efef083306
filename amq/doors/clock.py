"""The door to time. Deadlines use `monotonic` only; wall time is for humans, expiry and timestamps."""

from __future__ import annotations

import time
from functools import partial
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds on this host's monotonic clock. Never compared between hosts."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC, never negative."""
        ...


class SystemClock:
    """The host's clocks."""

    # Counts on while the machine is suspended: CLOCK_MONOTONIC would let a woken master believe in its lease. There is
    # no function of ours around it, because it is asked five times for a message.
    monotonic = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))

    @staticmethod
    def wall_ms() -> int:
        """A wall clock before 1970 was never set: then the time since the host started is in for it, so that
        delays and expiry go on, and records, which hold no negative time, can be written."""
        wall_ms = time.time_ns() // 1_000_000
        return wall_ms if wall_ms >= 0 else int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)
