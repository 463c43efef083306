"""Real brokers on a real PostgreSQL: takeovers, faults of the server, and the commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from amq.cli import exits
from amq.cli.main import main
from amq.store.open import open_store
from amq.store.presence import read_presence
from amq.store.status import store_status
from bench.wire import WireError
from tests.brokers import SHORT, Brokers
from tests.patience import DEADLINE_S
from tests.ports import free_port
from tests.postgres import Postgres, needs_postgres, postgres
from tests.sampling import only, thorough
from tests.traffic import QUEUE, Producer, check_all_kept, deliveries, drain, send

pytestmark = needs_postgres
ROUNDS_MAX = 20  # on a busy machine few of them try it


@pytest.fixture
def brokers(tmp_path: Path, url: str) -> Iterator[Brokers]:
    with Brokers(tmp_path, url) as group:
        yield group


def amq(*words: object, code: int = 0) -> dict[str, Any]:
    """The JSON that a command prints."""
    done = CliRunner().invoke(main, [*map(str, words), "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def heartbeats(brokers: Brokers) -> int:
    """How many the master has written."""
    seen = store_status(open_store(str(brokers.store))).heartbeat
    assert seen is not None
    return seen[1]


def fill(connection: Any, count: int) -> None:
    for number in range(count):
        send(connection, b"%d" % number)


def test_a_slave_takes_over_at_once_with_every_message(brokers: Brokers) -> None:
    master, slave = brokers.master("a"), brokers.slave("b")
    with master.connect() as connection:
        fill(connection, 50)
        connection.send("SUBSCRIBE", {"destination": QUEUE, "id": "1", "ack": "client", "prefetch-count": 10})
        tenth = [connection.next_frame(DEADLINE_S) for _ in range(10)][-1]
        connection.send("ACK", {"id": tenth.headers["ack"], "receipt": "acked"})
        connection.receipt("acked", DEADLINE_S)
    slave.wait_ready()
    master.kill()
    told = slave.wait_serving()
    # The kernel may still be burying the process when the slave looks; then the claim alone shuts it out.
    assert told["reason"].endswith(("is gone from this host", "out of the store")), told
    assert told["waited_s"] == 0.0, told
    with slave.connect() as connection:
        assert drain(connection, 40) == [b"%d" % number for number in range(10, 50)]


def test_the_commands_take_the_url(brokers: Brokers, url: str) -> None:
    assert amq("store", "init", "--store", url) == {"store": url, "made": True, "version": 2}
    assert amq("store", "init", "--store", url)["made"] is False
    assert amq("store", "upgrade", "--store", url) == {"store": url, "before": 2, "version": 2}
    assert amq("doctor", url, "--quick")["verdict"].startswith("fit")  # a busy server answers slowly, with warnings
    master = brokers.master("a")
    with master.connect() as connection:
        fill(connection, 5)
    seen = amq("status", "--store", url)
    assert (seen["store"], seen["state"], seen["master"]["name"]) == (url, "serving", "a")
    assert seen["free_bytes"] is None, "the server does not tell"
    assert "free     unknown" in CliRunner().invoke(main, ["status", "--store", url]).stdout
    assert amq("journal", "check", "--store", url)["ok"]
    stat = amq("journal", "stat", "--store", url)
    assert sum(each["live"] for each in stat["destinations"]) == 5
    assert amq("journal", "repair", "--store", url)["damages"] == []
    master.stop()
    assert amq("stop", "--store", url, "--name", "a") == {"name": "a", "stopped": False, "seconds": 0.0}


def test_an_export_is_imported_into_a_database_that_nobody_serves(brokers: Brokers, url: str, tmp_path: Path) -> None:
    """Twice: what is stored already is skipped. A store in use is refused."""
    directory, exported, again = tmp_path / "directory", tmp_path / "all.jsonl", tmp_path / "again.jsonl"
    with Brokers(tmp_path / "other", str(directory)) as others, others.master("a").connect() as connection:
        fill(connection, 20)
    _done("journal", "export", "--store", directory, "--output", exported)
    first, second = (_done("journal", "import", "--store", url, exported) for _ in range(2))
    assert first == "20 messages stored, 0 were there already, 0 ids remembered\n"
    assert second == "0 messages stored, 20 were there already, 0 ids remembered\n"
    assert amq("journal", "check", "--store", url)["ok"]
    _done("journal", "export", "--store", url, "--output", again)
    bodies = [[json.loads(line).get("body") for line in file.read_text().splitlines()] for file in (exported, again)]
    assert bodies[0] == bodies[1]
    master = brokers.master("a")
    refused = CliRunner().invoke(main, ["journal", "import", "--store", url, str(exported)])
    assert (refused.exit_code, "[STORE_LOCKED]" in refused.stderr) == (exits.LOCKED, True)
    with master.connect() as connection:
        assert drain(connection, 20) == [b"%d" % number for number in range(20)]


def _done(*words: object) -> str:
    done = CliRunner().invoke(main, [*map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_broker_that_may_not_wait_for_the_lock_of_a_database_ends(brokers: Brokers) -> None:
    brokers.master("a")
    refused = brokers.add("b", failIfLocked="yes").start()
    assert refused.wait_exit() == exits.LOCKED
    assert refused.log[-1]["code"] == "STORE_LOCKED"


@pytest.mark.parametrize("words", [["doctor"], ["status", "--store"], ["journal", "check", "--store"]])
def test_commands_say_that_the_server_cannot_be_reached(words: list[str]) -> None:
    done = CliRunner().invoke(main, [*words, f"postgresql://nobody@127.0.0.1:{free_port()}/amq"])
    assert done.exit_code == exits.STORE
    assert "the database cannot be reached: " in done.stderr
    assert "Connection refused" in done.stderr
    assert done.stderr.endswith("[STORE_UNUSABLE]\n")


def test_commands_of_a_role_without_rights_say_so_and_the_doctor_says_the_cure(
    server: Postgres, url: str, database: str
) -> None:
    amq("store", "init", "--store", url)
    server.ask("DROP ROLE IF EXISTS poor")
    server.ask("CREATE ROLE poor LOGIN")
    of_poor = server.url(database, user="poor")
    for words in (["status"], ["journal", "check"], ["journal", "repair"]):
        done = CliRunner().invoke(main, [*words, "--store", of_poor])
        assert done.exit_code == exits.STORE, words
        assert "permission denied for table amq_store" in done.stderr
        assert "STORE_MISSING" not in done.stderr
    report = amq("doctor", of_poor, "--quick", code=exits.STORE)
    (tables,) = (each for each in report["findings"] if each["topic"] == "tables")
    assert (tables["level"], "GRANT SELECT, INSERT, UPDATE, DELETE ON amq_store" in tables["cure"]) == ("unfit", True)


@pytest.mark.deep
def test_the_doctor_looks_at_the_server() -> None:
    with postgres(fsync="off", full_page_writes="off", synchronous_commit="off", synchronous_standby_names="x") as bad:
        report = amq("doctor", bad.url("postgres"), code=4)
        levels = {each["topic"]: each["level"] for each in report["findings"]}
        assert levels | {"fsync": "unfit", "full_page_writes": "unfit", "synchronous_commit": "note"} == levels
        assert levels["synchronous standby"] == "warning"
        assert report["measured"]["round_trip"]["count"] > 10
        done = CliRunner().invoke(main, ["start", "--store", bad.url("postgres"), "--transport", "stomp://127.0.0.1:0"])
        assert done.exit_code == 4


# -- slow ones ---------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_a_handover_an_export_and_a_server_that_must_be_accepted(
    brokers: Brokers, url: str, server: Postgres, database: str, tmp_path: Path
) -> None:
    master, slave = brokers.master("a"), brokers.slave("b")
    with master.connect() as connection:
        fill(connection, 5)
    slave.wait_ready()
    assert CliRunner().invoke(main, ["handover", "--store", url, "--to", "b"]).exit_code == 0
    slave.wait_serving()
    exported = tmp_path / "all.jsonl"
    assert CliRunner().invoke(main, ["journal", "export", "--store", url, "--output", str(exported)]).exit_code == 0
    assert json.loads(exported.read_text().splitlines()[-1])["messages"] == 5
    assert amq("store", "accept", "--store", url)["accepted"] is True
    master.kill()
    slave.kill()
    server.ask("UPDATE amq_store SET server = '1/00000001'", database=database)
    master.start()
    assert master.wait_exit() == 4
    assert master.log[-1]["code"] == "STORE_INCOMPLETE"
    assert amq("store", "accept", "--store", url)["accepted"] is False
    assert amq("store", "accept", "--store", url, "--yes")["accepted"] is True
    master.start().wait_serving()


@pytest.mark.deep
def test_a_master_that_stands_still_is_replaced_and_its_insert_is_refused_by_the_server(tmp_path: Path) -> None:
    """As the server's own log shows it: the plan of the statement, and how many rows it made."""
    explain = {
        "session_preload_libraries": "auto_explain",
        "auto_explain.log_min_duration": "0",
        "auto_explain.log_analyze": "on",
        "auto_explain.log_timing": "off",
    }
    with (
        postgres(**explain) as server,
        Brokers(tmp_path, server.url("postgres"), hungMasterTimeout="2s", **SHORT) as brokers,
    ):
        master, other = brokers.master("a"), brokers.add("b")
        with master.connect() as connection:
            fill(connection, 3)
        # The other one starts when the master is stopped, and the master ends when it has seen that it was replaced: so
        # neither replaces one that is only slow. A master that is woken may notice that it was replaced before it has
        # read what its client sent: then it tries no insert. So it happens to one master after the other.
        for _ in range(ROUNDS_MAX):
            with master.connect() as connection:
                master.freeze()
                connection.send("SEND", {"destination": QUEUE, "receipt": "late"}, b"late")
                other.start().wait_serving()
                before = len(server.log)
                master.thaw()
                master.wait_slave(after=len(master.log))
                master.kill()
            log = server.log[before:]
            tried = [part for part in log.split("duration: ") if "INSERT INTO" in part and "FOR SHARE" in part]
            if any("Insert on amq_chunk  (cost" in part and "(actual rows=0 loops=1)" in part for part in tried):
                break
            master, other = other, master
        else:
            raise AssertionError(f"no master of {ROUNDS_MAX} tried to insert")
        bodies = deliveries([other], 3)  # its short lease may run out on a busy machine
        assert bodies[:3] == [b"0", b"1", b"2"]
        assert set(bodies[3:]) <= {b"late"}


