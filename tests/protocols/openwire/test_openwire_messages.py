"""Messages of OpenWire ↔ `Message`: they go to consumers as they came, and to other protocols as what they say."""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any

import pytest
from conversation import CONSUMER, QUEUE, frames, message, opened
from hypothesis import assume, given
from hypothesis import strategies as st
from test_openwire_table import structures

from amq.core.message import (
    BYTES,
    MAP,
    NONE,
    STREAM,
    TEXT,
    THREAD_BYTES_MAX,
    CostlyError,
    Envelope,
    Message,
    neutral,
    without,
)
from amq.core.values import Int16, Int32, Nested
from amq.core.values import decode as decode_value
from amq.protocols.commands import Invalid, Send
from amq.protocols.openwire import table
from amq.protocols.openwire.codec import OpenWireCodec
from amq.protocols.openwire.consumers import Ack, Consumer, _read_any, read_ack
from amq.protocols.openwire.messages import (
    PROPERTIES_MAX,
    SCHEDULED,
    message_of,
    own_id,
    read_message,
    write,
)
from amq.protocols.openwire.primitives import (
    NESTED_VALUES_MAX,
    decode_map,
    encode_map,
    encode_stream,
    properties_of,
)
from amq.protocols.openwire.table import Structure, decode, encode, frame, nested, read_nested, structure
from amq.protocols.openwire.transactions import END, Local, read_local
from amq.protocols.openwire.wire import INT, FieldReader, encode_text
from tests.sampling import only

TYPES = sorted(set(range(table.MESSAGE, table.BLOB_MESSAGE)))
TRACE = {  # W3C Trace Context
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "congo=t61rcWkgMzE,rojo@v1=00f067aa0ba902b7:\\n;x, empty=",
}


@st.composite
def messages(draw: st.DrawFn, version: int = 12) -> Structure:
    """Any message that has what each must have."""
    found = draw(st.sampled_from(TYPES).flatmap(lambda type: structures(type, version)))
    producer = draw(structures(table.PRODUCER_ID, version))
    id = draw(structures(table.MESSAGE_ID, version))
    id.fields["producer"] = producer
    destination = structure(draw(st.sampled_from(table.DESTINATION_TYPES)), name=draw(st.text(max_size=9)))
    found.fields.update(producer=producer, id=id, destination=destination)
    assume(SCHEDULED not in (found.get("properties") or b""))  # the broker reads those, and refuses what is not a map
    return found


def received(found: Structure, version: int = 12) -> Message:
    incoming = read_message(encode(found, version), version)
    stored = message_of(incoming, "queue://orders", "")
    stored.seq = 77
    return stored


def dispatched(stored: Message, version: int = 12, id: bytes = b"") -> Structure:
    found = read_nested(FieldReader(b"".join(write(stored, version, id))), version)
    assert found is not None
    return found


@pytest.mark.parametrize("version", only([6, 9, 10, 11, 12], 12))
@given(data=st.data())
def test_a_message_is_read_as_the_table_reads_it(version: int, data: st.DataObject) -> None:
    found = data.draw(messages(version))
    incoming = read_message(encode(found, version), version)
    fields = found.fields
    assert incoming.answer == (fields["command_id"] if fields["response_required"] else None)
    assert incoming.producer == table.nested(fields["producer"])
    assert incoming.destination == table.nested(fields["destination"])
    assert incoming.transaction == (table.nested(fields["transaction"]) if fields["transaction"] else b"")
    assert incoming.id.producer == table.nested(fields["id"].get("producer"))
    assert incoming.id.sequence == fields["id"].get("producer_sequence")
    assert (incoming.id.text, incoming.group[0]) == (fields["id"].get("text", ""), found.get("group_id", ""))
    assert incoming.persistent == fields["persistent"]
    assert incoming.expiration == fields["expiration"]
    assert incoming.content == found.get("content", b"")
    assert incoming.properties == found.get("properties", b"")


@given(messages())
def test_a_message_goes_as_it_came(found: Structure) -> None:
    """All but the broker's sequence, and what belonged to the command."""
    back = dispatched(received(found))
    found.fields.update(command_id=0, response_required=False)
    found.fields["id"].fields["broker_sequence"] = 77
    assert back == found


@given(messages(), st.sampled_from([6, 9, 10, 12]))
def test_any_version_gets_what_it_knows(found: Structure, version: int) -> None:
    back = dispatched(received(found), version)
    assert back.fields.keys() == {name for name, _, since in table.FIELDS[found.type] if since <= version}
    assert back.get("content") == found.get("content")
    assert back.get("correlation_id") == found.get("correlation_id")
    assert back.fields["id"].get("broker_sequence") == 77


