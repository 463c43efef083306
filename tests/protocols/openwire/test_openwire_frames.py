"""A stream cut anywhere gives the same frames; sizes that are none, or too large, end it at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.core.errors import ProtocolError
from amq.protocols.openwire.frames import HEAD_BYTES, Frames, TooLarge
from amq.protocols.openwire.wire import INT


def read(frames: Frames) -> list[bytes]:
    found = []
    while (frame := frames.next_frame()) is not None:
        found.append(frame)
    return found


def framed(data: bytes) -> bytes:
    return INT.pack(len(data)) + data


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=8), st.data())
def test_any_split_gives_the_same_frames(said: list[bytes], data: st.DataObject) -> None:
    stream, frames, found = b"".join(map(framed, said)), Frames(30), list[bytes]()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    ends = set()
    end = 0
    for each in said:
        end += 4 + len(each)
        ends.add(end)
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        frames.push(stream[start:stop])
        found += read(frames)
        assert frames.pending == (stop not in ends and stop != 0)
    assert found == said
    assert not frames.pending


@pytest.mark.parametrize(
    ("size", "code"),
    [
        (0, "FRAME_INVALID"),
        (-1, "FRAME_INVALID"),
        (-(1 << 31), "FRAME_INVALID"),
        (101, "FRAME_TOO_LARGE"),
        ((1 << 31) - 1, "FRAME_TOO_LARGE"),
    ],
)
def test_sizes_that_are_refused(size: int, code: str) -> None:
    frames = Frames(100)
    frames.push(framed(bytes(100)) + INT.pack(size))
    assert frames.next_frame() == bytes(100)
    with pytest.raises(ProtocolError) as caught:
        frames.next_frame()
    assert caught.value.code == code


def test_a_large_frame_is_joined_once() -> None:
    """Byte by byte: were it joined with each piece, this would copy 20 GB."""
    frames, size = Frames(1 << 20), 200_000
    stream = framed(bytes(size)) + framed(b"next")
    for at in range(len(stream)):
        frames.push(stream[at : at + 1])
        if at < size + 3:
            assert frames.next_frame() is None
        elif at == size + 3:
            assert frames.next_frame() == bytes(size)
    assert read(frames) == [b"next"]


def test_what_was_buffered_is_let_go() -> None:
    frames = Frames(1 << 20)
    frames.push(INT.pack(1000) + bytes(500))
    assert frames.next_frame() is None
    assert frames.pending
    frames.clear()
    assert not frames.pending
    assert frames.next_frame() is None


@given(st.integers(31, 3 * HEAD_BYTES), st.data())
def test_the_stream_goes_on_after_a_frame_that_is_too_large(size: int, data: st.DataObject) -> None:
    """Its beginning is shown, as soon as that is here; the rest is not kept."""
    large = bytes(each % 251 for each in range(size))
    stream, frames, found = framed(b"a") + framed(large) + framed(b"b"), Frames(30), list[bytes]()
    frames.skips = True
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        frames.push(stream[start:stop])
        left = True
        while left:
            try:
                frame = frames.next_frame()
                left = frame is not None
                found += [frame] if frame is not None else []
            except TooLarge as refused:
                found.append(refused.head + refused.size.to_bytes(4))
        assert len(frames.data) - frames.at <= HEAD_BYTES + 4
        assert frames.pending == (stop not in (0, 5, len(stream) - 5, len(stream)))
        assert len(found) == (stop >= 5) + (stop >= 9 + min(size, HEAD_BYTES)) + (stop == len(stream))
    assert found == [b"a", large[:HEAD_BYTES] + size.to_bytes(4), b"b"]
