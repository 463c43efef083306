"""A file system in tables: it answers as a directory does, and refuses what a deposed broker writes."""

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
from amq.store.files.vfs import NothingWrittenError, SystemVfs, ToolVfs, Vfs
from amq.store.postgres import vfs as sql_vfs
from amq.store.postgres.schema import STEPS, Tables
from amq.store.postgres.sessions import failure
from amq.store.postgres.url import SqlUrl
from amq.store.postgres.vfs import ROW_BYTES_MAX, SqlVfs
from amq.store.segment_log import NotAFileError
from tests.patience import DEADLINE_S
from tests.postgres import PASSWORD, Postgres, needs_postgres

pytestmark = needs_postgres


def open_store(url: str) -> SqlVfs:
    """A door, with the tables made, as a broker does."""
    door = SqlVfs(SqlUrl.parse(url))
    with pytest.raises(FileExistsError):
        door.mkdir(url)
    return door


def in_public() -> Tables:
    """Without a prefix, where a database has them by default."""
    tables = Tables("")
    tables.schema = "public"
    return tables


def put(door: Vfs, path: str, data: bytes, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    fd = door.open(path, flags)
    door.pwrite(fd, data, 0)
    door.fsync(fd)
    return fd


def claimed(url: str, who: bytes) -> SqlVfs:
    """The door of a broker whose claim is the newest."""
    door = open_store(url)
    door.close(put(door, f"{url}/claim", who.ljust(4096)))
    if "journal" not in door.listdir(url):
        door.mkdir(f"{url}/journal")
    return door


def answer(call: Callable[[], Any]) -> Any:
    """What it returns, or the number of its error."""
    try:
        return call()
    except OSError as error:
        return type(error).__name__ if isinstance(error, NotAFileError) else errno.errorcode[error.errno or 0]


def conversation(door: Vfs, store: str) -> list[Any]:
    """The answers to every kind of call: both kinds of stores must give the same."""
    said: list[Any] = []

    def ask(call: Callable[[], Any]) -> None:
        said.append(answer(call))

    ask(lambda: door.mkdir(store))
    ask(lambda: door.open(f"{store}/deep/a", os.O_RDWR | os.O_CREAT))
    door.mkdir(f"{store}/deep")
    ask(lambda: door.mkdir(f"{store}/deep"))
    ask(lambda: door.open(f"{store}/deep", os.O_RDONLY))
    ask(lambda: door.open(f"{store}/deep/a", os.O_RDONLY))
    ask(lambda: door.listdir(f"{store}/nowhere"))
    fd = put(door, f"{store}/deep/a", b"first")
    ask(lambda: door.open(f"{store}/deep/a", os.O_RDWR | os.O_CREAT | os.O_EXCL))
    door.pwrite(fd, b"\0" * 3000, 5)
    door.pwrite(fd, b"last", 4000)
    door.fdatasync(fd)
    said.append(door.fstat(fd).st_size)
    ask(lambda: door.pread(fd, 10_000, 0))
    ask(lambda: door.pread(fd, 20, 3990))
    ask(lambda: door.pread(fd, 4, 9000))
    other = door.open(f"{store}/deep/a", os.O_RDWR)
    door.pwrite(other, b"FIRST", 0)
    door.fsync(other)
    ask(lambda: door.pread(fd, 7, 0))
    door.link(f"{store}/deep/a", f"{store}/deep/b")
    ask(lambda: door.link(f"{store}/deep/a", f"{store}/deep/b"))
    ask(lambda: door.link(f"{store}/none", f"{store}/c"))
    ask(lambda: door.link(f"{store}/deep/a", f"{store}/nowhere/a"))
    ask(lambda: door.mkdir(f"{store}/nowhere/inner"))
    ask(lambda: door.mkdir(f"{store}/deep/b"))
    said.append(door.stat(f"{store}/deep/b").st_ino == door.fstat(fd).st_ino)
    door.unlink(f"{store}/deep/a")
    ask(lambda: door.unlink(f"{store}/deep/a"))
    ask(lambda: door.stat(f"{store}/deep/a"))
    ask(lambda: door.pread(fd, 5, 0))
    for size in (4002, 3000, 5000, 3, 0):
        door.ftruncate(fd, size)
        said.append((door.stat(f"{store}/deep/b").st_size, door.pread(fd, 9999, 0)))
    large = bytes(range(256)) * (ROW_BYTES_MAX // 64)  # several rows
    door.pwrite(fd, large, 0)
    door.fsync(fd)
    ask(lambda: door.pread(fd, len(large) + 1, 0) == large)
    ask(lambda: door.pread(fd, 700, ROW_BYTES_MAX - 333) == large[ROW_BYTES_MAX - 333 : ROW_BYTES_MAX + 367])
    said.append(sorted(door.listdir(store)))
    said += [door.try_lock(fd), door.try_lock(other), door.lock_held(fd), door.lock_held(other)]
    door.close(fd)
    said += [door.lock_held(other), door.try_lock(other)]
    door.close(other)
    ask(lambda: door.pread(fd, 1, 0))
    return said


def conversation_of_tools(door: ToolVfs, store: str) -> list[Any]:
    """The answers to what no broker asks, but the commands that work on a store."""
    said: list[Any] = []

    def ask(call: Callable[[], Any]) -> None:
        said.append(answer(call))

    door.mkdir(f"{store}/tools")
    fd = put(door, f"{store}/tools/a", b"first")
    moved = put(door, f"{store}/tools/c", b"moved")
    door.replace(f"{store}/tools/c", f"{store}/tools/a")
    said.append(sorted(door.listdir(f"{store}/tools")))
    said += [door.stat(f"{store}/tools/a").st_ino == door.fstat(moved).st_ino, door.pread(moved, 9, 0)]
    door.close(moved)
    door.close(fd)
    ask(lambda: door.replace(f"{store}/tools/c", f"{store}/tools/a"))
    ask(lambda: door.replace(f"{store}/tools/a", f"{store}/nowhere/a"))
    ask(lambda: door.replace(f"{store}/tools/a", f"{store}/tools/a"))
    ask(lambda: door.rmdir(f"{store}/tools"))
    ask(lambda: door.rmdir(f"{store}/tools/a"))
    ask(lambda: door.rmdir(f"{store}/nowhere"))
    door.unlink(f"{store}/tools/a")
    ask(lambda: door.rmdir(f"{store}/tools"))
    ask(lambda: door.listdir(f"{store}/tools"))
    return said


def test_a_database_answers_as_a_directory_does(server: Postgres, database: str, tmp_path: Path) -> None:
    url = server.url(database)
    for talk in (conversation, conversation_of_tools):
        assert talk(open_store(url), url) == talk(SystemVfs(), str(tmp_path))


def test_writes_that_are_not_synced_are_seen_by_nobody_else_and_overlaps_are_refused(
    server: Postgres, database: str
) -> None:
    url = server.url(database)
    door = claimed(url, b"a")
    fd = door.open(f"{url}/journal/s", os.O_RDWR | os.O_CREAT)
    door.pwrite(fd, b"0123456789", 0)
    other = open_store(url)
    reader = other.open(f"{url}/journal/s", os.O_RDONLY)
    assert other.pread(reader, 10, 0) == b""
    door.fdatasync(fd)
    assert other.pread(reader, 10, 0) == b"0123456789"
    door.pwrite(fd, b"x", 5)
    with pytest.raises(OSError, match="at the end of a file"):
        door.fdatasync(fd)
    door.unlink(f"{url}/journal/s")
    with pytest.raises(OSError) as told:
        other.pread(reader, 1, 0)
    assert told.value.errno == errno.ESTALE
    assert server.ask(
        "SELECT (SELECT count(*) FROM amq_chunk WHERE file > 1), (SELECT count(*) FROM amq_file)", database=database
    ) == [(0, 1)]


# -- the fence ---------------------------------------------------------------------------------------------------------


def test_nothing_of_an_older_claim_takes_effect(server: Postgres, database: str) -> None:
    url = server.url(database)
    old = claimed(url, b"old")
    for name in ("checkpoints", "epochs", "brokers"):
        old.mkdir(f"{url}/{name}")
    segment = put(old, f"{url}/journal/s", b"confirmed")
    temporary = f"{url}/epochs/.t"
    old.close(put(old, temporary, b"epoch"))
    claimed(url, b"new")
    old.pwrite(segment, b"late", 9)
    attempts: list[Callable[[], Any]] = [
        lambda: old.fdatasync(segment),
        lambda: old.ftruncate(segment, 3),
        lambda: old.unlink(f"{url}/journal/s"),
        lambda: old.open(f"{url}/journal/t", os.O_RDWR | os.O_CREAT | os.O_EXCL),
        lambda: old.open(f"{url}/checkpoints/c", os.O_RDWR | os.O_CREAT),
        lambda: old.link(temporary, f"{url}/epochs/7.json"),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match="another broker claimed the store"):
            attempt()
    assert old.pread(segment, 99, 0) == b"confirmed"  # reading is free
    old.close(put(old, f"{url}/brokers/old.json", b"I am a slave again"))


def test_a_descriptor_keeps_the_claim_under_which_it_was_opened(server: Postgres, database: str) -> None:
    """A thread of an old mastership that hung goes on when this broker is master again."""
    url = server.url(database)
    door = claimed(url, b"first")
    old = put(door, f"{url}/journal/s", b"1")
    door.close(put(door, f"{url}/claim", b"second".ljust(4096)))
    door.pwrite(old, b"2", 1)
    with pytest.raises(OSError, match="another broker claimed the store"):
        door.fdatasync(old)
    door.close(put(door, f"{url}/journal/t", b"3"))


FENCES = {
    "for share": (sql_vfs._FENCE, False),
    "no lock": (sql_vfs._FENCE.replace(" FOR SHARE", ""), True),
    "for key share": (sql_vfs._FENCE.replace("FOR SHARE", "FOR KEY SHARE"), True),
}


@pytest.mark.parametrize(("fence", "is_hole"), FENCES.values(), ids=FENCES)
def test_a_write_that_meets_a_claim_in_flight(
    server: Postgres, database: str, monkeypatch: pytest.MonkeyPatch, fence: str, is_hole: bool
) -> None:
    """Variants B, A and C of docs/master-slave.md: the old master writes while the claim is not committed yet.

    Only `FOR SHARE` waits for it. The other two commit what no seal holds.
    """
    monkeypatch.setattr(sql_vfs, "_FENCE", fence)
    url = server.url(database)
    door = claimed(url, b"old")
    segment = put(door, f"{url}/journal/s", b"1")
    results: list[Any] = []

    def write() -> None:
        door.pwrite(segment, b"2", 1)
        results.append(answer(lambda: door.fdatasync(segment)))

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
    assert results == ([None] if is_hole else ["EIO"])


def test_a_claim_waits_for_a_write_in_flight_and_gives_up(server: Postgres, database: str) -> None:
    """`lock_timeout`: whatever holds the fence, a candidate does not hang."""
    url = server.url(database)
    claimed(url, b"old")
    other = open_store(url)
    with psycopg.connect(server.conninfo(database)) as writer:
        writer.execute("SELECT 1 FROM amq_store FOR SHARE")
        other._sessions.close()
        with other._sessions.use(url) as session:
            session.execute("SET lock_timeout = '50ms'")
        claim = other.open(f"{url}/claim", os.O_RDWR)
        other.pwrite(claim, b"new".ljust(4096), 0)
        with pytest.raises(OSError, match="lock timeout") as told:
            other.fsync(claim)
        assert told.value.errno == errno.ETIMEDOUT


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
    door = claimed(url, b"a")
    segment = put(door, f"{url}/journal/s", b"1")
    _set(server, "synchronous_standby_names", "'nobody'")
    try:
        results: list[Any] = []
        door.pwrite(segment, b"2", 1)
        writer = threading.Thread(target=lambda: results.append(answer(lambda: door.fdatasync(segment))))
        writer.start()
        until = time.monotonic() + DEADLINE_S
        waiting = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND wait_event = 'SyncRep'"
        while not (found := server.ask(waiting, [database])):
            assert time.monotonic() < until
        assert open_store_unseen(server, database) == b"1"
        server.ask(f"SELECT {how}(%s)", [found[0][0]])
        writer.join()
    finally:
        _set(server, "synchronous_standby_names", "''")
    assert results == ["EIO"]
    assert open_store_unseen(server, database) == b"12"


def open_store_unseen(server: Postgres, database: str) -> bytes:
    """What is in the segment, as another broker reads it."""
    url = server.url(database)
    door = SqlVfs(SqlUrl.parse(url))
    return door.pread(door.open(f"{url}/journal/s", os.O_RDONLY), 9, 0)


def _set(server: Postgres, name: str, value: str) -> None:
    server.ask(f"ALTER SYSTEM SET {name} = {value}")
    server.ask("SELECT pg_reload_conf()")
    until = time.monotonic() + DEADLINE_S
    while server.ask(f"SHOW {name}")[0][0] != value.strip("'"):
        assert time.monotonic() < until


def test_a_lost_connection_ends_the_lock_and_what_is_written_through_it(server: Postgres, database: str) -> None:
    url = server.url(database)
    door, other = open_store(url), open_store(url)
    lock = door.open(f"{url}/lock", os.O_RDWR | os.O_CREAT)
    assert door.try_lock(lock)
    theirs = other.open(f"{url}/lock", os.O_RDWR)
    assert not other.try_lock(theirs)
    server.ask(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND database = "
        "(SELECT oid FROM pg_database WHERE datname = %s)",
        [database],
    )
    until = time.monotonic() + DEADLINE_S
    while not other.try_lock(theirs):
        assert time.monotonic() < until
    for _ in range(2):  # also when it is asked again: a lost lock stays lost
        door.pwrite(lock, b"heartbeat", 0)
        with pytest.raises(OSError) as told:
            door.fsync(lock)
        assert told.value.errno == errno.EIO
    door.close(lock)
    assert not door.try_lock(door.open(f"{url}/lock", os.O_RDWR))


def test_a_lost_lock_is_taken_again_though_the_server_has_not_noticed_yet(server: Postgres, database: str) -> None:
    """As behind a firewall that forgot the connection: a broker must not find its own name in use."""
    url = server.url(database)
    door = open_store(url)
    fd = door.open(f"{url}/lock", os.O_RDWR | os.O_CREAT)
    assert door.try_lock(fd)
    assert door._locks is not None
    with socket.socket() as nowhere:
        number = door._locks.fileno()
        kept = os.dup(number)  # the server's side stays open
        os.dup2(nowhere.fileno(), number)
        door.pwrite(fd, b"heartbeat", 0)
        with pytest.raises(OSError):
            door.fsync(fd)
        door.close(fd)
        again = door.open(f"{url}/lock", os.O_RDWR)
        assert door.lock_held(again)
        assert door.try_lock(again)
        os.close(kept)


def test_what_is_written_in_place_again_and_again_needs_no_more_room(server: Postgres, database: str) -> None:
    """No vacuum runs here. On a full disk a heartbeat finds no other room than what the one before it left."""
    url = server.url(database)
    door = claimed(url, b"a")
    door.mkdir(f"{url}/brokers")
    files = [door.open(f"{url}/{name}", os.O_RDWR | os.O_CREAT) for name in ("lock", "claim", "brokers/a.json")]

    def room() -> list[tuple[int, ...]]:
        tables = ", ".join(f"pg_total_relation_size('{name}')" for name in in_public().names)
        return server.ask(f"SELECT {tables}", database=database)

    def write(number: int) -> None:
        for fd, size in zip(files, (4096, 4096, 16 << 10), strict=True):
            said = b"".join(b"%08x" % (number * 7919 * at % (1 << 32)) for at in range(150))  # hard to make shorter
            door.pwrite(fd, said.ljust(size), 0)
            door.fsync(fd)

    write(0)
    before = room()
    for number in range(1, 100):
        write(number)
    assert room() == before
    with pytest.raises(OSError) as told:  # what is linked keeps its table
        door.link(f"{url}/lock", f"{url}/journal/lock")
    assert told.value.errno == errno.EXDEV


def test_errors_of_the_server_have_numbers() -> None:
    full = sql_vfs.SqlError(errno.ENOSPC, "full")
    assert isinstance(NothingWrittenError(full.errno, ""), OSError)
    for number, kind in ((errno.ENOSPC, "DiskFull"), (errno.EROFS, "ReadOnlySqlTransaction"), (errno.EIO, "DataError")):
        assert failure(getattr(psycopg.errors, kind)("x"), "/p").errno == number


# -- tables ------------------------------------------------------------------------------------------------------------


def test_two_groups_in_one_database_do_not_meet(server: Postgres, database: str) -> None:
    urls = server.url(database), server.url(database, "tablePrefix=shop_")
    doors = [claimed(url, b"x") for url in urls]
    for door, url in zip(doors, urls, strict=True):
        fd = door.open(f"{url}/lock", os.O_RDWR | os.O_CREAT)
        assert door.try_lock(fd)
        door.close(put(door, f"{url}/journal/s", url.encode()))
    first, second = (door.open(f"{url}/journal/s", os.O_RDONLY) for door, url in zip(doors, urls, strict=True))
    assert doors[0].pread(first, 999, 0) != doors[1].pread(second, 999, 0)


def test_tables_of_another_version_are_refused(server: Postgres, database: str) -> None:
    url = server.url(database)
    with pytest.raises(StoreError, match="amq store init"):
        SqlVfs(SqlUrl.parse(url)).listdir(url)
    claimed(url, b"a")
    server.ask("UPDATE amq_store SET version = version + 1", database=database)
    with pytest.raises(NewerFormatError, match="upgrade this broker"):
        SqlVfs(SqlUrl.parse(url)).listdir(url)
    server.ask("UPDATE amq_store SET version = 0", database=database)
    with pytest.raises(StoreError, match="amq store"):
        SqlVfs(SqlUrl.parse(url)).listdir(url)


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
            SqlVfs(SqlUrl.parse(url)).listdir(url)
        assert in_public().upgrade(connection) == (1, len(STEPS))
        assert connection.execute("SELECT file FROM amq_chunk").fetchall() == [(2,)]
    door = SqlVfs(SqlUrl.parse(url))
    for path in ("lock", "journal/s", "brokers/a.json"):
        fd = door.open(f"{url}/{path}", os.O_RDONLY)
        assert door.pread(fd, 99, 0) == path.rpartition("/")[2].encode()


def test_a_broker_needs_no_more_than_its_rights_on_four_tables(server: Postgres, database: str) -> None:
    """As docs/postgresql.md says: the owner makes the tables, brokers run as another role."""
    owner, runtime = server.url(database), server.url(database, "createTablesOnStartup=false", user=f"run_{database}")
    with psycopg.connect(server.conninfo(database), autocommit=True) as connection:
        in_public().upgrade(connection)
        connection.execute(f"CREATE ROLE run_{database} LOGIN")
        with pytest.raises(OSError, match="permission denied") as told:
            SqlVfs(SqlUrl.parse(runtime)).listdir(runtime)
        assert told.value.errno == errno.EACCES
        connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(in_public().names)} TO run_{database}")
    door = claimed(runtime, b"a")
    door.close(put(door, f"{runtime}/journal/s", b"1"))
    door.unlink(f"{runtime}/journal/s")
    lock = door.open(f"{runtime}/lock", os.O_RDWR | os.O_CREAT)
    assert door.try_lock(lock)
    other = open_store(owner)
    assert other.lock_held(other.open(f"{owner}/lock", os.O_RDONLY))


def test_a_server_that_takes_no_writes_is_refused(server: Postgres, database: str) -> None:
    url = server.url(database)
    claimed(url, b"a")
    read_only = server.url(database, "options=-c%20default_transaction_read_only%3Don")
    door = SqlVfs(SqlUrl.parse(read_only))
    with pytest.raises(OSError, match="read-only") as told:
        door.open(f"{read_only}/brokers", os.O_RDWR | os.O_CREAT)
    assert told.value.errno == errno.EROFS


def test_another_server_is_refused_until_a_person_accepts_it(server: Postgres, database: str) -> None:
    url = server.url(database)
    door = claimed(url, b"a")
    server.ask("UPDATE amq_store SET server = '1/00000001'", database=database)  # as a restored backup has it
    with pytest.raises(StoreError, match="amq store accept") as told:
        SqlVfs(SqlUrl.parse(url)).listdir(url)
    assert told.value.code == "STORE_INCOMPLETE"
    server.ask("UPDATE amq_store SET synchronous = true", database=database)  # it had all that was confirmed
    SqlVfs(SqlUrl.parse(url)).listdir(url)
    server.ask("UPDATE amq_store SET synchronous = false", database=database)
    with door._sessions.use(url) as session:
        door._sessions.accept(session)
    SqlVfs(SqlUrl.parse(url)).listdir(url)


def test_a_server_that_lacks_what_was_seen_is_refused(server: Postgres, database: str) -> None:
    """Whether this broker wrote it or read it, whatever the store's row says; trimmed files are not missed."""
    url = server.url(database)
    writer = claimed(url, b"a")
    for number, data in ((1, b"header"), (1, b"batch of a master"), (2, b"header")):
        fd = writer.open(f"{url}/journal/{number}.seg", os.O_RDWR | os.O_CREAT)
        at = writer.fstat(fd).st_size
        writer.pwrite(fd, data, at)
        writer.fdatasync(fd)
    reader = SqlVfs(SqlUrl.parse(url))
    reader.pread(reader.open(f"{url}/journal/2.seg", os.O_RDONLY), 3, 3)
    behind = SqlVfs(SqlUrl.parse(url))
    behind.pread(behind.open(f"{url}/journal/1.seg", os.O_RDONLY), 99, 0)

    def connect() -> list[str]:
        said = []
        for door in (writer, reader, behind, SqlVfs(SqlUrl.parse(url))):
            door._sessions.close()
            try:
                door.listdir(url)
                said.append("")
            except StoreError as error:
                said.append(error.code)
        return said

    assert connect() == [""] * 4
    server.ask("DELETE FROM amq_name WHERE name = '1.seg'", database=database)
    assert connect() == [""] * 4  # trimmed: there is a later one
    server.ask("UPDATE amq_store SET server = '1/00000001', synchronous = true", database=database)
    server.ask("DELETE FROM amq_chunk WHERE file = (SELECT file FROM amq_name WHERE name = '2.seg')", database=database)
    behind._sessions.close()
    behind.listdir(url)  # it cannot know
    assert connect() == ["STORE_INCOMPLETE"] * 4  # whoever noticed tells the others
    sessions = SqlVfs(SqlUrl.parse(url))._sessions
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
        SqlVfs(SqlUrl.parse(url)).listdir(url)
    url = f"{base}&passwordFile={secret}.none"
    with pytest.raises(ConfigError, match="cannot read passwordFile"):
        SqlVfs(SqlUrl.parse(url)).listdir(url)
