"""A store in tables: what a deposed broker writes is refused, and a commit whose end is in doubt is never confirmed."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from amq.core.errors import ConfigError, NewerFormatError, StoreError
from amq.store.election import HEARTBEAT, RECORD_BYTES
from amq.store.epoch import Epoch
from amq.store.open import store_in
from amq.store.postgres import database as tables
from amq.store.postgres.database import ROW_BYTES_MAX, STATEMENT_BYTES_MAX, Database, SqlError
from amq.store.postgres.schema import STEPS, Tables
from amq.store.postgres.sessions import failure
from amq.store.postgres.url import SqlUrl
from amq.store.segment_log import NoRoomError, SyncError
from tests.election_contract import OWNER, no
from tests.fakes import FakeClock
from tests.patience import DEADLINE_S
from tests.postgres import PASSWORD, Postgres, needs_postgres

pytestmark = needs_postgres
S = "00000001-00000001.seg"
T = "00000001-00000002.seg"


class Opened:
    """The store at `url`, as one broker sees it, with the tables made."""

    def __init__(self, url: str | SqlUrl) -> None:
        self.database = Database(SqlUrl.parse(url) if isinstance(url, str) else url)
        self.store = store_in(self.database)
        self.election, self.epochs, self.log, self.board = (
            self.store.election,
            self.store.epochs,
            self.store.log,
            self.store.board,
        )

    def segment(self, name: str, head: bytes) -> Any:
        return self.log.create(name, head, 1 << 16, FakeClock())

    def content(self, name: str) -> bytes:
        with self.log.open(name) as segment:
            return segment.read(0, 1 << 26)


def open_store(url: str) -> Opened:
    opened = Opened(url)
    opened.store.make()
    return opened


def in_public() -> Tables:
    """Without a prefix, where a database has them by default."""
    tables = Tables("")
    tables.schema = "public"
    return tables


def claimed(url: str, who: bytes) -> Opened:
    """The store of a broker whose claim is the newest."""
    opened = open_store(url)
    opened.election.claim(who.ljust(RECORD_BYTES))
    return opened


def answer(call: Callable[[], Any]) -> Any:
    """What it returns, or the number of its error."""
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def number_of(database: Database, directory: str, name: str) -> int:
    return database.find(directory, name).number


def test_bytes_in_many_rows_and_bytes_in_none(server: Postgres, database: str) -> None:
    """Older versions wrote no rows for zeros: what is in no row is zeros, up to the end."""
    url = server.url(database)
    opened = claimed(url, b"a")
    large = bytes(range(256)) * (STATEMENT_BYTES_MAX // 200)  # several statements of several rows
    writer = opened.segment(S, b"head")
    writer.append(4, 4 + 2 * len(large), [large, memoryview(large)])
    assert opened.content(S) == b"head" + large + large
    with opened.log.open(S) as segment:
        assert segment.read(4 + ROW_BYTES_MAX - 333, 700) == large[ROW_BYTES_MAX - 333 : ROW_BYTES_MAX + 367]
        assert segment.size() == 4 + 2 * len(large)
    opened.segment(T, b"first")
    file = number_of(opened.database, "journal", T)
    server.ask("INSERT INTO amq_chunk VALUES (%s, 100, 'far')", [file], database=database)
    server.ask("UPDATE amq_file SET extent = 200 WHERE id = %s", [file], database=database)
    assert opened.content(T) == b"first".ljust(100, b"\0") + b"far".ljust(100, b"\0")
    with opened.log.open(T) as segment:
        assert segment.read(98, 4) == b"\0\0fa"
        assert segment.read(150, 100) == bytes(50)
        assert segment.read(200, 4) == b""


def test_an_append_is_seen_when_it_returns_and_never_written_twice(server: Postgres, database: str) -> None:
    url = server.url(database)
    opened, other = claimed(url, b"a"), open_store(url)
    writer = opened.segment(S, b"01")
    writer.append(2, 10, [b"23456789"])
    reader = other.log.open(S)
    assert reader.read(0, 99) == b"0123456789"
    with pytest.raises(SqlError, match="duplicate key"):
        opened.database.append(opened.database.find("journal", S), 2, [b"x"])
    opened.log.delete([S])
    with pytest.raises(OSError) as told:
        reader.read(0, 1)
    assert told.value.errno == errno.ESTALE
    with pytest.raises(SyncError, match="deleted"):
        writer.append(10, 11, [b"x"])
    assert server.ask(
        "SELECT (SELECT count(*) FROM amq_chunk), (SELECT count(*) FROM amq_file)", database=database
    ) == [(0, 1)]


# -- the fence ---------------------------------------------------------------------------------------------------------


def test_nothing_of_an_older_claim_takes_effect(server: Postgres, database: str) -> None:
    url = server.url(database)
    old = claimed(url, b"old")
    old.epochs.make()
    seat = old.board.take("old")
    segment = old.segment(S, b"confirmed")
    draft, unused = old.log.checkpoints.draft("1.tmp"), old.log.checkpoints.draft("2.tmp")
    draft.write(b"all")
    assert old.election.try_acquire(no)
    claimed(url, b"new")
    attempts: list[Callable[[], Any]] = [
        lambda: segment.append(9, 13, [b"late"]),
        lambda: old.log.delete([S]),
        lambda: old.segment(T, b"head"),
        lambda: draft.write(b"more"),
        lambda: draft.publish("1.ckpt"),
        lambda: draft.discard(),
        lambda: unused.write(b"c"),
        lambda: old.epochs.link(Epoch(7, OWNER, {}, 0, ""), "old-1"),
        lambda: old.election.write(HEARTBEAT, b"beat".ljust(RECORD_BYTES)),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match="another broker claimed the store"):
            attempt()
    assert old.content(S) == b"confirmed"  # reading is free
    assert old.log.checkpoints.names() == ["1.tmp"]
    seat.write(b"I am a slave again")


def test_an_entry_keeps_the_claim_under_which_it_was_made(server: Postgres, database: str) -> None:
    """A thread of an old mastership that hung goes on when this broker is master again."""
    url = server.url(database)
    opened = claimed(url, b"first")
    segment = opened.segment(S, b"1")
    draft = opened.log.checkpoints.draft("1.tmp")
    draft.write(b"1")
    opened.election.claim(b"second".ljust(RECORD_BYTES))
    for attempt in (lambda: segment.append(1, 2, [b"2"]), lambda: draft.write(b"2"), lambda: draft.publish("1.ckpt")):
        with pytest.raises(OSError, match="another broker claimed the store"):
            attempt()
    opened.segment(T, b"3")


FENCES = {
    "for share": (tables._FENCE, False),
    "no lock": (tables._FENCE.replace(" FOR SHARE", ""), True),
    "for key share": (tables._FENCE.replace("FOR SHARE", "FOR KEY SHARE"), True),
}


@pytest.mark.parametrize(("fence", "is_hole"), FENCES.values(), ids=FENCES)
def test_a_write_that_meets_a_claim_in_flight(
    server: Postgres, database: str, monkeypatch: pytest.MonkeyPatch, fence: str, is_hole: bool
) -> None:
    """Variants B, A and C of docs/master-slave.md: the old master writes while the claim is not committed yet.

    Only `FOR SHARE` waits for it. The other two commit what no seal holds.
    """
    monkeypatch.setattr(tables, "_FENCE", fence)
    url = server.url(database)
    segment = claimed(url, b"old").segment(S, b"1")
    results: list[Any] = []

    def write() -> None:
        results.append(answer(lambda: segment.append(1, 2, [b"2"])))

    with psycopg.connect(server.conninfo(database)) as claim:
        claim.execute("UPDATE amq_store SET fence = 'new'")
        writer = threading.Thread(target=write)
        writer.start()
        until = time.monotonic() + DEADLINE_S
        while not results and not _waits(server, database):
            assert time.monotonic() < until
        assert bool(results) is is_hole
        claim.commit()
    writer.join()
    assert (results == ["EIO"]) is not is_hole


def test_a_claim_waits_for_a_write_in_flight_and_gives_up(server: Postgres, database: str) -> None:
    """`lock_timeout`: whatever holds the fence, a candidate does not hang."""
    url = server.url(database)
    claimed(url, b"old")
    other = open_store(url)
    with psycopg.connect(server.conninfo(database)) as writer:
        writer.execute("SELECT 1 FROM amq_store FOR SHARE")
        other.database.sessions.close()
        with other.database.sessions.use(url) as session:
            session.execute("SET lock_timeout = '50ms'")
        with pytest.raises(OSError, match="lock timeout") as told:
            other.election.claim(b"new".ljust(RECORD_BYTES))
        assert told.value.errno == errno.ETIMEDOUT


def test_a_claim_that_was_removed_is_made_again(server: Postgres, database: str) -> None:
    opened = claimed(server.url(database), b"a")
    server.ask("DELETE FROM amq_name WHERE name = 'claim'", database=database)
    with pytest.raises(FileNotFoundError):
        opened.election.read_claim()
    opened.election.claim(b"b".ljust(RECORD_BYTES))
    assert opened.election.read_claim() == b"b".ljust(RECORD_BYTES)
    opened.segment(S, b"1")


def test_a_lock_is_replaced_once_for_all_who_saw_the_same_holder(server: Postgres, database: str) -> None:
    url = server.url(database)
    holder, first, second = (open_store(url).database for _ in range(3))
    assert holder.take("", "lock")
    assert not first.take("", "lock"), "it is there"
    seen = first.find("", "lock")
    taken = first.take("", "lock", seen)
    assert taken is not None
    assert second.take("", "lock", seen) is None
    assert number_of(second, "", "lock") == taken.entry.number
    assert second.try_lock("", "lock") is None
    assert server.ask("SELECT count(*) FROM amq_file", database=database) == [(1,)]


def test_no_room_leaves_nothing_of_an_append(server: Postgres, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an earlier statement of it was stored."""
    url = server.url(database)
    opened = claimed(url, b"a")
    segment = opened.segment(S, b"head")
    real, calls = tables._run, []

    def full(session: Any, statement: bytes, asked: dict[str, Any]) -> list[Any]:
        calls.append(statement)
        if b"unnest" in statement and len([call for call in calls if b"unnest" in call]) == 2:
            raise psycopg.errors.DiskFull("no room")
        return real(session, statement, asked)

    with monkeypatch.context() as patch:
        patch.setattr(tables, "_run", full)
        piece = b"x" * (STATEMENT_BYTES_MAX + 1)
        with pytest.raises(NoRoomError):
            segment.append(4, 4 + 2 * len(piece), [piece, piece])
    assert opened.content(S) == b"head"
    assert opened.database._full
    assert opened.log.free_bytes() is None, "there is room again"
    segment.append(4, 5, [b"x"])
    assert opened.content(S) == b"headx"


