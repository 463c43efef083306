"""Selector: one conditional expression, compiled, to be asked for one message after the other."""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

from amq.core.message import GivenIds
from amq.selectors.compiler import Matches, compiled
from amq.selectors.parser import parse
from amq.selectors.syntax import Condition

TERMS_A_STEP: Final = 4
_NO_IDS: Final = GivenIds("")


class Selector:
    """`Selector(text)` compiles `text`, or gives the one that is in use for an equal text.

    text        as written
    condition   its syntax tree
    matches     function of a `Message` → bool: True where the condition is TRUE (not where it is FALSE or UNKNOWN).
                It never raises. It takes at most a few milliseconds, whatever the selector and the properties
    terms       see `Parsed`
    steps       about what it costs to ask it, where 1 is the least
    `ids` are those that the broker gives to messages, or what they begin with; without them `JMSMessageID` is an error,
    rather than something that never matches.
    `terms_max` = the most terms that it may have, 0 = any number.
    SelectorError, which points at the column: the text is not a selector, or goes beyond a limit.
    """

    __slots__ = ("__weakref__", "condition", "ids", "matches", "steps", "terms", "text")

    text: str
    condition: Condition
    ids: GivenIds | None
    matches: Matches
    steps: int
    terms: int

    def __new__(cls, text: str, ids: GivenIds | str | None = None, terms_max: int = 0) -> Selector:
        ids = GivenIds(ids) if isinstance(ids, str) else ids
        known = _in_use.get((text, ids))
        if known is not None and not known.terms > terms_max > 0:
            return known
        selector = super().__new__(cls)
        selector.text = text
        selector.condition, selector.terms = parse(text, ids is not None, terms_max)
        selector.steps = 1 + selector.terms // TERMS_A_STEP
        selector.matches = compiled(selector.condition, ids or _NO_IDS)
        selector.ids = ids
        _in_use[text, ids] = selector
        return selector

    def __repr__(self) -> str:
        return f"<Selector {self.text[:100]!r}>"


# Bounded by what is in use: an entry goes with the last subscription that has the selector.
_in_use: WeakValueDictionary[tuple[str, GivenIds | None], Selector] = WeakValueDictionary()
