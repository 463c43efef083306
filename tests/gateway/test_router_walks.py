"""Walks: whatever clients do over three homes, in whatever order the homes answer, each message is where it must be."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amq.core.destination import ANY_REST, Pattern
from amq.core.message import Message
from amq.protocols.commands import OLDEST, Outcome, Send, SendRun, Settle, SettleRun, Unsubscribe
from tests.gateway.routed import Cluster, RoutedClient
from tests.sampling import examples
from tests.subscribing import subscribe

NAMES = tuple(f"queue://{letter}" for letter in "abcdef")
SPREAD = "queue://spread"
ALL = Pattern("queue://", (ANY_REST,))
STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1 << 30)), max_size=60)


class Walk:
    """Two clients that send and consume, and what they know."""

    def __init__(self, path: Path) -> None:
        self.cluster = Cluster(path)
        self.cluster.placement.rules[SPREAD] = ""
        self.clients = [self.cluster.connect() for _ in range(2)]
        self.sent: dict[str, list[bytes]] = defaultdict(list)  # to each destination, in order
        self.receipts: dict[str, bytes] = {}
        self.held: list[dict[str, list[Any]]] = [{}, {}]  # of each consumer of each client, in order of delivery
        self.seen = [0, 0]
        self.settled: list[bytes] = []
        self.count = 0

    def body(self, name: str) -> bytes:
        self.count += 1
        body = b"%s %d" % (name.encode(), self.count)
        self.sent[name].append(body)
        self.receipts[f"r{self.count}"] = body
        return body

    def step(self, kind: int, dice: int) -> None:
        number = dice % 2
        client, dice = self.clients[number], dice // 2
        name = (*NAMES, SPREAD)[dice % 7]
        held = self.held[number]
        if not client.reading and kind < 8:
            return
        if kind < 3:
            body = self.body(name)
            client.session.handle([Send(Message(name, body), f"r{self.count}")])
        elif kind == 3:
            names = [name] * (2 + dice % 5)
            bodies, receipts = [], list[object]()
            for each in names:
                bodies.append(self.body(each))
                receipts.append(f"r{self.count}")
            client.session.handle([SendRun(Message(name, b""), bodies, receipts)])
        elif kind == 4:
            id = f"c{dice % 3}"
            if id in held:
                client.session.handle([Unsubscribe(id)])
                del held[id]
            else:
                source = (ALL, name, SPREAD)[dice // 7 % 3]
                client.session.handle([subscribe(id, source, acknowledges=True, prefetch=dice % 11)])
                held[id] = []
        elif kind < 7:
            self.settle(client, held, kind, dice)
        elif kind == 7:
            self.cluster.worlds[dice % 3].settle()
        elif kind == 8:
            soon, self.cluster._soon[:] = [*self.cluster._soon], []
            for call in soon:
                call()
        else:
            self.rest()

    def settle(self, client: RoutedClient, held: dict[str, list[Any]], kind: int, dice: int) -> None:
        having = [id for id, found in held.items() if found]
        if not having:
            return
        id = having[dice % len(having)]
        found, at = held[id], dice // 3 % len(held[id])
        if kind == 5:
            over = [found.pop(at)]
            command: Any = Settle(over[0].seq, id)
        elif dice % 2:
            over, held[id] = found[: at + 1], found[at + 1 :]
            command = Settle(over[-1].seq, id, first=OLDEST)
        elif at:
            over, held[id] = found[:at], found[at:]
            command = SettleRun([each.seq for each in over], id) if at > 1 else Settle(over[0].seq, id)
        else:
            client.session.handle([Settle(found.pop().seq, id, outcome=Outcome.RELEASED)])
            return
        client.session.handle([command])
        self.settled += [each.body for each in over]

    def hear(self) -> None:
        for number, client in enumerate(self.clients):
            new = client.deliveries[self.seen[number] :]
            self.seen[number] += len(new)
            for each in new:
                self.held[number].get(each.subscription, []).append(each)

    def rest(self) -> None:
        for world in self.cluster.worlds:
            world.wake()
        self.cluster.settle()
        self.hear()

    def check(self) -> None:
        self.rest()
        for client in self.clients:
            assert client.errors == []
            assert client.reading
            client.lose()
        self.cluster.settle()
        confirmed = {receipt for client in self.clients for receipt in client.confirmed}
        assert confirmed == self.receipts.keys(), "all at rest, and all answered"
        assert len(self.settled) == len(set(self.settled))
        left = set[bytes]()
        for name, bodies in self.sent.items():
            worlds = self.cluster.worlds if name == SPREAD else [self.cluster.world_of(name)]
            stored = [body for world in worlds for body in world.stored(name[8:])]
            if name != SPREAD:
                assert stored == [body for body in bodies if body in set(stored)], "in the order in which they came"
                others = [world for world in self.cluster.worlds if world not in worlds]
                assert not any(world.stored(name[8:]) for world in others)
            left.update(stored)
        assert left == set(self.receipts.values()) - set(self.settled)
        self.cluster.worlds[0].clients.clear()  # their sessions are not those that it knows
        for world in self.cluster.worlds:
            world.check()
            assert not world.broker.connections


def walk(steps: list[tuple[int, int]]) -> None:
    with TemporaryDirectory() as path:
        found = Walk(Path(path))
        try:
            for kind, dice in steps:
                found.step(kind, dice)
                found.hear()
            found.check()
        finally:
            found.cluster.close()


@settings(max_examples=examples(15), deadline=None)
@given(STEPS)
def test_nothing_confirmed_is_lost_and_what_is_settled_is_gone(steps: list[tuple[int, int]]) -> None:
    walk(steps)


@pytest.mark.deep
@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_the_same_with_many_walks(steps: list[tuple[int, int]]) -> None:
    walk(steps)
