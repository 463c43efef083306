"""The port of the epochs: a number that only grows, one for each mastership. Spec: docs/master-slave.md.

Invariants: an epoch comes to be at one moment, whole and durable, for one broker only, whatever the lock service says;
the newest epoch names the sealed length of every segment of all epochs before it that still counts. Older ones are
history and may be removed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from amq.core.errors import CorruptError
from amq.store.document import FORMATS, decode_any, encode, field
from amq.store.election import IN_STORE, LockPlace
from amq.store.host import Owner

KIND = "epoch"
STORE_VERSION = FORMATS[KIND]  # the version of a store is the format of its newest epoch: here the newest that is read
EPOCHS_KEPT = 64
EPOCH_MAX = (1 << 20) - 2  # a message's seq has the epoch in its upper 20 bits: one more must still find room there
_NAME = re.compile(r"([0-9]{10})\.json")


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


def epoch_name(number: int) -> str:
    """The name under which a store keeps the document of that epoch."""
    return f"{number:010d}.json"


def epoch_numbers(names: Iterable[str]) -> list[int]:
    """Those of all epochs among the names of documents, the oldest first."""
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def read_epochs(numbers: Sequence[int], read: Callable[[int], Epoch]) -> list[Epoch]:
    """The epochs that were listed as `numbers`, in order. Raises FileNotFoundError where the newest is not there."""
    epochs = []
    for number in numbers:
        try:
            epochs.append(read(number))
        except FileNotFoundError:
            if number == numbers[-1]:  # older ones may have been pruned meanwhile, the newest never is
                raise
    return epochs


def epoch_json(epoch: Epoch) -> dict[str, Any]:
    """The body of its document."""
    return {
        "number": epoch.number,
        "owner": epoch.owner.to_json(),
        "sealed": dict(epoch.sealed),
        "started_wall_ms": epoch.started_wall_ms,
        "reason": epoch.reason,
        **({"lock": epoch.lock._asdict()} if epoch.lock.identity else {}),
    }


def encode_epoch(epoch: Epoch, attempt: str = "") -> bytes:
    """Its document. `attempt` makes it unlike that of every other broker."""
    return encode(KIND, {**epoch_json(epoch), **({"attempt": attempt} if attempt else {})})


def epoch_of(body: Mapping[str, Any], path: str, version: int = STORE_VERSION) -> Epoch:
    """The epoch of which `epoch_json` is `body`, in a document of format `version`. Raises CorruptError."""
    sealed = field(body, "sealed", dict, path)
    for name in sealed:
        if field(sealed, name, int, path) < 0:
            raise CorruptError(path, 0, f"sealed length of {name!r} is negative")
    lock = field(body, "lock", dict, path) if "lock" in body else {}
    place = LockPlace(*(field(lock, name, str, path) for name in LockPlace._fields)) if lock else IN_STORE
    return Epoch(
        field(body, "number", int, path),
        Owner.from_json(field(body, "owner", dict, path), path),
        sealed,
        field(body, "started_wall_ms", int, path),
        field(body, "reason", str, path),
        version,
        place,
    )


def decode_epoch(number: int, data: bytes, path: str) -> Epoch:
    """The epoch `number`, whose document at `path` is `data`. Raises CorruptError, NewerFormatError."""
    version, body = decode_any(KIND, data, path)
    epoch = epoch_of(body, path, version)
    if epoch.number != number:
        raise CorruptError(path, 0, f"file says that it is epoch {epoch.number}")
    if number > EPOCH_MAX:
        raise CorruptError(path, 0, f"no store has had more than {EPOCH_MAX} epochs: no broker has written this file")
    return epoch


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
        """Remove epochs far older than `own`, and what takeovers left that died. Returns how many; where the store does
        it after the call, 0.

        For the master of `own`, right after a successful lease check. Harmless even when it has been deposed
        meanwhile: the newest epoch carries every sealed length, and an epoch that was not linked does not come to be.
        """
        ...
