"""Typed values: bytes and back, text for people, JSON that keeps the types; nothing but ValueError for what is none."""

from __future__ import annotations

import json
import math
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amq.core import values
from amq.core.values import DEPTH_MAX, VALUES_MAX, Float32, Int8, Int16, Int32, Nested, Value
from tests.typed import NESTED, VALUES, typed


@given(NESTED)
def test_round_trip(value: Nested) -> None:
    data = values.encode(value)
    found = values.decode(data)
    assert typed(found) == typed(value)
    assert values.encode(found) == data


@given(NESTED, st.data())
def test_a_cut_or_longer_value_is_none(value: Nested, data: st.DataObject) -> None:
    whole = values.encode(value)
    for changed in (whole[: data.draw(st.integers(0, len(whole) - 1))], whole + b"\0"):
        with pytest.raises(ValueError):
            values.decode(changed)


@given(st.binary(max_size=60) | st.builds(bytes.__add__, st.sampled_from([b"\x0b", b"\x0c", b"\x09"]), st.binary()))
def test_garbage_is_a_value_error(garbage: bytes) -> None:
    try:
        found = values.decode(garbage)
    except ValueError:
        return
    assert typed(values.decode(values.encode(found))) == typed(found)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (None, "00"),
        (False, "01"),
        (True, "02"),
        (Int8(-2), "03fe"),
        (Int16(258), "040201"),
        (Int32(-1), "05ffffffff"),
        (1 << 32, "060000000001000000"),
        (Float32(1.5), "070000c03f"),
        (1.5, "08000000000000f83f"),
        ("é", "0902000000c3a9"),
        (b"\x00\xff", "0a0200000000ff"),
        ("\ud800", "0903000000eda080"),
        ({"a": [None]}, "0b0100000001000000610c0100000000"),
    ],
)
def test_the_bytes_are_those_of_the_format(value: Nested, data: str) -> None:
    assert values.encode(value).hex() == data
    assert typed(values.decode(bytes.fromhex(data))) == typed(value)


def nested(levels: int) -> Nested:
    value: Nested = "x"
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def test_depth_is_bounded() -> None:
    assert values.decode(values.encode(nested(DEPTH_MAX))) == nested(DEPTH_MAX)
    with pytest.raises(ValueError, match="levels deep"):
        values.encode(nested(DEPTH_MAX + 1))
    with pytest.raises(ValueError, match="levels deep"):
        values.decode(b"\x0c\x01\0\0\0" * 100_000)


def test_the_number_of_values_is_bounded() -> None:
    most: Nested = [None] * (VALUES_MAX - 1)
    assert values.decode(values.encode(most)) == most
    with pytest.raises(ValueError, match="more than"):
        values.encode([None] * VALUES_MAX)
    with pytest.raises(ValueError, match="more than"):
        values.decode(b"\x0c" + struct.pack("<I", VALUES_MAX) + b"\0" * VALUES_MAX)
    with pytest.raises(ValueError, match="cut off"):  # says more than there is, and takes no memory for it
        values.decode(b"\x0c\xff\xff\xff\xff")


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, object(), {1: "a"}, ("a",), {"a": {2}}, [1j]])
def test_anything_else_is_no_value(value: Nested) -> None:
    with pytest.raises(ValueError):
        values.encode(value)


@pytest.mark.parametrize("data", ["0d", "ff", "0901000000ff", "0b02000000010000006100010000006100"])
def test_bytes_that_are_no_value(data: str) -> None:
    with pytest.raises(ValueError):
        values.decode(bytes.fromhex(data))
    with pytest.raises(ValueError):
        values.decode_map(values.encode(["no map"]))


def test_narrow_numbers_fit() -> None:
    assert (Int8(-128), Int16(32767), Int32(-(1 << 31))) == (-128, 32767, -(1 << 31))
    for make, number in ((Int8, 128), (Int16, -32769), (Int32, 1 << 31)):
        with pytest.raises(ValueError, match="does not fit"):
            make(number)
    assert Float32(0.1) == struct.unpack("<f", struct.pack("<f", 0.1))[0]
    with pytest.raises(ValueError, match="32 bits"):
        Float32(1e300)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "x"),
        (True, "true"),
        (False, "false"),
        (Int8(-3), "-3"),
        (1 << 40, "1099511627776"),
        (0.5, "0.5"),
        (Float32(0.1), "0.1"),
        (Float32(16777217), "16777216.0"),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        (Float32(math.inf), "Infinity"),
        (b"\x00\xff", "AP8="),
    ],
)
def test_text(value: Value, text: str) -> None:
    assert values.text(value) == text
    assert values.texts({"a": value}) == {"a": text}


@given(st.floats(width=32, allow_nan=False).map(Float32))
def test_the_text_of_a_narrow_number_is_that_number(value: Float32) -> None:
    assert Float32(float(values.text(value))) == value


def test_json_for_those_who_know_no_types() -> None:
    value: Nested = {"a": [Int8(1), True, None, 0.5, Float32(0.1), math.nan, b"\x00"], "é": {"b": "\n"}}
    assert json.loads(values.to_json(value)) == {"a": [1, True, None, 0.5, 0.1, "NaN", "AA=="], "é": {"b": "\n"}}


@given(VALUES)
@example(Float32(math.inf))
@example(Float32(math.nan))
@example(-math.inf)
def test_json_with_types(value: Value) -> None:
    written = json.dumps(values.to_typed_json(value), allow_nan=False)
    assert typed(values.from_typed_json(json.loads(written))) == typed(value)


@pytest.mark.parametrize(
    "found",
    [
        1,
        1.5,
        True,
        None,
        [],
        {},
        {"int8": 128},
        {"int64": 1 << 63},
        {"int32": True},
        {"int32": 1.0},
        {"bool": 1},
        {"bytes": "?"},
        {"float32": 1e300},
        {"float64": "one"},
        {"int8": 1, "int16": 1},
        {"map": {}},
        {"float64": 1},
    ],
)
def test_json_of_no_value(found: object) -> None:
    with pytest.raises(ValueError):
        values.from_typed_json(found)
