"""Brokers in this process as the homes of routed connections: clients over sockets, or by commands.

Invariant: a home's messages are handed over as a link does it: each its own object, and shown as a consumer gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Any
from zlib import crc32

from amq.broker.queues.redelivery import shown
from amq.broker.sessions.connection import ClientConnection
from amq.broker.sessions.links import Client as Who
from amq.core.destination import plain_name
from amq.core.errors import AmqError, CommandError
from amq.core.message import Message, MessageBatch
from amq.gateway.homes import Loss, RoutedHome
from amq.gateway.router import RoutedConnection
from amq.journal.reader import RecordRun
from amq.node.catalogue import ServedProtocol
from amq.protocols.commands import Command, Failure, InSession, Scope, Send, SendRun, SendToMany, Subscribe
from amq.transports.turn import Turn
from tests.broker.world import Client, World
from tests.transports.served import Served


class Handed:
    """A home, as its broker sees it."""

    def __init__(self, home: RoutedHome, wake: Callable[[], None]) -> None:
        self.home = home
        self._wake = wake
        self.is_cut = False  # the way to the home is broken
        self.asked: dict[int, Any] = {}  # tokens without an answer, by their `id`

    def subscribed(self, command: Subscribe, session: int) -> Any:
        return self.home.subscribed(command, session)

    def deliver(self, subscription: Any, message: Message, redelivered: int) -> None:
        message = shown(subscription.queue, message) if redelivered else message
        if not self.is_cut:
            self.home.deliver(subscription, copy(message), redelivered)
            self._wake()

    def deliver_all(self, subscription: Any, messages: list[Message]) -> None:
        if not self.is_cut:
            self.home.deliver_all(subscription, [*map(copy, messages)])
            self._wake()

    def deliver_batch(self, subscription: Any, batch: MessageBatch) -> None:
        if not self.is_cut:
            self.home.deliver_batch(subscription, MessageBatch([*map(copy, batch.messages)]))
            self._wake()

    def deliver_run(
        self, subscription: Any, destination: str, run: RecordRun, seq: int, redelivered: Sequence[tuple[int, int]]
    ) -> None:
        self.home.deliver_run(subscription, destination, run, seq, redelivered)
        self._wake()

    def browsed(self, subscription: Any) -> None:
        self.home.browsed(subscription)
        self._wake()

    def confirm(self, receipt: object, outcome: str = "") -> None:
        if not self.is_cut:
            self.asked.pop(id(receipt), None)
            self.home.confirm(receipt, outcome)
            self._wake()

    def confirm_all(self, receipts: list[object]) -> None:
        if not self.is_cut:
            for receipt in receipts:
                self.asked.pop(id(receipt), None)
            self.home.confirm_all(receipts)
            self._wake()

    def fail(self, failure: Failure) -> None:
        if not self.is_cut:
            self.asked.pop(id(failure.receipt), None)
            self.home.fail(failure)
            self._wake()

    def close(self) -> None:
        if not self.is_cut:
            self.home.close()
            self._wake()

    def pause_reading(self) -> None:
        self.home.pause_reading()

    def resume_reading(self) -> None:
        self.home.resume_reading()


class Woken(ClientConnection):
    """It wakes its own broker, and refuses what is not its own."""

    is_own: Callable[[str], bool]

    def handle(self, commands: list[Command], *args: Any, **options: Any) -> Any:
        number, own = 0, list[Command]()
        for command in commands:
            self.peer.asked |= {id(each): each for each in receipts_of(command) if each is not None}  # type: ignore[attr-defined]
            number = command.session if isinstance(command, InSession) else number
            if all(map(self.is_own, named(command))):
                own.append(command)
                continue
            rest = super().handle(own, *args, **options)
            assert rest == []
            own = [InSession(number)] if number else []
            receipts = command.receipts or [None] if isinstance(command, SendRun) else [command.receipt]
            for receipt in receipts:
                error = CommandError("it has another home: read the table", code="MOVED")
                self.peer.fail(Failure(error, Scope.COMMAND, receipt, number))
        rest = super().handle(own, *args, **options)
        self.broker.wake()
        return rest


def receipts_of(command: Command) -> Sequence[Any]:
    return command.receipts or () if isinstance(command, SendRun) else (command.receipt,)


def named(command: Command) -> list[str]:
    """The destinations of which a home must be asked whether it has them."""
    if isinstance(command, SendToMany):
        return [*command.destinations]
    if isinstance(command, Send):
        return [command.message.destination]
    if isinstance(command, SendRun):
        return [command.like.destination]
    return [name for name in command.sources if isinstance(name, str)] if isinstance(command, Subscribe) else []


class Table:
    """A destination's home is that of its slot, unless a rule names another one; "" = each store."""

    def __init__(self, stores: Sequence[str], rules: dict[str, str] | None = None) -> None:
        self.stores = self.places = stores
        self.number = 1
        self.rules = rules or {}
        self.moving: set[str] = set()

    @property
    def decider(self) -> str:
        return self.stores[0]

    def home_of(self, name: str) -> str:
        plain = plain_name(name)
        if name in self.rules:
            return self.rules[name]
        if plain.startswith("ActiveMQ.Advisory."):
            return ""
        return self.stores[crc32(plain.removeprefix("DLQ.").encode()) % len(self.stores)]

    def stores_of(self, name: str) -> Sequence[str]:
        home = self.home_of(name)
        return [home] if home else self.stores_of_patterns()

    def stores_of_patterns(self) -> Sequence[str]:
        return [store for store in self.places if store]

    def is_moving(self, name: str) -> bool:
        return name in self.moving


