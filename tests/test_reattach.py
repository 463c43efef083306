"""Our client and a real broker, whose connection breaks again and again: the application notices nothing.

tests/transports/test_transports_reattach.py cuts at any byte, and the simulation at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from brokers import Broker, Brokers
from relay import Cut, Cutter

import amq
from amq.client import EventKind, aio
from tests.patience import DEADLINE_S

NEVER = 1 << 40
PATIENCE = f"reconnectWindow={DEADLINE_S * 1000:.0f}&timeout={DEADLINE_S * 1000:.0f}"
OPTIONS = f"?{PATIENCE}&updateURIsSupported=false"  # or they would leave the relay out


def cuts(seed: int, count: int) -> Iterator[Cut]:
    """At any byte, in either direction, in all ways in which a connection may break."""
    dice = Random(seed)
    for _ in range(count):
        at = int(10 ** dice.uniform(1.5, 4))
        ahead = dice.random() < 0.5
        yield Cut(at if ahead else NEVER, NEVER if ahead else at, dice.random() < 0.3, dice.random() < 0.5)


@contextlib.contextmanager
def cut(broker: Broker, *these: Cut) -> Iterator[tuple[Cutter, str]]:
    cutter = Cutter(broker.port, these)
    try:
        yield cutter, f"failover:(stomp://127.0.0.1:{cutter.ports[0]}){OPTIONS}"
    finally:
        cutter.close()


def kinds(connection: Any) -> list[EventKind]:
    told: list[EventKind] = []
    connection.on_event(lambda event: told.append(event.kind))
    return told


def only_reattached(told: list[EventKind]) -> bool:
    return told == [EventKind.INTERRUPTED, EventKind.REATTACHED] * (len(told) // 2)


@pytest.mark.deep
def test_everything_counts_once_wherever_the_connection_breaks(brokers: Brokers) -> None:
    """A producer with a window, a consumer that answers in transactions, and one that asks for each answer."""
    broker = brokers.master("a")
    count = 150

    async def main(url: str) -> list[EventKind]:
        async with await aio.connect(url) as connection:
            told = kinds(connection)
            plain, transacted = connection.session(), connection.session(transacted=True)
            source = await transacted.consumer("/queue/source", prefetch=5)
            sink = await plain.consumer("/queue/sink", prefetch=0)
            producer, answers = plain.producer("/queue/source"), transacted.producer("/queue/sink")

            async def work() -> None:
                for _ in range(0, count, 3):
                    async with transacted.transaction():
                        for _ in range(3):
                            message = await source.receive(DEADLINE_S)
                            assert message is not None
                            assert not message.redelivered
                            await answers.send(message.body)

            worker = asyncio.create_task(work())
            for number in range(count):
                await producer.send(str(number).ljust(200), wait=number % 7 == 0)
            for number in range(count):
                message = await sink.receive(DEADLINE_S)
                assert message is not None
                assert not message.redelivered
                assert message.text.strip() == str(number)
                await message.ack(wait=number % 9 == 0)
            await worker
            return told

    with cut(broker, *cuts(9, 20)) as (cutter, url):
        told = asyncio.run(main(url))
    assert cutter.broken >= 10
    assert only_reattached(told), told


def test_a_large_message_is_cut_in_the_middle(brokers: Brokers) -> None:
    """It does not fit into the windows: the connection is set up anew, and the send is repeated, as ever."""
    broker = brokers.master("a")
    body = bytes(range(256)) * (20 << 12)
    with cut(broker, Cut(NEVER, NEVER), Cut(9 << 20, NEVER), Cut(NEVER, 15 << 20)) as (cutter, url):
        first = amq.connect(url)
        with amq.connect(url) as connection:
            told = kinds(connection)
            session = connection.session()
            session.producer("/queue/q").send(body)
            message = session.consumer("/queue/q", prefetch=1).receive(DEADLINE_S)
            assert message is not None
            assert message.body == body
            message.ack(wait=True)
            assert EventKind.FAILOVER in told
        first.close()
        assert cutter.broken == 2
