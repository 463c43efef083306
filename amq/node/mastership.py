"""Mastership: everything that exists only while this member is master: queues, journal, and the reception of clients.

Lives on the event loop. A slave makes it ahead of time, so that a takeover only begins it: `begin` with a finished
replay, `listen`. It ends in one of two ways: `stop` (in good order, everything committed) or `fence` (dirty: sockets
closed at once, nothing written, state forgotten). Fence also a mastership that was never begun.

Invariant: before `begin` it looks at nothing that is stored, and has no socket and no thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from socket import socket
from typing import Protocol

import structlog

from amq.broker.broker import Broker
from amq.broker.events import StoreFull, StoreHasRoom, StoreLimitLeft, StoreLimitReached
from amq.broker.queues.redelivery import shown
from amq.broker.sessions.connection import ClientConnection, SentAway
from amq.broker.sessions.links import Client
from amq.broker.state.state import State
from amq.broker.transfer.merging import MergeOrder, Merging
from amq.broker.transfer.peers import Peers
from amq.config.schema import BrokerConfig
from amq.core.errors import AmqError, CommandError, CorruptError, TransportError
from amq.doors.clock import Clock
from amq.doors.threads import JobRunner, Threads
from amq.journal.batch import Waiter
from amq.journal.journal import Journal
from amq.journal.recovery import Recovered
from amq.link.calls import Home
from amq.link.server import LinkServer
from amq.node.catalogue import Surroundings
from amq.node.entrance import Served
from amq.node.linking import link_secret
from amq.node.reception import POLL_S, Reception, Shared
from amq.security.permissions import Permissions
from amq.store.epoch import Epoch
from amq.store.host import Host
from amq.store.port import Store
from amq.transports.translating import Translator
from amq.transports.turn import Turn

UPKEEP_S = 1.0
_log = structlog.get_logger("amq.master")


class ClosedPeers(Peers, Protocol):
    """Ways to other stores, which end with their mastership."""

    def close(self) -> None: ...


MakeRunner = Callable[[Callable[..., object]], JobRunner]  # from the event loop's `call_soon_threadsafe`


@dataclass(frozen=True, slots=True)
class Doors:
    """The ways to the outside that a member has. `peers(mastership, secret, threads, entropy)` makes those to the other
    stores of its cluster, None = it is in none; `merges` one to a lone store, by its place."""

    store: Store
    clock: Clock
    host: Host
    threads: Threads
    entropy: Random
    make_runner: MakeRunner
    peers: Callable[..., ClosedPeers] | None = None
    merges: Callable[..., ClosedPeers] | None = None


class Mastership(Reception):
    """One mastership. The journal is being read into `state`, by another thread until `begin`."""

    message_id_prefix: str
    turn: Turn
    _failed: Callable[[str, AmqError | None], None]

    def __init__(
        self,
        config: BrokerConfig,
        doors: Doors,
        shared: Shared,
        state: State,
        permissions: Permissions | None,
        name: str,
    ) -> None:
        clock, entropy, make_runner = doors.clock, doors.entropy, doors.make_runner
        super().__init__(config, clock, entropy, shared, name, doors.host.name())
        self.turn = Turn(self.loop, inline=shared.alone)
        self.full = False  # the store's disk
        self.link = ""  # its address for gateways, "" = it has none
        self._trouble = ""  # why the store cannot be merged, as it was logged last
        self._links: LinkServer | None = None
        self._peers: ClosedPeers | None = None
        self._doors = doors
        self._entropy = entropy
        self._upkeep: asyncio.TimerHandle | None = None
        self._runner = make_runner(self.loop.call_soon_threadsafe)
        self._reader = make_runner(self.loop.call_soon_threadsafe)
        self.journal = Journal(doors.store.log, clock, self._runner, self, config, entropy, self._reader)
        self.broker = broker = Broker(state, self.journal, config, clock, self.turn.wake, shared.events)
        broker.advisories.broker_name = name
        broker.permit(permissions)
        self.committed, self.rejected = broker.committed, broker.rejected
        self.lend, self.take_back, self.shown = broker.lend, broker.take_back, shown
        self.translator = Translator(broker.memory, partial(make_runner, self.loop.call_soon_threadsafe), broker.wake)

    def begin(
        self,
        epoch: Epoch,
        recovered: Recovered,
        valid: Callable[[], bool],
        failed: Callable[[str, AmqError | None], None],
    ) -> None:
        """All of the journal was read into the state. `valid()` tells whether the lease is valid now; `failed(why)` is
        called when the journal cannot go on. Raises StoreError."""
        self.epoch, self._failed = epoch.number, failed
        store_uuid = recovered.store_uuid or self._entropy.randbytes(16)
        self.message_id_prefix = f"ID:{store_uuid.hex()[:12]}-"
        if self._doors.store.log.is_patient:
            self._doors.store.hear_on(self.loop)
        self.journal.begin(self.epoch, store_uuid, recovered, valid)
        self.broker.begin(self.epoch, recovered.read_bytes)
        self.turn.serve(self.broker, self.journal, valid)
        self.journal.delete(recovered.unused)

    async def listen(self, neighbours: tuple[str, ...] = (), given: Sequence[Sequence[socket]] = ()) -> None:
        await super().listen(neighbours, given)
        if self.config.link_listen:
            await self._listen_for_links(self.config.link_listen)
        self._carry_merge()
        self._upkeep = self.loop.call_later(UPKEEP_S, self._keep_up)

    async def _listen_for_links(self, text: str) -> None:
        """Open the port of gateways. Raises TransportError."""
        secret = link_secret(self.config.link_secret_file)
        numbers, manager = self._shared.entrance.numbers, self._shared.manager()
        self._links = links = LinkServer(self, secret, self._home, self._entropy, numbers, manager)
        self.link = (await self.open_port(text, links.make))[0]
        if self._doors.peers is not None:
            self._peers = self.broker.peers = self._doors.peers(self, secret, self._doors.threads, self._entropy)
            self.broker.outbox.sweep()

    def merge(self, order: MergeOrder, waiter: Waiter) -> None:
        """See `Broker.merge`. Raises AmqError."""
        link_secret(order.secret_file)
        if self._doors.merges is None:
            raise CommandError("a node of a cluster merges no stores: `amq cluster --help`", code="STORE_IN_CLUSTER")
        self.broker.merge(order, waiter)
        self._carry_merge()

    def _carry_merge(self) -> None:
        """The store is being merged into another one: reach that. It has been: tell clients where they find it."""
        merging = self._merging
        if merging is None:
            return
        if merging.is_over:
            self.meet(self._neighbours)
            peers, self._peers, self.broker.peers = self._peers, None, None
            if peers is not None:
                peers.close()
        elif self._peers is None and self._doors.merges is not None:
            try:
                secret = link_secret(merging.order.secret_file)
            except TransportError as error:
                if self._trouble != str(error):
                    self._trouble = str(error)
                    _log.error("the store cannot be merged now", reason=self._trouble)
                return
            self._peers = self.broker.peers = self._doors.merges(self, secret, self._doors.threads, self._entropy)

    @property
    def _merging(self) -> Merging | None:
        homes = self.broker.homes
        return homes if isinstance(homes, Merging) else None

    def own_addresses(self) -> tuple[str, ...]:
        merging = self._merging
        return merging.order.urls if merging is not None and merging.is_over else super().own_addresses()

    def _home(self) -> Home:
        return Home(self._name, self.epoch, self.message_id_prefix, self.broker.newest_seq)

    def meet(self, neighbours: tuple[str, ...]) -> None:
        super().meet(neighbours)
        own = self.own_addresses()
        self.broker.advisories.broker_url = own[0] if own else ""

    async def stop(self, timeout_s: float = 30.0) -> bool:
        """End in good order: no new input, what came in is committed and confirmed. False where that took too long."""
        self._close_servers()
        self.broker.outbox.stop()
        if self._links is not None:
            self._links.pause()
        for connection in list(self.connections.values()):
            connection.pause_reading()
        self.parking.close()
        deadline = self.clock.monotonic() + timeout_s
        while not (self.journal.idle() and not self.turn.unsent and not self.turn.shares.waiting):
            if self.clock.monotonic() > deadline:
                return False
            self.turn.wake()
            await asyncio.sleep(POLL_S)
        if self._links is not None:
            self._links.close()
            while (self.turn.unsent or not self._links.is_over) and self.clock.monotonic() < deadline:
                self.turn.wake()
                await asyncio.sleep(POLL_S)
        await self._close_connections()
        while not self.journal.idle():  # connections that closed gave messages back
            if self.clock.monotonic() > deadline:
                return False
            self.turn.wake()
            await asyncio.sleep(POLL_S)
        self._end()
        while self._runner.is_alive() or self._reader.is_alive() or self.translator.is_alive():
            if self.clock.monotonic() > deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    def fence(self) -> None:
        """Ownership is lost or in doubt for too long: be gone. Writes nothing, waits for nothing."""
        if self._links is not None:
            self._links.abort()
        self._close_at_once()
        self._end()

    def cut(self) -> None:
        super().cut()
        links = self._links
        if links is not None:
            links.cut()

    def _end(self) -> None:
        self.turn.stop()
        self._leave()
        self.broker.stop_serving()
        if self._peers is not None:
            self._peers.close()
        self.journal.abandon()
        if self._doors.store.log.is_patient:
            self._doors.store.hear_on(None)
        self._runner.close()
        self._reader.close()
        if self._upkeep is not None:
            self._upkeep.cancel()

    def lease_renewed(self) -> None:
        """The lease had run out and was proved again: what waited for it goes on."""
        self.journal.lease_renewed()
        self.turn.wake()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Take over the limits that may change while clients are served."""
        self.config = config
        self.broker.reconfigure(config)
        self.meet(self._neighbours)

    def permit(self, permissions: Permissions | None) -> None:
        """From now on these decide who may do what; None = everybody may do everything."""
        self.broker.permit(permissions)

    # -- JournalOwner, beside `committed` and `rejected`, which are the broker's own --------------------------------

    def store_full(self, full: bool) -> None:
        self.full = full
        store = self.config.store
        self._shared.events.tell(StoreFull(store, self.config.store_free_floor_bytes) if full else StoreHasRoom(store))

    def store_at_limit(self, reached: bool) -> None:
        limit = self.config.store_limit_bytes
        self._shared.events.tell(StoreLimitReached(limit) if reached else StoreLimitLeft(limit))

    def failed(self, why: str, damage: CorruptError | None = None) -> None:
        self._failed(why, damage)

    # -- Hub ----------------------------------------------------------------------------------------------------------

    def _surroundings(self) -> Surroundings:
        return Surroundings(self.config, self._name, self.epoch, self.message_id_prefix, self.broker.newest_seq)

    def admit(self, peer: Served, owner: str, client: Client, protocol: str) -> ClientConnection:
        """Serve a client that has logged in by `protocol`. `owner` = what the names of its temporary destinations begin
        with."""
        if (merging := self._merging) is None:
            return ClientConnection(self.broker, peer, owner, client, self.traffic[protocol])
        found = SentAway(self.broker, peer, owner, client, self.traffic[protocol])
        self.loop.call_soon(found.steal, merging.refusal())  # it has learned the addresses by then
        return found

    def _keep_up(self) -> None:
        self._carry_merge()
        self.broker.sweep()
        self.translator.step()
        self.journal.check_space()
        self._upkeep = self.loop.call_later(UPKEEP_S, self._keep_up)
