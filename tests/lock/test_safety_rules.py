"""The safety rules of docs/master-slave.md, each with mutants: the mechanism with the rule taken out.

Every scenario passes with the real mechanism and must fail with each of its mutants; that is how we know that it sees.
The lock service lies in all of them (every broker gets the lock at once), so that only the rules protect the store.
"""

# ruff: noqa: ARG001, ARG005 - mutants keep the signatures of what they replace

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeClock, FakeHost
from lock_world import PERIOD_S, Broker, never_pause, segment

from amq.core.errors import OwnershipLostError
from amq.store import locker
from amq.store.document import encode
from amq.store.epoch import Epoch, epoch_json
from amq.store.files.election import CLAIM_FILE, LOCK_FILE, FileElection
from amq.store.files.epochs import FileEpochs
from amq.store.files.vfs import SystemVfs
from amq.store.lease import Lease
from amq.store.locker import Locker


class Violation(AssertionError):
    """The promise was broken: bytes were confirmed that no seal contains, or two masters confirm."""


def lying(*brokers: Broker) -> None:
    for broker in brokers:
        broker.vfs.answer("try_lock", True)


def check_sealed(confirmed: dict[str, int], epoch: Epoch) -> None:
    for name, length in confirmed.items():
        if length > epoch.sealed.get(name, 0):
            raise Violation(f"{name}: {length} bytes confirmed, {epoch.sealed.get(name, 0)} sealed")


# -- scenarios --------------------------------------------------------------------------------------------------------


def checks_work(store: Path) -> None:
    """The old master works on as long as its checks let it, before and after the seal."""
    old = takeover_while_the_master_works(store)
    assert old.mastership is None


def checks_hang(store: Path) -> None:
    """The last check of the old master starts just before the claim, the next one hangs; its other thread works on."""
    old = takeover_while_the_master_works(store, hang=True)
    assert old.mastership is not None


def takeover_while_the_master_works(
    store: Path, hang: bool = False, rate_master: float = 0.9951, rate_candidate: float = 1.0049
) -> Broker:
    """By default the old master's clock is as slow, the candidate's as fast, as A1 allows. Returns the old master."""
    base = FakeClock()
    old = Broker(store, "old", base, rate=rate_master)
    new = Broker(store, "new", base, rate=rate_candidate, period_s=0.1)  # its own period is not the one to wait for
    lying(old, new)
    old.become_master()
    for _ in range(150):
        base.advance(0.01)
        old.step()
    old.lease.check()
    old.step()
    if hang:
        old.stop_checking()
    confirmed_before = dict(old.confirmed)
    assert confirmed_before[segment(1)] > 0
    new.works_meanwhile = old.step
    epoch = new.become_master().epoch
    check_sealed(old.confirmed, epoch)
    for _ in range(int(2 * PERIOD_S / 0.01)):
        base.advance(0.01)
        old.step()
        new.step()
        check_sealed(old.confirmed, epoch)
    assert old.confirmed[segment(1)] > confirmed_before[segment(1)], "the scenario is real: the old master could work"
    assert new.confirmed[segment(2)] > 0
    return old


def a_check_that_hangs_moves_nothing(store: Path) -> None:
    """The claim is written just after a check of the old master that took half a period."""
    base = FakeClock()
    old, new = Broker(store, "old", base), Broker(store, "new", base)
    lying(old, new)
    old.become_master()
    base.advance(PERIOD_S / 3)
    started = base.monotonic()
    old.vfs.before("listdir", lambda: base.advance(PERIOD_S / 2))  # after the claim was read, before the check ends
    old.lease.check()
    if old.lease.deadline > started + PERIOD_S:
        raise Violation("the deadline counts from the end of the check")
    new.become_master()
    old.write()
    if old.lease.valid():
        raise Violation("the old master still confirms after the seal")


def two_candidates(store: Path) -> None:
    """A candidate is paused between its seal and its link; meanwhile another one becomes master of the same number."""
    base = FakeClock()
    slow, quick = Broker(store, "slow", base), Broker(store, "quick", base)
    lying(slow, quick)
    assert slow.locker.try_acquire()

    def paused(_previous: Epoch | None) -> dict[str, int]:
        quick.become_master()
        quick.step()
        return {"of-slow": 1}

    with pytest.raises(OwnershipLostError):
        slow.locker.take_over(never_pause, paused)
    quick.lease.check()
    newest = FileEpochs(SystemVfs(), str(store)).newest()
    assert newest is not None
    if newest.owner != quick.owner or newest.sealed:
        raise Violation("the epoch of the master was replaced by somebody else's")


