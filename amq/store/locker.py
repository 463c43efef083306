"""The locker: the interface through which a service takes part in the election, and the one table of its states.

Invariant: an event that the table does not allow raises and leaves the state unchanged. `files.shared_file` implements
it on files; where these are, in a directory or in a database, is the door's matter. A quorum service would be another
implementation under the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from amq.store.epoch import Epoch
from amq.store.lease import Lease


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


class Locker(Protocol):
    """One broker's part in the election. All calls but `abandon` from one thread, which may hang in them."""

    @property
    def state(self) -> LockerState: ...

    def try_acquire(self) -> bool:
        """Try once to get the lock. Raises StoreError (needs a person), OSError (try again later)."""
        ...

    def holder(self) -> str:
        """The apparent holder of the lock, for people; "" = unknown."""
        ...

    def release_mark(self) -> Mapping[str, Any] | None:
        """The release mark of the newest epoch, where it says more than that the epoch is over: `to`, `failover`; None
        = no such mark, or none that can be read. Raises OSError."""
        ...

    def can_replace(self) -> bool:
        """Whether `replace` works on this store. Raises OSError."""
        ...

    def replace(self, silent_s: float, goes_on: Callable[[], bool]) -> bool:
        """Take the lock from a holder that has given no sign of life for `silent_s` seconds. True = the lock is ours;
        False where the holder, or another broker, was quicker. `goes_on()` looks once more, after this broker has
        proved its own view of the store. Raises StoreError, OSError."""
        ...

    def sign(self) -> None:
        """A sign of life of a candidate that waits or seals, to be called now and then. Raises OwnershipLostError,
        OSError."""
        ...

    def take_over(
        self, pause: Callable[[float], bool], seal: Callable[[Epoch | None], Mapping[str, int]]
    ) -> Term | None:
        """With the lock, become master. None where `pause(seconds)` returned True (stop).

        Raises OwnershipLostError (another broker won: poll again), StoreError, OSError. The lock is ours afterwards
        only if a Term was returned.
        """
        ...

    def release(self, to: str = "", failover: bool = True) -> None:
        """Hand over cleanly; the caller has written and fsynced its last. `to` = the broker that takes over, "" = any;
        none if not `failover`. Raises OwnershipLostError, OSError."""
        ...

    def abandon(self) -> bool:
        """Let go of everything at once, writing nothing; any thread. False = a call still hangs in the store: it lets
        go when it returns, until then this locker cannot be used again."""
        ...
