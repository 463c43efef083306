"""Change: something that a record has done to the state, for the broker that serves from it.

Most changes are the record itself. The state notes them in `State.changes` in the order in which they took place, and
the broker acts on them when what it applies has taken effect.
"""

from __future__ import annotations

from dataclasses import dataclass

from amq.journal.records import Copies, Group, Marker, ObeyedTable, Prepared, Trimmed


@dataclass(frozen=True, slots=True)
class Ended:
    """A prepared transaction has ended."""

    prepared: Prepared
    committed: bool


Change = Prepared | Ended | Marker | Group | Copies | Trimmed | ObeyedTable  # a group: a commit that has a name
