"""The one place that knows which kinds of stores there are: a directory, a database by its URL, or a directory whose
lock is in a database.

Everything above the door (`Vfs`) takes the door that `open_vfs` returns, and does not ask which one it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from amq.core.errors import AmqError, ConfigError
from amq.doors.clock import Clock
from amq.store.board import Board
from amq.store.election import Election
from amq.store.epoch import EPOCHS_DIRECTORY, Epochs, epoch_numbers, read_epoch
from amq.store.files.board import FileBoard
from amq.store.files.election import FileElection
from amq.store.files.epochs import FileEpochs
from amq.store.files.log import FileLog
from amq.store.files.vfs import SystemVfs, ToolVfs, Vfs
from amq.store.host import Host
from amq.store.name import is_directory
from amq.store.segment_log import JOURNAL_DIRECTORY, SegmentLog


def open_vfs(store: str, locker: str | None = None) -> ToolVfs:
    """The door to `store`. `locker` = URL of the database in which the lock is, "" = the lock is in the store, None =
    as the last master had it. Raises ConfigError."""
    if is_directory(store):
        url = locker_of(store) if locker is None else locker
        if not url:
            return SystemVfs()
    else:
        url = store
    try:
        from amq.store.postgres.locker import SqlLockedVfs  # not for everybody: psycopg takes time to load
        from amq.store.postgres.url import SqlUrl
        from amq.store.postgres.vfs import SqlVfs
    except ImportError as error:
        raise ConfigError(
            f"{url} needs psycopg, which cannot be loaded ({error}): pip install 'amq[sql]'", code="STORE_URL_INVALID"
        ) from error
    parsed = SqlUrl.parse(url)
    return SqlLockedVfs(store, parsed) if is_directory(store) else SqlVfs(parsed)


@dataclass(frozen=True, slots=True)
class Store:
    """All that a member asks of its store, by port. `elect` makes its view of the election."""

    log: SegmentLog
    board: Board
    epochs: Epochs
    elect: Callable[[Clock, Host], Election]


def open_store(store: str, locker: str | None = None) -> Store:
    """The ports of `store`; see `open_vfs`. Raises ConfigError."""
    return store_behind(open_vfs(store, locker), store)


def store_behind(vfs: Vfs, store: str) -> Store:
    """The ports of `store`, to which the door `vfs` leads."""

    def elect(clock: Clock, host: Host) -> Election:
        return open_election(vfs, clock, host, store)

    return Store(open_log(vfs, store), open_board(vfs, store), FileEpochs(vfs, store), elect)


def open_election(vfs: Vfs, clock: Clock, host: Host, store: str) -> Election:
    """The election of the brokers of `store`, to which the door `vfs` leads."""
    return FileElection(vfs, clock, host, store, (JOURNAL_DIRECTORY,), lambda place: open_vfs(store, place.url))


def open_log(vfs: Vfs, store: str) -> SegmentLog:
    """The log of `store`, to which the door `vfs` leads."""
    return FileLog(vfs, store)


def open_board(vfs: Vfs, store: str) -> Board:
    """The board of the members of `store`, to which the door `vfs` leads."""
    return FileBoard(vfs, store)


def locker_of(store: str) -> str:
    """URL of the database in which the lock of directory `store` is, "" = in the store, or unknown.

    As the newest epoch says that can be read: a command that repairs a damaged one must not take the wrong lock. An
    error of the store itself meets whoever asked.
    """
    vfs = SystemVfs()
    try:
        numbers = epoch_numbers(vfs.listdir(os.path.join(store, EPOCHS_DIRECTORY)))
    except OSError:
        return ""
    for number in reversed(numbers):
        with suppress(AmqError, OSError):
            return read_epoch(vfs, store, number).lock.url
    return ""
