"""Another role of the same server, without rights on the tables of the store, tries to harm it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import errors

from amq.core.errors import AmqError
from amq.doctor.database import examine_database
from amq.doctor.finding import Level
from amq.store.postgres.schema import STEPS, Tables
from amq.store.postgres.sessions import Sessions
from amq.store.postgres.url import SqlUrl
from tests.brokers import Brokers
from tests.election_contract import no
from tests.postgres import Postgres, needs_postgres
from tests.sql.test_sql_database import Opened, S, claimed, number_of, open_store

pytestmark = needs_postgres
KEY = "'amq_name'::regclass::oid::int"


@pytest.fixture
def eve(server: Postgres, database: str) -> Iterator[psycopg.Connection]:
    """Connected to the database of the store, as everybody may by default."""
    role = f"eve_{database}"
    server.ask(f"CREATE ROLE {role} LOGIN")
    with closing(psycopg.connect(server.conninfo(database, role), autocommit=True)) as connection:
        yield connection


HELD = """
SELECT objid FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND granted
AND datname = current_database() AND usename = 'owner'
"""


def take_all_locks(eve: psycopg.Connection) -> list[int]:
    """Of files that the store has, or may have next."""
    for number in range(40):
        eve.execute(f"SELECT pg_try_advisory_lock({KEY}, %s)", [number])
    return [row[0] for row in eve.execute("SELECT objid::int FROM pg_locks WHERE locktype = 'advisory' AND granted")]


@pytest.mark.parametrize("place", [("", "lock"), ("brokers", "a.json")])
def test_a_stranger_keeps_no_lock_of_a_store(url: str, eve: psycopg.Connection, place: tuple[str, str]) -> None:
    """Made by an older version: its number can be known."""
    database, other = open_store(url).database, open_store(url).database
    database.put(database.create(*place), b"content")
    take_all_locks(eve)
    assert database.held(*place) == {place[1]: False}, "a lock that no broker has"
    lock = database.try_lock(*place)
    assert lock is not None
    assert database.record(*place)[1] == b"content"
    assert number_of(other, *place) == lock.entry.number, "the name leads to the entry that is locked"
    assert other.held(*place) == {place[1]: True}
    assert other.try_lock(*place) is None, "a broker keeps its lock"
    assert number_of(other, *place) == lock.entry.number


def test_a_stranger_that_waits_for_the_lock_does_not_stop_the_next_broker(
    server: Postgres, database: str, url: str, eve: psycopg.Connection
) -> None:
    """It sees the number in `pg_locks`, as everybody does, and waits in the server's queue."""
    election = open_store(url).election
    assert election.try_acquire(no)
    for _ in range(3):
        ((number,),) = eve.execute(HELD)
        with closing(psycopg.connect(server.conninfo(database, eve.info.user), autocommit=True)) as waiting:
            waiting.pgconn.send_query(f"SELECT pg_advisory_lock({KEY}, {number})".encode())
            while server.ask("SELECT 1 FROM pg_locks WHERE NOT granted AND pid = %s", [waiting.info.backend_pid]) == []:
                continue
            election.let_go()  # a clean end, or a kill: the stranger is next
            while (
                server.ask(
                    "SELECT 1 FROM pg_locks WHERE granted AND locktype = 'advisory' AND pid = %s",
                    [waiting.info.backend_pid],
                )
                == []
            ):
                continue
            election = open_store(url).election
            assert election.try_acquire(no)


@pytest.mark.deep
def test_a_group_starts_and_fails_over_while_a_stranger_takes_locks(
    url: str, eve: psycopg.Connection, tmp_path: Path
) -> None:
    open_store(url)
    take_all_locks(eve)
    with Brokers(tmp_path, store=url, hungMasterTimeout="0") as brokers:
        first = brokers.master("a")
        second = brokers.slave("b")
        take_all_locks(eve)
        first.kill()
        second.wait_serving()


def test_a_stranger_does_not_stop_the_tables_from_being_made(url: str, eve: psycopg.Connection) -> None:
    """The lock of earlier versions for this had a number that everybody could know."""
    eve.execute("SELECT pg_advisory_lock(hashtext('amq'), hashtext(''))")
    open_store(url)


EVIL = "LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'evil'; END$$"
SHADOWS = (
    # Exact matches for what our statements say, where pg_catalog has only what is converted to.
    "CREATE FUNCTION public.evil(bigint, integer) RETURNS bigint " + EVIL,
    "CREATE OPERATOR public.& (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = public.evil)",
    "CREATE FUNCTION public.concat_ws(text, bigint, oid, oid) RETURNS text " + EVIL,
    "CREATE FUNCTION public.left(text, bigint) RETURNS text " + EVIL,
    "CREATE TABLE public.pg_locks (pid int)",
)


