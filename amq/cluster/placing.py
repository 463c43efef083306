"""A change of the placement, step by step: what the stores say decides about the next table.

The table that takes destinations away (`Placement.before`) is there already. The one that gives them to their new homes
may be made only when every store obeys the first and holds nothing of what moves. Otherwise the change is taken back.

Pure: whoever makes the change looks at the stores, asks `decide`, and acts. Where two do so at a time, both come to the
same table, or one of them finds that it is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from amq.cluster.placement import Placement


@dataclass(frozen=True, slots=True)
class StoreSeen:
    """A store, as its master describes it.

    number    of the table that it has recorded, 0 = none
    held      destinations that it holds, and that live elsewhere by this table or by the one that it refuses
    refused   number of the table that it refuses, because that would strand what it holds; 0 = it refuses none
    is_unused no broker has served the store yet, and no node of the cluster runs: whoever serves it first will read the
              newest table
    """

    number: int = 0
    held: tuple[str, ...] = ()
    refused: int = 0
    is_unused: bool = False


@dataclass(frozen=True, slots=True)
class Await:
    """Not all stores have the table: `stores` do not."""

    stores: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grant:
    """Every store has given up what moves."""


@dataclass(frozen=True, slots=True)
class Revert:
    """`held` = by store what would be stranded."""

    held: Mapping[str, tuple[str, ...]]


def decide(placement: Placement, stores: Mapping[str, StoreSeen]) -> Await | Grant | Revert:
    """The next step of a `placement` that has `before`. `stores` = all of them, as they are seen after it was made."""
    held = {
        name: seen.held
        for name, seen in stores.items()
        if seen.held and (seen.number >= placement.number or seen.refused >= placement.number)
    }
    if held:
        return Revert(held)
    late = [name for name, seen in stores.items() if seen.number < placement.number and not seen.is_unused]
    return Await(tuple(late)) if late else Grant()
