"""Ids of prepared transactions: text and binary ones never meet, in no form in which either is written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.core.xid import OUTCOMES, AnyXid, Xid, from_json, outcome_id, parse, to_json

parts = st.binary(max_size=64)
binary = st.builds(Xid, st.integers(-(1 << 31), (1 << 31) - 1), parts, parts)
texts = st.text() | st.from_regex(r"xa:[0-9-]{0,3}:[0-9a-fA-F]{0,4}:[0-9a-f]{0,4}", fullmatch=True)
ids = texts | binary


@given(binary)
def test_a_binary_id_is_read_as_it_is_written(xid: Xid) -> None:
    assert parse(str(xid)) == xid == xid.check()


@given(texts)
def test_text_is_binary_only_in_the_one_form(text: str) -> None:
    found = parse(text)
    assert (str(found), type(found) is Xid) == (text, found != text)


@given(ids)
def test_json_keeps_them_apart(xid: AnyXid) -> None:
    found = from_json(json.loads(json.dumps(to_json(xid))))
    assert (found, type(found)) == (xid, type(xid))


@given(ids, ids)
def test_outcomes_are_of_one_id(one: AnyXid, other: AnyXid) -> None:
    names = [(outcome_id(xid, committed), xid, committed) for xid in (one, other) for committed in (True, False)]
    assert len({name for name, *_ in names}) == len({tuple(found) for _, *found in names})
    assert all(name.startswith(OUTCOMES) for name, *_ in names)


@pytest.mark.parametrize(
    "found",
    [None, 1, [], [1, "ab"], [1, "a", ""], ["1", "", ""], [1 << 31, "", ""], [0, "00" * 65, ""], [True, "", ""]],
)
def test_what_is_no_id(found: object) -> None:
    with pytest.raises(ValueError, match=r"id|hex|32 bits"):
        from_json(found)


@pytest.mark.parametrize(
    "text",
    [
        "xa:",
        "xa:1:ab",
        "xa:01:ab:cd",
        "xa:+1:ab:cd",
        "xa:-0:ab:cd",
        "xa:1:AB:cd",
        "xa:1:a:cd",
        "xa:1:ab:cd:",
        "XA:1:ab:cd",
        f"xa:1:{'ab' * 65}:",
        f"xa:{1 << 31}:ab:cd",
        "xa:1:ab:cd\n",
        "xa:١:ab:cd",
    ],
)
def test_what_is_not_exactly_of_the_form_is_text(text: str) -> None:
    assert parse(text) is text
