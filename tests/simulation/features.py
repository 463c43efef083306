"""Features: what a broker can do beside queues and transactions, each with applications that use it and a checker.

Invariant: its dice are its own, so that a world without features has the history that it would have had without them.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from amq.config.destination_options import DestinationOptions
from tests.simulation.clients import Application
from tests.simulation.faults import Fault
from tests.simulation.oracle import Checker, Oracle

if TYPE_CHECKING:
    from tests.simulation.world import Slot, World

Make = Callable[[str, str, Oracle, Random], Application]  # (name, url, oracle, dice)


class Feature(Checker):
    """Of one world. `destinations` = options of the brokers for single ones."""

    destinations: tuple[DestinationOptions, ...] = ()

    def __init__(self, oracle: Oracle, seed: int) -> None:
        self.oracle = oracle
        self.dice = Random(f"{type(self).__name__} of {seed}")

    def options(self) -> dict[str, Any]:
        """Of the brokers."""
        return {}

    def prepare(self, world: World) -> None:
        """Make of `world`, which has not begun, what this needs."""

    def schedule(self, faults: list[Fault]) -> list[Fault]:
        """What goes wrong: `faults` as the seed would have it, or more of them, or others."""
        return faults

    def applications(self) -> list[Make]:
        """Who uses it."""
        return []

    def linked(self, slot: Slot, number: int) -> None:
        """The broker of `slot` has linked epoch `number`."""

    def excuses(self, slot: Slot, failure: Any) -> bool:  # noqa: ARG002 - for features to say
        """May the broker of `slot` stop because of `failure`, None = nothing, although no broker of today may?"""
        return False
