"""Follower: gives out what counts and nothing else, in order, while a master writes, rolls, trims and is deposed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from amq.core.errors import CorruptError
from amq.core.message import Message
from amq.journal.follower import LOOK_BYTES, PIECE_BYTES, DivergedError, Follower
from amq.journal.format import BATCH_BYTES, HEADER_BYTES
from amq.journal.live import Segment
from amq.journal.records import Record, Trimmed
from amq.journal.recovery import seal
from amq.store.files.log import FileLog
from amq.store.files.vfs import SystemVfs
from tests.broker.disk import ProcessFiles
from tests.fakes import FaultyVfs
from tests.journal.follower_world import ALL, CountingVfs, Reader, path_of, replayed, upto, write
from tests.journal.journal_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# -- while the master writes


def test_a_batch_is_given_out_when_the_next_one_was_begun(world: World) -> None:
    reader = Reader(world)
    for number in range(1, 6):
        write(world)
        assert reader.follow() == upto(number - 1)
    assert reader.follower.follow(world.epoch, world.sealed, ALL) is False


def test_header_of_the_next_batch_alone_proves_the_one_before_it(world: World) -> None:
    write(world, 2)
    path = path_of(world)
    whole = Path(path).read_bytes()
    reader = Reader(world)
    assert reader.follow() == [1]
    write(world)
    later = Path(path).read_bytes()
    at = next(i for i in range(len(whole)) if whole[i] != later[i])
    for cut in range(at, at + 60):  # what a reader may see while that batch is being written
        Path(path).write_bytes(later[:cut] + bytes(len(later) - cut))
        assert reader.follow() in ([1], [1, 2])
    assert reader.seqs == [1, 2]


def test_what_a_failed_write_left_behind_the_last_batch_proves_nothing(world: World) -> None:
    """A batch behind it that does not follow it: bytes of an attempt that a full disk broke off, say."""
    write(world, 3)
    path = path_of(world)
    world.end()
    data = Path(path).read_bytes()
    reader = Reader(world)
    reader.follow()
    end = reader.follower.followed.offset
    last = data[end:].rstrip(b"\0")  # the third batch, not proved yet
    first = data[HEADER_BYTES : HEADER_BYTES + 400]
    Path(path).write_bytes(data[:end] + last + first + bytes(4000))
    assert reader.follow() == [1, 2]


def test_it_goes_from_segment_to_segment(world: World) -> None:
    reader = Reader(world)
    for number in range(1, 60):
        write(world, 1, 700)
        assert reader.follow() == upto(number - 1)
    assert len(world.segments()) > 4


def test_a_successor_that_is_prepared_but_not_begun_says_nothing(world: World) -> None:
    reader = Reader(world)
    while len(world.segments()) < 2:
        write(world, 1, 700)
        reader.follow()
    position = world.journal.position()
    assert position is not None
    assert position.number == 1
    assert reader.seqs == upto(world.sent - 1)


class Remembering(FaultyVfs):
    """Lists what it listed first, as a network client does for a while."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, list[str]] = {}

    def listdir(self, path: str) -> list[str]:
        return self._names.setdefault(path, SystemVfs().listdir(path))


def test_the_next_segment_is_seen_before_it_is_listed(world: World) -> None:
    write(world, 1)
    reader = Reader(world, Remembering())
    reader.follow()
    write(world, 100, 700)
    assert len(world.segments()) > 5
    assert reader.follow() == upto(100)


def test_budget_bounds_what_is_read_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, journal_segment_size_bytes=64 << 20, journal_batch_size_bytes=1 << 20)
    for _ in range(30):
        world.send(1, 500_000)
        world.commit()
    reader = Reader(world)
    assert reader.follower.follow(world.epoch, world.sealed, 1 << 20) is True
    assert 0 < reader.follower.read_bytes <= (1 << 20) + PIECE_BYTES
    assert reader.follow() == upto(29)


def test_a_batch_larger_than_a_piece(tmp_path: Path) -> None:
    world = World(tmp_path, journal_segment_size_bytes=64 << 20)
    vfs = FaultyVfs()
    reader = Reader(world, vfs)
    write(world)
    write(world, 1, PIECE_BYTES + 12345)
    assert reader.follow() == [1]
    vfs.calls.clear()
    reader.follow()
    reads = sum(method == "pread" for method, _ in vfs.calls)
    write(world)
    assert reader.follow() == [1, 2]
    assert reads <= 3, "a look at its beginning, one behind its end, one at the next segment"
    assert reader.finish(seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed)) == [1, 2, 3]


