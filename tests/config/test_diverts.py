"""The option `divert`: what it says, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.config import BY_KEY, load
from amq.config.diverts import DIVERTS_MAX, Divert, diverts_text, parse_diverts

NAMES = st.text("ab.c", min_size=1, max_size=5).filter(lambda name: all(name.split(".")))
SELECTORS = st.sampled_from(["", "a > 1", "b = 'x; y'", "c IN ('it''s', 'to') AND d = 'where'"])
DIVERTS = st.builds(
    Divert,
    st.builds(str.__add__, st.sampled_from(["queue://", "topic://"]), NAMES),
    st.sampled_from(["", "queue", "topic"]),
    st.sampled_from([None, True, False]),
    SELECTORS,
)


@pytest.mark.parametrize(
    ("text", "diverts"),
    [
        ("", ()),
        ("audit", (Divert("queue://audit"),)),
        ("from", (Divert("queue://from"),)),
        ("to", (Divert("queue://to"),)),
        ("it's", (Divert("queue://it's"),)),
        ("to exclusive", (Divert("queue://exclusive"),)),
        ("topic://a; queue://b", (Divert("topic://a"), Divert("queue://b"))),
        ("from topic to a copy where x = 1", (Divert("queue://a", "topic", False, "x = 1"),)),
        ("a exclusive where x = 'to; b'", (Divert("queue://a", "", True, "x = 'to; b'"),)),
    ],
)
def test_what_it_says(text: str, diverts: tuple[Divert, ...]) -> None:
    assert parse_diverts(text) == diverts


@given(st.lists(DIVERTS, max_size=5))
def test_it_is_read_as_it_is_written(diverts: list[Divert]) -> None:
    assert parse_diverts(diverts_text(tuple(diverts))) == tuple(diverts)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a.>", 'names no single queue or topic: "a.>"'),
        ("queue://a,b", "names no single"),
        ("/queue/a", 'names "/queue/a", which must be a bare name'),
        ("a; ", "has nothing before or after a semicolon"),
        ("a where b = 'c; d", "a quotation mark that is not closed"),
        ("a where b = 'c", "which is wrong"),
        ("a where b >", 'has the selector "b >", which is wrong'),
        ("a b", "which is not a divert"),
        ("from both to a", "which is not a divert"),
        ("; ".join(["a"] * (DIVERTS_MAX + 1)), f"{DIVERTS_MAX} are the most"),
        ("a where " + " or ".join(["b = 1"] * 200), "which is wrong"),
    ],
)
def test_what_it_refuses(text: str, complaint: str) -> None:
    with pytest.raises(ValueError) as caught:
        BY_KEY["divert"].parse(text)
    assert complaint in str(caught.value)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        diverts = parse_diverts(text)
    except ValueError:
        return
    assert parse_diverts(diverts_text(diverts)) == diverts


def test_a_list_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "amq.toml"
    path.write_text(
        '[destinations."orders.>"]\ndivert = ["audit", "from queue to topic://news exclusive where price > 100"]\n'
    )
    (table,) = load(str(path)).destinations
    assert table.values == {"divert": "audit; from queue to topic://news exclusive where price > 100"}
