"""Messages that nobody could use: refused, failed too often, too late."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.core.message import TEXT
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_CLIENT
from tests.broker.world import World


def send(world: World, *bodies: bytes, queue: str = "a", **fields: object) -> None:
    producer = world.connect()
    for body in bodies:
        producer.send(body, queue, **fields)  # type: ignore[arg-type]
    world.settle()
    assert producer.errors == []


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize(("strategy", "name"), [("individual", "DLQ.a"), ("shared", "ActiveMQ.DLQ")])
def test_a_refused_message_moves_with_its_reason(
    make_world: Callable[..., World], strategy: str, name: str, persistent: bool
) -> None:
    world = make_world(dead_letter_strategy=strategy)
    send(
        world,
        b"x",
        persistent=persistent,
        priority=7,
        properties={"colour": "red"},
        content_type="text/plain",
        content=TEXT,
        expires_ms=world.clock.wall_ms() + 1000,
        duplicate_id="d",
    )
    client = world.consumer()
    receipt = client.nack(b"x")
    world.settle()
    assert receipt in client.confirmed
    assert (world.stored("a"), world.stored(name)) == ([], [b"x"])
    world.check_at_rest()
    if persistent:
        world.crash_and_recover()
    moved = world.consumer(name).deliveries[0]
    assert moved.redelivered == 0
    message = moved.message
    assert message.properties == {
        "colour": "red",
        "original-destination": "/queue/a",
        "dead-letter-reason": "refused by the consumer",
        "dead-letter-deliveries": "1",
    }
    assert (message.priority, message.content_type, message.content) == (7, "text/plain", TEXT)
    assert (message.persistent, message.expires_ms, message.duplicate_id) == (persistent, 0, "")


def test_names_of_dead_letter_queues_are_configured(make_world: Callable[..., World]) -> None:
    world = make_world(dead_letter_prefix="dead/")
    send(world, b"x")
    world.consumer().nack(b"x")
    world.settle()
    assert world.stored("dead/a") == [b"x"]
    world = make_world(dead_letter_strategy="shared", shared_dead_letter_queue="graveyard")
    send(world, b"x")
    world.consumer().nack(b"x")
    world.settle()
    assert world.stored("graveyard") == [b"x"]


def test_refusal_in_client_mode_is_cumulative(world: World) -> None:
    send(world, b"1", b"2", b"3")
    client = world.consumer(ack=ACK_CLIENT)
    client.nack(b"2")
    world.settle()
    assert (world.stored("a"), world.stored("DLQ.a")) == ([b"3"], [b"1", b"2"])


def test_a_move_is_whole_or_not_at_all(world: World) -> None:
    for torn in (0.0, 0.5, 0.99, None):
        send(world, b"x")
        world.consumer().nack(b"x")
        world.turn()
        world.crash_and_recover(jobs=1, torn=torn)
        assert (world.stored("a"), world.stored("DLQ.a")) == (([b"x"], []) if torn is not None else ([], [b"x"]))
        for queue in ("a", "DLQ.a"):
            client = world.consumer(queue, ACK_AUTO)
            world.settle()
            client.lose()
        world.check_at_rest()


def test_what_is_refused_on_a_dead_letter_queue_stays_and_is_counted(world: World) -> None:
    send(world, b"x")
    world.consumer().nack(b"x")
    world.settle()
    for before in range(4):
        client = world.connect()
        client.subscribe("DLQ.a", prefetch=1)
        world.turn()
        assert client.deliveries[0].redelivered == before
        client.session.set_writable(False)
        client.nack(b"x")
        world.lose(client)
    assert world.stored("DLQ.a") == [b"x"]
    world.check_at_rest()
    world.crash_and_recover()
    assert world.consumer("DLQ.a").deliveries[0].redelivered == 4


@pytest.mark.parametrize("persistent", [True, False])
def test_messages_that_are_not_persistent_are_dropped_where_policy_says_so(
    make_world: Callable[..., World], persistent: bool
) -> None:
    world = make_world(dead_letter_non_persistent=False)
    send(world, b"x", persistent=persistent)
    world.consumer().nack(b"x")
    world.settle()
    assert (world.stored("a"), world.stored("DLQ.a")) == ([], [b"x"] if persistent else [])
    world.check_at_rest()


# -- failed too often --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_message_is_given_up_after_the_limit(make_world: Callable[..., World], limit: int, persistent: bool) -> None:
    world = make_world(maximum_redeliveries=limit)
    send(world, b"x", persistent=persistent)
    for before in range(limit + 1):
        client = world.consumer()
        assert [delivery.redelivered for delivery in client.deliveries] == [before]
        world.lose(client)
    assert (world.stored("a"), world.stored("DLQ.a")) == ([], [b"x"])
    properties = world.consumer("DLQ.a").deliveries[0].message.properties
    assert properties is not None
    assert properties["dead-letter-reason"] == f"delivered {limit + 1} times without acknowledgement"
    assert properties["dead-letter-deliveries"] == str(limit + 1)
    world.check_at_rest()


def test_failures_count_over_takeovers(make_world: Callable[..., World]) -> None:
    world = make_world(maximum_redeliveries=1)
    send(world, b"x")
    world.lose(world.consumer())
    world.crash_and_recover()
    world.lose(world.consumer())
    assert world.stored("DLQ.a") == [b"x"]


def test_no_limit(make_world: Callable[..., World]) -> None:
    world = make_world(maximum_redeliveries=-1)
    send(world, b"x")
    for _ in range(20):
        world.lose(world.consumer())
    assert world.stored("a") == [b"x"]


def test_what_was_merely_prefetched_is_never_given_up(make_world: Callable[..., World]) -> None:
    """A poison message kills its consumers again and again; what was prefetched behind it is innocent."""
    world = make_world(maximum_redeliveries=2)
    send(world, b"poison", b"1", b"2")
    for _ in range(3):
        world.lose(world.consumer())
    assert (world.stored("a"), world.stored("DLQ.a")) == ([b"1", b"2"], [b"poison"])
    assert [delivery.redelivered for delivery in world.consumer().deliveries] == [3, 3]


def test_a_dead_letter_queue_gives_nothing_up(make_world: Callable[..., World]) -> None:
    world = make_world(maximum_redeliveries=0)
    send(world, b"x", queue="DLQ.a")
    for _ in range(5):
        world.lose(world.consumer("DLQ.a"))
    assert world.stored("DLQ.a") == [b"x"]


# -- too late ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("policy", ["drop", "dead-letter"])
@pytest.mark.parametrize("fetched", [True, False])
def test_expired_messages_are_dropped_or_moved(
    make_world: Callable[..., World], policy: str, persistent: bool, fetched: bool
) -> None:
    world = make_world(expired_messages=policy)
    now_ms = world.clock.wall_ms()
    send(world, b"late", expires_ms=now_ms + 1000, persistent=persistent)
    send(world, b"early", expires_ms=now_ms + 9000, persistent=persistent)
    send(world, b"never", persistent=persistent)
    world.clock.advance(1.0)
    if fetched:
        assert world.consumer().bodies == [b"early", b"never"]
    else:
        world.settle()
        assert world.stored("a") == [b"late", b"early", b"never"]  # nobody looked yet
        world.sweep()
    assert (world.stored("a"), world.stored("DLQ.a")) == (
        [b"early", b"never"],
        [b"late"] if policy == "dead-letter" else [],
    )
    world.check_at_rest()
    if policy == "dead-letter":
        message = world.consumer("DLQ.a").deliveries[0].message
        assert message.properties is not None
        assert message.properties["dead-letter-reason"] == "expired"
        assert message.expires_ms == 0
    world.crash_and_recover()
    assert world.stored("a") == ([b"early", b"never"] if persistent else [])


def test_a_message_does_not_expire_in_the_hands_of_a_consumer(world: World) -> None:
    send(world, b"x", expires_ms=world.clock.wall_ms() + 1000)
    client = world.consumer()
    world.sweep(2.0)
    assert world.stored() == [b"x"]
    world.lose(client)
    assert world.consumer().bodies == []
    assert world.stored() == []
    world.check_at_rest()


def test_time_runs_on_through_a_takeover(world: World) -> None:
    send(world, b"x", expires_ms=world.clock.wall_ms() + 1000)
    world.crash()
    world.clock.advance(2.0)
    world.start()
    assert world.consumer().bodies == []
    assert world.stored() == []


def test_an_expired_message_on_a_dead_letter_queue_is_dropped(make_world: Callable[..., World]) -> None:
    world = make_world(expired_messages="dead-letter")
    send(world, b"x", queue="DLQ.a", expires_ms=world.clock.wall_ms() + 1)
    world.sweep(1.0)
    assert world.stored("DLQ.a") == []
    world.check_at_rest()
