"""GatewayHub: the clients of a gateway. A reception without a broker, whose connections lead to the stores' masters.

Invariant: it keeps nothing that must survive it, and confirms nothing itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from random import Random
from socket import socket
from typing import Any

import structlog

from amq.broker.memory import Memory
from amq.broker.sessions.links import Client
from amq.config.schema import BrokerConfig
from amq.core.message import Message, ids_of_cluster
from amq.doors.clock import Clock
from amq.doors.threads import JobThread, Threads
from amq.gateway.homes import ALL_NUMBERS, GatewayCluster
from amq.gateway.router import RoutedConnection
from amq.gateway.turn import GatewayTurn
from amq.node.catalogue import Surroundings
from amq.node.reception import POLL_S, Reception, Shared
from amq.transports.hub import ServedConnection
from amq.transports.peer import Peer
from amq.transports.translating import Translator

UPKEEP_S = 1.0
ANSWERS_S = 5.0  # how long a stop waits for answers that clients wait for
EPOCH_BITS = 48  # as good as unique among all gateways of a cluster, and their restarts
_log = structlog.get_logger("amq.gateway")


class GatewayHub(Reception):
    """The reception of one gateway."""

    turn: GatewayTurn

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        entropy: Random,
        threads: Threads,
        shared: Shared,
        name: str,
        host_name: str,
        cluster: str,
        ways: GatewayCluster,
    ) -> None:
        """`name` is the node's, `cluster` the id of the cluster, `ways` lead to its stores."""
        super().__init__(config, clock, entropy, shared, name, host_name)
        self.epoch = entropy.getrandbits(EPOCH_BITS)
        self.turn = GatewayTurn(self.loop)
        self.memory = Memory(config.memory_limit_bytes)
        self._ids = ids_of_cluster(cluster)
        make_runner = partial(JobThread, threads, self.loop.call_soon_threadsafe)
        self.translator = Translator(self.memory, make_runner, self.turn.wake)
        self.lend, self.take_back, self.shown = self._lend, self.memory.take_back, _as_it_is
        self._ways = ways
        self._cluster = cluster
        self._upkeep: asyncio.TimerHandle | None = None
        self._table = 0  # the number of that by which all clients are known

    async def listen(self, neighbours: tuple[str, ...] = (), given: Sequence[Sequence[socket]] = ()) -> None:
        await super().listen(neighbours, given)
        self._keep_up()

    def reconfigure(self, config: BrokerConfig) -> None:
        self.config = config
        self.memory.set_limit(config.memory_limit_bytes)
        self.meet(self._neighbours)

    def meet(self, neighbours: tuple[str, ...]) -> None:
        super().meet(neighbours)
        number = self._ways.placement.number
        if number != self._table:
            self._table = number
            for client in self._routed():
                client.stay_known()

    async def stop(self) -> None:
        """No new input; answers that are due go out; clients hear where the other nodes are, and have time to go."""
        self._close_servers()
        for connection in list(self.connections.values()):
            connection.pause_reading()
        self.parking.close()
        self._ways.give_up()
        until_s = self.clock.monotonic() + ANSWERS_S
        while self._owes_answers() and self.clock.monotonic() < until_s:
            await asyncio.sleep(POLL_S)
        self._announce(*self._neighbours)
        while self._announcer.is_telling:
            await asyncio.sleep(0)
        await self._close_connections()
        if self._upkeep is not None:
            self._upkeep.cancel()
        self.turn.stop()
        self._leave()

    def _owes_answers(self) -> bool:
        return bool(self.turn.unsent) or any(each.owes_answers for each in self._routed())

    def _routed(self) -> list[RoutedConnection]:
        clients = [connection.client for connection in self.connections.values()]
        return [each for each in clients if isinstance(each, RoutedConnection)]

    def admit(self, peer: Peer, owner: str, client: Client, protocol: str) -> ServedConnection:
        made = RoutedConnection(self._ways, peer, owner, client, protocol)
        made.traffic, made.ids = self.traffic[protocol], self._ids
        return made

    def waits_for(self, served: ServedConnection) -> Awaitable[None] | None:
        """The store that knows the client by its id may have to say that no other client has it."""
        assert isinstance(served, RoutedConnection)
        if not served.client.has_chosen_id:
            return None
        answer: asyncio.Future[None] = self.loop.create_future()

        def heard(error: Exception | None) -> None:
            if answer.done():
                return  # the client has gone
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        served.ask_to_enter(heard)
        return answer

    def _lend(self, queue: Any, message: Message) -> int:  # noqa: ARG002
        size = len(message.body)
        self.memory.take(size)
        self.memory.lend(size)
        return size

    def _surroundings(self) -> Surroundings:
        # A client that comes from another gateway may have had any message: none shows which.
        prefix, newest = self._ids.prefix, ALL_NUMBERS
        return Surroundings(self.config, self._name, self.epoch, prefix, newest, self._cluster)

    def _keep_up(self) -> None:
        self.translator.step()
        self._upkeep = self.loop.call_later(UPKEEP_S, self._keep_up)


def _as_it_is(queue: Any, message: Message) -> Message:  # noqa: ARG001
    """A message that is delivered again comes from its home as it is to be shown."""
    return message
