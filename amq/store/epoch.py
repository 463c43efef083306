"""The port of the epochs: a number that only grows, one for each mastership. Spec: docs/master-slave.md.

Invariants: an epoch comes to be at one moment, whole and durable, for one broker only, whatever the lock service says;
the newest epoch names the sealed length of every segment of all epochs before it that still counts. Older ones are
history and may be removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from amq.store.document import FORMATS
from amq.store.election import IN_STORE, LockPlace
from amq.store.host import Owner

KIND = "epoch"
STORE_VERSION = FORMATS[KIND]  # the version of a store is the format of its newest epoch: here the newest that is read
EPOCHS_KEPT = 64
EPOCH_MAX = (1 << 20) - 2  # a message's seq has the epoch in its upper 20 bits: one more must still find room there


@dataclass(frozen=True, slots=True)
class Epoch:
    """One mastership.

    number            from 1
    owner             the broker that was master
    sealed            segment name → bytes of it that count, for the segments of all epochs before this one
    started_wall_ms   when it began, by the owner's wall clock; for people
    reason            why the owner could begin; for people
    format            that of its file, and so the version of the store as long as this epoch is the newest
    lock              where the owner's lock and claim are
    """

    number: int
    owner: Owner
    sealed: Mapping[str, int]
    started_wall_ms: int
    reason: str
    format: int = STORE_VERSION
    lock: LockPlace = IN_STORE


class Epochs(Protocol):
    """The epochs of a store. Every call may hang in the store, and raises OSError where the store fails."""

    def check(self) -> None:
        """Raises StoreError if no broker was ever master here."""
        ...

    def numbers(self) -> list[int]:
        """Those of the epochs that are kept, the oldest first. Raises FileNotFoundError where no broker was ever
        master."""
        ...

    def newest_number(self) -> int:
        """0 = none. It may be seconds old on a network file system."""
        ...

    def read(self, number: int) -> Epoch:
        """Raises CorruptError, NewerFormatError, FileNotFoundError."""
        ...

    def newest(self, asker: str = "") -> Epoch | None:
        """The newest epoch, None where there is none. `asker`, a name that nobody else uses, asks for the answer of
        the store, where otherwise a network client may give an older one; for brokers alone. Raises CorruptError,
        NewerFormatError."""
        ...

    def all(self) -> list[Epoch]:
        """All epochs that are kept, oldest first. Raises CorruptError, NewerFormatError."""
        ...

    def place(self, number: int) -> str:
        """Where that epoch is, for people."""
        ...

    def size(self, number: int) -> int:
        """How many bytes the store has of that epoch. Raises FileNotFoundError."""
        ...

    def make(self) -> None:
        """Make what is missing for epochs, durably."""
        ...

    def link(self, epoch: Epoch, attempt: str) -> bool:
        """Make `epoch` real, durably; False where that number is somebody else's.

        `attempt` is unique for this call among all brokers of the store. After an OSError it is unknown whether the
        epoch exists: the caller is not its master, ever.
        """
        ...

    def prune(self, own: Epoch, keep: int = EPOCHS_KEPT) -> int:
        """Remove epochs far older than `own`, and what takeovers left that died. Returns how many.

        For the master of `own`, right after a successful lease check. Harmless even when it has been deposed
        meanwhile: the newest epoch carries every sealed length, and an epoch that was not linked does not come to be.
        """
        ...
