"""Scheduled messages come at their time and once, also from the next master: real brokers and stomp.py."""

from __future__ import annotations

import time

import pytest

from tests.patience import DEADLINE_S

pytest.importorskip("stomp")

from brokers import Brokers
from stock import Stock

import amq

pytestmark = pytest.mark.deep
DELAY_S = 0.3


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_a_delay_a_series_and_a_mistake(brokers: Brokers, version: str) -> None:
    with Stock([brokers.master("a")], version) as stock:
        stock.subscribe()
        sent_at = time.time()
        stock.send("series", AMQ_SCHEDULED_DELAY="300", AMQ_SCHEDULED_PERIOD="100", AMQ_SCHEDULED_REPEAT="2")
        stock.send("now")
        messages = stock.listener.wait_messages(4)
        assert sorted(message.body for message in messages) == ["now", "series", "series", "series"]
        series = [message for message in messages if message.body == "series"]
        times = [int(message.headers["timestamp"]) / 1000 - sent_at for message in series]
        assert times[0] >= DELAY_S - 0.001
        assert times[1] >= 0.4 - 0.001
        assert len({message.headers["scheduledJobId"] for message in series}) == 1
        stock.connection.send("/queue/a", "x", headers={"AMQ_SCHEDULED_CRON": "hourly"})
        stock.listener.wait(lambda: bool(stock.listener.errors), "error")
        error = stock.listener.errors[0]
        assert error.headers["code"] == "SCHEDULE_INVALID"
        assert "30 8 * * 1-5" in error.body


@pytest.mark.parametrize("destination", ["/queue/a", "/topic/a"])
@pytest.mark.parametrize("when", ["before it is due", "after"])
def test_the_master_is_killed_in_between(brokers: Brokers, destination: str, when: str) -> None:
    master, slave = brokers.master("a"), brokers.slave("b")
    # Durable: what a topic's subscriber gets does not depend on how soon it comes back.
    durable = {"activemq.subscriptionName": "s"} if destination == "/topic/a" else None
    delay_ms = 200 if when == "after" else 2000
    with Stock([master], client_id="c") as stock:
        if durable or when == "after":
            stock.subscribe(destination, ack="client-individual", headers=durable)
        for number in range(10):
            stock.send(str(number), destination, AMQ_SCHEDULED_DELAY=str(delay_ms))
        if when == "after":
            stock.listener.wait_messages(1)
        master.kill()
        stock.listener.wait_disconnect()
    slave.wait_serving()
    with Stock([slave], client_id="c") as stock:
        stock.subscribe(destination, headers=durable)
        messages = stock.listener.wait_messages(10)
        stock.send("last", destination)
        stock.listener.wait_messages(11)
    assert sorted(message.body for message in messages[:10]) == [str(number) for number in range(10)]


def test_our_client_looks_at_it_and_takes_it_back(brokers: Brokers) -> None:
    with amq.connect(f"stomp://127.0.0.1:{brokers.master('a').port}") as connection, connection.session() as session:
        producer = session.producer("/queue/orders")
        for number in range(3):
            producer.send(str(number), delay=600)
        waiting = list(session.browser("/schedule/>"))
        assert [message.text for message in waiting] == ["0", "1", "2"]
        assert {message.destination for message in waiting} == {"/schedule/queue.orders"}
        assert all(int(each.headers["expires"]) > 1000 * time.time() + 500_000 for each in waiting)
        session.producer("/topic/ActiveMQ.Scheduler.Management").send(
            "", headers={"AMQ_SCHEDULER_ACTION": "REMOVE", "scheduledJobId": waiting[1].id}
        )
        assert [message.text for message in session.browser("/schedule/queue.orders")] == ["0", "2"]
        assert session.consumer("/queue/orders").receive(0.1) is None
        assert session.browser("/schedule/queue.orders").receive(DEADLINE_S) is not None
