"""OutboxQueue: the messages that wait for a destination of another store."""

from __future__ import annotations

from amq.broker.queues.queue import Queue
from amq.core.destination import QUEUE_SCHEME
from amq.core.message import Message


class OutboxQueue(Queue):
    """Its one consumer is the sender of `amq.broker.transfer.outbox`."""

    __slots__ = ()

    delays = False
    chooses = False
    moves_expired = False
    keeps_bundles = False

    def dead_letter_name(self, message: Message, given_up: bool = False) -> str:  # noqa: ARG002
        """Messages that another store refuses go to the dead-letter queue that every store has."""
        return QUEUE_SCHEME + self.options.shared_dead_letter_queue