class Brokers:
    """The stores of a cluster: implements `amq.gateway.homes.Cluster`."""

    def __init__(self, worlds: Sequence[World], later: Callable[[Callable[[], None]], object]) -> None:
        self.worlds = worlds
        self.clock = worlds[0].clock
        self.placement = Table([f"s{n}" for n in range(len(worlds))])
        self.opened: list[str] = []
        self.newer: Table | None = None  # that the brokers have, and gateways have not
        self.asked: list[Callable[[bool], None]] = []  # for a newer table
        self.refuses = False  # no home opens
        self.wake = lambda: None
        self.later: Any = later

    def open_home(self, store: str, home: RoutedHome, client: Who, owner: str, protocol: str) -> ClientConnection:  # noqa: ARG002
        if self.refuses:
            raise AmqError("no master", code="HOME_UNAVAILABLE")
        handed = Handed(home, self.wake)
        self.opened.append(store)
        connection = Woken(self.world_of_store(store).broker, handed, owner, client)  # type: ignore[arg-type]
        home.begun(self.world_of_store(store).broker.newest_seq)
        connection.is_own = lambda name: (self.newer or self.placement).home_of(name) in (store, "")
        return connection

    def world_of_store(self, store: str) -> World:
        return self.worlds[self.placement.places.index(store)]

    def world_of(self, name: str) -> World:
        return self.world_of_store(self.placement.home_of(name))

    def renew(self, done: Callable[[bool], None]) -> None:
        self.asked.append(done)

    def locate(self, stores: Sequence[str], done: Callable[[dict[str, list[str]]], None]) -> None:
        self.later(lambda: done({store: [f"auto://{store}:1"] for store in stores}))

    def tell(self, is_newer: bool = True) -> None:
        """Those who asked for a newer table hear of it."""
        if self.newer is not None and is_newer:
            self.placement, self.newer = self.newer, None
        asked, self.asked = self.asked, []
        for done in asked:
            done(is_newer)

    def move(self, name: str, store: str) -> None:
        """That destination has another home from now on. Gateways have yet to learn it."""
        self.newer = Table(self.placement.stores, {**self.placement.rules, name: store})

    def give_up(self) -> None:
        """Nobody waits."""

    def cut(self, client: RoutedConnection, store: str, is_orderly: bool = False, was_linked: bool = True) -> None:
        """The link of that client's connection to a store breaks: both ends learn of it."""
        index = self.placement.places.index(store)
        home = client.homes[index]
        handed: Any = home.connection.peer  # type: ignore[union-attr]
        handed.is_cut = True
        error = AmqError("the link is broken", code="LINK_LOST")
        home.lost(Loss(error, [*handed.asked.values()], is_orderly, was_linked))


