"""The small STOMP reader that checks brokers: frames whole, and byte by byte."""

from __future__ import annotations

import pytest

from bench.wire import Frame, FrameReader, encode

MESSAGE = encode("MESSAGE", {"content-length": 3, "a": "b:c"}, b"x\0y")
STREAM = b"\n" + MESSAGE + b"\n\n" + encode("RECEIPT", {"receipt-id": 1})
FRAMES = [Frame("MESSAGE", {"content-length": "3", "a": "b:c"}, b"x\0y"), Frame("RECEIPT", {"receipt-id": "1"}, b"")]


@pytest.mark.parametrize("step", [1, 2, 7, len(STREAM)])
def test_frames_however_cut(step: int) -> None:
    reader = FrameReader()
    frames = []
    for at in range(0, len(STREAM), step):
        frames += reader.feed(STREAM[at : at + step])
    assert frames == FRAMES
