"""Limits hold up, or refuse, also what becomes known at the commit: copies for durable subscriptions, and prepares."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.broker.test_broker_durables import leave, subscriber
from tests.broker.test_broker_store_limit import fill, small_store
from tests.broker.test_broker_two_phase import drain, finish, prepare, prepared
from tests.broker.world import Client, World

MakeWorld = Callable[..., World]
TOPIC = "topic://t"
LIMIT = 5000


def publishing(world: World, *bodies: bytes) -> Client:
    client = world.connect()
    client.begin()
    for body in bodies:
        client.send(body, TOPIC, transaction="t")
    return client


def away(world: World, **fields: object) -> None:
    leave(world, subscriber(world, **fields))


@pytest.mark.parametrize("policy", ["block", "fail"])
def test_a_full_durable_subscription_holds_up_a_transaction_that_publishes(make_world: MakeWorld, policy: str) -> None:
    world = make_world(queue_limit_bytes=LIMIT, queue_limit_policy=policy)
    away(world)
    first = publishing(world, bytes(LIMIT))
    done = first.commit()  # as long as it is below its limit it takes a whole transaction
    world.settle()
    assert done in first.confirmed
    second = publishing(world, b"2", b"3")
    waits = second.commit()
    world.settle()
    world.check()
    if policy == "fail":
        assert second.errors == [("QUEUE_FULL", waits)]
    else:
        assert not second.errors
        assert waits not in second.confirmed
    late = subscriber(world, "c", "later")  # it is there when that commits
    consumer = subscriber(world)
    assert consumer.bodies == [bytes(LIMIT)]
    consumer.ack(bytes(LIMIT))
    world.settle()
    assert (waits in second.confirmed) == (policy == "block")
    expected = [b"2", b"3"] if policy == "block" else []
    assert consumer.bodies[1:] == late.bodies == expected
    world.check_at_rest()


def test_a_subscription_that_does_not_want_it_holds_up_nobody(make_world: MakeWorld) -> None:
    world = make_world(queue_limit_bytes=LIMIT)
    away(world)
    away(world, name="red", selector="color = 'red'")
    client = publishing(world, bytes(LIMIT))
    client.commit()
    world.settle()
    durables = world.broker.durables
    durables.end(durables.to_end("s", "c", None, client.session.sessions[0]))
    world.settle()
    again = publishing(world, b"2")
    done = again.commit()
    world.settle()
    assert done in again.confirmed
    world.check_at_rest()


@pytest.mark.parametrize("policy", ["block", "fail"])
def test_a_full_store_holds_up_what_is_published_for_durable_subscriptions(make_world: MakeWorld, policy: str) -> None:
    world = small_store(make_world, producer_flow_control=policy)
    away(world)
    client, nobody = publishing(world, b"1"), world.connect()
    filler = fill(world)
    assert world.journal.at_limit
    token = client.commit()
    nobody.begin()
    nobody.send(b"2", "topic://u", transaction="t")
    passes = nobody.commit()
    world.settle()
    assert passes in nobody.confirmed, "what nobody keeps takes no room"
    assert token not in client.confirmed
    assert client.errors == ([("STORE_LIMIT", token)] if policy == "fail" else [])
    world.lose(client, filler)
    world.check_at_rest()


@pytest.mark.parametrize("policy", ["block", "fail"])
def test_what_is_prepared_counts_for_the_next_prepare(make_world: MakeWorld, policy: str) -> None:
    """Else any number of them would come into the queue at once when they commit."""
    world = make_world(queue_limit_bytes=LIMIT, queue_limit_policy=policy)
    prepared(world, "x", bytes(LIMIT))
    second = world.connect()
    second.begin()
    second.send(b"2", transaction="t")
    token = prepare(second, "y")
    assert second.errors == ([("QUEUE_FULL", token)] if policy == "fail" else [])
    assert token not in second.confirmed
    plain = world.connect()
    plain.send(b"plain")  # that queue is empty
    world.settle()
    assert plain.confirmed
    world.check()
    finish(world, "x", commit=False)
    assert (token in second.confirmed) == (policy == "block")
    if policy == "block":
        finish(world, "y")
    assert sorted(drain(world)) == ([(b"2", 0)] if policy == "block" else []) + [(b"plain", 0)]
    world.check_at_rest()


def test_a_prepare_that_waits_goes_on_when_what_was_committed_is_consumed(make_world: MakeWorld) -> None:
    world = make_world(queue_limit_bytes=LIMIT)
    prepared(world, "x", bytes(LIMIT))
    second = world.connect()
    second.begin()
    second.send(b"2", transaction="t")
    token = prepare(second, "y")
    finish(world, "x")
    assert token not in second.confirmed, "now it is in the queue itself"
    consumer = world.consumer()
    consumer.ack(bytes(LIMIT))
    world.settle()
    assert token in second.confirmed
    world.check_at_rest()


@pytest.mark.parametrize("timeout_ms", [0, 10_000])
def test_a_part_holds_up_the_others_of_its_batch_until_somebody_or_its_timeout_ends_it(
    make_world: MakeWorld, timeout_ms: int
) -> None:
    """The coordinator waits for all parts, so it will not."""
    world = make_world(queue_limit_bytes=LIMIT, transaction_timeout_s=60.0)
    prepared(world, "part/1", bytes(LIMIT), owner="job", batch=1, timeout_ms=timeout_ms)
    second = world.connect()
    second.begin()
    second.send(b"2", transaction="t")
    token = prepare(second, "part/2", owner="job", batch=1)
    for seconds in (30.0, 31.0):
        assert (token in second.confirmed, second.codes) == (seconds > 30 and timeout_ms > 0, [])
        world.clock.advance(seconds)
        world.broker.sweep()
        second.session.expire_transactions(world.clock.monotonic())
        world.settle()
    assert second.codes == ([] if timeout_ms else ["TRANSACTION_TIMEOUT"])
    if not timeout_ms:
        third = world.connect()
        third.begin()
        third.send(b"2", transaction="t")
        token = prepare(third, "part/2", owner="job", batch=1)
        assert token not in third.confirmed
        finish(world, "part/1", commit=False)
        assert token in third.confirmed
    world.check_at_rest()


def test_a_full_store_holds_up_a_prepare(make_world: MakeWorld) -> None:
    world = small_store(make_world)
    client = world.connect()
    client.begin()
    client.send(b"1", "z", transaction="t")
    fill(world)
    assert prepare(client) not in client.confirmed
    assert not client.errors
