"""The smallest parts of OpenWire: numbers, text in modified UTF-8, byte sequences. Big-endian throughout.

Invariant: readers raise ValueError for what is cut off or no text, and never look beyond the end of their data.
"""

from __future__ import annotations

import struct
from typing import Final

BYTE: Final = struct.Struct(">b")
SHORT: Final = struct.Struct(">h")
UNSIGNED_SHORT: Final = struct.Struct(">H")
INT: Final = struct.Struct(">i")
LONG: Final = struct.Struct(">q")
FLOAT: Final = struct.Struct(">f")
DOUBLE: Final = struct.Struct(">d")
TEXT_BYTES_MAX: Final = 65_535  # of a text with a short length
ID_BYTES_MAX: Final = 8192  # of the names and ids that the broker keeps
_NUL: Final = b"\xc0\x80"  # how modified UTF-8 writes U+0000


def encode_text(text: str) -> bytes:
    """`text` in modified UTF-8: NUL is two bytes, and a character above U+FFFF is two surrogates of three bytes."""
    if text.isascii():
        data = text.encode()
        return data.replace(b"\0", _NUL) if "\0" in text else data
    if max(text) > "\uffff":
        units = text.encode("utf-16-be", "surrogatepass")
        text = "".join([chr(unit) for (unit,) in UNSIGNED_SHORT.iter_unpack(units)])
    return text.encode("utf-8", "surrogatepass").replace(b"\0", _NUL)


def decode_text(data: bytes) -> str:
    """The text that `data` is in modified UTF-8, or in the usual one. ValueError where it is neither."""
    if data.isascii():
        return data.decode("ascii")
    text = data.replace(_NUL, b"\0").decode("utf-8", "surrogatepass")
    if b"\xed" in data:  # surrogates begin so: two of them are one character
        return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
    return text


def to_utf8(data: bytes) -> bytes:
    """Modified UTF-8 as everybody else writes it; half a character becomes "?"."""
    return data if data.isascii() else decode_text(data).encode("utf-8", "replace")


def storable(text: str) -> str:
    """`text`, a name or id that the journal may have to keep. ValueError where it is too long, or no text."""
    if not text.isascii() or len(text) > ID_BYTES_MAX:
        size = len(text.encode())
        if size > ID_BYTES_MAX:
            raise ValueError(f"an id or name has {size} bytes, at most {ID_BYTES_MAX}: {text[:40]!r}…")
    return text


def short_text(text: str) -> bytes:
    """A text that is there, with its length before it. ValueError where it has more than 65,535 bytes."""
    data = encode_text(text)
    if len(data) > TEXT_BYTES_MAX:
        raise ValueError(f"a text has {len(data)} bytes, at most {TEXT_BYTES_MAX}: {text[:40]!r}…")
    return UNSIGNED_SHORT.pack(len(data)) + data


def optional_text(text: str | None) -> bytes:
    """A text that may be missing. Raises ValueError, as `short_text`."""
    return b"\0" if text is None else b"\1" + short_text(text)


def optional_bytes(data: bytes | None) -> bytes:
    """A byte sequence that may be missing."""
    return b"\0" if data is None else b"\1" + INT.pack(len(data)) + data


class FieldReader:
    """Reads `data` from `at` up to `end`."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data = data
        self.at = at
        self.end = len(data) if end is None else end

    def _step(self, size: int) -> int:
        """Where the next `size` bytes begin."""
        at = self.at
        if size < 0 or at + size > self.end:
            raise ValueError(f"{size} bytes are wanted where {self.end - at} are left")
        self.at = at + size
        return at

    def take(self, size: int) -> bytes:
        at = self._step(size)
        return self.data[at : at + size]

    def boolean(self) -> bool:
        at = self._step(1)
        return self.data[at] != 0

    def unsigned_byte(self) -> int:
        at = self._step(1)
        return self.data[at]

    def byte(self) -> int:
        return int(BYTE.unpack_from(self.data, self._step(1))[0])

    def short(self) -> int:
        return int(SHORT.unpack_from(self.data, self._step(2))[0])

    def unsigned_short(self) -> int:
        return int(UNSIGNED_SHORT.unpack_from(self.data, self._step(2))[0])

    def integer(self) -> int:
        return int(INT.unpack_from(self.data, self._step(4))[0])

    def long(self) -> int:
        return int(LONG.unpack_from(self.data, self._step(8))[0])

    def single(self) -> float:
        return float(FLOAT.unpack_from(self.data, self._step(4))[0])

    def double(self) -> float:
        return float(DOUBLE.unpack_from(self.data, self._step(8))[0])

    def text(self) -> str:
        return decode_text(self.take(self.unsigned_short()))

    def long_text(self) -> str:
        return decode_text(self.take(self.integer()))

    def optional_text(self) -> str | None:
        return self.text() if self.boolean() else None

    def optional_bytes(self) -> bytes | None:
        return self.take(self.integer()) if self.boolean() else None
