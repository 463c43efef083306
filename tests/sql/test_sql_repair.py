"""`amq journal repair` of a store in a real PostgreSQL whose rows were damaged."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from amq.broker.state.state import State
from amq.cli import exits
from amq.cli.main import main
from amq.config import BrokerConfig
from amq.core.errors import StoreError
from amq.journal.follower import replay
from amq.journal.recovery import seal
from amq.store.open import store_in
from amq.store.postgres.database import Database
from amq.store.postgres.url import SqlUrl
from tests.brokers import Brokers
from tests.maintenance.damaged import repair, repair_killed_at
from tests.postgres import Postgres, needs_postgres
from tests.sampling import sampled, thorough
from tests.sql.test_sql_brokers import amq, fill
from tests.stored import stored_in
from tests.traffic import drain

pytestmark = needs_postgres
MESSAGES = 20
_BATCH = """(SELECT c.file, c.start FROM amq_chunk c JOIN amq_name n USING (file)
WHERE n.directory = 'journal' AND n.name LIKE '00000001-%.seg' ORDER BY c.start OFFSET 8 LIMIT 1)"""
DAMAGES = {
    "a changed row": "UPDATE amq_chunk SET data = set_byte(data, 40, get_byte(data, 40) # 255) "
    f"WHERE (file, start) = {_BATCH}",
    "a missing row": f"DELETE FROM amq_chunk WHERE (file, start) = {_BATCH}",
    "the newest epoch": "UPDATE amq_chunk SET data = set_byte(data, 40, get_byte(data, 40) # 255) WHERE file = "
    "(SELECT file FROM amq_name WHERE directory = 'epochs' ORDER BY name DESC LIMIT 1)",
}


@pytest.fixture
def brokers(tmp_path: Path, url: str) -> Iterator[Brokers]:
    with Brokers(tmp_path, url) as group:
        yield group


@pytest.mark.parametrize("damage", sampled(DAMAGES))
def test_what_can_be_read_is_saved_and_the_old_rows_are_kept(
    brokers: Brokers, server: Postgres, url: str, database: str, damage: str
) -> None:
    first = brokers.master("a")
    with first.connect() as connection:
        fill(connection, MESSAGES)
    held = amq("journal", "repair", "--store", url, "--yes")
    assert held["damages"] == [], "a whole store in use is left alone"
    first.stop()
    first.start()
    first.wait_serving()
    first.stop()
    server.ask(DAMAGES[damage], database=database)
    before = server.ask("SELECT directory, name, file FROM amq_name WHERE directory <> 'brokers'", database=database)
    assert CliRunner().invoke(main, ["journal", "check", "--store", url]).exit_code == exits.STORE
    shown = amq("journal", "repair", "--store", url, code=exits.STORE)
    assert shown["damages"]
    after = server.ask("SELECT directory, name, file FROM amq_name WHERE directory <> 'brokers'", database=database)
    assert sorted(after) == sorted(before), "without --yes nothing is changed"
    late = door_to(url)
    done = amq("journal", "repair", "--store", url, "--yes")
    assert done["repaired"]
    kept = done["kept"].rpartition("/")[2]
    rows = server.ask("SELECT count(*) FROM amq_name WHERE directory = %s AND file IS NOT NULL", [kept], database)
    assert rows[0][0] >= 2
    assert amq("journal", "check", "--store", url)["ok"]
    with pytest.raises(OSError, match="claimed the store") as refused:
        late.create("journal", "x")
    assert refused.value.errno == errno.EIO
    first.start()
    first.wait_serving()
    expected = MESSAGES - 1 if damage == "a missing row" else MESSAGES  # a record in a damaged batch can be read
    with first.connect() as connection:
        bodies = [int(body) for body in drain(connection, expected)]
    assert len(bodies) == expected
    assert bodies == sorted(set(bodies))


def door_to(url: str) -> Database:
    return Database(SqlUrl.parse(url))


def _served(url: str) -> list[bytes] | None:
    """The bodies that the next master would have; None = no broker serves this store."""
    store = store_in(door_to(url))
    state = State(BrokerConfig(store=url))
    try:
        newest = store.epochs.newest()
        assert newest is not None
        replay(
            store.log,
            seal(store.log, newest.number, newest.sealed),
            state.apply,
            lambda _done, _total: None,
        )
    except (StoreError, FileNotFoundError):
        return None
    found = [stored_in(state, queue, store.log) for queue in state.queues.values()]
    return [bytes(each[seq].body) for each in found for seq in sorted(each)]


@pytest.mark.parametrize(
    "damage", [pytest.param(next(iter(DAMAGES)), marks=pytest.mark.deep), *thorough(*[*DAMAGES][1:])]
)
def test_killed_at_any_moment_it_is_simply_run_again(
    brokers: Brokers, server: Postgres, database: str, damage: str
) -> None:
    """Its connections end with it; what it has changed until then stays."""
    first = brokers.master("a")
    with first.connect() as connection:
        fill(connection, MESSAGES)
    first.stop()
    first.start()
    first.wait_serving()
    first.stop()
    server.ask(DAMAGES[damage], database=database)

    def copied(nth: int) -> str:
        name = f"{database}_{nth}"
        server.ask(f"CREATE DATABASE {name} TEMPLATE {database}")
        return name

    def forgotten(name: str) -> None:
        server.ask(f"DROP DATABASE {name} WITH (FORCE)")

    undisturbed = copied(0)
    repair(server.url(undisturbed), door_to(server.url(undisturbed))).run()
    saved = _served(server.url(undisturbed))
    assert saved
    forgotten(undisturbed)
    nth = 1
    while True:
        name = copied(nth)
        was_killed = repair_killed_at(server.url(name), door_to(server.url(name)), nth)
        server.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        if not was_killed:
            break
        assert _served(server.url(name)) in (None, saved), "nothing between damaged and repaired is served"
        repair(server.url(name), door_to(server.url(name)), seed=10_000).run()
        assert _served(server.url(name)) == saved
        assert amq("journal", "check", "--store", server.url(name))["ok"]
        forgotten(name)
        nth += 7 if nth > 20 else 2 if nth > 6 else 1
    assert nth > 8
