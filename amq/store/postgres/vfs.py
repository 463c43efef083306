"""A file system in tables: the `Vfs` of a store in a database. Spec: docs/master-slave.md, "A store in a database".

Invariants:
- Every change of the journal, of checkpoints and of epochs carries the fence: it takes effect only while the newest
  claim is the one that this broker wrote. The claim is the file `claim`; its commit is the fence.
- Each change is one statement, which commits by itself. So no client that pauses holds a lock of the server.
- Writes gather until the sync, which is that statement: what is not synced nobody sees. A write begins where a row
  begins and is as long, or lies where nothing is.
- A descriptor carries the claim that was in force when it was opened. A descriptor that holds a lock writes through the
  connection that holds it. Each write to `lock`, a heartbeat or a release mark, carries the newest claim of this
  broker: a compare-and-swap.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import threading
from dataclasses import dataclass, field
from typing import Any

import structlog

from amq.store.files.vfs import NothingWrittenError
from amq.store.postgres.schema import IDENTITY, SYNCHRONOUS
from amq.store.postgres.sessions import CommittedTail, ServerConnection, Sessions, SqlError
from amq.store.postgres.url import SqlUrl
from amq.store.segment_log import NotAFileError

ROW_BYTES_MAX = 1 << 20
UNSYNCED_BYTES_MAX = 8 << 20  # of one descriptor; more is written before the sync
FENCED = frozenset(("journal", "checkpoints", "epochs"))  # but not names with a dot before them, which nobody reads
RECORDS = frozenset(("", "brokers", "orders"))  # directories whose files are written in place: a separate table
CLAIM, HEARTBEAT = "claim", "lock"
_log = structlog.get_logger("amq.sql")
JOURNAL = "journal"
SEEN_BYTES = 64  # of the newest bytes of the journal are remembered
_IDS = (1 << 31) - 1
_SPACE = "'{name}'::regclass::oid::int"  # of our locks: no other group of the database has it
# Nobody keeps this lock, not even a broker that is stopped meanwhile: it ends with the transaction, which is this
# statement, also when the time runs out in the moment in which it is granted. (A lock of the session would stay then:
# no rollback takes it back.) It is a shared lock, so that all who wait get it at once. It waits for a short time only,
# because as long as a statement runs the server keeps all versions of rows that it might see.
_QUEUE = f"""
DO $$
DECLARE lock bigint;
BEGIN
    PERFORM set_config('amq.lock', 'free', false);
    SELECT file INTO lock FROM {{name}} WHERE directory = '' AND name = '{HEARTBEAT}';
    IF lock IS NOT NULL THEN
        SET LOCAL lock_timeout = '500ms';
        PERFORM pg_advisory_xact_lock_shared({_SPACE}, (lock & {_IDS})::int);
    END IF;
EXCEPTION WHEN lock_not_available THEN
    PERFORM set_config('amq.lock', 'held', false);
END
$$"""
# Whether a lock is held by strangers alone, roles that may not write to the store; NULL = it is free. A transaction
# that was prepared with the lock has no process, and no broker prepares any.
_HOLDERS = f"""
SELECT bool_and(l.pid IS NULL OR a.usesysid IS NULL
                OR NOT has_table_privilege(a.usesysid, '{{store}}'::regclass, 'UPDATE'))
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.classid::int = {_SPACE} AND l.objid::int = %(id)s
AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
_RENUMBER = """
WITH made AS (INSERT INTO {file} (id, extent, made) OVERRIDING SYSTEM VALUE
              SELECT %(fresh)s, extent, made FROM {file} WHERE id = %(file)s RETURNING id),
named AS (UPDATE {name} n SET file = made.id FROM made WHERE n.file = %(file)s),
moved AS (UPDATE {chunk} c SET file = made.id FROM made WHERE c.file = %(file)s),
gone AS (DELETE FROM {file} USING made WHERE {file}.id = %(file)s)
SELECT id FROM made"""
_SIZE = """greatest(f.extent, (SELECT start + octet_length(data) FROM {chunk} WHERE file = f.id
ORDER BY start DESC LIMIT 1))"""
_THERE = """(%(directory)s = '' OR EXISTS (SELECT 1 FROM {name} WHERE directory = %(above)s AND name = %(parent)s
AND file IS NULL))"""  # the directory of a name
_FENCE = "fence AS (SELECT 1 FROM {store} WHERE fence = %(claim)s FOR SHARE)"
_OPEN = "fence AS (SELECT 1)"
_FREE_CHUNKS = """
gone AS (DELETE FROM {name} USING fence WHERE directory = %(directory)s AND {name}.name = %(name)s
         AND file IS NOT NULL RETURNING file),
last AS (SELECT file AS id FROM gone WHERE NOT EXISTS (
         SELECT 1 FROM {name} n WHERE n.file = gone.file AND (n.directory, n.name) <> (%(directory)s, %(name)s))),
freed AS (DELETE FROM {file} USING last WHERE {file}.id = last.id),
bytes AS (DELETE FROM {chunk} USING last WHERE file = last.id)
"""