def _waits(server: Postgres, database: str) -> bool:
    return bool(
        server.ask("SELECT 1 FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'", [database])
    )


# -- commits whose end is in doubt -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_commit_that_was_not_waited_for_counts_as_failed(server: Postgres, database: str, how: str) -> None:
    """It waits for a standby that is not there. A cancelled one "succeeds" with a warning, a terminated one is stored
    though its connection is lost: neither is confirmed, and its row is there for the next master.
    """
    url = server.url(database, "options=-c%20synchronous_commit%3Don")
    segment = claimed(url, b"a").segment(S, b"1")
    _set(server, "synchronous_standby_names", "'nobody'")
    try:
        results: list[Any] = []
        writer = threading.Thread(target=lambda: results.append(answer(lambda: segment.append(1, 2, [b"2"]))))
        writer.start()
        until = time.monotonic() + DEADLINE_S
        waiting = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND wait_event = 'SyncRep'"
        while not (found := server.ask(waiting, [database])):
            assert time.monotonic() < until
        assert Opened(server.url(database)).content(S) == b"1"
        server.ask(f"SELECT {how}(%s)", [found[0][0]])
        writer.join()
    finally:
        _set(server, "synchronous_standby_names", "''")
    assert results == ["EIO"]
    assert Opened(server.url(database)).content(S) == b"12"


