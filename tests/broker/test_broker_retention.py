"""Last-value and ring queues: what must go goes, what a consumer holds stays, also after a takeover."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest

from amq.broker.names import shelves
from amq.broker.queues.queue import FEW, Queue
from amq.broker.queues.retention import KEYS_SPARE, UNREAD_ROWS
from amq.broker.waiters import Unasked
from amq.config.destination_options import DestinationOptions
from amq.core.message import Message
from amq.journal.records import PURGED, Consumed, Group, Moved
from amq.protocols.stomp.subscribing import ACK_AUTO
from tests.broker.world import Client, World
from tests.sampling import sampled

KEY = "_AMQ_LVQ_NAME"
MakeWorld = Callable[..., World]


@pytest.fixture
def last_value(make_world: MakeWorld) -> World:
    return make_world(last_value_key=KEY)


@pytest.fixture
def ring(make_world: MakeWorld) -> World:
    return make_world(ring_size=3)


def put(client: Client, key: str, body: str, **fields: object) -> None:
    """Send a new value of `key`, "" = a message without one."""
    client.send(body.encode(), properties={KEY: key} if key else None, **fields)


def put_all(world: World, *values: str, **fields: object) -> None:
    """Values such as "a1": the key and the whole body. One turn for each."""
    client = world.connect()
    for value in values:
        put(client, value[:-1], value, **fields)
        world.settle()


def drained(world: World) -> list[str]:
    """What a consumer that takes everything gets."""
    world.check_at_rest()
    client = world.consumer(ack=ACK_AUTO)
    bodies = [body.decode() for body in client.bodies]
    world.lose(client)
    world.check_at_rest()
    return bodies


def queue_of(world: World) -> Queue:
    return world.broker.state.queues["queue://a"]


def purged(world: World) -> list[int]:
    """Seqs that leave by records which nobody asked for, from now on."""
    seqs: list[int] = []
    append = world.journal.append_record

    def watch(record: object) -> None:
        if isinstance(record, Consumed) and record.reason == PURGED:
            seqs.extend(record.seqs)
        append(record)  # type: ignore[arg-type]

    world.journal.append_record = watch  # type: ignore[method-assign, assignment]
    return seqs


# -- last values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
def test_of_each_key_the_newest_waits(last_value: World, persistent: bool) -> None:
    put_all(last_value, "a1", "b1", "a2", "c1", "a3", "b2", persistent=persistent)
    assert drained(last_value) == ["c1", "a3", "b2"]


def test_many_in_one_turn_and_in_one_transaction(last_value: World) -> None:
    client = last_value.connect()
    client.begin()
    for number in range(2 * FEW):
        put(client, f"k{number % 5}", str(number), transaction="t", receipt=False)
    client.commit()
    for number in range(100, 100 + 4 * FEW):
        put(client, f"k{number % 5}", str(number), receipt=False)
        put(client, f"own {number}", f"own {number}", receipt=False)
    last_value.settle()
    bodies = drained(last_value)
    assert [body for body in bodies if "own" not in body] == [str(number) for number in range(223, 228)]
    assert len(bodies) == 5 + 4 * FEW


def test_messages_without_the_property_all_wait(last_value: World) -> None:
    client = last_value.connect()
    for body in "xyx":
        put(client, "", body)
    client.send(b"z", properties={"other": "1"})
    last_value.settle()
    assert drained(last_value) == ["x", "y", "x", "z"]


def test_priorities_do_not_make_another_key(last_value: World) -> None:
    client = last_value.connect()
    put(client, "a", "a1", priority=9)
    put(client, "b", "b1", priority=9)
    last_value.settle()
    put(client, "a", "a2", priority=1)
    last_value.settle()
    assert drained(last_value) == ["b1", "a2"]


def test_what_a_consumer_holds_is_not_taken_away(last_value: World) -> None:
    put_all(last_value, "a1", "b1")
    holder = last_value.consumer(prefetch=1)
    assert holder.bodies == [b"a1"]
    put_all(last_value, "a2", "a3", "b2")
    assert last_value.stored() == [b"a1", b"a3", b"b2"]
    holder.ack(b"a1")
    last_value.settle()
    assert holder.bodies == [b"a1", b"a3"]
    holder.lose()
    last_value.settle()
    assert drained(last_value) == ["a3", "b2"]


@pytest.mark.parametrize("way", ["lose", "abort", "requeue"])
def test_what_comes_back_goes_where_there_is_a_newer_one(last_value: World, way: str) -> None:
    put_all(last_value, "a1", "b1")
    holder = last_value.consumer(prefetch=2)
    if way == "abort":
        holder.begin()
        holder.ack(b"a1", "t")
        holder.ack(b"b1", "t")
    put_all(last_value, "a2")
    if way == "abort":
        holder.abort()
    elif way == "requeue":
        holder.nack(b"a1", requeue=True)
        holder.nack(b"b1", requeue=True)
    else:
        holder.lose()
    last_value.settle()
    bodies = [body.decode() for body in holder.bodies[2:]] if way != "lose" else drained(last_value)
    assert bodies == (["a2", "b1"] if way == "abort" else ["b1", "a2"])  # acknowledging makes room for a2 at once


def test_one_that_waits_for_its_time_goes_too(make_world: MakeWorld) -> None:
    world = make_world(last_value_key=KEY, redelivery_delay_s=10.0, maximum_redeliveries=-1)
    put_all(world, "a1", "b1")
    holder = world.consumer(prefetch=2)
    holder.nack(b"a1", requeue=True)
    holder.nack(b"b1", requeue=True)
    world.settle()
    assert len(queue_of(world).delayed) == 2
    put_all(world, "a2")
    assert world.stored() == [b"b1", b"a2"]
    world.check_at_rest()
    world.clock.advance(11)
    world.turn()
    world.settle()
    assert holder.bodies == [b"a1", b"b1", b"a2", b"b1"]


def test_a_value_that_was_consumed_leaves_no_trace(last_value: World) -> None:
    put_all(last_value, "a1")
    assert drained(last_value) == ["a1"]
    seqs = purged(last_value)
    put_all(last_value, "a2")
    assert drained(last_value) == ["a2"]
    assert seqs == []


def test_keys_of_messages_that_left_are_forgotten(last_value: World) -> None:
    reader = last_value.consumer(ack=ACK_AUTO)
    client = last_value.connect()
    retention = None
    for number in range(3 * KEYS_SPARE):
        put(client, f"key {number}", "x", receipt=False, persistent=False)
        if number % 100 == 0:
            last_value.settle()
            retention = queue_of(last_value).retention
            assert retention is not None
            assert len(retention._newest) <= KEYS_SPARE + 300
    assert retention is not None
    assert len(reader.bodies) > 2 * KEYS_SPARE
    reader.lose()
    put_all(last_value, "a1", "b1", "a2")
    assert [body for body in drained(last_value) if body != "x"] == ["b1", "a2"]


def test_selectors_groups_and_browsers_see_the_newest_only(last_value: World) -> None:
    wants_b = last_value.consumer(selector=f"{KEY} = 'b'", prefetch=1)
    put_all(last_value, "a1", "b1", "a2", "b2", "b3")
    assert wants_b.bodies == [b"b1"]
    browser = last_value.consumer(browser=True)
    assert browser.bodies == [b"b1", b"a2", b"b3"]
    wants_b.ack(b"b1")
    last_value.settle()
    assert wants_b.bodies == [b"b1", b"b3"]
    wants_b.lose()
    last_value.settle()
    assert drained(last_value) == ["a2", "b3"]


def test_a_replaced_message_is_still_a_known_duplicate(last_value: World) -> None:
    client = last_value.connect()
    for id, body in [("1", "a1"), ("2", "a2"), ("1", "a1")]:
        put(client, "a", body, duplicate_id=id)
        last_value.settle()
    assert drained(last_value) == ["a2"]


# -- last values that wait on disk -------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["send", "consume"])
def test_keys_are_known_again_after_a_takeover(last_value: World, first: str) -> None:
    put_all(last_value, "a1", "b1", "c1")
    last_value.crash_and_recover()
    retention = queue_of(last_value).retention
    assert retention is not None
    assert not retention._newest, "it was read before anybody used the queue"
    if first == "consume":
        holder = last_value.consumer(prefetch=1)
        assert holder.bodies == [b"a1"]
        put_all(last_value, "a2", "b2")
        assert last_value.stored() == [b"a1", b"c1", b"a2", b"b2"]
        holder.lose()
        last_value.settle()
    else:
        put_all(last_value, "a2", "b2")
        assert len(last_value.everything(queue_of(last_value))) == 3
    assert drained(last_value) == ["c1", "a2", "b2"]


def test_both_values_on_disk_where_the_word_of_the_older_ones_end_was_lost(last_value: World) -> None:
    """Nobody gets the older one, though it is there: nothing is delivered before all is read."""
    client = last_value.connect()
    put(client, "a", "a1", priority=7)
    put(client, "b", "b1")
    last_value.settle()
    put(client, "a", "a2")
    last_value.turn()  # the batch is on its way; what it brings about is not
    last_value.crash_and_recover(jobs=1)
    assert sorted(map(bytes, last_value.stored())) == [b"a1", b"a2", b"b1"]
    assert drained(last_value) == ["b1", "a2"]
    last_value.crash_and_recover()
    assert last_value.stored() == []


@pytest.mark.parametrize("expires", [0, 10**15])
def test_values_that_went_to_the_disk_are_replaced_there(make_world: MakeWorld, expires: int) -> None:
    world = make_world(last_value_key=KEY, memory_limit_bytes=20_000)
    client = world.connect()
    for number in range(120):
        put(client, f"k{number % 60}", f"{number:03}" + "x" * 200, expires_ms=expires if number % 3 else 0)
        world.settle()
    assert queue_of(world).backlogs
    assert [int(body[:3]) for body in drained(world)] == list(range(60, 120))


def test_nothing_is_read_where_nobody_comes(last_value: World) -> None:
    put_all(last_value, *(f"k{number:02}1" for number in range(30)))
    last_value.crash_and_recover()
    reads: list[int] = []
    read = last_value.journal.reader.read
    last_value.journal.reader.read = lambda places, then: (reads.append(len(places)), read(places, then))  # type: ignore[method-assign, assignment, func-returns-value]
    last_value.broker.sweep()
    last_value.settle()
    assert reads == []
    put_all(last_value, "k011")
    assert reads == [31], "read through once, the new one too, which waits behind the others"
    put_all(last_value, "k011", "k121")
    assert reads == [31]
    assert len(last_value.everything(queue_of(last_value))) == 30


@pytest.mark.parametrize("crash", [True, False])
def test_values_that_several_queues_share(last_value: World, crash: bool) -> None:
    """One record for all: what one queue replaces the others keep."""
    for value in ("a1", "b1"):
        put(last_value.connect(), value[0], value, queue="queue://a,queue://b")
        last_value.settle()
    if crash:
        last_value.crash_and_recover()
    put_all(last_value, "a2")
    put(last_value.connect(), "b", "b2", queue="queue://a,queue://b")
    last_value.settle()
    last_value.check_at_rest()
    assert last_value.stored("b") == [b"a1", b"b2"]
    assert drained(last_value) == ["a2", "b2"]
    reader = last_value.consumer(queue="b")
    assert reader.bodies == [b"a1", b"b2"]
    last_value.check_at_rest()


@pytest.mark.parametrize("count", [1, 3 * UNREAD_ROWS])
def test_what_is_moved_here_on_the_disk_counts_too(last_value: World, count: int) -> None:
    """As from a prepared transaction: by a record that moves it, unread."""
    put_all(last_value, "a1", "b1")
    real, sent, _ = shelves("queue://a")
    for number in range(count):
        message = Message(sent, b"%d" % number, {KEY: f"moved {number % 100}"})
        last_value.broker.store(message, Unasked(last_value.connect(), 0))
    for body, key in [(b"a2", "a"), (b"c1", "c")]:
        last_value.broker.store(Message(sent, body, {KEY: key}), Unasked(last_value.connect(), 0))
    last_value.settle()
    put_all(last_value, "c2")
    seqs = list(last_value.everything(last_value.broker.state.queues[sent]))
    last_value.journal.append_record(Group([Moved(sent, real, seqs)]))
    last_value.settle()
    expected = [str(number) for number in range(max(0, count - 100), count)]
    assert drained(last_value) == ["b1", *expected, "a2", "c2"]


# -- rings -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
def test_the_newest_wait(ring: World, persistent: bool) -> None:
    put_all(ring, *(f"x{number}" for number in range(8)), persistent=persistent)
    assert drained(ring) == ["x5", "x6", "x7"]


def test_the_oldest_goes_whatever_its_priority(ring: World) -> None:
    client = ring.connect()
    for number, priority in enumerate([9, 0, 9, 0, 4]):
        client.send(b"%d" % number, priority=priority)
        ring.settle()
    assert drained(ring) == ["2", "4", "3"]


def test_what_consumers_have_does_not_count(ring: World) -> None:
    holder = ring.consumer(prefetch=2)
    put_all(ring, *(f"x{number}" for number in range(8)))
    assert ring.stored() == [b"x0", b"x1", b"x5", b"x6", b"x7"]
    holder.lose()
    ring.settle()
    assert drained(ring) == ["x5", "x6", "x7"]


def test_a_consumer_that_keeps_pace_gets_everything(ring: World) -> None:
    reader = ring.consumer(ack=ACK_AUTO)
    client = ring.connect()
    for number in range(20):
        client.send(b"%d" % number, receipt=False)
    ring.settle()
    assert len(reader.bodies) == 20
    ring.check_at_rest()


def test_a_ring_across_a_takeover(ring: World) -> None:
    put_all(ring, "x0", "x1", "x2")
    ring.crash_and_recover()
    seqs = purged(ring)
    put_all(ring, "x3", "x4")
    assert len(seqs) == 2
    ring.crash_and_recover()
    assert drained(ring) == ["x2", "x3", "x4"]


def test_who_waits_for_what_goes_meanwhile_gets_the_next(make_world: MakeWorld) -> None:
    """It is being read from the disk for a consumer, and is all that waits with its priority."""
    world = make_world(ring_size=2)
    client = world.connect()
    client.send(b"first", priority=5)
    client.send(b"second")
    world.settle()
    world.crash_and_recover()
    reader, client = world.connect(), world.connect()
    reader.subscribe(prefetch=1)
    world.turn()
    assert world.broker.pager.is_reading(queue_of(world))
    client.send(b"third", persistent=False)
    world.settle()
    assert reader.bodies == [b"second"]
    reader.ack(b"second")
    world.settle()
    assert reader.bodies == [b"second", b"third"]
    world.check_at_rest()


def test_options_are_live_and_for_single_destinations(make_world: MakeWorld) -> None:
    world = make_world(destinations=(DestinationOptions("a.>", {"ring_size": 5}),))
    client = world.connect()
    for queue in ("a", "a.b", "b"):
        for number in range(7):
            client.send(b"%d" % number, queue, properties={"k": str(number % 3)})
    world.settle()
    assert [len(world.stored(queue)) for queue in ("a", "a.b", "b")] == [5, 5, 7]
    tables = (DestinationOptions("*", {"last_value_key": "k"}), DestinationOptions("a.b", {"ring_size": 1}))
    world.broker.reconfigure(dataclasses.replace(world.config, destinations=tables))
    world.consumer(queue="b", browser=True)  # it is read when somebody comes
    world.settle()
    assert world.stored("b") == [b"4", b"5", b"6"]
    assert world.stored("a.b") == [b"6"]
    world.broker.reconfigure(dataclasses.replace(world.config, destinations=()))
    client.send(b"7", "b", properties={"k": "0"})
    world.settle()
    assert world.stored("b") == [b"4", b"5", b"6", b"7"]
    world.check_at_rest()


def test_both_at_once(make_world: MakeWorld) -> None:
    world = make_world(last_value_key=KEY, ring_size=2)
    put_all(world, "a1", "b1", "c1", "b2", "a2", "a3")
    assert drained(world) == ["b2", "a3"]


# -- everything together -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", sampled(range(12)))
def test_random_walks(make_world: MakeWorld, seed: int) -> None:
    """Whatever happens, the newest value of a key that nobody has consumed is there, and none but it waits."""
    rng = random.Random(seed)
    size = rng.choice([0, 0, 4])
    world = make_world(
        last_value_key=KEY,
        ring_size=size,
        memory_limit_bytes=rng.choice([20_000, 1 << 20]),
        maximum_redeliveries=-1,
    )
    producer, consumers, newest, consumed = world.connect(), [world.connect()], {}, set()
    consumers[0].subscribe(prefetch=3)
    for number in range(150):
        action = rng.random()
        if action < 0.6:
            key = f"k{rng.randrange(6)}"
            body = f"{key} {number} " + "x" * rng.randrange(300)
            put(producer, key, body, priority=rng.randrange(3, 6), persistent=rng.random() < 0.8)
            newest[key] = body.encode()
        elif action < 0.75:
            reader = rng.choice(consumers)
            held = [each for each in reader.deliveries if each.seq in reader.consumers["a"].unacked]
            if held:
                consumed.add(held[0].body)
                reader.ack(held[0].body)
        elif action < 0.85 and len(consumers) < 4:
            consumers.append(world.connect())
            consumers[-1].subscribe(prefetch=rng.randrange(1, 4))
        elif action < 0.93 and len(consumers) > 1:
            consumers.pop(rng.randrange(len(consumers))).lose()
        elif action < 0.96:
            world.settle()
            kept = {message.body for message in world.everything(queue_of(world)).values() if message.persistent}
            newest = {key: body for key, body in newest.items() if body in kept}  # else an older one may come back
            world.crash_and_recover()
            producer, consumers = world.connect(), [world.connect()]
            consumers[0].subscribe(prefetch=3)
        if rng.random() < 0.5:
            world.settle_and_check()
            queue = queue_of(world)
            out = {seq for subscription in queue.subscriptions for seq in subscription.unacked}
            everything = world.everything(queue)
            waiting = [message for seq, message in everything.items() if seq not in out]
            keys = [message.properties[KEY] for message in waiting if message.properties]
            assert len(keys) == len(set(keys)) == len(waiting)
            assert not size or len(waiting) <= size
            there = {message.body for message in everything.values()}
            if not size:
                assert {body for body in newest.values() if body not in consumed} <= there
            for key, message in zip(keys, waiting, strict=True):
                assert message.body == newest.get(key, message.body)
