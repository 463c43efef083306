"""What a queue's consumers can ask for, as users meet it: real brokers, stomp.py and our own client."""

from __future__ import annotations

import asyncio

import pytest

from tests.patience import DEADLINE_S

pytest.importorskip("stomp")

from brokers import Brokers
from stock import VERSIONS, Stock

import amq
from amq import aio

pytestmark = pytest.mark.deep


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("ack", ["auto", "client-individual"])
def test_browsing_with_stomp_py(brokers: Brokers, version: str, ack: str) -> None:
    broker = brokers.master("a")
    with Stock([broker], version) as stock:
        for number in range(3):
            stock.send(f"{number}")
        stock.subscribe(ack=ack, headers={"browser": "true"})
        frames = stock.listener.wait_messages(4)
        assert [frame.body for frame in frames] == ["0", "1", "2", ""]
        assert [frame.headers.get("browser") for frame in frames] == [None, None, None, "end"]
        assert frames[3].headers["destination"] == frames[0].headers["destination"]
        assert frames[3].headers["subscription"] == frames[0].headers["subscription"]
    with Stock([broker], version) as stock:
        stock.subscribe(ack="auto")
        frames = stock.listener.wait_messages(3)
        assert [frame.body for frame in frames] == ["0", "1", "2"]
        assert not any("redelivered" in frame.headers for frame in frames)


def test_browsing_with_our_client(brokers: Brokers) -> None:
    url = f"stomp://127.0.0.1:{brokers.master('a').port}"
    with amq.connect(url) as connection, connection.session(transacted=True) as session:
        with session.transaction():
            for number in range(250):
                session.producer("/queue/q").send(str(number))
        with session.browser("/queue/q", prefetch=7) as browser:
            assert [message.text for message in browser] == [str(number) for number in range(250)]
            assert browser.finished
        assert session.browser("/queue/none").receive() is None
    asyncio.run(_browse(url))


async def _browse(url: str) -> None:
    async with await aio.connect(url) as connection, connection.session() as session:
        browser = await session.browser("/queue/>", prefetch=300)
        assert [message.text async for message in browser] == [str(number) for number in range(250)]
        assert browser.finished


def test_a_browse_goes_on_with_the_next_master(brokers: Brokers) -> None:
    first, second = brokers.master("a"), brokers.slave("b")
    url = f"failover:(stomp://127.0.0.1:{first.port},stomp://127.0.0.1:{second.port})"
    with amq.connect(url, timeout=DEADLINE_S) as connection, connection.session() as session:
        for number in range(50):
            session.producer("/queue/q").send(str(number))
        browser = session.browser("/queue/q", prefetch=5)
        shown = {}
        for message in browser.messages(DEADLINE_S):
            shown[message.id] = message.text
            if len(shown) == 10 and first.alive:
                first.kill()
                second.wait_serving()
        assert browser.finished
        assert list(shown.values()) == [str(number) for number in range(50)]


@pytest.mark.parametrize("version", VERSIONS)
def test_selectors_with_stomp_py(brokers: Brokers, version: str) -> None:
    broker = brokers.master("a")
    with Stock([broker], version) as red, Stock([broker], version) as rest:
        red.subscribe(headers={"selector": "colour = 'red' AND weight > 9"})
        rest.subscribe(headers={"selector": "colour <> 'red'"})
        for weight, colour in enumerate(["red", "blue"] * 10):
            red.send(str(weight), headers={"colour": colour, "weight": str(weight)})
        assert [frame.body for frame in red.listener.wait_messages(5)] == ["10", "12", "14", "16", "18"]
        assert len(rest.listener.wait_messages(10)) == 10
    with Stock([broker], version) as stock:
        stock.subscribe(headers={"selector": "colour = = 'red'"})
        stock.listener.wait(lambda: bool(stock.listener.errors), "error")
        assert stock.listener.errors[0].headers["code"] == "INVALID_SELECTOR"
        assert "column 10" in stock.listener.errors[0].body


def test_the_next_exclusive_consumer_takes_over(brokers: Brokers) -> None:
    broker = brokers.master("a")
    with Stock([broker]) as second:
        with Stock([broker]) as first:
            for stock in (first, second):
                stock.confirmed(
                    stock.connection.subscribe,
                    "/queue/a",
                    id="1",
                    ack="client-individual",
                    headers={"activemq.exclusive": "true"},
                )
            for number in range(4):
                second.send(str(number))
            frames = first.listener.wait_messages(4)
            first.ack(frames[0])
            assert second.listener.messages == []
        assert [frame.body for frame in second.listener.wait_messages(3)] == ["1", "2", "3"]


def test_groups_stay_in_order_through_the_death_of_the_master(brokers: Brokers) -> None:
    """Two consumers, six groups, kill -9 in the middle: nothing is lost, and each group is acknowledged in order."""
    first, second = brokers.master("a"), brokers.slave("b")
    url = f"failover:(stomp://127.0.0.1:{first.port},stomp://127.0.0.1:{second.port})"
    count = 120
    done: dict[str, list[int]] = {}
    with amq.connect(url, timeout=DEADLINE_S) as one, amq.connect(url, timeout=DEADLINE_S) as other:
        producer = one.session().producer("/queue/g")
        for number in range(count):
            producer.send(str(number), headers={"JMSXGroupID": f"g{number % 6}"})
        consumers = [each.session().consumer("/queue/g", prefetch=7) for each in (one, other)]
        idle = 0
        while sum(map(len, done.values())) < count:
            for consumer in consumers:
                message = consumer.receive(0.2)
                idle = 0 if message is not None else idle + 1
                assert idle < 100, f"stands still with {done}"
                if message is None:
                    continue
                try:
                    message.ack(wait=True)
                except amq.core.errors.AmqError:
                    continue  # it comes again
                done.setdefault(message.headers["JMSXGroupID"], []).append(int(message.text))
            if sum(map(len, done.values())) > 40 and first.alive:
                first.kill()
                second.wait_serving()
    assert done == {f"g{group}": list(range(group, count, 6)) for group in range(6)}
