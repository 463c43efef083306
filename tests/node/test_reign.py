"""The lease thread of a mastership tells of a lease that had run out, and of no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from amq.node.reign import Reign
from amq.store.lease import Lease
from tests.fakes import FakeClock
from tests.store.replica_course import StillThreads

PERIOD_S = 10.0


@pytest.mark.parametrize("vouches", [False, True])
def test_a_check_that_hangs_is_told_of_where_nothing_vouched_for_the_master_meanwhile(vouches: bool) -> None:
    clock = FakeClock()
    hangs_s = 0.0

    def prove() -> None:
        for _ in range(int(hangs_s)):
            clock.advance(1.0)
            lease.extend()

    lease = Lease(prove, clock, PERIOD_S, (lambda: True) if vouches else None)
    lease.check()
    stage: Any = SimpleNamespace(config=SimpleNamespace(lock_keep_alive_period_s=PERIOD_S), lease_renewed=object())
    posted: list[object] = []
    loop: Any = SimpleNamespace(post=posted.append)
    doors: Any = SimpleNamespace(clock=clock, threads=StillThreads())
    term: Any = SimpleNamespace(lease=lease)
    reign = Reign(stage, loop, doors, term, doors.threads.event(), doors.threads.event(), None)
    hangs_s = 2 * PERIOD_S
    with capture_logs() as told:
        reign._check()
    assert posted == [stage.lease_renewed], "the event loop may have seen it expired"
    assert [line["event"].startswith("lease had run out") for line in told] == [True] * (not vouches)
