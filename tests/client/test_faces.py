"""The same scenarios on the synchronous and the asyncio face, against brokers on real sockets."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from faces import AsyncFace, SyncFace
from fake_broker import CARRY_OUT_AND_CUT, CUT, IGNORE, Broker, Conversation, Group, Store

import amq
from amq.client import (
    CallTimeoutError,
    CommitOutcomeUnknownError,
    ConnectError,
    ConnectionClosedError,
    ConnectionEvent,
    ConnectionLostError,
    DeliveryLostError,
    EventKind,
    FailoverTimeoutError,
    FlushError,
    UriError,
    aio,
)
from amq.core.errors import AccessError, AmqError, CommandError, ProtocolError, TransactionRolledBackError
from amq.protocols.stomp.frame import Frame, encode
from tests.patience import DEADLINE_S

Q = "/queue/q"


@pytest.fixture(params=[SyncFace, AsyncFace], ids=lambda face: face.name)
def face(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def failover(*brokers: Broker, options: str = "") -> str:
    return f"failover:({','.join(broker.uri for broker in brokers)})?randomize=false&nested.heartBeat=0{options}"


async def test_send_and_receive(face: Any) -> None:
    with Broker(Store()) as broker:
        async with await face.connect(failover(broker)) as connection, connection.session() as session:
            producer = session.producer(Q)
            first = await producer.send("häh", headers={"a:b": "c\nd"}, priority=7, content_type="text/plain")
            await producer.send(b"\0bytes", persistent=False, duplicate_id="mine", time_to_live=60)
            consumer = await session.consumer(Q, prefetch=5)
            message = await consumer.receive(DEADLINE_S)
            assert (message.text, message.priority, message.duplicate_id) == ("häh", 7, first)
            assert message.headers["a:b"] == "c\nd"
            assert message.headers["persistent"] == "true"
            assert message.headers["content-type"] == "text/plain"
            assert message.destination == Q
            assert not message.redelivered
            await message.ack(wait=True)
            message = await consumer.receive(DEADLINE_S)
            assert message.body == b"\0bytes"
            assert message.duplicate_id == "mine"
            assert message.headers["persistent"] == "false"
            assert int(message.headers["expires"]) > 1_700_000_000_000
            await message.nack(requeue=True, wait=True)
            message = await consumer.receive(DEADLINE_S)
            assert (message.body, message.redelivered) == (b"\0bytes", True)
            await message.nack(wait=True)
            assert await consumer.receive(0) is None
            assert await consumer.receive(0.01) is None
            assert str(connection.uri) == broker.uri
        assert broker.store.acknowledged == ["häh".encode()]
        assert broker.store.bodies("/queue/DLQ") == [b"\0bytes"]


async def test_iteration_ends_by_timeout_and_by_close(face: Any) -> None:
    with Broker(Store()) as broker:
        async with await face.connect(failover(broker)) as connection:
            session = connection.session(ack="auto")
            producer = session.producer(Q)
            for number in range(250):
                await producer.send(str(number), wait=False)
            await producer.flush()
            consumer = await session.consumer(Q, prefetch=20)
            bodies: list[str] = []
            while len(bodies) < 250:  # a busy machine may pause for longer in between
                bodies += [message.text async for message in consumer.messages(timeout=0.2)]
            assert bodies == [str(number) for number in range(250)]
            await producer.send("last")
            async for message in consumer:
                assert message.text == "last"
                await consumer.close()
            with pytest.raises(ConnectionClosedError):
                await consumer.receive(1)
        assert len(broker.store.acknowledged) == 251


async def test_failover_in_mid_stream_keeps_order_and_loses_nothing(face: Any) -> None:
    events: list[ConnectionEvent] = []
    with Group() as group:
        async with await face.connect(group.url, on_event=events.append, send_window_messages=50) as connection:
            producer = connection.session().producer(Q)
            for number in range(1000):
                if number % 200 == 100:
                    group.take_over()
                await producer.send(str(number), wait=number % 10 == 0)
            await producer.flush()
            assert [body.decode() for body in group.store.bodies(Q)] == [str(number) for number in range(1000)]
            consumer = await connection.session().consumer(Q, prefetch=10)
            seen = []
            while len(group.store.acknowledged) < 1000:
                message = await consumer.receive(DEADLINE_S)
                if message.text not in seen:
                    seen.append(message.text)
                if len(seen) % 250 == 10 and not message.redelivered:
                    group.take_over()
                try:
                    await message.ack(wait=True)
                except DeliveryLostError:
                    continue
            assert seen == [str(number) for number in range(1000)]
    kinds = [event.kind for event in events]
    assert kinds == [EventKind.INTERRUPTED, EventKind.FAILOVER] * (len(kinds) // 2)
    assert len(kinds) >= 16


async def test_transactions(face: Any) -> None:
    with Group() as group:
        async with await face.connect(group.url) as connection:
            plain = connection.session()
            session = connection.session(transacted=True)
            into, out = plain.producer("/queue/in"), session.producer("/queue/out")
            for number in range(5):
                await into.send(str(number))
            consumer = await session.consumer("/queue/in", prefetch=2)
            async with session.transaction():
                await out.send((await consumer.receive(DEADLINE_S)).text + "!")
            with pytest.raises(ZeroDivisionError):
                async with session.transaction():
                    await out.send((await consumer.receive(DEADLINE_S)).text + "!")
                    raise ZeroDivisionError
            message = await consumer.receive(DEADLINE_S)
            assert message.text == "1"
            assert message.redelivered
            with pytest.raises(CommandError, match="transacted"):
                await message.ack()
            group.take_over()
            with pytest.raises(TransactionRolledBackError):
                while True:  # the next news from the broker says it
                    await out.send("never", timeout=DEADLINE_S)
                    await asyncio.sleep(0)
            with pytest.raises(TransactionRolledBackError):
                await session.commit()
            for number in range(1, 5):
                message = await consumer.receive(DEADLINE_S)
                assert message.text == str(number)
                await out.send(message.text + "!")
            await session.commit()
            await out.send("rolled back by close")
        assert sorted(group.store.acknowledged) == [b"0", b"1", b"2", b"3", b"4"]
        assert group.store.bodies("/queue/out") == [b"0!", b"1!", b"2!", b"3!", b"4!"]


@pytest.mark.parametrize("verdict", [CUT, CARRY_OUT_AND_CUT])
async def test_commit_in_flight(face: Any, verdict: str) -> None:
    faults = [verdict]

    def script(_: Conversation, frame: Frame) -> str | None:
        return faults.pop() if frame.command == "COMMIT" and faults else None

    with Group(script=script) as group:
        async with await face.connect(group.url) as connection:
            session = connection.session(transacted=True)
            await session.producer(Q).send("1")
            if verdict == CUT:
                with pytest.raises(TransactionRolledBackError):
                    await session.commit()
            else:
                await session.commit()
            async with session.transaction():
                await session.producer(Q).send("2")
        assert group.store.bodies(Q) == ([b"2"] if verdict == CUT else [b"1", b"2"])


async def test_errors_of_connect(face: Any) -> None:
    with pytest.raises(UriError):
        await face.connect("failover:(nowhere)")
    store = Store()
    with Broker(store, passcode="right") as broker:
        with pytest.raises(AccessError):
            await face.connect(failover(broker), login="me", passcode="wrong")
        connection = await face.connect(failover(broker), login="me", passcode="right")
        await connection.close()
    with pytest.raises(ConnectError, match="refused"):
        await face.connect(failover(broker, options="&startupMaxReconnectAttempts=2"))
    with pytest.raises(FailoverTimeoutError):
        await face.connect(failover(broker), timeout=0.05)
    with pytest.raises(FailoverTimeoutError):
        await face.connect(failover(broker, options="&timeout=50"))
    with pytest.raises(ConnectError, match="not known"):
        await face.connect("stomp://no-such-host.invalid:1")
    with Broker(store, script=lambda *_: IGNORE) as silent, pytest.raises(ConnectError, match="did not answer"):
        await face.connect(silent.uri + "?connectTimeout=50")


async def test_every_blocking_call_ends_in_time(face: Any) -> None:
    """The broker takes everything and answers nothing."""
    muted: list[str] = []
    with Group(script=lambda _, frame: IGNORE if frame.command in muted else None) as group:
        connection = await face.connect(group.url + "&timeout=100", timeout=DEADLINE_S, send_window_messages=2)
        session, transacted = connection.session(), connection.session(transacted=True)
        producer = session.producer(Q)
        consumer = await session.consumer(Q, timeout=DEADLINE_S)
        await producer.send("1", timeout=DEADLINE_S)
        message = await consumer.receive(DEADLINE_S)
        muted += ["SEND", "SUBSCRIBE", "ACK", "UNSUBSCRIBE", "COMMIT", "ABORT", "DISCONNECT"]
        with pytest.raises(CallTimeoutError) as late:
            await producer.send("2", duplicate_id="two")
        assert late.value.duplicate_id == "two"
        assert not isinstance(late.value, FailoverTimeoutError)
        with pytest.raises(CallTimeoutError):
            await message.ack(wait=True)
        with pytest.raises(CallTimeoutError):
            await session.consumer(Q)
        with pytest.raises(CallTimeoutError):
            await consumer.close()
        await transacted.producer(Q).send("3")
        with pytest.raises(CommitOutcomeUnknownError):
            await transacted.commit()
        await transacted.producer(Q).send("4")
        with pytest.raises(CallTimeoutError):
            await transacted.rollback(timeout=0.05)
        await producer.send("5", wait=False)
        await producer.send("6", wait=False)
        with pytest.raises(CallTimeoutError):
            await producer.send("7", wait=False, timeout=0.01)
        with pytest.raises(CallTimeoutError):
            await producer.flush(timeout=0.01)
        group.master.kill()
        with pytest.raises(FailoverTimeoutError):
            await producer.flush()
        with pytest.raises(FailoverTimeoutError):
            await transacted.producer(Q).send("8")
        assert connection.unconfirmed == 2
        with pytest.raises(CallTimeoutError):
            await connection.close(timeout=0.01)
        assert connection.closed
        await connection.close()


def refuse_bad(_: Conversation, frame: Frame) -> bytes | None:
    if frame.body != b"bad":
        return None
    receipt = ("receipt-id", frame.headers["receipt"])
    return encode("ERROR", [("message", "bad"), ("code", "BODY_TOO_BIG"), receipt])


async def test_flush_tells_what_was_refused(face: Any) -> None:
    with Group(script=refuse_bad) as group:
        async with await face.connect(group.url) as connection:
            producer = connection.session().producer(Q)
            await producer.send("1", wait=False)
            refused = await producer.send("bad", wait=False)
            await producer.send("2", wait=False)
            with pytest.raises(FlushError) as failed:
                await producer.flush()
            assert [(id, type(error)) for id, error in failed.value.failures] == [(refused, ProtocolError)]
            await producer.flush()
            with pytest.raises(ProtocolError):
                await producer.send("bad")
            await producer.flush()
        assert group.store.bodies(Q) == [b"1", b"2"]


async def test_without_failover_the_application_hears_of_it(face: Any) -> None:
    """Application-level failover, as docs/client.md shows it."""
    events: list[ConnectionEvent] = []
    store = Store()
    broker = Broker(store)
    connection = await face.connect(broker.uri, on_event=events.append)
    session = connection.session()
    producer, consumer = session.producer(Q), await session.consumer(Q)
    await producer.send("1")
    broker.kill()
    with pytest.raises(ConnectionLostError):
        while True:
            await consumer.receive(DEADLINE_S)
    with pytest.raises(ConnectionLostError):
        await producer.send("2")
    with pytest.raises(ConnectionLostError):
        async for _ in consumer:
            pass
    while len(events) < 2:
        await asyncio.sleep(0.001)
    assert [event.kind for event in events] == [EventKind.INTERRUPTED, EventKind.DISCONNECT]
    assert isinstance(events[1].error, ConnectionLostError)
    assert connection.closed
    await connection.close()
    with Broker(store) as other:
        async with await face.connect(other.uri) as again:
            message = await (await again.session().consumer(Q)).receive(DEADLINE_S)
            assert message.text == "1"


async def test_use_after_close(face: Any) -> None:
    with Group() as group:
        connection = await face.connect(group.url)
        session = connection.session()
        producer = session.producer(Q)
        consumer = await session.consumer(Q)
        await session.close()
        await session.close()
        with pytest.raises(ConnectionClosedError):
            await producer.send("x")
        with pytest.raises(ConnectionClosedError):
            await consumer.receive(1)
        await connection.close()
        await connection.close()
        with pytest.raises(ConnectionClosedError):
            connection.session()


async def test_wrong_arguments_are_refused_and_change_nothing(face: Any) -> None:
    with Group() as group:
        async with await face.connect(group.url) as connection:
            session = connection.session()
            producer = session.producer(Q)
            for arguments in ({"priority": 10}, {"headers": {"receipt": "1"}}, {"headers": {"": "1"}}):
                with pytest.raises(CommandError):
                    await producer.send("x", **arguments)
            with pytest.raises(CommandError):
                session.producer("")
            with pytest.raises(CommandError):
                connection.session(ack="sometimes")
            with pytest.raises(CommandError):
                await session.consumer(Q, prefetch=-1)
            with pytest.raises(CommandError):
                await session.commit()
            await producer.send("y")
        assert group.store.bodies(Q) == [b"y"]


async def test_an_exception_in_the_block_is_not_masked(face: Any) -> None:
    group = Group(script=lambda _, frame: IGNORE if frame.command == "SEND" else None)
    with group, pytest.raises(ZeroDivisionError):
        async with await face.connect(group.url) as connection:
            await connection.session().producer(Q).send("x", wait=False)
            raise ZeroDivisionError


async def test_a_failing_listener_is_logged_and_others_are_told(face: Any, caplog: pytest.LogCaptureFixture) -> None:
    told: list[EventKind] = []
    with Group() as group:
        async with await face.connect(group.url) as connection:
            connection.on_event(lambda event: 1 / 0)  # noqa: ARG005
            connection.on_event(lambda event: told.append(event.kind))
            group.take_over()
            await connection.session().producer(Q).send("x")
            while EventKind.FAILOVER not in told:
                await asyncio.sleep(0.001)
    assert "a listener failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


async def test_large_messages_through_full_sockets(face: Any) -> None:
    body = bytes(range(256)) * 16384
    with Group() as group:
        async with await face.connect(group.url, send_window_bytes=10 << 20) as connection:
            session = connection.session()
            producer = session.producer(Q)
            for _ in range(6):
                await producer.send(body, wait=False)
            await producer.flush()
            consumer = await session.consumer(Q, prefetch=2)
            for _ in range(6):
                message = await consumer.receive(DEADLINE_S)
                assert message.body == body
                await message.ack()


def test_both_faces_have_the_same_methods() -> None:
    from amq.client import connection, session

    pairs: list[tuple[Any, Any]] = [(connection.Connection, aio.Connection), (connection.connect, aio.connect)]
    pairs += [(getattr(session, n), getattr(aio, n)) for n in ("Session", "Producer", "Consumer", "Message")]
    for sync, asynchronous in pairs:
        if inspect.isfunction(sync):
            assert list(inspect.signature(sync).parameters) == list(inspect.signature(asynchronous).parameters)
            continue
        names = {name for name in dir(sync) if not name.startswith("_")}
        assert names == {name for name in dir(asynchronous) if not name.startswith("_")}
        for name in names:
            ours, theirs = getattr(sync, name), getattr(asynchronous, name)
            if inspect.isfunction(ours):
                assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name


def test_every_error_has_its_own_code() -> None:
    errors = [value for value in vars(amq.client).values() if isinstance(value, type) and issubclass(value, AmqError)]
    assert len({error.code for error in errors}) == len(errors) >= 10
