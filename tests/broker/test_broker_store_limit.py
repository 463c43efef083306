"""The limit of the store: producers wait or are refused, consumers go on, and there is always a way out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from amq.protocols.stomp.subscribing import ACK_AUTO
from tests.broker.test_broker_durables import leave, subscriber
from tests.broker.test_broker_limits import MakeWorld, ack_all, send_many
from tests.broker.test_broker_scheduling import later, schedule, scheduled
from tests.broker.world import Client, World

SEGMENT_BYTES = 16 << 10
STEPS_MAX = 200


def small_store(make_world: MakeWorld, **config: Any) -> World:
    return make_world(store_limit_bytes=16 * SEGMENT_BYTES, **config)


def fill(world: World, queue: str = "a") -> Client:
    """A producer that has been stopped by the limit of the store."""
    producer = world.connect()
    for _ in range(STEPS_MAX):
        if not producer.reading or producer.errors:
            break
        send_many(producer, 5, queue)
        world.settle()
        assert len(world.segments()) <= 16
    assert world.journal.at_limit
    return producer


def test_at_the_store_limit_producers_wait_and_consumers_go_on(make_world: MakeWorld) -> None:
    world = small_store(make_world)
    producer = fill(world)
    confirmed = len(producer.confirmed)
    quick = world.send(b"np", queue="np", persistent=False)
    assert len(quick.confirmed) == 1  # it takes no room in the store
    slow = world.consumer(prefetch=1)
    done = 0
    while len(producer.confirmed) == confirmed:
        done = ack_all(slow, done)
        world.sweep()
    assert not world.journal.at_limit
    assert len(world.segments()) <= 16


def test_at_the_store_limit_the_policy_fail_refuses(make_world: MakeWorld) -> None:
    world = small_store(make_world, producer_flow_control="fail")
    producer = fill(world)
    assert producer.codes == ["STORE_LIMIT"]
    client = world.connect()
    client.begin()
    send_many(client, 1, "a", "t")
    commit = client.commit()
    world.settle()
    assert client.errors == [("STORE_LIMIT", commit)]
    world.consumer(ack=ACK_AUTO)
    world.sweep()
    send_many(world.connect(), 1, "b")
    world.settle()
    assert len(world.stored("b")) == 1


def test_at_the_store_limit_old_messages_that_nobody_wants_do_not_stop_the_others_for_ever(
    make_world: MakeWorld,
) -> None:
    """Parked messages stand between those that go: the room between them is got back by copying."""
    world = small_store(make_world)
    producer = world.connect()
    while producer.reading:
        send_many(producer, 1, "parked")
        if producer.reading:
            send_many(producer, 1, "a")
        world.settle()
    parked = len(world.stored("parked"))
    world.consumer(ack=ACK_AUTO)
    for _ in range(100):
        world.sweep()
    assert not world.journal.at_limit
    assert len(world.stored("parked")) - parked in (0, 1)
    more = world.connect()
    for _ in range(50):  # as much again as the store may hold
        send_many(more, 5)
        world.settle()
    assert len(more.confirmed) == 250
    world.check_at_rest()


def test_at_the_store_limit_remembered_ids_do_not_keep_what_stood_beside_them(make_world: MakeWorld) -> None:
    """All was consumed, and two thirds of what is stored are ids: producers waited for ever."""
    world = small_store(make_world, duplicate_window=270)
    producer, eager = world.connect(), world.connect()
    eager.subscribe("a", ACK_AUTO)
    count = 2000
    for number in range(count):
        if not producer.reading:
            break
        producer.send(bytes(100), duplicate_id=f"{number}".rjust(300, "x"))
        world.settle()
        world.turn(unasked=True)  # what is consumed without receipt waits for company
        world.settle()
    assert len(producer.confirmed) == count, "the producer waits, and nothing will ever make room"
    assert len(world.segments()) <= 16


def test_the_store_limit_can_be_raised_while_producers_wait(make_world: MakeWorld) -> None:
    world = small_store(make_world)
    producer = fill(world)
    waiting = len(producer.confirmed)
    world.broker.reconfigure(dataclasses.replace(world.config, store_limit_bytes=0))
    world.settle()
    assert len(producer.confirmed) > waiting
    assert producer.reading


def test_a_store_that_is_full_of_what_lives_is_not_copied_again_and_again(make_world: MakeWorld) -> None:
    """The room that copies take on their way held a store at its limit, and that had everything copied anew, for ever:
    producers waited beside half a store of room (seed 7002499)."""
    world = make_world(
        journal_segment_size_bytes=4096,
        store_limit_bytes=16 * 4096,
        duplicate_window=200,
        producer_flow_control="fail",
    )
    producer, taker = world.connect(), world.connect()
    taker.subscribe("ids", ACK_AUTO)
    for number in range(200):
        producer.send(b"x", "ids", duplicate_id=f"{number:010d}")
        world.settle()
    for number in range(16):
        producer.send(b"x" * (2300 if number % 2 else 1200), duplicate_id=f"large-{number}")
        world.settle()
    journal = world.journal
    for _ in range(30):
        world.sweep(1.0)
    written = journal.bytes_written
    for _ in range(30):
        world.sweep(1.0)
    assert journal.bytes_written == written
    assert not journal.at_limit


@pytest.mark.parametrize("waiting", [0, 1])
def test_ids_that_nearly_fill_the_store_leave_a_way_out(make_world: MakeWorld, waiting: int) -> None:
    """What is dead takes less than a third more room than the ids that are in it; or it is held back, all of it, by
    the segment of a message that waits."""
    world = small_store(make_world, duplicate_window=900)
    producer = world.connect()
    world.connect().subscribe("a", ACK_AUTO)
    send_many(producer, waiting, "waiting")
    reached = 0
    for number in range(3000):
        producer.send(b"x", "a", duplicate_id=f"{number:0140}")
        world.settle()
        reached += world.journal.at_limit
        for _ in range(STEPS_MAX):
            if producer.reading:
                break
            world.sweep(1.0)
        assert producer.reading, f"held up for ever after {number} messages"
        assert len(world.segments()) <= 16
    assert reached
    assert len(producer.confirmed) == waiting + 3000


@pytest.mark.parametrize("repeat", ["0", "2"])
def test_at_the_store_limit_what_falls_due_is_delivered(make_world: MakeWorld, repeat: str) -> None:
    """What is scheduled fills the store: to hold it back would make no room, for ever."""
    world = small_store(make_world)
    producer = world.connect()
    times = {"AMQ_SCHEDULED_DELAY": "60000", "AMQ_SCHEDULED_PERIOD": "60000", "AMQ_SCHEDULED_REPEAT": repeat}
    while producer.reading:
        send_many(producer, 5, properties=times)
        world.settle()
    count = len(scheduled(world))
    client = world.consumer(ack=ACK_AUTO)
    later(world, 59.9)
    assert world.journal.at_limit
    assert client.bodies == []
    for _ in range(400):
        later(world, 1.0)
        world.sweep()
    assert len(client.bodies) >= count * (1 + int(repeat)), "held up for ever"
    assert scheduled(world) == []
    assert producer.reading
    world.check_at_rest()


@pytest.mark.parametrize("topic", [False, True], ids=["queue", "durable subscription"])
def test_at_the_store_limit_jobs_that_repeat_for_nobody_wait(make_world: MakeWorld, topic: bool) -> None:
    """They would lead past it without end."""
    world = small_store(make_world)
    if topic:
        leave(world, subscriber(world))
    bodies = [b"%d" % number * 1000 for number in range(5)]
    schedule(world, *bodies, queue="topic://t" if topic else "a", DELAY="100", PERIOD="100", REPEAT="-1")
    for _ in range(30):
        later(world, 1.0)
    assert world.journal.at_limit
    assert len(world.segments()) <= 16
    waited = sum(queue.stored for queue in world.broker.state.queues.values())
    client = subscriber(world, ack=ACK_AUTO) if topic else world.consumer(ack=ACK_AUTO)
    for _ in range(30):
        later(world, 1.0)
        world.sweep()
    assert len(client.bodies) > 2 * waited, "nothing falls due any more"
    assert not world.journal.at_limit
    world.check_at_rest()
