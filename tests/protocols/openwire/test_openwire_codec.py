"""OpenWireCodec: what clients send becomes commands, each is answered once, and no bytes get the better of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conversation import (
    CONSUMER,
    ID,
    PRODUCER,
    QUEUE,
    SESSION,
    TRANSACTION,
    frames,
    greeting,
    login,
    message,
    opened,
    said,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from amq.config.schema import BrokerConfig
from amq.core.errors import CommandError, SelectorError, TransactionRolledBackError
from amq.core.message import TEXT, Message
from amq.node.catalogue import PROTOCOLS, Surroundings
from amq.protocols.commands import (
    Begin,
    Command,
    Commit,
    Connect,
    Credit,
    Disconnect,
    Failure,
    Invalid,
    Malformed,
    Nothing,
    OpenSession,
    Scope,
    Send,
    Settle,
    SettleSet,
    Subscribe,
)
from amq.protocols.openwire import table
from amq.protocols.openwire.answers import Answer
from amq.protocols.openwire.codec import STRANGER_BYTES_MAX, OpenWireCodec
from amq.protocols.openwire.primitives import encode_map
from amq.protocols.openwire.table import Structure, frame, structure
from amq.protocols.openwire.wire import INT
from tests.sampling import examples

KEEP_ALIVE = said(table.KEEP_ALIVE_INFO, 9, True)
NO_FRAME = INT.pack(-1)


def receipts(commands: list[Command]) -> list[int]:
    """The numbers of the commands that get an answer, in the order of their answers."""
    found = [getattr(command, "receipt", None) for command in commands]
    found += [each.receipt for each in commands if isinstance(each, Connect) and not hasattr(each, "receipt")]
    return [each.command_id for each in found if isinstance(each, Answer) and each.responds]


def only(commands: list[Command], kind: type) -> Any:
    (found,) = [each for each in commands if isinstance(each, kind)]
    return found


SYNCHRONOUS = {
    "session": said(table.SESSION_INFO, 7, True, id=structure(table.SESSION_ID, connection="x", value=9)),
    "session again": said(table.SESSION_INFO, 7, True, id=SESSION),
    "producer again": said(table.PRODUCER_INFO, 7, True, id=PRODUCER),
    "consumer again": said(table.CONSUMER_INFO, 7, True, id=CONSUMER, destination=QUEUE),
    "consumer": said(table.CONSUMER_INFO, 7, True, id=structure(table.CONSUMER_ID, value=2), destination=QUEUE),
    "login again": said(table.CONNECTION_INFO, 7, True, id=ID),
    "begin": said(table.TRANSACTION_INFO, 7, True, transaction=TRANSACTION, kind=0),
    "commit of nothing": said(table.TRANSACTION_INFO, 7, True, transaction=TRANSACTION, kind=2),
    "rollback of nothing": said(table.TRANSACTION_INFO, 7, True, transaction=TRANSACTION, kind=4),
    "recover": said(table.TRANSACTION_INFO, 7, True, kind=5),
    "temporary queue": said(table.DESTINATION_INFO, 7, True, destination=structure(table.TEMP_QUEUE, name="ID:1:1")),
    "queue": said(table.DESTINATION_INFO, 7, True, destination=QUEUE),
    "deletion of a queue": said(table.DESTINATION_INFO, 7, True, destination=QUEUE, kind=1),
    "unsubscribe": said(table.REMOVE_SUBSCRIPTION_INFO, 7, True, name="s", client_id="c"),
    "unsubscribe nothing": said(table.REMOVE_SUBSCRIPTION_INFO, 7, True),
    "end of the consumer": said(table.REMOVE_INFO, 7, True, id=CONSUMER),
    "end of the producer": said(table.REMOVE_INFO, 7, True, id=PRODUCER),
    "end of the session": said(table.REMOVE_INFO, 7, True, id=SESSION),
    "end of the connection": said(table.REMOVE_INFO, 7, True, id=ID),
    "end of nothing": said(table.REMOVE_INFO, 7, True, id=structure(table.SESSION_ID, value=99)),
    "control": said(table.CONTROL_COMMAND, 7, True),
    "flush": said(table.FLUSH_COMMAND, 7, True),
    "consumer control": said(table.CONSUMER_CONTROL, 7, True, consumer=CONSUMER, prefetch=5),
    "connection control": said(table.CONNECTION_CONTROL, 7, True),
    "pull of nothing": said(table.MESSAGE_PULL, 7, True, consumer=structure(table.CONSUMER_ID, value=99)),
    "message": frame(structure(table.TEXT_MESSAGE, **message().fields | {"command_id": 7, "response_required": True})),
    "late acknowledgement": said(
        table.MESSAGE_ACK, 7, True, consumer=CONSUMER, destination=QUEUE, kind=2, last=message().get("id"), count=1
    ),
}


@pytest.mark.parametrize("version", [6, 9, 10, 12])
@pytest.mark.parametrize("what", SYNCHRONOUS)
def test_a_client_that_waits_gets_one_answer(what: str, version: int) -> None:
    data = SYNCHRONOUS[what]
    codec = opened(version)
    commands = codec.receive(frame(table.decode(data[4:]), version))
    assert receipts(commands) == [7], commands
    assert not isinstance(commands[-1], Malformed)


@pytest.mark.parametrize("what", SYNCHRONOUS)
def test_one_that_does_not_wait_gets_none(what: str) -> None:
    found = table.decode(SYNCHRONOUS[what][4:])
    commands = opened().receive(frame(Structure(found.type, found.fields | {"response_required": False})))
    assert receipts(commands) == []


def test_the_order_of_a_stock_client() -> None:
    codec = OpenWireCodec()
    assert codec.receive(greeting()) == []
    (info,) = frames(codec.unsaid)
    assert info.type == table.BROKER_INFO
    connect = only(codec.receive(login()), Connect)
    assert connect.client_id == "c"
    (response,) = frames(codec.connected("1"))
    assert (response.type, response.get("correlation_id")) == (table.RESPONSE, 1)
    assert isinstance(codec.receive(said(table.SHUTDOWN_INFO))[-1], Disconnect)
    assert codec.receive(login()) == []


@pytest.mark.parametrize("type", sorted(table.FIELDS))
def test_nothing_is_done_for_strangers(type: int) -> None:
    """Before ConnectionInfo a client is told nothing, and nothing is done for it."""
    codec = OpenWireCodec()
    codec.receive(greeting())
    commands = codec.receive(said(type, 7, True) if table.FIELDS[type][0][0] == "command_id" else said_plain(type))
    assert not [each for each in commands if not isinstance(each, Malformed)], commands


def said_plain(type: int) -> bytes:
    return frame(structure(type))


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\1\0",
        greeting(5),
        INT.pack(4097),
        b"CONNECT\n\n\0",
        INT.pack(13) + b"\1ActiveMR" + bytes(4),
        greeting()[:-1] + b"\xff",
        NO_FRAME,
    ],
)
def test_first_words_that_are_none(data: bytes) -> None:
    commands = OpenWireCodec().receive(data + bytes(20))
    assert isinstance(only(commands, Malformed), Malformed)


def test_a_large_frame_before_the_login_is_refused() -> None:
    codec = OpenWireCodec()
    codec.receive(greeting())
    assert isinstance(codec.receive(INT.pack(STRANGER_BYTES_MAX + 1))[-1], Malformed)
    assert not codec.pending


def test_a_breach_is_not_told_as_the_failure_of_what_went_before() -> None:
    """The message before was accepted: an exception with its number would tell its program that it was not."""
    codec = opened()
    send = frame(structure(table.TEXT_MESSAGE, **message().fields | {"command_id": 7, "response_required": True}))
    commands = codec.receive(send + NO_FRAME)
    assert receipts([only(commands, Send)]) == [7]
    assert only(commands, Malformed).receipt is None


def test_a_command_that_is_none_is_answered_by_its_number() -> None:
    """The connection goes on: a client with a failover URL would send it again on the next one, without an end."""
    command = said(table.SESSION_INFO, 7, True)
    invalid, nothing = opened().receive(command + SYNCHRONOUS["control"])
    assert isinstance(invalid, Invalid)
    assert invalid.receipt.command_id == 7
    assert isinstance(nothing, Nothing)


def test_nothing_comes_after_the_end() -> None:
    for last in (said(table.SESSION_INFO), NO_FRAME, said(table.SHUTDOWN_INFO), INT.pack(1) + b"\xff"):
        codec = opened()
        commands = codec.receive(last + SYNCHRONOUS["message"] * 3)
        assert isinstance(commands[-1], Malformed | Disconnect)
        assert not [each for each in commands if isinstance(each, Send)]
        assert codec.receive(SYNCHRONOUS["message"]) == []
        assert not codec.pending


NO_NAMES = ["\ud800", "a\ud800\ue000", "\udfff\uffff", "a\nb", "\0", "", "x,,y", "?a=b", "x" * 9000]


@pytest.mark.parametrize("name", NO_NAMES, ids=range(len(NO_NAMES)))
@pytest.mark.parametrize("type", table.DESTINATION_TYPES)
def test_names_that_are_none(name: str, type: int) -> None:
    found = structure(type, name=name)
    fields = message(destination=found).fields | {"command_id": 7, "response_required": True}
    invalid = only(opened().receive(frame(structure(table.TEXT_MESSAGE, **fields))), Invalid)
    assert invalid.error.code == "DESTINATION_INVALID"
    assert invalid.receipt.command_id == 7
    consumer = structure(table.CONSUMER_ID, value=2)
    invalid = only(opened().receive(said(table.CONSUMER_INFO, 7, True, id=consumer, destination=found)), Invalid)
    assert invalid.error.code == "DESTINATION_INVALID"


HALF, LONG = "half \ud800 of one", "x" * 65_000


@pytest.mark.parametrize("text", [HALF, LONG], ids=["half", "long"])
def test_ids_that_cannot_be_stored_are_refused(text: str) -> None:
    """The journal has no place for them: what reaches the broker can be written."""
    connection = structure(table.CONNECTION_ID, value=text)
    codec = OpenWireCodec()
    codec.receive(greeting())
    assert isinstance(codec.receive(login(id=connection))[-1], Malformed)
    id = structure(table.MESSAGE_ID, text=text, producer=PRODUCER, producer_sequence=1)
    commands = opened(fault_tolerant=True).receive(frame(message(id=id)))
    assert not [each for each in commands if isinstance(each, Send)]
    other = structure(table.PRODUCER_ID, connection=text)
    id = structure(table.MESSAGE_ID, producer=other, producer_sequence=1)
    commands = opened(fault_tolerant=True).receive(frame(message(id=id, producer=other)))
    assert not [each for each in commands if isinstance(each, Send)]
    transaction = structure(table.LOCAL_TRANSACTION_ID, connection=connection)
    commands = opened().receive(said(table.TRANSACTION_INFO, 7, True, transaction=transaction, kind=2))
    assert isinstance(commands[-1], Invalid | Malformed)
    assert commands[-1].receipt.command_id == 7
    for name in ("client_id", "user_name"):
        codec = OpenWireCodec()
        codec.receive(greeting())
        assert isinstance(codec.receive(login(**{name: text}))[-1], Malformed)
    id = structure(table.CONSUMER_ID, value=2)
    command = said(table.CONSUMER_INFO, 7, True, id=id, destination=QUEUE, subscription_name=text)
    assert only(opened().receive(command), Invalid).receipt.command_id == 7


MIB = 1 << 20
UNUSABLE = {
    "too large": {"content": bytes(3 * MIB)},
    "properties too large": {"properties": encode_map({"a": bytes(9 * MIB)})},
    "an id that is too long": {"id": structure(table.MESSAGE_ID, text="x" * 9000, producer=PRODUCER)},
}


def limited(what: str, **fields: Any) -> OpenWireCodec:
    """A connection of a client that sends again what it has no answer for; frames may have 2 MiB, or what is not too
    large for them."""
    codec = OpenWireCodec(MIB if what == "too large" else 100 * MIB)
    codec.receive(greeting() + login(fault_tolerant=True))
    codec.connected("1")
    codec.receive(said(table.SESSION_INFO, 2, id=SESSION) + said(table.PRODUCER_INFO, 3, id=PRODUCER, **fields))
    return codec


@pytest.mark.parametrize("what", UNUSABLE)
@pytest.mark.parametrize("piece", [1 << 30, 65_536], ids=["whole", "in pieces"])
def test_a_message_that_cannot_be_taken_fails_alone(what: str, piece: int) -> None:
    codec = limited(what)
    fields = message(**UNUSABLE[what]).fields | {"command_id": 7, "response_required": True}
    stream = frame(structure(table.BYTES_MESSAGE, **fields)) + SYNCHRONOUS["message"]
    commands = [each for at in range(0, len(stream), piece) for each in codec.receive(stream[at : at + piece])]
    invalid = only(commands, Invalid)
    assert invalid.receipt.command_id == 7
    (answer,) = frames(codec.error(Failure(invalid.error, Scope.COMMAND, invalid.receipt)))
    assert (answer.type, answer.get("correlation_id")) == (table.EXCEPTION_RESPONSE, 7)
    assert receipts([only(commands, Send)]) == [7]
    assert not codec.pending


@pytest.mark.parametrize("what", UNUSABLE)
def test_a_transaction_with_a_message_that_cannot_be_taken_fails(what: str) -> None:
    """Its sends have no answers: a client with a failover URL sends the whole transaction again."""
    codec = limited(what)
    begin = said(table.TRANSACTION_INFO, 5, transaction=TRANSACTION, kind=0)
    commands = codec.receive(begin + frame(message(transaction=TRANSACTION, **UNUSABLE[what])))
    begun, invalid = only(commands, Begin), only(commands, Invalid)
    assert invalid.transaction == begun.transaction


@pytest.mark.parametrize("what", UNUSABLE)
def test_a_producer_with_a_window_gets_its_room_back(what: str) -> None:
    codec = limited(what, window=5 * MIB)
    sent = message(**UNUSABLE[what])
    invalid = only(codec.receive(frame(sent)), Invalid)
    acknowledged, told = frames(codec.error(Failure(invalid.error, Scope.COMMAND, invalid.receipt)))
    assert acknowledged.type == table.PRODUCER_ACK
    assert acknowledged.get("size") >= 1024 + len(sent.get("content") or b"") + len(sent.get("properties") or b"")
    assert told.type == table.CONNECTION_ERROR


def test_a_one_way_command_that_is_none_ends_the_connection() -> None:
    """Nothing else would tell the client that the broker does not know of it."""
    assert isinstance(opened().receive(said(table.SESSION_INFO))[-1], Malformed)


def test_a_connection_is_named_by_its_own_kind_of_id() -> None:
    codec = OpenWireCodec()
    codec.receive(greeting())
    assert isinstance(codec.receive(login(id=TRANSACTION))[-1], Malformed)


def refused(codec: OpenWireCodec, token: Answer, error: Exception, consumer: str = "") -> list[Structure]:
    return list(frames(codec.error(Failure(error, Scope.COMMAND, token, 0, consumer))))


def test_a_refused_consumer_is_forgotten() -> None:
    """A program that tries again and again does not use up the consumers of its connection, and no consumer that was
    refused is told later that it is there."""
    codec = opened()
    for _ in range(3):
        command = said(table.CONSUMER_INFO, 7, True, id=structure(table.CONSUMER_ID, value=2), destination=QUEUE)
        subscribe = only(codec.receive(command), Subscribe)
        (answer,) = refused(codec, subscribe.receipt, SelectorError("no selector"), subscribe.id)
        assert answer.get("exception").name == "javax.jms.InvalidSelectorException"
        assert answer.get("correlation_id") == 7


def test_a_refused_session_is_forgotten() -> None:
    codec = opened()
    for _ in range(3):
        command = said(table.SESSION_INFO, 7, True, id=structure(table.SESSION_ID, connection="x", value=9))
        session = only(codec.receive(command), OpenSession)
        refused(codec, session.receipt, CommandError("too many", code="SESSIONS_TOO_MANY"))


def test_errors_of_one_way_commands_are_told_to_the_connection() -> None:
    codec = opened()
    (told,) = frames(codec.error(Failure(CommandError("no", code="X"))))
    assert told.type == table.CONNECTION_ERROR
    assert told.get("exception").message


CONVERSATION = [
    greeting(MaxInactivityDuration=30_000),
    login(fault_tolerant=True),
    said(table.SESSION_INFO, 2, id=SESSION),
    said(table.PRODUCER_INFO, 3, True, id=PRODUCER, window=1000),
    *SYNCHRONOUS.values(),
    KEEP_ALIVE,
    frame(message(transaction=TRANSACTION)),
    frame(message(table.MAP_MESSAGE, content=b"\0\0\0\1\0\1a\1\1")),
    said(table.CONSUMER_INFO, 4, True, id=CONSUMER, destination=QUEUE, selector="a = 1", subscription_name="s"),
    said(table.MESSAGE_PULL, 5, consumer=CONSUMER, timeout=-1),
    said(table.SHUTDOWN_INFO),
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A good conversation with some frames in another order, and some bytes of them changed."""
    rest = draw(st.lists(st.sampled_from(CONVERSATION), max_size=12))
    parts = [bytearray(each) for each in CONVERSATION[: draw(st.integers(0, 4))] + rest]
    for _ in range(draw(st.integers(0, 3))):
        if not parts:
            break
        part = draw(st.sampled_from(parts))
        at = draw(st.integers(0, max(0, len(part) - 1)))
        what = draw(st.sampled_from([b"\0", b"\1", b"\xff", b"\x7f\xff\xff\xff", b"\xed\xa0\x80", bytes((111,))]))
        part[at : at + len(what)] = what
    return b"".join(parts)


