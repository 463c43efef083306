"""Tokens → the tree of `syntax`: a recursive descent, one method for each rule of the grammar in docs/messaging.md.

Invariant: whatever the text, it ends in a tree or in one `SelectorError` that points at the column and says what was
expected there; recursion is bounded by `DEPTH_MAX`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn

from amq.core.message import Envelope
from amq.selectors import syntax
from amq.selectors.lexer import CONVERT_PREFIX, END, NAME, NUMBER, STRING, TOO_LARGE, failure, tokens
from amq.selectors.syntax import (
    DEPTH_MAX,
    TEXTS,
    Always,
    And,
    Arithmetic,
    AsNumber,
    Between,
    CompareNumbers,
    Condition,
    InNumbers,
    InTexts,
    IsNull,
    Like,
    Negation,
    Not,
    Number,
    NumberHeader,
    NumberValue,
    Or,
    Property,
    SameText,
    TextHeader,
    TextLiteral,
    TextValue,
    Truth,
    Value,
    depth,
)
from amq.selectors.values import INT64_MIN, LIKE_SEARCH_CHARACTERS_MAX, LikePattern, negate, number

_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
_UNKNOWN_AT_MATCHING = frozenset({"JMSRedelivered", "JMSXDeliveryCount"})
_HEADERS = (*syntax.NUMBER_HEADERS, *(n for n in syntax.TEXT_HEADERS if n[0] == "J"))
Node = Value | Condition


SEARCH_TERMS: Final = 10  # that a character of a piece counts for whose search takes the product of both lengths


class Parsed(NamedTuple):
    """The tree of a selector. `terms` = its comparisons, arithmetic operators and conditions in parentheses, and
    SEARCH_TERMS for each character of a LIKE that is dear to find: what it costs to compile, to keep and to ask grows
    with them."""

    condition: Condition
    terms: int


def parse(text: str, with_message_id: bool, terms_max: int = 0) -> Parsed:
    """The condition that `text` says; a blank one is always TRUE. SelectorError for what is not of the language.

    `with_message_id`: it may name `JMSMessageID`. `terms_max` = the most terms that it may have, 0 = any number.
    """
    parser = _Parser(text, with_message_id, terms_max)
    if parser.token.kind == END:
        return Parsed(Always(True), 0)
    at = parser.token.at
    condition = parser.condition(parser.any_of(), at)
    if parser.token.kind != END:
        parser.fail("expected AND, OR or the end of the selector")
    return Parsed(condition, parser.terms)


class _Parser:
    def __init__(self, text: str, with_message_id: bool, terms_max: int) -> None:
        self.text = text
        self.with_message_id = with_message_id
        self.tokens = tokens(text)
        self.position = 0
        self.token = self.tokens[0]
        self.parentheses = 0
        self.search_characters = 0
        self.terms = 0
        self._terms_max = terms_max

    # ---- tokens

    def fail(self, what: str, at: int | None = None) -> NoReturn:
        """`at`: where, and then `what` is all there is to say; otherwise at the token, which was not expected."""
        if at is None:
            token = self.token
            found = "the end" if token.kind == END else self.text[token.at : token.end][:40]
            what, at = f"{what}, found {found}", token.at
        raise failure(self.text, at, what)

    def advance(self) -> None:
        self.position += 1
        self.token = self.tokens[self.position]

    def accept(self, *kinds: str) -> bool:
        """Take the token if it is one of these."""
        if self.token.kind not in kinds:
            return False
        self.advance()
        return True

    def expect(self, kind: str, what: str) -> None:
        if not self.accept(kind):
            self.fail(f"expected {what}")

    def string(self, what: str) -> str:
        value = self.token.value
        if self.token.kind != STRING or not isinstance(value, str):
            self.fail(f"expected {what}")
        self.advance()
        return value

    # ---- what a node must be; `at` is where it begins

    def condition(self, node: Node, at: int) -> Condition:
        if isinstance(node, syntax.CONDITIONS):
            return node
        if isinstance(node, Property):
            return syntax.Truth(node, True)
        return self.fail("expected a condition, found a value: compare it with something, as in price > 10", at)

    def value(self, node: Node, at: int) -> Value:
        if isinstance(node, syntax.CONDITIONS):
            self.fail("expected a value, found a condition", at)
        return node

    def number(self, node: Node, at: int) -> NumberValue:
        """Texts are converted: a string now, a property when it is there."""
        value = self.value(node, at)
        if isinstance(value, TextLiteral):
            converted = number(value.value)
            if math.isnan(converted):
                self.fail("expected a number: only = and <> compare strings, and only with each other", at)
            return Number(converted)
        return AsNumber(value, self.text.startswith(CONVERT_PREFIX)) if isinstance(value, TEXTS) else value

    # ---- conditions

    def any_of(self) -> Node:
        return self._joined("OR", self.all_of, Or)

    def all_of(self) -> Node:
        return self._joined("AND", self.negated, And)

    def _joined(self, keyword: str, rule: Callable[[], Node], join: type[And] | type[Or]) -> Node:
        at = self.token.at
        node = rule()
        if self.token.kind != keyword:
            return node
        conditions = [self.condition(node, at)]
        while self.accept(keyword):
            at = self.token.at
            conditions.append(self.condition(rule(), at))
        return join(tuple(conditions))

    def negated(self) -> Node:
        if self.token.kind != "NOT":
            return self.comparison()
        negative = False
        while self.accept("NOT"):
            negative = not negative
        at = self.token.at
        condition = self.condition(self.comparison(), at)
        return Not(condition) if negative else condition

    def count_terms(self, at: int, count: int = 1) -> None:
        """A part that begins there has to be compiled, kept and asked."""
        self.terms += count
        if self.terms > self._terms_max > 0:
            raise failure(
                self.text,
                at,
                f"the selector has more than {self._terms_max} terms (maxSelectorTerms): write several "
                "values of one property as a single IN, or let the producer set a property that says what you look for",
                TOO_LARGE,
            )

    def comparison(self) -> Node:
        at = self.token.at
        self.count_terms(at)
        node = self.sum()
        operator = self.token.kind
        if self.accept(*_COMPARISONS):
            return self._compared(operator, node, at)
        if self.accept("IS"):
            negative = self.accept("NOT")
            self.expect("NULL", "NULL" if negative else "NULL or NOT NULL")
            null = IsNull(self.value(node, at))
            return Not(null) if negative else null
        negative = self.accept("NOT")
        condition: Condition
        if self.accept("BETWEEN"):
            condition = self._between(node, at)
        elif self.accept("IN"):
            condition = self._in(node, at)
        elif self.accept("LIKE"):
            condition = self._like(node, at)
        elif negative:
            self.fail("expected BETWEEN, IN or LIKE")
        else:
            return node
        return Not(condition) if negative else condition

    def _compared(self, operator: str, left: Node, left_at: int) -> Condition:
        right_at = self.token.at
        right = self.sum()
        if isinstance(right, Always) and not isinstance(left, Always):
            return self._truth(operator, left, left_at, right.value)
        if isinstance(left, Always):
            return self._truth(operator, right, right_at, left.value)
        if operator in ("=", "<>"):
            left, right = self.value(left, left_at), self.value(right, right_at)
            if isinstance(left, TEXTS) and isinstance(right, TEXTS):
                return SameText(_spelled_for(right, left), _spelled_for(left, right), operator == "=")
        return CompareNumbers(operator, self.number(left, left_at), self.number(right, right_at))

    def _truth(self, operator: str, other: Node, at: int, value: bool) -> Condition:
        """`other` compared with TRUE or FALSE."""
        if operator not in ("=", "<>"):
            self.fail("expected a number: TRUE and FALSE can only be compared by = and <>", at)
        wanted = value if operator == "=" else not value
        if isinstance(other, Always):
            return Always(other.value is wanted)
        other = self.value(other, at)
        if not isinstance(other, TEXTS):
            self.fail("expected something that is TRUE or FALSE, found a number", at)
        return Truth(other, wanted)

    def _between(self, node: Node, at: int) -> Condition:
        value = self.number(node, at)
        at = self.token.at
        low = self.number(self.sum(), at)
        self.expect("AND", "AND and the upper bound of BETWEEN")
        at = self.token.at
        high = self.number(self.sum(), at)
        return Between(value, low, high)

    def _in(self, node: Node, at: int) -> Condition:
        self.expect("(", "( and the values of IN")
        ats, items = [self.token.at], [self._in_item()]
        while self.accept(","):
            ats.append(self.token.at)
            items.append(self._in_item())
        self.expect(")", ", or ) after a value of IN")
        left = self.value(node, at)
        texts = [item.value for item in items if isinstance(item, TextLiteral)]
        if isinstance(left, TEXTS) and len(texts) == len(items):
            return InTexts(left, tuple(dict.fromkeys(_spelled(left, each) for each in texts)))
        if isinstance(left, TEXTS) and texts:
            self.fail("expected strings only, or numbers only, in the values of IN", at)
        numbers = [self.number(item, at) for item, at in zip(items, ats, strict=True)]
        values = dict.fromkeys(item.value for item in numbers if isinstance(item, Number))
        return InNumbers(self.number(left, at), tuple(values))

    def _in_item(self) -> TextLiteral | Number:
        at = self.token.at
        item = self.signed()
        if not isinstance(item, TextLiteral | Number):
            self.fail("expected a string or a number: IN takes no other values", at)
        return item

    def _like(self, node: Node, at: int) -> Condition:
        left = self.value(node, at)
        if not isinstance(left, TEXTS):
            self.fail("expected a property or a string on the left of LIKE, found a number", at)
        at = self.token.at
        written, escape = self.string("a string, the pattern of LIKE"), ""
        if self.accept("ESCAPE"):
            escape_at = self.token.at
            escape = self.string("a string of one character after ESCAPE")
            if len(escape) != 1:
                self.fail("expected a string of one character after ESCAPE", escape_at)
        try:
            pattern = LikePattern(_spelled(left, written), escape)
        except ValueError as error:
            self.fail(str(error), at)
        self.search_characters += pattern.search_characters
        if self.search_characters > LIKE_SEARCH_CHARACTERS_MAX:
            self.fail(
                f"the patterns of this selector have {self.search_characters} characters in pieces between % that hold "
                f"a _, at most {LIKE_SEARCH_CHARACTERS_MAX}: to find them takes too long",
                at,
            )
        self.count_terms(at, SEARCH_TERMS * pattern.search_characters)
        return Like(left, pattern)

    # ---- values

    def sum(self) -> Node:
        return self._chain(("+", "-"), self.product)

    def product(self) -> Node:
        return self._chain(("*", "/", "%"), self.signed)

    def _chain(self, operators: tuple[str, ...], rule: Callable[[], Node]) -> Node:
        at = self.token.at
        left = rule()
        while self.token.kind in operators:
            operator, operator_at = self.token.kind, self.token.at
            self.count_terms(operator_at)
            self.advance()
            right_at = self.token.at
            number, other = self.number(left, at), self.number(rule(), right_at)
            left = Arithmetic(operator, number, other, 1 + max(depth(number), depth(other)))
            self.check_depth(left.depth, operator_at)
        return left

    def signed(self) -> Node:
        at = self.token.at
        if self.token.kind not in ("+", "-"):
            return self._fitting(self.primary(), at)
        negative = False
        while self.token.kind in ("+", "-"):
            negative ^= self.token.kind == "-"
            self.advance()
        operand_at = self.token.at
        operand = self.number(self.primary(), operand_at)
        if isinstance(operand, Number):
            if not negative:
                return self._fitting(operand, at)
            lowest = isinstance(operand.value, int) and operand.value == -INT64_MIN  # fits only with its sign
            return Number(INT64_MIN if lowest else negate(operand.value))
        if not negative:
            return operand
        self.check_depth(1 + depth(operand), at)
        return Negation(operand, 1 + depth(operand))

    def _fitting(self, node: Node, at: int) -> Node:
        if isinstance(node, Number) and isinstance(node.value, int) and node.value == -INT64_MIN:
            self.fail("this number does not fit into 64 bits: write it with a decimal point", at)
        return node

    def primary(self) -> Node:
        token = self.token
        if self.accept("("):
            self.parentheses += 1
            self.check_depth(self.parentheses, token.at)
            node = self.any_of()
            self.expect(")", ") for the ( in column " + str(token.at + 1))
            self.parentheses -= 1
            return node
        if self.accept("TRUE", "FALSE"):
            return Always(token.kind == "TRUE")
        if token.kind == NAME:
            self.advance()
            return self._name(str(token.value), token.at)
        if token.kind == STRING:
            return TextLiteral(self.string(""))
        if token.kind == NUMBER and not isinstance(token.value, str):
            self.advance()
            return Number(token.value)
        return self.fail("expected a name, a string, a number, TRUE, FALSE, NOT or (")

    def _name(self, name: str, at: int) -> Value:
        if name in syntax.NUMBER_HEADERS:
            return NumberHeader(name)
        if name == "JMSMessageID" and not self.with_message_id:
            self.fail("JMSMessageID is not known to this protocol: use a property, or JMSCorrelationID", at)
        if name in syntax.TEXT_HEADERS:
            return TextHeader(name)
        if name in _UNKNOWN_AT_MATCHING:
            self.fail(f"{name} is not known before a message is delivered: expected {', '.join(_HEADERS)}", at)
        if name.startswith("JMS") and not name.startswith(("JMSX", "JMS_")):
            self.fail(f"no header has this name: expected {', '.join(_HEADERS)}, or the name of a property", at)
        return Property(name)

    def check_depth(self, levels: int, at: int) -> None:
        if levels > DEPTH_MAX:
            self.fail(f"parentheses or arithmetic are nested more than {DEPTH_MAX} levels deep here", at)


def _spelled_for(header: Value, value: TextValue) -> TextValue:
    return TextLiteral(_spelled(header, value.value)) if isinstance(value, TextLiteral) else value


def _spelled(header: Value, text: str) -> str:
    """`text` as it is compared with `header`: clients of JMS write `queue://r` where STOMP has `/queue/r`."""
    is_reply_to = isinstance(header, TextHeader) and header.name == "JMSReplyTo"
    return Envelope(reply_to=text).reply_text if is_reply_to else text
