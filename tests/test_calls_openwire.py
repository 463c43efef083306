"""How many Python calls of the broker one message of a JMS client takes: see `tests.test_calls`.

The frames are those of the unmodified client.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from amq.journal import journal
from amq.protocols.openwire import table
from amq.protocols.openwire.table import Structure, decode, frame, structure
from amq.protocols.openwire.wire import INT
from tests.protocols.openwire.conversation import greeting
from tests.service_world import Services
from tests.test_calls import BURST, MESSAGES, Calls, listed

TRANSACTION_MESSAGES = 100
# One alone: a message to its answer and its delivery, and its acknowledgement to the answer.
LONE_CALLS_MAX = {"inline": {"send": 47, "acknowledge": 47}, "thread": {"send": 49, "acknowledge": 49}}
# Of each message of a burst: to the answer to the last, the same with its delivery, and its acknowledgement; and of a
# transaction, with the delivery, and of one that acknowledges.
BURST_CALLS_MAX = {
    "send": 2.5,
    "deliver": 1.9,
    "acknowledge": 0.9,
    "not persistent": 2.2,
    "transaction": 3.6,
    "acknowledging transaction": 2.1,
}


class Wire:
    """A client's socket, with one session, producer and consumer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self._reader = reader
        self._writer = writer
        self.write, self.close = writer.write, writer.close
        name = f"ID:host-35683-1700000000000-1:{number}"
        self._connection = structure(table.CONNECTION_ID, value=name)
        self._session = structure(table.SESSION_ID, connection=name, value=1)
        self._producer = structure(table.PRODUCER_ID, connection=name, session=1, value=1)
        self._consumer = structure(table.CONSUMER_ID, connection=name, session=1, value=1)
        self._numbers = itertools.count(1)

    @classmethod
    async def connect(cls, port: int, number: int) -> Wire:
        wire = cls(*await asyncio.open_connection("127.0.0.1", port), number)
        wire.write(greeting())
        await wire.ask(table.CONNECTION_INFO, id=wire._connection, client_id=str(number))
        await wire.ask(table.SESSION_INFO, id=wire._session)
        await wire.ask(table.PRODUCER_INFO, id=wire._producer)
        return wire

    async def ask(self, kind: int, /, **fields: object) -> None:
        """Say it, and wait for the answer."""
        self.write(self.said(kind, True, **fields))
        await self.next_of(table.RESPONSE)

    async def consume(self, queue: str) -> None:
        destination = structure(table.QUEUE, name=queue)
        await self.ask(table.CONSUMER_INFO, id=self._consumer, destination=destination, prefetch=1000)

    def said(self, kind: int, responds: bool, /, **fields: object) -> bytes:
        found = {"command_id": next(self._numbers), "response_required": responds, **fields}
        return frame(Structure(kind, found))

    def message(self, queue: str, responds: bool, **fields: object) -> bytes:
        number = next(self._numbers)
        id = structure(table.MESSAGE_ID, producer=self._producer, producer_sequence=number)
        own = {"id": id, "timestamp": 1_700_000_000_000 + number, "content": b"hello"}
        usual = {"producer": self._producer, "destination": structure(table.QUEUE, name=queue), "priority": 4}
        return self.said(table.BYTES_MESSAGE, responds, **usual, **own, **{"persistent": True, **fields})

    def messages(self, queue: str, count: int, **fields: object) -> bytes:
        """The client waits for the answer to the last."""
        return b"".join([self.message(queue, number == count, **fields) for number in range(1, count + 1)])

    def acknowledgement(self, responds: bool, *dispatches: bytes, **fields: object) -> bytes:
        """Of all from the first to the last."""
        first, last = (decode(dispatches[at]).fields["message"].get("id") for at in (0, -1))
        usual = {"destination": structure(table.QUEUE, name="a"), "consumer": self._consumer, "kind": 2}
        count = len(dispatches)
        return self.said(table.MESSAGE_ACK, responds, **usual, first=first, last=last, count=count, **fields)

    def transaction(self, number: int) -> tuple[Structure, bytes, bytes]:
        """Its id, its beginning, and its commit."""
        id = structure(table.LOCAL_TRANSACTION_ID, connection=self._connection, value=number)
        fields = {"connection": self._connection, "transaction": id}
        begin = self.said(table.TRANSACTION_INFO, False, kind=0, **fields)
        return id, begin, self.said(table.TRANSACTION_INFO, True, kind=2, **fields)

    async def next_of(self, kind: int) -> bytes:
        """The next frame of that kind, without its size."""
        while True:
            (size,) = INT.unpack(await self._reader.readexactly(INT.size))
            found = await self._reader.readexactly(size)
            if found[0] == kind:
                return found


