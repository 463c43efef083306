"""Placement: which store of a cluster is the home of a destination.

A name leads to a *key*, and the key to a store: by the most specific rule whose pattern matches the key, else by the
slot of the key, CRC-32C modulo 1,024. Names with one key have one home in every table, whatever its rules are, because
rules match keys. So these are kept together:

- a queue and a topic of one name: messages of both are dead-lettered to the queue `DLQ.NAME`, and a composite or a
  divert from one to the other needs no other store;
- the queues of a virtual topic (`Consumer.NAME.VirtualTopic.X`), and their topic;
- `DLQ.NAME`, and NAME;
- all names with the same `{tag}`. A tag in one of the beginnings that are cut off above does not count.

A temporary destination has its full name as key, and no rule holds for it; no move changes its home. The shared
dead-letter queue, advisories and what else belongs to the broker itself live in every store.

A change of the rules makes two tables, one after the other. In the first one, which has `before`, a destination that
gets another home belongs to no store; the second one exists only when every store has recorded the first. So of the
tables that are in force at one moment, no two give a destination to different stores (docs/master-slave.md,
"One home for each destination").

A move takes what the destinations hold along, slot by slot. Its tables have a `step`: destinations of the slots that
have moved have their new homes, those of the slots that are moving have none, and all others have their old ones. The
next step exists only when every store has recorded this one, and no store holds anything of what is moving.

A store that leaves the cluster gives all that it has to others by such a move. It keeps what lives in every store
until the last step. The place of a store is never given to another one, because clients know messages by it.

Pure: no file, no clock. Every process computes the same from the same table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import cycle, groupby
from typing import Any, Final

from amq.config.patterns import parse_pattern
from amq.core.destination import (
    ANY_REST,
    ANY_WORD,
    TEMPORARY_QUEUE_SCHEME,
    TEMPORARY_TOPIC_SCHEME,
    matches,
    pattern_words,
    plain_name,
)
from amq.core.errors import ConfigError
from amq.core.message import STORE_BITS

SLOTS: Final = 1024
STEP_BYTES: Final = 64 << 20  # of what a step of a move takes along, where it is not one slot alone
ALL_SLOTS: Final = frozenset(range(SLOTS))
SPREAD: Final = "spread"  # as a home: the destination lives in every store
RULES_MAX: Final = 256
PLACES_MAX: Final = 1 << STORE_BITS  # of stores, those that were removed too
PATTERN_WORDS_MAX: Final = 100
# Destinations of the broker itself: each store has them, and tells there of itself alone.
_OWN_PREFIXES: Final = ("ActiveMQ.Advisory.", "ActiveMQ.Scheduler.")
_OWN_NAMES: Final = ("AMQ.Prepared",)
_TEMPORARY: Final = (TEMPORARY_QUEUE_SCHEME, TEMPORARY_TOPIC_SCHEME)


@dataclass(frozen=True, slots=True)
class Naming:
    """How the names of a cluster lead to keys: options that all of its members must have alike. They belong to the
    table, since two members that read names in two ways would give one destination two homes."""

    virtual_topics: str = "VirtualTopic.>"
    virtual_topic_consumers: str = "Consumer.*."
    dead_letter_prefix: str = "DLQ."
    shared_dead_letter_queue: str = "ActiveMQ.DLQ"


@dataclass(frozen=True, slots=True)
class Where:
    """The home of one destination, and why. `rule` = the pattern of the rule that decides, "" = none does: then the
    slot does. `slot` is -1 where every store is its home by nature."""

    name: str
    home: str
    key: str
    slot: int
    rule: str


@dataclass(frozen=True)
class Layout:
    """Rules, pattern → store or SPREAD in the order in which they were made, the store of each slot, and the store in
    which nothing lives, not even what is spread; "" = none."""

    rules: Mapping[str, str] = field(default_factory=dict)
    slots: tuple[str, ...] = ()
    without: str = ""

    def is_in(self, store: str, home: str) -> bool:
        """Does what has that `home` live in `store`?"""
        return home == store or (home == SPREAD and store != self.without)

    @cached_property
    def _tree(self) -> _Node:
        """The rules by the words of their patterns, so that a key costs no more where there are many."""
        root = _Node()
        for pattern, store in self.rules.items():
            node = root
            for word in pattern_words(pattern):
                node = node.below.setdefault(word, _Node())
            node.rule = pattern, store
        return root

    def rule_of(self, key: str) -> tuple[str, str]:
        """The pattern and the store of the most specific rule for `key`, two empty texts = none."""
        return (self._tree.find(key.split("."), 0) if self.rules else None) or ("", "")


@dataclass(frozen=True, slots=True)
class MoveStep:
    """How far a move is. `moved` and `moving` are slots; `returns` = an operator takes the move back: what has moved
    moves back, when what is moving has arrived. Each store sends at most `rate_bytes` a second, 0 = no limit."""

    moved: frozenset[int] = frozenset()
    moving: frozenset[int] = frozenset()
    returns: bool = False
    rate_bytes: int = 0

    @property
    def waiting(self) -> frozenset[int]:
        """The slots that have not begun to move."""
        return ALL_SLOTS - self.moved - self.moving


class _Node:
    """The rules that go on after some words: a plain word is more specific than `*`, and `*` than `>`, as
    `amq.core.destination.specificity` has it."""

    __slots__ = ("below", "rule")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.rule: tuple[str, str] | None = None  # its pattern, and its store

    def find(self, words: list[str], at: int) -> tuple[str, str] | None:
        """The most specific rule for `words` from `at` on."""
        found = None
        if at == len(words):
            found = self.rule
        else:
            for word in (words[at], ANY_WORD):
                if found is None and word in self.below:
                    found = self.below[word].find(words, at + 1)
        rest = self.below.get(ANY_REST)
        return found if found is not None or rest is None else rest.rule


@dataclass(frozen=True)
class Placement:
    """A table: the homes of all destinations of a cluster.

    number  of the table
    since   number of the first table with the same homes: a later one with the same number here changes no home
    stores  names, in the order in which they were added
    before  the homes that those replace, while not every store has recorded this table; None = nothing moves
    joining a store that becomes one of `stores` when that change is settled: until then no broker serves it. "" = none
    leaving one of `stores` that is none any more when that change is settled, "" = none
    gone    places of stores that were removed, in their order
    temporary  stores that have the temporary destinations, in equal shares of the slots; () = `stores`. A store that
            comes gets none, and no move takes one along: a reply that is on its way would find nobody
    step    of a change that takes along what the destinations hold; None = a change that moves nothing that is held
    """

    number: int
    since: int
    stores: tuple[str, ...]
    naming: Naming
    layout: Layout
    before: Layout | None = None
    joining: str = ""
    step: MoveStep | None = None
    leaving: str = ""
    gone: tuple[int, ...] = ()
    temporary: tuple[str, ...] = ()

    @classmethod
    def even(cls, number: int, stores: Iterable[str], naming: Naming | None = None) -> Placement:
        """No rules, and the slots in equal shares: the first of them to the first store, and so on."""
        names = tuple(stores)
        slots = tuple(names[slot * len(names) // SLOTS] for slot in range(SLOTS))
        return cls(number, number, names, naming or Naming(), Layout({}, slots))

    # -- where ----------------------------------------------------------------------------------------------------

    def home_of(self, name: str) -> str:
        """The store in which the destination of that full name lives, or SPREAD. While it moves: its next home."""
        return self.where(name).home

    def where(self, name: str) -> Where:
        """The home of the destination of that full name, and why."""
        return self._where(name, self._in_force(name)[0])

    def stores_of(self, name: str) -> tuple[str, ...]:
        """The stores in which the destination of that full name lives. While it moves: its next ones."""
        layout = self._in_force(name)[0]
        home = self._where(name, layout).home
        return tuple(store for store in self.stores if layout.is_in(store, home))

    def stores_of_patterns(self) -> tuple[str, ...]:
        """The stores in which a pattern means anything: not one that has nothing more when this step is done."""
        return tuple(store for store in self.stores if store != self.leaving or not self.is_last_step)

    @property
    def decider(self) -> str:
        """The store that decides the batches of pipelines, and knows which of them took place: with another one a batch
        could be committed twice."""
        return self.stores[0]

    @property
    def next_decider(self) -> str:
        """The decider after the store that leaves has left. It gets what belongs to no destination."""
        return next(store for store in self.stores if store != self.leaving)

    def target_of(self, name: str) -> str:
        """The store that gets what another one has of that destination and must give away. All of a spread one goes to
        one store, in its order."""
        stores = self.stores_of(name)
        return stores[slot_of(name) % len(stores)]

    def _in_force(self, name: str) -> tuple[Layout, ...]:
        """A store serves the destination if all of these say so."""
        if self.before is None or name.startswith(_TEMPORARY):
            return (self.layout,)
        if self.step is None:
            return self.layout, self.before
        slot = self._where(name, self.layout).slot
        if slot < 0:  # it lives in every store by nature: to the last step
            return (self.before,) if self.step.waiting else (self.layout, self.before)
        if slot in self.step.moving:
            return self.layout, self.before
        return (self.before if slot in self.step.waiting else self.layout,)

    def slot_in_move(self, name: str) -> int:
        """The slot with which that destination moves; that of the last one where it lives in every store by nature."""
        slot = self._where(name, self.layout).slot
        return SLOTS - 1 if slot < 0 else slot

    @property
    def is_last_step(self) -> bool:
        """Does all that has not moved move now?"""
        return self.step is not None and not self.step.waiting

    @cached_property
    def places(self) -> tuple[str, ...]:
        """The stores by their places: message numbers and ports follow these. "" = it was removed."""
        found = [*self.stores]
        for place in self.gone:
            found.insert(place, "")
        return tuple(found)

    def is_home(self, store: str, name: str) -> bool:
        """May the member of `store` serve the destination of that full name? Nobody may while it moves."""
        return all(layout.is_in(store, self._where(name, layout).home) for layout in self._in_force(name))

    def is_moving(self, name: str) -> bool:
        """Does nobody serve the destination, because it is on its way to another home?"""
        return len({self._where(name, layout).home for layout in self._in_force(name)}) > 1

    def leaves(self, store: str, name: str) -> bool:
        """May what `store` has of that destination not stay there? By a table with `before`: because of this change; of
        what should have been elsewhere already it says nothing, so that a change can bring it home."""
        if self.before is None:
            return not self.is_home(store, name)
        return len(self._in_force(name)) > 1 and self._goes(store, name)

    def waits(self, store: str, name: str) -> bool:
        """Is that destination at `store` still, which it leaves with a later step?"""
        return self.step is not None and self._in_force(name) == (self.before,) and self._goes(store, name)

    def comes(self, store: str, name: str) -> bool:
        """Is what other stores have of that destination on its way to `store`?"""
        return self.step is not None and self.is_moving(name) and self.layout.is_in(store, self.home_of(name))

    def awaits(self, store: str, name: str) -> bool:
        """Does `store` alone get that destination, with this step or with a later one, from the one that has it?"""
        if self.step is None or self.before is None or self._in_force(name)[-1] is self.layout:
            return False
        before, after = (self._where(name, layout).home for layout in (self.before, self.layout))
        return after == store and before not in (store, SPREAD)

    def heir_of(self, name: str) -> str:
        """The home of that destination when nothing moves any more, or SPREAD."""
        return self._where(name, self.layout).home

    def _goes(self, store: str, name: str) -> bool:
        """Does `store` lose that destination by this change?"""
        assert self.before is not None, "nothing moves"
        before, after = (layout.is_in(store, self._where(name, layout).home) for layout in (self.before, self.layout))
        return before and not after

    def _where(self, name: str, layout: Layout) -> Where:
        plain = plain_name(name)
        if name.startswith(_TEMPORARY):
            slot, stores = slot_of(name), self.temporary or self.stores
            return Where(name, stores[slot * len(stores) // SLOTS], name, slot, "")
        if self.lives_everywhere(plain):
            return Where(name, SPREAD, plain, -1, "")
        key = self.key_of(plain)
        rule, store = layout.rule_of(key)
        return Where(name, store, key, slot_of(key), rule) if rule else self._by_slot(name, key, layout)

    def _by_slot(self, name: str, key: str, layout: Layout) -> Where:
        slot = slot_of(key)
        return Where(name, layout.slots[slot], key, slot, "")

    def lives_everywhere(self, plain: str) -> bool:
        """Is the destination of that name, without its scheme, in every store by nature?"""
        return plain == self.naming.shared_dead_letter_queue or plain in _OWN_NAMES or plain.startswith(_OWN_PREFIXES)

    def key_of(self, plain: str) -> str:
        """The placement key of a name without its scheme."""
        rest = self._cut(plain)
        start = rest.find("{")
        end = rest.find("}", start + 2) if start >= 0 else -1
        return rest[start : end + 1] if end > 0 else rest

    def _cut(self, plain: str) -> str:
        """`plain` without what a queue of dead letters, or of a virtual topic, has before the name that it belongs to;
        that name may have such a beginning itself."""
        prefix, (consumers, topics) = self.naming.dead_letter_prefix, self._virtual
        words, first = plain.split("."), 0
        while True:
            if prefix and plain.startswith(prefix) and len(plain) > len(prefix):
                plain = plain[len(prefix) :]
                first += prefix.count(".")
                if not prefix.endswith("."):  # it ended within a word
                    words, first = plain.split("."), 0
                continue
            rest = first + len(consumers)
            if topics and rest < len(words) and matches(consumers, words[first:rest]) and _is_of(topics, words, rest):
                plain = plain[sum(map(len, words[first:rest])) + len(consumers) :]
                first = rest
                continue
            return plain

    @cached_property
    def _virtual(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        naming = self.naming
        topics = pattern_words(naming.virtual_topics) if naming.virtual_topics else ()
        return pattern_words(naming.virtual_topic_consumers.removesuffix(".")), topics

    # -- changes: each makes the next table -----------------------------------------------------------------------

    def with_store(self, name: str) -> Placement:
        """One store more, without a slot: no destination moves."""
        self._check_place()
        temporary = self.temporary or self.stores
        return replace(self, number=self.number + 1, stores=(*self.stores, name), temporary=temporary)

    def _check_place(self) -> None:
        """Raises ConfigError where no place is left for another store."""
        if len(self.places) >= PLACES_MAX:
            raise ConfigError(f"the cluster has had {PLACES_MAX} stores, and gives no place twice: make a new one")

    def adopting(self, name: str, rules: Mapping[str, str]) -> Placement:
        """A store that has destinations comes, with the `rules` that leave them there. Raises ConfigError."""
        assert name not in self.stores, name
        self._check_place()
        joined = replace(self, stores=(*self.stores, name))
        for pattern, store in rules.items():
            joined._check_rule(pattern, store)
        layout = Layout({**self.layout.rules, **rules}, self.layout.slots)
        if len(layout.rules) > RULES_MAX:
            raise _too_many_rules()
        number = self.number + 1
        return replace(self, number=number, since=number, layout=layout, before=self.layout, joining=name)

    def placed(self, pattern: str, store: str) -> Placement:
        """The destinations of `pattern` go to `store`, or to all for SPREAD; "" = its rule goes. While the table is on
        its way to the stores, no store has what moves. Raises ConfigError."""
        return self._changed(self._with_rule(pattern, store), None)

    def carried(self, pattern: str, store: str, rate_bytes: int = 0) -> Placement:
        """The same, and they take along what they hold, step by step. Raises ConfigError."""
        return self._changed(self._with_rule(pattern, store), MoveStep(rate_bytes=rate_bytes))

    def remembering(self) -> Placement:
        """All stores have given up what moves by this change, and hold nothing of it: the ids that they remember go to
        the new homes."""
        assert self.before is not None
        assert self.step is None
        return self._at(MoveStep(moving=ALL_SLOTS))

    def shared_out(self, rate_bytes: int = 0) -> Placement:
        """Slots go to the stores that have fewer than their share, until all have it, and take along what is held."""
        return self._changed(
            Layout(self.layout.rules, even_slots(self.layout.slots, self.stores)), MoveStep(rate_bytes=rate_bytes)
        )

    def emptied(self, name: str, into: Sequence[str], rate_bytes: int = 0) -> Placement:
        """Store `name` gives all that it has to the stores `into`, and is none of the cluster when it is empty. Each of
        them gets slots until all have as many, and rules in turn. Raises ConfigError."""
        for store in (name, *into):
            if store not in self.stores:
                raise ConfigError(
                    f"the cluster has no store {store!r}; it has {', '.join(self.stores)}", code="STORE_UNKNOWN"
                )
        if not into or name in into:
            raise ConfigError(f"{name} needs another store that takes what it has: name one of those that stay")
        turns = cycle(into)
        rules = {pattern: next(turns) if store == name else store for pattern, store in self.layout.rules.items()}
        counts = {store: self.layout.slots.count(store) for store in into}
        slots = [*self.layout.slots]
        for slot, store in enumerate(slots):
            if store == name:
                slots[slot] = taker = min(into, key=lambda each: counts[each])
                counts[taker] += 1
        layout = Layout(rules, tuple(slots), without=name)
        return replace(self._changed(layout, MoveStep(rate_bytes=rate_bytes)), leaving=name)

    def stepped(self, slots: frozenset[int]) -> Placement:
        """The step that was moving has arrived; `slots` are moving."""
        assert self.step is not None
        assert slots <= self.step.waiting
        return self._at(replace(self.step, moved=self.step.moved | self.step.moving, moving=slots))

    def returning(self) -> Placement:
        """An operator takes the move back. The step that is moving arrives first."""
        assert self.step is not None
        return self._at(replace(self.step, returns=True))

    def at_rate(self, rate_bytes: int) -> Placement:
        """The same move at another rate."""
        assert self.step is not None
        return self._at(replace(self.step, rate_bytes=rate_bytes))

    def turned(self) -> Placement:
        """The step that was moving has arrived; from now on the slots that have moved go back."""
        assert self.step is not None
        assert self.before is not None
        at = MoveStep(moved=self.step.waiting, rate_bytes=self.step.rate_bytes)
        return replace(self._at(at), layout=self.before, before=self.layout, leaving="")

    def _at(self, step: MoveStep) -> Placement:
        return replace(self, number=self.number + 1, since=self.number + 1, step=step)

    def _changed(self, layout: Layout, step: MoveStep | None) -> Placement:
        number = self.number + 1
        return replace(self, number=number, since=number, layout=layout, before=self.layout, step=step)

    def _with_rule(self, pattern: str, store: str) -> Layout:
        rules = dict(self.layout.rules)
        if not store:
            if pattern not in rules:
                known = ", ".join(rules) or "none"
                raise ConfigError(f"the cluster has no rule for {pattern!r}; rules: {known}", code="RULE_UNKNOWN")
            del rules[pattern]
        else:
            self._check_rule(pattern, store)
            rules[pattern] = store
            if len(rules) > RULES_MAX:
                raise _too_many_rules()
        return Layout(rules, self.layout.slots)

    def settled(self) -> Placement:
        """All stores have recorded this table, and hold nothing of what moves: its new homes have it from now on."""
        stores = (*self.stores, self.joining) if self.joining else self.stores
        number, layout, gone = self.number + 1, self.layout, self.gone
        temporary = self.temporary or self.stores
        if self.leaving:
            temporary = tuple(
                layout.slots[place * SLOTS // len(temporary)] if store == self.leaving else store
                for place, store in enumerate(temporary)
            )
            stores = tuple(store for store in stores if store != self.leaving)
            layout, gone = replace(layout, without=""), tuple(sorted((*gone, self.places.index(self.leaving))))
        settled = replace(self, number=number, since=number, stores=stores, layout=layout, gone=gone)
        if self.leaving or self.joining or self.temporary:
            settled = replace(settled, temporary=temporary)
        return replace(settled, before=None, joining="", step=None, leaving="")

    def reverted(self) -> Placement:
        """The change does not take place: what was to move stays where it was."""
        assert self.before is not None, "nothing moves"
        assert self.step is None, "what is held has begun to move"
        number = self.number + 1
        return replace(self, number=number, since=number, layout=self.before, before=None, joining="")

    def _check_rule(self, pattern: str, store: str) -> None:
        try:
            words = _parsed(pattern)
        except ValueError as error:
            raise ConfigError(f"pattern {pattern!r} {error}") from None
        if store != SPREAD and store not in self.stores:
            raise ConfigError(
                f"the cluster has no store {store!r}; it has {', '.join(self.stores)}, and {SPREAD} stands for all",
                code="STORE_UNKNOWN",
            )
        if self.lives_everywhere(pattern):
            raise ConfigError(f"{pattern} lives in every store: it takes no rule", code="RULE_WITHOUT_EFFECT")
        key = self.key_of(pattern)
        consumers, topics = self._virtual
        rest = words[len(consumers) :]
        if key == pattern and topics and rest and matches(consumers, words[: len(consumers)]) and matches(topics, rest):
            key = ".".join(word.removeprefix("\0") for word in rest)
        if key != pattern:
            raise ConfigError(
                f"{pattern} goes where {key} goes, because they have one placement key: place {key}",
                code="RULE_WITHOUT_EFFECT",
            )

    # -- as JSON --------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The table for `from_json`. JSON objects lose their order: lists keep it."""
        naming = self.naming
        return {
            "since": self.since,
            "order": list(self.stores),
            "naming": {
                "virtual_topics": naming.virtual_topics,
                "virtual_topic_consumers": naming.virtual_topic_consumers,
                "dead_letter_prefix": naming.dead_letter_prefix,
                "shared_dead_letter_queue": naming.shared_dead_letter_queue,
            },
            **_layout_to_json(self.layout),
            **({"before": _layout_to_json(self.before)} if self.before is not None else {}),
            **({"joining": self.joining} if self.joining else {}),
            **({"step": _step_to_json(self.step)} if self.step is not None else {}),
            **({"leaving": self.leaving} if self.leaving else {}),
            **({"gone": list(self.gone)} if self.gone else {}),
            **({"temporary": list(self.temporary)} if self.temporary else {}),
        }

    @classmethod
    def from_json(cls, number: int, found: Any) -> Placement:
        """Raises ValueError, which says what is wrong."""
        try:
            naming = Naming(**found["naming"])
            stores = tuple(found["order"])
            before, joining, step = found.get("before"), found.get("joining", ""), found.get("step")
            made = cls(
                number,
                found["since"],
                stores,
                naming,
                _layout_from_json(found, (*stores, joining) if joining else stores),
                _layout_from_json(before, stores) if before is not None else None,
                joining,
                _step_from_json(step) if step is not None else None,
                found.get("leaving", ""),
                tuple(found.get("gone", ())),
                tuple(found.get("temporary", ())),
            )
            if not {*made.temporary} <= {*stores} or len(made.temporary) > SLOTS:
                raise ValueError("temporary destinations in a store that does not exist")
            if made.leaving and (made.step is None or made.leaving not in stores):
                raise ValueError("a store leaves without a move")
            if [*made.gone] != sorted({int(each) for each in made.gone if 0 <= each < PLACES_MAX}):
                raise ValueError("places of removed stores that do not exist")
            if made.step is not None and made.before is None:
                raise ValueError("a move goes from nowhere")
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"a placement is damaged: {error!r}") from error
        texts = (*stores, made.joining, *(getattr(naming, name) for name in Naming.__slots__))
        if type(made.since) is not int or not all(type(text) is str for text in texts):
            raise ValueError("a placement is damaged: a field is of the wrong type")
        return made


