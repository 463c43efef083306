"""Topics, wildcards, composite and temporary destinations and virtual topics, as stomp.py meets them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import Broker, Brokers
from stock import VERSIONS, Stock

versions = pytest.mark.parametrize("version", sorted(VERSIONS))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory: Path = tmp_path_factory.mktemp("store")
    with Brokers(directory) as brokers:
        yield brokers.master("a", subscriptionRecoveryCount=2)


def subscribe(stock: Stock, destination: str, number: str = "1", ack: str = "auto") -> None:
    stock.confirmed(stock.connection.subscribe, destination, number, ack)


@versions
def test_a_topic_and_its_wildcards(broker: Broker, version: str) -> None:
    with Stock([broker], version) as one, Stock([broker], version) as other:
        subscribe(one, "/topic/py.prices.eu")
        subscribe(other, "/topic/py.>", ack="client")
        for i in range(20):
            one.send(str(i), "/topic/py.prices.eu")
        for stock in (one, other):
            assert [frame.body for frame in stock.listener.wait_messages(20)] == [str(i) for i in range(20)]
        assert other.listener.messages[0].headers["destination"] == "/topic/py.prices.eu"
        other.ack(other.listener.messages[-1])


@versions
def test_a_retroactive_consumer(broker: Broker, version: str) -> None:
    with Stock([broker], version) as stock, Stock([broker], version) as late:
        topic = f"/topic/retroactive.{version}"
        for i in range(4):
            stock.send(str(i), topic)
        late.subscribe(topic, headers={"activemq.retroactive": "true"})
        assert [frame.body for frame in late.listener.wait_messages(2)] == ["2", "3"]
        stock.send("4", topic)
        assert [frame.body for frame in late.listener.wait_messages(3)] == ["2", "3", "4"]


@versions
def test_composite_destinations(broker: Broker, version: str) -> None:
    with Stock([broker], version) as stock:
        name = f"composite.{version}"
        subscribe(stock, f"/queue/{name}.a,/topic/{name}.t", "1")
        subscribe(stock, f"/queue/{name}.b", "2")
        stock.send("x", f"/queue/{name}.a,{name}.b,/topic/{name}.t")
        frames = stock.listener.wait_messages(3)
        assert sorted(frame.headers["destination"] for frame in frames) == [
            f"/queue/{name}.a",
            f"/queue/{name}.b",
            f"/topic/{name}.t",
        ]
        assert {frame.headers["original-destination"] for frame in frames} == {
            f"/queue/{name}.a,/queue/{name}.b,/topic/{name}.t"
        }


@versions
def test_request_and_reply(broker: Broker, version: str) -> None:
    with Stock([broker], version) as asker, Stock([broker], version) as service:
        subscribe(asker, "/temp-queue/replies")
        subscribe(service, f"/queue/service.{version}")
        asker.send("ping", f"/queue/service.{version}", headers={"reply-to": "/temp-queue/replies"})
        (request,) = service.listener.wait_messages(1)
        assert request.headers["reply-to"].startswith("/remote-temp-queue/")
        service.send("pong", request.headers["reply-to"])
        (reply,) = asker.listener.wait_messages(1)
        assert (reply.body, reply.headers["destination"]) == ("pong", "/temp-queue/replies")


@versions
def test_a_virtual_topic(broker: Broker, version: str) -> None:
    topic = f"VirtualTopic.py{version}"
    with Stock([broker], version) as stock:
        subscribe(stock, f"/queue/Consumer.A.{topic}")
    with Stock([broker], version) as stock:
        stock.send("while away", f"/topic/{topic}")
        subscribe(stock, f"/queue/Consumer.A.{topic}")
        (frame,) = stock.listener.wait_messages(1)
        assert frame.body == "while away"


@pytest.mark.parametrize("header", ["activemq.subscriptionName", "durable-subscription-name"])
def test_a_durable_subscription(tmp_path: Path, header: str) -> None:
    """kill -9 of the broker while the subscriber is away; then UNSUBSCRIBE by name ends it."""
    headers = {header: "s"}
    with Brokers(tmp_path) as brokers:
        first = brokers.master("a")
        with Stock([first], "1.2", client_id="c") as stock:
            stock.confirmed(stock.connection.subscribe, "/topic/t", "1", "auto", headers)
        with Stock([first], "1.2") as stock:
            stock.send("1", "/topic/t", headers={"persistent": "true"})
        first.kill()
        second = brokers.master("b")
        with Stock([second], "1.2") as stock:
            stock.send("2", "/topic/t", headers={"persistent": "true"})
        with Stock([second], "1.2", client_id="c") as stock:
            stock.confirmed(stock.connection.subscribe, "/topic/t", "1", "client-individual", headers)
            assert [frame.body for frame in stock.listener.wait_messages(2)] == ["1", "2"]
            assert stock.listener.messages[0].headers["destination"] == "/topic/t"
            stock.confirmed(stock.connection.unsubscribe, "1", **headers)
            stock.confirmed(stock.connection.subscribe, "/topic/t", "2", "client-individual", headers)
            stock.send("3", "/topic/t", headers={"persistent": "true"})
            assert [frame.body for frame in stock.listener.wait_messages(3)] == ["1", "2", "3"]
