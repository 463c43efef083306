"""Typed values: properties of messages, and the content of maps and streams, consist of them. Their one encoding.

A value is text, bytes, a truth, a whole number of 8, 16, 32 or 64 bits, or a floating-point number of 32 or 64 bits. In
maps and lists there may also be nothing (None), and further maps and lists. Python's own `int` and `float` stand for 64
bits; the narrower ones have classes of their own, whose objects are equal to the plain numbers.

Invariants: what `encode` accepts, `decode` gives back with the same types, also NaN and halves of surrogate pairs; for
anything else both raise ValueError and nothing else. Spec: docs/journal-format.md, "Typed values".
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Self, TypeAlias

DEPTH_MAX: Final = 32  # of maps and lists in each other
VALUES_MAX: Final = 1_000_000  # in one encoding, all maps and lists together
LENGTH_MAX: Final = (1 << 32) - 1

_NULL, _FALSE, _TRUE, _INT8, _INT16, _INT32, _INT64, _FLOAT32, _FLOAT64, _TEXT, _BYTES, _MAP, _LIST = range(13)
_LENGTH: Final = struct.Struct("<I")
_SINGLE: Final = struct.Struct("<f")
_NUMBERS: Final = {
    _INT8: struct.Struct("<b"),
    _INT16: struct.Struct("<h"),
    _INT32: struct.Struct("<i"),
    _INT64: struct.Struct("<q"),
    _FLOAT32: _SINGLE,
    _FLOAT64: struct.Struct("<d"),
}


class _Narrow(int):
    bits = 0

    def __new__(cls, value: int = 0) -> Self:
        made = super().__new__(cls, value)
        if not -1 << (cls.bits - 1) <= made < 1 << (cls.bits - 1):
            raise ValueError(f"{value} does not fit into {cls.bits} bits")
        return made


class Int8(_Narrow):
    """A whole number of 8 bits with a sign; ValueError for any other."""

    bits = 8


class Int16(_Narrow):
    """A whole number of 16 bits with a sign; ValueError for any other."""

    bits = 16


class Int32(_Narrow):
    """A whole number of 32 bits with a sign; ValueError for any other."""

    bits = 32


class Float32(float):
    """The number of 32 bits that is nearest to the one that is given; ValueError where it is too large for that."""

    def __new__(cls, value: float = 0.0) -> Self:
        try:
            return super().__new__(cls, _SINGLE.unpack(_SINGLE.pack(value))[0])
        except OverflowError as error:
            raise ValueError(f"{value} does not fit into 32 bits") from error


class Text(str):
    """Text of a producer that gives its values types. No selector takes it for a number or a truth."""

    __slots__ = ()


# `bool`, `Int8`, `Int16`, `Int32` are an `int`, `Float32` is a `float`.
Value: TypeAlias = "str | int | float | bytes"
Nested: TypeAlias = "Value | list[Nested] | dict[str, Nested] | None"
Properties: TypeAlias = "Mapping[str, Value]"

_TAGS: Final[dict[type, int]] = {
    Int8: _INT8,
    Int16: _INT16,
    Int32: _INT32,
    int: _INT64,
    Float32: _FLOAT32,
    float: _FLOAT64,
}
_MAKE: Final[dict[int, Callable[[Any], Value]]] = {
    _INT8: Int8,
    _INT16: Int16,
    _INT32: Int32,
    _INT64: int,
    _FLOAT32: Float32,
    _FLOAT64: float,
}


# -- bytes -------------------------------------------------------------------------------------------------------------


def encode(value: Nested) -> bytes:
    """The bytes of `value`. ValueError for what is not a value, does not fit into 64 bits, or goes beyond a limit."""
    parts: list[bytes] = []
    _put(value, parts.append, 0)
    if len(parts) > VALUES_MAX:  # each value is at least one part, so that there are not more of them
        _check_count(value)
    return b"".join(parts)


def decode(data: bytes) -> Nested:
    """The value whose bytes `data` are. ValueError where they are not those of one value."""
    value, end = _take(data, 0, 0, [VALUES_MAX])
    if end != len(data):
        raise ValueError("there are bytes after the value")
    return value


def decode_map(data: bytes) -> dict[str, Nested]:
    """As `decode`, of a map. ValueError also where it is something else."""
    found = decode(data)
    if not isinstance(found, dict):
        raise ValueError("the value is not a map")
    return found


def _put(value: Nested, put: Callable[[bytes], None], depth: int) -> None:
    kind = value.__class__
    if kind is str:
        assert isinstance(value, str)
        put(b"\x09" + _counted(value.encode("utf-8", "surrogatepass")))
    elif kind in _TAGS:
        tag = _TAGS[kind]
        try:
            put(bytes((tag,)) + _NUMBERS[tag].pack(value))
        except struct.error as error:
            raise ValueError(f"the number {str(value)[:30]} does not fit into 64 bits") from error
    elif value is None or value is False or value is True:
        put(b"\x00" if value is None else b"\x02" if value else b"\x01")
    elif isinstance(value, bytes):
        put(b"\x0a" + _counted(value))
    elif isinstance(value, dict | list):
        if depth == DEPTH_MAX:
            raise ValueError(f"maps and lists are nested more than {DEPTH_MAX} levels deep")
        put(bytes((_MAP if isinstance(value, dict) else _LIST,)) + _LENGTH.pack(len(value)))
        if isinstance(value, list):
            for item in value:
                _put(item, put, depth + 1)
            return
        for name, item in value.items():
            if name.__class__ is not str:
                raise ValueError(f"the name {str(name)[:100]!r} in a map is not a text")
            put(_counted(name.encode("utf-8", "surrogatepass")))
            _put(item, put, depth + 1)
    else:
        raise ValueError(f"a {kind.__name__} is not a value")


def _counted(data: bytes) -> bytes:
    if len(data) > LENGTH_MAX:
        raise ValueError(f"a text or bytes are longer than {LENGTH_MAX} bytes")
    return _LENGTH.pack(len(data)) + data


def _count(value: Nested) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_count, value.values()))
    return 1 + sum(map(_count, value)) if isinstance(value, list) else 1


def _check_count(value: Nested) -> None:
    if _count(value) > VALUES_MAX:
        raise ValueError(f"more than {VALUES_MAX} values in one map or list")


def _take(data: bytes, at: int, depth: int, left: list[int]) -> tuple[Nested, int]:
    """The value that begins at `at`, and where it ends. `left` = how many more there may be."""
    if at >= len(data):
        raise ValueError("a value is cut off")
    left[0] -= 1
    if left[0] < 0:
        raise ValueError(f"more than {VALUES_MAX} values in one map or list")
    tag, at = data[at], at + 1
    if tag in (_TEXT, _BYTES):
        found, at = _slice(data, at)
        return (str(found, "utf-8", "surrogatepass") if tag == _TEXT else found), at
    if tag in _NUMBERS:
        number = _NUMBERS[tag]
        if at + number.size > len(data):
            raise ValueError("a number is cut off")
        return _MAKE[tag](number.unpack_from(data, at)[0]), at + number.size
    if tag <= _TRUE:
        return (None, False, True)[tag], at
    if tag not in (_MAP, _LIST):
        raise ValueError(f"values of type {tag} are unknown")
    if depth == DEPTH_MAX:
        raise ValueError(f"maps and lists are nested more than {DEPTH_MAX} levels deep")
    count, at = _number(data, at)
    if tag == _LIST:
        items: list[Nested] = []
        for _ in range(count):
            item, at = _take(data, at, depth + 1, left)
            items.append(item)
        return items, at
    named: dict[str, Nested] = {}
    for _ in range(count):
        name, at = _slice(data, at)
        item, at = _take(data, at, depth + 1, left)
        named[str(name, "utf-8", "surrogatepass")] = item
    if len(named) != count:
        raise ValueError("a map has the same name twice")
    return named, at


def _slice(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _number(data, at)
    if at + size > len(data):
        raise ValueError("a text or bytes are cut off")
    return data[at : at + size], at + size


def _number(data: bytes, at: int) -> tuple[int, int]:
    if at + _LENGTH.size > len(data):
        raise ValueError("a length is cut off")
    return _LENGTH.unpack_from(data, at)[0], at + _LENGTH.size


# -- for readers of text -----------------------------------------------------------------------------------------------


def text(value: Value) -> str:
    """As a reader of text sees it: `true`, `false`, decimal numbers, bytes in base64, and text as it is."""
    if value.__class__ is str:
        return value
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value) or math.isinf(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if not isinstance(value, Float32):
        return repr(value)
    short = (float(f"{value:.{digits}g}") for digits in range(6, 18))
    return repr(next(number for number in short if Float32(number) == value))


def texts(properties: Properties) -> dict[str, str]:
    """The same properties, each as text."""
    return {name: text(value) for name, value in properties.items()}


def are_texts(values: Iterable[Value]) -> bool:
    """Are all of them text?"""
    return all(value.__class__ is str for value in values)


def are_values(found: Iterable[object]) -> bool:
    """May each of them be the value of a property?"""
    return all(isinstance(value, str | int | float | bytes) for value in found)


def to_json(value: Nested) -> str:
    """For programs that know no types: bytes are base64, and numbers that JSON has not are texts."""
    return json.dumps(_untyped(value), ensure_ascii=False, allow_nan=False)


def _untyped(value: Nested) -> Any:
    if isinstance(value, dict):
        return {name: _untyped(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_untyped(item) for item in value]
    if isinstance(value, float):
        spelled = text(value)
        return float(spelled) if math.isfinite(value) else spelled
    return text(value) if isinstance(value, bytes) else value


# -- JSON that keeps the types -----------------------------------------------------------------------------------------

_MAKERS: Final[dict[str, Callable[[Any], Value]]] = {
    "bool": bool,
    "int8": Int8,
    "int16": Int16,
    "int32": Int32,
    "int64": int,
    "float32": Float32,
    "float64": float,
}
_NAMES: Final = {make: name for name, make in _MAKERS.items()}
_SPELLED: Final[dict[str, tuple[type, ...]]] = {"bool": (bool,), "float32": (str, float), "float64": (str, float)}


def to_typed_json(value: Value) -> Any:
    """Text as it is, all others as an object with the name of their type, such as `{"int32": 7}`, `{"float64": "NaN"}`
    or `{"bytes": "AAE="}`: `from_typed_json` makes the same value of it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return {"bytes": text(value)}
    if isinstance(value, float):
        return {_NAMES[value.__class__]: float(value) if math.isfinite(value) else text(value)}
    return {_NAMES[value.__class__]: value}


def from_typed_json(found: Any) -> Value:
    """ValueError where no value is written so."""
    if isinstance(found, str):
        return found
    if isinstance(found, dict) and len(found) == 1:
        (name, written), *_ = found.items()
        if name == "bytes" and isinstance(written, str):
            return base64.b64decode(written, validate=True)
        if name in _MAKERS and written.__class__ in _SPELLED.get(name, (int,)):
            value = _MAKERS[name](float(written) if isinstance(written, str) else written)
            encode(value)  # it fits into 64 bits
            return value
    raise ValueError(f"{str(found)[:100]!r} is not a value of a property")
