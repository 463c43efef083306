"""Clients of the neutral protocol (`tests/neutral/`): sessions that come and go, credit with drain, the four outcomes,
ranges and sets, transactions, and sends that are repeated under their ids after a failover.

They stand for the protocols that come after STOMP. The checker: a consumer gets no message beyond its credit, and none
after a drain is done; a delivery that was released does not count; and, with the oracle, a settlement is of the
deliveries that it names and no others, and the end of a session gives back what it held.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

from amq.broker.queues.queue import Subscription
from amq.config.destination_options import DestinationOptions
from amq.core.message import Message
from amq.protocols.commands import Outcome
from amq.transports.peer import Peer
from tests.neutral.client import Delivered, Failed, NeutralClient
from tests.simulation.clients import CALL_S, Application, Consumer
from tests.simulation.features import Feature, Make
from tests.simulation.limits import DLQ
from tests.simulation.oracle import Oracle

QUEUE, TARGET = "n", "o"
SESSIONS = (1, 2, 3)
ADDRESS = re.compile(r"stomp://([^:/?]+):([0-9]+)")
OUTCOMES = (*[Outcome.ACCEPTED] * 6, Outcome.RELEASED, Outcome.RELEASED, Outcome.FAILED, Outcome.REJECTED)


class Neutral(Feature):
    """`given` = deliveries of each seq, by all masters; `released` = those that somebody was told are released."""

    destinations = tuple(DestinationOptions(name, {"queue_limit_bytes": 0}) for name in (QUEUE, TARGET))

    def __init__(self, oracle: Oracle, seed: int) -> None:
        super().__init__(oracle, seed)
        self.given: Counter[int] = Counter()
        self.released: Counter[int] = Counter()

    def applications(self) -> list[Make]:
        return [
            *(partial(NeutralProducer, feature=self, burst=burst) for burst in (1, 8)),
            *(partial(NeutralConsumer, feature=self) for _ in range(2)),
            partial(NeutralMover, feature=self),
            partial(Consumer, queue=TARGET, prefetch=3),
            partial(Consumer, queue=DLQ + QUEUE, prefetch=5),
        ]

    def delivers(self, _connection: Peer, subscription: Subscription, message: Message) -> None:
        if subscription.queue.name == f"queue://{QUEUE}":
            self.given[message.seq] += 1

    def received(self, got: Delivered) -> None:
        """Each earlier delivery may count, but for those that were released."""
        most = self.given[got.seq] - 1 - self.released[got.seq]
        if got.redelivered > most:
            self.oracle.broken("release", f"seq {got.seq} was redelivered {got.redelivered} times, {most} may count")


class Wire(NeutralClient, asyncio.Protocol):
    """One connection. `left` = the credit of each consumer, by session; `heard(delivery)` learns of each delivery."""

    def __init__(self, oracle: Oracle, heard: Callable[[Delivered], None]) -> None:
        super().__init__()
        self.left: Counter[int] = Counter()
        self.news = asyncio.Event()
        self.is_lost = False
        self.transport: asyncio.Transport | None = None
        self._oracle = oracle
        self._heard = heard

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        before = len(self.told)
        self.receive(data)
        for each in self.told[before:]:
            if isinstance(each, Delivered):
                self.left[each.session] -= 1
                if self.left[each.session] < 0:
                    self._oracle.broken("credit", f"session {each.session} got seq {each.seq} beyond its credit")
                self._heard(each)
        self.news.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.is_lost = True
        self.news.set()

    def say(self, *frames: bytes) -> None:
        """In one piece."""
        if self.is_lost or self.transport is None:
            raise ConnectionError("the connection is gone")
        self.transport.write(b"".join(frames))

    async def until(self, ready: Callable[[], object], timeout_s: float = CALL_S) -> None:
        """Raises ConnectionError, TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not ready():
                if self.is_lost:
                    raise ConnectionError("the connection is gone")
                self.news.clear()
                await self.news.wait()

    async def do(self, *frames: bytes) -> Failed | None:
        """Until the last one is answered: None = it is done. Raises ConnectionError, TimeoutError."""
        number = self.number
        self.say(*frames)
        await self.until(lambda: number in self.done or self.error(number))
        return self.error(number)

    def error(self, number: int) -> Failed | None:
        return next((each for each in self.errors if each.number == number), None)


