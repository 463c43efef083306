"""stomp.py, a stock client, works unmodified: each version of the protocol once, and heart-beats.

`test_matrix.py` has each feature of the broker with it, through the death of the master.
"""

from __future__ import annotations

import pytest

pytest.importorskip("stomp")

from brokers import Brokers
from stock import VERSIONS, Stock

UNICODE = "Grüße, 世界 🐍"


@pytest.mark.parametrize("version", VERSIONS)
def test_each_frame_of_each_version(brokers: Brokers, version: str) -> None:
    broker = brokers.master("a")
    headers = {"unicode": UNICODE, "correlation-id": "42", "reply-to": "/queue/b", "priority": "7"}
    if version != "1.0":
        headers |= {"escaped": "a:b\\c\nd"}  # of names stomp.py escapes nothing
    with Stock([broker], version) as stock:
        assert stock.listener.connects[0].headers.get("version", "1.0") == version
        stock.send(UNICODE, headers=headers, content_type="text/plain")
        stock.send("output", "/queue/b")
        stock.subscribe(ack="client")
        (message,) = stock.listener.wait_messages(1)
        assert message.body == UNICODE
        assert {key: message.headers.get(key) for key in headers} == headers
        for end in (stock.connection.abort, stock.connection.commit):
            transaction = stock.connection.begin()
            stock.ack(stock.listener.messages[-1], transaction=transaction)
            stock.send("once", "/queue/b", transaction=transaction)
            stock.confirmed(end, transaction)
            stock.listener.wait_messages(2)  # given back by the abort
        stock.subscribe("/queue/b", number="2")
        assert [frame.body for frame in stock.listener.wait_messages(4)[2:]] == ["output", "once"]
        stock.connection.send("/topic/no-single.*", "x", headers={"receipt": "7"})
        stock.listener.wait(lambda: bool(stock.listener.errors), "ERROR")
        (error,) = stock.listener.errors
        assert (error.headers["receipt-id"], error.headers["code"]) == ("7", "DESTINATION_REFUSED")


@pytest.mark.deep
@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_heart_beats_both_ways(brokers: Brokers, version: str) -> None:
    broker = brokers.master("a", heartBeatSend="1s", heartBeatReceive="1s")
    with Stock([broker], version, heartbeats=(1000, 1000)) as stock:  # less, and a busy machine is late
        stock.listener.wait(lambda: stock.listener.heartbeats >= 5, "heart-beats")  # 5 s: more than is tolerated
        assert stock.listener.heartbeat_timeouts == 0
        assert stock.connection.is_connected()
        broker.freeze()
        stock.listener.wait(lambda: stock.listener.heartbeat_timeouts > 0, "heart-beat timeout")
        broker.thaw()