def _set(server: Postgres, name: str, value: str) -> None:
    server.ask(f"ALTER SYSTEM SET {name} = {value}")
    server.ask("SELECT pg_reload_conf()")
    until = time.monotonic() + DEADLINE_S
    while server.ask(f"SHOW {name}")[0][0] != value.strip("'"):
        assert time.monotonic() < until


def test_a_lost_connection_ends_the_lock_and_what_is_written_through_it(server: Postgres, database: str) -> None:
    url = server.url(database)
    one, other = open_store(url).election, open_store(url).election
    assert one.try_acquire(no)
    assert not other.try_acquire(no)
    server.ask(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND database = "
        "(SELECT oid FROM pg_database WHERE datname = %s)",
        [database],
    )
    until = time.monotonic() + DEADLINE_S
    while not other.try_acquire(no):
        assert time.monotonic() < until
    for _ in range(2):  # also when it is asked again: a lost lock stays lost
        for proof in (lambda: one.write(HEARTBEAT, bytes(RECORD_BYTES)), one.holds):
            with pytest.raises(OSError) as told:
                proof()
            assert told.value.errno == errno.EIO
    one.let_go()
    assert not one.try_acquire(no)


def test_a_lost_lock_is_taken_again_though_the_server_has_not_noticed_yet(server: Postgres, database: str) -> None:
    """As behind a firewall that forgot the connection: a broker must not find its own name in use."""
    url = server.url(database)
    opened = open_store(url)
    seat = opened.board.take("a")
    assert opened.election.try_acquire(no)
    assert opened.database._holder is not None
    with socket.socket() as nowhere:
        number = opened.database._holder.fileno()
        kept = os.dup(number)  # the server's side stays open
        os.dup2(nowhere.fileno(), number)
        with pytest.raises(OSError):
            opened.election.write(HEARTBEAT, bytes(RECORD_BYTES))
        opened.election.let_go()
        assert opened.election.is_held()
        assert opened.election.try_acquire(no)
        assert seat.keep(), "it went with the connection"
        assert not seat.keep()
        seat.write(b"I am there again")
        os.close(kept)


