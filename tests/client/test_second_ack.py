"""The second acknowledgement of a message that waits: it waits for the first, or says why it cannot. On both faces."""

from __future__ import annotations

from typing import Any

import pytest
from faces import AsyncFace, SyncFace
from fake_broker import IGNORE, Broker, Conversation, Store
from test_faces import failover

from amq.client import CallTimeoutError, DeliveryLostError
from amq.core.errors import CommandError
from amq.protocols.stomp.frame import Frame, encode
from tests.patience import DEADLINE_S

Q = "/queue/q"


@pytest.fixture(params=[SyncFace, AsyncFace], ids=lambda face: face.name)
def face(request: pytest.FixtureRequest) -> Any:
    return request.param


async def delivered(connection: Any, ack: str, count: int, queue: str = Q) -> list[Any]:
    session = connection.session(ack=ack)
    for number in range(count):
        await session.producer(queue).send(str(number))
    consumer = await session.consumer(queue)
    return [await consumer.receive(DEADLINE_S) for _ in range(count)]


async def test_it_waits_for_the_outcome_of_the_first(face: Any) -> None:
    """The first gave up while the broker did not answer; a second one that gives up changes nothing either."""
    silent = [Frame("", {})]

    def answer(conversation: Conversation, frame: Frame) -> str | None:
        if frame.command != "ACK" or not silent:
            return None
        silent[0] = frame
        conversation.on_ack(frame)
        return IGNORE

    with Broker(Store(), script=answer) as broker:
        async with await face.connect(failover(broker)) as connection:
            first, second = await delivered(connection, "client-individual", 2)
            for _ in range(3):
                with pytest.raises(CallTimeoutError):
                    await first.ack(wait=True, timeout=0.05)
            with broker.store.lock:
                receipt = silent[0].headers["receipt"]
                broker.store.conversations[0].out += encode("RECEIPT", [("receipt-id", receipt)])
                silent.clear()
            await second.ack(wait=True)
            await first.ack(wait=True)
            assert [frame.command for frame in broker.store.frames].count("ACK") == 1
            assert broker.store.acknowledged == [b"0", b"1"]


async def test_it_tells_that_the_first_was_lost(face: Any) -> None:
    def ignore(_: Conversation, frame: Frame) -> str | None:
        return IGNORE if frame.command == "ACK" else None

    with Broker(Store(), script=ignore) as broker:
        async with await face.connect(failover(broker)) as connection:
            (message,) = await delivered(connection, "client-individual", 1)
            with pytest.raises(CallTimeoutError):
                await message.ack(wait=True, timeout=0.05)
            broker.drop_connections()
            for _ in range(2):
                with pytest.raises(DeliveryLostError):
                    await message.ack(wait=True)


async def test_it_is_refused_where_the_first_asked_for_no_receipt(face: Any) -> None:
    with Broker(Store()) as broker:
        async with await face.connect(failover(broker)) as connection:
            (message,) = await delivered(connection, "client-individual", 1)
            await message.ack()
            await message.ack()
            await message.nack()
            for call in (message.ack, message.nack):
                with pytest.raises(CommandError, match="without wait=True"):
                    await call(wait=True)
            (message,) = await delivered(connection, "client-individual", 1, "/queue/second")
            await message.ack(wait=True)
            with pytest.raises(CommandError, match="acknowledged before"):
                await message.nack(wait=True)
            (message,) = await delivered(connection, "auto", 1, "/queue/third")
            await message.ack()
            with pytest.raises(CommandError, match="handed over"):
                await message.ack(wait=True)


async def test_in_cumulative_mode_the_later_one_counts(face: Any) -> None:
    with Broker(Store()) as broker:
        async with await face.connect(failover(broker)) as connection:
            messages = await delivered(connection, "client", 4)
            await messages[1].ack(wait=True)
            await messages[0].ack(wait=True)
            await messages[3].ack()
            await messages[2].ack()
            await messages[1].ack(wait=True)
            with pytest.raises(CommandError, match="without wait=True"):
                await messages[2].ack(wait=True)
            await connection.close()
        assert broker.store.acknowledged == [b"0", b"1", b"2", b"3"]


async def test_a_message_that_was_only_looked_at_needs_none(face: Any) -> None:
    def browse(conversation: Conversation, frame: Frame) -> bytes | None:
        if frame.command != "SUBSCRIBE":
            return None
        headers = [("subscription", frame.headers["id"]), ("message-id", "1"), ("ack", "1")]
        end = encode("MESSAGE", [("subscription", frame.headers["id"]), ("browser", "end")])
        receipt = encode("RECEIPT", [("receipt-id", frame.headers["receipt"])])
        conversation.script = lambda *_: IGNORE
        return receipt + encode("MESSAGE", headers, b"x") + end

    with Broker(Store(), script=browse) as broker:
        connection = await face.connect(failover(broker))
        browser = await connection.session().browser(Q)
        message = await browser.receive(DEADLINE_S)
        await message.ack(wait=True)
        await connection.abort()


async def test_parts_of_one_transaction_in_several_stores_are_listed_each(face: Any) -> None:
    """A part that a browse shows again, after a failover, is listed once."""
    part = b'{"xid":"span:s1:7","owner":"","batch":0,"created_ms":1,"timeout_ms":0,"sends":{"/queue/%s":1},"acks":{}}'

    def browse(_: Conversation, frame: Frame) -> Any:
        receipt = frame.headers.get("receipt")
        found = [encode("RECEIPT", [("receipt-id", receipt)])] if receipt else []
        if frame.command == "UNSUBSCRIBE":
            return b"".join(found) or IGNORE
        if frame.command != "SUBSCRIBE":
            return None
        id = frame.headers["id"]
        for number, name in enumerate((b"a", b"b", b"a")):
            found.append(encode("MESSAGE", [("subscription", id), ("message-id", str(number))], part % name))
        return b"".join([*found, encode("MESSAGE", [("subscription", id), ("browser", "end")])])

    with Broker(Store(), script=browse) as broker:
        connection = await face.connect(failover(broker))
        assert [[*each.sends] for each in await connection.recover()] == [["/queue/a"], ["/queue/b"]]
        await connection.abort()
