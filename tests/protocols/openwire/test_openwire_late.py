"""Acknowledgements that a client wants confirmed, of messages that this connection does not hold."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from amq.core.errors import StoreFullError, TransactionRolledBackError
from amq.core.message import Message
from amq.protocols.commands import (
    Command,
    Commit,
    Failure,
    Invalid,
    Nothing,
    Outcome,
    Send,
    SettleAgain,
    SettleSet,
    Subscribe,
)
from amq.protocols.openwire import table
from amq.protocols.openwire.codec import OpenWireCodec
from amq.protocols.openwire.consumers import DELIVERED, INDIVIDUAL, POISON, STANDARD
from amq.protocols.openwire.messages import id_text
from amq.protocols.openwire.table import Structure, frame, structure
from tests.protocols.openwire.conversation import (
    CONSUMER,
    ID,
    PRODUCER,
    QUEUE,
    TRANSACTION,
    frames,
    message,
    opened,
    said,
)

OTHER = structure(table.CONSUMER_ID, connection="ID:host-1-1:1", session=1, value=2)


def id_of(seq: int) -> Structure:
    return structure(table.MESSAGE_ID, producer=PRODUCER, producer_sequence=1, broker_sequence=seq)


def acknowledged(
    codec: OpenWireCodec, kind: int, first: int, last: int, responds: bool = True, **more: object
) -> list[Command]:
    fields = {"consumer": CONSUMER, "destination": QUEUE, "kind": kind, "count": 1, **more}
    ids = {"first": id_of(first), "last": id_of(last)}
    return codec.receive(said(table.MESSAGE_ACK, 20, responds, **(fields | ids)))


@pytest.mark.parametrize("kind", [STANDARD, INDIVIDUAL])
def test_the_broker_is_asked_whether_the_message_has_left(kind: int) -> None:
    """Until now the answer was that it is acknowledged, while somebody else had it."""
    (again,) = (each for each in acknowledged(opened(), kind, 7, 7) if each.receipt is not None)
    assert isinstance(again, SettleAgain)
    assert (again.seq, again.consumer) == (7, "ID:host-1-1:1:1:1")


def test_a_message_that_had_an_id_of_ours_is_known_by_its_seq() -> None:
    (again,) = (each for each in acknowledged(opened(), STANDARD, 7 + (5 << 57), 7 + (5 << 57)) if each.receipt)
    assert isinstance(again, SettleAgain)
    assert again.seq == 7


def test_nobody_knows_all_messages_of_a_range() -> None:
    (failed,) = (each for each in acknowledged(opened(), STANDARD, 6, 8, count=3) if each.receipt is not None)
    assert isinstance(failed, Invalid)


def test_a_range_of_which_some_are_held_fails_beside_what_is_done() -> None:
    codec, names = opened_with(7, 8)
    found = acknowledged(codec, STANDARD, 6, names[-1], consumer=OTHER, count=3)
    (settled,) = (each for each in found if isinstance(each, SettleSet))
    assert (settled.seqs, settled.outcome, settled.receipt) == ([7, 8], Outcome.ACCEPTED, None)
    (failed,) = (each for each in found if each.receipt is not None)
    assert isinstance(failed, Invalid)


def test_a_consumer_that_has_ended_holds_nothing() -> None:
    (failed,) = (each for each in acknowledged(opened(), STANDARD, 7, 7, consumer=OTHER) if each.receipt is not None)
    assert isinstance(failed, Invalid)


@pytest.mark.parametrize(("kind", "transaction"), [(DELIVERED, None), (POISON, None), (STANDARD, TRANSACTION)])
def test_words_that_promise_nothing_are_answered(kind: int, transaction: Structure | None) -> None:
    found = acknowledged(opened(), kind, 7, 7, transaction=transaction)
    (nothing,) = (each for each in found if each.receipt is not None)
    assert isinstance(nothing, Nothing)


def opened_with(*seqs: int) -> tuple[OpenWireCodec, list[int]]:
    """A connection with a consumer that was given these messages, and the names that it knows them by."""
    codec = opened()
    (subscribe,) = (
        each
        for each in codec.receive(said(table.CONSUMER_INFO, 9, id=OTHER, destination=QUEUE, prefetch=10))
        if isinstance(each, Subscribe)
    )
    facts = codec.subscription(subscribe, 1)
    for seq in seqs:
        message = Message("queue://orders", b"x")
        message.seq = seq
        codec.delivery(facts, message, 0)
    return codec, list(codec._consumers[table.nested(OTHER)].held)


def outcomes(codec: OpenWireCodec, last: int) -> dict[int, Outcome]:
    """How deliveries end when the consumer says that its program saw those up to `last`."""
    found = codec.receive(said(table.REMOVE_INFO, 30, id=OTHER, last_delivered=last))
    return {seq: each.outcome for each in found if isinstance(each, SettleSet) for seq in each.seqs}


def test_a_consumer_that_ends_has_seen_what_was_dispatched_before_the_last() -> None:
    codec, names = opened_with(8, 9, 3, 10)
    assert outcomes(codec, names[2]) == {
        8: Outcome.RETURNED,
        9: Outcome.RETURNED,
        3: Outcome.RETURNED,
        10: Outcome.RELEASED,
    }


def test_an_older_message_that_came_later_was_not_seen() -> None:
    """Another consumer gave it back. Its program saw a younger one last, and acknowledged it: each consumer that ended
    so counted as a delivery that failed, and the client gave the message up after some."""
    codec, names = opened_with(9, 3)
    acknowledged(codec, STANDARD, names[0], names[0], consumer=OTHER)
    assert outcomes(codec, names[0]) == {3: Outcome.RELEASED}


def own_ids(last: int, acknowledges: Sequence[int] = (), is_usual: bool = True, *, failover: bool = True) -> list[bool]:
    """Which of the messages 6 to 9 have other ids when they come again, after a consumer that had 7, 8 and 9 ended."""
    codec = opened(fault_tolerant=failover)
    (send,) = (each for each in codec.receive(frame(message(), 12)) if isinstance(each, Send))
    (consumer,) = codec._consumers.values()
    for seq in (7, 8, 9):
        send.message.seq = seq
        codec.delivery(consumer, send.message, 0)
    for seq in acknowledges:
        acknowledged(codec, INDIVIDUAL, seq, seq, responds=not is_usual)
    codec.receive(said(table.REMOVE_INFO, 30, id=CONSUMER, last_delivered=last))
    codec.receive(said(table.CONSUMER_INFO, 31, id=CONSUMER, destination=QUEUE, prefetch=1000))
    (consumer,) = codec._consumers.values()
    found = []
    for seq in (6, 7, 8, 9):
        send.message.seq = seq
        (dispatch,) = frames(codec.delivery(consumer, send.message, 1))
        id = dispatch.fields["message"].fields["id"]
        assert id_text(id) == "ID:host-1-1:1:1:1:1", "the program sees no difference"
        found.append(id.fields["producer"] != PRODUCER)
    return found


def test_what_a_program_saw_and_left_comes_with_another_id() -> None:
    """The client remembers the ids of a consumer that acknowledges one by one, and gave the messages up."""
    assert own_ids(8) == [True, True, True, False]


def test_a_client_without_a_failover_url_sees_the_same_id() -> None:
    """It does not look for duplicates, and to its program the messages would not be equal."""
    assert own_ids(8, failover=False) == own_ids(8, [8], failover=False) == [False] * 4


def test_a_message_of_another_protocol_comes_again_under_the_same_id() -> None:
    codec, names = opened_with(7)
    consumer = codec._consumers[table.nested(OTHER)]
    sent = Message("queue://orders", b"x")
    sent.seq = 7
    (one,), (two,) = (frames(codec.delivery(consumer, sent, times)) for times in (0, 1))
    assert one.fields["message"].fields["id"] == two.fields["message"].fields["id"]
    assert list(consumer.held) == names


def test_what_was_prefetched_only_comes_as_it_is() -> None:
    assert own_ids(-1) == [False] * 4


@pytest.mark.parametrize("is_usual", [True, False])
def test_one_that_acknowledges_one_by_one_may_have_seen_any(is_usual: bool) -> None:
    assert own_ids(8, [8], is_usual) == [True] * 4


def committed(codec: OpenWireCodec) -> list[Command]:
    return codec.receive(said(table.TRANSACTION_INFO, 30, True, connection=ID, transaction=TRANSACTION, kind=2))


def begun(codec: OpenWireCodec) -> None:
    codec.receive(said(table.TRANSACTION_INFO, 10, connection=ID, transaction=TRANSACTION, kind=0))


def test_what_a_failed_transaction_acknowledged_is_held_as_before() -> None:
    """The client delivers it again by itself, and acknowledges it in the next transaction."""
    codec, names = opened_with(7, 8, 9)
    for _ in range(2):
        begun(codec)
        acknowledged(codec, STANDARD, names[0], names[1], consumer=OTHER, transaction=TRANSACTION, count=2)
        found = committed(codec)
        assert [each.seqs for each in found if isinstance(each, SettleSet)] == [[7, 8]]
        (commit,) = (each for each in found if isinstance(each, Commit))
        codec.error(Failure(StoreFullError("the disk is full"), receipt=commit.receipt))
    assert list(codec._consumers[table.nested(OTHER)].held) == names


def test_what_a_transaction_acknowledged_is_gone_when_it_is_committed() -> None:
    codec, names = opened_with(7, 8, 9)
    begun(codec)
    acknowledged(codec, STANDARD, names[0], names[1], consumer=OTHER, transaction=TRANSACTION, count=2)
    (commit,) = (each for each in committed(codec) if isinstance(each, Commit))
    codec.receipt(commit.receipt)
    assert list(codec._consumers[table.nested(OTHER)].held) == names[2:]


ALREADY = TransactionRolledBackError("it took place before", code="ALREADY_COMMITTED")


def test_a_transaction_that_is_repeated_is_committed_where_the_first_one_was() -> None:
    """The client learned that it was rolled back, and would have done its work again."""
    codec = opened()
    begun(codec)
    codec.receive(frame(message(transaction=TRANSACTION), 12))
    (commit,) = (each for each in committed(codec) if isinstance(each, Commit))
    (answer,) = frames(codec.error(Failure(ALREADY, receipt=commit.receipt)))
    assert (answer.type, answer.get("correlation_id")) == (table.RESPONSE, 30)


def test_another_transaction_of_a_name_that_is_taken_is_rolled_back() -> None:
    """What it acknowledges is there still: it is not a repetition."""
    codec, names = opened_with(7)
    begun(codec)
    acknowledged(codec, STANDARD, names[0], names[0], consumer=OTHER, transaction=TRANSACTION)
    (commit,) = (each for each in committed(codec) if isinstance(each, Commit))
    (answer,) = frames(codec.error(Failure(ALREADY, receipt=commit.receipt)))
    assert answer.type == table.EXCEPTION_RESPONSE
    assert list(codec._consumers[table.nested(OTHER)].held) == names


def test_a_transaction_that_acknowledges_more_than_is_held_is_rolled_back() -> None:
    """Some of the range came on an earlier connection, or twice."""
    codec, names = opened_with(7, 8)
    begun(codec)
    acknowledged(codec, STANDARD, names[0], names[1], consumer=OTHER, transaction=TRANSACTION, count=3)
    (failed,) = (each for each in committed(codec) if each.receipt is not None)
    assert isinstance(failed, Invalid)
    assert isinstance(failed.error, TransactionRolledBackError)
