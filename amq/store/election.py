"""The port of the election: the lock of a store, and what brokers write beside it, in the words of the domain.

The holder writes heartbeats through the lock and, as its last act, a release mark. A candidate that has the lock writes
a claim. `amq.store.locker` makes one master of that and of the epochs; an adapter answers for one kind of store and
decides nothing. Invariants: what is written is durable when the call returns; what is read is what the store has now,
never what a cache of this host remembers, except where a call says so.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from amq.core.errors import AmqError
from amq.doors.threads import Threads
from amq.store.document import decode
from amq.store.host import Owner

# After a sign that the master is gone, try at these intervals (seconds) before going back to sleep: a kernel tells of
# the end of a killed master microseconds before it drops the lock.
RETRY_DELAYS_S = (0.0, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.04)
RECORD_BYTES = 4096  # of a claim, a heartbeat and a release mark: each covers the one before it
HEARTBEAT, RELEASE = "heartbeat", "release"


class LockPlace(NamedTuple):
    """Where the lock and the claims of a store are: `identity` of a database or coordinator, and the `url` by which it
    was reached. Blank: they are in the store itself."""

    identity: str = ""
    url: str = ""

    def describe(self) -> str:
        return self.url if self.identity else "a file of the store"


IN_STORE = LockPlace()


@dataclass(frozen=True, slots=True)
class Sign:
    """The last words of the holder of the lock. Two signs are equal if nothing was said in between.

    lock, heartbeat   which lock that is, and what its holder last wrote through it
    claimed, claim    where the newest claim is, None = nowhere, and what it says
    """

    lock: Hashable
    heartbeat: bytes
    claimed: Hashable
    claim: bytes

    def period_s(self) -> float | None:
        """The lockKeepAlivePeriod of the holder, None where that cannot be told."""
        try:
            owner = decode(HEARTBEAT, self.heartbeat, HEARTBEAT)["owner"]
            return Owner.from_json(owner, HEARTBEAT).lock_keep_alive_period_s
        except (AmqError, LookupError, AttributeError):
            return None  # being written just now, or never written


class Election(Protocol):
    """One member's view of the lock of its store, and its hold on it. Every call may hang in the store, and raises
    OSError where the store fails. One thread at a time."""

    @property
    def shuts_out(self) -> bool:
        """Whether the store itself refuses whatever a broker writes to journal, checkpoints and epochs once a later
        claim than its own is durable."""
        ...

    @property
    def can_vouch(self) -> bool:
        """Whether `vouches` may return True."""
        ...

    def place(self) -> LockPlace:
        """Where the lock is. Raises StoreError."""
        ...

    def make(self) -> None:
        """Make what is missing for a lock. Raises StoreError."""
        ...

    def watch(
        self, wake: Callable[[], None], threads: Threads, is_slave: Callable[[], bool]
    ) -> AbstractContextManager[OSError | None]:
        """While the block runs, call `wake()` from another thread when something happens to the lock. Yields None, or
        the reason why nothing can be watched here: poll. A wake-up proves nothing."""
        ...

    # -- looking ------------------------------------------------------------------------------------------------------

    def look(self) -> Sign | None:
        """The last sign of life of the holder; None = there is no lock."""
        ...

    def is_held(self) -> bool:
        """Whether somebody else than this member holds the lock. The answer may be old on a network file system: for
        patience, never for safety. Raises FileNotFoundError where there is no lock."""
        ...

    def read(self, kind: str) -> Mapping[str, Any] | None:
        """The last HEARTBEAT or RELEASE that was written through the lock; None = none was. Raises FileNotFoundError
        where there is no lock, CorruptError (torn, or being written just now), NewerFormatError."""
        ...

    # -- holding ------------------------------------------------------------------------------------------------------

    def try_acquire(self, leave: Callable[[], bool]) -> bool:
        """Try once, without waiting, to get the lock. Where there is none, `leave()` says whether that is left so; else
        it is made. Raises StoreError where a person must act."""
        ...

    def holds(self) -> bool:
        """Whether the lock that this member got is still the lock of the store. An OSError may say that it is gone for
        good. Raises OwnershipLostError where this member got none."""
        ...

    def regain(self, asker: str) -> None:
        """Get the lock that is there now in place of the one that was removed or replaced; make it where it is missing.
        Raises OwnershipLostError where another broker was quicker. `asker` is unique for this member."""
        ...

    def vouches(self) -> bool:
        """Whether the store proves without lock and claim that no other member has linked an epoch before this call.
        Takes seconds at most, in any thread. Raises OwnershipLostError."""
        ...

    def can_replace(self) -> bool:
        """Whether `replace` works on this store."""
        ...

    def replace(self, asker: str) -> bool:
        """Put a lock that this member holds in the place of one that another member holds. False = another broker was
        quicker. `asker` is unique for this member."""
        ...

    def write(self, kind: str, data: bytes) -> None:
        """Write a HEARTBEAT or a RELEASE through the lock. Raises OwnershipLostError where this member has given it
        up."""
        ...

    def let_go(self) -> None:
        """Give the lock up, writing nothing."""
        ...

    # -- claiming -----------------------------------------------------------------------------------------------------

    def claim(self, data: bytes) -> None:
        """Make `data` the newest claim."""
        ...

    def read_claim(self) -> bytes:
        """The newest claim. Raises FileNotFoundError where somebody removed it."""
        ...
