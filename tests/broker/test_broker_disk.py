"""A full disk refuses messages, loses none, and lets acknowledgements through."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from amq.broker.queues.redelivery import NO_ROOM_S
from amq.protocols.commands import Prepare
from tests.broker.notation import Ack
from tests.broker.world import World
from tests.large import large_from


def fill_disk(world: World) -> None:
    """Nothing more can be written to segments."""
    for method in ("pwrite", "allocate"):
        world.vfs.fail(method, errno.ENOSPC, times=0, path=".seg")
    world.vfs.answer("free_bytes", 0)


def low_on_disk(world: World) -> None:
    """The floor is reached: sends are refused from now on, everything else can be stored."""
    world.vfs.answer("free_bytes", 0)
    world.journal.check_space()
    world.settle()
    assert world.journal.full


def room_again(world: World) -> None:
    world.vfs.heal()
    world.journal.check_space()
    world.settle()
    assert not world.journal.full


def test_below_the_floor_sends_are_refused_and_the_rest_goes_on(world: World) -> None:
    producer, other = world.connect(), world.connect()
    producer.send(b"1")
    producer.send(b"2")
    world.settle()
    client = world.consumer()
    low_on_disk(world)
    refused = producer.send(b"3")
    other.send(b"n", persistent=False)
    receipt = client.ack(b"1")
    world.settle()
    assert producer.errors == [("STORE_FULL", refused)]
    assert receipt in client.confirmed
    assert world.stored() == [b"2", b"n"]
    room_again(world)
    confirmed = other.send(b"4")
    world.settle()
    assert confirmed in other.confirmed
    assert world.stored() == [b"2", b"n", b"4"]
    world.check_at_rest()
    world.crash_and_recover()
    assert world.stored() == [b"2", b"4"]


def test_a_resent_message_that_is_stored_is_confirmed_on_a_full_disk(world: World) -> None:
    world.send(b"1", duplicate_id="1")
    low_on_disk(world)
    again = world.connect()
    receipt = again.send(b"1", duplicate_id="1")
    new = again.send(b"2", duplicate_id="2")
    world.settle()
    assert again.confirmed == [receipt]
    assert again.errors == [("STORE_FULL", new)]
    room_again(world)
    world.check_at_rest()


def test_a_transaction_that_sends_is_rolled_back_on_a_full_disk(world: World) -> None:
    world.connect().send(b"1")
    world.settle()
    low_on_disk(world)
    for sends, persistent in ((True, True), (False, True), (True, False)):
        client = world.consumer()
        client.begin()
        if sends:
            client.send(b"x", "b", transaction="t", persistent=persistent)
        if sends and persistent:
            client.ack(b"1", "t")
        receipt = client.commit()
        world.settle()
        if sends and persistent:
            assert client.errors == [("STORE_FULL", receipt)]
            assert world.stored("b") == []
        else:
            assert receipt in client.confirmed
        world.lose(client)
        world.check_at_rest()
    assert world.stored("b") == [b"x"]


def test_a_send_that_meets_a_full_disk_is_refused(world: World) -> None:
    client = world.consumer("b")
    sender, silent = world.connect(), world.connect()
    world.connect().send(b"1", "b")
    world.settle()
    fill_disk(world)
    refused = sender.send(b"x", duplicate_id="x")
    silent.send(b"y", receipt=False)
    receipt = client.ack(b"1")
    world.settle()
    assert sender.errors == [("STORE_FULL", refused)]
    assert silent.errors == [("STORE_FULL", "")]
    assert (world.stored("a"), world.broker.memory.taken_bytes) == ([], 600 + 1)
    assert receipt not in client.confirmed  # nothing can be written at all
    room_again(world)
    assert receipt in client.confirmed
    assert world.broker.memory.taken_bytes == 0
    again = world.connect()
    assert again.send(b"x", duplicate_id="x")
    world.settle()
    assert world.stored("a") == [b"x"]
    world.check_at_rest()


def test_a_duplicate_of_a_send_that_is_refused_is_not_confirmed(world: World) -> None:
    """The client lost the connection and sent again while the first copy was on its way to a disk that is full."""
    first, second = world.connect(), world.connect()
    first.send(b"x", duplicate_id="x")
    world.turn()
    fill_disk(world)
    receipt = second.send(b"x", duplicate_id="x")
    world.settle()
    assert first.codes == ["STORE_FULL"]
    assert receipt not in second.confirmed
    assert second.errors == [("STORE_FULL", receipt)]
    assert world.stored() == []
    room_again(world)
    assert second.confirmed == []
    world.check_at_rest()


def test_a_duplicate_of_what_is_being_prepared_shares_its_fate(world: World) -> None:
    first, second = world.connect(), world.connect()
    first.begin()
    first.send(b"x", transaction="t", duplicate_id="x")
    first.do(Prepare("t", "x", receipt="p"))
    world.turn()
    fill_disk(world)
    receipt = second.send(b"x", duplicate_id="x")
    world.settle()
    assert first.errors == [("STORE_FULL", "p")]
    assert second.errors == [("STORE_FULL", receipt)]
    room_again(world)
    assert (world.stored(), second.confirmed) == ([], [])
    world.check_at_rest()


def test_a_commit_that_is_refused_is_not_confirmed_to_who_asks_again(world: World) -> None:
    first, second = world.connect(), world.connect()
    first.begin()
    first.send(b"x", transaction="t")
    first.commit(outcome_id="o")
    world.turn()
    fill_disk(world)
    receipt = second.commit("t", "o")
    world.settle()
    assert first.codes == ["STORE_FULL"]
    assert receipt not in second.confirmed
    assert second.errors == [("STORE_FULL", receipt)]
    assert world.stored() == []
    room_again(world)
    third = world.connect()
    third.commit("t", "o")
    world.settle()
    assert third.codes == ["TRANSACTION_ROLLED_BACK"]
    world.check_at_rest()


def test_a_transaction_that_meets_a_full_disk_is_rolled_back(world: World) -> None:
    world.connect().send(b"1")
    world.settle()
    client, other = world.consumer(), world.consumer()
    client.begin()
    client.ack(b"1", "t")
    client.send(b"x", "b", transaction="t", duplicate_id="x")
    fill_disk(world)
    receipt = client.commit(outcome_id="o")
    world.settle()
    assert client.errors == [("STORE_FULL", receipt)]
    assert other.bodies == [b"1"]
    assert (world.stored("a"), world.stored("b")) == ([b"1"], [])
    room_again(world)
    world.check_at_rest()
    world.crash_and_recover()
    assert (world.stored("a"), world.stored("b")) == ([b"1"], [])
    assert not world.broker.state.outcomes


@pytest.mark.parametrize("persistent", [True, False])
def test_a_refused_message_stays_where_it_is_while_the_disk_is_full(world: World, persistent: bool) -> None:
    world.connect().send(b"1", persistent=persistent)
    world.settle()
    client = world.consumer(prefetch=1)
    low_on_disk(world)
    client.session.set_writable(False)
    receipt = client.nack(b"1")
    world.settle()
    client.session.set_writable(True)
    world.settle()
    assert receipt in client.confirmed
    if not persistent:
        assert (client.bodies, world.stored("DLQ.a")) == ([b"1"], [b"1"])
        return
    assert client.bodies == [b"1"], "it was delivered at once, and refused, as fast as the client could"
    world.sweep(NO_ROOM_S)
    assert client.bodies == [b"1", b"1"]
    assert client.deliveries[-1].redelivered == 1
    room_again(world)
    client.nack(b"1")
    world.settle()
    assert (world.stored("a"), world.stored("DLQ.a")) == ([], [b"1"])
    world.check_at_rest()


def test_a_move_that_meets_a_full_disk_is_undone_and_the_message_delivered_again(world: World) -> None:
    world.connect().send(b"1")
    world.settle()
    client = world.consumer()
    fill_disk(world)
    client.nack(b"1")
    client.lose()
    other = world.consumer()
    world.settle()
    assert other.bodies == [b"1"]
    assert other.deliveries[0].redelivered == 1
    room_again(world)
    world.check_at_rest()


def test_expired_messages_wait_on_a_full_disk_where_policy_is_to_move_them(make_world: Callable[..., World]) -> None:
    world = make_world(expired_messages="dead-letter")
    world.connect().send(b"1", expires_ms=world.clock.wall_ms() + 1)
    world.connect().send(b"2")
    world.settle()
    low_on_disk(world)
    world.clock.advance(1.0)
    client = world.consumer()
    world.sweep()
    assert client.bodies == [b"2"]
    assert (world.stored("a"), world.stored("DLQ.a")) == ([b"1", b"2"], [])
    room_again(world)
    world.sweep()
    assert (world.stored("a"), world.stored("DLQ.a")) == ([b"2"], [b"1"])
    world.check_at_rest()


def test_a_large_expired_message_is_not_read_again_and_again_on_a_full_disk(make_world: Callable[..., World]) -> None:
    """A consumer waits for it, nobody may have it, and it cannot be moved."""
    world = make_world(expired_messages="dead-letter")
    with large_from(100):
        client = world.send(bytes(1000), expires_ms=world.clock.wall_ms() + 1000)
        low_on_disk(world)
        world.clock.advance(1.5)
        world.broker.sweep()
        client.subscribe()
        world.settle()
        for _ in range(10):
            world.sweep(1.0)
        assert client.bodies == world.stored("DLQ.a") == []
        assert world.broker.memory.taken_bytes < 1000, "its body is on the disk alone"
        room_again(world)
        for _ in range(3):
            world.sweep(1.0)
        assert world.stored("DLQ.a") == [bytes(1000)]
    world.check_at_rest()


def test_what_was_sent_behind_a_rejected_message_is_rejected_too(world: World) -> None:
    """Also where there is room again when its turn comes: else it would are before what is sent again."""
    client = world.consumer("b")
    world.connect().send(b"1", "b")
    world.settle()
    producer, other = world.connect(), world.connect()
    fill_disk(world)
    client.ack(b"1", receipt=False)
    first = producer.send(b"1", duplicate_id="1")
    world.turn()
    second = producer.send(b"2", duplicate_id="2")
    other.send(b"o", receipt=False)
    while world.runner.step():
        world.turn()  # the first is rejected; the acknowledgement of its batch waits for room
    room_again(world)
    assert (first in producer.confirmed, second in producer.confirmed) == (False, False)
    assert (producer.codes, other.codes) == (["STORE_FULL"], ["STORE_FULL"])
    again = world.connect()
    receipts = [again.send(body, duplicate_id=body.decode()) for body in (b"1", b"2")]
    world.settle()
    assert again.confirmed == receipts
    assert world.stored("a") == [b"1", b"2"]
    world.check_at_rest()
    world.crash_and_recover()
    assert world.stored("a") == [b"1", b"2"]


@pytest.mark.parametrize("seed", range(40))
def test_order_of_a_producer_that_sends_again_what_was_rejected(make_world: Callable[..., World], seed: int) -> None:
    """It sends many ahead, with producer-given ids; after an ERROR it connects anew and sends on from the first message
    that is not confirmed. The disk is full now and then, at any moment."""
    rng = random.Random(seed)
    world = make_world(journal_batch_size_bytes=rng.choice([200, 1 << 20]))
    ids = [str(number) for number in range(30)]
    client, other = world.consumer("b"), world.connect()
    producer, receipts, confirmed = world.connect(), {}, 0
    full = False
    for _ in range(3000):
        if confirmed == len(ids):
            break
        while confirmed in receipts and receipts[confirmed] in producer.confirmed:
            confirmed += 1
        if producer.refused:
            world.turn()
            producer, receipts = world.connect(), {}
        following = max(receipts, default=confirmed - 1) + 1
        what = rng.randrange(12)
        if what < 5 and following < len(ids):
            receipts[following] = producer.send(ids[following].encode(), duplicate_id=ids[following])
        elif what < 8:
            world.turn()
            world.runner.step()
        elif what == 8 and not full and rng.random() < 0.3:
            fill_disk(world)
            full = True
        elif what == 9 and full and rng.random() < 0.5:
            world.vfs.heal()
            full = False
        elif what == 10:
            world.journal.check_space()
        elif what == 11:
            if other.refused:
                world.turn()
                other = world.connect()
            other.send(b"o", "b", receipt=False)
            if client.deliveries and client.deliveries[-1].seq in client.consumers["b"].unacked:
                client.do(Ack(client.deliveries[-1].seq, "b"))
    assert confirmed == len(ids), f"seed {seed}: it makes no progress"
    if full:
        world.vfs.heal()
    world.settle()
    assert world.stored("a") == [id.encode() for id in ids]
    world.check_at_rest()


def test_a_full_disk_that_shows_in_a_sync_costs_the_mastership_and_nothing_else(world: World) -> None:
    """As on NFS before 4.2, where no space can be set aside: a failed sync is never tried again."""
    producer = world.connect()
    stored = producer.send(b"1", duplicate_id="1")
    world.settle()
    for method in ("fdatasync", "fsync"):
        world.vfs.fail(method, errno.ENOSPC, times=0, path=".seg")
    world.vfs.answer("free_bytes", 0)
    lost = producer.send(b"2", duplicate_id="2")
    world.settle()
    assert len(world.failures) == 1
    assert producer.confirmed == [stored]
    assert lost not in producer.confirmed
    world.failures.clear()
    world.crash_and_recover()
    assert world.journal.full
    assert world.failures == []
    again = world.connect()
    assert world.stored() in ([b"1"], [b"1", b"2"])
    again.send(b"3")
    world.settle()
    assert again.codes == ["STORE_FULL"]
    room_again(world)
    again = world.connect()
    receipts = [again.send(body, duplicate_id=body.decode()) for body in (b"1", b"2")]
    world.settle()
    assert again.confirmed == receipts
    assert world.stored() == [b"1", b"2"]
    world.check_at_rest()
