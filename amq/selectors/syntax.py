"""The syntax tree of a selector: conditions over typed values.

There are two kinds of values: texts (properties, headers and strings) and numbers; a text where a number is needed is
wrapped in `AsNumber`. A property may turn out to be of another type when the message is there.
Conditions are TRUE, FALSE or UNKNOWN. Invariant: a tree is not deeper than `DEPTH_MAX`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from amq.core.message import CORRELATION_ID, REPLY_TO, TYPE
from amq.selectors.values import LikePattern

DEPTH_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Property:
    """A property of the message, NULL where it has none of that name."""

    name: str


@dataclass(frozen=True, slots=True)
class TextHeader:
    """A header for which `Message` has a field, see `TEXT_HEADERS`."""

    name: str


@dataclass(frozen=True, slots=True)
class NumberHeader:
    """A header for which `Message` has a field, see `NUMBER_HEADERS`."""

    name: str


@dataclass(frozen=True, slots=True)
class TextLiteral:
    value: str


@dataclass(frozen=True, slots=True)
class Number:
    value: int | float


@dataclass(frozen=True, slots=True)
class AsNumber:
    """A text as a number. A text that is not a number makes a comparison FALSE and an arithmetic result NULL. With
    `is_converted` a property is taken for a number that its producer has declared to be text."""

    text: TextValue
    is_converted: bool = False


@dataclass(frozen=True, slots=True)
class Arithmetic:
    operator: str  # + - * / %
    left: NumberValue
    right: NumberValue
    depth: int


@dataclass(frozen=True, slots=True)
class Negation:
    operand: NumberValue
    depth: int


TextValue = Property | TextHeader | TextLiteral
NumberValue = NumberHeader | Number | AsNumber | Arithmetic | Negation
Value = TextValue | NumberValue
TEXTS: Final = (Property, TextHeader, TextLiteral)


@dataclass(frozen=True, slots=True)
class Always:
    value: bool


@dataclass(frozen=True, slots=True)
class SameText:
    """`left = right`; with `same` False `left <> right`."""

    left: TextValue
    right: TextValue
    same: bool = True


@dataclass(frozen=True, slots=True)
class CompareNumbers:
    operator: str  # = <> < <= > >=
    left: NumberValue
    right: NumberValue


@dataclass(frozen=True, slots=True)
class Between:
    """`low <= value AND value <= high`"""

    value: NumberValue
    low: NumberValue
    high: NumberValue


@dataclass(frozen=True, slots=True)
class Truth:
    """The text is `true` (or, with `value` False, `false`), in any case of letters."""

    text: TextValue
    value: bool


@dataclass(frozen=True, slots=True)
class InTexts:
    left: TextValue
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InNumbers:
    left: NumberValue
    values: tuple[int | float, ...]


@dataclass(frozen=True, slots=True)
class Like:
    left: TextValue
    pattern: LikePattern


@dataclass(frozen=True, slots=True)
class IsNull:
    left: Value


@dataclass(frozen=True, slots=True)
class Not:
    condition: Condition


@dataclass(frozen=True, slots=True)
class And:
    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    conditions: tuple[Condition, ...]


Test = Always | SameText | CompareNumbers | Between | Truth | InTexts | InNumbers | Like | IsNull
Condition = Test | Not | And | Or
CONDITIONS: Final = (Always, SameText, CompareNumbers, Between, Truth, InTexts, InNumbers, Like, IsNull, Not, And, Or)

# Name in a selector → Python expression over the message `m` and its envelope `e`, both neutral; those in NULLABLE give
# None for NULL.
NUMBER_HEADERS: Final = {
    "JMSPriority": "m.priority",
    "JMSTimestamp": "m.timestamp_ms",
    "JMSExpiration": "m.expires_ms",
}
TEXT_HEADERS: Final = {
    "JMSDestination": "m.destination",
    "JMSDeliveryMode": "('PERSISTENT' if m.persistent else 'NON_PERSISTENT')",
    "JMSMessageID": "(prefix + str(m.seq << bits | place) if e is None or not e.message_id else e.message_id)",
    "JMSCorrelationID": "(None if e is None else e.correlation_text)",
    "JMSReplyTo": "(None if e is None else e.reply_text or None)",
    "JMSType": "(None if e is None else e.type or None)",
    "_AMQ_DUPL_ID": "(given(m.duplicate_id) or None)",
    "content-type": "(m.content_type or None)",
}
# Header of text protocols → the same for JMS. A property of that name counts before it.
ENVELOPE_HEADERS: Final = {CORRELATION_ID: "JMSCorrelationID", REPLY_TO: "JMSReplyTo", TYPE: "JMSType"}
# Property → the number that it is in a message without it, as in ActiveMQ; it is NULL all the same.
DEFAULTS: Final = {"JMSXGroupSeq": "0"}
NULLABLE: Final = frozenset({"_AMQ_DUPL_ID", "content-type", *ENVELOPE_HEADERS.values()})


def depth(value: Value) -> int:
    """How deep an arithmetic expression is nested."""
    return value.depth if isinstance(value, Arithmetic | Negation) else 0
