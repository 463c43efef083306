"""Redelivery: what becomes of messages that were delivered and came back.

Each is counted, and stands in its old place again, waits for its time first (`redeliveryDelay`), or goes to the
dead-letter queue. Invariant: a message that waits for its time is in `Queue.delayed`, in no level and in no backlog,
and a timer is set for that moment of the monotonic clock. Timers are one heap, with one entry for what comes back
together; nothing here is stored, so after a takeover what waited is delivered at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from amq.config.schema import BrokerConfig
from amq.journal.records import Redelivered
from amq.message import Message

if TYPE_CHECKING:
    from amq.broker.broker import Broker
    from amq.broker.queue import Queue

POWER_MAX = 60  # of the multiplier: more is beyond any maximumRedeliveryDelay, and only costs time to work out


def delay_s(options: BrokerConfig, failures: int) -> float:
    """How long a message waits that has failed so many times, which is at least once."""
    power = min(failures - 1, POWER_MAX)
    wanted_s: float = options.redelivery_delay_s * options.redelivery_back_off_multiplier**power
    return min(wanted_s, options.maximum_redelivery_delay_s)


class Redelivery:
    """Call `step` once a turn where `timers` holds something. `timers` = (when, number, queue, seqs), a heap."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.timers: list[tuple[float, int, Queue, list[int]]] = []
        self._number = 0  # of timers ever set: those of one moment go off in the order in which they were set

    @property
    def due_s(self) -> float | None:
        """When `step` has something to do, monotonic; None = never."""
        return self.timers[0][0] if self.timers else None

    def give_back(self, queue: Queue, messages: list[Message], failed: Iterable[int], refused: bool) -> None:
        """See `Broker.give_back`."""
        failures = set(failed)
        messages = [message for message in messages if message.seq in queue.messages]  # a subscription may have ended
        limit = queue.options.maximum_redeliveries
        back: list[Message] = []
        poison: list[Message] = []
        for message in messages:
            deliveries, failed_before = queue.redelivered.get(message.seq, (0, 0))
            count = (deliveries + 1, failed_before + (message.seq in failures))
            queue.redelivered[message.seq] = count
            moves = (refused or 0 <= limit < count[1]) and self._broker.can_move(queue, message)
            (poison if moves else back).append(message)
        self._store_counts(queue, back)
        if queue.delays and queue.options.redelivery_delay_s:
            late = [message for message in back if message.seq in failures]
            self._delay(queue, late)
            back = [message for message in back if message.seq not in failures]
        self._stand_in_line(queue, back)
        reason = "refused by the consumer" if refused else f"delivered {limit + 1} times without acknowledgement"
        for message in poison:
            self._broker.dead_letter(queue, message, reason)
        self._broker.wake()

    def put_back(self, queue: Queue, messages: list[Message]) -> None:
        """To their old places, to be delivered again at once; how often they were delivered is stored."""
        self._store_counts(queue, messages)
        self._stand_in_line(queue, messages)

    def step(self) -> None:
        """Messages that have waited long enough stand in line."""
        now_s = self._broker.clock.monotonic()
        while self.timers and self.timers[0][0] <= now_s:
            due_s, _, queue, seqs = heappop(self.timers)
            # Others have left meanwhile, or came back once more and have another timer.
            due = [queue.delayed.pop(seq)[1] for seq in seqs if seq in queue.delayed and queue.delayed[seq][0] == due_s]
            if due:
                self._stand_in_line(queue, due)
                self._broker.wake()

    def hurry(self, queue: Queue, size_bytes: int) -> None:
        """`queue` is going to drop its oldest: those that wait for their time and are older than all that stand in line
        are in line now, together about `size_bytes`."""
        oldest = queue.oldest_beside(-1)
        hurried: list[Message] = []
        for seq in sorted(queue.delayed):
            if seq > oldest or size_bytes <= 0:
                break
            message = queue.delayed.pop(seq)[1]
            hurried.append(message)
            size_bytes -= queue.cost(message)
        self._stand_in_line(queue, hurried)

    def put_off(self, queue: Queue, messages: list[Message], seconds: float) -> None:
        """No consumer gets `messages` for so long."""
        due_s = self._broker.clock.monotonic() + seconds
        for message in messages:
            queue.delayed[message.seq] = (due_s, message)
        if messages:
            self._number += 1
            heappush(self.timers, (due_s, self._number, queue, [message.seq for message in messages]))

    def _delay(self, queue: Queue, messages: list[Message]) -> None:
        by_delay: dict[float, list[Message]] = {}
        for message in messages:
            wanted_s = delay_s(queue.options, queue.redelivered[message.seq][1])
            by_delay.setdefault(wanted_s, []).append(message)
        for wanted_s, late in by_delay.items():
            self.put_off(queue, late, wanted_s)

    def _stand_in_line(self, queue: Queue, messages: list[Message]) -> None:
        self._broker.wait_again(queue, messages)
        self._broker.dirty[queue] = None

    def _store_counts(self, queue: Queue, messages: list[Message]) -> None:
        counts = [
            (message.seq, *queue.redelivered[message.seq])
            for message in messages
            if message.segment is not None and message.seq in queue.redelivered
        ]
        if counts:
            self._broker.journal.append_record(Redelivered(queue.name, counts))
