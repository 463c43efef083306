"""The contract of `amq.store.segment_log.SegmentLog`, which each adapter keeps. `new` makes the log as one more member
sees it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.store.segment_log import RESERVE_NAME, SegmentLog
from tests.fakes import FakeClock

Logs = Callable[[], SegmentLog]
NAME = "00000001-00000001.seg"
SIZE = 1 << 16


def check_log(new: Logs, *, fences: bool = False) -> None:
    """`new()` returns the log, which is empty at first, as another member sees it. A store that `fences` shuts
    deposed masters out, so it need not hold segments."""
    one, other = new(), new()
    assert one.names() == other.names(fresh=True) == []

    # A segment has its name and its head before the first append, and one writer.
    writer = one.create(NAME, b"head", SIZE, FakeClock())
    with pytest.raises(FileExistsError):
        other.create(NAME, b"head", SIZE, FakeClock())
    assert one.names() == other.names(fresh=True) == [NAME]
    assert fences or other.hold(NAME) is None, "its master writes to it"

    # Others see what an append was given when it returns, and nothing behind its end.
    large = bytes(range(1, 251)) * 1000
    assert writer.append(4, 9, [b"ab", b"cde"]) >= 0
    assert writer.append(9, 9 + len(large), [large]) >= 0
    end = 9 + len(large)
    with other.open(NAME) as segment:
        assert segment.place == other.place(NAME)
        assert segment.place.endswith(f"/{NAME}")
        assert segment.read(0, 9) == b"headabcde"
        assert segment.read(9, len(large)) == large
        assert not segment.read(end, SIZE).strip(b"\0")
        segment.refresh()
        assert segment.read(2, 3) == b"ada"
        assert segment.size() >= end

    # A segment that is finished ends where its master said. One member at a time holds it.
    writer.finish(end)
    assert one.size(NAME) == other.size(NAME) == end
    one.settle()
    held = other.hold(NAME)
    assert held is not None
    assert fences or one.hold(NAME) is None
    held.refresh()
    held.close()
    held = one.hold(NAME)
    assert held is not None
    held.close()

    # Nothing leads to a segment that was deleted.
    one.create("00000001-00000002.seg", b"head", SIZE, FakeClock()).close()
    one.delete([NAME])
    assert other.names(fresh=True) == ["00000001-00000002.seg"]
    for missing in (other.open, other.size, other.hold):
        with pytest.raises(FileNotFoundError):
            missing(NAME)

    # Room is kept once, until it is given back.
    free = one.free_bytes()
    assert free is None or free > 0
    one.set_aside(1000)
    one.set_aside(1000)
    assert RESERVE_NAME in other.names(fresh=True)
    one.give_back()
    with pytest.raises(FileNotFoundError):
        one.give_back()
    assert RESERVE_NAME not in other.names(fresh=True)
    check_checkpoints(one, other)


def check_checkpoints(one: SegmentLog, other: SegmentLog) -> None:
    with pytest.raises(FileNotFoundError):
        one.checkpoints.names()

    # A checkpoint gets its name when all of it is there, and the first of a name stays.
    for content in (b"abc", b"other"):
        draft = one.checkpoints.draft("1.tmp")
        draft.write(content[:2])
        draft.write(content[2:])
        assert ("1.ckpt" in other.checkpoints.names()) is (content == b"other")
        draft.publish("1.ckpt")
        draft.close()
        assert other.checkpoints.names() == ["1.ckpt"]
        with other.checkpoints.open("1.ckpt") as checkpoint:
            assert checkpoint.read(0, 100) == b"abc"
            assert checkpoint.size() == other.checkpoints.size("1.ckpt") == 3
    assert other.checkpoints.written_wall_ms("1.ckpt") > 0

    # Nothing stays of a draft that was discarded, or whose writer died.
    for _ in range(2):
        draft = one.checkpoints.draft("2.tmp")
        draft.write(b"of a broker that dies")
        draft.close()
    draft.discard()
    draft.discard()
    one.checkpoints.draft("3.tmp").discard()
    one.checkpoints.delete(["1.ckpt", "1.ckpt"])
    assert other.checkpoints.names() == []