Found = dict[str, list[Counter[tuple[str, str]]]]
Play = Callable[[Wire, Wire, Found], Awaitable[None]]


async def lone(producer: Wire, consumer: Wire, found: Found) -> None:
    sent = producer.message("a", True)
    with Calls() as calls:
        producer.write(sent)
        await producer.next_of(table.RESPONSE)
        dispatch = await consumer.next_of(table.MESSAGE_DISPATCH)
    found["send"].append(calls.counts)
    acknowledgement = consumer.acknowledgement(True, dispatch)
    with Calls() as calls:
        consumer.write(acknowledgement)
        await consumer.next_of(table.RESPONSE)
    found["acknowledge"].append(calls.counts)


async def bursts(producer: Wire, consumer: Wire, found: Found) -> None:
    async def send(data: bytes, deliveries: int, what: str) -> list[bytes]:
        with Calls() as calls:
            producer.write(data)
            await producer.next_of(table.RESPONSE)
            dispatches = [await consumer.next_of(table.MESSAGE_DISPATCH) for _ in range(deliveries)]
        found[what].append(calls.counts)
        return dispatches

    async def acknowledge(data: bytes, what: str) -> None:
        with Calls() as calls:
            consumer.write(data)
            await consumer.next_of(table.RESPONSE)
        found[what].append(calls.counts)

    number = len(found["send"]) + 1
    await send(producer.messages("stays", BURST), 0, "send")
    for what, persistent in (("not persistent", False), ("deliver", True)):
        dispatches = await send(producer.messages("a", BURST, persistent=persistent), BURST, what)
        acks = [consumer.acknowledgement(each is dispatches[-1], each) for each in dispatches]
        await acknowledge(b"".join(acks), "acknowledge")
    id, begin, commit = producer.transaction(number)
    messages = [producer.message("a", False, transaction=id) for _ in range(TRANSACTION_MESSAGES)]
    dispatches = await send(begin + b"".join(messages) + commit, TRANSACTION_MESSAGES, "transaction")
    id, begin, commit = consumer.transaction(number)
    ack = consumer.acknowledgement(False, *dispatches, transaction=id)
    await acknowledge(begin + ack + commit, "acknowledging transaction")


async def counted(store: Path, play: Play, names: Mapping[str, float]) -> Found:
    found: Found = {name: [] for name in names}
    services = Services(store)
    services.scheme = "openwire"
    try:
        _, port = await services.master()
        producer, consumer = await Wire.connect(port, 1), await Wire.connect(port, 2)
        await consumer.consume("a")
        for _ in range(MESSAGES):
            await play(producer, consumer, found)
        producer.close()
        consumer.close()
    finally:
        await services.stop()
    return found


def cheapest(store: Path, play: Play, names: Mapping[str, float]) -> dict[str, Counter[tuple[str, str]]]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(counted(store, play, names))
    return {name: min(counts, key=Counter.total) for name, counts in found.items()}


@pytest.mark.parametrize("sync", ["inline", "thread"])
def test_calls_of_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str) -> None:
    monkeypatch.setattr(journal, "INLINE_SYNC_S_MAX", 60.0 if sync == "inline" else 0.0)
    for name, counts in cheapest(tmp_path, lone, LONE_CALLS_MAX[sync]).items():
        assert counts.total() <= LONE_CALLS_MAX[sync][name], f"{name}\n{listed(counts)}"


def test_calls_of_each_message_of_a_burst(tmp_path: Path) -> None:
    for name, counts in cheapest(tmp_path, bursts, BURST_CALLS_MAX).items():
        messages = TRANSACTION_MESSAGES if "transaction" in name else BURST
        assert counts.total() / messages <= BURST_CALLS_MAX[name], f"{name}: {counts.total()}\n{listed(counts)}"
