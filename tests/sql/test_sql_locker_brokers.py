"""Real brokers on a store in a directory whose lock is in a real PostgreSQL."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from amq.cli.main import main
from amq.store.open import locker_of
from tests.brokers import Brokers
from tests.patience import DEADLINE_S
from tests.postgres import needs_postgres, postgres
from tests.sampling import thorough
from tests.traffic import Producer, check_all_kept, drain, send

pytestmark = needs_postgres


@pytest.fixture
def brokers(tmp_path: Path, url: str) -> Iterator[Brokers]:
    with Brokers(tmp_path, locker=url) as group:
        yield group


def status(brokers: Brokers) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["status", "--store", str(brokers.store), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_slave_takes_over_and_the_commands_find_the_lock_by_the_directory_alone(brokers: Brokers, url: str) -> None:
    master, slave = brokers.master("a"), brokers.slave("b")
    with master.connect() as connection:
        for number in range(20):
            send(connection, b"%d" % number)
    assert not {"lock", "claim", "brokers", "orders"} & set(os.listdir(brokers.store))
    seen = status(brokers)
    assert (seen["state"], seen["master"]["name"], seen["locker"]) == ("serving", "a", url)
    assert [each["name"] for each in seen["slaves"]] == ["b"]
    done = CliRunner().invoke(main, ["doctor", f"{brokers.store}/", "--quick", "--json"])
    topics = {each["topic"]: each["found"] for each in json.loads(done.stdout)["findings"]}
    assert topics["locker"] == url
    assert topics["fsync"] == "on", "the server is examined, too"
    assert not any(topic.startswith("lock,") for topic in topics)
    slave.wait_ready()
    master.kill()
    slave.wait_serving()
    with slave.connect() as connection:
        assert drain(connection, 20) == [b"%d" % number for number in range(20)]


def test_a_broker_that_looks_for_the_lock_elsewhere_is_refused(brokers: Brokers) -> None:
    master = brokers.master("a")
    other = brokers.add("b", locker="").start()
    assert other.wait_exit() == 4
    assert other.log[-1]["code"] == "LOCK_ELSEWHERE"
    assert master.stop() == 0
    other.start().wait_serving()  # the mark of the master says that nothing more comes from it
    assert status(brokers)["locker"] == ""


def test_two_brokers_of_one_name_are_refused(brokers: Brokers) -> None:
    """The name is what ActiveMQ calls leaseHolderId: two holders of one name would both own its lease."""
    brokers.master("a")
    other = brokers.add("a").start()
    assert other.wait_exit() != 0
    assert other.log[-1]["code"] == "NAME_IN_USE"


@pytest.mark.deep
def test_repair_takes_the_lock_where_the_master_has_it_also_if_the_newest_epoch_is_damaged(brokers: Brokers) -> None:
    first = brokers.master("a")
    assert first.stop() == 0
    master = brokers.master("b")
    newest = Path(brokers.store) / "epochs" / "0000000002.json"
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-20])
    repair = ["journal", "repair", "--store", str(brokers.store), "--yes"]
    done = CliRunner().invoke(main, repair)
    assert (done.exit_code, "locked" in done.stderr) == (5, True), done.output
    master.kill()
    done = CliRunner().invoke(main, repair)
    assert done.exit_code == 0, done.output
    assert locker_of(str(brokers.store)) == brokers.options["locker"]
    master.start().wait_serving()


def test_a_locker_must_be_the_url_of_a_database_and_the_store_a_directory(brokers: Brokers, url: str) -> None:
    for wrong, store in (("/mnt/lock", str(brokers.store)), ("mysql://db/amq", str(brokers.store)), (url, url)):
        done = CliRunner().invoke(main, ["start", "--store", store, "-o", f"locker={wrong}"])
        assert done.exit_code == 3, done.output
        assert "locker" in done.stderr


# -- slow ones ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [pytest.param("crash", marks=pytest.mark.deep), *thorough("terminate", "restart")])
def test_nothing_confirmed_is_lost_when_the_server_lets_go(tmp_path: Path, how: str) -> None:
    with postgres() as server, Brokers(tmp_path, locker=server.url("postgres")) as brokers:
        pair = [brokers.master("a"), brokers.slave("b")]
        producer = Producer(pair)
        producer.start()
        for _ in range(3):
            producer.wait_confirmed(100)
            masterships = sum(len(broker.said("master: serving")) for broker in pair)
            if how == "terminate":
                server.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'amq'")
            else:
                server.stop() if how == "restart" else server.crash()
                server.start()
            until = time.monotonic() + DEADLINE_S  # its heartbeat goes through the connection that is lost
            while sum(len(broker.said("master: serving")) for broker in pair) == masterships:
                assert time.monotonic() < until
                time.sleep(0.02)
            producer.wait_confirmed(100)
        check_all_kept(pair, producer)
