"""Text of a selector → tokens with their columns, and the errors that point at a column.

Invariant: one pass, in time linear in the text; whatever the text, it yields tokens or ends in one `SelectorError`.
"""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

from amq.core.errors import SelectorError
from amq.selectors.values import INT64_MAX

SELECTOR_CHARACTERS_MAX: Final = 10 * 1024  # a STOMP header cannot be longer
# It lets texts of JMS producers be numbers. Properties of STOMP are strings, which count as numbers in any case.
CONVERT_PREFIX: Final = "convert_string_expressions:"

TOO_LARGE: Final = "SELECTOR_TOO_LARGE"
KEYWORDS: Final = frozenset(
    {
        "AND",
        "BETWEEN",
        "ESCAPE",
        "FALSE",
        "IN",
        "IS",
        "LIKE",
        "NOT",
        "NULL",
        "OR",
        "TRUE",
    }
)
NAME, STRING, NUMBER, END = "name", "string", "number", "end"  # a keyword or an operator is its own kind

_EXCERPT_CHARACTERS = 70  # shown on either side of the column of an error
_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r\n\f]++)
    |(?P<name>[^\W\d][\w$]*+|\$[\w$]*+)
    |(?P<quoted>"(?:[^"]++|"")*+")
    |(?P<string>'(?:[^']++|'')*+')
    |(?P<hex>0[xX][0-9a-fA-F]++)[lL]?
    |(?P<approximate>(?:[0-9]++\.[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?|[0-9]++(?:[eE][+-]?[0-9]++|(?=[fFdD])))[fFdD]?
    |(?P<exact>[0-9]++)[lL]?
    |(?P<operator><>|<=|>=|[-+*/%=<>(),])""",
    re.VERBOSE,
)
_WORD = re.compile(r"[\w$.]")


class Token(NamedTuple):
    """`kind`: NAME, STRING, NUMBER, END, a keyword in capitals, or an operator. `value`: what it stands for."""

    kind: str
    value: str | int | float
    at: int  # where it begins in the selector, from 0
    end: int


def failure(text: str, at: int, what: str, code: str | None = None) -> SelectorError:
    """The error that shows `text` with a caret under the character `at` (from 0), and says what is wrong there."""
    start = max(0, at - _EXCERPT_CHARACTERS)
    stop = at + _EXCERPT_CHARACTERS
    head, tail = ("…" if start else ""), ("…" if stop < len(text) else "")
    excerpt = "".join(c if c.isprintable() else " " for c in text[start:stop])
    caret = " " * (len(head) + at - start) + "^"
    return SelectorError(f"selector, column {at + 1}: {what}\n{head}{excerpt}{tail}\n{caret}", column=at + 1, code=code)


def tokens(text: str) -> list[Token]:
    """All tokens of `text`, END last. SelectorError where a character, a string or a number is not of the language."""
    if len(text) > SELECTOR_CHARACTERS_MAX:
        raise SelectorError(
            f"the selector has {len(text):,} characters, at most {SELECTOR_CHARACTERS_MAX:,}: use several consumers, "
            "or let the producer set a property that says what you look for",
            code=TOO_LARGE,
        )
    found: list[Token] = []
    at = len(CONVERT_PREFIX) if text.startswith(CONVERT_PREFIX) else 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise failure(text, at, _strange(text[at : at + 2]))
        end = match.end()
        if match.lastgroup != "blank":
            found.append(_token(text, match))
            if found[-1].kind == NUMBER and _WORD.match(text, end):
                raise failure(text, end, "expected the end of the number, as in 57, 0x1F, 57L, 7.5, 7E3, 1.5F")
        at = end
    found.append(Token(END, "", len(text), len(text)))
    return found


def _token(text: str, match: re.Match[str]) -> Token:
    at, end, written = match.start(), match.end(), match[0]
    kind = match.lastgroup
    if kind == "name":
        keyword = written.upper()
        return Token(keyword if keyword in KEYWORDS else NAME, written, at, end)
    if kind == "quoted":
        if len(written) == 2:
            raise failure(text, at, 'expected a name between the quotes: a string is written in single ones, ""')
        return Token(NAME, written[1:-1].replace('""', '"'), at, end)
    if kind == "string":
        return Token(STRING, written[1:-1].replace("''", "'"), at, end)
    if kind == "operator":
        return Token(written, written, at, end)
    return Token(NUMBER, _number(text, match), at, end)


def _number(text: str, match: re.Match[str]) -> int | float:
    """Exact ones up to 2^63: whether the sign makes it fit only the parser knows."""
    if match["approximate"]:
        approximate = float(match["approximate"])
        if math.isinf(approximate):
            raise failure(text, match.start(), "this number is too large: at most 1.7E308")
        return approximate
    if match["hex"]:
        digits, base = match["hex"][2:], 16
    else:
        digits = match["exact"]
        base = 8 if digits[0] == "0" and len(digits) > 1 else 10
        if base == 8 and not set(digits) <= set("01234567"):
            raise failure(text, match.start(), "a number that begins with 0 is octal: leave the 0 out")
    digits = digits.lstrip("0") or "0"
    exact = int(digits, base) if len(digits) <= 22 else INT64_MAX + 2
    if exact > INT64_MAX + 1:
        raise failure(text, match.start(), "this number does not fit into 64 bits: write it with a decimal point")
    return exact


def _strange(what: str) -> str:
    if what[0] == "'":
        return "this string does not end: expected another ' (and '' for one within it)"
    if what[0] == '"':
        return 'this name does not end: expected another "'
    if what == "!=":
        return "expected an operator: not equal is written <>"
    return f"expected a name, a string, a number or an operator, found {what[0]!r}: quote strings 'so' and names \"so\""