@dataclass(slots=True)
class _File:
    """An open file. `row` = its number; `locked` = the connection that holds its lock; `unsynced` = (start, bytes)."""

    row: int
    path: str
    claim: bytes
    fenced: bool
    locked: ServerConnection | None = None
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)
    unsynced_bytes: int = 0
    end: int = 0  # the furthest byte that was written through this descriptor
    starts: set[int] = field(default_factory=set)  # of rows below `end` that may be written again


class SqlVfs:
    """The store at `url`, whose paths begin with the URL as it was given."""

    def __init__(self, url: SqlUrl) -> None:
        self.url = url
        self._sessions = Sessions(url)
        self._tables = self._sessions.tables
        # A few dozen: the texts below, with the names of the tables filled in that a path needs.
        self._statements: dict[tuple[bool, str], bytes] = {}
        self._mutex = threading.Lock()
        self._files: dict[int, _File] = {}
        self._next_fd = 1
        self._claim = b""  # digest of the newest claim that this broker wrote
        self._full = False  # the server said so
        self._identity = ""
        self._locks: ServerConnection | None = None
        self._locks_mutex = threading.Lock()

    # -- files --------------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o640) -> int:  # noqa: ARG002 (rights are those of the role)
        directory, name = self._place(path)
        row = None
        if not flags & os.O_EXCL:
            row = self._row(path)
        if row is None and not flags & os.O_CREAT:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        fenced = _is_fenced(directory, name)
        if row is None:
            try:
                row = self._make(path, fenced)
            except SqlError as error:
                if error.errno != errno.EEXIST:
                    raise
                if flags & os.O_EXCL:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from error
                row = self._row(path)
                if row is None:
                    raise
        if row[0] is None:
            raise NotAFileError(errno.EISDIR, "is a directory, not a regular file: no broker made it, remove it", path)
        with self._mutex:
            fd, self._next_fd = self._next_fd, self._next_fd + 1
            self._files[fd] = _File(row[0], path, self._claim, fenced)
        return fd

    def close(self, fd: int) -> None:
        file = self._file(fd)
        try:
            self._write(file)
        finally:
            with self._mutex:
                del self._files[fd]
            if file.locked is not None:
                self._unlock(file)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        file = self._file(fd)
        self._write(file)
        rows = self._ask(
            file.path,
            "SELECT start, substring(data FROM (greatest(%(offset)s - start, 0) + 1)::int FOR "
            "(%(end)s - greatest(start, %(offset)s))::int) FROM {chunk} WHERE file = %(file)s AND start >= coalesce("
            "(SELECT max(start) FROM {chunk} WHERE file = %(file)s AND start <= %(offset)s), 0) AND start < %(end)s "
            "ORDER BY start",
            {"file": file.row, "offset": offset, "end": offset + size},
        )
        found = bytearray()
        for start, data in rows:
            if data:
                found += bytes(max(0, start - offset - len(found)))  # a hole
                found += data
        if found:
            self._saw(file, rows[-1][0], max(rows[-1][0], offset), rows[-1][1])
        if len(found) < size:
            extent = self._ask(file.path, "SELECT extent FROM {file} WHERE id = %(file)s", {"file": file.row})
            if not extent:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), file.path)
            found += bytes(max(0, min(extent[0][0] - offset, size) - len(found)))
        return bytes(found)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        file = self._file(fd)
        file.unsynced.append((offset, bytes(data)))
        file.unsynced_bytes += len(data)
        if file.unsynced_bytes > UNSYNCED_BYTES_MAX:
            self._write(file)
        return len(data)

    def fdatasync(self, fd: int) -> None:
        self._write(self._file(fd))

    fsync = fdatasync

    def fsync_directory(self, path: str) -> None:
        """Names are durable as soon as they are made."""

    def drop_cache(self, fd: int) -> None:
        """There is none."""

    def fstat(self, fd: int) -> os.stat_result:
        file = self._file(fd)
        self._write(file)
        rows = self._ask(
            file.path,
            "SELECT id, " + _SIZE + ", made, (SELECT count(*) FROM {name} n WHERE n.file = f.id) FROM {file} f "
            "WHERE id = %(file)s",
            {"file": file.row},
        )
        if not rows:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), file.path)
        return _stat_result(*rows[0])

    def stat(self, path: str) -> os.stat_result:
        directory, name = self._place(path)
        if not directory and not name:
            return _stat_result(None, 0, None, 1)
        rows = self._ask(
            path,
            "SELECT n.file, coalesce(" + _SIZE + ", 0), f.made, 1 FROM {name} n LEFT JOIN {file} f ON f.id = n.file "
            "WHERE n.directory = %(directory)s AND n.name = %(name)s",
            {"directory": directory, "name": name},
        )
        if not rows:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return _stat_result(*rows[0])

    def ftruncate(self, fd: int, size: int) -> None:
        file = self._file(fd)
        self._write(file)
        done = self._change(
            file.path,
            file.fenced,
            file.claim,
            ", sized AS (UPDATE {file} SET extent = %(size)s FROM fence WHERE id = %(file)s RETURNING id), "
            "cut AS (UPDATE {chunk} SET data = substring(data FROM 1 FOR (%(size)s - start)::int) FROM sized "
            "WHERE file = id AND start < %(size)s AND start + octet_length(data) > %(size)s), "
            "gone AS (DELETE FROM {chunk} USING sized WHERE file = id AND start >= %(size)s) SELECT id FROM sized",
            {"file": file.row, "size": size},
            file.locked,
        )
        if not done:
            raise self._refused(file.path, file.fenced, file.claim)
        file.end = min(file.end, size)

    def allocate(self, fd: int, size: int) -> bool:  # noqa: ARG002
        """Nothing can be set aside in a database."""
        return False

    # -- names --------------------------------------------------------------------------------------------------------

    def listdir(self, path: str) -> list[str]:
        place = "/".join(filter(None, self._place(path)))
        rows = self._ask(path, "SELECT name FROM {name} WHERE directory = %(directory)s", {"directory": place})
        if not rows and place and self._row(path) != (None,):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return [row[0] for row in rows]

    def mkdir(self, path: str) -> None:
        directory, name = self._place(path)
        if not name:
            self.make_tables(path)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        made = self._ask(
            path,
            f"INSERT INTO {{name}} (directory, name) SELECT %(directory)s, %(name)s WHERE {_THERE} "
            "ON CONFLICT DO NOTHING RETURNING 1",
            _asked(directory, name),
        )
        if not made and self._row(path) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if not made:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def link(self, source: str, target: str) -> None:
        directory, name = self._place(target)
        from_directory, from_name = self._place(source)
        if (directory in RECORDS) != (from_directory in RECORDS):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)  # its bytes are elsewhere
        fenced = _is_fenced(directory, name)
        asked = _asked(directory, name) | {"from_directory": from_directory, "from_name": from_name}
        claim = self._claim
        try:
            done = self._change(
                target,
                fenced,
                claim,
                " INSERT INTO {name} (directory, name, file) SELECT %(directory)s, %(name)s, n.file FROM {name} n, "
                f"fence WHERE n.directory = %(from_directory)s AND n.name = %(from_name)s AND {_THERE} RETURNING 1",
                asked,
            )
        except SqlError as error:
            if error.errno == errno.EEXIST:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), source, None, target) from error
            raise
        if not done:
            raise self._refused(target, fenced, claim, FileNotFoundError)

    def unlink(self, path: str) -> None:
        """Remove a name; with the last one go the bytes, also for those who have the file open (`ESTALE`)."""
        directory, name = self._place(path)
        fenced, claim = _is_fenced(directory, name), self._claim
        asked = {"directory": directory, "name": name}
        self._sessions.forget(directory, name)
        if not self._change(path, fenced, claim, f", {_FREE_CHUNKS} SELECT file FROM gone", asked):
            raise self._refused(path, fenced, claim, FileNotFoundError)

    def replace(self, source: str, target: str) -> None:
        """Let `target` lead to the file of `source`, at one moment; then remove the name `source`."""
        if source == target:
            return
        directory, name = self._place(target)
        from_directory, from_name = self._place(source)
        if (directory in RECORDS) != (from_directory in RECORDS):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)  # its bytes are elsewhere
        fenced, claim = _is_fenced(directory, name), self._claim
        asked = _asked(directory, name) | {"from_directory": from_directory, "from_name": from_name}
        if not self._change(
            target,
            fenced,
            claim,
            ", source AS (SELECT n.file FROM {name} n, fence WHERE n.directory = %(from_directory)s "
            f"AND n.name = %(from_name)s AND n.file IS NOT NULL AND {_THERE}), "
            "last AS (SELECT n.file AS id FROM {name} n, source WHERE n.directory = %(directory)s "
            "AND n.name = %(name)s AND NOT EXISTS (SELECT 1 FROM {name} o WHERE o.file = n.file "
            "AND (o.directory, o.name) <> (n.directory, n.name))), "
            "freed AS (DELETE FROM {file} USING last WHERE {file}.id = last.id), "
            "bytes AS (DELETE FROM {chunk} USING last WHERE file = last.id) "
            "INSERT INTO {name} AS t (directory, name, file) SELECT %(directory)s, %(name)s, file FROM source "
            "ON CONFLICT (directory, name) DO UPDATE SET file = excluded.file WHERE t.file IS NOT NULL RETURNING 1",
            asked,
        ):
            raise self._refused(target, fenced, claim, FileNotFoundError)
        self.unlink(source)

    def rmdir(self, path: str) -> None:
        directory, name = self._place(path)
        removed = self._ask(
            path,
            "DELETE FROM {name} n WHERE directory = %(directory)s AND n.name = %(name)s AND file IS NULL "
            "AND NOT EXISTS (SELECT 1 FROM {name} i WHERE i.directory = %(within)s) RETURNING 1",
            {"directory": directory, "name": name, "within": "/".join(filter(None, (directory, name)))},
        )
        if not removed:
            row = self._row(path)
            number = errno.ENOENT if row is None else errno.ENOTEMPTY if row[0] is None else errno.ENOTDIR
            raise OSError(number, os.strerror(number), path)

    # -- locks --------------------------------------------------------------------------------------------------------

    def try_lock(self, fd: int) -> bool:
        """A lock of the connection, which ends with it. The fence, not a lock, protects the files of the journal."""
        file = self._file(fd)
        if file.fenced:
            return True
        with self._locks_mutex:
            if self._locks is None or self._locks.closed:
                self._locks = self._connect_again(file.path, self._locks)
            session = self._locks
            with self._mutex:
                if any(other.locked is session and other.row == file.row for other in self._files.values()):
                    return False  # one connection could take its own lock twice
            asked = f"SELECT pg_try_advisory_lock({_SPACE}, %(id)s)"
            for _ in range(2):
                if self._ask(file.path, asked, {"id": file.row & _IDS}, session)[0][0]:
                    file.locked = session
                    return True
                if not self._renumber(file):
                    return False
            return False

    def _renumber(self, file: _File) -> bool:
        """Give a file whose lock is held by strangers alone another number, and so another lock: roles that may not
        write to this store can take any advisory lock of the database, and keep it. They cannot know the new number
        before a broker has locked it. False where a broker has the lock, or has let it go meanwhile."""
        if self._ask(file.path, _HOLDERS, {"id": file.row & _IDS}) != [(True,)]:
            return False
        asked = {"file": file.row, "fresh": secrets.randbits(62)}
        made = self._ask(file.path, _RENUMBER, asked)
        if made:
            _log.warning("a role without rights on the store held this lock: it has another number now", file=file.path)
            file.row = made[0][0]
        return bool(made)

    def lock_held(self, fd: int) -> bool:
        file = self._file(fd)
        if file.locked is not None:
            return False
        rows = self._ask(file.path, _HOLDERS, {"id": file.row & _IDS})
        return rows == [(False,)]

    def wait_free(self) -> bool:
        """Wait, not for long, until nobody holds the lock of the store: True = so it was at one moment. It waits in the
        server's own queue, so that the end of the holder's connection ends it at once. Raises OSError, StoreError."""
        with self._sessions.use(self.url.text) as session:
            session.execute(self._tables.statement(_QUEUE))
            row = session.execute("SELECT current_setting('amq.lock')").fetchone()
        return row is not None and row[0] == "free"

    # -- the file system ----------------------------------------------------------------------------------------------

    def free_bytes(self, path: str) -> int | None:
        """The server does not tell. Behind an error "disk full": 0, until it takes a row again that is then undone."""
        if self._full:
            self._full = not self._has_room(path)
        return 0 if self._full else None

    def frees_names(self, path: str) -> bool:  # noqa: ARG002
        return True

    def identity(self) -> str:
        """The identity of these tables: server, database and table. A standby has the same, a restored
        backup has not. Raises OSError, StoreError."""
        if not self._identity:
            ((self._identity,),) = self._ask(
                self.url.text,
                "SELECT concat_ws('/', (SELECT system_identifier FROM pg_control_system()), (SELECT oid FROM "
                "pg_database WHERE datname = current_database()), '{store}'::regclass::oid)",
                {},
            )
        return self._identity

    def make_tables(self, path: str) -> None:
        """Make the tables where there are none and brokers may make them. Raises OSError, StoreError."""
        self._sessions.make_tables(path)
        self._ask(path, "SELECT 1", {})

    # -- statements ---------------------------------------------------------------------------------------------------

    def _write(self, file: _File) -> None:
        """Write the gathered rows in one statement. Raises OSError; NothingWrittenError if surely nothing is stored."""
        if not file.unsynced:
            return
        unsynced, file.unsynced, file.unsynced_bytes = file.unsynced, [], 0
        rows, extent = _rows(unsynced)
        for start, _ in rows:
            self._check_overlap(file, start)
        if file.path == self._claim_path:
            self._write_claim(file, rows)
            return
        if rows:
            self._write_rows(file, rows)
        fenced, claim = self._fence_of(file)
        if extent > file.end and not self._change(
            file.path,
            fenced,
            claim,
            " UPDATE {file} SET extent = greatest(extent, %(extent)s) FROM fence WHERE id = %(file)s RETURNING 1",
            {"file": file.row, "extent": extent},
            file.locked,
        ):
            raise self._refused(file.path, fenced, claim)
        for start, data in rows:
            file.starts.add(start)
            file.end = max(file.end, start + len(data))
        if len(file.starts) > len(rows) and file.fenced:
            file.starts.clear()  # a journal is not written twice

    def _fence_of(self, file: _File) -> tuple[bool, bytes]:
        """Whether a write to `file` takes effect behind the fence only, and with which claim."""
        if file.path == f"{self.url.text}/{HEARTBEAT}":  # opened before the claim was written
            return True, self._claim
        return file.fenced, file.claim

    def _write_rows(self, file: _File, rows: list[tuple[int, bytes]]) -> None:
        fenced, claim = self._fence_of(file)
        asked: dict[str, Any] = {"file": file.row}
        if len(rows) == 1:
            asked["start"], asked["data"] = rows[0]
            source, tables = "%(start)s::bigint, %(data)b::bytea", ""
        else:
            asked["starts"], asked["parts"] = map(list, zip(*rows, strict=True))
            source, tables = "t.start, t.data", ", unnest(%(starts)s::bigint[], %(parts)b::bytea[]) AS t (start, data)"
        try:
            stored = self._change(
                file.path,
                fenced,
                claim,
                f" INSERT INTO {{chunk}} AS c (file, start, data) SELECT f.id, {source} FROM fence, {{file}} f{tables} "
                "WHERE f.id = %(file)s ON CONFLICT (file, start) DO UPDATE SET data = excluded.data "
                "WHERE octet_length(c.data) = octet_length(excluded.data) RETURNING 1",
                asked,
                file.locked,
            )
        except SqlError as error:
            if error.errno == errno.ENOSPC:  # the server has undone the statement
                self._full = True
                raise NothingWrittenError(errno.ENOSPC, error.strerror, file.path) from error
            raise
        if len(stored) != len(rows):
            raise self._refused(file.path, fenced, claim)
        self._saw(file, rows[-1][0], *rows[-1])

    def _saw(self, file: _File, row: int, start: int, data: bytes) -> None:
        """`data`, from `start` on, is committed, in the row that begins at `row`."""
        directory, name = self._place(file.path)
        if directory == JOURNAL and file.fenced and data:
            self._sessions.saw(CommittedTail(directory, name, start + len(data), row, data[-SEEN_BYTES:]))

    def _write_claim(self, file: _File, rows: list[tuple[int, bytes]]) -> None:
        """Claim and fence in one: from this commit on nothing of an older claim takes effect."""
        ((start, data),) = rows
        digest = hashlib.sha256(data).digest()
        self._ask(
            file.path,
            "WITH fence AS (UPDATE {store} SET fence = %(digest)s, server = "
            + IDENTITY
            + ", synchronous = "
            + SYNCHRONOUS
            + ") INSERT INTO {chunk} AS c (file, start, data) VALUES (%(file)s, %(start)s, %(data)b) "
            "ON CONFLICT (file, start) DO UPDATE SET data = excluded.data",
            {"digest": digest, "file": file.row, "start": start, "data": data},
        )
        self._claim = digest

    @staticmethod
    def _check_overlap(file: _File, start: int) -> None:
        if start < file.end and start not in file.starts:
            why = "a store in a database is written at the end of a file, or a record is replaced"
            raise OSError(errno.EINVAL, why, file.path)

    def _has_room(self, path: str) -> bool:
        text = "INSERT INTO {chunk} (file, start, data) VALUES (-1, 0, %b)"
        try:
            with self._sessions.use(path) as session, session.transaction(force_rollback=True):
                session.execute(self._tables.statement(text), [bytes(ROW_BYTES_MAX)])
        except SqlError as error:
            if error.errno == errno.ENOSPC:
                return False
            raise
        return True

    def _make(self, path: str, fenced: bool) -> tuple[int | None]:
        directory, name = self._place(path)
        claim = self._claim
        made = self._change(
            path,
            fenced,
            claim,
            f", made AS (INSERT INTO {{file}} (extent) SELECT 0 FROM fence WHERE {_THERE} RETURNING id) "
            "INSERT INTO {name} (directory, name, file) SELECT %(directory)s, %(name)s, id FROM made RETURNING file",
            _asked(directory, name),
        )
        if not made:
            raise self._refused(path, fenced, claim, FileNotFoundError)
        return (made[0][0],)

    def _row(self, path: str) -> tuple[int | None] | None:
        """The number of the file at `path` (None = a directory); None where there is no such name."""
        directory, name = self._place(path)
        rows = self._ask(
            path,
            "SELECT file FROM {name} WHERE directory = %(directory)s AND name = %(name)s",
            {"directory": directory, "name": name},
        )
        return (rows[0][0],) if rows else None

    def _change(
        self,
        path: str,
        fenced: bool,
        claim: bytes,
        text: str,
        asked: dict[str, Any],
        session: ServerConnection | None = None,
    ) -> list[Any]:
        """Run a statement that takes effect only behind the fence, and returns a row for each effect."""
        return self._ask(path, f"WITH {_FENCE if fenced else _OPEN}{text}", {**asked, "claim": claim}, session)

    def _ask(self, path: str, text: str, asked: dict[str, Any], session: ServerConnection | None = None) -> list[Any]:
        """The rows of one statement. Raises OSError about `path`, StoreError."""
        of_records = self._place(path)[0] in RECORDS
        if session is None:
            with self._sessions.use(path) as own:
                return _run(own, self._statement(text, of_records), asked)
        if session.closed:
            raise OSError(errno.EIO, "the connection that held the lock of this file is gone", path)
        with self._sessions.guarded(session, path):
            return _run(session, self._statement(text, of_records), asked)

    def _statement(self, text: str, of_records: bool) -> bytes:
        """With the names of the tables, which the first connection finds."""
        statement = self._statements.get((of_records, text))
        if statement is None:
            statement = self._statements[of_records, text] = self._tables.statement(text, of_records)
        return statement

    def _refused(self, path: str, fenced: bool, claim: bytes, otherwise: type[OSError] | None = None) -> OSError:
        """Why a change took no effect."""
        if fenced and not self._ask(path, "SELECT 1 FROM {store} WHERE fence = %(claim)s", {"claim": claim}):
            return OSError(errno.EIO, "another broker claimed the store: the database refuses this write", path)
        if otherwise is FileNotFoundError:
            return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return OSError(errno.ESTALE, "the file is gone, or a record of another length stands there", path)

    def _unlock(self, file: _File) -> None:
        session, file.locked = file.locked, None
        if session is not None and not session.closed:
            asked = f"SELECT pg_advisory_unlock({_SPACE}, %(id)s)"
            self._ask(file.path, asked, {"id": file.row & _IDS}, session)

    def _connect_again(self, path: str, lost: ServerConnection | None) -> ServerConnection:
        """A connection for locks. The server must not keep those of the one that was lost: it holds our own name."""
        session = self._sessions.connect(path)
        if lost is not None:
            with self._sessions.guarded(session, path):
                self._sessions.end(lost, session)
        return session

    def _file(self, fd: int) -> _File:
        try:
            return self._files[fd]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None

    @property
    def _claim_path(self) -> str:
        return f"{self.url.text}/{CLAIM}"

    def _place(self, path: str) -> tuple[str, str]:
        """(directory, name) of `path`, both below the store: ("", "") = the store."""
        below = path.removeprefix(self.url.text)
        if below == path or (below and not below.startswith("/")):
            raise FileNotFoundError(errno.ENOENT, "is not in the store", path)
        directory, _, name = below.strip("/").rpartition("/")
        return directory, name


