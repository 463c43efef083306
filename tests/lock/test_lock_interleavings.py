"""A broker that pauses before any of its calls, while another one takes over: nothing is confirmed that a later
seal does not hold. The lock service lies: every broker gets the lock at once, so that only the rules protect the store.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeClock
from lock_world import PERIOD_S, Broker, segment
from test_safety_rules import check_sealed, lying

from amq.core.errors import OwnershipLostError
from amq.store.epoch import Epoch
from amq.store.files.vfs import SystemVfs
from tests.sampling import sampled

TICK_S = 0.02
CALLS_MAX = 80


class World:
    """A master that works, and two more that want to be one."""

    def __init__(self, store: Path) -> None:
        store.mkdir()
        self.base = FakeClock()
        self.master = Broker(store, "master", self.base, rate=0.9951)
        self.slow, self.quick = (Broker(store, name, self.base, period_s=1.0) for name in ("slow", "quick"))
        self.brokers = [self.master, self.slow, self.quick]
        lying(*self.brokers)
        self.epochs: dict[int, tuple[Broker, Epoch]] = {}
        self.take_over(self.master)
        self.work(self.brokers, 0.2)

    def take_over(self, broker: Broker, others: list[Broker] | None = None) -> None:
        """Those `others` that are masters work meanwhile."""

        def work() -> None:
            for other in others or []:
                other.step()

        broker.works_meanwhile = work
        epoch = broker.become_master().epoch
        assert epoch.number not in self.epochs
        self.epochs[epoch.number] = broker, epoch
        self.check()

    def work(self, brokers: list[Broker], seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.base.advance(TICK_S)
            for broker in brokers:
                broker.step()

    def check(self) -> None:
        """P3 for each master and each later seal."""
        for number, (broker, _) in self.epochs.items():
            mine = {name: length for name, length in broker.confirmed.items() if name == segment(number)}
            for later, (_, epoch) in self.epochs.items():
                if later > number:
                    check_sealed(mine, epoch)


def at_call(broker: Broker, nth: int, act: Callable[[], None], moment: str = "before") -> list[int]:
    """`act()` runs just before, or after, the `nth` call from now on. Returns how many calls are left until then."""
    left = [nth]

    def count() -> None:
        left[0] -= 1
        if not left[0]:
            act()

    for method in (name for name in dir(SystemVfs) if not name.startswith("_")):
        getattr(broker.vfs, moment)(method, count, times=0)
    return left


@pytest.mark.parametrize("released", sampled([True, False]))
@pytest.mark.parametrize("old", sampled(["works", "hangs in a check", "is gone"]))
def test_a_candidate_that_stands_still(tmp_path: Path, released: bool, old: str) -> None:
    """Another one takes over before its n-th call, works for a while, and goes, or works on."""
    lost = won = 0
    for nth in range(1, CALLS_MAX):
        world = World(tmp_path / str(nth))
        master, slow, quick = world.brokers
        if old == "is gone":
            master.fence()
        elif old == "hangs in a check":
            master.stop_checking()  # and confirms as long as its lease lasts

        def overtake(world: World = world, quick: Broker = quick) -> None:
            world.take_over(quick, [world.master])
            world.work(world.brokers, 0.2)
            if released and quick.mastership is not None:
                quick.locker.release()
                quick.mastership = None

        left = at_call(slow, nth, overtake)
        try:
            world.take_over(slow, [master, quick])
            won += 1
        except (OwnershipLostError, FileNotFoundError):  # its epoch file was taken away before it was linked
            slow.fence()
            lost += 1
        if left[0] > 0:
            break
        world.work(world.brokers, 2 * PERIOD_S)
        world.check()
        for broker in world.brokers:
            broker.fence()
    else:
        raise AssertionError(f"a takeover of more than {CALLS_MAX} calls")
    assert lost
    assert won > 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_master_that_stands_still_in_a_check(tmp_path: Path, moment: str) -> None:
    """Before or after any of its calls; the other one takes over, and serves or not yet when it goes on."""
    for after_s in (0.0, 1.0):
        for nth in range(1, CALLS_MAX):
            world = World(tmp_path / f"{after_s}-{nth}")
            master, _, quick = world.brokers

            def overtake(world: World = world, quick: Broker = quick, after_s: float = after_s) -> None:
                world.take_over(quick)
                world.work([quick], after_s)

            master.stop_checking()  # after this one: it works on as long as that allows
            left = at_call(master, nth, overtake, moment)
            before = dict(master.confirmed)
            try:
                master.lease.check()
            except OwnershipLostError:
                master.fence()
            if left[0] > 0:
                break
            world.work(world.brokers, 2 * PERIOD_S)
            world.check()
            assert master.confirmed == before
            assert quick.confirmed[segment(2)]
            quick.fence()
        assert nth > 5
