"""Memory is bounded: producers of messages that the disk does not keep wait, acknowledgements pass them, nobody waits
for himself.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.broker.events import Event, MemoryLimitLeft, MemoryLimitReached
from amq.broker.memory import MESSAGE_OVERHEAD_BYTES, Memory
from amq.broker.sessions.session import STALLED_BYTES_MAX
from amq.core.message import Message, Sharing
from amq.protocols.commands import Begin, Commit, Disconnect, Send
from amq.protocols.stomp.subscribing import ACK_AUTO
from tests.broker.notation import Ack, Nack
from tests.broker.world import Client, World

LIMIT_BYTES = 10 * (1000 + MESSAGE_OVERHEAD_BYTES)  # ten messages of 1000 bytes


def send_many(client: Client, count: int, queue: str = "a", transaction: str = "") -> list[str]:
    """All in one read, as a producer that does not wait sends them."""
    receipts = [client.world.next_receipt() for _ in range(count)]
    client.do(
        *(
            Send(Message("queue://" + queue, bytes(1000), persistent=False), receipt, transaction)
            for receipt in receipts
        )
    )
    return receipts


@pytest.fixture
def small(make_world: Callable[..., World]) -> World:
    return make_world(memory_limit_bytes=LIMIT_BYTES)


def test_a_producer_is_stopped_at_the_limit_and_resumed_in_order(small: World) -> None:
    world, producer = small, small.connect()
    receipts = send_many(producer, 25)
    world.settle()
    assert producer.confirmed == receipts[:10]
    assert not producer.reading
    assert world.broker.memory.taken_bytes == LIMIT_BYTES
    client = world.consumer(prefetch=5)
    while len(client.deliveries) < 25:
        before = len(client.deliveries)
        client.do(*(Ack(delivery.seq, "a") for delivery in client.deliveries[before - 5 :]))
        world.settle()
        assert len(client.deliveries) > before
        assert world.broker.memory.taken_bytes <= LIMIT_BYTES
    assert producer.confirmed == receipts
    producer.send(b"on")  # it is read from again
    seqs = [delivery.seq for delivery in client.deliveries]
    assert seqs == sorted(seqs)


def test_producers_wait_until_a_tenth_is_free(small: World) -> None:
    producer = small.connect()
    receipts = send_many(producer, 11)
    small.settle()
    client = small.consumer()
    client.do(Ack(client.deliveries[0].seq, "a"))
    small.settle()
    assert producer.confirmed == receipts[:10]  # nine tenths are still in use
    client.do(Ack(client.deliveries[1].seq, "a"))
    small.settle()
    assert producer.confirmed == receipts


def test_acknowledgements_pass_sends_that_wait(small: World) -> None:
    world = small
    send_many(world.connect(), 10)
    world.settle()
    client = world.consumer(prefetch=3)
    first, second, third = client.deliveries
    client.do(Send(Message("queue://b", b"x"), "send"), Ack(first.seq, "a", "ack"), Nack(second.seq, "a", "nack"))
    assert client.reading
    world.settle()
    assert {"ack", "nack"} <= set(client.confirmed)
    client.do(Ack(third.seq, "a", "last"))
    world.settle()
    assert "send" in client.confirmed
    assert world.stored("b") == [b"x"]
    world.check_at_rest()


def test_who_consumes_what_it_sends_does_not_block_itself(small: World) -> None:
    """All its sends come in one read, before the first of them is delivered: its acknowledgements must be read on."""
    client = small.consumer()
    receipts = send_many(client, 25)
    small.settle()
    acknowledged = 0
    while len(client.deliveries) < 25:
        before = len(client.deliveries)
        client.do(*(Ack(delivery.seq, "a") for delivery in client.deliveries[acknowledged:]))
        acknowledged = before
        small.settle()
        assert len(client.deliveries) > before
    assert set(receipts) <= set(client.confirmed)


def test_who_is_read_on_for_its_acknowledgements_may_not_send_without_end(small: World) -> None:
    world = small
    send_many(world.connect(), 10)
    world.settle()
    client = world.consumer(prefetch=1)
    size = 1 << 20
    for _ in range(STALLED_BYTES_MAX // size + 1):
        client.do(Send(Message("queue://b", bytes(size)), "r"))
    world.settle()
    assert client.codes == ["MEMORY_FULL"]
    assert not client.connected
    assert world.broker.memory.taken_bytes <= LIMIT_BYTES
    world.check_at_rest()


def test_headers_count(make_world: Callable[..., World]) -> None:
    """Ten messages that are nothing but headers take the memory; the next waits."""
    properties = {f"name {n}": "x" * 100 for n in range(100)}
    size = MESSAGE_OVERHEAD_BYTES + Message("queue://a", b"", properties).header_bytes
    assert size > 100 * 100
    world = make_world(memory_limit_bytes=10 * size)
    producer = world.connect()
    receipts = [producer.send(b"", persistent=False, properties=properties) for _ in range(11)]
    world.settle()
    assert producer.confirmed == receipts[:10]
    assert world.broker.memory.taken_bytes == 10 * size
    world.consumer(ack=ACK_AUTO)
    world.settle()
    assert producer.confirmed == receipts
    assert world.broker.memory.taken_bytes == 0
    producer.begin()
    producer.send(b"", transaction="t", properties=properties)
    world.settle()
    assert world.broker.memory.taken_bytes == size


def test_what_waits_behind_a_send_keeps_its_order(small: World) -> None:
    world, producer = small, small.connect()
    send_many(world.connect(), 10)
    world.settle()
    producer.do(
        Send(Message("queue://b", b"1"), "1"),
        Begin("t", "2"),
        Send(Message("queue://b", b"2"), "3", "t"),
        Commit("t", "4"),
        Send(Message("queue://b", b"3"), "5"),
        Disconnect("6"),
    )
    world.settle()
    assert producer.confirmed == []
    drain = world.consumer(ack=ACK_AUTO)
    assert len(drain.bodies) == 10
    assert sorted(producer.confirmed) == ["1", "2", "3", "4", "5", "6"]
    assert producer.confirmed[-1] == "6"
    assert world.stored("b") == [b"1", b"2", b"3"]


def test_a_producer_that_leaves_takes_what_waits_with_it(small: World) -> None:
    producer = small.connect()
    send_many(producer, 12)
    small.settle()
    producer.lose()
    small.consumer(ack=ACK_AUTO)
    small.settle()
    assert small.stored() == []
    assert not small.broker.limits.waiting
    small.check_at_rest()
    assert small.broker.memory.taken_bytes == 0


def test_with_the_policy_fail_a_send_is_refused_instead(make_world: Callable[..., World]) -> None:
    world = make_world(memory_limit_bytes=LIMIT_BYTES, producer_flow_control="fail")
    producer = world.connect()
    receipts = send_many(producer, 10)
    world.settle()
    assert producer.confirmed == receipts
    refused = send_many(producer, 1)
    world.settle()
    assert producer.errors == [("MEMORY_FULL", refused[0])]
    world.check_at_rest()


def test_the_limit_is_told_once_and_again_when_it_is_left(small: World) -> None:
    world, told = small, list[Event]()
    for kind in (MemoryLimitReached, MemoryLimitLeft):
        world.broker.events.listen(kind, told.append)
    for _ in range(2):
        send_many(world.connect(), 25)  # each producer meets the limit
        world.settle()
    world.broker.sweep()
    assert told == [MemoryLimitReached(LIMIT_BYTES)]
    client = world.consumer()
    while client.deliveries:
        client.do(*(Ack(delivery.seq, "a") for delivery in client.deliveries))
        client.deliveries.clear()
        world.settle()
    world.broker.sweep()
    world.broker.sweep()
    assert told == [MemoryLimitReached(LIMIT_BYTES), MemoryLimitLeft(LIMIT_BYTES)]


def test_memory_of_open_transactions_counts(small: World) -> None:
    producer = small.connect()
    producer.begin()
    send_many(producer, 10, transaction="t")
    assert small.broker.memory.taken_bytes == LIMIT_BYTES
    producer.abort()
    assert small.broker.memory.taken_bytes == 0


@pytest.mark.parametrize("persistent", [True, False])
def test_memory_is_given_back_by_every_way_out(make_world: Callable[..., World], persistent: bool) -> None:
    world = make_world(maximum_redeliveries=0, expired_messages="dead-letter")
    producer = world.connect()
    for body in (b"ack", b"nack", b"fail"):
        producer.send(body, persistent=persistent)
    producer.send(b"late", "b", persistent=persistent, expires_ms=world.clock.wall_ms() + 1)
    world.settle()
    client = world.consumer()
    client.ack(b"ack")
    client.nack(b"nack")
    client.lose()
    world.sweep(1.0)
    for queue in ("DLQ.a", "DLQ.b"):
        assert world.consumer(queue, ACK_AUTO).bodies
    world.settle()
    assert world.broker.memory.taken_bytes == 0
    world.check_at_rest()


@pytest.mark.parametrize("flow_control", ["block", "fail"])
def test_what_is_stored_already_needs_no_memory(make_world: Callable[..., World], flow_control: str) -> None:
    """A client that sends again after a failover learned that the message was not stored, though it was."""
    world = make_world(memory_limit_bytes=LIMIT_BYTES, producer_flow_control=flow_control)
    producer = world.connect()
    first = producer.send(b"x", duplicate_id="1")
    world.settle()
    send_many(world.connect(), 12)
    again = producer.send(b"x", duplicate_id="1")
    world.settle()
    assert world.broker.memory.is_full
    assert producer.confirmed == [first, again]
    assert not producer.codes


@pytest.mark.parametrize("others", [None, 0, 1])
def test_many_messages_are_freed_as_one_by_one(others: int | None) -> None:
    together, single = Memory(1 << 20), Memory(1 << 20)
    for memory in (together, single):
        messages = [Message("queue://a", bytes(size), {"name": "value"}) for size in (0, 10, 1000)]
        for message in messages:
            memory.admit(message)
        if others is not None:
            messages[1].shared = Sharing("connection", others)
        if memory is together:
            memory.free_all(messages)
        else:
            for message in messages:
                memory.free(message)
    assert together.taken_bytes == single.taken_bytes
    assert (together.taken_bytes == 0) is (not others)
