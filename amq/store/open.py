"""The one place that knows which kinds of stores there are: a directory, a database by its URL, a directory whose lock
is in a database or a coordinator, or copies on several hosts.

Everything else takes the ports that `open_store` returns, and does not ask which kind it is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from random import Random, SystemRandom
from typing import TYPE_CHECKING

from amq.core.errors import AmqError, ConfigError, StoreError
from amq.doors.clock import Clock, SystemClock
from amq.doors.threads import SystemThreads, Threads
from amq.store.coordinator import Coordinator
from amq.store.election import Election
from amq.store.files.board import FileBoard
from amq.store.files.election import FileElection
from amq.store.files.epochs import FileEpochs
from amq.store.files.log import FileLog
from amq.store.files.others import check_own
from amq.store.files.register import FileRegister
from amq.store.files.vfs import SystemVfs, ToolVfs, Vfs
from amq.store.files.workshop import FileWorkshop
from amq.store.host import SystemHost
from amq.store.name import REPLICA, SMALL, is_coordinator, is_directory
from amq.store.port import Store
from amq.store.register import Register
from amq.store.workshop import Workshop

if TYPE_CHECKING:
    from amq.store.postgres.database import Database
    from amq.store.replica.port import OtherCopies, Receive
    from amq.store.replica.url import ReplicaUrl
    from amq.store.segment_log import SegmentFormat

    Connect = Callable[[Coordinator, str, Receive], OtherCopies]

CLUSTER = "cluster"  # the part of a coordinator that keeps a cluster's table
COORDINATORS_MAX = 64  # that a process keeps open


def open_store(store: str, locker: str | None = None) -> Store:
    """The ports of `store`. `locker` = URL of the database or coordinator in which the lock is, "" = the lock is in the
    store, None = as the last master had it. Raises ConfigError."""
    if store.startswith(REPLICA):
        return _replicated(store, locker)
    if not is_directory(store):
        return store_in(_tables(store))
    files = open_directory(store)
    url = locker_of(store) if locker is None else locker
    if is_coordinator(url):
        return locked_by(files, open_coordinator(url))
    return locked_in(files, _tables(url)) if url else files


@lru_cache(COORDINATORS_MAX)
def open_coordinator(url: str) -> Coordinator:
    """The coordinator at `url`, one for all members of this process. Raises ConfigError."""
    from amq.store.coordinated.register import RegisterCoordinator
    from amq.store.coordinated.url import CoordinatorUrl

    if url.startswith(SMALL):
        return RegisterCoordinator(open_register(url.removeprefix("file://")), url, SystemHost(), makes=False)
    if not is_coordinator(url):
        return RegisterCoordinator(open_register(url), url, SystemHost())
    parsed = CoordinatorUrl.parse(url)
    if parsed.kind == "etcd":
        from amq.store.coordinated.etcd import Etcd

        return Etcd(parsed, SystemThreads(), SystemClock())
    try:
        from amq.store.coordinated.zookeeper import ZooKeeper  # not for everybody: kazoo is an extra
    except ImportError as error:
        raise ConfigError(
            f"{url} needs kazoo, which cannot be loaded ({error}): pip install 'amq[zookeeper]'",
            code="STORE_URL_INVALID",
        ) from error
    return ZooKeeper(parsed, SystemThreads(), SystemClock())


def open_directory(store: str) -> Store:
    """The files of directory `store`, for those who only read them: its lock may be elsewhere."""
    return store_behind(SystemVfs(), store)


def copy_in(directory: str) -> str:
    """The id of the copy of a replicated store that `directory` keeps; "" = it keeps none. Raises AmqError, OSError."""
    from amq.store.replica.disk import copy_id

    return copy_id(SystemVfs(), directory)


def open_workshop(store: str) -> tuple[Store, Workshop]:
    """The ports of `store`, and what a repair asks besides, through one door: a database takes changes only from the
    door that has claimed it. Raises ConfigError, StoreError."""
    if is_directory(store):
        _check_no_copy(store)
        return open_store(store), FileWorkshop(SystemVfs(), store)
    if store.startswith(REPLICA):
        raise ConfigError(
            "a replicated store has no repair: move the damaged copy away, and it begins anew from the others",
            code="STORE_URL_INVALID",
        )
    from amq.store.postgres.workshop import SqlWorkshop

    database = _tables(store)
    return store_in(database), SqlWorkshop(database)


def open_register(place: str) -> Register:
    """The register at `place`, a directory or the URL of a database or a coordinator. Raises ConfigError."""
    if is_directory(place):
        return FileRegister(SystemVfs(), place)
    if is_coordinator(place):
        from amq.store.coordinated.documents import CoordinatedRegister
        from amq.store.coordinated.scoped import ScopedCoordinator

        return CoordinatedRegister(ScopedCoordinator(open_coordinator(place), CLUSTER), SystemHost())
    database = _tables(place)
    from amq.store.postgres.register import SqlRegister

    return SqlRegister(database)


def store_behind(vfs: Vfs, store: str) -> Store:
    """The store in directory `store`, to which the door `vfs` leads."""
    elsewhere = partial(_election_at, FileElection(vfs, store))
    return Store(
        store, FileElection(vfs, store), FileEpochs(vfs, store), FileLog(vfs, store), FileBoard(vfs, store), elsewhere
    )


def store_in(database: Database) -> Store:
    """The store in the tables of `database`."""
    from amq.store.postgres.board import SqlBoard
    from amq.store.postgres.election import SqlElection
    from amq.store.postgres.epochs import SqlEpochs
    from amq.store.postgres.log import SqlLog

    election, elsewhere = SqlElection(database), partial(_election_at, SqlElection(database))
    return Store(database.url.text, election, SqlEpochs(database), SqlLog(database), SqlBoard(database), elsewhere)


def locked_in(files: Store, database: Database) -> Store:
    """The store `files`, whose lock is in the tables of `database`, and what brokers say to each other."""
    from amq.store.postgres.board import SqlBoard
    from amq.store.postgres.election import SqlElection

    return replace(files, election=SqlElection(database, alone=True), board=SqlBoard(database))


def locked_by(files: Store, coordinator: Coordinator) -> Store:
    """The store `files`, whose lock is in `coordinator`, and what brokers say to each other."""
    from amq.store.coordinated.board import CoordinatedBoard
    from amq.store.coordinated.election import CoordinatedElection

    host = SystemHost()
    election = CoordinatedElection(coordinator, host, SystemClock(), alone=True)
    return replace(files, election=election, board=CoordinatedBoard(coordinator, host))


def replica_in(
    url: ReplicaUrl,
    coordinator: Coordinator,
    connect: Connect,
    vfs: ToolVfs,
    clock: Clock,
    threads: Threads,
    entropy: Random,
) -> Store:
    """The replicated store `url`, one group of those in `coordinator`. `connect(id, coordinator, receive)` leads to the
    other members."""
    from amq.store.coordinated.board import CoordinatedBoard
    from amq.store.coordinated.scoped import ScopedCoordinator
    from amq.store.replica.book import GroupBook
    from amq.store.replica.copyist import Copyist
    from amq.store.replica.disk import CopyDisk
    from amq.store.replica.member import ReplicaMember
    from amq.store.replica.status import store_copies
    from amq.store.replica.store import LinkedEpochs, ReplicaElection, ReplicaLog, ReplicaPart

    group, host = ScopedCoordinator(coordinator, url.group), SystemHost()
    part, book = ReplicaPart(), GroupBook(group)

    def make(segments: SegmentFormat, name: str) -> ReplicaMember:
        disk = CopyDisk(vfs, url.directory, segments, url.saved, clock)
        copyist = Copyist(disk, disk.open(name, entropy), clock)
        try:
            return ReplicaMember(copyist, book, url.policy, segments, clock, threads, partial(connect, group))
        except BaseException:
            copyist.close()
            raise

    election = ReplicaElection(part, group, host, clock)
    log = ReplicaLog(part, FileLog(vfs, url.directory))
    return Store(
        url.text,
        election,
        LinkedEpochs(part, book, group, election.newest),
        log,
        CoordinatedBoard(group, host),
        lambda _url: election,
        lambda segments, name: part.take(partial(make, segments, name)),
        partial(store_copies, group),
        lambda: part.member.seen() if part.member is not None else None,
        part.hear_on,
    )


def _replicated(store: str, locker: str | None) -> Store:
    """The replicated store whose URL is `store`. Raises ConfigError."""
    from amq.store.replica.peers import open_peers
    from amq.store.replica.url import ReplicaUrl

    url = ReplicaUrl.parse(store)
    if locker:
        raise ConfigError(
            "a replicated store has its lock at its coordinator: leave `locker` blank", code="STORE_URL_INVALID"
        )
    coordinator = open_coordinator(url.coordinator)

    def connect(group: Coordinator, me: str, receive: Receive) -> OtherCopies:
        return open_peers(me, group, url, receive, SystemThreads())

    return replica_in(url, coordinator, connect, SystemVfs(), SystemClock(), SystemThreads(), SystemRandom())


def locker_of(store: str) -> str:
    """URL of the database or coordinator in which the lock of directory `store` is, "" = in the store, or unknown.

    As the newest epoch says that can be read: a command that repairs a damaged one must not take the wrong lock. An
    error of the store itself meets whoever asked.
    """
    epochs = open_directory(store).epochs
    try:
        numbers = epochs.numbers()
    except OSError:
        return ""
    for number in reversed(numbers):
        with suppress(AmqError, OSError):
            return epochs.read(number).lock.url
    return ""


def check_directory(store: str) -> None:
    """Raises StoreError if another product's broker keeps its messages in the directory `store`, or a member of a
    replicated store its copy; OSError."""
    check_own(SystemVfs(), store)
    _check_no_copy(store)


def check_alone(store: str) -> None:
    """Raises ConfigError where one process alone can confirm nothing in `store`."""
    if not store.startswith(REPLICA):
        return
    from amq.store.replica.url import ReplicaUrl

    least = ReplicaUrl.parse(store).policy.least
    if least > 1:
        raise ConfigError(
            f"this command writes one copy, and the URL of the store asks for {least}: add leastCopies=1; brokers "
            "that start later fill the other copies",
            code="STORE_URL_INVALID",
        )


def _check_no_copy(directory: str) -> None:
    if copy := copy_in(directory):
        raise StoreError(
            f"{directory} is {copy}, one copy of a replicated store, which only `replica://{directory}?…` may change: "
            "give that URL",
            code="STORE_FOREIGN_FILE",
        )


def _election_at(in_store: Election, url: str) -> Election:
    """The election of brokers that have their lock at `url`; "" = in the store itself."""
    if not url:
        return in_store
    if is_coordinator(url):
        from amq.store.coordinated.election import CoordinatedElection

        return CoordinatedElection(open_coordinator(url), SystemHost(), SystemClock(), alone=True)
    from amq.store.postgres.election import SqlElection

    return SqlElection(_tables(url), alone=True)


def _tables(url: str) -> Database:
    try:
        from amq.store.postgres.database import Database
        from amq.store.postgres.url import SqlUrl  # not for everybody: psycopg takes time to load
    except ImportError as error:
        raise ConfigError(
            f"{url} needs psycopg, which cannot be loaded ({error}): pip install 'amq[sql]'", code="STORE_URL_INVALID"
        ) from error
    return Database(SqlUrl.parse(url))
