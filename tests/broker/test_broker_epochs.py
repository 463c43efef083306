"""Epochs of cursors: the client that takes a cursor last has it, also on the next master; the one before is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amq.broker.names import PREPARED_NAME
from amq.broker.transactions import leasing
from amq.protocols.commands import SettleLeases
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_INDIVIDUAL
from tests.broker.test_broker_leasing import BODIES, answer, ask, lease, read, sent
from tests.broker.test_broker_two_phase import commit_batch
from tests.broker.world import Client, World, full_name

MakeWorld = Callable[..., World]


def take(world: World, queue: str = "a", **fields: Any) -> int:
    """Somebody takes the cursor: its epoch."""
    client = ask(world, 0, 0, take=True, queue=queue, **fields)
    world.settle()
    epoch = answer(client)["epoch"]
    client.lose()
    assert epoch > 0
    return int(epoch)


def settle(world: World, epoch: int, through: int = 1 << 62) -> Client:
    client = world.connect()
    client.do(SettleLeases((full_name("a"),), "c", through, True, world.next_receipt(), epoch))
    world.settle()
    return client


def codes(client: Client) -> list[str]:
    client.world.settle()
    return client.codes


def reader(world: World, number: int, epoch: int, ack: str = ACK_AUTO, prefetch: int = 0) -> Client:
    client = world.connect()
    options = {"lease": str(number), "cursor": "c", "epoch": str(epoch)}
    client.subscribe("a", ack, browser=True, options=options, prefetch=prefetch)
    world.settle()
    return client


@pytest.mark.parametrize("crash", [False, True])
def test_the_last_that_took_a_cursor_has_it(make_world: MakeWorld, crash: bool) -> None:
    world = make_world()
    sent(world, *BODIES)
    first = take(world)
    number, count, _ = lease(world, messages=4, epoch=first)
    assert (count, codes(reader(world, number, first))) == (4, [])
    second = take(world)
    assert second > first
    if crash:
        world.crash_and_recover()
    assert codes(ask(world, number, epoch=first)) == ["CURSOR_TAKEN"]
    assert codes(settle(world, first)) == ["CURSOR_TAKEN"]
    assert codes(reader(world, number, first)) == ["CURSOR_TAKEN"]
    assert answer(ask_and_settle(world, number, epoch=second))["messages"] == 6
    assert read(world, number) == BODIES[:4], "a client that does not say an epoch is not looked at"
    assert reader(world, number, second).bodies == BODIES[:4]
    assert codes(settle(world, second)) == []
    world.check_at_rest()


def ask_and_settle(world: World, after: int, **fields: Any) -> Client:
    client = ask(world, after, **fields)
    world.settle()
    return client


def test_a_cursor_is_taken_at_one_queue(make_world: MakeWorld) -> None:
    """One name may be the cursor of several queues; another cursor is nobody else's business."""
    world = make_world()
    sent(world, *BODIES)
    sent(world, *BODIES, queue="b")
    epochs = take(world), take(world, "b"), take(world, cursor="other")
    assert len(set(epochs)) == 3
    assert lease(world, messages=2, epoch=epochs[0])[1] == 2
    assert lease(world, messages=2, queue="b", epoch=epochs[1])[1] == 2
    assert lease(world, messages=2, cursor="other", epoch=epochs[2])[1] == 2
    assert codes(ask(world, epoch=epochs[2] + 1)) == ["UNKNOWN_LEASE"], "of a store that went on"


def test_nobody_is_told_before_the_newer_epoch_is_durable(make_world: MakeWorld) -> None:
    """What a newer client asked for went with the master: the older one has the cursor still."""
    world = make_world()
    sent(world, *BODIES)
    first = take(world)
    newer, older = ask(world, 0, 0, take=True), ask(world, epoch=first)
    world.turn()
    assert (newer.outcomes, older.errors) == ([], [])
    world.crash_and_recover()
    assert lease(world, messages=3, epoch=first)[1] == 3
    newer, older = ask(world, 0, 0, take=True), ask(world, epoch=first)
    world.settle()
    assert (answer(newer)["epoch"] > first, older.codes) == (True, ["CURSOR_TAKEN"])


def test_one_that_reads_is_stopped(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leasing, "LOOK_ROWS", 40)
    world = make_world()
    sent(world, *(b"%d" % number for number in range(200)))
    epoch = take(world)
    number, count, _ = lease(world, messages=200, epoch=epoch)
    client = reader(world, number, epoch, ACK_INDIVIDUAL, prefetch=10)
    assert (count, len(client.deliveries)) == (200, 10)
    take(world)
    seen = 0
    while not client.errors:
        bodies = client.bodies[seen:]
        assert bodies, "it does not go on"
        for body in bodies:
            client.ack(body)
        seen += len(bodies)
        world.settle()
    assert client.codes == ["CURSOR_TAKEN"]
    assert len(client.deliveries) == 40


def test_a_lease_and_the_epoch_come_in_one_answer(make_world: MakeWorld) -> None:
    world = make_world()
    sent(world, *BODIES)
    client = ask(world, messages=4, take=True)
    world.settle()
    found = answer(client)
    assert (found["messages"], found["epoch"] > 0) == (4, True)
    world.crash_and_recover()
    client = ask(world, messages=4, take=True)
    world.settle()
    again = answer(client)
    assert (again["lease"], again["epoch"] > found["epoch"]) == (found["lease"], True)


def test_epochs_outlive_their_segments_and_are_no_batches(make_world: MakeWorld) -> None:
    world = make_world(journal_segment_size_bytes=4096, checkpoint_distance_bytes=2048)
    sent(world, *BODIES)
    old = take(world)
    epoch = take(world)
    number, _, _ = lease(world, messages=3, epoch=epoch)
    first = world.segments()[0]
    client = world.connect()
    client.subscribe("pump", ACK_AUTO)
    for _ in range(80):
        client.send(bytes(500), "pump")
        world.settle()
    assert first not in world.segments()
    world.crash_and_recover()
    world.sweep()
    assert codes(ask(world, epoch=old)) == ["CURSOR_TAKEN"]
    assert lease(world, epoch=epoch)[0] == number, "leases are not rolled back as those of a batch are"
    assert commit_batch(world, 1 << 62, owner="lease:,c,queue://a").codes == ["XID_INVALID"]
    browser = world.consumer(PREPARED_NAME, ACK_AUTO, browser=True)
    assert len(browser.deliveries) == 1
