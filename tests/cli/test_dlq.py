"""`amq dlq` against real brokers, also while the master is killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from amq_process import amq, amq_json, running
from brokers import Broker, Brokers

import amq as client
from amq.cli import dlq, exits
from amq.cli.queues import preview
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep


@pytest.fixture
def broker(brokers: Brokers) -> Broker:
    return brokers.master("a", maximumRedeliveries=0)


def url_of(broker: Broker) -> str:
    return f"stomp://127.0.0.1:{broker.port}"


def refuse(broker: Broker, queue: str, count: int, **options: Any) -> None:
    """Send messages, and let a consumer refuse them."""
    with client.connect(url_of(broker)) as connection, connection.session() as session:
        producer = session.producer(f"/queue/{queue}")
        for number in range(count):
            producer.send(f"{queue} {number}", wait=False, **options)
        producer.flush()
        consumer = session.consumer(f"/queue/{queue}")
        for _ in range(count):
            message = consumer.receive(DEADLINE_S)
            assert message is not None
            message.nack(wait=True)


def contents(broker: Broker, queue: str) -> list[client.Message]:
    with client.connect(url_of(broker)) as connection, connection.session() as session:
        return list(session.browser(f"/queue/{queue}"))


def run(broker: Broker, *words: object) -> Any:
    done = amq("dlq", *words, "--url", url_of(broker), "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_list(broker: Broker) -> None:
    refuse(broker, "orders", 3)
    refuse(broker, "bills", 1)
    rows = run(broker, "list")
    assert [row["original_destination"] for row in rows] == ["bills", "orders", "orders", "orders"]
    assert [row["dead_letter_queue"] for row in rows] == ["DLQ.bills"] + ["DLQ.orders"] * 3
    assert {row["reason"] for row in rows} == {"refused by the consumer"}
    assert {row["deliveries"] for row in rows} == {1}
    assert len(run(broker, "list", "--queue", "orders")) == 3
    assert len(run(broker, "list", "--reason", "refused")) == 4
    assert run(broker, "list", "--reason", "expired") == []
    assert [row["id"] for row in run(broker, "list", "--limit", 2)] == [row["id"] for row in rows[:2]]
    table = amq("dlq", "list", "--limit", 2, "--url", url_of(broker))
    assert "MEANT FOR" in table.stdout
    assert "refused by the consumer" in table.stdout
    assert "these are the first 2" in table.stderr
    assert len(contents(broker, "DLQ.orders")) == 3, "it looks and takes nothing"


def test_retry_sends_back_what_was_sent(broker: Broker) -> None:
    headers = {"colour": "red", "a:b": "c\nd", "JMSXGroupID": "g"}
    refuse(broker, "orders", 2, headers=headers, priority=7, content_type="text/plain")
    refuse(broker, "orders", 1, persistent=False)
    facts = run(broker, "retry")
    assert (facts["moved"], facts["queues"]) == (3, {"DLQ.orders": 3})
    assert contents(broker, "DLQ.orders") == []
    back = contents(broker, "orders")
    assert [message.text for message in back] == ["orders 0", "orders 1", "orders 0"]
    assert [message.headers.get("persistent") for message in back] == ["true", "true", None]
    assert (back[0].priority, back[0].headers["content-type"]) == (7, "text/plain")
    assert headers.items() <= back[0].headers.items()
    assert "content-length" not in back[0].headers, "a text"
    assert not {"dead-letter-reason", "original-destination", "dead-letter-deliveries"} & back[0].headers.keys()


def test_selecting(broker: Broker) -> None:
    refuse(broker, "orders", 5)
    refuse(broker, "bills", 5)
    assert run(broker, "retry", "--queue", "orders", "--limit", 2)["moved"] == 2
    assert [message.text for message in contents(broker, "orders")] == ["orders 0", "orders 1"]
    assert run(broker, "retry", "--reason", "expired")["moved"] == 0
    assert run(broker, "purge", "--yes", "--dead-letter-queue", "DLQ.bills", "--limit", 4)["deleted"] == 4
    assert [message.text for message in contents(broker, "DLQ.bills")] == ["bills 4"]
    assert run(broker, "purge", "--yes")["queues"] == {"DLQ.bills": 1, "DLQ.orders": 3}
    assert run(broker, "list") == []


def test_what_comes_back_at_once_is_not_sent_again(broker: Broker) -> None:
    """A consumer that refuses everything: each message is sent back once."""
    refuse(broker, "orders", 20)
    with client.connect(url_of(broker)) as connection, connection.session() as session:
        consumer = session.consumer("/queue/orders")
        with running("dlq", "retry", "--url", url_of(broker), "--json") as process:
            for _ in range(20):
                message = consumer.receive(DEADLINE_S)
                assert message is not None
                message.nack(wait=True)
            output, _ = process.communicate(timeout=DEADLINE_S)
        assert json.loads(output)["moved"] == 20
        assert consumer.receive(0.2) is None
    assert len(contents(broker, "DLQ.orders")) == 20


def test_what_was_meant_for_no_queue_stays(broker: Broker) -> None:
    """A topic's subscribers would all get it again, or nobody: it would be gone."""
    with client.connect(url_of(broker)) as connection, connection.session() as session:
        for destination in ("/topic/news", "/temp-queue/answers"):
            consumer = session.consumer(destination)
            session.producer(destination).send(f"of {destination}")
            message = consumer.receive(DEADLINE_S)
            assert message is not None
            message.nack(wait=True)
            consumer.close()
    refuse(broker, "orders", 1)
    rows = run(broker, "list")
    assert len(rows) == 3
    assert run(broker, "retry")["moved"] == 1
    left = [row for row in rows if row["original_destination"] != "orders"]
    assert run(broker, "list") == left
    assert [row["original_destination"][:2] for row in left] != ["orders"] * 2
    assert run(broker, "retry")["moved"] == 0


