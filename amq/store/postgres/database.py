"""The tables of a store: entries that have bytes and names, behind the fence. Spec: docs/master-slave.md, "A store in a
database".

Invariants:
- Every change of the journal, of checkpoints and of epochs carries the fence: it takes effect only while the newest
  claim is the one that this broker wrote. The commit of the claim moves the fence.
- Each change is one statement, which commits by itself. So no client that pauses holds a lock of the server.
- An entry that this broker writes piece by piece carries the claim that was in force when it was made.
- A lock belongs to one connection and ends with it. The holder writes to a locked entry through that connection.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from amq.store.postgres.schema import IDENTITY, SYNCHRONOUS
from amq.store.postgres.sessions import CommittedTail, ServerConnection, Sessions, SqlError
from amq.store.postgres.url import SqlUrl

ROW_BYTES_MAX = 1 << 20
STATEMENT_BYTES_MAX = 8 << 20  # of one append; more takes several statements
JOURNAL, CHECKPOINTS, EPOCHS, BROKERS, ORDERS = "journal", "checkpoints", "epochs", "brokers", "orders"
LOCK, CLAIM = "lock", "claim"  # entries of the store itself
FENCED = frozenset((JOURNAL, CHECKPOINTS, EPOCHS))
RECORDS = frozenset(("", BROKERS, ORDERS))  # their bytes are replaced in place: in a separate table
SEEN_BYTES = 64  # of the newest bytes of the journal are remembered
IDS = (1 << 31) - 1
SPACE = "'{name}'::regclass::oid::int"  # of our locks: no other group of the database has it
_log = structlog.get_logger("amq.sql")

_FENCE = "fence AS (SELECT 1 FROM {store} WHERE fence = %(claim)s FOR SHARE)"
_OPEN = "fence AS (SELECT 1)"
_NAMED = "directory = %(directory)s AND name = %(name)s"
_FIND = f"SELECT file FROM {{name}} WHERE {_NAMED} AND file IS NOT NULL"
_SIZE = """greatest(f.extent, (SELECT start + octet_length(data) FROM {chunk} WHERE file = f.id
ORDER BY start DESC LIMIT 1))"""
_READ = """
SELECT start, substring(data FROM (greatest(%(offset)s - start, 0) + 1)::int FOR
(%(end)s - greatest(start, %(offset)s))::int) FROM {chunk} WHERE file = %(file)s AND start >= coalesce(
(SELECT max(start) FROM {chunk} WHERE file = %(file)s AND start <= %(offset)s), 0) AND start < %(end)s ORDER BY start"""
_RECORD = """
SELECT n.file, c.data FROM {name} n LEFT JOIN {chunk} c ON c.file = n.file AND c.start = %(start)s
WHERE n.directory = %(directory)s AND n.name = %(name)s"""
_CREATE = """, made AS (INSERT INTO {file} (extent) SELECT %(extent)s FROM fence RETURNING id),
named AS (INSERT INTO {name} (directory, name, file) SELECT %(directory)s, %(name)s, id FROM made ON_CONFLICT
          RETURNING file),
stored AS (INSERT INTO {chunk} (file, start, data) SELECT file, 0, %(data)b FROM named
           WHERE octet_length(%(data)b) > 0)
