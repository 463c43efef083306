"""`unsubscribe` ends a durable subscription, however often it has to ask. On both faces."""

from __future__ import annotations

from typing import Any

import pytest
from faces import AsyncFace, SyncFace
from fake_broker import CUT, Broker, Conversation, Store
from test_faces import failover

from amq.core.errors import CommandError
from amq.protocols.stomp.frame import Frame, encode

CONFIRMED = "confirmed"


@pytest.fixture(params=[SyncFace, AsyncFace], ids=lambda face: face.name)
def face(request: pytest.FixtureRequest) -> Any:
    return request.param


def answering(*answers: str) -> Any:
    """A script for the ends of durable subscriptions: `CONFIRMED`, `CUT` or the code of an ERROR, one after the other.
    `consumers` = how many its connection had when it was asked."""
    left, consumers = list(answers), []

    def script(conversation: Conversation, frame: Frame) -> str | bytes | None:
        if frame.command != "UNSUBSCRIBE" or "activemq.subscriptionName" not in frame.headers:
            return None
        assert frame.headers["activemq.subscriptionName"] == "s"
        assert "id" not in frame.headers
        consumers.append(len(conversation.subscriptions))
        answer, receipt = left.pop(0), ("receipt-id", frame.headers["receipt"])
        if answer == CUT:
            return CUT
        if answer == CONFIRMED:
            return encode("RECEIPT", [receipt])
        return encode("ERROR", [("message", "it is so"), ("code", answer), receipt])

    script.left, script.consumers = left, consumers  # type: ignore[attr-defined]
    return script


@pytest.mark.parametrize(
    "answers",
    [(CONFIRMED,), ("UNKNOWN_SUBSCRIPTION",), (CUT, CONFIRMED), (CUT, CUT, CONFIRMED), (CUT, "UNKNOWN_SUBSCRIPTION")],
)
async def test_it_is_asked_until_the_subscription_is_gone(face: Any, answers: tuple[str, ...]) -> None:
    script = answering(*answers)
    with Broker(Store(), script=script) as broker:
        async with await face.connect(failover(broker), client_id="c") as connection:
            session = connection.session()
            await session.unsubscribe("s")
            assert script.left == []
            await session.producer("/queue/q").send("the connection goes on")


async def test_a_consumer_keeps_it(face: Any) -> None:
    with Broker(Store(), script=answering("SUBSCRIPTION_IN_USE", CUT, "SUBSCRIPTION_IN_USE")) as broker:
        async with await face.connect(failover(broker), client_id="c") as connection:
            session = connection.session()
            for _ in range(2):
                with pytest.raises(CommandError) as caught:
                    await session.unsubscribe("s")
                assert caught.value.code == "SUBSCRIPTION_IN_USE"
            with pytest.raises(CommandError, match="name"):
                await session.unsubscribe("")


async def test_consumers_are_restored_before_it_is_asked_again(face: Any) -> None:
    """So that one with the same name is not silently emptied: the broker refuses instead."""
    script = answering(CUT, "SUBSCRIPTION_IN_USE")
    with Broker(Store(), script=script) as broker:
        async with await face.connect(failover(broker), client_id="c") as connection:
            session = connection.session()
            await session.consumer("/topic/t", subscription="s")
            with pytest.raises(CommandError):
                await session.unsubscribe("s")
    assert script.consumers == [1, 1]
