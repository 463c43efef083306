"""Consumers whose clients deliver again by themselves: their messages never fail, however they come back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.core.destination import ANY_WORD, Pattern, Source
from amq.core.errors import CommandError
from amq.core.message import Message
from amq.protocols.commands import (
    Abort,
    Begin,
    CloseSession,
    Commit,
    Invalid,
    OpenSession,
    Outcome,
    Send,
    Settle,
    Unsubscribe,
)
from tests.broker.many import ManyClient
from tests.broker.world import World

BODIES = [b"0", b"1", b"2"]
SOURCES: list[tuple[Source, str]] = [
    ("queue://a", ""),
    (Pattern("queue://", (ANY_WORD,)), ""),
    ("topic://a", "durable"),
]


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """Where every failure would be seen: it delays, and the first one buries."""
    return make_world(maximum_redeliveries=0, redelivery_delay_s=60)


def consumer(world: World, source: Source, name: str = "", session: int = 0, prefetch: int = 9) -> ManyClient:
    client = ManyClient(world, client_id="c")
    if session:
        client.ask(OpenSession(session))
    client.consume("c", source, session=session, prefetch=prefetch, subscription_name=name, redelivers=True)
    world.settle()
    return client


def filled(world: World, source: Source, name: str, session: int = 0, prefetch: int = 9) -> ManyClient:
    client = consumer(world, source, name, session, prefetch)
    to = "topic://a" if name else "queue://a"
    for body in BODIES:
        ManyClient(world).ask(Send(Message(to, body)))
    world.settle()
    assert [each.redelivered for each in client.given] == [0, 0, 0]
    return client


def seen(world: World, source: Source, name: str) -> list[tuple[bytes, int]]:
    """By the next consumer."""
    client = consumer(world, source, name)
    found = [(each.body, each.redelivered) for each in client.given]
    world.lose(client)
    world.check_at_rest()
    return found


@pytest.mark.parametrize(("source", "name"), SOURCES, ids=["queue", "wildcard", "durable"])
def test_a_loss_counts_as_one_delivery_however_often(world: World, source: Source, name: str) -> None:
    filled(world, source, name).lose()
    for _ in range(8):
        assert seen(world, source, name) == [(body, 1) for body in BODIES]
    world.crash_and_recover()
    assert seen(world, source, name) == [(body, 1) for body in BODIES]


def test_the_end_of_its_session_is_a_loss(world: World) -> None:
    client = filled(world, "queue://a", "", session=1)
    client.ask(CloseSession(1), session=1)
    world.settle()
    assert seen(world, "queue://a", "") == [(body, 1) for body in BODIES]


@pytest.mark.parametrize(("source", "name"), SOURCES, ids=["queue", "wildcard", "durable"])
def test_what_is_left_at_an_orderly_end_was_never_seen(world: World, source: Source, name: str) -> None:
    client = filled(world, source, name)
    client.ask(Settle(client.given[0].seq, "c", outcome=Outcome.RETURNED))
    client.ask(Unsubscribe("c"))
    world.lose(client)
    assert seen(world, source, name) == [(b"0", 1), (b"1", 0), (b"2", 0)]


@pytest.mark.parametrize(("source", "name"), SOURCES, ids=["queue", "wildcard", "durable"])
@pytest.mark.parametrize("ends", ["abort", "loss"])
def test_a_transaction_that_is_rolled_back_fails_nothing(world: World, source: Source, name: str, ends: str) -> None:
    client = filled(world, source, name)
    client.ask(Begin("t"))
    client.ask(Settle(client.given[1].seq, "c", None, "t", first=client.given[0].seq))
    if ends == "abort":
        client.ask(Abort("t"))
        world.settle()
        client.ask(Unsubscribe("c"))
        world.settle()
    world.lose(client)
    counts = 0 if ends == "abort" else 1  # its client says itself what it has seen
    assert seen(world, source, name) == [(body, counts) for body in BODIES]


@pytest.mark.parametrize("transaction", ["", "t"])
def test_it_is_buried_where_the_consumer_refuses_it_and_never_by_its_failures(
    make_world: Callable[..., World], transaction: str
) -> None:
    world = make_world(maximum_redeliveries=0)
    client = filled(world, "queue://a", "")
    for _ in range(3):
        if transaction:
            client.ask(Begin(transaction))
        client.ask(Settle(client.seq(b"0"), "c", None, transaction, Outcome.FAILED))
        if transaction:
            client.ask(Commit(transaction))
        world.settle()
    assert world.stored("DLQ.a") == []
    assert client.given[-1].body == b"0"
    assert client.given[-1].redelivered == 3
    if transaction:
        client.ask(Begin(transaction))
    client.ask(Settle(client.seq(b"0"), "c", None, transaction, Outcome.REJECTED))
    if transaction:
        client.ask(Commit(transaction))
    world.settle()
    assert world.stored("DLQ.a") == [b"0"]
    assert not client.failures
    world.check_at_rest()


@pytest.mark.parametrize(("source", "name"), SOURCES, ids=["queue", "wildcard", "durable"])
@pytest.mark.parametrize("fails", ["send", "commit", "abort"])
def test_what_was_acknowledged_in_a_transaction_that_fails_stays_with_its_consumer(
    world: World, source: Source, name: str, fails: str
) -> None:
    """Its client delivers it again by itself: another copy would be processed as well."""
    ManyClient(world).ask(Send(Message("queue://x.b", b"x", duplicate_id="1")))
    client = filled(world, source, name, prefetch=3)
    held = [each.seq for each in client.given]
    for count in (2, 3):  # the consumer holds them as before, so this can be done again
        client.ask(Begin("t"))
        if fails == "commit":
            client.ask(Send(Message("queue://x.b", b"x", duplicate_id="1"), None, "t"))
        for seq in held[:count]:
            client.ask(Settle(seq, "c", None, "t"))
        if fails == "send":
            client.ask(Invalid(CommandError("the message cannot be sent"), None, "t"))
        client.ask(Abort("t") if fails == "abort" else Commit("t"))
        world.settle()
    failures = {"send": 4, "commit": 2, "abort": 0}[fails]
    ManyClient(world).ask(Send(Message("topic://a" if name else "queue://a", b"3")))
    world.settle()
    assert [each.body for each in client.given] == BODIES, "it has no room for more, and gets nothing again"
    client.ask(Begin("t"))
    for seq in held:
        client.ask(Settle(seq, "c", None, "t"))
    client.ask(Commit("t"))
    world.settle()
    assert len(client.failures) == failures
    assert [each.body for each in client.given] == [*BODIES, b"3"]
    world.lose(client)
    assert seen(world, source, name) == [(b"3", 1)]
