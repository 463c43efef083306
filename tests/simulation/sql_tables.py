"""The tables of a store, and what each statement of `amq/store/postgres` does to them at READ COMMITTED.

A statement is known by its text; an unknown one is an error, so that no new statement goes unmodelled. Each names the
rows that it locks. It reads `seen`, the tables as they were when it began, and of the rows that it locks the newest
version, `now`. It changes nothing: it returns its rows and adds effects, which take place when it is committed.
`tests/sql/test_sql_model.py` compares all this with a real server.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from psycopg import errors

from amq.store.postgres.database import IDS

if TYPE_CHECKING:
    from tests.simulation.sql_server import Backend, SqlServer

Effect = Callable[["SqlTables"], None]
Key = tuple[Any, ...]  # of a row: (table, primary key…)
STORE_ROW: Key = ("store",)
MADE = datetime(2026, 1, 1, tzinfo=UTC)


class SqlTables:
    """What is committed. `chunks`: file → start → bytes, in the table `chunk` or `record`: a file is in one of them."""

    def __init__(self) -> None:
        self.version = 0  # 0 = the tables are not there
        self.fence = b""
        self.server = ""
        self.synchronous = False
        self.names: dict[tuple[str, str], int | None] = {}
        self.files: dict[int, int] = {}  # id → extent
        self.chunks: dict[int, dict[int, bytes]] = {}

    def copy(self) -> SqlTables:
        other = SqlTables()
        other.version, other.fence, other.server = self.version, self.fence, self.server
        other.synchronous = self.synchronous
        other.names, other.files = dict(self.names), dict(self.files)
        other.chunks = {file: dict(rows) for file, rows in self.chunks.items()}
        return other

    def size(self, file: int) -> int:
        rows = self.chunks.get(file)
        last = max(rows) if rows else 0
        return max(self.files[file], last + len(rows[last]) if rows else 0)

    def data(self, file: int) -> bytes:
        """The whole file: what stands nowhere is zeros."""
        found = bytearray(self.size(file))
        for start, piece in self.chunks.get(file, {}).items():
            found[start : start + len(piece)] = piece
        return bytes(found)

    def used_bytes(self) -> int:
        return sum(len(piece) for rows in self.chunks.values() for piece in rows.values())


@dataclass(slots=True)
class Call:
    """One statement that a backend runs. `records`: on the table `record`, not `chunk`. `passed`: the fence let it
    through."""

    server: SqlServer
    backend: Backend
    seen: SqlTables
    now: SqlTables
    asked: Any
    records: bool
    passed: bool = True
    effects: list[Effect] = field(default_factory=list)

    @property
    def place(self) -> tuple[str, str]:
        return self.asked["directory"], self.asked["name"]


Rows = list[tuple[Any, ...]]
Locks = Callable[[Any], list[Key]]


@dataclass(frozen=True, slots=True)
class Statement:
    """`kind` = the table that it changes, for faults that strike there; "" = it changes none."""

    name: str
    kind: str
    locks: Locks
    run: Callable[[Call], Rows | None]


@dataclass(frozen=True, slots=True)
class Plan:
    """A statement behind its fence: "" = none, "open" = one that lets all pass, "unlocked", "key share", "share".
    `records`: see `Call`."""

    statement: Statement
    fence: str
    records: bool

    def keys(self, asked: Any) -> list[tuple[Key, bool]]:
        """(row, exclusive?) of the locks that it takes."""
        share = [(STORE_ROW, False)] if self.fence == "share" else []
        return share + [(key, True) for key in self.statement.locks(asked)]


_KNOWN: list[tuple[re.Pattern[str], Statement]] = []
_FENCE = re.compile(
    r"WITH fence AS \(SELECT 1(?P<read> FROM amq_store WHERE fence = %\(claim\)s(?P<lock> FOR (KEY )?SHARE)?)?\)[, ]*"
)


def plan(text: str) -> Plan:
    """What is in `text`. Raises AssertionError where the model does not know it."""
    text = " ".join(text.replace('"', "").replace("public.", "").split())
    records = "amq_record" in text and not text.startswith("CREATE TABLE")
    if records:
        text = text.replace("amq_record", "amq_chunk")
    behind = _FENCE.match(text)
    fence = ""
    if behind:
        fence = {None: "unlocked", " FOR SHARE": "share", " FOR KEY SHARE": "key share"}[behind["lock"]]
        fence = fence if behind["read"] else "open"
        text = text[behind.end() :]
    for pattern, statement in _KNOWN:
        if pattern.match(text):
            return Plan(statement, fence, records)
    raise AssertionError(f"the model of PostgreSQL does not know this statement: {text}")


def known() -> set[str]:
    """The names of all statements."""
    return {statement.name for _, statement in _KNOWN}


def _no_locks(_asked: Any) -> list[Key]:
    return []


def _statement(begin: str, kind: str = "", locks: Locks = _no_locks) -> Callable[[Any], Any]:
    def add(run: Callable[[Call], Rows | None]) -> Any:
        _KNOWN.append((re.compile(begin), Statement(run.__name__.strip("_"), kind, locks, run)))
        return run

    return add


def _name_key(asked: Any) -> list[Key]:
    return [("name", asked["directory"], asked["name"])]


def _name_keys(asked: Any) -> list[Key]:
    return [("name", asked["directory"], name) for name in asked["names"]]


def _chunk_keys(asked: Any) -> list[Key]:
    starts = asked["starts"] if "starts" in asked else [asked["start"]]
    return [("chunk", asked["file"], start) for start in starts]


# -- connections -------------------------------------------------------------------------------------------------------


@_statement(r"SELECT set_config\('lock_timeout', ")
def _settings(call: Call) -> Rows:
    call.backend.lock_timeout_s = float(call.asked[0].removesuffix("s"))
    return [("",) * 6]


@_statement(r"SELECT pg_is_in_recovery\(\), pg_backend_pid\(\)")
def _facts(call: Call) -> Rows:
    return [(False, call.backend.pid, call.backend.began)]


@_statement(r"SELECT pg_terminate_backend\(pid\) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s")
def _terminate(call: Call) -> Rows:
    found = [other for other in call.server.backends if (other.pid, other.began) == tuple(call.asked)]
    for other in found:
        call.server.end(other)
    return [(True,)] * len(found)


@_statement(r"SELECT pg_sleep\(0.01\) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s")
def _still_there(call: Call) -> Rows:
    return [("",) for other in call.server.backends if (other.pid, other.began) == tuple(call.asked)]


@_statement(r"SELECT pg_try_advisory_lock\('amq_name'::regclass::oid::int, %\(id\)s\)$")
def _try_lock(call: Call) -> Rows:
    return _lock(call)


def _lock(call: Call) -> Rows:
    holder = call.server.advisory.setdefault(call.asked["id"], call.backend)
    return [(holder is call.backend,)]


@_statement(r"SELECT pg_advisory_unlock\(")
def _unlock(call: Call) -> Rows:
    held = call.server.advisory.get(call.asked["id"]) is call.backend
    if held:
        del call.server.advisory[call.asked["id"]]
    return [(held,)]


@_statement(r"SELECT n.name, \(SELECT bool_and\(l.pid IS NULL OR ")
def _held(call: Call) -> Rows:
    """Only brokers are in this world."""
    asked = call.asked
    return [
        (name, False if file & IDS in call.server.advisory else None)
        for (directory, name), file in sorted(call.seen.names.items())
        if directory == asked["directory"] and name == (asked["name"] or name) and file is not None
    ]


@_statement(r"WITH named AS \(INSERT INTO amq_name AS n ", "name", _name_key)
def _take(call: Call) -> Rows:
    place, fresh, old = call.place, call.asked["fresh"], call.asked["old"]
    if place in call.now.names and (old is None or call.now.names[place] != old):
        return []

    def take_place(tables: SqlTables) -> None:
        tables.files.pop(old, None)
        tables.chunks.pop(old, None)
        tables.names[place], tables.files[fresh] = fresh, 0

    call.effects.append(take_place)
    return _lock(call)


# -- the row of the store ----------------------------------------------------------------------------------------------


@_statement(r"SELECT to_regclass\(%s\)")
def _regclass(call: Call) -> Rows:
    return [(call.asked[0] if call.seen.version else None,)]


@_statement(r"SELECT pg_catalog.current_schemas\(false\)")
def _searched(_call: Call) -> Rows:
    return [(["public"],)]


@_statement(r"SELECT pg_catalog.set_config\('search_path', ")
def _search(_call: Call) -> Rows:
    return [("",)]


@_statement(r"SELECT n.nspname FROM unnest\(%s::text\[\]\)")
def _schema(call: Call) -> Rows:
    return [("public",)] if call.seen.version else []


@_statement(r"SELECT version FROM amq_store")
def _version(call: Call) -> Rows:
    return [(call.seen.version,)]


@_statement(r"SELECT server, \(SELECT system_identifier FROM pg_control_system\(\)\)")
def _servers(call: Call) -> Rows:
    return [(call.seen.server, call.server.identity)]


@_statement(r"SELECT synchronous FROM amq_store")
def _was_synchronous(call: Call) -> Rows:
    return [(call.seen.synchronous,)]


@_statement(r"SELECT 1 FROM amq_store WHERE fence = %\(claim\)s$")
def _claim_stands(call: Call) -> Rows:
    return [(1,)] if call.seen.fence == call.asked["claim"] else []


@_statement(r"SELECT n.name, \(SELECT substring\(c.data FROM \(%\(at\)s - c.start \+ 1\)::int FOR %\(size\)s\)")
def _seen(call: Call) -> Rows:
    asked = call.asked
    names = [name for place, name in call.seen.names if place == asked["directory"] and name >= asked["name"]]
    if not names:
        return []
    file = call.seen.names[asked["directory"], min(names)]
    row = call.seen.chunks.get(file, {}).get(asked["start"]) if file is not None else None
    at = asked["at"] - asked["start"]
    return [(min(names), None if row is None else row[at : at + asked["size"]])]


@_statement(r"UPDATE amq_store SET synchronous = false WHERE server <> \(SELECT", "store", lambda _: [STORE_ROW])
def _doubt(call: Call) -> None:
    if call.now.server != call.server.identity:
        call.effects.append(lambda tables: setattr(tables, "synchronous", False))


@_statement(r"UPDATE amq_store SET server = \(SELECT", "store", lambda _: [STORE_ROW])
def _accept(call: Call) -> None:
    identity = call.server.identity
    call.effects.append(lambda tables: setattr(tables, "server", identity))


@_statement(r"SELECT 1 FROM amq_store FOR UPDATE$", "", lambda _: [STORE_ROW])
def _lock_store(_call: Call) -> Rows:
    return [(1,)]


@_statement(r"CREATE TABLE amq_store ", "", lambda _: [("upgrade",)])
def _create(call: Call) -> None:
    if call.now.version:
        raise errors.DuplicateTable("relation already exists")
    call.effects.append(lambda tables: setattr(tables, "version", 1))


@_statement(r"CREATE TABLE amq_record \(LIKE amq_chunk ")
def _create_records(_call: Call) -> None:
    pass  # nothing is to be moved: stores of version 1 are upgraded on a real server


@_statement(r"UPDATE amq_store SET version = version \+ 1$", "store", lambda _: [STORE_ROW])
def _next_version(call: Call) -> None:
    def take_place(tables: SqlTables) -> None:
        tables.version += 1

    call.effects.append(take_place)


@_statement(r"INSERT INTO amq_store \(version, server, synchronous\) SELECT 1, ", "store", lambda _: [STORE_ROW])
def _first_row(call: Call) -> None:
    identity, synchronous = call.server.identity, call.server.synchronous

    def take_place(tables: SqlTables) -> None:
        tables.server, tables.synchronous = identity, synchronous

    call.effects.append(take_place)


@_statement(r"WITH claimed AS \(UPDATE amq_store SET fence = %\(digest\)s, server = ", "claim", lambda _: [STORE_ROW])
def _claim(call: Call) -> Rows:
    asked, identity, synchronous = call.asked, call.server.identity, call.server.synchronous
    file = call.seen.names.get(("", "claim"))
    if file is None:
        return []

    def take_place(tables: SqlTables) -> None:
        tables.fence, tables.server, tables.synchronous = asked["digest"], identity, synchronous
        tables.chunks.setdefault(file, {})[0] = asked["data"]

    call.effects.append(take_place)
    return [(1,)]


# -- names -------------------------------------------------------------------------------------------------------------


@_statement(r"SELECT file FROM amq_name WHERE directory = %\(directory\)s AND name = %\(name\)s AND file IS NOT NULL$")
def _find(call: Call) -> Rows:
    file = call.seen.names.get(call.place)
    return [] if file is None else [(file,)]


@_statement(r"SELECT 1 FROM amq_name WHERE directory = %\(directory\)s AND name = %\(name\)s$")
def _is_there(call: Call) -> Rows:
    return [(1,)] if call.place in call.seen.names else []


@_statement(r"SELECT name FROM amq_name WHERE directory = %\(directory\)s")
def _listing(call: Call) -> Rows:
    names = [name for directory, name in call.seen.names if directory == call.asked["directory"]]
    return [(name,) for name in call.server.rng.sample(names, len(names))]


@_statement(r"SELECT 1$")
def _one(_call: Call) -> Rows:
    return [(1,)]


@_statement(r"INSERT INTO amq_name \(directory, name\) VALUES .* ON CONFLICT DO NOTHING RETURNING 1", "name", _name_key)
def _make_directory(call: Call) -> Rows:
    place = call.place
    if place in call.now.names:
        return []
    call.effects.append(lambda tables: tables.names.update({place: None}))
    return [(1,)]


@_statement(
    r"made AS \(INSERT INTO amq_file \(extent\) SELECT %\(extent\)s FROM fence .* FROM made RETURNING",
    "name",
    _name_key,
)
def _create(call: Call) -> Rows:
    place, data, extent = call.place, call.asked["data"], call.asked["extent"]
    if not call.passed:
        return []
    if place in call.now.names:
        raise _duplicate("amq_name")
    call.server.need_room(len(data))
    number = call.server.next_id()

    def take_place(tables: SqlTables) -> None:
        tables.names[place], tables.files[number] = number, extent
        if data:
            tables.chunks[number] = {0: data}

    call.effects.append(take_place)
    return [(number,)]


@_statement(
    r"UPDATE amq_name SET name = %\(target\)s FROM fence ", "name", lambda asked: [*_name_key(asked), _target(asked)]
)
def _rename(call: Call) -> Rows:
    place, target = call.place, (call.asked["directory"], call.asked["target"])
    if not call.passed or place not in call.now.names:
        return []
    if target in call.now.names:
        raise _duplicate("amq_name")

    def take_place(tables: SqlTables) -> None:
        tables.names[target] = tables.names.pop(place)

    call.effects.append(take_place)
    return [(1,)]


def _target(asked: Any) -> Key:
    return ("name", asked["directory"], asked["target"])


def _duplicate(table: str) -> errors.UniqueViolation:
    return errors.UniqueViolation(f"duplicate key value violates unique constraint of {table}")


@_statement(r"gone AS \(DELETE FROM amq_name n USING fence ", "name", _name_keys)
def _delete(call: Call) -> Rows:
    """The bytes go, too: a second name has only what a repair keeps, and none is here."""
    directory = call.asked["directory"]
    places = [(directory, name) for name in call.asked["names"] if (directory, name) in call.now.names]
    if not call.passed:
        return []

    def take_place(tables: SqlTables) -> None:
        for place in places:
            file = tables.names.pop(place, None)
            if file is not None:
                tables.files.pop(file, None)
                tables.chunks.pop(file, None)

    if places:
        call.effects.append(take_place)
    return [(name,) for _, name in places]


# -- bytes -------------------------------------------------------------------------------------------------------------


@_statement(r"SELECT start, substring\(data FROM ")
def _read(call: Call) -> Rows:
    rows = call.seen.chunks.get(call.asked["file"], {})
    offset, end = call.asked["offset"], call.asked["end"]
    first = max((start for start in rows if start <= offset), default=0)
    return [
        (start, rows[start][max(offset - start, 0) :][: end - max(start, offset)])
        for start in sorted(rows)
        if first <= start < end
    ]


@_statement(r"SELECT extent FROM amq_file WHERE id = ")
def _extent(call: Call) -> Rows:
    return [(extent,) for file, extent in call.seen.files.items() if file == call.asked["file"]]


@_statement(r"SELECT greatest\(f.extent, .*\), f.made FROM amq_name n JOIN amq_file f ")
def _size(call: Call) -> Rows:
    file = call.seen.names.get(call.place)
    return [] if file is None else [(call.seen.size(file), MADE)]


@_statement(r"SELECT n.file, c.data FROM amq_name n LEFT JOIN amq_chunk c ")
def _record(call: Call) -> Rows:
    if call.place not in call.seen.names:
        return []
    file = call.seen.names[call.place]
    return [(file, call.seen.chunks.get(file or 0, {}).get(call.asked["start"]))]


@_statement(r"SELECT \(SELECT string_agg\(c.data, ''::bytea ORDER BY c.start\) FROM amq_chunk c ")
def _load(call: Call) -> Rows:
    file = call.seen.names.get(call.place)
    if file is None:
        return []
    rows = call.seen.chunks.get(file, {})
    return [(b"".join(rows[start] for start in sorted(rows)) or None,)]


@_statement(
    r"INSERT INTO amq_chunk \(file, start, data\) SELECT f.id, .* FROM fence, amq_file f .* ON CONFLICT",
    "record",
    _chunk_keys,
)
def _put(call: Call) -> Rows:
    file, start, data = call.asked["file"], call.asked["start"], call.asked["data"]
    if not call.passed or file not in call.seen.files:
        return []
    if not (call.records and start in call.now.chunks.get(file, {})):  # that goes into the page of the old version
        call.server.need_room(len(data))
    call.effects.append(lambda tables: tables.chunks.setdefault(file, {}).update({start: data}))
    return [(1,)]


@_statement(r"INSERT INTO amq_chunk \(file, start, data\) SELECT f.id, .* FROM fence, amq_file f", "chunk", _chunk_keys)
def _append(call: Call) -> Rows:
    asked, file = call.asked, call.asked["file"]
    if not call.passed or file not in call.seen.files:
        return []
    pairs = list(zip(asked["starts"], asked["parts"], strict=True)) if "starts" in asked else []
    pairs = pairs or [(asked["start"], asked["data"])]
    if any(start in call.now.chunks.get(file, {}) for start, _ in pairs):
        raise _duplicate("amq_chunk")
    call.server.need_room(sum(len(data) for _, data in pairs))
    call.effects.append(lambda tables: tables.chunks.setdefault(file, {}).update(pairs))
    return [(1,)] * len(pairs)


@_statement(r"INSERT INTO amq_chunk \(file, start, data\) VALUES \(-1, 0, %b\)", "", lambda _: [("chunk", -1, 0)])
def _room(call: Call) -> None:
    call.server.need_room(len(call.asked[0]))
