"""Connections to the server, and what its errors mean to callers who know files.

Invariants:
- Each connection was checked when it was made: a server that takes writes, at read committed, with our version of the
  tables, and with all that this store was told to have, and that this process has seen in it (`STORE_INCOMPLETE`).
- A connection that failed is never used again. Nothing is ever cancelled: a commit that waits for a standby would end
  as if it had succeeded. A warning of the server about a statement counts as its failure, for the same reason.
"""

from __future__ import annotations

import errno
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors
from psycopg.conninfo import make_conninfo

from amq.core.errors import ConfigError, StoreError
from amq.store.postgres.schema import IDENTITY, Tables, check_version
from amq.store.postgres.url import SqlUrl

LOCK_TIMEOUT_S = 10  # a row lock is held for one statement of another broker, which waits for a standby at most
IDLE_MAX = 8  # connections kept for the next caller
PASSWORD_BYTES_MAX = 4096
_CONNECT_DEFAULTS = "-c default_transaction_isolation=read\\ committed -c bytea_output=hex"
_ERRNOS: tuple[tuple[type[psycopg.Error], int], ...] = (
    (errors.DiskFull, errno.ENOSPC),
    (errors.UniqueViolation, errno.EEXIST),
    (errors.ReadOnlySqlTransaction, errno.EROFS),
    (errors.InsufficientPrivilege, errno.EACCES),
    (errors.LockNotAvailable, errno.ETIMEDOUT),
    (errors.QueryCanceled, errno.ETIMEDOUT),
)
_TLS_CURES = (
    (
        "certificate verify failed",
        "The CA that sslrootcert names did not sign the server's certificate, or it is out "
        "of date: name the CA of this server, or renew the certificate",
    ),
    (
        "does not match host name",
        "Use a name in the URL that the server's certificate has, or give it one with this name",
    ),
    ("server does not support SSL", "Set ssl = on in the server's postgresql.conf, or ask who answers there"),
)
_FACTS = """
SELECT pg_is_in_recovery(), pg_backend_pid(),
       (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())
"""


# Of the newest bytes of the journal that this process has seen committed, and of the segments behind them.
_SEEN = """
SELECT n.name, (SELECT substring(c.data FROM (%(at)s - c.start + 1)::int FOR %(size)s) FROM {chunk} c
                WHERE c.file = n.file AND c.start = %(start)s)
FROM {name} n WHERE n.directory = %(directory)s AND n.name >= %(name)s ORDER BY n.name LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class CommittedTail:
    """Bytes of a segment that were committed: `tail` ends at `end` of the file `name` in `directory`, in the row that
    begins at `start`."""

    directory: str
    name: str
    end: int
    start: int
    tail: bytes


class SqlError(OSError):
    """The answer of the database, as an error of a file. `strerror` is the server's text."""


class ServerConnection(psycopg.Connection[Any]):
    """A connection that remembers warnings of the server."""

    warned = ""
    pid = 0  # of its process on the server, which began then
    began: Any = None

    def note(self, diag: errors.Diagnostic) -> None:
        if diag.severity_nonlocalized == "WARNING":
            self.warned = diag.message_primary or "a warning without text"


def failure(error: psycopg.Error, path: str) -> SqlError:
    """The error of a file operation on `path`: EIO where it cannot learn whether it took place."""
    number = next((number for kind, number in _ERRNOS if isinstance(error, kind)), errno.EIO)
    text = " ".join((error.diag.message_primary or str(error)).split())
    return SqlError(number, f"the database says: {text}" if text else type(error).__name__, path)


