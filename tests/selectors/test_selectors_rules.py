"""Each rule of the selector language, as a table: selector, properties → TRUE, FALSE or UNKNOWN; and every error."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

from amq.core.errors import AmqError
from amq.core.message import Message, lift
from amq.selectors import Selector, SelectorError
from amq.selectors.lexer import SELECTOR_CHARACTERS_MAX

ORDER = {
    "color": "red",
    "size": "10",
    "price": "7.5",
    "flag": "true",
    "off": "FALSE",
    "quote": "it's",
    "empty": "",
    "type": "order",
    "correlation-id": "c-1",
    "reply-to": "/queue/r",
    "JMSXGroupID": "g1",
    "$x_1": "1",
    "größe": "3",
    "AND ": "odd",
    "exp": "1e3",
    "padded": " 5",
    "long": "9223372036854775808",
    "signed": "+5",
    "under": "1_0",
    "arabic": "٣",
    "hex": "0x10",
    "nan": "nan",
    "inf": "inf",
    "huge": "1" * 101,
    "lines": "a\nb",
    "dot": "5.",
    "percent": "50%",
    "back": "a\\b",
    "octal": "017",
}


def message() -> Message:
    properties = dict(ORDER)
    envelope = lift(properties)
    return Message(
        "queue://orders",
        b"body",
        properties,
        content_type="text/plain",
        priority=7,
        persistent=True,
        timestamp_ms=1_700_000_000_000,
        expires_ms=5,
        duplicate_id="d-1",
        seq=42,
        envelope=envelope,
    )


def value_of(selector: str, of: Message | None = None) -> bool | None:
    of = of or message()
    is_true, is_false = Selector(selector, "ID:x-").matches(of), Selector(f"NOT ({selector})", "ID:x-").matches(of)
    assert type(is_true) is bool
    assert type(is_false) is bool
    assert not (is_true and is_false)
    return True if is_true else False if is_false else None


T, F, U = True, False, None
RULES: list[tuple[str, bool | None]] = [
    # strings
    ("color = 'red'", T),
    ("color = 'Red'", F),
    ("color <> 'red'", F),
    ("color <> 'blue'", T),
    ("'red' = color", T),
    ("quote = 'it''s'", T),
    ("empty = ''", T),
    ("color = color", T),
    ("color = size", F),
    ("none = 'x'", U),
    ("none <> 'x'", U),
    ("none = none", U),
    ("color = none", U),
    ("'a' = 'a'", T),
    ("'a' <> 'a'", F),
    ("lines = 'a\nb'", T),
    # names
    ("Color = 'red'", U),
    ("$x_1 = 1", T),
    ("größe = 3", T),
    ("\"correlation-id\" = 'c-1'", T),
    ("\"AND \" = 'odd'", T),
    ('"a""b" IS NULL', T),
    ("\"color\"='red'", T),
    # keywords in any case, blanks
    ("color='red'and size=10", T),
    ("color = 'red' And Not size = 11", T),
    ("  ", T),
    ("", T),
    ("\t\n TRUE", T),
    ("color\nis\nnot\rnull", T),
    # exact and approximate literals
    ("size = 10", T),
    ("size = 10L", T),
    ("size = 10l", T),
    ("size = 0xA", T),
    ("size = 0Xal", T),
    ("size = 012", T),
    ("size = 10.0", T),
    ("size = 10.", T),
    ("size = 1E1", T),
    ("size = 1e+1", T),
    ("size = 100e-1", T),
    ("size = 10f", T),
    ("size = 10D", T),
    ("size = .1e2d", T),
    ("price = 7.5", T),
    ("price = 7.5F", T),
    ("price = 75E-1", T),
    ("0 = 0", T),
    ("price = +7.5", T),
    ("price = -(-7.5)", T),
    ("price = - - 7.5", T),
    ("-price = -7.5", T),
    ("-5 < -4", T),
    ("9223372036854775807 > 9223372036854775806", T),
    ("-9223372036854775808 < -9223372036854775807", T),
    # comparisons of numbers
    ("size > 9", T),
    ("size >= 10", T),
    ("size < 10", F),
    ("size <= 10", T),
    ("size <> 10", F),
    ("size <> 11", T),
    ("9 < size", T),
    ("price > size", F),
    ("price < size", T),
    ("none > 1", U),
    ("none = 1", U),
    ("none <> 1", U),
    ("none < size", U),
    ("size = '10'", T),
    ("size = '10.0'", F),
    ("size < '11'", T),
    ("JMSPriority = '7'", T),
    # conversion: a property is a string, and a number where a number stands beside it
    ("exp = 1000", T),
    ("signed = 5", T),
    ("dot = 5", T),
    ("octal = 17", T),
    ("long > 9223372036854775807", T),
    ("padded = 5", F),
    ("under = 10", F),
    ("arabic = 3", F),
    ("hex = 16", F),
    ("nan = nan", T),
    ("nan <> 1", F),
    ("inf > 1", F),
    ("huge > 1", F),
    ("empty = 0", F),
    ("color = 5", F),
    ("color <> 5", F),
    ("color < 5", F),
    ("color >= 5", F),
    ("color > size", F),
    ("color BETWEEN 1 AND 2", F),
    ("color NOT BETWEEN 1 AND 2", T),
    ("color IN (1, 2)", F),
    ("color NOT IN (1, 2)", T),
    ("color + 1 > 0", U),
    ("(color + 1) IS NULL", T),
    ("-color < 0", U),
    ("convert_string_expressions:size > 9", T),
    ("convert_string_expressions:", T),
    # TRUE and FALSE
    ("TRUE", T),
    ("false", F),
    ("flag", T),
    ("off", F),
    ("none", U),
    ("color", F),
    ("flag = TRUE", T),
    ("off = FALSE", T),
    ("flag <> TRUE", F),
    ("off <> TRUE", T),
    ("TRUE = flag", T),
    ("color = TRUE", F),
    ("color = FALSE", F),
    ("color <> TRUE", F),
    ("none = TRUE", U),
    ("none <> TRUE", U),
    ("TRUE = FALSE", F),
    ("TRUE <> FALSE", T),
    ("'TRUE' = TRUE", T),
    ("NOT flag", F),
    ("flag = 'true'", T),
    ("off = 'false'", F),
    # AND, OR, NOT: true, false (off), unknown (none)
    ("flag AND flag", T),
    ("flag AND off", F),
    ("flag AND none", U),
    ("off AND none", F),
    ("none AND none", U),
    ("off AND off", F),
    ("flag OR off", T),
    ("flag OR none", T),
    ("off OR none", U),
    ("off OR off", F),
    ("none OR none", U),
    ("NOT none", U),
    ("NOT NOT flag", T),
    ("NOT NOT NOT flag", F),
    ("NOT flag OR flag", T),
    ("flag OR flag AND off", T),
    ("(flag OR flag) AND off", F),
    ("NOT (flag AND off)", T),
    ("NOT off AND off", F),
    # BETWEEN
    ("size BETWEEN 10 AND 10", T),
    ("size BETWEEN 11 AND 9", F),
    ("size NOT BETWEEN 11 AND 12", T),
    ("size BETWEEN 1 AND none", U),
    ("size BETWEEN 11 AND none", F),
    ("size NOT BETWEEN none AND 9", T),
    ("none BETWEEN 1 AND 2", U),
    ("size BETWEEN price AND price * 2", T),
    ("size - 1 BETWEEN 9 AND 9 AND flag", T),
    ("'5' BETWEEN 4 AND '6'", T),
    # IN
    ("color IN ('blue', 'red')", T),
    ("color IN ('blue')", F),
    ("color NOT IN ('blue', 'red')", F),
    ("color NOT IN ('blue')", T),
    ("none IN ('a')", U),
    ("none NOT IN ('a')", U),
    ("size IN (9, 10)", T),
    ("size IN (10.0)", T),
    ("size IN (-10, +10)", T),
    ("size NOT IN (9)", T),
    ("none IN (1)", U),
    ("none NOT IN (1)", U),
    ("size IN ('10')", T),
    ("JMSPriority IN (7, 8, 9)", T),
    ("JMSPriority IN ('7')", T),
    ("size + 1 IN (11)", T),
    # LIKE
    ("color LIKE 'red'", T),
    ("color LIKE 're'", F),
    ("color LIKE 'r%'", T),
    ("color LIKE '%d'", T),
    ("color LIKE '%e%'", T),
    ("color LIKE '%'", T),
    ("empty LIKE '%'", T),
    ("empty LIKE '_'", F),
    ("empty LIKE ''", T),
    ("color LIKE '_e_'", T),
    ("color LIKE '__'", F),
    ("color LIKE 'r%e%d'", T),
    ("color LIKE 'r%d%d'", F),
    ("color LIKE '%r%d'", T),
    ("color LIKE 'RED'", F),
    ("color NOT LIKE 'b%'", T),
    ("none LIKE '%'", U),
    ("none NOT LIKE 'a'", U),
    ("lines LIKE 'a_b'", T),
    ("lines LIKE 'a%b'", T),
    ("percent LIKE '50!%' ESCAPE '!'", T),
    ("percent LIKE '5!%' ESCAPE '!'", F),
    ("color LIKE 'r!_d' ESCAPE '!'", F),
    ("back LIKE 'a\\b'", T),
    ("back LIKE 'a\\\\b' ESCAPE '\\'", T),
    ("size LIKE '1%'", T),
    ("'abc' LIKE 'a%'", T),
    ("color LIKE '%_ed'", T),
    ("color LIKE '%___%'", T),
    ("color LIKE '%____%'", F),
    ("color LIKE '.*'", F),
    ("color LIKE 'r%%d'", T),
    ("color LIKE 'b%d'", F),
    ("color LIKE 'r%b'", F),
    ("color LIKE 're%ed'", F),
    ("color LIKE '%r%_%d'", T),
    # IS NULL
    ("none IS NULL", T),
    ("color IS NULL", F),
    ("none IS NOT NULL", F),
    ("color IS NOT NULL", T),
    ("empty IS NULL", F),
    ("JMSPriority IS NULL", F),
    ("(none * 2) IS NULL", T),
    ("(size * 2) IS NOT NULL", T),
    ("'x' IS NULL", F),
    # arithmetic: + - * / %, exact ones as in Java and SQL
    ("size + 1 = 11", T),
    ("size - 1 = 9", T),
    ("size * 2 = 20", T),
    ("size / 4 = 2", T),
    ("-size / 4 = -2", T),
    ("size % 4 = 2", T),
    ("-size % 4 = -2", T),
    ("size / 4.0 = 2.5", T),
    ("price * 2 = 15", T),
    ("7.5 % 2 = 1.5", T),
    ("1 + 2 * 3 = 7", T),
    ("(1 + 2) * 3 = 9", T),
    ("10 - 3 - 2 = 5", T),
    ("100 / 10 / 5 = 2", T),
    ("5--5 = 10", T),
    ("size / 0 = 1", U),
    ("size % 0 = 1", U),
    ("size / 0.0 > 0", U),
    ("none + 1 = 1", U),
    ("'3' + '4' = 7", T),
    ("9223372036854775807 + 1 = 9223372036854775808.0", T),
    ("-(-9223372036854775808) > 9223372036854775807", T),
    ("4611686018427387904 * 4 > 0", T),
    ("1e308 * 10 > 1e308", T),
    ("(1e308 * 10 - 1e308 * 10) IS NULL", T),
    ("(1e308 * 10) % 2 = 0", U),
    # headers
    ("JMSPriority = 7", T),
    ("JMSPriority > 7", F),
    ("JMSTimestamp = 1700000000000", T),
    ("JMSExpiration = 5", T),
    ("JMSDeliveryMode = 'PERSISTENT'", T),
    ("JMSDeliveryMode <> 'NON_PERSISTENT'", T),
    ("JMSMessageID = 'ID:x-42'", T),
    ("JMSMessageID LIKE 'ID:%'", T),
    ("JMSCorrelationID = 'c-1'", T),
    ("JMSType = 'order'", T),
    ("type = 'order'", T),
    ("JMSReplyTo = '/queue/r'", T),
    ("JMSReplyTo = 'queue://r'", T),
    ("JMSReplyTo <> 'queue://r'", F),
    ("JMSReplyTo IN ('queue://q', 'queue://r')", T),
    ("JMSReplyTo LIKE 'queue://%'", T),
    ("JMSReplyTo LIKE '%r'", T),
    ("JMSReplyTo = 'topic://r'", F),
    ("JMSXGroupSeq = 0", T),
    ("NOT JMSXGroupSeq = 0", F),
    ("JMSXGroupSeq > 0", F),
    ("JMSDestination = 'queue://orders'", T),
    ("JMSXGroupID = 'g1'", T),
    ("JMSXGroupSeq IS NULL", T),
    ("_AMQ_DUPL_ID = 'd-1'", T),
    ("\"content-type\" = 'text/plain'", T),
    ("JMSPriority + JMSExpiration = 12", T),
    ("JMSDeliveryMode IS NULL", F),
    ("JMSDeliveryMode = color", F),
]


@pytest.mark.parametrize(("selector", "expected"), RULES)
def test_rule(selector: str, expected: bool | None) -> None:
    if not selector.strip() or selector.startswith("convert_string"):
        assert Selector(selector).matches(message()) is expected
    else:
        assert value_of(selector) is expected


def test_a_message_without_properties() -> None:
    bare = Message("queue://orders", b"", None, persistent=False)
    assert value_of("none IS NULL", bare) is True
    assert value_of("none = 'x'", bare) is None
    assert value_of("JMSCorrelationID IS NULL", bare) is True
    assert value_of('_AMQ_DUPL_ID IS NULL AND "content-type" IS NULL', bare) is True
    assert value_of("_AMQ_DUPL_ID = 'x'", bare) is None
    assert value_of("JMSDeliveryMode = 'NON_PERSISTENT' AND JMSPriority = 4 AND JMSExpiration = 0", bare) is True


ERRORS = [
    ("price >", 8, "expected a name, a string, a number, TRUE, FALSE, NOT or (, found the end"),
    ("price > 10 AND )", 16, "found )"),
    ("5", 1, "expected a condition"),
    ("'x'", 1, "expected a condition"),
    ("JMSPriority", 1, "expected a condition"),
    ("price + 1", 1, "expected a condition"),
    ("flag AND price + 1", 10, "expected a condition"),
    ("NOT 5", 5, "expected a condition"),
    ("(a = 1) = (b = 2)", 1, "expected a value, found a condition"),
    ("a = (b = 2)", 5, "expected a value, found a condition"),
    ("1 + (a = 2) = 3", 5, "expected a value, found a condition"),
    ("TRUE + 1 = 2", 1, "expected a value, found a condition"),
    ("a = 1 b = 2", 7, "expected AND, OR or the end of the selector, found b"),
    ("a = b = c", 7, "expected AND, OR or the end"),
    ("a < b < c", 7, "expected AND, OR or the end"),
    ("a > 'x'", 5, "expected a number: only = and <> compare strings"),
    ("'x' + 1 = 2", 1, "expected a number"),
    ("JMSPriority = 'high'", 15, "expected a number"),
    ("a BETWEEN 'x' AND 2", 11, "expected a number"),
    ("a BETWEEN 1 OR 2", 13, "expected AND and the upper bound of BETWEEN, found OR"),
    ("a NOT = 1", 7, "expected BETWEEN, IN or LIKE, found ="),
    ("a IS 5", 6, "expected NULL or NOT NULL, found 5"),
    ("a IS NOT 5", 10, "expected NULL, found 5"),
    ("a = NULL", 5, "expected a name"),
    ("a IN 'x'", 6, "expected ( and the values of IN"),
    ("a IN ()", 7, "expected a name, a string, a number"),
    ("a IN (b)", 7, "expected a string or a number: IN takes no other values"),
    ("a IN ('x' 'y')", 11, "expected , or ) after a value of IN"),
    ("a IN ('x', 5)", 1, "expected strings only, or numbers only"),
    ("JMSPriority IN ('x')", 17, "expected a number"),
    ("a LIKE b", 8, "expected a string, the pattern of LIKE, found b"),
    ("a LIKE 'x' ESCAPE 'yy'", 19, "one character after ESCAPE"),
    ("a LIKE 'x' ESCAPE ''", 19, "one character after ESCAPE"),
    ("a LIKE 'x' ESCAPE 5", 19, "one character after ESCAPE, found 5"),
    ("a LIKE '!x' ESCAPE '!'", 8, "expected %, _ or ! after the escape character !"),
    ("a LIKE 'x!' ESCAPE '!'", 8, "expected %, _ or !"),
    ("JMSPriority LIKE '5'", 1, "on the left of LIKE, found a number"),
    ("flag > TRUE", 1, "TRUE and FALSE can only be compared by = and <>"),
    ("5 = TRUE", 1, "expected something that is TRUE or FALSE"),
    ("(a = 1", 7, "expected ) for the ( in column 1, found the end"),
    ("a = 'x", 5, "this string does not end"),
    ('"a = 1', 1, "this name does not end"),
    ('"" = 1', 1, "expected a name between the quotes"),
    ("a != 1", 3, "not equal is written <>"),
    ("a == 1", 4, "found ="),
    ("a = 1;", 6, "found ';'"),
    ("a.b = 1", 2, "found '.'"),
    ("a = 5x", 6, "expected the end of the number"),
    ("a = 1.5.2", 8, "expected the end of the number"),
    ("a = 0x", 6, "expected the end of the number"),
    ("a = 089", 5, "is octal"),
    ("a = 1e999", 5, "too large"),
    ("a = 9223372036854775808", 5, "does not fit into 64 bits"),
    ("a = 0xFFFFFFFFFFFFFFFF", 5, "does not fit into 64 bits"),
    (f"a = {'9' * 5000}", 5, "does not fit into 64 bits"),
    ("JMSFoo = 1", 1, "no header has this name: expected JMSPriority"),
    ("a = 1 AND JMSMessageID = 'ID:x-1'", 11, "JMSMessageID is not known to this protocol"),
    ("JMSRedelivered = TRUE", 1, "is not known before"),
    ("JMSXDeliveryCount > 1", 1, "is not known before"),
    ("convert_string_expressions:price >", 35, "found the end"),
    ("a = 'é\u200b' ! 1", 10, "found '!'"),
]


@pytest.mark.parametrize(("selector", "column", "what"), ERRORS)
def test_error_points_at_the_column(selector: str, column: int, what: str) -> None:
    with pytest.raises(SelectorError) as raised:
        Selector(selector)
    error = raised.value
    said, shown, caret = error.description.split("\n")
    assert error.code == "INVALID_SELECTOR"
    assert error.column == column
    assert said.startswith(f"selector, column {column}: ")
    assert what in said
    assert set(caret) <= {" ", "^"}
    assert caret.endswith("^")
    pointed = shown[len(caret) - 1 :]
    assert pointed[:1].strip() == selector[column - 1 : column].strip()
    assert isinstance(error, AmqError)
    assert not error.fatal


def test_a_long_selector_is_shown_around_the_column() -> None:
    with pytest.raises(SelectorError) as raised:
        Selector("a = 1 OR " * 100 + "a ! 1" + " OR a = 1" * 100)
    _, shown, caret = raised.value.description.split("\n")
    assert shown.startswith("…")
    assert shown.endswith("…")
    assert len(shown) < 150
    assert shown[len(caret) - 1] == "!"


LIMITS = [
    "(" * 51 + "a = 1" + ")" * 51,
    "a = " + "(" * 5000 + "1" + ")" * 5000,
    "a" + " + 1" * 51 + " = 1",
    "- (" * 51 + "a" + ")" * 51 + " = 1",
    "a LIKE '%a" + "_" * 249 + "b%'",
    "a LIKE '%a" + "_" * 124 + "b%' OR a LIKE '%b_" + "x" * 123 + "%'",
]


@pytest.mark.parametrize("selector", LIMITS, ids=range(len(LIMITS)))
def test_limits(selector: str) -> None:
    with pytest.raises(SelectorError, match=r"more than 50 levels|at most 250") as raised:
        Selector(selector)
    assert raised.value.code == "INVALID_SELECTOR"
    assert raised.value.column


def test_length_limit() -> None:
    longest = "a = '" + "x" * (SELECTOR_CHARACTERS_MAX - 6) + "'"
    assert not Selector(longest).matches(message())
    with pytest.raises(SelectorError, match="10,241 characters, at most 10,240") as raised:
        Selector(longest + " ")
    assert raised.value.code == "SELECTOR_TOO_LARGE"
    assert raised.value.column == 0


def test_at_the_limits_it_works() -> None:
    assert value_of("(" * 49 + "size = 10" + ")" * 49) is True
    assert value_of("size" + " + 0" * 50 + " = 10") is True
    assert value_of("(" * 40 + "size" + " + 0" * 49 + ")" * 40 + " = 10") is True
    assert value_of("size" + " + (0 * 1" * 25 + ")" * 25 + " = 10") is True
    assert Selector("NOT " * 2000 + "size = 10").matches(message())
    assert Selector("size = " + "-" * 10000 + "10").matches(message())
    assert Selector(" OR ".join(["size = 9"] * 800 + ["size = 10"])).matches(message())
    deep = "size = 10"
    for _ in range(48):
        deep = f"NOT ({deep} AND size > 1 OR color = 'blue')"
    assert Selector(f"{deep} OR {deep}").matches(message())


def test_equal_texts_share_one_object_while_it_is_in_use() -> None:
    first = Selector("color = 'a text that no other test has'")
    assert Selector("color = 'a text that no other test has'") is first
    assert Selector("color = 'a text that no other test has'", "ID:other-") is not first
    assert Selector("color = 'another text'").matches.__code__ is first.matches.__code__
    remembered = weakref.ref(first)
    del first
    gc.collect()
    assert remembered() is None


HOSTILE = ["x' or 'y", "'); import os; ('", "\\", "{c0}", "__import__('os')", "\x00", "\udc80", "%s"]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_stays_text(text: str) -> None:
    """Nothing that a selector holds becomes program text."""
    quoted, name = "'" + text.replace("'", "''") + "'", '"' + text.replace('"', '""') + '"'
    holder = Message("queue://q", b"", {text: text})
    assert Selector(f"{name} = {quoted}").matches(holder)
    assert Selector(f"{name} IN ({quoted}) AND {name} LIKE '%' AND {name} IS NOT NULL").matches(holder)
    assert not Selector(f"{name} <> {quoted} OR {name} > 5").matches(holder)


def test_what_the_documentation_shows() -> None:
    section = (Path(__file__).parents[2] / "docs/messaging.md").read_text().partition("\n## Selectors\n")[2]
    example, _grammar, error = [block.strip("\n") for block in section.split("```")[1:6:2]]
    properties = {"type": "order", "price": "100", "region": "north"}
    assert Selector(example).matches(Message("queue://q", b"", properties))
    with pytest.raises(SelectorError) as raised:
        Selector(error.split("\n")[1])
    assert raised.value.description == error
