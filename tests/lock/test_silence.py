"""A master that hangs is replaced, one that works is not; the argument is in docs/master-slave.md."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import FakeClock
from lock_world import PERIOD_S, Broker, segment
from test_lock_interleavings import at_call
from test_safety_rules import check_sealed

from amq.core.errors import OwnershipLostError
from amq.store import silence as silence_module
from amq.store.election import Sign
from amq.store.epoch import Epoch
from amq.store.files.election import FileElection
from amq.store.files.epochs import FileEpochs
from amq.store.locker import Locker
from amq.store.silence import PERIODS, STEPS, Silence

TIMEOUT_S = 20.0
STEP_S = TIMEOUT_S / STEPS
CALLS_MAX = 120


class Group:
    """A master that works, and brokers that would replace it."""

    def __init__(self, store: Path) -> None:
        store.mkdir()
        self.store = str(store)
        self.base = FakeClock()
        self.master = Broker(store, "master", self.base, rate=0.9951)
        self.slave, self.other = (Broker(store, name, self.base, period_s=1.0) for name in ("slave", "other"))
        self.epochs: dict[int, tuple[Broker, Epoch]] = {}
        self.silence = self.watch(self.slave)
        self.take_over(self.master)
        self.work(1.0)

    def close(self) -> None:
        for broker in (self.master, self.slave, self.other):
            broker.locker.abandon()

    def watch(self, broker: Broker) -> Silence:
        election = FileElection(broker.vfs, self.store)
        return Silence(lambda: election.look(), broker.clock, broker.owner.lock_keep_alive_period_s)

    def take_over(self, broker: Broker, *, locked: bool = False) -> None:
        epoch = broker.become_master(locked=locked).epoch
        assert epoch.number not in self.epochs
        self.epochs[epoch.number] = broker, epoch

    def work(self, seconds: float, *brokers: Broker) -> None:
        """Time passes; the master, or `brokers`, work."""
        for _ in range(round(seconds / 0.1)):
            self.base.advance(0.1)
            for broker in brokers or (self.master,):
                broker.step()

    def hang(self, seconds: float) -> bool:
        """Nobody works; the slave looks whenever it is time. True where it calls the master silent."""
        until = self.base.monotonic() + seconds
        while self.base.monotonic() < until:
            if self.silence.look(TIMEOUT_S):
                return True
            self.base.advance(max(0.01, self.silence.due_s(TIMEOUT_S)))
        return False

    def replace(self, broker: Broker, silence: Silence) -> bool:
        return broker.locker.replace(silence.silent_s, silence.goes_on)

    def check(self) -> None:
        """P3 for each master and each later seal."""
        for number, (broker, _) in self.epochs.items():
            mine = {name: length for name, length in broker.confirmed.items() if name == segment(number)}
            for later, (_, epoch) in self.epochs.items():
                if later > number:
                    check_sealed(mine, epoch)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with closing(Group(tmp_path / "store")) as made:
        yield made


# -- who is silent ----------------------------------------------------------------------------------------------------


def test_a_master_that_hangs_is_silent_after_the_time_out_and_a_step_at_most(group: Group) -> None:
    began = group.base.monotonic()
    assert group.hang(2 * TIMEOUT_S)
    assert TIMEOUT_S <= group.base.monotonic() - began <= TIMEOUT_S + STEP_S


def test_five_periods_of_the_master_pass_whatever_the_option_says(group: Group) -> None:
    began = group.base.monotonic()
    while not group.silence.look(0.5):
        group.base.advance(max(0.01, group.silence.due_s(0.5)))
    assert group.base.monotonic() - began >= PERIODS * PERIOD_S * 0.99


def test_each_heartbeat_ends_the_silence(group: Group) -> None:
    for _ in range(4):
        assert not group.hang(TIMEOUT_S * 0.9)
        group.work(0.1)
    assert group.silence.silent_s > TIMEOUT_S / 2, "it was nearly over each time"


def test_a_claim_ends_the_silence(group: Group) -> None:
    """A candidate that waits for the old lease, or seals, is not a master that hangs."""
    assert not group.hang(TIMEOUT_S * 0.9)
    with open(f"{group.store}/claim", "r+b") as file:
        file.write(b"x")
    assert not group.hang(TIMEOUT_S * 0.9)


def test_a_new_lock_file_ends_the_silence(group: Group) -> None:
    assert not group.hang(TIMEOUT_S * 0.9)
    lock = Path(group.store, "lock")
    data = lock.read_bytes()
    lock.rename(f"{lock}.old")
    lock.write_bytes(data)
    assert not group.hang(TIMEOUT_S * 0.9)


def test_no_lock_file_is_no_silence(group: Group) -> None:
    Path(group.store, "lock").unlink()
    assert not group.hang(3 * TIMEOUT_S)


def test_time_in_which_the_slave_was_stopped_itself_hardly_counts(group: Group) -> None:
    """Both hosts paused: the slave goes on first, and gives the master its turn."""
    for _ in range(5):
        group.silence.look(TIMEOUT_S)
        group.base.advance(100 * TIMEOUT_S)
    assert not group.silence.look(TIMEOUT_S)
    assert group.silence.silent_s <= 5 * 2 * STEP_S


def test_a_store_that_hangs_hardly_counts(group: Group) -> None:
    """The slave's look hung with the master's heartbeat; the slave's answer came first."""
    group.silence.look(TIMEOUT_S)
    group.base.advance(STEP_S)
    group.slave.vfs.before("open", lambda: group.base.advance(100 * TIMEOUT_S))
    assert not group.silence.look(TIMEOUT_S)
    assert group.silence.silent_s <= 2 * STEP_S


