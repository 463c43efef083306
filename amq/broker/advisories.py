"""Advisories: what happens in the broker, told on topics `ActiveMQ.Advisory.…`, named as ActiveMQ names them.

Invariants: where nobody listens an event costs one test and no message; advisories tell nothing of advisories, or one
would lead to the next; a subscription to `>` does not get them, only one that begins with `ActiveMQ.Advisory`.
"""

from __future__ import annotations

import json

from amq.broker.core import Core
from amq.broker.names import ADVISORY_PREFIX, is_pattern, is_temporary, plain_name, wire_name
from amq.broker.topics import TopicQueue, Topics
from amq.message import DEFAULT_PRIORITY, Message, Shared

MASTER = ADVISORY_PREFIX + "MasterBroker"


class Advisories:
    """Ask `heard` first: it is False as long as nobody listens to any advisory."""

    def __init__(self, core: Core, topics: Topics) -> None:
        self.heard = 0  # subscriptions to advisories
        self._core = core
        self._topics = topics
        topics.advisories = self

    def connection(self, id: str, started: bool) -> None:
        """A client has logged in, or is gone."""
        self._tell("Connection", "", {"event": _event(started), "connectionId": id})

    def consumer(self, connection: str, id: str, destination: str, started: bool) -> None:
        """A subscription has begun, or ended."""
        for name in destination.split(","):
            facts = {"event": _event(started), "connectionId": connection, "consumerId": id}
            queue = self._core.state.queues.get(name)
            if not is_pattern(name):
                count = len(queue.subscriptions) if queue is not None else self._topics.consumers(name)
                facts["consumerCount"] = str(count)
            self._tell("Consumer", name, facts)

    def slow_consumer(self, queue: TopicQueue, policy: str) -> None:
        """A topic's consumer keeps no pace."""
        for name in queue.names:
            self._tell("SlowConsumer", name, {"consumerId": queue.subscription.id, "policy": policy})

    def discarded(self, queue: TopicQueue, count: int) -> None:
        """A topic's consumer misses messages."""
        for name in queue.names:
            facts = {"consumerId": queue.subscription.id, "discardedCount": str(count)}
            self._tell("MessageDiscarded", name, facts)

    def dead_lettered(self, message: Message, moved: Message) -> None:
        """`message` goes to a dead-letter queue as `moved`."""
        reason = (moved.properties or {}).get("dead-letter-reason", "")
        facts = {"deadLetterQueue": wire_name(moved.destination), "reason": reason, "seq": str(message.seq)}
        self._tell("MessageDLQd", message.destination, facts)

    def listens(self, queue: TopicQueue) -> None:
        """Somebody has subscribed to advisories. A subscriber to masters gets the present one: the subscription that a
        client makes again after a takeover tells it that the master has changed."""
        self.heard += 1
        if MASTER in queue.names:
            self._tell("MasterBroker", "", {"epoch": str(self._core.epoch)})

    def _tell(self, kind: str, destination: str, facts: dict[str, str]) -> None:
        name = ADVISORY_PREFIX + kind
        if destination:
            if destination.startswith(ADVISORY_PREFIX):
                return
            of = "Topic" if destination.partition("://")[0].endswith("topic") else "Queue"
            name += f".{'Temp' if is_temporary(destination) else ''}{of}.{plain_name(destination)}"
            facts = {"destination": wire_name(destination), **facts}
        core = self._core
        if not self._topics.route(name):
            return
        facts = {"originBrokerName": core.config.name, **facts}
        message = Message(
            name, json.dumps(facts).encode(), {"type": "Advisory", **facts}, "application/json", DEFAULT_PRIORITY,
            False, core.clock.wall_ms(), text=True,
        )  # fmt: skip
        message.shared = Shared(None)
        self._topics.publish(message)
        core.wake()


def _event(started: bool) -> str:
    return "started" if started else "stopped"
