"""Messages beyond the memory wait on disk alone: none is lost, doubled or out of order, and producers go on."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from amq.broker.memory import MESSAGE_OVERHEAD_BYTES
from amq.broker.queues.queue import Queue
from amq.config.schema import BrokerConfig
from amq.core.message import Message
from amq.protocols.commands import Send
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_INDIVIDUAL
from tests.broker.notation import Ack
from tests.broker.world import Client, World
from tests.files import flip

LIMIT_BYTES = 10 * (1000 + MESSAGE_OVERHEAD_BYTES)  # ten messages of 1000 bytes


@pytest.fixture
def small(make_world: Callable[..., World]) -> World:
    return make_world(memory_limit_bytes=LIMIT_BYTES)


def body(number: int) -> bytes:
    return b"%d" % number + bytes(1000)


def numbers(client: Client) -> list[int]:
    return [int(delivery.body.rstrip(b"\0")) for delivery in client.deliveries]


def fill(world: World, count: int, queue: str = "a", **options: object) -> None:
    producer = world.connect()
    for number in range(count):
        producer.do(Send(Message("queue://" + queue, body(number), **options), str(number)))  # type: ignore[arg-type]
        if number % 7 == 0:
            world.settle()
    world.settle()
    assert producer.confirmed == [str(number) for number in range(count)]


def consume(world: World, count: int, queue: str = "a", prefetch: int = 3) -> list[int]:
    client = world.consumer(queue, ACK_INDIVIDUAL, prefetch)
    acknowledged = 0
    while len(client.deliveries) < count:
        before = len(client.deliveries)
        assert before > acknowledged, f"stands still after {before}"
        client.do(*(Ack(delivery.seq, queue) for delivery in client.deliveries[acknowledged:]))
        acknowledged = before
        world.settle()
    client.do(*(Ack(delivery.seq, queue) for delivery in client.deliveries[acknowledged:]))
    world.settle()
    world.lose(client)
    return numbers(client)[:count]


def test_producers_go_on_and_everything_comes_in_order(small: World) -> None:
    fill(small, 100)
    queue = small.broker.state.queues["queue://a"]
    assert len(queue.messages) < 10
    assert queue.stored == queue.waiting == 100
    assert small.broker.memory.taken_bytes <= LIMIT_BYTES
    small.check_at_rest()
    assert consume(small, 100) == list(range(100))
    assert not queue.backlogs
    small.check_at_rest()


def test_they_survive_a_crash_in_the_middle_of_a_read(small: World) -> None:
    fill(small, 60)
    client = small.connect()
    client.subscribe("a", ACK_INDIVIDUAL, 50)
    small.turn()
    assert small.runner.jobs, "a read is under way"
    small.crash_and_recover()
    small.check_at_rest()
    assert consume(small, 60) == list(range(60))


def test_after_a_takeover_everything_waits_on_disk_and_comes_in_the_order_of_priority(small: World) -> None:
    rng = random.Random(3)
    producer = small.connect()
    sent = [(rng.choice((0, 4, 9)), number) for number in range(80)]
    for priority, number in sent:
        producer.do(Send(Message("queue://a", body(number), priority=priority), str(number)))
        small.settle()
    small.crash_and_recover()
    queue = small.broker.state.queues["queue://a"]
    assert not queue.messages
    assert small.broker.memory.taken_bytes == 0
    expected = [number for _, number in sorted(sent, key=lambda each: (-each[0], each[1]))]
    assert consume(small, 80, prefetch=1) == expected


def test_what_the_disk_does_not_keep_takes_its_place_between(small: World) -> None:
    """Order is by seq, also where some wait in memory and others on disk."""
    producer = small.connect()
    for number in range(60):
        producer.do(Send(Message("queue://a", body(number), persistent=number % 20 != 0), str(number)))
        small.settle()
    assert small.broker.state.queues["queue://a"].backlogs
    assert consume(small, 60, prefetch=1) == list(range(60))


def test_small_messages_that_are_read_at_once_do_not_fill_the_memory(small: World) -> None:
    """In memory each takes several times its place on disk, also while it is being read."""
    producer = small.connect()
    names = [f"q{number}" for number in range(10)]
    for name in names:
        for number in range(20):
            producer.send(b"%d" % number, name)
            small.settle()
    small.crash_and_recover()
    clients = [small.connect() for _ in names]
    for client, name in zip(clients, names, strict=True):
        client.subscribe(name, ACK_INDIVIDUAL, 1)
    small.settle()
    assert small.broker.memory.taken_bytes <= small.broker.memory.paging_bytes
    for client in clients:
        client.lose()
    small.settle()
    assert [consume(small, 20, name) for name in names] == [list(range(20))] * len(names)


def test_a_memory_full_of_messages_that_wait_behind_one_on_disk_stops_nobody(small: World) -> None:
    fill(small, 20)
    producer = small.connect()
    count = 20
    while producer.reading:
        producer.send(body(count), persistent=False, receipt=False)
        small.settle()
        count += 1
    assert small.broker.memory.taken_bytes >= LIMIT_BYTES
    assert consume(small, count) == list(range(count))


def test_what_comes_back_is_delivered_before_what_waits_on_disk(small: World) -> None:
    fill(small, 40)
    client = small.connect()
    client.subscribe("a", ACK_INDIVIDUAL, 5)
    small.settle()
    assert numbers(client) == [0, 1, 2, 3, 4]
    client.lose()
    small.settle()
    assert consume(small, 40) == list(range(40))


def test_each_queue_has_its_share_of_the_memory(make_world: Callable[..., World]) -> None:
    world = make_world(memory_limit_bytes=10 * LIMIT_BYTES)
    fill(world, 200, "greedy")
    greedy = world.broker.state.queues["queue://greedy"]
    assert greedy.resident_bytes < 0.5 * 10 * LIMIT_BYTES
    fill(world, 10, "modest")
    assert len(world.broker.state.queues["queue://modest"].messages) == 10


def test_what_expires_on_disk_is_dropped_or_moved(make_world: Callable[..., World]) -> None:
    world = make_world(memory_limit_bytes=LIMIT_BYTES, expired_messages="dead-letter")
    fill(world, 30, expires_ms=world.clock.wall_ms() + 1000)
    fill(world, 30)
    world.clock.advance(2.0)
    for _ in range(3):
        world.sweep()
    assert world.broker.state.queues["queue://a"].stored == 30
    assert consume(world, 30, "DLQ.a") == list(range(30))
    assert consume(world, 30) == list(range(30))
    world.check_at_rest()


def test_a_consumer_that_comes_while_expired_messages_are_read_gets_those_behind_them(world: World) -> None:
    """The read for the expired ones keeps it from reading; when that is done it is its turn."""
    producer = world.connect()
    producer.send(b"late", expires_ms=world.clock.wall_ms() + 1000)
    producer.send(b"next")
    world.settle()
    world.crash_and_recover()
    world.clock.advance(1.5)
    client = world.connect()
    client.subscribe()
    world.sweep()
    assert client.bodies == [b"next"]
    world.check_at_rest()


def test_damage_on_disk_is_told_with_file_and_offset_and_nothing_is_skipped(small: World) -> None:
    fill(small, 40)
    queue = small.broker.state.queues["queue://a"]
    (backlog,) = queue.backlogs.values()
    place = list(backlog)[3]
    (segment,) = [each for each in small.journal.segments if each.code == place.segment]
    path = os.path.join(small.store, "journal", segment.name)
    flip(path, place.offset + place.size - 1)
    client = small.connect()
    client.subscribe("a", ACK_AUTO, 0)
    small.settle()
    assert len(small.failures) == 1
    assert f"{segment.name}: offset {place.offset}: record fails its checksum" in small.failures[0]
    assert numbers(client) == list(range(len(client.deliveries)))
    assert place.seq not in [delivery.seq for delivery in client.deliveries]


def test_a_segment_that_goes_while_it_is_read_was_copied_forward(make_world: Callable[..., World]) -> None:
    """The read fails, and is done again where the messages stand now."""
    world = make_world(memory_limit_bytes=LIMIT_BYTES, journal_segment_size_bytes=8 << 10)
    fill(world, 4, "old")
    fill(world, 20)
    world.crash_and_recover()
    consumer = world.connect()
    consumer.subscribe("old", ACK_INDIVIDUAL, 1)
    world.turn()
    read, done = world.runner.jobs.popleft()
    consume(world, 20)
    for _ in range(12):  # traffic that leaves segments behind, until the first is copied forward and deleted
        fill(world, 10)
        consume(world, 10)
    assert not os.path.exists(os.path.join(world.store, "journal", "00000001-00000001.seg"))
    with pytest.raises(FileNotFoundError):
        read()
    done(None, FileNotFoundError())
    world.settle()
    assert not world.failures
    assert numbers(consumer) == [0]


def test_what_comes_back_takes_its_old_place_also_beside_what_was_overtaken() -> None:
    """A message that the disk does not keep waits at once, an older one of the others only when it is durable."""
    queue = Queue("queue://a", BrokerConfig())
    oldest, old, young = (Message("queue://a", b"", persistent=False, seq=seq) for seq in (1, 2, 3))
    queue.push(young)
    queue.push(oldest)
    queue.put_back([old])
    assert list(queue.levels[4]) == [oldest, old, young]
