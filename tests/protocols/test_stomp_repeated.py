"""SEND frames with the same headers, read once: the same commands as frame by frame, however the bytes are cut."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from stomp_cases import SMALL, one_by_one, opened

from amq.protocols.commands import Command, Malformed, Send, SendMany
from amq.protocols.stomp import repeated
from amq.protocols.stomp.codec import StompCodec

HEADS = (
    b"SEND\ndestination:/queue/x\ntransaction:t",
    b"SEND\ndestination:/queue/x\npersistent:true\ntransaction:t\npriority:7\nexpires:99",
    b"SEND\ndestination:/queue/x\npersistent:false\ntransaction:u",
    b"SEND\ndestination:/queue/x\ntransaction:t\ncontent-type:a/b",
    b"SEND\ndestination:/queue/x\ntransaction:t\nreceipt:1",
    b"SEND\ndestination:/queue/x\ntransaction:t\n_AMQ_DUPL_ID:1",
    b"SEND\ndestination:/queue/x\ntransaction:t\ncolour:red",
    b"SEND\ndestination:/queue/x",
)
BODIES = st.sampled_from([b"", b"a", b"bcd", b"efg", b"\n", b"h\0i", b"SEND\n", b"x" * 40])


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    head, body = draw(st.sampled_from(HEADS)), draw(BODIES)
    if b"\0" in body or draw(st.booleans()):
        head += b"\ncontent-length:%d" % len(body)
    return head + b"\n\n" + body + b"\0" + draw(st.sampled_from([b"", b"", b"", b"\n"]))


def slowly(codec: StompCodec, data: bytes) -> list[Command]:
    codec._receive_frequent = lambda _, left: left  # type: ignore[method-assign]
    return codec.receive(data)


@given(
    st.lists(st.tuples(frames(), st.integers(1, 4)), max_size=6),
    st.lists(st.integers(1, 200), max_size=8),
    st.sampled_from([60, 150, 900, 1 << 16]),
)
def test_the_same_as_one_by_one(some: list[tuple[bytes, int]], cuts: list[int], window_bytes: int) -> None:
    data = b"".join(frame * times for frame, times in some)
    expected = one_by_one(slowly(opened("1.2", SMALL), data))
    codec, found, position = opened("1.2", SMALL), [], 0
    with patch.object(repeated, "WINDOW_BYTES", window_bytes):
        for cut in [*cuts, len(data)]:
            found += codec.receive(data[position : position + cut])
            position += cut
    assert one_by_one(found) == expected
    assert codec.pending == opened_pending(data)


def opened_pending(data: bytes) -> bool:
    codec = opened("1.2", SMALL)
    slowly(codec, data)
    return codec.pending


def test_many_become_one_command() -> None:
    frame = HEADS[0] + b"\ncontent-length:3\n\nabc\0"
    first, rest = opened("1.2").receive(frame * 1000)
    assert isinstance(first, Send)
    assert isinstance(rest, SendMany)
    assert len(rest.messages) == 999
    assert len({id(message) for message in rest.messages}) == 999


def test_ids_and_receipts_are_never_lost_in_a_crowd() -> None:
    for head in HEADS[4:7]:
        commands = opened("1.2").receive((head + b"\n\nabc\0") * 3)
        assert [type(command) for command in commands] == [Send] * 3


def test_a_body_that_is_too_large_is_refused_where_it_stands() -> None:
    for window_bytes in (100, 1 << 16):
        with patch.object(repeated, "WINDOW_BYTES", window_bytes):
            frame = HEADS[0] + b"\n\n%b\0"
            found = opened("1.2", SMALL).receive(frame % b"a" * 3 + frame % (b"x" * 1001) + frame % b"b")
            assert len(one_by_one(found)) == 4
            assert isinstance(found[-1], Malformed)
            assert found[-1].error.code == "BODY_TOO_BIG"
