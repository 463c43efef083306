"""Slave: a takeover reads the tail, a cold start what is behind a checkpoint; trouble with those costs time only."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from amq.journal.checkpoint import list_checkpoints
from amq.journal.follower import DivergedError, Follower
from amq.journal.recovery import seal
from amq.node.following import LIST_EVERY_S, PAUSE_S_MAX, Following
from amq.store.epoch import Epoch
from amq.store.files.board import FileBoard
from amq.store.files.epochs import EPOCHS_DIRECTORY
from amq.store.files.log import FileLog
from amq.store.files.vfs import SystemVfs
from amq.store.open import store_behind
from amq.store.presence import read_presence
from amq.store.segment_log import CHECKPOINTS_DIRECTORY, JOURNAL_DIRECTORY
from tests.broker.world import World
from tests.brokers import Broker, Brokers
from tests.fakes import FaultyVfs
from tests.files import OWNER, flip, write_epoch
from tests.patience import DEADLINE_S
from tests.stored import stored_state
from tests.traffic import drain, send


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "store", checkpoint_distance_bytes=20_000)
    write_epoch(made.store, made.epoch, made.sealed)
    client = made.connect()
    for number in range(200):
        client.send(b"%d" % number + bytes(600))
        made.settle()
    assert len(list_checkpoints(FileLog(SystemVfs(), made.store).checkpoints)) == 2
    yield made
    made.close()


def take_over(world: World, slave: Following) -> tuple[dict[str, Any], int, int]:
    """What the slave finds that becomes master now: its state, and the bytes that it read, in all and at the end."""
    newest = Epoch(world.epoch, OWNER, world.sealed, 0, "test")
    sealed = seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed, slave.followed(newest))
    epoch = Epoch(world.epoch + 1, OWNER, sealed, 0, "test")
    state, recovered = slave.finish(world.config, epoch, lambda _read, _of, _messages: None)
    return stored_state(state, SystemVfs(), world.store), recovered.read_bytes, recovered.tail_bytes


def new_slave(world: World, vfs: FaultyVfs | None = None) -> Following:
    return Following(store_behind(vfs or SystemVfs(), world.store), world.clock, world.config)


def journal_bytes(world: World) -> int:
    return sum(segment.end for segment in world.journal.segments)


def paths(world: World) -> list[str]:
    """Of the checkpoints, newest first."""
    names = list_checkpoints(FileLog(SystemVfs(), world.store).checkpoints)
    return [os.path.join(world.store, CHECKPOINTS_DIRECTORY, name) for name in names]


# -- a cold start


def test_a_cold_start_reads_only_what_is_behind_the_newest_checkpoint(world: World) -> None:
    with capture_logs() as log:
        state, read_bytes, tail_bytes = take_over(world, new_slave(world))
    newest = os.path.basename(paths(world)[0])
    assert [(line["event"], line["checkpoint"]) for line in log] == [("checkpoint read", newest)]
    assert state == world.replayed()
    assert len(state["queues"]["queue://a"][0]) == 200
    assert 0 < read_bytes == tail_bytes < journal_bytes(world) / 3


@pytest.mark.parametrize("damaged", [1, 2])
def test_a_damaged_checkpoint_is_told_and_passed_over(world: World, damaged: int) -> None:
    right, _, least = take_over(world, new_slave(world))
    newest, older = paths(world)
    for path in (newest, older)[:damaged]:
        flip(path, os.path.getsize(path) // 2)
    with capture_logs() as log:
        state, read_bytes, _ = take_over(world, new_slave(world))
    assert state == right
    told = [(line["event"], line["log_level"], line["checkpoint"]) for line in log]
    wrong = "checkpoint cannot be used: trying one before it"
    expected = [(wrong, "warning", os.path.basename(path)) for path in (newest, older)[:damaged]]
    if damaged == 1:
        expected.append(("checkpoint read", "info", os.path.basename(older)))
        assert least < read_bytes < journal_bytes(world)
    else:
        assert read_bytes == journal_bytes(world) - 64 * len(world.journal.segments)
    assert told == expected
    assert all("fails its checksum" in line["reason"] for line in log[:damaged])


@pytest.mark.parametrize(("method", "number"), [("open", errno.EIO), ("pread", errno.EIO), ("open", errno.EACCES)])
def test_a_checkpoint_that_cannot_be_read_is_passed_over(world: World, method: str, number: int) -> None:
    """Not the journal's trouble, so no reason for a broker not to start."""
    right, _, _ = take_over(world, new_slave(world))
    vfs = FaultyVfs()
    vfs.fail(method, number, path=".ckpt", times=0)
    with capture_logs() as log:
        state, _, _ = take_over(world, new_slave(world, vfs))
    assert state == right
    assert [line["log_level"] for line in log] == ["warning", "warning"]


def test_checkpoints_that_cannot_be_listed_are_passed_over(world: World) -> None:
    right, _, _ = take_over(world, new_slave(world))
    vfs = FaultyVfs()
    vfs.fail("listdir", errno.EACCES, path=CHECKPOINTS_DIRECTORY, times=0)
    with capture_logs() as log:
        state, _, _ = take_over(world, new_slave(world, vfs))
    assert state == right
    assert len(log) == 1


