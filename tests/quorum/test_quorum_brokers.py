"""Real brokers on a store in a directory whose lock is in real servers of etcd or ZooKeeper."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from amq.cli.main import main
from amq.store.open import locker_of, open_coordinator, open_directory
from tests.brokers import SHORT, Brokers
from tests.ensemble import Ensemble, EtcdEnsemble, ZooKeeperEnsemble, ensemble, needs_etcd, needs_zookeeper, wait_until
from tests.relay import Relay
from tests.traffic import Producer, check_all_kept

KINDS = [
    pytest.param(EtcdEnsemble, marks=needs_etcd, id="etcd"),
    pytest.param(ZooKeeperEnsemble, marks=needs_zookeeper, id="zookeeper"),
]
SHORT_SESSION = "sessionTimeout=2000"
PATIENT = ("sessionTimeout=60000", "requestTimeout=60000")  # a busy machine deposes no master


@contextmanager
def running(kind: type[Ensemble], directory: Path) -> Iterator[Ensemble]:
    with ensemble(kind, directory / "servers") as found:
        wait_until(lambda: open_coordinator(found.url()).read("any") is None, "the servers have a leader")
        yield found


def command(*words: str) -> Any:
    done = CliRunner().invoke(main, [*words, "--json"])
    assert done.stdout, done.output
    return json.loads(done.stdout)


def masterships(brokers: Brokers) -> int:
    return open_directory(str(brokers.store)).epochs.newest_number()


@pytest.mark.deep
@pytest.mark.parametrize("kind", KINDS)
def test_the_master_serves_while_servers_fail_and_is_followed_when_it_is_killed(
    kind: type[Ensemble], tmp_path: Path
) -> None:
    with running(kind, tmp_path) as servers, Brokers(tmp_path, lockKeepAlivePeriod="60s") as brokers:
        url = brokers.options["locker"] = servers.url(*PATIENT)
        pair = [brokers.master("a"), brokers.slave("b")]
        assert not {"lock", "claim", "brokers", "orders"} & set(os.listdir(brokers.store))
        assert locker_of(str(brokers.store)) == url
        seen = command("status", "--store", str(brokers.store))
        assert (seen["state"], seen["master"]["name"], seen["locker"]) == ("serving", "a", url)
        assert seen["locker_servers"] == {f"127.0.0.1:{port}": "" for port in servers.ports}
        assert [each["name"] for each in seen["slaves"]] == ["b"]
        found = command("doctor", f"{brokers.store}/", "--quick")["findings"]
        assert sum(each["found"] == "answers" for each in found) == 3
        producer = Producer(pair)
        producer.start()
        producer.wait_confirmed(100)
        for number in servers.victims:
            servers.signal(number, signal.SIGSTOP)
            producer.wait_confirmed(100)
            servers.kill(number)
            servers.start(number)
            wait_until(lambda: not any(why for _, why in open_coordinator(url).servers()), "all three answer")
        assert masterships(brokers) == 1
        pair[1].wait_ready()
        pair[0].kill()  # its session is not over yet
        pair[1].wait_serving()
        producer.wait_confirmed(100)
        check_all_kept(pair, producer)


@pytest.mark.deep
@needs_etcd
def test_without_servers_the_master_ends_and_none_takes_over_until_they_are_back(tmp_path: Path) -> None:
    with (
        running(EtcdEnsemble, tmp_path) as servers,
        Brokers(tmp_path, locker=servers.url()) as brokers,
    ):
        pair = [brokers.master("a"), brokers.slave("b")]
        producer = Producer(pair)
        producer.start()
        producer.wait_confirmed(100)
        servers.kill()
        before = masterships(brokers)
        wait_until(lambda: any(broker.said("mastership lost") for broker in pair), "the master ends")
        assert masterships(brokers) == before
        servers.start()
        wait_until(lambda: masterships(brokers) > before, "one of the two serves again")
        producer.wait_confirmed(100)
        check_all_kept(pair, producer)


@pytest.mark.deep
@needs_etcd
def test_a_master_that_alone_is_cut_off_from_the_servers_is_followed_and_confirms_nothing(tmp_path: Path) -> None:
    with running(EtcdEnsemble, tmp_path) as servers, Brokers(tmp_path, locker=servers.url(SHORT_SESSION)) as brokers:
        relay = Relay(servers.ports)
        try:
            cut = brokers.add("a", locker=servers.url(SHORT_SESSION, ports=relay.ports), **SHORT).start()
            cut.wait_serving()
            pair = [cut, brokers.slave("b", **SHORT)]
            producer = Producer(pair)
            producer.start()
            producer.wait_confirmed(100)
            relay.freeze()
            pair[1].wait_serving()
            cut.wait_event("mastership lost")
            producer.wait_confirmed(100)
            check_all_kept(pair, producer)
        finally:
            relay.close()
