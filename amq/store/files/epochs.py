"""The epochs in files: `epochs/<number>.json`, one for each mastership.

An epoch is finished under a temporary name, fsynced and then linked into place. The link is the compare-and-swap on
which everything rests: it succeeds for one broker only, whatever the lock service says. So a damaged epoch file is
never the work of a crash.
"""

from __future__ import annotations

import os
from contextlib import suppress

from amq.core.errors import StoreError
from amq.store.epoch import EPOCHS_KEPT, Epoch, decode_epoch, encode_epoch, epoch_name, epoch_numbers, read_epochs
from amq.store.files.vfs import Vfs, listdir_fresh, read_file, write_all
from amq.store.name import full_name

EPOCHS_DIRECTORY = "epochs"
_TEMPORARY = ".tmp"


def epoch_path(store: str, number: int) -> str:
    return os.path.join(store, EPOCHS_DIRECTORY, epoch_name(number))


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
        return decode_epoch(number, read_file(self._vfs, path), path)

    def newest(self, asker: str = "") -> Epoch | None:
        try:
            if asker:
                names = listdir_fresh(self._vfs, self._directory, f".{asker}.probe")
            else:
                names = self._vfs.listdir(self._directory)
        except FileNotFoundError:
            return None
        numbers = epoch_numbers(names)
        return self.read(numbers[-1]) if numbers else None

    def all(self) -> list[Epoch]:
        try:
            numbers = self.numbers()
        except FileNotFoundError:
            return []
        return read_epochs(numbers, self.read)

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
        data = encode_epoch(epoch, attempt)
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
            old = any(number <= own.number - keep for number in epoch_numbers([name]))
            if old or (name.startswith(".") and name.endswith(_TEMPORARY)):
                with suppress(FileNotFoundError):  # the broker that made it has removed it meanwhile
                    self._vfs.unlink(os.path.join(self._directory, name))
                    removed += 1
        return removed
