"""Reattachment knows no protocol: a client with sessions, credit and errors that it survives comes back as well."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from amq.protocols.commands import Reattach, Scope
from tests.neutral.client import NeutralClient
from tests.neutral.world import play
from tests.transports.served import Peer, Served


class Returning(NeutralClient):
    """It knows all that it said and how much it heard, and loses a part of both with each socket."""

    def __init__(self, served: Served, seed: int) -> None:
        super().__init__()
        self._served = served
        self._dice = Random(seed)
        self._said = b""
        self._heard_bytes = 0
        self._peer: Peer

    async def log_in(self) -> None:
        self._said = self.connect("me", "i", Reattach(60_000, 1 << 20))
        self._peer = await self._served.connect(self._said)
        await self.listen(0)
        assert self.reattachable is not None
        assert self.reattachable.received is None

    async def say(self, data: bytes) -> None:
        """And the socket breaks, at any byte in both directions."""
        self._said += data
        await self._served.say(self._peer, data[: self._dice.randrange(len(data) + 1)])
        await self.listen(self._dice.randrange(200))
        if self._dice.random() < 0.5:
            await self._served.hang_up(self._peer)
        await self.come_back()

    async def listen(self, lost_bytes: int) -> None:
        await self._served.rest()
        data = self._peer.read()
        data = data[: max(0, len(data) - lost_bytes)]
        self._heard_bytes += len(data)
        self.receive(data)

    async def come_back(self) -> None:
        assert self.reattachable is not None
        wish = Reattach(60_000, 1 << 20, self.reattachable.token, self._heard_bytes, 0)
        self._peer = await self._served.connect(self.connect("me", "i", wish))
        await self._served.rest()
        other = NeutralClient()  # reads the answer, which is not of the stream
        data = self._peer.read()
        size = 4 + int.from_bytes(data[:4], "big")
        other.receive(data[:size])
        assert other.reattachable is not None
        assert other.reattachable.received is not None
        self._heard_bytes += len(data) - size
        self.receive(data[size:])
        await self._served.say(self._peer, self._said[other.reattachable.received :])
        await self.listen(0)


@pytest.mark.parametrize("seed", range(8))
def test_sessions_live_on_over_many_sockets(tmp_path: Path, seed: int) -> None:
    async def test(served: Served) -> None:
        served.hub.clock = served.world.clock
        client = Returning(served, seed)
        await client.log_in()
        await client.say(client.open(1) + client.open(2))
        for session in (1, 2):
            await client.say(client.subscribe("c", f"queue://{session}", session=session, acknowledges=True))
            await client.say(client.begin("t", session=session))
        for number in range(6):
            session = 1 + number % 2
            await client.say(client.send(f"queue://{session}", b"%d" % number))
            await client.say(client.send("queue://out", b"%d" % number, session=session, transaction="t"))
        assert [each.body for each in client.deliveries] == [b"%d" % number for number in range(6)]
        assert not any(each.redelivered for each in client.deliveries)
        for each in client.deliveries:
            await client.say(client.settle(each.seq, "c", session=each.session, transaction="t"))
        await client.say(client.commit("t", session=1))
        await client.say(client.abort("t", session=2))
        await client.listen(0)
        assert client.errors == []
        assert len(client.done) == client.number, "each command has its answer, and one"
        assert served.world.stored("out") == [b"0", b"2", b"4"]
        assert served.world.stored("1") == []
        assert served.world.stored("2") == [b"1", b"3", b"5"]

    play(tmp_path, test)


def test_an_error_that_the_connection_survives_is_told_on_the_next_socket(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        served.hub.clock = served.world.clock
        client = Returning(served, 1)
        await client.log_in()
        await client.say(client.begin("t"))
        await served.hang_up(client._peer)
        served.world.clock.advance(11)
        transactions = next(iter(served.hub.parking.parked)).client.sessions[0]._transactions
        while transactions:
            await asyncio.sleep(0.01)
        assert served.hub.parking.parked, "it lives on"
        await client.come_back()
        assert [(each.scope, each.code) for each in client.errors] == [(Scope.COMMAND, "TRANSACTION_TIMEOUT")]

    play(tmp_path, test, transaction_timeout_s=10.0)
