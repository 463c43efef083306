"""Leases as a reader of batches meets them: real brokers, which are killed while a lease is asked for and read."""

from __future__ import annotations

import asyncio

import pytest

import amq
from amq import aio
from amq.client import Connection
from amq.client.leases import LeaseRequest
from amq.core.errors import CommandError
from tests.brokers import Brokers
from tests.patience import DEADLINE_S
from tests.test_two_phase import drain, url

QUEUE = "/queue/a"


def send(connection: Connection, count: int, destination: str = QUEUE) -> list[bytes]:
    bodies = [b"%06d" % number for number in range(count)]
    with connection.session() as session:
        producer = session.producer(destination)
        for body in bodies:
            producer.send(body, wait=False)
        producer.flush()
    return bodies


def read(connection: Connection, number: int, start: int = 0, stop: int | None = None) -> list[bytes]:
    with connection.session() as session:
        reader, found = session.lease_reader(QUEUE, "c", number, start=start, stop=stop), []
        while some := reader.receive_many(DEADLINE_S):
            found += [message.body for message in some]
        assert reader.finished
    return found


def test_batches_are_read_again_after_a_kill(brokers: Brokers) -> None:
    """The master is killed before a lease, and while one is read; another consumer works on the same queue."""
    master, slave = brokers.master("a"), brokers.slave("b")
    where = url(master, slave)
    with amq.connect(where) as driver, amq.connect(where) as worker, amq.connect(where) as other:
        bodies = send(driver, 2000)
        first = driver.lease(QUEUE, "c", messages=1200)
        assert (first.messages, first.waiting) == (1200, 800)
        assert driver.lease(QUEUE, "c", messages=10) == driver.lease(QUEUE, "c", messages=1), "leased twice"
        consumer = other.session(ack="auto").consumer(QUEUE, prefetch=10)
        consumed = [message.body for _ in range(300) if (message := consumer.receive(DEADLINE_S)) is not None]
        assert consumed == bodies[1200:1500]
        consumer.close()

        with worker.session() as session:
            reader = session.lease_reader(QUEUE, "c", first.number, prefetch=100)
            half = [message.body for _ in range(600) if (message := reader.receive(DEADLINE_S)) is not None]
            master.kill()
            second = driver.lease(QUEUE, "c", after=first.number)
            while some := reader.receive_many(DEADLINE_S):
                half += [message.body for message in some]
            assert reader.finished
        assert half == bodies[:1200]
        assert read(worker, first.number, 1000, 1100) == bodies[1000:1100]
        assert (second.store, second.messages) == (first.store, 500)
        assert driver.lease(QUEUE, "c", after=first.number).number == second.number
        assert drain(other, "a") == []
        assert read(worker, second.number) == bodies[1500:]
        for _ in range(2):
            driver.settle(QUEUE, "c", first.number)
        with pytest.raises(CommandError) as caught:
            read(worker, first.number)
        assert caught.value.code == "UNKNOWN_LEASE"
        driver.settle(QUEUE, "c", second.number, acknowledge=False)
        assert drain(other, "a") == bodies[1500:]


def test_with_asyncio(brokers: Brokers) -> None:
    master = brokers.master("a")

    async def scenario() -> None:
        async with await aio.connect(url(master)) as connection:
            async with connection.session() as session:
                async with await session.consumer("/topic/t", subscription="c", prefetch=0):
                    pass
                for body in (b"1", b"2"):
                    await session.producer("/topic/t").send(body)
                lease = await connection.lease("/topic/t", "c", lease_timeout=600)
                assert lease.messages == 2
                reader = await session.lease_reader("/topic/t", "c", lease.number, start=1)
                assert [(message.body, message.destination) async for message in reader] == [(b"2", "/topic/t")]
                again = await session.lease_reader("/topic/t", "c", lease.number)
                first = await again.receive()
                assert first is not None
                rest = []
                while some := await again.receive_many(DEADLINE_S):
                    rest += [message.body for message in some]
                assert (first.body, rest, again.finished) == (b"1", [b"2"], True)
                await first.ack()  # of a message that was only shown: nothing
            asked = [LeaseRequest("/topic/t", "c", after) for after in (0, lease.number)]
            assert [each.number for each in await connection.lease_many(asked)] == [lease.number, 0]
            await connection.settle("/topic/t", "c", lease.number)
            assert (await connection.lease("/topic/t", "c")).number == 0

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))
