"""Random walks with groups, selectors, priorities and transactions: no group with two consumers at once, each in order,
nothing that waits beside a consumer who may have it, nothing lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from amq.broker.queues.groups import GROUP_ID, GROUP_SEQ
from amq.broker.queues.queue import Subscription
from amq.core.message import Message
from amq.protocols.commands import Send
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_CLIENT, ACK_INDIVIDUAL
from tests.broker.notation import Ack
from tests.broker.world import Client, World
from tests.sampling import sampled


class Walk:
    """Does this and that with consumers of all kinds, and looks at every delivery."""

    SELECTORS = ("", "", "colour = 'red'", "colour <> 'red'", "number > 50")

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.producer = world.connect()
        self.consumers: list[Client] = []
        self.number = 0
        self.owners: dict[str, tuple[Client, set[int]]] = {}  # group → who has seen it, what it has not finished
        self.seqs: dict[tuple[Subscription, str, int, bool], int] = {}
        self.sent: set[bytes] = set()
        self.gone: set[bytes] = set()
        world.on_deliver = self.delivered

    def delivered(self, client: Client, subscription: Subscription, message: Message, redelivered: int) -> None:
        assert message.body not in self.gone
        properties = message.properties or {}
        assert subscription.selector is None or subscription.selector.matches(message)
        group = properties.get(GROUP_ID)
        if subscription.auto:
            self.gone.add(message.body)
        if group is None:
            return
        owner, unfinished = self.owners.get(group, (client, set()))
        assert owner is client or not unfinished, f"group {group} is with two consumers at once"
        if not redelivered:
            key = (subscription, group, message.priority, message.persistent)
            assert self.seqs.get(key, 0) < message.seq, f"group {group} is out of order"
            self.seqs[key] = message.seq
        unfinished = unfinished if owner is client else set()
        if not subscription.auto:
            unfinished.add(message.seq)
        self.owners[group] = client, unfinished

    def finished(self, client: Client, seqs: list[int]) -> None:
        for owner, unfinished in self.owners.values():
            if owner is client:
                unfinished.difference_update(seqs)

    def step(self) -> None:
        rng, world = self.rng, self.world
        action = rng.choices(
            [self.send, self.subscribe, self.acknowledge, self.transact, self.end, self.leave, self.slow],
            [30, 3, 40, 6, 6, 3, 2],
        )[0]
        action()
        world.turn() if rng.random() < 0.6 else world.settle()

    def send(self) -> None:
        rng = self.rng
        for _ in range(rng.randint(1, 4)):
            properties = {"colour": rng.choice(("red", "green")), "number": f"{rng.randint(0, 100)}"}
            if rng.random() < 0.7:
                properties[GROUP_ID] = rng.choice("abcdefgh")
                if rng.random() < 0.1:
                    properties[GROUP_SEQ] = "-1"
            body = b"%d" % self.number + bytes(rng.choice((0, 300)))
            self.number += 1
            if not self.producer.reading:
                return
            self.sent.add(body)
            message = Message(
                "queue://a", body, properties, priority=rng.choice((4, 4, 4, 7)), persistent=rng.random() < 0.8
            )
            self.producer.do(Send(message))

    def subscribe(self) -> None:
        if len(self.consumers) < 5:
            client = self.world.connect()
            self.consumers.append(client)
            ack = self.rng.choice((ACK_INDIVIDUAL, ACK_INDIVIDUAL, ACK_CLIENT, ACK_AUTO))
            options = {"priority": self.rng.choice(("0", "0", "1"))}
            if self.rng.random() < 0.05:
                options["exclusive"] = "true"
            selector = self.rng.choice(self.SELECTORS)
            client.subscribe("a", ack, self.rng.randint(1, 6), selector=selector, options=options)

    def _held(self) -> tuple[Client, Subscription] | None:
        holding = [
            (client, subscription)
            for client in self.consumers
            for subscription in client.consumers.values()
            if subscription.unacked and client.reading
        ]
        return self.rng.choice(holding) if holding else None

    def acknowledge(self, transaction: str = "") -> None:
        if (held := self._held()) is None:
            return
        client, subscription = held
        transaction = transaction and (f"{transaction}" if transaction in client.transactions else "")
        seq = self.rng.choice(list(subscription.unacked))
        bodies = {each: message.body for each, message in subscription.unacked.items()}
        client.do(Ack(seq, "a", "", transaction))
        settled = [each for each in bodies if each not in subscription.unacked]
        if not transaction:
            self.gone.update(bodies[each] for each in settled)
            self.finished(client, settled)

    def transact(self) -> None:
        if (held := self._held()) is None:
            return
        client, _ = held
        if "t" not in client.transactions:
            client.begin("t")
        for _ in range(3):
            self.acknowledge("t")

    def end(self) -> None:
        for client in self.consumers:
            transaction = client.transactions.get("t")
            if transaction is None or self.rng.random() < 0.3:
                continue
            settled = [message for _, message in transaction.acks]
            if self.rng.random() < 0.5:
                self.finished(client, [message.seq for message in settled])
                self.gone.update(message.body for message in settled)
                client.commit()
            else:
                self.finished(client, [message.seq for message in settled])
                client.abort()

    def leave(self) -> None:
        if not self.consumers:
            return
        client = self.rng.choice(self.consumers)
        subscription = client.consumers.get("a")
        if subscription is not None and "t" in client.transactions and self.rng.random() < 0.5:
            self.finished(client, list(subscription.unacked))
            client.unsubscribe()
        elif "t" not in client.transactions or self.rng.random() < 0.3:
            self.consumers.remove(client)
            for owner, unfinished in self.owners.values():
                if owner is client:
                    unfinished.clear()
            client.lose()

    def slow(self) -> None:
        for client in self.consumers:
            client.session.set_writable(self.rng.random() < 0.7)


@pytest.mark.parametrize("memory_limit_bytes", [1 << 20, 20000])
@pytest.mark.parametrize("seed", sampled(range(6)))
def test_a_walk(make_world: Callable[..., World], seed: int, memory_limit_bytes: int) -> None:
    world = make_world(
        memory_limit_bytes=memory_limit_bytes,
        group_rebalance=bool(seed % 2),
        group_buckets=(1024, 3)[seed % 3 == 2],
        maximum_redeliveries=-1,
    )
    walk = Walk(world, seed)
    for number in range(600):
        walk.step()
        if number % 20 == 0:
            world.settle()
            for client in walk.consumers:
                client.session.set_writable(True)
            world.settle_and_check()
    for client in list(walk.consumers):
        client.lose()
    world.settle_and_check()
    queue = world.broker.state.queues["queue://a"]
    assert queue.selection is None
    waiting = walk.producer.session.sessions[0]._stalled
    stalled = {command.message.body for command in waiting if isinstance(command, Send)}
    assert set(world.stored()) == walk.sent - walk.gone - stalled, "lost, or come back"
    assert len(walk.gone) > 200
