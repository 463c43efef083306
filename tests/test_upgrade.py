"""Acceptance: a rolling upgrade from 0.1. Real brokers of both versions on one store, killed and stopped.

A broker of 0.1 that meets the store of a later master must refuse it, name the cure and leave no trace of a takeover:
docs/master-slave.md, "Brokers of two versions in one group".
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from brokers import ROOT as HERE
from brokers import WAITING, Broker, Brokers
from older import run
from traffic import QUEUE, Producer, drain, send

import amq
from amq.cluster.placement import Placement
from amq.journal.checkpoint import list_checkpoints
from amq.journal.format import HEADER
from amq.journal.records import ObeyedTable
from amq.security.users_edit import add_user
from amq.store.files.log import FileLog
from amq.store.files.vfs import SystemVfs
from bench.wire import WireConnection, WireError
from tests.patience import DEADLINE_S
from tests.test_slave import followed
from tests.written_store import write_store

pytestmark = pytest.mark.deep
STORE_UNUSABLE = 4
PATIENCE_S = 2.0  # of a producer whose broker pauses
CURE = "upgrade this broker"
NOT_FOLLOWED = "the journal cannot be followed now"
DEPOSED = "mastership lost or refused: slave again"
SMALL = {"journalSegmentSize": "64KiB", "journalBatchSize": "16KiB", "checkpointDistance": "32KiB"}
VFS = SystemVfs()


def versions(store: Path) -> dict[int, set[int]]:
    """Epoch → the versions of its segments."""
    found: dict[int, set[int]] = {}
    for path in (store / "journal").glob("*.seg"):
        _, version, _, _, epoch, *_ = HEADER.unpack_from(path.read_bytes())
        if version:
            found.setdefault(epoch, set()).add(version)
    return found


def epochs(store: Path) -> list[int]:
    """The formats of the epoch files, oldest first."""
    return [json.loads(path.read_text())["format"] for path in sorted((store / "epochs").glob("*.json"))]


def content(store: Path) -> dict[str, bytes]:
    """What a takeover would change. Each broker may say who it is, in `brokers/`."""
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in store.rglob("*")
        if path.is_file() and path.parent.name != "brokers"
    }


def assert_refused(broker: Broker) -> None:
    """It ended, and said why and what to do, before it took over."""
    assert broker.wait_exit() == STORE_UNUSABLE, broker.log_text()
    last = broker.log[-1]
    assert (last["event"], last["code"]) == ("stopped", "STORE_NEWER_FORMAT")
    assert "format 2 was written by a newer amq" in last["reason"]
    assert CURE in last["reason"]
    assert broker.said("role")[-1]["before"] == "slave"


def assert_all_there(broker: Broker, confirmed: list[int], acknowledged: int = 0) -> None:
    """Each confirmed message is there once, in order, but for the first ones, which were acknowledged."""
    with broker.connect() as connection:
        bodies = drain(connection, len(confirmed))
    assert bodies == [f"message {number}".encode() for number in confirmed[acknowledged:]]


def acknowledge(connection: WireConnection, count: int) -> None:
    """Take and acknowledge that many messages."""
    connection.send("SUBSCRIBE", {"destination": QUEUE, "id": "some", "ack": "client", "prefetch-count": count})
    frames = [connection.next_frame(DEADLINE_S) for _ in range(count)]
    assert [frame.body for frame in frames] == [f"message {number}".encode() for number in range(count)]
    connection.send("ACK", {"id": frames[-1].headers["ack"], "receipt": "acked"})
    connection.receipt("acked", DEADLINE_S)


def received(consumer: Any, count: int) -> list[Any]:
    """So many messages, acknowledged."""
    found = []
    for number in range(count):
        message = consumer.receive(DEADLINE_S)
        assert message is not None, f"only {number} of {count} messages came"
        message.ack()
        found.append(message)
    return found


def taken_by(master: Broker, old: Broker, after: int = 0) -> None:
    """Wait until `old` noticed that the master is of a later version."""
    line = old.wait_event(NOT_FOLLOWED, after=after)
    assert CURE in line["reason"]
    assert master.alive


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.005)


# -- a store of 0.1 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kill", [True, False], ids=["kill -9", "stop"])
def test_a_store_of_an_old_broker_is_continued(brokers: Brokers, old_amq: Path, kill: bool) -> None:
    old = brokers.master("a", old_amq, **SMALL)
    producer = Producer([old, new := brokers.add("b", **SMALL)])
    producer.start()
    producer.wait_confirmed(1500)
    with old.connect() as connection:
        acknowledge(connection, 20)
    assert list_checkpoints(FileLog(VFS, str(brokers.store)).checkpoints), "a checkpoint of version 1 is there"
    old.kill() if kill else old.stop()
    assert epochs(brokers.store) == [1]
    new.start().wait_serving()
    assert new.said("checkpoint read"), "it begins where the checkpoint of 0.1 leaves off"
    producer.wait_confirmed(100)
    confirmed = producer.stop()
    assert epochs(brokers.store) == [1, 2]
    assert versions(brokers.store) == {1: {1}, 2: {2}}
    new.kill()  # a store of both versions is read anew
    new.start().wait_serving()
    assert_all_there(new, confirmed, acknowledged=20)
    with new.connect() as connection:  # what 0.1 remembered is known: the message is not stored again
        send(connection, b"again", _AMQ_DUPL_ID="id-3")
        assert drain(connection, 0) == []


def test_ids_of_an_old_broker_answer_only_who_must_have_given_them(
    brokers: Brokers, old_amq: Path, tmp_path: Path
) -> None:
    """On a broker with logins: those that our client makes, and none that somebody else may have taken in advance."""
    for user in ("alice", "eve"):
        add_user(str(tmp_path / "users"), user, "correct horse")
    logins = {"usersFile": tmp_path / "users", "anonymous": "no"}
    own, taken = "0123456789abcdef01234567-1", "order-17"

    def work(broker: Broker, user: str, id: str) -> None:
        address = f"stomp://127.0.0.1:{broker.port}"
        with amq.connect(address, login=user, passcode="correct horse") as client:
            client.session().producer(QUEUE).send(f"{user} {id}", duplicate_id=id)
            session = client.session(transacted=True)
            producer = session.producer(QUEUE)
            session.exactly_once(lambda _: producer.send(f"{user} once {id}"), id=id)

    old = brokers.master("a", old_amq, **logins)
    work(old, "eve", taken)
    work(old, "alice", own)
    old.kill()
    new = brokers.master("b", **logins)
    work(new, "alice", own)
    work(new, "alice", taken)
    with new.connect(login="alice", passcode="correct horse") as connection:
        found = drain(connection, 6)
    given = (("eve", taken), ("alice", own), ("alice", taken))
    assert found == [f"{user}{once} {id}".encode() for user, id in given for once in ("", " once")]


@pytest.mark.parametrize("follows", [True, False], ids=["a slave", "a start"])
def test_whatever_an_old_broker_keeps_is_kept(brokers: Brokers, old_amq: Path, follows: bool) -> None:
    """A durable subscription, a prepared transaction, a batch, a scheduled message."""
    old = brokers.master("a", old_amq, **SMALL)
    new = brokers.add("b", **SMALL)
    if follows:
        new.start().wait_slave()
    address = f"failover:(stomp://127.0.0.1:{old.port},stomp://127.0.0.1:{new.port})"
    with amq.connect(address, client_id="away") as away:
        away.session().consumer("/topic/prices", subscription="s").close()
    with amq.connect(address) as client:
        producer = client.session().producer("/topic/prices")
        for number in range(400):  # for some checkpoints
            producer.send(b"%d" % number + b" " * 200, headers={"n": number})
        orders = client.session().producer("/queue/orders")
        for number in range(3):
            orders.send(b"order %d" % number, headers={"color": "red"}, priority=number)
        client.session().producer("/queue/later").send(b"later", headers={"AMQ_SCHEDULED_DELAY": 3_600_000})
        for xid in ("in doubt", "part of a batch"):
            session = client.session(transacted=True)
            session.producer("/queue/done").send(xid.encode())
            if xid == "in doubt":
                message = session.consumer("/queue/orders").receive(DEADLINE_S)
                assert message is not None
                assert message.body == b"order 2"
            session.prepare(xid, owner="" if xid == "in doubt" else "job", batch=7, prepared_timeout=600)
        assert client.commit_batch("job", 7, ["part of a batch"]) == "committed"
        client.abort()
    old.kill()
    if not follows:
        new.start()
    new.wait_serving()
    assert versions(brokers.store)[1] == {1}
    with amq.connect(address) as client:
        (prepared,) = client.recover()
        assert (prepared.xid, prepared.sends, prepared.acks) == ("in doubt", {"/queue/done": 1}, {"/queue/orders": 1})
        assert client.commit_batch("job", 7, ["part of a batch"]) == "duplicate"
        client.rollback_prepared("in doubt")
        consumer = client.session().consumer("/queue/orders")
        found = received(consumer, 3)
        assert [each.body for each in found] == [b"order 2", b"order 1", b"order 0"]
        assert all(each.headers["color"] == "red" for each in found)
        assert [each.body for each in received(client.session().consumer("/queue/done"), 1)] == [b"part of a batch"]
    with amq.connect(address, client_id="away") as away:
        consumer = away.session().consumer("/topic/prices", subscription="s")
        assert [int(each.body) for each in received(consumer, 400)] == list(range(400))
    (job,) = json.loads(run(HERE, "schedule", "list", "--url", address, "--json").stdout)
    assert job["destination"] == "/queue/later"


def test_a_damaged_old_store_is_repaired(brokers: Brokers, old_amq: Path) -> None:
    old = brokers.master("a", old_amq)
    with old.connect() as connection:
        for number in range(20):
            send(connection, b"message %d" % number)
    old.kill()
    (segment,) = (brokers.store / "journal").glob("*.seg")
    segment.write_bytes(segment.read_bytes().replace(b"message 7", b"MESSAGE 7"))
    done = run(HERE, "journal", "repair", "--store", brokers.store, "--yes")
    assert done.returncode == 0, done.stderr
    assert_refused(brokers.add("b", old_amq).start())
    assert_all_there(brokers.master("c"), [number for number in range(20) if number != 7])


def test_spark_reads_the_journals_of_both(brokers: Brokers, old_amq: Path) -> None:
    journal = pytest.importorskip("pyspark_amq.journal")
    for code in (old_amq, HERE):
        broker = brokers.master("a", code)
        with broker.connect() as connection:
            send(connection, f"of {code.name}".encode())
        broker.kill()
    parts, columns = journal.plan(str(brokers.store)), journal.schema()
    rows = [row for part in parts for batch in journal.read_part(part, columns) for row in batch.to_pylist()]
    assert [row["value"] for row in rows if row["kind"] == "message"] == [
        f"of {code.name}".encode() for code in (old_amq, HERE)
    ]
    assert versions(brokers.store) == {1: {1}, 2: {2}}


def test_every_version_of_the_tools_reads_an_old_store(brokers: Brokers, old_amq: Path) -> None:
    old = brokers.master("a", old_amq, **SMALL)
    with old.connect() as connection:
        for number in range(3):
            send(connection, b"message %d" % number)
    old.kill()
    before = content(brokers.store)
    for code in (old_amq, HERE):
        for words in (["check"], ["stat"], ["dump"], ["export"]):
            done = run(code, "journal", *words, "--store", brokers.store)
            assert done.returncode == 0, (words, done.stderr)
    assert content(brokers.store) == before


# -- an old broker meets the store of a new one ------------------------------------------------------------------------


@pytest.mark.parametrize("kill", [True, False], ids=["kill -9", "stop"])
def test_an_old_broker_on_a_store_of_a_new_one_changes_nothing(brokers: Brokers, old_amq: Path, kill: bool) -> None:
    new = brokers.master("a", **SMALL)
    with new.connect() as connection:
        for number in range(40):
            send(connection, f"message {number}".encode() + b" " * 4000)
    new.kill() if kill else new.stop()
    before = content(brokers.store)
    assert_refused(brokers.add("b", old_amq).start())
    for words in (["check"], ["stat"], ["dump"], ["export"], ["repair"], ["repair", "--yes"]):
        done = run(old_amq, "journal", *words, "--store", brokers.store)
        assert done.returncode == STORE_UNUSABLE, (words, done.stdout, done.stderr)
        assert "STORE_NEWER_FORMAT" in done.stderr
    assert run(old_amq, "status", "--store", brokers.store).returncode == STORE_UNUSABLE
    assert content(brokers.store) == before
    new.start().wait_serving()
    with new.connect() as connection:
        assert [int(body.split()[1]) for body in drain(connection, 40)] == list(range(40))


def test_an_old_broker_refuses_the_store_of_a_cluster(brokers: Brokers, old_amq: Path) -> None:
    """Its journal has the table that it obeys: a broker that reads it does so, in a cluster or not."""
    placement = Placement.even(3, ["s1", "s2"])
    write_store(brokers.store, ["queue://orders"], ObeyedTable("c", "s1", 3, placement.to_json()))
    before = content(brokers.store)
    assert_refused(brokers.add("b", old_amq).start())
    assert content(brokers.store) == before
    new = brokers.add("a").start()
    new.wait_serving()
    elsewhere = next(f"q{number}" for number in range(99) if placement.home_of(f"queue://q{number}") == "s2")
    with new.connect() as connection, pytest.raises(WireError, match="lives in store s2"):
        send(connection, b"1", queue=f"/queue/{elsewhere}")


def test_an_old_slave_of_a_new_master_never_takes_over(brokers: Brokers, old_amq: Path) -> None:
    """It follows nothing, and when the new master is killed it gets the lock, ends, and leaves the store as it was."""
    new = brokers.master("a", **SMALL)
    old = brokers.slave("b", old_amq, **SMALL)
    producer = Producer([new, old])
    producer.start()
    producer.wait_confirmed(300)
    taken_by(new, old)
    new.kill()
    before = content(brokers.store)
    assert_refused(old)
    assert content(brokers.store) == before
    new.start().wait_serving()
    producer.wait_confirmed(100)
    assert_all_there(new, producer.stop())
    assert set(epochs(brokers.store)) == {2}


# -- from an old master to a new one -----------------------------------------------------------------------------------


def test_a_new_slave_follows_an_old_master_and_takes_over_from_it(brokers: Brokers, old_amq: Path) -> None:
    old = brokers.master("a", old_amq, **SMALL)
    new = brokers.slave("b", **SMALL)
    producer = Producer([old, new])
    producer.start()
    producer.wait_confirmed(500)
    with old.connect() as connection:
        acknowledge(connection, 20)
    wait_until(lambda: followed(new) > 500)
    old.kill()
    new.wait_serving()
    assert new.said("journal read")[0]["followed_bytes"] > 0
    producer.wait_confirmed(100)
    old.start().wait_slave()  # nobody has upgraded it yet
    taken_by(new, old)
    new.kill()
    assert_refused(old)
    new.start().wait_serving()
    old.code = new.code
    old.start().wait_slave()  # now it is upgraded
    new.stop()
    old.wait_serving()
    assert_all_there(old, producer.stop(), acknowledged=20)
    assert epochs(brokers.store) == [1, 2, 2, 2]


# -- the other way round -----------------------------------------------------------------------------------------------


def test_a_new_broker_that_claimed_and_stood_still_loses_to_an_old_one(brokers: Brokers, old_amq: Path) -> None:
    """A takeover that an old broker overtakes is no takeover: the newest epoch still has format 1, so that it may. Then
    the new one waits, follows, and takes over in turn."""
    old = brokers.master("a", old_amq, lockKeepAlivePeriod="4s")
    producer_of = [old, other := brokers.add("c", old_amq, lockKeepAlivePeriod="4s"), new := brokers.slave("b")]
    producer = Producer(producer_of, patience_s=PATIENCE_S)
    producer.start()
    producer.wait_confirmed(200)
    claim = (brokers.store / "claim").read_bytes()
    old.freeze()  # it keeps the wait of the candidate long: its process is still there
    (brokers.store / "lock").unlink()
    new.wait_event("lock acquired")
    wait_until(lambda: (brokers.store / "claim").read_bytes() != claim)
    new.freeze()
    old.kill()
    (brokers.store / "lock").unlink()
    other.start().wait_serving()
    producer.wait_confirmed(100)
    mark = len(new.log)
    new.thaw()
    new.wait_event(DEPOSED, after=mark)
    new.wait_event(WAITING, after=mark)
    assert epochs(brokers.store) == [1, 1]
    other.kill()
    new.wait_serving(after=mark)
    producer.wait_confirmed(100)
    assert_all_there(new, producer.stop())
    assert epochs(brokers.store) == [1, 1, 2]


# -- no way back but this one ------------------------------------------------------------------------------------------


def test_an_old_broker_gets_the_messages_by_export_and_import(brokers: Brokers, old_amq: Path, tmp_path: Path) -> None:
    new = brokers.master("a")
    with new.connect() as connection:
        for number in range(20):
            send(connection, f"message {number}".encode(), color="red")
    new.stop()
    exported = tmp_path / "amq.jsonl"
    done = run(HERE, "journal", "export", "--store", brokers.store, "--output", exported)
    assert done.returncode == 0, done.stderr
    target = tmp_path / "old store"
    done = run(old_amq, "journal", "import", "--store", target, exported)
    assert done.returncode == 0, done.stderr
    with Brokers(tmp_path, target) as others:
        old = others.master("b", old_amq)
        assert epochs(target) == [1, 1]
        assert_all_there(old, list(range(20)))


# -- what people are told ----------------------------------------------------------------------------------------------


def told(*words: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(HERE, *words, "--json").stdout)
    return found


def test_the_tools_say_which_version_a_store_has(brokers: Brokers, old_amq: Path) -> None:
    old = brokers.master("a", old_amq)
    with old.connect() as connection:
        send(connection, b"message 0")
    stat, status = ("journal", "stat", "--store", brokers.store), ("status", "--store", brokers.store)
    assert (told(*stat)["version"], told(*status)["version"]) == (1, 1)
    assert "store of version 1; segments: 1 of version 1" in run(HERE, *stat).stdout
    old.kill()
    new = brokers.master("b")
    with new.connect() as connection:
        send(connection, b"message 1")
    assert (told(*stat)["version"], told(*status)["version"]) == (2, 2)
    assert "store of version 2; segments: 1 of version 1, 1 of version 2" in run(HERE, *stat).stdout


def test_a_slave_that_is_too_old_is_named(brokers: Brokers, old_amq: Path) -> None:
    """Not before a new broker was master: until then it can take over."""
    status = ("status", "--store", brokers.store)
    first, second, third = brokers.master("a", old_amq), brokers.slave("b", old_amq), brokers.slave("c")
    assert {slave["name"]: slave["too_old"] for slave in told(*status)["slaves"]} == {"b": False, "c": False}
    second.stop()
    first.stop()
    third.wait_serving()
    second.start().wait_slave()
    assert {slave["name"]: slave["too_old"] for slave in told(*status)["slaves"]} == {"b": True}
    text = run(HERE, *status).stdout
    assert "too old to take over: upgrade it" in text
    assert "no slave could serve clients" in text
    second.stop()
    second.code = HERE
    second.start().wait_slave()
    assert {slave["name"]: slave["too_old"] for slave in told(*status)["slaves"]} == {"b": False}
