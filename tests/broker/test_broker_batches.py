"""Batches of a pipeline: thousands of parts, a batch that comes again with other rows, a rollback by owner."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from amq.broker.transactions import two_phase
from amq.journal.records import Group, Resolved
from amq.protocols.commands import AbortBatch, CommitBatch, Prepare
from tests.broker.test_broker_two_phase import commit_batch, finish, listed, prepared
from tests.broker.world import Client, World

MakeWorld = Callable[..., World]
PARTS = 5000
COMMIT_S_MAX = 5.0  # measured: 0.15 s


def abort_batch(world: World, owner: str = "job", *fields: Any) -> Client:
    client = world.connect()
    client.do(AbortBatch(owner, *fields, receipt=world.next_receipt()))
    world.settle()
    return client


@pytest.mark.deep
def test_thousands_of_parts_are_one_batch(make_world: MakeWorld) -> None:
    world = make_world(journal_segment_size_bytes=64 << 20)
    client = world.connect()
    xids = [f"job/7/{part}/0-abc.0" for part in range(PARTS)]
    for part, xid in enumerate(xids):
        client.begin()
        client.send(b"%d" % part, transaction="t")
        client.do(Prepare("t", xid, None, "job", 7, world.next_receipt()))
    world.settle()
    assert client.errors == []
    world.crash_and_recover()
    assert (world.stored(), len(listed(world))) == ([], PARTS)
    began = time.thread_time()
    assert commit_batch(world, 7, *xids, content=(PARTS, 1)).outcomes == ["committed"]
    assert time.thread_time() - began < COMMIT_S_MAX
    world.crash_and_recover()
    assert world.stored() == [b"%d" % part for part in range(PARTS)]
    assert (commit_batch(world, 7, *xids, content=(PARTS, 1)).outcomes, listed(world)) == (["duplicate"], [])


# -- a batch that comes again ------------------------------------------------------------------------------------------


def test_a_batch_that_comes_again_with_other_rows_is_an_error(make_world: MakeWorld) -> None:
    world = make_world()
    prepared(world, "x1", b"1", owner="job", batch=7)
    assert commit_batch(world, 7, "x1", content=(1, 11)).outcomes == ["committed"]
    for _ in range(2):
        for other in ((2, 11), (1, 12)):
            assert commit_batch(world, 7, content=other).codes == ["BATCH_DIFFERS"]
        assert commit_batch(world, 7, content=(1, 11)).outcomes == ["duplicate"]
        assert commit_batch(world, 7).outcomes == ["duplicate"], "of content that is not told nobody knows"
        world.crash_and_recover()
    assert commit_batch(world, 6, content=(1, 11)).codes == ["BATCH_TOO_OLD"]
    assert commit_batch(world, 8).outcomes == ["committed"]
    assert commit_batch(world, 8, content=(1, 12)).outcomes == ["duplicate"], "nobody knows what it held"
    assert world.stored() == [b"1"]


def test_the_difference_is_told_when_the_commit_is_durable(make_world: MakeWorld) -> None:
    """What it stands against may go with the master: then nothing is committed, and this one may be."""
    world = make_world()
    first, second = world.connect(), world.connect()
    first.do(CommitBatch("job", 7, [], "1", (1, 11)))
    second.do(CommitBatch("job", 7, [], "2", (2, 22)))
    world.turn()
    assert (first.confirmed, second.errors) == ([], [])
    world.crash_and_recover()
    third, fourth = world.connect(), world.connect()
    third.do(CommitBatch("job", 7, [], "3", (2, 22)))
    fourth.do(CommitBatch("job", 7, [], "4", (1, 11)))
    world.settle()
    assert (third.outcomes, fourth.errors) == (["committed"], [("BATCH_DIFFERS", "4")])


@pytest.mark.parametrize("distance", [2048, 1 << 40])
def test_what_a_batch_held_outlives_its_segment(make_world: MakeWorld, distance: int) -> None:
    """Through compaction, and through checkpoints."""
    world = make_world(journal_segment_size_bytes=4096, checkpoint_distance_bytes=distance)
    assert commit_batch(world, 3, content=(5, (1 << 64) - 1)).outcomes == ["committed"]
    first = world.segments()[0]
    client = world.connect()
    client.subscribe("pump", "auto")
    for _ in range(80):
        client.send(bytes(500), "pump")
        world.settle()
    assert first not in world.segments()
    world.check_at_rest()
    world.crash_and_recover()
    assert commit_batch(world, 3, content=(5, 0)).codes == ["BATCH_DIFFERS"]
    assert commit_batch(world, 3, content=(5, (1 << 64) - 1)).outcomes == ["duplicate"]


# -- what an owner leaves behind ---------------------------------------------------------------------------------------


def xids_of(world: World) -> list[str]:
    return [each["xid"] for each in listed(world)]


def test_what_an_owner_prepared_is_rolled_back_together(make_world: MakeWorld) -> None:
    world = make_world()
    for batch in (1, 2):
        for part in range(3):
            prepared(world, f"{batch}/{part}", b"%d" % part, owner="job", batch=batch)
    prepared(world, "other", b"4", owner="other", batch=1)
    xids = ["1/0", "1/0", "nobody", "2/0", "other"]
    assert abort_batch(world, "job", 1, xids).outcomes == ["1"], "parts of other batches stay"
    assert xids_of(world) == ["1/1", "1/2", "2/0", "2/1", "2/2", "other"]
    assert abort_batch(world, "job", 1).outcomes == ["2"]
    world.crash_and_recover()
    assert abort_batch(world, "job").outcomes == ["3"]
    for _ in range(2):
        assert abort_batch(world, "job").outcomes == ["0"]
        assert xids_of(world) == ["other"]
        world.check_at_rest()
        world.crash_and_recover()
    assert commit_batch(world, 1, "1/0").codes == ["TRANSACTION_ROLLED_BACK"]
    assert finish(world, "other").errors == []
    assert world.stored() == [b"4"]


def test_a_long_rollback_is_several_groups(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_phase, "GROUP_MESSAGES_MAX", 4)
    world = make_world()
    for part in range(5):
        prepared(world, f"x{part}", b"1", b"2", b"3", owner="job", batch=1)
    groups: list[int] = []
    append = world.broker.append_group

    def see(group: Group, ready: None = None) -> Any:
        groups.append(sum(isinstance(record, Resolved) for record in group.records))
        return append(group, ready)

    monkeypatch.setattr(world.broker, "append_group", see)
    assert abort_batch(world, "job").outcomes == ["5"]
    assert groups == [2, 2, 1]
    assert (xids_of(world), world.stored()) == ([], [])
    world.check_at_rest()
