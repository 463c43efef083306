"""prefetch=0: each receive asks for one message, and what nobody asks for stays with the broker. On both faces."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from brokers import Brokers
from faces import AsyncFace, SyncFace
from fake_broker import IGNORE, Broker, Conversation, Store
from test_faces import Group, failover

import amq
from amq.client import ConnectionClosedError
from amq.core.errors import CommandError, TransactionRolledBackError
from amq.protocols.stomp.frame import Frame
from tests.patience import DEADLINE_S
from tests.sampling import only

Q = "/queue/q"


@pytest.fixture(params=only([SyncFace, AsyncFace], AsyncFace), ids=lambda face: face.name)
def face(request: pytest.FixtureRequest) -> Any:
    return request.param


def url(*group: Any) -> str:
    return f"failover:({','.join(f'stomp://127.0.0.1:{broker.port}' for broker in group)})?randomize=false"


async def received(consumer: Any) -> Any:
    message = await consumer.receive(DEADLINE_S)
    assert message is not None
    return message


async def filled(connection: Any, count: int) -> None:
    producer = connection.session().producer(Q)
    for number in range(count):
        await producer.send(str(number), wait=False)
    await producer.flush()


async def test_each_receive_takes_one(face: Any) -> None:
    with Broker(Store()) as broker:
        async with await face.connect(failover(broker)) as connection:
            await filled(connection, 5)
            consumer = await connection.session().consumer(Q, prefetch=0)
            first, second = await received(consumer), await received(consumer)
            assert [first.text, second.text] == ["0", "1"]
            await first.ack(wait=True)
            assert broker.store.bodies(Q) == [b"2", b"3", b"4"]
            other = await connection.session().consumer(Q, prefetch=10)
            for text in "234":
                assert (await received(other)).text == text
            assert await consumer.receive(0) is None
            assert await consumer.receive(0.05) is None
            await connection.session().producer(Q).send("5")
            assert (await received(other)).text == "5", "asked for, and taken back"
            await consumer.close()
            with pytest.raises(ConnectionClosedError):
                await consumer.receive(0)
            with pytest.raises(CommandError, match="from 1"):
                await connection.session().browser(Q, prefetch=0)
            with pytest.raises(CommandError, match="from 0"):
                await connection.session().consumer(Q, prefetch=-1)


async def test_in_transactions(face: Any) -> None:
    with Group() as group:
        async with await face.connect(group.url) as connection:
            await filled(connection, 4)
            session = connection.session(transacted=True)
            consumer = await session.consumer(Q, prefetch=0)
            assert [(await received(consumer)).text for _ in range(2)] == ["0", "1"]
            await session.rollback()
            assert [(await received(consumer)).text for _ in range(2)] == ["0", "1"]
            await session.commit()
            assert group.store.acknowledged == [b"1", b"0"]
            await received(consumer)
            group.take_over()
            with pytest.raises(TransactionRolledBackError):
                await session.commit()
            assert (await received(consumer)).text == "2"
            await session.commit()
        assert group.store.bodies(Q) == [b"3"]


async def test_who_waits_gets_what_comes_later(face: Any, brokers: Brokers) -> None:
    """Also from the next master, which learns that somebody waits."""
    master, slave = brokers.master("a"), brokers.slave("b")

    def come_later() -> None:
        with amq.connect(url(master, slave)) as other:
            producer = other.session().producer("/queue/other")
            producer.send("the first one serves")
            master.kill()
            producer.send("the next one serves")
            other.session().producer(Q).send("late")

    async with await face.connect(url(master, slave)) as connection:
        consumer = await connection.session().consumer(Q, prefetch=0)
        later = threading.Thread(target=come_later)
        later.start()
        message = await consumer.receive(DEADLINE_S)
        assert message is not None
        assert message.text == "late"
        await message.ack(wait=True)
        later.join()


async def test_a_broker_that_says_nothing_holds_nobody_up(face: Any) -> None:
    """`receive` ends soon after its time; a message that comes later goes to the next call."""

    def deaf(_: Conversation, frame: Frame) -> str | None:
        return IGNORE if frame.command == "CREDIT" else None

    with Broker(Store(), script=deaf) as broker:
        async with await face.connect(failover(broker, options=f"&timeout={DEADLINE_S * 1000:.0f}")) as connection:
            await filled(connection, 1)
            consumer = await connection.session().consumer(Q, prefetch=0)
            assert await consumer.receive(0) is None
            assert connection._machine.ledger.all() == []
            with broker.store.lock:
                late = broker.store.conversations[0]
                late.subscriptions[consumer._subscription.id].credit = 1
            await connection.session().producer("/queue/other").send("and so the broker looks what it has")
            assert (await received(consumer)).text == "0"
