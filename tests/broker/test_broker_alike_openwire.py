"""A stream of OpenWire, however it is cut into reads, and one read frame by frame in the general way: the same state,
records and answers. See `test_broker_alike` for the commands themselves.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amq.broker.queues.queue import Subscription
from amq.core.message import Message
from amq.protocols.commands import Command, Connect, Failure, Scope, Subscribe
from amq.protocols.openwire import table
from amq.protocols.openwire.codec import OpenWireCodec
from amq.protocols.openwire.primitives import encode_map
from amq.protocols.openwire.table import Structure, frame, structure
from tests.broker.world import Client, World
from tests.protocols.openwire.conversation import (
    CONSUMER,
    ID,
    PRODUCER,
    SESSION,
    frames,
    greeting,
    login,
    message,
    said,
)
from tests.sampling import examples

CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"memory_limit_bytes": 60_000},
    {"journal_batch_size_bytes": 4096},
    {"queue_limit_bytes": 4000, "producer_flow_control": "fail"},
    {"populate_jmsxuser_id": True},
    {"max_transaction_size_bytes": 20_000},
)
PROPERTIES = (None, encode_map({"a": "b"}), encode_map({"a": 1, "b": "long " * 5}))


class GeneralCodec(OpenWireCodec):
    """It knows no short way."""

    def _receive_lone(self, data: bytes) -> None:  # noqa: ARG002
        return None

    def _receive_frequent(self, commands: list[Command], left: int) -> int:  # noqa: ARG002
        return left

    def deliveries(self, consumer: Any, messages: Sequence[Message]) -> tuple[bytes, int]:
        return b"".join([self.delivery(consumer, each, 0) for each in messages]), len(messages)


@dataclass(frozen=True)
class Sends:
    """To one queue, each with its own size and properties. `ends` = "" where they are in no transaction."""

    queue: str
    persistent: bool
    responds: bool
    bodies: tuple[tuple[int, int], ...]
    ends: str


@dataclass(frozen=True)
class Acks:
    """Of deliveries in the order in which they came, one by one; `again`: one of them twice."""

    count: int
    kind: int
    again: bool


STEPS = st.one_of(
    st.builds(
        Sends,
        st.sampled_from(["a", "a", "b", "new"]),
        st.booleans(),
        st.integers(0, 3).map(lambda drawn: not drawn),
        st.lists(st.tuples(st.sampled_from([1, 10, 300, 5000]), st.integers(0, 2)), min_size=1, max_size=6).map(tuple),
        st.sampled_from(["", "", "commit", "roll back"]),
    ),
    st.builds(Acks, st.integers(1, 6), st.sampled_from([2, 2, 4]), st.booleans()),
    st.sampled_from(["turn", "disk"]),
)


class Spoken(Client):
    """A client whose bytes a codec reads, and writes. `said` = what it was told."""

    def __init__(self, world: World, codec: OpenWireCodec) -> None:
        self.codec = codec
        self.said = bytearray()
        super().__init__(world)
        world.clients.append(self)
        greeted = greeting() + login(fault_tolerant=False)
        (connect,) = codec.receive(greeted)
        assert isinstance(connect, Connect)
        codec.connected("1")
        codec.unsaid = b""

    def read(self, data: bytes) -> None:
        """The client sent it in one piece."""
        if not self.refused:
            self.session.handle(self.codec.receive(data))

    def subscribed(self, command: Subscribe, session: int) -> object:
        return self.codec.subscription(command, session)

    def _tell(self, data: bytes) -> None:
        self._out.append(lambda: self.said.extend(data))

    def deliver(self, subscription: Subscription, message: Message, redelivered: int) -> None:
        self._tell(self.codec.delivery(subscription.wire, message, redelivered))

    def deliver_all(self, subscription: Subscription, messages: list[Message]) -> None:
        self._tell(self.codec.deliveries(subscription.wire, messages)[0])

    def confirm(self, receipt: object, outcome: str = "") -> None:
        self._tell(self.codec.receipt(receipt, outcome))

    def confirm_all(self, receipts: list[object]) -> None:
        self._tell(self.codec.receipts(receipts))

    def fail(self, failure: Failure) -> None:
        self._tell(self.codec.error(failure))
        if failure.scope is Scope.CONNECTION:
            self.session.close()
            self.close()


class Twin:
    """A world with one client, who sends and receives. `cuts` None = each frame is read alone."""

    def __init__(self, path: str, codec: OpenWireCodec, cuts: list[int] | None, config: dict[str, Any]) -> None:
        self.world = World(path, 1, **config)
        self.cuts = cuts
        self.client = Spoken(self.world, codec)
        self.number = self.acknowledged = 0
        queues = structure(table.QUEUE, name="a,b")
        self.read(
            said(table.SESSION_INFO, 2, id=SESSION),
            said(table.PRODUCER_INFO, 3, id=PRODUCER),
            said(table.CONSUMER_INFO, 4, True, id=CONSUMER, destination=queues, prefetch=5),
        )
        self.world.settle()

    def read(self, *pieces: bytes) -> None:
        if self.cuts is None:
            for piece in pieces:
                self.client.read(piece)
            return
        data = b"".join(pieces)
        cuts = sorted(each % (len(data) + 1) for each in self.cuts)
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            self.client.read(data[start:end])

    def send(self, what: Sends) -> None:
        self.number += 100
        transaction, begin, end = None, [], []
        if what.ends:
            transaction = structure(table.LOCAL_TRANSACTION_ID, connection=ID, value=self.number)
            fields = {"connection": ID, "transaction": transaction}
            begin = [said(table.TRANSACTION_INFO, self.number, False, kind=0, **fields)]
            kind = 2 if what.ends == "commit" else 4
            end = [said(table.TRANSACTION_INFO, self.number + 99, True, kind=kind, **fields)]
        found = []
        for number, (size, properties) in enumerate(what.bodies, self.number + 1):
            made = message(
                table.BYTES_MESSAGE,
                number,
                command_id=number,
                response_required=what.responds,
                destination=structure(table.QUEUE, name=what.queue),
                persistent=what.persistent,
                transaction=transaction,
                content=b"%d:" % number + b"x" * size,
                properties=PROPERTIES[properties],
                timestamp=number,
            )
            found.append(frame(made))
        self.read(*begin, *found, *end)

    def acknowledge(self, what: Acks) -> None:
        dispatches = [each for each in frames(bytes(self.client.said)) if each.type == table.MESSAGE_DISPATCH]
        some = dispatches[self.acknowledged :][: what.count]
        self.acknowledged += len(some)
        if what.again and some:
            some.insert(len(some) // 2, some[0])
        self.read(*[self._ack(each, what.kind) for each in some])

    @staticmethod
    def _ack(dispatch: Structure, kind: int) -> bytes:
        id = dispatch.fields["message"].get("id")
        fields = {"destination": dispatch.get("destination"), "consumer": CONSUMER}
        return said(table.MESSAGE_ACK, 7, kind=kind, count=1, first=id, last=id, **fields)

    def play(self, step: Sends | Acks | str) -> None:
        if isinstance(step, Sends):
            self.send(step)
        elif isinstance(step, Acks):
            self.acknowledge(step)
        elif step == "turn":
            self.world.turn()
        else:
            self.world.settle()

    def found(self) -> dict[str, Any]:
        """All that the client was told and the broker knows, and the bytes of the journal."""
        broker = self.world.broker
        files = sorted(Path(self.world.store, "journal").iterdir())
        return {
            "said": list(map(repr, frames(bytes(self.client.said)))),
            "reading": self.client.reading,
            "taken": broker.memory.taken_bytes,
            "traffic": (self.client.session.traffic.received, self.client.session.traffic.acknowledged),
            "queues": {
                name: (queue.stored, queue.taken_bytes, queue.resident_bytes, queue.enqueued, queue.acknowledged)
                for name, queue in broker.state.queues.items()
            },
            "journal": [(file.name, file.read_bytes()) for file in files],
        }


@pytest.mark.parametrize("config", range(len(CONFIGS)))
@settings(max_examples=examples(15))
@given(
    st.lists(STEPS, min_size=1, max_size=12),
    st.one_of(st.just([]), st.none(), st.lists(st.integers(0, 1 << 20), max_size=4)),
)
def test_however_the_stream_is_cut(config: int, steps: list[Sends | Acks | str], cuts: list[int] | None) -> None:
    with tempfile.TemporaryDirectory() as directory:
        twins = [
            Twin(f"{directory}/general", GeneralCodec(), None, CONFIGS[config]),
            Twin(f"{directory}/usual", OpenWireCodec(), cuts, CONFIGS[config]),
        ]
        for step in [*steps, "disk", Acks(100, 2, again=False), "disk"]:
            for twin in twins:
                twin.play(step)
        alone, together = [twin.found() for twin in twins]
        for twin in twins:
            twin.world.close()
        for what, value in alone.items():
            assert together[what] == value, what
