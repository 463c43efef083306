"""A connection that opens and closes for days holds no more than one that has just begun, and leaves nothing."""

from __future__ import annotations

import gc
import weakref
from itertools import count

import pytest
from conversation import ID, PRODUCER, QUEUE, frames, message, opened, said

from amq.protocols.commands import Invalid, Nothing, OpenSession, Settle, Subscribe
from amq.protocols.openwire import codec as module
from amq.protocols.openwire import table
from amq.protocols.openwire.codec import OpenWireCodec
from amq.protocols.openwire.messages import read_message
from amq.protocols.openwire.table import Structure, encode, frame, structure

ROUNDS = 300


def sized(server: OpenWireCodec) -> dict[str, int]:
    """Its tables, with how much is in each."""
    found = {name: len(value) for name, value in vars(server).items() if isinstance(value, dict | list | bytes)}
    inner = vars(server._transactions)
    return found | {f"transactions.{name}": len(value) for name, value in inner.items() if isinstance(value, dict)}


def ids(number: int) -> tuple[Structure, Structure, Structure]:
    """Of a session, and of a producer and a consumer in it."""
    session = {"connection": ID.get("value"), "session": number}
    return (
        structure(table.SESSION_ID, connection=ID.get("value"), value=number),
        structure(table.PRODUCER_ID, **session, value=1),
        structure(table.CONSUMER_ID, **session, value=1),
    )


def live(server: OpenWireCodec, number: int, seqs: count[int]) -> None:
    """A session with all that it may have, from its beginning to its end."""
    session, producer, consumer = ids(number)
    transaction = structure(table.LOCAL_TRANSACTION_ID, connection=ID, value=number)
    temporary = structure(table.TEMP_QUEUE, name=f"{ID.get('value')}:{number}")
    sent = message(sequence=number, content=None)
    fields = sent.fields | {"producer": producer, "transaction": transaction}
    commands = server.receive(
        said(table.SESSION_INFO, id=session)
        + said(table.PRODUCER_INFO, id=producer, destination=QUEUE)
        + said(table.CONSUMER_INFO, id=consumer, destination=QUEUE, prefetch=10)
        + said(table.DESTINATION_INFO, destination=temporary, kind=0)
        + said(table.TRANSACTION_INFO, connection=ID, transaction=transaction, kind=0)
        + frame(structure(table.TEXT_MESSAGE, **fields))
    )
    [opening] = [each for each in commands if isinstance(each, OpenSession)]
    [subscribing] = [each for each in commands if isinstance(each, Subscribe)]
    wire = server.subscription(subscribing, opening.session)
    stored = module.message_of(read_message(encode(sent), 12), "queue://orders", "")
    stored.seq = next(seqs)
    [dispatch] = frames(server.delivery(wire, stored, 0))
    id = dispatch.get("message").get("id")
    ack = server.receive(
        said(
            table.MESSAGE_ACK,
            consumer=consumer,
            destination=QUEUE,
            kind=2,
            count=1,
            first=id,
            last=id,
            transaction=transaction,
        )
    )
    ended = server.receive(
        said(table.TRANSACTION_INFO, connection=ID, transaction=transaction, kind=2)
        + said(table.DESTINATION_INFO, destination=temporary, kind=1)
        + said(table.REMOVE_INFO, id=consumer)
        + said(table.REMOVE_INFO, id=producer)
        + said(table.REMOVE_INFO, id=session)
    )
    assert any(isinstance(each, Settle) for each in ack + ended), "the message is acknowledged"
    server.unsaid = b""


def test_what_has_ended_is_forgotten() -> None:
    server, seqs = opened(failover_reconnect=True), count(1)
    live(server, 1000, seqs)
    before = sized(server)
    for number in range(2000, 2000 + ROUNDS):
        live(server, number, seqs)
    assert sized(server) == before


def test_a_server_does_not_refer_to_itself() -> None:
    gc.collect()
    gc.disable()
    try:
        server = opened()
        live(server, 1000, count(1))
        gone = weakref.ref(server)
        del server
        assert gone() is None
    finally:
        gc.enable()


def test_a_producer_may_be_told_again_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRODUCERS_MAX", 1)
    server = opened()
    *_, done = server.receive(said(table.PRODUCER_INFO, 7, True, id=PRODUCER, destination=QUEUE))
    assert isinstance(done, Nothing)
    *_, refused = server.receive(said(table.PRODUCER_INFO, 8, True, id=ids(2)[1], destination=QUEUE))
    assert isinstance(refused, Invalid)
    assert "has 1 producers" in str(refused.error)
