"""BrokerConfig: the one table of every option, from which defaults, units, help, example file and reference page come.

An option is in the module of its scope: node_options (with security_options), store_options or destination_options.
Invariant: a field's default is its option's documented default, parsed by the same code as a user's value, and its name
is the option's key in snake_case with the unit last. Values made by `loader.load` are within their bounds and do not
contradict each other; whoever constructs a BrokerConfig directly (tests, embedding) answers for that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from amq.config.node_options import NodeOptions
from amq.config.option import DEFAULT_SOURCE, SECTIONS, Option, Setting, Value
from amq.config.store_options import StoreOptions


@dataclass(frozen=True, slots=True)
class BrokerConfig(NodeOptions, StoreOptions):
    """The configuration of one process with one store.

    sources   attribute → where its value came from; an attribute that is absent has its default
    warnings  sentences about what is allowed but probably not meant
    placed    the newest table of the cluster to which the store belongs, as `amq.broker.homes` takes it; None = none
    """

    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    warnings: tuple[str, ...] = dataclasses.field(default=(), compare=False, repr=False)
    placed: Mapping[str, Any] | None = dataclasses.field(default=None, compare=False, repr=False)

    def explain(self) -> list[Setting]:
        """Every option with its effective value and where that came from, in the order of the table; then what single
        destinations have of their own."""
        settings = [
            Setting(made, made.format(self.get(made)), self.sources.get(made.attribute, DEFAULT_SOURCE))
            for made in OPTIONS
        ]
        for table in self.destinations:
            settings += [
                Setting(made, made.format(table.values[made.attribute]), table.sources[made.attribute], table.pattern)
                for made in OPTIONS
                if made.attribute in table.values
            ]
        return settings

    def get(self, made: Option) -> Value:
        """The value of the option `made`."""
        value: Value = getattr(self, made.attribute)
        return value


def _collect() -> tuple[Option, ...]:
    found: list[Option] = []
    for field in dataclasses.fields(BrokerConfig):
        if "option" in field.metadata:
            made: Option = field.metadata["option"].named(field.name)
            assert made.attribute == field.name, f"{made.key}: call the field {made.attribute}, not {field.name}"
            assert made.section in SECTIONS, made.section
            found.append(made)
    return tuple(sorted(found, key=lambda made: list(SECTIONS).index(made.section)))


OPTIONS: tuple[Option, ...] = _collect()
BY_KEY: Mapping[str, Option] = {made.key: made for made in OPTIONS}
assert len(BY_KEY) == len(OPTIONS), "two options share a key"
