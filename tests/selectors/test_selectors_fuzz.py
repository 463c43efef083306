"""Any text is a selector or a SelectorError, and neither it nor what it is asked about can make it slow.

Mutations of valid selectors are in tests/fuzz (target `selector`).
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amq.core.message import Message
from amq.selectors import Selector, SelectorError
from amq.selectors.lexer import SELECTOR_CHARACTERS_MAX
from tests.sampling import examples

WORDS = [
    "a",
    "b",
    "JMSPriority",
    "JMSMessageID",
    '"x y"',
    "'red'",
    "'%_%'",
    "'!'",
    "''",
    "5",
    "7.5",
    "-3",
    "1e3",
    "0x1F",
    "017",
    "9223372036854775808",
    "=",
    "<>",
    "<",
    "<=",
    ">",
    ">=",
    "+",
    "-",
    "*",
    "/",
    "%",
    "(",
    ")",
    "(",
    ")",
    ",",
    "AND",
    "OR",
    "NOT",
    "BETWEEN",
    "IN",
    "LIKE",
    "ESCAPE",
    "IS",
    "NULL",
    "TRUE",
    "FALSE",
    "AND",
    "OR",
    "NOT",
    "=",
    "a",
]
VALUES = st.sampled_from(["", "red", "5", "-7.5", "1e999", "true", "nan", "'", "%", "a" * 200]) | st.text(max_size=5)


@settings(max_examples=examples(500))
@given(words=st.lists(st.sampled_from(WORDS), max_size=14), a=VALUES, b=VALUES)
def test_any_words(words: list[str], a: str, b: str) -> None:
    check(" ".join(words), {"a": a, "b": b})


@settings(max_examples=examples(500))
@given(text=st.text(max_size=40), a=VALUES)
def test_any_text(text: str, a: str) -> None:
    check(text, {"a": a, "b": text})


def check(text: str, properties: dict[str, str]) -> None:
    mistake: SelectorError | None = None
    try:
        selector = Selector(text)
    except SelectorError as error:
        mistake = error
    if mistake is not None:
        assert mistake.column <= len(text) + 1
        assert mistake.description.count("\n") == 2
        return
    assert type(selector.matches(Message("queue://q", b"", properties))) is bool
    assert type(selector.matches(Message("queue://q", b"", None))) is bool


def filled(piece: str, end: str = "") -> str:
    """As often as a selector can hold it."""
    return piece * ((SELECTOR_CHARACTERS_MAX - len(end)) // len(piece)) + end


HOSTILE = [
    filled("a LIKE '%b%' OR ", "a LIKE 'b'"),
    filled("a LIKE '%aab%aa' AND ", "a LIKE 'b'"),
    "a LIKE '" + filled("%a", "b'")[8:],
    "a LIKE '" + filled("_")[9:] + "'",
    "a LIKE '%" + "a" * 124 + "_" + "a" * 124 + "b%'",
    "a LIKE '%" + "_" * 249 + "b%'",
    "a LIKE '%" + "_" * 249 + "b'",
    "a LIKE '" + "%_" * 250 + "%b%'",
    filled("a > 1 OR ", "a > 2"),
    filled("NOT ", "a = 1"),
    "a > " + filled("-")[9:] + "5",
    filled("(")[1:] + "5",
    "a IN (" + filled("1,")[12:] + "2)",
    "a = '" + filled("''")[6:] + "'",
    "a = '" + filled("''")[6:],
    filled('"', '"'),
    filled("a * "),
    filled("a = 1 AND NOT (b IS NULL OR "),
]


@pytest.mark.parametrize("selector", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("value", ["a" * 10_240, "9" * 10_240, "0." + "0" * 90], ids=["letters", "digits", "number"])
def test_hostile_selector_takes_bounded_time(selector: str, value: str) -> None:
    """Deadlines are a hundred times what it takes; what they catch would take years."""
    start = time.thread_time()
    check(selector, {"a": value, "b": value})
    assert time.thread_time() - start < 10
