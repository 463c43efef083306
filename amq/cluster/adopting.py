"""Adopting: the rules by which a store that joins a cluster stays the home of what it holds.

One rule for each placement key, as long as `RULES_FOR_ONE` are enough. Else those with a common beginning are gathered,
the largest family first: `orders.>` for `orders.eu`, `orders.us`, and what else begins so. No family is gathered in
which another store holds something. Where the names have nothing in common, the store becomes the home of all that no
other rule places (`>`), and what other stores hold keeps its home by rules of its own.

Pure: the caller has read the stores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set

from amq.cluster.placement import RULES_MAX, SPREAD, Layout, Placement
from amq.config.patterns import parse_pattern
from amq.core.destination import REST_TEXT
from amq.core.errors import ConfigError

RULES_FOR_ONE = 128
TOLD_MAX = 10


def adopting_rules(placement: Placement, name: str, keys: Iterable[str], others: Mapping[str, str]) -> dict[str, str]:
    """The rules for the keys that store `name` holds; `others` = key → the store that holds it, and none of `keys` is
    there. Raises ConfigError where no rules can say it."""
    known = placement.layout.rules
    wanted = {key for key in keys if placement.layout.rule_of(key)[1] != SPREAD}
    room = min(RULES_FOR_ONE, RULES_MAX - len(known))
    found = _gathered(wanted, others.keys(), room)
    rules = dict.fromkeys(found, name)
    if REST_TEXT in rules:
        rules |= _kept(placement, others, RULES_MAX - len(known) - 1)
    taken = [pattern for pattern, store in rules.items() if known.get(pattern, store) != store]
    rules |= dict.fromkeys(_astray(placement, rules, wanted, name), name)  # a rule of the cluster is more specific
    taken += [key for key in _astray(placement, rules, wanted, name) if key not in taken]
    if taken:
        raise ConfigError(
            f"rules of the cluster place {_told(taken)} in other stores: `amq cluster place --remove` them first",
            code="RULES_APART",
        )
    return rules


def _gathered(keys: set[str], others: Iterable[str], room: int) -> list[str]:
    """Patterns for `keys`, at most `room`, that hold for none of `others`. Raises ConfigError."""
    foreign = {start for key in others for start in (*_beginnings(key), key)}  # what others hold is below these
    plain = {key for key in keys if _is_rule(key)}
    patterns, odd = dict.fromkeys(sorted(plain)), keys - plain
    if len({_widest(key, foreign) for key in keys}) > room:
        return [REST_TEXT]
    while len(patterns) > room or odd:
        families = Counter(start for each in (*patterns, *odd) for start in _beginnings(each.removesuffix(".>")))
        if len(patterns) <= room:  # of odd names, the narrowest family
            fit = [start for start in families if start not in foreign and any(_is_below(key, start) for key in odd)]
            best = max(fit, key=lambda start: (start.count("."), start), default="")
        else:
            fit = [start for start, count in families.items() if count > 1 and start not in foreign]
            best = max(fit, key=lambda start: (families[start], start.count("."), start), default="")
        if not best:
            return [REST_TEXT]
        patterns = dict.fromkeys([each for each in patterns if not _is_below(each.removesuffix(".>"), best)])
        patterns[f"{best}.>"] = None
        odd = {key for key in odd if not _is_below(key, best)}
    return list(patterns)


def _kept(placement: Placement, others: Mapping[str, str], room: int) -> dict[str, str]:
    """Rules for what other stores hold by its slot: it would follow a rule for all names. Raises ConfigError."""
    by_store: dict[str, set[str]] = {}
    for key, store in others.items():
        if not placement.layout.rule_of(key)[0]:
            by_store.setdefault(store, set()).add(key)
    found: dict[str, str] = {}
    for store, keys in sorted(by_store.items()):
        foreign = [key for key, home in others.items() if home != store]
        patterns = _gathered(keys, foreign, max(1, (room - len(found)) // (len(by_store) or 1)))
        if REST_TEXT in patterns or len(found) + len(patterns) > room:
            raise ConfigError(
                f"the store has more destinations than rules can name, and so has store {store}, with names that have "
                "no beginning in common: place those of the cluster first (`amq cluster place`)",
                code="RULES_TOO_MANY",
            )
        found |= dict.fromkeys(patterns, store)
    return found


def _astray(placement: Placement, rules: Mapping[str, str], keys: set[str], name: str) -> Iterator[str]:
    """The keys that would live elsewhere."""
    layout = Layout({**placement.layout.rules, **rules}, placement.layout.slots)
    return (key for key in sorted(keys) if layout.rule_of(key)[1] != name)


def _beginnings(key: str) -> Iterator[str]:
    """`a.b` and `a` of `a.b.c`: those words can begin a pattern."""
    words = key.split(".")
    for count in range(len(words) - 1, 0, -1):
        if _is_rule(start := ".".join(words[:count])):
            yield start


def _widest(key: str, foreign: Set[str]) -> str:
    """The largest family of `key` in which others hold nothing, or itself."""
    found = key
    for start in _beginnings(key):
        found = found if start in foreign else start
    return found


def _is_below(key: str, start: str) -> bool:
    return key == start or key.startswith(f"{start}.")


def _is_rule(key: str) -> bool:
    """Does a rule for this text stand for this key alone?"""
    try:
        return list(parse_pattern(key)) == key.split(".")
    except ValueError:
        return False


def _told(keys: list[str]) -> str:
    more = f" and {len(keys) - TOLD_MAX} more" if len(keys) > TOLD_MAX else ""
    return ", ".join(keys[:TOLD_MAX]) + more
