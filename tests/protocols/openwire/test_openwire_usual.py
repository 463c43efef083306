"""The short way of usual messages and acknowledgements says the same as the general one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from conversation import CONSUMER, PRODUCER, QUEUE, TRANSACTION, message, opened, said
from hypothesis import event, given
from hypothesis import strategies as st

from amq.core.message import Message
from amq.core.remembered import Remembered
from amq.protocols.commands import Command, Malformed, Send, SendMany, SendRun, Settle, SettleRun
from amq.protocols.openwire import table
from amq.protocols.openwire.answers import Answer, Windowed
from amq.protocols.openwire.codec import OpenWireCodec
from amq.protocols.openwire.messages import message_of, read_message
from amq.protocols.openwire.primitives import encode_map
from amq.protocols.openwire.table import Structure, decode, frame, structure
from amq.protocols.openwire.wire import INT

OTHER = structure(table.PRODUCER_ID, connection="ID:host-1-1:1", session=1, value=2)
_PLAIN = (str, int, bytes, bool, float, type(None), tuple, list, dict)


class GeneralCodec(OpenWireCodec):
    """It knows no short way."""

    def _receive_lone(self, data: bytes) -> None:  # noqa: ARG002
        return None

    def _receive_frequent(self, commands: list[Command], left: int) -> int:  # noqa: ARG002
        return left


def facts(found: object) -> object:
    """Everything that `found` holds, to compare. What a codec knows of the messages before it may differ."""
    if isinstance(found, (Remembered, OpenWireCodec)) or found.__class__.__name__ in ("Consumer", "Known", "Structure"):
        return found.__class__.__name__
    if isinstance(found, _PLAIN) or not hasattr(found, "__class__"):
        return found
    names = {name for kind in type(found).__mro__ for name in getattr(kind, "__slots__", ())}
    return type(found).__name__, {name: facts(getattr(found, name, None)) for name in sorted(names)}


def general() -> OpenWireCodec:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("conversation.OpenWireCodec", GeneralCodec)
        return opened()


def prepared(codec: OpenWireCodec, tolerates: bool = True) -> OpenWireCodec:
    """It has two producers, an open transaction, and a consumer that holds messages."""
    codec.receive(
        said(table.PRODUCER_INFO, 5, id=OTHER, destination=QUEUE, window=4096)
        + said(table.TRANSACTION_INFO, 6, connection=TRANSACTION.get("connection"), transaction=TRANSACTION, kind=0)
        + said(table.CONNECTION_CONTROL, 7, fault_tolerant=tolerates)
    )
    (consumer,) = codec._consumers.values()
    for seq in range(1, 9):
        stored = message_of(read_message(table.encode(message(sequence=seq)), 12), "queue://orders", "")
        stored.seq = seq
        codec.delivery(consumer, stored, 0)
    codec.unsaid = b""
    return codec


@st.composite
def sent(draw: st.DrawFn, sequence: int) -> bytes:
    """The frame of a message, often a usual one."""
    fields: dict[str, Any] = {"timestamp": 1 << 40, "compressed": False, "content": b"\0\0\0\1a"}
    fields["destination"] = structure(table.QUEUE, name=draw(st.sampled_from(["a", "a", "a", "bb", "a,b"])))
    if draw(st.booleans()):
        fields["transaction"] = TRANSACTION
    if draw(st.integers(0, 3)) == 0:
        fields |= draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "content": st.binary(max_size=8),
                    "group_id": st.text(max_size=3),
                    "correlation_id": st.text(max_size=3),
                    "user_id": st.text(max_size=3),
                    "expiration": st.just(7),
                    "compressed": st.booleans(),
                    "persistent": st.booleans(),
                    "priority": st.integers(0, 12),
                    "response_required": st.booleans(),
                    "command_id": st.integers(0, 99),
                    "properties": st.sampled_from(
                        [b"", b"?", encode_map({"AMQ_SCHEDULED_DELAY": 5}), encode_map({"a": "b"})]
                    ),
                },
            )
        )
    producer = draw(st.sampled_from([PRODUCER, PRODUCER, OTHER]))
    id = structure(table.MESSAGE_ID, producer=producer, producer_sequence=sequence)
    kind = draw(st.sampled_from([table.TEXT_MESSAGE, table.BYTES_MESSAGE]))
    return frame(message(kind, sequence, **{"producer": producer, "id": id, **fields}))


@st.composite
def alike(draw: st.DrawFn, sequence: int) -> bytes:
    """The frames of messages of one producer to one destination, which rarely differ in more than their holes."""
    producer = draw(st.sampled_from([PRODUCER, PRODUCER, OTHER]))
    fields: dict[str, Any] = {
        "producer": producer,
        "destination": structure(draw(st.sampled_from([table.QUEUE] * 3 + [table.TOPIC])), name="a"),
        "transaction": draw(st.sampled_from([None, None, TRANSACTION])),
        "persistent": draw(st.booleans()),
        "response_required": draw(st.integers(0, 5)) == 0,
    }
    properties = st.sampled_from([None, encode_map({"a": "b"}), encode_map({"a": 1, "b": "long " * 5})])
    rare = st.sampled_from(
        [
            {},
            {"priority": 9},
            {"content": None},
            {"correlation_id": "c"},
            {"compressed": True},
            {"type": "t"},
            {"arrival": 5},
            {"properties": b"?"},
            {"properties": encode_map({"AMQ_SCHEDULED_DELAY": 5})},
            {"group_id": "g"},
            {"persistent": not fields["persistent"]},
        ]
    )
    found = []
    for number in range(sequence, sequence + draw(st.integers(2, 6))):
        id = structure(table.MESSAGE_ID, producer=producer, producer_sequence=number, broker_sequence=number % 3)
        own = {"content": draw(st.binary(max_size=8)), "properties": draw(properties), "timestamp": number << 20}
        more = draw(rare) if draw(st.integers(0, 7)) == 0 else {}
        each = {"id": id, "command_id": number, **fields, **own, **more}
        found.append(frame(message(table.BYTES_MESSAGE, number, **each)))
    return b"".join(found)


@st.composite
def acknowledged_one_by_one(draw: st.DrawFn) -> bytes:
    """The frames of acknowledgements of a message each, rarely of one that was acknowledged before."""
    seqs = draw(st.lists(st.integers(1, 9), min_size=2, max_size=5, unique=draw(st.integers(0, 5)) > 0))
    found = []
    for seq in seqs:
        id = structure(table.MESSAGE_ID, producer=PRODUCER, producer_sequence=seq, broker_sequence=seq)
        fields = {"destination": QUEUE, "consumer": CONSUMER, "kind": 2, "count": 1, "first": id, "last": id}
        found.append(said(table.MESSAGE_ACK, seq, draw(st.integers(0, 9)) == 0, **fields))
    return b"".join(found)


@st.composite
def acknowledged(draw: st.DrawFn) -> bytes:
    """The frame of an acknowledgement, often a usual one."""
    last = draw(st.integers(1, 9))
    first = draw(st.sampled_from([last, last, last, 1]))
    ids = [
        structure(
            table.MESSAGE_ID,
            producer=draw(st.sampled_from([PRODUCER, PRODUCER, OTHER])),
            producer_sequence=seq,
            broker_sequence=seq,
            text=draw(st.sampled_from([None, None, None, "ID:x"])),
        )
        for seq in (first, last)
    ]
    return said(
        table.MESSAGE_ACK,
        draw(st.integers(0, 99)),
        draw(st.integers(0, 5)) == 0,
        destination=QUEUE,
        consumer=CONSUMER,
        kind=draw(st.sampled_from([2, 2, 2, 4, 0, 1, 5])),
        first=ids[0],
        last=ids[1],
        count=1,
        transaction=draw(st.sampled_from([None, None, None, TRANSACTION])),
    )


@given(found=st.data())
def test_both_ways_say_the_same(found: st.DataObject) -> None:
    pieces = [
        found.draw(st.one_of(sent(number), alike(number), alike(number), acknowledged(), acknowledged_one_by_one()))
        for number in range(0, 10 * found.draw(st.integers(1, 12)), 10)
    ]
    stream = bytearray(b"".join(pieces))
    ends = _ends(stream)
    if found.draw(st.integers(0, 4)) == 0:  # damage
        stream[found.draw(st.integers(0, len(stream) - 1))] ^= found.draw(st.integers(1, 255))
    cuts = ends if found.draw(st.booleans()) else found.draw(st.lists(st.integers(0, len(stream)), max_size=3))
    cuts = sorted(cuts)
    reads = [bytes(stream[start:end]) for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    tolerates = found.draw(st.booleans())
    ours, theirs = prepared(opened(), tolerates), prepared(general(), tolerates)
    said_by: list[Sequence[Command]] = []
    for codec in (ours, theirs):
        said_by.append([command for read in reads for command in codec.receive(read)])
    short, long = said_by
    event("malformed" if any(isinstance(each, Malformed) for each in short) else "well formed")
    event(f"runs: {sorted({type(each).__name__ for each in short} & {'SendRun', 'SendMany', 'SettleRun'})}")
    assert _told(_one_by_one(short)) == _told(long)
    assert ours.pending == theirs.pending
    assert [each.held for each in ours._consumers.values()] == [each.held for each in theirs._consumers.values()]


def _ends(stream: bytes | bytearray) -> list[int]:
    """Where each frame ends."""
    ends = [0]
    while ends[-1] < len(stream):
        ends.append(ends[-1] + INT.size + INT.unpack_from(stream, ends[-1])[0])
    return ends[1:]


def _one_by_one(commands: Sequence[Command]) -> list[Command]:
    found: list[Command] = []
    for each in commands:
        if isinstance(each, SendRun | SettleRun):
            found += each.one_by_one()
        elif isinstance(each, SendMany):
            found += [Send(message, None, each.transaction) for message in each.messages]
        else:
            found.append(each)
    return found


def _told(commands: Sequence[Command]) -> list[object]:
    """An error is told apart by its type and text."""
    return [
        (type(each).__name__, repr(getattr(each, "error", None))) if hasattr(each, "error") else facts(each)
        for each in commands
    ]


def test_what_is_usual_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = prepared(opened())
    codec.receive(frame(message(sequence=1)))  # the first one is read in general, and known from then on
    ack = said(
        table.MESSAGE_ACK,
        9,
        destination=QUEUE,
        consumer=CONSUMER,
        kind=2,
        count=1,
        first=structure(table.MESSAGE_ID, producer=PRODUCER, producer_sequence=3, broker_sequence=3),
        last=structure(table.MESSAGE_ID, producer=PRODUCER, producer_sequence=3, broker_sequence=3),
    )
    monkeypatch.setattr(codec, "_receive", lambda *_: pytest.fail("it is read in general"))
    send, settle = codec.receive(frame(message(sequence=2, content=b"\0\0\0\1a")) + ack)[-2:]
    assert isinstance(send, Send)
    assert isinstance(settle, Settle)
    assert settle.seq == 3
    monkeypatch.setattr(codec, "_receive_frequent", lambda *_: pytest.fail("it is read as one of many"))
    assert isinstance(codec.receive(frame(message(sequence=3, content=b"\0\0\0\1a")))[-1], Send)
    assert isinstance(codec.receive(ack.replace(INT.pack(3), INT.pack(4)))[-1], Settle)


def test_what_a_consumer_must_be_asked_about_is_no_lone_acknowledgement() -> None:
    codec = prepared(opened())
    (consumer,) = codec._consumers.values()

    def ack(kind: int = 2, count: int = 1, seq: int = 3, transaction: Structure | None = None) -> bytes:
        id = structure(table.MESSAGE_ID, producer=PRODUCER, producer_sequence=seq, broker_sequence=seq)
        usual: dict[str, Any] = {"destination": QUEUE, "consumer": CONSUMER, "transaction": transaction}
        return said(table.MESSAGE_ACK, 9, True, **usual, kind=kind, count=count, first=id, last=id)

    for other in (ack(kind=4), ack(count=2), ack(seq=99), ack(transaction=TRANSACTION)):
        assert codec._receive_lone(other) is None
    consumer.in_transactions[3] = b""
    assert codec._receive_lone(ack()) is None
    consumer.in_transactions.clear()
    consumer.extension = 1
    assert codec._receive_lone(ack()) is None
    consumer.extension = 0
    consumer.is_pulling = True
    assert codec._receive_lone(ack()) is None
    consumer.is_pulling = False
    assert len(consumer.held) == 8
    assert codec._receive_lone(ack()) is not None
    assert len(consumer.held) == 7


@given(st.binary(max_size=20), st.booleans(), st.integers(0, 3), st.booleans())
def test_both_ways_to_dispatch_say_the_same(content: bytes, has_content: bool, redelivered: int, again: bool) -> None:
    """Also to a client that came back, where the message is newer than its connection."""
    made = message(sequence=4, **({"content": content} if has_content else {}))
    stored = message_of(read_message(table.encode(made), 12), "queue://orders", "")
    stored.seq = 70
    codec = opened(failover_reconnect=again)
    (consumer,) = codec._consumers.values()
    short = codec.delivery(consumer, stored, redelivered)
    assert short == b"".join(codec._pieces(consumer, stored, redelivered))
    assert decode(short[4:]).get("redelivery_counter") == redelivered


def test_messages_that_are_dispatched_together_are_as_one_by_one() -> None:
    """Also those that another protocol brought, that the broker has moved, or that the client may know."""
    stored = []
    for seq in range(1, 9):
        name = "queue://orders" if seq != 3 else "queue://other"
        made = message_of(read_message(table.encode(message(sequence=seq, content=bytes(seq))), 12), name, "")
        if seq == 4:
            made = Message(name, b"text")
        elif seq == 6:
            made.properties = {"original-destination": "/queue/first"}
        made.seq = seq
        stored.append(made)
    together, alone = opened(failover_reconnect=True), opened(failover_reconnect=True)
    for codec in (together, alone):
        codec._ids.known_to = 2
    (consumer,), (other,) = together._consumers.values(), alone._consumers.values()
    assert together.deliveries(consumer, stored) == (b"".join([alone.delivery(other, each, 0) for each in stored]), 8)
    assert (consumer.held, consumer.dispatched) == (other.held, 8)


def test_answers_that_are_given_together() -> None:
    """A producer with a window gets one for all; responses are one after the other."""
    codec = prepared(opened())
    own, other = (codec._producers[table.nested(id)] for id in (OTHER, PRODUCER))
    assert codec.receipts([Windowed(own, 5), Windowed(own, 7)]) == said(table.PRODUCER_ACK, producer=OTHER, size=12)
    for tokens in ([Answer(3), Answer(4)], [Windowed(own, 5), Windowed(other, 7)], [Windowed(own, 5), Answer(3)]):
        assert codec.receipts(tokens) == b"".join(map(codec.receipt, tokens))


def test_a_long_beginning_is_not_remembered() -> None:
    codec = opened()
    name = structure(table.QUEUE, name="q" * 3000)
    for sequence in (1, 2):
        found = codec.receive(frame(message(sequence=sequence, destination=name)))
        (send,) = [each for each in found if isinstance(each, Send)]
        assert send.message.destination == "queue://" + "q" * 3000
    (producer,) = codec._producers.values()
    assert len(producer.known.prefix) <= 1024


def test_a_message_is_not_shared() -> None:
    """Two messages of one producer have nothing in common that changes."""
    codec = opened()
    sends = [
        each
        for sequence in (1, 2, 3)
        for each in codec.receive(frame(message(sequence=sequence, content=b"\0\0\0\1a")))
        if isinstance(each, Send)
    ]
    messages: list[Message] = [each.message for each in sends]
    assert len({id(each.envelope) for each in messages}) == 3
