"""`amq schedule` against a real broker."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from amq_process import amq
from brokers import Broker, Brokers

import amq as client
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep
HOUR_MS = 3_600_000


@pytest.fixture
def broker(brokers: Brokers) -> Broker:
    return brokers.master("a")


def url_of(broker: Broker) -> str:
    return f"stomp://127.0.0.1:{broker.port}"


def schedule(broker: Broker, destination: str, body: str, **headers: object) -> None:
    """`DELAY=1000` stands for `AMQ_SCHEDULED_DELAY:1000`."""
    with client.connect(url_of(broker)) as connection, connection.session() as session:
        words = {f"AMQ_SCHEDULED_{name}": str(value) for name, value in headers.items()}
        session.producer(destination).send(body, headers=words)


def run(broker: Broker, *words: object) -> Any:
    done = amq("schedule", *words, "--url", url_of(broker), "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_list(broker: Broker) -> None:
    assert run(broker, "list") == []
    schedule(broker, "/queue/orders.eu", "12345", DELAY=HOUR_MS)
    schedule(broker, "/topic/prices", "", CRON="0 0 1 1 *")
    schedule(broker, "/queue/orders.us", "", DELAY=HOUR_MS, PERIOD=5000, REPEAT=3)
    rows = run(broker, "list")
    assert [row["destination"] for row in rows] == ["/queue/orders.eu", "/queue/orders.us", "/topic/prices"]
    eu, us, prices = rows
    assert (eu["bytes"], eu["cron"], eu["period_ms"], eu["repeat"]) == (5, "", 0, 0)
    assert eu["due_ms"] - eu["sent_ms"] == HOUR_MS
    assert abs(eu["sent_ms"] - 1000 * time.time()) < 1000 * DEADLINE_S
    assert (us["period_ms"], us["repeat"], prices["cron"]) == (5000, 3, "0 0 1 1 *")
    for name, found in (("orders.eu", [eu]), ("/queue/orders.>", [eu, us]), ("/topic/prices", [prices])):
        assert run(broker, "list", "--destination", name) == found
    assert run(broker, "list", "--limit", 1) == [eu]
    table = amq("schedule", "list", "--limit", 2, "--url", url_of(broker))
    assert "every 5000 ms, 3 times" in table.stdout
    assert "these are the first 2" in table.stderr


def test_remove(broker: Broker) -> None:
    for number in range(3):
        schedule(broker, "/queue/orders", str(number), DELAY=HOUR_MS)
    schedule(broker, "/topic/prices", "", CRON="0 0 1 1 *")
    ids = [row["id"] for row in run(broker, "list")]
    assert run(broker, "remove", ids[1])["ids"] == [ids[1]]
    gone = amq("schedule", "remove", f"ID:x-{ids[1]}", ids[0][:-1] + "x0", "--url", url_of(broker), "--json")
    assert (gone.returncode, json.loads(gone.stdout)["removed"]) == (1, 0)
    assert f"not scheduled any more: ID:x-{ids[1]}, " in gone.stderr
    assert [row["id"] for row in run(broker, "list")] == [ids[0], ids[2], ids[3]]
    assert run(broker, "remove", "--destination", "/topic/prices", "--yes")["ids"] == [ids[3]]
    assert run(broker, "remove", "--all", "--yes")["removed"] == 2
    assert run(broker, "list") == []


def test_as_many_ids_as_a_list_shows_are_removed(broker: Broker) -> None:
    """A condition for all of them would be longer than a header may be."""
    for number in range(100):
        schedule(broker, "/queue/orders", str(number), DELAY=HOUR_MS)
    ids = [row["id"] for row in run(broker, "list")]
    assert run(broker, "remove", *ids) == {"removed": 100, "ids": ids}
    assert run(broker, "list") == []


def test_what_repeats_is_found_by_its_first_id(broker: Broker) -> None:
    schedule(broker, "/queue/a", "x", DELAY=1, PERIOD=HOUR_MS, REPEAT=-1)  # while it is delivered it is in no list
    with client.connect(url_of(broker)) as connection, connection.session() as session:
        consumer = session.consumer("/queue/a")
        message = consumer.receive(DEADLINE_S)
        assert message is not None
        message.ack(wait=True)
        job = message.headers["scheduledJobId"]
        assert [row["id"] for row in run(broker, "list")] == [job]
        assert run(broker, "remove", job) == {"removed": 1, "ids": [job]}
        assert run(broker, "list") == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "say which"),
        (("1", "--all"), "say which"),
        (("--all",), "use --yes"),
        (("soon",), "not the id"),
        (("--destination", "/other/x", "--yes"), "not a destination"),
        (("--destination", "", "--yes"), "not a destination"),
    ],
)
def test_what_cannot_be_removed(broker: Broker, words: tuple[str, ...], why: str) -> None:
    done = amq("schedule", "remove", *words, "--url", url_of(broker))
    assert done.returncode != 0
    assert why in done.stderr
