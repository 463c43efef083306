"""Pulling: consumers that ask for each message, and hold none that nobody asked for.

Such a consumer says with its subscription how much credit it has, and gives more with each `Credit`; acknowledgements
give none back. Invariant: it gets no more messages than it has asked for, and none after it is told that a `Credit`
with `drain` is done. That is told only when what was on its way to it is delivered: so a consumer that asks, and takes
that back at once, gets a message if there is one. """

from __future__ import annotations

from amq.broker.core import Core
from amq.broker.queues.queue import Subscription
from amq.errors import CommandError
from amq.journal.batch import Waiter
from amq.protocols.commands import Credit


class Pulling:
    """Call `step` at the end of a turn."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.withdrawn: list[tuple[Subscription, Waiter]] = []  # took their credit back, and wait for that

    def grant(self, subscription: Subscription | None, command: Credit, waiter: Waiter, writable: bool) -> None:
        """The consumer may get so many messages from now on, instead of as many as before. Raises CommandError."""
        if subscription is None or subscription.refund or subscription.unlimited:
            raise CommandError(f"subscription {command.id!r} did not begin with credit: SUBSCRIBE with credit:0")
        if command.credit or not command.drain:
            subscription.grant(command.credit)
            if not command.credit:
                subscription.make_unready()
            elif writable:
                subscription.make_ready()
            self._core.dirty[subscription.queue] = None
        if command.drain:
            self.withdrawn.append((subscription, waiter))
        else:
            waiter.done()

    def step(self) -> None:
        """Confirm to consumers that want no more: they have the messages that were on their way."""
        if not self.withdrawn:
            return
        withdrawn, self.withdrawn = self.withdrawn, []
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
