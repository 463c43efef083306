"""A message of several queues is stored once, and is each queue's own in all that happens to it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amq.broker.names import shelves
from amq.journal.records import Moved
from amq.protocols.stomp.subscribing import ACK_AUTO
from tests.broker.world import Client, World
from tests.large import large_from
from tests.sampling import examples

ALL = "queue://a,queue://b,queue://c"
BODY = bytes(2000)
LARGE_BYTES = 20_000


def live_bytes(world: World) -> int:
    return sum(segment.live_bytes for segment in world.journal.segments)


def take(world: World, name: str, count: int) -> Client:
    """A consumer that has acknowledged the `count` oldest of that queue, and holds the rest."""
    client = world.consumer(name, prefetch=100)
    for delivery in client.deliveries[:count]:
        client.ack(delivery.body)
    world.settle()
    return client


def test_its_body_is_stored_and_counted_once(world: World) -> None:
    world.send(BODY, queue=ALL)
    assert len(BODY) < live_bytes(world) < len(BODY) + 300
    assert len(BODY) < world.broker.memory.taken_bytes < 2 * len(BODY) + 2000
    world.check_at_rest()
    for name in "ab":
        take(world, name, 1)
        assert live_bytes(world) > len(BODY)
        world.check_at_rest()
    take(world, "c", 1)
    assert live_bytes(world) == 0
    world.check_at_rest()


def test_each_queue_has_its_own_counts_and_ids(make_world: Callable[..., World]) -> None:
    world = make_world(maximum_redeliveries=0)
    client = world.connect()
    client.send(b"1", ALL, duplicate_id="1", properties={"k": "v"})
    client.send(b"2", "c", duplicate_id="2")
    client.send(b"2", ALL, duplicate_id="2")
    world.settle()
    assert (world.stored("a"), world.stored("c")) == ([b"1", b"2"], [b"1", b"2"])
    world.lose(take(world, "a", 0))
    assert world.stored("DLQ.a") == [b"1"]
    assert (world.stored("a"), world.stored("b")) == ([b"2"], [b"1", b"2"])
    world.crash_and_recover()
    reader = take(world, "DLQ.a", 0)
    assert (reader.deliveries[0].message.properties or {})["original-destination"] == "/queue/a"
    reader = take(world, "b", 2)
    assert [delivery.redelivered for delivery in reader.deliveries] == [0, 0]
    properties = reader.deliveries[0].message.properties
    assert properties == {"k": "v", "original-destination": "/queue/a,/queue/b,/queue/c"}
    world.check_at_rest()
    assert (world.stored("b"), world.stored("c")) == ([], [b"1", b"2"])


def test_a_consumer_of_several_of_its_queues(world: World) -> None:
    """Each delivery has a separate id."""
    client = world.connect()
    client.subscribe("queue://a,queue://b", id="s", prefetch=10)
    client.send(b"x", ALL)
    world.settle()
    first, second = client.deliveries
    assert first.seq != second.seq
    client.ack(b"x")
    world.settle_and_check()
    assert world.stored("a") + world.stored("b") == [b"x"]
    client.lose()
    world.crash_and_recover()
    assert world.stored("a") + world.stored("b") == [b"x"]


def test_in_a_transaction_with_others(world: World) -> None:
    client = world.connect()
    client.begin()
    for body, name in [(b"1", "a"), (b"2", ALL), (b"3", ALL), (b"4", "b")]:
        client.send(body, name, transaction="t")
    client.commit()
    world.settle_and_check()
    world.crash_and_recover()
    assert world.stored("a") == [b"1", b"2", b"3"]
    assert world.stored("b") == [b"2", b"3", b"4"]
    assert world.stored("c") == [b"2", b"3"]


def test_what_is_copied_forward_is_what_its_queues_still_hold(make_world: Callable[..., World]) -> None:
    world = make_world(journal_segment_size_bytes=32 << 10)
    producer = world.connect()
    for i in range(6):
        producer.send(b"%d" % i + bytes(500), ALL, duplicate_id=f"id-{i}")
    world.settle()
    take(world, "a", 6)
    holder = take(world, "b", 3)
    holder.nack(holder.deliveries[4].body, requeue=True)
    world.settle()
    first = world.segments()[0]
    passing = world.connect()
    passing.subscribe("d", ACK_AUTO)
    for _ in range(300):
        producer.send(BODY, "d")
        world.settle()
    assert first not in world.segments()
    world.check_at_rest()
    assert len(world.stored("b")) == 3
    world.crash_and_recover()
    world.check_at_rest()
    bodies = [b"%d" % i + bytes(500) for i in range(6)]
    assert (world.stored("a"), world.stored("b"), world.stored("c")) == ([], bodies[3:], bodies)
    again = world.connect()
    for i in range(6):
        again.send(bodies[i], ALL, duplicate_id=f"id-{i}")
    world.settle()
    assert (world.stored("a"), world.stored("b"), world.stored("c")) == ([], bodies[3:], bodies)
    reader = take(world, "b", 0)
    assert [delivery.redelivered for delivery in reader.deliveries] == [0, 1, 0]


@pytest.mark.parametrize("persistent", [True, False])
def test_large_bodies_count_once_wherever_they_are(make_world: Callable[..., World], persistent: bool) -> None:
    with large_from(LARGE_BYTES):
        large_bodies(make_world(memory_limit_bytes=1 << 20), persistent)


def large_bodies(world: World, persistent: bool) -> None:
    producer, body = world.connect(), bytes(LARGE_BYTES + 1)
    consumers = [world.connect() for _ in "ab"]
    for client, name in zip(consumers, "ab", strict=True):
        client.subscribe(name)
    world.settle()
    producer.send(body, ALL, persistent=persistent)
    world.settle_and_check()
    for client in consumers:
        assert client.bodies == [body]
        client.ack(body)
        world.settle_and_check()
    assert world.stored("c") == [body]
    reader = take(world, "c", 1)
    assert reader.bodies == [body]
    world.check_at_rest()
    assert world.broker.memory.taken_bytes == 0


# -- anything that happens ---------------------------------------------------------------------------------------------

STEPS = [*["send"] * 3, *["ack"] * 2, "plain", "nack", "fill", "crash", "abort", "commit", "hide"]
steps = st.lists(
    st.tuples(
        st.sampled_from(STEPS),
        st.integers(0, 6),
        st.sampled_from([10, 400, 3000]),
    ),
    max_size=40,
)
SETS = ["queue://a,queue://b", ALL, "queue://c,queue://a", "queue://b", ALL, "queue://b,queue://c", ALL]


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps, st.integers(0, 1 << 16))
def test_each_queue_holds_what_it_was_sent_and_has_not_let_go(
    tmp_path_factory: pytest.TempPathFactory, done: list[tuple[str, int, int]], seed: int
) -> None:
    world = World(
        tmp_path_factory.mktemp("store"),
        journal_segment_size_bytes=16 << 10,
        checkpoint_distance_bytes=4 << 10,
        memory_limit_bytes=40_000,
        maximum_redeliveries=-1,
    )
    try:
        walk(world, done, random.Random(seed))
    finally:
        world.close()


def fill(world: World, client: Client) -> None:
    client.subscribe("d", ACK_AUTO)
    for _ in range(12):
        client.send(bytes(1500), "d")
        world.settle()


def hide(world: World, client: Client, name: str, count: int, dice: random.Random) -> None:
    """A prepared transaction acknowledges some, and rolls back."""
    queue = world.broker.state.queue(name)
    seqs = list(world.everything(queue))[:count]
    for i, level in enumerate(queue.levels):
        if level:
            queue.levels[i] = deque(message for message in level if message.seq not in seqs)
    held = shelves(name)[2]
    world.journal.append_record(Moved(name, held, seqs))
    world.settle()
    world.check()
    if dice.random() < 0.5:
        fill(world, client)
    else:
        world.crash_and_recover()
    world.journal.append_record(Moved(held, name, seqs))


def walk(world: World, done: list[tuple[str, int, int]], dice: random.Random) -> None:
    kept: dict[str, list[bytes]] = {name: [] for name in "abc"}
    sent = 0
    for step, number, size in done:
        name = "abc"[number % 3]
        client = world.connect()
        if step in ("send", "plain", "abort", "commit"):
            sent += 1
            body = b"%d:" % sent + bytes(size)
            destination = SETS[number] if step != "plain" else f"queue://{name}"
            transaction = "t" if step in ("abort", "commit") else ""
            if transaction:
                client.begin()
            client.send(body, destination, transaction=transaction, duplicate_id=f"id-{sent}" if number % 2 else "")
            if transaction:
                getattr(client, step)()
            if step != "abort":
                for part in destination.split(","):
                    kept[part[-1]].append(body)
        elif step == "ack":
            client.subscribe(name, prefetch=number + 1)
            world.settle()
            for delivery in dice.sample(client.deliveries, len(client.deliveries)):
                client.ack(delivery.body)
                kept[name].remove(delivery.body)
        elif step == "nack":
            client.subscribe(name, prefetch=number + 1)
            world.settle()
            for delivery in list(client.deliveries):
                client.nack(delivery.body, requeue=True)
            client.lose()
        elif step == "fill":
            fill(world, client)
        elif step == "hide":
            hide(world, client, f"queue://{name}", number, dice)
        else:
            world.crash_and_recover()
        world.settle()
        world.lose(client)
        world.check()
        assert {name: world.stored(name) for name in "abc"} == kept
    world.check_at_rest()
    world.crash_and_recover()
    assert {name: world.stored(name) for name in "abc"} == kept
