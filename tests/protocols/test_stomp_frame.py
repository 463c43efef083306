"""The frame reader and writer: one table for both directions, limits, chunking, memory and time."""

from __future__ import annotations

import itertools
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.core.errors import ProtocolError
from amq.protocols.stomp.frame import (
    DELIVERY_LIMITS,
    VERSIONS,
    Frame,
    FrameLimits,
    FrameReader,
    encode,
    escape,
    unescape,
)

Headers = list[tuple[str, str]]

# command, headers, body, version, bytes: read and written
CASES: list[tuple[str, Headers, bytes, str, bytes]] = [
    ("BEGIN", [("transaction", "t")], b"", "1.2", b"BEGIN\ntransaction:t\n\n\0"),
    ("DISCONNECT", [], b"", "1.2", b"DISCONNECT\n\n\0"),
    ("SEND", [("a", "b:c\n\r\\")], b"x\n", "1.2", b"SEND\na:b\\cc\\n\\r\\\\\n\nx\n\0"),
    ("SEND", [("a", "b:c\n\r\\")], b"x\n", "1.1", b"SEND\na:b\\cc\\n\r\\\\\n\nx\n\0"),
    ("SEND", [("a", "b:c\\n")], b"x\n", "1.0", b"SEND\na:b:c\\n\n\nx\n\0"),
    ("SEND", [("a:b\n", "")], b"", "1.1", b"SEND\na\\cb\\n:\n\n\0"),
    ("SEND", [("content-length", "3")], b"\0\0\0", "1.1", b"SEND\ncontent-length:3\n\n\0\0\0\0"),
    ("CONNECT", [("login", "a:\\b")], b"", "1.2", b"CONNECT\nlogin:a:\\b\n\n\0"),
    ("STOMP", [("login", "a:\\b")], b"", "1.2", b"STOMP\nlogin:a:\\b\n\n\0"),
    ("CONNECTED", [("server", "a:\\b")], b"", "1.1", b"CONNECTED\nserver:a:\\b\n\n\0"),
    ("MESSAGE", [("ü", "日本 ")], "é".encode(), "1.1", "MESSAGE\nü:日本 \n\né\0".encode()),
    ("MESSAGE", [("a", "\x85\u2028 ")], b"", "1.2", "MESSAGE\na:\x85\u2028 \n\n\0".encode()),
]


@pytest.mark.parametrize(("command", "headers", "body", "version", "data"), CASES)
def test_read_and_write(command: str, headers: Headers, body: bytes, version: str, data: bytes) -> None:
    assert encode(command, headers, body, version) == data
    frame = Frame(command, dict(headers), body)
    assert FrameReader(version=version).feed(data) == [frame]
    assert FrameReader(version=version).feed(b"\n\r\n" + data * 3 + b"\r\n\n") == [frame] * 3
    reader = FrameReader(version=version)
    assert [f for byte in data * 2 for f in reader.feed(bytes([byte]))] == [frame] * 2
    assert not reader.pending


@pytest.mark.parametrize(
    ("command", "headers", "version"),
    [
        ("CONNECT", [("a", "b\nc")], "1.2"),
        ("CONNECTED", [("a:b", "c")], "1.2"),
        ("SEND", [("a", "b\nc")], "1.0"),
        ("SEND", [("a\n", "b")], "1.0"),
        ("SEND", [("", "b")], "1.2"),
    ],
)
def test_what_cannot_be_written(command: str, headers: Headers, version: str) -> None:
    with pytest.raises(ValueError, match="header"):
        encode(command, headers, b"", version)


def test_a_nul_in_a_body_needs_a_length() -> None:
    with pytest.raises(ValueError, match="content-length"):
        encode("SEND", [("a", "b")], b"\0")


@given(st.text(), st.sampled_from(["1.1", "1.2"]))
def test_escape_round_trip(text: str, version: str) -> None:
    escaped = escape(text, version)
    assert unescape(escaped, version) == text
    assert "\n" not in escaped
    assert ":" not in escaped


def test_undefined_escape() -> None:
    with pytest.raises(ProtocolError, match=r"undefined escape '\\\\t'"):
        unescape("a\\t", "1.2")


# utf-8 cannot carry surrogates
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = texts.filter(bool)


@given(
    st.lists(st.tuples(st.dictionaries(names, texts, max_size=5), st.binary(max_size=50)), max_size=4),
    st.sampled_from(["1.1", "1.2"]),
    st.lists(st.integers(0, 500), max_size=8),
)
def test_round_trip_however_cut(parts: list[tuple[dict[str, str], bytes]], version: str, cuts: list[int]) -> None:
    frames = []
    for headers, body in parts:
        headers.pop("content-length", None)
        if b"\0" in body:
            headers["content-length"] = str(len(body))
        if version == "1.1":  # a CR at the very end of the command line is the only one that 1.1 cannot tell
            headers = {name: value for name, value in headers.items() if "\r" not in name + value}
        frames.append(Frame("SEND", headers, body))
    stream = b"".join(encode(f.command, f.headers.items(), f.body, version) + b"\n" for f in frames)
    ends = sorted({cut for cut in cuts if cut < len(stream)} | {0, len(stream)})
    reader = FrameReader(version=version)
    found = [f for a, b in itertools.pairwise(ends) for f in reader.feed(stream[a:b])]
    assert reader.error is None
    assert found == frames
    assert not reader.pending


