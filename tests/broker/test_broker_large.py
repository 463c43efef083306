"""Large messages: in memory only on their way. (That the bytes are not copied, tests/test_large_messages.py shows.)"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import pytest

from amq.broker.memory import MESSAGE_OVERHEAD_BYTES
from amq.protocols.stomp.subscribing import ACK_AUTO
from tests.broker.world import World
from tests.large import large_from

LARGE_BYTES = 20_000
BODY = bytes(LARGE_BYTES)
LIMIT_BYTES = 15_000  # less than one of them


def body(number: int) -> bytes:
    return b"%d" % number + BODY


@pytest.fixture
def world(make_world: Callable[..., World]) -> Iterator[World]:
    with large_from(LARGE_BYTES):
        yield make_world(memory_limit_bytes=LIMIT_BYTES)


@pytest.fixture
def roomy(make_world: Callable[..., World]) -> Iterator[World]:
    with large_from(LARGE_BYTES):
        yield make_world(maximum_redeliveries=0)


def test_a_limit_smaller_than_one_message_lets_all_through(world: World) -> None:
    producer, consumer = world.connect(), world.connect()
    for number in range(5):
        producer.send(body(number))
        world.settle()
    assert len(producer.confirmed) == 5
    assert world.broker.memory.taken_bytes == 0
    consumer.subscribe(prefetch=10)
    world.settle()
    assert consumer.bodies == [body(number) for number in range(5)]
    assert world.broker.memory.taken_bytes == 5 * MESSAGE_OVERHEAD_BYTES, "what is delivered is in its socket, not here"
    for number in range(5):
        consumer.ack(body(number))
    world.settle_and_check()
    assert world.broker.memory.taken_bytes == 0


def test_beyond_the_limit_one_at_a_time_over_all_queues(world: World) -> None:
    producer = world.connect()
    for queue in "abc":
        producer.send(body(1), queue)
        world.settle()
    consumers = [world.connect() for _ in "abc"]
    for queue, consumer in zip("abc", consumers, strict=True):
        consumer.subscribe(queue)
    sending = [consumer.send_out for consumer in consumers]
    for consumer in consumers:
        consumer.send_out = lambda: None  # type: ignore[method-assign]  # their sockets take nothing
    world.settle()
    assert world.broker.memory.lent_bytes == len(body(1))
    for _ in consumers:
        for send_out in sending:
            send_out()
        world.settle()
    for send_out in sending:
        send_out()
    world.settle()
    assert [consumer.bodies for consumer in consumers] == [[body(1)]] * 3
    assert world.broker.memory.lent_bytes == 0


def test_a_consumer_that_waits_gets_it_without_a_read(roomy: World) -> None:
    consumer, producer = roomy.connect(), roomy.connect()
    consumer.subscribe()
    roomy.settle()
    roomy.vfs.calls.clear()
    producer.send(body(1))
    producer.send(body(2))  # with the same batch: this one waits on disk
    roomy.settle()
    assert consumer.bodies == [body(1), body(2)]
    opened = [path for method, path in roomy.vfs.calls if method == "open" and path.endswith(".seg")]
    assert len(opened) <= 2, "one read, and perhaps the next segment"


def test_auto_consumer_goes_in_the_middle(roomy: World) -> None:
    """What it was being sent is gone with it, as ever with that ack mode; its memory is free."""
    producer, consumer = roomy.connect(), roomy.connect()
    consumer.subscribe(ack=ACK_AUTO)
    consumer.send_out = lambda: None  # type: ignore[method-assign]
    producer.send(body(1))
    producer.send(body(2), persistent=False)
    roomy.settle()
    assert roomy.broker.memory.lent_bytes
    consumer.lose()
    roomy.settle()
    assert roomy.broker.memory.lent_bytes == 0
    roomy.connect().subscribe(ack=ACK_AUTO)
    roomy.settle()
    roomy.check_at_rest()
    assert roomy.broker.memory.taken_bytes == 0


def test_refused_ones_move_one_after_the_other(roomy: World) -> None:
    producer, consumer = roomy.connect(), roomy.connect()
    for number in range(4):
        producer.send(body(number), properties={"number": str(number)})
    consumer.subscribe(prefetch=10)
    roomy.settle()
    for number in range(4):
        consumer.nack(body(number))
    roomy.settle()
    assert roomy.stored() == []
    assert roomy.stored("DLQ.a") == [body(number) for number in range(4)]
    roomy.check_at_rest()


def test_a_disk_that_is_full_by_then_keeps_it_in_its_queue(roomy: World) -> None:
    producer, consumer = roomy.connect(), roomy.connect()
    producer.send(body(1))
    consumer.subscribe()
    roomy.settle()
    consumer.nack(body(1))
    roomy.turn()  # the read of its body is asked for
    consumer.lose()
    roomy.vfs.fail("pwrite", errno.ENOSPC, path=".seg", times=2)
    roomy.vfs.answer("free_bytes", 1000)
    producer.send(b"small")
    roomy.settle()
    assert roomy.stored("DLQ.a") == []
    assert roomy.stored() == [body(1)]
    roomy.check_at_rest()


def test_a_refusal_is_confirmed_when_its_move_is_durable(roomy: World) -> None:
    """Its body is read from the disk first."""
    producer, consumer = roomy.connect(), roomy.connect()
    producer.send(body(1))
    producer.send(body(2))
    consumer.subscribe()
    roomy.settle()
    receipts = [consumer.nack(body(1)), consumer.nack(body(2))]
    for number, receipt in enumerate(receipts, 1):
        while receipt not in consumer.confirmed:
            roomy.turn()
            assert roomy.runner.step() or roomy.woken
        assert len(roomy.stored("DLQ.a")) == number
    roomy.crash_and_recover()
    assert roomy.stored("DLQ.a") == [body(1), body(2)]
    assert roomy.stored() == []


@pytest.mark.parametrize("copied", [True, False])
def test_a_segment_that_is_gone_when_a_body_is_read_for_its_move(roomy: World, copied: bool) -> None:
    """Its message was copied forward meanwhile: it is read from where it stands now. Or not: that is damage."""
    producer, consumer = roomy.connect(), roomy.connect()
    producer.send(body(1))
    consumer.subscribe()
    roomy.settle()
    (message,) = roomy.broker.state.queues["queue://a"].messages.values()
    assert message.is_stripped
    roomy.vfs.fail("open", errno.ENOENT, path=".seg")
    message.offset -= copied  # where it stood when the read was asked for
    consumer.nack(body(1))
    roomy.turn()
    while roomy.runner.jobs:
        roomy.runner.work()
    message.offset += copied
    roomy.settle()
    assert bool(roomy.failures) is not copied
    if copied:
        assert roomy.stored("DLQ.a") == [body(1)]