async def knock(
    application: Application, url: str, heard: Callable[[Delivered], None], use: Callable[[Wire], Awaitable[None]]
) -> None:
    """At all doors of `url`, one after the other: where the master opens, `use` the connection as long as it lasts."""
    for host, port in ADDRESS.findall(url):
        wire = Wire(application.oracle, heard)
        try:
            await asyncio.get_running_loop().create_connection(lambda wire=wire: wire, host, int(port))
            wire.say(wire.connect(application.client_id))
            await wire.until(lambda wire=wire: wire.connected)
            await use(wire)
        except (OSError, TimeoutError) as error:
            application.oracle.log(f"{application.name}: {type(error).__name__}")
        finally:
            if wire.transport is not None:
                wire.transport.abort()


class NeutralApplication(Application):
    """Base: finds the master by knocking at all doors, works, connects again."""

    def __init__(self, name: str, url: str, oracle: Oracle, rng: Random, feature: Neutral) -> None:
        super().__init__(name, url, oracle, rng)
        self.feature = feature

    async def once(self) -> None:
        await knock(self, self._url, self.heard, self.use)

    def heard(self, got: Delivered) -> None:
        raise AssertionError(f"{self.name} consumes nothing, and got {got}")

    async def use(self, wire: Wire) -> None:
        """As long as the connection lasts."""
        raise NotImplementedError


class NeutralProducer(NeutralApplication):
    """Sends in several sessions at once. What was not confirmed is sent again, under the same ids."""

    def __init__(self, name: str, url: str, oracle: Oracle, rng: Random, feature: Neutral, burst: int) -> None:
        super().__init__(name, url, oracle, rng, feature)
        self._burst = burst
        self._number = 0
        self._pending: list[str] = []

    def content(self) -> bool:
        return not self._pending

    async def use(self, wire: Wire) -> None:
        await wire.do(*map(wire.open, SESSIONS))
        self.oracle.counts["sent again in sessions"] += len(self._pending)
        while True:
            if not self._pending:
                await self.nap(0.3)
                if self.stopping:
                    continue
                self._next()
            numbers: dict[str, int] = {}
            for message_id in list(self._pending):
                session = self.rng.choice((0, *SESSIONS)) if self._burst > 1 else 0
                body = message_id.encode().ljust(self.rng.randint(1, 300), b".")
                wire.say(wire.send(f"queue://{QUEUE}", body, session, duplicate_id=message_id))
                numbers[message_id] = wire.number
            try:
                await wire.until(lambda numbers=numbers: wire.done.keys() >= set(numbers.values()) or wire.errors)
            finally:
                for message_id, number in numbers.items():
                    if number in wire.done:
                        self._pending.remove(message_id)
                        self.oracle.confirmed(message_id)
                for message_id in self._pending:  # it may be stored already, and others behind it
                    self.oracle.sent[message_id].may_be_early = True
            if wire.errors:  # the disk is full, say
                wire.errors.clear()
                await self.nap(0.5)

    def _next(self) -> None:
        for _ in range(self.rng.randint(1, self._burst)):
            message_id = f"{self.name}:{self._number}"
            self.oracle.sending(message_id, QUEUE, self.name, self._number)
            self.oracle.sent[message_id].may_be_early = self._burst > 1  # sessions have no order between them
            self._number += 1
            self._pending.append(message_id)


