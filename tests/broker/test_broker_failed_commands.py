"""A command that fails leaves the session as it was before it, for a protocol whose errors keep the connection."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amq.broker.queues.rooms import ReplayRoom
from amq.broker.sessions import session
from amq.core.errors import StoreFullError
from amq.core.message import Message
from amq.protocols.commands import LeaseMessages, Send
from tests.broker.world import Client, World


def keeping(world: World) -> Client:
    """A client whose connection survives every error."""
    client = world.connect()
    client.fail = lambda failure: client.errors.append(  # type: ignore[method-assign]
        (failure.error.code, failure.receipt or "")  # type: ignore[attr-defined, arg-type]
    )
    return client


def test_a_transaction_does_not_commit_without_a_message_that_failed(tmp_path: Path) -> None:
    world = World(tmp_path, max_transaction_size_bytes=4096)
    client = keeping(world)
    client.begin()
    client.send(b"first", transaction="t")
    failed = client.send(bytes(5000), transaction="t")
    later = client.send(b"third", transaction="t")
    committed = client.commit()
    world.settle()
    assert client.errors == [
        ("TRANSACTION_TOO_LARGE", failed),
        ("UNKNOWN_TRANSACTION", later),
        ("UNKNOWN_TRANSACTION", committed),
    ]
    assert world.stored() == []
    client.send(b"after")
    world.settle()
    assert world.stored() == [b"after"]
    world.close()


def test_a_transaction_does_not_commit_without_an_acknowledgement_that_failed(tmp_path: Path) -> None:
    world = World(tmp_path)
    client = keeping(world)
    client.send(b"x")
    client.subscribe()
    world.settle()
    client.begin()
    client.ack(b"x", "t")
    failed = client.ack(b"x", "t")
    client.commit()
    world.settle()
    assert client.errors[0] == ("UNKNOWN_DELIVERY", failed)
    assert client.codes[1:] == ["UNKNOWN_TRANSACTION"]
    assert world.stored() == [b"x"]
    world.close()


def test_a_transaction_that_was_idle_too_long_is_reported_once_and_over(tmp_path: Path) -> None:
    world = World(tmp_path)
    client = keeping(world)
    client.begin()
    client.send(b"x", transaction="t")
    late_s = world.clock.monotonic() + world.config.transaction_timeout_s + 1
    client.session.expire_transactions(late_s)
    client.session.expire_transactions(late_s)
    assert client.codes == ["TRANSACTION_TIMEOUT"]
    client.commit()
    world.settle()
    assert client.codes == ["TRANSACTION_TIMEOUT", "UNKNOWN_TRANSACTION"]
    assert world.stored() == []
    world.close()


def test_a_send_that_is_rejected_while_others_wait_is_not_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "STALLED_BYTES_MAX", 4000)
    world = World(tmp_path, queue_limit_bytes=6000)
    client = keeping(world)
    client.subscribe(prefetch=1)
    client.send(b"a" * 6000)
    world.settle()
    rejected = []
    for size in (2000, 3000):
        token = world.next_receipt()
        client.session.handle([Send(Message("queue://a", bytes(size)), token)])
        rejected.append(token)
    assert [receipt for _, receipt in client.errors] == rejected[1:]
    client.ack(b"a" * 6000)
    world.settle()
    assert [len(body) for body in world.stored()] == [2000]
    world.close()


def test_the_error_of_a_send_names_the_replay_that_those_before_it_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "STALLED_BYTES_MAX", 4000)
    world = World(tmp_path)
    client = keeping(world)
    client.subscribe(prefetch=1)
    client.send(b"a")
    world.settle()
    world.broker.replaying["queue://x"] = None
    send = Send(Message("queue://a", bytes(6000)))
    with pytest.raises(StoreFullError, match="durable subscription"):
        client.session.sessions[0].stall(send, ReplayRoom(world.broker, "queue://x"))
    world.close()


@pytest.mark.parametrize("name", ["unknown", "shared"])
def test_a_consumer_goes_on_where_its_durable_subscription_cannot_be_ended(tmp_path: Path, name: str) -> None:
    world = World(tmp_path)
    client, other = keeping(world), world.connect()
    for each in (client, other):
        each.subscribe("topic://t", id="s", subscription_name="shared", options={"shared": "true"})
    world.settle()
    failed = client.unsubscribe("s", subscription_name=name)
    world.settle()
    code = {"unknown": "UNKNOWN_SUBSCRIPTION", "shared": "SUBSCRIPTION_IN_USE"}[name]
    assert client.errors == [(code, failed)]
    other.unsubscribe("s")
    other.send(b"x", "topic://t")
    world.settle()
    assert client.bodies == [b"x"]
    assert failed not in client.confirmed
    client.unsubscribe("s", subscription_name="shared")
    world.settle()
    assert client.errors == [(code, failed)]
    assert world.broker.state.subscriptions == {}
    world.close()


def test_a_cursor_stays_with_its_client_where_a_request_to_take_it_fails(tmp_path: Path) -> None:
    world = World(tmp_path)
    client = keeping(world)
    client.send(b"x")
    client.subscribe(options={"exclusive": "true"}, id="only")
    world.settle()

    def epoch() -> int:
        client.outcomes.clear()
        client.do(LeaseMessages(("queue://a",), "c", 0, 0, receipt=world.next_receipt()))
        world.settle()
        found: int = json.loads(client.outcomes[0])["epoch"]
        return found

    assert epoch() == 0
    failed = world.next_receipt()
    client.do(LeaseMessages(("queue://a",), "c", 0, 10, receipt=failed, take=True))
    world.settle()
    assert client.errors == [("QUEUE_IN_USE", failed)]
    assert epoch() == 0
    client.unsubscribe("only")
    client.do(LeaseMessages(("queue://a",), "c", 0, 10, receipt=world.next_receipt(), take=True))
    world.settle()
    assert epoch() > 0
    assert len(client.errors) == 1
    world.close()
