"""What a follower spares: a seal reads only what is behind it, with the same lengths; it may begin in the middle."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amq.core.errors import CorruptError
from amq.journal.follower import DivergedError, Position, Start
from amq.journal.format import HEADER_BYTES
from amq.journal.live import Segment
from amq.journal.records import Trimmed
from amq.journal.recovery import Followed, seal
from amq.store.files.log import FileLog
from amq.store.files.vfs import SystemVfs
from tests.journal.follower_world import ALL, CountingVfs, Reader, path_of, replayed, upto, write
from tests.journal.journal_world import World
from tests.sampling import examples


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_seal_reads_only_the_tail(tmp_path: Path) -> None:
    world = World(tmp_path, journal_segment_size_bytes=1 << 20)
    write(world, 200, 20_000)
    reader = Reader(world)
    reader.follow()
    write(world, 3)
    whole, tail = CountingVfs(), CountingVfs()
    right = seal(FileLog(whole, world.store), world.epoch, world.sealed)
    assert seal(FileLog(tail, world.store), world.epoch, world.sealed, reader.follower.followed) == right
    written = os.path.getsize(path_of(world, -1)) - reader.follower.followed.offset
    assert tail.read_bytes <= written + HEADER_BYTES + 3 * 60
    before = reader.follower.read_bytes
    assert reader.finish(right) == upto(203)
    assert reader.follower.read_bytes - before < 30_000


def test_a_seal_through_rolls_is_the_same_wherever_the_follower_was(world: World) -> None:
    write(world, 60, 700)
    reader = Reader(world)
    right = seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed)
    while reader.follower.follow(world.epoch, world.sealed, 1):
        assert seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed, reader.follower.followed) == right


def test_an_end_that_the_journal_does_not_confirm_is_measured(world: World) -> None:
    """Whatever a slave believes, the seal holds all that was confirmed: a takeover that reads anew is the worst."""
    write(world, 20, 700)
    reader = Reader(world)
    reader.follow()
    right = seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed)
    first, *_ = names = world.segments()
    wrong = {
        "its successor says otherwise": {first: right[first] - 100},
        "it is the last": {name: right[name] for name in names[:-1]} | {names[-1]: right[names[-1]] - 100},
    }
    for why, ends in wrong.items():
        assert seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed, Followed(ends)) == right, why
    os.unlink(path_of(world, 1))
    mark = Trimmed(world.epoch, 2, {(world.epoch, 1): right[first]})
    found = seal(
        FileLog(SystemVfs(), world.store), world.epoch, world.sealed, Followed({first: right[first] - 100}, mark)
    )
    assert found[first] == right[first], "a trim mark says otherwise"


def test_a_file_that_became_shorter_than_what_was_read_of_it_is_damage(world: World) -> None:
    write(world, 30, 700)
    reader = Reader(world)
    reader.follow()
    followed = reader.follower.followed
    assert followed.ends
    for name, length in ((followed.name, followed.offset), next(iter(followed.ends.items()))):
        path = os.path.join(world.directory, name)
        whole = Path(path).read_bytes()
        os.truncate(path, length - 1)
        with pytest.raises(CorruptError, match="truncated"):
            seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed, followed)
        Path(path).write_bytes(whole)
    seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed, followed)


# -- a beginning in the middle


def start_at(world: World, position: Position) -> Start:
    segments = {s.name: Segment(s.name, s.epoch, s.number, s.end) for s in world.journal.segments}
    segments[position.segment_name].end = position.offset
    return Start(position, Trimmed(), bytes(16), segments)


def position_of(world: World) -> Position:
    position = world.journal.position()
    assert position is not None
    return position


def test_it_begins_in_the_middle_of_a_segment(world: World) -> None:
    write(world, 5, name="queue://a")
    write(world, 5, name="queue://b")
    start = start_at(world, position_of(world))
    write(world, 30, 500, name="queue://b")
    reader = Reader(world, start=start)
    assert reader.follow() == list(range(11, 40))
    assert reader.names == {"queue://b"}, "destinations that were defined before"
    sealed = seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed, reader.follower.followed)
    assert sealed == seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed)
    assert reader.finish(sealed) == list(range(11, 41))


def test_it_begins_only_where_the_journal_has_that_very_batch(world: World) -> None:
    write(world, 5)
    start = start_at(world, position_of(world))
    path = path_of(world)
    whole = Path(path).read_bytes()
    position = start.position
    others = [
        whole[: position.batch_offset] + bytes(len(whole) - position.batch_offset),  # restored from before that batch
        whole[: position.offset - 1] + bytes([whole[position.offset - 1] ^ 1]) + whole[position.offset :],
        whole[: position.offset - 1],
        whole[:HEADER_BYTES],
        bytes(HEADER_BYTES),
    ]
    for data in others:
        Path(path).write_bytes(data)
        with pytest.raises(DivergedError):
            Reader(world, start=start)
    os.unlink(path)
    with pytest.raises(DivergedError):  # were it trimmed, there would be a later one
        Reader(world, start=start)
    Path(path).write_bytes(whole)
    assert Reader(world, start=start).follow() == []


def test_it_does_not_begin_in_another_store(world: World) -> None:
    write(world, 2)
    start = start_at(world, position_of(world))
    foreign = Start(start.position, start.trimmed, bytes([1]) * 16, start.segments)
    with pytest.raises(DivergedError):
        Reader(world, start=foreign)


# -- all together

step = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 4), st.sampled_from([10, 700, 3000])),
    st.tuples(st.just("follow"), st.sampled_from([1, 1000, ALL]), st.just(0)),
    st.tuples(st.just("tear"), st.integers(0, 400), st.just(0)),
    st.tuples(st.just("epoch"), st.just(0), st.just(0)),
)


@settings(max_examples=examples(60))
@given(st.lists(step, max_size=40))
def test_what_was_given_out_is_a_prefix_of_what_counts(steps: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        reader = Reader(world)
        confirmed = torn = 0
        for action, number, size in steps:
            if action == "write":
                write(world, number, size)
                confirmed += number
            elif action == "follow":
                reader.follower.follow(world.epoch, world.sealed, number)
            elif action == "tear":
                _tear(world, number)
                torn += 1
            else:
                world.end()
                world.begin()
            assert reader.follower.store_uuid in (None, bytes(16))
        world.end()
        followed = reader.follower.followed
        sealed = seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed, followed)
        assert sealed == seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed, Followed())
        right = replayed(world, sealed)
        assert reader.seqs == right[: len(reader.seqs)]
        assert confirmed <= len(right) <= confirmed + torn
        assert reader.finish(sealed) == right


def _tear(world: World, size: int) -> None:
    """The process dies in the middle of a write, of which `size` bytes are on the disk."""
    position = world.journal.position()
    if position is None:
        return
    write(world, 1, 300)
    world.end()
    path = os.path.join(world.directory, position.segment_name)
    cut, length = position.offset + size, os.path.getsize(path)
    if cut < length:
        with open(path, "r+b") as file:
            file.seek(cut)
            file.write(bytes(length - cut))
    world.begin()
