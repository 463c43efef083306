"""What clients do while a transaction takes effect in slices, and its queues are held: nobody sees a part of it, and
nobody is forgotten when it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from amq.broker.transactions import effect
from amq.config.destination_options import DestinationOptions
from amq.core.message import Message
from amq.journal.records import group as groups
from amq.protocols.commands import CommitBatch, Credit, LeaseMessages, Prepare, SendMany
from tests.broker.notation import Ack, Nack
from tests.broker.test_broker_large_transactions import BODIES, begin, until_in_effect
from tests.broker.world import Client, World

MakeWorld = Callable[..., World]
TURNS_MAX = 500


@pytest.fixture(autouse=True)
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effect, "SLICE_RECORDS", 3)
    monkeypatch.setattr(groups, "LATE_RECORDS", 3)


def hold(world: World, queue: str = "bulk", **fields: Any) -> None:
    """A transaction has taken effect in part."""
    sender = world.connect()
    begin(sender, queue, **fields)
    sender.commit()
    until_in_effect(world)


def consume(world: World, *clients: Client) -> None:
    """They acknowledge what they get, one by one, until nothing comes any more."""
    acknowledged = dict.fromkeys(clients, 0)
    for _ in range(TURNS_MAX):
        world.turn()
        world.runner.step()
        for client in clients:
            for delivery in client.deliveries[acknowledged[client] :]:
                client.do(Ack(delivery.seq, delivery.subscription))
            acknowledged[client] = len(client.deliveries)
    world.settle_and_check()


# -- nobody sees a part of it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_limit_bytes", [25_000, 1 << 30])
@pytest.mark.parametrize("destination", ["bulk", "queue://>"])
def test_a_browse_shows_nothing_of_it(make_world: MakeWorld, destination: str, memory_limit_bytes: int) -> None:
    """Nothing, as it was on its way when the browse began; also where a part of it waits on disk alone."""
    world = make_world(memory_limit_bytes=memory_limit_bytes)
    world.connect().send(b"other", "a")
    world.settle()
    hold(world)
    client = world.consumer(destination, browser=True, id="b")
    assert client.browsed_ids == ["b"]
    assert [body for body in client.bodies if body != b"other"] == []
    world.check_at_rest()


def test_a_browse_that_comes_from_another_queue_shows_all_that_moves(world: World) -> None:
    client = world.connect()
    client.send(b"other", "a")
    client.begin()
    for body in BODIES:
        client.send(body, "bulk", transaction="t", receipt=False)
    client.do(Prepare("t", "x", None, "job", 7, world.next_receipt()))
    world.settle()
    client.do(CommitBatch("job", 7, ["x"], world.next_receipt()))
    until_in_effect(world)
    client.subscribe("queue://>", browser=True, id="b")
    world.settle()
    assert client.bodies == [b"other", *BODIES]


def test_a_lease_gets_all_of_it(world: World) -> None:
    hold(world)
    client = world.connect()
    client.do(LeaseMessages(("queue://bulk",), "cursor", 0, 100, receipt=world.next_receipt()))
    world.settle()
    assert f'"messages": {len(BODIES)}' in client.outcomes[0]
    world.check_at_rest()


def test_a_queue_that_is_forgotten_meanwhile_is_held_when_it_comes_again(world: World) -> None:
    client, consumer = world.connect(), world.connect()
    for i in range(20):
        client.begin()
        client.send(b"%02d" % i, "a" if i < 3 else "b", transaction="t")
        client.do(Prepare("t", f"x{i}", None, "job", 7, world.next_receipt()))
    world.settle()
    client.do(CommitBatch("job", 7, [f"x{i}" for i in range(20)], world.next_receipt()))
    until_in_effect(world)
    world.broker.sweep()
    assert "queue://b" not in world.broker.state.queues
    consumer.subscribe("b")
    for _ in range(TURNS_MAX):
        if world.broker._effect is None:
            break
        assert consumer.bodies == []
        world.turn()
        world.runner.step()
    world.settle()
    assert consumer.bodies == [b"%02d" % i for i in range(3, 20)]


# -- nobody is forgotten -----------------------------------------------------------------------------------------------


def test_who_asks_and_takes_that_back_gets_what_was_there_before(world: World) -> None:
    world.connect().send(b"before", "bulk")
    world.settle()
    client = world.consumer("bulk", options={"credit": "0"})
    hold(world)
    client.do(Credit("bulk", 1, world.next_receipt()))
    receipt = world.next_receipt()
    client.do(Credit("bulk", 0, receipt))
    world.settle()
    assert receipt in client.confirmed
    assert client.bodies == [b"before"]


def test_who_asks_meanwhile_gets_so_much_of_it(world: World) -> None:
    client = world.consumer("bulk", options={"credit": "0"})
    hold(world)
    client.do(Credit("bulk", 3, world.next_receipt()))
    world.settle()
    assert client.bodies == BODIES[:3]
    world.check_at_rest()


@pytest.mark.parametrize("prefetch", [1, 5, 100])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_consumer_of_many_queues_gets_it_and_others(world: World, prefetch: int, is_there: bool) -> None:
    client = world.connect()
    subscribe = partial(client.subscribe, "queue://>", prefetch=prefetch, id="many")
    if is_there:
        subscribe()
    hold(world)
    if not is_there:
        subscribe()
    world.connect().send(b"other", "a", persistent=False)
    consume(world, client)
    assert [body for body in client.bodies if body != b"other"] == BODIES
    assert b"other" in client.bodies


@pytest.mark.parametrize("destination", ["bulk", "queue://b*,queue://bulk"])
@pytest.mark.parametrize("ends", ["ack", "nack", "unsubscribe", "lose"])
def test_room_that_comes_meanwhile_is_used(world: World, destination: str, ends: str) -> None:
    world.connect().send(b"before", "bulk")
    world.settle()
    client = world.consumer(destination, prefetch=1, id="s")
    hold(world)
    [delivery] = client.deliveries
    if ends == "ack":
        client.do(Ack(delivery.seq, "s"))
    elif ends == "nack":
        client.do(Nack(delivery.seq, "s", requeue=True))
    elif ends == "unsubscribe":
        client.unsubscribe("s")
        client.subscribe(destination, prefetch=1, id="s")
    else:
        client.lose()
        client = world.connect()
        client.subscribe(destination, prefetch=1, id="s")
    world.settle()
    assert client.bodies[-1] == (BODIES[0] if ends == "ack" else b"before")
    world.check_at_rest()


@pytest.mark.parametrize("turns", range(8))
def test_a_socket_that_was_full_meanwhile_gets_it(world: World, turns: int) -> None:
    client = world.connect()
    client.subscribe("bulk")
    client.subscribe("queue://a,queue://b", id="many")
    world.settle()
    hold(world)
    client.session.set_writable(False)
    for _ in range(turns):
        world.turn()
        world.runner.step()
    client.session.set_writable(True)
    world.settle()
    assert client.bodies == BODIES
    world.check_at_rest()


def test_the_next_exclusive_consumer_gets_it(world: World) -> None:
    first, next_one = world.connect(), world.connect()
    for client in (first, next_one):
        client.subscribe("bulk", options={"exclusive": "true"})
    world.settle()
    hold(world)
    world.lose(first)
    assert next_one.bodies == BODIES
    world.check_at_rest()


@pytest.mark.parametrize(("properties", "selector"), [({"JMSXGroupID": "g"}, ""), ({"k": "x"}, "k = 'x'")])
def test_groups_and_selectors_find_it(world: World, properties: dict[str, str], selector: str) -> None:
    clients = [world.connect(), world.connect()]
    clients[0].subscribe("bulk", prefetch=3, selector=selector)
    world.settle()
    hold(world, properties=properties)
    clients[1].subscribe("bulk", prefetch=3, selector=selector)
    consume(world, *clients)
    assert sorted(clients[0].bodies + clients[1].bodies) == BODIES


def test_what_waits_for_its_redelivery_comes_when_that_is_over(make_world: MakeWorld) -> None:
    world = make_world(redelivery_delay_s=1.0)
    world.connect().send(b"before", "bulk")
    client = world.consumer("bulk", prefetch=1)
    hold(world)
    client.do(Nack(client.deliveries[0].seq, "bulk", requeue=True))
    world.clock.advance(2.0)
    world.settle()
    assert client.bodies == [b"before", b"before"]
    world.check_at_rest()


@pytest.mark.parametrize("expired", ["drop", "dead-letter"])
def test_what_expires_meanwhile_leaves(make_world: MakeWorld, expired: str) -> None:
    world = make_world(expired_messages=expired)
    hold(world, expires_ms=world.clock.wall_ms() + 1000)
    world.clock.advance(2.0)
    world.broker.sweep()
    consumer = world.consumer("bulk")
    world.sweep()
    assert consumer.bodies == world.stored("bulk") == []
    assert world.stored("DLQ.bulk") == (BODIES if expired == "dead-letter" else [])
    world.check_at_rest()


def test_two_of_them_one_after_the_other(world: World) -> None:
    client, senders = world.connect(), [world.connect(), world.connect()]
    client.subscribe("bulk", prefetch=7)
    for sender in senders:
        begin(sender)
        sender.commit()
        world.turn()
    consume(world, client)
    assert client.bodies == BODIES * 2


@pytest.mark.parametrize("policy", ["block", "fail", "drop-oldest"])
def test_a_queue_at_its_limit_goes_on(make_world: MakeWorld, policy: str) -> None:
    dead_letters = DestinationOptions("DLQ.>", {"queue_limit_bytes": 0})
    world = make_world(queue_limit_bytes=500, queue_limit_policy=policy, destinations=(dead_letters,))
    hold(world)
    producer, consumer = world.connect(), world.connect()
    receipt = producer.send(b"late", "bulk")
    consumer.subscribe("bulk", prefetch=1)
    consume(world, consumer)
    assert (receipt in producer.confirmed) is (policy != "fail")
    assert sorted(consumer.bodies + world.stored("DLQ.bulk")) == [*BODIES, *([b"late"] if policy != "fail" else [])]


@pytest.mark.parametrize("options", [{"last_value_key": "k"}, {"ring_size": 4}])
def test_queues_that_keep_less_keep_what_they_should(make_world: MakeWorld, options: dict[str, Any]) -> None:
    world = make_world(destinations=(DestinationOptions("bulk", options),))
    hold(world, properties={"k": "x"})
    world.settle()
    assert world.stored("bulk") == BODIES[-options.get("ring_size", 1) :]
    world.check_at_rest()


@pytest.mark.parametrize("turns", range(0, 8, 2))
def test_with_little_memory_all_of_it_arrives(make_world: MakeWorld, turns: int) -> None:
    world = make_world(memory_limit_bytes=25_000)
    sender, client = world.connect(), world.connect()
    sender.begin()
    sender.do(SendMany(Message("queue://bulk", b""), BODIES, "t"))
    sender.commit()
    until_in_effect(world)
    for _ in range(turns):
        world.turn()
        world.runner.step()
    client.subscribe("bulk", prefetch=3)
    consume(world, client)
    assert client.bodies == BODIES
