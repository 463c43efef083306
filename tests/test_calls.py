"""How many Python calls of the broker one persistent message takes, from its SEND to its delivery and its receipt.

At a window of 1 a message shares nothing with others, and after each sleep the processor's caches are cold: a call
costs about a microsecond there. In a burst each message pays for what is left of that. Of a takeover the
files are counted: the fewer it needs, the less there is to understand. These figures may only go down;
docs/architecture.md ("Two walks") has them too.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import uvloop

import amq
from amq.broker.state.state import State
from amq.config.schema import BrokerConfig
from amq.journal import journal
from amq.node import mastership
from amq.node.member import Member, Role
from tests.brokers import Brokers
from tests.patience import DEADLINE_S
from tests.ports import free_port
from tests.service_world import PERIOD_S, Services, anybody, until

ROOT = Path(amq.__file__).parent
MESSAGES = 20  # of which the one with the fewest calls counts: now and then a timer goes off beside it
CALLS_MAX = {"inline": 43, "thread": 45}
ACK_CALLS_MAX = {"inline": 45, "thread": 47}  # of one acknowledgement, to its receipt
FILES_MAX = {"inline": 23, "thread": 22}
BURST = 64  # messages of one write
# Of each message of a burst: from its SEND to its receipt, the same with its delivery, and its ACK.
BURST_CALLS_MAX = {"send": 1.3, "deliver": 1.4, "acknowledge": 0.9}


class Calls:
    """While it is entered, counts the calls of functions in `amq` on this thread, by file and name."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def __enter__(self) -> Calls:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(ROOT):
                self.counts[str(path.relative_to(ROOT)), frame.f_code.co_qualname] += 1


