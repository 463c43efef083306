"""Queue: messages in order, competing consumers (`Subscription`), prefetch, round-robin.

Two kinds of state. The stored state (`messages` and `backlogs` together, `redelivered`, `duplicates`) changes through
`State.apply` alone, so that a replay gives the same. The state that follows from it while clients are served
(`levels`, `ready`, the subscriptions' `unacked`) is made anew by each master. Invariant while serving: every stored
message is in exactly one of: a backlog (on disk alone), a level, `delayed`, one subscription's `unacked`, an open
transaction, or a record on its way to the journal that takes it out. Messages are delivered by priority, then by seq,
wherever they wait.

A run that goes to consumers that wait stays together on its way (`Bundle`). The methods of that way alone know bundles:
`messages`, `levels` and `unacked` have single messages, which are made when somebody asks for these.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from itertools import islice
from operator import attrgetter
from typing import Protocol

from amq.broker.actions import Action
from amq.broker.memory import MESSAGE_OVERHEAD_BYTES, cost, cost_of_all
from amq.broker.queues.backlog import NEVER, Backlog, Backlogs, Columns, Place, columns_of_stored
from amq.broker.queues.bundles import Bundle
from amq.broker.queues.viewer import Viewer
from amq.broker.recipient import Recipient
from amq.broker.state.window import IdWindow
from amq.config.store_options import StoreOptions
from amq.core.destination import QUEUE_SCHEME, plain_name
from amq.core.message import Message
from amq.core.message_run import MessageRun
from amq.journal.hidden import is_hidden
from amq.journal.live import Segment
from amq.journal.records import Record
from amq.protocols.commands import OLDEST, Subscribe
from amq.selectors import Selector

GROUP_ID = "JMSXGroupID"  # property: messages with the same value go to one consumer
PRIORITIES = 10
NO_LIMIT = UNLIMITED = 1 << 62
KNOWN_AS_BYTES = 12  # so that it is short whatever its client has called it
FEW = 32  # messages are taken out of a level one by one
RUN_MESSAGES_MAX = 64  # for one consumer: it may have as much more than fits into `consumerBufferSize`
ROUNDS_MIN = 4  # fewer messages for each consumer are handed out one by one
RUN_BODY_BYTES_MAX = 4 << 10  # larger ones are delivered alone: the calls do not count beside the copying
TOGETHER_MAX = 8192  # messages in bundles, wherever they are: to make single ones of these takes 8 ms
# There may be 100,000 queues, and an empty deque takes 600 bytes: what a queue has not used yet it shares with others.
_NO_MESSAGES: deque[Message] = deque(maxlen=0)
_NO_BUNDLES: deque[Bundle] = deque(maxlen=0)
_NOBODY: deque[Subscription] = deque(maxlen=0)
_NO_IDS = IdWindow(0)
_count, _credit = attrgetter("count"), attrgetter("credit")


class ConsumerOwner(Protocol):
    """The session of a consumer."""

    number: int

    @property
    def peer(self) -> Recipient: ...
    @property
    def user(self) -> str: ...
    @property
    def known_as(self) -> str:
        """A name that each store has for this session, and for no other one; "" = it is in one store."""
        ...

    def may(self, action: Action, name: str) -> bool: ...
    def end_with(self, subscription: Subscription, error: Exception) -> None:
        """That consumer cannot go on: it ends, and the client is told."""


class Dispatcher(Protocol):
    """The broker, as a queue sees it."""

    def consumed(self, queue: Queue, message: Message) -> None:
        """The consumer is done with `message`."""

    def consumed_all(self, queue: Queue, messages: list[Message]) -> None:
        """`consumed` for each of `messages`."""

    def consumed_run(self, queue: Queue, seqs: range) -> None:
        """`consumed` for each of these, which are in the journal."""

    def expire(self, queue: Queue, messages: list[Message]) -> None:
        """Messages past their time, already out of the queue's order."""

    def fetch(self, queue: Queue, priority: int) -> None:
        """A consumer waits for what is on disk."""

    def fetch_ahead(self, queue: Queue) -> None:
        """Consumers are going to wait for what is on disk."""

    def arm(self, queue: Queue) -> None:
        """A schedule has changed."""

    def selection(self, queue: Queue) -> SelectiveDispatch:
        """Chooses from now on which consumer gets a message of `queue`."""
        ...


class Fetching(Protocol):
    """Tells what the broker is about to find for consumers."""

    def is_held(self, queue: Queue) -> bool: ...
    def is_reading(self, queue: Queue) -> bool: ...
    def lacks_memory(self, queue: Queue) -> bool: ...


class SelectiveDispatch(Protocol):
    """Chooses which of several consumers gets a message: see `amq.broker.queues.selector_dispatch`."""

    held_bytes: int

    @property
    def is_looking(self) -> bool: ...
    def came(self, priority: int, seq: int) -> None: ...
    def join(self, subscription: Subscription) -> None: ...
    def leave(self, subscription: Subscription) -> None: ...
    def known(self) -> dict[str, list[int]]: ...
    def expect(self, known: Mapping[str, Sequence[int]]) -> None: ...
    def expect_nobody(self) -> None: ...
    def is_needed(self) -> bool: ...
    def close(self) -> None: ...
    def dispatch(self, now_ms: int) -> None: ...


class Retaining(Protocol):
    """Says what may stay in a queue: see `amq.broker.queues.retention`."""

    options: tuple[str, int]

    def came(self, message: Message) -> None: ...
    def moved_in(self, seqs: list[int]) -> None: ...
    def dispatch(self, owner: Dispatcher, now_ms: int) -> None: ...


