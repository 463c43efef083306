"""Slaves that begin at a checkpoint and see the rest of the store late, as clients of a network file system do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from amq.core.errors import CorruptError
from amq.journal.checkpoint import list_checkpoints
from amq.journal.follower import Follower
from amq.journal.format import SegmentHeader, segment_name
from amq.journal.recovery import seal
from amq.node.following import LIST_EVERY_S, Following
from amq.store.epoch import Epoch
from amq.store.files.log import FileLog
from amq.store.open import store_behind
from amq.store.segment_log import JOURNAL_DIRECTORY
from tests.broker.world import Client, World
from tests.files import OWNER, write_epoch
from tests.stored import stored_state


def fill(world: World, producer: Client, count: int) -> None:
    for _ in range(count):
        producer.send(bytes(300))
        world.settle()


def check_seal(world: World) -> None:
    """What the slave has read lets nothing out of the seal."""
    assert world.standby.follower is not None
    world.standby.take_over(world.standby.seal(world.epoch, world.sealed))


def test_a_checkpoint_that_is_seen_before_its_epoch(make_world: Callable[..., World]) -> None:
    """Its segment was taken for one of a deposed master, and so as read to its end: the next epoch sealed it where the
    checkpoint stands, and what was confirmed behind that was lost."""
    world = make_world(checkpoint_distance_bytes=500)
    fill(world, world.connect(), 3)
    before = world.epoch, dict(world.sealed)
    world.crash_and_recover()
    producer = world.connect()
    fill(world, producer, 3)
    assert list_checkpoints(world.log.checkpoints)[0].startswith(f"{world.epoch:08}")
    world.standby.follow(*before)
    fill(world, producer, 3)
    world.standby.follow(*before)
    check_seal(world)


def test_a_segment_that_is_not_seen_where_a_checkpoint_stands(make_world: Callable[..., World]) -> None:
    """A client may remember that a name was absent, and see in the directory what is younger. The segment was taken for
    a trimmed one, and sealed where the checkpoint stands."""
    world = make_world(checkpoint_distance_bytes=500, journal_segment_size_bytes=4096)
    producer = world.connect()
    fill(world, producer, 2)
    while (name := list_checkpoints(world.log.checkpoints)[0][:17] + ".seg") == world.segments()[-1]:
        fill(world, producer, 1)
    fill(world, producer, 1)
    path = os.path.join(world.store, JOURNAL_DIRECTORY, name)
    os.rename(path, path + ".unseen")
    world.follow()
    os.rename(path + ".unseen", path)
    check_seal(world)


def test_a_segment_in_which_nothing_stands_says_nothing_of_the_store(make_world: Callable[..., World]) -> None:
    """Its master died before its first batch, and the next one gave the store another id: a slave of both did not
    follow any more, and stopped for good when it became the master.
    """
    world = make_world()
    store = os.path.join(world.store, "other")
    directory = os.path.join(store, JOURNAL_DIRECTORY)
    os.makedirs(directory)
    log = FileLog(world.vfs, store)
    follower = Follower(log, lambda _record, _segment: None)
    for epoch, id in ((1, b"x" * 16), (2, b"y" * 16)):
        log.create(segment_name(epoch, 1), SegmentHeader(epoch, 1, id, epoch).encode(), 4096, world.clock).close()
        follower.follow(epoch, {"00000001-00000001.seg": 0} if epoch > 1 else {}, 1 << 20)
    assert follower.place.startswith("00000002-00000001.seg")


# -- a checkpoint that ends inside a segment, which a later epoch has sealed


def checkpointed_inside(make_world: Callable[..., World]) -> tuple[World, str]:
    """A store, and the segment in whose middle its only checkpoint ends. The next master has sealed it whole, and one
    behind it."""
    world = make_world(checkpoint_distance_bytes=6 << 10, journal_segment_size_bytes=4096)
    client = world.connect()
    while not (names := list_checkpoints(world.log.checkpoints)) or names[0][:17] + ".seg" != world.segments()[-1]:
        client.send(b"before %d " % len(world.stored()) + bytes(300))
        world.settle()
    world.config = world.broker.config = world.standby._config = replace(world.config, checkpoint_distance_bytes=0)
    for number in range(15):
        client.send(b"behind %d " % number + bytes(300))
        world.settle()
    world.crash_and_recover()
    write_epoch(world.store, world.epoch, world.sealed)
    assert int(names[0][18:28]) < world.sealed[names[0][:17] + ".seg"]
    return world, os.path.join(world.store, JOURNAL_DIRECTORY, names[0][:17] + ".seg")


def trim(world: World, path: str) -> None:
    """Acknowledge until the broker deletes that segment. Other messages stay."""
    client = world.consumer(prefetch=1000)
    for delivery in list(client.deliveries):
        client.ack(delivery.body)
    for number in range(20):
        client.send(b"last %d" % number + bytes(600), "b")
        world.settle()
    assert not client.errors
    assert not os.path.exists(path)


@contextmanager
def unseen(path: str) -> Iterator[None]:
    os.rename(path, path + ".unseen")
    yield
    os.rename(path + ".unseen", path)


def follow(world: World, slave: Following) -> list[str]:
    """The slave reads all that there is. What it says of that."""
    world.clock.advance(LIST_EVERY_S)
    with capture_logs() as log:
        while slave.follow():
            pass
    return [line["event"] for line in log]


def take_over(world: World, slave: Following) -> tuple[dict[str, Any], list[str]]:
    """The state of the next master, and what it says while it reads the journal."""
    previous = Epoch(world.epoch, OWNER, dict(world.sealed), 0, "test")
    with capture_logs() as log:
        sealed = seal(world.log, world.epoch, world.sealed, slave.followed(previous))
        following = Epoch(world.epoch + 1, OWNER, sealed, 0, "test")
        state, _ = slave.finish(world.config, following, lambda _read, _of, _messages: None)
    return stored_state(state, world.vfs, world.store), [line["event"] for line in log]


def new_slave(world: World) -> Following:
    return Following(store_behind(world.vfs, world.store), world.clock, world.config)


def test_a_segment_that_was_trimmed_after_it_was_sealed(make_world: Callable[..., World]) -> None:
    """The seal says that it was longer than the part that the checkpoint has. That made the checkpoint useless."""
    world, path = checkpointed_inside(make_world)
    trim(world, path)
    slave = new_slave(world)
    assert follow(world, slave) == ["checkpoint read"]
    right = world.replayed()
    assert len(right["queues"]["queue://b"][0]) == 20
    assert take_over(world, slave) == (right, [])
    assert take_over(world, new_slave(world)) == (right, ["checkpoint read"])


def test_a_sealed_segment_that_is_not_seen_where_a_checkpoint_stands(make_world: Callable[..., World]) -> None:
    """No mark says that it was trimmed. So the next master reads it."""
    world, path = checkpointed_inside(make_world)
    right = world.replayed()
    for last_master in ("has a segment", "died before it made one"):
        if last_master.startswith("died"):
            world.crash()
            os.unlink(os.path.join(world.store, JOURNAL_DIRECTORY, world.segments()[-1]))
        slave = new_slave(world)
        with unseen(path):
            assert follow(world, slave) == ["checkpoint read"]
        anew = ["the journal as followed cannot be used: reading all of it"]
        assert take_over(world, slave) == (right, anew), last_master


def test_a_sealed_segment_that_is_never_seen_is_missing(make_world: Callable[..., World]) -> None:
    world, path = checkpointed_inside(make_world)
    slave = new_slave(world)
    with unseen(path):
        follow(world, slave)
        with pytest.raises(CorruptError, match="missing"):
            take_over(world, slave)


def test_a_sealed_segment_that_is_not_seen_and_then_trimmed(make_world: Callable[..., World]) -> None:
    world, path = checkpointed_inside(make_world)
    slave = new_slave(world)
    with unseen(path):
        assert follow(world, slave) == ["checkpoint read"]
    trim(world, path)
    assert follow(world, slave) == []
    assert take_over(world, slave) == (world.replayed(), [])


def test_a_later_seal_shows_that_a_segment_was_only_not_seen(make_world: Callable[..., World]) -> None:
    """It would not name the segment, had that been trimmed when the slave looked for it. The slave need not wait with a
    second reading until it takes over."""
    world, path = checkpointed_inside(make_world)
    slave = new_slave(world)
    fill(world, world.connect(), 3)
    with unseen(path):
        assert follow(world, slave) == ["checkpoint read"]
    world.crash_and_recover()
    write_epoch(world.store, world.epoch, world.sealed)
    assert follow(world, slave) == ["following the journal anew"]
    assert follow(world, slave) == ["checkpoint read"]
    assert take_over(world, slave) == (world.replayed(), [])
