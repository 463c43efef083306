"""The one place that knows which kinds of stores there are: a directory, or a database by its URL.

Everything above the door (`Vfs`) takes the door that `open_vfs` returns, and does not ask which one it is.
"""

from __future__ import annotations

import os

from amq.errors import ConfigError
from amq.vfs import SystemVfs, Vfs


def open_vfs(store: str) -> Vfs:
    """The door to `store`; nothing is opened yet. Raises ConfigError."""
    if is_directory(store):
        return SystemVfs()
    try:
        from amq.sql.url import SqlUrl  # not for everybody: psycopg takes time to load
        from amq.sql.vfs import SqlVfs
    except ImportError as error:
        raise ConfigError(
            f"the store {store} needs psycopg, which cannot be loaded ({error}): pip install 'amq[sql]'",
            code="STORE_URL_INVALID",
        ) from error
    return SqlVfs(SqlUrl.parse(store))


def is_directory(store: str) -> bool:
    """Whether `store` is the path of a directory, and not a URL."""
    return "://" not in store


def full_name(store: str) -> str:
    """`store` as it is known everywhere on this host."""
    return os.path.abspath(store) if is_directory(store) else store
