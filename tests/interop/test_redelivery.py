"""What failed comes again when its time has come, and what expired is found: a real broker and stomp.py."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.patience import DEADLINE_S

pytest.importorskip("stomp")

from brokers import Brokers
from stock import Stock

import amq
from amq import aio

pytestmark = pytest.mark.deep
DELAY_S = 0.4  # less than the second after which the broker's upkeep looks around


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_a_refused_message_comes_again_later(brokers: Brokers, version: str) -> None:
    broker = brokers.master("a", redeliveryDelay="400ms", maximumRedeliveries=2)
    with Stock([broker], version) as stock:
        stock.send("1")
        stock.send("2")
        stock.subscribe(ack="client-individual")
        for count in (1, 2):
            poison = stock.listener.wait_messages(count + 1)[0 if count == 1 else -1]
            assert poison.body == "1"
            refused_at = time.monotonic()
            stock.nack(poison, requeue="true")
            again = stock.listener.wait_messages(count + 2)[-1]
            assert time.monotonic() - refused_at >= DELAY_S
            assert (again.body, again.headers["JMSXDeliveryCount"]) == ("1", str(count + 1))
        stock.nack(again, requeue="true")
        stock.subscribe("/queue/DLQ.a", number="2")
        dead = stock.listener.wait_messages(5)[-1]
        assert (dead.body, dead.headers["dead-letter-deliveries"]) == ("1", "3")


def test_the_next_master_delivers_at_once_what_waits(brokers: Brokers) -> None:
    master, slave = brokers.master("a", redeliveryDelay="1h"), brokers.slave("b", redeliveryDelay="1h")
    with Stock([master]) as stock:
        stock.send("x")
        stock.subscribe(ack="client-individual")
        stock.nack(stock.listener.wait_messages(1)[0], requeue="true")
        master.kill()
        stock.listener.wait_disconnect()
    slave.wait_serving()
    with Stock([slave]) as stock:
        stock.subscribe()
        assert stock.listener.wait_messages(1)[0].headers["JMSXDeliveryCount"] == "2"


@pytest.mark.parametrize("wait", [False, True])
def test_our_client_asks_for_it_again(brokers: Brokers, wait: bool) -> None:
    url = f"stomp://127.0.0.1:{brokers.master('a', redeliveryDelay='50ms').port}"
    with amq.connect(url) as connection:
        session = connection.session()
        session.producer("/queue/a").send("x")
        consumer = session.consumer("/queue/a")
        message = consumer.receive(DEADLINE_S)
        assert message is not None
        message.nack(requeue=True, wait=wait)
        again = consumer.receive(DEADLINE_S)
        assert again is not None
        assert (again.text, again.redelivered) == ("x", True)
        again.ack(wait=True)

    async def the_same() -> None:
        async with await aio.connect(url) as connection:
            session = connection.session()
            await session.producer("/queue/a").send("y")
            consumer = await session.consumer("/queue/a")
            message = await consumer.receive(DEADLINE_S)
            assert message is not None
            await message.nack(requeue=True, wait=wait)
            again = await consumer.receive(DEADLINE_S)
            assert again is not None
            assert (again.text, again.redelivered) == ("y", True)
            await again.nack(wait=True)
            dead = await (await session.consumer("/queue/DLQ.a")).receive(DEADLINE_S)
            assert dead is not None
            assert dead.headers["dead-letter-deliveries"] == "2"

    asyncio.run(the_same())


def test_what_expired_is_in_the_expiry_queue(brokers: Brokers) -> None:
    broker = brokers.master("a", expiryQueue="late")
    with Stock([broker]) as stock:
        expires = str(time.time_ns() // 1_000_000 + 50)
        stock.subscribe("/queue/late")
        stock.send("x", expires=expires)
        headers = stock.listener.wait_messages(1)[0].headers
        assert (headers["original-destination"], headers["dead-letter-reason"]) == ("/queue/a", "expired")
        assert headers["original-expires"] == expires