def test_functions_and_operators_of_a_stranger_are_not_called(
    server: Postgres, database: str, url: str, eve: psycopg.Connection
) -> None:
    """Before PostgreSQL 15 every role may make objects in the schema `public` (CVE-2018-1058)."""
    server.ask("GRANT CREATE ON SCHEMA public TO PUBLIC", database=database)
    for statement in SHADOWS:
        eve.execute(statement)
    opened = claimed(url, b"a")
    assert opened.election.try_acquire(no)
    assert not opened.election.wait_free()
    assert opened.database.identity()
    opened.segment(S, b"data").append(4, 5, [b"x"])
    assert opened.election.replace("a")
    assert opened.election.is_held()
    with Sessions(SqlUrl.parse(f"{url}&options=-c%20search_path%3Dpublic,pg_catalog")).use(url) as session:
        assert session.execute("SHOW search_path").fetchone() == ("pg_catalog, pg_temp",)


def test_tables_that_come_before_ours_in_the_search_path_are_not_used(
    server: Postgres, database: str, eve: psycopg.Connection
) -> None:
    """A running broker stays with the schema in which it found its tables."""
    server.ask(f"CREATE ROLE run_{database} LOGIN")
    server.ask(f"GRANT CREATE ON DATABASE {database} TO {eve.info.user}")
    with psycopg.connect(server.conninfo(database), autocommit=True) as owner:
        tables = Tables("")
        tables.find(owner)
        tables.upgrade(owner)
        owner.execute(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(map(tables.full, tables.names))} TO run_{database}"
        )
    opened = Opened(server.url(database, "createTablesOnStartup=false", user=f"run_{database}"))
    opened.election.claim(b"a")
    eve.execute(f"CREATE SCHEMA run_{database}")  # "$user" stands first in the search path
    eve.execute(f"CREATE TABLE run_{database}.amq_store (version integer)")
    eve.execute(f"GRANT ALL ON SCHEMA run_{database} TO PUBLIC")
    opened.database.sessions.close()
    assert opened.database.names("") == ["claim"]


NOT_PERMITTED = (
    "SELECT * FROM amq_store",
    "UPDATE amq_store SET fence = ''",
    "DELETE FROM amq_chunk",
    "TRUNCATE amq_chunk",
    "BEGIN; LOCK TABLE amq_store IN ACCESS SHARE MODE",
    "BEGIN; LOCK TABLE amq_store",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'owner' AND pid <> pg_backend_pid()",
    "ALTER TABLE amq_store DISABLE TRIGGER ALL",
    "DROP TABLE amq_store",
    "CREATE INDEX ON amq_chunk (start)",
    "COPY amq_chunk TO STDOUT",
    "CREATE TABLE public.x (y int)",
    "CREATE SCHEMA x",
    "ALTER SYSTEM SET fsync = off",
    "CREATE STATISTICS s ON file, start FROM amq_chunk",
    "ALTER ROLE owner SET fsync = off",
    "CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
)


@pytest.mark.parametrize("statement", NOT_PERMITTED)
def test_what_the_server_refuses_a_stranger(url: str, eve: psycopg.Connection, statement: str) -> None:
    claimed(url, b"a").segment(S, b"secret")
    with pytest.raises(psycopg.Error) as caught:
        eve.execute(statement)
    assert isinstance(caught.value, errors.InsufficientPrivilege), caught.value


def test_what_a_stranger_sees_of_the_content(url: str, eve: psycopg.Connection) -> None:
    """Statistics and running statements of others: the server hides both."""
    claimed(url, b"a").segment(S, b"a secret of some length" * 50)
    told = "".join(str(eve.execute(f"SELECT * FROM {view}").fetchall()) for view in ("pg_stats", "pg_stat_activity"))
    assert "secret" not in told
    assert "amq_chunk" not in told


def test_a_store_that_was_made_has_the_newest_version(url: str) -> None:
    sessions = Sessions(SqlUrl.parse(url))
    sessions.make_tables(url)
    with sessions.use(url) as session:
        assert sessions.tables.version(session) == len(STEPS)
    with pytest.raises(AmqError, match="schema"):
        tables = Tables("")
        with sessions.use(url) as session:
            session.execute('CREATE SCHEMA "it\'s"; SET search_path = "it\'s"')
            tables.find(session)


def test_the_doctor_says_what_others_may_do(server: Postgres, database: str, url: str) -> None:
    open_store(url)

    def rows() -> dict[str, Level]:
        return {finding.topic: finding.level for finding in examine_database(url, quick=True).findings}

    assert rows()["other roles"] is Level.NOTE
    assert "schema" not in rows()
    server.ask("GRANT CREATE ON SCHEMA public TO PUBLIC", database=database)
    server.ask(f"REVOKE CONNECT ON DATABASE {database} FROM PUBLIC")
    assert "other roles" not in rows()
    assert rows()["schema"] is Level.WARNING
