"""Limits of queues: producers wait, are refused, or the oldest goes; consumers go on in every case."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from amq.broker.events import QueueLimitLeft, QueueLimitReached
from amq.broker.queues.limits import DROPPED
from amq.broker.queues.queue import Queue
from amq.broker.sessions.session import STALLED_BYTES_MAX
from amq.config.destination_options import DestinationOptions
from amq.core.message import Message
from amq.protocols.commands import Send
from amq.protocols.stomp.subscribing import ACK_AUTO
from tests.broker.notation import Ack
from tests.broker.world import Client, World

BODY = bytes(1000)
LIMIT_BYTES = 10_500  # ten messages of 1000 bytes; the tenth is taken because nine are below the limit
FITS = 11
MakeWorld = Callable[..., World]


def limited(make_world: MakeWorld, policy: str, **config: Any) -> World:
    return make_world(queue_limit_bytes=LIMIT_BYTES, queue_limit_policy=policy, **config)


def send_many(client: Client, count: int, queue: str = "a", transaction: str = "", **fields: Any) -> list[str]:
    """All in one read, as a producer that does not wait sends them. The body begins with the number."""
    receipts = [client.world.next_receipt() for _ in range(count)]
    client.do(
        *(
            Send(Message("queue://" + queue, b"%03d" % i + BODY[3:], **fields), receipt, transaction)
            for i, receipt in enumerate(receipts)
        )
    )
    return receipts


def ack_all(client: Client, done: int = 0) -> int:
    """Acknowledge what came after the first `done` deliveries; how many are done now."""
    fresh = client.deliveries[done:]
    assert fresh, "nothing comes any more"
    client.do(*(Ack(delivery.seq, delivery.subscription) for delivery in fresh))
    client.world.settle()
    return done + len(fresh)


def numbers(bodies: list[bytes]) -> list[int]:
    return [int(body[:3]) for body in bodies]


def queue_of(world: World, name: str = "a") -> Queue:
    return world.broker.state.queues["queue://" + name]


def told(world: World) -> list[tuple[str, bool]]:
    events: list[tuple[str, bool]] = []
    world.broker.events.listen(QueueLimitReached, lambda event: events.append((event.queue, True)))
    world.broker.events.listen(QueueLimitLeft, lambda event: events.append((event.queue, False)))
    return events


# -- block -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
def test_a_producer_waits_for_its_queue_and_goes_on_in_order(make_world: MakeWorld, persistent: bool) -> None:
    world = limited(make_world, "block")
    events = told(world)
    producer, other = world.connect(), world.connect()
    receipts = send_many(producer, 40, persistent=persistent)
    world.settle()
    assert 0 < len(producer.confirmed) < 12
    assert LIMIT_BYTES <= queue_of(world).stored_bytes < LIMIT_BYTES + 2000
    assert not producer.reading
    assert producer.session.traffic.received == queue_of(world).stored
    assert send_many(other, 5, "b", persistent=persistent)  # only who sends to that queue waits
    world.settle()
    assert len(other.confirmed) == 5
    slow = world.consumer(prefetch=1)
    done = 0
    while done < 40:
        done = ack_all(slow, done)
        assert queue_of(world).stored_bytes < LIMIT_BYTES + 2000
    assert numbers(slow.bodies) == list(range(40))
    assert producer.confirmed == receipts
    assert producer.session.traffic.received == 40
    world.broker.sweep()
    assert events == [("queue://a", True), ("queue://a", False)]
    world.check_at_rest()


def test_what_is_on_its_way_to_the_disk_counts(make_world: MakeWorld) -> None:
    world = limited(make_world, "block")
    producers = [world.connect() for _ in range(5)]
    for producer in producers:
        send_many(producer, 10)
        world.turn()
    world.settle()
    assert queue_of(world).stored == len(world.stored()) < 12


def test_all_who_wait_get_their_turn(make_world: MakeWorld) -> None:
    world = limited(make_world, "block")
    producers = [world.connect() for _ in range(4)]
    for producer in producers:
        send_many(producer, 10)
    world.settle()
    slow = world.consumer(prefetch=1)
    done = 0
    while done < 40:
        done = ack_all(slow, done)
        assert abs(len(producers[2].confirmed) - len(producers[3].confirmed)) <= 2
    assert [len(producer.confirmed) for producer in producers] == [10] * 4


def test_who_leaves_takes_what_waits_with_it(make_world: MakeWorld) -> None:
    world = limited(make_world, "block")
    producer = world.connect()
    send_many(producer, 20)
    world.settle()
    producer.lose()
    assert not world.broker.limits.waiting
    world.consumer(ack=ACK_AUTO)
    assert world.stored() == []
    world.check_at_rest()


def test_who_consumes_what_it_sends_does_not_wait_for_itself(make_world: MakeWorld) -> None:
    world = limited(make_world, "block")
    both = world.consumer(prefetch=3)
    receipts = send_many(both, 30)
    world.settle()
    done = 0
    while done < 30:
        done = ack_all(both, done)
    assert set(receipts) <= set(both.confirmed)
    world.check_at_rest()


def test_who_is_read_on_for_its_acknowledgements_may_not_send_without_end(make_world: MakeWorld) -> None:
    world = limited(make_world, "block")
    send_many(world.connect(), 20)
    client = world.consumer(prefetch=1)
    world.settle()
    for _ in range(STALLED_BYTES_MAX // (1 << 20) + 1):
        client.do(Send(Message("queue://a", bytes(1 << 20)), "r"))
    world.settle()
    assert client.codes == ["QUEUE_FULL"]


def test_a_commit_waits_and_then_takes_effect_whole(make_world: MakeWorld) -> None:
    world = limited(make_world, "block")
    send_many(world.connect(), 20)
    world.settle()
    before = len(world.stored())
    client = world.consumer("b")
    client.begin()
    sent = [*send_many(client, 3, "c", "t"), *send_many(client, 3, "a", "t")]
    commit = client.commit()
    world.settle()
    assert set(sent) <= set(client.confirmed)
    assert commit not in client.confirmed
    assert world.stored("c") == []
    assert len(world.stored()) == before
    world.consumer(ack=ACK_AUTO)
    assert commit in client.confirmed
    assert len(world.stored("c")) == 3
    world.check_at_rest()


def test_a_commit_that_makes_the_room_it_needs_does_not_wait_for_itself(make_world: MakeWorld) -> None:
    """The only consumer takes from the full queue and puts back into it, in one transaction."""
    world = limited(make_world, "block")
    send_many(world.connect(), FITS)
    client = world.consumer()
    client.begin()
    for delivery in list(client.deliveries):
        client.do(Ack(delivery.seq, delivery.subscription, "", "t"))
    send_many(client, FITS, "a", "t")
    commit = client.commit()
    world.settle()
    assert commit in client.confirmed
    assert len(client.deliveries) == 2 * FITS
    world.check_at_rest()


def test_a_resent_message_is_confirmed_also_where_there_is_no_room(make_world: MakeWorld) -> None:
    world = limited(make_world, "block")
    world.connect().send(BODY, duplicate_id="first")
    send_many(world.connect(), 20)
    world.settle()
    again = world.connect()
    receipt = again.send(BODY, duplicate_id="first")
    world.settle()
    assert again.confirmed == [receipt]


def test_a_message_larger_than_the_limit_has_room_in_an_empty_queue(make_world: MakeWorld) -> None:
    world = limited(make_world, "block")
    producer = world.connect()
    producer.do(*(Send(Message("queue://a", bytes(3 * LIMIT_BYTES)), "r") for _ in range(3)))
    slow = world.consumer(prefetch=1)
    done = 0
    while done < 3:
        done = ack_all(slow, done)
    assert len(producer.confirmed) == 3


def test_the_limit_holds_after_a_takeover(make_world: MakeWorld) -> None:
    world = limited(make_world, "block")
    send_many(world.connect(), 20)
    world.settle()
    size = queue_of(world).stored_bytes
    world.crash_and_recover()
    assert queue_of(world).stored_bytes == size
    producer = world.connect()
    receipts = send_many(producer, 1)
    world.settle()
    assert producer.confirmed == []
    world.consumer(ack=ACK_AUTO)
    assert producer.confirmed == receipts


# -- fail --------------------------------------------------------------------------------------------------------------


def test_a_send_is_refused_with_queue_limit_and_policy(make_world: MakeWorld) -> None:
    world = limited(make_world, "fail")
    producer = world.connect()
    receipts = send_many(producer, 20)
    world.settle()
    assert producer.errors == [("QUEUE_FULL", receipts[FITS])]
    assert len(world.stored()) == FITS
    slow = world.consumer(prefetch=1)
    ack_all(slow, ack_all(slow))
    later = world.connect()
    receipts = send_many(later, 1)
    world.settle()
    assert later.confirmed == receipts


def test_a_commit_is_rolled_back_and_can_be_tried_again(make_world: MakeWorld) -> None:
    world = limited(make_world, "fail")
    send_many(world.connect(), FITS - 1)
    send_many(world.connect(), 1, "b")
    client = world.consumer("b")
    client.begin()
    client.ack(b"000" + BODY[3:], "t")
    send_many(client, 1, "a", "t")
    send_many(world.connect(), 1)
    commit = client.commit()
    world.settle()
    assert client.errors == [("QUEUE_FULL", commit)]
    assert len(world.stored("b")) == 1
    world.check_at_rest()


# -- drop oldest -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
def test_the_oldest_go_to_the_dead_letter_queue(make_world: MakeWorld, persistent: bool) -> None:
    world = limited(make_world, "drop-oldest", destinations=(DestinationOptions("DLQ.>", {"queue_limit_bytes": 0}),))
    events = told(world)
    producer = world.connect()
    receipts = []
    for _ in range(10):
        receipts += send_many(producer, 5, persistent=persistent)
        world.settle()
    assert producer.confirmed == receipts
    stays, went = len(world.stored()), len(world.stored("DLQ.a"))
    assert stays + went == 50
    assert LIMIT_BYTES - 2000 < queue_of(world).stored_bytes <= LIMIT_BYTES
    letters = world.consumer("DLQ.a", ACK_AUTO)
    assert {d.message.properties["dead-letter-reason"] for d in letters.deliveries} == {DROPPED}  # type: ignore[index]
    ordered = [number for _ in range(10) for number in range(5)]
    assert numbers(letters.bodies) == ordered[:went]
    assert numbers(world.consumer(ack=ACK_AUTO).bodies) == ordered[went:]
    world.broker.sweep()
    assert events == [("queue://a", True), ("queue://a", False)]
    world.check_at_rest()


def test_what_waits_on_disk_is_dropped_too(make_world: MakeWorld) -> None:
    world = make_world(
        memory_limit_bytes=1 << 20,
        destinations=(DestinationOptions("a", {"queue_limit_bytes": 50_000, "queue_limit_policy": "drop-oldest"}),),
    )
    producer = world.connect()
    world.config = dataclasses.replace(world.config, memory_limit_bytes=10_000)
    world.broker.reconfigure(world.config)
    for _ in range(30):
        send_many(producer, 5)
        world.settle()
        assert world.broker.memory.taken_bytes <= 20_000
    assert queue_of(world).backlogs
    assert len(producer.confirmed) == 150
    assert 48_000 < queue_of(world).stored_bytes <= 50_000
    assert len(world.stored()) + len(world.stored("DLQ.a")) == 150
    world.check_at_rest()
    world.crash_and_recover()
    assert len(world.stored()) + len(world.stored("DLQ.a")) == 150


def test_what_consumers_hold_is_not_dropped(make_world: MakeWorld) -> None:
    world = limited(make_world, "drop-oldest")
    holder = world.consumer(prefetch=5)
    send_many(world.connect(), 5)
    world.settle()
    producer = world.connect()
    for _ in range(10):
        send_many(producer, 5)
        world.settle()
    assert len(producer.confirmed) == 50
    assert len(holder.deliveries) == 5
    ack_all(holder)
    assert numbers(holder.bodies[:5]) == list(range(5))
    world.check_at_rest()


def test_a_queue_whose_consumers_hold_more_than_the_limit_still_takes_messages(make_world: MakeWorld) -> None:
    world = limited(make_world, "drop-oldest")
    holder = world.consumer(prefetch=100)
    producer = world.connect()
    for _ in range(10):
        send_many(producer, 5)
        world.settle()
    assert len(producer.confirmed) == len(holder.deliveries) == 50
    ack_all(holder)
    assert not world.stored()
    world.check_at_rest()


def test_the_oldest_is_the_oldest_of_all_priorities(make_world: MakeWorld) -> None:
    world = limited(make_world, "drop-oldest")
    producer = world.connect()
    for i in range(30):
        producer.send(b"%03d" % i + BODY[3:], priority=(4, 9, 0)[i % 3])
        world.settle()
    assert sorted(numbers(world.stored())) == list(range(30 - len(world.stored()), 30))


def test_the_oldest_on_disk_may_be_younger_than_what_is_beside_them(make_world: MakeWorld) -> None:
    """Read together with the oldest, they were dropped together with them."""
    world = make_world()
    producer = world.connect()
    for i in range(30):
        producer.send(b"%03d" % i + BODY[3:], priority=(4, 9, 0)[i % 3])
        world.settle()
    world.crash_and_recover()  # now all wait on disk
    world.broker.reconfigure(
        dataclasses.replace(world.config, queue_limit_bytes=LIMIT_BYTES, queue_limit_policy="drop-oldest")
    )
    world.settle()
    assert len(world.stored()) < 12
    assert sorted(numbers(world.stored())) == list(range(30 - len(world.stored()), 30))


def test_a_dead_letter_queue_at_its_limit_drops_for_good(make_world: MakeWorld) -> None:
    world = limited(make_world, "drop-oldest")
    producer = world.connect()
    for _ in range(20):
        send_many(producer, 5)
        world.settle()
    assert len(producer.confirmed) == 100
    assert queue_of(world).stored_bytes <= LIMIT_BYTES
    assert LIMIT_BYTES - 2000 < queue_of(world, "DLQ.a").stored_bytes <= LIMIT_BYTES
    world.check_at_rest()
    size = queue_of(world, "DLQ.a").stored_bytes
    world.crash_and_recover()
    assert queue_of(world, "DLQ.a").stored_bytes == size


def test_dropping_keeps_pace_with_a_producer_that_does_not_wait(make_world: MakeWorld) -> None:
    """The disk gets one step for each burst: senders wait rather than that the queue grows without end."""
    world = limited(make_world, "drop-oldest")
    producer = world.connect()
    sent = 0
    while sent < 400:
        if producer.reading:
            sent += len(send_many(producer, 20))
        world.turn()
        world.runner.step()
        assert "queue://a" not in world.broker.state.queues or queue_of(world).taken_bytes < 3 * LIMIT_BYTES + 2000
    world.settle()
    assert len(producer.confirmed) == sent
    assert queue_of(world).stored_bytes <= LIMIT_BYTES
    world.check_at_rest()


def test_on_a_full_disk_nothing_is_moved_and_all_stays(make_world: MakeWorld) -> None:
    world = limited(make_world, "drop-oldest")
    producer = world.connect()
    send_many(producer, 15)
    world.vfs.answer("free_bytes", 0)
    world.journal.check_space()
    world.settle()
    everything = len(world.stored()) + len(world.stored("DLQ.a"))
    assert everything == len(producer.confirmed)
    world.vfs.heal()
    world.journal.check_space()
    world.settle()
    send_many(world.connect(), 1)
    world.settle()
    assert queue_of(world).stored_bytes <= LIMIT_BYTES
    world.check_at_rest()


@pytest.mark.parametrize("torn", [0.5, 1.0])
def test_a_crash_in_between_leaves_each_message_in_one_place(make_world: MakeWorld, torn: float) -> None:
    world = limited(make_world, "drop-oldest", destinations=(DestinationOptions("DLQ.>", {"queue_limit_bytes": 0}),))
    send_many(world.connect(), 20)
    for jobs in range(6):
        world.turn()
        world.crash(jobs=jobs, torn=torn)
        world.start()
        world.settle()
        found = numbers([*world.stored(), *world.stored("DLQ.a")])
        assert len(found) == len(set(found))
        world.check_at_rest()
        send_many(world.connect(), 20 - len(found) if len(found) < 20 else 0)


# -- configuration -----------------------------------------------------------------------------------------------------


def test_a_change_of_the_options_applies_at_once(make_world: MakeWorld) -> None:
    world = limited(make_world, "block")
    producer = world.connect()
    receipts = send_many(producer, 40)
    world.settle()
    assert len(producer.confirmed) < 40
    world.broker.reconfigure(dataclasses.replace(world.config, queue_limit_bytes=0))
    world.settle()
    assert producer.confirmed == receipts
    drops = DestinationOptions("a", {"queue_limit_bytes": LIMIT_BYTES, "queue_limit_policy": "drop-oldest"})
    world.broker.reconfigure(dataclasses.replace(world.config, queue_limit_bytes=0, destinations=(drops,)))
    world.settle()
    assert queue_of(world).stored_bytes <= LIMIT_BYTES
    assert len(world.stored()) + len(world.stored("DLQ.a")) == 40


def test_single_queues_have_their_own_redelivery_limit_and_prefetch(make_world: MakeWorld) -> None:
    own = DestinationOptions("hard.>", {"maximum_redeliveries": 0, "prefetch_size": 1})
    world = make_world(destinations=(own,))
    send_many(world.connect(), 3, "hard.a")
    send_many(world.connect(), 3, "soft")
    world.settle()
    for queue, count in (("hard.a", 1), ("soft", 3)):
        client = world.consumer(queue)
        assert len(client.deliveries) == count
        client.lose()
    world.settle()
    assert len(world.stored("DLQ.hard.a")) == 1
    assert world.stored("DLQ.soft") == []
