"""Options of single destinations: the tables `[destinations."orders.>"]` of the configuration file.

A pattern is a destination's name in which `.` separates words, `*` stands for one word and a final `>` for all further
words, also none. Invariant: each option of a destination comes from the most specific of the patterns that match it
and set that option, else from the broker's own configuration. Compared word by word from the left, a word is more
specific than `*`, and `*` than `>`; so no two patterns that match one name are equally specific.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amq.config.option import Value
from amq.config.patterns import parse_pattern
from amq.core.destination import matches, specificity

if TYPE_CHECKING:
    from amq.config.schema import BrokerConfig

TABLE = "destinations"


@dataclass(frozen=True, slots=True)
class DestinationOptions:
    """The options that one pattern sets: attribute of BrokerConfig → value, and → where that is written."""

    pattern: str
    values: Mapping[str, Value]
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)


class Policies:
    """Finds the options of a destination. One BrokerConfig for all destinations with the same ones."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        tables = [(parse_pattern(table.pattern), table) for table in config.destinations]
        # The least specific first: what follows overrides it.
        self._tables = sorted(tables, key=lambda each: specificity(each[0]), reverse=True)
        self._made: dict[tuple[str, ...], BrokerConfig] = {}

    def of(self, name: str) -> BrokerConfig:
        """The configuration with the options of the destination `name`, `orders.eu`."""
        if not self._tables:
            return self._config
        words = name.split(".")
        tables = [table for pattern, table in self._tables if matches(pattern, words)]
        if not tables:
            return self._config
        key = tuple(table.pattern for table in tables)
        if key not in self._made:
            values: dict[str, Any] = {}
            for table in tables:
                values |= table.values
            self._made[key] = dataclasses.replace(self._config, **values)
        return self._made[key]
