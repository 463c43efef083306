"""Views: rows that show what a master has. Each is built of plain values, so that it can go to another process.

Counters (`enqueued`, `dequeued`) begin anew with each mastership, with what the new master read of the journal;
`messages`, `in_flight` and `bytes` are true at every moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from amq.broker.broker import Broker
from amq.broker.queues.queue import NO_LIMIT, Queue, Subscription
from amq.broker.sessions.traffic import Traffic
from amq.broker.topics.patterns import Patterns
from amq.broker.topics.wildcards import WildcardSubscription
from amq.broker.transfer.outbox import OutboxRow
from amq.core.destination import QUEUE_SCHEME, TOPIC_SCHEME, Pattern, Source, plain_name, told, wire_name, words_of
from amq.journal.live import Segment
from amq.journal.records import Prepared
from amq.journal.records.subscription import Subscribed
from amq.management.listing import Row, Table
from amq.management.slices import Slices, pieces

TEXT_CHARS_MAX = 300  # of a selector or a list of destinations in a row
May = Callable[[str], bool]  # may the viewer see the destination of that full name?


class Counted(NamedTuple):
    """The counters of the queue or topic of that full name: messages that came, that left, and that are there."""

    name: str
    enqueued: int
    dequeued: int
    messages: int


def queues(broker: Broker) -> Table[Queue]:
    """The table of queues that can be named."""

    def more(queue: Queue) -> Row:
        limit = queue.options.queue_limit_bytes
        return {
            "paused": queue.name in broker.paused,
            "dead_letter_queue": queue.is_dead_letter_queue,
            "limit_bytes": limit if limit < NO_LIMIT else 0,
            "oldest_ms": oldest_ms(queue),
            "divert": _short(queue.options.divert),
        }

    return Table(_name, QUEUE_FIELDS, more)


def _name(queue: Queue) -> str:
    return plain_name(queue.name)


QUEUE_FIELDS: dict[str, Callable[[Queue], int]] = {
    "messages": lambda queue: queue.stored,
    "in_flight": lambda queue: queue.stored - queue.waiting,
    "delayed": lambda queue: len(queue.delayed),
    "consumers": lambda queue: len(queue.subscriptions),
    "enqueued": lambda queue: queue.enqueued + queue.brought[0],
    "dequeued": lambda queue: queue.acknowledged + queue.brought[1],
    "bytes": lambda queue: queue.stored_bytes,
    "memory_bytes": lambda queue: queue.resident_bytes,
}


def oldest_ms(queue: Queue) -> int | None:
    """When the broker got the oldest message of `queue`, by its wall clock. None = there is none, or only the disk
    knows."""
    first = next(iter(queue.messages.values()), None)
    if first is None or any(backlog.first < first.seq for backlog in queue.backlogs.values()):
        return None
    return first.timestamp_ms or None


def named_queues(broker: Broker, may: May) -> Iterator[Queue]:
    return (
        queue for queue in list(broker.state.queues.values()) if queue.name.startswith(QUEUE_SCHEME) and may(queue.name)
    )


class DurablyHeard:
    """The durable subscriptions at one moment, by topic."""

    def __init__(self) -> None:
        self.by_name: Counter[str] = Counter()  # subscriptions to a topic by its full name
        self._consumers: Counter[tuple[Source, ...]] = Counter()  # by the topics that they get
        self._patterns: Patterns[tuple[Source, ...]] = Patterns()

    def add(self, record: Subscribed, consumers: int) -> None:
        """`record` is one of them, and has so many consumers now."""
        self.by_name.update(record.topics)
        if consumers:
            sources = record.sources
            self._consumers[sources] += consumers
            for each in sources:
                self._patterns.add(each.words if isinstance(each, Pattern) else words_of(each), sources)

    def consumers(self, topic: str) -> int:
        """The consumers that get what is sent to the topic of that full name."""
        return sum(self._consumers[each] for each in {*self._patterns.match(words_of(topic))})


def topics(broker: Broker, durably: DurablyHeard) -> Table[str]:
    """Of topics in use, by their full names."""
    fields: dict[str, Callable[[str], int]] = {
        "consumers": lambda name: broker.topics.consumers(name) + durably.consumers(name),
        "durable_subscriptions": lambda name: durably.by_name[name],
        "enqueued": broker.known_topics.enqueued,
    }
    return Table(plain_name, fields, lambda _: {})


async def durably_heard(broker: Broker, slices: Slices) -> DurablyHeard:
    found = DurablyHeard()
    async with slices.work() as work:
        for piece in pieces(broker.durables.records()):
            for record in piece:
                queue = broker.state.queues.get(record.queue)
                found.add(record, len(queue.subscriptions) if queue is not None else 0)
            await work.did(len(piece))
    return found


def named_topics(broker: Broker, may: May) -> Iterator[str]:
    return (name for name in broker.known_topics if name.startswith(TOPIC_SCHEME) and may(name))


def counted(broker: Broker) -> Iterator[Counted]:
    """The counters of all queues and topics that can be named."""
    for queue in named_queues(broker, lambda _: True):
        yield Counted(queue.name, queue.enqueued, queue.acknowledged, queue.stored)
    for name in list(named_topics(broker, lambda _: True)):
        yield Counted(name, broker.known_topics.enqueued(name), 0, 0)


def subscriptions(broker: Broker) -> Table[Subscribed]:
    """The table of durable subscriptions."""

    def of_queue(field: str) -> Callable[[Subscribed], int]:
        def value(record: Subscribed) -> int:
            queue = broker.state.queues.get(record.queue)
            return QUEUE_FIELDS[field](queue) if queue is not None else 0

        return value

    fields = {field: of_queue(field) for field in QUEUE_FIELDS}
    return Table(
        lambda record: str(record.definition["name"]),
        fields,
        lambda record: {
            "client_id": record.definition["client_id"],
            "topics": _short(told(record.sources)),
            "selector": _short(record.selector),
            "user": record.user,
        },
    )


class PresentPeer(Protocol):
    """A client that is there, as `amq.transports.peer.Peer` has it."""

    number: int
    user: str
    client_id: str
    peer_name: str
    codec: Any
    client: Any

    def abort(self) -> None: ...


class HeldConsumer(NamedTuple):
    """A consumer and the connection and session whose it is."""

    connection: Any
    session: int
    subscription: Subscription


def connections() -> Table[PresentPeer]:
    """Of all sockets, also before a login."""
    return Table(
        lambda each: connection_id(each),
        {
            "sessions": lambda each: len(each.client.sessions) if each.client is not None else 0,
            "consumers": lambda each: sum(1 for _ in _consumers_of(each.client)),
            "producers": lambda each: len(each.client.producers) if each.client is not None else 0,
        },
        lambda each: {
            "user": each.user,
            "client_id": each.client_id,
            "address": each.peer_name,
            "protocol": each.codec.name if each.codec is not None else "",
            "slow": each.client is not None and not each.client.is_writable,
            "blocked": each.client is not None and each.client.session_that_waits() is not None,
        },
    )


def connection_id(each: PresentPeer) -> str:
    """The name of a connection here: that of its client where it has logged in, else its number."""
    return str(each.client.id) if each.client is not None and each.client.id else f"#{each.number}"


def consumers() -> Table[HeldConsumer]:
    """The table of consumers that take messages."""
    return Table(
        lambda each: f"{each.connection.id}:{each.session}:{each.subscription.id}",
        {
            "in_flight": lambda each: each.subscription.held,
            "prefetch": lambda each: each.subscription.prefetch,
            "priority": lambda each: each.subscription.priority,
        },
        lambda each: {
            "connection": each.connection.id,
            "user": each.connection.client.user.name,
            "client_id": each.connection.client.id,
            "destination": _short(_sources(each.subscription)),
            "selector": _short(each.subscription.selector.text if each.subscription.selector is not None else ""),
            "exclusive": each.subscription.exclusive,
            "acknowledges": not each.subscription.auto,
            "waits_for_messages": each.subscription.is_ready,
        },
    )


def held_consumers(broker: Broker, destination: str = "") -> Iterator[HeldConsumer]:
    """Of all connections; with `destination`, as a row shows it, those that consume just that."""
    for client in list(broker.connections):
        for number, subscription in _consumers_of(client):
            if not destination or _short(_sources(subscription)) == destination:
                yield HeldConsumer(client, number, subscription)


def _consumers_of(client: Any) -> Iterator[tuple[int, Subscription]]:
    if client is not None:
        for number, session in list(client.sessions.items()):
            for subscription in list(session.consumers()):
                yield number, subscription


def _sources(subscription: Subscription) -> str:
    if isinstance(subscription, WildcardSubscription):
        return told(subscription.sources)
    return ",".join(wire_name(str(source)).removeprefix("/queue/") for source in subscription.sources)


def prepared() -> Table[Prepared]:
    """The table of prepared transactions."""
    return Table(
        lambda each: str(each.xid),
        {
            "created_ms": lambda each: each.created_ms,
            "timeout_ms": lambda each: each.timeout_ms,
            "sends": lambda each: sum(map(len, each.sends.values())),
            "acknowledges": lambda each: sum(map(len, each.acks.values())),
        },
        lambda each: {"user": each.user, "owner": each.owner, "batch": each.batch},
    )


def listed_prepared(broker: Broker) -> Iterable[Prepared]:
    return broker.two_phase.listed()


def outboxes() -> Table[OutboxRow]:
    """The table of outboxes: what this store leads to destinations of other stores."""
    return Table(
        lambda each: wire_name(each.destination),
        {
            "messages": lambda each: each.messages,
            "bytes": lambda each: each.bytes,
            "since_ms": lambda each: each.since_ms,
        },
        lambda each: {"to_store": each.store, "reason": _short(each.trouble)},
    )


def segments() -> Table[Segment]:
    """The table of segments of the journal."""
    return Table(
        lambda each: each.name,
        {
            "epoch": lambda each: each.epoch,
            "number": lambda each: each.number,
            "bytes": lambda each: each.end,
            "live_messages": lambda each: each.live,
            "live_bytes": lambda each: each.live_bytes,
        },
        lambda _: {},
    )


def totals(broker: Broker) -> Row:
    """Figures of the whole broker that cost nothing to know."""
    journal, memory, outboxes = broker.journal, broker.memory, [*broker.outbox.rows()]
    doubts = [prepared.created_ms for prepared, _ in broker.spanning.in_doubt()]
    return {
        "came_back": broker.redelivery.came_back,
        "queues": len(broker.state.queues),
        "connections": len(broker.connections),
        "topics": len(broker.known_topics),
        "prepared": len(broker.state.prepared),
        "in_doubt": len(doubts),
        "in_doubt_s": max(0.0, (broker.clock.wall_ms() - min(doubts)) / 1000) if doubts else 0.0,
        "outbox_messages": sum(row.messages for row in outboxes),
        "outbox_since_ms": min((row.since_ms for row in outboxes if row.since_ms), default=None),
        "memory_used_bytes": memory.taken_bytes,
        "memory_limit_bytes": memory.limit_bytes,
        "journal_segments": len(journal.segments),
        "store_used_bytes": sum(segment.file_bytes or segment.end for segment in journal.segments),
        "store_limit_bytes": broker.config.store_limit_bytes,
        "store_full": journal.disk_full,
        "store_at_limit": journal.at_limit,
        "journal_written_bytes": journal.bytes_written,
        "journal_batches": journal.batches,
        "journal_sync": journal.syncs.to_json(),
    }


async def clients(connected: Iterable[PresentPeer], slices: Slices) -> Row:
    """Of those that have logged in: how many speak each protocol, and how many wait for room to send."""
    speak: Counter[str] = Counter()
    blocked = 0
    async with slices.work() as work:
        for piece in pieces(connected):
            for each in piece:
                if each.client is not None:
                    speak[each.codec.name] += 1
                    blocked += each.client.session_that_waits() is not None
            await work.did(len(piece))
    return {"protocols": dict(speak), "blocked": blocked}


def traffic(by_protocol: Mapping[str, Traffic]) -> Row:
    """Messages that clients sent, were given and acknowledged, each by protocol."""
    return {
        part: {protocol: getattr(each, part) for protocol, each in by_protocol.items()} for part in Traffic.__slots__
    }


async def sums(broker: Broker, slices: Slices) -> Row:
    """Of all queues together, and of their consumers."""
    found = dict.fromkeys(QUEUE_FIELDS, 0)
    named, dead, without = 0, 0, 0
    async with slices.work() as work:
        for piece in pieces(named_queues(broker, lambda _: True)):
            named += len(piece)
            for queue in piece:
                stored = queue.stored  # as `QUEUE_FIELDS` say, each looked at once
                found["messages"] += stored
                found["in_flight"] += stored - queue.waiting
                found["delayed"] += len(queue.delayed)
                found["consumers"] += len(queue.subscriptions)
                found["enqueued"] += queue.enqueued
                found["dequeued"] += queue.acknowledged
                found["bytes"] += queue.stored_bytes
                found["memory_bytes"] += queue.resident_bytes
                if stored and queue.is_dead_letter_queue:
                    dead += stored
                elif stored and not queue.subscriptions:
                    without += 1
            await work.did(len(piece))
    return {**found, "named_queues": named, "dead_letters": dead, "queues_without_consumers": without}


def _short(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else text[:TEXT_CHARS_MAX] + "…"
