"""What the exploration of crash states found, each as the smallest test of its own."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from amq.core.errors import StoreError
from amq.journal.format import HEADER_BYTES, SegmentHeader, decode_header
from amq.journal.records import Trimmed
from tests.journal.journal_world import World

TRIMMED = (1, 2, 3, 4)


@pytest.mark.parametrize("back", [back for count in range(5) for back in itertools.combinations(TRIMMED, count)])
def test_a_crash_undoes_some_unlinks_of_a_trim(tmp_path: Path, back: tuple[int, ...]) -> None:
    """Names removed since the last directory sync come back one by one, in no order. Twice that made a legal crash
    `STORE_CORRUPT`: the end of a segment was taken from the wrong successor, and a gap between trimmed segments was
    taken for a loss."""
    world = World(tmp_path, journal_segment_size_bytes=4096)
    while len(world.journal.segments) < 6:
        world.send(1, 900)
        world.commit()
    world.journal.trim(Trimmed(*world.journal.segments[len(TRIMMED) - 1].key))
    world.commit()
    kept = [message.seq for message in world.records[-3:-1]]  # type: ignore[union-attr]
    for number in set(TRIMMED) - set(back):
        os.unlink(os.path.join(world.directory, f"00000001-{number:08d}.seg"))
    world.begin()
    assert world.recovered.trimmed.through == (1, 4)
    assert [message.seq for message in world.messages()][-2:] == kept
    names = [segment.name for segment in world.recovered.segments]
    assert names == [f"00000001-{number:08d}.seg" for number in (*back, 5, 6)]
    world.begin()  # also from lengths that an epoch sealed
    assert [message.seq for message in world.messages()][-2:] == kept


HEADER = SegmentHeader(3, 7, bytes(range(16)), 0x12345678).encode()


@pytest.mark.parametrize("count", range(HEADER_BYTES))
def test_header_torn_at_any_byte_was_never_begun(count: int) -> None:
    """A header of which only the first bytes of the magic arrived was called a foreign file."""
    assert decode_header("x", HEADER[:count].ljust(4096, b"\0")) is None


@pytest.mark.parametrize("start", range(1, HEADER_BYTES))
@pytest.mark.parametrize("stop", [5, HEADER_BYTES])
def test_header_of_which_a_later_piece_arrived_was_never_begun(start: int, stop: int) -> None:
    """The first write was short, the second reached the disk alone, and the file server crashed: no broker started any
    more, because the file was called foreign (seed 2000311)."""
    hole = (bytes(start) + HEADER[start:stop]).ljust(4096, b"\0")
    assert decode_header("x", hole) is None


@pytest.mark.parametrize("data", [b"no segment of ours".ljust(4096, b"\0"), b"AMQ" + bytes(100) + b"content"])
def test_foreign_file_is_still_refused(data: bytes) -> None:
    with pytest.raises(StoreError) as caught:
        decode_header("x", data)
    assert caught.value.code == "STORE_FOREIGN_FILE"
