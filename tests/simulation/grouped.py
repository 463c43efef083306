"""Worlds with message groups, beside all the rest: no group may be with two consumers of one master at once.

Applications and options come on top of those of `World`, with dice of their own: the histories of the other worlds stay
as they are.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

from amq.broker.groups import GROUP_ID
from amq.broker.subscription import Subscription
from amq.message import Message
from amq.transports.connection import Connection
from tests.simulation.clients import Consumer, Mover, Producer
from tests.simulation.limits import DLQ
from tests.simulation.oracle import Oracle
from tests.simulation.world import Result, World

GROUPS = 5
QUEUE = "g"


class GroupProducer(Producer):
    """Its messages are in groups."""

    def headers(self, message_id: str) -> dict[str, str] | None:
        return {GROUP_ID: f"group {int(message_id.rpartition(':')[2]) % GROUPS}"}


class GroupedWorld(World):
    """Consumers come and go, some of them work in transactions, and groups are given out anew with each that comes."""

    def _limits(self, segment_bytes: int) -> dict[str, Any]:
        dice = Random(f"groups of {self.seed}")
        return super()._limits(segment_bytes) | {
            "group_rebalance": dice.random() < 0.7, "group_buckets": dice.choice((2, 1024)),
        }  # fmt: skip

    def _make_applications(self, rng: Random) -> None:
        super()._make_applications(rng)
        dice = Random(f"applications with groups of {self.seed}")
        uris = ",".join(f"{slot.config.transports[0]}?heartBeat=1000&connectTimeout=1000" for slot in self.slots)
        made: list[Any] = [
            partial(GroupProducer, queue=QUEUE, burst=4, body_bytes=100),
            *(partial(Consumer, queue=QUEUE, prefetch=dice.choice((2, 5))) for _ in range(3)),
            partial(Mover, source=QUEUE, target="d"),
            partial(Consumer, queue=DLQ + QUEUE, prefetch=5),
        ]
        for make in made:
            name = f"client{len(self.applications)}"
            application = make(name, f"failover:({uris})", self.oracle, Random(dice.getrandbits(64)))
            self.applications.append((application, self._machine(name, dice)))

    def run(self) -> Result:
        deliver = Connection.deliver

        def see(connection: Connection, subscription: Subscription, message: Message, redelivered: int) -> None:
            _check(self.oracle, connection, subscription, message)
            deliver(connection, subscription, message, redelivered)

        with patch.object(Connection, "deliver", see):
            return super().run()


def _check(oracle: Oracle, connection: Connection, subscription: Subscription, message: Message) -> None:
    group = (message.properties or {}).get(GROUP_ID)
    if group is None or message.seq not in subscription.unacked:
        return
    oracle.counts["in groups"] += 1
    held = [(each, other) for other in subscription.queue.subscriptions for each in other.unacked.values()]
    for peer in connection._hub.connections.values():  # type: ignore[attr-defined]
        for transaction in peer.session._transactions.values() if peer.session is not None else ():
            held += [(each, other) for other, each in transaction.acks + transaction.nacks]
    for each, other in held:
        same_queue = other.queue is subscription.queue
        if other is not subscription and same_queue and (each.properties or {}).get(GROUP_ID) == group:
            what = f"{message.duplicate_id} goes to one consumer while {each.duplicate_id} is with another"
            oracle.broken("groups", what)
