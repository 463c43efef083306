"""MESSAGE frames read by one pattern: the same frames as by the general path, however the bytes are cut."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from stomp_cases import SMALL

from amq.protocols.stomp import recurring
from amq.protocols.stomp.frame import DELIVERY_LIMITS, Frame, FrameLimits, FrameReader, encode
from amq.protocols.stomp.recurring import Recurring

NUMBERS = st.integers(0, 10**12).map(str)
TEXTS = st.sampled_from(["", "x", " blank ", "a:b", "back\\slash", "two\nlines", "cr\r", "zürich", "tab\t", "1:2"])
IDS = st.builds("{}-{}".format, st.sampled_from(["ID:host", "a", "b\\c"]), NUMBERS)
HEADERS = st.fixed_dictionaries(
    {
        "subscription": st.sampled_from(["s:1", "2"]),
        "message-id": IDS,
        "destination": st.sampled_from(["/queue/x", "/y"]),
    },
    optional={
        "ack": IDS,
        "timestamp": NUMBERS,
        "persistent": st.just("true"),
        "content-type": TEXTS,
        "key": TEXTS,
        "correlation-id": TEXTS,
        "redelivered": st.just("true"),
    },
)
BODIES = st.sampled_from([b"", b"a", b"bcd", b"\n", b"h\0i", b"MESSAGE\n", b"x" * 40])


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    headers, body = draw(HEADERS), draw(BODIES)
    if b"\0" in body or draw(st.booleans()):
        headers = {**headers, "content-length": str(len(body))}
    frame = encode(draw(st.sampled_from(["MESSAGE"] * 5 + ["RECEIPT"])), headers.items(), body)
    return frame + draw(st.sampled_from([b"", b"", b"", b"\n"]))


def read(chunks: list[bytes], fast: bool, limits: FrameLimits = DELIVERY_LIMITS) -> tuple[list[Frame], str, int]:
    """(frames, code of the error that ended them, how many the pattern took)"""
    reader, pattern = FrameReader(limits, "1.2"), Recurring()
    found: list[Frame] = []
    taken = 0
    for chunk in chunks:
        reader.push(chunk)
        while True:
            while fast and reader.unfinished is None and (frame := pattern.take(reader)) is not None:
                found.append(frame)
                taken += 1
            frame = reader.next_frame()
            if frame is None:
                break
            if frame.command == "MESSAGE":
                pattern.learn(frame)
            found.append(frame)
    return found, reader.error.code if reader.error else "", taken


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    chunks, position = [], 0
    for size in cuts:
        chunks.append(data[position : position + size])
        position += size
    return [*chunks, data[position:]]


@given(
    st.lists(st.tuples(frames(), st.integers(1, 3)), max_size=6),
    st.lists(st.integers(1, 200), max_size=8),
    st.sampled_from([1, 3, 256]),
    st.sampled_from([SMALL, DELIVERY_LIMITS]),
    st.binary(max_size=3),
    st.integers(0, 400),
)
def test_the_same_as_by_the_general_path(
    some: list[tuple[bytes, int]], cuts: list[int], learn_every: int, limits: FrameLimits, noise: bytes, at: int
) -> None:
    data = b"".join(frame * times for frame, times in some)
    data = data[:at] + noise + data[at:]
    with patch.object(recurring, "LEARN_EVERY", learn_every):
        assert read(cut(data, cuts), True, limits)[:2] == read(cut(data, cuts), False, limits)[:2]


def a_message(number: int, **more: str) -> bytes:
    headers = {"subscription": "s:1", "message-id": f"ID:b-{number}", "ack": f"1-{number}", "timestamp": str(number)}
    return encode("MESSAGE", {**headers, **more, "content-length": "5"}.items(), b"%05d" % number)


def test_all_but_the_first_are_taken() -> None:
    found, error, taken = read([b"".join(map(a_message, range(1000)))], True)
    assert (len(found), error, taken) == (1000, "", 999)
    assert found[999] == Frame(
        "MESSAGE",
        {"subscription": "s:1", "message-id": "ID:b-999", "ack": "1-999", "timestamp": "999", "content-length": "5"},
        b"00999",
    )
    assert list(found[999].headers) == list(found[0].headers)


def test_another_kind_of_message_is_learned_after_a_while() -> None:
    others = [a_message(number, key=str(number)) for number in range(1000)]
    found, _, taken = read([a_message(0), *others], True)
    assert len(found) == 1001
    assert taken == 1000 - recurring.LEARN_EVERY


def test_a_number_that_is_none_is_left_to_the_general_path() -> None:
    frames = [a_message(1), a_message(2).replace(b"length:5", b"length:-5")]
    assert read(frames, True) == (*read(frames, False)[:2], 0)
    assert read(frames, True)[1] == "CONTENT_LENGTH_INVALID"


def test_what_the_application_does_to_headers_is_its_own_affair() -> None:
    reader, pattern = FrameReader(DELIVERY_LIMITS, "1.2"), Recurring()
    reader.push(b"".join(map(a_message, range(3))))
    first = reader.next_frame()
    assert first is not None
    pattern.learn(first)
    del first.headers["subscription"]
    first.headers["mine"] = "1"
    second = pattern.take(reader)
    assert second is not None
    second.headers.clear()
    assert [second.body, pattern.take(reader)] == [b"00001", read([a_message(2)], False)[0][0]]
