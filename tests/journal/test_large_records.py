"""Records and batches with large bodies: the same bytes as ever, written in pieces, torn and refused like any other."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.core.message import Message
from amq.journal.format import batch_pieces, encode_batch, gathered, pieces_of
from amq.journal.records import ACKED, Consumed, Group, Record, encode_record
from tests.fakes import FaultyVfs
from tests.journal.journal_world import Waiter, World
from tests.large import large_from

IDS = {"queue://a": 1}
LARGE = 50

messages = st.builds(
    lambda body, properties: Message("queue://a", body, properties, "text/plain", duplicate_id="d", seq=7),
    st.binary(max_size=4 * LARGE),
    st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)
records = messages | st.builds(lambda seqs: Consumed("queue://a", ACKED, seqs), st.lists(st.integers(1, 99)))
groups = st.builds(lambda parts: Group(parts, "outcome", 3), st.lists(records, max_size=5))


def whole(record: Record) -> bytes:
    """Its bytes, joined from the beginning."""
    encoded = encode_record(record, IDS)
    assert isinstance(encoded, bytes)
    return encoded


@given(st.lists(records | groups, min_size=1, max_size=6), st.sampled_from([0, LARGE]))
def test_the_bytes_are_the_same(written: list[Record], large: int) -> None:
    expected = [whole(record) for record in written]
    places = [record.places for record in written if isinstance(record, Group)]
    with large_from(large):
        chunks = [encode_record(record, IDS) for record in written]
        assert [b"".join(pieces_of([chunk])) for chunk in chunks] == expected
        assert [len(chunk) for chunk in chunks] == list(map(len, expected))
        assert [record.places for record in written if isinstance(record, Group)] == places
        batch = list(batch_pieces(chunks, 99, 5, 6, len(chunks), 7, 1))
    assert b"".join(batch) == encode_batch(b"".join(expected), 99, 5, 6, len(chunks), 7, 1)


@given(st.lists(st.binary(max_size=3 * LARGE)))
def test_small_pieces_are_gathered_and_large_ones_left_alone(pieces: list[bytes]) -> None:
    with large_from(LARGE):
        found = list(gathered(pieces))
    assert b"".join(found) == b"".join(pieces)
    assert all(any(piece is each for each in found) for piece in pieces if len(piece) > LARGE)
    assert all(len(a) > LARGE or len(b) > LARGE for a, b in pairwise(found))


@pytest.fixture
def vfs() -> FaultyVfs:
    return FaultyVfs()


def test_it_gets_a_file_of_its_own_and_is_not_copied(tmp_path: Path, vfs: FaultyVfs) -> None:
    """A body larger than a segment, between small messages."""
    world = World(tmp_path, vfs)
    written: list[object] = []
    real = vfs.inner.pwrite

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        written.append(data.obj)
        return real(fd, data[: 1 << 16], offset)  # no write takes all of it

    vfs.inner.pwrite = pwrite  # type: ignore[method-assign, assignment]
    body = os.urandom(3 << 20)
    message = Message("queue://a", body, seq=1000)
    world.send(3)
    world.commit()
    world.journal.append(message)
    world.send(3)
    world.commit()
    world.commit()
    assert any(each is body for each in written)
    sizes = [os.path.getsize(os.path.join(world.directory, name)) for name in world.segments()]
    assert sorted(sizes)[-1] > len(body)
    assert sum(size > 8192 for size in sizes) == 1
    world.end()
    world.begin()
    assert [m.seq for m in world.messages()] == [1, 2, 3, 1000, 4, 5, 6]
    assert world.messages()[3].body == body
    assert not world.failures


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_disk_that_fills_up_in_the_middle(tmp_path: Path, vfs: FaultyVfs, nth: int) -> None:
    """Whichever piece meets it: the messages are refused, acknowledgements go on, and the room comes back."""
    world = World(tmp_path, vfs)
    sender, acker = Waiter(), Waiter()
    world.send(1)
    world.commit()
    vfs.fail("pwrite", errno.ENOSPC, path=".seg", nth=nth)
    message = Message("queue://a", os.urandom(2 << 20), seq=1000)
    world.journal.open.consumed["queue://a"].append(1)
    world.journal.confirm(acker.of("ack"))
    group = Group([message, Message("queue://a", os.urandom(2 << 20), seq=1001)], "outcome")
    batch = world.journal.open
    world.journal.append_record(group)
    batch.confirms.append((sender.of("sent"), group))
    world.commit()
    assert not sender.receipts
    assert acker.receipts == ["ack"]
    assert len(world.refused) == 1
    assert not world.failures
    sizes = [os.path.getsize(os.path.join(world.directory, name)) for name in world.segments()]
    assert max(sizes) <= 8192, "what the refused batch took on the disk is still taken"
    world.end()
    world.begin()
    assert [m.seq for m in world.messages()] == [1]
    assert [record.seqs for record, _ in world.replayed if isinstance(record, Consumed)] == [[1]]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.999])
def test_a_torn_one_is_cut(tmp_path: Path, share: float) -> None:
    world = World(tmp_path)
    world.send(2)
    world.commit()
    world.journal.append(Message("queue://a", os.urandom(2 << 20), seq=1000))
    world.commit()
    world.end()
    path = max((os.path.join(world.directory, name) for name in world.segments()), key=os.path.getsize)
    size = os.path.getsize(path)
    os.truncate(path, 64 + int((size - 64) * share))
    os.truncate(path, size)
    world.begin()
    assert [m.seq for m in world.messages()] == [1, 2]
