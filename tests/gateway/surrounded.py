"""The clients of a `World` reach its broker through a gateway, as the second of three stores.

All destinations live in that one; the others, made when a client first needs them, get their part of what goes to each
store: patterns, durable subscriptions to them, and the second phase of transactions that are not known here. Between
the gateway and each broker is a link (`tests/link/piped.py`). What looks at the broker's side of a client finds it.
See test_gateway_suites.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pytest

from amq.broker.sessions.links import NOBODY
from amq.core.message import Message, MessageBatch
from amq.gateway.homes import INDEX_BITS, RoutedHome
from amq.gateway.router import RoutedConnection
from amq.journal.reader import RecordRun
from amq.journal.records.message import decode_message
from amq.protocols.commands import Failure, Subscribe
from tests.broker import world as worlds
from tests.broker.world import World
from tests.gateway.routed import PeerWays
from tests.link.piped import Piped

STORES = ("s0", "main", "s2")
MAIN = STORES.index("main")


class OwnTable:
    """The table of homes: what has a name lives in the broker that the test looks at."""

    stores = places = STORES
    decider = STORES[0]
    number = 1

    def home_of(self, name: str) -> str:
        return "" if name.startswith("topic://ActiveMQ.Advisory.") else STORES[MAIN]

    def stores_of(self, name: str) -> tuple[str, ...]:
        home = self.home_of(name)
        return (home,) if home else STORES

    def stores_of_patterns(self) -> tuple[str, ...]:
        return STORES

    def is_moving(self, name: str) -> bool:  # noqa: ARG002
        return False


class Surrounded:
    """The stores of one world: implements `amq.gateway.homes.GatewayCluster`."""

    placement = OwnTable()

    def __init__(self, world: World) -> None:
        self.world = world
        self.clock = world.clock
        self.others: dict[str, World] = {}
        self.soon: list[Callable[[], None]] = []
        self.ways = PeerWays(self)  # between the stores
        self._seen: Any = None

    def open_home(self, store: str, home: RoutedHome, client: Any, owner: str, protocol: str) -> Any:  # noqa: ARG002
        world = self.world_of_store(store)
        self._lead()
        shown = ShownHome(home, world)
        connection = Piped(world.broker, shown, owner, client)
        shown.seen(connection)
        home.begun(world.broker.newest_seq)
        return connection

    def _other(self, store: str) -> World:
        if store not in self.others:
            with pytest.MonkeyPatch.context() as patch:
                own = replace(self.world.config, store=f"{self.world.store}.{store}")
                patch.setattr(worlds, "FakeClock", lambda: self.clock)
                patch.setattr(worlds, "BrokerConfig", lambda **_: own)
                other = self.others[store] = World(own.store)
            other.on_wake = self.world.wake
        return self.others[store]

    def world_of_store(self, store: str) -> World:
        return self.world if store == STORES[MAIN] else self._other(store)

    def _lead(self) -> None:
        """Ways lead to the broker that serves now: connections to the one before are lost."""
        if self._seen is not self.world.broker:
            self._seen = self.world.broker
            self.ways.lose(STORES[MAIN])
        for world in (self.world, *self.others.values()):
            world.broker.peers = self.ways

    def renew(self, done: Callable[[bool], None]) -> None:
        self.later(lambda: done(False))

    def locate(self, stores: Sequence[str], done: Callable[[Mapping[str, Sequence[str]]], None]) -> None:
        self.later(lambda: done(dict.fromkeys(stores, ())))

    def later(self, call: Callable[[], None]) -> None:
        self.soon.append(call)
        self.world.wake()

    def give_up(self) -> None:
        """Nobody waits."""

    def step(self) -> None:
        """What the event loop and the other brokers do between two turns of this one."""
        self._lead()
        soon, self.soon = self.soon, []
        for call in soon:
            call()
        for other in self.others.values():
            other.settle()


class ShownHome:
    """The client at one of its homes, as the link there has it: `tests.link.piped.Piped` calls it."""

    def __init__(self, home: RoutedHome, world: World) -> None:
        self.home = home
        self.world = world
        self.shown: dict[Any, Any] = {}

    def seen(self, connection: Piped) -> None:
        """What tests ask the broker's side of the client."""
        peer: Any = self.home.peer
        connection._home.seen = peer.client

    def _of(self, consumer: Any) -> Any:
        consumer.wire.consumer.shown = consumer
        return consumer

    def subscribed(self, command: Subscribe, session: int) -> Any:
        return self.home.subscribed(command, session)

    def deliver(self, consumer: Any, message: Message, redelivered: int) -> None:
        self.home.deliver(self._of(consumer), message, redelivered)

    def deliver_all(self, consumer: Any, messages: list[Message]) -> None:
        self.home.deliver_all(self._of(consumer), messages)

    def deliver_run(
        self, consumer: Any, destination: str, run: RecordRun, seq: int, redelivered: Sequence[tuple[int, int]]
    ) -> None:
        self.home.deliver_run(self._of(consumer), destination, run, seq, redelivered)

    def browsed(self, consumer: Any) -> None:
        self.home.browsed(self._of(consumer))

    def confirm(self, receipt: object, outcome: str = "") -> None:
        self.home.confirm(receipt, outcome)

    def confirm_all(self, receipts: list[object]) -> None:
        self.home.confirm_all(receipts)

    def fail(self, failure: Failure) -> None:
        self.home.fail(failure)

    def close(self) -> None:
        self.home.close()

    def pause_reading(self) -> None:
        self.home.pause_reading()

    def resume_reading(self) -> None:
        self.home.resume_reading()


