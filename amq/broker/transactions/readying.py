"""Readying: gathers, in slices, the facts of each message that the commit of a large transaction needs.

Meanwhile its session waits and others are served. Invariant: nothing is decided here. The commit itself is one step and
decides everything, as that of a small transaction does; so a transaction that never commits leaves nothing behind.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import chain

from amq.broker import unowned
from amq.broker.core import Core
from amq.broker.topics.durables import Durables
from amq.broker.transactions.transaction import Transaction, memory_bytes, records_of
from amq.core.message import SUBSCRIPTION_SCHEME, Copy, Message
from amq.journal.hidden import SENT_SCHEME
from amq.journal.records import Measured, Prepared, Record, messages_in, record_bytes
from amq.journal.records.message import Run
from amq.journal.records.multicast import Multicast

SLICE_MESSAGES = 2000  # a few milliseconds


def is_large(transaction: Transaction) -> bool:
    """Does it take so long to commit that others must be served in between? Messages in runs do not count: each run
    is handled in one piece."""
    return len(transaction.queued) + len(transaction.published) > SLICE_MESSAGES


class Readiness:
    """Of `transaction`, which is about to commit, or with `prepares` about to be prepared.

    records        what stores its persistent messages
    measured       how many bytes these take, and which queues they name
    pending_bytes  {full name of a queue: bytes of what comes there}
    into           {full name of a queue: does something persistent come there?}
    stored_by_others  what somebody else is just storing for a durable subscription
    """

    def __init__(
        self,
        core: Core,
        durables: Durables,
        under_way: dict[Transaction, Readiness],
        transaction: Transaction,
        prepares: bool,
    ) -> None:
        self.records: list[Record] = []
        self.measured = Measured(array("Q"), {})
        self.pending_bytes: dict[str, int] = {}
        self.into: dict[str, bool] = {}
        self.stored_by_others: list[Message] = []
        self.is_done = False
        self._core = core
        self._durables = durables
        self._under_way = under_way
        self._transaction = transaction
        self._prepares = prepares
        self._subscriptions: dict[str, None] = {}  # whose queues get copies
        self._ids: dict[str, dict[str, Message]] = {}  # by full name of the queue and producer-given id
        self._has_twins = False  # is one of these there twice?
        self._sends: dict[str, list[Message | Run]] = {}  # by full name of the queue, where it prepares
        self._error: Exception | None = None
        self._slices = self._run()

    def step(self) -> None:
        """Do a slice."""
        try:
            self.is_done = next(self._slices, True) is True
        except Exception as error:  # noqa: BLE001 (whatever it is, the commit fails with it: see `check`)
            self.is_done, self._error = True, error

    def forget(self) -> None:
        """The transaction is rolled back."""
        self._under_way.pop(self._transaction, None)

    def check(self) -> None:
        """Raises the error of a slice."""
        if self._error is not None:
            raise self._error

    def holds(self) -> bool:
        """Are all durable subscriptions still there that get something?"""
        return self._durables.are_there(self._subscriptions.keys())

    def admit(self, record: Record) -> bool:
        """The ids of all messages are taken from here on: they are on their way in `record`. False, and nothing is
        done, where one is taken already, or here twice."""
        if not self._core.config.duplicate_window:
            return True
        admitted = [(self._core.state.queue(name), ids) for name, ids in self._ids.items()]
        for queue, ids in admitted:
            free = queue.duplicates.keys().isdisjoint(ids) and queue.duplicates_pending.keys().isdisjoint(ids)
            if free and queue.may_hold_unowned:
                free = not unowned.knows_any(queue, ids, self._core.config)
            if self._has_twins or not free:
                for name, items in self._sends.items():
                    for item in items:
                        item.send_to(name)  # where the id is taken
                return False
        for queue, ids in admitted:
            queue.duplicates_pending.update(dict.fromkeys(ids, record))
        return True

    def tell(self, prepared: Prepared) -> None:
        """Add to `prepared` what is sent: all of it has seqs now."""
        for name, items in self._sends.items():
            several = (item.seqs if isinstance(item, Run) else (item.seq,) for item in items)
            prepared.sends[name] = list(chain.from_iterable(several))
        for name in self._ids:
            found = (item for item in self._sends[name] if isinstance(item, Message) and item.duplicate_id)
            prepared.ids.extend((name, item.duplicate_id, item.seq) for item in found)

    def _run(self) -> Iterator[None]:
        done = 0
        for steps in (self._copy(), self._unfold(), self._look()):
            for count in steps:
                done += count
                if done >= SLICE_MESSAGES:
                    yield None
                    done = 0

    def _copy(self) -> Iterator[int]:
        """Messages to topics go to the durable subscriptions that are there now."""
        transaction, until = self._transaction, self._core.next_seq()
        for message in transaction.published:
            added, stored_by_others = self._durables.copies_of(message, until)
            self._core.memory.take(memory_bytes(added))
            transaction.queued += added
            self.stored_by_others += stored_by_others
            for copy in added:
                self._subscriptions[copy.queue_name] = None
            yield 1 + len(added)

    def _unfold(self) -> Iterator[int]:
        """Messages that are not persistent take effect one by one."""
        transaction = self._transaction
        if all(item.persistent or isinstance(item, Message) for item in transaction.queued):
            return
        unfolded: list[Message | Run] = []
        for item in transaction.queued:
            if isinstance(item, Run) and not item.persistent:
                messages = item.messages()
                unfolded += messages
                yield len(messages)
            else:
                unfolded.append(item)
                yield 1
        transaction.queued = unfolded

    def _look(self) -> Iterator[int]:
        """At all that is sent to queues, and at the records that store it."""
        for record in records_of(self._persistent()):
            size = record_bytes(record)
            self.records.append(record)
            self.measured.sizes.append(size)
            for message in record.copies if isinstance(record, Multicast) else (record,):
                assert isinstance(message, Message | Run)
                message.size = size
                name = message.queue_name
                self.pending_bytes[name] = self.pending_bytes.get(name, 0) + size
            yield messages_in(record)
        self.measured.names.update(dict.fromkeys(self.pending_bytes))

    def _persistent(self) -> Iterator[Message | Run]:
        into, prepares = self.into, self._prepares
        for item in self._transaction.queued:
            name = item.queue_name
            if not item.persistent:
                into.setdefault(name, False)
                continue
            into[name] = True
            if isinstance(item, Message) and item.duplicate_id:
                self._remember(name, item)
            if prepares:
                self._sends.setdefault(name, []).append(item)
                item.send_to(SENT_SCHEME + name)
            yield item

    def _remember(self, name: str, message: Message) -> None:
        first = self._ids.setdefault(name, {}).setdefault(message.duplicate_id, message)
        self._has_twins = self._has_twins or first is not message


class Readying:
    """All that is under way. Call `step` once a turn."""

    def __init__(self, core: Core, durables: Durables) -> None:
        self._core = core
        self._durables = durables
        self.under_way: dict[Transaction, Readiness] = {}

    def is_ready(self, transaction: Transaction, prepares: bool) -> bool:
        """May `transaction` commit, or be prepared? False: it is being made ready; ask again when its
        readiness is done."""
        if transaction in self.under_way:
            return False
        found = transaction.readiness
        if found is not None and not found.holds():
            self._drop_copies(transaction)
            found = None
        if found is None and is_large(transaction):
            transaction.used_at = self._core.clock.monotonic()
            transaction.readiness = self.under_way[transaction] = Readiness(
                self._core, self._durables, self.under_way, transaction, prepares
            )
            self._core.wake()
            return False
        return True

    def step(self) -> None:
        """A slice of the one whose turn it is."""
        if self.under_way:
            transaction = next(iter(self.under_way))
            readiness = self.under_way.pop(transaction)
            readiness.step()
            if not readiness.is_done:
                self.under_way[transaction] = readiness
            self._core.wake()

    def _drop_copies(self, transaction: Transaction) -> None:
        """A durable subscription has ended: nothing may come there any more."""
        transaction.readiness = None
        kept: list[Message | Run] = []
        for item in transaction.queued:
            if isinstance(item, Copy) and item.queue_name.startswith(SUBSCRIPTION_SCHEME):
                self._core.memory.free(item)
            else:
                kept.append(item)
        transaction.queued = kept
