"""Events: who listens is told, who does not costs nothing, and no listener can harm the broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.broker.events import (
    FAILURES_MAX,
    Connected,
    DeadLettered,
    Disconnected,
    Event,
    Events,
    Expired,
    QueueForgotten,
    QueueMade,
    Subscribed,
    Unsubscribed,
)
from amq.protocols.stomp.subscribing import ACK_AUTO
from tests.broker.world import World

KINDS = (Connected, DeadLettered, Disconnected, Expired, QueueForgotten, QueueMade, Subscribed, Unsubscribed)


def all_told(world: World) -> list[Event]:
    told: list[Event] = []
    for kind in KINDS:
        world.broker.events.listen(kind, told.append)
    return told


def life(world: World) -> str:
    """All of the above happens once, to the connection that is returned."""
    client = world.connect()
    client.subscribe("a", id="s")
    client.send(b"refused", "a")
    world.settle()
    client.nack(b"refused")
    client.unsubscribe("s")
    client.send(b"late", "a", expires_ms=world.clock.wall_ms() + 1000)
    world.settle()
    world.sweep(2.0)
    world.broker.sweep()
    world.lose(client)
    return client.number


def test_what_happens_is_told_in_order(world: World) -> None:
    told = all_told(world)
    number = life(world)
    dead = next(event for event in told if isinstance(event, DeadLettered))
    assert (dead.destination, dead.moved_to, dead.reason) == ("queue://a", "queue://DLQ.a", "refused by the consumer")
    assert told == [
        Connected(number, "", ""),
        QueueMade("queue://a"),
        Subscribed(number, "s", ("queue://a",)),
        dead,
        QueueMade("queue://DLQ.a"),
        Unsubscribed(number, "s", ("queue://a",)),
        Expired("queue://a", 1),
        QueueForgotten("queue://a", 2, 2),
        Disconnected(number),
    ]


def test_an_event_that_nobody_wants_is_not_made(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.broker.events, "tell", lambda event: pytest.fail(f"{event} was made for nobody"))
    assert not world.broker.events.heard
    life(world)


def test_a_listener_that_fails_harms_nobody_and_is_dropped() -> None:
    events, told, calls = Events(), list[Event](), list[Event]()

    def fails(event: Connected) -> None:
        calls.append(event)
        raise ZeroDivisionError

    events.listen(Connected, fails)
    events.listen(Connected, told.append)
    for number in range(FAILURES_MAX + 5):
        events.tell(Connected(str(number), "", ""))
    assert len(calls) == FAILURES_MAX
    assert len(told) == FAILURES_MAX + 5, "the next one hears of everything"
    events.ignore(Connected, told.append)
    assert not events.heard


def test_a_listener_may_stop_while_it_is_told() -> None:
    events, told = Events(), list[Event]()

    def once(event: Connected) -> None:
        told.append(event)
        events.ignore(Connected, once)
        events.ignore(Connected, once)

    events.listen(Connected, once)
    for number in "12":
        events.tell(Connected(number, "", ""))
    assert told == [Connected("1", "", "")]


def test_those_that_come_and_go_leave_nothing(make_world: Callable[..., World]) -> None:
    world = make_world()
    for _ in range(300):  # more than there may be listeners
        client = world.connect()
        client.subscribe("topic://ActiveMQ.Advisory.>", ACK_AUTO, id="1")
        client.subscribe("topic://ActiveMQ.Advisory.Connection", ACK_AUTO, id="2")
        world.lose(client)
    assert not world.broker.events.heard
    assert not world.broker.advisories.heard


def test_a_mastership_that_ends_listens_no_more(world: World) -> None:
    world.connect().subscribe("topic://ActiveMQ.Advisory.>", ACK_AUTO)
    world.settle()
    assert world.broker.events.heard
    world.broker.stop_serving()
    assert not world.broker.events.heard
