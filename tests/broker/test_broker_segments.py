"""What the journal does for the broker: nothing is confirmed before it is durable and ours, segments are given back."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from amq.protocols.stomp.subscribing import ACK_AUTO
from amq.store.segment_log import JOURNAL_DIRECTORY
from tests.broker.world import World

# -- lease -------------------------------------------------------------------------------------------------------------


def test_nothing_is_confirmed_or_delivered_while_the_lease_is_in_doubt(world: World) -> None:
    producer = world.connect()
    before = producer.send(b"1")
    world.settle()
    client = world.consumer()
    seen = list(client.confirmed)
    world.valid = False
    receipts = [producer.send(b"2"), producer.send(b"n", persistent=False)]
    acknowledged = client.ack(b"1")
    other = world.consumer()
    world.settle()
    assert producer.confirmed == [before]
    assert (client.bodies, client.confirmed, other.confirmed) == ([b"1"], seen, [])
    world.valid = True
    world.journal.lease_renewed()
    world.settle()
    assert set(receipts) <= set(producer.confirmed)
    assert acknowledged in client.confirmed
    assert sorted(client.bodies + other.bodies) == [b"1", b"2", b"n"]
    world.check_at_rest()


def test_what_was_not_confirmed_when_the_lease_ran_out_may_be_there_or_not(world: World) -> None:
    producer = world.connect()
    producer.send(b"1")
    world.turn()
    world.valid = False
    producer.send(b"2")
    world.settle()
    assert producer.confirmed == []
    world.valid = True
    world.crash_and_recover()
    assert world.stored() == [b"1"]  # durable, by chance; the second never reached the disk


def test_receipts_come_in_the_turn_after_the_sync(world: World) -> None:
    producer = world.connect()
    receipt = producer.send(b"1")
    world.turn()
    world.runner.work()
    world.turn()
    assert producer.confirmed == []
    world.runner.post()
    assert producer.confirmed == []
    world.turn()
    assert producer.confirmed == [receipt]


def test_a_message_is_delivered_only_when_it_is_durable(world: World) -> None:
    client = world.consumer()
    world.connect().send(b"1")
    world.turn()
    world.runner.work()
    world.turn()
    assert client.bodies == []
    world.settle()
    assert client.bodies == [b"1"]


def test_a_small_batch_may_be_synced_in_place(world: World) -> None:
    producer = world.connect()
    receipt = producer.send(b"1")
    world.turn(inline=True)
    assert producer.confirmed == [receipt]


# -- segments ----------------------------------------------------------------------------------------------------------


def pump(world: World, count: int) -> None:
    """Messages come and go."""
    producer = world.connect()
    client = world.consumer("pump", ACK_AUTO)
    for _ in range(count):
        producer.send(bytes(500), "pump")
        world.settle()
    for each in (producer, client):
        each.lose()
    world.settle()


@pytest.fixture
def tiny(make_world: Callable[..., World]) -> World:
    return make_world(journal_segment_size_bytes=2048)


def test_segments_that_hold_nothing_are_given_back(tiny: World) -> None:
    pump(tiny, 50)
    assert len(tiny.segments()) <= 4
    tiny.check_at_rest()
    assert [segment.name for segment in tiny.journal.segments] == tiny.segments()[:1], "or one that nobody needs yet"


def test_a_message_that_stays_is_copied_forward(tiny: World) -> None:
    world = tiny
    for body in (b"1", b"2", b"3"):
        world.connect().send(body, "a", duplicate_id=body.decode(), properties={"colour": "red"})
    world.settle()
    world.lose(world.consumer(prefetch=1))
    for _ in range(3):
        pump(world, 50)
        assert len(world.segments()) <= 8
        world.check_at_rest()
        world.crash_and_recover()
    again = world.connect()
    again.send(b"2", duplicate_id="2")
    client = world.consumer()
    assert client.bodies == [b"1", b"2", b"3"]
    assert [delivery.redelivered for delivery in client.deliveries] == [1, 0, 0]
    assert client.deliveries[0].message.properties == {"colour": "red"}


def test_a_message_that_leaves_is_not_copied_behind_its_acknowledgement(tiny: World) -> None:
    world, count = tiny, 60
    stays = world.connect()
    for number in range(count):
        stays.send(b"%d" % number)
    world.settle()
    pump(world, 110)
    client, producer = world.consumer(), world.connect()
    world.consumer("pump", ACK_AUTO)
    for number in range(count):
        producer.send(bytes(500), "pump")
        world.turn()
        client.begin()
        client.ack(b"%d" % number, "t")
        client.commit()  # waits while the batch before it commits
        world.settle_and_check()
    assert world.segments()[0] > "00000001-00000004.seg"
    world.crash_and_recover()
    assert world.stored() == []


@pytest.mark.parametrize("steps", range(24))
def test_a_crash_while_segments_are_given_back_brings_nothing_back(tiny: World, steps: int) -> None:
    world = tiny
    world.connect().send(b"stay", "a")
    world.connect().send(b"keep", "b", duplicate_id="k")
    world.settle()
    pump(world, 20)
    stay, keep = world.consumer(), world.consumer("b")
    receipts = [stay.ack(b"stay"), keep.ack(b"keep")]
    for _ in range(steps):
        world.turn()
        world.runner.step()
    confirmed = [receipt in client.confirmed for receipt, client in zip(receipts, (stay, keep), strict=True)]
    world.crash_and_recover(jobs=steps % 2)
    assert world.stored("pump") == []
    assert list(world.broker.state.queues["queue://b"].duplicates) == ["k"]
    for queue, gone in zip("ab", confirmed, strict=True):
        assert not (gone and world.stored(queue))
        for body in world.stored(queue):
            world.consumer(queue).ack(body)
            world.settle()
    pump(world, 8)
    world.check_at_rest()
    assert len(world.segments()) <= 5


def test_segments_of_earlier_masters_are_given_back_too(tiny: World) -> None:
    for _ in range(5):
        pump(tiny, 10)
        tiny.crash_and_recover()
    assert len(tiny.segments()) <= 4
    tiny.check_at_rest()


def test_giving_back_ends_where_what_must_be_copied_is_larger_than_a_segment(make_world: Callable[..., World]) -> None:
    """Ids of many queues: the copies fill segments of their own, which hold no message either."""
    world = make_world(journal_segment_size_bytes=2048, duplicate_window=5)
    for queue in range(40):
        producer = world.connect()
        for number in range(5):
            producer.send(b"x", f"q{queue}", duplicate_id=f"{queue}-{number}-" + "x" * 60)
        producer.lose()
    world.settle()
    for queue in range(40):
        world.consumer(f"q{queue}", ACK_AUTO).lose()
    world.settle()  # fails where it does not come to rest
    before = world.replayed()
    size = sum(os.path.getsize(os.path.join(world.store, JOURNAL_DIRECTORY, name)) for name in world.segments())
    assert size < 8 * 40 * 5 * 70
    world.check_at_rest()
    world.crash_and_recover()
    world.check_at_rest()
    assert list(world.replayed()["queues"]) == list(before["queues"])
