"""Temporary queues and topics: for replies. They live as long as the connection whose name they bear, and in memory.

Invariant: only that connection consumes them, anybody sends to them; what is sent to one whose connection is gone is
gone too. Their names, `temp-queue://3-17.replies`, begin with what stands for the connection (the master's epoch and
the connection's number), which no other connection ever has, also not after a takeover.
"""

from __future__ import annotations

from amq.broker.core import Core
from amq.broker.queues.queue import Dispatcher, Queue, Subscription
from amq.broker.topics.topics import TopicQueue, Topics
from amq.config.schema import BrokerConfig
from amq.destination import TEMPORARY_QUEUE_SCHEME, plain_name, wire_name
from amq.errors import AccessError, CommandError
from amq.message import Message
from amq.protocols.commands import Subscribe

QUEUES_MAX = 1000  # of one connection, about 3 MB: anybody who sends to a new name makes one


class TemporaryQueue(TopicQueue):
    """Its consumers share what is sent to it, as with any queue."""

    __slots__ = ()

    chooses = True

    def configure(self, options: BrokerConfig) -> None:
        super().configure(options)
        self.is_bounded = False  # replies are not missed: their sender waits where memory is full

    @property
    def is_direct(self) -> bool:
        return False

    def join(self, subscription: Subscription, owner: Dispatcher) -> None:
        Queue.join(self, subscription, owner)

    def leave(self, subscription: Subscription) -> None:
        Queue.leave(self, subscription)

    def dead_letter_name(self, message: Message) -> str:  # noqa: ARG002
        """Not one for each queue that was ever there."""
        return "queue://" + self.options.shared_dead_letter_queue


class Temporaries:
    """The connections that there are, and their queues. A connection is known by the beginning of its names, `3-17.`"""

    def __init__(self, core: Core, topics: Topics) -> None:
        self._core = core
        self._topics = topics
        topics.provide = self.provide
        self._owned: dict[str, dict[str, TemporaryQueue]] = {}  # owner → its queues by name

    def open(self, owner: str) -> None:
        """That connection is there."""
        self._owned[owner] = {}

    def close(self, owner: str) -> None:
        """And gone."""
        for queue in self._owned.pop(owner, {}).values():
            queue.is_closed = True
            self._topics.close(queue)
            self._core.dirty[queue] = None

    def check_consumer(self, name: str, owner: str) -> None:
        """Raises AccessError where the connection `owner` may not consume that destination, CommandError where it has
        too many queues."""
        if not owner or not plain_name(name).startswith(owner):
            raise AccessError(
                f"{wire_name(name)}: only the connection that made a temporary destination consumes it; "
                "subscribe to /temp-queue/NAME of your own",
                code="DESTINATION_REFUSED",
            )
        owned = self._owned.get(owner, {})
        if len(owned) >= QUEUES_MAX and name not in owned and name.startswith(TEMPORARY_QUEUE_SCHEME):
            raise CommandError(
                f"{wire_name(name)}: this connection has {QUEUES_MAX} temporary queues already; use one for many "
                "requests, and tell the answers apart by correlation-id",
                code="TEMPORARY_QUEUES_TOO_MANY",
            )

    def provide(self, name: str) -> TemporaryQueue | None:
        """The queue of that name, made if its connection is there. None = that is gone, or has QUEUES_MAX already: a
        message to one more is dropped, so that no service suffers from a client that asks for it."""
        owned = self._owned.get(plain_name(name).partition(".")[0] + ".")
        if owned is None or not name.startswith(TEMPORARY_QUEUE_SCHEME):
            return None
        queue = owned.get(name)
        if queue is None and len(owned) < QUEUES_MAX:
            options = self._core.state.options_of(name)
            prefix = self._core.message_id_prefix
            queue = owned[name] = TemporaryQueue(self._topics, Subscribe("", name), (name,), options, prefix)
            self._topics.open(queue)
        return queue
