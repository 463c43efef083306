"""Real brokers on a store in a directory whose lock is in real servers of etcd."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from amq.cli.main import main
from amq.store.open import locker_of, open_coordinator, open_directory
from tests.brokers import Broker, Brokers
from tests.ensemble import Ensemble, EtcdEnsemble, ensemble, needs_etcd, wait_until
from tests.traffic import Producer, connect_any, drain

KINDS = [pytest.param(EtcdEnsemble, marks=needs_etcd)]
SHORT_SESSION = "sessionTimeout=2000"


@pytest.fixture(params=KINDS)
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ensemble]:
    with ensemble(request.param, tmp_path / "servers") as found:
        wait_until(lambda: open_coordinator(found.url()).read("any") is None, "the servers have a leader")
        yield found


def checked(pair: list[Broker], producer: Producer) -> None:
    """Every message that was confirmed is there, once, in the order in which it was sent."""
    confirmed = producer.stop()
    with connect_any(pair) as connection:
        bodies = [int(body.split()[1]) for body in drain(connection, len(confirmed))]
    assert bodies == sorted(set(bodies)), "stored twice, or out of order"
    assert set(confirmed) <= set(bodies)


def command(*words: str) -> Any:
    done = CliRunner().invoke(main, [*words, "--json"])
    assert done.stdout, done.output
    return json.loads(done.stdout)


def masterships(brokers: Brokers) -> int:
    return open_directory(str(brokers.store)).epochs.newest_number()


@pytest.mark.deep
def test_brokers_go_on_while_servers_fail_and_wait_while_all_are_gone(servers: Ensemble, tmp_path: Path) -> None:
    url = servers.url(SHORT_SESSION)
    with Brokers(tmp_path, locker=url) as brokers:
        pair = [brokers.master("a"), brokers.slave("b")]
        assert not {"lock", "claim", "brokers", "orders"} & set(os.listdir(brokers.store))
        assert locker_of(str(brokers.store)) == url
        seen = command("status", "--store", str(brokers.store))
        assert (seen["state"], seen["master"]["name"], seen["locker"]) == ("serving", "a", url)
        assert [each["name"] for each in seen["slaves"]] == ["b"]
        found = command("doctor", f"{brokers.store}/", "--quick")["findings"]
        assert sum(each["found"] == "answers" for each in found) == 3
        producer = Producer(pair)
        producer.start()
        producer.wait_confirmed(100)

        # One server after the other stands still, then is killed: the master is not deposed.
        for number in range(3):
            servers.signal(number, signal.SIGSTOP)
            producer.wait_confirmed(100)
            servers.kill(number)
            servers.start(number)
            wait_until(lambda: not any(why for _, why in open_coordinator(url).servers()), "all three answer")
        assert masterships(brokers) == 1

        # A slave takes over from a master that is killed, though that one's session is not over yet.
        pair[1].wait_ready()
        pair[0].kill()
        pair[1].wait_serving()
        pair[0].start().wait_slave()
        producer.wait_confirmed(100)

        # Without servers the master confirms nothing after its lease, and none takes over until they are back.
        servers.kill()
        pair[1].wait_event("mastership lost")
        assert masterships(brokers) == 2
        servers.start()
        wait_until(lambda: masterships(brokers) == 3, "one of the two serves again")
        producer.wait_confirmed(100)
        checked(pair, producer)
