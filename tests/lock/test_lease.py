"""Lease and Watchdog with a fake clock."""

from __future__ import annotations

import math

import pytest
from fakes import FakeClock

from amq.core.errors import OwnershipLostError
from amq.store.lease import Lease, Verdict, Watchdog

PERIOD_S = 2.0
TICK_S = 0.25


def proved_lease(clock: FakeClock) -> Lease:
    lease = Lease(lambda: None, clock, PERIOD_S)
    lease.check()
    return lease


def test_lease_begins_expired() -> None:
    clock = FakeClock()
    lease = Lease(lambda: None, clock, PERIOD_S)
    assert not lease.valid()
    assert lease.deadline == -math.inf


def test_deadline_counts_from_the_start_of_the_check() -> None:
    clock = FakeClock()
    lease = Lease(lambda: clock.advance(1.5), clock, PERIOD_S)
    start = clock.monotonic()
    lease.check()
    assert (lease.proved, lease.deadline) == (start, start + PERIOD_S)
    clock.advance(0.5)
    assert not lease.valid(), "the deadline itself is too late"


def test_check_after_the_deadline_may_prove_the_lease_again() -> None:
    clock = FakeClock()
    lease = proved_lease(clock)
    clock.advance(1000)
    assert not lease.valid()
    lease.check()
    assert lease.valid()


@pytest.mark.parametrize("error", [OSError(5, "EIO"), OwnershipLostError("gone"), KeyError("a mistake")])
def test_failed_check_ends_the_lease_for_ever(error: Exception) -> None:
    clock = FakeClock()
    failures = [error]

    def prove() -> None:
        if failures and lease.deadline > 0:
            raise failures.pop()

    lease = Lease(prove, clock, PERIOD_S)
    lease.check()
    with pytest.raises(KeyError if isinstance(error, KeyError) else OwnershipLostError):
        lease.check()
    assert not lease.valid()
    with pytest.raises(OwnershipLostError):
        lease.check()
    assert lease.revoked


def test_revoked_during_a_check_stays_revoked() -> None:
    clock = FakeClock()
    lease = Lease(lambda: lease.revoke(), clock, PERIOD_S)
    with pytest.raises(OwnershipLostError):
        lease.check()
    assert not lease.valid()


def test_what_vouches_moves_the_deadline_while_a_check_hangs() -> None:
    clock = FakeClock()
    extended: list[bool] = []

    def hang() -> None:
        clock.advance(PERIOD_S * 2)
        extended.append(lease.extend())

    lease = Lease(hang, clock, PERIOD_S, lambda: clock.advance(0.5) is None)
    lease.check()
    assert extended == [True]
    assert lease.deadline == clock.monotonic() - 0.5 + PERIOD_S, "from the start of the later proof, not of the check"
    assert lease.moved_from == lease.deadline, "it had not run out when the check was over"
    assert lease.renewals == 1


def test_a_lease_that_is_lost_is_vouched_for_no_more() -> None:
    clock, answers = FakeClock(), [False, True]

    def vouch() -> bool:
        if not answers:
            raise OwnershipLostError("another member was elected")
        return answers.pop(0)

    lease = Lease(lambda: None, clock, PERIOD_S, vouch)
    assert not proved_lease(clock).extend(), "there are no copies"
    assert [lease.extend(), lease.extend()] == [False, True]
    with pytest.raises(OwnershipLostError):
        lease.extend()
    assert lease.revoked
    answers.append(True)
    assert not lease.extend()
    assert not lease.valid()


def ticks(watchdog: Watchdog, clock: FakeClock, seconds: float) -> list[Verdict]:
    found = []
    for _ in range(round(seconds / TICK_S)):
        clock.advance(TICK_S)
        found.append(watchdog.tick())
    return found


def test_watchdog_suspends_at_the_deadline_and_fences_a_period_later() -> None:
    clock = FakeClock()
    lease = proved_lease(clock)
    watchdog = Watchdog(lease, clock, TICK_S)
    assert ticks(watchdog, clock, PERIOD_S - TICK_S) == [Verdict.OK] * 7
    assert set(ticks(watchdog, clock, PERIOD_S)) == {Verdict.SUSPENDED}
    assert ticks(watchdog, clock, TICK_S) == [Verdict.FENCE]
    assert clock.monotonic() == lease.proved + 2 * PERIOD_S


def test_watchdog_follows_a_lease_that_was_proved_again() -> None:
    clock = FakeClock()
    lease = proved_lease(clock)
    watchdog = Watchdog(lease, clock, TICK_S)
    assert Verdict.SUSPENDED in ticks(watchdog, clock, 1.5 * PERIOD_S)
    lease.check()
    assert set(ticks(watchdog, clock, PERIOD_S - TICK_S)) == {Verdict.OK}
    assert Verdict.FENCE not in ticks(watchdog, clock, PERIOD_S - TICK_S), "the count began anew"


def test_watchdog_does_not_count_time_in_which_the_process_was_stopped() -> None:
    clock = FakeClock()
    lease = proved_lease(clock)
    watchdog = Watchdog(lease, clock, TICK_S)
    watchdog.tick()
    clock.advance(3600)
    assert watchdog.tick() is Verdict.SUSPENDED
    assert set(ticks(watchdog, clock, PERIOD_S - 3 * TICK_S)) == {Verdict.SUSPENDED}
    lease.check()
    assert ticks(watchdog, clock, TICK_S) == [Verdict.OK]


def test_watchdog_fences_a_hung_check_within_two_periods_of_its_own_time_after_a_stop() -> None:
    clock = FakeClock()
    watchdog = Watchdog(proved_lease(clock), clock, TICK_S)
    clock.advance(3600)
    verdicts = ticks(watchdog, clock, PERIOD_S)
    assert verdicts[-1] is Verdict.FENCE
    assert Verdict.FENCE not in verdicts[:5]


def test_watchdog_fences_a_revoked_lease_at_once() -> None:
    clock = FakeClock()
    lease = proved_lease(clock)
    watchdog = Watchdog(lease, clock, TICK_S)
    lease.revoke()
    assert watchdog.tick() is Verdict.FENCE
