"""The locker: how one broker becomes the master of a store, stays it, and ends. Spec: docs/master-slave.md.

It is made of two ports, the election (lock, claim, heartbeats) and the epochs, and knows no adapter of them.

Invariants:
- An event that the table of states does not allow raises and leaves the state unchanged.
- The claim of a master is written before its epoch exists and never again. So once a candidate's claim is durable, no
  check that the master starts later succeeds, whatever happens to the lock.
- The candidate reads the newest epoch number before it claims and links exactly the next one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from amq.core.errors import AmqError, CorruptError, NewerFormatError, OwnershipLostError, StoreError, StoreFullError
from amq.doors.clock import Clock
from amq.store.document import decode, encode
from amq.store.election import HEARTBEAT, RECORD_BYTES, RELEASE, LockPlace
from amq.store.epoch import Epoch
from amq.store.host import Host, Owner, is_here, provably_gone
from amq.store.lease import Lease
from amq.store.port import Store
from amq.store.segment_log import FULL_ERRNOS

CLOCK_DRIFT_MAX = 0.01
GONE_POLL_S = 0.01


class LockerState(Enum):
    """UNLOCKED  slave: the lock is not ours
    LOCKED       the lock is ours; the old master may still be confirming
    CLAIMED      our claim is durable; no check that the old master starts from now on succeeds
    EXPIRED      the old master's lease is over; sealing
    MASTER       our epoch exists
    """

    UNLOCKED = "unlocked"
    LOCKED = "locked"
    CLAIMED = "claimed"
    EXPIRED = "expired"
    MASTER = "master"


class LockerEvent(Enum):
    LOCK = "lock"
    CLAIM = "claim"
    EXPIRE = "expire"
    LINK = "link"
    REGAIN = "regain"
    RELEASE = "release"
    ABANDON = "abandon"


TRANSITIONS: Mapping[LockerState, Mapping[LockerEvent, LockerState]] = {
    LockerState.UNLOCKED: {
        LockerEvent.LOCK: LockerState.LOCKED,
        LockerEvent.RELEASE: LockerState.UNLOCKED,
        LockerEvent.ABANDON: LockerState.UNLOCKED,
    },
    LockerState.LOCKED: {
        LockerEvent.CLAIM: LockerState.CLAIMED,
        LockerEvent.RELEASE: LockerState.UNLOCKED,
        LockerEvent.ABANDON: LockerState.UNLOCKED,
    },
    LockerState.CLAIMED: {
        LockerEvent.EXPIRE: LockerState.EXPIRED,
        LockerEvent.ABANDON: LockerState.UNLOCKED,
    },
    LockerState.EXPIRED: {
        LockerEvent.LINK: LockerState.MASTER,
        LockerEvent.ABANDON: LockerState.UNLOCKED,
    },
    LockerState.MASTER: {
        LockerEvent.REGAIN: LockerState.MASTER,
        LockerEvent.RELEASE: LockerState.UNLOCKED,
        LockerEvent.ABANDON: LockerState.UNLOCKED,
    },
}


class LockerStateError(AssertionError):
    """The locker was asked for something that its state does not allow: a mistake in the program."""


def next_state(state: LockerState, event: LockerEvent) -> LockerState:
    """The state after `event`. Raises LockerStateError."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise LockerStateError(f"event {event.value!r} is not allowed in state {state.value!r}") from None


@dataclass(frozen=True, slots=True)
class Term:
    """A takeover that succeeded.

    epoch      ours
    previous   the epoch before it, None at the first start of a store
    lease      proved once: up to `lease.deadline` this broker may confirm
    waited_s   how long it waited for the old master's lease
    """

    epoch: Epoch
    previous: Epoch | None
    lease: Lease
    waited_s: float