class PeerWays:
    """The ways of a store to the others. Implements `amq.broker.transfer.peers.Peers`."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self.opened: list[str] = []
        self.refuses = False
        self._open: list[tuple[str, WokenPeer, Callable[[AmqError], None]]] = []

    def open(
        self,
        store: str,
        recipient: Any,
        protocol: str,  # noqa: ARG002
        lost: Callable[[AmqError], None],
        **_: Any,
    ) -> ClientConnection:
        if self.refuses:
            raise AmqError("no master", code="HOME_UNAVAILABLE")
        self.opened.append(store)
        connection = WokenPeer(self._brokers.world_of_store(store).broker, recipient)
        self._open.append((store, connection, lost))
        return connection

    def lose(self, store: str) -> None:
        """The master of that store has ended: so have the connections to it."""
        ended = [each for each in self._open if each[0] == store]
        self._open = [each for each in self._open if each[0] != store]
        for _, connection, lost in ended:
            if not connection.is_closed:
                lost(AmqError("the link is broken", code="LINK_LOST"))


class WokenPeer(ClientConnection):
    """It wakes the broker."""

    def handle(self, commands: list[Command], *args: Any, **options: Any) -> Any:
        self.broker.wake()
        return super().handle(commands, *args, **options)


class Worlds:
    """Several worlds in the place of one: what a test asks of a queue is answered by its home."""

    def __init__(self, worlds: Sequence[World]) -> None:
        self.worlds = worlds
        self.brokers: Brokers

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worlds[0], name)

    def stored(self, queue: str = "a") -> list[bytes]:
        return self.brokers.world_of("queue://" + queue).stored(queue)

    def check(self) -> None:
        for world in self.worlds:
            world.check()

    def crash_and_recover(self) -> None:
        for world in self.worlds:
            world.on_wake = lambda: None
            world.crash_and_recover()

    def close(self) -> None:
        for world in self.worlds:
            world.close()


class RoutedServed(Served):
    """A gateway and its brokers, in the place of one broker that serves."""

    def __init__(self, world: Any, protocols: Sequence[ServedProtocol]) -> None:
        self._turns: list[Turn] = []
        super().__init__(world, protocols)

    def _serve(self) -> None:
        super()._serve()
        worlds = self.world.worlds  # type: ignore[attr-defined]
        self.brokers_of = Brokers(worlds, self._loop.call_soon)
        self.world.brokers = self.brokers_of  # type: ignore[attr-defined]
        self.brokers_of.wake = self._turn.wake
        self._turns = []
        worlds[0].on_wake = self._turn.wake
        for world in worlds[1:]:
            turn = Turn(self._loop)
            world.on_wake = turn.wake
            turn.serve(world.broker, world.journal, lambda: True)
            self._turns.append(turn)
        self.hub.admit = lambda peer, owner, client, protocol: RoutedConnection(
            self.brokers_of, peer, owner, client, protocol
        )
        self.hub.shown = lambda _, message: message
        self.hub.lend = lambda *_: 0
        self.hub.take_back = lambda _: None

    async def _round(self) -> bool:
        worked = any([*(world.runner.step() for world in self.world.worlds[1:])])  # type: ignore[attr-defined]
        return await super()._round() or worked

    def stop(self) -> None:
        super().stop()
        for turn in self._turns:
            turn.stop()


def worlds_of(count: int) -> Callable[..., Worlds]:
    """Makes as many worlds, in the place of `World`."""

    def make(path: Path, **config: Any) -> Worlds:
        worlds = []
        for n in range(count):
            (path / f"s{n}").mkdir(exist_ok=True)
            worlds.append(World(path / f"s{n}", **config))
        return Worlds(worlds)

    return make


class RoutedClient(Client):
    """A client whose commands go through a router. It is one of the clients of the first world, for that shows its
    output when it comes to rest."""

    def __init__(self, brokers: Brokers, number: str, user: str = "", client_id: str = "") -> None:
        self.brokers = brokers
        super().__init__(brokers.worlds[0], client_id, user=user, number=number)
        self.session.close()
        who = self.session.client
        self.session = RoutedConnection(brokers, self, f"{self.number}.", who, "stomp")  # type: ignore[assignment]

    def subscribed(self, command: Subscribe, session: int) -> object:  # noqa: ARG002
        return command.id

    def deliver(self, subscription: Any, message: Message, redelivered: int) -> None:
        consumer = subscription.consumer
        super().deliver(Shown(consumer.id), message, redelivered)  # type: ignore[arg-type]

    def deliver_batch(self, subscription: Any, batch: MessageBatch) -> None:
        for message in batch.messages:
            self.deliver(subscription, message, 0)

    def browsed(self, subscription: Any) -> None:
        super().browsed(Shown(subscription.consumer.id))  # type: ignore[arg-type]

    def do(self, *commands: Any) -> None:
        super().do(*commands)
        for world in self.brokers.worlds:
            world.broker.wake()


class Shown:
    def __init__(self, id: str) -> None:
        self.id = id


class Cluster(Brokers):
    """Brokers that take a step when the test says so, and clients of theirs."""

    def __init__(self, path: Path, stores: int = 3, **config: Any) -> None:
        self._soon: list[Callable[[], None]] = []
        super().__init__(worlds_of(stores)(path, **config).worlds, self._soon.append)
        self.clients: list[RoutedClient] = []

    def connect(self, user: str = "", client_id: str = "") -> RoutedClient:
        client = RoutedClient(self, f"1-{len(self.clients) + 1}", user, client_id)
        self.clients.append(client)
        self.worlds[0].clients.append(client)
        return client

    def settle(self) -> None:
        """Until nothing happens any more."""
        while True:
            for world in self.worlds:
                world.settle()
            soon, self._soon[:] = [*self._soon], []
            for call in soon:
                call()
            busy = any(client._out for client in self.clients) or any(world.woken for world in self.worlds)
            if not soon and not busy:
                return

    def stored(self, queue: str = "a") -> list[bytes]:
        return self.world_of("queue://" + queue).stored(queue)

    def close(self) -> None:
        for world in self.worlds:
            world.close()
