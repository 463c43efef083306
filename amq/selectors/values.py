"""Values of selectors: numbers from strings, arithmetic, LIKE patterns.

A property is text, a number, a truth or bytes (`amq.core.values`). Text counts as a number or a truth where one is
needed and it is one; no other value is taken for one of another type. Numbers are `int` of 64 bits (exact) or
`float` (approximate); NaN stands for NULL and for a string that is no number. Invariant: nothing here raises, whatever
a message holds, and each call takes time linear in its input; only a LIKE search for a piece that has `_` between two
characters takes the product of both lengths, so that both are limited.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final

from amq.core.values import Text, Value

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
NAN: Final = math.nan
NUMBER_CHARACTERS_MAX: Final = 100  # a longer string is not a number
LIKE_SEARCH_CHARACTERS_MAX: Final = 250
LIKE_SEARCH_TEXT_CHARACTERS_MAX: Final = 16 << 10  # a longer text holds no piece with a `_` between two characters

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


def converted(text: Value | None) -> int | float:
    """The number that a property is, also where its producer has declared it to be text; NaN where it is none, or
    None."""
    return number(str(text) if text.__class__ is Text else text)


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

    pieces      the parts between the `%`: each a list of characters, None = any one
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
        return sum(len(piece) for piece in self.pieces[1:-1] if len(_runs(piece)) > 1)

    def literal(self) -> list[str] | None:
        """The pieces as strings, None where there is a `_`."""
        if any(None in piece for piece in self.pieces):
            return None
        return ["".join(filter(None, piece)) for piece in self.pieces]

    def regex(self) -> re.Pattern[str]:
        """The pattern for `fullmatch`. Only for a pattern of at most two pieces, for which nothing is searched."""
        first, *last = ("".join("." if c is None else re.escape(c) for c in piece) for piece in self.pieces)
        if not last:
            return re.compile(first, re.DOTALL)
        # The last piece comes at the end, and after the first one.
        (end,) = last
        return re.compile(first + (f"(?=.{{{len(self.pieces[-1])}}}).*+(?<={end})" if end else ".*+"), re.DOTALL)

    def matcher(self) -> Callable[[str], bool]:
        """A function that tells whether a text has this form. It looks for each piece once, from left to right. Only
        for a pattern of several pieces."""
        first, *rest, last = self.pieces
        begins, ends = _runs(first), _runs(last)
        first_size, last_size = len(first), len(last)
        middle = [_search(piece) for piece in rest if piece]
        size_min = sum(map(len, self.pieces))

        def matches(text: str) -> bool:
            size = len(text)
            if size < size_min:
                return False
            for offset, run in begins:
                if not text.startswith(run, offset):
                    return False
            end = size - last_size
            for offset, run in ends:
                if not text.startswith(run, end + offset):
                    return False
            at = first_size
            for search in middle:
                at = search(text, at, end)
                if at < 0:
                    return False
            return at <= end

        return matches


def _runs(piece: list[str | None]) -> list[tuple[int, str]]:
    """The characters of `piece` between its `_`, each run with its place."""
    runs: list[tuple[int, str]] = []
    for at, character in enumerate(piece):
        if character is None:
            continue
        if runs and runs[-1][0] + len(runs[-1][1]) == at:
            runs[-1] = (runs[-1][0], runs[-1][1] + character)
        else:
            runs.append((at, character))
    return runs


def _search(piece: list[str | None]) -> Callable[[str, int, int], int]:
    """A function of a text, a start and an end: where the first occurrence of `piece` between them ends, negative where
    there is none. A `_` at either end of the piece only moves the bounds, so that `str.find` does the search; only a
    piece with a `_` between two characters needs a regular expression."""
    runs = _runs(piece)
    if not runs:
        return lambda text, start, end: start + len(piece)  # noqa: ARG005
    lead, trail = runs[0][0], len(piece) - runs[-1][0] - len(runs[-1][1])
    if len(runs) == 1:
        text_size = len(runs[0][1])

        def find(text: str, start: int, end: int, run: str = runs[0][1]) -> int:
            at = text.find(run, start + lead, end - trail)
            return at + text_size + trail if at >= 0 else -1

        return find
    search = re.compile("".join("." if c is None else re.escape(c) for c in piece), re.DOTALL).search

    def look(text: str, start: int, end: int) -> int:
        if len(text) > LIKE_SEARCH_TEXT_CHARACTERS_MAX:
            return -1
        found = search(text, start, end)
        return found.end() if found is not None else -1

    return look