def heartbeat_refused(store: Path) -> None:
    """NFSv4: the lock was lost, the server refuses writes through its descriptor; nothing else shows it yet."""
    old = Broker(store, "old", FakeClock())
    old.become_master()
    old.vfs.fail("pwrite", errno.EIO, path=LOCK_FILE, times=0)
    expect_loss(old)


def lock_file_replaced(store: Path) -> None:
    """The path leads to a file that another broker has locked: it will claim in a moment."""
    base = FakeClock()
    old, new = Broker(store, "old", base), Broker(store, "new", base)
    old.become_master()
    os.unlink(store / LOCK_FILE)
    base.advance(PERIOD_S)
    assert not new.locker.try_acquire()
    base.advance(PERIOD_S)
    assert new.locker.try_acquire()
    expect_loss(old)


def claim_of_another(store: Path) -> None:
    """Somebody claimed; no epoch yet."""
    old = Broker(store, "old", FakeClock())
    old.become_master()
    (store / CLAIM_FILE).write_bytes(encode("claim", {"epoch": 2, "attempt": "x-1", "name": "new"}, 4096))
    expect_loss(old)


def claim_torn(store: Path) -> None:
    """Somebody's claim is half written."""
    old = Broker(store, "old", FakeClock())
    old.become_master()
    with open(store / CLAIM_FILE, "r+b") as file:
        file.write(b'{"amq":"claim","body":{"attempt":"ano')
    expect_loss(old)


def epoch_of_another(store: Path) -> None:
    """An operator put an old copy of the claim back, after another broker became master."""
    base = FakeClock()
    old, new = Broker(store, "old", base), Broker(store, "new", base)
    lying(old, new)
    old.become_master()
    copy = (store / CLAIM_FILE).read_bytes()
    new.become_master()
    (store / CLAIM_FILE).write_bytes(copy)
    expect_loss(old)


def expect_loss(old: Broker) -> None:
    lease = old.lease
    try:
        lease.check()
    except OwnershipLostError:
        assert not lease.valid()
    else:
        raise Violation("the check did not see the loss")


def owner_only_seems_gone(store: Path) -> None:
    """The old master is alive on another host that has a process table like ours: nothing is proved by ours."""
    base = FakeClock()
    old = Broker(store, "old", base, host=FakeHost(boot="boot-2"))
    new = Broker(store, "new", base, host=FakeHost(boot="boot-1"))
    lying(old, new)
    old.become_master()
    old.step()
    new.works_meanwhile = old.step
    epoch = new.become_master().epoch
    old.step()
    check_sealed(old.confirmed, epoch)


def release_of_an_older_epoch(store: Path) -> None:
    """The mark of an epoch that is long over says nothing of the newest one."""
    base = FakeClock()
    first = Broker(store, "first", base)
    first.become_master()
    first.locker.release()
    old, new = Broker(store, "old", base), Broker(store, "new", base)
    lying(old, new)
    old.become_master()
    old.step()
    new.works_meanwhile = old.step
    epoch = new.become_master().epoch
    old.step()
    check_sealed(old.confirmed, epoch)


# -- mutants ----------------------------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def no_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Locker, "_wait_for", lambda self, previous: (0.0, ""))


def no_wait_for_drift(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(locker, "CLOCK_DRIFT_MAX", 0.0)


def wait_own_period(patch: pytest.MonkeyPatch) -> None:
    def wait(self: Locker, previous: Epoch | None) -> tuple[float, str]:
        return self.owner.lock_keep_alive_period_s * 1.01, ""

    patch.setattr(Locker, "_wait_for", wait)


def wait_before_the_claim(patch: pytest.MonkeyPatch) -> None:
    real = Locker._wait_for
    claim = Locker._write_claim

    def wait(self: Locker, previous: Epoch | None) -> tuple[float, str]:
        wait_s, reason = real(self, previous)
        self.mutant_wait_s = wait_s  # type: ignore[attr-defined]
        return 0.0, reason

    def write(self: Locker, number: int, attempt: str) -> None:
        broker = BROKERS[self.owner.name]
        broker.pause(self.mutant_wait_s)  # type: ignore[attr-defined]
        claim(self, number, attempt)

    patch.setattr(Locker, "_wait_for", wait)
    patch.setattr(Locker, "_write_claim", write)


def seal_before_the_wait(patch: pytest.MonkeyPatch) -> None:
    real = Locker._take_over

    def take_over(self: Locker, pause, seal):  # type: ignore[no-untyped-def]
        sealed = seal(self._epochs.newest())
        return real(self, pause, lambda previous: sealed)

    patch.setattr(Locker, "_take_over", take_over)


def claim_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Locker, "_check_claim", lambda self: None)


