"""Retroactive subscriptions: first what a topic keeps, then what is sent, with no gap and nothing twice."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amq.broker.memory import MESSAGE_OVERHEAD_BYTES
from amq.config.destination_options import DestinationOptions
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_INDIVIDUAL
from tests.broker.test_broker_disk import fill_disk, low_on_disk, room_again
from tests.broker.world import Client, World
from tests.sampling import examples

T = "topic://t"


def world_with(tmp_path: Any, **config: Any) -> World:
    return World(tmp_path, **{"subscription_recovery_count": 3, **config})


def late(world: World, topic: str = T, ack: str = ACK_AUTO, **options: str) -> Client:
    return world.consumer(topic, ack, 1000, options={"retroactive": "true", **options})


def publish(world: World, *bodies: bytes, topic: str = T, **fields: Any) -> Client:
    client = world.connect()
    for body in bodies:
        client.send(body, topic, **fields)
    world.settle()
    return client


@pytest.mark.parametrize("ack", [ACK_AUTO, ACK_INDIVIDUAL])
def test_the_latest_come_first_then_what_is_sent(tmp_path: Any, ack: str) -> None:
    world = world_with(tmp_path)
    producer = publish(world, b"1", b"2", b"3", b"4", b"5")
    producer.send(b"6", T)  # sent and not yet handed out
    client = world.connect()
    client.subscribe(T, ack, 1000, options={"retroactive": "true"})
    producer.send(b"7", T)
    world.settle()
    assert client.bodies == [b"3", b"4", b"5", b"6", b"7"]
    assert late(world).bodies == [b"5", b"6", b"7"]
    for body in client.bodies if ack == ACK_INDIVIDUAL else ():
        client.ack(body)
    world.settle_and_check()
    assert world.broker.memory.taken_bytes == 3 * (1 + MESSAGE_OVERHEAD_BYTES)


def test_who_does_not_ask_gets_nothing_and_where_nothing_is_kept_there_is_nothing(tmp_path: Any) -> None:
    table = DestinationOptions("t", {"subscription_recovery_count": 3})
    world = World(tmp_path, destinations=(table,))
    publish(world, b"1")
    publish(world, b"u", topic="topic://u")
    assert late(world, retroactive="false").bodies == []
    assert late(world, "topic://u").bodies == []
    assert late(world).bodies == [b"1"]
    refused = world.consumer(T, options={"retroactive": "perhaps"})
    assert refused.codes == ["OPTION_INVALID"]
    world.check_at_rest()


def test_wildcards_get_each_topic_s_in_the_order_in_which_they_were_sent(tmp_path: Any) -> None:
    world = world_with(tmp_path, subscription_recovery_count=2)
    for i, topic in enumerate(["a", "b.x", "a", "b.y", "b.x", "a", "b.x"]):
        publish(world, b"%d" % i, topic="topic://" + topic)
    publish(world, b"q", topic="queue://b.x")
    assert late(world, "topic://>").bodies == [b"2", b"3", b"4", b"5", b"6"]
    assert late(world, "topic://b.*,topic://b.x,topic://a").bodies == [b"2", b"3", b"4", b"5", b"6"]
    assert late(world, "topic://b.*").bodies == [b"3", b"4", b"6"]
    mixed = late(world, "topic://b.y,queue://b.x")
    assert sorted(mixed.bodies) == [b"3", b"q"]
    world.check_at_rest()


def test_selector_no_local_and_expiry(tmp_path: Any) -> None:
    world = world_with(tmp_path, subscription_recovery_count=100)
    publish(world, b"1", properties={"k": "a"})
    publish(world, b"2", properties={"k": "b"})
    publish(world, b"3", properties={"k": "a"}, expires_ms=world.clock.wall_ms() + 1000)
    publish(world, b"4", expires_ms=world.clock.wall_ms() + 5000)
    client = publish(world, b"own", properties={"k": "a"})
    client.subscribe(T, ACK_AUTO, selector="k = 'a'", options={"retroactive": "true", "noLocal": "true"})
    world.settle()
    assert client.bodies == [b"1", b"3"]
    world.clock.advance(2)
    holder = late(world, ack=ACK_INDIVIDUAL)
    assert holder.bodies == [b"1", b"2", b"4", b"own"]
    world.check_at_rest()
    holder.lose()
    world.sweep(5)
    world.check_at_rest()
    assert late(world).bodies == [b"1", b"2", b"own"]


def test_sizes_and_durations(tmp_path: Any) -> None:
    cost = 100 + MESSAGE_OVERHEAD_BYTES
    world = World(
        tmp_path,
        destinations=(
            DestinationOptions("size", {"subscription_recovery_size_bytes": 2 * cost}),
            DestinationOptions("time", {"subscription_recovery_duration_s": 10.0}),
        ),
    )
    for body in (b"1", b"2", b"3"):
        publish(world, body * 100, topic="topic://size")
        publish(world, body * 100, topic="topic://time")
        world.clock.advance(4)
    assert late(world, "topic://size").bodies == [b"2" * 100, b"3" * 100]
    assert late(world, "topic://time").bodies == [b"2" * 100, b"3" * 100]
    assert world.broker.memory.taken_bytes == 5 * cost
    world.broker.sweep()
    world.check_at_rest()
    assert world.broker.memory.taken_bytes == 4 * cost
    publish(world, bytes(10 * cost), topic="topic://size")  # larger than all: nothing can be kept
    world.check_at_rest()
    assert world.broker.memory.taken_bytes == 2 * cost


def test_it_takes_a_share_of_the_memory_and_gives_way(tmp_path: Any) -> None:
    world = world_with(tmp_path, memory_limit_bytes=1 << 20, subscription_recovery_count=10_000)
    for i in range(100):
        publish(world, b"%05d" % i + bytes(5000), topic=f"topic://t.{i % 7}")
        assert world.broker.topics.recovery_buffer.size <= 1 << 18
    world.check_at_rest()
    kept = [body[:5] for body in late(world, "topic://>").bodies]
    assert kept == [b"%05d" % i for i in range(100 - len(kept), 100)]
    assert len(kept) == (1 << 18) // (5005 + MESSAGE_OVERHEAD_BYTES)
    producer = world.connect()
    while producer.reading:  # what is not persistent fills the memory
        producer.send(bytes(20_000), "a", persistent=False)
        world.settle()
    assert world.broker.topics.recovery_buffer.size > 0
    world.sweep()
    assert not world.broker.topics.recovery_buffer.size
    assert world.broker.memory.taken_bytes < 0.9 * (1 << 20)
    assert producer.reading
    assert late(world, "topic://>").bodies == []
    world.check_at_rest()


def test_the_body_counts_once_and_those_who_hold_it_do_not_depend_on_it(tmp_path: Any) -> None:
    world = world_with(tmp_path, subscription_recovery_count=1)
    early = world.connect()
    early.subscribe(T, ACK_INDIVIDUAL)
    publish(world, b"x" * 9000)
    latecomer = late(world, ack=ACK_INDIVIDUAL)
    world.check_at_rest()
    assert world.broker.memory.taken_bytes == 9000 + 3 * MESSAGE_OVERHEAD_BYTES
    publish(world, b"y")
    early.ack(b"x" * 9000)
    world.settle_and_check()
    world.lose(latecomer)
    world.check_at_rest()
    assert late(world).bodies == [b"y"]


def test_options_change_while_clients_are_served(tmp_path: Any) -> None:
    world = World(tmp_path)
    publish(world, b"1")
    assert late(world).bodies == []
    for count, seen in ((2, []), (2, [b"2", b"3"]), (1, [b"3"]), (0, [])):
        world.broker.reconfigure(dataclasses.replace(world.config, subscription_recovery_count=count))
        assert late(world).bodies == seen
        if count == 2 and not seen:
            publish(world, b"2", b"3")
        world.check_at_rest()
    assert world.broker.memory.taken_bytes == 0


def test_a_takeover_leaves_nothing_and_advisories_and_temporary_topics_are_not_kept(tmp_path: Any) -> None:
    world = world_with(tmp_path)
    publish(world, b"1")
    listener = late(world, "topic://ActiveMQ.Advisory.>")
    owner = world.connect()
    temporary = f"temp-topic://{owner.number}.news"
    owner.subscribe(temporary, ACK_AUTO)
    publish(world, b"news", topic=temporary)
    assert owner.bodies == [b"news"]
    assert listener.bodies
    assert [message.body for message in world.broker.topics.recovery_buffer.messages()] == [b"1"]
    world.check_at_rest()
    world.crash_and_recover()
    assert late(world).bodies == []
    world.check_at_rest()


def test_what_is_kept_keeps_no_connection(tmp_path: Any) -> None:
    world = world_with(tmp_path)
    sender = weakref.ref(publish(world, b"1"))
    publish(world, b"2")
    client = sender()
    assert client is not None
    client.lose()
    world.clients.remove(client)
    del client
    gc.collect()
    assert sender() is None
    assert late(world, noLocal="true").bodies == [b"1", b"2"]


def test_a_transaction_is_kept_when_it_commits_and_not_when_it_rolls_back(tmp_path: Any) -> None:
    world = world_with(tmp_path)
    producer = world.connect()
    for end, body in ((producer.commit, b"1"), (producer.abort, b"2")):
        producer.begin()
        producer.send(body, T, transaction="t")
        producer.send(b"q", "a", transaction="t")
        end()
    client = world.connect()
    client.subscribe(T, ACK_AUTO, options={"retroactive": "true"})  # the commit is on its way
    world.settle()
    assert client.bodies == late(world).bodies == [b"1"]
    world.check_at_rest()


def durable(world: World, topic: str = T, client_id: str = "d", **fields: Any) -> Client:
    client = world.connect(client_id)
    options = {"retroactive": "true"}
    client.subscribe(topic, id="d", subscription_name="s", prefetch=10_000, options=options, **fields)
    return client


@pytest.mark.parametrize("persistent", [True, False])
def test_a_new_durable_subscription_begins_with_what_is_kept(tmp_path: Any, persistent: bool) -> None:
    world = world_with(tmp_path, subscription_recovery_count=5)
    world.connect("other").subscribe(T, id="o", subscription_name="o", prefetch=1000)
    publish(world, b"0", b"1", persistent=persistent, duplicate_id="")
    producer = world.connect()
    producer.send(b"2", T, persistent=persistent)  # waits for the journal, for the other subscription
    world.turn()
    client = durable(world)
    producer.send(b"3", T, persistent=persistent)
    world.settle()
    assert client.bodies == [b"0", b"1", b"2", b"3"]
    assert len(client.confirmed) == 1
    world.check_at_rest()
    client.ack(b"0")
    world.settle()
    world.lose(client)
    assert durable(world).codes == []  # it is there already: nothing is recalled
    world.settle()
    assert world.clients[-1].bodies == [b"1", b"2", b"3"]
    world.crash_and_recover()
    again = durable(world)
    world.settle()
    assert again.bodies == ([b"1", b"2", b"3"] if persistent else [])
    world.check_at_rest()


def test_selector_and_pattern_of_a_durable_one(tmp_path: Any) -> None:
    world = world_with(tmp_path, subscription_recovery_count=2)
    for i, topic in enumerate("aabba"):
        publish(world, b"%d" % i, topic=f"topic://t.{topic}", properties={"n": str(i)})
    client = durable(world, "topic://t.*", selector="n <> 3")
    publish(world, b"3", b"5", topic="topic://t.c", properties={"n": "3"})
    publish(world, b"6", topic="topic://t.c", properties={"n": "6"})
    assert client.bodies == [b"1", b"2", b"4", b"6"]
    world.check_at_rest()


def test_what_is_sent_again_meanwhile_comes_once(tmp_path: Any) -> None:
    world = world_with(tmp_path)
    producer = publish(world, b"1", duplicate_id="1")
    client = durable(world)
    producer.send(b"1", T, duplicate_id="1")  # its receipt was lost
    world.settle()
    assert client.bodies == [b"1"]
    world.check_at_rest()


def test_what_was_sent_twice_before_comes_once(tmp_path: Any) -> None:
    """Who is there gets it twice, and it is kept twice. Here that ended the broker."""
    world = world_with(tmp_path)
    publish(world, b"1", b"1", duplicate_id="1")
    publish(world, b"2", duplicate_id="2")
    client = durable(world)
    world.settle()
    assert client.bodies == [b"1", b"2"]
    world.check_at_rest()


@pytest.mark.parametrize("stored", [True, False])
def test_what_is_just_being_sent_again_is_waited_for(tmp_path: Any, stored: bool) -> None:
    """It was left out, and missed where the disk had no room for what was sent again."""
    world = world_with(tmp_path)
    producer = publish(world, b"1", duplicate_id="1")
    client = durable(world)
    world.turn()
    producer.send(b"1", T, duplicate_id="1")
    world.runner.step()  # the subscription is on the disk
    if not stored:
        fill_disk(world)
    world.settle()
    assert producer.codes == ([] if stored else ["STORE_FULL"])
    if not stored:
        assert client.bodies == []
        room_again(world)
        world.sweep()
    assert client.bodies == [b"1"]
    world.check_at_rest()


@pytest.mark.parametrize("low", [True, False])
def test_many_are_stored_in_pieces_and_a_full_disk_puts_them_off(tmp_path: Any, low: bool) -> None:
    """`low`: nothing new is taken from the beginning; else a piece meets the end of the disk."""
    world = World(tmp_path, subscription_recovery_count=100, journal_segment_size_bytes=8 << 20)
    bodies = [b"%02d" % i + bytes(100_000) for i in range(30)]
    publish(world, *bodies)
    if low:
        low_on_disk(world)
    client = durable(world)
    while not low and not any(queue.stored for queue in world.broker.state.queues.values()):
        world.turn()
        world.runner.step()
    if not low:
        fill_disk(world)
    world.settle()
    world.check()
    world.sweep()
    assert (client.errors, client.bodies) == ([], [])
    room_again(world)
    world.sweep()
    assert [body[:2] for body in client.bodies] == [body[:2] for body in bodies]
    world.check_at_rest()


@pytest.mark.parametrize("turns", range(4))
def test_one_that_ends_while_it_begins(tmp_path: Any, turns: int) -> None:
    world = world_with(tmp_path)
    publish(world, b"1", b"2")
    client = durable(world)
    for _ in range(turns):
        world.turn()
        world.runner.step()
    client.lose()
    other = world.connect("d")
    other.unsubscribe("", "s")
    world.settle()
    assert not other.errors
    assert not world.broker.state.subscriptions
    assert not world.broker.replays._under_way
    world.check_at_rest()
    assert not [queue for queue in world.broker.state.queues.values() if queue.stored]


@settings(max_examples=examples(40))
@given(st.lists(st.sampled_from(["send", "begin", "turn", "work", "settle"]), max_size=30), st.integers(1, 4))
def test_durable_ones_miss_nothing_between(tmp_path_factory: Any, steps: list[str], count: int) -> None:
    world = World(tmp_path_factory.mktemp("w"), subscription_recovery_count=count)
    world.connect("other").subscribe(T, id="o", subscription_name="o", prefetch=1000)
    world.settle()
    producer, number = world.connect(), 0
    begun: list[tuple[Client, int]] = []
    for step in steps:
        if step == "send":
            producer.send(b"%d" % number, T)
            number += 1
        elif step == "begin":
            begun.append((durable(world, client_id=f"c{len(begun)}"), number))
        elif step == "turn":
            world.turn()
        elif step == "work":
            world.runner.step()
        else:
            world.settle()
    world.settle_and_check()
    for client, before in begun:
        got = [int(body) for body in client.bodies]
        assert got == list(range(number - len(got), number))
        assert len(got) >= number - before + min(count, before)
    world.crash_and_recover()
    for i, (client, _) in enumerate(begun):
        again = durable(world, client_id=f"c{i}")
        world.settle()
        assert again.bodies == client.bodies
    world.close()


STEPS = ["send", "send other", "commit", "subscribe", "pattern", "turn", "settle", "leave", "durable"]


@settings(max_examples=examples(60))
@given(st.lists(st.sampled_from(STEPS), max_size=40), st.integers(1, 5))
def test_no_gap_and_nothing_twice(tmp_path_factory: Any, steps: list[str], count: int) -> None:
    world = World(tmp_path_factory.mktemp("w"), subscription_recovery_count=count)
    producer, number = world.connect(), 0
    sent: dict[str, list[bytes]] = {"topic://t": [], "topic://u": []}
    consumers: list[tuple[Client, list[str], dict[str, int]]] = []  # its topics, and what had been sent before
    for step in steps:
        if step in ("send", "send other", "commit"):
            topic, body, number = "topic://u" if step == "send other" else T, b"%d" % number, number + 1
            if step == "commit":
                producer.begin()
                producer.send(b"", "q", transaction="t")
            producer.send(body, topic, transaction="t" if step == "commit" else "")
            if step == "commit":
                producer.commit()
            sent[topic].append(body)
        elif step in ("subscribe", "pattern"):
            client = world.connect()
            client.subscribe(T if step == "subscribe" else "topic://*", ACK_AUTO, options={"retroactive": "true"})
            topics = [T] if step == "subscribe" else list(sent)
            consumers.append((client, topics, {topic: len(sent[topic]) for topic in topics}))
        elif step == "durable":  # from now on what is sent waits for the journal
            world.connect("c").subscribe(T, ACK_INDIVIDUAL, options={"shared": "true"}, subscription_name="s")
        elif step == "leave" and consumers:
            consumers.pop(0)[0].lose()
        elif step == "turn":
            world.turn()
        else:
            world.settle()
    world.settle_and_check()
    for client, topics, before in consumers:
        assert client.bodies == sorted(client.bodies, key=int)
        for topic in topics:
            got = [each.body for each in client.deliveries if each.message.destination == topic]
            assert got == sent[topic][len(sent[topic]) - len(got) :]
            assert len(got) >= len(sent[topic]) - before[topic] + min(count, before[topic])
    world.close()
