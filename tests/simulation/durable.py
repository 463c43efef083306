"""Durable subscriptions to a topic: exclusive, shared, with a selector; subscribers are away, end, and come anew.

A message counts once for each subscription, under a separate identity: `ID@QUEUE`, as each that begins anew has its
own queue. The checker: a subscription that was confirmed is there with each later master, and misses nothing that was
sent and confirmed after that; it gets what its selector is true for, in the order of each producer, and nothing again
that it acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random

from amq.broker.broker import Broker
from amq.broker.names import SUBSCRIPTION_SCHEME
from amq.broker.queues.queue import Subscription
from amq.client import aio
from amq.config.destination_options import DestinationOptions
from amq.core.message import Message
from amq.core.ownership import given
from amq.journal.batch import OpenBatch
from amq.journal.records import Group, Record
from amq.journal.records.multicast import Multicast
from amq.transports.peer import Peer
from tests.simulation.clients import CALL_S, Consumer, Producer, application_id
from tests.simulation.features import Feature, Make
from tests.simulation.limits import identity
from tests.simulation.oracle import Oracle

TOPIC = "/topic/t"
COLORS = ("red", "green")


@dataclass(slots=True)
class Durable:
    """One subscription. `churns` = it is ended now and then.

    missable  ids of messages that it need not get: whose sending began before it was confirmed. None = it is not there
    last      producer → number of the newest message that came, while there is one consumer
    """

    client_id: str
    name: str
    color: str = ""
    churns: bool = False
    missable: set[str] | None = None
    last: dict[str, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.client_id}:{self.name}"

    @property
    def selector(self) -> str:
        return f"color = '{self.color}'" if self.color else ""


class Durables(Feature):
    """Subscriptions by key. `begun` = ids of messages that somebody began to send."""

    destinations = (DestinationOptions("t", {"queue_limit_bytes": 0}),)

    def __init__(self, oracle: Oracle, seed: int) -> None:
        super().__init__(oracle, seed)
        red = Durable("alice", "red", self.dice.choice(COLORS), churns=self.dice.random() < 0.7)
        self.known = {each.key: each for each in (Durable("bob", "all"), red, Durable("", "shared"))}
        self.begun: set[str] = set()
        self.confirmed: set[str] = set()
        self.identities: dict[int, str] = {}  # by seq
        self._queues: dict[str, set[str]] = {key: set() for key in self.known}  # by subscription

    def applications(self) -> list[Make]:
        prefetch = self.dice.choice((1, 5, 50))
        bob, red, shared = self.known.values()
        subscriber = partial(Subscriber, feature=self, prefetch=prefetch)
        return [
            *(partial(Publisher, feature=self, burst=burst) for burst in (1, 8)),
            *(partial(subscriber, durable=each) for each in (bob, red, shared, shared)),
        ]

    def _broken(self, what: str) -> None:
        self.oracle.broken("durable", what)

    def subscribed(self, durable: Durable) -> None:
        """Somebody learned that it is there."""
        self.oracle.log(f"subscribed {durable.key}")
        if durable.missable is None:
            durable.missable = set(self.begun)

    def received(self, durable: Durable, message_id: str) -> None:
        """Its consumer gets it next."""
        sent = self.oracle.sent[message_id]
        if sent.deliveries or sent.may_be_early or not durable.client_id:
            return
        if sent.number < durable.last.get(sent.producer, -1):
            self._broken(f"{durable.key} gets {message_id} behind number {durable.last[sent.producer]}")
        durable.last[sent.producer] = sent.number

    def committed(self, _broker: Broker, batch: OpenBatch) -> None:
        for record in _flat(batch.records):
            if isinstance(record, Multicast):
                for copy in record.held():
                    self._stored(copy)

    def _stored(self, message: Message) -> None:
        """It is stored, or is going to be."""
        queue = message.queue_name
        if queue.startswith(SUBSCRIPTION_SCHEME) and message.seq not in self.identities:
            base, id = self.oracle.sent[given(message.duplicate_id)], identity(message)
            missable = self.known[subscriber_of(queue)].missable
            self.oracle.sending(id, queue, base.producer, base.number)
            # Sent before the subscription began, and once more after it: it has a place only in those that were there.
            before = missable is None or given(message.duplicate_id) in missable
            self.oracle.sent[id].may_be_early = base.may_be_early or before
            self.oracle.counts["for durable subscriptions"] += 1
            self.identities[message.seq] = id
            self._queues[subscriber_of(queue)].add(queue)

    def begins(self, broker: Broker, found: dict[str, dict[int, Message]]) -> None:
        for messages in found.values():
            for message in messages.values():
                self._stored(message)
        there = {subscriber_of(name) for name in broker.state.subscriptions}
        present = {seq for messages in found.values() for seq in messages}
        for durable in self.known.values():
            if durable.missable is not None and durable.key not in there:
                self._broken(f"epoch {broker.epoch} does not know {durable.key}")
            if durable.churns:  # what waited for it may have gone with it
                queues = self._queues[durable.key]
                stored = {seq for seq, id in self.identities.items() if id.partition("@")[2] in queues}
                self.oracle.withdrawn |= stored - present

    def delivers(self, _connection: Peer, subscription: Subscription, message: Message) -> None:
        if subscription.queue.name.startswith(SUBSCRIPTION_SCHEME):
            durable = self.known[subscriber_of(subscription.queue.name)]
            if durable.color and (message.properties or {}).get("color") != durable.color:
                self._broken(f"{durable.key} gets {given(message.duplicate_id)}, for which its selector is not true")

    def finish(self) -> None:
        for durable in self.known.values():
            for message_id in self.confirmed - (self.begun if durable.missable is None else durable.missable):
                if durable.color and color_of(message_id) != durable.color:
                    continue
                self.oracle.counts["not missed"] += 1
                if not any(self.oracle.arrived(f"{message_id}@{queue}") for queue in self._queues[durable.key]):
                    self._broken(f"{durable.key} missed {message_id}")


def subscriber_of(queue: str) -> str:
    """`CLIENT:NAME` of the durable subscription for which messages wait in that queue."""
    return queue.removeprefix(SUBSCRIPTION_SCHEME).rpartition(":")[0]


def color_of(message_id: str) -> str:
    return COLORS[int(message_id.rpartition(":")[2]) % len(COLORS)]


def _flat(records: list[Record]) -> Iterator[Record]:
    for record in records:
        yield from record.records if isinstance(record, Group) else (record,)


class Publisher(Producer):
    """Sends to the topic."""

    def __init__(self, name: str, url: str, oracle: Oracle, rng: Random, feature: Durables, burst: int) -> None:
        super().__init__(name, url, oracle, rng, TOPIC, burst, 200)
        self._feature = feature

    def headers(self, message_id: str) -> dict[str, str] | None:
        return {"color": color_of(message_id)}

    def _next(self) -> None:
        super()._next()
        self._feature.begun.update(self._pending)

    def _confirmed(self, message_id: str) -> None:
        self._feature.confirmed.add(message_id)
        self.oracle.log(f"published {message_id}")


class Subscriber(Consumer):
    """Comes and goes."""

    def __init__(
        self, name: str, url: str, oracle: Oracle, rng: Random, feature: Durables, durable: Durable, prefetch: int
    ) -> None:
        super().__init__(name, url, oracle, rng, TOPIC, prefetch)
        self.client_id = durable.client_id
        self._feature = feature
        self._durable = durable

    async def work(self, connection: aio.Connection) -> None:
        if self._durable.churns and not self.stopping and self.rng.random() < 0.4:
            self._durable.missable = None
            self._durable.last.clear()
            await connection.session().unsubscribe(self._durable.name, CALL_S)
            self.oracle.counts["subscriptions ended"] += 1
        if not self.stopping and self.rng.random() < 0.4:
            await self.nap(1.5)
        await super().work(connection)

    async def _subscribe(self, session: aio.Session) -> aio.Consumer:
        durable = self._durable
        consumer = await session.consumer(
            TOPIC, prefetch=self._prefetch, selector=durable.selector, subscription=durable.name, timeout=CALL_S
        )
        self._feature.subscribed(durable)
        return consumer

    def _id(self, message: aio.Message) -> str:
        message_id = self._feature.identities[self.oracle.seq_of(message.id)]
        if message_id.partition("@")[0] != application_id(message):
            self.oracle.broken("P5", f"{message.id} is {application_id(message)}, stored was {message_id}")
        self._feature.received(self._durable, message_id)
        return message_id