def torn_claim_accepted(patch: pytest.MonkeyPatch) -> None:
    real = Locker._check_claim

    def check(self: Locker) -> None:
        try:
            real(self)
        except OwnershipLostError as error:
            if "not whole" not in str(error):
                raise

    patch.setattr(Locker, "_check_claim", check)


def epochs_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Locker, "_check_epoch", lambda self, own: None)


def no_heartbeat(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Locker, "_heartbeat", lambda self: None)


def path_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FileElection, "_is_at_path", lambda self, fd: True)


def regain_without_lock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Locker, "_regain", lambda self: None)


def errors_are_warnings(patch: pytest.MonkeyPatch) -> None:
    real = Locker.prove

    def prove(self: Locker) -> None:
        try:
            real(self)
        except OSError:
            return

    patch.setattr(Locker, "prove", prove)


def deadline_from_the_end(patch: pytest.MonkeyPatch) -> None:
    real = Lease.check

    def check(self: Lease) -> None:
        real(self)
        self.deadline = self._clock.monotonic() + self.period_s

    patch.setattr(Lease, "check", check)


def confirm_without_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "valid", lambda self: not self.revoked)


def epoch_not_exclusive(patch: pytest.MonkeyPatch) -> None:
    def link(self, epoch, attempt):  # type: ignore[no-untyped-def]
        path = self.place(epoch.number)
        with open(path + ".new", "wb") as file:
            file.write(encode("epoch", epoch_json(epoch)))
        os.replace(path + ".new", path)
        return True

    patch.setattr(FileEpochs, "link", link)


def gone_by_pid_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(locker, "provably_gone", lambda owner, host: not host.is_running(owner.pid, owner.pid_start))


def any_release_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Locker, "_released", lambda self, epoch: True)


SCENARIOS: dict[Callable[[Path], None], list[Patch]] = {
    checks_work: [no_wait, wait_own_period, wait_before_the_claim, seal_before_the_wait, claim_not_checked],
    checks_hang: [no_wait, no_wait_for_drift, wait_own_period, seal_before_the_wait, confirm_without_lease],
    a_check_that_hangs_moves_nothing: [deadline_from_the_end],
    two_candidates: [epoch_not_exclusive],
    heartbeat_refused: [no_heartbeat, errors_are_warnings],
    lock_file_replaced: [path_not_checked, regain_without_lock],
    claim_of_another: [claim_not_checked],
    claim_torn: [claim_not_checked, torn_claim_accepted],
    epoch_of_another: [epochs_not_checked],
    owner_only_seems_gone: [gone_by_pid_alone],
    release_of_an_older_epoch: [any_release_counts],
}
BROKERS: dict[str, Broker] = {}


@pytest.fixture(autouse=True)
def _remember_brokers(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    real = Broker.__init__

    def init(self: Broker, store: Path, name: str, *args, **options) -> None:  # type: ignore[no-untyped-def]
        real(self, store, name, *args, **options)
        BROKERS[name] = self

    monkeypatch.setattr(Broker, "__init__", init)
    yield
    for broker in BROKERS.values():
        broker.locker.abandon()
    BROKERS.clear()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_rule(scenario: Callable[[Path], None], tmp_path: Path) -> None:
    scenario(tmp_path)


@pytest.mark.parametrize(
    ("scenario", "mutant"),
    [(scenario, mutant) for scenario, mutants in SCENARIOS.items() for mutant in mutants],
    ids=lambda item: item.__name__,
)
def test_without_the_rule(
    scenario: Callable[[Path], None], mutant: Patch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((Violation, pytest.fail.Exception)):
        scenario(tmp_path)


def test_drift_beyond_the_assumption_is_seen(tmp_path: Path) -> None:
    """A1 is needed: with clocks that differ by more than 1 % the scenario breaks the promise."""
    with pytest.raises(Violation):
        takeover_while_the_master_works(tmp_path, hang=True, rate_master=0.97, rate_candidate=1.03)
