"""`amq journal repair` of a store in a real PostgreSQL whose rows were damaged."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from amq.cli import exits
from amq.cli.main import main
from amq.errors import StoreError
from amq.maintenance.repair import Repair
from amq.stores import open_vfs
from tests.brokers import Brokers
from tests.postgres import Postgres, needs_postgres
from tests.sampling import sampled
from tests.sql.test_sql_brokers import amq, fill
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
    late = open_vfs(url)
    done = amq("journal", "repair", "--store", url, "--yes")
    assert done["repaired"]
    kept = done["kept"].rpartition("/")[2]
    rows = server.ask("SELECT count(*) FROM amq_name WHERE directory = %s AND file IS NOT NULL", [kept], database)
    assert rows[0][0] >= 2
    assert amq("journal", "check", "--store", url)["ok"]
    with pytest.raises(OSError, match="claimed the store") as refused:
        late.open(f"{url}/journal/x", os.O_RDWR | os.O_CREAT)
    assert refused.value.errno == errno.EIO
    first.start()
    first.wait_serving()
    expected = MESSAGES - 1 if damage == "a missing row" else MESSAGES  # a record in a damaged batch can be read
    with first.connect() as connection:
        bodies = [int(body) for body in drain(connection, expected)]
    assert len(bodies) == expected
    assert bodies == sorted(set(bodies))


def test_a_repair_that_was_killed_is_finished_by_the_next_one(
    brokers: Brokers, server: Postgres, url: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = brokers.master("a")
    with first.connect() as connection:
        fill(connection, MESSAGES)
    first.stop()
    first.start()
    first.wait_serving()
    first.stop()
    server.ask(DAMAGES["a missing row"], database=database)
    with monkeypatch.context() as patch:

        def killed(*_arguments: object) -> None:
            raise StoreError("killed after the link of its epoch")

        patch.setattr(Repair, "_finish", killed)
        done = CliRunner().invoke(main, ["journal", "repair", "--store", url, "--yes"])
        assert (done.exit_code, "killed after" in done.stderr) == (exits.STORE, True)
    assert len(amq("journal", "repair", "--store", url, code=exits.STORE)["unfinished"]) == 1
    assert amq("journal", "repair", "--store", url, "--yes")["damages"] == []
    assert amq("journal", "check", "--store", url)["ok"]
    first.start()
    first.wait_serving()
    with first.connect() as connection:
        assert len(drain(connection, MESSAGES - 1)) == MESSAGES - 1