@settings(max_examples=examples(300))
@given(mutated() | st.binary(max_size=200), st.data())
def test_any_bytes(stream: bytes, data: st.DataObject) -> None:
    whole, cut = OpenWireCodec(), OpenWireCodec()
    expected = whole.receive(stream)
    for command in expected[:-1]:
        assert not isinstance(command, Malformed | Disconnect)
    at = data.draw(st.integers(0, len(stream)))
    found = cut.receive(stream[:at]) + cut.receive(stream[at:])
    kinds = [type(each) for each in expected if type(each).__name__ != "InSession"]
    assert [type(each) for each in found if type(each).__name__ != "InSession"] == kinds
    assert whole.unsaid == cut.unsaid
    for command in expected:
        receipt, error = getattr(command, "receipt", None), getattr(command, "error", None)
        if error is not None:
            list(frames(whole.error(Failure(error, Scope.COMMAND, receipt)), whole._version))
        elif isinstance(command, Nothing):
            list(frames(whole.receipt(receipt), whole._version))


def dispatched(codec: OpenWireCodec, subscribe: Subscribe, seq: int) -> Structure:
    """The id under which the client gets a message of that number."""
    made = Message("queue://orders", b"x", content=TEXT, seq=seq)
    (found,) = frames(codec.delivery(codec.subscription(subscribe, 1), made, 0))
    id = found.fields["message"].fields["id"]
    assert isinstance(id, Structure)
    return id


