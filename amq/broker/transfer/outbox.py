"""Outbox: messages that this store leads to destinations of other stores: by diverts, and to expiry and dead-letter
queues.

Each such destination has a queue here, `outbox://queue.NAME`, which nobody can address. A message comes there with the
record of its cause, and goes to wherever its destination lives, in order, by a `Channel`. A
destination that has come to live here gets its messages from there as well. An outbox is bounded as its destination is
(`queueLimit`), and waits on disk as any queue does; nothing expires in it, since that is up to the other store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import structlog

from amq.broker.core import Core
from amq.broker.names import is_queued, is_topic
from amq.broker.queues.queue import Queue, Subscription
from amq.broker.queues.redelivery import Redelivery
from amq.broker.topics.routing import Routing
from amq.broker.transactions.commits import Commits
from amq.broker.transactions.transaction import memory_bytes
from amq.broker.transfer.arrivals import CLOSED, UNSURE
from amq.broker.transfer.channel import PAUSE_S, PAUSE_S_MAX, Channel, Seqs
from amq.broker.waiters import Call
from amq.cluster.placement import SPREAD
from amq.core.errors import AmqError, CommandError, StoreError, TransactionRolledBackError
from amq.core.message import Message
from amq.journal.hidden import outbox_target
from amq.protocols.commands import Mode, Outcome, Subscribe

PARCEL_MESSAGES_MAX: Final = 1000
PARCEL_BYTES_MAX: Final = 1 << 20  # or one message
HELD_BYTES_MAX: Final = 4 << 20  # in memory, of each outbox, and one message
LATE_MS: Final = 10_000  # operators see a message that waits longer
FACT_CHARACTERS_MAX: Final = 200
REFUSALS_MAX: Final = 5  # of one message, before it goes to the dead-letter queue of this store
_PASSING: Final = frozenset(
    (CLOSED, UNSURE, "MOVED", "MOVING", "LINK_LOST", "LINK_BROKEN", "LINK_REFUSED", "LINK_VERSION")
)
_log = structlog.get_logger("amq.outbox")


class OutboxRow(NamedTuple):
    """An outbox as operators see it. `since_ms` = wall clock of its oldest message, 0 = unknown; `trouble` = why that
    has not left, "" = unknown."""

    destination: str
    store: str
    messages: int
    bytes: int
    since_ms: int
    trouble: str


class Outbox:
    """All outboxes of this store. Call `step` once a turn where `busy` is not empty, and `sweep` every second. `facts`
    is for operators, replaced as a whole; other threads read it."""

    def __init__(self, core: Core, routing: Routing, commits: Commits, redelivery: Redelivery) -> None:
        self._core = core
        self._routing = routing
        self._commits = commits
        self._redelivery = redelivery
        self.senders: dict[Queue, OutboxSender] = {}
        self.busy: dict[OutboxSender, None] = {}
        self.facts: Mapping[str, Any] = {}

    def appeared(self, queue: Queue) -> None:
        """An outbox has come into being, or was found, while this broker serves."""
        sender = self.senders[queue] = OutboxSender(self, self._core, queue)
        sender.begin()

    def step(self) -> None:
        """Send what can be sent."""
        busy = list(self.busy)
        self.busy.clear()
        now_s = self._core.clock.monotonic()
        for sender in busy:
            sender.step(now_s)

    def sweep(self) -> None:
        """Try again where it is time for that, and say what waits."""
        if self.senders:
            self._tell()
        self.busy.update(dict.fromkeys(self.senders.values()))
        if self.busy:
            self._core.wake()

    def _tell(self) -> None:
        """The outbox of which the oldest message waits longest, if that is long."""
        late = min((row for row in self.rows() if row.since_ms), key=lambda row: row.since_ms, default=None)
        if late is None or self._core.clock.wall_ms() - late.since_ms < LATE_MS:
            self.facts = {}
        else:
            name, why = late.destination[:FACT_CHARACTERS_MAX], late.trouble[:FACT_CHARACTERS_MAX]
            self.facts = {"destination": name, "since_ms": late.since_ms, "reason": why}

    def expired(self, queue: Queue, messages: list[Message]) -> None:
        """Messages past their time are in no line any more: they go as all others."""
        self.senders[queue].take(messages)

    def stop(self) -> None:
        """The mastership ends."""
        for sender in self.senders.values():
            sender.channel.stop()

    def rows(self) -> Iterator[OutboxRow]:
        """The outboxes that hold something."""
        for queue, sender in self.senders.items():
            if queue.stored:
                yield sender.row()

    def copies_here(self, target: str, messages: list[Message]) -> list[Message]:
        """`messages` as `target`, which lives in this store, gets them: without those that it has for a producer that
        repeated them. Raises CommandError where that is not sure."""
        found: list[Message] = []
        for message in messages:
            route = self._routing.audience(target) if is_topic(target) else (target,)
            here = Message.made_of(message, target, message.properties)
            found += [each for each in self._routing.copies(here, route, None) if not self._is_known(each)]
        return found

    def _is_known(self, message: Message) -> bool:
        name, id = message.queue_name, message.duplicate_id
        if not (message.persistent and id and is_queued(name) and self._core.is_duplicate(message)):
            return False
        if id in self._core.state.queue(name).duplicates_pending:
            raise CommandError(f"a message with the same id is just being stored in {name[:200]}", code=UNSURE)
        return True

    def deliver_here(self, held: Subscription, messages: list[Message], copies: list[Message], done: Call) -> None:
        """`messages`, which `held` had, leave the outbox, and `copies` come. Raises AmqError."""
        transaction = self._commits.begin()
        transaction.settle(held, messages, Outcome.ACCEPTED)
        transaction.add(copies)
        transaction.sends_to_durables = True
        _, stored_by_others = self._commits.add_copies(transaction)
        self._core.memory.take(memory_bytes(transaction.sends + transaction.published))
        if stored_by_others:
            raise transaction.roll_back_duplicate(None, stored_by_others[0])
        self._commits.commit(transaction, done, "")

    def give_up(self, queue: Queue, message: Message, error: AmqError) -> None:
        """The other store refuses `message` for good: it goes to the dead-letter queue of this one."""
        self._redelivery.dead_letter(queue, message, f"refused by another store: {error}")


class OutboxSender:
    """One outbox. Implements `ChannelOwner`, and the client of a consumer, which is how messages come here."""

    number = 0
    user = known_as = ""

    def __init__(self, outbox: Outbox, core: Core, queue: Queue) -> None:
        self._outbox = outbox
        self._core = core
        self.queue = queue
        self.target = outbox_target(queue.name)
        self.channel = Channel(core, queue.name, self)
        self.peer: Any = self
        self._volatile: list[Message] = []  # of the parcel: not persistent
        self._refusals = 0  # one after the other
        self._singly = 0  # messages that go alone from now on, since one was refused
        self._wait_until_s, self._pause_s = 0.0, PAUSE_S
        self._trouble = ""
        self._held_bytes = 0
        self._is_delivering = False  # messages leave for a destination of this store
        command = Subscribe("outbox", (queue.name,), Mode(acknowledges=True, redelivers=True))
        self.held = Subscription(command, queue, self, PARCEL_MESSAGES_MAX, "")

    def begin(self) -> None:
        self.channel.begin()
        self.queue.join(self.held, self._core)
        self.held.make_ready()
        self._want()

    def _want(self) -> None:
        self._outbox.busy[self] = None
        self._core.wake()

    def take(self, messages: list[Message]) -> None:
        """To be sent with those that it has."""
        for message in messages:
            self.held.unacked[message.seq] = message
            self.held.spend()
        self._hold(messages)

    def step(self, now_s: float) -> None:
        channel = self.channel
        channel.step(now_s)
        if not channel.is_free or self._is_delivering or not self.held.unacked or now_s < self._wait_until_s:
            return
        homes = self._core.homes
        store = homes.home_of(self.target) if homes is not None else ""
        messages = self._next()
        if not store:
            self._deliver_here(messages)
        elif store == SPREAD or (homes is not None and homes.is_this(store)):
            self._pause(StoreError(f"{self.target[:200]} is about to live here"))
        else:
            self._volatile = [message for message in messages if message.segment is None]
            seqs = [message.seq for message in messages if message.segment is not None]
            channel.send(store, [self._outgoing(message) for message in messages], {self.queue.name: seqs})

    def _next(self) -> list[Message]:
        """The first messages that go together."""
        found: list[Message] = []
        size = 0
        count = 1 if self._singly else PARCEL_MESSAGES_MAX
        for message in self.held.unacked.values():
            size += _size(message)
            if found and (len(found) >= count or size > PARCEL_BYTES_MAX):
                break
            found.append(message)
        return found

    def _outgoing(self, message: Message) -> Message:
        return Message.made_of(message, self.target, message.properties, message.seq)

    # -- it lives here ------------------------------------------------------------------------------------------------

    def _deliver_here(self, messages: list[Message]) -> None:
        try:
            copies = self._outbox.copies_here(self.target, messages)
        except AmqError as error:
            self._pause(error)
            return
        self._is_delivering = True
        self._take_out([message.seq for message in messages])
        try:
            self._outbox.deliver_here(self.held, messages, copies, Call(self._here, self._not_here))
        except AmqError as error:
            self._not_here(error)

    def _here(self) -> None:
        self._is_delivering = False
        self.delivered()

    def _not_here(self, error: Exception) -> None:
        """The disk is full: what was to leave is held again."""
        self._is_delivering = False
        held = self.held
        held.unacked = dict(sorted(held.unacked.items(), key=lambda each: (-each[1].priority, each[0])))
        self._held_bytes = sum(map(_size, held.unacked.values()))
        self._pause(error if isinstance(error, AmqError) else StoreError(str(error)))

    # -- ChannelOwner -------------------------------------------------------------------------------------------------

    def release(self, queues: Seqs) -> None:
        for seqs in queues.values():
            self._take_out([*seqs])
        self._drop_volatile()

    def _take_out(self, seqs: list[int]) -> None:
        """They are in no line, and not held any more. After a takeover some may not have come here yet."""
        held = self.held
        here = [seq for seq in seqs if seq in held.unacked]
        self._held_bytes -= sum(map(_size, held.settle(here)))
        if len(here) < len(seqs):
            rest = set(seqs) - set(here)
            self.queue.take_out(rest)
            self._core.state.take_from_disk(self.queue, rest)  # or they would be read, and sent, before they have left

    def _drop_volatile(self) -> None:
        volatile, self._volatile = self._volatile, []
        if volatile:
            self._take_out([message.seq for message in volatile])
            self._core.state.remove_all(self.queue, volatile)

    def delivered(self) -> None:
        self._refusals, self._trouble = 0, ""
        self._singly = max(self._singly - 1, 0)
        self._go_on()

    def refused(self, error: AmqError) -> None:
        self._volatile = []
        passes = isinstance(error, StoreError | TransactionRolledBackError) or error.code in _PASSING
        if not passes and not self._singly:
            self._singly = PARCEL_MESSAGES_MAX
        elif not passes:
            self._refusals += 1
            if self._refusals >= REFUSALS_MAX:
                self._give_up(error)
                return
        self._pause(error)

    def _give_up(self, error: AmqError) -> None:
        first = next(iter(self.held.unacked.values()), None)
        self._refusals = 0
        if first is not None and self._core.journal.full:
            self._pause(error)
        elif first is not None:
            _log.error("another store refuses a message", destination=self.target[:200], reason=str(error))
            self._take_out([first.seq])
            self._outbox.give_up(self.queue, first, error)
        self._go_on()

    def _pause(self, error: AmqError) -> None:
        if str(error) != self._trouble:
            _log.warning("messages wait for another store", destination=self.target[:200], reason=str(error))
            self._pause_s = PAUSE_S
        self._trouble = str(error)
        self._wait_until_s = self._core.clock.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    def _go_on(self) -> None:
        if self._held_bytes < HELD_BYTES_MAX:
            self.held.make_ready()
        self._core.dirty[self.queue] = None
        self._want()

    # -- the client of a consumer -------------------------------------------------------------------------------------

    def may(self, *_: Any) -> bool:
        return True

    def end_with(self, _: Subscription, error: Exception) -> None:
        raise error

    def subscribed(self, *_: Any) -> None:
        """There is nothing to know about it."""

    def deliver(self, _: Subscription, message: Message, redelivered: int) -> None:  # noqa: ARG002
        self._hold([message])

    def deliver_all(self, _: Subscription, messages: Sequence[Message]) -> None:
        self._hold(messages)

    def _hold(self, messages: Sequence[Message]) -> None:
        self._held_bytes += sum(map(_size, messages))
        if self._held_bytes >= HELD_BYTES_MAX:
            self.held.make_unready()
        self._want()

    def row(self) -> OutboxRow:
        queue, homes = self.queue, self._core.homes
        first = next(iter(self.held.unacked.values()), None)
        since_ms = first.timestamp_ms if first is not None else 0
        store = homes.home_of(self.target) if homes is not None else ""
        trouble = self.channel.trouble or self._trouble
        return OutboxRow(self.target, store, queue.stored, queue.stored_bytes, since_ms, trouble)


def _size(message: Message) -> int:
    return len(message.body) + message.header_bytes