def test_an_idle_journal_costs_little_however_large_its_last_batch_is(tmp_path: Path) -> None:
    world = World(tmp_path, journal_segment_size_bytes=64 << 20)
    write(world)
    write(world, 1, PIECE_BYTES * 3)
    vfs = CountingVfs()
    reader = Reader(world, vfs)
    reader.follow()
    vfs.read_bytes = 0
    reader.follow()
    assert vfs.read_bytes <= 2 * LOOK_BYTES


# -- a journal that changes under it


def test_a_segment_that_was_trimmed_while_it_was_read_means_to_begin_anew(world: World) -> None:
    write(world, 40, 700)
    reader = Reader(world)
    for _ in range(2):  # what is proved of the first; the rest of it, and the step to the second
        reader.follower.follow(world.epoch, world.sealed, 1)
    assert reader.follower.place.startswith(world.segments()[1])
    for name in world.segments()[:2]:
        os.unlink(os.path.join(world.directory, name))
    with pytest.raises(DivergedError):
        reader.follow()
    assert Reader(world).follow()[-1] == 39


def test_segments_that_were_trimmed_behind_it_are_forgotten(world: World) -> None:
    reader = Reader(world)
    for _ in range(20):
        write(world, 12, 700)
        reader.follow()
        world.journal.trim(Trimmed(*world.journal.segments[world.journal.closed() - 1].key))
        world.journal.delete_trimmed(next(r for r in reversed(world.journal.open.records)))  # type: ignore[arg-type]
        world.commit()
        write(world)
        reader.follow()
        assert len(reader.follower.segments) <= 3
    assert reader.seqs == upto(world.sent - 1)
    sealed = seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed, reader.follower.followed)
    assert sealed == seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed)
    assert reader.finish(sealed) == upto(world.sent)


def test_a_tail_whose_successor_is_gone_while_later_ones_are_there(world: World) -> None:
    write(world, 10, 700)
    reader = Reader(world)
    reader.follow()
    write(world, 40, 700)
    os.unlink(path_of(world, 1))
    reader.follow()
    assert reader.seqs[-1] > 40
    with pytest.raises(CorruptError, match="somebody removed it"):  # nobody trimmed it
        seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed, reader.follower.followed)


def test_a_segment_that_was_made_since_it_was_looked_for_is_no_gap(world: World) -> None:
    """The follower did not find it by its name, paused, and then saw it in a listing. It took the size that the
    segment before had at that moment for its end, and left what was confirmed there later out of the seal.
    """
    vfs = FaultyVfs()
    reader = Reader(world, vfs)
    write(world, 3)
    reader.follow()

    def go_on() -> None:
        while len(world.segments()) == 1:  # the next one is made ahead of need
            write(world, 1, 500)

    vfs.before("listdir", go_on, path=world.directory)
    reader.follow()
    assert len(world.segments()) == 2
    write(world)
    assert len(world.journal.segments) == 1, "it is still the first that is written"
    reader.follow()
    sealed = seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed, reader.follower.followed)
    assert sealed == seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed)
    assert reader.finish(sealed) == upto(world.sent)


def test_a_gap_in_the_journal_is_read_over(world: World) -> None:
    """What lives may be older than what does not: a slave that comes late, to which its client tells a size that it
    remembers, and one that begins at the first byte.
    """
    write(world, 3, 700)
    vfs = FaultyVfs()
    late = Reader(world, vfs)
    late.follow()
    vfs.answer("stat", os.stat(path_of(world)))
    write(world, 60, 700)
    first, *gone = list(world.journal.segments)[:4]
    missing: set[int] = set()

    def note(record: Record, segment: Segment) -> None:
        if isinstance(record, Message) and gone[0].key <= segment.key <= gone[-1].key:
            missing.add(record.seq)

    Follower(FileLog(SystemVfs(), world.store), note).follow(world.epoch, world.sealed, ALL)
    world.journal.trim(Trimmed(*gone[-1].key, {first.key: first.end}))
    world.commit()
    for segment in gone:
        os.unlink(os.path.join(world.directory, segment.name))
    write(world, 20, 700)
    for reader in (late, Reader(world)):
        for _ in range(3):
            reader.follow()
        sealed = seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed, reader.follower.followed)
        assert sealed == seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed)
        assert reader.finish(sealed) == [seq for seq in upto(world.sent) if seq not in missing]


