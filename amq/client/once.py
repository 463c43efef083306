"""Once: run a piece of work in a transaction until it has taken place, and never twice.

All runs bear one name, the outcome id of their commits. The broker keeps it with what the commit did, and refuses a
second commit of that name. So a run begins only when it is certain that none before it took place: a commit whose
answer was lost is asked for (see `machine`), and where that could not be learnt the call ends, naming the id with which
it can be made again.
"""

from __future__ import annotations

from amq.client.core import EXACTLY_ONCE, SessionCore
from amq.core.errors import CommandError, TransactionRolledBackError

ATTEMPTS_MAX = 10
ALREADY_COMMITTED = "ALREADY_COMMITTED"


class Once:
    """One call of `exactly_once`. `id` names the work, "" = a name that nobody else has."""

    def __init__(self, core: SessionCore, id: str, attempts: int) -> None:
        if not core.transacted:
            raise CommandError("the session is not transacted: open it with session(transacted=True)")
        core.check_block(EXACTLY_ONCE)
        core.machine.check_open()
        if core.transaction is not None:
            raise CommandError("a transaction is open, which the work cannot repeat: commit or roll back first")
        if attempts < 1:
            raise CommandError(f"attempts={attempts}: write a number from 1")
        self.outcome_id = id or core.machine.next_id()
        self._attempts = attempts

    def must_run_again(self, error: TransactionRolledBackError) -> bool:
        """After a run that was rolled back; False = there is no need to, it took place before this call.

        Raises `error` where another run would end the same way, or there were enough.
        """
        if error.code == ALREADY_COMMITTED:
            return False
        self._attempts -= 1
        if error.code != TransactionRolledBackError.code or not self._attempts:
            raise error
        return True
