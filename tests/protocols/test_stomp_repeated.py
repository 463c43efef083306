"""SEND frames with the same headers, read once: the same commands as frame by frame, however the bytes are cut."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from stomp_cases import SMALL, one_by_one, opened

from amq.protocols.commands import Command, Malformed, Send, SendMany, SendRun, SettleRun
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
    b"SEND\ndestination:/queue/x\nreceipt:R\npersistent:true",
    b"SEND\nreceipt:R\ndestination:/queue/x\npriority:2",
    b"SEND\ndestination:/queue/x\nreceipt:R",
    b"SEND\ndestination:/queue/x\nreceipt:R\ncolour:red",
    b"SEND\ndestination:/queue/x\nreceipt:R\ntype:t\ncontent-type:a/b",
    b"SEND\ndestination:/queue/x\nreceipt:R\ntransformation:jms-map-json",
    b"SEND\ndestination:/queue/x\nreceipt:R\nAMQ_SCHEDULED_DELAY:5",
)
RECEIPTS = st.sampled_from([b"1", b"22", b"", b"a-b", b"\xc3\xa4", b"a\\nb", b"a\\x", b"c\r", b"x" * 90])
BODIES = st.sampled_from([b"", b"a", b"bcd", b"efg", b"\n", b"h\0i", b"SEND\n", b'{"map": {}}', b"x" * 40])


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    head, body = draw(st.sampled_from(HEADS)).replace(b":R", b":" + draw(RECEIPTS)), draw(BODIES)
    if b"\0" in body or draw(st.booleans()):
        head += b"\ncontent-length:%d" % len(body)
    return head + b"\n\n" + body + b"\0" + draw(st.sampled_from([b"", b"", b"", b"\n"]))


def slowly(codec: StompCodec, data: bytes) -> list[Command]:
    codec._receive_frequent = lambda _, __, position, left: (position, left)  # type: ignore[method-assign]
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


@given(
    st.sampled_from(HEADS[7:]),
    st.lists(st.tuples(RECEIPTS, BODIES), max_size=8),
    st.integers(2, 12),
    st.booleans(),
)
def test_runs_are_the_same_as_one_by_one(
    head: bytes, some: list[tuple[bytes, bytes]], frames_max: int, has_length: bool
) -> None:
    """Frames that differ in receipt and body alone, a few at a time."""
    data = b"".join(
        head.replace(b":R", b":" + receipt)
        + (b"\ncontent-length:%d" % len(body) if has_length else b"")
        + b"\n\n%b\0" % body
        for receipt, body in some
    )
    server = opened("1.2", SMALL)
    found = server.receive(data, frames_max)
    while server.has_more:
        found += server.receive(b"", frames_max)
    assert one_by_one(found) == one_by_one(slowly(opened("1.2", SMALL), data))


@given(
    st.sampled_from(HEADS[7:]),
    st.lists(
        st.tuples(
            st.sampled_from([b"11", b"22", b"333", b"", b"a\\", b"a\r", b"b\n", b"\xc3\xa4"]),
            st.sampled_from([b"abcd", b"\n\n\0S", b"SEND", b"\0\0\0\0", b"a"]),
            st.sampled_from([b"\0", b"\0", b"\0", b"\0\n", b"x"]),
            st.integers(1, 30),
        ),
        max_size=4,
    ),
    st.integers(2, 40),
    st.integers(0, 3000),
)
def test_frames_of_the_same_length_are_the_same_as_one_by_one(
    head: bytes, some: list[tuple[bytes, bytes, bytes, int]], frames_max: int, cut: int
) -> None:
    """As they are taken without a step for each. A frame among them may be shorter, or broken."""
    data = b"".join(
        (head.replace(b":R", b":" + receipt) + b"\ncontent-length:4\n\n" + body + end) * times
        for receipt, body, end, times in some
    )
    server, found = opened("1.2", SMALL), []
    for piece in (data[:cut], data[cut:]):
        found += server.receive(piece, frames_max)
        while server.has_more:
            found += server.receive(b"", frames_max)
    assert one_by_one(found) == one_by_one(slowly(opened("1.2", SMALL), data))


def test_a_run_keeps_to_the_frames_that_it_may_have() -> None:
    frame = b"SEND\ndestination:/queue/x\nreceipt:1\ncontent-length:1\n\na\0"
    server = opened("1.2")
    (command,) = server.receive(frame * 10, 4)
    assert isinstance(command, SendRun)
    assert command.receipts == ["1"] * 4
    assert server.has_more


@given(
    st.lists(
        st.sampled_from([b"0-1", b"0-2", b"0-33", b"0-", b"1-4", b"2-5", b"0-x", b"9-1", b"0-" + b"1" * 20])
        .flatmap(lambda id: st.tuples(st.just(id), st.integers(1, 9)))
        .map(lambda each: [each[0]] * each[1])
    ).map(lambda runs: [id for run in runs for id in run])
)
def test_acknowledgements_are_the_same_as_one_by_one(ids: list[bytes]) -> None:
    """Of two consumers that acknowledge each message, and one that acknowledges all up to a message."""
    servers = opened("1.2"), opened("1.2")
    for server in servers:
        for id, mode in enumerate((b"client-individual", b"client-individual", b"client")):
            server.receive(b"SUBSCRIBE\nid:%d\ndestination:/queue/x\nack:%b\n\n\0" % (id, mode))
    data = b"".join(b"ACK\nid:%b\n\n\0" % id for id in ids)
    assert one_by_one(servers[0].receive(data)) == one_by_one(slowly(servers[1], data))


def test_acknowledgements_become_one_command() -> None:
    server = opened("1.2")
    server.receive(b"SUBSCRIBE\nid:s\ndestination:/queue/x\nack:client-individual\n\n\0")
    (command,) = server.receive(b"".join(b"ACK\nid:0-%d\n\n\0" % seq for seq in range(1, 100)))
    assert isinstance(command, SettleRun)
    assert command.seqs == list(range(1, 100))
    frames = b"".join(b"ACK\nid:0-%d\n\n\0" % seq for seq in range(1, 100))
    for frames_max in (2, 7, 98):
        (command,) = server.receive(frames, frames_max)
        assert isinstance(command, SettleRun)
        assert command.seqs == list(range(1, frames_max + 1))
        server.receive(b"", 100)


@given(st.lists(st.tuples(st.sampled_from([b"0-1", b"1-2", b"2-3", b"0-x", b"9-1"]), RECEIPTS), max_size=6))
def test_acknowledgements_with_receipts_are_the_same_as_one_by_one(some: list[tuple[bytes, bytes]]) -> None:
    servers = opened("1.2"), opened("1.2")
    for server in servers:
        for id, mode in enumerate((b"client-individual", b"client-individual", b"client")):
            server.receive(b"SUBSCRIBE\nid:%d\ndestination:/queue/x\nack:%b\n\n\0" % (id, mode))
    data = b"".join(b"ACK\nid:%b\nreceipt:%b\n\n\0" % each for each in some)
    assert one_by_one(servers[0].receive(data)) == one_by_one(slowly(servers[1], data))


def test_heads_are_learned_when_they_come_again() -> None:
    """Also those of several destinations in turns."""
    codec, parsed = opened("1.2"), []
    new_send = codec._new_send
    codec._new_send = lambda *where: parsed.append(where) or new_send(*where)  # type: ignore[method-assign,func-returns-value]
    for serial in range(100):
        for head in HEADS[7:12]:
            head = head.replace(b"receipt:R", b"receipt:%d" % serial)
            codec.receive(head.replace(b"/x", b"/x%d" % (serial % 3)) + b"\n\nbody\0")
    assert len(parsed) == 2 * 3 * 5


def test_each_body_is_transformed() -> None:
    """Also where that fails, which leaves the body as it is and says why in a property."""
    frames = [HEADS[-2] + b"\n\n%b\0" % body for body in (b"x", b"x", b"[1", b"{}", b'{"map": {}}', b"x")]
    one, other = opened("1.2"), opened("1.2")
    found = [one_by_one(one.receive(frame)) for frame in frames]
    assert found == [one_by_one(slowly(other, frame)) for frame in frames]


def test_heads_that_never_come_again_leave_nothing() -> None:
    codec = opened("1.2")
    for serial in range(2000):
        (send,) = codec.receive(b"SEND\ndestination:/queue/x\nnumber:%d\nreceipt:%d\n\nbody\0" % (serial, serial))
        assert isinstance(send, Send)
        assert send.message.properties == {"number": str(serial)}
    assert not codec._shapes
    assert len(codec._shapes._met) <= repeated.MET_MAX


def test_the_shapes_of_a_connection_are_bounded() -> None:
    codec = opened("1.2")
    for serial in range(200):
        for length in (1, 2000):  # the head of which is too long to be kept
            frame = b"SEND\ndestination:/queue/x\nnumber:%d\nletters:%b\n\nbody\0" % (serial, b"x" * length)
            [codec.receive(frame) for _ in range(3)]
    assert 0 < len(codec._shapes) <= repeated.SHAPES_MAX
    assert max(map(len, codec._shapes)) < 1100


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
