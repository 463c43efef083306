"""Outcomes: commits that clients named, so that they can ask for them later.

Invariant: each user has a name space. The answer to a user depends on commits and questions of this user alone, and on
commits of an earlier version that nobody else can have named.
"""

from __future__ import annotations

from amq.broker import unowned
from amq.broker.core import Core
from amq.core.errors import CommandError, TransactionRolledBackError
from amq.core.ownership import given, owned, owner_of
from amq.core.xid import OUTCOMES
from amq.journal.batch import Waiter


def name_of(core: Core, user: str, outcome_id: str) -> str:
    """The name under which the commit that `user` calls `outcome_id` is remembered, "" = it has none.

    Raises CommandError where that is how the end of a prepared transaction is remembered, and no name of a commit. It
    must not be answered either: neither "committed" nor "rolled back" would be sure to be true."""
    if outcome_id.startswith(OUTCOMES):
        raise CommandError(
            f"outcome id {outcome_id[:80]!r}: ids that begin with {', '.join(map(repr, OUTCOMES))} stand for "
            "prepared transactions: name the commit otherwise",
            code="OUTCOME_ID_INVALID",
        )
    if not outcome_id or (outcome_id in core.state.outcomes and unowned.answers(outcome_id, core.config)):
        return outcome_id
    return owned(user, outcome_id)


def is_known(core: Core, name: str) -> bool:
    """Did the commit of that name take place, or does it just now?"""
    return name in core.state.outcomes or name in core.outcomes_pending


def is_refused(core: Core, name: str, transaction: str) -> bool:
    """Was its user told that it never will take place by the transaction of that name?"""
    return (owner_of(name), (given(name), transaction)) in core.outcomes_refused


def tell(core: Core, name: str, transaction: str, waiter: Waiter) -> None:
    """Answer a client that lost the connection while it committed: confirmed if it took place, else it never will by
    the transaction of that name."""
    if is_known(core, name):
        core.when_durable(waiter, core.outcomes_pending.get(name))
        return
    core.outcomes_refused.add(owner_of(name), (given(name), transaction))
    raise TransactionRolledBackError("the commit did not take place: the transaction was rolled back")
