"""LIKE: what it means, by a reference in its slowest form, and what it costs at most."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amq.core.errors import SelectorError
from amq.core.message import Message
from amq.selectors import Selector, values
from amq.selectors.values import LikePattern
from tests.sampling import examples

LETTERS = st.sampled_from(["a", "b", "_", "%", "_", "%", "\n", "\U0001f600"])


def like(pattern: str, text: str) -> bool:
    """The definition: the first `%` takes each length in turn. Exponential."""
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(like(pattern[1:], text[at:]) for at in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and like(pattern[1:], text[1:])


@given(st.text(LETTERS, max_size=9), st.lists(st.text(st.sampled_from("ab\n\U0001f600"), max_size=12), max_size=8))
@settings(max_examples=examples(200))
@example("%a_b%", ["aab", "acb", "ab", "xxaxbx"])
@example("%__a_%b%_", ["xxaxbb", "xxaxb", "aaabbb"])
@example("%a%a%a", ["aa", "aaa", "aba"])
def test_every_form_of_a_pattern_means_the_same_as_its_definition(pattern: str, texts: list[str]) -> None:
    selector, negative = Selector(f"p LIKE '{pattern}'"), Selector(f"p NOT LIKE '{pattern}'")
    parsed = LikePattern(pattern)
    for text in texts:
        wanted = like(pattern, text)
        message = Message("queue://q", b"", {"p": text})
        assert selector.matches(message) is wanted
        assert negative.matches(message) is not wanted
        if len(parsed.pieces) > 2:
            assert parsed.matcher()(text) is wanted


class Counted(str):
    """A text that counts how many characters its searches may look at."""

    looked = 0

    def find(self, sub: str, start: int = 0, end: int | None = None) -> int:  # type: ignore[override]
        found = str.find(self, sub, start, len(self) if end is None else end)
        Counted.looked += (found if found >= 0 else len(self)) - start + len(sub)
        return found

    def startswith(self, prefix: str, start: int = 0) -> bool:  # type: ignore[override]
        Counted.looked += len(prefix)
        return str.startswith(self, prefix, start)


PATTERNS = [
    "%_a%",
    "%" + "_a%" * 500,
    "%" + "ab%" * 500 + "c",
    "%" + "_" * 500 + "a%b_%",
    "x" + "%__a__%" * 300 + "x_x",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_search_looks_at_each_character_once(pattern: str) -> None:
    Counted.looked = 0
    text = Counted("x" + "ab" * 5000 + "xyx")
    LikePattern(pattern).matcher()(text)
    assert Counted.looked <= len(text) + 2 * len(pattern)


def test_no_pattern_needs_a_regular_expression_that_could_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a piece of one length, with `_` between characters, is looked for by one."""
    compiled: list[str] = []
    real = re.compile

    def count(pattern: str, flags: int = 0) -> re.Pattern[str]:
        compiled.append(pattern)
        return real(pattern, flags)

    monkeypatch.setattr(values.re, "compile", count)
    for pattern in ("%_a%", "%a_%", "%__%", "a_%_b%c", "%_ab_%_%"):
        LikePattern(pattern).matcher()
    assert compiled == []
    LikePattern("%a_b%").matcher()
    assert compiled == ["a.b"]


def test_a_piece_that_is_dear_to_find_is_not_looked_for_in_very_long_texts() -> None:
    selector = Selector("p LIKE '%a_b%'")
    most = values.LIKE_SEARCH_TEXT_CHARACTERS_MAX
    for size, found in ((most, True), (most + 1, False)):
        assert selector.matches(Message("queue://q", b"", {"p": "acb" + "x" * (size - 3)})) is found
    assert Selector("p LIKE '%_acb%'").matches(Message("queue://q", b"", {"p": "x" * 100_000 + "acb"}))


@pytest.mark.parametrize(
    "text",
    [
        " OR ".join(["a"] * 101),
        " AND ".join(["a = 1"] * 101),
        "(" * 49 + "a" + ")" * 49 + " OR b" * 60,
        "1 = " + "+".join(["a"] * 40) + " OR 1 =" + "*".join(["a"] * 40) + " OR 2 = " + "-".join(["a"] * 30),
    ],
)
def test_a_selector_with_too_many_terms_is_refused_before_it_is_compiled(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Selector(text).terms > 100
    monkeypatch.setattr("amq.selectors.selector.compiled", lambda *_: pytest.fail("it was compiled"))
    with pytest.raises(SelectorError, match="more than 100 terms") as caught:
        Selector(text, terms_max=100)
    assert caught.value.code == "SELECTOR_TOO_LARGE"


def test_equal_texts_are_compiled_once_and_the_limit_holds_for_known_ones_too() -> None:
    text = " OR ".join(["a"] * 20)
    one = Selector(text)
    assert Selector(text, terms_max=20) is one
    with pytest.raises(SelectorError):
        Selector(text, terms_max=19)
    assert Selector(f"a IN ({', '.join(['1'] * 2000)})", terms_max=1).terms == 1