def test_retry_while_the_master_is_killed(brokers: Brokers) -> None:
    """No message is lost, and none is there twice."""
    first, second = brokers.master("a"), brokers.slave("b")
    count = 3000
    refuse(first, "orders", count)
    url = f"failover:({url_of(first)},{url_of(second)})"
    with running("dlq", "retry", "--url", url, "--json", "--timeout", 15) as process:
        with client.connect(url_of(first)) as connection, connection.session() as session:
            assert session.consumer("/queue/orders", prefetch=1).receive(DEADLINE_S) is not None
            first.kill()
            connection.abort()
        second.wait_serving()
        output, _ = process.communicate(timeout=DEADLINE_S)
    facts = json.loads(output)
    assert (process.returncode, facts["failovers"]) == (0, 1)
    assert sorted(message.text for message in contents(second, "orders")) == sorted(
        f"orders {number}" for number in range(count)
    )
    assert contents(second, "DLQ.orders") == []


def test_purge_asks(broker: Broker) -> None:
    refuse(broker, "orders", 1)
    done = amq("dlq", "purge", "--url", url_of(broker))
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert len(contents(broker, "DLQ.orders")) == 1


def test_a_list_shows_bodies_and_headers(broker: Broker) -> None:
    refuse(broker, "orders", 1, headers={"colour": "red"})
    (row,) = run(broker, "list")
    assert row["body"] == "orders 0"
    assert (row["headers"]["colour"], row["headers"]["dead-letter-reason"]) == ("red", "refused by the consumer")
    assert "orders 0" in amq("dlq", "list", "--body", "--url", url_of(broker)).stdout
    assert "orders 0" not in amq("dlq", "list", "--url", url_of(broker)).stdout


def test_a_body_in_one_line() -> None:
    assert (dlq.text_of(b"abc"), dlq.text_of(b""), dlq.text_of(b"\xff\xfe")) == ("abc", "", None)
    assert dlq.text_of("ä".encode() * 5000) == "ä" * 1000
    assert dlq.text_of(b"a" + "ä".encode() * 5000) == "a" + "ä" * 999
    assert preview({"body": "two\nlines", "bytes": 9}) == "two lines"
    assert preview({"body": "x" * 100, "bytes": 100}) == "x" * 60 + "…"
    assert preview({"body": None, "bytes": 2048}) == "(2.0 KiB, not text)"


def test_ids_that_a_list_shows_are_taken(broker: Broker) -> None:
    refuse(broker, "orders", 3)
    refuse(broker, "bills", 1)
    ids = {row["body"]: row["id"] for row in run(broker, "list")}
    assert run(broker, "retry", ids["orders 1"], ids["bills 0"])["moved"] == 2
    assert [message.text for message in contents(broker, "orders")] == ["orders 1"]
    assert run(broker, "purge", ids["orders 2"], "--yes")["deleted"] == 1
    assert [row["body"] for row in run(broker, "list")] == ["orders 0"]
    gone = amq("dlq", "retry", ids["orders 2"], ids["orders 0"], "--url", url_of(broker))
    assert gone.returncode == 1
    assert "1 of 2 ids were not found" in gone.stderr
    assert run(broker, "list") == []


