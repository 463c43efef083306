"""Subscriptions whose consumer is gone: no broker is asked for them again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

import pytest
from fake_broker import IGNORE, Conversation, Group
from world import World

from amq.client import aio
from amq.client.core import ProducerCore
from amq.protocols.stomp.frame import Frame, encode

TWO = "failover:(stomp://a:1,stomp://b:2)?randomize=false"
Q = "/queue/q"


def test_a_subscription_that_ends_before_it_is_restored_stays_away() -> None:
    def script(_: Conversation, frame: Frame) -> str | None:
        return IGNORE if frame.command in silent else None

    silent: set[str] = set()
    world = World(TWO, alive="ab", script=script).connect()
    producer, session = ProducerCore(world.session(), Q), world.session()
    early, _ = session.subscribe(Q, 5, "", {})
    late, _ = session.subscribe(Q, 5, "", {})
    world.settle()
    silent |= {"SUBSCRIBE", "UNSUBSCRIBE"}
    world.kill("a")
    world.advance(1)
    session.unsubscribe(early)  # which b was asked to restore, and to forget
    world.settle()
    world.kill("b")
    session.unsubscribe(late)  # which b was asked to restore
    silent.clear()
    world.alive.add("a")
    world.advance(1)
    world.send(producer, "1")
    world.settle()
    assert world.machine.is_flowing()
    assert [c.subscriptions for c in world.wires.values()] == [{}]
    assert world.store.bodies(Q) == [b"1"]


def test_the_end_of_a_browse_is_heard_while_the_rest_is_restored() -> None:
    """In a transacted session `receive` slept for ever: when all was restored nobody knew of that browse any more."""

    def script(_: Conversation, frame: Frame) -> str | bytes | None:
        if frame.command == "SUBSCRIBE":
            id, receipt = frame.headers["id"], frame.headers["receipt"]
            asked.append(id)
            end = [("subscription", id), ("message-id", "0"), ("destination", Q), ("browser", "end")]
            return encode("RECEIPT", [("receipt-id", receipt)]) + (encode("MESSAGE", end) if len(asked) > 1 else b"")
        if frame.command == "SEND":
            return IGNORE if len(asked) > 1 else encode("ERROR", [("message", "one of these is wrong")])
        return IGNORE if frame.command == "UNSUBSCRIBE" else None

    asked: list[str] = []
    world = World(TWO, alive="a", script=script).connect()
    session = world.session(transacted=True)
    browse, _ = session.subscribe(Q, 5, "", {}, browses=True)
    world.settle()
    world.send(ProducerCore(world.session(), Q), "1")
    world.settle()
    world.advance(1)
    assert len(asked) == 2
    assert not world.machine.is_flowing(), "the broker does not answer the send"
    assert browse.ready()
    assert session.take(browse) is None


def test_a_subscription_that_cannot_be_written_leaves_nothing() -> None:
    world = World(TWO, alive="ab").connect()
    with pytest.raises((AttributeError, ValueError)):
        world.session().subscribe(Q, 5, "", {"activemq.priority": 7})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="name"):
        world.session().subscribe(Q, 5, "", {"": "7"})
    world.kill("a")
    world.advance(1)
    assert world.machine.is_flowing()
    assert not world.machine.subscriptions


async def test_a_consumer_whose_opening_is_cancelled_holds_nothing() -> None:
    def script(conversation: Conversation, frame: Frame) -> str | None:
        if frame.command == "SUBSCRIBE":
            conversation.on_subscribe(frame)  # and no receipt
            asked.set()
            return IGNORE
        return None

    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    asked.set = partial(loop.call_soon_threadsafe, asked.set)  # type: ignore[method-assign]
    with Group(script=script) as group:
        async with await aio.connect(group.url) as connection, connection.session() as session:
            opening = asyncio.create_task(session.consumer(Q))
            await asked.wait()
            opening.cancel()
            with suppress(asyncio.CancelledError):
                await opening
            assert not connection._machine.subscriptions
            await session.producer(Q).send("1")
            assert group.store.conversations[-1].subscriptions == {}
