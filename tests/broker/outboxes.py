"""Stores of one cluster whose masters send parcels to each other: `World`s, and ways between them that may break."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amq.broker.sessions.connection import ClientConnection
from amq.broker.sessions.links import Client
from amq.cluster.placement import Placement
from amq.core.errors import AmqError, TransportError
from amq.core.message import Message
from amq.protocols.commands import Command, Failure, Transfer
from tests.broker.world import World

STORES = ("s1", "s2")
TABLE = Placement.even(1, STORES)


def names_of(store: str, count: int = 3, placement: Placement = TABLE) -> list[str]:
    """Names of queues that live there."""
    names = (f"n{number}" for number in range(10_000))
    return list(itertools.islice((name for name in names if placement.home_of(f"queue://{name}") == store), count))


def content(placement: Placement, store: str) -> dict[str, Any]:
    return {"cluster": "c", "store": store, "number": placement.number, "placement": placement.to_json()}


class Way:
    """A connection from one master to another. What is said on it waits until it is `carried`, in either direction."""

    is_closed = False

    def __init__(self, ways: Ways, store: str, recipient: Any, lost: Callable[[AmqError], None]) -> None:
        self._ways = ways
        self.store = store
        self._recipient = recipient
        self._lost = lost
        self.commands: list[Command] = []
        self.answers: list[Callable[[], None]] = []  # that have left the other master
        self._unsent: list[Callable[[], None]] = []
        self.home: ClientConnection | None = None
        self.world: World | None = None
        self.paused = False

    def handle(self, commands: list[Command], *, until_s: float = 0.0) -> list[Command]:  # noqa: ARG002
        assert not self.is_closed
        for command in commands:
            self._ways.said.append((self.store, command))
            if isinstance(command, Transfer):  # as the bytes of the link: nothing is shared
                command.messages = [_copied(message) for message in command.messages]
        self.commands += commands
        return []

    def close(self) -> None:
        self.is_closed = True
        self._ways.end(self)

    def lose(self, comes_late: bool = False) -> None:
        """The link breaks: what was said and not carried never comes, or at any later time, when nobody asks any
        more."""
        if not self.is_closed:
            if comes_late:
                self._ways.late += [(self.store, command) for command in self.commands]
            self.close()
            self._lost(TransportError("the link broke"))

    def carry(self) -> bool:
        """What the sender has said comes to the other master, and the answers that have left that come back."""
        if self.is_closed:
            return False
        commands, self.commands = self.commands, []
        if commands:
            if self.home is None:
                self.world = self._ways.worlds[self.store]
                self.home = ClientConnection(self.world.broker, self, self._ways.owner(), Client())
            self.home.handle(commands)
            self.world.broker.wake()
        answers, self.answers = self.answers, []
        for answer in answers:
            if not self.is_closed:
                answer()
        return bool(commands or answers)

    def leave(self) -> None:
        """The end of a turn of the other master, with a valid lease."""
        self.answers += self._unsent
        self._unsent = []

    # -- the client of the other master -------------------------------------------------------------------------------

    def confirm(self, receipt: object, outcome: str = "") -> None:
        self._unsent.append(lambda: self._recipient.confirm(receipt, outcome))

    def confirm_all(self, receipts: list[object]) -> None:
        for receipt in receipts:
            self.confirm(receipt)

    def fail(self, failure: Failure) -> None:
        self._unsent.append(lambda: self._recipient.fail(failure))

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def _copied(message: Message) -> Message:
    properties = dict(message.properties) if message.properties else message.properties
    return Message.made_of(message, message.destination, properties, message.seq)


class Ways:
    """Implements `amq.broker.transfer.peers.Peers` for all masters of `worlds`. `said` = (store, command), in order."""

    def __init__(self, worlds: dict[str, World]) -> None:
        self.worlds = worlds
        self.open_ways: list[Way] = []
        self.said: list[tuple[str, Command]] = []
        self.late: list[tuple[str, Command]] = []  # what comes when its link has broken
        self._count = 0

    def come_late(self) -> None:
        """The first command of a link that has broken comes."""
        if self.late:
            store, command = self.late.pop(0)
            way = Way(self, store, None, lambda _: None)
            way.home = ClientConnection(self.worlds[store].broker, way, self.owner(), Client())
            way.home.handle([command])
            self.worlds[store].broker.wake()

    def owner(self) -> str:
        self._count += 1
        return f"way-{self._count}."

    def open(
        self,
        store: str,
        recipient: Any,
        protocol: str,  # noqa: ARG002
        lost: Callable[[AmqError], None],
        user: str = "",  # noqa: ARG002
    ) -> Way:
        way = Way(self, store, recipient, lost)
        self.open_ways.append(way)
        return way

    def end(self, way: Way) -> None:
        if way in self.open_ways:
            self.open_ways.remove(way)
        if way.home is not None and not way.home.is_closed:
            way.home.close()


class Stores:
    """The stores of a table, two by default, their masters, and the ways between them."""

    def __init__(self, path: Path, placement: Placement = TABLE, **config: Any) -> None:
        self.worlds: dict[str, World] = {}
        self.ways = Ways(self.worlds)
        for store in placement.stores:
            (path / store).mkdir(parents=True)
            world = self.worlds[store] = World(path / store, placed=content(placement, store), **config)
            world.broker.peers = self.ways

    def close(self) -> None:
        for world in self.worlds.values():
            world.close()

    def settle(self, seconds: float = 120.0) -> None:
        """Work until nothing happens, for so long."""
        for _ in range(int(seconds)):
            moved = True
            while moved:
                moved = False
                for world in self.worlds.values():
                    world.settle()
                    for way in self.ways.open_ways:
                        way.leave()
                for way in [*self.ways.open_ways]:
                    moved = way.carry() or moved
            for world in self.worlds.values():
                world.clock.advance(1.0)
                world.broker.sweep()

    def crash(self, store: str, **how: Any) -> None:
        """Another broker becomes the master of `store`."""
        world = self.worlds[store]
        lost = [way for way in self.ways.open_ways if way.world is world or way._recipient._core is world.broker]
        world.crash(**how)
        world.start()
        world.broker.peers = self.ways
        for way in lost:
            if way.world is world:
                way.home = None
                way.lose()
            else:
                way.is_closed = True
                self.ways.end(way)