def test_an_error_of_the_store_begins_anew(group: Group) -> None:
    assert not group.hang(TIMEOUT_S * 0.9)
    group.base.advance(STEP_S)
    group.slave.vfs.fail("open")
    assert not group.silence.look(TIMEOUT_S)
    assert not group.hang(TIMEOUT_S * 0.9)
    assert group.hang(TIMEOUT_S)


# -- replacing --------------------------------------------------------------------------------------------------------


def test_a_master_that_hangs_is_replaced_and_then_deposed(group: Group) -> None:
    assert not group.slave.locker.try_acquire()
    assert group.hang(2 * TIMEOUT_S)
    assert group.replace(group.slave, group.silence)
    began = group.base.monotonic()
    group.take_over(group.slave, locked=True)
    assert group.base.monotonic() - began >= PERIOD_S, "the lease of the old master is waited for"
    assert "gave no sign of life for 20" in group.epochs[2][1].reason
    group.work(2 * PERIOD_S, group.slave, group.master)
    assert group.master.mastership is None
    assert group.slave.mastership is not None
    group.check()
    assert not group.master.locker.try_acquire()
    group.slave.locker.release()
    assert group.master.locker.try_acquire(), "it competes again, for the new file"


def test_a_heartbeat_in_the_last_moment_saves_the_master(group: Group) -> None:
    assert group.hang(2 * TIMEOUT_S)
    group.slave.vfs.before("listdir", lambda: group.work(1.2))
    assert not group.replace(group.slave, group.silence)
    group.work(2 * PERIOD_S)
    assert group.master.mastership is not None


def test_of_two_that_replace_one_becomes_master(group: Group) -> None:
    assert group.hang(2 * TIMEOUT_S)
    others = group.watch(group.other)
    while not others.look(TIMEOUT_S):
        group.base.advance(others.due_s(TIMEOUT_S))
    assert group.replace(group.slave, group.silence)
    assert not group.replace(group.other, others), "the file is another one now"
    assert not group.other.locker.try_acquire()
    group.take_over(group.slave, locked=True)
    group.check()


def test_nobody_replaces_whose_view_is_not_proved(group: Group) -> None:
    assert group.hang(2 * TIMEOUT_S)
    group.slave.vfs.fail("open", errno.EROFS, path=".probe")
    with pytest.raises(OSError, match="Read-only"):
        group.replace(group.slave, group.silence)
    group.work(2 * PERIOD_S)
    assert group.master.mastership is not None


@pytest.mark.deep
@pytest.mark.parametrize("wakes", [True, False])
def test_the_master_wakes_at_any_call_of_the_one_that_replaces_it(tmp_path: Path, wakes: bool) -> None:
    """The master, or another broker that also replaces it, acts before each call of the slave in turn."""

    def act(group: Group) -> Callable[[], None]:
        if wakes:
            return lambda: group.work(2 * PERIOD_S, group.master)

        def replace() -> None:
            others = group.watch(group.other)
            others.look(TIMEOUT_S)
            if not group.other.locker.try_acquire() and not group.replace(group.other, others):
                return
            group.take_over(group.other, locked=True)

        return replace

    done = 0
    for nth in range(1, CALLS_MAX):
        group = Group(tmp_path / f"store{nth}")
        assert group.hang(2 * TIMEOUT_S)
        left = at_call(group.slave, nth, act(group))
        try:
            if group.replace(group.slave, group.silence):
                group.take_over(group.slave, locked=True)
        except (OwnershipLostError, OSError):
            group.slave.locker.abandon()
        if left[0] > 0:
            group.close()
            break
        done += 1
        group.work(2 * PERIOD_S, group.slave, group.other, group.master)
        group.check()
        assert sum(each.mastership is not None for each in (group.slave, group.other, group.master)) <= 1
        group.close()
    assert 25 < done < CALLS_MAX - 1, "the calls of a whole takeover"


@pytest.mark.deep
def test_the_slave_stands_still_at_any_of_its_calls(tmp_path: Path) -> None:
    """Meanwhile the master wakes, and goes on where it can; another broker takes over where it cannot."""
    for nth in range(1, CALLS_MAX):
        group = Group(tmp_path / f"store{nth}")
        assert group.hang(2 * TIMEOUT_S)

        def live(group: Group = group) -> None:
            group.work(2 * PERIOD_S, group.master)
            if group.master.mastership is None and group.other.locker.try_acquire():
                group.take_over(group.other, locked=True)
            group.work(PERIOD_S, group.master, group.other)

        left = at_call(group.slave, nth, live, moment="after")
        try:
            if group.replace(group.slave, group.silence):
                group.take_over(group.slave, locked=True)
        except (OwnershipLostError, OSError):
            group.slave.locker.abandon()
        if left[0] > 0:
            group.close()
            return
        group.work(2 * PERIOD_S, group.slave, group.other, group.master)
        group.check()
        group.close()
    raise AssertionError("a takeover has fewer calls")


