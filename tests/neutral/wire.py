"""The bytes of the neutral protocol: made for tests, plain, binary, and with everything that the contract has.

A connection begins with MAGIC. Then both sides send frames: a length (4 bytes, of what follows), an operation (1), the
number of a session (2), the client's number of the command, or of the command that is answered (4, 0 = none), and
a list of values, as `amq.core.values` encodes them: numbers keep their types.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, Final

from amq.core import values
from amq.core.destination import ANY_REST, ANY_WORD, Pattern, Source

MAGIC: Final = b"\x01NEUTRAL"
HEAD: Final = struct.Struct(">IBHI")
FRAME_BYTES_MAX: Final = 4 << 20
STRANGER_BYTES_MAX: Final = 64 << 10  # of a frame before the login
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
    RECEIVED = 14  # from either side: this many bytes of the other one are here
    LOGIN = 15  # a step of a login; CONNECT comes after the last one, or along with the first one
    CONNECTED = 33
    DONE = 34
    FAILED = 35
    DELIVERY = 36
    BROWSED = 37
    BROKERS = 38
    CHALLENGE = 39


def frame(op: Op, *parts: Any, session: int = 0, number: int = 0) -> bytes:
    body = values.encode([*parts])
    return HEAD.pack(HEAD.size - 4 + len(body), op, session, number) + body


def unpack(data: bytes) -> list[Any]:
    """The values of a frame. Raises ValueError."""
    found = values.decode(data)
    if not isinstance(found, list):
        raise ValueError("a frame has a list of values")
    return found


def packed_source(source: Source) -> Any:
    """A destination as its full name; a pattern as a list: its kind, and its words, 1 = any word, 2 = any rest."""
    if isinstance(source, str):
        return source
    wild = {word: number for number, word in _WILD.items()}
    return [source.scheme, *(wild.get(word, word) for word in source.words)]


def read_source(value: Any) -> Source:
    """Raises ValueError."""
    if isinstance(value, str):
        if "\0" in value or "://" not in value or not value.isprintable():
            raise ValueError(f"{value!r} is not a full name of a destination")
        return value
    match value:
        case [str(scheme), _, *_] if scheme.endswith("://"):
            words = tuple(_WILD.get(word, "") if isinstance(word, int) else word for word in value[1:])
            if all(isinstance(word, str) and word and (word in _WILD.values() or "\0" not in word) for word in words):
                return Pattern(scheme, words)
    raise ValueError(f"{value!r} is neither the full name of a destination nor a pattern")
