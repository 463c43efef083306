"""Primitive maps and streams: every type comes back as itself, and what lies about its size is refused."""

from __future__ import annotations

import math
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.core.values import DEPTH_MAX, VALUES_MAX, Float32, Int8, Int16, Int32, Nested
from amq.core.values import encode as encode_neutral
from amq.protocols.openwire.primitives import (
    decode_map,
    decode_stream,
    encode_map,
    encode_stream,
    encode_value,
    properties_of,
)
from amq.protocols.openwire.wire import INT

texts = st.text(max_size=20)
simple = st.one_of(
    st.none(),
    st.booleans(),
    texts,
    st.binary(max_size=20),
    st.integers(-128, 127).map(Int8),
    st.integers(-(1 << 15), (1 << 15) - 1).map(Int16),
    st.integers(-(1 << 31), (1 << 31) - 1).map(Int32),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(Float32),
)
values = st.recursive(
    simple, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)


def typed(value: Nested) -> object:
    """`value` with the type of each part."""
    if isinstance(value, dict):
        return {name: typed(each) for name, each in value.items()}
    if isinstance(value, list):
        return [typed(each) for each in value]
    return type(value), value


@given(st.dictionaries(texts, values, max_size=6))
def test_maps_come_back(found: dict[str, Nested]) -> None:
    back = decode_map(encode_map(found))
    assert typed(back) == typed(found)
    encode_neutral(back)  # it can be stored


@given(st.lists(values, max_size=6))
def test_streams_come_back(found: list[Nested]) -> None:
    assert typed(decode_stream(encode_stream(found))) == typed(found)


def test_bytes_of_every_type() -> None:
    """As the marshallers of ActiveMQ write them."""
    said: list[Nested] = [
        None,
        True,
        Int8(-1),
        Int16(258),
        Int32(1),
        1,
        1.0,
        Float32(1.0),
        "é",
        b"\1",
        {"a": None},
        [False],
    ]
    assert encode_stream(said).hex(" ") == (
        "00 01 01 02 ff 04 01 02 05 00 00 00 01 06 00 00 00 00 00 00 00 01 07 3f f0 00 00 00 00 00 00 08 3f 80 00 00 "
        "09 00 02 c3 a9 0a 00 00 00 01 01 0b 00 00 00 01 00 01 61 00 0c 00 00 00 01 01 00"
    )


def test_a_char_is_a_text_of_one_character() -> None:
    assert decode_stream(b"\x03\0A\x03\xd8\x3d") == ["A", "\ud83d"]


def test_not_a_number_comes_back() -> None:
    double, single = decode_stream(encode_stream([math.nan, Float32(math.nan)]))
    assert isinstance(double, float)
    assert isinstance(single, Float32)
    assert math.isnan(double)
    assert math.isnan(single)


@pytest.mark.parametrize("size", [65_535, 65_536, 200_000])
def test_long_texts_have_a_type_of_their_own(size: int) -> None:
    data = encode_value("x" * size)
    assert data[0] == (9 if size <= 65_535 else 13)
    assert decode_stream(data) == ["x" * size]


def test_no_map() -> None:
    assert decode_map(None) == decode_map(b"") == decode_map(INT.pack(-1)) == decode_map(INT.pack(0)) == {}


@pytest.mark.parametrize(
    "data",
    [
        INT.pack(-2),
        INT.pack(1),
        INT.pack(0) + b"x",
        INT.pack(1) + b"\0\1a\x0e",
        INT.pack(1) + b"\0\1a\xff",
        INT.pack((1 << 31) - 1) + b"\0\1a\1\1",
        INT.pack(1) + b"\0\1a\x0c\xff\xff\xff\xff",
        INT.pack(1) + b"\0\1a\x0a\xff\xff\xff\xff",
        INT.pack(1) + b"\0\1\xff\1\1",
        INT.pack(1) + b"\0\1a\x09\0\5abc",
    ],
)
def test_what_is_no_map(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_map(data)


@pytest.mark.parametrize(("tag", "inner"), [(b"\x0c", b"\0\0\0\1"), (b"\x0b", b"\0\0\0\1\0\1a")])
def test_depth_is_bounded(tag: bytes, inner: bytes) -> None:
    level = tag + inner
    assert decode_stream(level * (DEPTH_MAX - 1) + b"\0")
    for levels in (DEPTH_MAX, 100_000):
        with pytest.raises(ValueError, match="nested more than"):
            decode_stream(level * levels + b"\0")


def test_the_number_of_values_is_bounded() -> None:
    with pytest.raises(ValueError, match="too many values"):
        decode_stream(bytes(VALUES_MAX + 1))


def test_a_count_takes_no_memory_before_its_values_are_there() -> None:
    tracemalloc.start()
    try:
        one = INT.pack(1) + b"\0\1a"
        for data in (INT.pack((1 << 31) - 1), one + b"\x0c\x7f\xff\xff\xff", one + b"\x0a\x7f\xff\xff\xff"):
            with pytest.raises(ValueError, match=r"."):
                decode_map(data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@given(
    st.binary(max_size=60)
    | st.lists(
        st.sampled_from(
            [
                b"\0",
                b"\1",
                b"\x09",
                b"\0\1a",
                b"\x0b",
                b"\x0c",
                b"\x0d",
                b"\0\0\0\1",
                b"\0\0\0\2",
                b"\x0a",
                b"\xff\xff\xff\xff",
                struct.pack(">d", 1.5),
                b"\x07",
                b"\x03",
            ]
        ),
        max_size=20,
    ).map(b"".join)
)
def test_any_bytes(data: bytes) -> None:
    for decode in (decode_map, decode_stream, properties_of):
        try:
            found = decode(data)
        except ValueError:
            continue
        encode_neutral(found if isinstance(found, list) else dict(found))


def test_properties_are_simple_values() -> None:
    said: dict[str, Nested] = {"a": "x", "b": Int16(5), "c": None, "d": [1], "e": {"x": 1}, "f": b"1", "g": 1.5}
    assert properties_of(encode_map(said)) == {"a": "x", "b": 5, "f": b"1", "g": 1.5}