def _too_many_rules() -> ConfigError:
    return ConfigError(f"a cluster has up to {RULES_MAX} rules: remove some, or name tags that hold more")


def slot_of(key: str) -> int:
    """The slot of a placement key."""
    return crc32c(key.encode()) % SLOTS


def _is_of(topics: tuple[str, ...], words: list[str], first: int) -> bool:
    """Do `words` from `first` on match `topics`? It looks at no more of them than the pattern has."""
    if topics[-1] == ANY_REST:
        return matches(topics, words[first : first + len(topics)])
    return len(words) - first == len(topics) and matches(topics, words[first:])


def _parsed(pattern: str) -> tuple[str, ...]:
    """The words of a rule's pattern. Raises ValueError with a sentence that tells the cure."""
    words = parse_pattern(pattern)
    if len(words) > PATTERN_WORDS_MAX:
        raise ValueError(f"has more than {PATTERN_WORDS_MAX} words: end it with a >")
    return words


def _layout_to_json(layout: Layout) -> dict[str, Any]:
    runs = [[store, len(list(run))] for store, run in groupby(layout.slots)]
    without = {"without": layout.without} if layout.without else {}
    return {"rules": [list(rule) for rule in layout.rules.items()], "slots": runs, **without}


def _layout_from_json(found: Any, stores: Sequence[str]) -> Layout:
    rules = dict(found["rules"])
    slots = tuple(store for store, count in found["slots"] for _ in range(count))
    if len(slots) != SLOTS:
        raise ValueError(f"{len(slots)} slots, not {SLOTS}")
    for store in {*slots, *rules.values()} - {SPREAD}:
        if store not in stores:
            raise ValueError(f"the store {store!r}, which is not one of the cluster")
    for pattern in rules:
        _parsed(pattern)
    if SPREAD in slots:
        raise ValueError("a slot is at no store")
    without = found.get("without", "")
    if without and without not in stores:
        raise ValueError(f"the store {without!r}, which is not one of the cluster")
    return Layout(rules, slots, without)


