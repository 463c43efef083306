"""Programs of JMS: clients of OpenWire that find the master by themselves, beside clients of STOMP on the same queues.

The checker: an acknowledgement that a broker confirmed is final; a message that was refused is not stored; a message
that a client moves in transactions is moved once; no client takes a message for a duplicate and gives it up; nothing is
in the dead-letter queue that no client gave up; a delivery counts as failed only where a client said so, or once for
all connections that were lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from amq.broker.broker import Broker
from amq.broker.queues.queue import Subscription
from amq.config.destination_options import DestinationOptions
from amq.core.message import Message
from amq.journal.batch import OpenBatch
from amq.journal.records import Group
from amq.transports.peer import Peer
from tests.simulation.clients import Consumer, Producer, TransactedProducer
from tests.simulation.features import Feature, Make
from tests.simulation.jms import Address, Options
from tests.simulation.jms_consumer import Got, Mode
from tests.simulation.jms_programs import JmsCoordinator, JmsMover, JmsReader, JmsSender, JmsTransactor
from tests.simulation.limits import DEAD, DLQ, GIVEN_UP, identity, is_dead_letter_queue
from tests.simulation.oracle import Oracle

if TYPE_CHECKING:
    from tests.simulation.gateways import GatewaySlot
    from tests.simulation.world import Slot, World

QUEUE, MOVED, TO_STOMP, FROM_STOMP = "jms", "jms-moved", "jms-to-stomp", "stomp-to-jms"
PORT_STEP = 100  # from the port for STOMP to that for OpenWire
UNLIMITED = (MOVED, FROM_STOMP, GIVEN_UP)
OF_JMS_ALONE = (QUEUE,)


class OpenWire(Feature):
    """`addresses` = of all brokers. `origins` = what became of which message by a move: {id: id of the source}."""

    destinations = tuple(DestinationOptions(name, {"queue_limit_bytes": 0}) for name in UNLIMITED)

    def __init__(self, oracle: Oracle, seed: int) -> None:
        super().__init__(oracle, seed)
        self.addresses: list[Address] = []
        self.origins: dict[str, str] = {}
        self.refused: set[str] = set()
        self._moved: dict[str, str] = {}  # source → the message that it became
        self._given_up: set[str] = set()
        self._acknowledged: dict[int, str] = {}  # seqs, as a broker confirmed
        self._returned: Counter[int] = Counter()  # by seq

    def prepare(self, world: World) -> None:
        self.open(world.slots)

    def open(self, slots: Sequence[Slot | GatewaySlot]) -> None:
        """Each broker or gateway opens a port for OpenWire as well, or one for both protocols."""
        both = self.dice.random() < 0.3
        for i, slot in enumerate(slots):
            (stomp,) = slot.config.transports
            host, port = stomp.partition("://")[2].rsplit(":", 1)
            number = int(port) if both else int(port) + PORT_STEP
            urls = (f"auto://{host}:{port}",) if both else (stomp, f"openwire://{host}:{number}")
            slot.config = replace(slot.config, transports=urls, update_cluster_clients=i % 2 == 0)
            self.addresses.append((host, number))

    def applications(self) -> list[Make]:
        dice = self.dice
        modes = [*Mode, dice.choice(list(Mode)), dice.choice(list(Mode))]
        made: list[Make] = [
            partial(JmsSender, feature=self, queue=QUEUE, burst=1),
            partial(JmsSender, feature=self, queue=dice.choice((QUEUE, TO_STOMP)), burst=6),
            partial(JmsTransactor, feature=self, queues=(QUEUE, TO_STOMP)),
            partial(JmsCoordinator, feature=self, queue=FROM_STOMP),
            partial(JmsMover, feature=self, source=FROM_STOMP, target=MOVED),
            *(partial(JmsReader, feature=self, queue=QUEUE, mode=mode) for mode in modes),
            partial(JmsReader, feature=self, queue=MOVED, mode=Mode.AUTO),
            partial(JmsReader, feature=self, queue=FROM_STOMP, mode=Mode.TRANSACTED),
            partial(Producer, queue=FROM_STOMP, burst=dice.choice((1, 5)), body_bytes=200),
            partial(TransactedProducer, queues=[FROM_STOMP, QUEUE]),
            partial(Consumer, queue=TO_STOMP, prefetch=3),
            partial(Consumer, queue=MOVED, prefetch=3),
            lambda *known: Consumer(*known, GIVEN_UP, 5, *(DLQ + name for name in (QUEUE, TO_STOMP))),
        ]
        return made

    def configured(self, dice: Random) -> Options:
        """A connection as its program wants it."""
        return Options(
            version=dice.choice((12, 12, 11, 10)),
            sync_acks=dice.random() < 0.5,
            doubts=dice.choice(("invents", "asks", "asks", "repeats")),
            clean_up_s=dice.choice((0.0, 0.0, 0.05, 0.5)),
        )

    # -- what programs see --------------------------------------------------------------------------------------------

    def id_of(self, got: Got) -> str:
        return (DEAD if is_dead_letter_queue(got.destination.get("name", "")) else "") + got.id

    def seen(self, got: Got) -> None:
        id = self.id_of(got)
        self.oracle.counts["JMS messages"] += 1
        self.oracle.delivered(id, f"{got.store}-{got.seq}", got.epoch)
        sent = self.oracle.sent.get(id)
        if sent is not None and sent.producer.startswith("ID:") and got.text != id:
            self.oracle.broken("identity", f"{id} has JMSMessageID {got.text}")
        most = self._returned[got.seq] + 1
        if got.destination.get("name") in OF_JMS_ALONE and got.counter > most:
            self.oracle.broken("redelivery", f"{id} came as redelivered {got.counter} times, {most} may count")

    def acknowledging(self, some: list[Got]) -> None:
        for got in some:
            self.oracle.acknowledging(self.id_of(got))

    def acknowledged(self, some: list[Got], epoch: int) -> None:
        """`epoch` 0 = on a later line: a broker says that the message has left, perhaps as a dead letter."""
        self.oracle.counts[f"JMS acknowledgements confirmed{'' if epoch else ' late'}"] += len(some)
        for got in some:
            if epoch:
                self.oracle.acknowledged(self.id_of(got), epoch)
            self._acknowledged[got.seq] = got.id

    def returned(self, some: list[Got]) -> None:
        self._returned.update(got.seq for got in some)

    def given_up(self, some: list[Got]) -> None:
        self.oracle.counts["given up"] += len(some)
        self._given_up.update(got.id for got in some)

    def suppressed(self, got: Got) -> None:
        """It was given up, perhaps, and the dead-letter queue did not take it."""
        if got.id not in self._given_up:
            self.oracle.broken("false dead letter", f"{got.id} came again under its id, and is given up as a duplicate")

    def stuck(self, what: str) -> None:
        self.oracle.broken("liveness", what)

    def log(self, what: str) -> None:
        self.oracle.log(what)

    # -- what brokers do ----------------------------------------------------------------------------------------------

    def committed(self, _broker: Broker, batch: OpenBatch) -> None:
        for record in batch.records:
            for part in record.records if isinstance(record, Group) else ():
                if isinstance(part, Message) and part.destination == f"queue://{GIVEN_UP}":
                    id = identity(part).removeprefix(DEAD)
                    if id not in self._given_up:
                        self.oracle.broken("false dead letter", f"nobody gave {id} up")

    def begins(self, _broker: Broker, _found: dict[str, dict[int, Message]]) -> None:
        for seq, (_, id) in self.oracle._stored.items():
            sent = self.oracle.sent.get(id)
            if sent is not None and self.oracle.groups.get(sent.group) == "rolled back":
                self.oracle.withdrawn.add(seq)  # it was prepared

    def delivers(self, _connection: Peer, _subscription: Subscription, message: Message) -> None:
        id = identity(message)
        if message.seq in self._acknowledged:
            self.oracle.broken("P2", f"{id} is delivered, and its acknowledgement was confirmed")
        if id in self.refused:
            self.oracle.broken("refusal", f"{id} is delivered, and was refused")
        origin = self.origins.get(id)
        if origin is not None and self._moved.setdefault(origin, id) != id:
            self.oracle.broken("transaction", f"{origin} was moved twice, to {self._moved[origin]} and {id}")

    def finish(self) -> None:
        for id, sent in self.oracle.sent.items():
            if sent.queue == FROM_STOMP and sent.confirmed and id not in self._moved:
                self.oracle.counts["not moved but read"] += 1
