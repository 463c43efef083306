"""Messages that keep the form in which they came, and typed ones, through all that a broker does with messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from amq.config.destination_options import DestinationOptions
from amq.core import values
from amq.core.message import MAP, ORIGINAL_DESTINATION, TEXT, Envelope, Message, Native, heads, without
from amq.core.values import Int32, Nested, Value
from amq.protocols.commands import Send
from amq.protocols.stomp.delivery import Deliveries
from amq.protocols.stomp.frame import Frame, FrameReader
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_INDIVIDUAL
from tests.broker.notation import Ack
from tests.broker.test_broker_scheduling import later
from tests.broker.world import Client, Delivery, World
from tests.typed import TINY, facts, reads, tiny

PROPERTIES: dict[str, Nested] = {"n": Int32(7), "colour": "red"}


@pytest.fixture(autouse=True)
def counts() -> Iterator[None]:
    reads.clear()
    yield
    reads.clear()


def send(world: World, *messages: Message) -> Client:
    client = world.connect()
    for message in messages:
        client.do(Send(message, world.next_receipt()))
        world.settle()
    return client


def as_stomp(delivery: Delivery) -> Frame:
    deliveries = Deliveries("1.2", "ID:x-", "9-9.")
    data = deliveries.encode(deliveries.format("s", 0, False), delivery.message, delivery.redelivered)
    (frame,) = FrameReader(version="1.2").feed(data)
    return frame


def native_of(delivery: Delivery) -> tuple[bytes, Native | None]:
    """What a codec of Tiny would send."""
    assert delivery.message.envelope is not None
    return delivery.message.body, delivery.message.envelope.native


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("memory", ["512M", "10 messages"])
def test_the_same_protocol_gets_the_very_bytes_and_nothing_is_read(
    make_world: Callable[..., World], persistent: bool, memory: str
) -> None:
    options = {} if memory == "512M" else {"memory_limit_bytes": 30_000}
    world = make_world(**options)
    count = 20 if persistent else 5
    sent = [tiny("queue://a", b"%d" % n + bytes(1000), dict(PROPERTIES), persistent=persistent) for n in range(count)]
    expected = [(message.body, Native(TINY, values.encode(PROPERTIES))) for message in sent]
    send(world, *sent)
    world.check_at_rest()
    if persistent:
        world.crash_and_recover()
        world.check_at_rest()
    client = world.consumer("a", ACK_INDIVIDUAL, 3)
    for number in range(len(sent)):
        assert native_of(client.deliveries[number]) == expected[number]
        client.do(Ack(client.deliveries[number].seq, "a", world.next_receipt()))
        world.settle()
    world.check_at_rest()
    assert not reads
    assert world.broker.memory.taken_bytes == 0


def test_a_stomp_consumer_with_a_selector_has_it_read_once(world: World) -> None:
    wanted = tiny("queue://a", b"hello", dict(PROPERTIES), correlation_id="c")
    send(world, wanted, tiny("queue://a", b"other", {"n": 1}))
    client = world.consumer("a", ACK_INDIVIDUAL, selector="n = 7 AND colour = 'red' AND JMSType = 'tiny'")
    assert reads == {"head": 2}, "each was looked at"
    (delivery,) = client.deliveries
    frame = as_stomp(delivery)
    assert (frame.body, frame.headers["n"], frame.headers["correlation-id"]) == (b"hello", "7", "c")
    assert reads == {"head": 2, "content": 1}
    client.do(Ack(delivery.seq, "a", world.next_receipt()))
    world.settle_and_check()


def test_all_subscribers_of_a_topic_share_what_was_read(world: World) -> None:
    clients = [world.connect() for _ in range(4)]
    for number, client in enumerate(clients):
        selector = "n = 7" if number else "n > 6 AND colour LIKE 'r%'"
        client.subscribe("topic://t", ACK_AUTO, selector=selector)
    durable = world.consumer("topic://t", ACK_INDIVIDUAL, subscription_name="d", selector="n = 7", client_id="me")
    send(world, tiny("topic://t", b"hello", dict(PROPERTIES)))
    assert [len(client.deliveries) for client in [*clients, durable]] == [1] * 5
    assert reads == {"head": 1}
    world.check_at_rest()
    world.crash_and_recover()
    world.check_at_rest()


def test_composites_and_diverts_keep_the_form(world: World) -> None:
    send(world, tiny("queue://a,queue://b", b"hello", {**PROPERTIES, "JMSXGroupID": "g"}))
    world.crash_and_recover()
    client = world.connect()
    for queue in ("a", "b"):
        client.subscribe(queue, ACK_INDIVIDUAL, id=queue)
    world.settle()
    assert [native_of(delivery)[0] for delivery in client.deliveries] == [bytes([TEXT]) + b"olleh"] * 2
    assert [as_stomp(delivery).headers["original-destination"] for delivery in client.deliveries] == [
        "/queue/a,/queue/b"
    ] * 2
    assert [delivery.message.properties["JMSXGroupID"] for delivery in client.deliveries] == ["g", "g"]  # type: ignore[index]
    for delivery in client.deliveries:
        client.do(Ack(delivery.seq, delivery.subscription, world.next_receipt()))
    world.settle_and_check()
    assert world.broker.memory.taken_bytes == 0


@pytest.mark.parametrize("persistent", [True, False])
def test_a_dead_letter_keeps_types_content_envelope_and_form(world: World, persistent: bool) -> None:
    envelope = Envelope("ID:1", b"\x00", "queue://r", "order", 17)
    typed = Message(
        "queue://a", values.encode({"a": 1}), {"n": Int32(7)}, content=MAP, persistent=persistent, envelope=envelope
    )
    send(world, typed, tiny("queue://a", b"x", dict(PROPERTIES), persistent=persistent))
    client = world.consumer("a", ACK_INDIVIDUAL)
    for delivery in list(client.deliveries):
        client.nack(delivery.body)
    world.settle()
    if persistent:
        world.crash_and_recover()
    reader = world.consumer("DLQ.a", ACK_INDIVIDUAL)
    first, second = reader.deliveries
    assert (first.message.envelope, first.message.content, first.body) == (envelope, MAP, values.encode({"a": 1}))
    assert first.message.properties is not None
    assert type(first.message.properties["n"]) is Int32
    frame = as_stomp(first)
    assert (frame.body, frame.headers["dead-letter-deliveries"], frame.headers["n"]) == (b'{"a": 1}', "1", "7")
    assert native_of(second) == (b"\x01x", Native(TINY, values.encode(PROPERTIES)))
    assert as_stomp(second).headers["dead-letter-reason"] == "refused by the consumer"
    assert as_stomp(second).headers["colour"] == "red"
    world.check_at_rest()


def test_schedules_read_types_and_keep_the_form(world: World) -> None:
    waiting = tiny("queue://a", b"later", {**PROPERTIES, "AMQ_SCHEDULED_DELAY": 5000})
    every = Message(
        "queue://a",
        b"x",
        {"AMQ_SCHEDULED_PERIOD": 1000, "AMQ_SCHEDULED_REPEAT": Int32(1), "n": Int32(7)},
        envelope=Envelope(type="t"),
        content=TEXT,
    )
    client = send(world, waiting, every)
    assert not client.errors
    world.crash_and_recover()
    client = world.connect()
    client.subscribe("a", ACK_INDIVIDUAL)
    for _ in range(6):
        world.clock.advance(1)
        world.settle()
    found = [as_stomp(delivery) for delivery in client.deliveries]
    assert [frame.body for frame in found] == [b"x", b"x", b"later"]
    assert [frame.headers["type"] for frame in found] == ["t", "t", "tiny"]
    assert [frame.headers["n"] for frame in found] == ["7"] * 3
    assert native_of(client.deliveries[2])[0] == b"\x01retal"
    world.check_at_rest()


def test_groups_and_their_end_are_read_whatever_their_types(world: World) -> None:
    clients = [world.connect() for _ in range(2)]
    for client in clients:
        client.subscribe("a", ACK_INDIVIDUAL, 100)
    world.settle()
    send(world, *(Message("queue://a", b"%d" % n, {"JMSXGroupID": Int32(3)}, envelope=Envelope()) for n in range(6)))
    assert sorted(len(client.deliveries) for client in clients) == [0, 6]
    world.check_at_rest()


def test_last_values_by_a_header_of_the_envelope(make_world: Callable[..., World]) -> None:
    world = make_world(destinations=(DestinationOptions("a", {"last_value_key": "type"}),))
    send(world, *(Message("queue://a", b"%d" % n, envelope=Envelope(type=f"t{n % 2}")) for n in range(6)))
    assert world.stored() == [b"4", b"5"]
    world.check_at_rest()


def test_a_browser_and_a_transaction_see_the_same(world: World) -> None:
    client = world.connect()
    client.begin()
    message = tiny("queue://a", b"hello", dict(PROPERTIES), message_id="ID:9")
    expected = facts(message)
    client.do(Send(message, "", "t"))
    client.commit()
    world.settle()
    browser = world.consumer("a", ACK_AUTO, browser=True)
    (shown,) = browser.deliveries
    apart = ("seq", "timestamp_ms")
    assert {name: fact for name, fact in facts(shown.message).items() if name not in apart} == {
        name: fact for name, fact in expected.items() if name not in apart
    }
    world.check_at_rest()
    assert not reads


def test_a_scheduled_message_comes_without_the_times(world: World) -> None:
    """A relay sends what it has received on to the next queue: the copy was delayed again, or came again and again."""
    client = world.consumer("b")
    times: dict[str, Nested] = {
        "AMQ_SCHEDULED_DELAY": 1000,
        "AMQ_SCHEDULED_PERIOD": 1000,
        "AMQ_SCHEDULED_REPEAT": Int32(1),
    }
    send(world, tiny("queue://b", b"x", PROPERTIES | times))
    later(world, 5)
    assert len(client.deliveries) == 2
    for delivery in client.deliveries:
        assert native_of(delivery) == (bytes([TEXT]) + b"x", Native(TINY, values.encode(PROPERTIES)))
        assert not [name for name in as_stomp(delivery).headers if name.startswith("AMQ_SCHEDULED")]


def test_a_retried_dead_letter_does_not_say_that_it_is_one() -> None:
    """A client that moved it by itself has made what the broker said a part of it."""
    said: dict[str, Nested] = {ORIGINAL_DESTINATION: "/queue/a", "dead-letter-reason": "rejected"}
    message = tiny("queue://DLQ", b"x", PROPERTIES | said)
    message.properties = {ORIGINAL_DESTINATION: "/queue/a"}
    properties, envelope = without(message, said.keys())
    assert properties == {}
    assert envelope is not None
    assert envelope.native == Native(TINY, values.encode(PROPERTIES))


# -- many properties ---------------------------------------------------------------------------------------------------


def wide(destination: str, **more: Any) -> Message:
    """A message with more properties than its form counts for."""
    return tiny(destination, b"x", {f"{n:x}": True for n in range(1000)}, **more)


SELECTORS = 300


@pytest.mark.parametrize("destination", ["queue://a", "topic://t"])
@pytest.mark.parametrize("own", [None, {"JMSXGroupID": "g"}])
def test_the_properties_of_a_message_are_read_once_for_all_selectors(
    world: World, destination: str, own: dict[str, Value] | None
) -> None:
    clients = [world.connect() for _ in range(3)]
    for number in range(SELECTORS):
        clients[number % 3].subscribe(
            destination, ACK_INDIVIDUAL, id=f"s{number}", selector=f"missing IS NOT NULL OR n > {number}"
        )
    world.settle()
    messages = [wide(destination) for _ in range(2)]
    for message in messages:
        message.properties = own
    send(world, *messages)
    assert reads == {"head": 2}
    assert not heads.natives
    assert heads.last is None
    world.check_at_rest()


def test_one_composite_is_read_once_for_the_selectors_of_all_its_queues(world: World) -> None:
    client = world.connect()
    names = [f"q{number}" for number in range(40)]
    for name in names:
        client.subscribe(name, ACK_INDIVIDUAL, id=name, selector="missing = 1")
    world.settle()
    send(world, wide(",".join(f"queue://{name}" for name in names)))
    assert reads == {"head": 1}


def test_nothing_is_read_where_no_consumer_has_a_selector(world: World) -> None:
    client = world.connect()
    client.subscribe("a", ACK_INDIVIDUAL)
    client.subscribe("topic://t", ACK_AUTO, id="t")
    client.subscribe("topic://t", ACK_AUTO, id="r", subscription_name="d")
    world.settle()
    send(world, wide("queue://a"), wide("topic://t"))
    assert len(client.deliveries) == 3
    assert not reads
