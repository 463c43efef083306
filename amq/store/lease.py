"""Lease: up to when this broker may confirm. Watchdog: when it must close its sockets. Spec: docs/master-slave.md.

Invariants: the deadline is the start of a proof that succeeded plus one period, never later; a lease that failed or was
revoked stays dead. The watchdog reads memory and the clock and nothing else, so a store that hangs cannot stop it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from enum import Enum

from amq.core.errors import OwnershipLostError
from amq.doors.clock import Clock

NEVER = -math.inf


class Lease:
    """The right to confirm, proved again and again.

    deadline   monotonic seconds; any thread may read it. Confirm only what was durable while `now < deadline`.
    proved     start of the last check that succeeded. Delete a file only when `proved` is later than the moment at
               which the last copy of what lives in it was fsynced: then that copy lies before every later seal.
    moved_from the deadline that the last check replaced: later than before that check where the store vouched meanwhile
    renewals   how many checks have succeeded
    """

    def __init__(
        self, prove: Callable[[], None], clock: Clock, period_s: float, vouch: Callable[[], bool] | None = None
    ) -> None:
        """`prove()` returns if this broker was the master at some moment after the call began; it raises
        OwnershipLostError or OSError, and may hang. Where `vouch()` is True it proves the same, in any thread; it does
        not hang."""
        assert period_s > 0
        self.deadline = NEVER
        self.proved = NEVER
        self.moved_from = NEVER
        self.renewals = 0
        self.period_s = period_s
        self._prove = prove
        self._vouch = vouch
        self._clock = clock
        self._revoked = False
        self._mutex = threading.Lock()  # held for assignments only

    def check(self) -> None:
        """Prove the mastership and move the deadline. Raises OwnershipLostError: fence; the lease is dead for ever.

        Any error of the store counts as loss: a broker that cannot prove that it is the master is not. A check may be
        made after the deadline (the process was stopped, say): if it succeeds work goes on.
        """
        start = self._clock.monotonic()
        if self._revoked:
            raise OwnershipLostError("this lease was given up")
        try:
            self._prove()
        except OSError as error:
            self.revoke()
            raise OwnershipLostError(f"the lock cannot be proved to be ours any more: {error}") from error
        except BaseException:
            self.revoke()
            raise
        with self._mutex:
            if self._revoked:
                raise OwnershipLostError("this lease was given up during the check")
            self.proved = start
            self.moved_from = self.deadline
            self.deadline = max(self.deadline, start + self.period_s)
            self.renewals += 1

    @property
    def has_voucher(self) -> bool:
        return self._vouch is not None

    @property
    def is_fresh(self) -> bool:
        """Whether it was proved within the third of a period in which a master proves it."""
        return self._clock.monotonic() < self.deadline - self.period_s * 2 / 3

    def extend(self) -> bool:
        """Move the deadline without a check, which may hang: whether the store vouches for this broker. Any thread.
        Raises OwnershipLostError: the lease is dead for ever."""
        start = self._clock.monotonic()
        try:
            if self._vouch is None or not self._vouch():
                return False
        except OwnershipLostError:
            self.revoke()
            raise
        with self._mutex:
            if self._revoked:
                return False
            self.deadline = max(self.deadline, start + self.period_s)
        return True

    def valid(self) -> bool:
        """Whether what is durable now may be confirmed; any thread."""
        return self._clock.monotonic() < self.deadline

    def revoke(self) -> None:
        """Nothing more is confirmed under this lease; any thread, for ever."""
        with self._mutex:
            self._revoked = True
            self.deadline = NEVER

    @property
    def revoked(self) -> bool:
        return self._revoked


class Verdict(Enum):
    """OK work · SUSPENDED confirm nothing, a check may still succeed · FENCE close the sockets now, it is over."""

    OK = "ok"
    SUSPENDED = "suspended"
    FENCE = "fence"


class Watchdog:
    """Decides when an expired lease is given up: after one more period in which this process really ran.

    A gap between two ticks in which the whole process was stopped (SIGSTOP, a suspended machine) does not count, so
    that the lease thread gets its chance to prove the ownership again. Sockets thus close within two periods, plus a
    tick, of the start of the last check that succeeded.
    """

    def __init__(self, lease: Lease, clock: Clock, tick_s: float) -> None:
        """`tick_s` is how often `tick` will be called; a gap counts as two ticks at most."""
        assert 0 < tick_s <= lease.period_s / 2
        self._lease = lease
        self._clock = clock
        self._gap_s_max = 2 * tick_s
        self._ticked = clock.monotonic()
        self._expired_s = 0.0

    def tick(self) -> Verdict:
        """Call every `tick_s`, from a thread that does nothing else."""
        now = self._clock.monotonic()
        gap_s = min(now - self._ticked, self._gap_s_max)
        self._ticked = now
        deadline = self._lease.deadline
        if now < deadline:
            self._expired_s = 0.0
            return Verdict.OK
        if deadline == NEVER:
            return Verdict.FENCE
        self._expired_s += min(gap_s, now - deadline)
        return Verdict.FENCE if self._expired_s >= self._lease.period_s else Verdict.SUSPENDED
