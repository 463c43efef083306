"""How many Python calls a link adds at the home of a client, whose gateway runs in another thread here.

They take the place of those of sockets and codecs: `amq/transports` and `amq/protocols`. A burst is one frame each way,
whatever its length. These figures may only go down.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import uvloop

from amq.core.message import Message
from amq.protocols.commands import Command, Flow, Mode, Nothing, Send, SendRun, Settle, SettleRun, Subscribe
from tests.link.test_link_member import Program, master, new_link, opened
from tests.patience import DEADLINE_S
from tests.service_world import Services
from tests.test_calls import BURST, MESSAGES, Calls, Counts, listed

# Of a burst: from its command to its receipts, the same with its deliveries, and its acknowledgement.
BURST_LINK_CALLS_MAX = {"send": 33, "deliver": 55, "acknowledge": 35}
LONE_LINK_CALLS_MAX = {"send": 39, "acknowledge": 26}  # of a message alone: with its delivery; to the answer


class Gateway:
    """A link and one client on it, with an event loop in a thread."""

    def __init__(self) -> None:
        self.program = Program()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    async def run(self, made: Callable[[], Awaitable[Any]]) -> Any:
        """`made()`, there."""
        future: Future[Any] = asyncio.run_coroutine_threadsafe(self._awaited(made), self._loop)
        return await asyncio.wait_for(asyncio.wrap_future(future), DEADLINE_S)

    @staticmethod
    async def _awaited(made: Callable[[], Awaitable[Any]]) -> Any:
        return await made()

    async def connect(self, address: str) -> None:
        self.link = new_link()
        await self.link.connect(address)
        self.connection = opened(self.link, self.program)

    async def do(self, *commands: Command, confirmed: int, delivered: int = 0) -> list[Message]:
        """Returns the messages, when all has come."""
        program = self.program
        program.confirmed.clear()
        program.deliveries.clear()
        self.connection.handle([*commands])
        while len(program.confirmed) < confirmed or len(program.deliveries) < delivered:
            await asyncio.sleep(0.0005)
        assert program.failures == []
        return [message for _, message, _ in program.deliveries]

    async def close(self) -> None:
        self.link.close()
        while self.link._hub.turn.is_due:
            await asyncio.sleep(0)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()


def burst(queue: str) -> SendRun:
    return SendRun(Message(queue, b""), [b"hello"] * BURST, [*range(BURST)])


async def measured(path: Path) -> tuple[dict[str, Counts], dict[str, Counts]]:
    """Calls of the cheapest of some bursts, and of the cheapest of some messages alone, by what happens."""
    found: dict[str, list[Counts]] = {name: [] for name in BURST_LINK_CALLS_MAX}
    alone: dict[str, list[Counts]] = {name: [] for name in LONE_LINK_CALLS_MAX}
    services, gateway = Services(path), Gateway()

    async def count(to: list[Counts], *commands: Command, **wanted: int) -> list[Message]:
        with Calls() as calls:
            messages: list[Message] = await gateway.run(lambda: gateway.do(*commands, **wanted))
        to.append(Counter({call: count for call, count in calls.counts.items() if call[0].startswith("link/")}))
        return messages

    try:
        member = await master(services, path)
        await gateway.run(lambda: gateway.connect(member.facts()["link"]))
        subscribe = Subscribe("c", "queue://a", Mode(True), Flow(10 * BURST), receipt="s", token="wire")
        await gateway.run(lambda: gateway.do(subscribe, confirmed=1))
        for _ in range(MESSAGES):
            await count(found["send"], burst("queue://stays"), confirmed=BURST)
            messages = await count(found["deliver"], burst("queue://a"), confirmed=BURST, delivered=BURST)
            seqs = [message.seq for message in messages]
            await count(found["acknowledge"], SettleRun(seqs, "c"), Nothing("done"), confirmed=1)
            send = Send(Message("queue://a", b"hello"), "r")
            (message,) = await count(alone["send"], send, confirmed=1, delivered=1)
            await count(alone["acknowledge"], Settle(message.seq, "c", "acked"), confirmed=1)
        await gateway.run(gateway.close)
    finally:
        gateway.stop()
        await services.stop()
    best = {name: min(counts, key=Counter.total) for name, counts in found.items()}
    return best, {name: min(counts, key=Counter.total) for name, counts in alone.items()}


def test_calls_of_a_message_over_a_link(tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        bursts, alone = runner.run(measured(tmp_path))
    for found, limits in ((bursts, BURST_LINK_CALLS_MAX), (alone, LONE_LINK_CALLS_MAX)):
        for name, counts in found.items():
            assert counts.total() <= limits[name], f"{name}: {counts.total()}\n{listed(counts)}"
