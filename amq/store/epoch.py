"""Epochs: a number that only grows, one for each mastership. Spec: docs/master-slave.md.

`epochs/<number>.json` is finished under a temporary name, fsynced and then linked into place. The link is the
compare-and-swap on which everything rests: it succeeds for one broker only, whatever the lock service says. So a
damaged epoch file is never the work of a crash.

Invariant: the newest epoch names the sealed length of every segment of all epochs before it that still counts. Older
epoch files are history and may be removed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from amq.core.errors import CorruptError
from amq.store.document import FORMATS, decode_any, encode, field, read_file
from amq.store.files.vfs import IN_STORE, LockPlace, Vfs, listdir_fresh, write_all
from amq.store.host import Owner

EPOCHS_DIRECTORY = "epochs"
KIND = "epoch"
STORE_VERSION = FORMATS[KIND]  # the version of a store is the format of its newest epoch: here the newest that is read
EPOCHS_KEPT = 64
EPOCH_MAX = (1 << 20) - 2  # a message's seq has the epoch in its upper 20 bits: one more must still find room there
_NAME = re.compile(r"([0-9]{10})\.json")
_TEMPORARY = ".tmp"


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

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "owner": self.owner.to_json(),
            "sealed": dict(self.sealed),
            "started_wall_ms": self.started_wall_ms,
            "reason": self.reason,
            **({"lock": self.lock._asdict()} if self.lock.identity else {}),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any], path: str, version: int = STORE_VERSION) -> Epoch:
        """The epoch that `to_json` wrote, in a file of format `version`. Raises CorruptError."""
        sealed = field(body, "sealed", dict, path)
        for name in sealed:
            if field(sealed, name, int, path) < 0:
                raise CorruptError(path, 0, f"sealed length of {name!r} is negative")
        lock = field(body, "lock", dict, path) if "lock" in body else {}
        place = LockPlace(*(field(lock, name, str, path) for name in LockPlace._fields)) if lock else IN_STORE
        return cls(
            field(body, "number", int, path),
            Owner.from_json(field(body, "owner", dict, path), path),
            sealed,
            field(body, "started_wall_ms", int, path),
            field(body, "reason", str, path),
            version,
            place,
        )


def epoch_path(store: str, number: int) -> str:
    return os.path.join(store, EPOCHS_DIRECTORY, f"{number:010d}.json")


class Epochs(Protocol):
    """The epochs of a store, to be read."""

    def newest_number(self) -> int:
        """0 = none. Raises OSError."""
        ...

    def read(self, number: int) -> Epoch:
        """Raises CorruptError, NewerFormatError, OSError."""
        ...


def newest_number(names: list[str]) -> int:
    """The highest epoch number among the file names of the epochs directory, 0 = none."""
    return max(epoch_numbers(names), default=0)


def epoch_numbers(names: list[str]) -> list[int]:
    """Those of all epochs among the file names of the epochs directory, the oldest first."""
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def read_epoch(vfs: Vfs, store: str, number: int) -> Epoch:
    """Raises CorruptError, NewerFormatError, OSError."""
    path = epoch_path(store, number)
    version, body = decode_any(KIND, read_file(vfs, path), path)
    epoch = Epoch.from_json(body, path, version)
    if epoch.number != number:
        raise CorruptError(path, 0, f"file says that it is epoch {epoch.number}")
    if number > EPOCH_MAX:
        raise CorruptError(path, 0, f"no store has had more than {EPOCH_MAX} epochs: no broker has written this file")
    return epoch


def read_newest_epoch(vfs: Vfs, store: str, probe: str | None = None) -> Epoch | None:
    """The newest epoch, None where there is none. Read-only unless `probe`, a file name of one's own, asks for a
    listing that no cache answers. Raises CorruptError, NewerFormatError, OSError."""
    directory = os.path.join(store, EPOCHS_DIRECTORY)
    try:
        names = vfs.listdir(directory) if probe is None else listdir_fresh(vfs, directory, probe)
    except FileNotFoundError:
        return None
    number = newest_number(names)
    return read_epoch(vfs, store, number) if number else None


def read_epochs(vfs: Vfs, store: str) -> list[Epoch]:
    """All epochs that are kept, oldest first. Read-only. Raises CorruptError, NewerFormatError, OSError."""
    try:
        numbers = epoch_numbers(vfs.listdir(os.path.join(store, EPOCHS_DIRECTORY)))
    except FileNotFoundError:
        return []
    epochs = []
    for number in numbers:
        try:
            epochs.append(read_epoch(vfs, store, number))
        except FileNotFoundError:
            if number == numbers[-1]:  # older ones may have been pruned meanwhile, the newest never is
                raise
    return epochs


def make_epochs_directory(vfs: Vfs, store: str) -> None:
    """Make the epochs directory where it is missing, and its name durable: whoever made it may have died before."""
    with suppress(FileExistsError):
        vfs.mkdir(os.path.join(store, EPOCHS_DIRECTORY))
    vfs.fsync_directory(store)


def link_epoch(vfs: Vfs, store: str, epoch: Epoch, attempt: str) -> bool:
    """Make `epoch` real, durably; False where that number is somebody else's.

    `attempt` is unique for this call among all brokers of the store. After an OSError it is unknown whether the epoch
    exists: the caller is not its master, ever.
    """
    path = epoch_path(store, epoch.number)
    directory = os.path.dirname(path)
    temporary = os.path.join(directory, f".{attempt}{_TEMPORARY}")
    data = encode(KIND, {**epoch.to_json(), "attempt": attempt})
    fd = vfs.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        try:
            write_all(vfs, fd, data, 0)
            vfs.fsync(fd)
        finally:
            vfs.close(fd)
    except OSError:
        with suppress(OSError):  # a broker that waits for room on a full disk comes again and again
            vfs.unlink(temporary)
        raise
    try:
        vfs.link(temporary, path)
    except FileExistsError:
        # A network client that sends a lost request again can be told EEXIST about its own success.
        if read_file(vfs, path) != data:
            vfs.unlink(temporary)
            return False
    vfs.fsync_directory(directory)
    vfs.unlink(temporary)
    return True


def prune_epochs(vfs: Vfs, store: str, own: Epoch, keep: int = EPOCHS_KEPT) -> int:
    """Remove epoch files far older than `own`, and temporary files of takeovers that died. Returns how many.

    For the master of `own`, right after a successful lease check. Harmless even when it has been deposed meanwhile: the
    newest epoch carries every sealed length, and an epoch whose temporary file is gone before the link does not come
    to be.
    """
    directory = os.path.join(store, EPOCHS_DIRECTORY)
    removed = 0
    for name in vfs.listdir(directory):
        match = _NAME.fullmatch(name)
        if (match and int(match[1]) <= own.number - keep) or (name.startswith(".") and name.endswith(_TEMPORARY)):
            vfs.unlink(os.path.join(directory, name))
            removed += 1
    return removed
