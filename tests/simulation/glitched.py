"""Clients that get their connection back after a glitch: what they hold stays theirs, and nothing counts twice.

The checker: within one session of a broker a message comes once; what a session holds that was given back to its client
went to nobody else meanwhile; a transaction of such a session is not rolled back; neither side finds the stream of the
other damaged. And by the end of the run whatever
killed programs held has gone to others, or queues would not be empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from amq.client import ConnectionEvent, EventKind, aio
from amq.core.errors import AmqError, ProtocolError
from tests.simulation.clients import Consumer, Mover, Producer, TransactedProducer
from tests.simulation.features import Feature, Make
from tests.simulation.limits import DLQ
from tests.simulation.oracle import Oracle

if TYPE_CHECKING:
    from tests.simulation.world import World

QUEUE = "w"
Session = tuple[aio.Connection, int]  # of a broker: the connection, and the number of its session there
ROLLED_BACK_BY_BROKERS = ("DUPLICATE_ID", "QUEUE_FULL", "STORE_LIMIT", "STORE_FULL", "TRANSACTION_TIMEOUT")


@dataclass(slots=True)
class Hold:
    """A message that a client has and has not settled. `taken_by` = who else got it meanwhile."""

    session: Session
    taken_by: str = ""


class Glitched(Feature):
    """`held` = message id → who has it."""

    def __init__(self, oracle: Oracle, seed: int) -> None:
        super().__init__(oracle, seed)
        self.held: dict[str, Hold] = {}

    def prepare(self, world: World) -> None:
        world.network.cut_chance = max(world.network.cut_chance, self.dice.choice((0.005, 0.02)))

    def applications(self) -> list[Make]:
        window_ms = self.dice.choice((1000, 5000))
        holder = partial(Holder, feature=self, window_ms=window_ms)
        return [
            partial(Returning, queue=QUEUE, burst=self.dice.choice((1, 8)), body_bytes=100, window_ms=window_ms),
            partial(ReturningInTransactions, queues=[QUEUE, "d"], feature=self, window_ms=window_ms),
            *(partial(holder, prefetch=self.dice.choice((1, 5, 20))) for _ in range(3)),
            partial(ReturningMover, source=QUEUE, target="d", window_ms=window_ms),
            partial(Consumer, queue=DLQ + QUEUE, prefetch=5),
        ]

    def received(self, name: str, session: Session, message_id: str) -> None:
        hold = self.held.get(message_id)
        if hold is None:
            self.held[message_id] = Hold(session)
        elif hold.session == session:
            self.oracle.broken("reattachment", f"{message_id} came twice to {name} in one session")
        else:
            hold.taken_by = name

    def settled(self, session: Session, message_id: str) -> None:
        hold = self.held.get(message_id)
        if hold is not None and hold.session == session:
            del self.held[message_id]

    def told(self, connection: aio.Connection, event: ConnectionEvent) -> None:
        self.oracle.counts[event.kind.value] += 1
        self.oracle.log(f"{event.kind.value} {event.new_uri}")
        garbled = isinstance(event.error, ProtocolError) and event.error.code != "HEART_BEAT_MISSED"
        if event.kind is EventKind.INTERRUPTED and garbled:
            self.oracle.broken("reattachment", f"a stream is not what it was: {event.error}")
        session = connection, connection._machine.epoch
        for message_id, hold in self.held.items():
            if event.kind is EventKind.REATTACHED and hold.session == session and hold.taken_by:
                what = f"{message_id} was given to {hold.taken_by}, and a session was given back that holds it"
                self.oracle.broken("reattachment", what)

    def left(self, connection: aio.Connection) -> None:
        """It is closed."""
        self.held = {id: hold for id, hold in self.held.items() if hold.session[0] is not connection}


def returning(url: str, window_ms: int) -> str:
    return f"{url}&reconnectWindow={window_ms}"


class Returning(Producer):
    def __init__(
        self, name: str, url: str, oracle: Oracle, rng: Random, queue: str, burst: int, body_bytes: int, window_ms: int
    ) -> None:
        super().__init__(name, returning(url, window_ms), oracle, rng, queue, burst, body_bytes)


class ReturningInTransactions(TransactedProducer):
    def __init__(
        self, name: str, url: str, oracle: Oracle, rng: Random, queues: list[str], feature: Glitched, window_ms: int
    ) -> None:
        super().__init__(name, returning(url, window_ms), oracle, rng, queues)
        self._feature = feature
        self._connection: aio.Connection | None = None
        self._session = 0  # of the transaction

    async def work(self, connection: aio.Connection) -> None:
        connection.on_event(partial(self._feature.told, connection))
        self._connection = connection
        self._session = connection._machine.epoch
        await super().work(connection)

    def _begin(self) -> None:
        super()._begin()
        assert self._connection is not None
        self._session = self._connection._machine.epoch

    async def _rolled_back(self, error: AmqError, doubtful: bool) -> None:
        assert self._connection is not None
        machine = self._connection._machine
        is_same = machine.epoch == self._session and machine.line is not None
        if is_same and not doubtful and error.code not in ROLLED_BACK_BY_BROKERS:
            self.oracle.broken("reattachment", f"a transaction was rolled back, its session lives on: {error}")
        await super()._rolled_back(error, doubtful)


class ReturningMover(Mover):
    def __init__(
        self, name: str, url: str, oracle: Oracle, rng: Random, source: str, target: str, window_ms: int
    ) -> None:
        super().__init__(name, returning(url, window_ms), oracle, rng, source, target)


class Holder(Consumer):
    """Has messages for a while, and settles them one by one."""

    def __init__(
        self, name: str, url: str, oracle: Oracle, rng: Random, feature: Glitched, prefetch: int, window_ms: int
    ) -> None:
        super().__init__(name, returning(url, window_ms), oracle, rng, QUEUE, prefetch)
        self._feature = feature

    async def work(self, connection: aio.Connection) -> None:
        feature, machine = self._feature, connection._machine
        connection.on_event(partial(feature.told, connection))
        try:
            consumer = await self._subscribe(connection.session())
            held: list[tuple[aio.Message, Session]] = []
            for _ in range(self.rng.randint(20, 200)):
                message = await consumer.receive(0.3)
                if message is not None:
                    session = connection, machine.epoch
                    feature.received(self.name, session, self._id(message))
                    self.oracle.delivered(self._id(message), message.id, self.epoch(connection))
                    held.append((message, session))
                if message is None or len(held) >= min(self.rng.randint(1, 6), self._prefetch):
                    await self.nap(0.2)
                    if held and self.rng.random() < 0.05:
                        self._break_down(connection)
                        return
                    while held:
                        each, session = held.pop(self.rng.randrange(len(held)))
                        feature.settled(session, self._id(each))
                        await self._acknowledge(connection, each)
        finally:
            feature.left(connection)

    def _break_down(self, connection: aio.Connection) -> None:
        """As if it were killed: its sockets break, and nobody comes back."""
        self.oracle.counts["broken down"] += 1
        for wire in connection._driver._wires.values():
            if wire.transport is not None:
                wire.transport.abort()