class ShownClient:
    """The client, as its routed connection has it."""

    def __init__(self, client: Any) -> None:
        self.client = client

    @staticmethod
    def _of(branch: Any) -> Any:
        return ShownConsumer(branch, branch.consumer.shown)

    def subscribed(self, command: Subscribe, session: int) -> Any:
        return self.client.subscribed(command, session)

    def deliver(self, branch: Any, message: Message, redelivered: int) -> None:
        self.client.deliver(self._of(branch), message, redelivered)

    def deliver_all(self, branch: Any, messages: list[Message]) -> None:
        if len(messages) > 1:
            self.client.deliver_all(self._of(branch), messages)
        else:
            self.client.deliver(self._of(branch), messages[0], 0)

    def deliver_batch(self, branch: Any, batch: MessageBatch) -> None:
        self.client.deliver_batch(self._of(branch), batch)

    def deliver_run(
        self, branch: Any, destination: str, run: RecordRun, seq: int, redelivered: Sequence[tuple[int, int]]
    ) -> None:
        """One by one, with the numbers that a client of a gateway knows."""
        self.client.runs += 1
        again = dict(redelivered)
        for place, (start, stop) in enumerate(pairwise(accumulate(run.sizes, initial=0))):
            message = decode_message(run.data, start, stop, destination)
            message.seq = message.seq << INDEX_BITS | MAIN
            self.client.deliver(self._of(branch), message, again.get(place, 0))
        assert message.seq == seq

    def browsed(self, branch: Any) -> None:
        self.client.browsed(self._of(branch))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


class ShownConsumer:
    """A consumer of the broker, with what its client keeps of it."""

    def __init__(self, branch: Any, subscription: Any) -> None:
        self.wire = branch.wire
        self._subscription = subscription

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subscription, name)


class Routed:
    """A connection as a `Client` of a world has it: in place of its `ClientConnection`."""

    def __init__(self, broker: Any, peer: Any, temporary: str = "", client: Any = NOBODY, traffic: Any = None) -> None:  # noqa: ARG002
        world = peer.world
        assert broker is world.broker
        cluster = vars(world).get("surrounded")
        if cluster is None:
            cluster = world.surrounded = Surrounded(world)
        shown: Any = ShownClient(peer)
        self._router = RoutedConnection(cluster, shown, temporary or "1.", client, "stomp")

    def handle(self, commands: list[Any], **_: Any) -> list[Any]:
        return self._router.handle(commands)

    def set_writable(self, writable: bool) -> None:
        self._router.set_writable(writable)

    def lose(self) -> None:
        self._router.lose()

    def close(self) -> None:
        self._router.close()

    def expire_transactions(self, now: float) -> None:
        self._router.expire_transactions(now)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._router.home_at(MAIN).connection, name)


def stepped(original: Any) -> Any:
    """`World.turn`, and before it what else happens in the process of a gateway."""

    def turn(world: World, **options: Any) -> None:
        cluster = vars(world).get("surrounded")
        if cluster is not None:
            cluster.step()
        original(world, **options)  # which forgets that the step woke the world
        if cluster is not None and cluster.soon:
            world.wake()

    return turn


def surround(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a gateway before the broker of each world that the test makes."""
    monkeypatch.setattr(worlds, "ClientConnection", Routed)
    monkeypatch.setattr(World, "turn", stepped(World.turn))
