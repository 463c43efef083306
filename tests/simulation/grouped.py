"""Message groups: consumers come and go, some of them work in transactions, and groups are given out anew.

The checker: no group is with two consumers of one master at once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from amq.broker.queues.groups import GROUP_ID
from amq.broker.queues.queue import Subscription
from amq.core.message import Message
from amq.transports.peer import Peer
from tests.simulation.clients import Consumer, Mover, Producer
from tests.simulation.features import Feature, Make
from tests.simulation.limits import DLQ

GROUPS = 5
QUEUE = "g"


class GroupProducer(Producer):
    """Its messages are in groups."""

    def headers(self, message_id: str) -> dict[str, str] | None:
        return {GROUP_ID: f"group {int(message_id.rpartition(':')[2]) % GROUPS}"}


class Groups(Feature):
    """Of one queue."""

    def options(self) -> dict[str, Any]:
        return {"group_rebalance": self.dice.random() < 0.7, "group_buckets": self.dice.choice((2, 1024))}

    def applications(self) -> list[Make]:
        return [
            partial(GroupProducer, queue=QUEUE, burst=4, body_bytes=100),
            *(partial(Consumer, queue=QUEUE, prefetch=self.dice.choice((2, 5))) for _ in range(3)),
            partial(Mover, source=QUEUE, target="d"),
            partial(Consumer, queue=DLQ + QUEUE, prefetch=5),
        ]

    def delivers(self, connection: Peer, subscription: Subscription, message: Message) -> None:
        group = (message.properties or {}).get(GROUP_ID)
        if group is None or message.seq not in subscription.unacked:
            return
        self.oracle.counts["in groups"] += 1
        held = [(each, other) for other in subscription.queue.subscriptions for each in other.unacked.values()]
        for peer in connection._hub.connections.values():  # type: ignore[attr-defined]
            for session in peer.client.sessions.values() if peer.client is not None else ():
                for transaction in session._transactions.values():
                    held += [(each, other) for other, each in transaction.acks + transaction.nacks]
        for each, other in held:
            same_queue = other.queue is subscription.queue
            if other is not subscription and same_queue and (each.properties or {}).get(GROUP_ID) == group:
                what = f"{message.duplicate_id} goes to one consumer while {each.duplicate_id} is with another"
                self.oracle.broken("groups", what)
