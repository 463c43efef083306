"""A browse in runs shows what another one shows, many messages at a time; also of places, while messages go back to the
disk."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from amq.journal import places
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_CLIENT, RUNS, RUNS_VERSION
from tests.broker.test_broker_leasing import sent
from tests.broker.world import Client, World

MakeWorld = Callable[..., World]
IN_RUNS = {RUNS: RUNS_VERSION}


def browse(world: World, ack: str = ACK_AUTO, prefetch: int = 0, **options: str) -> Client:
    return world.consumer("a", ack, browser=True, prefetch=prefetch, options=options)


def shown(client: Client) -> list[tuple[int, bytes, int]]:
    assert client.errors == []
    return [(each.seq, each.body, each.redelivered) for each in client.deliveries]


def filled(world: World, rng: random.Random, count: int = 300) -> None:
    """A queue with messages of all kinds, some of which were delivered before."""
    for number in range(count):
        kind = rng.randrange(20)
        size = 300_000 if kind == 0 else 20
        sent(
            world,
            b"%d;" % number + b"x" * size,
            priority=rng.choice((4, 4, 4, 7)),
            persistent=kind != 1,
            expires_ms=1 if kind == 2 else 0,
        )
    consumer = world.consumer("a", prefetch=5)
    world.lose(consumer)


@pytest.mark.parametrize("memory", [64 << 20, 1 << 20])
@pytest.mark.parametrize("crash", [False, True])
def test_runs_show_what_single_messages_show(make_world: MakeWorld, memory: int, crash: bool) -> None:
    rng = random.Random(memory + crash)
    world = make_world(memory_limit_bytes=memory)
    filled(world, rng)
    if crash:
        world.crash()
        world.start()
        sent(world, *[b"later %d" % number for number in range(50)])
    client = browse(world)
    everything = shown(client)
    order = [f"{each.message.priority}-{each.seq}" for each in client.deliveries]
    assert len(everything) > 250
    client = browse(world, **IN_RUNS)
    assert shown(client) == everything
    assert client.browsed_ids == ["a"]
    assert 0 < client.runs < 100
    for _ in range(10):
        start, stop = sorted(rng.randrange(len(order)) for _ in range(2))
        part = {"browse-after": order[start], "browse-until": order[stop]}
        assert shown(browse(world, **part, **IN_RUNS)) == everything[start + 1 : stop + 1]
    world.close()


def test_an_acknowledgement_makes_room_for_a_run(make_world: MakeWorld) -> None:
    world = make_world()
    sent(world, *[b"%d" % number for number in range(25)])
    client = browse(world, ACK_CLIENT, prefetch=10, **IN_RUNS)
    counts = [len(client.deliveries)]
    while not client.browsed_ids:
        client.ack(client.deliveries[-1].body)
        world.settle()
        counts.append(len(client.deliveries))
    assert counts == [10, 20, 25]
    assert [each.body for each in client.deliveries] == [b"%d" % number for number in range(25)]


@pytest.mark.parametrize("options", [{"selector": "colour = 'red'"}, {}])
def test_a_browse_with_a_selector_comes_one_by_one(make_world: MakeWorld, options: dict[str, str]) -> None:
    world = make_world()
    for number in range(10):
        sent(world, b"%d" % number, properties={"colour": ("red", "blue")[number % 2]})
    client = world.consumer("a", ACK_AUTO, browser=True, options=IN_RUNS, **options)
    assert len(client.deliveries) == (5 if options else 10)
    assert bool(client.runs) == (not options)


def test_a_browse_of_a_pattern_names_the_queue_of_each_run(make_world: MakeWorld) -> None:
    world = make_world()
    for name in ("eu.a", "eu.b"):
        sent(world, b"0", b"1", queue=name)
    client = world.consumer("eu.>", ACK_AUTO, browser=True, options=IN_RUNS)
    assert [each.message.destination for each in client.deliveries] == ["queue://eu.a"] * 2 + ["queue://eu.b"] * 2
    assert client.runs == 2


@pytest.mark.parametrize("in_runs", [False, True])
def test_what_goes_back_to_the_disk_is_shown(make_world: MakeWorld, in_runs: bool) -> None:
    """The browse begins while all messages are in memory; then they wait on disk alone."""
    world = make_world(direct_reads="*")
    bodies = [b"%d" % number for number in range(100)]
    sent(world, *bodies)
    client = world.connect()
    client.subscribe("a", ACK_CLIENT, browser=True, prefetch=1, options=IN_RUNS if in_runs else {"places": "true"})
    queue = world.broker.state.queue("queue://a")
    assert len(queue.messages) == 100
    for message in [queue.messages[seq] for seq in list(queue.messages)[3:]]:
        queue.levels[message.priority].remove(message)
        world.broker.state.page_out_again(queue, message)
    world.settle()
    while not client.browsed_ids:
        client.ack(client.deliveries[-1].body)
        world.settle()
    if in_runs:
        assert [each.body for each in client.deliveries] == bodies
    else:
        pages = [json.loads(body) for body in client.bodies]
        assert sum(page["messages"] for page in pages) == 100
        assert sum(len(places.unpack(page["places"], page["messages"])) for page in pages) == 100
