"""The record of a group, which the coordinator replaces by compare-and-set, and the two questions that rest on it.

Invariants: two groups of a record's members that answer `holds` and `fences` have a member in common; a term is the
ballot of one claim, so no two masters have one term.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The members that keep the log of a term.

    term      the ballot of its master's claim; 0 = no master yet
    members   S: ids of the copies that count
    copies    W: this many of them must have a write before it is confirmed
    before    the term before
    sealed    how far the log of that term counts
    epoch     the number of this mastership, from 1: one more than that of the term before
    """

    term: int
    members: frozenset[str]
    copies: int
    before: int
    sealed: int
    epoch: int = 0

    def holds(self, having: Collection[str]) -> bool:
        """Whether a write is confirmed that the copies `having` have."""
        return len(self.members & set(having)) >= self.copies

    def fences(self, promised: Collection[str]) -> bool:
        """Whether no write of this term can be confirmed any more when `promised` refuse it."""
        return len(self.members & set(promised)) > len(self.members) - self.copies

    def reach(self, positions: Mapping[str, int]) -> int | None:
        """The last position that is confirmed when members have these; None = the beginning of the term is not."""
        known = sorted([positions[member] for member in self.members if member in positions], reverse=True)
        return known[self.copies - 1] if len(known) >= self.copies else None

    def regrouped(self, members: Collection[str]) -> GroupRecord:
        """The record of this term with other members."""
        return replace(self, members=frozenset(members), copies=majority(len(members)))

    def after(self, ballot: int, members: Collection[str], sealed: int) -> GroupRecord:
        """The next term, with the log of this one up to `sealed`."""
        return GroupRecord(ballot, frozenset(members), majority(len(members)), self.term, sealed, self.epoch + 1)


NO_GROUP = GroupRecord(0, frozenset(), 0, 0, 0)


def majority(members: int) -> int:
    return members // 2 + 1


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """`members`: how many the master takes in if they are there. `least`: with fewer copies than these it
    confirms nothing."""

    members: int = 3
    least: int = 2

    def allows(self, record: GroupRecord) -> bool:
        return record.copies >= self.least
