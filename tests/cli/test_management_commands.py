"""The commands of operators against a real broker, through its management socket."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from amq_process import amq, amq_json, on_terminal, running
from brokers import SHORT, Broker, Brokers
from click.testing import CliRunner, Result

import amq as client
from amq.cli import exits
from amq.cli.main import main
from amq.cli.management import _narrowed
from tests.patience import DEADLINE_S
from tests.ports import free_port


@pytest.fixture
def broker(brokers: Brokers) -> Broker:
    return brokers.master("a", maximumRedeliveries=0)


def fill(broker: Broker, name: str, count: int, **headers: str) -> None:
    with client.connect(f"stomp://127.0.0.1:{broker.port}") as connection, connection.session() as session:
        producer = session.producer(f"/queue/{name}")
        for number in range(count):
            producer.send(f"{name} {number}", wait=False, headers=headers)
        producer.flush()


def refuse(broker: Broker, name: str, count: int) -> None:
    fill(broker, name, count)
    with client.connect(f"stomp://127.0.0.1:{broker.port}") as connection, connection.session() as session:
        consumer = session.consumer(f"/queue/{name}")
        for _ in range(count):
            message = consumer.receive(DEADLINE_S)
            assert message is not None
            message.nack(wait=True)


def run(broker: Broker, *words: object, code: int = 0) -> Result:
    """In this process: many commands in one test."""
    done = CliRunner().invoke(main, [*map(str, words), "--store", str(broker.store)])
    assert done.exit_code == code, (words, done.output, done.stderr)
    return done


def found(broker: Broker, *words: object) -> Any:
    return json.loads(run(broker, *words, "--json").stdout)


def test_the_names_that_others_rely_on(broker: Broker) -> None:
    fill(broker, "orders", 3)
    (row,) = amq_json("queues", "--store", broker.store)
    expected = {"name": "orders", "messages": 3, "consumers": 0, "enqueued": 3, "dequeued": 0}
    assert expected.items() <= row.items()
    done = amq("queue", "purge", "orders", "--store", broker.store, "--yes")
    assert (done.returncode, done.stdout) == (0, "3 messages deleted\n"), done.stderr
    assert amq_json("queues", "--store", broker.store)[0]["messages"] == 0


def test_queues_and_messages(broker: Broker) -> None:
    fill(broker, "orders.eu", 3, colour="red")
    fill(broker, "orders.us", 5)
    fill(broker, "bills", 1)
    rows = found(broker, "queues", "orders.*", "--sort", "backlog")
    assert [row["name"] for row in rows] == ["orders.us", "orders.eu"]
    assert [row["name"] for row in found(broker, "queues", "--filter", "messages<4")] == ["bills", "orders.eu"]
    assert "these are the first 1" in run(broker, "queues", "--limit", 1).stderr
    assert found(broker, "queue", "show", "bills")["messages"] == 1
    assert [hint["code"] for hint in found(broker, "queue", "why", "bills")["items"]] == ["no-consumer"]
    assert run(broker, "queue", "why", "bills").stdout.startswith("It has no consumer.")
    rows = found(broker, "queue", "browse", "orders.eu", "--selector", "colour = 'red'")
    assert [row["body"] for row in rows] == ["orders.eu 0", "orders.eu 1", "orders.eu 2"]
    assert rows[0]["id"] in run(broker, "queue", "browse", "orders.eu").stdout
    assert found(broker, "queue", "peek", "orders.eu")["properties"]["colour"] == "red"
    lines = run(broker, "queue", "export", "orders.us").stdout.splitlines()
    assert [json.loads(line)["body"] for line in lines] == [f"orders.us {number}" for number in range(5)]
    assert found(broker, "queue", "move", "orders.us", "archive", "--limit", 2, "--yes") == {"count": 2}
    assert found(broker, "queue", "copy", "orders.eu", "archive") == {"count": 3}
    assert found(broker, "queue", "show", "archive")["messages"] == 5
    assert found(broker, "queue", "pause", "archive") == {"paused": True}
    assert "archive (paused)" in run(broker, "queues").stdout
    assert found(broker, "queue", "resume", "archive") == {"paused": False}
    id = rows[1]["id"]
    assert found(broker, "message", "show", id)["body"] == "orders.eu 1"
    assert found(broker, "message", "delete", id, "--yes") == {"count": 1, "queue": "orders.eu"}
    assert found(broker, "queue", "delete", "archive", "--yes") == {"count": 5}
    run(broker, "queue", "show", "never", code=1)
    run(broker, "message", "show", id, code=1)
    run(broker, "queue", "purge", "bills", code=2)  # nobody can be asked
    assert found(broker, "queue", "show", "bills")["messages"] == 1


def test_clients(broker: Broker) -> None:
    url = f"stomp://127.0.0.1:{broker.port}"
    with client.connect(url, client_id="shop") as connection, connection.session() as session:
        session.consumer("/queue/orders")
        session.consumer("/topic/prices", subscription="audit")
        assert {row["destination"] for row in found(broker, "consumers")} == {"orders", "/topic/prices"}
        (row,) = found(broker, "connections", "list")
        assert (row["client_id"], row["consumers"]) == ("shop", 2)
        assert row["name"] in run(broker, "connections", "list").stdout
        assert [row["name"] for row in found(broker, "topics")] == ["prices"]
        run(broker, "subscriptions", "delete", "audit", "--client", "shop", "--yes", code=7)
    (row,) = found(broker, "subscriptions", "list")
    assert (row["name"], row["client_id"], row["consumers"]) == ("audit", "shop", 0)
    assert found(broker, "subscriptions", "delete", "audit", "--client", "shop", "--yes") == {}
    assert found(broker, "subscriptions", "list") == []
    run(broker, "connections", "close", "none", "--yes", code=1)


def test_dead_letters_by_cause(broker: Broker) -> None:
    refuse(broker, "orders", 2)
    (row,) = found(broker, "dlq", "causes")
    assert (row["messages"], row["queue"], row["meant_for"]) == (2, "DLQ.orders", "orders")
    id = found(broker, "queue", "peek", "DLQ.orders")["id"]
    assert found(broker, "message", "retry", id) == {"count": 1, "queue": "DLQ.orders"}
    assert found(broker, "queue", "show", "orders")["messages"] == 1


def test_where_nobody_can_be_asked(broker: Broker, tmp_path: Path) -> None:
    run(broker, "queues", "--name", "b", code=1)
    broker.stop()
    done = run(broker, "queues", code=6)
    assert "has no master now" in done.stderr
    assert CliRunner().invoke(main, ["queues"]).exit_code == 2
    assert CliRunner().invoke(main, ["queues", "--store", str(tmp_path / "none")]).exit_code == 4
    assert CliRunner().invoke(main, ["queues", "--url", "ftp://x"]).exit_code == 2
    assert CliRunner().invoke(main, ["queues", "--url", "http://127.0.0.1:1"]).exit_code == 6


@pytest.mark.deep
def test_a_slave_is_asked_by_name_and_a_master_drained(brokers: Brokers) -> None:
    first = brokers.master("a")
    second = brokers.slave("b")
    assert found(first, "broker", "status", "--name", "a")["role"] == "master"
    slave = found(first, "broker", "status", "--name", "b")
    assert slave["role"] == "slave"
    assert "place" in slave["lag"]
    run(first, "queues", "--name", "b", code=7)
    facts = found(first, "broker", "drain", "--name", "a")
    assert (facts["drained"], facts["master"]) == (True, "b")
    assert found(first, "broker", "drain", "--name", "a")["drained"], "again = nothing"
    assert found(second, "broker", "status")["name"] == "b"


@pytest.mark.deep
def test_a_move_that_a_crash_ends_keeps_each_message_once(broker: Broker) -> None:
    fill(broker, "from", 4000)
    with running("queue", "move", "from", "to", "--yes", "--store", broker.store) as moving:
        until = time.monotonic() + DEADLINE_S
        while not any(row["messages"] for row in found(broker, "queues", "to")) and time.monotonic() < until:
            time.sleep(0.01)
        broker.kill()
        moving.wait(DEADLINE_S)
        assert moving.returncode == 6
    broker.start().wait_serving()
    there = [
        json.loads(line)["body"]
        for name in ("from", "to")
        for line in run(broker, "queue", "export", name).stdout.splitlines()
    ]
    assert sorted(there) == sorted(f"from {number}" for number in range(4000))
    assert found(broker, "queue", "show", "from")["messages"] > 0, "it was killed in the middle"
    assert found(broker, "queue", "move", "from", "to", "--yes")["count"] > 0
    assert found(broker, "queue", "show", "to")["messages"] == 4000


@pytest.mark.deep
def test_tables_never_break_an_id(broker: Broker) -> None:
    fill(broker, "a.very.long.name.of.a.queue.that.does.not.fit.into.eighty.columns.at.all", 1)
    words = ("--store", broker.store)
    for columns in (40, 80, 200):
        shown = on_terminal("queues", *words, columns=columns)
        assert "a.very.long.name.of.a.queue.that.does.not.fit.into.eighty.columns.at.all" in shown
    id = amq_json("queue", "browse", "a.very.long.name.of.a.queue.that.does.not.fit.into.eighty.columns.at.all", *words)
    assert id[0]["id"] in on_terminal("message", "show", id[0]["id"], *words, columns=40)
    for columns in (80, 200):
        shown = on_terminal("top", *words, "--rounds", 2, "--every", 0.1, columns=columns)
        assert "master" in shown
        assert "no consumer" in shown
        assert max(map(len, shown.splitlines())) <= columns


@pytest.mark.parametrize("peers", ["ftp://{host}/", "host:8161"])
def test_a_wrong_address_of_consoles_is_refused(tmp_path: Path, peers: str) -> None:
    done = amq("console", "--store", tmp_path, "--peers", peers)
    assert done.returncode == exits.USAGE
    assert "write https://{host}:8161/ or the like" in done.stderr


@pytest.mark.deep
def test_the_same_through_a_console(broker: Broker) -> None:
    fill(broker, "q", 2)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with running("console", "--store", broker.store, "--listen", f"127.0.0.1:{port}"):
        until = time.monotonic() + DEADLINE_S
        while (done := amq("queues", "--url", url, "--json")).returncode == 6 and time.monotonic() < until:
            time.sleep(0.1)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)[0]["messages"] == 2
        assert amq("queue", "purge", "q", "--yes", "--url", url).stdout == "2 messages deleted\n"
        name = Path(broker.store).name
        assert amq_json("queues", "--url", url, "--store", name)[0]["messages"] == 0
        done = amq("queues", "--url", url, "--store", "other")
        assert f"has no store 'other': it has {name}" in done.stderr
        with urllib.request.urlopen(f"{url}/metrics", timeout=DEADLINE_S) as answer:
            assert b'amq_role{role="master"} 1' in answer.read()
        path = "/api/jolokia/read/org.apache.activemq:type=Broker,brokerName=a,destinationType=Queue,destinationName=q"
        with urllib.request.urlopen(f"{url}{path}/QueueSize", timeout=DEADLINE_S) as answer:
            assert json.loads(answer.read())["value"] == 0
        broker.freeze()
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{url}/livez", timeout=DEADLINE_S)
        assert caught.value.code == 503, "the broker hangs, and the console says so"
        caught.value.close()
        broker.thaw()


def test_top_as_json(broker: Broker) -> None:
    fill(broker, "q", 2)
    done = run(broker, "top", "--rounds", 2, "--every", 0.1, "--json")
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["group"][0]["name"] == "a"
    assert first["broker"]["role"] == "master"
    assert first["queues"][0]["enqueued_per_s"] is None
    assert (second["queues"][0]["messages"], second["queues"][0]["enqueued_per_s"]) == (2, 0.0)
    assert second["error"] == ""


@pytest.mark.deep
def test_a_command_finds_the_master_that_replaces_a_frozen_one(brokers: Brokers) -> None:
    frozen = brokers.master("a", hungMasterTimeout=0, **SHORT)
    fill(frozen, "orders", 3)
    frozen.freeze()
    brokers.add("b", hungMasterTimeout=1).start()
    try:
        done = amq("queues", "--store", frozen.store, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)[0]["messages"] == 3
        named = amq("queue", "purge", "orders", "--yes", "--name", "a", "--store", frozen.store)
    finally:
        frozen.thaw()
    assert named.returncode == exits.TRANSPORT, named.stderr
    assert "the broker hangs" in named.stderr


def test_a_watched_list_keeps_one_line_for_each_queue() -> None:
    titles = ["NAME", "MESSAGES", "SIZE"]
    rows: list[list[object]] = [["a" * 120, 1_000_000, "1.0 KiB"], ["b", 2, "3 B"]]
    narrow = _narrowed(titles, rows, 40)
    assert narrow[1] == rows[1]
    assert narrow[0][1:] == rows[0][1:]
    assert len(str(narrow[0][0])) + 2 + len("1,000,000") + 2 + len("1.0 KiB") == 40
    assert _narrowed(titles, rows, 200) == rows
