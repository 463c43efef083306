"""Properties of other types than text, and the headers of an envelope, as JMS compares them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.core.message import Envelope, Message
from amq.core.values import Float32, Int8, Int32, Text, Value
from amq.selectors import Selector, SelectorIndex
from tests.typed import VALUES, reads, tiny

T, F, U = True, False, None
PROPERTIES: dict[str, Value] = {
    "i": Int32(5),
    "b": Int8(5),
    "l": 1 << 62,
    "f": Float32(0.5),
    "d": 2.5,
    "yes": True,
    "no": False,
    "s": "5",
    "raw": b"5",
    "nan": math.nan,
    "type": "own",
    "word": "true",
}
ENVELOPE = Envelope("ID:producer-1", "c-1", "queue://r", "order")
RULES = [
    # numbers as numbers, exactly
    ("i = 5", T),
    ("i = b", T),
    ("i <> b", F),
    ("i = 5.0", T),
    ("i > 4 AND i < 6", T),
    ("i + b = 10", T),
    ("i / 2 = 2", T),
    ("l = 4611686018427387904", T),
    ("l + 1 > l", T),
    ("f = 0.5", T),
    ("f < d", T),
    ("i BETWEEN 5 AND 6", T),
    ("i IN (4, 5)", T),
    ("i NOT IN (4, 5)", F),
    ("d IN (2.5)", T),
    ("nan = nan", F),
    ("nan = 1", F),
    ("-i = -5", T),
    # booleans as booleans
    ("yes", T),
    ("NOT no", T),
    ("yes = TRUE", T),
    ("yes <> TRUE", F),
    ("no = FALSE", T),
    ("yes = no", F),
    ("yes <> no", T),
    # texts as ever
    ("s = 5", T),
    ("s = '5'", T),
    ("s + 1 = 6", T),
    ("word", T),
    ("word = TRUE", T),
    # different types: FALSE, also with <>
    ("i = '5'", F),
    ("i <> '5'", F),
    ("i <> 'x'", F),
    ("i = s", F),
    ("i <> s", F),
    ("i LIKE '5'", F),
    ("i NOT LIKE 'x'", T),
    ("i IN ('5')", F),
    ("i NOT IN ('x')", T),
    ("yes = 'true'", F),
    ("yes <> 'x'", F),
    ("yes = 1", F),
    ("yes <> 0", F),
    ("yes = word", F),
    ("yes <> word", F),
    ("yes IN (1)", F),
    ("i = TRUE", F),
    ("i = FALSE", F),
    ("b", F),
    ("NOT i", T),
    ("yes > 0", F),
    ("yes + 1 > 0", U),
    ("yes BETWEEN 0 AND 2", F),
    ("raw = '5'", F),
    ("raw <> 'x'", F),
    ("raw = 5", F),
    ("raw", F),
    ("raw LIKE '%'", F),
    ("raw + 1 = 6", U),
    ("raw = raw", T),
    ("raw <> i", F),
    ("yes = i", F),
    ("f = yes", F),
    # NULL
    ("none = i", U),
    ("none <> yes", U),
    ("i IS NULL", F),
    ("no IS NOT NULL", T),
    ("raw IS NULL", F),
    # headers of the envelope
    ("JMSMessageID = 'ID:producer-1'", T),
    ("JMSCorrelationID = 'c-1'", T),
    ("JMSReplyTo = '/queue/r'", T),
    ("JMSType = 'order'", T),
    ("type = 'own'", T),
    ("\"correlation-id\" = 'c-1'", T),
    ("\"reply-to\" LIKE '/queue/%'", T),
    ("JMSType IS NULL", F),
    ("JMSCorrelationID > 1", F),
    ("JMSType IN ('order', 'x') AND JMSType LIKE 'o%'", T),
]


def value_of(selector: str, of: Message) -> bool | None:
    is_true, is_false = Selector(selector, "ID:x-").matches(of), Selector(f"NOT ({selector})", "ID:x-").matches(of)
    assert (type(is_true), type(is_false)) == (bool, bool)
    assert not (is_true and is_false)
    return True if is_true else False if is_false else None


@pytest.mark.parametrize(("selector", "expected"), RULES)
def test_rule(selector: str, expected: bool | None) -> None:
    assert value_of(selector, Message("queue://a", b"", PROPERTIES, seq=3, envelope=ENVELOPE)) is expected


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("word5 = 5", False),
        ("convert_string_expressions:word5 = 5", True),
        ("convert_string_expressions:NOT (word5 <> 5)", True),
        ("convert_string_expressions:word5 IN (4, 5) AND word5 BETWEEN i AND 6 AND word5 + 1 = 6", True),
        ("convert_string_expressions:word5 = '5' AND i = 5 AND s = 5", True),
        ("convert_string_expressions:NOT (none = 5)", False),
    ],
)
def test_text_of_a_producer_with_types_is_a_number_on_demand(selector: str, expected: bool) -> None:
    message = Message("queue://a", b"", PROPERTIES | {"word5": Text("5")}, seq=3, envelope=ENVELOPE)
    assert Selector(selector, "ID:x-").matches(message) is expected
    index: SelectorIndex[int] = SelectorIndex()
    index.add(1, Selector(selector, "ID:x-"))
    assert bool(list(index.matching(message))) is expected


def test_without_an_envelope_and_with_an_empty_one() -> None:
    for bare in (Message("queue://a", b"", seq=3), Message("queue://a", b"", seq=3, envelope=Envelope())):
        assert value_of("JMSMessageID = 'ID:x-3'", bare) is True
        for name in ("JMSType", "JMSReplyTo", "JMSCorrelationID", "type", '"correlation-id"', '"reply-to"'):
            assert value_of(f"{name} IS NULL", bare) is True
            assert value_of(f"{name} = 'x'", bare) is None


def test_a_correlation_id_of_bytes_is_compared_as_it_is_shown() -> None:
    message = Message("queue://a", b"", envelope=Envelope(correlation_id=b"\x00\xff"))
    assert value_of("JMSCorrelationID = 'ID:AMQP_BINARY:00FF'", message) is True


def test_a_native_message_is_read_once_however_many_selectors_ask() -> None:
    reads.clear()
    message = tiny("queue://a", b"", {"i": Int32(5), "JMSXGroupID": "g"}, message_id="ID:tiny", seq=3)
    for selector in ("i = 5", "i + 1 = 6", "JMSType = 'tiny'", "JMSXGroupID = 'g'", "JMSMessageID = 'ID:tiny'"):
        assert value_of(selector, message) is True
    assert reads == {"head": 1}


@given(st.sampled_from([selector for selector, _ in RULES]), st.dictionaries(st.sampled_from("ibfds"), VALUES))
def test_whatever_the_types_nothing_is_raised(selector: str, properties: dict[str, Value]) -> None:
    assert value_of(selector, Message("queue://a", b"", properties, envelope=Envelope())) in (True, False, None)
