"""The index finds what asking each selector would find, and asks few of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amq.core.message import Envelope, Message
from amq.core.values import Float32, Int32
from amq.selectors import Selector, SelectorIndex
from tests.sampling import examples
from tests.typed import tiny

VALUES = ["x", "y", "1", "1.0", "2", "it's", "true", ""]
NAMES = st.sampled_from(
    ["a", "b", "c", "JMSType", "type", "JMSCorrelationID", "JMSReplyTo", '"reply-to"', "JMSXGroupSeq"]
)
TEXTS = st.sampled_from(VALUES).map(lambda value: "'" + value.replace("'", "''") + "'")
NUMBERS = st.sampled_from(["1", "1.0", "2", "-0.0", "0"])


def joined(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(values, min_size=1, max_size=3).map(", ".join)


TESTS = st.one_of(
    st.tuples(NAMES, st.just("="), TEXTS | NUMBERS),
    st.tuples(TEXTS | NUMBERS, st.just("="), NAMES),
    st.tuples(NAMES, st.sampled_from(["<>", "= b AND a ="]), TEXTS),
    st.tuples(NAMES, st.sampled_from([">", "<>", "= c AND c ="]), NUMBERS),
    st.tuples(NAMES, st.sampled_from(["IN (", "NOT IN ("]), joined(TEXTS) | joined(NUMBERS), st.just(")")),
    st.tuples(NAMES, st.sampled_from(["IS NULL", "LIKE '%'", "= TRUE", "BETWEEN 1 AND 2", "+ 1 = 2", "= '1'"])),
    st.sampled_from(
        [("JMSPriority = 4",), ("JMSPriority IN (4, 5)",), ("TRUE",), ("FALSE",), ("5 = 5",), ("'x' = 'x'",)]
    ),
).map(" ".join)


def conditions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(" ".join)
    return binary | inner.map("NOT ({})".format) | inner.map("({})".format)


SELECTORS = st.recursive(TESTS, conditions, max_leaves=5)
KEYS = st.sampled_from(["a", "b", "c", "type", "other", "more", "JMSType", "reply-to"])
TYPED = st.sampled_from(VALUES) | st.sampled_from([Int32(1), 2, Float32(1), 0.0, math.nan, True, False, b"x", b"1"])
IDS = st.none() | st.sampled_from(VALUES) | st.sampled_from([b"", b"x"])
ENVELOPES = st.builds(
    Envelope,
    st.just(""),
    IDS,
    st.sampled_from(["", "x", "1", "queue://x"]),
    st.sampled_from(["", "x", "1", "true"]),
    st.just(0),
    st.none(),
)
MESSAGES = st.one_of(
    st.builds(
        lambda properties, priority: Message("topic://t", b"", properties or None, priority=priority),
        st.dictionaries(KEYS, st.sampled_from(VALUES)),
        st.integers(3, 6),
    ),
    st.builds(
        lambda properties, envelope: Message("topic://t", b"", properties or None, envelope=envelope),
        st.dictionaries(KEYS, TYPED),
        ENVELOPES,
    ),
    st.builds(lambda properties: tiny("topic://t", b"", properties), st.dictionaries(KEYS, TYPED)),
)


@settings(max_examples=examples(100))
@given(selectors=st.lists(SELECTORS, max_size=12), messages=st.lists(MESSAGES, min_size=1, max_size=6), data=st.data())
def test_index_and_plain_evaluation_agree(selectors: list[str], messages: list[Message], data: st.DataObject) -> None:
    index: SelectorIndex[int] = SelectorIndex()
    plain: dict[int, Selector] = {}

    def agree() -> None:
        assert len(index) == len(plain)
        for message in messages:
            expected = [key for key, selector in plain.items() if selector.matches(message)]
            assert sorted(index.matching(message)) == sorted(expected)

    for key, text in enumerate(selectors):
        plain[key] = Selector(text)
        index.add(key, plain[key])
    agree()
    order = data.draw(st.permutations(list(plain)))
    for position, key in enumerate(order):
        index.remove(key)
        kept = plain.pop(key)
        if position % 3 == 1:  # some come back, behind the others
            key += 1000
            plain[key] = kept
            index.add(key, kept)
        agree()
    for key in list(plain):
        index.remove(key)
    assert not any(vars(index).values())  # nothing is left of what went


@pytest.fixture
def counted() -> Callable[[str, list[str]], Selector]:
    """A selector that notes in a list when it is asked."""

    def make(text: str, asked: list[str]) -> Selector:
        selector = Selector(text)
        matches = selector.matches

        def counting(message: Message) -> bool:
            asked.append(text)
            return matches(message)

        selector.matches = counting
        return selector

    return make


@pytest.mark.parametrize(
    ("text", "asked_each_time"),
    [
        ("type = 't{i}'", 0),
        ("type IN ('t{i}', 'u{i}')", 0),
        ("size = {i}", 0),
        ("size IN ({i}, -1)", 0),
        ("type = 't{i}' OR size = {i}", 0),
        ("type = 't{i}' AND price > 5", 1),
        ("price > 5 AND (size = {i} OR type = 't{i}')", 1),
        ("kind = 'same' AND type = 't{i}' AND flag", 1),  # all but the first wait where few do
        ("type <> 't{i}'", 100),
        ("size > {i}", 100),
        ("type = 't{i}' OR price > 5", 100),
    ],
)
def test_how_many_are_asked(text: str, asked_each_time: int, counted: Callable[[str, list[str]], Selector]) -> None:
    asked: list[str] = []
    index: SelectorIndex[int] = SelectorIndex()
    for i in range(100):
        index.add(i, counted(text.format(i=i), asked))
    properties = {"type": "t7", "size": "7", "price": "6", "kind": "same", "flag": "true"}
    found = index.matching(Message("topic://t", b"", properties))
    assert 7 in found or asked_each_time == 100
    assert asked_each_time <= len(asked) <= asked_each_time * 2
    asked.clear()
    index.matching(Message("topic://t", b"", {"type": "none", "size": "x", "kind": "same"}))
    assert len(asked) == 100 if asked_each_time == 100 else len(asked) <= 1


@pytest.mark.parametrize("text", ["type IN ({})", "size IN ({})", "type IN ({}) OR size = 1"])
def test_selector_with_very_many_values_takes_no_more_memory(text: str) -> None:
    index: SelectorIndex[str] = SelectorIndex()
    values = [f"'{i}'" if "type IN" in text else str(i) for i in range(5, 1000)]
    index.add("key", Selector(text.format(", ".join(values))))
    name = "type" if "type IN" in text else "size"
    assert index.matching(Message("topic://t", b"", {name: "999"})) == ["key"]
    assert not index.matching(Message("topic://t", b"", {name: "1000"}))
    assert not index._texts
    assert not index._numbers


def test_equal_selectors_are_asked_once(counted: Callable[[str, list[str]], Selector]) -> None:
    asked: list[str] = []
    index: SelectorIndex[str] = SelectorIndex()
    selector = counted("price > 5", asked)
    for key in ("first", "second", "third"):
        index.add(key, selector)
    assert index.matching(Message("topic://t", b"", {"price": "6"})) == ["first", "second", "third"]
    assert len(asked) == 1
    index.remove("second")
    assert index.matching(Message("topic://t", b"", {"price": "6"})) == ["first", "third"]


def test_a_key_is_added_once() -> None:
    index: SelectorIndex[str] = SelectorIndex()
    index.add("key", Selector("a = 1"))
    with pytest.raises(AssertionError):
        index.add("key", Selector("a = 2"))
