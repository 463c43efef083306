"""What clients are promised when their master dies, each with real brokers, kill -9 and both faces of the client."""

from __future__ import annotations

from typing import Any

import pytest
from brokers import Broker, Brokers
from faces import AsyncFace, SyncFace
from test_faces import run

import amq
from amq.client import (
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
