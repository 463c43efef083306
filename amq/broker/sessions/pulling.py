"""Pulling: consumers that ask for each message, and hold none that nobody asked for.

Such a consumer says with its subscription how much credit it has, and gives more with each `Credit`; acknowledgements
give none back. Invariant: it gets no more messages than it has asked for, and none after it learns that a `Credit`
with `drain` is done. That is told only when what was on its way to it is delivered: so a consumer that asks, and takes
that back at once, gets a message if there is one."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from amq.broker.core import Core
from amq.broker.queues.queue import Subscription
from amq.core.errors import CommandError
from amq.journal.batch import Waiter
from amq.protocols.commands import Credit

STALE_MAX = 64  # timers beside those that somebody waits for


class Pulling:
    """Call `step` at the end of a turn where `withdrawn` or `timers` hold something. `timers` = (when, number,
    subscription), a heap: consumers that take their credit back then, monotonic. Those with another number than
    `_waiting` has for the subscription are over, and are dropped when they go off, or when there are too many."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.withdrawn: list[tuple[Subscription, Waiter]] = []  # took their credit back, and wait for that
        self.timers: list[tuple[float, int, Subscription]] = []
        self._waiting: dict[Subscription, tuple[int, Waiter]] = {}  # take it back later, and who is told then
        self._number = 0  # of timers ever set

    @property
    def due_s(self) -> float | None:
        """When the next one takes its credit back, monotonic; None = never."""
        return self.timers[0][0] if self.timers else None

    def grant(self, subscription: Subscription | None, command: Credit, waiter: Waiter, writable: bool) -> None:
        """The consumer may get this many messages from now on, instead of as many as before. Raises CommandError."""
        if subscription is None or subscription.refund or subscription.unlimited:
            raise CommandError(f"subscription {command.id!r} did not begin with credit: subscribe with a credit of 0")
        if command.credit or not command.drain:
            subscription.grant(command.credit)
            if not command.credit:
                subscription.make_unready()
            elif writable:
                subscription.make_ready()
            self._core.dirty[subscription.queue] = None
        before = self._waiting.pop(subscription, None)
        if before is not None:
            before[1].done()
        if command.drain and command.wait_ms:
            self._wait(subscription, waiter, command.wait_ms / 1000)
        elif command.drain:
            self.withdrawn.append((subscription, waiter))
        else:
            waiter.done()

    def _wait(self, subscription: Subscription, waiter: Waiter, seconds: float) -> None:
        self._number += 1
        self._waiting[subscription] = self._number, waiter
        heappush(self.timers, (self._core.clock.monotonic() + seconds, self._number, subscription))
        if len(self.timers) > 2 * len(self._waiting) + STALE_MAX:
            self.timers[:] = [each for each in self.timers if self._waiting.get(each[2], (0,))[0] == each[1]]
            heapify(self.timers)
        self._core.wake()

    def step(self) -> None:
        """Confirm to consumers that want no more: they have the messages that were on their way."""
        now_s = self._core.clock.monotonic()
        while self.timers and self.timers[0][0] <= now_s:
            _, number, subscription = heappop(self.timers)
            if subscription in self._waiting and self._waiting[subscription][0] == number:
                self.withdrawn.append((subscription, self._waiting.pop(subscription)[1]))
        if not self.withdrawn:
            return
        withdrawn = self.withdrawn.copy()
        self.withdrawn.clear()
        for subscription, waiter in withdrawn:
            if subscription.credit > 0 and not subscription.ended and self._may_get_more(subscription):
                self.withdrawn.append((subscription, waiter))
                continue
            subscription.make_unready()
            subscription.grant(0)
            waiter.done()

    def _may_get_more(self, subscription: Subscription) -> bool:
        """Is its socket full for the moment, or has the broker not looked everywhere?"""
        return not subscription.is_ready or subscription.looks(self._core)
