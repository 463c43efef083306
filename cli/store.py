"""A store as the read-only commands see it: no lock is taken, nothing is written."""

from __future__ import annotations

from functools import cache

from amq.core.errors import StoreError
from amq.journal.inspect import Sealing
from amq.store.epoch import EPOCHS_DIRECTORY, read_newest_epoch
from amq.store.files.vfs import ToolVfs, Vfs
from amq.store.name import full_name
from amq.store.open import open_vfs
from amq.store.status import StoreStatus, store_status


@cache
def vfs_of(store: str) -> ToolVfs:
    """The door to `store`, the same one for all of a command. Raises ConfigError."""
    return open_vfs(store)


def check_store(vfs: Vfs, store: str) -> None:
    """Raises StoreError where there is no store at `store`, or it cannot be read."""
    try:
        names = vfs.listdir(store)
    except (FileNotFoundError, NotADirectoryError) as error:
        why = f"{store}: {error.strerror}: give the store that `amq start --store` was given"
        raise StoreError(why, code="STORE_MISSING") from error
    except OSError as error:
        raise StoreError(f"{store}: {error.strerror}: the store cannot be read") from error
    if EPOCHS_DIRECTORY not in names:
        what = "is empty" if not names else "is not a store: it has no directory epochs"
        raise StoreError(
            f"{full_name(store)} {what}: no broker was ever master here; give the store that `amq start "
            "--store` was given",
            code="STORE_MISSING",
        )


def read_status(store: str) -> StoreStatus:
    """The group as the store shows it. Raises StoreError."""
    vfs = vfs_of(store)
    try:
        check_store(vfs, store)
        return store_status(vfs, store)
    except OSError as error:
        raise StoreError(f"{error.filename or store}: {error.strerror}: the store cannot be read") from error


def store_version(vfs: Vfs, store: str) -> int | None:
    """The version of the stored format in which the last master wrote, None where there was none. Raises CorruptError,
    NewerFormatError, OSError."""
    epoch = read_newest_epoch(vfs, store)
    return None if epoch is None else epoch.format


def read_sealing(vfs: Vfs, store: str) -> Sealing:
    """Number and sealed lengths of the newest epoch. Raises CorruptError, NewerFormatError, OSError."""
    epoch = read_newest_epoch(vfs, store)
    return (0, {}) if epoch is None else (epoch.number, epoch.sealed)