def masters_that_lose_only_their_claim(group: Group) -> None:
    """The lock file was replaced, and the one that replaced it died behind its claim: the master locks the new file,
    and must see the claim."""
    assert group.hang(2 * TIMEOUT_S)
    assert group.replace(group.slave, group.silence)
    claimed: list[bool] = []

    def die(_seconds: float) -> bool:
        claimed.append(True)
        return True

    assert group.slave.locker.take_over(die, group.slave.seal) is None
    assert claimed
    group.work(2 * PERIOD_S)
    assert group.master.mastership is None


def test_a_claim_behind_a_replaced_file_deposes_the_master(group: Group) -> None:
    masters_that_lose_only_their_claim(group)


# -- signs of a candidate ---------------------------------------------------------------------------------------------


def test_a_candidate_that_seals_for_long_gives_signs(group: Group) -> None:
    group.master.fence()
    watched = group.watch(group.other)
    silent = []

    def seal(previous: Epoch | None) -> dict[str, int]:
        for _ in range(200):
            group.base.advance(PERIOD_S / 10)
            group.slave.locker.sign()
            silent.append(watched.look(TIMEOUT_S))
        return dict(group.slave.seal(previous))

    assert group.slave.locker.try_acquire()
    assert group.slave.locker.take_over(group.slave.pause, seal) is not None
    assert not any(silent)


def test_a_candidate_that_waits_for_a_long_lease_gives_signs(group: Group) -> None:
    """Five periods of its own, or of the one that watches it, may be shorter than the lease that it waits for."""
    assert group.hang(2 * TIMEOUT_S)
    quick, watcher = (Broker(Path(group.store), name, group.base, period_s=PERIOD_S / 10) for name in ("quick", "w"))
    watched, silent = group.watch(watcher), []

    def pause(seconds: float) -> bool:
        group.base.advance(min(seconds, 0.02))
        silent.append(watched.look(0.1))
        return False

    try:
        assert group.replace(quick, group.silence)
        began = group.base.monotonic()
        assert quick.locker.take_over(pause, quick.seal) is not None
        assert group.base.monotonic() - began >= PERIOD_S
        assert not any(silent)
    finally:
        quick.locker.abandon()


# -- the rules, taken out one by one ----------------------------------------------------------------------------------


def _without(*fields: str) -> Callable[[FileElection], Sign | None]:
    real = FileElection.look

    def read(election: FileElection) -> Sign | None:
        sign = real(election)
        return sign and replace(sign, **{field: b"" if field in ("heartbeat", "claim") else (0, 0) for field in fields})

    return read


MUTANTS: dict[str, tuple[object, str, object, Callable[[Group], None]]] = {
    "own pauses count": (
        silence_module,
        "GAP_STEPS",
        math.inf,
        test_time_in_which_the_slave_was_stopped_itself_hardly_counts,
    ),
    "a hanging store counts": (silence_module, "GAP_STEPS", math.inf, test_a_store_that_hangs_hardly_counts),
    "an error is silence": (Silence, "reset", lambda _silence: None, test_an_error_of_the_store_begins_anew),
    "any time-out": (silence_module, "PERIODS", 0, test_five_periods_of_the_master_pass_whatever_the_option_says),
    "heartbeats not read": (FileElection, "look", _without("heartbeat"), test_each_heartbeat_ends_the_silence),
    "claims not read": (FileElection, "look", _without("claim", "claimed"), test_a_claim_ends_the_silence),
    "files not compared": (FileElection, "look", _without("lock"), test_a_new_lock_file_ends_the_silence),
    "no last look": (Silence, "goes_on", lambda _silence: True, test_a_heartbeat_in_the_last_moment_saves_the_master),
    "view not proved": (
        FileEpochs,
        "newest",
        lambda epochs, _asker="", _real=FileEpochs.newest: _real(epochs),
        test_nobody_replaces_whose_view_is_not_proved,
    ),
    "no wait": (
        Locker,
        "_wait_for",
        lambda _locker, _previous: (0.0, ""),
        test_a_master_that_hangs_is_replaced_and_then_deposed,
    ),
    "the claim is not looked at": (
        Locker,
        "_check_claim",
        lambda _locker: None,
        masters_that_lose_only_their_claim,
    ),
    "no signs while waiting": (
        Locker,
        "sign",
        lambda _locker: None,
        test_a_candidate_that_waits_for_a_long_lease_gives_signs,
    ),
    "no signs while sealing": (
        Locker,
        "sign",
        lambda _locker: None,
        test_a_candidate_that_seals_for_long_gives_signs,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_rule_is_needed(group: Group, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    target, attribute, value, test = MUTANTS[name]
    monkeypatch.setattr(target, attribute, value)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(group)
