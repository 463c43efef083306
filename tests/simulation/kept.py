"""Queues that keep less than all: of each key the last value, or the newest few.

The checker: a value goes when a newer one of its key is stored, and no earlier; nobody is given one beside which a
newer one waits; from the ring a message goes when as many younger ones as it holds are stored; and the last value of
each key, and the last ones of the ring, are delivered.
"""

from __future__ import annotations

from functools import partial
from random import Random

from amq.broker.broker import Broker
from amq.broker.queues.queue import Subscription
from amq.client import aio
from amq.config.destination_options import DestinationOptions
from amq.core.message import Message
from amq.core.ownership import given
from amq.journal.batch import OpenBatch
from amq.journal.records import PURGED, Consumed
from amq.transports.peer import Peer
from tests.simulation.clients import CALL_S, Consumer, Producer
from tests.simulation.features import Feature, Make
from tests.simulation.oracle import Oracle

VALUES, RING = "v", "r"
KEY = "symbol"
KEYS = 3
RING_SIZE = 4
FULL_NAMES = tuple(f"queue://{name}" for name in (VALUES, RING))


def key_of(message_id: str) -> str:
    return f"key {int(message_id.rpartition(':')[2]) % KEYS}"


class Kept(Feature):
    """Of one queue of each kind. `_stored` = all that ever was there, by full name of the queue: {seq: id}."""

    destinations = (
        DestinationOptions(VALUES, {"queue_limit_bytes": 0, "last_value_key": KEY}),
        DestinationOptions(RING, {"queue_limit_bytes": 0, "ring_size": RING_SIZE}),
    )

    def __init__(self, oracle: Oracle, seed: int) -> None:
        super().__init__(oracle, seed)
        self.confirmed: set[str] = set()
        self._stored: dict[str, dict[int, str]] = {name: {} for name in FULL_NAMES}

    def applications(self) -> list[Make]:
        return [
            *(partial(Quoter, feature=self, queue=queue, burst=self.dice.choice((1, 6))) for queue in (VALUES, RING)),
            *(partial(Taker, queue=queue, prefetch=self.dice.choice((1, 3))) for queue in (VALUES, RING)),
        ]

    def _broken(self, what: str) -> None:
        self.oracle.broken("kept", what)

    def _younger(self, name: str, seq: int) -> list[str]:
        """Ids of what is stored behind `seq`, and counts when it comes to dropping that."""
        stored = self._stored[name]
        same_key = key_of(stored[seq]) if name == FULL_NAMES[0] else ""
        return [id for each, id in stored.items() if each > seq and same_key in ("", key_of(id))]

    def _may_go(self, name: str, seq: int) -> bool:
        return len(self._younger(name, seq)) >= (1 if name == FULL_NAMES[0] else RING_SIZE)

    def committed(self, _broker: Broker, batch: OpenBatch) -> None:
        for record in batch.records:
            if isinstance(record, Message) and record.destination in self._stored:
                self._stored[record.destination][record.seq] = given(record.duplicate_id)
        for record in batch.records:
            if isinstance(record, Consumed) and record.reason == PURGED and record.destination in self._stored:
                for seq in record.seqs:
                    self._go(record.destination, seq)

    def _go(self, name: str, seq: int) -> None:
        id = self._stored[name][seq]
        if not self._may_go(name, seq):
            self._broken(f"{id} went, behind it are {self._younger(name, seq)}")
        if self.oracle.sent[id].acked_epoch:
            self._broken(f"{id} went, and was acknowledged")
        self.oracle.withdrawn.add(seq)
        self.oracle.counts[f"dropped from {name}"] += 1

    def begins(self, _broker: Broker, found: dict[str, dict[int, Message]]) -> None:
        for name, stored in self._stored.items():
            here = found.get(name, {})
            stored.update((seq, given(message.duplicate_id)) for seq, message in here.items())
            # Some went in what was durable when their master died, and not yet confirmed.
            for seq in stored.keys() - here.keys() - self.oracle.withdrawn:
                if self._may_go(name, seq):
                    self.oracle.withdrawn.add(seq)

    def delivers(self, _connection: Peer, subscription: Subscription, message: Message) -> None:
        queue = subscription.queue
        if queue.name != FULL_NAMES[0]:
            return
        self.oracle.counts["last values"] += 1
        held = {seq for each in queue.subscriptions for seq in each.unacked}
        key = (message.properties or {}).get(KEY)
        waiting = [each for each in queue.messages.values() if each.seq not in held and each.seq > message.seq]
        newer = [given(each.duplicate_id) for each in waiting if (each.properties or {}).get(KEY) == key]
        if newer:
            self._broken(f"{given(message.duplicate_id)} is delivered, and {newer} of its key wait")

    def finish(self) -> None:
        values, ring = ([id for _, id in sorted(stored.items())] for stored in self._stored.values())
        if lost := self.confirmed - {*values, *ring}:
            self._broken(f"{lost} were confirmed, and never stored")
        for id in (*{key_of(id): id for id in values}.values(), *ring[-RING_SIZE:]):
            self.oracle.counts["last ones that arrived"] += 1
            if not self.oracle.arrived(id):
                self._broken(f"{id} was the last, and nobody got it")


class Quoter(Producer):
    """Sends values, each of which the next one of its key replaces."""

    def __init__(self, name: str, url: str, oracle: Oracle, rng: Random, feature: Kept, queue: str, burst: int) -> None:
        super().__init__(name, url, oracle, rng, queue, burst, 100)
        self._feature = feature

    def headers(self, message_id: str) -> dict[str, str] | None:
        return {KEY: key_of(message_id)}

    def _confirmed(self, message_id: str) -> None:
        self._feature.confirmed.add(message_id)
        self.oracle.log(f"quoted {message_id}")


class Taker(Consumer):
    """Takes a few, and is away in between, so that something has to go."""

    async def work(self, connection: aio.Connection) -> None:
        session = connection.session()
        while True:
            if not self.stopping:
                await self.nap(1.5)
            consumer = await self._subscribe(session)
            for _ in range(50 if self.stopping else self.rng.randint(1, 5)):
                message = await consumer.receive(0.3)
                if message is None:
                    break
                self.oracle.delivered(self._id(message), message.id, self.epoch(connection))
                await self._acknowledge(connection, message)
            await consumer.close(CALL_S)
