"""Real brokers on a replicated store: each has a directory of its own, and they share only a coordinator."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from amq.cli.main import main
from amq.core.errors import ConfigError
from amq.store.open import open_coordinator, open_store
from amq.store.replica.book import GroupBook
from amq.store.replica.peer_hello import VERSION
from amq.store.replica.store import LinkedEpochs
from tests.brokers import ROOT, Broker, Brokers
from tests.ensemble import (
    Ensemble,
    EtcdEnsemble,
    ZooKeeperEnsemble,
    ensemble,
    needs_etcd,
    needs_zookeeper,
    wait_until,
)
from tests.postgres import needs_postgres, postgres
from tests.traffic import Producer, check_all_kept, connect_any, send

MEMBERS = "abc"
STORE_UNUSABLE = 4  # exit code
# Where a test says that nobody takes over, a busy machine must not end a session or a period. The session of a process
# that was killed on this host is over at once for the others.
STEADY = "sessionTimeout=60000"
PERIOD_S = 20.0
PATIENT = {"lockKeepAlivePeriod": f"{PERIOD_S:g}s"}


@contextmanager
def three(directory: Path, coordinator: str, **options: object) -> Iterator[tuple[list[Broker], GroupBook]]:
    """Three members, whose copies all count; and the record of their group."""
    with Brokers(directory, **{"lockKeepAlivePeriod": "60s", **options}) as brokers:
        found = []
        for name in MEMBERS:
            broker = brokers.add(name)
            broker.store = f"replica://{directory / name}?group=fish&coordinator={coordinator}"
            found.append(broker.start())
            found[0].wait_serving()
        epochs = open_store(str(found[0].store)).epochs
        assert isinstance(epochs, LinkedEpochs)
        wait_until(lambda: len(epochs._book.read().record.members) == 3, "all copies count")
        yield found, epochs._book


@contextmanager
def etcd(directory: Path, kind: type[Ensemble] = EtcdEnsemble) -> Iterator[Ensemble]:
    with ensemble(kind, directory / "servers") as servers:
        wait_until(lambda: open_coordinator(servers.url()).read("any") is None, "the servers have a leader")
        yield servers


def wait_for_epoch(book: GroupBook, number: int) -> None:
    wait_until(lambda: book.read().record.epoch >= number, "another member is the master")


def master_of(brokers: list[Broker], book: GroupBook) -> Broker:
    epoch = book.read().epoch
    assert epoch is not None
    return next(each for each in brokers if each.name == epoch.owner.name)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("replica:///d?group=g", "coordinator must be the URL"),
        ("replica:///d?coordinator=http://a", "coordinator must be the URL"),
        ("replica://host/d?coordinator=file:///c", "it must be replica:///DIRECTORY"),
        ("replica:///d?coordinator=file:///c&group=a/b", "group is one word"),
        ("replica:///d?coordinator=file:///c&members=2&leastCopies=3", "leastCopies is a number from 1 to 2"),
        ("replica:///d?coordinator=file:///c&members=x", "members is a number from 1 to 9"),
        ("replica:///d?coordinator=file:///c&listen=7000", "listen is HOST:PORT"),
        ("replica:///d?coordinator=file:///c&caFile=/x", "needs caFile, certificateFile and keyFile"),
        ("replica:///d?coordinator=etcd://a&sessionTimeout=9", "unknown option 'sessionTimeout'"),
        ("replica:///d?coordinator=etcd://a&members=3&members=5", "it has an option twice"),
    ],
)
def test_a_url_that_names_no_replicated_store_is_refused(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        open_store(url)


@pytest.mark.deep
def test_masters_are_killed_a_disk_is_lost_and_all_stop_and_start(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    with three(tmp_path, f"file://{tmp_path}/small") as (brokers, book):
        producer = Producer(brokers)
        producer.start()
        producer.wait_confirmed(100)
        for _ in range(2):
            killed, epoch = master_of(brokers, book), book.read().record.epoch
            killed.kill()
            wait_for_epoch(book, epoch + 1)
            producer.wait_confirmed(100)
            killed.start()
        lost, old = master_of(brokers, book), book.read().record.members
        shutil.rmtree(tmp_path / lost.name)
        assert lost.wait_exit() == STORE_UNUSABLE
        lost.start()
        wait_until(lambda: len(book.read().record.members - old) == 1, "the new disk is a copy that counts")
        producer.wait_confirmed(100)
        for each in brokers:
            each.kill()
        for each in reversed(brokers):
            each.start()
        producer.wait_confirmed(100)
        check_all_kept(brokers, producer)


def run(*words: str, store: Path | str) -> str:
    done = CliRunner().invoke(main, [*words, "--store", str(store)])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.deep
def test_what_any_store_does(tmp_path: Path) -> None:
    """Hand-over to hot slaves, a master that hangs, failback, a stop that forbids failover, what people see of the
    copies, and a backup from the copy of a slave, restored to another group."""
    (tmp_path / "small").mkdir()
    options = {
        "lockKeepAlivePeriod": "10s",
        "hungMasterTimeout": "11s",
        "failbackDelay": "1s",
        "lockAcquireSleepInterval": "1s",
    }
    with three(tmp_path, f"file://{tmp_path}/small", **options) as (brokers, book):
        a, b, c = brokers
        store, sent = str(a.store), 0

        def sends() -> None:
            nonlocal sent
            with connect_any(brokers) as connection:
                send(connection, b"%d" % sent)
            sent += 1

        def serves(broker: Broker) -> None:
            wait_until(lambda: master_of(brokers, book) is broker, f"{broker.name} is the master")
            sends()

        serves(a)
        for broker in (b, c):
            broker.wait_ready()
            run("handover", "--to", broker.name, store=store)
            serves(broker)
        wait_until(lambda: levels(store) == ["level"] * 3, "the master says that all copies are level", every_s=1.0)
        assert run("status", store=store).count(" is level\n") == 3
        c.freeze()
        wait_for_epoch(book, 4)
        c.thaw()
        c.wait_event("mastership lost or refused")
        sends()
        c.stop()
        c.options |= {"priority": 5, "failoverOnShutdown": "false"}
        c.start()
        serves(c)
        c.stop()
        for each in (a, b):
            each.wait_event("the last master forbade a failover")
        run("handover", "--to", "a", store=store)
        serves(a)
        wait_until(
            lambda: all(each["lag_bytes"] == 0 for each in copies(store) if each["id"].startswith("b-")),
            "b has all",
            every_s=1.0,
        )
        backup = tmp_path / "backup.jsonl"
        run("journal", "export", "--output", str(backup), store=str(b.store))
    other = f"replica://{tmp_path}/new?group=restored&coordinator=file://{tmp_path}/small&leastCopies=1"
    run("journal", "import", str(backup), store=other)
    found = json.loads(run("journal", "stat", "--json", store=other))["destinations"]
    assert sum(each["live"] for each in found) == sent


def copies(store: str) -> list[dict[str, Any]]:
    return json.loads(run("status", "--json", store=store))["copies"]["seen"] or []


def levels(store: str) -> list[str]:
    return [each["state"] for each in copies(store)]


def next_version(directory: Path) -> Path:
    """A checkout whose members speak the next version of their protocol."""
    shutil.copytree(ROOT / "amq", directory / "amq")
    shutil.copytree(ROOT / "cli", directory / "amq" / "cli")
    hello = directory / "amq/store/replica/peer_hello.py"
    old, text = f"VERSION: Final = {VERSION}\n", hello.read_text()
    assert old in text
    hello.write_text(text.replace(old, f"VERSION: Final = {VERSION + 1}  # the next\n"))
    return directory


@pytest.mark.deep
def test_members_of_two_versions_refuse_each_other_and_an_upgrade_loses_nothing(tmp_path: Path) -> None:
    """The slaves first, the master last: the old ones serve, then nothing is confirmed, then the new ones serve."""
    (tmp_path / "small").mkdir()
    with Brokers(tmp_path, lockKeepAlivePeriod="60s") as brokers:
        a, b, c = (brokers.add(name) for name in MEMBERS)
        for each in (a, b, c):
            each.store = f"replica://{tmp_path / each.name}?group=fish&coordinator=file://{tmp_path}/small"
        a.start().wait_serving()
        b.start()
        epochs = open_store(str(a.store)).epochs
        assert isinstance(epochs, LinkedEpochs)
        book = epochs._book
        wait_until(lambda: len(book.read().record.members) == 2, "the copies of the old version count")
        c.code = b.code = next_version(tmp_path / "next")
        c.start()
        told = c.wait_line(lambda line: line.get("code") == "PEER_VERSION", "the other version")
        assert "upgrade its slaves first, its master last" in told["reason"]
        producer = Producer([a, b, c])
        producer.start()
        producer.wait_confirmed(50)
        b.stop()
        b.start().wait_event("a member is connected")  # c
        assert len(book.read().record.members) == 2, "the master waits for the copy that it has lost"
        a.stop()
        producer.wait_confirmed(50)
        assert {each.rpartition("-")[0] for each in book.read().record.members} >= {"b", "c"}
        check_all_kept([b, c], producer)


@pytest.mark.deep
@needs_etcd
def test_an_isolated_master_confirms_nothing_and_the_others_go_on(tmp_path: Path) -> None:
    with (
        etcd(tmp_path) as servers,
        three(tmp_path, servers.url()) as (brokers, book),
    ):
        producer = Producer(brokers, patience_s=2.0)
        producer.start()
        producer.wait_confirmed(100)
        stopped = master_of(brokers, book)
        stopped.freeze()
        wait_for_epoch(book, 2)
        producer.wait_confirmed(100)
        stopped.thaw()
        stopped.wait_event("mastership lost or refused")
        producer.wait_confirmed(100)
        check_all_kept(brokers, producer)


@pytest.mark.deep
@needs_etcd
def test_the_master_serves_on_while_the_coordinator_is_away(tmp_path: Path) -> None:
    """For longer than its period, by the word of the other copies. S does not change, and nobody takes over; a master
    that dies then is replaced when the coordinator is back."""
    with etcd(tmp_path) as servers, three(tmp_path, servers.url(STEADY), **PATIENT) as (brokers, book):
        producer = Producer(brokers)
        producer.start()
        producer.wait_confirmed(100)
        known, master = book.read(), master_of(brokers, book)
        began = time.monotonic()
        for number in range(3):
            servers.signal(number, signal.SIGSTOP)
        master.wait_event("coordinator is slow or does not answer: the copies prove this mastership")
        wait_until(lambda: time.monotonic() > began + PERIOD_S + 2.0, "its period is over")
        producer.wait_confirmed(100)
        for number in range(3):
            servers.signal(number, signal.SIGCONT)
        wait_until(lambda: book.read() == known, "the same master, of the same copies")
        producer.wait_confirmed(100)
        for number in range(3):
            servers.signal(number, signal.SIGSTOP)
        master.kill()
        for number in range(3):
            servers.signal(number, signal.SIGCONT)
        wait_for_epoch(book, 2)
        producer.wait_confirmed(100)
        check_all_kept(brokers, producer)


@dataclass
class Servers:
    """Those of a coordinator: its URL, and how all of them are away at once and come back."""

    url: str
    leave: Callable[[], None]
    come_back: Callable[[], None]


@contextmanager
def zookeeper(directory: Path) -> Iterator[Servers]:
    with etcd(directory, ZooKeeperEnsemble) as servers:

        def signal_all(what: signal.Signals) -> None:
            for number in range(servers.servers):
                servers.signal(number, what)

        yield Servers(servers.url(STEADY), partial(signal_all, signal.SIGSTOP), partial(signal_all, signal.SIGCONT))


@contextmanager
def database(_directory: Path) -> Iterator[Servers]:
    with postgres() as server:
        yield Servers(server.url("postgres"), server.crash, server.start)


@pytest.mark.deep
@pytest.mark.parametrize(
    "coordinator",
    [
        pytest.param(zookeeper, marks=needs_zookeeper, id="zookeeper"),
        pytest.param(database, marks=needs_postgres, id="postgresql"),
    ],
)
def test_other_coordinators_go_away_and_come_back_and_elect_when_a_master_is_killed(
    coordinator: Callable[[Path], AbstractContextManager[Servers]], tmp_path: Path
) -> None:
    with (
        coordinator(tmp_path) as servers,
        three(tmp_path, servers.url.replace("&", "%26"), **PATIENT) as (brokers, book),
    ):
        producer = Producer(brokers)
        producer.start()
        producer.wait_confirmed(100)
        known, master = book.read(), master_of(brokers, book)
        servers.leave()
        master.wait_event("coordinator is slow or does not answer: the copies prove this mastership")
        producer.wait_confirmed(100)
        servers.come_back()
        wait_until(lambda: book.read() == known, "the same master, of the same copies")
        producer.wait_confirmed(100)
        master.kill()
        wait_for_epoch(book, 2)
        producer.wait_confirmed(100)
        check_all_kept(brokers, producer)
