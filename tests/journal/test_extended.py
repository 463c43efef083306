"""Records of messages that say more than version 1 could; and what of it a record of version 1 says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.core import values
from amq.core.errors import CorruptError
from amq.core.message import BYTES, MAP, TEXT, Copy, Envelope, Message, Native, lift
from amq.core.values import Float32, Int32, Nested, Value
from amq.journal.decoder import Decoder
from amq.journal.format import frame_record
from amq.journal.records import Destination, encode_record, record_bytes
from amq.journal.records.message import MESSAGE, MESSAGE_HEAD, body_offset, encode_message
from amq.journal.records.multicast import Multicast
from amq.journal.records.section import EXTENDED
from amq.journal.records.transactions import Prepared
from tests.typed import TEXTS, facts, messages, typed

NAME = Destination(1, "queue://a").encode({})
FLAGS_AT = 9 + 12


def decoded(record: bytes, bodies: bool = True) -> Message:
    _, message = Decoder("x", bodies).decode(NAME + record)
    assert isinstance(message, Message)
    return message


def of_version_1(properties: dict[str, str], flags: int = TEXT) -> bytes:
    section = json.dumps(properties).encode()
    head = MESSAGE_HEAD.pack(7, 1, flags, 4, 5, 6, 0, 0, len(section))
    return frame_record(MESSAGE, head + section + b"body")


def test_a_plain_message_has_the_bytes_of_version_1() -> None:
    rest = {"colour": "red", "größe": "3"}
    message = Message("queue://a", b"body", rest, "", 4, True, 5, 6, "", TEXT, 7)
    assert encode_message(message, 1) == of_version_1(rest)
    assert encode_message(Message("queue://a", b"body", None, "", 4, True, 5, 6, "", BYTES, 7), 1) == frame_record(
        MESSAGE, MESSAGE_HEAD.pack(7, 1, 0, 4, 5, 6, 0, 0, 0) + b"body"
    )


@given(st.dictionaries(TEXTS | st.sampled_from(["type", "reply-to", "correlation-id"]), TEXTS, min_size=1))
def test_headers_of_version_1_become_an_envelope_and_are_written_as_before(sent: dict[str, str]) -> None:
    message = decoded(of_version_1(sent))
    rest = dict(sent)
    envelope = lift(rest)
    assert (message.envelope, message.properties) == (envelope, rest)
    again = encode_message(message, 1)
    assert isinstance(again, bytes)
    assert not again[FLAGS_AT] & EXTENDED
    at = 9 + MESSAGE_HEAD.size
    assert json.loads(again[at : body_offset(again)]) == sent
    assert facts(decoded(again)) == facts(message)


@pytest.mark.parametrize(
    ("envelope", "properties", "content"),
    [
        (Envelope("ID:1"), None, TEXT),
        (Envelope(sent_ms=1), None, TEXT),
        (Envelope(), None, MAP),
        (Envelope(), None, TEXT),
        (Envelope(native=Native("x", b"")), None, BYTES),
        (Envelope(), {"n": Int32(1)}, TEXT),
        (Envelope(), {"type": "a property, no header"}, TEXT),
        (Envelope(type="t"), {"type": "another"}, TEXT),
        (Envelope(correlation_id="ID:AMQP_BINARY:00"), None, TEXT),
        (Envelope(reply_to="/queue/a"), None, TEXT),
    ],
)
def test_all_else_is_extended(envelope: Envelope, properties: dict[str, Value] | None, content: int) -> None:
    message = Message("queue://a", b"x", properties, content=content, envelope=envelope)
    record = encode_message(message, 1)
    assert isinstance(record, bytes)
    assert record[FLAGS_AT] == EXTENDED | (content == TEXT)
    assert facts(decoded(record)) | {"size": 0} == facts(message) | {"size": 0}


@pytest.mark.parametrize("id", [b"\x00\xff", "", "c"])
def test_a_correlation_id_needs_no_extension(id: str | bytes) -> None:
    message = Message("queue://a", b"x", envelope=Envelope(correlation_id=id))
    record = encode_message(message, 1)
    assert isinstance(record, bytes)
    assert not record[FLAGS_AT] & EXTENDED
    assert decoded(record).envelope == message.envelope


@given(messages())
def test_the_length_of_a_record_is_known_before(message: Message) -> None:
    message.destination = "queue://a"
    assert record_bytes(message) == len(encode_record(message, {"queue://a": 1}))
    several = Multicast(message, ["queue://a", "queue://b"], [3, 4])
    assert record_bytes(several) == len(encode_record(several, {"queue://a": 1, "queue://b": 2}))


@pytest.mark.parametrize("more", [{}, {"user": "u"}, {"span": "é", "stores": ["s1", "s2"]}])
def test_the_length_of_a_prepared_transaction_is_known_before(more: dict[str, Any]) -> None:
    sends, acks = {"queue://a": [1, 2], "queue://b": [7]}, {"queue://c": [3]}
    record = Prepared("x", 3, 1, 2, "job", 7, sends, acks, [("queue://a", "m", 1)], **more)
    assert record_bytes(record) == len(encode_record(record, {}))


@given(messages())
def test_each_queue_of_several_holds_the_whole_message(message: Message) -> None:
    message.destination = "topic://t"
    names = NAME + Destination(2, "queue://b").encode({})
    record = encode_record(Multicast(message, ["queue://a", "queue://b"], [3, 4]), {"queue://a": 1, "queue://b": 2})
    assert isinstance(record, bytes)
    *_, found = Decoder("x").decode(names + record)
    assert isinstance(found, Multicast)
    copies = list(found.held())
    expected = [Copy.of(message, name, seq) for name, seq in (("queue://a", 3), ("queue://b", 4))]
    assert [facts(copy) for copy in copies] == [facts(copy) for copy in expected]


def test_who_needs_no_body_reads_no_envelope() -> None:
    message = Message("queue://a", b"x", {"n": Float32(1)}, duplicate_id="d", seq=3, envelope=Envelope("id"))
    record = encode_message(message, 1)
    assert isinstance(record, bytes)
    found = decoded(record, bodies=False)
    assert (found.envelope, found.properties, found.body, found.duplicate_id) == (None, None, b"", "d")
    assert found.header_bytes == 0


@pytest.mark.parametrize(
    "section",
    [
        ["no map"],
        {"p": 1},
        {"p": {"a": None}},
        {"p": {"a": []}},
        {"k": 6},
        {"k": -1},
        {"k": True},
        {"k": 2.0},
        {"i": 1},
        {"c": 1},
        {"r": b""},
        {"t": None},
        {"s": "1"},
        {"n": ["x"]},
        {"n": ["x", "y"]},
        {"n": b""},
        {"z": 1},
    ],
)
def test_a_damaged_section_is_the_one_documented_error(section: Nested) -> None:
    data = values.encode(section)
    for written in (data, data[:-1], data + b"\0"):
        head = MESSAGE_HEAD.pack(7, 1, EXTENDED, 4, 5, 6, 0, 0, len(written))
        record = frame_record(MESSAGE, head + written + b"body")
        with pytest.raises(CorruptError):
            decoded(record)


@given(st.dictionaries(TEXTS, st.integers(0, 5)))
def test_types_survive(found: dict[str, int]) -> None:
    properties: dict[str, Value] = {name: Int32(value) for name, value in found.items()}
    message = Message("queue://a", b"x", properties, envelope=Envelope())
    record = encode_message(message, 1)
    assert isinstance(record, bytes)
    assert typed(decoded(record).properties or {}) == typed(properties)