def test_a_queue_in_use_is_not_purged(broker: Broker) -> None:
    refuse(broker, "orders", 1)
    with client.connect(url_of(broker)) as connection, connection.session() as session:
        session.producer("/queue/orders").send("precious")
    for name in ("orders", "DLQ.orders", "orders.>"):
        done = amq("dlq", "purge", "--yes", "--dead-letter-queue", name, "--url", url_of(broker))
        refused = name in ("orders", "orders.>")
        assert (done.returncode == 7) == refused, (name, done.stderr)
        assert ("is not a dead-letter queue" in done.stderr) == refused
    assert [message.text for message in contents(broker, "orders")] == ["precious"]
    assert contents(broker, "DLQ.orders") == []


def test_no_broker() -> None:
    assert amq("dlq", "list", "--url", "stomp://127.0.0.1:1").returncode == 6


def test_a_topic_is_no_queue(broker: Broker) -> None:
    assert amq("dlq", "list", "--queue", "/topic/x", "--url", url_of(broker)).returncode == 7


def test_through_the_store_without_a_login(broker: Broker) -> None:
    """The broker does the work, and the answers are those that a client gets."""
    refuse(broker, "orders", 5, headers={"colour": "red"})
    refuse(broker, "bills", 2)
    names = ("id", "dead_letter_queue", "original_destination", "reason", "deliveries", "bytes", "body")
    as_client = [{name: row[name] for name in names} for row in run(broker, "list")]
    rows = amq_json("dlq", "list", "--store", broker.store)
    assert [{name: row[name] for name in names} for row in rows] == as_client
    assert rows[-1]["headers"]["colour"] == "red"
    assert len(amq_json("dlq", "list", "--queue", "bills", "--store", broker.store)) == 2
    facts = amq_json("dlq", "retry", rows[-1]["id"], "--store", broker.store)
    assert (facts["moved"], facts["queues"]) == (1, {"DLQ.orders": 1})
    assert [message.text for message in contents(broker, "orders")] == ["orders 4"]
    assert amq_json("dlq", "retry", "--queue", "orders", "--limit", 2, "--store", broker.store)["moved"] == 2
    lost = amq("dlq", "retry", rows[-1]["id"], "--store", broker.store)
    assert (lost.returncode, "1 of 1 ids were not found" in lost.stderr) == (exits.FAILED, True)
    used = amq("dlq", "purge", "--yes", "--dead-letter-queue", "orders", "--store", broker.store)
    assert (used.returncode, "not a dead-letter queue" in used.stderr) == (exits.REFUSED, True)
    assert amq_json("dlq", "purge", "--yes", "--store", broker.store)["deleted"] == 4
    assert amq_json("dlq", "list", "--store", broker.store) == []


def test_the_store_of_the_environment_is_asked_unless_a_url_is_given(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(broker, "orders", 1)
    monkeypatch.setenv("AMQ_STORE", str(broker.store))
    assert len(amq_json("dlq", "list")) == 1
    assert amq("dlq", "list", "--url", "stomp://127.0.0.1:1").returncode == exits.TRANSPORT
    both = amq("dlq", "list", "--store", broker.store, "--url", url_of(broker))
    assert (both.returncode, "and not both" in both.stderr) == (exits.USAGE, True)


def test_a_queue_that_the_user_may_not_read_is_left_out(brokers: Brokers, tmp_path: Path) -> None:
    permissions = tmp_path / "permissions.toml"
    permissions.write_text(
        '[queues."DLQ.>"]\nread = ["*"]\nwrite = ["*"]\n[queues.orders]\nread = ["*"]\nwrite = ["*"]\n'
    )
    permissions.chmod(0o600)
    broker = brokers.master("p", maximumRedeliveries=0, permissionsFile=permissions)
    refuse(broker, "orders", 2)
    done = amq("dlq", "list", "--url", url_of(broker), "--json")
    assert (done.returncode, len(json.loads(done.stdout))) == (0, 2)
    assert "ActiveMQ.DLQ is left out" in done.stderr
    done = amq("dlq", "list", "--dead-letter-queue", "ActiveMQ.DLQ", "--url", url_of(broker))
    assert done.returncode == exits.REFUSED
    assert run(broker, "retry")["moved"] == 2
