"""The port of the election: what a broker asks of a store to become its one master, in the words of the domain.

An adapter answers for one kind of store: `files.election` for a directory, also one whose lock is in a database, and
for a database by its door of files. Nothing above this port names an adapter, a file or a lock. Invariant: an election
hands out what it saw; it decides nothing about when a broker tries (`amq.node`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from amq.doors.threads import Threads
from amq.store.host import Owner
from amq.store.locker import Locker

# After a sign that the master is gone, try at these intervals (seconds) before going back to sleep: a kernel tells of
# the end of a killed master microseconds before it drops the lock.
RETRY_DELAYS_S = (0.0, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.04)


class Sign(Protocol):
    """The last words of the holder of the lock. Two signs are equal where the holder has said nothing in between."""

    def period_s(self) -> float | None:
        """The lockKeepAlivePeriod of their writer, None where that cannot be told."""
        ...


class Election(Protocol):
    """One broker's view of the election of a store. For the lease thread: every call may hang in the store."""

    def make(self) -> None:
        """Make what is missing of the store, inside what exists. Raises StoreError where a person must act, OSError."""
        ...

    def locker(self, owner: Owner) -> Locker:
        """The part of broker `owner`. One for all its terms: it numbers its attempts, and no two may write the same
        claim. Raises StoreError where brokers of this store may have their lock elsewhere, OSError."""
        ...

    def watch(
        self, wake: Callable[[], None], threads: Threads, is_slave: Callable[[], bool]
    ) -> AbstractContextManager[OSError | None]:
        """While the block runs, call `wake()` from another thread when something happens to the lock. Yields None, or
        the reason why nothing can be watched here: poll. A wake-up proves nothing."""
        ...

    def sign(self) -> Sign | None:
        """The last sign of life of the holder, as the store has it now; None = nobody has held the lock. Raises
        OSError."""
        ...

    def is_held(self) -> bool:
        """Whether somebody holds the lock. The answer may be old on a network file system: for patience, never for
        safety. Raises OSError."""
        ...
