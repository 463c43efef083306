"""Sends and acknowledgements that came one after the other, as one command: the same as one by one."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amq.core.message import MAP, NONE, TEXT, Envelope, Message, Native
from amq.protocols.commands import Command, Send, SendRun, Settle, SettleRun
from amq.protocols.stomp.subscribing import ACK_INDIVIDUAL
from tests.broker.test_broker_disk import fill_disk
from tests.broker.world import Client, World
from tests.sampling import examples

KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"persistent": False},
    {"priority": 7},
    {"expires_ms": 1_700_000_009_000},
    {"content_type": "text/plain"},
    {"properties": {"colour": "red", "größe": "3"}, "content_type": "a/b"},
    {"properties": {"JMSXGroupID": "g"}, "persistent": False},
    {"properties": {"AMQ_SCHEDULED_DELAY": "5000"}},
    {"content": TEXT, "native": True},
    {"content": MAP, "native": True, "persistent": False},
    {"content": NONE, "native": True, "priority": 1},
)
CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"memory_limit_bytes": 8000},
    {"journal_batch_size_bytes": 4096},
    {"queue_limit_bytes": 4000},
    {"queue_limit_bytes": 4000, "producer_flow_control": "fail"},
    {"queue_limit_bytes": 4000, "queue_limit_policy": "drop-oldest"},
    {"populate_jmsxuser_id": True},
    {"store_limit_bytes": 200_000, "journal_segment_size_bytes": 65536},
)
WRONG_SEQ = 12345


@dataclass(frozen=True)
class Sends:
    """Of one kind, to one queue."""

    queue: str
    kind: int
    sizes: tuple[int, ...]
    receipts: bool


@dataclass(frozen=True)
class Settles:
    """Deliveries in the order in which they came; "wrong" = of a message that nobody has, "again" = the one before."""

    count: int
    then: str


@dataclass(frozen=True)
class Step:
    """What happens between reads of a socket."""

    does: str


READS = st.one_of(
    st.builds(
        Sends,
        st.sampled_from(["queue://a", "queue://b", "queue://new", "topic://t"]),
        st.integers(0, len(KINDS) - 1),
        st.lists(st.sampled_from([1, 10, 300, 5000]), min_size=1, max_size=6).map(tuple),
        st.booleans(),
    ),
    st.builds(Settles, st.integers(1, 5), st.sampled_from(["", "", "", "wrong", "again"])),
    st.builds(
        Step,
        st.sampled_from(["turn", "turn", "disk", "time", "consumer", "consumer goes", "disk is full", "disk has room"]),
    ),
)


def message_of(queue: str, body: bytes, fields: dict[str, Any], native: bytes | None) -> Message:
    envelope = Envelope(native=Native("some", native)) if native is not None else None
    return Message(queue, body, envelope=envelope, **fields)


class Twin:
    """A world in which `runs` says whether commands that came one after the other are one."""

    def __init__(self, path: str, runs: bool, config: dict[str, Any]) -> None:
        self.world = World(path, 1, **config)
        self.runs = runs
        self.producer = self.world.connect()
        for queue in "ab":  # which are there from now on, and this user may send to them
            if self.producer.reading:  # it has no room where the journal is at its limit already
                self.producer.send(b"0", queue)
        self.consumers: list[Client] = []
        self.settled: dict[Client, int] = {}
        self.serial = 0
        self.add_consumer()

    def add_consumer(self) -> None:
        client = self.world.connect()
        client.subscribe("a", ACK_INDIVIDUAL, 4, id="a")
        client.subscribe("b", ACK_INDIVIDUAL, 2, id="b")
        self.consumers.append(client)
        self.settled[client] = 0

    def send(self, what: Sends) -> None:
        if not self.producer.reading or self.producer.refused:
            self.producer = self.world.connect()
        fields, bodies, receipts = {**KINDS[what.kind]}, [], []
        natives = [] if fields.pop("native", False) else None
        for size in what.sizes:
            self.serial += 1
            bodies.append(b"%d:" % self.serial + b"x" * size)
            receipts.append(f"s{self.serial}" if what.receipts else None)
            if natives is not None:
                natives.append(b"of %d" % self.serial + bytes(size % 7))
        if self.runs and len(bodies) > 1:
            like = message_of(what.queue, b"", fields, None if natives is None else b"")
            self.producer.session.handle([SendRun(like, bodies, receipts if what.receipts else None, natives)])
            return
        each = zip(bodies, receipts, natives or [None] * len(bodies), strict=True)
        self.producer.session.handle(
            [Send(message_of(what.queue, body, fields, native), receipt) for body, receipt, native in each]
        )

    def settle(self, what: Settles) -> None:
        for client in self.consumers:
            if client.refused or not client.reading:
                continue
            some = client.deliveries[self.settled[client] :][: what.count]
            self.settled[client] += len(some)
            for id in ("a", "b"):
                seqs = [each.seq for each in some if each.subscription == id]
                if seqs and what.then:
                    seqs.insert(len(seqs) // 2, WRONG_SEQ if what.then == "wrong" else seqs[0])
                commands: list[Command] = [Settle(seq, id) for seq in seqs]
                if self.runs and len(seqs) > 1:
                    commands = [SettleRun(seqs, id)]
                client.session.handle(commands)

    def step(self, what: Step) -> None:
        world = self.world
        if what.does == "turn":
            world.turn()
        elif what.does == "disk":
            world.settle()
        elif what.does == "time":
            world.clock.advance(3600.0)
            world.settle()
        elif what.does == "consumer":
            self.add_consumer()
        elif what.does == "disk is full":
            fill_disk(world)
        elif what.does == "disk has room":
            world.vfs.heal()
            world.journal.check_space()
            world.settle()
        elif what.does == "consumer goes" and len(self.consumers) > 1:
            self.consumers.pop().lose()

    def found(self) -> dict[str, Any]:
        """All that clients were told and the broker knows, and the bytes of the journal."""
        broker = self.world.broker
        clients = self.world.clients
        files = sorted(Path(self.world.store, "journal").iterdir())
        return {
            "deliveries": [[(each.seq, each.body, each.redelivered) for each in each.deliveries] for each in clients],
            "confirmed": [each.confirmed for each in clients],
            "errors": [each.errors for each in clients],
            "reading": [each.reading for each in clients],
            "taken": broker.memory.taken_bytes,
            "traffic": [(each.session.traffic.received, each.session.traffic.acknowledged) for each in clients],
            "queues": {
                name: (
                    queue.stored,
                    queue.stored_bytes,
                    queue.pending_bytes,
                    queue.resident_bytes,
                    queue.enqueued,
                    queue.acknowledged,
                    queue.expiring,
                    [[message.seq for message in level] for level in queue.levels],
                )
                for name, queue in broker.state.queues.items()
            },
            "segments": [(each.live, each.live_bytes, sorted(each.refers)) for each in broker.journal.segments],
            "journal": [(file.name, file.read_bytes()) for file in files],
        }


_UNASKED_ON_A_FULL_DISK = [
    *(Step("disk"), Sends("queue://a", 0, (1,), False), Settles(1, ""), Step("turn"), Step("disk is full")),
    *(Sends("queue://a", 0, (1,), False), Settles(1, ""), Sends("queue://a", 0, (1,), False), Step("disk")),
]


@pytest.mark.parametrize("config", range(len(CONFIGS)))
@example(reads=_UNASKED_ON_A_FULL_DISK)
@settings(max_examples=examples(60))
@given(st.lists(READS, min_size=1, max_size=25))
def test_the_same_as_one_by_one(config: int, reads: list[Sends | Settles | Step]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        twins = [Twin(f"{directory}/{runs}", runs, CONFIGS[config]) for runs in (False, True)]
        for read in [*reads, Step("disk has room"), Step("disk"), Settles(100, ""), Step("disk")]:
            for twin in twins:
                if isinstance(read, Sends):
                    twin.send(read)
                elif isinstance(read, Settles):
                    twin.settle(read)
                else:
                    twin.step(read)
        alone, together = [twin.found() for twin in twins]
        for each in twins:
            each.world.close()
        for what, value in alone.items():
            assert together[what] == value, what
        assert alone["journal"], "no segment was found"
