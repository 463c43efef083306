"""Transaction: sends and acknowledgements of one connection that will take effect together or not at all.

Lives in memory until it commits; the journal sees it once, whole. While open it holds the messages acknowledged in it
(they are in no queue and in no `unacked`), and memory for the messages sent in it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Protocol

from amq.broker.core import Core
from amq.broker.memory import MESSAGE_OVERHEAD_BYTES
from amq.broker.names import is_queued
from amq.broker.queues.queue import Queue, Subscription
from amq.broker.queues.redelivery import Redelivery
from amq.broker.topics.topics import Topics
from amq.core.errors import CommandError, TransactionRolledBackError
from amq.core.message import SUBSCRIPTION_SCHEME, Copy, Message
from amq.core.ownership import given
from amq.journal.hidden import home_name
from amq.journal.records import ACKED, BaseRecord, Consumed, Group, Measured, Prepared, Record
from amq.journal.records.message import Run
from amq.journal.records.multicast import HOLDERS_MAX, Multicast
from amq.protocols.commands import Command, Outcome


class Ready(Protocol):
    """The facts of the messages of a large transaction, gathered in slices: see `amq.broker.transactions.readying`."""

    is_done: bool
    records: list[Record]
    measured: Measured
    pending_bytes: dict[str, int]
    into: dict[str, bool]
    stored_by_others: list[Message]

    def check(self) -> None: ...
    def holds(self) -> bool: ...
    def admit(self, record: Record) -> bool: ...
    def tell(self, prepared: Prepared) -> None: ...
    def forget(self) -> None: ...


class Transaction:
    """`acks`, `nacks`, `requeued` and `released` = (subscription, message); `requeued` failed and shall come again, and
    so shall `released`, as if they had not been delivered.
    `queued` is what was sent to queues, in order; `brings` = further records that take effect with it. `used_at` is
    monotonic seconds."""

    __slots__ = (
        "_redelivery",
        "_topics",
        "acks",
        "brings",
        "core",
        "ending",
        "homes_version",
        "nacks",
        "name",
        "published",
        "queued",
        "readiness",
        "released",
        "requeued",
        "sends_to_durables",
        "session",
        "size",
        "takes_over",
        "used_at",
    )

    def __init__(self, core: Core, topics: Topics, redelivery: Redelivery, name: str, session: int = 0) -> None:
        self.core = core
        self._topics = topics
        self._redelivery = redelivery
        self.name = name
        self.session = session  # in which it began, and with which it ends
        self.ending: Command | None = None  # commits or prepares it, and waits: nobody adds anything
        self.used_at = core.clock.monotonic()
        self.homes_version = core.homes_version
        self.queued: list[Message | Run] = []
        self.published: list[Message] = []  # to topics
        self.sends_to_durables = False  # are in `sends` what durable subscriptions get of that?
        self.acks: list[tuple[Subscription, Message]] = []
        self.nacks: list[tuple[Subscription, Message]] = []
        self.requeued: list[tuple[Subscription, Message]] = []
        self.released: list[tuple[Subscription, Message]] = []
        self.brings: Sequence[BaseRecord] = ()
        self.takes_over = False  # what it sends comes from another store, which remembers its ids as this one may
        self.size = 0
        self.readiness: Ready | None = None  # where it is large and about to commit

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
        return self.acks + self.nacks + self.requeued + self.released

    def settle(self, subscription: Subscription, messages: list[Message], outcome: Outcome) -> None:
        """These deliveries are over when it commits."""
        into = {
            Outcome.ACCEPTED: self.acks,
            Outcome.REJECTED: self.nacks,
            Outcome.FAILED: self.requeued,
            Outcome.RELEASED: self.released,
        }[outcome]
        into += [(subscription, message) for message in messages]
        subscription.in_transactions += len(messages)

    def let_go_on(self, command: Command) -> None:
        """`command` has failed and ends it not."""
        if self.ending is command:
            self.ending = None

    def add(self, messages: list[Message]) -> None:
        """They are to be sent."""
        for message in messages:
            if is_queued(message.queue_name):
                self.queued.append(message)
            else:
                self.published.append(message)

    def to_group(self, outcome_id: str) -> Group:
        """The persistent part, as one record."""
        ready = self.readiness
        if ready is not None:
            ready.check()
            records = ready.records
        else:
            if any(item.__class__ is Run and not item.persistent for item in self.queued):
                self.queued = [*self.sends]
            stored = [item for item in self.queued if item.persistent]
            records = list(records_of(stored)) if Copy in set(map(type, stored)) else [*stored]
        consumed: dict[str, list[int]] = {}
        for subscription, message in self.acks:
            if message.segment is not None:
                consumed.setdefault(subscription.queue.name, []).append(message.seq)
        records.extend(Consumed(name, ACKED, seqs) for name, seqs in consumed.items())
        records.extend(self.brings)
        return Group(records, outcome_id, origin=self, measured=ready.measured if ready is not None else None)

    def finish(self, group: Group) -> None:
        """The commit is on its way: what needs no journal happens now."""
        core = self.core
        if self.published:
            self._topics.publish_with(group, self.published)
        for item in self.queued:
            if not item.persistent:
                core.state.apply(item, None)
        for subscription, message in self.acks:
            if message.segment is None:
                core.consumed(subscription.queue, message)
        self._give_back(self.nacks, refused=True)
        self._give_back(self.requeued)
        for queue, messages in _by_queue(self.released).items():
            self._redelivery.put_back(queue, messages)
        self._let_go()
        core.wake()

    def check_homes(self) -> None:
        """Destinations live elsewhere since it began. Raises TransactionRolledBackError where it sends to such one."""
        homes = self.core.homes
        assert homes is not None
        try:
            for name in {item.queue_name for item in (*self.queued, *self.published)}:
                if not name.startswith(SUBSCRIPTION_SCHEME):
                    homes.check(home_name(name))
        except CommandError as error:
            why = f"{error.description}; the transaction was rolled back"
            raise TransactionRolledBackError(why, code=error.code) from error

    def has_room(self) -> bool:
        """Does the store take what is sent in it?"""
        return not self.core.journal.full

    def roll_back_duplicate(self, group: Group | Prepared | None, message: Message) -> TransactionRolledBackError:
        """Roll back because an id is taken. To run it again is of no use only where the id is taken for good."""
        owner = self.core.state.queue(message.queue_name).duplicates_pending.get(message.duplicate_id)
        self.roll_back()
        if owner is None or owner is group:
            where = "stored before" if owner is None else "sent twice in it"
            why = f"message {given(message.duplicate_id)} was {where}: the whole transaction was rolled back"
            return TransactionRolledBackError(why, code="DUPLICATE_ID")
        return TransactionRolledBackError(
            f"message {given(message.duplicate_id)} is just being stored by somebody else: the transaction was rolled "
            "back"
        )

    def roll_back_repeated(self, outcome_id: str) -> TransactionRolledBackError:
        """Roll back because a commit of that name took place, as far as the error is told."""
        self.roll_back()
        why = f"commit {given(outcome_id)} took place before: the transaction was rolled back"
        return TransactionRolledBackError(why, code="ALREADY_COMMITTED")

    def roll_back(self) -> None:
        """Nothing of it takes place; what was acknowledged or refused in it is delivered again. Again = nothing."""
        for item in self.queued:  # they are not on their way
            if isinstance(item, Run):
                item.sizes = array("I")
            elif self.readiness is not None:
                item.size = 0
        if self.readiness is not None:
            self.readiness.forget()
        self.readiness = None
        for message in self.sends:
            self.core.withdraw(message)
        self._topics.withdraw(self.published)
        self._undo(self.settled)
        self._let_go()
        self.queued, self.published, self.acks, self.nacks, self.requeued, self.released = [], [], [], [], [], []

    def withdraw(self) -> None:
        """The commit met a full disk: its persistent part never took place."""
        for message in self.sends:
            if message.persistent:
                self.core.withdraw(message)
        self._undo([(s, message) for s, message in self.acks if message.segment is not None])

    def _let_go(self) -> None:
        """Its consumers no longer hold the messages that they acknowledged: groups may go to others."""
        for subscription, _ in self.settled:
            subscription.in_transactions -= 1
            queue = subscription.queue
            if queue.selection is not None and not subscription.in_transactions:
                self.core.dirty[queue] = None
                if subscription.ended:
                    queue.left(subscription)

    def _undo(self, settled: list[tuple[Subscription, Message]]) -> None:
        """It was not settled. Messages that a client delivers again by itself stay with its consumer: another copy
        would be processed too."""
        back: list[tuple[Subscription, Message]] = []
        for subscription, message in settled:
            if not subscription.redelivers or subscription.ended:
                back.append((subscription, message))
            elif message.seq in subscription.queue.messages:
                subscription.take_back(message)
        self._give_back(back)

    def _give_back(self, settled: list[tuple[Subscription, Message]], refused: bool = False) -> None:
        judged = [pair for pair in settled if not pair[0].redelivers]
        for queue, messages in _by_queue(judged).items():
            self._redelivery.give_back(queue, messages, [message.seq for message in messages], refused)
        for queue, messages in _by_queue([pair for pair in settled if pair[0].redelivers]).items():
            self._redelivery.give_back(queue, messages, (), refused)


def _by_queue(settled: list[tuple[Subscription, Message]]) -> dict[Queue, list[Message]]:
    found: dict[Queue, list[Message]] = {}
    for subscription, message in settled:
        found.setdefault(subscription.queue, []).append(message)
    return found


def records_of(messages: Iterable[Message | Run]) -> Iterator[Record]:
    """The records that store `messages`: copies of one that follow each other share a record."""
    for original, found in groupby(messages, lambda message: message.original if isinstance(message, Copy) else None):
        if original is None:
            yield from found
            continue
        copies = list(found)
        for i in range(0, len(copies), HOLDERS_MAX):
            part = [copy for copy in copies[i : i + HOLDERS_MAX] if isinstance(copy, Copy)]
            yield Multicast(original, [copy.queue_name for copy in part], copies=part)


def memory_bytes(messages: list[Message]) -> int:
    """Bytes that `messages`, all made of one, take: shared content counts once."""
    contents = {id(message.shared or message): len(message.body) + message.header_bytes for message in messages}
    return sum(contents.values()) + MESSAGE_OVERHEAD_BYTES * len(messages)