@pytest.mark.parametrize("how", [*only(["terminate", "crash"]), *thorough("restart")])
def test_nothing_confirmed_is_lost_when_the_server_lets_go(tmp_path: Path, how: str) -> None:
    with postgres() as server, Brokers(tmp_path, server.url("postgres")) as brokers:
        pair = [brokers.master("a"), brokers.slave("b")]
        producer = Producer(pair)
        producer.start()
        for _ in range(3):
            producer.wait_confirmed(100)
            if how == "terminate":
                server.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'amq'")
            else:
                server.stop() if how == "restart" else server.crash()
                server.start()
            producer.wait_confirmed(100)
        check_all_kept(pair, producer)
        assert producer.failovers >= 1


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["asynchronous", "synchronous", "left behind"])
def test_a_promoted_standby(tmp_path: Path, kind: str) -> None:
    """A standby that was synchronous is used at once; any other waits for a person. So does one that was synchronous
    and was then given up by the primary: its rows cannot tell that, and the brokers remember what they have seen."""
    with postgres() as primary:
        standby = Postgres(primary.directory.with_name(primary.directory.name + "-standby"), {})
        standby.directory.mkdir(mode=0o700)
        standby.give(standby.directory)
        try:
            _promote(primary, standby, tmp_path, kind)
        finally:
            standby.end()
            shutil.rmtree(standby.directory)