SELECT file FROM named"""
_REPLACE = "ON CONFLICT (directory, name) DO UPDATE SET file = excluded.file"
_APPEND = """ INSERT INTO {chunk} (file, start, data) SELECT f.id, %(start)s::bigint, %(data)b::bytea
FROM fence, {file} f WHERE f.id = %(file)s RETURNING 1"""
_APPEND_ROWS = """ INSERT INTO {chunk} (file, start, data) SELECT f.id, t.start, t.data FROM fence, {file} f,
unnest(%(starts)s::bigint[], %(parts)b::bytea[]) AS t (start, data) WHERE f.id = %(file)s RETURNING 1"""
_CUT = " DELETE FROM {chunk} USING fence WHERE file = %(file)s AND start >= %(start)s"
_PUT = """ INSERT INTO {chunk} (file, start, data) SELECT f.id, %(start)s::bigint, %(data)b::bytea
FROM fence, {file} f WHERE f.id = %(file)s ON CONFLICT (file, start) DO UPDATE SET data = excluded.data RETURNING 1"""
_CLAIM = (
    "WITH claimed AS (UPDATE {store} SET fence = %(digest)s, server = "
    + IDENTITY
    + ", synchronous = "
    + SYNCHRONOUS
    + f" FROM {{name}} n WHERE n.directory = '' AND n.name = '{CLAIM}' RETURNING n.file) "
    "INSERT INTO {chunk} (file, start, data) SELECT file, 0, %(data)b FROM claimed "
    "ON CONFLICT (file, start) DO UPDATE SET data = excluded.data RETURNING 1"
)
_LINK = """ INSERT INTO {name} (directory, name, file) SELECT %(directory)s, n.name, n.file FROM {name} n, fence
WHERE n.directory = %(source)s AND n.name = ANY(%(names)s::text[]) RETURNING 1"""
_RENAME = f" UPDATE {{name}} SET name = %(target)s FROM fence WHERE {_NAMED} RETURNING 1"
# The bytes go with the last name.
_DELETE = """, gone AS (DELETE FROM {name} n USING fence WHERE n.directory = %(directory)s
AND n.name = ANY(%(names)s::text[]) RETURNING n.name, n.file),
last AS (SELECT file AS id FROM gone WHERE NOT EXISTS (SELECT 1 FROM {name} n WHERE n.file = gone.file
         AND NOT (n.directory = %(directory)s AND n.name = ANY(%(names)s::text[])))),
