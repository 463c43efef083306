"""Advisories: what happens in the broker, told on topics `ActiveMQ.Advisory.…`, named as ActiveMQ names them.

Invariants: where nobody listens an event costs one test and no message; advisories tell nothing of advisories, or one
would lead to the next; a subscription to `>` does not get them, only one that begins with `ActiveMQ.Advisory`.
"""

from __future__ import annotations

import json

from amq.broker.core import Core
from amq.broker.events import (
    Connected,
    DeadLettered,
    Discarded,
    Disconnected,
    SlowConsumer,
    Subscribed,
    Unsubscribed,
)
from amq.broker.names import ADVISORY_PREFIX, is_temporary
from amq.broker.topics.topics import TopicQueue, Topics
from amq.destination import Pattern, plain_name, wire_name
from amq.message import DEFAULT_PRIORITY, TEXT, Envelope, Message, Shared

MASTER = ADVISORY_PREFIX + "MasterBroker"


class Advisories:
    """Listens to events as long as somebody is subscribed to any advisory."""

    def __init__(self, core: Core, topics: Topics) -> None:
        self.heard = 0  # subscriptions to advisories
        self._core = core
        self._topics = topics
        topics.advisories = self

    def _listen(self) -> None:
        events = self._core.events
        events.listen(Connected, self._connected)
        events.listen(Disconnected, self._disconnected)
        events.listen(Subscribed, self._subscribed)
        events.listen(Unsubscribed, self._unsubscribed)
        events.listen(SlowConsumer, self._slow_consumer)
        events.listen(Discarded, self._discarded)
        events.listen(DeadLettered, self._dead_lettered)

    def stop(self) -> None:
        """Nobody is told anything any more."""
        events = self._core.events
        events.ignore(Connected, self._connected)
        events.ignore(Disconnected, self._disconnected)
        events.ignore(Subscribed, self._subscribed)
        events.ignore(Unsubscribed, self._unsubscribed)
        events.ignore(SlowConsumer, self._slow_consumer)
        events.ignore(Discarded, self._discarded)
        events.ignore(DeadLettered, self._dead_lettered)

    def _connected(self, event: Connected) -> None:
        self._tell("Connection", "", {"event": "started", "connectionId": event.connection})

    def _disconnected(self, event: Disconnected) -> None:
        self._tell("Connection", "", {"event": "stopped", "connectionId": event.connection})

    def _subscribed(self, event: Subscribed) -> None:
        self._consumer("started", event)

    def _unsubscribed(self, event: Unsubscribed) -> None:
        self._consumer("stopped", event)

    def _consumer(self, what: str, event: Subscribed | Unsubscribed) -> None:
        for source in event.sources:
            facts = {"event": what, "connectionId": event.connection, "consumerId": event.subscription}
            if not isinstance(source, Pattern):
                queue = self._core.state.queues.get(source)
                count = len(queue.subscriptions) if queue is not None else self._topics.consumers(source)
                facts["consumerCount"] = str(count)
            self._tell("Consumer", str(source), facts)

    def _slow_consumer(self, event: SlowConsumer) -> None:
        for name in event.destinations:
            self._tell("SlowConsumer", name, {"consumerId": event.subscription, "policy": event.policy})

    def _discarded(self, event: Discarded) -> None:
        for name in event.destinations:
            facts = {"consumerId": event.subscription, "discardedCount": str(event.count)}
            self._tell("MessageDiscarded", name, facts)

    def _dead_lettered(self, event: DeadLettered) -> None:
        facts = {"deadLetterQueue": wire_name(event.moved_to), "reason": event.reason, "seq": str(event.seq)}
        self._tell("MessageDLQd", event.destination, facts)

    def listens(self, queue: TopicQueue) -> None:
        """Somebody has subscribed to advisories. A subscriber to masters gets the present one: the subscription that a
        client makes again after a takeover tells it that the master has changed."""
        self.heard += 1
        if self.heard == 1:
            self._listen()
        if MASTER in queue.sources:
            self._tell("MasterBroker", "", {"epoch": str(self._core.epoch)})

    def left(self) -> None:
        """One subscription to advisories less."""
        self.heard -= 1
        if not self.heard:
            self.stop()

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
            name, json.dumps(facts).encode(), facts, "application/json", DEFAULT_PRIORITY, False, core.clock.wall_ms(),
            content=TEXT, envelope=Envelope(type="Advisory"),
        )  # fmt: skip
        message.shared = Shared(None)
        self._topics.publish(message)
        core.wake()
