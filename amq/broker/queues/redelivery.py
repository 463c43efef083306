"""Redelivery: what becomes of messages that came back, or whose time is over.

A message that came back is counted, and is in its old place again, waits for its time first (`redeliveryDelay`), or
goes to the dead-letter queue; one that expired goes there, to the expiry queue, or away. Invariant: a message that
waits for its time is in `Queue.delayed`, in no level and in no backlog, and a timer is set for that moment of the
monotonic clock. Timers are one heap, with one entry for what comes back together; nothing here is stored, so after a
takeover what waited is delivered at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import copy
from functools import partial
from heapq import heappop, heappush

from amq.broker.core import Core
from amq.broker.events import DeadLettered, Expired
from amq.broker.queues.queue import Queue
from amq.config.store_options import StoreOptions
from amq.core.destination import wire_name
from amq.core.message import LARGE_BODY_BYTES, Message
from amq.journal.batch import Waiter
from amq.journal.hidden import outbox_target
from amq.journal.records import DEAD_LETTERED, EXPIRED, PURGED, Consumed, Group, Redelivered

OVERDUE = "expired"  # the reason in dead letters
NO_ROOM_S = 5.0  # what cannot be moved, as the disk is full, waits so long, or until `expire` finds room for it
CAUSE = "dlqDeliveryFailureCause"  # property of dead letters: what the consumer said, as ActiveMQ names it
CAUSE_CHARACTERS_MAX = 4000
DELAY = "redeliveryDelay"  # property of deliveries after a rejection: see `shown`


def delay_s(options: StoreOptions, failures: int) -> float:
    """How long a message waits that has failed this many times, which is at least once."""
    try:
        wanted_s = options.redelivery_delay_s * math.pow(options.redelivery_back_off_multiplier, failures - 1)
    except OverflowError:
        return options.maximum_redelivery_delay_s
    return min(wanted_s, options.maximum_redelivery_delay_s)


def shown(queue: Queue, message: Message) -> Message:
    """`message` for a consumer that gets it again. With `rejectedMessages = redeliver` a copy says so, as ActiveMQ's
    redeliveryPlugin does: a JMS client gives up a message that came too often, unless it has the property `DELAY`."""
    failures = queue.redelivered.get(message.seq, (0, 0))[1]
    if not failures or queue.options.rejected_messages != "redeliver":
        return message
    told = copy(message)
    told.properties = {**(message.properties or {}), DELAY: str(round(delay_s(queue.options, failures) * 1000))}
    return told


class Redelivery:
    """Call `step` once a turn where `timers` holds something.

    timers      (when, number, queue, seqs), a heap
    came_back   how many delivered messages have come back
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.timers: list[tuple[float, int, Queue, list[int]]] = []
        self.came_back = 0
        self._number = 0  # of timers ever set: those of one moment go off in the order in which they were set

    @property
    def due_s(self) -> float | None:
        """When `step` has something to do, monotonic; None = never."""
        return self.timers[0][0] if self.timers else None

    def give_back(
        self, queue: Queue, messages: list[Message], failed: Iterable[int], refused: bool = False, cause: str = ""
    ) -> None:
        """Delivered messages return unacknowledged. Those whose seq is in `failed` count as failed deliveries, and wait
        for `redeliveryDelay`; one that failed too often goes to the dead-letter queue, and so do all where the consumer
        `refused` them, and said why (`cause`) or not. With `rejectedMessages = redeliver` a refusal is a failed
        delivery, also of a client that delivers again by itself: it gave up. While the disk is full, dead letters
        wait."""
        failures = set(failed)
        if refused and queue.options.rejected_messages == "redeliver":
            failures, refused = {message.seq for message in messages}, False
        messages = [message for message in messages if message.seq in queue.messages]  # a subscription may have ended
        self.came_back += len(messages)
        limit = queue.options.maximum_redeliveries
        back: list[Message] = []
        poison: list[Message] = []
        stuck: list[Message] = []  # delivered at once, the consumer would refuse it at once
        for message in messages:
            deliveries, failed_before = queue.redelivered.get(message.seq, (0, 0))
            count = (deliveries + 1, failed_before + (message.seq in failures))
            queue.redelivered[message.seq] = count
            too_often = 0 <= limit < count[1] and message.seq in failures
            if not (refused or too_often) or queue.is_dead_letter_queue:
                back.append(message)
            else:
                (poison if self.can_move(queue, message) else stuck).append(message)
        self._store_counts(queue, back + stuck)
        self.put_off(queue, stuck, NO_ROOM_S)
        if queue.delays and queue.options.redelivery_delay_s:
            late = [message for message in back if message.seq in failures]
            self._delay(queue, late)
            back = [message for message in back if message.seq not in failures]
        self._enqueue(queue, back)
        reason = "refused by the consumer" if refused else f"delivered {limit + 1} times without acknowledgement"
        for message in poison:
            self.dead_letter(queue, message, reason, cause)
        self._core.wake()

    def lose(self, queue: Queue, messages: list[Message]) -> None:
        """A consumer is lost whose client delivers again by itself: they wait again where they were, and count as
        delivered at least once."""
        for message in messages:
            if message.seq in queue.messages and message.seq not in queue.redelivered:
                queue.redelivered[message.seq] = (1, 0)
        self.put_back(queue, messages)

    def put_back(self, queue: Queue, messages: list[Message]) -> None:
        """To their old places, to be delivered again at once; how often they were delivered is stored."""
        messages = [message for message in messages if message.seq in queue.messages]  # a subscription may have ended
        self.came_back += len(messages)
        self._store_counts(queue, messages)
        self._enqueue(queue, messages)

    def step(self) -> None:
        """Messages that have waited long enough are in line."""
        now_s = self._core.clock.monotonic()
        while self.timers and self.timers[0][0] <= now_s:
            due_s, _, queue, seqs = heappop(self.timers)
            # Others have left meanwhile, or came back once more and have another timer.
            due = [queue.delayed.pop(seq)[1] for seq in seqs if seq in queue.delayed and queue.delayed[seq][0] == due_s]
            if due:
                self._enqueue(queue, due)
                self._core.wake()

    def hurry(self, queue: Queue, size_bytes: int) -> None:
        """`queue` is going to drop its oldest: those that wait for their time and are older than all that are in line
        are in line now, together about `size_bytes`."""
        oldest = queue.oldest_beside(-1)
        hurried: list[Message] = []
        for seq in sorted(queue.delayed):
            if seq > oldest or size_bytes <= 0:
                break
            message = queue.delayed.pop(seq)[1]
            hurried.append(message)
            size_bytes -= queue.cost(message)
        self._enqueue(queue, hurried)

    def put_off(self, queue: Queue, messages: list[Message], seconds: float) -> None:
        """No consumer gets `messages` for so long."""
        due_s = self._core.clock.monotonic() + seconds
        for message in messages:
            queue.delayed[message.seq] = (due_s, message)
        if messages:
            self._number += 1
            heappush(self.timers, (due_s, self._number, queue, [message.seq for message in messages]))

    # -- expiry and dead letters --------------------------------------------------------------------------------------

    def expire(self, queue: Queue, messages: list[Message]) -> None:
        """Messages past their time, already out of the queue's order."""
        persistent = []
        kept = []
        moves = queue.moves_expired
        for message in messages:
            if moves and self.can_move(queue, message):
                self.dead_letter(queue, message, OVERDUE)
            elif moves:
                kept.append(message)
            elif message.segment is None:
                self._core.state.remove(queue, message)
            else:
                persistent.append(message.seq)
        if persistent:
            self._core.journal.append_record(Consumed(queue.name, EXPIRED, persistent))
        if len(kept) < len(messages) and Expired in self._core.events.heard:
            self._core.events.tell(Expired(queue.name, len(messages) - len(kept)))
        for message in kept:
            if message.size > LARGE_BODY_BYTES and message.segment is not None:
                self._core.drop_body(queue, message)
        self.put_off(queue, kept, NO_ROOM_S)
        self._core.wake()

    def can_move(self, queue: Queue, message: Message) -> bool:
        """May `message` go to another queue, and has the disk room for that?"""
        return not queue.is_dead_letter_queue and not (self._core.journal.full and message.persistent)

    def dead_letter(self, queue: Queue, message: Message, reason: str, cause: str = "") -> None:
        """Move `message`, which no consumer holds any more and which can be moved, to the dead-letter queue, one that
        expired to the expiry queue, or drop it where policy says so. `cause` = what the consumer said."""
        if not message.persistent and not queue.options.dead_letter_non_persistent:
            self._core.state.remove(queue, message)
        elif message.is_stripped:
            fetched = partial(self._dead_letter_fetched, queue, message, reason, cause)
            self._core.pager.fetch_body(queue, message, fetched)
        else:
            self._move(queue, message, reason, message.body, cause)

    def _dead_letter_fetched(self, queue: Queue, message: Message, reason: str, cause: str, body: bytes) -> None:
        if self.can_move(queue, message):
            self._move(queue, message, reason, body, cause)
        else:
            self.put_back(queue, [message])

    def _move(self, queue: Queue, message: Message, reason: str, body: bytes, cause: str) -> None:
        moved = self._moved(queue, message, reason, body, cause)
        if message.segment is not None:
            self._core.append_group(Group([moved, Consumed(queue.name, DEAD_LETTERED, [message.seq])]))
            return
        self._core.state.remove(queue, message)
        if moved.persistent:  # from a topic
            self._core.append_group(Group([moved]))
        else:
            self._core.state.store(moved, None)

    def drop(self, queue: Queue, messages: list[Message], dropping: Waiter, reason: str) -> bool:
        """Messages that no consumer holds go to the dead-letter queue together, from a dead-letter queue for good.
        False: the disk has no room to move them, and nothing was done. `dropping` learns when the disk has it."""
        persistent = [message for message in messages if message.segment is not None]
        is_last = queue.is_dead_letter_queue
        if persistent and not is_last and self._core.journal.full:
            return False
        for message in messages:
            if message.segment is None and is_last:
                self._core.state.remove(queue, message)
            elif message.segment is None:
                self.dead_letter(queue, message, reason)
        if persistent:
            batch = self._core.journal.open
            seqs = [message.seq for message in persistent]
            if is_last:
                self._core.journal.append_record(Consumed(queue.name, PURGED, seqs))
                batch.confirms.append((dropping, None))
            else:
                moved = [self._moved(queue, message, reason, message.body) for message in persistent]
                group = Group([*moved, Consumed(queue.name, DEAD_LETTERED, seqs)])
                self._core.append_group(group)
                batch.confirms.append((dropping, group))
        self._core.wake()
        return True

    def _moved(self, queue: Queue, message: Message, reason: str, body: bytes, cause: str = "") -> Message:
        """The message that stands for `message` on the dead-letter or expiry queue."""
        deliveries, _ = queue.redelivered.get(message.seq, (0, 0))
        properties = dict(message.properties or {})
        properties["original-destination"] = wire_name(outbox_target(message.destination))
        properties["dead-letter-reason"] = reason
        properties["dead-letter-deliveries"] = str(deliveries)
        if cause:
            properties[CAUSE] = cause[:CAUSE_CHARACTERS_MAX]
        name = queue.dead_letter_name(message, bool(cause))
        if reason == OVERDUE:
            properties["original-expires"] = str(message.expires_ms)
            name = queue.expiry_name or name
        moved = Message.made_of(message, self._core.led(name), properties, self._core.next_seq())
        moved.body, moved.expires_ms, moved.duplicate_id = body, 0, ""
        self._core.memory.admit(moved)
        if DeadLettered in self._core.events.heard:
            self._core.events.tell(DeadLettered(message.destination, message.seq, name, reason))
        return moved

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _delay(self, queue: Queue, messages: list[Message]) -> None:
        by_delay: dict[float, list[Message]] = {}
        for message in messages:
            wanted_s = delay_s(queue.options, queue.redelivered[message.seq][1])
            by_delay.setdefault(wanted_s, []).append(message)
        for wanted_s, late in by_delay.items():
            self.put_off(queue, late, wanted_s)

    def _enqueue(self, queue: Queue, messages: list[Message]) -> None:
        self._core.wait_again(queue, messages)
        self._core.dirty[queue] = None

    def _store_counts(self, queue: Queue, messages: list[Message]) -> None:
        counts = [
            (message.seq, *queue.redelivered[message.seq])
            for message in messages
            if message.segment is not None and message.seq in queue.redelivered
        ]
        if counts:
            self._core.journal.append_record(Redelivered(queue.name, counts))
