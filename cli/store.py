"""A store as the read-only commands see it: no lock is taken, nothing is written."""

from __future__ import annotations

from functools import cache

import click

from amq.core.errors import StoreError
from amq.journal.inspect import ONE_COPY, Sealing
from amq.store.name import is_directory
from amq.store.open import copy_in, open_store
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


def check_journal(store: Store) -> None:
    """As `check_store`, for a journal that is only read. That of one copy of a replicated store can be, too, also where
    the coordinator is lost: that it is one copy is said on stderr."""
    copy = copy_in(store.name) if is_directory(store.name) else ""
    if copy:
        click.echo(
            f"{store.name} is one copy of a replicated store, {copy}: not the whole truth alone. It may lack what was "
            "confirmed, and hold what was not; the URL of the store, replica://…, shows what counts",
            err=True,
        )
        return
    check_store(store)
    if (copies := store.copies()) is not None:
        told = f"one copy of {len(copies.counting)}, that of this member: it may lack the newest messages"
        click.echo(told, err=True)


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
    if epoch is None:
        return ONE_COPY if is_directory(store.name) and copy_in(store.name) else (0, {})
    return epoch.number, epoch.sealed
