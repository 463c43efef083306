"""Topics: fan-out, order, transactions, slow consumers, memory; and subscriptions to many topics at once."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable

import pytest

from amq.broker.events import SlowConsumer
from amq.broker.memory import MESSAGE_OVERHEAD_BYTES
from amq.broker.queues.queue import Subscription
from amq.broker.topics.topics import BATCH_BYTES_MAX, FRAME_BYTES
from amq.core.destination import matches, pattern_words
from amq.core.message import LARGE_BODY_BYTES, MessageBatch
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_INDIVIDUAL
from tests.broker.world import Client, World

T = "topic://t"


def consumer(world: World, topic: str = T, ack: str = ACK_AUTO, prefetch: int = 0, **options: str) -> Client:
    return world.consumer(topic, ack, prefetch, options=options)


def publish(world: World, *bodies: bytes, topic: str = T, **fields: object) -> Client:
    client = world.connect()
    for body in bodies:
        client.send(body, topic, **fields)  # type: ignore[arg-type]
    world.settle()
    return client


def numbered(count: int) -> list[bytes]:
    return [b"%03d" % i for i in range(count)]


@pytest.mark.parametrize("persistent", [True, False])
def test_everybody_gets_everything_in_order_and_nothing_is_stored(world: World, persistent: bool) -> None:
    consumers = [consumer(world, ack=ack) for ack in (ACK_AUTO, ACK_INDIVIDUAL, ACK_AUTO)]
    written = world.segment_bytes(), world.journal.position()
    producer = publish(world, *numbered(20), persistent=persistent)
    assert len(producer.confirmed) == 20
    for client in consumers:
        assert client.bodies == numbered(20)
    assert (world.segment_bytes(), world.journal.position()) == written
    for body in numbered(20):
        consumers[1].ack(body)
    world.settle_and_check()
    assert world.broker.memory.taken_bytes == 0
    assert not world.broker.state.queues


def test_who_comes_later_gets_what_is_sent_later(world: World) -> None:
    producer = publish(world, b"1")
    late = consumer(world)
    producer.send(b"2", T)
    world.settle()
    late.unsubscribe(T)
    producer.send(b"3", T)
    world.settle()
    assert late.bodies == [b"2"]
    assert producer.confirmed[-1]
    world.check_at_rest()


def test_a_body_counts_once_however_many_hold_it(world: World) -> None:
    for _ in range(10):
        consumer(world, ack=ACK_INDIVIDUAL)
    publish(world, b"x" * 10_000)
    world.check_at_rest()
    assert world.broker.memory.taken_bytes == 10_000 + 10 * MESSAGE_OVERHEAD_BYTES
    for number, client in enumerate(world.clients[:10], start=1):
        client.ack(b"x" * 10_000)
        world.settle()
        left_bytes = 10_000 + (10 - number) * MESSAGE_OVERHEAD_BYTES if number < 10 else 0
        assert world.broker.memory.taken_bytes == left_bytes
    world.check_at_rest()


def test_prefetch_ack_and_redelivery_are_those_of_queues(world: World) -> None:
    client = consumer(world, ack=ACK_INDIVIDUAL, prefetch=2)
    publish(world, *numbered(4))
    assert client.bodies == numbered(2)
    client.begin()
    client.ack(b"000", "t")
    world.settle()
    assert client.bodies == numbered(3)
    client.abort()
    client.ack(b"001")
    world.settle()
    assert client.deliveries[-1].redelivered == 1
    assert client.bodies == [*numbered(3), b"000"]
    world.check_at_rest()
    world.lose(client)
    world.check_at_rest()
    assert world.broker.memory.taken_bytes == 0


def test_a_transaction_delivers_at_commit_with_what_is_persistent(world: World) -> None:
    client = consumer(world)
    producer = world.connect()
    producer.begin()
    producer.send(b"1", T, transaction="t")
    producer.send(b"q", "a", transaction="t")
    world.settle()
    assert client.bodies == []
    commit = producer.commit()
    producer.send(b"2", T)  # must not overtake what waits for the disk
    world.turn()
    assert client.bodies == []
    world.settle()
    assert client.bodies == [b"1", b"2"]
    assert commit in producer.confirmed
    assert world.stored() == [b"q"]
    world.check_at_rest()


@pytest.mark.parametrize("outcome_id", ["", "o"])
def test_a_transaction_for_topics_alone(world: World, outcome_id: str) -> None:
    client = consumer(world)
    producer = world.connect()
    producer.begin()
    producer.send(b"1", T, transaction="t")
    producer.begin("u")
    producer.send(b"no", T, transaction="u")
    producer.abort("u")
    producer.commit(outcome_id=outcome_id)
    world.settle()
    assert client.bodies == [b"1"]
    world.check_at_rest()
    producer.begin()
    producer.send(b"no", T, transaction="t")
    world.lose(producer)
    assert client.bodies == [b"1"]
    world.check_at_rest()
    assert world.broker.memory.taken_bytes == 0


@pytest.mark.parametrize("known", [True, False])
def test_a_commit_that_meets_a_full_disk_publishes_nothing(world: World, known: bool) -> None:
    client = consumer(world)
    producer = world.connect()
    producer.begin()
    producer.send(b"1", T, transaction="t")
    producer.send(b"q" * 100, "a", transaction="t")
    world.vfs.answer("free_bytes", 0)
    if known:
        world.journal.check_space()
        world.settle()
    else:
        world.vfs.fail("pwrite", errno.ENOSPC, times=0, path=".seg")
    producer.commit()
    world.settle()
    assert producer.codes == ["STORE_FULL"]
    assert client.bodies == []
    world.check_at_rest()
    publish(world, b"2")
    assert client.bodies == [b"2"], "what needs no room goes through"


def test_acks_in_a_transaction_of_a_subscription_that_has_ended(world: World) -> None:
    for end in (Client.commit, Client.abort):
        client = consumer(world, ack=ACK_INDIVIDUAL)
        publish(world, b"1", b"2")
        client.begin()
        client.ack(b"1", "t")
        client.unsubscribe(T)
        world.settle_and_check()
        assert world.broker.memory.taken_bytes == 1 + MESSAGE_OVERHEAD_BYTES
        end(client)
        world.settle_and_check()
        assert world.broker.memory.taken_bytes == 0


def test_no_local(world: World) -> None:
    client = consumer(world, noLocal="true")
    other = consumer(world)
    client.send(b"own", T)
    publish(world, b"foreign")
    assert client.bodies == [b"foreign"]
    assert other.bodies == [b"own", b"foreign"]


def test_a_slow_socket_holds_nobody_up(world: World) -> None:
    slow, quick = consumer(world), consumer(world)
    slow.session.set_writable(False)
    publish(world, *numbered(5))
    assert (slow.bodies, quick.bodies) == ([], numbered(5))
    slow.session.set_writable(True)
    publish(world, b"last")
    assert slow.bodies == [*numbered(5), b"last"]
    world.check_at_rest()


def test_what_waited_goes_out_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """By priority, in order, no more at a time than a socket may get at once, and large ones alone."""
    clients, batches = [consumer(world) for _ in range(3)], list[list[bytes]]()
    for client in clients:
        client.session.set_writable(False)
    large, big = b"l" * (LARGE_BODY_BYTES + 1), b"b" * (BATCH_BYTES_MAX // 2)
    publish(world, *numbered(100), big, big, big, large, b"behind")
    publish(world, b"urgent", b"too", priority=9)
    assert not clients[0].bodies
    deliver = Client.deliver_batch

    def deliver_batch(client: Client, subscription: Subscription, batch: MessageBatch) -> None:
        batches.append([message.body for message in batch.messages])
        assert all(message.shared is not None and message.shared.encoded is not None for message in batch.messages)
        deliver(client, subscription, batch)

    monkeypatch.setattr(Client, "deliver_batch", deliver_batch)
    for client in clients:
        client.session.set_writable(True)
    publish(world, b"last")
    for client in clients:
        assert client.bodies == [b"urgent", b"too", *numbered(100), big, big, big, large, b"behind", b"last"]
    assert [batch for batch in batches if batch[:1] == [b"000"]] == [[*numbered(100), big, big]] * 3
    assert [b"urgent", b"too"] in batches
    world.check_at_rest()
    assert world.broker.memory.taken_bytes == 0


def test_messages_that_are_nothing_but_headers_go_out_in_pieces(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that waited went out as one piece, however large, to a client that reads slowly."""
    slow, batches = consumer(world), list[int]()
    slow.session.set_writable(False)
    publish(world, *[b""] * 6000)
    deliver = Client.deliver_batch

    def deliver_batch(client: Client, subscription: Subscription, batch: MessageBatch) -> None:
        batches.append(len(batch.messages))
        deliver(client, subscription, batch)

    monkeypatch.setattr(Client, "deliver_batch", deliver_batch)
    slow.session.set_writable(True)
    publish(world, b"last")
    assert len(slow.bodies) == 6001
    assert max(batches) * FRAME_BYTES < BATCH_BYTES_MAX + FRAME_BYTES


