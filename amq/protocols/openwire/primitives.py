"""Primitive maps and lists: the typed values of which properties, map messages and stream messages consist.

Invariant: what comes back from `decode_map` and `decode_stream` can be stored (`amq.core.values`); for anything else
they raise ValueError. A Java `char` becomes a text of one character.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from amq.core.values import DEPTH_MAX, VALUES_MAX, Float32, Int8, Int16, Int32, Nested, Value
from amq.protocols.openwire.wire import (
    BYTE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    SHORT,
    TEXT_BYTES_MAX,
    FieldReader,
    encode_text,
    short_text,
)

(
    _NULL,
    _BOOLEAN,
    _BYTE,
    _CHAR,
    _SHORT,
    _INT,
    _LONG,
    _DOUBLE,
    _FLOAT,
    _TEXT,
    _BYTES,
    _MAP,
    _LIST,
    _LONG_TEXT,
) = range(14)
ENTRY_BYTES_MIN: Final = 3  # of a map: the length of a name, and the type of a value
NESTED_VALUES_MAX: Final = 10_000  # in maps and lists among the properties of a message, which nobody can select
_READERS: Final[dict[int, Callable[[FieldReader], Nested]]] = {
    _NULL: lambda reader: None,  # noqa: ARG005
    _BOOLEAN: FieldReader.boolean,
    _BYTE: lambda reader: Int8(reader.byte()),
    _CHAR: lambda reader: chr(reader.unsigned_short()),
    _SHORT: lambda reader: Int16(reader.short()),
    _INT: lambda reader: Int32(reader.integer()),
    _LONG: FieldReader.long,
    _DOUBLE: FieldReader.double,
    _FLOAT: lambda reader: Float32(reader.single()),
    _TEXT: FieldReader.text,
    _BYTES: lambda reader: reader.take(reader.integer()),
    _LONG_TEXT: FieldReader.long_text,
}
_WRITERS: Final[dict[type, Callable[[Any], bytes]]] = {
    bool: lambda value: b"\1\1" if value else b"\1\0",
    Int8: lambda value: b"\2" + BYTE.pack(value),
    Int16: lambda value: b"\4" + SHORT.pack(value),
    Int32: lambda value: b"\5" + INT.pack(value),
    int: lambda value: b"\6" + LONG.pack(value),
    float: lambda value: b"\7" + DOUBLE.pack(value),
    Float32: lambda value: b"\x08" + FLOAT.pack(value),
}


def decode_map(data: bytes | None, values_max: int = VALUES_MAX) -> dict[str, Nested]:
    """The map that `data` is; None or nothing is an empty one. ValueError where it is none, or has more values than
    that, also in maps and lists within it."""
    if not data:
        return {}
    reader = FieldReader(data)
    found = _map(reader, 0, [values_max])
    if reader.at != reader.end:
        raise ValueError("there are bytes after the map")
    return found


def decode_stream(data: bytes) -> list[Nested]:
    """The values that stand one after the other in `data`. ValueError where they do not."""
    reader, left, found = FieldReader(data), [VALUES_MAX], list[Nested]()
    while reader.at < reader.end:
        found.append(_value(reader, 0, left))
    return found


def encode_map(values: Mapping[str, Nested]) -> bytes:
    """The bytes of a map. ValueError where a name has more than 65,535 bytes."""
    return INT.pack(len(values)) + b"".join([short_text(name) + encode_value(each) for name, each in values.items()])


def encode_stream(values: list[Nested]) -> bytes:
    """The bytes of values one after the other. Raises ValueError, as `encode_map`."""
    return b"".join(map(encode_value, values))


def encode_value(value: Nested) -> bytes:
    """One value, with its type before it. Raises ValueError, as `encode_map`."""
    if isinstance(value, str):
        data = encode_text(value)
        if len(data) <= TEXT_BYTES_MAX:
            return b"\x09" + len(data).to_bytes(2) + data
        return b"\x0d" + INT.pack(len(data)) + data
    writer = _WRITERS.get(value.__class__)
    if writer is not None:
        return writer(value)
    if value is None:
        return b"\0"
    if isinstance(value, bytes):
        return b"\x0a" + INT.pack(len(value)) + value
    if isinstance(value, dict):
        return b"\x0b" + encode_map(value)
    assert isinstance(value, list)
    return b"\x0c" + INT.pack(len(value)) + encode_stream(value)


def count_of(data: bytes | None) -> int:
    """How many entries the map `data` has; 0 also where this many do not fit into it, and it is none."""
    count: int = INT.unpack_from(data)[0] if data and len(data) >= INT.size else 0
    return count if data and 0 < count * ENTRY_BYTES_MIN <= len(data) - INT.size else 0


def properties_of(data: bytes | None) -> dict[str, Value]:
    """The properties of a message: those of its map that have a simple value. ValueError also where the others are
    very large."""
    found = decode_map(data, min(VALUES_MAX, count_of(data) + NESTED_VALUES_MAX))
    return {name: value for name, value in found.items() if isinstance(value, str | int | float | bytes)}


def _value(reader: FieldReader, depth: int, left: list[int]) -> Nested:
    """`left` = how many more there may be."""
    left[0] -= 1
    if left[0] < 0:
        raise ValueError("too many values in one map or stream")
    tag = reader.unsigned_byte()
    read = _READERS.get(tag)
    if read is not None:
        return read(reader)
    if tag not in (_MAP, _LIST):
        raise ValueError(f"values of type {tag} are unknown")
    if depth + 1 >= DEPTH_MAX:
        raise ValueError(f"maps and lists are nested more than {DEPTH_MAX} levels deep")
    if tag == _MAP:
        return _map(reader, depth + 1, left)
    count = reader.integer()
    _check_count(reader, count, 1)
    return [_value(reader, depth + 1, left) for _ in range(count)]


def _map(reader: FieldReader, depth: int, left: list[int]) -> dict[str, Nested]:
    count = reader.integer()
    if count == -1:
        return {}
    _check_count(reader, count, ENTRY_BYTES_MIN)
    found: dict[str, Nested] = {}
    for _ in range(count):
        name = reader.text()
        found[name] = _value(reader, depth, left)
    return found


def _check_count(reader: FieldReader, count: int, size_min: int) -> None:
    """Raises ValueError where `count` entries cannot stand in the bytes that are left."""
    if not 0 <= count * size_min <= reader.end - reader.at:
        raise ValueError(f"a map or list of {count} entries does not fit into {reader.end - reader.at} bytes")
