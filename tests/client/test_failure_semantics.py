"""What clients are promised when their master dies, each with real brokers, kill -9 and both faces of the client."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from brokers import SHORT, Broker, Brokers
from faces import AsyncFace, SyncFace
from test_faces import run

import amq
from amq.client import (
    ConnectError,
    ConnectionEvent,
    EventKind,
    FailoverTimeoutError,
)
from amq.core.errors import TransactionRolledBackError
from tests.patience import DEADLINE_S
from tests.sampling import only

OUT = "/queue/out"
IN = "/queue/in"


@pytest.fixture(params=only([SyncFace, AsyncFace], SyncFace), ids=lambda face: face.name)
def face(request: pytest.FixtureRequest) -> Any:
    return request.param


def url(*group: Broker, options: str = "") -> str:
    return f"failover:({','.join(f'stomp://127.0.0.1:{broker.port}' for broker in group)})?randomize=false{options}"


def bodies(broker: Broker, destination: str) -> list[str]:
    """What waits in a queue, without taking anything."""
    with amq.connect(url(broker)) as connection, connection.session().browser(destination) as browser:
        return [message.text for message in browser]


async def received(consumer: Any) -> Any:
    message = await consumer.receive(DEADLINE_S)
    assert message is not None
    return message


def test_blocked_calls_are_released_and_the_connection_lives_on(face: Any, brokers: Brokers) -> None:
    """Nobody takes over for longer than the calls will wait."""
    master, later = brokers.master("a"), brokers.add("b")

    async def scenario() -> None:
        async with await face.connect(url(master, later)) as connection:
            plain, transacted = connection.session(), connection.session(transacted=True)
            producer = plain.producer(OUT)
            waiting = await plain.consumer(IN)
            await transacted.producer(OUT).send("of the old master")
            master.kill()
            with pytest.raises(FailoverTimeoutError) as caught:
                await producer.send("one", timeout=0.2)
            with pytest.raises(FailoverTimeoutError):
                await plain.consumer("/queue/other", timeout=0.2)
            with pytest.raises(TransactionRolledBackError):
                await transacted.commit(0.2)
            with pytest.raises(FailoverTimeoutError):
                await transacted.producer(OUT).send("of no master", timeout=0.2)
            assert await waiting.receive(0.1) is None
            later.start()
            await producer.send("one", duplicate_id=caught.value.duplicate_id)
            await plain.producer(IN).send("two")
            assert (await received(waiting)).text == "two"
        assert bodies(later, OUT) == ["one"]

    run(scenario)


@pytest.mark.deep
def test_listeners_hear_of_every_failover_and_of_the_end(face: Any, brokers: Brokers) -> None:
    """Also those of a connection that does nothing."""
    master, slave = brokers.master("a"), brokers.slave("b")
    events: list[ConnectionEvent] = []
    changed = threading.Condition()

    def told(event: ConnectionEvent) -> None:
        with changed:
            events.append(event)
            changed.notify_all()

    async def scenario() -> None:
        group = url(master, slave, options="&maxReconnectAttempts=20")
        async with await face.connect(group, on_event=told) as connection:
            idle = await connection.session().consumer(IN)
            master.kill()
            assert await idle.receive(0) is None
            await connection.session().producer(OUT).send("on the slave")
            assert [event.kind for event in events] == [EventKind.INTERRUPTED, EventKind.FAILOVER]
            interrupted, failover = events
            assert (interrupted.old_uri.port, interrupted.new_uri) == (master.port, None)
            assert (failover.old_uri.port, failover.new_uri.port) == (master.port, slave.port)
            assert failover.duration_s > 0
            slave.kill()
            with pytest.raises(ConnectError):
                await idle.receive(DEADLINE_S)
            assert connection.closed
        assert [event.kind for event in events[2:]] == [EventKind.INTERRUPTED, EventKind.DISCONNECT]
        assert events[3].old_uri.port == slave.port
        assert isinstance(events[3].error, ConnectError)

    run(scenario)


@pytest.mark.deep
def test_a_default_client_leaves_a_silent_master_after_four_seconds(face: Any, brokers: Brokers) -> None:
    """The master pauses, and the lock is taken from it, as a file server does when a lease runs out. Asserted is
    the client's own limit and why it left, not a time that a busy machine stretches.
    """
    master, slave = brokers.master("a", **SHORT), brokers.slave("b")
    events: list[ConnectionEvent] = []

    async def scenario() -> None:
        plain = f"failover:({','.join(f'stomp://127.0.0.1:{broker.port}' for broker in (master, slave))})"
        async with await face.connect(plain, on_event=events.append) as connection:
            producer = connection.session().producer(OUT)
            await producer.send("before")
            assert connection._machine.link.silence_s_max == 4.0
            master.freeze()
            (brokers.store / "lock").unlink()
            await producer.send("after")
            assert connection.uri.port == slave.port

    run(scenario)
    master.kill()
    assert [event.kind for event in events] == [EventKind.INTERRUPTED, EventKind.FAILOVER]
    assert events[0].error is not None
    assert events[0].error.code == "HEART_BEAT_MISSED"
    assert bodies(slave, OUT) == ["before", "after"]