class Locker:
    """The part of broker `owner` in the election of `store`. One thread at a time, except `abandon`.

    An owner that finds its own uuid in the newest epoch does not wait: make a second locker for one owner only when the
    first was released or abandoned.
    """

    def __init__(self, store: Store, clock: Clock, host: Host, owner: Owner) -> None:
        self.owner = owner
        self._store = store.name
        self._election = store.election
        self._epochs = store.epochs
        self._elsewhere = store.elsewhere
        self._clock = clock
        self._host = host
        self._state = LockerState.UNLOCKED
        self._claim = b""
        self._epoch: Epoch | None = None
        self._lease: Lease | None = None
        self._attempts = 0
        self._heartbeats = 0
        self._missing_since = math.inf
        self._replaced = ""  # why this lock is not the one of the last master
        self._signed = -math.inf
        self._doomed = False
        self._busy = threading.Lock()  # held while a call of this locker runs; never waited for

    @property
    def state(self) -> LockerState:
        return self._state

    def try_acquire(self, *, at_once: bool = False) -> bool:
        """Try once, without waiting, to get the lock; False where somebody else has it. A lock that is missing is left
        to its master for a period, unless `at_once`.

        Raises StoreError where a person must act, OSError where it may work later.
        """
        with self._call():
            next_state(self._state, LockerEvent.LOCK)
            since, self._missing_since = self._missing_since, math.inf
            try:
                if not self._election.try_acquire(lambda: not at_once and self._leave_to_master(since)):
                    return False
            except BaseException:
                self._election.let_go()
                raise
            self._replaced = ""
            self._enter(LockerEvent.LOCK)
            return True

    def check_place(self) -> None:
        """Raises StoreError where brokers of this store may have their lock elsewhere, OSError."""
        with suppress(CorruptError, NewerFormatError):  # the takeover judges it
            previous = self._epochs.newest()
            self._check_place(previous, self._wait_for(previous)[0])

    def can_replace(self) -> bool:
        """Whether `replace` works on this store. Raises OSError."""
        return self._election.can_replace()

    def replace(self, silent_s: float, goes_on: Callable[[], bool]) -> bool:
        """Put another lock in the place of one whose holder has given no sign of life for `silent_s` seconds. True =
        the lock is ours; False where the holder, or another broker, was quicker.

        `goes_on()` looks once more, after this broker has proved its own view: the store takes a name that it makes,
        and lists the epochs afresh. Raises StoreError, OSError.
        """
        with self._call():
            next_state(self._state, LockerEvent.LOCK)
            try:
                newest = self._epochs.newest(self.owner.uuid)
                if not goes_on() or not self._election.replace(self.owner.uuid):
                    return False
            except BaseException:
                self._election.let_go()
                raise
            who = newest.owner.describe() if newest is not None else "its holder"
            self._replaced = f"{who} gave no sign of life for {silent_s:.1f} s: its lock file was replaced"
            self._enter(LockerEvent.LOCK)
            return True

    def holder(self) -> str:
        """The writer of the last heartbeat, for the log; "" = unknown."""
        try:
            body = self._election.read(HEARTBEAT)
            return Owner.from_json(body["owner"], HEARTBEAT).describe(self.owner) if body else ""
        except (AmqError, OSError, LookupError, AttributeError):
            return ""  # being written just now, or not ours to judge: the caller only wants a name to print

    def release_mark(self) -> Mapping[str, Any] | None:
        """The release mark of the newest epoch, where it says more than that the epoch is over; None = no such mark, or
        none that can be read. Raises OSError.
        """
        try:
            mark = self._election.read(RELEASE)
            if mark is None or not (mark.get("to") or mark.get("failover") is False):
                return None
            newest = self._epochs.newest()
        except (FileNotFoundError, AmqError):
            return None
        if newest is None or (mark.get("epoch"), mark.get("uuid")) != (newest.number, newest.owner.uuid):
            return None
        return mark

    def take_over(
        self, pause: Callable[[float], bool], seal: Callable[[Epoch | None], Mapping[str, int]]
    ) -> Term | None:
        """With the lock: claim, wait, seal, link the next epoch. None where `pause(seconds)` returned True.

        `seal(previous)` returns {segment name: sealed length} of every segment in the store, each fsynced before it was
        measured; what `previous.sealed` names keeps its length, what is older than `previous` and not named there has
        length 0. Raises OwnershipLostError (another broker won), StoreError, OSError. Unless a Term is returned
        the lock is given up.
        """
        with self._call():
            next_state(self._state, LockerEvent.CLAIM)
            mastership = None
            try:
                mastership = self._take_over(pause, seal)
            except OSError as error:
                if error.errno in FULL_ERRNOS:
                    raise StoreFullError(
                        f"no room in {self._store} for a claim and an epoch: free some space there and try again"
                    ) from error
                raise
            finally:
                if mastership is None:
                    self._let_go()
        if mastership is not None:
            try:
                mastership.lease.check()
                self._epochs.prune(mastership.epoch)
            except BaseException:
                self.abandon()
                raise
        return mastership

    def claim(self) -> None:
        """With the lock, before a takeover: make a claim of ours the newest one. No check of an older master that
        starts later succeeds, and a store that fences takes changes of this broker from now on. The takeover claims
        again. Raises OwnershipLostError, OSError.
        """
        with self._call():
            next_state(self._state, LockerEvent.CLAIM)
            self._attempts += 1
            self._put_claim(0, f"{self.owner.uuid}-{self._attempts}")

    def sign(self) -> None:
        """A sign of life of a candidate that waits or seals, to be called now and then: a heartbeat, three times a
        period at most. Raises OwnershipLostError, OSError.
        """
        assert self._state in (LockerState.CLAIMED, LockerState.EXPIRED)
        now = self._clock.monotonic()
        if now >= self._signed + self.owner.lock_keep_alive_period_s / 3:
            self._signed = now
            self._heartbeat()

    def prove(self) -> None:
        """A lease check proves, in this order: the path leads to our lock (else it is regained), a heartbeat goes
        through the locked descriptor, the newest claim is ours, no newer epoch exists. Raises OwnershipLostError,
        OSError. Where the lock cannot be reached the store itself may prove it, if it has copies.
        """
        with self._call():
            self._prove()

    def release(self, to: str = "", failover: bool = True) -> None:
        """Hand over: as master leave the durable mark "epoch over, all is written", then unlock. The mark also says to
        which broker, "" = any, and whether slaves may take over. Raises OwnershipLostError, OSError; the lock is given
        up in any case."""
        with self._call():
            next_state(self._state, LockerEvent.RELEASE)
            try:
                if self._lease is not None:
                    self._lease.revoke()
                if self._state is LockerState.MASTER and self._epoch is not None:
                    body = {
                        "epoch": self._epoch.number,
                        "uuid": self.owner.uuid,
                        "wall_ms": self._clock.wall_ms(),
                        "to": to,
                        "failover": failover,
                    }
                    self._election.write(RELEASE, _record(RELEASE, body))
            finally:
                self._let_go(LockerEvent.RELEASE)

    def abandon(self) -> bool:
        """Fence: revoke the lease at once, then close all and write nothing. Any thread; never waits for a call that
        hangs.

        False = such a call still hangs in the store: replace the process, or wait until it returns and closes by
        itself. The close itself may hang, too: where that must not be, call `lease.revoke()` first, which touches no
        store.
        """
        lease = self._lease
        if lease is not None:
            lease.revoke()
        self._doomed = True
        return self._bury()

    # -- takeover ----------------------------------------------------------------------------------------------------

    def _take_over(
        self, pause: Callable[[float], bool], seal: Callable[[Epoch | None], Mapping[str, int]]
    ) -> Term | None:
        self._attempts += 1
        attempt = f"{self.owner.uuid}-{self._attempts}"
        self._epochs.make()
        previous = self._epochs.newest(self.owner.uuid)  # before the claim
        number = previous.number + 1 if previous is not None else 1
        wait_s, reason = self._wait_for(previous)
        place = self._check_place(previous, wait_s)
        self._write_claim(number, attempt)
        claimed = self._clock.monotonic()
        # A killed process frees its lock a moment before it is gone: on one host look again instead of waiting it out.
        old = previous.owner if previous is not None and is_here(previous.owner, self._host) else None
        step_s = GONE_POLL_S if old is not None else self.owner.lock_keep_alive_period_s / 3
        while (left_s := claimed + wait_s - self._clock.monotonic()) > 0:
            self.sign()  # the lease that it waits for may be longer than the time-out of others
            if pause(min(left_s, step_s)):
                return None
            self._go_on()
            if old is not None and provably_gone(old, self._host):
                reason = f"{old.describe()} is gone from this host"
                break
        waited_s = self._clock.monotonic() - claimed
        if self._election.can_vouch:
            self._signed = claimed  # the copies have just promised; a later claim is met at the link
        else:
            self._prove()
        self._enter(LockerEvent.EXPIRE)
        try:
            sealed = dict(seal(previous))
        except StoreError:
            # Somebody who overtook us changes the store, before our claim or after it: no damage, but our loss.
            self._prove()
            newest = self._epochs.newest(self.owner.uuid)
            if newest is not None and newest.number >= number:
                raise OwnershipLostError(f"another broker took epoch {newest.number}") from None
            raise
        if previous is not None:
            assert all(previous.sealed.get(name, end) == end for name, end in sealed.items()), "a seal was broken"
        self._go_on()
        reason = "; ".join(filter(None, (self._replaced, reason)))
        epoch = Epoch(number, self.owner, sealed, self._clock.wall_ms(), reason, lock=place)
        if not self._epochs.link(epoch, attempt):
            raise OwnershipLostError(f"another broker took epoch {number}")
        self._epoch = epoch
        self._enter(LockerEvent.LINK)
        self._lease = Lease(
            self.prove,
            self._clock,
            self.owner.lock_keep_alive_period_s,
            self._election.vouches if self._election.can_vouch else None,
        )
        return Term(epoch, previous, self._lease, waited_s if wait_s else 0.0)

    def _wait_for(self, previous: Epoch | None) -> tuple[float, str]:
        """Seconds after our claim until the owner of `previous` can confirm nothing any more, and why so."""
        if previous is None:
            return 0.0, "first start of this store"
        owner = previous.owner
        if owner.uuid == self.owner.uuid:
            return 0.0, "this broker gave its own last epoch up"  # `_let_go` revoked that lease
        if self._released(previous):
            return 0.0, f"{owner.describe()} released epoch {previous.number}"
        if provably_gone(owner, self._host):
            return 0.0, f"{owner.describe()} is gone from this host"
        if self._election.shuts_out:
            return 0.0, f"the claim shuts {owner.describe()} out of the store"
        wait_s = owner.lock_keep_alive_period_s * (1 + CLOCK_DRIFT_MAX)
        return wait_s, f"the lease of {owner.describe()} ran out"

    def _check_place(self, previous: Epoch | None, wait_s: float) -> LockPlace:
        """Where our claim stands. A master that looks for claims elsewhere does not see it, so its lease would not end:
        it must be over, which `wait_s` = 0 says. Raises StoreError, OSError."""
        place = self._election.place()
        if previous is not None and wait_s and previous.lock.identity != place.identity:
            raise StoreError(
                f"the last master of {self._store}, {previous.owner.describe(self.owner)}, had its lock in "
                f"{previous.lock.describe()}, this broker has it in {place.describe()}: give all brokers the same "
                "`locker`; to change it, stop all of them in good order first",
                code="LOCK_ELSEWHERE",
            )
        return place

    def _released(self, epoch: Epoch) -> bool:
        """Whether the owner of `epoch` left its mark. A mark that cannot be read is none: we wait."""
        same = epoch.lock.identity == self._election.place().identity
        try:
            election = self._election if same else self._elsewhere(epoch.lock.url)
            body = election.read(RELEASE)
        except (AmqError, FileNotFoundError):
            return False
        except OSError:
            if same:
                raise
            return False  # that database may be gone for ever
        return body is not None and (body.get("epoch"), body.get("uuid")) == (epoch.number, epoch.owner.uuid)

    def _write_claim(self, number: int, attempt: str) -> None:
        self._put_claim(number, attempt)
        self._enter(LockerEvent.CLAIM)
        self._go_on()

    def _put_claim(self, number: int, attempt: str) -> None:
        """Make our claim the newest one, durably."""
        self._claim = _record("claim", {"epoch": number, "attempt": attempt, "name": self.owner.name})
        self._election.claim(self._claim)

    # -- proof -------------------------------------------------------------------------------------------------------

    def _prove(self) -> None:
        try:
            self._prove_by_lock()
        except OSError:
            if self._epoch is None or not self._election.vouches():
                raise
        self._go_on()

    def _prove_by_lock(self) -> None:
        if not self._election.holds():
            self._regain()
        self._heartbeat()
        self._check_claim()
        if self._epoch is not None:
            self._check_epoch(self._epoch.number)

    def _heartbeat(self) -> None:
        self._go_on()
        self._heartbeats += 1
        body = {
            "owner": self.owner.to_json() | {"transport_urls": []},
            "epoch": self._epoch.number if self._epoch is not None else 0,
            "count": self._heartbeats,
            "wall_ms": self._clock.wall_ms(),
        }
        self._election.write(HEARTBEAT, _record(HEARTBEAT, body))

    def _check_claim(self) -> None:
        """Any byte that is not of our claim is somebody else's claim, or the torn beginning of one."""
        self._go_on()
        try:
            found = self._election.read_claim()
        except FileNotFoundError as error:
            raise OwnershipLostError(f"{error.filename} was removed: it is not known who claimed the store") from None
        if found != self._claim:
            raise OwnershipLostError(f"another broker claimed the store: {_claimant(found)}")

    def _check_epoch(self, own: int) -> None:
        self._go_on()
        number = self._epochs.newest_number()
        if number != own:
            raise OwnershipLostError(f"newest epoch is {number}, ours is {own}: another broker is master")

    def _regain(self) -> None:
        """The lock was removed or replaced: get the one that is there. The claim, which is checked next, decides
        whether another broker was quicker and acts on it."""
        if self._state is not LockerState.MASTER:
            raise OwnershipLostError("the lock was removed or replaced while this broker took over")
        self._go_on()
        self._election.regain(self.owner.uuid)
        self._enter(LockerEvent.REGAIN)

    def _leave_to_master(self, since: float) -> bool:
        """A master whose lock was removed makes it again within a period: do not race with it for that long. It has
        been missing `since` then, inf = it was there."""
        newest = self._epochs.newest()
        if newest is None or newest.owner.uuid == self.owner.uuid or provably_gone(newest.owner, self._host):
            return False
        now = self._clock.monotonic()
        self._missing_since = min(since, now)
        return now - self._missing_since < newest.owner.lock_keep_alive_period_s

    # -- one call at a time, and its end -----------------------------------------------------------------------------

    @contextmanager
    def _call(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise OwnershipLostError("an earlier call of this locker still hangs in the store")
        try:
            self._go_on()
            yield
        finally:
            self._busy.release()
            if self._doomed:
                self._bury()

    def _go_on(self) -> None:
        if self._doomed:
            raise OwnershipLostError("this broker was fenced")

    def _bury(self) -> bool:
        """Close what a doomed locker holds, unless a call is running: that one does it at its end."""
        if not self._busy.acquire(blocking=False):
            return False
        try:
            if self._doomed:
                self._let_go()
                self._doomed = False
        finally:
            self._busy.release()
        return True

    def _let_go(self, event: LockerEvent = LockerEvent.ABANDON) -> None:
        if self._lease is not None:
            self._lease.revoke()
        self._lease = None
        self._epoch = None
        self._claim = b""
        self._election.let_go()
        self._enter(event)

    def _enter(self, event: LockerEvent) -> None:
        self._state = next_state(self._state, event)


def _record(kind: str, body: Mapping[str, object]) -> bytes:
    data = encode(kind, body, RECORD_BYTES)
    assert len(data) == RECORD_BYTES
    return data


def _claimant(data: bytes) -> str:
    try:
        body = decode("claim", data, "the claim")
    except CorruptError:
        return "the claim is not whole"
    except StoreError as error:
        return error.description
    return f"broker {body.get('name')!r} for epoch {body.get('epoch')}"
