"""The contract of `amq.store.election.Election` and `amq.store.epoch.Epochs`, which each adapter keeps, and what
`amq.store.locker` makes of the two. `new` makes the store as one more member sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import pytest

from amq.core.errors import OwnershipLostError, StoreError
from amq.store.document import encode
from amq.store.election import HEARTBEAT, RECORD_BYTES, RELEASE
from amq.store.epoch import Epoch
from amq.store.host import Owner
from amq.store.locker import Locker
from amq.store.port import Store
from tests.fakes import FakeClock, FakeHost

Stores = Callable[[], Store]
PERIOD_S = 3.0
OWNER = Owner.make(FakeHost(), name="a", uuid="u", transport_urls=(), lock_keep_alive_period_s=PERIOD_S)


def no() -> bool:
    return False


def record(kind: str, **body: object) -> bytes:
    return encode(kind, body, RECORD_BYTES)


def check_election(new: Stores) -> None:
    """`new()` returns the store, which is empty at first, as another member sees it."""
    one, other, third = (new().election for _ in range(3))

    # Nothing is there, and a lock that is missing can be left so.
    assert one.look() is None
    for missing in (one.is_held, lambda: one.read(HEARTBEAT), one.read_claim):
        with pytest.raises(FileNotFoundError):
            missing()
    assert not one.try_acquire(lambda: True)
    assert other.look() is None
    with pytest.raises(OwnershipLostError):
        one.holds()
    with pytest.raises(OwnershipLostError):
        one.write(HEARTBEAT, record(HEARTBEAT, count=1))

    # The lock has one holder, whom the others see.
    assert one.try_acquire(no)
    assert not other.try_acquire(no)
    assert other.is_held()
    assert one.holds()
    assert other.read(HEARTBEAT) is None
    assert other.read(RELEASE) is None

    # A claim and what is written through the lock are signs of life, and what was read before is none.
    signs = [other.look()]
    for write in (
        lambda: one.claim(record("claim", attempt="1")),
        lambda: one.write(HEARTBEAT, record(HEARTBEAT, count=1)),
        lambda: one.write(HEARTBEAT, record(HEARTBEAT, count=2)),
    ):
        write()
        signs.append(other.look())
        assert signs[-1] == third.look() != signs[-2]
    assert other.read_claim() == record("claim", attempt="1")
    assert other.read(HEARTBEAT) == {"count": 2}
    one.write(RELEASE, record(RELEASE, epoch=1))
    assert other.read(RELEASE) == {"epoch": 1}
    assert other.read(HEARTBEAT) == {"count": 2}

    # A lock that was let go is free, and what was written stays.
    one.let_go()
    one.let_go()
    assert not other.is_held()
    with pytest.raises(OwnershipLostError):
        one.holds()
    assert other.try_acquire(no)
    assert other.read(RELEASE) == {"epoch": 1}

    # A lock that is replaced belongs to the member that replaced it; the one before notices, and cannot get it back.
    if not third.can_replace():
        return
    before = one.look()
    assert third.replace("third")
    assert third.holds()
    with suppress(OSError):  # the store may say that the lock of this member is gone: each is a loss
        assert not other.holds()
    assert one.look() != before
    assert not one.try_acquire(no)
    with pytest.raises(OwnershipLostError):
        other.regain("other")
    other.let_go()
    third.let_go()
    assert one.try_acquire(no)
    assert one.holds()
    one.regain("one")
    assert one.holds()
    one.let_go()


def check_epochs(new: Stores) -> None:
    one, other = new().epochs, new().epochs
    with pytest.raises(StoreError) as raised:
        one.check()
    assert raised.value.code == "STORE_MISSING"
    assert one.newest() is None
    assert one.newest_number() == 0
    assert one.all() == []
    one.make()
    other.make()

    # Of two members one makes an epoch real, whole, and for all to see.
    first, second = (Epoch(1, OWNER, {"s.seg": 5}, 7, reason) for reason in ("one", "other"))
    assert one.link(first, "one-1")
    assert not other.link(second, "other-1")
    assert other.newest("other") == other.read(1) == first
    assert other.place(1) != other.place(2)
    assert other.size(1) > 0
    with pytest.raises(FileNotFoundError):
        other.read(2)

    # Old ones go, the newest stays.
    for number in range(2, 6):
        assert other.link(Epoch(number, OWNER, {}, 0, ""), f"other-{number}")
    assert one.newest_number() == 5
    other.prune(other.read(5), keep=2)
    assert one.numbers() == [each.number for each in one.all()] == [4, 5]
    one.check()


class Member:
    """A member on a host of its own; time passes while it waits."""

    def __init__(self, store: Store, name: str, clock: FakeClock) -> None:
        self.clock = clock
        self.waited_s = 0.0
        host = FakeHost(host_name=f"host-of-{name}", boot=f"boot-of-{name}")
        owner = Owner.make(
            host, name=name, uuid=f"uuid-of-{name}", transport_urls=(), lock_keep_alive_period_s=PERIOD_S
        )
        self.locker = Locker(store, clock, host, owner)

    def take_over(self, sealed: Mapping[str, int]) -> None:
        term = self.locker.take_over(self._pause, lambda _previous: sealed)
        assert term is not None
        self.lease, self.epoch = term.lease, term.epoch

    def _pause(self, seconds: float) -> bool:
        self.clock.advance(seconds)
        self.waited_s += seconds
        return False


def check_terms(new: Stores) -> None:
    """Look, acquire, take over, renew, release and replace, as a broker does."""
    clock = FakeClock()
    stores = [new() for _ in range(3)]
    for store in stores:
        store.make()
    a, b, c = (Member(store, name, clock) for store, name in zip(stores, "abc", strict=True))

    # The first one is master at once, and stays it as long as it proves that.
    assert a.locker.try_acquire()
    assert not b.locker.try_acquire()
    a.take_over({})
    assert (a.epoch.number, a.waited_s) == (1, 0.0)
    clock.advance(PERIOD_S / 2)
    a.lease.check()
    clock.advance(PERIOD_S / 2)
    assert a.lease.valid()
    assert "'a'" in b.locker.holder()

    # A master that hands over names its successor, which need not wait.
    a.locker.release(to="b")
    assert not a.lease.valid()
    mark = b.locker.release_mark()
    assert mark is not None
    assert mark["to"] == "b"
    assert b.locker.try_acquire()
    b.take_over({"1.seg": 10})
    assert (b.epoch.number, b.waited_s) == (2, 0.0)
    with pytest.raises(OwnershipLostError):
        a.lease.check()

    # A master that hangs is replaced: its successor waits out its lease, unless the store shuts it out, and no check
    # of it succeeds any more.
    if not c.locker.can_replace():
        return
    assert not c.locker.try_acquire()
    assert not c.locker.replace(10.0, lambda: False), "it gave a sign of life"
    assert c.locker.replace(10.0, lambda: True)
    c.take_over({"1.seg": 10, "2.seg": 20})
    assert c.epoch.number == 3
    assert (c.waited_s == 0) is stores[2].election.shuts_out
    assert not b.lease.valid() or stores[2].election.shuts_out
    with pytest.raises((OwnershipLostError, OSError)):
        b.lease.check()
    c.lease.check()
    assert stores[0].epochs.newest() == c.epoch
    b.locker.abandon()
    c.locker.release()
