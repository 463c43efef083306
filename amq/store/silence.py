"""Silence: how long the holder of the lock has given no sign of life, as one slave sees it.

Spec and argument: docs/master-slave.md, "A master that hangs". Invariant: silence is only counted while this broker
looks. Time in which it was stopped itself, or in which the store did not answer it, counts for two steps at most, so
that a holder that paused for the same reason gets its turn first. Any change of what the holder writes ends the
silence: its heartbeat, the claim, the file that holds the lock.
"""

from __future__ import annotations

from collections.abc import Callable

from amq.doors.clock import Clock
from amq.store.election import Sign

STEPS = 20  # looks within one time-out
GAP_STEPS = 2  # of the time between two looks, this much counts at most
PERIODS = 5  # of the holder's lockKeepAlivePeriod that a time-out has at least


class Silence:
    """Watches the holder of a lock for a broker whose own lockKeepAlivePeriod is `period_s`. `read()` returns the last
    sign of life (`Election.look`). For the lease thread: `look` may hang in the store.

    sign      as last seen; None = there is none, or no view of the store
    silent_s  how long it was seen unchanged
    """

    def __init__(self, read: Callable[[], Sign | None], clock: Clock, period_s: float) -> None:
        self.sign: Sign | None = None
        self.silent_s = 0.0
        self._read = read
        self._clock = clock
        self._own_period_s = self._period_s = period_s
        self._looked: float | None = None

    def reset(self) -> None:
        """Begin anew."""
        self.sign, self.silent_s, self._looked = None, 0.0, None

    def due_s(self, timeout_s: float) -> float:
        """Seconds until the next look: a step, or less where the time-out is over sooner."""
        if self._looked is None:
            return 0.0
        limit_s = self._limit_s(timeout_s)
        wait_s = min(limit_s / STEPS, max(0.0, limit_s - self.silent_s))
        return max(0.0, self._looked + wait_s - self._clock.monotonic())

    def look(self, timeout_s: float) -> bool:
        """Look at the lock, if that is due; True where its holder was silent for `timeout_s`, and for `PERIODS` of its
        lockKeepAlivePeriods.

        An error of the store says nothing about the holder, only that this broker's view proves nothing: begin anew.
        """
        if self.due_s(timeout_s) > 0:
            return False
        try:
            sign = self._read()
        except OSError:
            self.reset()
            return False
        now, before = self._clock.monotonic(), self._looked
        if sign is None or before is None or sign != self.sign:
            self.silent_s = 0.0
            self._period_s = (sign and sign.period_s()) or self._own_period_s
        else:
            self.silent_s += min(now - before, GAP_STEPS * self._limit_s(timeout_s) / STEPS)
        self.sign, self._looked = sign, now
        return self.silent_s >= self._limit_s(timeout_s)

    def goes_on(self) -> bool:
        """Whether the holder has given no sign since the last look, as of now. Raises OSError."""
        return self.sign is not None and self._read() == self.sign

    def _limit_s(self, timeout_s: float) -> float:
        return max(timeout_s, PERIODS * self._period_s)