def test_what_is_written_in_place_again_and_again_needs_no_more_room(server: Postgres, database: str) -> None:
    """No vacuum runs here. On a full disk a heartbeat finds no other room than what the one before it left."""
    url = server.url(database)
    opened = claimed(url, b"a")
    seat = opened.board.take("a")
    opened.board.make_slot("a")
    assert opened.election.try_acquire(no)

    def room() -> list[tuple[int, ...]]:
        tables = ", ".join(f"pg_total_relation_size('{name}')" for name in in_public().names)
        return server.ask(f"SELECT {tables}", database=database)

    def write(number: int) -> None:
        said = b"".join(b"%08x" % (number * 7919 * at % (1 << 32)) for at in range(150))  # hard to make shorter
        opened.election.claim(said.ljust(RECORD_BYTES))
        opened.election.write(HEARTBEAT, said.ljust(RECORD_BYTES))
        seat.write(said.ljust(16 << 10))
        assert opened.board.write_slot("a", said.ljust(RECORD_BYTES))

    write(0)
    before = room()
    for number in range(1, 100):
        write(number)
    assert room() == before


def test_errors_of_the_server_have_numbers() -> None:
    for number, kind in ((errno.ENOSPC, "DiskFull"), (errno.EROFS, "ReadOnlySqlTransaction"), (errno.EIO, "DataError")):
        assert failure(getattr(psycopg.errors, kind)("x"), "/p").errno == number


