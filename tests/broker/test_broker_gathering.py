"""Subscriptions to several queues: by wildcards and by composite names, beside topics."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from amq.protocols.commands import ACK_AUTO, ACK_CLIENT, ACK_INDIVIDUAL, Ack
from tests.broker.world import Client, World


def consumer(world: World, name: str, ack: str = ACK_INDIVIDUAL, prefetch: int = 0, **fields: Any) -> Client:
    client = world.connect()
    client.subscribe(name, ack, prefetch, id="s", **fields)
    world.settle()
    return client


def send(world: World, *bodies: bytes, persistent: bool = True) -> Client:
    """Each to the queue, or the topic, that its body names before the `:`."""
    client = world.connect()
    for body in bodies:
        client.send(body, body.partition(b":")[0].decode().replace("T", "topic://"), persistent=persistent)
    world.settle()
    return client


@pytest.mark.parametrize("ack", [ACK_AUTO, ACK_INDIVIDUAL])
def test_queues_that_are_there_and_queues_that_come(world: World, ack: str) -> None:
    send(world, b"o.a:1", b"o.b:1", b"other:1")
    client = consumer(world, "o.*", ack)
    assert sorted(client.bodies) == [b"o.a:1", b"o.b:1"]
    send(world, b"o.a:2", b"o.c:1", b"o:1", b"o.c.d:1")
    assert sorted(client.bodies) == [b"o.a:1", b"o.a:2", b"o.b:1", b"o.c:1"]
    assert [d.message.destination for d in client.deliveries][-1] in ("queue://o.a", "queue://o.c")
    world.check_at_rest()
    if ack == ACK_INDIVIDUAL:
        for body in client.bodies:
            client.ack(body)
        world.settle()
    assert not world.stored("o.a")
    assert not world.stored("o.c")
    client.unsubscribe("s")
    send(world, b"o.a:3", b"o.d:1")
    assert world.stored("o.a") == [b"o.a:3"]
    world.check_at_rest()


def test_the_prefetch_is_that_of_all_together(world: World) -> None:
    send(world, *[b"o.%d:%d" % (i % 3, i) for i in range(9)])
    client = consumer(world, "o.>", prefetch=2)
    for done in range(1, 10):
        assert len(client.deliveries) == min(9, done + 1)
        client.ack(client.bodies[done - 1])
        world.settle()
        world.check_at_rest()
    assert sorted(client.bodies) == sorted(b"o.%d:%d" % (i % 3, i) for i in range(9))


def test_a_cumulative_acknowledgement_covers_all_queues(world: World) -> None:
    send(world, *[b"o.%d:%d" % (i % 3, i) for i in range(9)])
    client = consumer(world, "o.>", ACK_CLIENT)
    client.ack(client.bodies[6])
    world.settle()
    assert sorted(world.stored("o.0") + world.stored("o.1") + world.stored("o.2")) == sorted(client.bodies[7:])
    world.check_at_rest()
    client.begin()
    client.ack(client.bodies[8], "t")
    client.abort()
    world.settle()
    world.check_at_rest()
    world.crash_and_recover()
    assert sorted(world.stored("o.0") + world.stored("o.1") + world.stored("o.2")) == sorted(client.bodies[7:9])


def test_what_it_held_goes_back_and_only_the_oldest_has_failed(make_world: Callable[..., World]) -> None:
    world = make_world(maximum_redeliveries=0)
    send(world, b"a:1", b"b:1", b"b:2")
    client = consumer(world, "queue://a,queue://b")
    oldest = client.bodies[0]
    client.lose()
    world.settle()
    world.check_at_rest()
    queue = oldest.partition(b":")[0].decode()
    assert world.stored("DLQ." + queue) == [oldest]
    assert sorted(world.stored("a") + world.stored("b")) == sorted({b"a:1", b"b:1", b"b:2"} - {oldest})


def test_refusal_and_transactions(world: World) -> None:
    send(world, b"a:1", b"b:1")
    client = consumer(world, "queue://a,queue://b,topic://t")
    send(world, b"Tt:1")
    client.nack(b"a:1")
    client.begin()
    client.ack(b"b:1", "t")
    client.ack(b"Tt:1", "t")
    client.commit()
    world.settle()
    assert world.stored("DLQ.a") == [b"a:1"]
    assert not world.stored("b")
    world.check_at_rest()
    assert not client.errors


def test_selectors(world: World) -> None:
    client = consumer(world, "queue://a.*,topic://t", selector="n = 1", message_id_prefix="")
    producer = world.connect()
    for n in (1, 2):
        for name in ("queue://a.x", "topic://t"):
            producer.send(b"%d" % n, name, properties={"n": str(n)})
    world.settle()
    assert client.bodies == [b"1", b"1"]
    assert world.stored("a.x") == [b"1", b"2"]


def test_queues_that_hold_nothing_are_forgotten_all_the_same(world: World) -> None:
    client = consumer(world, "o.>", ACK_AUTO)
    for round in range(3):
        send(world, *[b"o.%d:%d" % (i, round) for i in range(10)])
        assert len(client.bodies) == 10 * (round + 1)
        for _ in range(2):
            world.broker.sweep()
            world.settle()
        assert not world.broker.queues
        world.check_at_rest()


def test_a_queue_that_is_named_is_consumed_again_after_it_was_forgotten(world: World) -> None:
    client = consumer(world, "queue://a,queue://b", ACK_AUTO)
    for round in range(3):
        for _ in range(2):
            world.broker.sweep()
            world.settle()
        assert not world.broker.queues
        send(world, b"a:%d" % round, b"b:%d" % round)
        assert sorted(client.bodies[-2:]) == [b"a:%d" % round, b"b:%d" % round]
        world.check_at_rest()
    client.unsubscribe("s")
    send(world, b"a:3")
    assert (len(client.bodies), world.stored("a")) == (6, [b"a:3"])


def test_a_slow_socket_gets_nothing_and_others_share(world: World) -> None:
    slow, quick = consumer(world, "o.*", ACK_AUTO), consumer(world, "o.*", ACK_AUTO)
    slow.session.set_writable(False)
    send(world, b"o.a:1", b"o.b:1")
    assert (len(slow.bodies), len(quick.bodies)) == (0, 2)
    slow.session.set_writable(True)
    quick.lose()
    send(world, b"o.a:2")
    assert slow.bodies == [b"o.a:2"]
    world.check_at_rest()


def test_one_queue_meant_twice_has_one_consumer(world: World) -> None:
    client = consumer(world, "queue://o.a,queue://o.*,queue://o.>")
    send(world, b"o.a:1", b"o.b:1")
    assert sorted(client.bodies) == [b"o.a:1", b"o.b:1"]
    client.unsubscribe("s")
    world.settle()
    world.check_at_rest()
    assert not any(queue.subscriptions for queue in world.broker.queues.values())


@pytest.mark.parametrize("seed", range(8))
def test_at_random(world: World, seed: int) -> None:
    """Gatherings and plain consumers, acknowledging and vanishing: everything arrives, and nothing is counted wrong."""
    rng = random.Random(seed)
    names = ["o.a", "o.b", "o.c", "p.a"]
    sources = ["o.*", "queue://o.a,queue://p.a", "*.a", "o.b", "queue://p.a,topic://t,queue://o.>"]
    producer = world.connect()
    sent: set[bytes] = set()
    acked: set[bytes] = set()
    clients: list[Client] = []
    for step in range(150):
        if rng.random() < 0.5:
            body = b"%d" % step
            sent.add(body)
            producer.send(body, rng.choice(names), priority=rng.randrange(10), persistent=rng.random() < 0.8)
        if rng.random() < 0.1:
            clients.append(world.connect())
            ack = rng.choice([ACK_INDIVIDUAL, ACK_CLIENT])
            clients[-1].subscribe(rng.choice(sources), ack, rng.choice([1, 2, 5]), id="s")
        if clients and rng.random() < 0.05:
            clients.pop(rng.randrange(len(clients))).lose()
        for client in clients:
            unacked = client.session._subscriptions["s"].unacked
            if unacked and rng.random() < 0.3:
                seq = rng.choice(list(unacked))
                before = {each: message.body for each, message in unacked.items()}
                client.do(Ack(seq, "s"))
                acked.update(body for each, body in before.items() if each not in unacked)
        if rng.random() < 0.3:
            world.settle()
            world.check_at_rest()
    for client in clients:
        client.lose()
    drain = consumer(world, ">", ACK_AUTO)
    world.settle()
    assert set(drain.bodies) | acked == sent
    assert not set(drain.bodies) & acked
    world.check_at_rest()
    assert world.broker.memory_bytes == 0