def even_slots(slots: Sequence[str], stores: Sequence[str]) -> tuple[str, ...]:
    """The slots in equal shares among `stores`, so that as few as possible change their store."""
    rest = SLOTS % len(stores)
    mine = {store: [slot for slot, name in enumerate(slots) if name == store] for store in stores}
    richest = sorted(stores, key=lambda store: -len(mine[store]))  # who has more keeps the odd ones
    shares = {store: SLOTS // len(stores) + (place < rest) for place, store in enumerate(richest)}
    found = {slot: store for store in stores for slot in mine[store][: shares[store]]}
    free = iter(slot for slot in range(SLOTS) if slot not in found)
    for store in stores:
        for _ in range(shares[store] - len(mine[store][: shares[store]])):
            found[next(free)] = store
    return tuple(found[slot] for slot in range(SLOTS))


def _step_to_json(step: MoveStep) -> dict[str, Any]:
    more = {"returns": step.returns, "rate": step.rate_bytes}
    return {
        "moved": _runs(step.moved),
        "moving": _runs(step.moving),
        **{key: each for key, each in more.items() if each},
    }


def _runs(slots: frozenset[int]) -> list[list[int]]:
    """[first, last] of each run."""
    found: list[list[int]] = []
    for slot in sorted(slots):
        if found and found[-1][1] == slot - 1:
            found[-1][1] = slot
        else:
            found.append([slot, slot])
    return found


def _step_from_json(found: Any) -> MoveStep:
    moved, moving = (
        frozenset(slot for first, last in found[name] for slot in range(first, last + 1))
        for name in ("moved", "moving")
    )
    if not moved | moving <= ALL_SLOTS or moved & moving:
        raise ValueError("slots of a move that do not exist, or that are in two states")
    return MoveStep(moved, moving, found.get("returns", False) is True, int(found.get("rate", 0)))


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


_CRC = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