def _run(session: ServerConnection, statement: bytes, asked: dict[str, Any]) -> list[Any]:
    cursor = session.execute(statement, asked, binary=True)
    return cursor.fetchall() if cursor.description is not None else []


def _asked(directory: str, name: str) -> dict[str, Any]:
    """The condition of a statement that makes a name: the directory itself is a name, too."""
    above, _, parent = directory.rpartition("/")
    return {"directory": directory, "name": name, "above": above, "parent": parent}


def _is_fenced(directory: str, name: str) -> bool:
    return directory.partition("/")[0] in FENCED and not name.startswith(".")


def _rows(unsynced: list[tuple[int, bytes]]) -> tuple[list[tuple[int, bytes]], int]:
    """Rows for what was written, and where it ends. Zeros at an end take no rows: no bytes are zeros already."""
    runs: list[tuple[int, list[bytes]]] = []
    end = extent = 0
    for start, data in unsynced:
        if not data[:1].strip(b"\0") and not data.strip(b"\0"):
            extent = max(extent, start + len(data))
            continue
        if runs and start == end:
            runs[-1][1].append(data)
        else:
            runs.append((start, [data]))
        end = start + len(data)
    rows = []
    for start, parts in runs:
        data = b"".join(parts)
        rows += [(start + at, data[at : at + ROW_BYTES_MAX]) for at in range(0, len(data), ROW_BYTES_MAX)]
    return rows, extent


def _stat_result(row: int | None, size: int, made: Any, links: int) -> os.stat_result:
    kind = stat.S_IFDIR | 0o750 if row is None else stat.S_IFREG | 0o640
    wall_s = int(made.timestamp()) if made is not None else 0
    return os.stat_result((kind, row or 0, 0, links, 0, 0, size, wall_s, wall_s, wall_s))