# -- tables ------------------------------------------------------------------------------------------------------------


def test_two_groups_in_one_database_do_not_meet(server: Postgres, database: str) -> None:
    urls = server.url(database), server.url(database, "tablePrefix=shop_")
    groups = [claimed(url, b"x") for url in urls]
    for group, url in zip(groups, urls, strict=True):
        assert group.election.try_acquire(no)
        group.segment(S, url.encode())
    assert [group.content(S) for group in groups] == [url.encode() for url in urls]


def test_tables_of_another_version_are_refused(server: Postgres, database: str) -> None:
    url = server.url(database)
    with pytest.raises(StoreError, match="amq store init"):
        Opened(url).log.names()
    claimed(url, b"a")
    server.ask("UPDATE amq_store SET version = version + 1", database=database)
    with pytest.raises(NewerFormatError, match="upgrade this broker"):
        Opened(url).log.names()
    server.ask("UPDATE amq_store SET version = 0", database=database)
    with pytest.raises(StoreError, match="amq store"):
        Opened(url).log.names()


def test_an_upgrade_takes_place_wholly_or_not_at_all(server: Postgres, database: str) -> None:
    tables = in_public()
    with psycopg.connect(server.conninfo(database), autocommit=True) as connection:
        assert tables.upgrade(connection) == (0, len(STEPS))
        assert tables.upgrade(connection) == (len(STEPS), len(STEPS))
        more = (*STEPS, "ALTER TABLE {file} ADD note text", "SELECT 1 / 0")
        with pytest.raises(psycopg.Error, match="division"):
            tables.upgrade(connection, more)
        assert tables.version(connection) == len(STEPS)
        assert tables.upgrade(connection, more[:-1]) == (len(STEPS), len(STEPS) + 1)
        assert connection.execute("SELECT note FROM amq_file").fetchall() == []
        with pytest.raises(NewerFormatError):
            tables.upgrade(connection)


def test_tables_of_version_1_are_upgraded_with_all_that_stands_in_them(server: Postgres, database: str) -> None:
    url = server.url(database)
    with psycopg.connect(server.conninfo(database), autocommit=True) as connection:
        assert in_public().upgrade(connection, STEPS[:1]) == (0, 1)
        for number, (directory, name) in enumerate((("", "lock"), ("journal", "s"), ("brokers", "a.json")), 1):
            connection.execute("INSERT INTO amq_file DEFAULT VALUES")
            connection.execute("INSERT INTO amq_name VALUES (%s, %s, %s)", [directory, name, number])
            connection.execute("INSERT INTO amq_chunk VALUES (%s, 0, %s)", [number, name.encode()])
        with pytest.raises(StoreError, match="amq store upgrade"):
            Opened(url).log.names()
        assert in_public().upgrade(connection) == (1, len(STEPS))
        assert connection.execute("SELECT file FROM amq_chunk").fetchall() == [(2,)]
    opened = Opened(url)
    assert opened.database.record("", "lock")[1] == b"lock"
    assert opened.content("s") == b"s"
    assert [(each.name, each.read()) for each in opened.board.seats(held=False)] == [("a", b"a.json")]


def test_a_broker_needs_no_more_than_its_rights_on_four_tables(server: Postgres, database: str) -> None:
    """As docs/postgresql.md says: the owner makes the tables, brokers run as another role."""
    owner, runtime = server.url(database), server.url(database, "createTablesOnStartup=false", user=f"run_{database}")
    with psycopg.connect(server.conninfo(database), autocommit=True) as connection:
        in_public().upgrade(connection)
        connection.execute(f"CREATE ROLE run_{database} LOGIN")
        with pytest.raises(OSError, match="permission denied") as told:
            Opened(runtime).log.names()
        assert told.value.errno == errno.EACCES
        connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(in_public().names)} TO run_{database}")
    opened = claimed(runtime, b"a")
    opened.segment(S, b"1")
    opened.log.delete([S])
    assert opened.election.try_acquire(no)
    assert opened.election.replace("a")
    opened.election.write(HEARTBEAT, bytes(RECORD_BYTES))
    assert open_store(owner).election.is_held()