class Subscription:
    """`credit` = deliveries that may still be outstanding; `is_ready` = is in the queue's line. Raises
    SelectorError where the command has a selector that cannot be understood. `prefix` = what is before a message's
    seq in its id, which selectors may name."""

    __slots__ = (
        "auto",
        "bundles",
        "credit",
        "ended",
        "exclusive",
        "id",
        "in_transactions",
        "is_ready",
        "owner",
        "peer",
        "prefetch",
        "priority",
        "queue",
        "redelivers",
        "refund",
        "selector",
        "singles",
        "sources",
        "unlimited",
        "wire",
    )

    def __init__(self, command: Subscribe, queue: Queue, owner: ConsumerOwner, prefetch: int, prefix: str) -> None:
        self.id = command.id
        self.sources = command.sources
        self.queue = queue
        self.owner = owner
        self.peer = owner.peer
        self.auto = not command.mode.acknowledges  # what it is given has left at once
        self.redelivers = command.mode.redelivers
        self.exclusive = command.mode.exclusive
        self.priority = command.mode.priority
        wanted = command.filter
        self.selector = Selector(wanted.selector, wanted.ids or prefix) if wanted.selector else None
        self.in_transactions = 0  # messages that it has acknowledged or refused in transactions that are open
        self.prefetch = prefetch
        credit = command.flow.credit
        self.refund = int(credit is None)  # credit that each acknowledgement gives back: see `pulling`
        self.unlimited = self.auto and credit is None  # it is bounded by its socket alone
        self.begin_with(credit if credit is not None else UNLIMITED if self.auto else prefetch)
        self.singles: dict[int, Message] = {}  # by seq, in order of delivery: what it got before
        self.bundles: deque[Bundle] = _NO_BUNDLES  # what it has in bundles
        self.is_ready = False
        self.ended = False
        self.wire = self.peer.subscribed(command, owner.number)

    @property
    def unacked(self) -> dict[int, Message]:
        """The messages that it has, by seq, in order of delivery."""
        if self.bundles:
            self.queue.take_apart()
        return self.singles

    @unacked.setter
    def unacked(self, held: dict[int, Message]) -> None:
        self.singles = held

    @property
    def held(self) -> int:
        """Messages that it has."""
        return len(self.singles) + sum([bundle.count for bundle in self.bundles])

    @property
    def known_as(self) -> str:
        """A name that each store has for this consumer, and for no other one; "" = it is in one store."""
        if not self.owner.known_as:
            return ""
        name = f"{self.owner.known_as}:{self.id}".encode("utf-8", "replace")
        return blake2b(name, digest_size=KNOWN_AS_BYTES).hexdigest()

    is_guest = False  # True: it consumes the queue beside others, and does not keep it alive

    def begin_with(self, credit: int) -> None:
        """It may get this many messages at first."""
        self.credit = credit

    def park(self) -> None:
        """It left the line, where it was met without being ready; only a guest is."""
        raise AssertionError("a consumer that is not ready stands in line")

    def part(self) -> None:
        """The queue is forgotten; only a guest's can be."""
        raise AssertionError("a queue with a consumer is forgotten")

    def make_ready(self) -> None:
        """Stand in line for messages, if there is credit."""
        if not self.is_ready and self.credit > 0:
            self.is_ready = True
            self.queue.make_ready(self)

    def make_unready(self) -> None:
        if self.is_ready:
            self.is_ready = False
            self.queue.make_unready(self)

    def settle(self, seqs: Sequence[int]) -> list[Message]:
        """Take from `unacked` the deliveries of `seqs`: all, or none where one is unknown. The credit for them is
        back."""
        unacked = self.unacked
        if len(seqs) == 1:
            message = unacked.pop(seqs[0], None)
            settled = [message] if message is not None else []
        elif len(seqs) > len(different := set(seqs)) or not unacked.keys() >= different:
            settled = []
        else:
            settled = list(map(unacked.pop, seqs))
        self.credit += self.refund * len(settled)
        return settled

    def settle_bundles(self, seqs: list[int]) -> tuple[list[Message], list[Bundle]] | None:
        """Take `seqs` where they are the next ones that it has, in order, and some are in bundles; None = they are not.
        The credit for them is not back yet."""
        singles, bundles = self.singles, self.bundles
        at = len(singles)
        if at and [*singles] != seqs[:at]:
            return None
        taken = 0
        while at < len(seqs):
            if taken == len(bundles):
                return None
            bundle = bundles[taken]
            some = seqs[at : at + bundle.count]
            if some != [*bundle.seqs[: len(some)]]:
                return None
            at += len(some)
            taken += 1
        settled = [bundles.popleft() for _ in range(taken)]
        if len(some) < bundle.count:
            settled[-1], rest = bundle.cut(len(some))
            bundles.appendleft(rest)
        self.singles = {}
        return [*singles.values()], settled

    def take_back(self, message: Message) -> None:
        """It holds this again: what it said of it did not take place, and its client delivers it by itself."""
        self.unacked[message.seq] = message
        self.credit -= self.refund
        if self.credit <= 0:
            self.make_unready()

    def between(self, first: int, last: int) -> list[int]:
        """Seqs of the deliveries from `first` (OLDEST = whatever is held) to `last`, in order; empty = it holds none of
        these two."""
        if last not in self.unacked or (first != OLDEST and first not in self.unacked):
            return []
        found: list[int] = []
        for seq in self.unacked:
            if found or first in (OLDEST, seq):
                found.append(seq)
            if seq == last:
                break
        return found

    def spend(self) -> None:
        """Count a message that the consumer gets."""
        self.credit -= 1

    def grant(self, credit: int) -> None:
        """It may get this many messages from now on, instead of as many as before."""
        self.credit = credit

    def extend(self, change: int) -> None:
        """It may have this many more deliveries outstanding, or fewer."""
        self.credit += change

    def looks(self, core: Fetching) -> bool:
        """Is anything read from the disk that may be for it, now or when memory comes free by itself, or does its queue
        wait for a transaction to take effect?"""
        queue = self.queue
        if core.is_held(queue) or core.is_reading(queue) or core.lacks_memory(queue):
            return True
        return queue.selection is not None and queue.selection.is_looking


