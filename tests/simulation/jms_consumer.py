"""Sessions and consumers of the small OpenWire client, as ActiveMQ's client has them: what they acknowledge and when,
what they do with a message that they take for a duplicate, and what is left when a connection is lost.

Source: ActiveMQMessageConsumer, ActiveMQSession, TransactionContext and ConnectionAudit of activemq-client 5.17.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from amq.protocols.openwire import table
from amq.protocols.openwire.consumers import DELIVERED, INDIVIDUAL, POISON, REDELIVERED, STANDARD
from amq.protocols.openwire.messages import id_text, producer_text
from amq.protocols.openwire.table import Structure, Throwable, structure
from amq.protocols.openwire.transactions import BEGIN, COMMIT_ONE, ROLLBACK
from tests.simulation.jms import InDoubt, JmsConnection, Line, Refused, key_of

if TYPE_CHECKING:
    from tests.simulation.openwire import OpenWire

SEQ_BITS: Final = 57  # the rest of a number tells the connections of one client apart
MAXIMUM_REDELIVERIES: Final = 2
PULL_S: Final = 40.0  # a pull is answered much earlier


class Mode(Enum):
    """How a session acknowledges."""

    AUTO = "auto"
    CLIENT = "client"
    INDIVIDUAL = "individual"
    TRANSACTED = "transacted"


class Got:
    """A message that was dispatched. `id` = as the program knows it; `name` = the broker's number in the id, by which
    it is acknowledged; `key` = by which duplicates are known; `seen` = by the program; `counter` = as the broker says
    how often it failed, `failures` = as the client counts on."""

    __slots__ = (
        "counter",
        "destination",
        "epoch",
        "failures",
        "id",
        "key",
        "line",
        "message",
        "name",
        "seen",
        "store",
        "text",
    )

    def __init__(self, line: Line, found: Structure) -> None:
        message = self.message = found.fields["message"]
        id = message.fields["id"]
        self.line = line
        self.epoch = line.epoch
        self.store = line.broker
        self.destination = found.fields["destination"]
        self.name: int = id.get("broker_sequence", 0)
        self.key = (producer_text(id.fields["producer"]), id.get("producer_sequence", 0))
        self.text = id_text(id)
        content = message.get("content", b"")
        self.id = (content[4:] if message.type == table.TEXT_MESSAGE else content).rstrip(b".").decode()
        self.counter = self.failures = int(found.get("redelivery_counter", 0))
        self.seen = False

    @property
    def seq(self) -> int:
        return self.name % (1 << SEQ_BITS)


class JmsSession:
    """One session; `told` hears what happens to its consumers."""

    def __init__(self, connection: JmsConnection, mode: Mode, told: OpenWire) -> None:
        self.connection = connection
        self.mode = mode
        self.told = told
        self.number = connection.new_value()
        self.consumers: list[JmsConsumer] = []
        self.transaction: Structure | None = None
        self.rollback_only = False

    async def open(self) -> JmsSession:
        id = structure(table.SESSION_ID, connection=self.connection.name, value=self.number)
        await self.connection.send(structure(table.SESSION_INFO, id=id))
        return self

    async def producer(self, queue: str) -> JmsProducer:
        producer = JmsProducer(self, queue)
        await self.connection.request(structure(table.PRODUCER_INFO, id=producer.id, destination=producer.destination))
        return producer

    async def consumer(self, queue: str, prefetch: int) -> JmsConsumer:
        consumer = JmsConsumer(self, queue, prefetch)
        self.consumers.append(consumer)
        await self.connection.connected()
        self.connection.known.consumers[consumer.number] = consumer
        await self.connection.request(consumer.info)
        return consumer

    async def begin(self, xid: Structure | None = None) -> Structure:
        """The transaction that is open; one begins with the first thing that is done. `xid` = of XA."""
        if self.transaction is None:
            self.rollback_only = False
            self.transaction = xid or structure(
                table.LOCAL_TRANSACTION_ID, connection=self.connection.id, value=self.connection.new_value()
            )
            await self.connection.send(self.connection.info(BEGIN, self.transaction))
        return self.transaction

    async def commit(self) -> tuple[int, list[Got]]:
        """Returns the epoch in which it was confirmed, and what was acknowledged. Raises Refused: it was rolled back;
        InDoubt: it was rolled back, says the client. In both cases consumers deliver again."""
        if self.transaction is None:
            return 0, []
        connection = self.connection
        await connection.connected()  # the Java client would lose the acknowledgements, and commit without them
        taken = [got for each in self.consumers for got in each.delivered]
        self.told.acknowledging(taken)
        interruptions = connection.interruptions
        if taken:
            connection.known.with_acks.add(key_of(self.transaction))
        for consumer in self.consumers:
            consumer.acknowledge_in(self.transaction)
        if self.rollback_only:
            await self.rollback()
            raise InDoubt
        commit = connection.info(COMMIT_ONE, self.transaction)
        key = key_of(self.transaction)
        try:
            # The Java client would commit without acknowledgements that went with another line.
            _, epoch = await connection.request(commit, interruptions if taken else -1)
        except InDoubt:
            if key in connection.known.transactions:  # it was not sent
                await self.rollback()
            else:
                self._rolled_back(taken)
            raise
        except Refused:
            self._rolled_back(taken)
            raise
        self.transaction = None
        for consumer in self.consumers:
            consumer.committed(taken)
        return epoch, taken

    def _rolled_back(self, taken: list[Got]) -> None:
        """By somebody else, who may have given back what was acknowledged: that counts as one delivery more."""
        self.transaction = None
        self.told.returned(taken)
        for consumer in self.consumers:
            consumer.rolled_back()

    async def rollback(self) -> None:
        """Consumers deliver again what they had in it."""
        if self.transaction is None:
            return
        for consumer in self.consumers:
            consumer.acknowledge_in(self.transaction)
        with suppress(Refused):  # nothing is left to be rolled back
            await self.connection.request(self.connection.info(ROLLBACK, self.transaction))
        self.transaction = None
        for consumer in self.consumers:
            consumer.rolled_back()

    def recover(self) -> None:
        """Consumers deliver again what was not acknowledged."""
        for consumer in self.consumers:
            consumer.rolled_back()


class JmsProducer:
    """Sends to one queue. The ids of its messages are what programs see."""

    def __init__(self, session: JmsSession, queue: str) -> None:
        self.session = session
        self.id = structure(
            table.PRODUCER_ID,
            connection=session.connection.name,
            session=session.number,
            value=session.connection.new_value(),
        )
        self.name = producer_text(self.id)
        self.destination = structure(table.QUEUE, name=queue)
        self.number = 0

    def next_id(self) -> str:
        """Of the message that is made next."""
        return f"{self.name}:{self.number + 1}"

    def message(self, width: int, is_text: bool) -> Structure:
        """The next message: its id, filled up to `width` bytes."""
        body = self.next_id().encode().ljust(width, b".")
        self.number += 1
        id = structure(table.MESSAGE_ID, producer=self.id, producer_sequence=self.number)
        if is_text:
            body = len(body).to_bytes(4, "big") + body
        return structure(
            table.TEXT_MESSAGE if is_text else table.BYTES_MESSAGE,
            producer=self.id,
            destination=self.destination,
            id=id,
            persistent=True,
            priority=4,
            content=body,
            timestamp=1_700_000_000_000,
        )

    async def send(self, message: Structure, sync: bool) -> None:
        """In the transaction of its session, where that has some. Raises Refused."""
        session = self.session
        if session.mode is Mode.TRANSACTED:
            message.fields["transaction"] = await session.begin()
            await session.connection.send(message)
        elif sync:
            await session.connection.request(message)
        else:
            await session.connection.send(message)


class JmsConsumer:
    """`waiting` = what the program has not taken yet, None = "there is nothing"; `delivered` = what it has, and has not
    acknowledged, oldest first; `lost` = those of them that came on a line which is lost."""

    def __init__(self, session: JmsSession, queue: str, prefetch: int) -> None:
        connection = session.connection
        self.session = session
        self.queue = queue
        self.prefetch = prefetch
        self.number = connection.new_value()
        self.id = structure(table.CONSUMER_ID, connection=connection.name, session=session.number, value=self.number)
        self.destination = structure(table.QUEUE, name=queue)
        self.info = structure(table.CONSUMER_INFO, id=self.id, destination=self.destination, prefetch=prefetch)
        self.waiting: deque[Got | None] = deque()
        self.delivered: list[Got] = []
        self.lost: dict[tuple[str, int], Got] = {}
        self.last_seen = -1
        self._is_closed = False
        self._is_dirty = False  # its line was lost, and it has not looked after that
        self._is_held = False  # it began anew with prefetch 0
        self._news = asyncio.Event()
        self._since_ack = 0
        self._connection = connection
        self._told = session.told

    # -- what comes ---------------------------------------------------------------------------------------------------

    def dispatch(self, line: Line, found: Structure) -> None:
        self.clean_up()
        if found.get("message") is None:
            self.waiting.append(None)
        else:
            self._take(Got(line, found))
        self._news.set()

    def _take(self, got: Got) -> None:
        audit = self._connection.audit.setdefault(self.queue, set())
        if got.key not in audit:
            audit.add(got.key)
            self.waiting.append(got)
        elif got.key in self.lost:
            self._say(DELIVERED, [got])
        else:
            self._told.suppressed(got)
            self._say(POISON, [got], cause="Suppressing duplicate delivery on connection")

    # -- the line is lost ---------------------------------------------------------------------------------------------

    def interrupted(self) -> None:
        self._is_dirty = True
        late_s = self._connection.options.clean_up_s
        if late_s:
            asyncio.get_running_loop().call_later(self._connection.rng.random() * late_s, self.clean_up)
        else:
            self.clean_up()

    def clean_up(self) -> None:
        """What waits will come again, here or elsewhere, and so will what was delivered."""
        if not self._is_dirty or self._is_closed:
            return
        self._is_dirty = False
        self.session.rollback_only |= bool(self.delivered and self.session.transaction)
        self._forgive(got for got in self.waiting if got is not None)
        self.waiting.clear()
        if self.session.mode is Mode.TRANSACTED:
            self.lost = {got.key: got for got in self.delivered}
        else:
            if self.session.mode is Mode.CLIENT:
                self._forgive(self.delivered)
            self.delivered.clear()
        self._since_ack = 0
        self._news.set()
        self.go_on()

    def _forgive(self, some: Any) -> None:
        """To come again is not a duplicate of theirs."""
        self._connection.audit.setdefault(self.queue, set()).difference_update(got.key for got in some)

    def restored(self) -> Structure:
        """How it begins on a new line: while it has not looked after what is lost it wants nothing."""
        self._is_held = self._is_dirty and self.prefetch > 0
        return structure(table.CONSUMER_INFO, **{**self.info.fields, "prefetch": 0}) if self._is_held else self.info

    def go_on(self) -> None:
        """It wants as much as before, once it has cleaned up."""
        if self._is_held and not self._is_dirty and self._connection.line is not None:
            self._is_held = False
            self._connection.line.say(
                structure(
                    table.CONSUMER_CONTROL, consumer=self.id, destination=self.destination, prefetch=self.prefetch
                )
            )

    # -- what the program does ----------------------------------------------------------------------------------------

    async def receive(self, timeout_s: float) -> Got | None:
        """The next message. Raises Refused where its acknowledgement is."""
        while True:
            if not self.prefetch and not self.waiting:
                await self._pull(timeout_s)
            got = await self._next(timeout_s if self.prefetch else PULL_S)
            if got is None:
                return None
            if self.session.mode is not Mode.TRANSACTED or got.failures <= MAXIMUM_REDELIVERIES:
                break
            self._give_up([got], "exceeds the redelivery limit")
        got.seen = True
        self.last_seen = got.name
        self._told.seen(got)
        if self.session.mode is Mode.AUTO:
            await self._acknowledge(STANDARD, [got])
            return got
        if self.session.mode is Mode.TRANSACTED:
            interruptions = self._connection.interruptions
            await self.session.begin()
            self.session.rollback_only |= interruptions != self._connection.interruptions
        self.delivered.append(got)
        self._since_ack += 1
        if self._since_ack * 2 >= self.prefetch > 0:
            self._say(DELIVERED, self.delivered[-self._since_ack :])
            self._since_ack = 0
        return got

    async def _pull(self, timeout_s: float) -> None:
        if self._connection.line is None:
            self.waiting.append(None)
            return
        await self._connection.send(
            structure(table.MESSAGE_PULL, consumer=self.id, destination=self.destination, timeout=int(1000 * timeout_s))
        )

    async def _next(self, timeout_s: float) -> Got | None:
        interruptions = self._connection.interruptions
        try:
            async with asyncio.timeout(timeout_s):
                while not self.waiting:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            if not self.prefetch and interruptions == self._connection.interruptions:
                self._told.stuck(f"a pull of consumer {self.number} was not answered for {timeout_s} s")
            return None
        return self.waiting.popleft()

    async def _acknowledge(self, kind: int, some: list[Got]) -> None:
        """Outside of transactions. Raises Refused."""
        self._told.acknowledging(some)
        if not self._connection.options.sync_acks:
            self._say(kind, some)
        elif self._connection.line is not None:  # else the client answers by itself
            _, epoch = await self._connection.request(self._ack(kind, some))
            is_late = any(got.line is not self._connection.line for got in some)
            self._told.acknowledged(some, 0 if is_late else epoch)

    async def acknowledge(self) -> None:
        """All that was delivered."""
        some, self.delivered = self.delivered, []
        self._since_ack = 0
        if some:
            await self._acknowledge(STANDARD, some)

    async def acknowledge_one(self, got: Got) -> None:
        """Also where it came on a line that is lost."""
        if got in self.delivered:
            self.delivered.remove(got)
        await self._acknowledge(INDIVIDUAL, [got])

    def acknowledge_in(self, transaction: Structure) -> None:
        """All that was delivered, in a transaction that is about to end."""
        if self.delivered:
            self._say(STANDARD, self.delivered, transaction)
        self._since_ack = 0

    def committed(self, taken: list[Got]) -> None:
        self.delivered = [got for got in self.delivered if got not in taken]
        self.lost.clear()

    def rolled_back(self) -> None:
        """What was delivered is delivered again, by the client itself; not what came on a line that is lost: the broker
        sends that again."""
        self.clean_up()
        some = [got for got in self.delivered if got.key not in self.lost and got.line is self._connection.line]
        self.delivered = []
        self.lost.clear()
        self._since_ack = 0
        if not some:
            return
        before = some[-1].failures
        for got in some:
            got.failures += 1
        if some[-1].failures > MAXIMUM_REDELIVERIES:
            self._forgive(some)
            self._give_up(some, "exceeded the redelivery limit")
            return
        if before:
            self._say(REDELIVERED, some)
        self.waiting.extendleft(reversed(some))
        self._news.set()

    def _give_up(self, some: list[Got], cause: str) -> None:
        self._told.given_up(some)
        self._say(POISON, some, cause=cause)

    async def close(self) -> None:
        """What the program has seen counts as delivered once more."""
        self._is_closed = True
        self.session.consumers.remove(self)
        del self._connection.known.consumers[self.number]
        self._connection.known.pulls.pop(self.number, None)
        left = [*self.delivered, *(got for got in self.waiting if got is not None)]
        self._forgive(left if self.session.mode is not Mode.INDIVIDUAL else self.waiting)
        self._told.returned([got for got in left if got.seen])
        self._connection.forget(structure(table.REMOVE_INFO, id=self.id, last_delivered=self.last_seen))

    def _say(self, kind: int, some: list[Got], transaction: Structure | None = None, cause: str = "") -> None:
        self._connection.forget(self._ack(kind, some, transaction, cause))

    def _ack(self, kind: int, some: list[Got], transaction: Structure | None = None, cause: str = "") -> Structure:
        within = f" in {transaction.get('value')}" if transaction is not None else ""
        self._told.log(f"{self._connection.name}: ack {kind} of {[got.seq for got in some]}{within}")
        first = None if kind == INDIVIDUAL else some[0].message.fields["id"]
        return structure(
            table.MESSAGE_ACK,
            destination=some[-1].destination,
            transaction=transaction,
            consumer=self.id,
            kind=kind,
            first=first,
            last=some[-1].message.fields["id"],
            count=len(some),
            cause=Throwable("java.lang.Throwable", cause) if cause else None,
        )