def _promote(primary: Postgres, standby: Postgres, directory: Path, kind: str) -> None:
    host = f"{primary.directory},{standby.directory}"
    url = f"postgresql://owner@/postgres?host={host}&port={primary.port},{standby.port}&target_session_attrs=read-write"
    primary.ask("CREATE TABLE before_all ()")
    primary.run("pg_basebackup", "-D", standby.data, "-R", "-d", primary.conninfo("postgres"), "-c", "fast")
    standby.start()
    if kind != "asynchronous":
        _wait_for_standby(primary, "*")
    _until(
        lambda: primary.ask(
            "SELECT 1 FROM pg_stat_replication WHERE sync_state = %s", ["async" if kind == "asynchronous" else "sync"]
        )
    )
    with Brokers(directory, url) as brokers:
        pair = [brokers.master("a"), brokers.slave("b")]
        with pair[0].connect() as connection:
            fill(connection, 20)
            if kind == "left behind":
                pair[1].wait_slave()
                standby.stop()
                _wait_for_standby(primary, "")
                fill(connection, 20)
                _until(lambda: _followed(url, "b") > 30)
        primary.crash()
        if kind == "left behind":
            standby.start()
        standby.ask("SELECT pg_promote()")
        if kind == "synchronous":
            _until(lambda: sum(len(broker.said("master: serving")) for broker in pair) > 1)
            assert deliveries(pair, 20) == [b"%d" % number for number in range(20)]
        else:
            for broker in pair:
                assert broker.wait_exit() == 4
                assert broker.log[-1]["code"] == "STORE_INCOMPLETE"
            if kind == "left behind":
                pair[0].start()
                assert pair[0].wait_exit() == 4, "a broker that remembers nothing is told by the others"
            assert amq("store", "accept", "--store", url, "--yes")["accepted"] is True
            pair[0].start().wait_serving()
            if kind == "left behind":
                with pair[0].connect() as connection:
                    assert drain(connection, 20) == [b"%d" % number for number in range(20)]


