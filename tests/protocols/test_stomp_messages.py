"""Messages of STOMP and of others: what a producer's headers become, and what a STOMP consumer sees of the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.core import values
from amq.core.message import BYTES, MAP, NONE, OBJECT, STREAM, TEXT, Envelope, Message, MessageBatch, Native, Sharing
from amq.core.message_run import MessageRun
from amq.core.values import Float32, Int8, Int32, Value
from amq.protocols.commands import Send
from amq.protocols.stomp.codec import StompCodec
from amq.protocols.stomp.delivery import RESERVED, Deliveries
from amq.protocols.stomp.frame import Frame, FrameReader, encode
from tests.typed import TEXTS, messages, reads, tiny

VERSIONS = ["1.1", "1.2"]
NAMES = TEXTS.filter(lambda name: name not in RESERVED | {"destination", "amq-msg-type"}) | st.sampled_from(
    ["type", "reply-to", "correlation-id", "JMSXGroupID"]
)
WRITTEN = st.sampled_from(["/queue/a", "queue://a", "orders", "/queue/a,b", "ID:AMQP_BINARY:00FF", "ID:AMQP_BINARY:0"])


def codec(version: str) -> StompCodec:
    made = StompCodec(owner="3-17.")
    made.receive(encode("CONNECT", [("accept-version", version), ("host", "x")]))
    return made


def sent(frame: bytes, version: str = "1.2") -> Message:
    (send,) = codec(version).receive(frame)
    assert isinstance(send, Send)
    return send.message


def shown(message: Message, version: str = "1.2", redelivered: int = 0) -> Frame:
    deliveries = Deliveries(version, "ID:x-", "9-9.")
    data = deliveries.encode(deliveries.format("s", 0, False), message, redelivered)
    (frame,) = FrameReader(version=version).feed(data)
    return frame


@given(st.dictionaries(NAMES, TEXTS | WRITTEN), st.sampled_from(VERSIONS))
def test_all_headers_of_a_producer_come_back_exactly(headers: dict[str, str], version: str) -> None:
    message = sent(encode("SEND", [("destination", "/queue/a"), *headers.items()], version=version), version)
    found = shown(message, version).headers
    own = ("subscription", "message-id", "destination", "timestamp", "persistent")
    assert {name: value for name, value in found.items() if name not in own} == headers


def test_what_the_headers_mean() -> None:
    message = sent(b"SEND\ndestination:/queue/a\ncorrelation-id:c\nreply-to:/temp-queue/r\ntype:t\nx:1\n\nhi\0")
    assert message.envelope == Envelope(correlation_id="c", reply_to="temp-queue://3-17.r", type="t")
    assert message.properties == {"x": "1"}
    assert shown(message).headers["reply-to"] == "/remote-temp-queue/3-17.r"
    plain = sent(b"SEND\ndestination:/queue/a\nx:1\n\nhi\0")
    assert (plain.envelope, plain.properties, plain.content) == (None, {"x": "1"}, TEXT)


def test_messages_with_an_envelope_are_no_run() -> None:
    frame = b"SEND\ndestination:/queue/a\ntransaction:t\ntype:x\n\n%b\0"
    commands = codec("1.2").receive(b"BEGIN\ntransaction:t\n\n\0" + b"".join(frame % b"%d" % n for n in range(3)))
    messages = [command.message for command in commands if isinstance(command, Send)]
    assert [(message.body, message.envelope) for message in messages] == [
        (b"%d" % n, Envelope(type="x")) for n in range(3)
    ]


@pytest.mark.parametrize("version", ["1.0", *VERSIONS])
def test_typed_properties_are_text(version: str) -> None:
    properties: dict[str, Value] = {
        "i": Int8(-1),
        "l": 1 << 40,
        "t": True,
        "f": Float32(0.1),
        "d": 0.5,
        "b": b"\x00",
        "s": "x",
        "JMSXGroupID": "g",
        "message-id": "forged",
        "ack": Int32(1),
        "destination": "/queue/forged",
        "redelivered": True,
    }
    frame = shown(Message("queue://a", b"x", properties, content=TEXT, seq=5, envelope=Envelope(type="t")), version)
    headers = frame.headers
    assert [headers[name] for name in "iltfdbs"] == ["-1", "1099511627776", "true", "0.1", "0.5", "AA==", "x"]
    assert (headers["type"], headers["JMSXGroupID"], headers["message-id"]) == ("t", "g", "ID:x-5")
    assert (headers["destination"], headers.get("redelivered"), headers.get("ack")) == ("/queue/a", None, None)


@pytest.mark.parametrize(
    ("content", "body", "type", "expected", "has_length"),
    [
        (MAP, values.encode({"a": Int32(1)}), "application/json", b'{"a": 1}', False),
        (STREAM, values.encode([b"\x00", True]), "application/json", b'["AA==", true]', False),
        (OBJECT, b"\xac\xed\x00", None, b"\xac\xed\x00", True),
        (NONE, b"", None, b"", True),
    ],
)
def test_contents(content: int, body: bytes, type: str | None, expected: bytes, has_length: bool) -> None:
    message = Message("queue://a", body, content=content, envelope=Envelope(), seq=1)
    frame = shown(message)
    assert (frame.body, frame.headers.get("content-type")) == (expected, type)
    assert ("content-length" in frame.headers) == has_length
    pieces = codec("1.2").large_delivery(Deliveries("1.2", "ID:", "").format("s", 0, False), message, 0)
    (large,) = FrameReader(version="1.2").feed(b"".join(pieces))
    assert large.body == expected


@given(messages(), st.sampled_from(["1.0", *VERSIONS]), st.integers(0, 2))
def test_any_message_is_one_frame_that_forges_nothing(message: Message, version: str, redelivered: int) -> None:
    frame = shown(message, version, redelivered)
    assert frame.headers["message-id"] == f"ID:x-{message.seq}"
    assert frame.headers["subscription"] == "s"
    assert frame.headers.get("redelivered") == ("true" if redelivered else None)


@given(messages())
def test_what_is_encoded_once_for_all_is_the_same_frame(message: Message) -> None:
    deliveries = Deliveries("1.2", "ID:x-", "")
    form = deliveries.format("s", 0, False)
    alone = FrameReader(version="1.2").feed(deliveries.encode(form, message, 0))
    message.shared = Sharing(None)
    together = FrameReader(version="1.2").feed(
        deliveries.encode(form, message, 0) + deliveries.encode_batch(form, MessageBatch([message, message]))
    )
    assert [(frame.headers, frame.body) for frame in together] == [(alone[0].headers, alone[0].body)] * 3


def test_a_native_message_is_converted_once_for_many_consumers() -> None:
    reads.clear()
    message = tiny("topic://t", b"hello", {"n": Int32(7)}, seq=3)
    message.shared = Sharing(None)
    deliveries = Deliveries("1.2", "ID:x-", "")
    frames = [deliveries.encode(deliveries.format(f"s{n}", n, False), message, 0) for n in range(5)]
    found = [FrameReader(version="1.2").feed(frame)[0] for frame in frames]
    assert [(frame.headers["n"], frame.headers["type"], frame.body) for frame in found] == [("7", "tiny", b"hello")] * 5
    assert reads == {"head": 1, "content": 1}


def test_a_native_form_that_nobody_knows_is_bytes() -> None:
    frame = shown(Message("queue://a", b"\x00", {"JMSXGroupID": "g"}, envelope=Envelope(native=Native("?", b"x"))))
    assert (frame.body, frame.headers["JMSXGroupID"], frame.headers["content-length"]) == (b"\x00", "g", "1")
    assert sent(b"SEND\ndestination:/queue/a\ncontent-length:1\n\n\0\0").content == BYTES


@given(st.lists(st.tuples(messages(), st.integers(1, 3)), max_size=4), st.sampled_from(VERSIONS))
def test_what_is_encoded_together_is_the_same_as_one_by_one(some: list[tuple[Message, int]], version: str) -> None:
    """Also of messages that share their properties."""
    each = [message.with_body(b"%d" % number) for message, count in some for number in range(count)]
    deliveries = Deliveries(version, "ID:x-", "")
    form = deliveries.format("s", 0, True)
    whole = b"".join([deliveries.encode(form, message, 0) for message in each])
    assert deliveries.encode_all(form, each) == (whole, len(each))


PLAIN = st.builds(
    Message,
    st.sampled_from(["queue://a", "topic://50%", "queue://ü:b"]),
    st.just(b""),
    st.none() | st.dictionaries(NAMES, TEXTS, max_size=2),
    st.sampled_from(["", "text/plain", "100%d"]),
    st.sampled_from([4, 4, 5]),
    st.booleans(),
    content=st.sampled_from([BYTES, TEXT]),
)


@given(
    PLAIN,
    st.lists(st.tuples(st.sampled_from([b"", b"a", b"h\0i", b"%d %b", "ü".encode()]), st.integers(0, 9)), min_size=1),
    st.sampled_from(["1.0", *VERSIONS]),
    st.booleans(),
)
def test_a_run_is_encoded_as_its_messages_are(
    like: Message, rows: list[tuple[bytes, int]], version: str, acknowledges: bool
) -> None:
    bodies, times = [body for body, _ in rows], [time for _, time in rows]
    seqs = [*range(1, len(rows) + 1)]
    run = MessageRun(like.with_body(b""), seqs, times, bodies, b"\0" in b"".join(bodies)).numbered(4, 3)
    deliveries = Deliveries(version, "ID:%d-", "")
    form = deliveries.format("100%", 0, acknowledges)
    one_by_one = b"".join([deliveries.encode(form, message, 0) for message in run.messages])
    assert deliveries.encode_run(form, run) in (one_by_one, b"")
    assert [message.seq for message in run] == [seq << 4 | 3 for seq in seqs]


@pytest.mark.parametrize("bodies", [[b"a", b"bc"], [b"\0", b""]])
def test_a_run_of_plain_messages_is_encoded_at_once(bodies: list[bytes]) -> None:
    deliveries = Deliveries("1.2", "ID:x-", "")
    form = deliveries.format("s", 0, True)
    for content in (TEXT, BYTES):
        like = Message("queue://a", b"", {"p": "%s"}, content=content)
        run = MessageRun(like, [1, 2], [3, 4], bodies, b"\0" in bodies[0])
        found = deliveries.encode_run(form, run)
        if content == TEXT and run.has_nul:
            assert not found, "those with the byte 0 have a length, and others have none"
        else:
            assert found == b"".join([deliveries.encode(form, message, 0) for message in run])
