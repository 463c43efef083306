"""Applications: they use the client as people do, note what they were told, and try again until they are content.

An application outlives its process: what it knows (`Sent` ids, which transaction was under way) is its own durable
state, as a table in a database would be, so that it can be killed at any moment and go on with the same ids.
"""

from __future__ import annotations

import asyncio
import socket
from random import Random

from amq.client import aio
from amq.client.errors import CommitOutcomeUnknownError, FlushError
from amq.client.names import Address, Names, Take
from amq.core.errors import AmqError, TransactionRolledBackError
from tests.simulation.limits import DEAD, is_dead_letter_queue
from tests.simulation.oracle import Oracle
from tests.simulation.scheduler import Process

CALL_S = 8.0
AT_LIMIT = ("QUEUE_FULL", "STORE_LIMIT")  # refusals after which nothing that was sent behind is stored either


class SimNames(Names):
    """Hosts of the simulation have no other addresses than their names, and no thread looks them up."""

    def find(self, address: Address, owner: object, take: Take) -> None:  # noqa: ARG002
        take(((socket.AF_INET, socket.SOCK_STREAM, 0, "", address),))


class Application:
    """Base: connects, works, connects again."""

    def __init__(self, name: str, url: str, oracle: Oracle, rng: Random) -> None:
        self.name = name
        self.oracle = oracle
        self.rng = rng
        self.stopping = False  # begin nothing new
        self.process: Process | None = None
        self._url = url
        self.client_id = ""

    def start(self, process: Process) -> None:
        self.process = process
        process.run_loop(self.run)

    def content(self) -> bool:
        """Nothing is left to do."""
        return True

    async def run(self) -> None:
        while True:
            await self.once()
            await asyncio.sleep(self.rng.random() * 0.5)

    async def once(self) -> None:
        """Connect, and work as long as the connection lasts."""
        assert self.process is not None
        try:
            connection = await aio.connect(
                self._url,
                timeout=CALL_S,
                clock=self.process,
                rng=Random(self.rng.getrandbits(64)),
                client_id=self.client_id,
                names=SimNames(self.process),
            )
            try:
                await self.work(connection)
            finally:
                await connection.abort()
        except AmqError as error:
            self.oracle.log(f"{self.name}: {error.code}")

    async def work(self, connection: aio.Connection) -> None:
        raise NotImplementedError

    def epoch(self, connection: aio.Connection) -> int:
        link = connection._machine.link
        return self.oracle.link_epochs.get(link, 0) if link is not None else 0

    async def nap(self, mean_s: float) -> None:
        await asyncio.sleep(self.rng.expovariate(1 / mean_s))


class Producer(Application):
    """Sends numbered messages, each confirmed before the next, or in pipelined bursts."""

    def __init__(
        self,
        name: str,
        url: str,
        oracle: Oracle,
        rng: Random,
        queue: str,
        burst: int,
        body_bytes: int,
        pause_s: float = 0.3,
    ) -> None:
        super().__init__(name, url, oracle, rng)
        self._pause_s = pause_s
        self._queue = queue
        self._burst = burst
        self._body_bytes = body_bytes
        self._number = 0
        self._pending: list[str] = []

    def content(self) -> bool:
        return not self._pending

    def headers(self, message_id: str) -> dict[str, str] | None:  # noqa: ARG002
        """What the message has beside its body."""
        return None

    def _next(self) -> None:
        for _ in range(self.rng.randint(1, self._burst)):
            message_id = f"{self.name}:{self._number}"
            self.oracle.sending(message_id, self._queue, self.name, self._number)
            self._number += 1
            self._pending.append(message_id)

    async def work(self, connection: aio.Connection) -> None:
        producer = connection.session().producer(address(self._queue))
        while True:
            if not self._pending:
                await self.nap(self._pause_s)
                if self.stopping:
                    continue
                self._next()
            burst = list(self._pending)
            try:
                for message_id in burst:
                    body = message_id.encode().ljust(self.rng.randint(1, self._body_bytes), b".")
                    await producer.send(
                        body,
                        headers=self.headers(message_id),
                        duplicate_id=message_id,
                        wait=self._burst == 1,
                        timeout=CALL_S,
                    )
                await producer.flush(CALL_S)
            except FlushError as error:
                failed = {message_id for message_id, _ in error.failures}
                self._settle([message_id for message_id in burst if message_id not in failed])
                if any(each.code not in AT_LIMIT for _, each in error.failures):
                    self._doubt()
                raise
            except AmqError as error:
                if self._burst > 1 or error.code not in AT_LIMIT:
                    self._doubt()
                raise
            self._settle(burst)

    def _settle(self, message_ids: list[str]) -> None:
        for message_id in message_ids:
            self._pending.remove(message_id)
            self._confirmed(message_id)

    def _confirmed(self, message_id: str) -> None:
        self.oracle.confirmed(message_id)

    def _doubt(self) -> None:
        """Some of what is sent again may be stored already."""
        for message_id in self._pending:
            self.oracle.sent[message_id].may_be_early = True


