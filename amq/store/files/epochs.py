"""The epochs in files: `epochs/<number>.json`, one for each mastership.

An epoch is finished under a temporary name, fsynced and then linked into place. The link is the compare-and-swap on
which everything rests: it succeeds for one broker only, whatever the lock service says. So a damaged epoch file is
never the work of a crash.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from amq.core.errors import CorruptError, StoreError
from amq.store.document import decode_any, encode, field
from amq.store.election import IN_STORE, LockPlace
from amq.store.epoch import EPOCH_MAX, EPOCHS_KEPT, KIND, STORE_VERSION, Epoch
from amq.store.files.vfs import Vfs, listdir_fresh, read_file, write_all
from amq.store.host import Owner
from amq.store.name import full_name

EPOCHS_DIRECTORY = "epochs"
_NAME = re.compile(r"([0-9]{10})\.json")
_TEMPORARY = ".tmp"


def epoch_path(store: str, number: int) -> str:
    return os.path.join(store, EPOCHS_DIRECTORY, f"{number:010d}.json")


def newest_number(names: list[str]) -> int:
    """The highest epoch number among the file names of the epochs directory, 0 = none."""
    return max(epoch_numbers(names), default=0)


def epoch_numbers(names: list[str]) -> list[int]:
    """Those of all epochs among the file names of the epochs directory, the oldest first."""
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def epoch_json(epoch: Epoch) -> dict[str, Any]:
    """The body of its file."""
    return {
        "number": epoch.number,
        "owner": epoch.owner.to_json(),
        "sealed": dict(epoch.sealed),
        "started_wall_ms": epoch.started_wall_ms,
        "reason": epoch.reason,
        **({"lock": epoch.lock._asdict()} if epoch.lock.identity else {}),
    }


def epoch_of(body: Mapping[str, Any], path: str, version: int = STORE_VERSION) -> Epoch:
    """The epoch of which `epoch_json` is `body`, in a file of format `version`. Raises CorruptError."""
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


class FileEpochs:
    """See `amq.store.epoch.Epochs`."""

    def __init__(self, vfs: Vfs, store: str) -> None:
        self._vfs = vfs
        self._store = store
        self._directory = os.path.join(store, EPOCHS_DIRECTORY)

    # -- reading ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        try:
            names = self._vfs.listdir(self._store)
        except (FileNotFoundError, NotADirectoryError) as error:
            why = f"{self._store}: {error.strerror}: give the store that `amq start --store` was given"
            raise StoreError(why, code="STORE_MISSING") from error
        if EPOCHS_DIRECTORY not in names:
            what = "is empty" if not names else "is not a store: it has no directory epochs"
            raise StoreError(
                f"{full_name(self._store)} {what}: no broker was ever master here; give the store that `amq start "
                "--store` was given",
                code="STORE_MISSING",
            )

    def numbers(self) -> list[int]:
        return epoch_numbers(self._vfs.listdir(self._directory))

    def newest_number(self) -> int:
        try:
            return max(self.numbers(), default=0)
        except FileNotFoundError:
            return 0

    def read(self, number: int) -> Epoch:
        path = self.place(number)
        version, body = decode_any(KIND, read_file(self._vfs, path), path)
        epoch = epoch_of(body, path, version)
        if epoch.number != number:
            raise CorruptError(path, 0, f"file says that it is epoch {epoch.number}")
        if number > EPOCH_MAX:
            raise CorruptError(
                path, 0, f"no store has had more than {EPOCH_MAX} epochs: no broker has written this file"
            )
        return epoch

    def newest(self, asker: str = "") -> Epoch | None:
        try:
            if asker:
                names = listdir_fresh(self._vfs, self._directory, f".{asker}.probe")
            else:
                names = self._vfs.listdir(self._directory)
        except FileNotFoundError:
            return None
        number = newest_number(names)
        return self.read(number) if number else None

    def all(self) -> list[Epoch]:
        try:
            numbers = self.numbers()
        except FileNotFoundError:
            return []
        epochs = []
        for number in numbers:
            try:
                epochs.append(self.read(number))
            except FileNotFoundError:
                if number == numbers[-1]:  # older ones may have been pruned meanwhile, the newest never is
                    raise
        return epochs

    def place(self, number: int) -> str:
        return epoch_path(self._store, number)

    def size(self, number: int) -> int:
        return self._vfs.stat(self.place(number)).st_size

    # -- writing ------------------------------------------------------------------------------------------------------

    def make(self) -> None:
        """The broker that made the directory may have died before its name was durable."""
        with suppress(FileExistsError):
            self._vfs.mkdir(self._directory)
        self._vfs.fsync_directory(self._store)

    def link(self, epoch: Epoch, attempt: str) -> bool:
        vfs, path, directory = self._vfs, self.place(epoch.number), self._directory
        temporary = os.path.join(directory, f".{attempt}{_TEMPORARY}")
        data = encode(KIND, {**epoch_json(epoch), "attempt": attempt})
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

    def prune(self, own: Epoch, keep: int = EPOCHS_KEPT) -> int:
        removed = 0
        for name in self._vfs.listdir(self._directory):
            match = _NAME.fullmatch(name)
            if (match and int(match[1]) <= own.number - keep) or (name.startswith(".") and name.endswith(_TEMPORARY)):
                self._vfs.unlink(os.path.join(self._directory, name))
                removed += 1
        return removed