TOKENS = [
    b"SEND\n",
    b"MESSAGE\r\n",
    b"a:b\n",
    b"content-length:",
    b"3\n",
    b"5\r\n",
    b"\n",
    b"\r\n",
    b"\r",
    b"\0",
    b"\\n",
    b"\\",
    b":",
    b"CONNECTED\n",
    b"SEND\n\n\0",
    b"xyz",
    b"a" * 40,
]
streams = st.lists(st.one_of(st.binary(max_size=30), st.sampled_from(TOKENS)), max_size=25)


@given(streams, st.sampled_from(VERSIONS), st.data())
def test_any_bytes_give_the_same_however_cut(pieces: list[bytes], version: str, data: st.DataObject) -> None:
    """Arbitrary bytes: frames or the one error, nothing else; cutting changes nothing."""
    limits = FrameLimits(header_count_max=5, header_bytes_max=60, header_block_bytes_max=100, body_bytes_max=40)
    stream = b"".join(pieces)
    whole, cut, single = (FrameReader(limits, version) for _ in range(3))
    expected = whole.feed(stream)
    at = data.draw(st.integers(0, len(stream)))
    found = cut.feed(stream[:at]) + cut.feed(stream[at:])
    assert found == expected
    assert [f for byte in stream for f in single.feed(bytes([byte]))] == expected
    for other in (cut, single):
        # An excess may be noticed earlier or later, and then by another limit; that there is an error is certain.
        assert (other.error is None) == (whole.error is None)
        assert other.pending == whole.pending
    for frame in expected:
        assert len(frame.body) <= limits.body_bytes_max
        assert len(frame.headers) <= limits.header_count_max


def test_frames_before_the_error_are_kept() -> None:
    reader = FrameReader()
    assert [f.body for f in reader.feed(b"SEND\n\n1\0SEND\n\n2\0rubbish\n")] == [b"1", b"2"]
    assert isinstance(reader.error, ProtocolError)
    assert not reader.pending
    assert reader.feed(b"SEND\n\n3\0") == []


def test_version_may_change_between_two_frames() -> None:
    reader = FrameReader(version="1.0")
    reader.push(b"SEND\na:\\n\n\n\0SEND\na:\\n\n\n\0")
    first = reader.next_frame()
    reader.version = "1.2"
    second = reader.next_frame()
    assert first is not None
    assert second is not None
    assert (first.headers["a"], second.headers["a"]) == ("\\n", "\n")
    assert reader.next_frame() is None


@pytest.mark.parametrize(
    ("start", "chunk", "code"),
    [
        (b"SEND\n", b"a" * 1024, "HEADER_TOO_LONG"),
        (b"SEND\n", b"a:b\n" * 256, "HEADERS_TOO_MANY"),
        (b"SEND\n", b"a:" + b"b" * 1021 + b"\n", "HEADERS_TOO_BIG"),
        (b"", b"A" * 1024, "FRAME_INVALID"),
        (b"SEND\na:b\r\n", b"a" * 1024, "HEADER_TOO_LONG"),
        (b"SEND\n", b"\0" * 1024, "HEADER_TOO_LONG"),
    ],
)
def test_endless_headers_are_refused_after_some_kib(start: bytes, chunk: bytes, code: str) -> None:
    reader = FrameReader()
    reader.feed(start)
    taken = 0
    while reader.error is None:
        reader.feed(chunk)
        taken += len(chunk)
        assert taken <= reader.limits.header_block_bytes_max + 2 * len(chunk)
    assert reader.error.code == code
    assert reader.buffer == b""


def test_a_huge_content_length_is_refused_at_once() -> None:
    reader = FrameReader()
    reader.feed(b"SEND\nreceipt:r\ncontent-length:104857601\n\n")
    assert reader.error is not None
    assert reader.error.code == "BODY_TOO_BIG"
    assert reader.unfinished is not None
    assert reader.unfinished.headers["receipt"] == "r"


@pytest.mark.parametrize("head", [b"SEND\n\n", b"SEND\ncontent-length:33554432\n\n"])
def test_a_big_body_is_linear(head: bytes) -> None:
    """32 MiB in chunks of 16 KiB: were each chunk to copy or rescan what is there, that would move 32 GiB."""
    reader, chunk = FrameReader(), b"x" * 16384
    reader.feed(head)
    start = time.process_time()
    for _ in range(2048):
        assert reader.feed(chunk) == []
        assert reader.pending
    (frame,) = reader.feed(b"\0")
    assert len(frame.body) == 32 * 1024 * 1024
    assert time.process_time() - start < 5


def test_memory_of_a_body_that_comes_byte_by_byte() -> None:
    reader = FrameReader()
    reader.feed(b"SEND\ncontent-length:200000\n\n")
    tracemalloc.start()
    for _ in range(100_000):
        reader.feed(b"x")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_line_ends_between_frames_are_not_kept() -> None:
    reader = FrameReader()
    for _ in range(1000):
        reader.feed(b"\n" * 1000)
    assert len(reader.buffer) == 0


def test_delivery_limits_exceed_those_of_senders() -> None:
    assert DELIVERY_LIMITS.header_bytes_max > 2 * FrameLimits().header_bytes_max
    assert DELIVERY_LIMITS.header_block_bytes_max > 2 * FrameLimits().header_block_bytes_max
    assert DELIVERY_LIMITS.header_count_max > FrameLimits().header_count_max
    assert DELIVERY_LIMITS.body_bytes_max >= FrameLimits().body_bytes_max