def test_a_slow_consumer_misses_the_oldest(make_world: Callable[..., World]) -> None:
    world = make_world(pending_message_limit=3)
    told: list[tuple[str, str]] = []
    world.broker.events.listen(SlowConsumer, lambda event: told.append((event.destinations[0], event.policy)))
    slow, quick = consumer(world, ack=ACK_INDIVIDUAL, prefetch=2), consumer(world)
    mine = consumer(world, ack=ACK_INDIVIDUAL, prefetch=1, maximumPendingMessageLimit="1")
    any_number = consumer(world, ack=ACK_INDIVIDUAL, prefetch=1, maximumPendingMessageLimit="-1")
    publish(world, *numbered(10))
    assert quick.bodies == numbered(10)
    assert world.broker.topics.discarded == 5 + 8
    assert told == [(T, "discard-oldest")] * 2
    world.check_at_rest()
    for client, kept in ((slow, [0, 1, 7, 8, 9]), (mine, [0, 9]), (any_number, list(range(10)))):
        for i in kept:
            client.ack(b"%03d" % i)
            world.settle()
        assert client.bodies == [b"%03d" % i for i in kept]
        assert not client.errors
    world.check_at_rest()
    assert world.broker.memory.taken_bytes == 0
    publish(world, *numbered(6))
    assert len(told) == 4, "who had caught up and falls behind again is told of again"


