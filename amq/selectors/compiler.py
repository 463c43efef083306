"""The tree of `syntax` → one Python function.

A condition is written in one of two ways: as an expression that is true where the condition is TRUE, or as one that is
true where it is FALSE. UNKNOWN is neither; so NOT turns from one way to the other, and AND and OR are Python's own.
Invariant: the source holds nothing of the selector's text. Names and literals are handed over as arguments (`c0`, `c1`,
…), so that nothing can be injected, and all selectors of one shape share the compiled code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from amq.core.message import GivenIds, Message, head
from amq.core.ownership import given
from amq.selectors import syntax, values
from amq.selectors.syntax import (
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
)

Matches = Callable[[Message], bool]

_SHAPES_MAX = 128  # each with its source and code: some 2 KB, 200 KB at most
_OPERATIONS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "modulo"}
_FUNCTIONS = {
    name: getattr(values, name) for name in (*_OPERATIONS.values(), "negate", "number", "converted", "same", "differ")
}
_LINES = (
    "  def matches(m):",
    "    p, e = m.properties or {}, m.envelope",
    "    if e is not None and e.native is not None:",
    "      p, e = head(m)",
    "      p = p or {}",
)


def compiled(condition: Condition, ids: GivenIds) -> Matches:
    """A function that tells whether `condition` is TRUE for a message. It never raises."""
    writer = _Writer()
    source = writer.true(condition)
    matches: Matches = _factory(source, len(writer.constants))(*ids, *writer.constants)
    return matches


@lru_cache(maxsize=_SHAPES_MAX)
def _factory(source: str, constants: int) -> Callable[..., Any]:
    names = "".join(f", c{index}" for index in range(constants))
    lines = [f"def factory(prefix, bits, place{names}):", *_LINES, f"    return {source}", "  return matches"]
    scope: dict[str, Any] = {}
    exec("\n".join(lines), {**_FUNCTIONS, "given": given, "head": head}, scope)
    factory: Callable[..., Any] = scope["factory"]
    return factory


def _has_default(value: AsNumber) -> bool:
    return isinstance(value.text, Property) and value.text.name in syntax.DEFAULTS


def _function(value: AsNumber) -> str:
    return "converted" if value.is_converted else "number"


class _Writer:
    def __init__(self) -> None:
        self.constants: list[object] = []
        self._variables = 0

    def constant(self, value: object) -> str:
        self.constants.append(value)
        return f"c{len(self.constants) - 1}"

    def variable(self) -> str:
        self._variables += 1
        return f"v{self._variables}"

    # ---- values

    def text(self, value: TextValue) -> str:
        """The source of a text's value, which is None for NULL."""
        if isinstance(value, Property):
            name = self.constant(value.name)
            header = syntax.ENVELOPE_HEADERS.get(value.name)
            return f"p.get({name})" if header is None else f"p.get({name}, {syntax.TEXT_HEADERS[header]})"
        if isinstance(value, TextHeader):
            return syntax.TEXT_HEADERS[value.name]
        return self.constant(value.value)

    def number(self, value: NumberValue) -> str:
        """NaN for NULL, and for a text that is not a number."""
        if isinstance(value, Number):
            return self.constant(value.value)
        if isinstance(value, NumberHeader):
            return syntax.NUMBER_HEADERS[value.name]
        if isinstance(value, AsNumber):
            function = _function(value)
            if _has_default(value):
                assert isinstance(value.text, Property)
                return f"{function}(p.get({self.constant(value.text.name)}, {syntax.DEFAULTS[value.text.name]}))"
            return f"{function}({self.text(value.text)})"
        if isinstance(value, Negation):
            return f"negate({self.number(value.operand)})"
        assert isinstance(value, Arithmetic)
        return f"{_OPERATIONS[value.operator]}({self.number(value.left)}, {self.number(value.right)})"

    def bound_text(self, value: TextValue) -> tuple[str, str]:
        """A test that it is not NULL ("" = it never is), and what stands for its value behind that test."""
        text = self.text(value)
        if isinstance(value, TextLiteral) or (isinstance(value, TextHeader) and value.name not in syntax.NULLABLE):
            return "", text
        name = self.variable()
        return f"({name} := {text}) is not None and ", name

    def bound_number(self, value: NumberValue) -> tuple[str, str]:
        if isinstance(value, AsNumber) and not _has_default(value):
            test, name = self.bound_text(value.text)
            return test, f"{_function(value)}({name})"
        if isinstance(value, Number | NumberHeader):
            return "", self.number(value)
        name = self.variable()
        return f"({name} := {self.number(value)}) == {name} and ", name

    # ---- conditions

    def true(self, condition: Condition) -> str:
        """A Python expression, bool, that is true where `condition` is TRUE."""
        return self._condition(condition, True)

    def _condition(self, condition: Condition, wanted: bool) -> str:
        """True where `condition` is TRUE (`wanted`) or FALSE (not `wanted`). And-or-expressions are in parentheses."""
        if isinstance(condition, Not):
            return self._condition(condition.condition, not wanted)
        if isinstance(condition, And | Or):
            joined = " and " if isinstance(condition, And) is wanted else " or "
            return f"({joined.join(self._condition(part, wanted) for part in condition.conditions)})"
        if isinstance(condition, Always):
            return str(condition.value is wanted)
        if isinstance(condition, IsNull):
            return self._null(condition, wanted)
        if isinstance(condition, SameText):
            return self._same_text(condition, wanted)
        if isinstance(condition, CompareNumbers):
            return self._compare(condition, wanted)
        if isinstance(condition, Between):
            return self._between(condition, wanted)
        if isinstance(condition, InNumbers):
            values = self.constant(frozenset(condition.values))
            if wanted:
                return f"{self.number(condition.left)} in {values}"
            test, name = self.bound_number(condition.left)
            return f"({test}{name} not in {values})"
        if isinstance(condition, InTexts) and wanted:
            return f"{self.text(condition.left)} in {self.constant(frozenset(condition.values))}"
        test, name = self.bound_text(condition.text if isinstance(condition, Truth) else condition.left)
        if isinstance(condition, InTexts):
            return f"({test}{name} not in {self.constant(frozenset(condition.values))})"
        if isinstance(condition, Truth):
            spelled = self.constant(str(condition.value).lower())
            true = f"({name}.lower() == {spelled} if {name}.__class__ is str else {name} is {condition.value})"
            return f"({test}{true})" if wanted else f"({test}not {true})"
        like = self._like(condition, name, wanted)
        if isinstance(condition.left, Property):
            is_text = f"isinstance({name}, str)"
            like = f"{is_text} and {like}" if wanted else f"(not {is_text} or {like})"
        return f"({test}{like})"

    def _null(self, condition: IsNull, wanted: bool) -> str:
        value = condition.left
        if isinstance(value, TextLiteral | Number | NumberHeader):
            return str(not wanted)
        if isinstance(value, Property | TextHeader):
            return f"{self.text(value)} {'is' if wanted else 'is not'} None"
        name = self.variable()
        return f"({name} := {self.number(value)}) {'!=' if wanted else '=='} {name}"

    def _same_text(self, condition: SameText, wanted: bool) -> str:
        """Values of different types make both = and <> FALSE."""
        sides = (condition.left, condition.right)
        if condition.same and wanted and any(isinstance(side, TextLiteral) for side in sides):
            return f"{self.text(condition.left)} == {self.text(condition.right)}"  # None equals no string
        left_test, left = self.bound_text(condition.left)
        right_test, right = self.bound_text(condition.right)
        typed = [name for name, side in zip((left, right), sides, strict=True) if isinstance(side, Property)]
        if len(typed) == 2:
            test = f"{'same' if condition.same else 'differ'}({left}, {right})"
        elif typed and not condition.same:
            test = f"(isinstance({typed[0]}, str) and {left} != {right})"
        else:
            return f"({left_test}{right_test}{left} {'==' if condition.same is wanted else '!='} {right})"
        return f"({left_test}{right_test}{'' if wanted else 'not '}{test})"

    def _compare(self, condition: CompareNumbers, wanted: bool) -> str:
        """NaN makes every comparison false, which is right for TRUE; for FALSE one must ask whether it is NULL."""
        operator = condition.operator
        if wanted:
            left, right = self.number(condition.left), self.number(condition.right)
            if operator == "<>":
                name, other = self.variable(), self.variable()
                return f"(({name} := {left}) < ({other} := {right}) or {name} > {other})"
            return f"{left} {'==' if operator == '=' else operator} {right}"
        left_test, left = self.bound_number(condition.left)
        right_test, right = self.bound_number(condition.right)
        if operator == "<>":
            name, other = self.variable(), self.variable()
            return f"({left_test}{right_test}not (({name} := {left}) < ({other} := {right}) or {name} > {other}))"
        return f"({left_test}{right_test}not {left} {'==' if operator == '=' else operator} {right})"

    def _between(self, condition: Between, wanted: bool) -> str:
        if wanted:
            return " <= ".join(map(self.number, (condition.low, condition.value, condition.high)))
        bounds = (
            CompareNumbers(">=", condition.value, condition.low),
            CompareNumbers("<=", condition.value, condition.high),
        )
        return self._condition(And(bounds), False)

    def _like(self, condition: Like, text: str, wanted: bool) -> str:
        """Pieces without `_` are looked for by the methods of strings."""
        negation = "" if wanted else "not "
        pattern = condition.pattern
        literal = pattern.literal()
        if literal is None:
            if len(pattern.pieces) <= 2:
                return f"{self.constant(pattern.regex().fullmatch)}({text}) {'is not' if wanted else 'is'} None"
            return f"{negation}{self.constant(pattern.matcher())}({text})"
        if len(literal) == 1:
            return f"{negation}{text} == {self.constant(literal[0])}"
        if len(literal) == 2 and not literal[1]:
            return f"{negation}{text}.startswith({self.constant(literal[0])})"
        if len(literal) == 2 and not literal[0]:
            return f"{negation}{text}.endswith({self.constant(literal[1])})"
        if len(literal) == 3 and not literal[0] and not literal[2]:
            return f"{negation}{self.constant(literal[1])} in {text}"
        return f"{negation}({self._in_order(literal, text)})"

    def _in_order(self, literal: list[str], text: str) -> str:
        """The text begins with the first piece, ends with the last one, and has the others between them in order."""
        first, *middle, last = literal
        at = self.constant(len(first))
        end = f"len({text}) - {self.constant(len(last))}"
        # The ends of a search keep its piece from both others; without one, these two must not overlap.
        tests = [] if any(middle) else [f"len({text}) >= {self.constant(len(first) + len(last))}"]
        tests += [f"{text}.startswith({self.constant(first)})"] * bool(first)
        tests += [f"{text}.endswith({self.constant(last)})"] * bool(last)
        for piece in filter(None, middle):
            name = self.variable()
            tests.append(f"({name} := {text}.find({self.constant(piece)}, {at}, {end})) >= 0")
            at = f"{name} + {self.constant(len(piece))}"
        return " and ".join(tests)