class Wire:
    """A client's socket, without any code of `amq`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.write = writer.write

    @classmethod
    async def connect(cls, port: int) -> Wire:
        wire = cls(*await asyncio.open_connection("127.0.0.1", port))
        wire.write(b"CONNECT\naccept-version:1.2\nhost:/\n\n\0")
        assert (await wire.read()).startswith(b"CONNECTED")
        return wire

    async def read(self) -> bytes:
        """The next frame."""
        return await self._reader.readuntil(b"\0")

    def close(self) -> None:
        self._writer.close()


Counts = Counter[tuple[str, str]]


async def one_message(store: Path) -> tuple[Counts, Counts]:
    """Calls of the cheapest of some messages, and of the cheapest of their acknowledgements."""
    services = Services(store)
    try:
        _, port = await services.master()
        producer, consumer = await Wire.connect(port), await Wire.connect(port)
        consumer.write(b"SUBSCRIBE\nid:0\ndestination:/queue/a\nack:client-individual\nreceipt:0\n\n\0")
        await consumer.read()
        found = [await count(producer, consumer) for _ in range(MESSAGES)]
        producer.close()
        consumer.close()
        sends, acks = zip(*found, strict=True)
        return min(sends, key=Counter.total), min(acks, key=Counter.total)
    finally:
        await services.stop()


async def count(producer: Wire, consumer: Wire) -> tuple[Counts, Counts]:
    with Calls() as calls:
        producer.write(b"SEND\ndestination:/queue/a\nreceipt:1\ncontent-length:5\n\nhello\0")
        receipt = await producer.read()
        message = await consumer.read()
    assert receipt.startswith(b"RECEIPT")
    assert message.startswith(b"MESSAGE")
    ack = message.partition(b"\nack:")[2].partition(b"\n")[0]
    with Calls() as ack_calls:
        consumer.write(b"ACK\nid:" + ack + b"\nreceipt:2\n\n\0")
        await consumer.read()
    return calls.counts, ack_calls.counts


@pytest.mark.parametrize("sync", ["inline", "thread"])
def test_calls_of_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str) -> None:
    monkeypatch.setattr(journal, "INLINE_SYNC_S_MAX", 60.0 if sync == "inline" else 0.0)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        counts, ack_counts = runner.run(one_message(tmp_path))
    files = {path for path, _ in counts}
    assert counts.total() <= CALLS_MAX[sync], listed(counts)
    assert len(files) <= FILES_MAX[sync], listed(counts)
    assert ack_counts.total() <= ACK_CALLS_MAX[sync], listed(ack_counts)


def listed(counts: Counts) -> str:
    return "\n".join(f"{count} {path} {name}" for (path, name), count in sorted(counts.items()))


async def bursts(store: Path) -> dict[str, float]:
    """Calls of each message of the cheapest of some bursts, by what happens in it."""
    found: dict[str, list[Counter[tuple[str, str]]]] = {name: [] for name in BURST_CALLS_MAX}
    services = Services(store)
    try:
        _, port = await services.master()
        producer, consumer = await Wire.connect(port), await Wire.connect(port)
        consumer.write(b"SUBSCRIBE\nid:0\ndestination:/queue/a\nack:client-individual\nreceipt:0\n\n\0")
        await consumer.read()
        send = b"SEND\ndestination:/queue/%s\nreceipt:1\ncontent-length:5\n\nhello\0"
        for _ in range(MESSAGES):
            with Calls() as calls:
                producer.write(BURST * (send % b"stays"))
                [await producer.read() for _ in range(BURST)]
            found["send"].append(calls.counts)
            with Calls() as calls:
                producer.write(BURST * (send % b"a"))
                [await producer.read() for _ in range(BURST)]
                messages = [await consumer.read() for _ in range(BURST)]
            found["deliver"].append(calls.counts)
            acks = [b"ACK\nid:" + each.partition(b"\nack:")[2].partition(b"\n")[0] + b"\n\n\0" for each in messages]
            with Calls() as calls:
                consumer.write(b"".join(acks)[:-2] + b"receipt:2\n\n\0")
                await consumer.read()
            found["acknowledge"].append(calls.counts)
        producer.close()
        consumer.close()
    finally:
        await services.stop()
    return {name: min(map(Counter.total, counts)) / BURST for name, counts in found.items()}


def test_calls_of_each_message_of_a_burst(tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(bursts(tmp_path))
    assert {name: calls for name, calls in found.items() if calls > BURST_CALLS_MAX[name]} == {}


TAKEOVER_FILES_MAX = 42


class Slave(Member):
    """Tells when it has made all that serves clients."""

    is_ready = False

    def get_ready(self, state: State | None) -> None:
        super().get_ready(state)
        self.is_ready = state is not None


class TakeoverFiles:
    """While it is entered, gathers the files of `amq` in which functions are called in any thread that has begun since:
    from the try for the lock that gets it until clients are served."""

    def __init__(self) -> None:
        self.found: dict[str, None] = {}
        self._is_on = False

    def __enter__(self) -> TakeoverFiles:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, result: Any) -> None:
        name = frame.f_code.co_qualname
        if name == "Locker.try_acquire":
            self._is_on = event == "call" or bool(result)
        elif name == "Member.serve" and event == "return":
            self._is_on = False
        if self._is_on and event == "call":
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(ROOT):
                self.found[str(path.relative_to(ROOT))] = None


async def files_of_a_takeover(brokers: Brokers) -> list[str]:
    master = brokers.master("a")
    wire = await Wire.connect(master.port)
    for _ in range(3):
        wire.write(b"SEND\ndestination:/queue/a\nreceipt:1\ncontent-length:5\n\nhello\0")
        await wire.read()
    config = BrokerConfig(
        name="b",
        store=str(brokers.store),
        transports=(f"stomp://127.0.0.1:{free_port()}",),
        lock_keep_alive_period_s=PERIOD_S,
        lock_acquire_sleep_interval_s=0.1,
    )
    with TakeoverFiles() as files:
        slave = Slave(config, anybody, probe=None)
        await slave.start()
        try:
            await until(lambda: slave.is_ready and slave.lag.messages >= 2)
            master.kill()
            await asyncio.wait_for(slave.wait_for(Role.MASTER), DEADLINE_S)
        finally:
            await slave.stop()
            wire.close()
    return sorted(files.found)


def test_files_of_a_takeover(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hot slave has made ahead of time all that depends on no term."""
    monkeypatch.setattr(mastership, "UPKEEP_S", 3600.0)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        files = runner.run(files_of_a_takeover(brokers))
    assert "broker/broker.py" in files
    assert len(files) <= TAKEOVER_FILES_MAX, files