freed AS (DELETE FROM {file} USING last WHERE {file}.id = last.id),
bytes AS (DELETE FROM {chunk} USING last WHERE file = last.id)
SELECT name FROM gone"""
# The entries of a directory, and whether the lock of each is held by strangers alone, roles that may not write to the
# store; NULL = it is free. A transaction that was prepared with the lock has no process, and no broker prepares any.
_HOLDERS = f"""
SELECT n.name, (SELECT bool_and(l.pid IS NULL OR a.usesysid IS NULL
       OR NOT has_table_privilege(a.usesysid, '{{store}}'::regclass, 'UPDATE'))
    FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.classid::int = {SPACE}
    AND l.objid::int = (n.file & {IDS})::int
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
FROM {{name}} n WHERE n.directory = %(directory)s AND n.name = coalesce(%(name)s::text, n.name) AND n.file IS NOT NULL
ORDER BY n.name"""
_TRY_LOCK = f"SELECT pg_try_advisory_lock({SPACE}, %(id)s)"
# A new entry that is locked before anybody can see it; only where there is none, or in the place of `old`.
_TAKE = f"""
WITH named AS (INSERT INTO {{name}} AS n (directory, name, file) VALUES (%(directory)s, %(name)s, %(fresh)s)
               ON CONFLICT (directory, name) DO UPDATE SET file = excluded.file WHERE n.file = %(old)s::bigint
               RETURNING n.file),
made AS (INSERT INTO {{file}} (id) OVERRIDING SYSTEM VALUE SELECT file FROM named),
freed AS (DELETE FROM {{file}} f USING named WHERE f.id = %(old)s::bigint),
bytes AS (DELETE FROM {{chunk}} c USING named WHERE c.file = %(old)s::bigint)
SELECT pg_try_advisory_lock({SPACE}, %(id)s) FROM named"""
_RENUMBER = """
WITH made AS (INSERT INTO {file} (id, extent, made) OVERRIDING SYSTEM VALUE
              SELECT %(fresh)s, extent, made FROM {file} WHERE id = %(file)s RETURNING id),
named AS (UPDATE {name} n SET file = made.id FROM made WHERE n.file = %(file)s),
moved AS (UPDATE {chunk} c SET file = made.id FROM made WHERE c.file = %(file)s),
gone AS (DELETE FROM {file} USING made WHERE {file}.id = %(file)s)
SELECT id FROM made"""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """Bytes of the store that have a name: `number` in the tables; `claim` = the one in force when this was made."""

    directory: str
    name: str
    number: int
    claim: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class EntryLock:
    """The lock of `entry`, which `session` holds."""

    entry: TableEntry
    session: ServerConnection


class Database:
    """The tables of the store at `url`, as one broker sees and changes them. Raises OSError, StoreError. Any thread."""

    def __init__(self, url: SqlUrl) -> None:
        self.url = url
        self.sessions = Sessions(url)
        self._statements: dict[tuple[bool, str], bytes] = {}  # the texts of this package, with the names of the tables
        self._claim = b""  # digest of the newest claim that this broker wrote
        self._full = False  # the server said so
        self._identity = ""
        self._locks: list[EntryLock] = []
        self._holder: ServerConnection | None = None  # of all locks
        self._mutex = threading.Lock()

    def place(self, directory: str, name: str = "") -> str:
        """Where that is, for people."""
        return "/".join(filter(None, (self.url.text, directory, name)))

    def make_tables(self) -> None:
        """Make the tables where there are none and brokers may make them."""
        self.sessions.make_tables(self.url.text)
        self.ask("SELECT 1", {})

    def identity(self) -> str:
        """The identity of these tables: server, database and table. A standby has the same, a restored
        backup has not."""
        if not self._identity:
            ((self._identity,),) = self.ask(
                "SELECT concat_ws('/', (SELECT system_identifier FROM pg_control_system()), (SELECT oid FROM "
                "pg_database WHERE datname = current_database()), '{store}'::regclass::oid)",
                {},
            )
        return self._identity

    def free_bytes(self) -> int | None:
        """The server does not tell. After an error "disk full": 0, until it takes a row again that is then undone."""
        if self._full:
            self._full = not self._has_room()
        return 0 if self._full else None

    # -- reading ------------------------------------------------------------------------------------------------------

    def find(self, directory: str, name: str, lock: EntryLock | None = None) -> TableEntry:
        """Asks the connection of `lock`, if there is one. Raises FileNotFoundError."""
        asked = {"directory": directory, "name": name}
        session = lock.session if lock is not None else None
        rows = self.ask(_FIND, asked, directory, name, session)
        return TableEntry(directory, name, self._one(rows, directory, name)[0], self._claim)

    def names(self, directory: str) -> list[str]:
        """Names of all that is in `directory`. Raises FileNotFoundError where that was never made."""
        rows = self._of(directory, "", "SELECT name FROM {name} WHERE directory = %(directory)s")
        if not rows and directory:
            above, _, name = directory.rpartition("/")
            self._one(self._of(above, name, f"SELECT 1 FROM {{name}} WHERE {_NAMED}"), directory)
        return [row[0] for row in rows]

    def held(self, directory: str, name: str | None = None) -> dict[str, bool]:
        """Whether a broker holds the lock of each entry of `directory`, or of the one of that name."""
        rows = self.ask(_HOLDERS, {"directory": directory, "name": name}, directory)
        return {found: strangers is False for found, strangers in rows}

    def size(self, directory: str, name: str) -> tuple[int, float]:
        """(bytes, when it was made in seconds by the server's clock). Raises FileNotFoundError."""
        text = (
            f"SELECT {_SIZE}, f.made FROM {{name}} n JOIN {{file}} f ON f.id = n.file "
            "WHERE n.directory = %(directory)s AND n.name = %(name)s"
        )
        size, made = self._one(self._of(directory, name, text), directory, name)
        return size, made.timestamp()

    def record(self, directory: str, name: str, start: int = 0) -> tuple[TableEntry, bytes]:
        """An entry, and the record that begins at `start`, b"" = none. Raises FileNotFoundError."""
        asked = {"directory": directory, "name": name, "start": start}
        number, data = self._one(self.ask(_RECORD, asked, directory, name), directory, name)
        return TableEntry(directory, name, number), data or b""

    def read(self, entry: TableEntry, offset: int, size: int) -> bytes:
        """`size` bytes from `offset`, less only at the end. Bytes without a row are zeros."""
        asked = {"file": entry.number, "offset": offset, "end": offset + size}
        rows = self.ask(_READ, asked, entry.directory, entry.name)
        found = bytearray()
        for start, data in rows:
            if data:
                found += bytes(max(0, start - offset - len(found)))
                found += data
        if found:
            self._saw(entry, rows[-1][0], max(rows[-1][0], offset), rows[-1][1])
        if len(found) < size:
            text = "SELECT extent FROM {file} WHERE id = %(file)s"
            extent = self.ask(text, {"file": entry.number}, entry.directory, entry.name)
            if not extent:
                raise self._gone(entry)
            found += bytes(max(0, min(extent[0][0] - offset, size) - len(found)))
        return bytes(found)

    def load(self, directory: str, name: str) -> bytes:
        """All bytes of a small entry. Raises FileNotFoundError."""
        text = (
            "SELECT (SELECT string_agg(c.data, ''::bytea ORDER BY c.start) FROM {chunk} c WHERE c.file = n.file) "
            "FROM {name} n WHERE n.directory = %(directory)s AND n.name = %(name)s AND n.file IS NOT NULL"
        )
        return self._one(self._of(directory, name, text), directory, name)[0] or b""

    # -- changing -----------------------------------------------------------------------------------------------------

    def make_directory(self, directory: str) -> bool:
        """False = it is there."""
        above, _, name = directory.rpartition("/")
        text = (
            "INSERT INTO {name} (directory, name) VALUES (%(directory)s, %(name)s) ON CONFLICT DO NOTHING RETURNING 1"
        )
        return bool(self._of(above, name, text))

    def create(
        self, directory: str, name: str, data: bytes = b"", extent: int = 0, *, replace: bool = False
    ) -> TableEntry:
        """A new entry of `data`, with zeros up to `extent`. Raises FileExistsError, unless it shall `replace`."""
        asked = {"directory": directory, "name": name, "data": data, "extent": extent}
        claim = self._claim
        text = _CREATE.replace("ON_CONFLICT", _REPLACE if replace else "")
        try:
            made = self._change(directory, name, text, asked, claim)
        except SqlError as error:
            if error.errno == errno.EEXIST:
                raise FileExistsError(error.errno, os.strerror(error.errno), self.place(directory, name)) from error
            raise
        entry = TableEntry(directory, name, made[0][0], claim)
        self._saw(entry, 0, 0, data)
        return entry

    def append(self, entry: TableEntry, start: int, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        """Write `pieces` from `start`, where the entry ends. An OSError of `ENOSPC` says that nothing of it stays."""
        gathered: list[bytes | bytearray | memoryview] = []
        size, at = 0, start
        try:
            for piece in pieces:
                gathered.append(piece)
                size += len(piece)
                if size > STATEMENT_BYTES_MAX:
                    self._append(entry, at, b"".join(gathered))
                    at, size, gathered = at + size, 0, []
            if size:
                self._append(entry, at, b"".join(gathered))
        except SqlError as error:
            if error.errno == errno.ENOSPC and at > start:  # the server has undone the last statement alone
                asked = {"file": entry.number, "start": start}
                self._change(entry.directory, entry.name, f"{_CUT} RETURNING 1", asked, entry.claim)
            raise

    def _append(self, entry: TableEntry, start: int, data: bytes) -> None:
        asked: dict[str, Any] = {"file": entry.number}
        text, last = _APPEND, 0
        if len(data) <= ROW_BYTES_MAX:
            asked["start"], asked["data"] = start, data
        else:
            text, cuts = _APPEND_ROWS, range(0, len(data), ROW_BYTES_MAX)
            asked["starts"] = [start + at for at in cuts]
            asked["parts"] = [data[at : at + ROW_BYTES_MAX] for at in cuts]
            last = cuts[-1]
        if not self._change(entry.directory, entry.name, text, asked, entry.claim):
            raise self._gone(entry)
        self._saw(entry, start + last, start + last, data[last:])

    def put(self, entry: TableEntry, data: bytes, start: int = 0, lock: EntryLock | None = None) -> None:
        """Replace the record of `entry` that begins at `start`. The record of the store's lock is behind the fence: it
        carries the newest claim of this broker."""
        asked = {"file": entry.number, "start": start, "data": data}
        fenced = (entry.directory, entry.name) == ("", LOCK)
        if not self._change(entry.directory, entry.name, _PUT, asked, self._claim, lock, fenced=fenced):
            raise self._gone(entry)

    def claim(self, data: bytes) -> None:
        """Claim and fence in one: from this commit on nothing of an older claim takes effect."""
        digest = hashlib.sha256(data).digest()
        while not self.ask(_CLAIM, {"digest": digest, "data": data}, "", CLAIM):
            try:
                self.create("", CLAIM)
            except FileExistsError:
                continue
        self._claim = digest

    def link(self, source: str, names: Sequence[str], directory: str) -> None:
        """Give entries of `source` the same names in `directory`, too. Raises FileNotFoundError."""
        asked = {"directory": directory, "source": source, "names": list(names)}
        if names and len(self._change(directory, "", _LINK, asked, self._claim)) < len(names):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.place(source))

    def rename(self, entry: TableEntry, name: str) -> bool:
        """False = there is one of that name, which stays, and so does the old name."""
        asked = {"directory": entry.directory, "name": entry.name, "target": name}
        try:
            self._one(self._change(entry.directory, entry.name, _RENAME, asked, entry.claim), entry.directory)
        except SqlError as error:
            if error.errno == errno.EEXIST:
                return False
            raise
        return True

    def delete(self, directory: str, names: Iterable[str], claim: bytes | None = None) -> set[str]:
        """Delete these names of entries, and of directories that are empty: those that were there."""
        names = list(names)
        if not names:
            return set()
        for name in names:
            self.sessions.forget(directory, name)
        asked = {"directory": directory, "names": names}
        claim = self._claim if claim is None else claim
        return {name for (name,) in self._change(directory, names[0], _DELETE, asked, claim)}

    # -- locks --------------------------------------------------------------------------------------------------------

    def try_lock(self, directory: str, name: str) -> EntryLock | None:
        """Try to get the lock of an entry: None where a broker has it. Raises FileNotFoundError."""
        with self._mutex:
            session = self._session_of_locks()
            for _ in range(3):
                entry = self.find(directory, name)
                if any(other.entry.number == entry.number for other in self._locks):
                    return None  # one connection could take its own lock twice
                if self.ask(_TRY_LOCK, {"id": entry.number & IDS}, directory, name, session) == [(True,)]:
                    self._locks.append(lock := EntryLock(entry, session))
                    if self.find(directory, name).number == entry.number:
                        return lock
                    self.unlock(lock)  # the name leads to another entry now
                elif not self._renumber(entry):
                    return None
            return None

    def take(self, directory: str, name: str, old: TableEntry | None = None) -> EntryLock | None:
        """Make an entry that is locked before others see it, where there is none, or in the place of `old`. None =
        another broker was quicker."""
        with self._mutex:
            session = self._session_of_locks()
            fresh = secrets.randbits(62)
            number = None if old is None else old.number
            asked = {"directory": directory, "name": name, "fresh": fresh, "id": fresh & IDS, "old": number}
            if self.ask(_TAKE, asked, directory, name, session) != [(True,)]:
                return None
            lock = EntryLock(TableEntry(directory, name, fresh), session)
            self._locks.append(lock)
            return lock

    def unlock(self, lock: EntryLock) -> None:
        """It waits for no other call about locks, which may hang."""
        with suppress(ValueError):
            self._locks.remove(lock)
        entry, session = lock.entry, lock.session
        if not session.closed:
            asked = {"id": entry.number & IDS}
            self.ask(f"SELECT pg_advisory_unlock({SPACE}, %(id)s)", asked, entry.directory, entry.name, session)

    def _renumber(self, entry: TableEntry) -> bool:
        """Give an entry whose lock is held by strangers alone another number, and so another lock: roles that may not
        write to this store can take any advisory lock of the database, and keep it. They cannot know the new number
        before a broker has locked it. False where a broker has the lock."""
        rows = self.ask(_HOLDERS, {"directory": entry.directory, "name": entry.name}, entry.directory, entry.name)
        if not rows or not rows[0][1]:
            return False
        asked = {"file": entry.number, "fresh": secrets.randbits(62)}
        if not self.ask(_RENUMBER, asked, entry.directory, entry.name):
            return False
        place = self.place(entry.directory, entry.name)
        _log.warning("a role without rights on the store held this lock: it has another number now", file=place)
        return True

    def _session_of_locks(self) -> ServerConnection:
        """The server must not keep the locks of a connection that was lost: it holds our own name."""
        lost = self._holder
        if lost is None or lost.closed:
            self._locks = []
            self._holder = session = self.sessions.connect(self.url.text)
            if lost is not None:
                with self.sessions.guarded(session, self.url.text):
                    self.sessions.end(lost, session)
        assert self._holder is not None
        return self._holder

    # -- statements ---------------------------------------------------------------------------------------------------

    def ask(
        self,
        text: str,
        asked: dict[str, Any],
        directory: str = "",
        name: str = "",
        session: ServerConnection | None = None,
    ) -> list[Any]:
        """The rows of one statement about an entry, or a directory; {chunk} is the table of its bytes."""
        place, of_records = self.place(directory, name), directory in RECORDS
        try:
            if session is None:
                with self.sessions.use(place) as own:
                    return _run(own, self._statement(text, of_records), asked)
            if session.closed:
                raise OSError(errno.EIO, "the connection that held the lock is gone", place)
            with self.sessions.guarded(session, place):
                return _run(session, self._statement(text, of_records), asked)
        except SqlError as error:
            self._full = self._full or error.errno == errno.ENOSPC
            raise

    def _change(
        self,
        directory: str,
        name: str,
        text: str,
        asked: dict[str, Any],
        claim: bytes,
        lock: EntryLock | None = None,
        *,
        fenced: bool = False,
    ) -> list[Any]:
        """Run a statement that returns a row for each effect. It takes effect only behind the fence."""
        fenced = fenced or directory in FENCED
        whole = f"WITH {_FENCE if fenced else _OPEN}{text}"
        rows = self.ask(whole, {**asked, "claim": claim}, directory, name, lock.session if lock is not None else None)
        if not rows and fenced and not self.ask("SELECT 1 FROM {store} WHERE fence = %(claim)s", {"claim": claim}):
            why = "another broker claimed the store: the database refuses this write"
            raise OSError(errno.EIO, why, self.place(directory, name))
        return rows

    def _of(self, directory: str, name: str, text: str) -> list[Any]:
        return self.ask(text, {"directory": directory, "name": name}, directory, name)

    def _one(self, rows: list[Any], directory: str, name: str = "") -> Any:
        if not rows:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.place(directory, name))
        return rows[0]

    def _statement(self, text: str, of_records: bool) -> bytes:
        """With the names of the tables, which the first connection finds."""
        statement = self._statements.get((of_records, text))
        if statement is None:
            statement = self._statements[of_records, text] = self.sessions.tables.statement(text, of_records)
        return statement

    def _saw(self, entry: TableEntry, row: int, start: int, data: bytes) -> None:
        """`data`, from `start` on, is committed, in the row that begins at `row`."""
        if entry.directory == JOURNAL and data:
            tail = CommittedTail(JOURNAL, entry.name, start + len(data), row, data[-SEEN_BYTES:])
            self.sessions.saw(tail)

    def _has_room(self) -> bool:
        text = "INSERT INTO {chunk} (file, start, data) VALUES (-1, 0, %b)"
        try:
            with self.sessions.use(self.url.text) as session, session.transaction(force_rollback=True):
                session.execute(self.sessions.tables.statement(text), [bytes(ROW_BYTES_MAX)])
        except SqlError as error:
            if error.errno == errno.ENOSPC:
                return False
            raise
        return True

    def _gone(self, entry: TableEntry) -> OSError:
        return OSError(errno.ESTALE, "it was deleted", self.place(entry.directory, entry.name))


def _run(session: ServerConnection, statement: bytes, asked: dict[str, Any]) -> list[Any]:
    cursor = session.execute(statement, asked, binary=True)
    return cursor.fetchall() if cursor.description is not None else []