@given(messages(), st.data())
def test_damaged_messages(found: Structure, data: st.DataObject) -> None:
    """Whatever is taken can be shown to everybody: to a client of any version, and to other protocols."""
    whole = bytearray(encode(found))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xC0, 0xED, 0xFF, 100, 110, 111]))
    if whole[0] not in TYPES:
        return
    try:
        incoming = read_message(bytes(whole), 12)
        stored = message_of(incoming, "queue://orders", "")
    except ValueError:
        return
    shown(stored)


def shown(stored: Message) -> None:
    stored.seq = 77
    dispatched(stored)
    dispatched(stored, 9)
    dispatched(stored, 12, own_id(stored, "ID:amq-1-1", 1, stored.seq, "ID:AMQ", 12))
    neutral(stored)
    stored.properties = {**(stored.properties or {}), "dlqDeliveryFailureCause": "x"}
    dispatched(stored)


BAD = b"\xff\xfe"


@pytest.mark.parametrize("name", ["correlation_id", "type", "user_id", "group_id"])
def test_texts_that_are_none(name: str) -> None:
    whole = encode(message(**{name: "@@@@"})).replace(b"@@@@", BAD * 2)
    try:
        stored = message_of(read_message(whole, 12), "queue://orders", "")
    except ValueError:
        return
    shown(stored)


@pytest.mark.parametrize("field", ["reply_to", "original_destination"])
@pytest.mark.parametrize("name", ["", "a\nb", "x,,y", "@@@@", "?"])
def test_names_of_other_destinations_that_are_none(field: str, name: str) -> None:
    whole = encode(message(**{field: structure(table.QUEUE, name=name)})).replace(b"@@@@", BAD * 2)
    try:
        stored = message_of(read_message(whole, 12), "queue://orders", "")
    except ValueError:
        return
    shown(stored)


def test_properties_that_are_none() -> None:
    for properties in (b"x", INT.pack(-5), INT.pack(1) + b"\0\1a\x63"):
        try:
            stored = message_of(read_message(encode(message(properties=properties)), 12), "queue://orders", "")
        except ValueError:
            continue
        shown(stored)


# -- other protocols --------------------------------------------------------------------------------------------------


def test_what_other_protocols_see() -> None:
    found = message(
        content=INT.pack(6) + encode_text("😀"),
        correlation_id="c-1",
        type="order",
        timestamp=123,
        priority=7,
        reply_to=structure(table.TEMP_QUEUE, name="ID:1:1"),
        group_id="g",
        group_sequence=3,
        user_id="alice",
        properties=encode_map({"color": "red", "count": Int16(5), **TRACE}),
    )
    seen = neutral(received(found))
    assert (seen.content, seen.body.decode(), seen.priority) == (TEXT, "😀", 7)
    own = {"JMSXGroupID": "g", "JMSXGroupSeq": 3, "JMSXUserID": "alice"}
    assert seen.properties == {"color": "red", "count": 5, **TRACE, **own}
    assert seen.envelope is not None
    assert seen.envelope[:5] == Envelope("ID:host-1-1:1:1:1:1", "c-1", "temp-queue://ID:1:1", "order", 123)[:5]


@given(messages(), st.dictionaries(st.text(max_size=4), st.integers(0, 9) | st.text(max_size=4), max_size=3))
def test_a_message_without_some_of_its_properties(found: Structure, kept: dict[str, Nested]) -> None:
    """All else is as it was, and what the broker adds is seen."""
    every = encode_map({"first taken": 1, **kept, "last taken": "x"})
    stored = received(Structure(found.type, found.fields | {"properties": every}))
    properties, envelope = without(stored, ["first taken", "last taken"])
    cleaned = Message.made_of(stored, stored.destination, properties)
    cleaned.envelope, cleaned.seq = envelope, stored.seq
    expected = received(Structure(found.type, found.fields | {"properties": encode_map(kept) if kept else None}))
    assert dispatched(cleaned) == dispatched(expected)
    cleaned.properties = {"added": "y"}
    assert decode_map(dispatched(cleaned).fields["properties"]) == {**kept, "added": "y"}


def test_a_user_that_the_broker_names_counts() -> None:
    stored = received(message(content=None, user_id="root", properties=encode_map({"color": "red"})))
    signed = Message.made_of(stored, stored.destination, {"JMSXUserID": "ada"}, stored.seq)
    found = dispatched(signed)
    assert (found.get("user_id"), decode_map(found.get("properties"))) == ("ada", {"color": "red"})
    assert (neutral(signed).properties or {}) == {"color": "red", "JMSXUserID": "ada"}


MAP_BODY: dict[str, Nested] = {"a": Int32(5), "b": [True, None]}


