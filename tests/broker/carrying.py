"""Stores between which destinations move, and those who make the tables; what clients send there and receive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from amq.cluster.placement import Placement
from amq.cluster.placing import Await, StoreSeen, next_step
from amq.cluster.seeing import seen_of
from tests.broker.outboxes import TABLE, Stores, content, names_of
from tests.broker.world import World

OURS, OURS_TOO, _ = names_of("s1")
THEIRS = names_of("s2")[0]
BODIES = [b"%d" % number for number in range(30)]


class Cluster(Stores):
    """Stores, and those who make the tables."""

    def __init__(self, path: Path, table: Placement = TABLE, **config: Any) -> None:
        super().__init__(path, table, **config)
        self.table = table
        self.settle(2)

    def begin(self, pattern: str = OURS, store: str = "s2") -> None:
        self.table = self.table.carried(pattern, store)
        self.offer()

    def offer(self, *stores: str) -> None:
        for store in stores or self.table.stores:
            world = self.worlds[store]
            world.config = world.standby.config = world.config.__class__(
                **{**vars_of(world.config), "placed": content(self.table, store)}
            )
            world.broker.reconfigure(world.config)

    def seen(self) -> dict[str, StoreSeen]:
        return {store: seen_of(dict(world.broker.homes.facts)) for store, world in self.worlds.items()}

    def advance(self) -> bool:
        """Make the next table, where the stores allow it."""
        if self.table.step is None:
            return False
        found = next_step(self.table, self.seen())
        if isinstance(found, Await):
            return False
        self.table = Placement.from_json(found.number, found.to_json())
        self.offer()
        return True

    def finish(self) -> None:
        for _ in range(20):
            self.settle(2)
            self.advance()
        assert self.table.step is None, self.seen()
        self.settle(2)


def vars_of(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


@contextmanager
def clusters(directory: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes clusters in `directory`, and closes them at the end."""
    made: list[Cluster] = []

    def make(**config: Any) -> Cluster:
        made.append(Cluster(directory / str(len(made)), **config))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


def send(world: World, bodies: list[bytes] = BODIES, queue: str = OURS, **fields: Any) -> None:
    client = world.connect()
    for body in bodies:
        client.send(body, queue, **fields)
    world.settle()
    assert client.errors == []


def received(world: World, queue: str = OURS, **fields: Any) -> list[bytes]:
    client = world.consumer(queue, ack="auto", **fields)
    assert client.errors == []
    client.disconnect()
    world.settle()
    return client.bodies