class NeutralConsumer(NeutralApplication):
    """Has a consumer in each of its sessions. `held` = what it got and has not settled, by session, in order."""

    def __init__(self, name: str, url: str, oracle: Oracle, rng: Random, feature: Neutral) -> None:
        super().__init__(name, url, oracle, rng, feature)
        self.held: dict[int, list[Delivered]] = {}
        self.wire: Wire | None = None

    def heard(self, got: Delivered) -> None:
        assert self.wire is not None
        self.feature.received(got)
        self.oracle.delivered(_id(got), f"{self.wire.message_id_prefix}{got.seq}", self.wire.epoch)
        self.held[got.session].append(got)

    async def use(self, wire: Wire) -> None:
        self.wire = wire
        self.held = {}
        for session in SESSIONS:
            await self._open(session)
        for _ in range(self.rng.randint(20, 100)):
            session = self.rng.choice(SESSIONS)
            await self._ask(session)
            await self._use_up(session)

    async def _open(self, session: int) -> None:
        assert self.wire is not None
        wire = self.wire
        wire.left[session] = 0
        self.held[session] = []
        consumer = wire.subscribe("c", f"queue://{QUEUE}", session=session, credit=0, acknowledges=True)
        await wire.do(wire.open(session), consumer)

    async def _ask(self, session: int) -> None:
        """For some messages, until they are there or it learns that there are none."""
        assert self.wire is not None
        wire, count = self.wire, self.rng.randint(1, 5)
        wire.left[session] = count
        drains = self.rng.random() < 0.5
        await wire.do(wire.credit("c", count, session, drain=drains))
        if not drains:
            await asyncio.sleep(self.rng.random() * 0.5)
            await wire.do(wire.credit("c", 0, session, drain=True))
        wire.left[session] = 0  # from now on it gets nothing
        self.oracle.counts["drained"] += 1

    async def _use_up(self, session: int) -> None:
        """What it holds there: accept, release, fail, reject; one, a range, a set; or let the session end with it."""
        assert self.wire is not None
        wire, held = self.wire, self.held[session]
        if not self.stopping and self.rng.random() < 0.1:
            if self.rng.random() < 0.5:
                await self.nap(0.5)
            await wire.do(wire.close(session))
            self.oracle.counts["sessions closed"] += 1
            await self._open(session)
            return
        while held:
            outcome = Outcome.ACCEPTED if self.stopping else self.rng.choice(OUTCOMES)
            start = self.rng.randrange(len(held))
            end = self.rng.randint(start + 1, len(held))
            chosen = held[start:end]
            if self.rng.random() < 0.4:
                chosen = self.rng.sample(held, self.rng.randint(1, len(held)))
                said = wire.settle([each.seq for each in chosen], "c", outcome, session)
            else:
                said = wire.settle(chosen[-1].seq, "c", outcome, session, first=chosen[0].seq)
            await self._settle(wire, said, chosen, outcome)
            for each in chosen:
                held.remove(each)
            if not self.stopping and self.rng.random() < 0.3:
                break

    async def _settle(self, wire: Wire, said: bytes, chosen: list[Delivered], outcome: Outcome) -> None:
        ids = [_id(each) for each in chosen]
        if outcome is Outcome.ACCEPTED:
            for message_id in ids:
                self.oracle.acknowledging(message_id)
        failed = await wire.do(said)
        if failed is not None:
            self.oracle.broken("settlement", f"{ids} are held, and to settle them fails: {failed.code}")
        self.oracle.counts[f"{outcome.name.lower()} by range or set"] += len(ids)
        for each, message_id in zip(chosen, ids, strict=True):
            if outcome is Outcome.ACCEPTED:
                self.oracle.acknowledged(message_id, wire.epoch)
            elif outcome is Outcome.RELEASED:
                self.feature.released[each.seq] += 1


class NeutralMover(NeutralConsumer):
    """Settles in transactions, in which it sends on what it got: once. Other transactions it rolls back."""

    async def _use_up(self, session: int) -> None:
        assert self.wire is not None
        wire, held = self.wire, self.held[session]
        while held:
            chosen = held[: self.rng.randint(1, len(held))]
            said = [wire.begin("t", session)]
            said.append(wire.settle(chosen[-1].seq, "c", session=session, transaction="t", first=chosen[0].seq))
            moved = []
            for each in chosen:
                moved.append(f"moved-{_id(each)}")
                self.oracle.sending(moved[-1], TARGET, self.name, len(self.oracle.sent))
                self.oracle.sent[moved[-1]].may_be_early = True
                said.append(
                    wire.send(f"queue://{TARGET}", moved[-1].encode(), session, duplicate_id=moved[-1], transaction="t")
                )
            if not self.stopping and self.rng.random() < 0.2:
                await wire.do(*said, wire.abort("t", session))
                self.oracle.counts["sessions' transactions aborted"] += 1
                del held[: len(chosen)]  # they are delivered anew
                continue
            for each in chosen:
                self.oracle.acknowledging(_id(each))
            failed = await wire.do(*said, wire.commit("t", session))
            if failed is not None:
                if failed.code == "DUPLICATE_ID":
                    self.oracle.broken("transaction", f"{moved} came again, though what they became is stored")
                raise ConnectionError(failed.text)
            self.oracle.counts["sessions' transactions"] += 1
            for each, message_id in zip(chosen, moved, strict=True):
                self.oracle.confirmed(message_id)
                self.oracle.acknowledged(_id(each), wire.epoch)
            del held[: len(chosen)]


def _id(got: Delivered) -> str:
    return got.body.rstrip(b".").decode()