def consumer_of(codec: OpenWireCodec) -> Subscribe:
    other = structure(table.CONSUMER_ID, connection="ID:host-1-1:1", session=1, value=2)
    found = codec.receive(said(table.CONSUMER_INFO, 9, id=other, destination=QUEUE, prefetch=10))
    subscribe = only(found, Subscribe)
    assert isinstance(subscribe, Subscribe)
    return subscribe


def acknowledged(codec: OpenWireCodec, id: Structure, transaction: Structure | None = None) -> list[Command]:
    consumer = structure(table.CONSUMER_ID, connection="ID:host-1-1:1", session=1, value=2)
    return codec.receive(
        said(
            table.MESSAGE_ACK,
            20,
            destination=QUEUE,
            transaction=transaction,
            consumer=consumer,
            kind=2,
            first=id,
            last=id,
            count=1,
        )
    )


def committed(codec: OpenWireCodec) -> list[Command]:
    return codec.receive(said(table.TRANSACTION_INFO, 30, True, connection=ID, transaction=TRANSACTION, kind=2))


def test_a_transaction_with_a_message_of_this_connection_commits() -> None:
    codec = opened()
    id = dispatched(codec, consumer_of(codec), 7)
    codec.receive(said(table.TRANSACTION_INFO, 10, connection=ID, transaction=TRANSACTION, kind=0))
    acknowledged(codec, id, TRANSACTION)
    found = committed(codec)
    assert only(found, SettleSet).seqs == [7]
    assert [type(each) for each in found if isinstance(each, Begin)] == [Begin, Commit]


