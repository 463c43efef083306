"""Policies: the options that hold for one destination.

Invariant: each option comes from the most specific of the patterns that match the destination and set that option, else
from the broker's own configuration. Compared word by word from the left, a word is more specific than `*`, and `*` than
`>`; so no two patterns that match one name are equally specific.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from amq.config.patterns import parse_pattern
from amq.config.store_options import StoreOptions
from amq.core.destination import matches, specificity


class Policies:
    """Finds the options of a destination. One StoreOptions for all destinations with the same ones."""

    def __init__(self, config: StoreOptions) -> None:
        self._config = config
        tables = [(parse_pattern(table.pattern), table) for table in config.destinations]
        # The least specific first: what follows overrides it.
        self._tables = sorted(tables, key=lambda each: specificity(each[0]), reverse=True)
        self._made: dict[tuple[str, ...], StoreOptions] = {}

    def of(self, name: str) -> StoreOptions:
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