def test_a_checkpoint_of_a_newer_format_is_passed_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    right, _, _ = take_over(world, new_slave(world))
    monkeypatch.setattr("amq.journal.checkpoint.FORMAT", 0)
    with capture_logs() as log:
        state, _, _ = take_over(world, new_slave(world))
    assert state == right
    assert all("has checkpoint format 2" in line["reason"] for line in log)


# -- a slave that follows


def test_a_takeover_reads_only_the_tail(world: World) -> None:
    slave = new_slave(world)
    while slave.follow():
        pass
    assert slave.lag().messages == 199
    assert slave.lag().caught_up_wall_ms == world.clock.wall_ms()
    client = world.connect()
    for number in range(3):
        client.send(b"later %d" % number)
        world.settle()
    state, _, tail_bytes = take_over(world, slave)
    assert state == world.replayed()
    assert tail_bytes < 2000


def test_a_takeover_by_one_that_followed_what_does_not_count_begins_at_a_checkpoint(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, _, least = take_over(world, new_slave(world))
    slave = new_slave(world)
    while slave.follow():
        pass
    refused = [DivergedError("read to 9, it counts to 8")]
    compare = Follower.compare

    def once(follower: Follower, *args: Any) -> None:
        if refused:
            raise refused.pop()
        compare(follower, *args)

    monkeypatch.setattr(Follower, "compare", once)
    with capture_logs() as log:
        assert take_over(world, slave) == (right, least, least)
    assert [line["event"] for line in log] == ["reading the journal anew", "checkpoint read"]


def test_a_slave_that_was_master_begins_as_new(world: World) -> None:
    slave = new_slave(world)
    slave.follow()
    take_over(world, slave)
    assert slave.lag().messages == 0
    slave.follow()
    assert slave.lag().messages == 199


def test_what_cannot_be_read_is_told_once_and_not_read_all_the_time(world: World) -> None:
    vfs = FaultyVfs()
    slave = new_slave(world, vfs)
    while slave.follow():
        pass
    vfs.fail("pread", errno.EIO, times=0)
    with capture_logs() as log:
        vfs.calls.clear()
        for _ in range(4 * 600):
            assert slave.follow() is False
            world.clock.advance(0.25)
    assert [line["event"] for line in log] == ["the journal cannot be followed now, trying again"]
    assert sum(method == "pread" for method, _ in vfs.calls) < 40
    vfs.heal()
    world.connect().send(b"one more")
    world.settle()
    world.clock.advance(PAUSE_S_MAX)
    slave.follow()
    assert slave.lag().messages == 200


def test_a_slave_that_waits_lists_directories_once_a_second(world: World) -> None:
    """To a file server a listing costs more than all else. A new epoch is seen within that second."""
    vfs = FaultyVfs()
    slave = new_slave(world, vfs)
    while slave.follow():
        pass
    for _ in range(2):
        world.clock.advance(LIST_EVERY_S)
        vfs.calls.clear()
        for _ in range(10):
            assert not slave.follow()
        directories = [os.path.basename(path) for method, path in vfs.calls if method == "listdir"]
        assert directories == [EPOCHS_DIRECTORY, JOURNAL_DIRECTORY]
        assert len(vfs.calls) <= 10 * 6  # the segment that is read: open, read, close; is there a next one?
    before = slave.lag().place
    world.crash_and_recover()
    write_epoch(world.store, world.epoch, world.sealed)
    world.connect().send(b"new")
    world.settle()
    slave.follow()
    assert slave.lag().place == before
    world.clock.advance(LIST_EVERY_S)
    while slave.follow():
        pass
    assert slave.lag().place > before
    assert slave.lag().messages == 200  # the newest batch is not known to be durable


def test_queues_that_come_and_go_leave_nothing_behind(world: World) -> None:
    """Reply queues with unique names and messages that expire: a slave may follow for months."""
    slave = new_slave(world)
    client = world.connect()
    for number in range(50):
        name = f"reply-{number}"
        client.send(b"%d" % number, name, expires_ms=world.clock.wall_ms() + 1_000_000)
        client.subscribe(name)
        world.settle()
        client.ack(b"%d" % number)
        client.unsubscribe(name)
        world.settle()
        while slave.follow():
            pass
    assert len(slave.state.queues) < 5
    assert len(slave.state.expiring) < 5
    assert len(slave.state.emptied) < 5


# -- real processes


def followed(slave: Broker) -> int:
    """How many messages it knows, by its own account."""
    details = {each.name: each.details for each in read_presence(FileBoard(SystemVfs(), str(slave.store)))}
    return int(details.get(slave.name, {}).get("followed", {}).get("messages", 0))


@pytest.mark.deep
@pytest.mark.parametrize("follows", [False, True])
def test_kill_9_with_a_backlog(brokers: Brokers, follows: bool) -> None:
    options = {"slaveFollowInterval": "20ms" if follows else "0"}
    master, slave = brokers.master("a", **options), brokers.slave("b", **options)
    with master.connect() as connection:
        for number in range(50):
            send(connection, b"%d" % number)
    deadline = time.monotonic() + DEADLINE_S
    while follows and not followed(slave):
        assert time.monotonic() < deadline, slave.log_text()
        time.sleep(0.01)
    master.kill()
    slave.wait_serving()
    (read,) = slave.said("journal read")
    assert read["messages"] == 50
    assert bool(read["followed_bytes"]) is follows
    with slave.connect() as connection:
        assert drain(connection, 50) == [b"%d" % number for number in range(50)]