class TransactedProducer(Application):
    """Sends several messages, to several queues, in each transaction."""

    pause_s = 0.5
    messages_min, messages_max = 2, 4

    def __init__(self, name: str, url: str, oracle: Oracle, rng: Random, queues: list[str]) -> None:
        super().__init__(name, url, oracle, rng)
        self._queues = queues
        self._number = 0
        self._parts: list[tuple[str, str]] = []  # (id, queue) of the transaction under way
        self._group = ""
        self._committing = False  # an earlier attempt may have taken place

    def content(self) -> bool:
        return not self._parts

    async def work(self, connection: aio.Connection) -> None:
        session = connection.session(transacted=True)
        producers = {queue: session.producer(f"/queue/{queue}") for queue in self._queues}
        while True:
            if not self._parts:
                await self.nap(self.pause_s)
                if self.stopping:
                    continue
                self._begin()
            doubtful = self._committing
            try:
                for message_id, queue in self._parts:
                    body = message_id.encode().ljust(self.rng.randint(1, 300), b".")
                    await producers[queue].send(body, duplicate_id=message_id, timeout=CALL_S)
                self._committing = True
                await session.commit(CALL_S)
            except CommitOutcomeUnknownError:
                raise
            except TransactionRolledBackError as error:
                await self._rolled_back(error, doubtful)
                raise
            self._done()

    def _begin(self) -> None:
        self._group = f"{self.name}/{self._number}"
        self._committing = False
        self.oracle.groups[self._group] = "open"
        for _ in range(self.rng.randint(self.messages_min, self.messages_max)):
            message_id, queue = f"{self.name}:{self._number}", self.rng.choice(self._queues)
            self.oracle.sending(message_id, queue, self.name, self._number, self._group)
            self.oracle.sent[message_id].may_be_early = True
            self._parts.append((message_id, queue))
            self._number += 1

    async def _rolled_back(self, error: AmqError, doubtful: bool) -> None:
        if error.code == "DUPLICATE_ID":
            if not doubtful:
                self.oracle.broken("transaction", f"{self._group} was refused as a repetition, and is none")
            self._done()
        elif not doubtful:
            self._committing = False  # it is certain that nothing of it took place

    def _done(self) -> None:
        self.oracle.groups[self._group] = "committed"
        for message_id, _ in self._parts:
            self.oracle.confirmed(message_id)
        self._parts = []


class Consumer(Application):
    """Receives and acknowledges; sometimes several at once, sometimes without waiting, sometimes not at all. Of several
    queues one after the other; with `late` not before the faults are over.
    """

    def __init__(
        self,
        name: str,
        url: str,
        oracle: Oracle,
        rng: Random,
        queue: str,
        prefetch: int,
        *more: str,
        late: bool = False,
    ) -> None:
        super().__init__(name, url, oracle, rng)
        self._queue = queue
        self._more = list(more)
        self._prefetch = prefetch
        self._late = late

    async def work(self, connection: aio.Connection) -> None:
        while self._late and not self.stopping:
            await asyncio.sleep(0.5)
        if self._more:
            self._more.append(self._queue)
            self._queue = self._more.pop(0)
        session = connection.session()
        consumer = await self._subscribe(session)
        held: list[aio.Message] = []
        for _ in range(self.rng.randint(20, 200)):
            message = await consumer.receive(0.3)
            if message is not None:
                self.oracle.delivered(self._id(message), message.id, self.epoch(connection))
                held.append(message)
            if message is None or len(held) >= min(self.rng.randint(1, 4), self._prefetch):
                for each in held:
                    await self._acknowledge(connection, each)
                held.clear()
            if message is None and self._more:
                break

    async def _subscribe(self, session: aio.Session) -> aio.Consumer:
        return await session.consumer(address(self._queue), prefetch=self._prefetch, timeout=CALL_S)

    def _id(self, message: aio.Message) -> str:
        return (DEAD if is_dead_letter_queue(self._queue) else "") + application_id(message)

    async def _acknowledge(self, connection: aio.Connection, message: aio.Message) -> None:
        message_id = self._id(message)
        if not self.stopping and self.rng.random() < 0.02:
            return
        self.oracle.acknowledging(message_id)
        epoch = self.epoch(connection)
        wait = self.stopping or self.rng.random() < 0.7
        await message.ack(wait=wait, timeout=CALL_S)
        if wait and epoch:
            self.oracle.acknowledged(message_id, epoch)


class Mover(Application):
    """Consumes from one queue and sends to another, exactly once: each message must arrive once."""

    def __init__(self, name: str, url: str, oracle: Oracle, rng: Random, source: str, target: str) -> None:
        super().__init__(name, url, oracle, rng)
        self._source = source
        self._target = target

    async def work(self, connection: aio.Connection) -> None:
        session = connection.session(transacted=True)
        consumer = await session.consumer(f"/queue/{self._source}", prefetch=5, timeout=CALL_S)
        producer = session.producer(f"/queue/{self._target}")

        async def move(_: aio.Session) -> tuple[str, str, int] | None:
            message = await consumer.receive(0.5)
            if message is None:
                return None
            message_id = application_id(message)
            self.oracle.delivered(message_id, message.id, self.epoch(connection))
            moved = f"moved-{message_id}"
            self.oracle.sending(moved, self._target, self.name, len(self.oracle.sent))
            self.oracle.sent[moved].may_be_early = True
            await producer.send(moved.encode(), duplicate_id=moved, timeout=CALL_S)
            self.oracle.acknowledging(message_id)
            self.oracle.counts["moves tried"] += 1
            return message_id, moved, self.epoch(connection)

        while True:
            try:
                done = await session.exactly_once(move, timeout=CALL_S)
            except TransactionRolledBackError as error:
                if error.code == "DUPLICATE_ID":
                    self.oracle.broken("transaction", "a message came again, though what it became is stored")
                raise
            if done is not None:
                message_id, moved, epoch = done
                self.oracle.counts["moves"] += 1
                self.oracle.confirmed(moved)
                if epoch:
                    self.oracle.acknowledged(message_id, epoch)


def application_id(message: aio.Message) -> str:
    """The id that the application gave, out of the body, which must be whole."""
    return message.body.rstrip(b".").decode()


def address(name: str) -> str:
    """Of a queue, by its name alone."""
    return name if name.startswith("/") else f"/queue/{name}"
