"""Schedule: the messages for one destination whose time has not come.

It is a stored queue like any other, which no client can send to or consume, `schedule://queue.orders` for
`queue://orders`; so journal, replay, checkpoints and compaction know it. Its messages carry in `expires_ms` when they
fall due. Invariants: a persistent message waits on disk alone, 32 bytes a message in memory; every other is in
`delayed`, and in the heap `_timers`; `next_ms` is never later than the first due time on disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from amq.broker.names import SCHEDULE_SCHEME
from amq.broker.queues.backlog import NEVER, Columns
from amq.broker.queues.queue import NO_LIMIT, Dispatcher, Queue
from amq.config.store_options import StoreOptions
from amq.core.destination import plain_name
from amq.core.message import Message


def schedule_name(destination: str) -> str:
    """`queue://orders` → `schedule://queue.orders`"""
    return SCHEDULE_SCHEME + destination.replace("://", ".", 1)


class Schedule(Queue):
    """`target` = full name of where its messages go. `armed_ms` = when the scheduler looks at it, wall clock."""

    __slots__ = ("_timers", "armed_ms", "next_ms", "target")

    delays = False
    chooses = False
    fires = True
    keeps_bundles = False
    is_dead_letter_queue = True  # nothing is moved on from here but by the scheduler

    def __init__(self, name: str, options: StoreOptions) -> None:
        super().__init__(name, options)
        self.target = plain_name(name).replace(".", "://", 1)
        self.armed_ms = NEVER
        self.next_ms = NEVER
        self._timers: list[tuple[int, int]] = []  # (when, seq); of some that have left, too

    def configure(self, options: StoreOptions) -> None:
        super().configure(options)
        self.limit_bytes = self.drops_above = NO_LIMIT  # `queueLimit` is for messages that a consumer may have
        self.is_diverted = True  # the routing refuses a client that sends to this very name

    @property
    def due_ms(self) -> int:
        """When the first falls due, wall clock, or a little before; NEVER = none will."""
        return min(self.next_ms, self._timers[0][0] if self._timers else NEVER)

    def push(self, message: Message) -> None:
        self.delayed[message.seq] = (message.expires_ms, message)
        heappush(self._timers, (message.expires_ms, message.seq))

    def put_back(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.push(message)

    def page_out(self, message: Message, segment: int) -> None:
        super().page_out(message, segment)
        self.next_ms = min(self.next_ms, message.expires_ms)

    def add_rows(self, priority: int, columns: Columns) -> bool:
        self.next_ms = min(self.next_ms, *columns[4])
        return super().add_rows(priority, columns)

    def look_on_disk(self) -> None:
        """Find `next_ms` anew."""
        self.next_ms = min((backlog.next_due_ms for backlog in self.backlogs.values()), default=NEVER)

    def dispatch(self, owner: Dispatcher, now_ms: int) -> None:
        owner.arm(self)
        for browser in self.browsers:
            browser.step(now_ms)

    def take_due(self, now_ms: int, count: int) -> list[Message]:
        """Remove and return up to `count` of those in memory that are due."""
        due: list[Message] = []
        while self._timers and self._timers[0][0] <= now_ms and len(due) < count:
            held = self.delayed.pop(heappop(self._timers)[1], None)
            if held is not None and held[1].seq in self.messages:  # else it was removed, and came back on a full disk
                due.append(held[1])
        return due