class Queue:
    """One queue. `name` is the full destination name, `queue://orders`."""

    __slots__ = (
        "_levels",
        "_top",
        "acknowledged",
        "awaits",
        "backlogs",
        "brought",
        "browsers",
        "bundles",
        "delayed",
        "drops_above",
        "duplicates",
        "duplicates_pending",
        "enqueued",
        "exclusive",
        "expiring",
        "folded",
        "guests",
        "is_diverted",
        "is_hidden",
        "is_plain",
        "leaving",
        "limit_bytes",
        "may_hold_unowned",
        "name",
        "options",
        "outranked",
        "pending_bytes",
        "ranked",
        "ready",
        "redelivered",
        "resident_bytes",
        "retention",
        "selection",
        "settled",
        "singles",
        "stays",
        "stored_bytes",
        "subscriptions",
    )

    delays = True  # do messages that failed wait for `redeliveryDelay`?
    chooses = True  # may it have to choose which of several consumers gets a message?
    fires = False  # do messages leave it for where they were sent to, when their time has come?
    keeps_bundles = True  # may messages stay together in it?

    def __init__(self, name: str, options: StoreOptions) -> None:
        self.name = name
        self.is_hidden = is_hidden(name)  # nobody consumes it, and all in it waits on disk alone
        self.configure(options)
        self.stored_bytes = 0  # of all messages that have not left: their records, `cost` of those without one
        self.pending_bytes = 0  # of records on their way to the journal
        self.singles: dict[int, Message] = {}  # of `messages`: those that are in no bundle
        self.folded = 0  # messages in bundles: those that wait, those that consumers have, and those that are settled
        self.bundles = _NO_BUNDLES  # that wait; the levels are empty then
        self.settled: dict[int, Bundle] = {}  # by its first seq: a record on its way to the journal takes it out
        self.is_plain = False  # none in `singles` is in a group, expires, or is too large to be delivered with others
        self.backlogs = Backlogs()  # messages that wait on disk alone
        self.leaving = Backlogs()  # those on disk alone that are in no line: they go to another queue in a moment
        self.resident_bytes = 0  # of `messages`
        self.redelivered: dict[int, tuple[int, int]] = {}  # seq → (deliveries, of which failures)
        self.duplicates = _NO_IDS  # producer-given ids
        self.duplicates_pending: dict[str, Record] = {}  # on their way to the journal → in what
        self.may_hold_unowned = True  # among these: ids without a user, see `amq.broker.unowned`
        self._levels = [_NO_MESSAGES] * PRIORITIES
        self._top = 0  # no level above this one holds anything
        self.subscriptions: list[Subscription] = []
        self.guests = 0  # of these
        self.delayed: dict[int, tuple[float, Message]] = {}  # by seq: messages that failed, and until when they wait
        self.ready = _NOBODY  # those with credit and room in their socket, next one first, of one rank
        self.ranked = False  # do ranks differ: is there, or was there, an exclusive consumer or one with a priority?
        self.outranked = _NOBODY  # consumers behind all of `ready`
        self.exclusive: Subscription | None = None  # the one consumer that gets everything
        self.selection: SelectiveDispatch | None = None  # where not everybody may get everything
        self.retention: Retaining | None = None  # where not everything may stay
        self.browsers: tuple[Viewer, ...] = ()  # consumers that look and take nothing
        self.stays = False  # also when it is empty and nobody consumes it
        self.awaits = False  # its consumers are about to come from another store, or what it has is about to go there
        self.expiring = 0  # stored messages that have an expiry time
        self.enqueued = 0
        self.acknowledged = 0
        self.brought = (0, 0)  # what another store counted of it, to be added to these two; < 0 = it has gone there

    def configure(self, options: StoreOptions) -> None:
        """`options` = the broker's configuration with what destinations of this name have of their own."""
        self.options = options
        self.is_diverted = bool(options.divert)
        limit, drops = options.queue_limit_bytes or NO_LIMIT, options.queue_limit_policy == "drop-oldest"
        # A queue that drops the oldest accepts: senders wait only if it cannot keep pace, at twice the limit.
        self.limit_bytes = 2 * limit if drops else limit
        self.drops_above = limit if drops else NO_LIMIT  # bytes that are stored

    @property
    def messages(self) -> dict[int, Message]:
        """By seq: those in memory, waiting or delivered."""
        if self.folded:
            self.take_apart()
        return self.singles

    @property
    def levels(self) -> list[deque[Message]]:
        """Messages that wait in memory, by priority."""
        if self.bundles:
            self.take_apart()
        return self._levels

    @property
    def taken_bytes(self) -> int:
        """Bytes that count for `queueLimit`."""
        return self.stored_bytes + self.pending_bytes

    def cost(self, message: Message) -> int:
        """Bytes of a stored message that count for `queueLimit`."""
        if message.segment is not None:
            return message.size
        return cost(message)

    @property
    def waiting(self) -> int:
        """Messages that no consumer has."""
        together = sum([bundle.count for bundle in self.bundles])
        return together + sum(map(len, self._levels)) + self.backlogs.rows + len(self.delayed)

    @property
    def stored(self) -> int:
        """Messages that have not left the queue."""
        return len(self.singles) + self.folded + self.backlogs.rows + self.leaving.rows

    def dead_letter_name(self, message: Message, given_up: bool = False) -> str:
        """Full name of the dead-letter queue of `message`. `given_up`: by a client that redelivers by itself."""
        options = self.options
        strategy = options.dead_letter_strategy
        if strategy == "individual" or (strategy == "client" and not given_up):
            return QUEUE_SCHEME + options.dead_letter_prefix + plain_name(message.destination)
        return QUEUE_SCHEME + options.shared_dead_letter_queue

    @property
    def is_dead_letter_queue(self) -> bool:
        """Messages are not moved on from here: what is refused here stays here."""
        name = plain_name(self.name)
        return name == self.options.shared_dead_letter_queue or name.startswith(self.options.dead_letter_prefix)

    @property
    def expiry_name(self) -> str:
        """Full name of the queue for messages that expire here; "" = there is no such one."""
        return QUEUE_SCHEME + self.options.expiry_queue if self.options.expiry_queue else ""

    @property
    def moves_expired(self) -> bool:
        """Do messages that expire here go elsewhere, and not for good?"""
        if self.is_dead_letter_queue or self.name == self.expiry_name:
            return False
        return bool(self.options.expiry_queue) or self.options.expired_messages == "dead-letter"

    def forget(self) -> None:
        """The queue, which is idle, is in no table any more. Objects that refer to it go with it."""
        for guest in self.subscriptions:
            guest.part()
        self.subscriptions = []
        self.selection = self.retention = None

    def is_idle(self) -> bool:
        """Nothing would be missed if this queue were forgotten."""
        used = self.singles or self.folded or self.backlogs or self.leaving or self.duplicates
        if used or self.browsers or self.stays or self.awaits or self.duplicates_pending:
            return False
        return all(each.is_guest for each in self.subscriptions)

    # -- rows and counters --------------------------------------------------------------------------------------------

    def expect(self, size: int) -> None:
        """`size` bytes of records are on their way to the journal."""
        self.pending_bytes += size

    def met(self, size: int) -> None:
        """`size` bytes that were expected are here, or never will be."""
        self.pending_bytes -= size

    def store(self, message: Message) -> None:
        """`message` is stored from now on, and waits in memory. The hot path: one call."""
        if self.bundles:
            self.take_apart()
        size = len(message.body) + message.header_bytes + MESSAGE_OVERHEAD_BYTES
        self.is_plain = False
        self.enqueued += 1
        if message.segment is None:
            self.stored_bytes += size
        else:
            self.stored_bytes += message.size
            self.pending_bytes -= message.size  # it was expected
        self.resident_bytes += size
        if message.expires_ms:
            self.expiring += 1
        seq = message.seq
        priority = message.priority
        level = self._levels[priority]
        self.singles[seq] = message
        if self.selection is None and (level[-1].seq < seq if level else level is not _NO_MESSAGES):
            level.append(message)  # as `push` does nearly always
            if priority > self._top:
                self._top = priority
        else:
            self.push(message)

    def is_awaited(self) -> bool:
        """Does a consumer take the next message now?"""
        return not self.bundles and not any(self._levels) and any(each.is_ready for each in self.ready)

    def store_all(self, messages: list[Message], cost_bytes: int, size: int, is_plain: bool) -> None:
        """`store` for each of these, of one priority, all in the journal or none, in the order of their seqs.
        `cost_bytes` = the sum of their `cost`, `size` = that of their records, `is_plain`: of these."""
        first, count = messages[0], len(messages)
        if self.bundles:
            self.take_apart()
        self.is_plain = is_plain and not first.expires_ms and (self.is_plain or not self.singles)
        self.enqueued += count
        if first.segment is None:
            self.stored_bytes += cost_bytes
        else:
            self.stored_bytes += size
            self.pending_bytes -= size  # it was expected
        self.resident_bytes += cost_bytes
        if first.expires_ms:
            self.expiring += count
        if messages[-1].seq - first.seq == count - 1:  # as those of a run have it
            self.singles.update(zip(range(first.seq, first.seq + count), messages, strict=True))
        else:
            self.singles.update({message.seq: message for message in messages})
        level = self._levels[first.priority]
        if self.selection is None and (level[-1].seq < first.seq if level else level is not _NO_MESSAGES):
            level.extend(messages)
            if first.priority > self._top:
                self._top = first.priority
        else:
            for message in messages:
                self.push(message)

    def takes_together(self, count: int, priority: int) -> bool:
        """May `count` plain messages stay together? Only where consumers take them at once, and nobody else looks."""
        if self.selection is not None or self.browsers or self.backlogs or self.guests or any(self._levels):
            return False
        if self.bundles and self.bundles[0].like.priority != priority:
            return False
        return self.keeps_bundles and bool(self.ready) and self.folded + count <= TOGETHER_MAX

    def store_bundle(self, bundle: Bundle, cost_bytes: int) -> None:
        """`store` for each message of `bundle`, which take these bytes."""
        count, segment = bundle.count, bundle.segment
        segment.live += count
        segment.live_bytes += bundle.size
        self.enqueued += count
        self.folded += count
        self.stored_bytes += bundle.size
        self.pending_bytes -= bundle.size
        self.resident_bytes += cost_bytes
        if self.bundles is _NO_BUNDLES:
            self.bundles = deque()
        if not self.bundles or not self.bundles[-1].extend(bundle):
            self.bundles.append(bundle)

    def take_apart(self) -> None:
        """Its bundles are single messages from now on, each where it was."""
        singles = self.singles
        if not singles:
            self.is_plain = True
        found: dict[int, Message] = {}
        for bundle in self.settled.values():
            found.update(zip(bundle.seqs, bundle.messages(), strict=True))
        self.settled.clear()
        for subscription in self.subscriptions:
            for bundle in subscription.bundles:
                held = dict(zip(bundle.seqs, bundle.messages(), strict=True))
                found.update(held)
                subscription.singles.update(held)
            subscription.bundles = _NO_BUNDLES
        bundles, self.bundles = self.bundles, _NO_BUNDLES
        for bundle in bundles:
            messages, priority = bundle.messages(), bundle.like.priority
            found.update(zip(bundle.seqs, messages, strict=True))
            if self._levels[priority] is _NO_MESSAGES:
                self._levels[priority] = deque()
            self._levels[priority].extend(messages)
            self._top = max(self._top, priority)
        if singles and next(reversed(singles)) > min(found):  # the oldest of all stays the first one there
            found.update(singles)
            singles.clear()
        for seq in sorted(found):
            singles[seq] = found[seq]
        bundles.clear()
        self.folded = 0

    def remove_bundle(self, bundle: Bundle, cost_bytes: int) -> None:
        """The messages of `bundle`, which was settled, and took these bytes, have left."""
        count = bundle.count
        self.folded -= count
        self.acknowledged += count
        self.stored_bytes -= bundle.size
        self.resident_bytes -= cost_bytes

    def store_on_disk(self, message: Message, segment: int) -> None:
        """`message` is stored from now on, and waits on disk. `segment` = code of where it stands."""
        self.enqueued += 1
        self.stored_bytes += message.size
        if message.expires_ms:
            self.expiring += 1
        self.page_out(message, segment)

    def hold(self, messages: Iterable[Message]) -> int:
        """Stored messages of which no row is here any more are in memory, in no level. Returns the bytes that they take
        there."""
        taken = 0
        self.is_plain = False
        for message in messages:
            self.singles[message.seq] = message
            taken += cost(message)
        self.resident_bytes += taken
        return taken

    def strip(self, message: Message) -> None:
        """The body of `message`, which the disk has, is not in memory any more."""
        self.resident_bytes -= len(message.body)
        message.body = b""

    def rewritten(self, message: Message, size: int) -> None:
        """The record of a stored message that is in memory has `size` bytes now."""
        self.stored_bytes += size - message.size
        message.size = size

    def let_go(self, message: Message) -> None:
        """`message`, which is counted, is in memory no more. No level and no consumer has it."""
        del self.singles[message.seq]
        self.resident_bytes -= cost(message)

    def remove(self, message: Message) -> None:
        """`message`, which is in memory and which no level and no consumer has, has left."""
        size = len(message.body) + message.header_bytes + MESSAGE_OVERHEAD_BYTES
        del self.singles[message.seq]
        self.resident_bytes -= size
        self.stored_bytes -= message.size if message.segment is not None else size
        if message.expires_ms:
            self.expiring -= 1
        if self.redelivered:
            self.redelivered.pop(message.seq, None)
        self.acknowledged += 1

    def removed_all(self, messages: list[Message], stored_bytes: int, taken_bytes: int) -> None:
        """`remove` for each of these, whose rows are gone. `stored_bytes` = the sum of what they count for
        `queueLimit`, `taken_bytes` that of their `cost`."""
        if self.redelivered:
            for message in messages:
                self.redelivered.pop(message.seq, None)
        self.stored_bytes -= stored_bytes
        self.resident_bytes -= taken_bytes
        if self.expiring:
            self.expiring -= sum([1 for message in messages if message.expires_ms])
        self.acknowledged += len(messages)

    def discard(self, seqs: list[int]) -> list[Columns]:
        """Those of `seqs` that wait on disk alone have left. Returns their rows in pieces."""
        gone = self.take_rows(seqs)
        for columns in gone:
            self._forget_bytes(columns)
            if self.redelivered:
                for seq in columns[0]:
                    self.redelivered.pop(seq, None)
            self.acknowledged += len(columns[0])
        return gone

    def set_apart(self, priority: int, seqs: list[int]) -> None:
        """Those of `seqs` that wait on disk alone, with that priority, are in no line any more: `transfer_out` takes
        them to another queue in a moment."""
        for _, columns in self.backlogs.discard(seqs, [priority]):
            self.leaving.own(priority).add_all(columns)

    def transfer_out(self, seqs: list[int]) -> list[tuple[int, Columns]]:
        """Those of `seqs` that are stored, in memory or on disk alone, leave for another queue: by priority, and by seq
        in each piece. No level and no consumer has them."""
        taken = self._transfer_memory(seqs) if self.messages else []
        for backlogs in (self.leaving, self.backlogs):
            if sum(len(columns[0]) for _, columns in taken) < len(seqs):  # to look for nothing costs 0.1 µs a seq
                taken += backlogs.discard(seqs)
        for _, columns in taken:
            self._forget_bytes(columns)
        return taken

    def _transfer_memory(self, seqs: list[int]) -> list[tuple[int, Columns]]:
        """The rows of those that are in memory, which they leave."""
        messages = self.messages
        gone = [messages.pop(seq) for seq in seqs if seq in messages]
        self.resident_bytes -= cost_of_all(gone)
        by_priority: dict[int, list[Message]] = {}
        for message in gone:
            by_priority.setdefault(message.priority, []).append(message)
        return [(priority, columns_of_stored(some)) for priority, some in by_priority.items()]

    def _forget_bytes(self, columns: Columns) -> None:
        """Rows that were counted are here no more."""
        self.stored_bytes -= sum(columns[3])
        for times in columns[4:]:
            self.expiring -= len(times) - times.count(0)

    def push(self, message: Message) -> None:
        """A new message: last of its priority, but for those that overtook it on its way to the disk."""
        priority = message.priority
        level = self.levels[priority]
        if level is _NO_MESSAGES:
            level = self.levels[priority] = deque()
        if level and level[-1].seq > message.seq:
            later = []
            while level and level[-1].seq > message.seq:
                later.append(level.pop())
            level.append(message)
            level.extend(reversed(later))
        else:
            level.append(message)
        if priority > self._top:
            self._top = priority
        if self.selection is not None:
            self.selection.came(priority, message.seq)

    def add_rows(self, priority: int, columns: Columns) -> bool:
        """Messages are stored here from now on, and wait on disk. False, and nothing is done, where one of them is here
        already, or others belong between them."""
        if not self.own_backlog(priority).extend(columns):
            return False
        self.stored_bytes += sum(columns[3])
        for times in columns[4:]:
            self.expiring += len(times) - times.count(0)
        if self.selection is not None:
            self.selection.came(priority, columns[0][0])
        return True

    def page_out(self, message: Message, segment: int) -> None:
        """`message`, which no level holds, waits on disk from now on. `segment` = code of where it stands."""
        backlog = self.backlogs.get(message.priority) or self.own_backlog(message.priority)
        backlog.add(message.seq, segment, message.offset, message.size, message.expires_ms)
        if self.selection is not None:
            self.selection.came(message.priority, message.seq)

    def own_backlog(self, priority: int) -> Backlog:
        """The backlog of that priority, to be added to."""
        self._top = max(self._top, priority)
        return self.backlogs.own(priority)

    def find(self, seq: int) -> Place | None:
        """Where a message stands that is on disk alone; None = there is no such one."""
        return self.backlogs.find(seq) or self.leaving.find(seq)

    def stands(self, seq: int) -> bool:
        """Is there a message that has not left?"""
        return seq in self.messages or self.find(seq) is not None

    def stands_in(self, seq: int) -> int:
        """Code of the segment in which a message stands that has not left; 0 = in none."""
        message = self.messages.get(seq)
        if message is not None:
            return message.segment.code if isinstance(message.segment, Segment) else 0
        place = self.find(seq)
        return place.segment if place is not None else 0

    def stands_at(self, seq: int, segment: Segment, offset: int) -> bool:
        """Is a message here whose record is there?"""
        message = self.messages.get(seq)
        if message is not None:
            return message.segment is segment and message.offset == offset
        place = self.find(seq)
        return place is not None and place.segment == segment.code and place.offset == offset

    def move(self, seq: int, segment: int, offset: int, size: int, before_bytes: int) -> None:
        """A message that is on disk alone was copied: from now on that is where it stands. Its record had
        `before_bytes`."""
        self.stored_bytes += size - before_bytes
        for backlogs in (self.backlogs, self.leaving):
            backlogs.move(seq, segment, offset, size)

    def take_rows(self, seqs: list[int]) -> list[Columns]:
        """Take out of the backlogs those of `seqs` that wait there: they are stored all the same. Returns them in
        pieces, by seq in each backlog."""
        return [columns for _, columns in self.backlogs.discard(seqs)]

    def put_back(self, messages: Iterable[Message]) -> None:
        """Messages that were delivered and came back: each takes its old place in the order of its priority."""
        by_level: dict[int, list[Message]] = {}
        for message in messages:
            by_level.setdefault(message.priority, []).append(message)
        for priority, returned in by_level.items():
            self._top = max(self._top, priority)
            returned.sort(key=_seq)
            if self.selection is not None:
                self.selection.came(priority, returned[0].seq)
            level = self.levels[priority]
            if not level:
                self.levels[priority] = deque(returned)
                continue
            last = returned[-1].seq
            while level and level[0].seq < last:
                returned.append(level.popleft())
            returned.sort(key=_seq, reverse=True)
            level.extendleft(returned)

    def dispatch(self, owner: Dispatcher, now_ms: int) -> None:
        """Hand waiting messages to those consumers that come first."""
        if self.selection is None:
            self._hand_out(owner, now_ms)
        while self.outranked and not self.ready and self.selection is None and self.exclusive is None:
            best = max(subscription.priority for subscription in self.outranked)
            self.ready.extend(each for each in self.outranked if each.priority == best)
            self.outranked = deque(each for each in self.outranked if each.priority != best)
            self._hand_out(owner, now_ms)
        if self.selection is not None:
            self.selection.dispatch(now_ms)
        for browser in self.browsers:
            browser.step(now_ms)

    def _hand_out(self, owner: Dispatcher, now_ms: int) -> None:
        """Hand waiting messages to ready consumers in turn, one each or the same number. The hot path of delivery."""
        ready, levels, redelivered, backlogs = self.ready, self._levels, self.redelivered, self.backlogs
        expired: list[Message] = []
        guests = self.guests
        # What a connection gets of this queue for the first time, in a run: its subscription and the messages. A
        # connection may have several subscriptions here; it gets all in the order of the queue. They are given out in
        # two places, without a function for it: a lone message would pay that call.
        runs: dict[Recipient, tuple[Subscription, list[Message]]] = {}
        if self.folded and ready:
            self._hand_out_bundles(owner)
        if len(levels[self._top]) > ROUNDS_MIN and ready and ready[0].credit > ROUNDS_MIN:
            self._hand_out_rounds(owner)
        while ready:
            if guests and not ready[0].is_ready:
                ready.popleft().park()
                continue
            level = levels[self._top]
            if backlogs and self._top in backlogs and (not level or backlogs[self._top].first < level[0].seq):
                owner.fetch(self, self._top)
                break
            if not level:
                if self._top == 0 or not (backlogs or any(levels)):
                    break
                self._top -= 1
                if len(levels[self._top]) > ROUNDS_MIN and not runs:
                    self._hand_out_rounds(owner)
                continue
            message = level.popleft()
            if message.expires_ms and message.expires_ms <= now_ms:
                expired.append(message)
                continue
            properties = message.properties
            if properties is not None and GROUP_ID in properties and self.chooses:
                level.appendleft(message)
                self.selection = owner.selection(self)
                break
            subscription = ready[0]
            subscription.credit -= 1
            if subscription.credit <= 0:
                ready.popleft()
                subscription.is_ready = False
            elif len(ready) > 1:
                ready.rotate(-1)
            before = redelivered.get(message.seq) if redelivered else None
            if subscription.auto:
                owner.consumed(self, message)
            else:
                subscription.singles[message.seq] = message
            peer = subscription.peer
            is_single = before is not None or len(message.body) > RUN_BODY_BYTES_MAX
            run = runs.get(peer)
            if run is not None and (is_single or run[0] is not subscription):
                del runs[peer]
                if len(run[1]) > 1:
                    peer.deliver_all(*run)
                else:
                    peer.deliver(run[0], run[1][0], 0)
                run = None
            if is_single:
                peer.deliver(subscription, message, before[0] if before else 0)
            elif run is None:
                runs[peer] = subscription, [message]
            else:
                run[1].append(message)
                if len(run[1]) == RUN_MESSAGES_MAX:
                    del runs[peer]
                    peer.deliver_all(*run)
        for subscription, messages in runs.values():
            if len(messages) > 1:
                subscription.peer.deliver_all(subscription, messages)
            else:
                subscription.peer.deliver(subscription, messages[0], 0)
        if expired:
            owner.expire(self, expired)
        if backlogs and ready and self.selection is None:
            owner.fetch_ahead(self)

    def _hand_out_rounds(self, owner: Dispatcher) -> None:
        """The part of `_hand_out` in which nothing is decided for a single message: as many messages for each of the
        same consumers, all those of one side by side, so that what came as a run goes as one."""
        ready, redelivered = self.ready, self.redelivered
        while ready:
            level, consumers = self._levels[self._top], [*ready]
            rounds, more = self._shares(len(level))
            if not rounds or self._top in self.backlogs:
                return
            messages = [*islice(level, rounds * len(consumers) + more)]
            if redelivered and any(message.seq in redelivered for message in messages):
                return
            if not self.is_plain and not self._are_plain(messages):
                return
            if len(messages) == len(level):
                level.clear()
            else:
                for _ in messages:
                    level.popleft()
            ready.rotate(-more)
            shares, begin, first = [], 0, messages[0].seq
            follow = messages[-1].seq - first == len(messages) - 1  # each its predecessor, as those of runs do
            for place, subscription in enumerate(consumers):
                end = begin + rounds + (place < more)
                shares.append(share := messages[begin:end])
                subscription.credit -= len(share)
                if subscription.auto:
                    owner.consumed_all(self, share)
                elif follow:
                    subscription.unacked.update(zip(range(first + begin, first + end), share, strict=True))
                else:
                    subscription.unacked.update({message.seq: message for message in share})
                begin = end
            for subscription, share in zip(consumers, shares, strict=True):
                subscription.peer.deliver_all(subscription, share)

    def _shares(self, count: int) -> tuple[int, int]:
        """How many of `count` waiting messages each of those in line gets now, side by side, and how many of these,
        the first ones, get one more; (0, 0) = they get them one by one."""
        ready = self.ready
        consumers = len(ready)
        if count > RUN_MESSAGES_MAX * consumers:  # in as many parts as that takes, none of them much smaller
            count //= -(-count // (RUN_MESSAGES_MAX * consumers))
        rounds, more = divmod(count, consumers)
        least = min(map(_credit, ready))
        if least <= rounds + 1:
            rounds, more = min(rounds, least - 1), 0
        if rounds < ROUNDS_MIN or self.guests or (consumers > 1 and len({each.peer for each in ready}) < consumers):
            return 0, 0
        return rounds, more

    def _hand_out_bundles(self, owner: Dispatcher) -> None:
        """Hand out bundles, as `_hand_out_rounds` does with single messages. They get the rest one by one."""
        ready, bundles = self.ready, self.bundles
        while bundles and ready:
            consumers = [*ready]
            rounds, more = self._shares(sum(map(_count, bundles)))
            if not rounds:
                break
            ready.rotate(-more)
            runs: list[tuple[Subscription, Bundle]] = []
            for place, subscription in enumerate(consumers):
                count = rounds + (place < more)
                subscription.credit -= count
                while count:
                    bundle = bundles.popleft()
                    if bundle.count > count:
                        bundle, rest = bundle.cut(count)
                        bundles.appendleft(rest)
                    count -= bundle.count
                    runs.append((subscription, bundle))
                    if subscription.auto:
                        self.settle_bundles((bundle,), owner)
                    elif subscription.bundles:
                        subscription.bundles.append(bundle)
                    else:
                        subscription.bundles = deque((bundle,))
            for subscription, bundle in runs:
                if bundle.count > 1:
                    seqs = range(bundle.seq, bundle.seq + bundle.count)
                    run = MessageRun(bundle.like, seqs, bundle.times, bundle.bodies)
                    subscription.peer.deliver_all(subscription, run)
                else:
                    subscription.peer.deliver(subscription, bundle.messages()[0], 0)
        if bundles or any(self._levels):  # a consumer has bundles behind all else
            self.take_apart()

    def settle_bundles(self, bundles: Sequence[Bundle], owner: Dispatcher) -> None:
        """Consumers are done with these, which they do not have any more."""
        for bundle in bundles:
            self.settled[bundle.seq] = bundle
            owner.consumed_run(self, bundle.seqs)

    def _are_plain(self, messages: list[Message]) -> bool:
        """As `is_plain`, of these."""
        if self.expiring and any(message.expires_ms for message in messages):
            return False
        for message in messages:
            properties, body = message.properties, message.body
            if len(body) > RUN_BODY_BYTES_MAX or (properties and GROUP_ID in properties and self.chooses):
                return False
        return True

    def take_expired(self, now_ms: int) -> list[Message]:
        """Remove and return the waiting messages whose time is over, also where no consumer asks."""
        if not self.expiring:
            return []
        expired: list[Message] = []
        for priority, level in enumerate(self.levels):
            due = [message for message in level if message.expires_ms and message.expires_ms <= now_ms]
            if due:
                expired.extend(due)
                gone = {message.seq for message in due}
                self.levels[priority] = deque(message for message in level if message.seq not in gone)
        late = [message for _, message in self.delayed.values() if 0 < message.expires_ms <= now_ms]
        for message in late:
            del self.delayed[message.seq]
        return expired + late

    def take_out(self, seqs: AbstractSet[int]) -> list[Message]:
        """Remove and return those of `seqs` that wait in memory."""
        taken = [self.delayed.pop(seq)[1] for seq in sorted(seqs & self.delayed.keys())]
        by_level: dict[int, list[int]] = {}
        for seq in sorted(seqs & self.messages.keys()):
            by_level.setdefault(self.messages[seq].priority, []).append(seq)
        for priority, wanted in by_level.items():
            level = self.levels[priority]
            if len(wanted) > FEW:
                taken += [message for message in level if message.seq in seqs]
                self.levels[priority] = deque(message for message in level if message.seq not in seqs)
                continue
            for seq in wanted:
                row = bisect_left(level, seq, key=_seq)
                if row < len(level) and level[row].seq == seq:
                    taken.append(level[row])
                    del level[row]
        return taken

    def take_oldest(self, size_bytes: int) -> list[Message]:
        """Remove and return the oldest waiting messages, of any priority, together at least `size_bytes` where there
        are so many before one that waits on disk alone."""
        on_disk = min((backlog.first for backlog in self.backlogs.values()), default=NEVER)
        taken: list[Message] = []
        while size_bytes > 0:
            levels = sorted((level for level in self.levels if level), key=lambda level: level[0].seq)
            until = min(on_disk, levels[1][0].seq if len(levels) > 1 else NEVER)
            if not levels or levels[0][0].seq >= on_disk:
                break
            level = levels[0]
            while size_bytes > 0 and level and level[0].seq < until:
                taken.append(level.popleft())
                size_bytes -= self.cost(taken[-1])
        return taken

    def oldest_beside(self, priority: int) -> int:
        """Seq of the oldest message that waits anywhere but in the backlog of `priority`; NEVER where none does."""
        here = [level[0].seq for level in self.levels if level]
        on_disk = [backlog.first for each, backlog in self.backlogs.items() if each != priority]
        return min(here + on_disk, default=NEVER)

    def remember(self, message: Message, segment: Segment) -> None:
        """Keep the producer-given id of a message that is stored."""
        self.duplicates_pending.pop(message.duplicate_id, None)
        self.own_duplicates().remember(message.duplicate_id, message.seq, segment)

    def own_duplicates(self) -> IdWindow:
        """`duplicates`, to be added to."""
        if self.duplicates is _NO_IDS:
            self.duplicates = IdWindow(self.options.duplicate_window)
        return self.duplicates

    # -- consumers ----------------------------------------------------------------------------------------------------

    def join(self, subscription: Subscription, owner: Dispatcher) -> None:
        """A new consumer. An exclusive one gets everything from now on, unless there is one already."""
        self.subscriptions.append(subscription)
        self.guests += subscription.is_guest
        if subscription.exclusive or subscription.priority:
            self.ranked = True
            self.outranked = self.outranked or deque()
        if subscription.exclusive and self.exclusive is None:
            self._elect(subscription)
        if self.selection is not None:
            self.selection.join(subscription)
        elif subscription.selector is not None and self.chooses:
            self.selection = owner.selection(self)

    def leave(self, subscription: Subscription) -> None:
        """A consumer that has no place in line and holds nothing any more goes. After an exclusive one comes the next
        of those: the one of the highest priority, of several the one that waits longest."""
        self.subscriptions.remove(subscription)
        self.guests -= subscription.is_guest
        if subscription is self.exclusive:
            heirs = [each for each in self.subscriptions if each.exclusive]
            self._elect(max(heirs, key=lambda each: each.priority, default=None))
        if not self.subscriptions:
            self.ranked = False
        self.left(subscription)

    def left(self, subscription: Subscription) -> None:
        """The consumer has gone, or a transaction has ended in which one that went had acknowledged something."""
        if self.selection is not None:
            self.selection.leave(subscription)
            self._choose_if_needed(self.selection)

    def _choose_if_needed(self, selection: SelectiveDispatch) -> None:
        if not selection.is_needed():
            selection.close()
            self.selection = None
            self._top = PRIORITIES - 1

    # -- consumers that come from another store -----------------------------------------------------------------------

    def expect_consumers(self, known: Mapping[str, Sequence[int]], owner: Dispatcher) -> None:
        """Its consumers are about to come, and `known` as these they have had these buckets of groups."""
        self.awaits = True
        if known and self.chooses:
            self.selection = self.selection or owner.selection(self)
            self.selection.expect(known)

    def expect_no_consumers(self) -> None:
        """No more of them will come."""
        self.awaits = False
        if self.selection is not None:
            self.selection.expect_nobody()
            self._choose_if_needed(self.selection)

    def _elect(self, exclusive: Subscription | None) -> None:
        self.exclusive = exclusive
        in_line = [*self.ready, *self.outranked]
        self.ready, self.outranked = deque(), deque()
        for subscription in in_line:
            self.make_ready(subscription)

    def make_ready(self, subscription: Subscription) -> None:
        """`subscription` is in line for messages, last of its rank."""
        if self.ready is _NOBODY:
            self.ready = deque()
        if not self.ranked:
            self.ready.append(subscription)
        elif self.exclusive is not None:
            (self.ready if subscription is self.exclusive else self.outranked).append(subscription)
        elif self.ready and subscription.priority < self.ready[0].priority:
            self.outranked.append(subscription)
        else:
            if self.ready and subscription.priority > self.ready[0].priority:
                self.outranked.extend(self.ready)
                self.ready.clear()
            self.ready.append(subscription)

    def park_guests(self) -> None:
        """Guests that are in line and are not ready leave it."""
        for subscription in [each for each in (*self.ready, *self.outranked) if not each.is_ready]:
            self.make_unready(subscription)
            subscription.park()

    def make_unready(self, subscription: Subscription) -> None:
        """`subscription` is in line no more."""
        if subscription in self.outranked:
            self.outranked.remove(subscription)
        else:
            self.ready.remove(subscription)


def _seq(message: Message) -> int:
    return message.seq
