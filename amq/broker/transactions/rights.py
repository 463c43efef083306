"""Rights: who may end and see which prepared transactions.

Invariant: a transaction belongs to the user who prepared it, as long as the user has the rights for all that it does.
Users who may manage the broker may end all. A transaction that belongs to nobody, of a version that stored no user, is
ended by those who could have made it; where it does nothing, that says nothing, and a user must manage. To everybody
else a transaction does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator

from amq.broker.access import Access, Demand
from amq.broker.actions import Action
from amq.broker.names import SCHEDULE_SCHEME, real_name
from amq.journal.hidden import outbox_target
from amq.journal.records import Prepared
from amq.security.login import User


class Rights:
    """The rights of one user, asked for many transactions: each demand once."""

    def __init__(self, access: Access, user: User) -> None:
        self._access = access
        self._user = user
        self.owner = user.name
        self._known: dict[Demand, bool] = {}
        self.manages = access.may(user, Action.FINISH_OTHERS, "")

    def may_end(self, prepared: Prepared) -> bool:
        """May the user commit, roll back and see it?"""
        if self.manages:
            return True
        if prepared.user != self.owner and prepared.user:
            return False
        if not prepared.user and self.owner and not (prepared.sends or prepared.acks):
            return False
        return all(map(self._may, demands(prepared)))

    def check(self, prepared: Prepared) -> None:
        """Raises AccessError where the user, whose transaction it is, may not do any more what it does."""
        if not self.manages:
            for demand in demands(prepared):
                self._access.check(self._user, *demand)

    def _may(self, demand: Demand) -> bool:
        known = self._known.get(demand)
        if known is None:
            known = self._known[demand] = self._access.may(self._user, *demand)
        return known


def demands(prepared: Prepared) -> Iterator[Demand]:
    """The rights for what it does. A scheduled message demands what it would if it were sent when it is due."""
    for name in prepared.sends:
        real = outbox_target(real_name(name))
        if real.startswith(SCHEDULE_SCHEME):
            real = real.removeprefix(SCHEDULE_SCHEME).replace(".", "://", 1)
        yield Action.SEND, real
    for name in prepared.acks:
        yield Action.CONSUME, real_name(name)
