"""Advisories: what happens in the broker, told on topics `ActiveMQ.Advisory.…`, named as ActiveMQ names them.

Invariants: where nobody listens an event costs one test and no message; advisories tell nothing of advisories, or one
would lead to the next; a subscription to `>` does not get them, only one that begins with `ActiveMQ.Advisory`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from amq.broker.core import Core
from amq.broker.events import (
    Connected,
    DeadLettered,
    Discarded,
    Disconnected,
    Event,
    ProducerClosed,
    ProducerOpened,
    QueueForgotten,
    QueueLimitReached,
    QueueMade,
    SlowConsumer,
    Subscribed,
    TemporaryGone,
    TemporaryMade,
    TopicForgotten,
    TopicMade,
    Unsubscribed,
)
from amq.broker.names import ADVISORY_PREFIX, is_stored, is_temporary
from amq.broker.topics.durables import Durables
from amq.broker.topics.topics import TopicQueue, Topics
from amq.core.destination import TEMPORARY_QUEUE_SCHEME, Pattern, Source, plain_name, wire_name
from amq.core.message import DEFAULT_PRIORITY, TEXT, Envelope, Message, Sharing

QUEUES_TOLD_MAX = 10_000  # to a new subscriber
ORIGIN = ("originBrokerId", "originBrokerName", "originBrokerURL")  # of all advisories: the broker that tells
_OF_CLIENTS = tuple(ADVISORY_PREFIX + kind for kind in ("Connection", "Consumer", "Producer"))
MASTER = ADVISORY_PREFIX + "MasterBroker"
QUEUES, TOPICS = ADVISORY_PREFIX + "Queue", ADVISORY_PREFIX + "Topic"


class AdvisedClient(Protocol):
    """A client that is there."""

    def facts(self) -> Iterator[Event]: ...
    def check_again(self) -> None: ...


class Advisories:
    """Listens to events as long as somebody is subscribed to any advisory."""

    def __init__(self, core: Core, topics: Topics, durables: Durables) -> None:
        self.heard = 0  # subscriptions to advisories
        self.clients: Callable[[], Iterable[AdvisedClient]]  # that are there
        self.temporaries: Callable[[], Iterable[tuple[str, str]]]  # full names of those that are there, and whose
        self.broker_name = core.config.name
        self.broker_url = ""  # at which clients find this broker, "" = it does not listen yet
        self._core = core
        self._topics = topics
        self._durables = durables
        topics.advisories = self

    def _listeners(self) -> list[tuple[type[Any], Callable[[Any], None]]]:
        return [
            (Connected, self._connected),
            (Disconnected, self._disconnected),
            (Subscribed, self._subscribed),
            (Unsubscribed, self._unsubscribed),
            (SlowConsumer, self._slow_consumer),
            (Discarded, self._discarded),
            (DeadLettered, self._dead_lettered),
            (ProducerOpened, self._producer_opened),
            (ProducerClosed, self._producer_closed),
            (QueueMade, self._queue_made),
            (QueueForgotten, self._queue_forgotten),
            (QueueLimitReached, self._queue_limit_reached),
            (TopicMade, self._topic_made),
            (TopicForgotten, self._topic_forgotten),
            (TemporaryMade, self._temporary_made),
            (TemporaryGone, self._temporary_gone),
        ]

    def _listen(self) -> None:
        for kind, listener in self._listeners():
            self._core.events.listen(kind, listener)

    def stop(self) -> None:
        """Nobody is told anything any more."""
        for kind, listener in self._listeners():
            self._core.events.ignore(kind, listener)

    def _connected(self, event: Connected) -> None:
        self._tell("Connection", "", _of_connection(event))

    def _disconnected(self, event: Disconnected) -> None:
        self._tell("Connection", "", {"event": "stopped", "connectionId": event.connection})

    def _subscribed(self, event: Subscribed) -> None:
        self._consumer("started", event)

    def _unsubscribed(self, event: Unsubscribed) -> None:
        self._consumer("stopped", event)

    def _consumer(self, what: str, event: Subscribed | Unsubscribed) -> None:
        for source in event.sources:
            if self._topics.route(_topic("Consumer", str(source))):
                self._tell("Consumer", str(source), self._of_consumer(what, event, source))

    def _of_consumer(self, what: str, event: Subscribed | Unsubscribed, source: Source) -> dict[str, str]:
        facts = {"event": what, "connectionId": event.connection, "consumerId": event.subscription}
        if isinstance(event, Subscribed) and event.selector:
            facts["selector"] = event.selector
        if not isinstance(source, Pattern):
            queue = self._core.state.queues.get(source)
            if queue is not None:
                count = len(queue.subscriptions)
            else:
                count = self._topics.consumers(source) + self._durables.consumers(source)
            facts["consumerCount"] = str(count)
        return facts

    def _producer_opened(self, event: ProducerOpened) -> None:
        self._producer("started", event)

    def _producer_closed(self, event: ProducerClosed) -> None:
        self._producer("stopped", event)

    def _producer(self, what: str, event: ProducerOpened | ProducerClosed) -> None:
        if self._topics.route(_topic("Producer", event.destination)):  # to count them is work
            self._tell("Producer", event.destination, self._of_producer(what, event))

    def _of_producer(self, what: str, event: ProducerOpened | ProducerClosed) -> dict[str, str]:
        told = (each for client in self.clients() for each in client.facts() if isinstance(each, ProducerOpened))
        count = sum(each.destination == event.destination for each in told)
        return {
            "event": what,
            "connectionId": event.connection,
            "producerId": event.producer,
            "producerCount": str(count),
        }

    def _queue_made(self, event: QueueMade) -> None:
        self._tell(*_of_destination("Queue", "added", event.queue))

    def _queue_forgotten(self, event: QueueForgotten) -> None:
        self._tell(*_of_destination("Queue", "removed", event.queue))

    def _topic_made(self, event: TopicMade) -> None:
        self._tell(*_of_destination("Topic", "added", event.topic))

    def _topic_forgotten(self, event: TopicForgotten) -> None:
        self._tell(*_of_destination("Topic", "removed", event.topic))

    def _queue_limit_reached(self, event: QueueLimitReached) -> None:
        self._tell("FULL", event.queue, {"usageName": "queueLimit", "limit": str(event.limit_bytes)})

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

    def _temporary_made(self, event: TemporaryMade) -> None:
        self._tell(*_of_temporary("added", event.destination, event.connection))

    def _temporary_gone(self, event: TemporaryGone) -> None:
        self._tell(*_of_temporary("removed", event.destination, event.connection))

    def listens(self, queue: TopicQueue) -> None:
        """Somebody has subscribed to advisories. A subscriber to masters gets the present one: the subscription that a
        client makes again after a takeover tells it that the master has changed. One to destinations, or to clients
        and what they have, gets those that there are, before any that come."""
        self.heard += 1
        if self.heard == 1:
            self._listen()
        for name, facts in self._present(queue):
            self._tell_one(queue, self._message(name, facts))
        if MASTER in queue.sources:  # last: so a client that asks for several knows that it has seen all
            self._tell("MasterBroker", "", {"epoch": str(self._core.epoch)})

    def _present(self, queue: TopicQueue) -> Iterator[tuple[str, dict[str, str]]]:
        """Advisories, by topic, of all that is there and that the new subscriber wants to know of."""
        if queue.is_for(ADVISORY_PREFIX + "TempQueue") or queue.is_for(ADVISORY_PREFIX + "TempTopic"):
            for name, connection in self.temporaries():
                kind, _, facts = _of_temporary("added", name, connection)
                if queue.is_for(ADVISORY_PREFIX + kind):
                    yield ADVISORY_PREFIX + kind, facts
        if queue.is_for(QUEUES):
            for name in list(self._core.state.queues)[:QUEUES_TOLD_MAX]:
                if is_stored(name) and not self._core.state.queues[name].is_hidden:
                    yield QUEUES, _of_destination("Queue", "added", name)[2]
        if queue.is_for(TOPICS):
            for name in self._topics.known:
                yield TOPICS, _of_destination("Topic", "added", name)[2]
        if any(str(source).startswith(_OF_CLIENTS) for source in queue.sources):
            for event in (each for client in list(self.clients()) for each in client.facts()):
                for name, facts in self._of_client(event):
                    if queue.is_for(name):
                        yield name, facts

    def _of_client(self, event: Event) -> Iterator[tuple[str, dict[str, str]]]:
        if isinstance(event, Connected):
            yield ADVISORY_PREFIX + "Connection", _of_connection(event)
        elif isinstance(event, ProducerOpened):
            yield _about("Producer", event.destination, self._of_producer("started", event))
        elif isinstance(event, Subscribed):
            for source in event.sources:
                if not str(source).startswith(ADVISORY_PREFIX):
                    yield _about("Consumer", str(source), self._of_consumer("started", event, source))

    def _tell_one(self, queue: TopicQueue, message: Message) -> None:
        """`message` to that subscriber alone."""
        assert message.shared is not None
        self._core.memory.admit(message)
        message.seq = self._core.next_seq()
        queue.accept(message)
        message.shared.others -= 1
        self._core.dirty[queue] = None

    def left(self) -> None:
        """One subscription to advisories less."""
        self.heard -= 1
        if not self.heard:
            self.stop()

    def _tell(self, kind: str, destination: str, facts: dict[str, str]) -> None:
        if destination.startswith(ADVISORY_PREFIX):
            return
        name, facts = _about(kind, destination, facts)
        if self._topics.route(name):
            self._topics.publish(self._message(name, facts))
            self._core.wake()

    def _message(self, name: str, facts: dict[str, str]) -> Message:
        core = self._core
        id = core.message_id_prefix.removesuffix("-")
        facts = {**dict(zip(ORIGIN, (id, self.broker_name, self.broker_url), strict=True)), **facts}
        message = Message(
            name,
            json.dumps(facts).encode(),
            facts,
            "application/json",
            DEFAULT_PRIORITY,
            False,
            core.clock.wall_ms(),
            content=TEXT,
            envelope=Envelope(type="Advisory"),
        )
        message.shared = Sharing(None)
        return message


def _topic(kind: str, destination: str) -> str:
    """The topic of advisories of that kind about `destination`; "" = they are about none."""
    if not destination:
        return ADVISORY_PREFIX + kind
    of = "Topic" if destination.partition("://")[0].endswith("topic") else "Queue"
    return f"{ADVISORY_PREFIX}{kind}.{'Temp' if is_temporary(destination) else ''}{of}.{plain_name(destination)}"


def _about(kind: str, destination: str, facts: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The topic of an advisory of that kind about `destination`, "" = it is about none; and its fields."""
    if destination:
        facts = {"destination": wire_name(destination), **facts}
    return _topic(kind, destination), facts


def _of_connection(event: Connected) -> dict[str, str]:
    facts = {"event": "started", "connectionId": event.connection}
    return {**facts, "clientId": event.client_id} if event.client_id else facts


def _of_destination(kind: str, event: str, name: str) -> tuple[str, str, dict[str, str]]:
    return kind, "", {"event": event, "destination": wire_name(name)}


def _of_temporary(event: str, name: str, connection: str) -> tuple[str, str, dict[str, str]]:
    kind = "TempQueue" if name.startswith(TEMPORARY_QUEUE_SCHEME) else "TempTopic"
    return kind, "", {"event": event, "destination": wire_name(name), "connectionId": connection}
