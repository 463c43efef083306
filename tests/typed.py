"""Strategies of typed values and messages with an envelope; and Tiny, a protocol that keeps the form of its messages.

Tiny counts how often something of it is read: nobody of the same protocol may need that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from typing import Any

from hypothesis import strategies as st

from amq.core import values
from amq.core.message import NONE, TEXT, Content, Envelope, Head, Message, Native, NativeReader, register
from amq.core.values import Float32, Int8, Int16, Int32, Nested, Value

TINY = "tiny"
reads: Counter[str] = Counter()

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
VALUES: st.SearchStrategy[Value] = st.one_of(
    TEXTS,
    st.booleans(),
    st.integers(-128, 127).map(Int8),
    st.integers(-(1 << 15), (1 << 15) - 1).map(Int16),
    st.integers(-(1 << 31), (1 << 31) - 1).map(Int32),
    INT64,
    st.floats(width=32).map(Float32),
    st.floats(),
    st.binary(max_size=12),
)
NESTED: st.SearchStrategy[Nested] = st.recursive(
    VALUES | st.none(), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4)
)
REPLIES = st.sampled_from(
    ["", "queue://a", "topic://a.b,queue://c", "temp-queue://3-17.r", "/queue/a", "orders", "http://x", "/queue/a,b"]
)
ENVELOPES = st.builds(
    Envelope,
    TEXTS,
    st.none() | TEXTS | st.binary(max_size=8) | st.just("ID:AMQP_BINARY:00FF"),
    REPLIES,
    TEXTS,
    st.integers(0, 1 << 62),
    st.none() | st.builds(Native, TEXTS, st.binary(max_size=40)),
)
NAMES = TEXTS | st.sampled_from(["type", "reply-to", "correlation-id", "colour"])


@st.composite
def messages(draw: st.DrawFn, envelopes: st.SearchStrategy[Envelope] = ENVELOPES) -> Message:
    """With typed properties and an envelope."""
    properties = draw(st.dictionaries(NAMES, VALUES, max_size=3)) or None
    return Message(
        draw(st.sampled_from(["queue://a", "queue://b/ü"])),
        draw(st.binary(max_size=40)),
        properties,
        draw(TEXTS),
        draw(st.integers(0, 9)),
        True,
        draw(st.integers(0, 1 << 62)),
        draw(st.integers(0, 1 << 62)),
        draw(TEXTS),
        draw(st.integers(0, NONE)),
        draw(st.integers(0, 1 << 62)),
        draw(envelopes),
    )


def typed(found: Any) -> Any:
    """Equal only to a value of the same types; NaN is equal to itself."""
    if isinstance(found, Mapping):
        return {name: typed(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [typed(value) for value in found]
    return found.__class__, repr(found)


def facts(message: Message) -> dict[str, Any]:
    """All that a message says, comparable."""
    apart = ("segment", "offset", "size", "shared", "properties", "envelope")
    own = {name: getattr(message, name) for name in Message.__slots__ if name not in apart}
    return own | {"properties": typed(message.properties or {}), "envelope": typed(message.envelope or ())}


# -- Tiny: properties are an encoded map in the native data; a body is its content kind and its bytes backwards --------


def tiny(destination: str, body: bytes, properties: dict[str, Nested], content: int = TEXT, **more: Any) -> Message:
    """As its codec would hand it over."""
    native = Native(TINY, values.encode(properties))
    seen = {name: value for name, value in properties.items() if name.startswith(("JMSX", "AMQ_"))}
    envelope = Envelope(more.pop("message_id", ""), more.pop("correlation_id", None), native=native)
    return Message(destination, bytes([content]) + body[::-1], seen or None, envelope=envelope, **more)  # type: ignore[arg-type]


def _head(message: Message) -> Head:
    reads["head"] += 1
    envelope = message.envelope
    assert envelope is not None
    assert envelope.native is not None
    properties = values.decode_map(envelope.native.data)
    return properties, envelope._replace(type="tiny")  # type: ignore[return-value]


def _content(message: Message, bytes_max: int) -> Content:  # noqa: ARG001
    reads["content"] += 1
    if not message.body or message.body[0] > NONE:
        raise ValueError("no body of tiny")
    return Content(message.body[0], message.body[:0:-1])


def _without(data: bytes, names: Container[str]) -> bytes:
    return values.encode({name: value for name, value in values.decode_map(data).items() if name not in names})


register(TINY, NativeReader(_head, _content, _without))