class Sessions:
    """Connections to the store at `url`, made when one is needed. Any thread."""

    def __init__(self, url: SqlUrl) -> None:
        self.url = url
        self.tables = Tables(url.table_prefix)
        self._mutex = threading.Lock()
        self._idle: list[ServerConnection] = []
        self._made: set[ServerConnection] = set()
        self._seen: CommittedTail | None = None
        weakref.finalize(self, _close_all, self._made).atexit = False  # the kernel closes what a process leaves

    @contextmanager
    def use(self, path: str) -> Iterator[ServerConnection]:
        """A connection for the block, for this thread alone. Raises OSError about `path`, StoreError."""
        with self._mutex:
            session = self._idle.pop() if self._idle else None
        if session is None:
            session = self.connect(path)
        with self.guarded(session, path):
            yield session
        with self._mutex:
            if len(self._idle) < IDLE_MAX and not session.closed:
                self._idle.append(session)
                return
        self.drop(session)

    @contextmanager
    def guarded(self, session: ServerConnection, path: str) -> Iterator[None]:
        """Errors of the block become OSErrors about `path`; a connection that is of no more use is closed."""
        session.warned = ""
        try:
            yield
            if session.warned:
                raise SqlError(errno.EIO, f"the database warns: {session.warned}", path)
        except psycopg.Error as error:
            self._spoiled(session, lost=session.closed or session.broken)
            raise failure(error, path) from error
        except BaseException:
            self._spoiled(session, lost=False)
            raise

    def close(self) -> None:
        with self._mutex:
            idle, self._idle = self._idle, []
        for session in idle:
            self.drop(session)

    def drop(self, session: ServerConnection) -> None:
        """Close a connection that nobody uses any more."""
        self._made.discard(session)
        with suppress(psycopg.Error):
            session.close()

    def connect(self, path: str) -> ServerConnection:
        """A new connection, checked. Raises OSError, StoreError where a person must look."""
        session = self.open(path)
        try:
            with self.guarded(session, path):
                check_version(self.tables.version(session), self.url.text)
                self._check(session)
                self._check_seen(session)
        except BaseException:
            self.drop(session)
            raise
        return session

    def make_tables(self, path: str) -> None:
        """Make the missing tables, if brokers may (`createTablesOnStartup`). Raises OSError, StoreError."""
        if not self.url.create_tables_on_startup:
            return
        session = self.open(path)
        try:
            with self.guarded(session, path):
                if not self.tables.version(session):
                    self.tables.upgrade(session)
        finally:
            self.drop(session)

    def end(self, lost: ServerConnection, session: ServerConnection) -> None:
        """Make sure that the server, too, has ended `lost`: it may not have noticed yet that this side is gone, and
        keep its locks. Nothing waits for it longer than a second. Raises psycopg.Error."""
        about = "FROM pg_stat_activity WHERE pid = %s AND backend_start = %s"
        asked = (lost.pid, lost.began)
        session.execute(f"SELECT pg_terminate_backend(pid) {about}", asked)
        for _ in range(100):
            if session.execute(f"SELECT pg_sleep(0.01) {about}", asked).fetchone() is None:
                return

    def open(self, path: str) -> ServerConnection:
        """A new connection to a server that takes writes, whatever is in its tables. Raises OSError, ConfigError,
        StoreError."""
        url = self.url
        own = dict(url.parameters)
        own["options"] = f"{_CONNECT_DEFAULTS} {own.get('options', '')}".strip()
        if url.password_file:
            own["password"] = _password(url.password_file)
        try:
            session = ServerConnection.connect(make_conninfo(**own), autocommit=True)
        except psycopg.Error as error:
            text = " ".join(str(error).split())
            if "unsupported startup parameter" in text:
                raise self._through_pooler() from error
            why = f"the database cannot be reached: {text}{_cure_of_tls(text)}"
            raise SqlError(errno.EIO, why, path) from error
        self._made.add(session)
        session.add_notice_handler(session.note)
        try:
            with self.guarded(session, path):
                self._prepare(session, path)
        except BaseException:
            self.drop(session)
            raise
        return session

    def servers(self, session: ServerConnection) -> tuple[str, str]:
        """The server that the last master used, and the one that answers."""
        row = session.execute(self.tables.statement(f"SELECT server, {IDENTITY} FROM {{store}}")).fetchone()
        if row is None:
            raise StoreError(f"{self.url.text}: the row of the store is missing; restore a backup")
        return row[0], row[1]

    def accept(self, session: ServerConnection) -> None:
        """The server that answers has all that there is."""
        session.execute(self.tables.statement(f"UPDATE {{store}} SET server = {IDENTITY}"))

    def _prepare(self, session: ServerConnection, path: str) -> None:
        self.tables.find(session)
        session.execute(
            "SELECT set_config('lock_timeout', %s, false), set_config('statement_timeout', %s, false), "
            "set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') "
            "THEN 'on' ELSE current_setting('synchronous_commit') END, false), "
            "set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false), "
            "set_config('tcp_keepalives_count', '3', false)",
            [f"{LOCK_TIMEOUT_S}s", f"{self.url.query_timeout_s}s"],
        )
        row = session.execute(_FACTS).fetchone()
        assert row is not None
        if row[0]:
            raise SqlError(errno.EROFS, "the server is a standby, which takes no writes: name the primary", path)
        session.pid, session.began = row[1], row[2]
        if row[1] != session.info.backend_pid:  # a pooler invents it, because it maps many clients to a connection
            raise self._through_pooler()

    def _through_pooler(self) -> StoreError:
        return StoreError(
            f"{self.url.text} leads to a pooler, such as PgBouncer, that shares connections of the server between its "
            "clients. The locks of a broker belong to its connection: name the server itself",
            code="STORE_UNSAFE",
        )

    def _check(self, session: ServerConnection) -> None:
        """A promoted standby, or a restored copy, may lack what was confirmed."""
        before, now = self.servers(session)
        if before != now and not self._was_synchronous(session):
            raise StoreError(
                f"{self.url.text} is another server than the last master used ({now}, was {before}), and no "
                "synchronous standby had all that was confirmed: the newest messages may be missing. Compare, then "
                "run `amq store accept`",
                code="STORE_INCOMPLETE",
            )

    def saw(self, seen: CommittedTail) -> None:
        """The store has this, and must have it from now on, until the segment is trimmed."""
        before = self._seen
        if before is None or (before.name, before.end) < (seen.name, seen.end):
            self._seen = seen

    def forget(self, directory: str, name: str) -> None:
        """This file is removed, by us."""
        if self._seen is not None and (self._seen.directory, self._seen.name) == (directory, name):
            self._seen = None

    def _check_seen(self, session: ServerConnection) -> None:
        """The primary may have gone on without the standby that is promoted now, whatever it said at its last claim."""
        seen = self._seen
        if seen is None:
            return
        asked = {
            "directory": seen.directory,
            "name": seen.name,
            "start": seen.start,
            "size": len(seen.tail),
            "at": seen.end - len(seen.tail),
        }
        found = session.execute(self.tables.statement(_SEEN), asked, binary=True).fetchone()
        if found is not None and (found[0] != seen.name or found[1] == seen.tail):
            return  # trimmed, or there
        session.execute(self.tables.statement(f"UPDATE {{store}} SET synchronous = false WHERE server <> {IDENTITY}"))
        raise StoreError(
            f"{self.url.text} lacks what this broker has seen in it: {seen.directory}/{seen.name} up to byte "
            f"{seen.end}. It is a standby that had not all, or an old copy. Use the server that has it, or compare, "
            "then run `amq store accept` and start the brokers again",
            code="STORE_INCOMPLETE",
        )

    def _was_synchronous(self, session: ServerConnection) -> bool:
        row = session.execute(self.tables.statement("SELECT synchronous FROM {store}")).fetchone()
        return row is not None and bool(row[0])

    def _spoiled(self, session: ServerConnection, lost: bool) -> None:
        self.drop(session)
        if lost:
            self.close()  # the others have hardly fared better: each would cost its caller an error


def _cure_of_tls(text: str) -> str:
    """The cure of an error of TLS, which libpq tells by its text alone; "" = another error."""
    return next((f". {cure}" for said, cure in _TLS_CURES if said in text), "")


def _close_all(sessions: set[ServerConnection]) -> None:
    for session in sessions:
        session.close()


def _password(path: str) -> str:
    try:
        with open(path, "rb") as file:
            text = file.read(PASSWORD_BYTES_MAX)
        return text.decode().split("\n", 1)[0].rstrip("\r")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"cannot read passwordFile {path}: {why}; make it readable for this broker's user alone (chmod 600)",
            code="STORE_URL_INVALID",
        ) from error
