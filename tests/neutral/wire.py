"""The bytes of the neutral protocol: made for tests, plain, binary, and with everything that the contract has.

A connection begins with MAGIC. Then both sides send frames: a length (4 bytes, of what follows), an operation (1), the
number of a session (2), the client's number of the command, or of the command that is answered (4, 0 = none), and
values. A value is a letter and its bytes: numbers have 8, text and bytes a length of 4 before them, lists and maps a
count of 4. Only `unpack` reads them, and it raises ValueError only.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, Final

from amq.destination import ANY_REST, ANY_WORD, Pattern, Source

MAGIC: Final = b"\x01NEUTRAL"
HEAD: Final = struct.Struct(">IBHI")
FRAME_BYTES_MAX: Final = 4 << 20
_LENGTH, _NUMBER = struct.Struct(">I"), struct.Struct(">q")
_DEPTH_MAX = 4
_WILD = {1: ANY_WORD, 2: ANY_REST}  # words of a pattern that stand for others


class Op(IntEnum):
    """Operations: first those that a client asks for, then those that a broker tells."""

    CONNECT = 1
    OPEN = 2
    CLOSE = 3
    SEND = 4
    SUBSCRIBE = 5
    CREDIT = 6
    UNSUBSCRIBE = 7
    SETTLE = 8
    BEGIN = 9
    COMMIT = 10
    ABORT = 11
    DISCONNECT = 12
    BEAT = 13
    CONNECTED = 33
    DONE = 34
    FAILED = 35
    DELIVERY = 36
    BROWSED = 37


def frame(op: Op, *values: Any, session: int = 0, number: int = 0) -> bytes:
    body = b"".join(map(pack, values))
    return HEAD.pack(HEAD.size - 4 + len(body), op, session, number) + body


def pack(value: Any) -> bytes:
    """One value: None, a truth, a number of 64 bits, text, bytes, a list, or a map of texts."""
    match value:
        case None:
            return b"n"
        case bool():
            return b"t" if value else b"f"
        case int():
            return b"i" + _NUMBER.pack(value)
        case str():
            return b"s" + _LENGTH.pack(len(value.encode())) + value.encode()
        case bytes():
            return b"b" + _LENGTH.pack(len(value)) + value
        case list() | tuple():
            return b"l" + _LENGTH.pack(len(value)) + b"".join(map(pack, value))
    return b"m" + _LENGTH.pack(len(value)) + b"".join(pack(key) + pack(each) for key, each in value.items())


def unpack(data: bytes) -> list[Any]:
    """All values of a frame. Raises ValueError."""
    values, at = [], 0
    while at < len(data):
        value, at = _value(data, at, 0)
        values.append(value)
    return values


def _value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    kind, at = data[at : at + 1], at + 1
    if kind in b"ntf" and kind:
        return {b"n": None, b"t": True, b"f": False}[kind], at
    size = 8 if kind == b"i" else 4
    if kind not in (b"i", b"s", b"b", b"l", b"m") or at + size > len(data) or depth > _DEPTH_MAX:
        raise ValueError(f"no value begins with {kind!r} at byte {at} of {len(data)}")
    if kind == b"i":
        return _NUMBER.unpack_from(data, at)[0], at + size
    (count,) = _LENGTH.unpack_from(data, at)
    at += size
    if kind in b"sb":
        if at + count > len(data):
            raise ValueError(f"{count} bytes at byte {at} of {len(data)}")
        part = data[at : at + count]
        return part.decode() if kind == b"s" else part, at + count
    parts = []
    for _ in range(count * (2 if kind == b"m" else 1)):  # what is too many ends at the end of the frame
        value, at = _value(data, at, depth + 1)
        parts.append(value)
    if kind == b"l":
        return parts, at
    if not all(isinstance(key, str) for key in parts[::2]):
        raise ValueError("the key of a map is a text")
    return dict(zip(parts[::2], parts[1::2], strict=True)), at


def packed_source(source: Source) -> Any:
    """A destination as its full name; a pattern as a list: its kind, and its words, 1 = any word, 2 = any rest."""
    if isinstance(source, str):
        return source
    wild = {word: number for number, word in _WILD.items()}
    return [source.scheme, *(wild.get(word, word) for word in source.words)]


def read_source(value: Any) -> Source:
    """Raises ValueError."""
    if isinstance(value, str):
        if "\0" in value or "://" not in value:
            raise ValueError(f"{value!r} is no full name of a destination")
        return value
    match value:
        case [str(scheme), _, *_] if scheme.endswith("://"):
            words = tuple(_WILD.get(word, "") if isinstance(word, int) else word for word in value[1:])
            if all(isinstance(word, str) and word and (word in _WILD.values() or "\0" not in word) for word in words):
                return Pattern(scheme, words)
    raise ValueError(f"{value!r} is neither the full name of a destination nor a pattern")
