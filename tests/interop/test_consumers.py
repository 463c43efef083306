"""What a queue's consumers can ask for, as users meet it: real brokers, stomp.py and our own client."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("stomp")

from brokers import Brokers
from stock import VERSIONS, Stock

import amq
from amq import aio

pytestmark = pytest.mark.slow
DEADLINE_S = 30


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
