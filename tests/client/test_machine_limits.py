"""What becomes of sends and commits for which the broker has no room."""

from __future__ import annotations

import pytest
from fake_broker import Conversation
from world import World

from amq.client.core import ProducerCore
from amq.core.errors import StoreFullError, TransactionRolledBackError
from amq.protocols.stomp.frame import Frame, encode

TWO = "failover:(stomp://a:1,stomp://b:2)?randomize=false"
Q = "/queue/q"


@pytest.mark.parametrize("code", ["MEMORY_FULL", "QUEUE_FULL", "STORE_FULL", "STORE_LIMIT"])
def test_a_full_store_refuses_all_that_is_behind(code: str) -> None:
    def script(_: Conversation, frame: Frame) -> bytes | None:
        if frame.command == "SEND" and len(world.store.bodies(Q)) >= 2:
            headers = [("message", "full"), ("code", code), ("receipt-id", frame.headers["receipt"])]
            return encode("ERROR", headers)
        return None

    world = World(TWO, script=script)
    world.connect()
    producer = ProducerCore(world.session(), Q)
    requests = [world.send(producer, str(number)) for number in range(50)]
    world.advance(1)
    assert [type(request.error) for request in requests if request] == [type(None)] * 2 + [StoreFullError] * 48
    assert len(world.tried) == 2
    assert world.machine.is_flowing()


def test_a_full_queue_refuses_what_goes_there_and_nothing_else() -> None:
    def script(_: Conversation, frame: Frame) -> bytes | None:
        if frame.command == "SEND" and frame.headers["destination"] == Q:
            return encode(
                "ERROR", [("message", "full"), ("code", "QUEUE_FULL"), ("receipt-id", frame.headers["receipt"])]
            )
        return None

    world = World(TWO, script=script).connect()
    full, other = ProducerCore(world.session(), Q), ProducerCore(world.session(), "/queue/other")
    requests = [world.send(producer, f"{number}") for number in range(5) for producer in (full, other)]
    world.advance(1)
    assert [type(request.error) for request in requests if request] == [StoreFullError, type(None)] * 5
    assert world.store.bodies("/queue/other") == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("code", ["QUEUE_FULL", "STORE_FULL", "STORE_LIMIT"])
def test_a_commit_for_which_there_is_no_room_is_rolled_back(code: str) -> None:
    def script(_: Conversation, frame: Frame) -> bytes | None:
        if frame.command == "COMMIT":
            return encode("ERROR", [("message", "no room"), ("code", code), ("receipt-id", frame.headers["receipt"])])
        return None

    world = World(TWO, script=script).connect()
    session = world.session(transacted=True)
    world.send(ProducerCore(session, Q), "1")
    request = session.start_commit()
    world.advance(1)
    assert request is not None
    assert isinstance(request.error, TransactionRolledBackError)
    assert request.error.code == code
    assert world.machine.is_flowing()