def test_a_slow_consumer_is_disconnected(make_world: Callable[..., World]) -> None:
    world = make_world(pending_message_limit=3, slow_consumer_policy="disconnect")
    slow = consumer(world, ack=ACK_INDIVIDUAL, prefetch=2)
    publish(world, *numbered(10))
    assert slow.codes == ["SLOW_CONSUMER"]
    world.check_at_rest()
    assert world.broker.memory.taken_bytes == 0


def test_a_slow_consumer_takes_no_more_than_its_share_of_memory(make_world: Callable[..., World]) -> None:
    world = make_world(memory_limit_bytes=1 << 20, max_transaction_size_bytes=1 << 20)
    consumer(world, ack=ACK_INDIVIDUAL, prefetch=1)
    producer = world.connect()
    for i in range(200):
        producer.send(b"%03d" % i + bytes(10_000), T)
        if i % 20 == 19:
            world.settle()
    assert len(producer.confirmed) == 200
    (queue,) = world.broker.topics.queues()
    assert 300_000 < queue.resident_bytes < 400_000
    assert world.broker.topics.discarded > 100
    world.check_at_rest()


def test_producers_wait_where_no_limit_is_wanted(make_world: Callable[..., World]) -> None:
    world = make_world(memory_limit_bytes=1 << 20, max_transaction_size_bytes=1 << 20, pending_message_limit=0)
    client = consumer(world, ack=ACK_INDIVIDUAL, prefetch=1)
    producer = world.connect()
    bodies = [b"%03d" % i + bytes(10_000) for i in range(200)]
    sent = 0
    for _ in range(10 * len(bodies)):
        while producer.reading and sent < len(bodies):
            producer.send(bodies[sent], T)
            sent += 1
            world.settle()
        if len(client.deliveries) == len(bodies):
            break
        client.ack(client.bodies[-1])
        world.settle()
    assert client.bodies == bodies
    world.check_at_rest()


