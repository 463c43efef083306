"""Extend: a consumer's room grows and shrinks, also while the sends of its session wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.core.destination import ANY_WORD, Pattern, Source
from amq.core.message import Message
from amq.protocols.commands import (
    CloseSession,
    Credit,
    Extend,
    Flow,
    Mode,
    Nothing,
    OpenSession,
    Scope,
    Send,
    Subscribe,
)
from tests.broker.many import ManyClient
from tests.broker.world import World

SOURCES: list[tuple[Source, str]] = [
    ("queue://a", "queue://a"),
    (Pattern("queue://", (ANY_WORD,)), "queue://a"),
    ("topic://t", "topic://t"),
]


def send(client: ManyClient, to: str, *bodies: bytes, session: int = 0) -> list[str]:
    return [client.ask(Send(Message(to, body)), session=session) for body in bodies]


@pytest.mark.parametrize(("source", "to"), SOURCES, ids=["queue", "wildcard", "topic"])
@pytest.mark.parametrize("durable", [False, True])
def test_room_grows_and_shrinks(world: World, source: Source, to: str, durable: bool) -> None:
    if durable and not to.startswith("topic"):
        pytest.skip("a durable subscription is to topics")
    client = ManyClient(world, client_id="c")
    client.consume("c", source, prefetch=2, subscription_name="s" if durable else "")
    world.settle()
    send(client, to, *(b"%d" % n for n in range(9)))
    world.settle()
    assert client.bodies == [b"0", b"1"]
    answer = client.ask(Extend("c", 3))
    world.settle()
    assert answer in client.confirmed
    assert client.bodies == [b"0", b"1", b"2", b"3", b"4"]
    client.ask(Extend("c", -2))
    for n in range(3):
        client.settle(b"%d" % n)
    world.settle()
    assert client.bodies[5:] == [b"5"], "three places are free, and two of these are gone"
    client.ask(Extend("c", -1))
    client.settle(b"3")
    world.settle()
    assert len(client.bodies) == 6
    client.ask(Extend("c", 1))
    world.settle()
    assert client.bodies[6:] == [b"6"]
    assert not client.failures
    world.check_at_rest()


def test_who_is_not_there_cannot_extend_its_prefetch(world: World) -> None:
    client = ManyClient(world)
    receipt = client.ask(Extend("nobody", 5))
    world.settle()
    assert [(told.code, told.scope, told.receipt) for told in client.failures] == [
        ("UNKNOWN_SUBSCRIPTION", Scope.COMMAND, receipt)
    ]


def blocked(make_world: Callable[..., World]) -> tuple[World, ManyClient]:
    """A client that is read, as it holds a message, and whose next sends in session 1 wait for room in queue full."""
    world = make_world(queue_limit_bytes=500)
    client = ManyClient(world)
    client.ask(OpenSession(1))
    client.consume("c", "a", session=1, prefetch=1)
    client.consume("pulls", "b", session=1, credit=0)
    for n in range(3):
        send(client, "queue://a", b"a%d" % n)
        send(client, "queue://b", b"b%d" % n)
    world.settle()
    for n in range(20):
        send(client, "queue://full", b"%d" % n + bytes(100), session=1)
    world.settle()
    assert client.session.sessions[1].is_held_up
    return world, client


def test_a_consumer_beside_a_send_that_waits_goes_on(make_world: Callable[..., World]) -> None:
    world, client = blocked(make_world)
    assert client.bodies_of("c", 1) == [b"a0"]
    asked = client.ask(Extend("c", 2), session=1)
    pulled = client.ask(Credit("pulls", 2), session=1)
    world.settle()
    assert client.session.sessions[1].is_held_up
    assert {asked, pulled} <= set(client.confirmed)
    assert client.bodies_of("c", 1) == [b"a0", b"a1", b"a2"]
    assert client.bodies_of("pulls", 1) == [b"b0", b"b1"]
    world.check()


def test_what_belongs_to_a_consumer_that_waits_itself_stays_behind_it(make_world: Callable[..., World]) -> None:
    world, client = blocked(make_world)
    client.ask(Subscribe("late", ("queue://b",), Mode(True), Flow(1)), session=1)
    early = client.ask(Extend("late", 1), session=1)
    world.settle()
    assert not client.failures
    assert early not in client.confirmed
    client.consume("drain", "full", acknowledges=False)
    world.settle()
    assert client.bodies_of("late", 1) == [b"b0", b"b1"]
    assert early in client.confirmed
    assert not client.failures
    world.check_at_rest()


def test_nothing_is_answered_in_its_turn(make_world: Callable[..., World]) -> None:
    world, client = blocked(make_world)
    waits = client.ask(Nothing(), session=1)
    passes = client.ask(Nothing())
    world.settle()
    assert passes in client.confirmed
    assert waits not in client.confirmed
    client.consume("drain", "full", acknowledges=False)
    world.settle()
    assert waits in client.confirmed
    closed = client.ask(CloseSession(1), session=1)
    lost = client.ask(Nothing(), session=1)
    world.settle()
    assert closed in client.confirmed
    assert [(told.code, told.receipt) for told in client.failures] == [("UNKNOWN_SESSION", lost)]
