"""Transaction: sends and acknowledgements of one connection that will take effect together or not at all.

Lives in memory until it commits; the journal sees it once, whole. What it holds while open: the messages acknowledged
in it (they are in no queue and in no `unacked`), and memory for the messages sent in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from amq.broker.names import is_queued
from amq.broker.queue import MESSAGE_OVERHEAD_BYTES, Queue
from amq.broker.subscription import Peer, Subscription
from amq.errors import TransactionRolledBackError
from amq.journal.multicast import HOLDERS_MAX, Multicast
from amq.journal.records import ACKED, Consumed, Group, Prepared, Record
from amq.journal.run import Run
from amq.message import Copy, Message

if TYPE_CHECKING:
    from amq.broker.broker import Broker


class Transaction:
    """`acks`, `nacks` and `requeued` = (subscription, message); `requeued` were refused and shall come again.
    `queued` is what was sent to queues, in order. `used_at` is monotonic seconds."""

    __slots__ = ("acks", "broker", "nacks", "name", "published", "queued", "requeued", "sends_to_durables", "size",
                 "used_at")  # fmt: skip

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.used_at = broker.clock.monotonic()
        self.queued: list[Message | Run] = []
        self.published: list[Message] = []  # to topics
        self.sends_to_durables = False  # are in `sends` what durable subscriptions get of that?
        self.acks: list[tuple[Subscription, Message]] = []
        self.nacks: list[tuple[Subscription, Message]] = []
        self.requeued: list[tuple[Subscription, Message]] = []
        self.size = 0

    @property
    def sends(self) -> list[Message]:
        """`queued`, from now on one by one."""
        if any(item.__class__ is Run for item in self.queued):
            parts = [item.messages() if isinstance(item, Run) else (item,) for item in self.queued]
            self.queued = [message for part in parts for message in part]
        return self.queued  # type: ignore[return-value]

    @sends.setter
    def sends(self, messages: list[Message]) -> None:
        self.queued = [*messages]

    @property
    def settled(self) -> list[tuple[Subscription, Message]]:
        """All that it holds of what was delivered."""
        return self.acks + self.nacks + self.requeued

    def add(self, messages: list[Message]) -> None:
        """They are to be sent."""
        for message in messages:
            if is_queued(message.queue_name):
                self.queued.append(message)
            else:
                self.published.append(message)

    def to_group(self, outcome_id: str) -> Group:
        """The persistent part, as one record."""
        records = list(records_of(message for message in self.sends if message.persistent))
        consumed: dict[str, list[int]] = {}
        for subscription, message in self.acks:
            if message.segment is not None:
                consumed.setdefault(subscription.queue.name, []).append(message.seq)
        records.extend(Consumed(name, ACKED, seqs) for name, seqs in consumed.items())
        return Group(records, outcome_id, origin=self)

    def finish(self, group: Group) -> None:
        """The commit is on its way: what needs no journal happens now."""
        broker = self.broker
        if self.published:
            broker.topics.publish_with(group, self.published)
        for item in self.queued:
            if not item.persistent:
                broker.apply(item, None)
        for subscription, message in self.acks:
            if message.segment is None:
                broker.consumed(subscription.queue, message)
        self._give_back(self.nacks, refused=True)
        self._give_back(self.requeued)
        self._let_go()
        broker.wake()

    def has_room(self) -> bool:
        """Does the store take what is sent in it?"""
        journal = self.broker.journal
        assert journal is not None
        return not journal.full

    def roll_back_duplicate(self, group: Group | Prepared | None, message: Message) -> TransactionRolledBackError:
        """Roll back because an id is taken. To run it again is of no use only where the id is taken for good."""
        owner = self.broker.queue(message.queue_name).duplicates_pending.get(message.duplicate_id)
        self.roll_back()
        if owner is None or owner is group:
            where = "stored before" if owner is None else "sent twice in it"
            why = f"message {message.duplicate_id} was {where}: the whole transaction was rolled back"
            return TransactionRolledBackError(why, code="DUPLICATE_ID")
        return TransactionRolledBackError(
            f"message {message.duplicate_id} is just being stored for somebody else: the transaction was rolled back"
        )

    def roll_back_repeated(self, outcome_id: str) -> TransactionRolledBackError:
        """Roll back because a commit of that name took place. What is on its way may yet be lost in a crash: of that
        nobody is told that it is done."""
        pending = outcome_id in self.broker.outcomes_pending
        self.roll_back()
        if pending:
            return TransactionRolledBackError(
                f"commit {outcome_id} is just taking place on another connection: the transaction was rolled back"
            )
        why = f"commit {outcome_id} took place before: the transaction was rolled back"
        return TransactionRolledBackError(why, code="ALREADY_COMMITTED")

    def roll_back(self) -> None:
        """Nothing of it takes place; what was acknowledged or refused in it is delivered again."""
        for message in self.sends:
            self.broker.withdraw(message)
        self.broker.topics.withdraw(self.published)
        self._give_back(self.settled)
        self._let_go()

    def withdraw(self) -> None:
        """The commit met a full disk: its persistent part never took place."""
        for message in self.sends:
            if message.persistent:
                self.broker.withdraw(message)
        self._give_back([(s, message) for s, message in self.acks if message.segment is not None])

    def _let_go(self) -> None:
        """What its consumers had acknowledged is theirs no more: groups may go to others."""
        for subscription, _ in self.settled:
            subscription.in_transactions -= 1
            queue = subscription.queue
            if queue.picker is not None and not subscription.in_transactions:
                self.broker.dirty[queue] = None
                if subscription.ended:
                    queue.left(subscription)

    def _give_back(self, settled: list[tuple[Subscription, Message]], refused: bool = False) -> None:
        by_queue: dict[Queue, list[Message]] = {}
        for subscription, message in settled:
            by_queue.setdefault(subscription.queue, []).append(message)
        for queue, messages in by_queue.items():
            self.broker.give_back(queue, messages, [message.seq for message in messages], refused)


def records_of(messages: Iterable[Message | Run]) -> Iterator[Record]:
    """What stores `messages`: those that are copies of one, and follow each other, together."""
    for original, found in groupby(messages, lambda message: message.original if isinstance(message, Copy) else None):
        if original is None:
            yield from found
            continue
        copies = list(found)
        for i in range(0, len(copies), HOLDERS_MAX):
            part = [copy for copy in copies[i : i + HOLDERS_MAX] if isinstance(copy, Copy)]
            yield Multicast(original, [copy.queue_name for copy in part], copies=part)
            for copy in part:
                copy.original = None


def memory_bytes(messages: list[Message]) -> int:
    """What `messages`, all that was made of one, take: what they share counts once."""
    contents = {id(message.shared or message): len(message.body) + message.header_bytes for message in messages}
    return sum(contents.values()) + MESSAGE_OVERHEAD_BYTES * len(messages)


def tell_outcome(broker: Broker, outcome_id: str, transaction: str, peer: Peer, receipt: str) -> None:
    """Answer a client that lost the connection while it committed: confirmed if it took place, else it never will by
    the transaction of that name."""
    if outcome_id in broker.outcomes or outcome_id in broker.outcomes_pending:
        broker.follow(broker.outcomes_pending.get(outcome_id), peer, receipt)
        return
    broker.outcomes_refused[outcome_id, transaction] = None
    if len(broker.outcomes_refused) > broker.config.outcome_window:
        del broker.outcomes_refused[next(iter(broker.outcomes_refused))]
    raise TransactionRolledBackError("the commit did not take place: the transaction was rolled back")
