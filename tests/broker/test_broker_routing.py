"""Composite destinations, diverts and virtual topics: to all or to none."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable
from typing import Any

import pytest

from amq.broker.memory import MESSAGE_OVERHEAD_BYTES
from amq.broker.topics.routing import ROUTES_BYTES_MAX
from amq.config.destination_options import DestinationOptions
from amq.core.errors import ConfigError
from amq.protocols.stomp.subscribing import ACK_AUTO
from tests.broker.test_broker_two_phase import finish, prepare
from tests.broker.world import Client, World

BOTH = "queue://a,topic://t,queue://b"
VIRTUAL = "topic://VirtualTopic.orders"


def consumer(world: World, name: str, **fields: Any) -> Client:
    return world.consumer(name, ACK_AUTO, **fields)


def send(world: World, destination: str, body: bytes = b"x", **fields: Any) -> Client:
    return world.send(body, queue=destination, **fields)


def properties(client: Client) -> dict[str, str]:
    return client.deliveries[-1].message.properties or {}


# -- composite destinations --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
def test_a_composite_send_reaches_all(world: World, persistent: bool) -> None:
    topic = consumer(world, "topic://t")
    producer = send(world, BOTH, persistent=persistent, properties={"k": "v"})
    assert len(producer.confirmed) == 1
    assert world.stored("a") == world.stored("b") == topic.bodies == [b"x"]
    world.check_at_rest()
    reader = consumer(world, "a")
    for client in (topic, reader):
        assert properties(client) == {"k": "v", "original-destination": "/queue/a,/topic/t,/queue/b"}
    if persistent:
        world.crash_and_recover()
        assert (world.stored("a"), world.stored("b")) == ([], [b"x"])


@pytest.mark.parametrize("persistent", [True, False])
def test_many_names_cost_as_many_times_one(world: World, persistent: bool) -> None:
    """All copies share the header that names where the message was sent, which is as long as all names together. It
    counts for the memory limit."""
    names = [f"queue://{'x' * 20}{number}" for number in range(200)]
    send(world, ",".join(names), persistent=persistent)
    copies = [message for name in names for message in world.broker.state.queues[name].messages.values()]
    assert len(copies) == len(names)
    assert len({id(message.properties) for message in copies}) == 1
    shared_bytes = len(",".join(names))
    assert world.broker.memory.taken_bytes > shared_bytes * 0.9 + 200 * MESSAGE_OVERHEAD_BYTES
    assert world.broker.memory.taken_bytes < 3 * shared_bytes + 200 * MESSAGE_OVERHEAD_BYTES
    world.check_at_rest()
    for name in names:
        consumer(world, name)
    assert world.broker.memory.taken_bytes == 0
    world.check_at_rest()


def test_a_composite_name_has_so_many_parts(make_world: Callable[..., World]) -> None:
    world = make_world(max_composite_destinations=3)
    assert send(world, "queue://a,queue://b,topic://c").confirmed
    refused = send(world, "queue://a,queue://b,queue://c,queue://d")
    assert refused.codes == ["DESTINATION_INVALID"]
    assert world.stored("a") == [b"x"]


@pytest.mark.parametrize("persistent", [True, False])
def test_what_is_led_elsewhere_and_stays_counts_once(make_world: Callable[..., World], persistent: bool) -> None:
    world = make_world(destinations=(DestinationOptions("a", {"divert": "b", "divert_exclusive": False}),))
    send(world, "a", persistent=persistent, properties={"k": "v" * 100})
    assert world.stored("a") == world.stored("b") == [b"x"]
    world.check_at_rest()
    consumer(world, "b")
    world.check_at_rest()
    consumer(world, "a")
    assert world.broker.memory.taken_bytes == 0


def test_routes_of_long_names_do_not_fill_the_memory(world: World) -> None:
    for number in range(2000):
        world.broker.routing.of(f"queue://{number}{'x' * 8000}")
        world.broker.topics.route(f"topic://{number}{'x' * 8000}")
    assert sum(map(len, world.broker.routing._routes)) < ROUTES_BYTES_MAX
    assert sum(map(len, world.broker.topics._routes)) < ROUTES_BYTES_MAX


def test_its_persistent_parts_are_one_record(world: World) -> None:
    producer = world.connect()
    producer.send(b"x", BOTH)
    world.turn()
    world.crash_and_recover(jobs=1, torn=0.7)
    assert world.stored("a") == world.stored("b") == []
    producer = world.connect()
    receipt = producer.send(b"x", BOTH)
    world.settle()
    assert producer.confirmed == [receipt]
    world.crash_and_recover()
    assert world.stored("a") == world.stored("b") == [b"x"]


def test_a_full_disk_takes_none(world: World) -> None:
    topic = consumer(world, "topic://t")
    world.vfs.fail("pwrite", errno.ENOSPC, times=0, path=".seg")
    world.vfs.answer("free_bytes", 0)
    producer = send(world, BOTH)
    assert producer.codes == ["STORE_FULL"]
    assert world.stored("a") == world.stored("b") == topic.bodies == []
    world.check_at_rest()


def test_a_resent_composite_is_stored_once(world: World) -> None:
    topic = consumer(world, "topic://t")
    for _ in range(2):
        producer = send(world, BOTH, duplicate_id="1")
        assert producer.confirmed
    other = world.connect()
    other.send(b"y", BOTH, duplicate_id="2")
    receipt = other.send(b"y", BOTH, duplicate_id="2")  # while the first one is on its way
    world.settle()
    assert receipt in other.confirmed
    assert world.stored("a") == world.stored("b") == topic.bodies == [b"x", b"y"]
    world.check_at_rest()


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("route", ["queue://a,queue://b,queue://c", "queue://a,queue://b,queue://c,queue://d"])
def test_a_resent_composite_waits_for_each_of_its_parts(world: World, route: str, commit: bool) -> None:
    """Two are prepared, one is stored, one is new. It was confirmed when the last of them was safe."""
    for queue in "ab":
        other = world.connect()
        other.begin()
        other.send(b"x", queue, transaction="t", duplicate_id="1")
        prepare(other, queue)
    send(world, "queue://c", duplicate_id="1")
    producer = world.connect()
    receipt = producer.send(b"x", route, duplicate_id="1")
    world.settle()
    finish(world, "b")
    assert (producer.confirmed, producer.codes) == ([], [])
    finish(world, "a", commit=commit)
    assert producer.confirmed == ([receipt] if commit else [])
    assert producer.errors == ([] if commit else [("TRANSACTION_ROLLED_BACK", receipt)])
    assert world.stored("a") == ([b"x"] if commit else [])
    assert world.stored("b") == world.stored("c") == [b"x"]
    world.check_at_rest()
    assert send(world, route, duplicate_id="1").confirmed
    for queue in route.split(","):
        assert world.stored(queue.removeprefix("queue://")) == [b"x"]
    world.check_at_rest()


def test_in_a_transaction(world: World) -> None:
    topic = consumer(world, "topic://t")
    producer = world.connect()
    for end in (producer.abort, producer.commit):
        producer.begin()
        producer.send(b"x", BOTH, transaction="t")
        world.settle()
        assert world.stored("a") == topic.bodies == []
        end()
        world.settle_and_check()
    assert world.stored("a") == world.stored("b") == topic.bodies == [b"x"]
    world.check_at_rest()


@pytest.mark.parametrize("policy", ["block", "fail"])
def test_one_full_queue_holds_up_all(make_world: Callable[..., World], policy: str) -> None:
    options = DestinationOptions("b", {"queue_limit_bytes": 100, "queue_limit_policy": policy})
    world = make_world(destinations=(options,))
    send(world, "queue://b", bytes(200))
    producer = world.send(b"x", queue=BOTH)
    assert world.stored("a") == []
    if policy == "fail":
        assert producer.codes == ["QUEUE_FULL"]
        return
    assert not producer.reading
    drain = consumer(world, "b")
    assert drain.bodies == [bytes(200), b"x"]
    assert world.stored("a") == [b"x"]
    assert producer.confirmed
    world.check_at_rest()


def test_a_part_that_nobody_can_send_to_refuses_the_whole(world: World) -> None:
    for destination in ("queue://a,queue://b.>", "queue://a,stream://b"):
        assert send(world, destination).codes == ["DESTINATION_REFUSED"]
    assert not world.stored("a")


def test_a_subscription_to_several_topics(world: World) -> None:
    client = consumer(world, "topic://t,topic://u.*,topic://t", id="s")
    producer = world.connect()
    for i, name in enumerate(["t", "u.1", "v", "t", "u.2"]):
        producer.send(b"%d" % i, "topic://" + name)
    world.settle()
    assert client.bodies == [b"0", b"1", b"3", b"4"]
    client.unsubscribe("s")
    send(world, "topic://t")
    send(world, "topic://u.1")
    assert len(client.bodies) == 4
    world.check_at_rest()


# -- diverts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("scheme", ["queue", "topic"])
def test_a_divert(make_world: Callable[..., World], scheme: str, exclusive: bool) -> None:
    tables = (
        DestinationOptions("orders.>", {"divert": "audit.orders", "divert_exclusive": exclusive}),
        DestinationOptions("audit.orders", {"divert": "orders.again"}),
    )
    world = make_world(destinations=tables)
    client = consumer(world, f"{scheme}://orders.eu")
    for _ in range(2):
        send(world, f"{scheme}://orders.eu")
    assert client.bodies == [b"x"] * (0 if exclusive else 2)
    assert world.stored("audit.orders") == [b"x"] * 2
    assert world.stored("orders.again") == [], "what was diverted is not diverted again"
    reader = consumer(world, "audit.orders")
    assert properties(reader)["original-destination"] == f"/{scheme}/orders.eu"
    send(world, "queue://other")
    assert world.stored("other") == [b"x"]
    world.check_at_rest()


def diverting(make_world: Callable[..., World], divert: str, **fields: Any) -> World:
    return make_world(destinations=(DestinationOptions("orders.>", {"divert": divert, **fields}),))


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("scheme", ["queue", "topic"])
def test_a_divert_to_a_topic(make_world: Callable[..., World], scheme: str, persistent: bool) -> None:
    """All of its audience hears it: subscribers, durable ones that are away, queues that consume a virtual topic."""
    world = diverting(make_world, "topic://VirtualTopic.news; topic://other")
    away = world.consumer("topic://other", subscription_name="s", client_id="me")
    away.lose()
    reader, virtual = consumer(world, "topic://VirtualTopic.news"), consumer(world, "Consumer.A.VirtualTopic.news")
    send(world, f"{scheme}://orders.eu", persistent=persistent)
    assert reader.bodies == virtual.bodies == [b"x"]
    assert properties(reader)["original-destination"] == f"/{scheme}/orders.eu"
    assert world.stored("orders.eu") == ([b"x"] if scheme == "queue" else [])
    back = world.consumer("topic://other", subscription_name="s", client_id="me")
    assert back.bodies == [b"x"]


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a_divert_of_one_kind_leaves_the_other_alone(
    make_world: Callable[..., World], kind: str, exclusive: bool
) -> None:
    world = diverting(make_world, f"from {kind} to audit", divert_exclusive=exclusive)
    other = {"queue": "topic", "topic": "queue"}[kind]
    left, alone = consumer(world, f"{kind}://orders.eu"), consumer(world, f"{other}://orders.eu")
    send(world, f"{other}://orders.eu", b"alone")
    assert (alone.bodies, world.stored("audit")) == ([b"alone"], [])
    send(world, f"{kind}://orders.eu", b"led")
    assert (left.bodies, world.stored("audit")) == ([] if exclusive else [b"led"], [b"led"])


@pytest.mark.parametrize("scheme", ["queue", "topic"])
@pytest.mark.parametrize("persistent", [True, False])
def test_diverts_with_selectors(make_world: Callable[..., World], scheme: str, persistent: bool) -> None:
    text = "dear where price > 100; topic://rare exclusive where colour = 'a;b'; all copy"
    world = diverting(make_world, text)
    own, rare = consumer(world, f"{scheme}://orders.eu"), consumer(world, "topic://rare")
    for body, told in ((b"1", {"price": "50"}), (b"2", {"price": "200"}), (b"3", {"price": "200", "colour": "a;b"})):
        send(world, f"{scheme}://orders.eu", body, properties=told, persistent=persistent)
    assert own.bodies == [b"1", b"2"]
    assert rare.bodies == [b"3"], "an exclusive divert leads away from the others, too"
    assert (world.stored("dear"), world.stored("all")) == ([b"2"], [b"1", b"2"])
    world.check_at_rest()


def test_selectors_of_diverts_in_transactions_in_bulk_and_later(make_world: Callable[..., World]) -> None:
    world = diverting(make_world, "dear exclusive where price > 100")
    producer = world.connect()
    producer.begin()
    for price in ("50", "200"):
        producer.send(price.encode(), "orders.eu", transaction="t", properties={"price": price})
    producer.commit()
    producer.send(b"late", "orders.eu", properties={"price": "300", "AMQ_SCHEDULED_DELAY": "1000"})
    producer.send(b"both", "queue://orders.eu,queue://other", properties={"price": "400"})
    world.settle()
    world.clock.advance(1.0)
    world.settle()
    assert world.stored("orders.eu") == [b"50"]
    assert world.stored("dear") == [b"200", b"both", b"late"]
    assert world.stored("other") == [b"both"]
    world.check_at_rest()


def test_a_divert_of_a_queue_that_is_there_already(make_world: Callable[..., World]) -> None:
    world = make_world()
    send(world, "queue://orders")
    table = DestinationOptions("orders", {"divert": "audit"})
    world.broker.reconfigure(dataclasses.replace(world.config, destinations=(table,)))
    send(world, "queue://orders")
    assert (world.stored("orders"), world.stored("audit")) == ([b"x"] * 2, [b"x"])


# -- virtual topics ----------------------------------------------------------------------------------------------------


def test_each_consumer_queue_gets_a_copy_that_it_keeps(world: World) -> None:
    plain = consumer(world, VIRTUAL)
    first = consumer(world, "Consumer.A.VirtualTopic.orders")
    send(world, "queue://Consumer.B.VirtualTopic.orders", b"0")
    consumer(world, "Consumer.A.VirtualTopic.others")
    send(world, VIRTUAL, b"1", duplicate_id="1")
    assert plain.bodies == first.bodies == [b"1"]
    assert properties(first) == {"original-destination": "/topic/VirtualTopic.orders"}
    assert world.stored("Consumer.B.VirtualTopic.orders") == [b"0", b"1"]
    world.lose(first)
    world.broker.sweep()
    send(world, VIRTUAL, b"2", duplicate_id="2")
    assert world.stored("Consumer.A.VirtualTopic.orders") == [b"2"], "it waits for a consumer that is away"
    world.check_at_rest()
    world.crash_and_recover()
    send(world, VIRTUAL, b"3", duplicate_id="3")
    assert world.stored("Consumer.A.VirtualTopic.orders") == [b"2", b"3"]
    assert world.stored("Consumer.B.VirtualTopic.orders") == [b"0", b"1", b"2", b"3"]
    assert world.stored("Consumer.A.VirtualTopic.others") == []


def test_a_consumer_of_a_pattern_has_a_queue_for_each_topic(world: World) -> None:
    """Until now it got nothing of a topic whose queue no other consumer had made."""
    client = consumer(world, "Consumer.W.VirtualTopic.>")
    every = consumer(world, "Consumer.*.VirtualTopic.>")
    send(world, VIRTUAL, b"1")
    send(world, "topic://VirtualTopic.a.b", b"2")
    send(world, "topic://other", b"3")
    assert sorted(client.bodies + every.bodies) == [b"1", b"2"], "they share the queues"
    assert [name for name in world.broker.state.queues if "other" in name or "*" in name] == []
    for each in (client, every):
        each.lose()
    world.settle()
    send(world, VIRTUAL, b"4")
    send(world, "topic://VirtualTopic.new", b"5")
    assert world.stored("Consumer.W.VirtualTopic.orders") == [b"4"], "it waits for the consumer, which is away"
    assert "queue://Consumer.W.VirtualTopic.new" not in world.broker.state.queues
    assert not world.broker.routing.virtual._patterns
    world.check_at_rest()


@pytest.mark.parametrize("words", ["Consumer.W.>", "Consumer.W.VirtualTopic.*", "Consumer.W.VirtualTopic.orders.>"])
def test_patterns_that_mean_the_queue_of_a_virtual_topic(world: World, words: str) -> None:
    client = consumer(world, words)
    send(world, VIRTUAL, b"1")
    assert client.bodies == [b"1"]


@pytest.mark.parametrize("name", ["topic://a.*.>.>", "topic://a.>.>", "topic://a.*.>.>.>"])
def test_several_last_wildcards_are_one(world: World, name: str) -> None:
    """As in ActiveMQ; one in the middle means nothing there either."""
    client = world.consumer(name, ACK_AUTO)
    send(world, "topic://a.b.c", b"1")
    send(world, "topic://b.b.c", b"2")
    assert client.bodies == [b"1"]


def test_a_user_has_as_many_queues_made_by_a_pattern_as_it_may(make_world: Callable[..., World]) -> None:
    world = make_world(max_queues_per_user=3)
    client = consumer(world, "Consumer.W.VirtualTopic.>")
    for n in range(5):
        send(world, f"topic://VirtualTopic.t{n}", b"%d" % n)
    assert client.bodies == [b"0", b"1", b"2"]


def test_other_names_for_virtual_topics(make_world: Callable[..., World]) -> None:
    world = make_world(virtual_topics=">", virtual_topic_consumers="VQ.*.of.")
    client = consumer(world, "VQ.a.of.b")
    send(world, "topic://b", b"1")
    send(world, "topic://VirtualTopic.b", b"2")
    assert client.bodies == [b"1"]


# -- selectors ---------------------------------------------------------------------------------------------------------


def test_selectors_of_topic_subscriptions(world: World) -> None:
    big = consumer(world, "topic://t", selector="size > 10")
    red = consumer(world, "topic://*", selector="color = 'red'")
    everything = consumer(world, "topic://t")
    own = consumer(world, "topic://t", selector="color = 'red'", options={"noLocal": "true"})
    producer = own
    for i, (size, color) in enumerate([(5, "red"), (15, "blue"), (20, "red"), (1, "blue")]):
        producer.send(b"%d" % i, "topic://t", properties={"size": str(size), "color": color})
    world.settle()
    assert big.bodies == [b"1", b"2"]
    assert red.bodies == [b"0", b"2"]
    assert everything.bodies == [b"0", b"1", b"2", b"3"]
    assert own.bodies == []
    big.unsubscribe("topic://t")
    send(world, "topic://t", b"4", properties={"size": "100"})
    assert big.bodies == [b"1", b"2"]
    wrong = world.consumer("topic://t", selector="size >")
    assert wrong.codes == ["INVALID_SELECTOR"]
    world.check_at_rest()


def test_wrong_names_in_options_are_told(tmp_path: Any) -> None:
    from amq.config.loader import load

    for text, complaint in [
        ('[queues]\ndivert = "a.>"', 'divert = "a.>" names no single queue'),
        ('[destinations.a]\ndivert = "topic://a,b"', 'divert = "topic://a,b" names no single queue or topic'),
        ('[topics]\nvirtualTopics = "a.>.b"', 'virtualTopics = "a.>.b" has a ">" before its end'),
        ('[topics]\nvirtualTopicConsumers = ">"', "virtualTopicConsumers must be words"),
    ]:
        path = tmp_path / "amq.toml"
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load(str(path))
        assert complaint in caught.value.description
