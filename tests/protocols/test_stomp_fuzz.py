"""Hypothesis against the STOMP server codec: any bytes give commands or one Malformed, whichever path reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stomp_cases import PREFIX, SMALL, one_by_one, opened
from test_stomp_codec import deliver, general_path_only

from amq.core.message import BYTES, TEXT, Message
from amq.protocols.commands import Command, Disconnect, Failure, Malformed, Send
from amq.protocols.stomp.codec import StompCodec
from amq.protocols.stomp.frame import DELIVERY_LIMITS, VERSIONS, FrameReader, encode

TOKENS = [
    b"SEND\n",
    b"SEND\r\n",
    b"ACK\nid:0-",
    b"ACK\nid:1-2\n\n\0",
    b"NACK\n",
    b"SUBSCRIBE\nid:s\n",
    b"UNSUBSCRIBE\nid:s\n",
    b"BEGIN\ntransaction:t\n",
    b"DISCONNECT\n",
    b"CONNECT\n",
    b"MESSAGE\n",
    b"\n",
    b"\n\n",
    b"\n\n\0",
    b"\0",
    b"\r\n",
    b"\r",
    b"\\n",
    b"\\t",
    b":",
    b"destination:/queue/a\n",
    b"destination:/temp-queue/a\n",
    b"receipt:r\n",
    b"persistent:true\n",
    b"persistent:x\n",
    b"priority:5\n",
    b"priority:55\n",
    b"expires:9\n",
    b"content-length:3\n",
    b"content-length:x\n",
    b"content-length:9999\n",
    b"transaction:t\n",
    b"id:0-1\n",
    b"ack:client\n",
    b"message-id:" + PREFIX.encode() + b"5\n",
    b"subscription:s\n",
    b"x:y\n",
    b"abc",
    b"17",
    b"a" * 120,
    b"\xff",
    "ü".encode(),
]
streams = st.lists(st.one_of(st.sampled_from(TOKENS), st.binary(max_size=10)), max_size=30).map(b"".join)
SUBSCRIBED = b"SUBSCRIBE\nid:s\ndestination:/queue/a\n\n\0"


def check(commands: list[Command]) -> None:
    for command in commands[:-1]:
        assert not isinstance(command, Malformed | Disconnect)


@given(streams, st.sampled_from(VERSIONS), st.data())
def test_any_bytes(stream: bytes, version: str, data: st.DataObject) -> None:
    fast, cut, general = opened(version), opened(version), general_path_only(opened(version))
    for codec in (fast, cut, general):
        codec.receive(SUBSCRIBED)
    expected = general.receive(stream)
    check(expected)
    found = fast.receive(stream)
    assert one_by_one(found) == one_by_one(expected)
    at = data.draw(st.integers(0, len(stream)))
    found = cut.receive(stream[:at]) + cut.receive(stream[at:])
    # Where a limit is exceeded, the cut may decide which limit is noticed first: the error's kind is not compared.
    assert one_by_one(c for c in found if not isinstance(c, Malformed)) == one_by_one(
        c for c in expected if not isinstance(c, Malformed)
    )
    assert len(one_by_one(found)) == len(one_by_one(expected))
    assert fast.pending == general.pending == cut.pending


@given(streams)
def test_any_bytes_before_connect(stream: bytes) -> None:
    codec = StompCodec(SMALL, PREFIX)
    commands = codec.receive(stream)
    check(commands)
    for command in commands:
        if isinstance(command, Malformed):
            assert (
                len(
                    FrameReader(version=codec.version).feed(
                        codec.error(Failure(command.error, receipt=command.receipt))
                    )
                )
                == 1
            )


NAMES = [
    "receipt",
    "x",
    "type",
    "content-type",
    "_AMQ_DUPL_ID",
    "priority",
    "persistent",
    "transaction",
    "message-id",
    "timestamp",
    "expires",
    "amq-msg-type",
    "reply-to",
    " ack",
]
characters = st.characters(exclude_categories=["Cs"])
headers = st.dictionaries(
    st.one_of(st.sampled_from(NAMES), st.text(characters, min_size=1, max_size=10)),
    st.one_of(st.sampled_from(["1", "true", "text", "x"]), st.text(characters, max_size=10)),
    max_size=8,
)
sends = st.lists(st.tuples(headers, st.binary(max_size=40), st.booleans()), max_size=5)


@given(sends, st.sampled_from(["1.1", "1.2"]), st.data())
def test_fast_path_equals_general_path(
    frames: list[tuple[dict[str, str], bytes, bool]], version: str, data: st.DataObject
) -> None:
    stream = b""
    for more, body, measured in frames:
        more.pop("content-length", None)
        more["destination"] = "/queue/a"
        if measured or b"\0" in body:
            more["content-length"] = str(len(body))
        stream += encode("SEND", data.draw(st.permutations(list(more.items()))), body, version)
    stream += data.draw(st.sampled_from([b"", b"\n", b"SEND\ndest", b"ACK\nid:0-1\n\n\0", b"rubbish"]))
    fast, general, single = opened(version), general_path_only(opened(version)), opened(version)
    expected = one_by_one(general.receive(stream))
    assert one_by_one(fast.receive(stream)) == expected
    assert [each for byte in stream for each in one_by_one(single.receive(bytes([byte])))] == expected
    assert fast.pending == general.pending == single.pending


@pytest.mark.parametrize("version", VERSIONS)
@given(
    more=headers, body=st.binary(max_size=40), redelivered=st.integers(0, 3), ack=st.sampled_from(["auto", "client"])
)
def test_delivery_is_one_frame(version: str, more: dict[str, str], body: bytes, redelivered: int, ack: str) -> None:
    """Whatever properties a message has, its MESSAGE is one well-formed frame whose own headers are the broker's."""
    content = TEXT if b"x" in body else BYTES
    message = Message("queue://a", body, more, timestamp_ms=1, content=content, persistent=False, seq=3)
    reader = FrameReader(DELIVERY_LIMITS, version)
    (frame,) = reader.feed(deliver(version, message, redelivered, ack))
    assert reader.error is None
    assert not reader.pending
    assert frame.body == body
    assert frame.headers["message-id"] == PREFIX + "3"
    assert frame.headers.get("ack") == ("0-3" if version == "1.2" and ack == "client" else None)
    assert frame.headers.get("redelivered") == ("true" if redelivered else None)
    assert "persistent" not in frame.headers


@pytest.mark.parametrize("version", ["1.1", "1.2"])
@given(more=headers, body=st.binary(max_size=40))
def test_what_is_sent_is_delivered(version: str, more: dict[str, str], body: bytes) -> None:
    """SEND → Message → MESSAGE keeps body and properties."""
    for name in ("content-length", "priority", "persistent", "transaction", "expires"):
        more.pop(name, None)
    if version == "1.1":
        more = {name: value for name, value in more.items() if "\r" not in name + value}
    more.update({"destination": "/queue/a", "content-length": str(len(body))})
    (send,) = opened(version).receive(encode("SEND", more.items(), body, version))
    assert isinstance(send, Send)
    (frame,) = FrameReader(version=version).feed(deliver(version, send.message))
    assert frame.body == body
    ours = {"browser", "receipt", "message-id", "content-length", "subscription", "ack", "redelivered", "timestamp"}
    for name, value in more.items():
        # The broker's own headers, and `receipt`, are not the sender's to set; an empty one is as good as none.
        if name not in ours and value:
            assert frame.headers[name] == value
