"""The small STOMP reader that checks brokers: whole, byte by byte, with what does not belong there."""

from __future__ import annotations

import pytest

from bench.stats import percentiles, spread
from bench.wire import Connection, Frame, FrameReader, WireError, encode

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


def test_first_of_repeated_headers_wins() -> None:
    assert FrameReader().feed(b"MESSAGE\nfoo:1\nfoo:2\n\n\0") == [Frame("MESSAGE", {"foo": "1"}, b"")]


def test_wrong_content_length() -> None:
    with pytest.raises(WireError, match="does not end in NUL"):
        FrameReader().feed(b"MESSAGE\ncontent-length:1\n\nxyz\0")


def test_conversation(memory_port: int) -> None:
    with Connection(memory_port) as connection:
        connection.send("SUBSCRIBE", {"id": 1, "destination": "/queue/a", "ack": "client-individual"})
        connection.send("SEND", {"destination": "/queue/a", "receipt": "r"}, b"hello")
        before = connection.receipt("r", 10.0)
        message = before[0] if before else connection.next_frame(10.0)
        assert message.body == b"hello"
        with pytest.raises(TimeoutError):
            connection.next_frame(0.01)


def test_percentiles_by_nearest_rank() -> None:
    assert percentiles(range(1, 1001)) == {"p50": 500, "p99": 990, "p99.9": 999, "max": 1000}
    assert percentiles([7]) == {"p50": 7, "p99": 7, "p99.9": 7, "max": 7}
    assert percentiles([]) == {}


def test_spread() -> None:
    assert spread([5, 1, 3]) == (3, 1, 5)
