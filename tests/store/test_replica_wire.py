"""Every message between members crosses a connection as it is, however it is cut; garbage is a PeerWireError."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.store.replica.group import GroupRecord
from amq.store.replica.messages import (
    TO_A_COPY,
    Adopt,
    Append,
    AskPromise,
    Fetched,
    FetchLog,
    Lacking,
    Piece,
    Promised,
    RefusedBallot,
    Renew,
    Renewed,
    SegmentWrite,
    Stored,
    Trim,
)
from amq.store.replica.peer_hello import HELLO_BYTES, NO_PROOF, MemberName, PeerHello
from amq.store.replica.wire import (
    ANSWER_KINDS,
    BEAT_FRAME,
    CHUNK_BYTES,
    STEP_BYTES,
    TO_A_COPY_KINDS,
    WRITES_MAX,
    FramedMessage,
    Framer,
    PeerWireError,
    WireReader,
)

SECRET = b"sixteen bytes at least"
NUMBERS = st.integers(0, (1 << 63) - 1)
FLAGS = st.booleans()
IDS = st.from_regex(r"[a-z][A-Za-z0-9_.-]{0,12}", fullmatch=True)
NAMES = st.from_regex(r"[a-z0-9]{1,20}(\.log)?|checkpoints/[a-z]{1,9}", fullmatch=True)
DATA = st.binary(max_size=300)
WRITES = st.builds(SegmentWrite, NAMES, NUMBERS, DATA)
RECORDS = st.builds(GroupRecord, NUMBERS, st.frozensets(IDS, max_size=5), st.integers(0, 9), NUMBERS, NUMBERS, NUMBERS)
ENDS = st.tuples(NUMBERS, NUMBERS).map(sorted)
TO_COPY = st.one_of(
    st.builds(AskPromise, NUMBERS),
    st.builds(Adopt, NUMBERS, RECORDS),
    st.builds(
        lambda b, t, ends, write: Append(b, t, ends[0], ends[1], write), NUMBERS, NUMBERS, ENDS, st.none() | WRITES
    ),
    st.builds(Piece, NUMBERS, RECORDS, NUMBERS, FLAGS, st.lists(WRITES, max_size=4).map(tuple)),
    st.builds(FetchLog, NUMBERS, NUMBERS, NUMBERS),
    st.builds(Renew, NUMBERS, NUMBERS),
    st.builds(Trim, NUMBERS, NUMBERS, NUMBERS, st.lists(NAMES, max_size=5).map(tuple)),
)
ANSWERS = st.one_of(
    st.builds(Promised, NUMBERS, NUMBERS, NUMBERS, FLAGS),
    st.builds(Stored, NUMBERS, NUMBERS),
    st.builds(Lacking, NUMBERS, NUMBERS, FLAGS),
    st.builds(RefusedBallot, NUMBERS),
    st.builds(Renewed, NUMBERS, NUMBERS),
    st.builds(lambda t, ends, write: Fetched(t, ends[0], ends[1], write), NUMBERS, ENDS, st.none() | WRITES),
)
KINDS: dict[int, Any] = {**TO_A_COPY_KINDS, **ANSWER_KINDS}


def as_bytes(*messages: Any, checked: bool = True) -> bytes:
    framer = Framer()
    return b"".join(b"".join(framer.framed(message, checked).pieces) for message in messages)


def test_a_message_to_several_members_is_framed_once() -> None:
    framer, write = Framer(), SegmentWrite("7-1", 5, b"abc")
    message = Append(7, 7, 1, 2, write)
    first = framer.framed(message)
    assert framer.framed(message) is first
    for other in (Append(8, 7, 1, 2, write), Append(7, 7, 1, 2, SegmentWrite("7-1", 5, b"xyz"))):
        assert framer.framed(other).pieces == Framer().framed(other).pieces
    assert framer.framed(Append(7, 7, 1, 2, write), checked=False).pieces != first.pieces


def read(data: bytes, *, step: int = 1 << 30, kinds: Any = KINDS, checked: bool = True) -> list[Any]:
    """What a reader finds in `data` when it gets at most `step` bytes at once."""
    reader, found, at = WireReader(kinds, checked), [], 0
    while at < len(data):
        buffer = reader.buffer()
        assert buffer, "a reader always has room"
        size = min(step, len(buffer), len(data) - at)
        buffer[:size] = data[at : at + size]
        del buffer  # the memory behind it may have to grow
        found += reader.received(size)
        at += size
    return found


@given(st.lists(TO_COPY | ANSWERS, max_size=5), st.integers(1, 70), st.booleans())
def test_messages_cross_whole_and_in_parts(messages: list[Any], step: int, checked: bool) -> None:
    data = as_bytes(*messages, checked=checked)
    assert read(data, checked=checked) == messages
    assert read(data, step=step, checked=checked) == messages


@given(TO_COPY | ANSWERS, st.data())
def test_a_message_that_ends_early_is_none_yet(message: Any, data: st.DataObject) -> None:
    whole = as_bytes(message)
    assert read(whole[: data.draw(st.integers(0, len(whole) - 1))]) == []


@given(st.binary(max_size=200))
def test_garbage_is_a_peer_error(data: bytes) -> None:
    with suppress(PeerWireError):
        assert read(data) == []


@given(TO_COPY | ANSWERS, st.data())
def test_no_damage_makes_another_message(message: Any, data: st.DataObject) -> None:
    whole = bytearray(as_bytes(message))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(PeerWireError):
        assert read(bytes(whole)) == []  # a longer one, which is not complete


@given(st.sampled_from([*KINDS]), st.binary(max_size=120), st.binary(max_size=60))
def test_a_head_of_garbage_with_a_good_checksum_is_a_peer_error(kind: int, head: bytes, data: bytes) -> None:
    framed = FramedMessage(kind, head, (data,) if data else ())
    try:
        found = read(b"".join(framed.pieces), checked=False)
    except PeerWireError:
        return
    assert [type(each) for each in found] == [KINDS[kind].make]


@given(DATA, st.integers(0, 300), st.integers(0, 300))
def test_data_in_pieces_crosses_as_one(data: bytes, one: int, other: int) -> None:
    cut, end = sorted((min(one, len(data)), min(other, len(data))))
    parts = [bytearray(data[:cut]), memoryview(data)[cut:end], data[end:]]
    assert read(as_bytes(Append(1, 1, 0, 9, SegmentWrite("s", 0, parts)))) == [
        Append(1, 1, 0, 9, SegmentWrite("s", 0, data))
    ]


def test_large_data_is_read_to_where_it_stays() -> None:
    data = bytes(range(256)) * (3 * STEP_BYTES // 256)
    message = Append(1, 1, 0, len(data), SegmentWrite("s", 0, data))
    (found,) = read(as_bytes(message), step=1 << 20)
    assert found == message
    framed = Framer().framed(message)
    assert framed.pieces[-1] is data, "on its way out it is not copied"


def test_the_memory_for_data_grows_as_it_comes() -> None:
    """A member that says that it sends much, and sends nothing, costs one step."""
    whole = as_bytes(Append(1, 1, 0, 1, SegmentWrite("s", 0, bytes(2 * STEP_BYTES))))
    reader = WireReader(KINDS)
    buffer = reader.buffer()
    buffer[:200] = whole[:200]
    del buffer
    assert reader.received(200) == []
    assert len(reader.buffer()) + reader.held_bytes == STEP_BYTES


def test_a_beat_is_no_message() -> None:
    beat = b"".join(BEAT_FRAME.pieces)
    assert read(beat + as_bytes(Stored(1, 2)) + beat) == [None, Stored(1, 2), None]


@pytest.mark.parametrize(
    ("message", "kinds"), [(AskPromise(1), ANSWER_KINDS), (Stored(1, 2), TO_A_COPY_KINDS)], ids=["a copy", "an author"]
)
def test_a_message_of_the_other_side_is_refused(message: Any, kinds: Any) -> None:
    with pytest.raises(PeerWireError):
        read(as_bytes(message), kinds=kinds)


def test_all_messages_are_known() -> None:
    assert {form.make for form in TO_A_COPY_KINDS.values()} == set(TO_A_COPY)


@pytest.mark.parametrize("name", ["..", "a/../b", "/etc/passwd", "a//b", "", "a\0b"])
def test_a_name_leads_nowhere_else(name: str) -> None:
    for message in (Append(1, 1, 0, 1, SegmentWrite(name, 0, b"x")), Trim(1, 1, 1, (name,))):
        with pytest.raises(PeerWireError):
            read(as_bytes(message))


def test_the_largest_head_fits() -> None:
    members = frozenset(f"{number:02}".ljust(128, "m") for number in range(64))
    record = GroupRecord(1, members, 33, 0, 0, 1)
    writes = tuple(SegmentWrite(f"{number:03}".ljust(255, "s"), 0, b"x") for number in range(WRITES_MAX))
    piece = Piece(1, record, 0, True, writes)
    data = as_bytes(piece)
    assert len(data) < CHUNK_BYTES
    assert read(data) == [piece]


# -- the hello ---------------------------------------------------------------------------------------------------------


def greet(
    dialler: MemberName, listener: MemberName, wanted: str, secrets: tuple[bytes, bytes] = (SECRET, SECRET)
) -> tuple[PeerHello, PeerHello]:
    """Both ends of a hello, as far as it goes. Raises PeerWireError."""
    one = PeerHello(dialler, secrets[0], b"d" * 32, wanted)
    other = PeerHello(listener, secrets[1], b"l" * 32)
    other.hear(one.begin())
    one.hear(other.begin())
    other.check(one.prove())
    one.check(other.prove())
    return one, other


def test_both_prove_the_secret() -> None:
    a, b = MemberName("g", "a"), MemberName("g", "b")
    one, other = greet(a, b, "b")
    assert (one.other, other.other) == (b, a)


@pytest.mark.parametrize(
    ("dialler", "listener", "wanted", "secrets", "code", "cure"),
    [
        (("g", "a"), ("h", "b"), "b", (SECRET, SECRET), "PEER_REFUSED", "the same group"),
        (("g", "a"), ("g", "c"), "b", (SECRET, SECRET), "PEER_REFUSED", "looks for b"),
        (("g", "a"), ("g", "a"), "a", (SECRET, SECRET), "PEER_REFUSED", "looks for a"),
        (("g", "a"), ("g", "b"), "b", (SECRET, SECRET + b"x"), "PEER_REFUSED", "same secretFile"),
    ],
)
def test_a_hello_that_fails_says_why(
    dialler: Any, listener: Any, wanted: str, secrets: Any, code: str, cure: str
) -> None:
    with pytest.raises(PeerWireError, match=cure) as caught:
        greet(MemberName(*dialler), MemberName(*listener), wanted, secrets)
    assert caught.value.code == code


def test_another_version_is_named() -> None:
    one = PeerHello(MemberName("g", "a"), SECRET, b"d" * 32, "b")
    said = bytearray(one.begin())
    said[8] = 99
    with pytest.raises(PeerWireError, match="version 1 and the other one version 99: run the same version") as caught:
        PeerHello(MemberName("g", "b"), SECRET, b"l" * 32).hear(bytes(said))
    assert caught.value.code == "PEER_VERSION"


def test_a_dialler_hears_that_its_secret_is_wrong() -> None:
    one = PeerHello(MemberName("g", "a"), SECRET, b"d" * 32, "b")
    with pytest.raises(PeerWireError, match="does not accept this one's secret: give all members"):
        one.check(NO_PROOF)


def test_a_proof_is_of_one_end() -> None:
    """A stranger cannot send a member its own proof back."""
    one = PeerHello(MemberName("g", "a"), SECRET, b"d" * 32, "b")
    other = PeerHello(MemberName("g", "b"), SECRET, b"l" * 32)
    other.hear(one.begin())
    one.hear(other.begin())
    with pytest.raises(PeerWireError):
        one.check(one.prove())
    with pytest.raises(PeerWireError):
        other.check(other.prove())


@given(st.binary(min_size=HELLO_BYTES, max_size=HELLO_BYTES), st.booleans())
def test_a_hello_of_garbage_is_a_peer_error(data: bytes, begins: bool) -> None:
    hello = PeerHello(MemberName("g", "a"), SECRET, b"d" * 32)
    with pytest.raises(PeerWireError):
        hello.hear(b"AMQCOPY\n\x01\0" + data[10:] if begins else data)
