"""Routing: where a message goes that was sent to a destination which stands for others.

Three things lead elsewhere: a composite name (`queue://a,topic://b`), a divert (an option of destinations), and a
virtual topic, whose messages also go to every queue that was made to consume it (`Consumer.NAME.VirtualTopic.X`).
Invariants: a message gets to all of its destinations or to none, its persistent parts in one record of the journal, and
to each of them once; what was led somewhere is not led on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amq.broker.limits import Room
from amq.broker.names import (
    QUEUE_SCHEME,
    check_sent_to,
    is_queued,
    is_stored,
    is_temporary,
    is_topic,
    wire_name,
    words_of,
)
from amq.broker.queue import Queue
from amq.broker.subscription import Peer
from amq.broker.transaction import Transaction, memory_bytes
from amq.config.destinations import matches, parse_pattern
from amq.message import ORIGINAL_DESTINATION, Copy, Message, Shared

if TYPE_CHECKING:
    from amq.broker.broker import Broker

ROUTES_MAX = 10_000  # names whose route is remembered


class Routing:
    """Knows where everything goes that is sent."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._routes: dict[str, tuple[str, ...]] = {}
        config = broker.config
        self._virtual = parse_pattern(config.virtual_topics) if config.virtual_topics else ()
        self._consumers_prefix = tuple(config.virtual_topic_consumers.removesuffix(".").split("."))
        self._consumers: dict[str, dict[str, None]] = {}  # virtual topic → queues that consume it; both are full names
        broker.on_queue.append(self._appeared)

    def reconfigure(self) -> None:
        """Options changed."""
        self._routes.clear()

    def _appeared(self, queue: Queue) -> None:
        """A queue has come into being. One that consumes a virtual topic stays: it is there to wait for messages."""
        topic = self._topic_of(queue.name)
        if topic:
            queue.stays = True
            self._consumers.setdefault(topic, {})[queue.name] = None
            self._routes.clear()

    def _topic_of(self, name: str) -> str:
        """The virtual topic that the queue of that name consumes, "" = none."""
        words = words_of(name)
        count = len(self._consumers_prefix)
        if not self._virtual or len(words) <= count or not matches(self._consumers_prefix, words[:count]):
            return ""
        return "topic://" + ".".join(words[count:]) if matches(self._virtual, words[count:]) else ""

    def of(self, name: str) -> tuple[str, ...]:
        """The destinations of what is sent to `name`: itself alone, as a rule. Raises AccessError."""
        route = self._routes.get(name)
        if route is None:
            route = self._find(name)
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[name] = route
        return route

    def _find(self, name: str) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for part in name.split(","):
            check_sent_to(part)
            if is_temporary(part):
                found[part] = None
                continue
            options = self._broker.options_of(part)
            if not options.divert or not options.divert_exclusive:
                found[part] = None
            if options.divert:
                found[QUEUE_SCHEME + options.divert] = None
            if is_topic(part):
                found.update(self._consumers.get(part, {}))
        return tuple(found)

    def copies(self, message: Message, route: tuple[str, ...], peer: Peer | None) -> list[Message]:
        """`message` for each of its destinations. They share the body; queues, also in the journal."""
        made: list[Message] = []
        queues = [name for name in route if is_stored(name)]
        shared = Shared(peer, len(queues) - 1, encodes=False)
        for name in route:
            if len(queues) > 1 and is_stored(name):
                copy = Copy.of(message, name)
                copy.original, copy.shared = message, shared
                made.append(copy)
                continue
            properties = message.properties
            if name != message.destination:
                properties = {**(properties or {}), ORIGINAL_DESTINATION: wire_name(message.destination)}
            made.append(Message.made_of(message, name, properties))
            if not is_stored(name):
                made[-1].shared = Shared(peer)
        return made

    def publish(self, message: Message, peer: Peer, receipt: str) -> Room | None:
        """Send `message` to its topic. Returns what it must wait for, None = nothing."""
        if self._broker.durables.hears(message.destination):
            return self.send([message], peer, receipt)
        self._broker.topics.publish(message, peer, receipt)
        return None

    def send(self, messages: list[Message], peer: Peer, receipt: str) -> Room | None:
        """Send `messages`, copies of one, together. Returns what they must wait for, None = nothing.

        What is stored already, or is being stored, is not stored again. Raises StoreFullError,
        TransactionRolledBackError.
        """
        broker = self._broker
        transaction = Transaction(broker, "")
        known = []
        for message in messages:
            name, id = message.queue_name, message.duplicate_id
            if message.persistent and id and is_queued(name) and broker.is_duplicate(message):
                known.append(message)
            else:
                transaction.add([message])
        if known and not transaction.sends:  # resent: what went to topics did so as well
            pending = broker.queue(known[-1].queue_name).duplicates_pending
            broker.follow(pending.get(known[-1].duplicate_id), peer, receipt)
            return None
        for message in transaction.sends:
            if message.shared is not None:
                message.shared.others = len(transaction.sends) - 1
        transaction.sends_to_durables = True
        broker.durables.add_copies(transaction)
        first = None if transaction.sends else broker.durables.on_its_way(transaction.published)
        if first is not None:  # resent: what it was sent for is not done yet
            broker.follow(first, peer, receipt)
            return None
        room = broker.limits.room_to_commit(transaction)
        if room is None:
            broker.memory_bytes += memory_bytes(transaction.sends + transaction.published)
            broker.commit(transaction, peer, receipt, "")
        return room