def test_the_first_segment_of_a_new_master_may_be_seen_before_its_epoch(world: World) -> None:
    """Of three brokers the third may list the journal a moment after it listed the epochs: no reason to begin anew."""
    write(world, 3)
    reader = Reader(world)
    epoch, sealed = world.epoch, world.sealed
    world.begin()
    write(world, 3)
    assert reader.follower.follow(epoch, sealed, ALL) is False
    assert reader.seqs == [1, 2]
    assert reader.follow() == upto(5)


def test_it_goes_on_through_a_change_of_master(world: World) -> None:
    reader = Reader(world)
    for _ in range(4):
        write(world, 12, 700)
        reader.follow()
        world.begin()
        assert reader.follow() == upto(world.sent), "the end of an epoch is known by its seal"
    assert reader.finish(seal(FileLog(SystemVfs(), world.store), world.epoch, world.sealed)) == upto(world.sent)


def test_masters_that_write_nothing_change_nothing(world: World) -> None:
    write(world, 3)
    reader = Reader(world)
    for _ in range(4):
        reader.follow()
        world.begin()
    assert reader.follow() == upto(3)
    assert reader.finish(world.sealed) == upto(3)


def test_late_writes_of_a_deposed_master_are_never_given_out(world: World) -> None:
    write(world, 3)
    reader, behind = Reader(world), Reader(world)
    reader.follow()
    old, runner = world.journal, world.runner
    world.begin()
    write(world, 2)
    new, own = world.journal, world.runner
    world.journal, world.runner = old, runner
    write(world, 40, 1000)  # into the old segment behind its seal, and into new ones that the seal never saw
    world.journal, world.runner = new, own
    count = world.sent
    write(world, 1)
    assert reader.follow() == upto(5)
    assert behind.follow() == upto(5)
    world.begin()
    right = [*upto(5), count + 1]
    assert replayed(world, world.sealed) == right
    assert reader.follow() == right
    assert behind.finish(world.sealed) == right


def test_what_was_read_behind_a_seal_means_to_begin_anew(world: World) -> None:
    """The slave did not know of the new epoch yet, and the master did not know that it was deposed."""
    write(world, 3)
    epoch, sealed = world.epoch, world.sealed
    old, runner = world.journal, world.runner
    world.begin()
    new, own = world.journal, world.runner
    world.journal, world.runner = old, runner
    write(world, 3)
    reader = Reader(world)
    reader.follower.follow(epoch, sealed, ALL)
    assert reader.seqs == upto(5), "no master would confirm 4 and begin 5"
    world.journal, world.runner = new, own
    with pytest.raises(DivergedError, match="counts to"):
        reader.follow()
    with pytest.raises(DivergedError):
        reader.finish(world.sealed)


def test_a_late_segment_that_was_read_means_to_begin_anew(world: World) -> None:
    write(world, 3)
    epoch, sealed = world.epoch, world.sealed
    old, runner = world.journal, world.runner
    world.begin()
    write(world)
    new, own = world.journal, world.runner
    world.journal, world.runner = old, runner
    write(world, 20, 1000)
    reader = Reader(world)
    reader.follower.follow(epoch, sealed, ALL)
    world.journal, world.runner = new, own
    with pytest.raises(DivergedError):
        reader.follow()


# -- damage


def test_damage_is_told_and_what_is_right_again_is_read_on(world: World) -> None:
    write(world, 10)
    path = path_of(world)
    reader = Reader(world)
    whole = Path(path).read_bytes()
    reader.follow()
    with pytest.raises(CorruptError) as caught:
        at = HEADER_BYTES + BATCH_BYTES + 30
        Path(path).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        Reader(world).follow()
    assert (caught.value.path, caught.value.why) == (path, "batch 1 fails its checksum")
    for at in range(HEADER_BYTES + 40, HEADER_BYTES + 600, 7):
        Path(path).write_bytes(whole[:at] + bytes([whole[at] ^ 0x20]) + whole[at + 1 :])
        reader = Reader(world)
        with suppress(CorruptError):
            reader.follow()
        assert reader.seqs == upto(len(reader.seqs))
        Path(path).write_bytes(whole)
        assert reader.follow() == upto(9)


def test_a_file_that_cannot_be_read_now_is_read_later(world: World) -> None:
    write(world, 5)
    for method in ("open", "pread", "listdir"):
        files = ProcessFiles()
        vfs = FaultyVfs(files)
        reader = Reader(world, vfs)
        vfs.fail(method)
        with pytest.raises(OSError, match="Input/output"):
            reader.follow()
        assert reader.follow() == upto(4)
        assert not files.paths, "a descriptor leaks"
