"""Messages that stay together from the journal to their consumer: the same as if each had been alone from the start."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amq.broker.memory import MESSAGE_OVERHEAD_BYTES
from amq.broker.queues.queue import RUN_BODY_BYTES_MAX, RUN_MESSAGES_MAX, TOGETHER_MAX, Queue
from amq.core.message import Message
from amq.protocols.commands import Command, Outcome, Send, SendRun, Settle, SettleRun
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_INDIVIDUAL
from tests.broker.test_broker_disk import fill_disk
from tests.broker.world import Client, World
from tests.sampling import examples

QUEUE = "queue://a"
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"content_type": "text/plain"},
    {"priority": 7},
    {"expires_ms": 1_700_000_009_000},
    {"properties": {"JMSXGroupID": "g"}},
    {"persistent": False},
)
CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"memory_limit_bytes": 60_000},
    {"journal_batch_size_bytes": 8192, "journal_segment_size_bytes": 16384},
    {"queue_limit_bytes": 40_000, "queue_limit_policy": "drop-oldest"},
)


@dataclass(frozen=True)
class Sends:
    """`count` messages of one kind, one of them large; as a run where there are several."""

    kind: int
    count: int
    large: bool


@dataclass(frozen=True)
class Settles:
    """What consumer number `who` says of `count` of its deliveries, the oldest or the newest ones."""

    who: int
    count: int
    outcome: Outcome
    newest: bool
    together: bool


@dataclass(frozen=True)
class Step:
    """What else happens."""

    does: str


PLAIN = st.builds(Sends, st.sampled_from([0, 0, 0, 1]), st.sampled_from([1, 7, 20, 90]), st.just(value=False))
STEPS = st.one_of(
    PLAIN,
    PLAIN,
    st.builds(Sends, st.integers(0, len(KINDS) - 1), st.sampled_from([1, 5, 30]), st.booleans()),
    st.builds(
        Settles,
        st.integers(0, 3),
        st.sampled_from([1, 3, 25, 100]),
        st.just(Outcome.ACCEPTED),
        st.booleans(),
        st.just(value=True),
    ),
    st.builds(
        Settles, st.integers(0, 3), st.sampled_from([1, 9]), st.sampled_from(Outcome), st.booleans(), st.booleans()
    ),
    st.builds(Step, st.sampled_from(["turn", *["disk"] * 6, "consumer", "automatic", "goes", "looks"])),
    st.builds(Step, st.sampled_from(["time", "slow", "quick", "commit", "abort", "is full", "has room", "taken"])),
)


class Side:
    """A world in which messages may stay together, or may not."""

    def __init__(self, path: str, together: bool, config: dict[str, Any]) -> None:
        self.together = together
        self.world = World(path, 1, **config)
        self.producer = self.world.connect()
        self.producer.send(b"0")  # the queue is there from now on, and this user may send to it
        self.consumers: list[Client] = []
        self.held: dict[Client, list[int]] = {}
        self.seen: dict[Client, int] = {}
        self.serial = 0
        self.consumer()
        self.world.settle()
        self.most = 0  # messages that were together

    def consumer(self, ack: str = ACK_INDIVIDUAL, prefetch: int = 200) -> None:
        client = self.world.connect()
        client.subscribe("a", ack, prefetch)
        self.consumers.append(client)
        self.held[client], self.seen[client] = [], 0

    @property
    def queue(self) -> Queue:
        return self.world.broker.state.queue(QUEUE)

    def do(self, what: Sends | Settles | Step) -> None:
        keeps, Queue.keeps_bundles = Queue.keeps_bundles, self.together
        try:
            if isinstance(what, Sends):
                self.send(what)
            elif isinstance(what, Settles):
                self.settle(what)
            else:
                self.step(what.does)
            self.most = max(self.most, self.queue.folded)
        finally:
            Queue.keeps_bundles = keeps

    def send(self, what: Sends) -> None:
        if not self.producer.reading or self.producer.refused:
            self.producer = self.world.connect()
        bodies = []
        for place in range(what.count):
            self.serial += 1
            bodies.append(b"%d" % self.serial + bytes(RUN_BODY_BYTES_MAX if what.large and not place else 9))
        fields = KINDS[what.kind]
        if what.count > 1:
            receipts = [f"s{self.serial - place}" for place in range(what.count)]
            self.producer.session.handle([SendRun(Message(QUEUE, b"", **fields), bodies, receipts)])
        else:
            self.producer.session.handle([Send(Message(QUEUE, bodies[0], **fields), f"s{self.serial}")])
        self.world.broker.wake()

    def settle(self, what: Settles) -> None:
        client = self.consumers[what.who % len(self.consumers)]
        if client.refused or not client.reading:
            return
        held = self.held[client]
        held += [each.seq for each in client.deliveries[self.seen[client] :]]
        self.seen[client] = len(client.deliveries)
        seqs = held[-what.count :] if what.newest else held[: what.count]
        self.held[client] = [seq for seq in held if seq not in seqs]
        commands: list[Command] = [Settle(seq, "a", outcome=what.outcome) for seq in seqs]
        if what.together and what.outcome is Outcome.ACCEPTED and len(seqs) > 1:
            commands = [SettleRun(seqs, "a")]
        client.session.handle(commands)
        self.world.broker.wake()

    def step(self, does: str) -> None:
        world, client = self.world, self.consumers[-1]
        if does == "turn":
            world.turn()
        elif does == "disk":
            world.settle()
        elif does == "consumer" and len(self.consumers) < 4:
            self.consumer()
        elif does == "automatic" and len(self.consumers) < 4:
            self.consumer(ACK_AUTO)
        elif does == "goes" and len(self.consumers) > 1:
            self.consumers.pop().lose()
        elif does == "looks":
            looker = world.connect()
            looker.subscribe("a", ACK_AUTO, 0, browser=True)
            world.settle()
            looker.lose()
        elif does == "time":
            world.sweep(3600.0)
        elif does in ("slow", "quick"):
            client.session.set_writable(does == "quick")
        elif does in ("commit", "abort") and client.reading and not client.refused:
            client.begin()
            for seq in [*client.consumers["a"].unacked][:9] if "a" in client.consumers else ():
                client.session.handle([Settle(seq, "a", transaction="t")])
            getattr(client, does)()
        elif does == "is full":
            fill_disk(world)
        elif does == "has room":
            world.vfs.heal()
            world.journal.check_space()
            world.settle()
        elif does == "taken":
            for message in self.queue.take_oldest(3 * MESSAGE_OVERHEAD_BYTES):
                world.broker.consumed(self.queue, message)
        world.broker.wake()

    def counts(self) -> dict[str, Any]:
        """What the broker knows without making a message of anything."""
        queue, broker = self.queue, self.world.broker
        return {
            "deliveries": [
                [(each.seq, each.body, each.redelivered) for each in c.deliveries] for c in self.world.clients
            ],
            "confirmed": [each.confirmed for each in self.world.clients],
            "errors": [each.errors for each in self.world.clients],
            "traffic": [
                (each.session.traffic.received, each.session.traffic.acknowledged) for each in self.world.clients
            ],
            "taken": broker.memory.taken_bytes,
            "bytes": (queue.stored_bytes, queue.pending_bytes, queue.resident_bytes),
            "messages": (queue.stored, queue.waiting, queue.enqueued, queue.acknowledged, queue.expiring),
            "held": [subscription.held for subscription in queue.subscriptions],
            "credit": [subscription.credit for subscription in queue.subscriptions],
            "segments": [(each.live, each.live_bytes, sorted(each.refers)) for each in broker.journal.segments],
        }

    def files(self) -> list[tuple[str, bytes]]:
        return [(file.name, file.read_bytes()) for file in sorted(Path(self.world.store, "journal").iterdir())]


def kept(steps: list[Sends | Settles | Step], config: dict[str, Any]) -> int:
    """Both sides are the same after each step. Returns how many messages were together at most."""
    with tempfile.TemporaryDirectory() as directory:
        alone, together = [Side(f"{directory}/{number}", bool(number), config) for number in range(2)]
        for step in [_RUN, Step("disk"), *steps, Step("has room"), Step("quick"), Step("disk")]:
            for side in (alone, together):
                side.do(step)
            here = together.counts()
            for what, value in alone.counts().items():
                assert here[what] == value, (what, step)
        assert together.files() == alone.files()
        first, second = [next(iter(side.queue.messages), 0) for side in (together, alone)]
        assert first <= second, "the first one there is what is shown as the oldest"
        for side in (alone, together):
            side.world.check()
            side.world.close()
        assert not alone.most
        return together.most


_RUN, _ALL = Sends(0, 90, large=False), Settles(0, 100, Outcome.ACCEPTED, newest=False, together=True)
_ONE = Sends(0, 1, large=False)


@pytest.mark.parametrize("config", range(len(CONFIGS)))
@example(steps=[_RUN, _ONE, _RUN, Step("disk"), Step("consumer"), _RUN, _RUN, Step("disk"), _ALL, Step("goes"), _ALL])
@example(steps=[_RUN, Step("disk"), _ALL, Step("is full"), Step("disk"), _RUN, Step("has room"), _ALL, Step("disk")])
@settings(max_examples=examples(40))
@given(st.lists(STEPS, min_size=1, max_size=25))
def test_messages_that_stay_together_are_the_same_as_alone(config: int, steps: list[Sends | Settles | Step]) -> None:
    kept(steps, CONFIGS[config])


def test_they_stay_together_as_long_as_nobody_asks_for_one(world: World) -> None:
    producer, consumer = world.connect(), world.consumer(prefetch=1000)
    producer.send(b"0")
    world.settle()
    queue = world.broker.state.queues[QUEUE]
    consumer.ack(b"0")
    bodies = [b"%d" % number for number in range(3 * RUN_MESSAGES_MAX)]
    producer.session.handle([SendRun(Message(QUEUE, b""), bodies, None)])
    world.settle()
    assert consumer.bodies == [b"0", *bodies]
    assert (queue.folded, len(queue.singles)) == (len(bodies), 0)
    seqs = [each.seq for each in consumer.deliveries[1:]]
    consumer.session.handle([SettleRun(seqs[:100], "a")])
    assert (queue.folded, len(queue.subscriptions[0].singles)) == (len(bodies), 0), "none has left yet"
    world.settle()
    assert (queue.folded, queue.stored) == (len(bodies) - 100, len(bodies) - 100)
    assert [*consumer.consumers["a"].unacked] == seqs[100:]
    assert not queue.folded
    world.settle_and_check()


def test_a_consumer_that_takes_any_number_holds_few_together(world: World) -> None:
    producer, consumer = world.connect(), world.consumer(prefetch=100_000)
    producer.send(b"0")
    world.settle()
    queue = world.broker.state.queues[QUEUE]
    for _ in range(TOGETHER_MAX // 1000 + 3):
        producer.session.handle([SendRun(Message(QUEUE, b""), [b"x"] * 1000, None)])
        world.settle()
        assert queue.folded <= TOGETHER_MAX
    assert len(consumer.bodies) == queue.stored == 1 + 1000 * (TOGETHER_MAX // 1000 + 3)
    assert len(queue.subscriptions[0].unacked) == queue.stored
    world.settle_and_check()


def test_their_bodies_go_with_those_that_leave(world: World) -> None:
    producer, consumer = world.connect(), world.consumer(prefetch=1000)
    producer.send(b"0")
    world.settle()
    consumer.ack(b"0")
    queue = world.broker.state.queues[QUEUE]
    producer.session.handle([SendRun(Message(QUEUE, b""), [bytes(1000)] * 50, None)])
    world.settle()
    before = world.broker.memory.taken_bytes
    consumer.session.handle([SettleRun([each.seq for each in consumer.deliveries[1:11]], "a")])
    world.settle()
    assert before - world.broker.memory.taken_bytes == 10 * (1000 + MESSAGE_OVERHEAD_BYTES)
    assert [len(bundle.bodies) for bundle in queue.subscriptions[0].bundles] == [40]
    world.settle_and_check()


def test_the_oldest_of_all_consumers_comes_first(world: World) -> None:
    producer, *consumers = world.connect(), world.consumer(prefetch=1000), world.consumer(prefetch=1000)
    producer.send(b"0")
    world.settle()
    queue = world.broker.state.queues[QUEUE]
    consumers[0].ack(b"0")
    for _ in range(2):
        producer.session.handle([SendRun(Message(QUEUE, b""), [b"x"] * 20, None)])
        world.settle()
    quick, slow = [[each.seq for each in client.deliveries if each.body == b"x"] for client in consumers]
    consumers[0].session.handle([SettleRun(quick[:10], "a")])
    world.settle()
    assert queue.folded == 30
    assert next(iter(queue.messages)) == slow[0] < quick[10]
    world.settle_and_check()
