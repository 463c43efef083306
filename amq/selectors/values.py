"""Values of selectors: numbers from strings, arithmetic, LIKE patterns.

A property is text, a number, a truth or bytes (`amq.values`). Text counts as a number or a truth where one is needed
and it is one; no other value is taken for one of another type. Numbers are `int` in the range of 64 bits (exact) or
`float` (approximate); NaN stands for NULL and for a string that is no number. Invariant: nothing here raises, whatever
a message holds, and each call takes time linear in its input; only a LIKE search for a piece that has `_` in it takes
the product of both lengths, so that these are limited.
"""

from __future__ import annotations

import math
import re
from typing import Final

from amq.values import Text, Value

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
NAN: Final = math.nan
NUMBER_CHARACTERS_MAX: Final = 100  # a longer string is no number
LIKE_SEARCH_CHARACTERS_MAX: Final = 250

_NUMBER_CHARACTERS = "+-.0123456789eE"


def number(text: Value | None) -> int | float:
    """The number that a property is; NaN where it is none, or None."""
    if text.__class__ is Text:
        return NAN
    if not isinstance(text, str):
        return text if isinstance(text, int | float) and not isinstance(text, bool) else NAN
    if len(text) < 19 and text.isdecimal() and text.isascii():
        return int(text)
    if len(text) > NUMBER_CHARACTERS_MAX:
        return NAN
    if text.strip(_NUMBER_CHARACTERS):
        return NAN  # Python would also read blanks, underscores, `nan`, digits of other scripts
    try:
        return float(text) if "." in text or "e" in text or "E" in text else _fitting(int(text))
    except ValueError:
        return NAN


def same(left: Value, right: Value) -> bool:
    """Are two properties equal?"""
    return left == right and _kind(left) is _kind(right)


def differ(left: Value, right: Value) -> bool:
    """Are two properties of one type, and not equal?"""
    return left != right and _kind(left) is _kind(right)


def _kind(value: Value) -> type:
    """The kind of values with which this one can be compared."""
    if isinstance(value, str):
        return str
    return float if isinstance(value, int | float) and not isinstance(value, bool) else value.__class__


def add(left: float, right: float) -> int | float:
    return _fitting(left + right)


def subtract(left: float, right: float) -> int | float:
    return _fitting(left - right)


def multiply(left: float, right: float) -> int | float:
    return _fitting(left * right)


def divide(left: float, right: float) -> int | float:
    """Of exact numbers the whole part, rounded towards zero. NaN for a division by zero."""
    if right == 0:
        return NAN
    if isinstance(left, int) and isinstance(right, int):
        quotient = abs(left) // abs(right)
        return _fitting(quotient if (left < 0) == (right < 0) else -quotient)
    return left / right


def modulo(left: float, right: float) -> int | float:
    """The remainder of `divide`, with the sign of `left`. NaN for a division by zero."""
    if right == 0 or math.isinf(left):
        return NAN
    if isinstance(left, int) and isinstance(right, int):
        rest = abs(left) % abs(right)
        return rest if left >= 0 else -rest
    return math.fmod(left, right)


def negate(value: float) -> int | float:
    return _fitting(-value)


def _fitting(value: float) -> int | float:
    """An exact result that does not fit into 64 bits becomes approximate."""
    if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        return float(value)
    return value


class LikePattern:
    """A LIKE pattern: `%` stands for any characters, `_` for one, the character after `escape` for itself.

    pieces      what stands between the `%`: each a list of characters, None = any one
    ValueError, with a description, for an escape character before anything but `%`, `_` and itself.
    """

    def __init__(self, pattern: str, escape: str = "") -> None:
        self.pieces: list[list[str | None]] = [[]]
        characters = iter(pattern)
        for character in characters:
            if character == escape:
                escaped = next(characters, "")
                if escaped not in ("%", "_", escape) or not escaped:
                    raise ValueError(f"expected %, _ or {escape} after the escape character {escape}")
                self.pieces[-1].append(escaped)
            elif character == "%":
                self.pieces.append([])
            else:
                self.pieces[-1].append(None if character == "_" else character)

    @property
    def search_characters(self) -> int:
        """Characters of the pieces whose search takes the product of both lengths."""
        return sum(len(piece) for piece in self.pieces[1:] if None in piece)

    def literal(self) -> list[str] | None:
        """The pieces as strings, None where there is a `_`."""
        if any(None in piece for piece in self.pieces):
            return None
        return ["".join(filter(None, piece)) for piece in self.pieces]

    def regex(self) -> re.Pattern[str]:
        """For `fullmatch`. Each piece is taken where it is first found, and never looked for again."""
        first, *rest = ("".join("." if c is None else re.escape(c) for c in piece) for piece in self.pieces)
        if not rest:
            return re.compile(first, re.DOTALL)
        middle = "".join(f"(?>.*?{piece})" for piece in rest[:-1] if piece)
        # The last piece stands at the end, and behind all others.
        last = f"(?=.{{{len(self.pieces[-1])}}}).*+(?<={rest[-1]})" if rest[-1] else ".*+"
        return re.compile(first + middle + last, re.DOTALL)
