"""The copies of a replicated store, for commands that only look: from the record of the group, and from who is there.

Invariant: asks the coordinator alone, so it works from any host, also where no member answers.
"""

from __future__ import annotations

from amq.store.coordinator import Coordinator
from amq.store.port import StoreCopies
from amq.store.replica.book import GroupBook
from amq.store.replica.roster import MEMBERS


def store_copies(coordinator: Coordinator) -> StoreCopies:
    """`coordinator` = that of the group alone. Raises CorruptError, NewerFormatError, OSError."""
    record = GroupBook(coordinator).read().record
    return StoreCopies(sorted(record.members), record.copies, coordinator.names(MEMBERS))
