"""Slaves that begin at a checkpoint and see the rest of the store late, as clients of a network file system do."""

from __future__ import annotations

import os
from collections.abc import Callable

from amq.journal.checkpoint import list_checkpoints
from amq.journal.follower import Follower
from amq.journal.format import SegmentHeader
from amq.journal.recovery import JOURNAL_DIRECTORY
from amq.journal.segment import create_segment
from tests.broker.world import Client, World


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
    assert list_checkpoints(world.vfs, world.store)[0].startswith(f"{world.epoch:08}")
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
    while (name := list_checkpoints(world.vfs, world.store)[0][:17] + ".seg") == world.segments()[-1]:
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
    follower = Follower(world.vfs, store, lambda _record, _segment: None)
    for epoch, id in ((1, b"x" * 16), (2, b"y" * 16)):
        world.vfs.close(create_segment(world.vfs, directory, SegmentHeader(epoch, 1, id, epoch), 4096).fd)
        follower.follow(epoch, {"00000001-00000001.seg": 0} if epoch > 1 else {}, 1 << 20)
    assert follower.place.startswith("00000002-00000001.seg")
