"""A store as the read-only commands see it: no lock is taken, nothing is written."""

from __future__ import annotations

from functools import cache

from amq.core.errors import StoreError
from amq.journal.inspect import Sealing
from amq.store.open import open_store
from amq.store.port import Store
from amq.store.status import StoreStatus, store_status


@cache
def store_of(store: str) -> Store:
    """The ports of `store`, the same ones for all of a command. Raises ConfigError."""
    return open_store(store)


def check_store(store: Store) -> None:
    """Raises StoreError where there is no store, or it cannot be read."""
    try:
        store.epochs.check()
    except OSError as error:
        raise StoreError(f"{store.name}: {error.strerror}: the store cannot be read") from error


def read_status(store: str) -> StoreStatus:
    """The group as the store shows it. Raises StoreError."""
    found = store_of(store)
    try:
        check_store(found)
        return store_status(found)
    except OSError as error:
        raise StoreError(f"{error.filename or store}: {error.strerror}: the store cannot be read") from error


def store_version(store: Store) -> int | None:
    """The version of the stored format in which the last master wrote, None where there was none. Raises CorruptError,
    NewerFormatError, OSError."""
    epoch = store.epochs.newest()
    return None if epoch is None else epoch.format


def read_sealing(store: Store) -> Sealing:
    """Number and sealed lengths of the newest epoch. Raises CorruptError, NewerFormatError, OSError."""
    epoch = store.epochs.newest()
    return (0, {}) if epoch is None else (epoch.number, epoch.sealed)
