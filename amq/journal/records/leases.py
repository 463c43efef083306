"""LeaseOwner: to whom leases and epochs of a cursor belong. Spec: docs/journal-format.md, two-phase transactions.

A lease is a prepared transaction, and an epoch a marker. The journal, people and tools know both by a text, their
owner: it is made and recognised here and nowhere else. Clients may give no owner and no xid that looks like it.
"""

from __future__ import annotations

from typing import NamedTuple

from amq.core.ownership import owned

LEASE = "lease:"  # xid and owner of a lease begin so, and of no other prepared transaction


class LeaseOwner(NamedTuple):
    """The cursor of that name of `user`, at the queue of that full name. `user` "" = none, or stored by an earlier
    version. The name of a cursor has no comma."""

    cursor: str
    queue: str
    user: str

    @property
    def of_leases(self) -> str:
        """The owner of its leases. Those of one cursor at several queues, and of several users, have the same."""
        return LEASE + self.cursor

    @property
    def of_epochs(self) -> str:
        """The owner of the markers that are its epochs."""
        return f"{LEASE},{self.cursor},{owned(self.user, self.queue)}"

    def xid(self, number: int) -> str:
        """The id of its lease with that number."""
        return f"{self.of_leases}:{number}"

    def without_user(self) -> LeaseOwner:
        """The same cursor as an earlier version has stored it."""
        return self._replace(user="")


def is_of_lease(text: str) -> bool:
    """Is `text` the xid of a lease, or the owner of leases or of epochs?"""
    return text.startswith(LEASE)
