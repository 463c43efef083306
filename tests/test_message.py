"""Message: envelopes, native forms, and everything that shows them to others; what is counted stays the same."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.core import message as messages
from amq.core import values
from amq.core.destination import wire_name
from amq.core.errors import CommandError
from amq.core.message import (
    BYTES,
    MAP,
    NONE,
    OBJECT,
    STREAM,
    TEXT,
    TURN_BYTES_MAX,
    Copier,
    Envelope,
    Message,
    Native,
    alike,
    check,
    head,
    header,
    headers,
    heads,
    lift,
    neutral,
    plain,
)
from amq.core.values import Int32, Nested
from tests.typed import ENVELOPES, TEXTS, facts, reads, tiny, typed
from tests.typed import messages as any_messages

NAMES = TEXTS | st.sampled_from(["type", "reply-to", "correlation-id"])
REPLIES = [
    "/queue/a",
    "queue://a",
    "/topic/a,/queue/b",
    "/queue/a,b",
    "orders",
    "/queue/",
    "/remote-temp-queue/3-17.r",
    "/temp-queue/r",
    "http://x",
    "queue://",
    "/queue//a",
    "/queue/a://b",
    "",
    "/queue/a,queue://b",
]


@pytest.fixture(autouse=True)
def counts() -> Iterator[None]:
    reads.clear()
    yield
    reads.clear()


# -- envelopes ---------------------------------------------------------------------------------------------------------


@given(st.dictionaries(NAMES, TEXTS | st.sampled_from([*REPLIES, "ID:AMQP_BINARY:00FF", "ID:AMQP_BINARY:0f"])))
def test_headers_come_back_exactly_as_they_were(sent: dict[str, str]) -> None:
    rest = dict(sent)
    envelope = lift(rest)
    assert headers(Message("queue://a", b"", rest, envelope=envelope)) == sent
    assert (envelope is None) == (not sent.keys() & messages.LIFTED or (set(rest) == set(sent) and not envelope))


@pytest.mark.parametrize(
    ("written", "known", "stays"),
    [
        ("/queue/a", "queue://a", False),
        ("/topic/a,/queue/b", "topic://a,queue://b", False),
        ("orders", "orders", False),
        ("/remote-temp-topic/3-1.r", "temp-topic://3-1.r", False),
        ("queue://a", "queue://a", True),
        ("", "", True),
    ],
)
def test_a_reply_to_is_a_destination_where_it_names_one(written: str, known: str, stays: bool) -> None:
    rest = {"reply-to": written, "type": "t"}
    envelope = lift(rest)
    assert envelope == Envelope(reply_to=known, type="t")
    assert rest == ({"reply-to": written} if stays else {})


def test_a_correlation_id_of_bytes_can_be_written_and_read() -> None:
    spelled = Envelope(correlation_id=b"\x00\xff").correlation_text
    assert spelled == "ID:AMQP_BINARY:00FF"
    assert lift({"correlation-id": spelled}) == Envelope(correlation_id=b"\x00\xff")
    for other in ("ID:AMQP_BINARY:00ff", "ID:AMQP_BINARY:0", "ID:AMQP_BINARY:zz", "ID:AMQP_BINARY:00 FF", ""):
        assert lift({"correlation-id": other}) == Envelope(correlation_id=other)


def test_header() -> None:
    message = Message(
        "queue://a",
        b"",
        {"n": Int32(7), "type": "own"},
        envelope=Envelope(correlation_id=b"\x01", reply_to="queue://r", type="theirs"),
    )
    names = ("n", "type", "correlation-id", "reply-to", "none")
    assert [header(message, name) for name in names] == ["7", "own", "ID:AMQP_BINARY:01", "/queue/r", None]
    bare = Message("queue://a", b"", envelope=Envelope())
    assert [header(bare, name) for name in ("type", "correlation-id", "reply-to")] == [None] * 3
    assert header(Message("queue://a", b"", {"type": "x"}), "type") == "x"


# -- what everything that makes messages of messages keeps -------------------------------------------------------------


@given(any_messages())
def test_copies_keep_everything(message: Message) -> None:
    again = Message.made_of(message, message.destination, message.properties, message.seq)
    assert facts(again) == facts(message)
    copier = Copier(message)
    copy = copier.copy("queue://else", 9)
    led = {**(message.properties or {}), "original-destination": wire_name(message.destination)}
    assert (copy.content, copy.envelope, typed(copy.properties)) == (message.content, message.envelope, typed(led))
    alone = copier.message("queue://else")
    assert facts(alone) == facts(Message.made_of(message, "queue://else", led))
    assert copy.header_bytes == alone.header_bytes
    own = copier.copy(message.destination)
    assert own.header_bytes == message.header_bytes


def test_messages_that_are_alike_have_the_same_content() -> None:
    (made,) = alike(Message("queue://a", b"", content=TEXT), [b"x"])
    assert (made.content, made.envelope, made.body) == (TEXT, None, b"x")


@given(ENVELOPES)
def test_an_envelope_takes_memory_by_its_contents_alone(envelope: Envelope) -> None:
    sizes = {Message("queue://a", b"", envelope=Envelope(*envelope)).header_bytes for _ in range(2)}
    assert len(sizes) == 1
    assert sizes.pop() > Message("queue://a", b"").header_bytes == 0


# -- native forms ------------------------------------------------------------------------------------------------------


def test_what_is_not_native_is_itself() -> None:
    for message in (Message("queue://a", b"x", {"a": "b"}), Message("queue://a", b"x", envelope=Envelope("id"))):
        assert neutral(message) is plain(message) is message
        assert head(message) == (message.properties, message.envelope)


def test_a_native_message_is_read_once() -> None:
    message = tiny("queue://a", b"hello", {"n": Int32(7), "JMSXGroupID": "g"}, correlation_id="c", seq=3)
    message.size, message.offset = 20, 10
    for _ in range(3):
        properties, envelope = head(message)
        assert typed(properties) == typed({"n": Int32(7), "JMSXGroupID": "g"})
        assert envelope == Envelope(correlation_id="c", type="tiny")
    assert reads == {"head": 1}
    shown = neutral(message)
    assert (shown.body, shown.content, shown.seq, shown.size, shown.offset) == (b"hello", TEXT, 3, 20, 10)
    assert shown.envelope == Envelope(correlation_id="c", type="tiny")
    assert neutral(shown) is shown
    assert reads == {"head": 1, "content": 1}


def test_copies_share_what_was_read_and_their_own_properties_count() -> None:
    message = tiny("topic://a", b"x", {"n": Int32(7), "original-destination": "theirs"})
    assert head(message)[0] == {"n": 7, "original-destination": "theirs"}
    copy = Copier(message).copy("queue://b")
    assert head(copy)[0] == {"n": 7, "original-destination": "/topic/a"}
    moved = Message.made_of(copy, "queue://DLQ", {**(copy.properties or {}), "dead-letter-reason": "x"})
    assert header(moved, "dead-letter-reason") == "x"
    assert header(moved, "n") == "7"
    assert reads == {"head": 1}


def test_what_is_counted_does_not_change_when_it_is_read() -> None:
    message = tiny("queue://a", b"x", {"a": "b" * 100, "c": Int32(1)})
    before = message.header_bytes
    head(message)
    assert message.header_bytes == before == tiny("queue://a", b"x", {"a": "b" * 100, "c": Int32(1)}).header_bytes


def many(prefix: str = "") -> Message:
    return tiny("queue://a", b"x", {f"{prefix}{n:x}": True for n in range(2000)})


def test_what_takes_more_than_is_counted_is_kept_for_the_turn() -> None:
    few = tiny("queue://a", b"x", {f"property {n}": Int32(n) for n in range(8)})
    for message, times in ((few, 1), (many(), 2)):
        reads.clear()
        for _ in range(2):
            for _ in range(3):
                assert head(message)[0]
            heads.clear()
        assert reads["head"] == times
        kept = message.envelope.native.read  # type: ignore[union-attr]
        assert (kept is None) == (times == 2)
    assert not heads.natives
    assert heads.bytes == 0


def test_what_is_kept_for_a_turn_is_bounded() -> None:
    size = 0
    sent = [many(str(number)) for number in range(100)]
    for message in sent:
        head(message)
        size = max(size, heads.bytes)
    held = [message for message in sent if message.envelope.native.read is not None]  # type: ignore[union-attr]
    assert len(held) == len(heads.natives) < 60
    assert 0 < size <= TURN_BYTES_MAX
    heads.clear()


def test_own_properties_are_joined_with_those_that_were_read_once_a_turn() -> None:
    message, other = tiny("queue://a", b"x", {"n": Int32(7)}), tiny("queue://a", b"x", {"n": Int32(8)})
    message.properties, other.properties = {"JMSXGroupID": "g"}, {"JMSXGroupID": "h"}
    first = head(message)
    assert head(message) is first
    assert head(other)[0] == {"n": 8, "JMSXGroupID": "h"}
    message.properties = {"JMSXGroupID": "changed"}
    assert head(message)[0] == {"n": 7, "JMSXGroupID": "changed"}
    assert first[0] == {"n": 7, "JMSXGroupID": "g"}
    heads.clear()
    assert heads.last is None


@pytest.mark.parametrize("native", [Native("unknown", b"data"), Native("tiny", b"damaged")])
def test_an_unknown_or_damaged_form_is_its_bare_body(native: Native) -> None:
    message = Message("queue://a", b"\xffbody", {"JMSXGroupID": "g"}, envelope=Envelope("id", native=native))
    shown = plain(message)
    assert (shown.content, shown.body, shown.properties) == (BYTES, b"\xffbody", {"JMSXGroupID": "g"})
    assert shown.envelope == Envelope("id")


# -- for those who know bytes and text alone ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "value", "json"),
    [
        (MAP, {"a": Int32(1), "b": b"\x00", "é": "\ud800"}, '{"a": 1, "b": "AA==", "é": "?"}'.encode()),
        (STREAM, [True, None, 0.5], b"[true, null, 0.5]"),
    ],
)
def test_maps_and_streams_are_json(content: int, value: Nested, json: bytes) -> None:
    message = Message("queue://a", values.encode(value), content=content, envelope=Envelope(), seq=2)
    shown = plain(message)
    assert (shown.content, shown.body, shown.content_type, shown.seq) == (TEXT, json, "application/json", 2)


@pytest.mark.parametrize("content", [MAP, STREAM, OBJECT, NONE])
def test_all_else_is_its_bytes(content: int) -> None:
    shown = plain(Message("queue://a", b"\xff", content_type="x/y", content=content, envelope=Envelope()))
    assert (shown.content, shown.body, shown.content_type) == (BYTES, b"\xff", "x/y")


def test_a_native_map_is_json() -> None:
    shown = plain(tiny("queue://a", values.encode({"a": 1}), {}, MAP))
    assert (shown.body, shown.content_type) == (b'{"a": 1}', "application/json")


# -- what can be stored ------------------------------------------------------------------------------------------------


@given(any_messages())
def test_what_can_be_stored_passes(message: Message) -> None:
    check(message)


@pytest.mark.parametrize(
    "fields",
    [
        {"content_type": "é" * 32768},
        {"duplicate_id": "x" * 65536},
        {"priority": 10},
        {"priority": -1},
        {"timestamp_ms": -1},
        {"expires_ms": 1 << 64},
        {"properties": {"a": 1 << 63}},
        {"properties": {"a": b"x" * (17 << 20)}},
        {"properties": {"a": None}},
        {"properties": {"a": ["x"]}},
        {"properties": {3: "x"}},
        {"envelope": Envelope(sent_ms=1 << 63)},
        {"envelope": Envelope(native=Native("x", b"x" * (17 << 20)))},
        {"destination": "queue://\ud800"},
        {"duplicate_id": "\ud800"},
    ],
)
def test_what_cannot_be_stored_is_rejected(fields: dict[str, object]) -> None:
    more = {"destination": "queue://a", "body": b"", "envelope": Envelope(), **fields}
    with pytest.raises(CommandError) as caught:
        check(Message(**more))  # type: ignore[arg-type]
    assert caught.value.code == "MESSAGE_INVALID"


def test_types_and_contents_need_an_envelope() -> None:
    for message in (Message("queue://a", b"", content=MAP), Message("queue://a", b"", {"a": 1})):
        with pytest.raises(AssertionError):
            check(message)
    check(Message("queue://a", b"x", {"a": "b"}, content=TEXT))


def test_memory_does_not_depend_on_what_the_interpreter_keeps_beside_a_text() -> None:
    """Some calls in C keep the UTF-8 of a text beside it, and a replay must count the same."""
    used = "ß" * 8
    fresh = "".join(["ß"] * 8)
    keep_utf8(used)
    assert (
        Message("queue://a", b"", {used: used}).header_bytes == Message("queue://a", b"", {fresh: fresh}).header_bytes
    )


def keep_utf8(text: str) -> None:
    """Makes the interpreter keep the UTF-8 of `text`."""
    before = sys.getsizeof(text)
    ctypes.pythonapi.PyUnicode_AsUTF8.restype = ctypes.c_void_p
    ctypes.pythonapi.PyUnicode_AsUTF8(ctypes.py_object(text))
    assert sys.getsizeof(text) > before
