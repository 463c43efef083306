"""Subscriptions to several queues: by wildcards and by composite names, beside topics."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from amq.broker.queues.queue import Queue
from amq.broker.topics import wildcards as wildcard
from amq.broker.topics.wildcards import WildcardSubscription
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_CLIENT, ACK_INDIVIDUAL
from tests.broker.notation import Ack, Nack
from tests.broker.world import Client, World
from tests.sampling import sampled


def consumer(world: World, name: str, ack: str = ACK_INDIVIDUAL, prefetch: int = 0, **fields: Any) -> Client:
    return world.consumer(name, ack, prefetch, id="s", **fields)


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
        world.settle_and_check()
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
    world.settle_and_check()
    world.crash_and_recover()
    assert sorted(world.stored("o.0") + world.stored("o.1") + world.stored("o.2")) == sorted(client.bodies[7:9])


def test_what_it_held_goes_back_and_only_the_oldest_has_failed(make_world: Callable[..., World]) -> None:
    world = make_world(maximum_redeliveries=0)
    send(world, b"a:1", b"b:1", b"b:2")
    client = consumer(world, "queue://a,queue://b")
    oldest = client.bodies[0]
    world.lose(client)
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
    client = consumer(world, "queue://a.*,topic://t", selector="n = 1")
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
            world.sweep()
        assert not world.broker.state.queues
        world.check_at_rest()


def test_a_queue_that_is_named_is_consumed_again_after_it_was_forgotten(world: World) -> None:
    client = consumer(world, "queue://a,queue://b", ACK_AUTO)
    for round in range(3):
        for _ in range(2):
            world.sweep()
        assert not world.broker.state.queues
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
    world.settle_and_check()
    assert not any(queue.subscriptions for queue in world.broker.state.queues.values())


@pytest.mark.parametrize("seed", sampled(range(8)))
def test_at_random(world: World, seed: int) -> None:
    """Wildcards and plain consumers, acknowledging and vanishing: everything arrives, and nothing is counted wrong."""
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
            unacked = client.consumers["s"].unacked
            if unacked and rng.random() < 0.3:
                seq = rng.choice(list(unacked))
                before = {each: message.body for each, message in unacked.items()}
                client.do(Ack(seq, "s"))
                acked.update(body for each, body in before.items() if each not in unacked)
        if rng.random() < 0.3:
            world.settle_and_check()
    for client in clients:
        client.lose()
    drain = consumer(world, ">", ACK_AUTO)
    world.settle()
    assert set(drain.bodies) | acked == sent
    assert not set(drain.bodies) & acked
    world.check_at_rest()
    assert world.broker.memory.taken_bytes == 0


@pytest.mark.parametrize("ack", sampled([ACK_AUTO, ACK_INDIVIDUAL]))
@pytest.mark.parametrize("selector", sampled(["", "1 = 1"]))
def test_idle_queues_cost_nothing(world: World, monkeypatch: pytest.MonkeyPatch, ack: str, selector: str) -> None:
    """A consumer of very many queues runs out of credit, or its socket is full, many times a second: only the queues
    in which something happens may be looked at then."""
    count = 300
    send(world, *[b"o.%d:0" % i for i in range(count)])
    client = consumer(world, "o.>", ack, prefetch=2, selector=selector)
    for done in range(count):
        if ack == ACK_INDIVIDUAL:
            client.ack(client.bodies[done])
            world.settle()
    assert len(client.bodies) == count
    world.check_at_rest()
    touched: list[str] = []
    for name in ("make_ready", "make_unready", "dispatch"):
        real = getattr(Queue, name)

        def count_it(queue: Queue, *words: Any, real: Any = real) -> Any:
            touched.append(queue.name)
            return real(queue, *words)

        monkeypatch.setattr(Queue, name, count_it)
    for turn in range(1, 51):
        client.session.set_writable(False)
        send(world, *[b"o.%d:%d" % (i, turn) for i in range(3)])
        assert len(client.bodies) == count + 3 * turn - 3
        client.session.set_writable(True)
        world.settle()
        while ack == ACK_INDIVIDUAL and (held := list(client.consumers["s"].unacked)):
            client.do(Ack(held[0], "s", "r"))
            world.settle()
        assert len(client.bodies) == count + 3 * turn
        world.check_at_rest()
    assert len(touched) < 50 * 3 * 20
    assert set(touched) <= {"queue://o.0", "queue://o.1", "queue://o.2", "queue://o.>"}


def test_queues_with_a_backlog_take_turns(world: World) -> None:
    """A prefetch of 1, and several queues that always have something: each is served."""
    for _ in range(5):
        send(world, *[b"o.%d:x" % i for i in range(4)])
    client = consumer(world, "o.>", prefetch=1)
    for _ in range(20):
        client.do(Ack(client.deliveries[-1].seq, "s", "r"))
        world.settle()
    assert len(client.bodies) == 20
    for start in range(1, 17, 4):
        assert len(set(client.bodies[start : start + 4])) == 4, client.bodies
    world.check_at_rest()


@pytest.mark.parametrize("seed", sampled(range(30), 10))
def test_wildcards_of_many_kinds_lose_and_double_nothing(make_world: Callable[..., World], seed: int) -> None:
    """Consumers with selectors, priorities and topics beside them, also of single queues; sockets that are full now and
    then; what is acknowledged, refused, or held by a connection that ends."""
    rng = random.Random(seed)
    world = make_world(maximum_redeliveries=-1, memory_limit_bytes=rng.choice([1 << 20, 40_000]))
    clients: list[Client] = []
    sent = 0
    for _ in range(150):
        what = rng.randrange(10)
        if what < 4:
            names = [f"{rng.choice('ab')}.{rng.randrange(4)}" for _ in range(rng.randrange(1, 5))]
            for name in names:
                size = rng.choice([10, 10, 3000])
                world.connect().send(b"%d" % sent + bytes(size), name, properties={"n": str(rng.randrange(2))})
                sent += 1
        elif what == 4 and len(clients) < 5:
            names = rng.sample(["queue://a.>", "queue://b.*", "queue://*.1", "queue://a.1", "topic://t"], 2)
            clients.append(world.connect())
            options = rng.choice([{}, {}, {"priority": "5"}])
            clients[-1].subscribe(
                rng.choice([names[0], ",".join(names)]) if names[0] != "topic://t" else ",".join(names),
                rng.choice([ACK_CLIENT, ACK_INDIVIDUAL]),
                rng.randrange(1, 4),
                id="s",
                options=options,
                selector=rng.choice(["", "", "n = '1'"]),
            )
        elif what == 5 and clients and rng.random() < 0.3:
            clients.pop(rng.randrange(len(clients))).lose()
        elif what == 6 and clients:
            clients[0].session.set_writable(rng.random() < 0.6)
        elif clients:
            client = rng.choice(clients)
            held = list(client.consumers["s"].unacked)
            if held:
                command = Nack(held[-1], "s", "r", "", True) if rng.random() < 0.2 else Ack(held[-1], "s", "r")
                client.do(command)
        if rng.random() < 0.7:
            world.settle_and_check()
    for client in clients:
        assert not client.errors
        client.lose()
    last = consumer(world, "queue://a.>,queue://b.>", ACK_CLIENT, 5)
    while held := list(last.consumers["s"].unacked):
        last.do(Ack(held[-1], "s", "r"))
        world.settle()
    assert not any(queue.stored for queue in world.broker.state.queues.values())
    world.check_at_rest()


# -- very many queues --------------------------------------------------------------------------------------------------


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wildcard, "SLICE_QUEUES", 3)


def joined(world: World) -> int:
    """Members of the only wildcard."""
    return len(next(iter(world.clients[-1].consumers.values())).branches)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("slices")
def test_very_many_queues_join_in_slices(world: World) -> None:
    bodies = [b"o.%d:x" % number for number in range(20)]
    send(world, *bodies)
    client = world.connect()
    receipt = client.subscribe("o.>", id="s")
    counts = [0, joined(world)]
    while counts[-1] < len(bodies):
        world.turn()
        counts.append(joined(world))
    assert max(later - count for count, later in pairwise(counts)) <= 3
    send(world, b"o.new:x")
    assert receipt in client.confirmed
    assert sorted(client.bodies) == sorted([*bodies, b"o.new:x"])
    world.check_at_rest()


@pytest.mark.usefixtures("slices")
def test_queues_that_come_and_go_while_others_join(world: World) -> None:
    send(world, *[b"o.%d:x" % number for number in range(19)])
    send(world, b"o.19:x", persistent=False)
    other, client = world.connect(), world.connect()
    client.subscribe("o.>", id="s")
    other.subscribe("o.19", ACK_AUTO)
    world.turn()
    other.unsubscribe("o.19")
    world.turn()
    world.broker.state.forget_idle(world.broker.dirty)
    assert "queue://o.19" not in world.broker.state.queues
    other.send(b"o.20:x", "o.20", persistent=False)
    world.settle()
    assert other.bodies == [b"o.19:x"]
    assert len(client.bodies) == 20
    assert b"o.20:x" in client.bodies
    world.check_at_rest()


@pytest.mark.usefixtures("slices")
def test_a_gathering_that_ends_while_queues_join(world: World) -> None:
    send(world, *[b"o.%d:x" % number for number in range(20)])
    client = world.connect()
    client.subscribe("o.>", id="s")
    world.turn()
    client.unsubscribe("s")
    world.settle()
    assert all(not queue.subscriptions for queue in world.broker.state.queues.values())
    world.check_at_rest()


@pytest.mark.usefixtures("slices")
def test_very_many_parked_members_wake_in_slices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their queues may be empty by then, so that all of them woke in one turn."""
    client = consumer(world, "o.>", prefetch=1)
    send(world, *[b"o.%d:x" % number for number in range(20)])
    thief = world.connect()
    for number in range(1, 20):
        thief.subscribe(f"o.{number}", ACK_AUTO)
    world.settle()
    woken, wake_next = [0], WildcardSubscription.wake_next

    def see(wildcard: WildcardSubscription) -> bool:
        woken[-1] += 1
        return wake_next(wildcard)

    monkeypatch.setattr(WildcardSubscription, "wake_next", see)
    client.ack(client.bodies[0])
    for _ in range(20):
        woken.append(0)
        world.turn()
        world.runner.step()
    assert sum(woken) >= 19
    assert max(woken) <= 3
    world.settle_and_check()