def _wait_for_standby(primary: Postgres, names: str) -> None:
    """Whose answers commits wait for."""
    primary.ask(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    primary.ask("SELECT pg_reload_conf()")
    _until(lambda: primary.ask("SHOW synchronous_standby_names") == [(names,)])


def _followed(url: str, name: str) -> int:
    """How many messages this slave has followed."""
    (found,) = [each for each in read_presence(open_store(url).board) if each.name == name]
    return found.details.get("followed", {}).get("messages", 0)


def _until(found: Any) -> None:
    until = time.monotonic() + DEADLINE_S
    while not found():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.deep
def test_a_backup_of_pg_dump_is_a_whole_store(brokers: Brokers, server: Postgres, url: str, database: str) -> None:
    """Made while the master works: one snapshot, as a crash would leave it."""
    master = brokers.master("a")
    producer = Producer([master])
    producer.start()
    producer.wait_confirmed(200)
    before = len(producer.confirmed)
    archive = server.directory / f"{database}.dump"
    where = ("-h", server.directory, "-p", server.port, "-U", "owner")
    server.run("pg_dump", *where, "--format=custom", "-f", archive, database)
    producer.wait_confirmed(50)
    confirmed = producer.stop()
    server.ask(f"CREATE DATABASE {database}_restored")
    server.run("pg_restore", *where, "-d", f"{database}_restored", archive)
    restored = url.replace(f"/{database}?", f"/{database}_restored?")
    assert amq("journal", "check", "--store", restored)["ok"]
    with Brokers(brokers.directory, restored) as others, others.master("r").connect() as connection:
        bodies = [int(body.split()[1]) for body in drain(connection, len(confirmed))]
    assert bodies == list(range(len(bodies)))
    assert before <= len(bodies)


@pytest.mark.deep
def test_a_full_disk_refuses_sends_and_deposes_nobody(server: Postgres, database: str, tmp_path: Path) -> None:
    """Of the tables, not of the write-ahead log. The broker tries again by itself, and goes on when there is room."""
    small = server.directory / "small"
    small.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", small], check=False)
    if done.returncode:
        why = "this test mounts a file system for the tables, which needs root"
        pytest.fail(why) if os.environ.get("CI") == "true" else pytest.skip(why)
    try:
        server.give(small)
        server.ask(f"CREATE TABLESPACE small LOCATION '{small}'")
        server.ask(f"CREATE DATABASE {database}_small TABLESPACE small")
        server.ask("CHECKPOINT")  # its catalogue takes its room now: the server could not write it later
        with Brokers(tmp_path, server.url(f"{database}_small"), producerFlowControl="fail") as brokers:
            master = brokers.master("a")
            server.ask("CHECKPOINT")
            brokers.slave("b")  # its statements keep old versions of rows for a short time only
            sent = 0
            with master.connect() as connection, pytest.raises(WireError, match="disk is full"):
                while sent < 10_000:
                    send(connection, b"%d " % sent + bytes(64 << 10))
                    sent += 1
            assert sent > 50
            master.wait_event("the store's disk is full")
            first = heartbeats(brokers)
            _until(lambda: heartbeats(brokers) > first + 5)
            subprocess.run(["mount", "-o", "remount,size=96m", small], check=True)
            master.wait_event("the store's disk has room again")
            with master.connect() as connection:
                send(connection, b"%d and accepted" % sent)
                bodies = [int(body.split()[0]) for body in drain(connection, sent + 1)]
            assert bodies == list(range(sent + 1))
            assert len(master.said("master: serving")) == 1
        server.ask(f"DROP DATABASE {database}_small WITH (FORCE)")
        server.ask("DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)