def test_a_server_that_takes_no_writes_is_refused(server: Postgres, database: str) -> None:
    url = server.url(database)
    claimed(url, b"a")
    read_only = server.url(database, "options=-c%20default_transaction_read_only%3Don")
    with pytest.raises(OSError, match="read-only") as told:
        Opened(read_only).board.take("a")
    assert told.value.errno == errno.EROFS


def test_another_server_is_refused_until_a_person_accepts_it(server: Postgres, database: str) -> None:
    url = server.url(database)
    opened = claimed(url, b"a")
    server.ask("UPDATE amq_store SET server = '1/00000001'", database=database)  # as a restored backup has it
    with pytest.raises(StoreError, match="amq store accept") as told:
        Opened(url).log.names()
    assert told.value.code == "STORE_INCOMPLETE"
    server.ask("UPDATE amq_store SET synchronous = true", database=database)  # it had all that was confirmed
    Opened(url).log.names()
    server.ask("UPDATE amq_store SET synchronous = false", database=database)
    with opened.database.sessions.use(url) as session:
        opened.database.sessions.accept(session)
    Opened(url).log.names()


def test_a_server_that_lacks_what_was_seen_is_refused(server: Postgres, database: str) -> None:
    """Whether this broker wrote it or read it, whatever the store's row says; trimmed files are not missed."""
    url = server.url(database)
    writer = claimed(url, b"a")
    writer.segment("1.seg", b"header").append(6, 23, [b"batch of a master"])
    writer.segment("2.seg", b"header")
    reader, behind = Opened(url), Opened(url)
    reader.content("2.seg")
    behind.content("1.seg")

    def connect() -> list[str]:
        said = []
        for opened in (writer, reader, behind, Opened(url)):
            opened.database.sessions.close()
            try:
                opened.log.names()
                said.append("")
            except StoreError as error:
                said.append(error.code)
        return said

    assert connect() == [""] * 4
    server.ask("DELETE FROM amq_name WHERE name = '1.seg'", database=database)
    assert connect() == [""] * 4  # trimmed: there is a later one
    server.ask("UPDATE amq_store SET server = '1/00000001', synchronous = true", database=database)
    server.ask("DELETE FROM amq_chunk WHERE file = (SELECT file FROM amq_name WHERE name = '2.seg')", database=database)
    behind.database.sessions.close()
    behind.log.names()  # it cannot know
    assert connect() == ["STORE_INCOMPLETE"] * 4  # whoever noticed tells the others
    sessions = Opened(url).database.sessions
    sessions.accept(sessions.open(url))
    assert connect() == ["STORE_INCOMPLETE", "STORE_INCOMPLETE", "", ""]  # until they are started again
    server.ask("DELETE FROM amq_name WHERE name = '2.seg'", database=database)
    assert connect() == ["STORE_INCOMPLETE", "STORE_INCOMPLETE", "STORE_INCOMPLETE", ""]


def test_a_password_comes_from_a_file(server: Postgres, database: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"{PASSWORD}\n")
    base = f"postgresql://owner@127.0.0.1:{server.port}/{database}?sslmode=disable"
    claimed(f"{base}&passwordFile={secret}", b"a")
    secret.write_text("wrong")
    url = f"{base}&passwordFile={secret}"
    with pytest.raises(OSError, match="password authentication failed"):
        Opened(url).log.names()
    url = f"{base}&passwordFile={secret}.none"
    with pytest.raises(ConfigError, match="cannot read passwordFile"):
        Opened(url).log.names()
