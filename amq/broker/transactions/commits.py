"""Commits: everything in a transaction takes effect together, or nothing of it."""

from __future__ import annotations

from amq.broker.core import Core
from amq.broker.queues.redelivery import Redelivery
from amq.broker.topics.durables import Durables
from amq.broker.topics.topics import Topics
from amq.broker.transactions import outcomes
from amq.broker.transactions.transaction import Transaction, memory_bytes
from amq.broker.waiters import Refusing
from amq.core.errors import StoreFullError, TransactionRolledBackError
from amq.core.message import Message
from amq.journal.batch import Waiter
from amq.journal.records import Group, Prepared, takes_space
from amq.journal.records.message import Run


class Commits:
    """Begins and commits transactions."""

    def __init__(self, core: Core, topics: Topics, durables: Durables, redelivery: Redelivery) -> None:
        self._core = core
        self._topics = topics
        self._durables = durables
        self._redelivery = redelivery

    def begin(self, name: str = "", session: int = 0) -> Transaction:
        """A new transaction that the client calls `name` and begins in that session; "" = it is the broker's own."""
        return Transaction(self._core, self._topics, self._redelivery, name, session)

    def commit(
        self, transaction: Transaction, waiter: Waiter, outcome_id: str, decision: Prepared | None = None
    ) -> Group | None:
        """Everything in `transaction` takes effect together. After any exception it is rolled back; so it is where a
        commit of `outcome_id`, as `outcomes.name_of` gives it, took place, or does just now: `waiter` learns when that
        is durable. `decision` is stored with it. Returns the group on its way, None = another commit of that name is
        waited for. Raises TransactionRolledBackError, StoreFullError."""
        if outcome_id:
            if outcomes.is_refused(self._core, outcome_id, transaction.name):
                transaction.roll_back()
                raise TransactionRolledBackError("this commit was asked for after a failover and declared rolled back")
            if outcomes.is_known(self._core, outcome_id):
                first = self._core.outcomes_pending.get(outcome_id)
                self._core.when_durable(Refusing(waiter, transaction.roll_back_repeated(outcome_id)), first)
                return None
        try:
            if transaction.homes_version != self._core.homes_version:
                transaction.check_homes()
            group = self._append_commit(transaction, waiter, outcome_id, decision)
        except Exception:
            transaction.roll_back()
            raise
        transaction.finish(group)
        return group

    def _append_commit(
        self, transaction: Transaction, waiter: Waiter, outcome_id: str, decision: Prepared | None
    ) -> Group:
        """The group of `transaction`, on its way to the journal. After an exception the caller rolls back."""
        self._complete(transaction)
        group = transaction.to_group(outcome_id)
        if decision is not None:
            group.records.append(decision)
        if not transaction.has_room() and takes_space(group):
            transaction.roll_back()
            raise StoreFullError("the store's disk is full: the transaction was rolled back")
        ready = transaction.readiness
        looks = (ready is None or not ready.admit(group)) and not transaction.takes_over
        for item in transaction.queued:
            if item.__class__ is Run:
                item.seq = self._core.next_seq(len(item.bodies))
                continue
            if looks and item.duplicate_id and item.persistent:  # type: ignore[union-attr]
                if self._core.is_duplicate(item):  # type: ignore[arg-type]
                    raise transaction.roll_back_duplicate(group, item)  # type: ignore[arg-type]
                self._core.admit_id(item, group)  # type: ignore[arg-type]
            if not item.seq:
                item.seq = self._core.next_seq()
        if group.records or outcome_id:
            if outcome_id:
                group.seq = self._core.next_seq()
            batch = self._core.append_group(group, ready.pending_bytes if ready is not None else None)
            batch.confirms.append((waiter, group))
            if outcome_id:
                self._core.outcomes_pending[outcome_id] = group
        else:
            waiter.done()
        return group

    def _complete(self, transaction: Transaction) -> None:
        """See `add_copies`; what that adds counts from now on. Again = nothing. Raises TransactionRolledBackError where
        somebody else is just storing some of it, which may yet fail."""
        stored_by_others: list[Message] = []
        if transaction.readiness is not None:
            stored_by_others = transaction.readiness.stored_by_others
        elif transaction.published and not transaction.sends_to_durables:
            added, stored_by_others = self.add_copies(transaction)
            self._core.memory.take(memory_bytes(added))
        if stored_by_others:
            raise transaction.roll_back_duplicate(None, stored_by_others[0])

    def add_copies(self, transaction: Transaction) -> tuple[list[Message], list[Message]]:
        """The messages that `transaction` sends to topics go to durable subscriptions too. Returns the messages that
        were added, and those that were not because they are on their way there for somebody else."""
        added: list[Message] = []
        stored_by_others: list[Message] = []
        for message in transaction.published:
            copies, others = self._durables.copies_of(message)
            added += copies
            stored_by_others += others
        transaction.sends += added
        return added, stored_by_others
