"""The one place that knows which kinds of stores there are: a directory, a database by its URL, or a directory whose
lock is in a database.

Everything above the door (`Vfs`) takes the door that `open_vfs` returns, and does not ask which one it is.
"""

from __future__ import annotations

import os

from amq.errors import AmqError, ConfigError
from amq.lock.epoch import read_newest_epoch
from amq.vfs import SystemVfs, Vfs


def open_vfs(store: str, locker: str | None = None) -> Vfs:
    """The door to `store`. `locker` = URL of the database in which the lock is, "" = the lock is in the store, None =
    as the last master had it. Raises ConfigError."""
    if is_directory(store):
        url = _locker_of(store) if locker is None else locker
        if not url:
            return SystemVfs()
    else:
        url = store
    try:
        from amq.sql.locker import SqlLockedVfs  # not for everybody: psycopg takes time to load
        from amq.sql.url import SqlUrl
        from amq.sql.vfs import SqlVfs
    except ImportError as error:
        raise ConfigError(
            f"{url} needs psycopg, which cannot be loaded ({error}): pip install 'amq[sql]'", code="STORE_URL_INVALID"
        ) from error
    parsed = SqlUrl.parse(url)
    return SqlLockedVfs(store, parsed) if is_directory(store) else SqlVfs(parsed)


def _locker_of(store: str) -> str:
    """Of the newest epoch. Where that cannot be read, whoever asked meets the same error at the store itself."""
    try:
        epoch = read_newest_epoch(SystemVfs(), store)
    except (AmqError, OSError):
        return ""
    return epoch.lock.url if epoch is not None else ""


def is_directory(store: str) -> bool:
    """Whether `store` is the path of a directory, and not a URL."""
    return "://" not in store


def full_name(store: str) -> str:
    """`store` as it is known everywhere on this host."""
    return os.path.abspath(store) if is_directory(store) else store
