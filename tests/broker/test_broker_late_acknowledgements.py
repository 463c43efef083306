"""A client that lost its connection says an acknowledgement again: it is confirmed only where its message never comes
again, and takes out a message that waits."""

from __future__ import annotations

import pytest

from amq.core.destination import ANY_WORD, Pattern, Source
from amq.core.message import Message
from amq.protocols.commands import Begin, Commit, Send, Settle, SettleAgain
from tests.broker.many import ManyClient
from tests.broker.world import World


def consumer(world: World, source: Source = "queue://a", prefetch: int = 9) -> ManyClient:
    client = ManyClient(world)
    client.consume("c", source, prefetch=prefetch, redelivers=True)
    world.settle()
    return client


def sent(world: World) -> None:
    ManyClient(world).ask(Send(Message("queue://a", b"1")))
    world.settle()


def outcome(world: World, client: ManyClient, seq: int) -> str | None:
    """None = it is confirmed; else the code of the error."""
    receipt = client.ask(SettleAgain(seq, "c"))
    world.settle()
    failed = [told.code for told in client.failures if told.receipt == receipt]
    assert (receipt in client.events) + len(failed) == 1
    return failed[0] if failed else None


def lost(world: World) -> int:
    """A connection had a message and is gone. Its seq."""
    client = consumer(world)
    sent(world)
    (given,) = client.given
    world.lose(client)
    return given.seq


def test_a_message_that_somebody_else_has_is_not_acknowledged(world: World) -> None:
    seq = lost(world)
    other = consumer(world)
    assert [each.seq for each in other.given] == [seq]
    assert outcome(world, consumer(world), seq) == "UNKNOWN_DELIVERY"


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_message_that_waits_is_acknowledged(world: World, is_on_disk: bool) -> None:
    seq = lost(world)
    if is_on_disk:
        world.crash_and_recover()
    client = ManyClient(world)
    client.consume("c", "queue://a", credit=0)
    world.settle()
    assert client.given == []
    assert outcome(world, client, seq) is None
    assert outcome(world, client, seq) is None
    world.crash_and_recover()
    assert consumer(world).given == []


def test_a_message_that_the_same_consumer_has_again_is_acknowledged(world: World) -> None:
    seq = lost(world)
    client = consumer(world)
    assert [each.seq for each in client.given] == [seq]
    assert outcome(world, client, seq) is None
    world.crash_and_recover()
    assert consumer(world).given == []


def test_what_has_left_is_confirmed(world: World) -> None:
    client = consumer(world)
    sent(world)
    seq = client.given[0].seq
    client.ask(Settle(seq, "c"))
    world.settle()
    client.lose()
    assert outcome(world, consumer(world), seq) is None
    world.crash_and_recover()
    assert outcome(world, consumer(world), seq) is None


def test_what_is_on_its_way_to_the_disk_is_confirmed_when_it_is_there(world: World) -> None:
    client, again = consumer(world), consumer(world, prefetch=1)
    sent(world)
    (given,) = client.given + again.given
    holder, other = (client, again) if client.given else (again, client)
    holder.ask(Settle(given.seq, "c"))
    assert outcome(world, other, given.seq) is None


def test_what_is_acknowledged_in_an_open_transaction_is_not(world: World) -> None:
    client = consumer(world)
    sent(world)
    seq = client.given[0].seq
    client.ask(Begin("t"))
    client.ask(Settle(seq, "c", None, "t"))
    assert outcome(world, consumer(world), seq) == "UNKNOWN_DELIVERY"
    client.ask(Commit("t"))
    world.settle()
    assert outcome(world, consumer(world), seq) is None


def test_consumers_of_many_queues_are_told_that_nobody_knows(world: World) -> None:
    client = consumer(world, Pattern("queue://", (ANY_WORD,)))
    assert outcome(world, client, 7) == "UNKNOWN_DELIVERY"


def test_a_consumer_that_is_not_there_is_told_so(world: World) -> None:
    assert outcome(world, ManyClient(world), 7) == "UNKNOWN_DELIVERY"
