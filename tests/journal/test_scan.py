"""Scan: the batches of one segment a piece at a time; a segment that lost its end is damage, and ends the walk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from journal_world import World

from amq.core.errors import CorruptError
from amq.journal.reader import Scan


def test_pieces_and_batches_larger_than_a_piece(tmp_path: Path) -> None:
    world = World(tmp_path)
    for size in (100, 3000, 100):
        world.send(5, size)
        world.commit()
    name, end = world.segments()[0], world.journal.segments[0].end
    scan = Scan(world.log, name, end)
    pieces = []
    while (payloads := scan.next(1000)) is not None:
        pieces.append(payloads)
    assert all(pieces), "every step gets on"
    last = pieces[-1][-1]
    assert last[0] + len(last[1]) == end
    world.end()


@pytest.mark.parametrize("cut", [1, 50, 200])
def test_a_segment_that_lost_its_end(tmp_path: Path, cut: int) -> None:
    world = World(tmp_path)
    world.send(5)
    world.commit()
    name, end = world.segments()[0], world.journal.segments[0].end
    world.end()
    os.truncate(os.path.join(world.directory, name), end - cut)
    scan = Scan(world.log, name, end)
    with pytest.raises(CorruptError, match="truncated") as told:
        for _ in range(10):
            assert scan.next(1 << 20)
    assert told.value.offset == end - cut
