"""The tables of a store, their version, and the way from one version to the next.

    PREFIXamq_store  one row: version of the tables, the fence, and which server it was
    PREFIXamq_name   directory + name → file; no file = a directory
    PREFIXamq_file   a file; `extent` = its size where nothing is written up to there
    PREFIXamq_chunk  bytes of a file from `start` on. Rows of one file never overlap
    PREFIXamq_record the same, of small files that are written again and again in place: the lock, the claim, what
                     brokers say of themselves. Each row has a page for itself, whose room its older versions give back
                     without a vacuum: so a master whose tables have no more room still proves that it lives

Invariant: each step of `STEPS` leads from one version to the next, in one transaction, and holds the row of the store:
no broker writes meanwhile, and a broker of another version refuses the store when it connects.

Other roles of the server may have made objects in any schema of the search path. So a connection looks for functions,
types and operators in `pg_catalog` alone (`SEARCHED`), and each table is named with the schema in which it was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import Connection, errors, sql

from amq.core.errors import NewerFormatError, StoreError

_CREATE = """
CREATE TABLE {store} (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    version integer NOT NULL,
    fence bytea NOT NULL DEFAULT '',
    server text NOT NULL,
    synchronous boolean NOT NULL
);
CREATE TABLE {file} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    extent bigint NOT NULL DEFAULT 0,
    made timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE {name} (
    directory text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    file bigint,
    PRIMARY KEY (directory, name)
);
CREATE INDEX ON {name} (file);
CREATE TABLE {chunk} (
    file bigint NOT NULL,
    start bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (file, start)
);
ALTER TABLE {chunk} ALTER data SET STORAGE EXTERNAL;
ALTER TABLE {store} SET (fillfactor = 10);
"""
_RECORDS = """
CREATE TABLE {record} (LIKE {chunk} INCLUDING INDEXES) WITH (fillfactor = 10);
ALTER TABLE {record} ALTER data SET STORAGE MAIN;
WITH moved AS (DELETE FROM {chunk} USING {name} n WHERE {chunk}.file = n.file
               AND n.directory IN ('', 'brokers', 'orders')
               RETURNING {chunk}.file, {chunk}.start, {chunk}.data)
INSERT INTO {record} SELECT file, start, data FROM moved;
"""
STEPS: tuple[str, ...] = (_CREATE, _RECORDS)  # step n makes version n + 1 of version n
NAMES = ("store", "name", "file", "chunk", "record")
# The server that answers: its identity, and its timeline, which a promotion of a standby changes.
IDENTITY = (
    "(SELECT system_identifier FROM pg_control_system())::text || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8)"
)
# Whether what is committed is also on a standby.
SYNCHRONOUS = (
    "current_setting('synchronous_standby_names') <> '' AND "
    "current_setting('synchronous_commit') IN ('on', 'remote_apply')"
)


SEARCHED = "SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false)"
_UNUSABLE = "'\"%\\"  # in the name of a schema, which is in texts of statements
_SCHEMA = """
SELECT n.nspname FROM unnest(%s::text[]) WITH ORDINALITY s (name, place) JOIN pg_namespace n ON n.nspname = s.name
JOIN pg_class c ON c.relnamespace = n.oid WHERE c.relname = %s ORDER BY s.place LIMIT 1
"""


class Tables:
    """Names of the tables of one group, and statements that use them. `schema` = where they are, or will be made; ""
    = not known yet."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.names = tuple(f"{prefix}amq_{name}" for name in NAMES)
        self.schema = ""
        self._is_found = False

    def find(self, connection: Connection[Any]) -> None:
        """Look for the tables in the search path of this new connection, which then searches `pg_catalog` alone. A
        schema in which they were found once stays. Raises StoreError, psycopg.Error."""
        row = connection.execute("SELECT pg_catalog.current_schemas(false)").fetchone()
        connection.execute(SEARCHED)
        if self._is_found:
            return
        searched = list(row[0]) if row is not None else []
        found = connection.execute(_SCHEMA, [searched, self.names[0]]).fetchone()
        self.schema = found[0] if found is not None else next(iter(searched), "public")
        self._is_found = found is not None
        if set(self.schema) & set(_UNUSABLE):
            raise StoreError(
                f"the schema {self.schema!r} has a name that cannot be used: make the tables in another one, which the "
                "role's search_path names first",
                code="STORE_URL_INVALID",
            )

    def full(self, name: str) -> str:
        """A name of `names` with its schema, quoted."""
        return f'"{self.schema}"."{name}"'

    @property
    def _names(self) -> dict[str, sql.Identifier]:
        return dict(zip(NAMES, (sql.Identifier(self.schema, name) for name in self.names), strict=True))

    def statement(self, text: str, of_records: bool = False) -> bytes:
        """`text` with {store}, {name}, {file}, {chunk} and {record} filled in; {chunk} is {record} if `of_records`."""
        assert self.schema, "a connection has found it"
        names = self._names
        if of_records:
            names["chunk"] = names["record"]
        return sql.SQL(text).format(**names).as_bytes(None)

    def version(self, connection: Connection[Any]) -> int:
        """Of the tables that are there, 0 = none."""
        found = connection.execute("SELECT to_regclass(%s)", [self.full(self.names[0])]).fetchone()
        if found is None or found[0] is None:
            return 0
        row = connection.execute(self.statement("SELECT version FROM {store}")).fetchone()
        return int(row[0]) if row is not None else 0

    def upgrade(self, connection: Connection[Any], steps: Sequence[str] = STEPS) -> tuple[int, int]:
        """Make the tables, or bring them to the newest version: (version before, version now). Of brokers that make
        them at once one succeeds, and the others find them. Raises NewerFormatError, psycopg.Error.
        """
        try:
            return self._upgrade(connection, steps)
        except (errors.DuplicateTable, errors.UniqueViolation):  # somebody else's are there, as soon as theirs commit
            return self._upgrade(connection, steps)

    def _upgrade(self, connection: Connection[Any], steps: Sequence[str]) -> tuple[int, int]:
        with connection.transaction():
            before = self.version(connection)
            if before:
                connection.execute(self.statement("SELECT 1 FROM {store} FOR UPDATE"))
                before = self.version(connection)
            if before > len(steps):
                raise newer(before, len(steps))
            for number, step in enumerate(steps[before:], before + 1):
                connection.execute(self.statement(step))
                if number == 1:
                    made = f"INSERT INTO {{store}} (version, server, synchronous) SELECT 1, {IDENTITY}, {SYNCHRONOUS}"
                    connection.execute(self.statement(made))
                else:
                    connection.execute(self.statement("UPDATE {store} SET version = version + 1"))
        return before, max(before, len(steps))


def check_version(found: int, where: str, newest: int = len(STEPS)) -> None:
    """Raises StoreError where `found` is not the version that this program uses."""
    if found > newest:
        raise newer(found, newest)
    if not found:
        raise StoreError(
            f"{where} has no tables of a store: make them with `amq store init`, as a role that may create tables",
            code="STORE_MISSING",
        )
    if found < newest:
        raise StoreError(
            f"the tables of {where} have version {found}, this amq uses version {newest}: stop all brokers and run "
            "`amq store upgrade`",
            code="STORE_OLDER_SCHEMA",
        )


def newer(found: int, newest: int) -> NewerFormatError:
    return NewerFormatError(
        f"the tables of the store have version {found}, this amq knows {newest}: upgrade this broker"
    )