def test_a_transaction_with_a_message_of_an_earlier_connection_is_rolled_back() -> None:
    """Its message comes again, and would be processed twice by transactions that were both committed."""
    codec = opened(failover_reconnect=True)
    own = dispatched(codec, consumer_of(codec), 7)
    stale = structure(table.MESSAGE_ID, producer=PRODUCER, producer_sequence=1, broker_sequence=7)
    assert own.fields["broker_sequence"] != 7
    codec.receive(said(table.TRANSACTION_INFO, 10, connection=ID, transaction=TRANSACTION, kind=0))
    acknowledged(codec, stale, TRANSACTION)
    failed = only(committed(codec), Invalid)
    assert isinstance(failed.error, TransactionRolledBackError)
    assert isinstance(failed.receipt, Answer)
    assert failed.receipt.exception(failed.error).name == "javax.jms.TransactionRolledBackException"
    assert not [each for each in acknowledged(codec, stale) if isinstance(each, Settle)], "nor without a transaction"
    assert only(acknowledged(codec, own), Settle).seq == 7


def test_a_pull_that_is_asked_for_again_is_answered_once() -> None:
    """After a takeover a client sends its last pull again, and its program asks for a message as well."""
    codec = opened()
    other = structure(table.CONSUMER_ID, connection="ID:host-1-1:1", session=1, value=2)
    codec.receive(said(table.CONSUMER_INFO, 9, id=other, destination=QUEUE, prefetch=0))
    pulls = [
        only(codec.receive(said(table.MESSAGE_PULL, n, consumer=other, destination=QUEUE, timeout=500)), Credit)
        for n in (10, 11)
    ]
    assert codec.receipt(pulls[0].receipt) == b""
    (nothing,) = frames(codec.receipt(pulls[1].receipt))
    assert nothing.fields["message"] is None


@pytest.mark.parametrize("rebalances", [False, True])
def test_clients_are_told_where_the_group_is_and_whether_to_move(rebalances: bool, tmp_path: Path) -> None:
    config = BrokerConfig(store=str(tmp_path), rebalance_cluster_clients=rebalances)
    [served] = [each for each in PROTOCOLS if each.name == "openwire"]
    codec = served.make(Surroundings(config, "store", 1, "ID:store-"), "1-1.")
    codec.receive(greeting() + login())
    told = list(frames(codec.connected("1", ("auto://a:1", "stomp://a:2", "openwire://b:3"))))
    [control] = [each for each in told if each.type == table.CONNECTION_CONTROL]
    assert control.get("connected_brokers") == "tcp://a:1,tcp://b:3"
    assert control.get("rebalance") is rebalances