@pytest.mark.parametrize(
    ("type", "content", "kind", "expected"),
    [
        (table.TEXT_MESSAGE, INT.pack(2) + b"hi", TEXT, b"hi"),
        (table.TEXT_MESSAGE, INT.pack(0), TEXT, b""),
        (table.TEXT_MESSAGE, None, TEXT, b""),
        (table.BYTES_MESSAGE, b"\0\xff", BYTES, b"\0\xff"),
        (table.MAP_MESSAGE, encode_map(MAP_BODY), MAP, MAP_BODY),
        (table.MAP_MESSAGE, None, MAP, {}),
        (table.STREAM_MESSAGE, encode_stream([1, "x"]), STREAM, [1, "x"]),
        (table.MESSAGE, None, NONE, b""),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_bodies(type: int, content: bytes | None, kind: int, expected: object, compressed: bool) -> None:
    sent = content
    if compressed and content:
        sent = (INT.pack(len(content)) if type == table.BYTES_MESSAGE else b"") + zlib.compress(content)
    stored = received(message(type, content=sent, compressed=compressed))
    assert dispatched(stored).get("content") == sent
    seen = neutral(stored)
    assert seen.content == kind
    assert (decode_value(seen.body) if kind in (MAP, STREAM) else seen.body) == expected


def test_a_body_that_swells_is_shown_as_it_came() -> None:
    bomb = zlib.compress(bytes(THREAD_BYTES_MAX + 1))
    stored = received(message(table.TEXT_MESSAGE, content=bomb, compressed=True))
    with pytest.raises(CostlyError):
        neutral(stored)
    seen = neutral(stored, THREAD_BYTES_MAX)
    assert (seen.content, seen.body) == (BYTES, bomb)


@pytest.mark.parametrize("damage", [b"x", zlib.compress(b"abc" * 99)[:-9], b"\0"])
def test_a_compressed_body_that_is_damaged(damage: bytes) -> None:
    stored = received(message(table.MAP_MESSAGE, content=damage, compressed=True))
    assert neutral(stored).body == damage
    assert dispatched(stored).get("content") == damage


@given(st.text(), st.dictionaries(st.text(min_size=1, max_size=9), st.text(max_size=9), max_size=3))
def test_texts_of_other_protocols(body: str, properties: dict[str, str]) -> None:
    kept = {name: value for name, value in properties.items() if name not in ("type", "reply-to")}
    stored = Message("queue://a", body.encode(), kept or None, "", 4, True, 1, 0, "", TEXT, 5)
    found = dispatched(stored)
    assert found.type == table.TEXT_MESSAGE
    assert found.get("content", b"")[4:] == encode_text(body)
    assert decode_map(found.get("properties")) == kept
    assert found.get("destination") == structure(table.QUEUE, name="a")


def test_headers_of_other_protocols() -> None:
    properties: dict[str, Any] = {"JMSXGroupID": "g", "type": "order", "reply-to": "temp-queue://ID:1:1", **TRACE}
    stored = Message(
        "topic://t", b"\0\1", properties, "", 3, False, 10, 99, "", BYTES, 5, Envelope("", "c-1", "", "", 8)
    )
    found = dispatched(stored)
    assert found.type == table.BYTES_MESSAGE
    names = "content", "group_id", "type", "correlation_id", "priority", "persistent", "expiration", "timestamp"
    assert [found.get(name) for name in names] == [b"\0\1", "g", "order", "c-1", 3, False, 99, 8]
    assert found.get("reply_to") == structure(table.TEMP_QUEUE, name="ID:1:1")
    assert decode_map(found.get("properties")) == TRACE, "these pass as they came"


# -- acknowledgements and dispatches ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", only([6, 9, 10, 12], 12))
@given(data=st.data())
def test_an_acknowledgement_is_read_as_the_table_reads_it(version: int, data: st.DataObject) -> None:
    found = data.draw(structures(table.MESSAGE_ACK, version))
    id, producer = structures(table.MESSAGE_ID, version), structures(table.PRODUCER_ID, version)
    for name in ("first", "last"):
        if data.draw(st.booleans()):
            found.fields[name] = data.draw(id)
            found.fields[name].fields["producer"] = data.draw(producer)
    if data.draw(st.booleans()):
        found.fields.update(consumer=CONSUMER, destination=QUEUE, cause=None)
    whole = encode(found, version)
    assert read_ack(whole, version) == _read_any(whole, version)


CONNECTIONS = structures(table.CONNECTION_ID, table.VERSION_MAX)
TRANSACTIONS = st.builds(
    partial(structure, table.TRANSACTION_INFO),
    command_id=st.integers(0, 2**31 - 1),
    response_required=st.booleans(),
    connection=st.none() | CONNECTIONS,
    transaction=st.none()
    | structures(table.XA_TRANSACTION_ID, table.VERSION_MAX)
    | st.builds(
        partial(structure, table.LOCAL_TRANSACTION_ID),
        value=st.integers(-(2**63), 2**63 - 1),
        connection=st.none() | CONNECTIONS,
    ),
    kind=st.integers(-128, 127),
)


def usual(data: bytes) -> Local | None:
    """The reference for `read_local`: what the table reads, where it is of a local transaction with all its names."""
    found = decode(data)
    id, connection = found.get("transaction"), found.get("connection")
    if connection is None or connection.get("value") is None or id is None or id.type != table.LOCAL_TRANSACTION_ID:
        return None
    if (
        id.get("connection") is None
        or id.get("connection").get("value") is None
        or not 0 <= found.get("kind", 0) <= END
    ):
        return None
    return Local(
        found.get("command_id", 0), found.get("response_required", False), found.get("kind", 0), nested(id), id
    )


@given(TRANSACTIONS)
def test_a_local_transaction_is_read_as_the_table_reads_it(found: Structure) -> None:
    whole = encode(found)
    assert read_local(whole) == usual(whole)


@given(TRANSACTIONS, st.data())
def test_any_bytes_as_a_transaction(found: Structure, data: st.DataObject) -> None:
    whole = bytearray(encode(found))
    whole[data.draw(st.integers(6, len(whole) - 1))] = data.draw(st.integers(0, 255))
    whole = whole[: data.draw(st.integers(1, len(whole)))] + data.draw(st.binary(max_size=2))
    local = read_local(bytes(whole))
    if local is not None:  # else the table reads it, or refuses it
        assert local == usual(bytes(whole))


@given(st.binary(max_size=120).map(lambda data: bytes((table.MESSAGE_ACK,)) + data))
def test_any_bytes_as_an_acknowledgement(data: bytes) -> None:
    for version in (9, 12):
        try:
            found = read_ack(data, version)
        except ValueError:
            continue
        assert isinstance(found, Ack)


def consumer_of(codec: OpenWireCodec) -> Consumer:
    consumer = next(iter(codec._consumers.values()))
    assert isinstance(consumer, Consumer)
    return consumer


@pytest.mark.parametrize("version", only([6, 9, 10, 12], 12))
@given(data=st.data())
def test_a_dispatch_is_what_the_table_writes(version: int, data: st.DataObject) -> None:
    codec, found = opened(version), data.draw(messages(version))
    stored = received(found, version)
    if stored.properties:
        return
    (dispatch,) = frames(codec.delivery(consumer_of(codec), stored, 2), version)
    assert dispatch.get("consumer") == CONSUMER
    assert (dispatch.get("destination"), dispatch.get("redelivery_counter")) == (QUEUE, 2)
    assert dispatch.get("message").get("content") == found.get("content")
    assert b"".join(codec.large_delivery(consumer_of(codec), stored, 2))[4:] == encode(dispatch, version)


def test_a_message_through_a_connection() -> None:
    codec = opened()
    (send,) = [each for each in codec.receive(frame(message())) if isinstance(each, Send)]
    assert send.message.destination == "queue://orders"
    assert decode(encode(message())).type == table.TEXT_MESSAGE


@pytest.mark.parametrize("short", [False, True])
def test_a_message_with_too_many_properties_is_refused_before_they_are_read(
    short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = opened()
    if short:  # its producer is known, and usual messages are read the short way
        codec.receive(frame(message()))
    monkeypatch.setattr("amq.protocols.openwire.primitives._map", lambda *_: pytest.fail("they were read"))
    for count, kind in ((PROPERTIES_MAX, Send), (PROPERTIES_MAX + 1, Invalid)):
        properties = encode_map({f"{number:x}": True for number in range(count)})
        *_, found = codec.receive(frame(message(properties=properties, sequence=count)))
        assert isinstance(found, kind)
    assert found.error.code == "HEADERS_TOO_MANY"


def test_large_maps_among_properties_are_not_read_to_their_end() -> None:
    within: dict[str, Nested] = {"a": {f"{number:x}": True for number in range(NESTED_VALUES_MAX - 1)}, "b": 1}
    assert properties_of(encode_map(within)) == {"b": 1}
    with pytest.raises(ValueError, match="too many values"):
        properties_of(encode_map({"a": {f"{number:x}": True for number in range(NESTED_VALUES_MAX + 2)}, "b": 1}))
    many: dict[str, Nested] = {f"{number:x}": True for number in range(2 * NESTED_VALUES_MAX)}
    assert properties_of(encode_map(many)) == many
