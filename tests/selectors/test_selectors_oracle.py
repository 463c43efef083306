"""Selectors against SQLite, which has the same three-valued logic, arithmetic, BETWEEN, IN and LIKE.

What SQLite says of the same text and the same values is what a selector must say. Left out, because SQLite differs
there (test_selectors_rules.py has these): a comparison of a number with a string that is none (SQLite orders values of
different types), octal numbers and the letters behind numbers (it has none), `%` of approximate numbers (it makes them
whole first), an ESCAPE character before an ordinary one (it lets that stand for itself), a double minus (it begins a
comment), and LIKE in any case of letters (switched off here).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amq.core.message import Envelope, Message
from amq.core.values import texts
from amq.selectors import Selector
from tests.sampling import examples
from tests.typed import tiny

NUMBERS, TEXTS, TRUTHS = ("n", "m", "k"), ("s", "t"), ("f", "g")
INTEGERS = st.integers(-20, 20) | st.sampled_from([2**31, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), -(2**63) + 1, 10**18])
FLOATS = st.integers(-80, 80).map(lambda n: n / 8) | st.sampled_from([1e10, -2.5e3, 9007199254740992.0, 1e300, -1e300])
CHARACTERS = st.text("ab", max_size=5) | st.text("ab%_!'", max_size=6)
ROW = st.tuples(
    *[st.none() | INTEGERS | FLOATS] * len(NUMBERS),
    *[st.none() | CHARACTERS] * len(TEXTS),
    *[st.none() | st.booleans()] * len(TRUTHS),
)
Row = tuple[float | str | bool | None, ...]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def sums(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.tuples(inner, st.sampled_from(["+", "-", "*", "/"]), inner).map(" ".join)
    return binary | inner.map("- ({})".format) | inner.map("({})".format)


LITERALS = st.one_of(INTEGERS, FLOATS).map(str)
NUMBER = st.recursive(st.sampled_from(NUMBERS) | LITERALS, sums, max_leaves=6)
TEXT = st.sampled_from(TEXTS) | CHARACTERS.map(quoted)


@st.composite
def like(draw: st.DrawFn) -> str:
    negation, escape = draw(st.sampled_from(["", "NOT "])), draw(st.sampled_from(["", "!", "_", "%"]))
    pieces = ["a", "b", "'", "_", "%", *([escape + "%", escape + "_", escape * 2] if escape else ["!"])]
    pieces = [piece for piece in pieces if piece != escape]
    pattern = "".join(draw(st.lists(st.sampled_from(pieces), max_size=7)))
    return f"{draw(TEXT)} {negation}LIKE {quoted(pattern)}" + (f" ESCAPE {quoted(escape)}" if escape else "")


@st.composite
def one_test(draw: st.DrawFn) -> str:
    """One comparison."""
    negation = draw(st.sampled_from(["", "NOT "]))
    what = draw(st.sampled_from(["number", "text", "truth", "between", "in", "in numbers", "null", "like", "bare"]))
    if what == "number":
        return f"{draw(NUMBER)} {draw(st.sampled_from(['=', '<>', '<', '<=', '>', '>=']))} {draw(NUMBER)}"
    if what == "text":
        return f"{draw(TEXT)} {draw(st.sampled_from(['=', '<>']))} {draw(TEXT)}"
    if what == "truth":
        constant = draw(st.sampled_from(["TRUE", "FALSE"]))
        return f"{draw(st.sampled_from(TRUTHS))} {draw(st.sampled_from(['=', '<>']))} {constant}"
    if what == "between":
        return f"{draw(NUMBER)} {negation}BETWEEN {draw(NUMBER)} AND {draw(NUMBER)}"
    if what == "in":
        values = ", ".join(map(quoted, draw(st.lists(CHARACTERS, min_size=1, max_size=4))))
        return f"{draw(TEXT)} {negation}IN ({values})"
    if what == "in numbers":
        return f"{draw(NUMBER)} {negation}IN ({', '.join(draw(st.lists(LITERALS, min_size=1, max_size=4)))})"
    if what == "null":
        return f"{draw(NUMBER.map('({})'.format) | TEXT)} IS {negation}NULL"
    if what == "like":
        return draw(like())
    return draw(st.sampled_from([*TRUTHS, "TRUE", "FALSE"]))


def conditions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Some without parentheses: SQLite knows which binds stronger."""
    binary = st.tuples(inner, st.sampled_from(["AND", "OR", "and", "oR"]), inner).map(" ".join)
    return binary | inner.map("NOT {}".format) | inner.map("({})".format)


CONDITION = st.recursive(one_test(), conditions, max_leaves=8)


@pytest.fixture(scope="module")
def sqlite() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA case_sensitive_like = ON")
    yield connection
    connection.close()


def expected(sqlite: sqlite3.Connection, condition: str, row: Row) -> bool | None:
    columns = ", ".join(f"? AS {name}" for name in (*NUMBERS, *TEXTS, *TRUTHS))
    [(value,)] = sqlite.execute(f"SELECT ({condition}) FROM (SELECT {columns})", row).fetchall()
    return None if value is None else bool(value)


def message_of(row: Row, form: str) -> Message:
    properties = {
        name: value for name, value in zip((*NUMBERS, *TEXTS, *TRUTHS), row, strict=True) if value is not None
    }
    if form == "native":
        return tiny("queue://q", b"", dict(properties))
    if form == "typed":
        return Message("queue://q", b"", properties, envelope=Envelope())
    return Message("queue://q", b"", texts(properties))


def answered(condition: str, row: Row, form: str = "text") -> bool | None:
    message = message_of(row, form)
    is_true, is_false = Selector(condition).matches(message), Selector(f"NOT ({condition})").matches(message)
    assert not (is_true and is_false)
    return True if is_true else False if is_false else None


@settings(max_examples=examples(200))
@given(condition=CONDITION, row=ROW)
def test_as_sqlite(sqlite: sqlite3.Connection, condition: str, row: Row) -> None:
    right = expected(sqlite, condition, row)
    assert [answered(condition, row, form) for form in ("text", "typed", "native")] == [right] * 3


@settings(max_examples=examples(300))
@given(condition=like(), row=ROW)
def test_like_as_sqlite(sqlite: sqlite3.Connection, condition: str, row: Row) -> None:
    assert answered(condition, row) is expected(sqlite, condition, row)


@settings(max_examples=examples(200))
@given(left=INTEGERS, right=INTEGERS, result=INTEGERS)
def test_modulo_as_sqlite(sqlite: sqlite3.Connection, left: int, right: int, result: int) -> None:
    row = (left, right, result, None, None, None, None)
    for condition in ("n % m = k", "n % m < 0", "n % m = n - n / m * m"):
        assert answered(condition, row) is expected(sqlite, condition, row)