def test_what_is_refused_goes_to_the_dead_letter_queue(world: World) -> None:
    client = consumer(world, ack=ACK_INDIVIDUAL)
    publish(world, b"p")
    publish(world, b"n", persistent=False)
    client.nack(b"p")
    client.nack(b"n")
    world.settle_and_check()
    assert world.stored("DLQ.t") == [b"n", b"p"] or world.stored("DLQ.t") == [b"p", b"n"]
    world.crash_and_recover()
    reader = world.consumer("DLQ.t")
    assert reader.bodies == [b"p"]
    properties = reader.deliveries[0].message.properties
    assert properties is not None
    assert properties["original-destination"] == "/topic/t"


def test_expired_messages_are_not_delivered(world: World) -> None:
    client = consumer(world, ack=ACK_INDIVIDUAL, prefetch=1)
    now_ms = world.clock.wall_ms()
    publish(world, b"late", expires_ms=now_ms)
    publish(world, b"1")
    publish(world, b"2", expires_ms=now_ms + 1000)
    world.clock.advance(2)
    world.broker.sweep()
    client.ack(b"1")
    world.settle()
    assert client.bodies == [b"1"]
    world.check_at_rest()
    assert world.broker.memory.taken_bytes == 0


def test_many_and_large_messages_in_one_turn(make_world: Callable[..., World]) -> None:
    world = make_world()
    client = consumer(world)
    producer = world.connect()
    bodies = [b"%03d" % i + bytes(50_000) for i in range(4 * BATCH_BYTES_MAX // 50_000)]
    for body in bodies:
        producer.send(body, T)
    large = bytes(2 << 20)
    producer.send(large, T)
    producer.send(b"after", T)
    world.settle()
    assert client.bodies == [*bodies, large, b"after"]
    world.check_at_rest()
    assert world.broker.memory.taken_bytes == 0


def test_options_change_while_it_waits(make_world: Callable[..., World]) -> None:
    world = make_world(pending_message_limit=100)
    consumer(world, ack=ACK_INDIVIDUAL, prefetch=1)
    publish(world, *numbered(50))
    (queue,) = world.broker.topics.queues()
    assert queue.waiting == 49
    world.broker.reconfigure(dataclasses.replace(world.config, pending_message_limit=10))
    world.settle()
    assert queue.waiting == 10


# -- many topics at once -----------------------------------------------------------------------------------------------

NAMES = ["a", "a.b", "a.c", "a.b.c", "b", "b.b"]


@pytest.mark.parametrize("pattern", ["a.*", "a.>", "*.b", ">", "*", "a.*.c", "*.*", "x.>"])
def test_wildcards(world: World, pattern: str) -> None:
    client = consumer(world, "topic://" + pattern)
    for name in NAMES:
        publish(world, name.encode(), topic="topic://" + name)
    expected = [name for name in NAMES if matches(pattern_words(pattern), name.split("."))]
    assert [body.decode() for body in client.bodies] == expected
    assert [d.message.destination for d in client.deliveries] == ["topic://" + name for name in expected]
    client.unsubscribe("topic://" + pattern)
    for name in NAMES:
        publish(world, b"no", topic="topic://" + name)
    assert len(client.bodies) == len(expected)
    world.check_at_rest()


@pytest.mark.parametrize("ack", [ACK_AUTO, ACK_INDIVIDUAL])
def test_order_across_topics(world: World, ack: str) -> None:
    client = consumer(world, "topic://>", ack)
    exact = consumer(world, "topic://a", ack)
    producer = world.connect()
    for i in range(30):
        producer.send(b"%d" % i, f"topic://{'ab'[i % 2]}")
    world.settle()
    assert client.bodies == [b"%d" % i for i in range(30)]
    assert exact.bodies == [b"%d" % i for i in range(0, 30, 2)]


def test_a_topic_is_not_browsed(world: World) -> None:
    client = world.consumer(T, browser=True)
    assert client.codes == ["DESTINATION_REFUSED"]


def test_nothing_is_sent_to_a_pattern(world: World) -> None:
    for destination in ("topic://a.*", "topic://>", "queue://a.>"):
        client = world.send(b"x", queue=destination)
        assert client.codes == ["DESTINATION_REFUSED"]
    for destination in ("topic://a.>.b", "queue://a.>.*"):
        client = world.consumer(destination)
        assert client.codes == ["DESTINATION_REFUSED"]
    publish(world, b"x", topic="topic://a*")  # a word that only contains a star is one
