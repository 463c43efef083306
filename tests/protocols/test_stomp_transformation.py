"""The header `transformation`: maps as XML and JSON, spelled as ActiveMQ's STOMP clients spell them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.core.errors import ProtocolError
from amq.core.message import BYTES, MAP, OBJECT, TEXT, Envelope, Message, Sharing
from amq.core.values import Float32, Int8, Int16, Int32, Nested, decode_map, encode
from amq.protocols.stomp import transformation
from amq.protocols.stomp.delivery import Deliveries
from amq.protocols.stomp.frame import FrameReader
from amq.protocols.stomp.transformation import BODY_BYTES_MAX, asked, sent, shown

XML = (
    b"<map>\n  <entry>\n    <string>name</string>\n    <string>Dejan</string>\n  </entry>\n"
    b"  <entry><string>age</string><int>30</int></entry>"
    b"<entry><string>rich</string><boolean>true</boolean></entry></map>"
)
JSON = b'{"map":{"entry":[{"string":["name","Dejan"]},{"string":"age","int":30},{"string":"rich","boolean":true}]}}'
VALUES_OF_JAVA: dict[str, Nested] = {"name": "Dejan", "age": Int32(30), "rich": True}
VALUES = {"name": "Dejan", "age": 30, "rich": True}


def send(name: str, body: bytes, **properties: str) -> Message:
    message = Message("queue://q", body, {"transformation": name, **properties}, content=TEXT)
    return sent(message, name)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("jms-map-xml", XML),
        ("JMS_MAP_XML".lower().replace("_", "-"), XML),
        ("jms-xml", XML),
        ("jms-map-json", JSON),
        ("jms-json", JSON),
        ("jms-map-json", json.dumps(VALUES).encode()),
        (
            "jms-map-json",
            b'{"map":{"entry":[{"string":["name","Dejan"]},{"string":"age","int":"30"},'
            b'{"string":"rich","boolean":"true"}]}}',
        ),
    ],
)
def test_a_send_becomes_a_map(name: str, body: bytes) -> None:
    message = send(name, body, other="kept")
    spelling = "jms-map-xml" if name.endswith("xml") else "jms-map-json"
    assert (message.content, message.properties) == (MAP, {"transformation": spelling, "other": "kept"})
    assert decode_map(message.body) == VALUES
    assert isinstance(decode_map(message.body)["age"], Int32), "a program may read it as int and as long"


@pytest.mark.parametrize(("name", "body"), [("jms-map-xml", XML), ("jms-json", JSON)])
@pytest.mark.parametrize("shares", [True, False])
def test_a_consumer_that_asks_for_nothing_gets_it_as_it_was_sent(name: str, body: bytes, shares: bool) -> None:
    message = send(name, body, other="kept")
    message.seq, message.shared = 7, Sharing(None) if shares else None
    deliveries = Deliveries("1.2", "ID:x-", "9-9.")
    (frame,) = FrameReader(version="1.2").feed(deliveries.encode(deliveries.format("s", 0, False), message, 0))
    assert sent(Message("queue://q", frame.body, {"transformation": frame.headers["transformation"]}), name).body == (
        encode(VALUES_OF_JAVA)
    )
    assert frame.body.startswith(body[:5])
    assert frame.headers["other"] == "kept"
    assert "content-type" not in frame.headers


def test_one_entry_alone_stands_in_no_list() -> None:
    assert decode_map(send("jms-map-json", b'{"map":{"entry":{"string":["a","b"]}}}').body) == {"a": "b"}
    assert decode_map(send("jms-map-xml", b"<map/>").body) == {}


def test_bytes_can_be_asked_for() -> None:
    message = send("jms-byte", b"abc")
    assert (message.content, message.body, message.properties) == (BYTES, b"abc", None)


@pytest.mark.parametrize(
    ("name", "body", "why"),
    [
        ("jms-map-xml", b"<map><entry>", "no XML"),
        ("jms-map-xml", b"<list/>", "<list> where <map>"),
        ("jms-map-xml", b"<map><entry><int>1</int></entry></map>", "not a name in <string>"),
        ("jms-map-xml", b"<map><entry><string>a</string><int>x</int></entry></map>", "invalid literal"),
        ("jms-map-xml", b"<map><entry><string>a</string><int>2147483648</int></entry></map>", "32 bits"),
        ("jms-map-xml", b"<map><entry><string>a</string><person/></entry></map>", "<person> is not a type"),
        (
            "jms-map-xml",
            b'<!DOCTYPE m [<!ENTITY a "b">]><map><entry><string>&a;</string><int>1</int></entry></map>',
            "",
        ),
        (
            "jms-map-xml",
            b"<map>" + b"<entry><string>a</string><map>" * 40 + b"</map></entry>" * 40 + b"</map>",
            "32 times",
        ),
        ("jms-map-xml", b"\xff", ""),
        ("jms-map-json", b"[]", "not an object"),
        ("jms-map-json", b"{", ""),
        ("jms-map-json", b'{"map":{"entry":[1]}}', "not an object"),
        ("jms-map-json", b"[" * 100_000, ""),
        ("jms-map-json", b'{"a":' * 40 + b"1" + b"}" * 40, ""),
        ("jms-object-xml", b"<x/>", "cannot be read"),
        ("jms-map-json", b'{"a":99999999999999999999}', ""),
        ("nonsense", b"x", "cannot be read"),
        ("jms-map-json", b'{"map":{"entry":[{"string":["a","b","c"]}]}}', "not a name"),
        ("jms-map-json", b'{"map":{"entry":[{"string":"a","int":{}}]}}', "not a single value"),
        ("jms-map-json", b'{"a":"' + b"x" * BODY_BYTES_MAX + b'"}', "more than"),
    ],
)
def test_a_body_that_is_no_map_goes_as_it_is(name: str, body: bytes, why: str) -> None:
    message = send(name, body)
    assert (message.content, message.body) == (TEXT, body)
    assert message.properties is not None
    assert message.properties["transformation"] == name
    assert why in str(message.properties["transformation-error"])


def test_an_envelope_stays() -> None:
    message = sent(
        Message(
            "queue://q", XML, {"transformation": "jms-map-xml"}, content=TEXT, envelope=Envelope(correlation_id="c")
        ),
        "jms-map-xml",
    )
    assert message.envelope == Envelope(correlation_id="c")


FLAT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.binary(),
    st.none(),
    st.builds(Int8, st.integers(-128, 127)),
    st.builds(Int16, st.integers(-(2**15), 2**15 - 1)),
    st.builds(Int32, st.integers(-(2**31), 2**31 - 1)),
    st.builds(Float32, st.floats(width=32, allow_nan=False)),
)
MAPS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    st.one_of(
        FLAT,
        st.lists(st.integers(0, 9)),
        st.dictionaries(st.text("ab"), FLAT, max_size=3),
    ),
    max_size=6,
)


@given(MAPS, st.sampled_from(["jms-map-xml", "jms-map-json"]))
def test_a_map_comes_back_with_its_types(values: dict[str, Nested], name: str) -> None:
    text = shown(Message("queue://q", encode(values), content=MAP, envelope=Envelope()), name)
    assert (text.content, text.properties) == (TEXT, {"transformation": name})
    assert sent(text, name).body == encode(values)


def test_what_xml_cannot_hold_is_replaced() -> None:
    text = shown(Message("queue://q", encode({"a": "b\0<\ud800"}), content=MAP, envelope=Envelope()), "jms-xml")
    assert text.body.decode() == "<map><entry><string>a</string><string>b\ufffd&lt;\ufffd</string></entry></map>"
    assert text.properties == {"transformation": "jms-map-xml"}


def test_what_is_no_map_is_shown_as_ever() -> None:
    for content in (OBJECT, TEXT):
        message = Message("queue://q", b"x", content=content, envelope=Envelope())
        found = shown(message, "jms-map-xml")
        assert (found.body, found.properties) == (b"x", None)
    body = encode({"a": "b" * BODY_BYTES_MAX})
    large = shown(Message("queue://q", body, content=MAP, envelope=Envelope()), "jms-xml")
    assert large.content_type == "application/json"
    assert "more than" in str((large.properties or {})["transformation-error"])
    damaged = shown(Message("queue://q", b"\xff", content=MAP, envelope=Envelope()), "jms-xml")
    assert damaged.content == BYTES


def test_a_subscription_names_a_transformation_that_there_is() -> None:
    assert asked({}) == ""
    assert asked({"transformation": "JMS-MAP-XML"}) == "jms-map-xml"
    with pytest.raises(ProtocolError, match="is none of jms-byte"):
        asked({"transformation": "yaml"})


@given(
    st.one_of(st.binary(), st.text('<>/maplistenrygk{}[]":,0123 ').map(str.encode)),
    st.sampled_from(transformation._NAMES),
)
def test_nothing_that_is_sent_fails(body: bytes, name: str) -> None:
    message = send(name, body)
    assert message.content in (TEXT, BYTES, MAP)
