"""Advisories: what is told, to whom, and that nothing learns where nobody listens."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from amq.broker.topics.advisories import ORIGIN
from amq.broker.topics.known import IDLE_S, TOPICS_MAX
from amq.core.message import headers
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_INDIVIDUAL
from tests.broker.world import Client, World


def listener(world: World, kind: str = ">") -> Client:
    world.broker.advisories.broker_name, world.broker.advisories.broker_url = "b1", "auto://here:1"
    return world.consumer(f"topic://ActiveMQ.Advisory.{kind}", ACK_AUTO)


def told(client: Client) -> list[tuple[str, dict[str, str]]]:
    """(topic behind the prefix, fields) of all that came."""
    found = []
    for delivery in client.deliveries:
        fields = json.loads(delivery.body)
        assert headers(delivery.message) == {"type": "Advisory", **fields}
        origin = [fields.pop(name) for name in ORIGIN]
        assert origin == [client.world.broker.message_id_prefix.removesuffix("-"), "b1", "auto://here:1"]
        found.append((delivery.message.destination.removeprefix("topic://ActiveMQ.Advisory."), fields))
    client.deliveries.clear()
    return found


def test_connections_and_consumers(world: World) -> None:
    client = listener(world)
    other = world.connect()
    other.subscribe("a")
    other.subscribe("topic://t", id="t")
    other.subscribe("topic://u,queue://b.*", id="m")
    world.settle()
    connection = {"event": "started", "connectionId": other.number}

    def consumer(name: str, id: str, event: str, **more: str) -> dict[str, str]:
        return {"destination": name, "event": event, "connectionId": other.number, "consumerId": id, **more}

    assert told(client) == [
        ("Connection", connection),
        ("Queue", {"event": "added", "destination": "/queue/a"}),
        ("Consumer.Queue.a", consumer("/queue/a", "a", "started", consumerCount="1")),
        ("Topic", {"event": "added", "destination": "/topic/t"}),
        ("Consumer.Topic.t", consumer("/topic/t", "t", "started", consumerCount="1")),
        ("Topic", {"event": "added", "destination": "/topic/u"}),
        ("Consumer.Topic.u", consumer("/topic/u", "m", "started", consumerCount="1")),
        ("Consumer.Queue.b.*", consumer("/queue/b.*", "m", "started")),
    ]
    other.unsubscribe("a")
    world.settle()
    assert told(client) == [("Consumer.Queue.a", consumer("/queue/a", "a", "stopped", consumerCount="0"))]
    world.lose(other)
    assert [kind for kind, _ in told(client)] == [
        "Consumer.Topic.t",
        "Consumer.Topic.u",
        "Consumer.Queue.b.*",
        "Connection",
    ]
    world.check_at_rest()


def test_consumers_of_durable_subscriptions_are_counted(world: World) -> None:
    client = listener(world)
    other = world.connect("shop")
    other.subscribe("topic://t", id="t")
    for id in ("all", "red"):
        selector = "colour = 'red'" if id == "red" else ""
        other.subscribe("topic://t", id=id, subscription_name=id, selector=selector)
    world.settle()
    counts = [facts["consumerCount"] for kind, facts in told(client) if kind == "Consumer.Topic.t"]
    assert counts == ["1", "2", "3"]
    other.unsubscribe("red")
    world.settle()
    assert [facts.get("consumerCount") for _, facts in told(client)] == ["2"]
    world.check_at_rest()


def test_slow_consumers_and_what_they_miss(make_world: Callable[..., World]) -> None:
    world = make_world(pending_message_limit=2)
    client = listener(world, "*.Topic.t")
    world.consumer("topic://t", ACK_INDIVIDUAL, 1, id="s")
    producer = world.connect()
    for i in range(8):
        producer.send(b"%d" % i, "topic://t")
    world.settle()
    kinds = dict(told(client))
    assert kinds["SlowConsumer.Topic.t"] == {"destination": "/topic/t", "consumerId": "s", "policy": "discard-oldest"}
    assert kinds["MessageDiscarded.Topic.t"]["discardedCount"] == "5"


@pytest.mark.parametrize("persistent", [True, False])
def test_dead_letters(world: World, persistent: bool) -> None:
    client = listener(world, "MessageDLQd.>")
    consumer = world.connect()
    consumer.subscribe("a")
    consumer.send(b"x", "a", persistent=persistent)
    world.settle()
    consumer.nack(b"x")
    world.settle()
    ((kind, fields),) = told(client)
    assert kind == "MessageDLQd.Queue.a"
    assert fields.pop("seq")
    assert fields == {"destination": "/queue/a", "deadLetterQueue": "/queue/DLQ.a", "reason": "refused by the consumer"}
    world.check_at_rest()


def test_who_is_master(world: World) -> None:
    for _ in range(2):
        client = listener(world, "MasterBroker")
        assert told(client) == [("MasterBroker", {"epoch": str(world.epoch)})]
        world.crash_and_recover()


def test_which_queues_there_are(world: World) -> None:
    """Clients that begin to look at the queues, such as `amq migrate`, learn of those that are there already."""
    producer = world.connect()
    for name in ("a", "b.c", "topic://t"):
        producer.send(b"x", name)
    world.settle()
    client = listener(world, "Queue")
    assert told(client) == [
        ("Queue", {"event": "added", "destination": "/queue/a"}),
        ("Queue", {"event": "added", "destination": "/queue/b.c"}),
    ]
    client = listener(world, "Queue,topic://ActiveMQ.Advisory.MasterBroker")
    assert [kind for kind, _ in told(client)] == ["Queue", "Queue", "MasterBroker"]
    world.check_at_rest()


def test_which_consumers_there_are(world: World) -> None:
    """With all that an advisory of a new one has."""
    other = world.connect()
    other.subscribe("a", id="a", selector="n = 7")
    world.lose(listener(world))
    client = listener(world, "Consumer.>")
    facts = {"event": "started", "connectionId": other.number, "consumerId": "a", "selector": "n = 7"}
    expected = [("Consumer.Queue.a", {"destination": "/queue/a", **facts, "consumerCount": "1"})]
    assert told(client) == expected
    world.check_at_rest()


def topics_told(client: Client) -> list[tuple[str, str]]:
    return [(fields["event"], fields["destination"]) for _, fields in told(client)]


def test_which_topics_there_are(world: World) -> None:
    """Those that somebody sends to, subscribes to by name, or is subscribed to durably; as long as they are in use."""
    producer = world.connect()
    producer.send(b"x", "topic://sent")
    durable = world.connect("me")
    durable.subscribe("topic://durable", id="d", subscription_name="d")
    durable.subscribe("topic://pattern.*", id="p")
    world.settle()
    durable.lose()
    client = listener(world, "Topic")
    assert sorted(topics_told(client)) == [("added", "/topic/durable"), ("added", "/topic/sent")]
    consumer = world.connect()
    consumer.subscribe("topic://sent")
    producer.send(b"x", "topic://new")
    world.settle()
    assert topics_told(client) == [("added", "/topic/new")]
    for _ in range(2):  # the first time it was in use since the last
        world.clock.advance(IDLE_S)
        world.broker.sweep()
    world.settle()
    assert topics_told(client) == [("removed", "/topic/new")]
    consumer.lose()
    world.sweep(IDLE_S)
    assert topics_told(client) == [("removed", "/topic/sent")]
    producer.send(b"x", "topic://sent")
    world.settle()
    assert topics_told(client) == [("added", "/topic/sent")]
    world.crash_and_recover()
    assert topics_told(listener(world, "Topic")) == [("added", "/topic/durable")]


def test_topics_without_end_are_not_all_remembered(world: World) -> None:
    producer = world.connect()
    for i in range(TOPICS_MAX + 10):
        producer.send(b"", f"topic://t{i}", receipt=False)
        if not i % 100:
            world.settle()
    world.settle()
    known = world.broker.known_topics
    assert len(known) == len(known.fresh) == TOPICS_MAX
    for _ in range(2):
        world.clock.advance(IDLE_S)
        world.broker.sweep()
    assert len(known) == len(known.fresh) == 0


def test_nobody_is_told_who_did_not_ask(world: World, monkeypatch: Any) -> None:
    everything = world.connect()
    everything.subscribe("topic://>", ACK_AUTO)
    world.lose(listener(world))
    everything.deliveries.clear()
    assert not world.broker.advisories.heard
    monkeypatch.setattr(world.broker.advisories, "_tell", lambda *_: pytest.fail("it was made for nobody"))
    other = world.connect()
    other.subscribe("a")
    other.send(b"x", "a")
    world.settle()
    other.nack(b"x")
    world.lose(other)
    assert everything.bodies == []
