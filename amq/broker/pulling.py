"""Pulling: consumers that ask for each message, and hold none that nobody asked for.

Such a consumer says with its subscription that it has no credit, and gives some with each CREDIT; acknowledgements give
none back. Invariant: it gets no more messages than it has asked for, and none after the receipt of a CREDIT of 0. That
is confirmed only when what was on its way to it is delivered: so who asks, and takes that back in the same breath, gets
a message if there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amq.broker.subscription import Subscription
from amq.errors import CommandError
from amq.protocols.commands import Credit

if TYPE_CHECKING:
    from amq.broker.broker import Broker


class Pulling:
    """Call `step` at the end of a turn."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.withdrawn: list[tuple[Subscription, str]] = []  # who has taken its credit back, and the receipt for that

    def grant(self, subscription: Subscription | None, command: Credit, writable: bool) -> None:
        """The consumer may get so many messages from now on, whatever it could before. Raises CommandError."""
        if subscription is None or subscription.refund:
            raise CommandError(f"subscription {command.id!r} did not begin with credit: SUBSCRIBE with credit:0")
        if not command.credit:
            self.withdrawn.append((subscription, command.receipt))
            return
        subscription.credit = command.credit
        if writable:
            subscription.make_ready()
        self._broker.dirty[subscription.queue] = None
        if command.receipt:
            subscription.peer.confirm(command.receipt)

    def step(self) -> None:
        """Whoever wants no more has what was on its way."""
        if not self.withdrawn:
            return
        withdrawn, self.withdrawn = self.withdrawn, []
        for subscription, receipt in withdrawn:
            if subscription.credit > 0 and not subscription.ended and self._is_reading(subscription):
                self.withdrawn.append((subscription, receipt))
                continue
            subscription.make_unready()
            subscription.credit = 0
            if receipt:
                subscription.peer.confirm(receipt)

    def _is_reading(self, subscription: Subscription) -> bool:
        """Is anything read from the disk that may be for it?"""
        queue = subscription.queue
        return self._broker.pager.is_reading(queue) or (queue.picker is not None and queue.picker.is_looking)
