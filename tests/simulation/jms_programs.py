"""Programs of JMS that send, receive and move messages. Each process has ids of its own: what one that was killed did
not learn nobody will."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

from amq.protocols.openwire import table
from amq.protocols.openwire.table import Structure, structure
from amq.protocols.openwire.transactions import COMMIT_TWO, END, PREPARE, RECOVER, ROLLBACK
from tests.simulation.clients import Application
from tests.simulation.jms import InDoubt, JmsConnection, Refused
from tests.simulation.jms_consumer import Got, JmsConsumer, JmsProducer, JmsSession, Mode
from tests.simulation.oracle import Oracle
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.openwire import OpenWire

WIDTH_MAX = 300


class JmsApplication(Application):
    """Base: connects and works; now and then it begins anew. `busy` = it waits for something that must end."""

    def __init__(self, name: str, url: str, oracle: Oracle, rng: Random, feature: OpenWire) -> None:
        super().__init__(name, url, oracle, rng)
        self.feature = feature
        self.busy = False
        self._connections = 0

    def start(self, process: Process) -> None:
        self.busy = False
        super().start(process)

    def content(self) -> bool:
        return not self.busy

    async def once(self) -> None:
        self._connections += 1
        jms = JmsConnection(
            f"ID:{self.name}-{self._connections}:1",
            self.feature.addresses,
            Random(self.rng.getrandbits(64)),
            self.feature.configured(self.rng),
        )
        try:
            await jms.open()
            await self.use(jms)
            if self.rng.random() < 0.7:
                await jms.close()
        except Refused as error:
            self.oracle.log(f"{self.name}: {error}")
        finally:
            jms.abort()
            self.busy = False
            self.oracle.counts["lines lost"] += jms.interruptions

    async def use(self, jms: JmsConnection) -> None:
        """As long as the program wants."""
        raise NotImplementedError

    def write(self, producer: JmsProducer, queue: str, group: str = "", early: bool = False) -> tuple[str, int, bool]:
        """The id of the next message, of which the oracle is told; its width, and is it a text?"""
        id = producer.next_id()
        self.oracle.sending(id, queue, producer.name, producer.number + 1, group)
        self.oracle.sent[id].may_be_early = early
        return id, self.rng.randint(1, WIDTH_MAX), self.rng.random() < 0.3


class JmsSender(JmsApplication):
    """Sends messages one by one, each confirmed; or some that nobody confirms, and one behind them that is."""

    def __init__(
        self, name: str, url: str, oracle: Oracle, rng: Random, feature: OpenWire, queue: str, burst: int
    ) -> None:
        super().__init__(name, url, oracle, rng, feature)
        self._queue = queue
        self._burst = burst

    async def use(self, jms: JmsConnection) -> None:
        session = await JmsSession(jms, Mode.AUTO, self.feature).open()
        producer = await session.producer(self._queue)
        for _ in range(self.rng.randint(5, 60)):
            await self.nap(0.3)
            while self.stopping:
                await asyncio.sleep(1.0)
            self.busy = True
            await self._send(jms, producer, self.rng.randint(1, self._burst))
            self.busy = False

    async def _send(self, jms: JmsConnection, producer: JmsProducer, count: int) -> None:
        before = jms.interruptions, len(jms.errors)
        unconfirmed = []
        for i in range(count):
            is_last = i == count - 1
            id, width, is_text = self.write(producer, self._queue)
            try:
                await producer.send(producer.message(width, is_text), sync=is_last)
            except Refused as error:
                self.oracle.log(f"{self.name}: {id} is refused: {error}")
                self.oracle.counts["JMS sends refused"] += 1
                self.feature.refused.add(id)
                return
            unconfirmed.append(id)
        is_whole = before == (jms.interruptions, len(jms.errors))
        for id in unconfirmed if is_whole else unconfirmed[-1:]:
            self.oracle.confirmed(id)


class JmsTransactor(JmsApplication):
    """Sends some messages in each transaction."""

    def __init__(
        self, name: str, url: str, oracle: Oracle, rng: Random, feature: OpenWire, queues: tuple[str, ...]
    ) -> None:
        super().__init__(name, url, oracle, rng, feature)
        self._queues = queues

    async def use(self, jms: JmsConnection) -> None:
        session = await JmsSession(jms, Mode.TRANSACTED, self.feature).open()
        producers = {queue: await session.producer(queue) for queue in self._queues}
        for number in range(self.rng.randint(5, 40)):
            await self.nap(0.5)
            while self.stopping:
                await asyncio.sleep(1.0)
            self.busy = True
            group = f"{jms.name}/{number}"
            self.oracle.groups[group] = "open"
            ids = []
            for _ in range(self.rng.randint(1, 4)):
                queue = self.rng.choice(self._queues)
                producer = producers[queue]
                id, width, is_text = self.write(producer, queue, group, early=True)
                await producer.send(producer.message(width, is_text), sync=False)
                ids.append(id)
            await self._end(session, group, ids)
            self.busy = False

    async def _end(self, session: JmsSession, group: str, ids: list[str]) -> None:
        if self.rng.random() < 0.15:
            self.oracle.groups[group] = "rolled back"
            await session.rollback()
            return
        try:
            await session.commit()
        except InDoubt:
            self.oracle.counts["JMS commits in doubt"] += 1
        except Refused as error:
            self.oracle.log(f"{self.name}: {group} is refused: {error}")
            self.oracle.counts["JMS commits refused"] += 1
            self.oracle.groups[group] = "rolled back"
            for id in ids:
                self.feature.refused.add(id)
        else:
            self.oracle.counts["JMS commits"] += 1
            self.oracle.groups[group] = "committed"
            for id in ids:
                self.oracle.confirmed(id)


class JmsCoordinator(JmsApplication):
    """Sends in transactions of XA. `_branch` = the one under way, which outlives the process; `_is_decided` = it is
    prepared, and will be committed."""

    def __init__(self, name: str, url: str, oracle: Oracle, rng: Random, feature: OpenWire, queue: str) -> None:
        super().__init__(name, url, oracle, rng, feature)
        self._queue = queue
        self._branch: Structure | None = None
        self._group = ""
        self._ids: list[str] = []
        self._is_decided = False

    def content(self) -> bool:
        return self._branch is None

    async def use(self, jms: JmsConnection) -> None:
        await self._recover(jms)
        session = await JmsSession(jms, Mode.TRANSACTED, self.feature).open()
        producer = await session.producer(self._queue)
        for number in range(self.rng.randint(5, 20)):
            await self.nap(0.3)
            while self.stopping:
                await self._recover(jms)
                await asyncio.sleep(1.0)
            self._begin(f"{jms.name}/{number}")
            await session.begin(self._branch)
            for _ in range(self.rng.randint(1, 3)):
                id, width, is_text = self.write(producer, self._queue, self._group, early=True)
                await producer.send(producer.message(width, is_text), sync=False)
                self._ids.append(id)
            session.transaction = None
            await self._end(jms)

    def _begin(self, group: str) -> None:
        self._group, self._ids, self._is_decided = group, [], False
        self._branch = structure(table.XA_TRANSACTION_ID, format=7, global_id=group.encode(), branch=b"1")
        self.oracle.groups[group] = "open"

    async def _end(self, jms: JmsConnection) -> None:
        await jms.request(jms.info(END, self._branch))
        if self.rng.random() < 0.9:
            with suppress(Refused):
                await jms.request(jms.info(PREPARE, self._branch))
                self._is_decided = self.rng.random() < 0.9
        await self._finish(jms)

    async def _finish(self, jms: JmsConnection) -> None:
        if not self._is_decided:
            self.oracle.groups[self._group] = "rolled back"
        try:
            await jms.request(jms.info(COMMIT_TWO if self._is_decided else ROLLBACK, self._branch))
        except Refused as error:
            if self._is_decided:
                self.oracle.broken("two-phase", f"{self._group} was prepared: {error}")
        if self._is_decided:
            self.oracle.groups[self._group] = "committed"
            for id in self._ids:
                self.oracle.confirmed(id)
        self.oracle.counts["XA commits" if self._is_decided else "XA rollbacks"] += 1
        self._branch = None

    async def _recover(self, jms: JmsConnection) -> None:
        """End what an earlier process left, also what was prepared only after it was given up."""
        if self._branch is not None:
            await self._finish(jms)
        answer, _ = await jms.request(jms.info(RECOVER, None))
        for xid in answer.fields["data"]:
            self.oracle.counts["XA recovered"] += 1
            with suppress(Refused):  # it is just taking place
                await jms.request(jms.info(ROLLBACK, xid))


class JmsReader(JmsApplication):
    """Receives as its mode has it: acknowledges one by one, together, or in transactions; recovers, rolls back, closes
    its consumer with what it holds, pulls."""

    def __init__(
        self, name: str, url: str, oracle: Oracle, rng: Random, feature: OpenWire, queue: str, mode: Mode
    ) -> None:
        super().__init__(name, url, oracle, rng, feature)
        self._queue = queue
        self._mode = mode

    async def use(self, jms: JmsConnection) -> None:
        session = await JmsSession(jms, self._mode, self.feature).open()
        before: JmsConsumer | None = None
        for _ in range(self.rng.randint(2, 8)):
            consumer = await session.consumer(self._queue, self.rng.choice((0, 1, 3, 20)))
            if before is not None:
                await before.close()
                before = None
            for _ in range(self.rng.randint(3, 20)):
                await self._turn(session, consumer)
            if self._mode is Mode.TRANSACTED:
                await session.rollback()
            if self._mode is Mode.INDIVIDUAL:
                before = consumer  # the next one is there when it leaves its messages
            else:
                await consumer.close()

    async def _turn(self, session: JmsSession, consumer: JmsConsumer) -> None:
        held: list[Got] = []
        for _ in range(self.rng.randint(1, 5)):
            got = await consumer.receive(self.rng.choice((0.05, 0.3)))
            if got is None:
                break
            held.append(got)
            if self.rng.random() < 0.2:
                await self.nap(0.3)
        self.busy = bool(held)
        await self._settle(session, consumer, held)
        self.busy = False

    async def _settle(self, session: JmsSession, consumer: JmsConsumer, held: list[Got]) -> None:
        fails = not self.stopping and self.rng.random() < 0.15
        if self._mode is Mode.CLIENT:
            if fails:
                session.recover()
            else:
                await consumer.acknowledge()
        elif self._mode is Mode.INDIVIDUAL:
            self.rng.shuffle(held)
            for got in held[: len(held) // 2] if fails else held:
                await consumer.acknowledge_one(got)
        elif self._mode is Mode.TRANSACTED:
            if fails:
                await session.rollback()
                self.oracle.counts["JMS rollbacks"] += 1
            else:
                await self._commit(session)

    async def _commit(self, session: JmsSession) -> None:
        try:
            epoch, taken = await session.commit()
        except InDoubt:
            self.oracle.counts["JMS commits in doubt"] += 1
        except Refused as error:
            self.oracle.log(f"{self.name}: the commit is refused: {error}")
            self.oracle.counts["JMS commits refused"] += 1
        else:
            self.oracle.counts["JMS commits"] += 1
            self.feature.acknowledged(taken, epoch)


class JmsMover(JmsApplication):
    """Receives and sends on in transactions. Each message must be moved once."""

    def __init__(
        self, name: str, url: str, oracle: Oracle, rng: Random, feature: OpenWire, source: str, target: str
    ) -> None:
        super().__init__(name, url, oracle, rng, feature)
        self._source = source
        self._target = target

    async def use(self, jms: JmsConnection) -> None:
        session = await JmsSession(jms, Mode.TRANSACTED, self.feature).open()
        producer = await session.producer(self._target)
        consumer = await session.consumer(self._source, self.rng.choice((1, 5)))
        for _ in range(self.rng.randint(10, 60)):
            ids: list[str] = []
            for _ in range(self.rng.randint(1, 3)):
                got = await consumer.receive(0.3)
                if got is None:
                    break
                self.busy = True
                id, width, is_text = self.write(producer, self._target, early=True)
                self.feature.origins[id] = got.id
                await producer.send(producer.message(width, is_text), sync=False)
                ids.append(id)
            await self._end(session, ids)
            self.busy = False

    async def _end(self, session: JmsSession, ids: list[str]) -> None:
        try:
            if not self.stopping and self.rng.random() < 0.1:
                await session.rollback()
                return
            epoch, taken = await session.commit()
        except InDoubt:
            self.oracle.counts["JMS moves in doubt"] += bool(ids)
        except Refused as error:
            self.oracle.log(f"{self.name}: the move is refused: {error}")
            self.oracle.counts["JMS moves refused"] += 1
            self.feature.refused.update(ids)
        else:
            self.oracle.counts["JMS moves"] += len(ids)
            for id in ids:
                self.oracle.confirmed(id)
            self.feature.acknowledged(taken, epoch)
