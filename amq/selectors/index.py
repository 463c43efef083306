"""SelectorIndex: which of very many selectors match a message, without asking each of them.

Most selectors say, besides other things, that a property has one of some values: `type = 'order' AND price > 10`. Such
a selector waits under that property and value, and is asked only when a message has it; the others are asked each time.
Invariant: `matching` finds the keys whose `selector.matches` is True, each once, and in an order that depends on
nothing but the calls before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from amq.core.message import Message, head
from amq.selectors.selector import Selector
from amq.selectors.syntax import (
    DEFAULTS,
    ENVELOPE_HEADERS,
    And,
    AsNumber,
    CompareNumbers,
    Condition,
    InNumbers,
    InTexts,
    Number,
    Or,
    Property,
    SameText,
    TextHeader,
    TextLiteral,
    Value,
)
from amq.selectors.values import NAN, number

Key = TypeVar("Key", bound=Hashable)
PLACES_MAX: Final = 100  # of one selector: one with more is asked each time, for a place takes 300 bytes
Name = str | TextHeader  # of a property, or one of _HEADERS
Place = tuple[Name, str | int | float]  # and the text or the number that it is
_HEADERS: Final = {name: TextHeader(name) for name in ENVELOPE_HEADERS.values()}


class _Places(NamedTuple):
    """Where the condition is TRUE, the message is at one of these places; if `enough`, the reverse holds too."""

    places: tuple[Place, ...]
    enough: bool


class _Entry(Generic[Key]):
    """All keys of one selector. It is in the buckets of `places`, None = it must always be asked."""

    __slots__ = ("keys", "matches", "places", "several", "steps", "sure")

    def __init__(self, selector: Selector, found: _Places | None) -> None:
        self.keys: dict[Key, None] = {}
        self.matches = selector.matches
        self.steps = selector.steps
        self.places = found.places if found is not None else None
        self.sure = found is not None and found.enough
        self.several = len({(name, type(value) is str) for name, value in self.places or ()}) > 1  # at a time


_Bucket = dict[_Entry[Key], None]
_Table = dict[Name, dict[str | int | float, _Bucket[Key]]]


class SelectorIndex(Generic[Key]):
    """Keys, each with a selector. A message costs as much as the selectors that come into question for it.

    Keys with equal selectors share one evaluation. `steps` = what `matching` costs for any message: the steps of
    the selectors that are asked each time.
    """

    def __init__(self) -> None:
        self._selectors: dict[Key, Selector] = {}
        self._entries: dict[Selector, _Entry[Key]] = {}
        self._unplaced: dict[_Entry[Key], None] = {}
        self.steps = 0
        self._texts: _Table[Key] = {}  # property → value → who waits for it
        self._numbers: _Table[Key] = {}

    def __iter__(self) -> Iterator[Key]:
        return iter(self._selectors)

    def __len__(self) -> int:
        return len(self._selectors)

    def add(self, key: Key, selector: Selector) -> None:
        """`key` is not in the index yet."""
        assert key not in self._selectors, "remove it first"
        self._selectors[key] = selector
        entry = self._entries.get(selector)
        if entry is None:
            entry = self._entries[selector] = _Entry(selector, self._places(selector.condition))
            if entry.places is None:
                self._unplaced[entry] = None
                self.steps += entry.steps
            for name, value in entry.places or ():
                self._table(value).setdefault(name, {}).setdefault(value, {})[entry] = None
        entry.keys[key] = None

    def remove(self, key: Key) -> None:
        """`key` is in the index."""
        selector = self._selectors.pop(key)
        entry = self._entries[selector]
        del entry.keys[key]
        if entry.keys:
            return
        del self._entries[selector]
        if entry.places is None:
            del self._unplaced[entry]
            self.steps -= entry.steps
        for name, value in entry.places or ():
            table = self._table(value)
            del table[name][value][entry]
            if not table[name][value]:
                del table[name][value]
            if not table[name]:
                del table[name]

    def matching(self, message: Message) -> list[Key]:
        """The keys whose selectors match `message`."""
        found = [key for entry in self._unplaced if entry.matches(message) for key in entry.keys]
        if not (self._texts or self._numbers):  # nobody needs the properties
            return found
        properties: Mapping[Name, object] | None = message.properties  # type: ignore[assignment]
        if message.envelope is not None:
            properties = _seen(message)
        if not properties:
            return found
        seen: set[_Entry[Key]] = set()
        for bucket in self._buckets(properties):
            for entry in bucket:
                if entry.several:
                    if entry in seen:
                        continue
                    seen.add(entry)
                if entry.sure or entry.matches(message):
                    found.extend(entry.keys)
        return found

    def _buckets(self, properties: Mapping[Name, Any]) -> list[_Bucket[Key]]:
        """Those of the places at which a message with these properties is."""
        buckets = []
        for table, convert in ((self._texts, _text), (self._numbers, number)):
            names: Iterable[Name] = table if len(table) < len(properties) else properties
            for name in names:
                if name in table and name in properties:
                    bucket = table[name].get(convert(properties[name]))
                    if bucket is not None:
                        buckets.append(bucket)
        return buckets

    def _table(self, value: str | int | float) -> _Table[Key]:
        return self._texts if isinstance(value, str) else self._numbers

    # ---- where a selector waits

    def _places(self, condition: Condition) -> _Places | None:
        """The best that can be said of `condition`: of several ways that one under which the fewest wait by now."""
        found = self._all_places(condition)
        return found if found is not None and len(found.places) <= PLACES_MAX else None

    def _all_places(self, condition: Condition) -> _Places | None:
        if isinstance(condition, And):
            ways = [way for way in map(self._places, condition.conditions) if way is not None]
            return _Places(min(ways, key=self._crowd).places, False) if ways else None
        if isinstance(condition, Or):
            parts = [self._places(part) for part in condition.conditions]
            known = [part for part in parts if part is not None]
            if len(known) < len(parts):
                return None
            places = dict.fromkeys(place for part in known for place in part.places)
            return _Places(tuple(places), all(part.enough for part in known))
        if isinstance(condition, SameText) and condition.same:
            left, right = condition.left, condition.right
            name, text = (_name(right), left) if isinstance(left, TextLiteral) else (_name(left), right)
            if name is not None and isinstance(text, TextLiteral):
                return _Places(((name, text.value),), True)
        if isinstance(condition, InTexts) and (name := _name(condition.left)) is not None:
            return _Places(tuple((name, value) for value in condition.values), True)
        if isinstance(condition, CompareNumbers) and condition.operator == "=":
            if isinstance(condition.right, Number):
                return _numeric(condition.left, (condition.right.value,))
            if isinstance(condition.left, Number):
                return _numeric(condition.right, (condition.left.value,))
        if isinstance(condition, InNumbers):
            return _numeric(condition.left, condition.values)
        return None

    def _crowd(self, way: _Places) -> tuple[int, int]:
        waiting = sum(len(self._table(value).get(name, {}).get(value, ())) for name, value in way.places)
        return waiting, len(way.places)


def _name(value: Value) -> Name | None:
    """The name under which a selector that compares `value` may wait."""
    if isinstance(value, Property):
        return value.name if value.name not in DEFAULTS else None  # messages without it may match as well
    return value if isinstance(value, TextHeader) and value.name in _HEADERS else None


def _text(value: object) -> str | float:
    """The text of a property; of any other value something that nobody waits for."""
    return value if isinstance(value, str) else NAN


def _seen(message: Message) -> dict[Name, object]:
    """Properties and headers of a message with an envelope, as `compiler` sees them."""
    properties, envelope = head(message)
    assert envelope is not None
    found: dict[Name, object] = {}
    for name, text in envelope.texts.items():
        found[name] = found[_HEADERS[ENVELOPE_HEADERS[name]]] = text
    found.update(properties or {})
    return found


def _numeric(left: Value, values: tuple[int | float, ...]) -> _Places | None:
    if isinstance(left, AsNumber) and not left.is_converted and (name := _name(left.text)) is not None:
        return _Places(tuple((name, value) for value in values), True)
    return None
