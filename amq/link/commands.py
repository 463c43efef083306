"""Commands on a link: each as one frame, and back.

A receipt is a number of the gateway, 0 = it wants no answer; the client's own token stays there, and so does the token
of a `Subscribe`, in whose place the number of the consumer crosses. The most frequent commands have frames of their
own; all others are a number and a list of values. `Connect` and the steps of a login never cross: a gateway lets its
clients in itself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from amq.core import values
from amq.core.message import GivenIds
from amq.link.forms import (
    ERROR,
    NUMBER,
    NUMBERS,
    SOURCES,
    TEXT,
    TRUTH,
    XID,
    XIDS,
    Form,
    choice,
    many,
    optional,
    pair,
    row,
)
from amq.link.framing import Kind, LinkError, LinkFrame
from amq.link.messages import (
    column_of,
    columns_of,
    head_of,
    message_at,
    messages_at,
    numbers_at,
    packed_headers,
    read_headers,
    run_at,
    run_of,
)
from amq.protocols.commands import (
    Abort,
    AbortBatch,
    AskDecision,
    Begin,
    Browse,
    CloseParcel,
    CloseProducer,
    CloseSession,
    Command,
    Commit,
    CommitBatch,
    Credit,
    Decide,
    DeleteDestination,
    Disconnect,
    EndPart,
    Extend,
    Filter,
    Finish,
    Flow,
    ForgetOutcome,
    GoOn,
    Invalid,
    LeaseMessages,
    LeaseReading,
    Leave,
    ListPrepared,
    Locate,
    MakeSure,
    MakeTemporary,
    Malformed,
    Mode,
    Nothing,
    OpenProducer,
    OpenSession,
    Outcome,
    Prepare,
    PreparePart,
    Range,
    RemoveTemporary,
    Send,
    SendMany,
    SendRun,
    SendToMany,
    Settle,
    SettleAgain,
    SettleIfHeld,
    SettleLeases,
    SettleRun,
    SettleSet,
    Subscribe,
    TakeCopies,
    Transfer,
    Unsubscribe,
)

Fields = Mapping[str, Form]
_OUTCOMES: Final = list(Outcome)
_OUTCOME: Final = choice(Outcome)
_PLACE: Final = optional(row(pair, NUMBER, NUMBER))
_READING: Final = row(LeaseReading, NUMBER, TEXT, NUMBER, NUMBER, optional(NUMBER))
_BROWSE: Final = row(Browse, optional(_READING), optional(row(Range, _PLACE, _PLACE)), TRUTH, TRUTH, TRUTH)
_TRANSACTION: Final = {"transaction": TEXT}
_PREPARE: Final = _TRANSACTION | {
    "xid": XID,
    "timeout_ms": optional(NUMBER),
    "owner": TEXT,
    "batch": NUMBER,
    "may_be_read_only": TRUTH,
    "span": TEXT,
    "stores": many(TEXT),
}
_NAME: Final = {"name": TEXT}
_LEASES: Final = {"sources": SOURCES, "cursor": TEXT, "epoch": NUMBER}
# The fields of a command, beside its receipt. Its number is its place here: new ones come last.
_COMMANDS: Final[list[tuple[type[Command], Fields]]] = [
    (OpenSession, {"session": NUMBER}),
    (CloseSession, {"session": NUMBER}),
    (
        Subscribe,
        {
            "id": TEXT,
            "sources": SOURCES,
            "mode": row(Mode, TRUTH, TRUTH, TRUTH, NUMBER, TRUTH),
            "flow": row(Flow, NUMBER, optional(NUMBER), NUMBER),
            "filter": row(Filter, TEXT, TRUTH, TRUTH, optional(row(GivenIds, TEXT, NUMBER, NUMBER))),
            "token": NUMBER,
            "subscription_name": TEXT,
            "browse": optional(_BROWSE),
        },
    ),
    (Credit, {"id": TEXT, "credit": NUMBER, "drain": TRUTH, "wait_ms": NUMBER}),
    (Extend, {"id": TEXT, "change": NUMBER}),
    (Unsubscribe, {"id": TEXT, "subscription_name": TEXT}),
    (
        SettleSet,
        {"seq": NUMBER, "consumer": TEXT, "outcome": _OUTCOME, "first": optional(NUMBER), "reason": TEXT}
        | {"seqs": NUMBERS}
        | _TRANSACTION,
    ),
    (Begin, _TRANSACTION),
    (Commit, {"outcome_id": TEXT} | _TRANSACTION),
    (Abort, _TRANSACTION),
    (Prepare, _PREPARE),
    (Finish, {"xid": XID, "commit": TRUTH}),
    (
        CommitBatch,
        {"owner": TEXT, "batch": NUMBER, "xids": XIDS, "content": optional(row(pair, NUMBER, NUMBER))},
    ),
    (AbortBatch, {"owner": TEXT, "batch": optional(NUMBER), "xids": optional(XIDS)}),
    (ForgetOutcome, {"xid": XID}),
    (ListPrepared, {}),
    (MakeTemporary, _NAME),
    (RemoveTemporary, _NAME),
    (OpenProducer, {"id": TEXT, "destination": TEXT}),
    (CloseProducer, {"id": TEXT}),
    (DeleteDestination, _NAME),
    (Nothing, {}),
    (
        LeaseMessages,
        {"after": NUMBER, "messages": NUMBER, "size": NUMBER, "timeout_ms": NUMBER, "take": TRUTH, "places": TRUTH}
        | {"skip": NUMBER, "reads": row(pair, NUMBER, NUMBER)}
        | _LEASES,
    ),
    (SettleLeases, {"through": NUMBER, "commit": TRUTH} | _LEASES),
    (Disconnect, {}),
    (Malformed, {"error": ERROR}),
    (Invalid, {"error": ERROR} | _TRANSACTION),
    (Locate, {"sources": SOURCES}),
    (MakeSure, {}),
    (CloseParcel, {"channel": TEXT, "number": NUMBER}),
    (GoOn, {}),
    (PreparePart, _PREPARE),
    (Decide, {"outcome_id": TEXT, "xid": XID, "stores": many(TEXT)} | _TRANSACTION),
    (AskDecision, {"xid": XID, "user": TEXT}),
    (EndPart, {"xid": XID, "user": TEXT, "commit": TRUTH}),
    (
        TakeCopies,
        {"channel": TEXT, "number": NUMBER, "ranges": many(row(pair, NUMBER, NUMBER)), "queue": TEXT, "extra": TEXT},
    ),
    (Leave, {}),
]
_NUMBERS: Final = {kind: number for number, (kind, _) in enumerate(_COMMANDS)}
# Of a receipt: an error does not end the connection, whatever the client's protocol survives. A gateway asks each home
# about a thing that one of them knows.
SURVIVED: Final = 1 << 62
_HEAD: Final = struct.Struct("<IQB")  # connection, receipt, number of the command
_SEND: Final = struct.Struct("<IQI")  # connection, receipt, bytes of the name of the transaction
_RUN: Final = struct.Struct("<IQ")  # connection, receipt of the first, or 0 = none has one
_MANY: Final = struct.Struct("<III")  # connection, bytes of the name of the transaction, of the headers
_TRANSFER: Final = struct.Struct("<IQQII")  # connection, receipt, number, bytes of the names and extra, messages
_SETTLE: Final = struct.Struct("<IQQQBII")  # connection, receipt, seq, first, what, bytes of consumer, of transaction
_IF_HELD, _RANGE, _AGAIN = 0x20, 0x40, 0x80  # beside the outcome
_SETTLEMENTS: Final[dict[type[Command], int]] = {Settle: 0, SettleIfHeld: _IF_HELD, SettleAgain: _AGAIN}
_ACKS: Final = struct.Struct("<II")  # connection, bytes of the name of the consumer
_UNREADABLE = (ValueError, struct.error, RecursionError, OverflowError)
UNWRITABLE: Final = (ValueError, struct.error, OverflowError)


class Outgoing(NamedTuple):
    """A command as a frame will have it: `data` begins with the number of its connection."""

    kind: int
    data: bytes
    body: bytes = b""


def written(number: int, command: Command, receipt: int, token: int = 0) -> Outgoing:
    """`command` of connection `number`. `receipt` = the number that its answer has, for a run that of its first
    message; `token` = the number of the consumer that it begins. Raises `UNWRITABLE`."""
    kind = command.__class__
    if kind is Send:
        assert isinstance(command, Send)
        name = _text(command.transaction)
        lead = _SEND.pack(number, receipt, len(name))
        return Outgoing(Kind.SEND, lead + name + head_of(command.message), command.message.body)
    if kind in _SETTLEMENTS:
        assert isinstance(command, Settle)
        return Outgoing(Kind.SETTLE, _settle(number, command, receipt))
    if kind is SendRun:
        assert isinstance(command, SendRun)
        head, bodies = run_of(command.like, command.bodies, command.natives)
        return Outgoing(Kind.SEND_RUN, _RUN.pack(number, receipt) + head, bodies)
    if kind is SettleRun:
        assert isinstance(command, SettleRun)
        name = _text(command.consumer)
        seqs = column_of("Q", command.seqs)
        return Outgoing(Kind.SETTLE_RUN, b"".join((_ACKS.pack(number, len(name)), name, seqs)))
    if kind is SendMany:
        assert isinstance(command, SendMany)
        name, headers = _text(command.transaction), packed_headers(command.headers)
        head, bodies = run_of(command.like, command.bodies, command.natives)
        lead = _MANY.pack(number, len(name), len(headers))
        return Outgoing(Kind.SEND_MANY, b"".join((lead, name, headers, head)), bodies)
    if kind is SendToMany:
        assert isinstance(command, SendToMany)
        name = values.encode([command.transaction, *command.destinations])
        lead = _SEND.pack(number, receipt, len(name))
        return Outgoing(Kind.SEND_TO_MANY, lead + name + head_of(command.message), command.message.body)
    if kind is Transfer:
        assert isinstance(command, Transfer)
        return _transfer(number, command, receipt)
    index = _NUMBERS[kind]
    fields = _COMMANDS[index][1]
    found = [form.put(token if name == "token" else getattr(command, name)) for name, form in fields.items()]
    return Outgoing(Kind.COMMAND, _HEAD.pack(number, receipt, index) + values.encode(found))


def _transfer(number: int, command: Transfer, receipt: int) -> Outgoing:
    messages = command.messages
    names = values.encode([command.channel, command.queue, command.extra])
    head, bodies = columns_of(messages) if messages else (b"", b"")
    lead = _TRANSFER.pack(number, receipt, command.number, len(names), len(messages))
    return Outgoing(Kind.TRANSFER, b"".join((lead, names, head)), bodies)


def _settle(number: int, command: Settle, receipt: int) -> bytes:
    what = _OUTCOMES.index(command.outcome)
    if command.first is not None:
        what |= _RANGE
    what |= _SETTLEMENTS[command.__class__]
    consumer, transaction = _text(command.consumer), _text(command.transaction)
    lead = _SETTLE.pack(number, receipt, command.seq, command.first or 0, what, len(consumer), len(transaction))
    return b"".join((lead, consumer, transaction, _text(command.reason)))


def read(frame: LinkFrame) -> Command:
    """The command of a frame. Its receipt is a number, or None where it has none; of a run the receipts are. Raises
    LinkError."""
    kind, data, body = frame
    try:
        reader = _READERS.get(kind)
        if reader is None:
            raise ValueError(f"frames of kind {kind} are unknown")
        return reader(data, body)
    except _UNREADABLE as error:
        raise LinkError(f"a command cannot be read: {error}") from error


def _read_send(data: bytes, body: bytes) -> Command:
    _, receipt, size = _SEND.unpack_from(data)
    at = _SEND.size + size
    name = _name(data, _SEND.size, at) if size else ""
    return Send(message_at(data, at, body), receipt or None, name)


def _read_send_to_many(data: bytes, body: bytes) -> Command:
    _, receipt, size = _SEND.unpack_from(data)
    at = _SEND.size + size
    transaction, *destinations = map(TEXT.take, _listed(data[_SEND.size : at]))
    return SendToMany(message_at(data, at, body), tuple(destinations), receipt or None, transaction)


def _read_run(data: bytes, body: bytes) -> Command:
    _, first = _RUN.unpack_from(data)
    like, bodies, natives = run_at(data, _RUN.size, body)
    receipts: list[object] | None = [*range(first, first + len(bodies))] if first else None
    return SendRun(like, bodies, receipts, natives)


def _read_many(data: bytes, body: bytes) -> Command:
    _, size, headers_bytes = _MANY.unpack_from(data)
    at = _MANY.size + size
    name, stop = _name(data, _MANY.size, at), at + headers_bytes
    like, bodies, natives = run_at(data, stop, body)
    return SendMany(like, bodies, name, read_headers(data[at:stop], len(bodies)), natives)


def _read_transfer(data: bytes, body: bytes) -> Command:
    _, receipt, number, size, count = _TRANSFER.unpack_from(data)
    at = _TRANSFER.size + size
    channel, queue, extra = map(TEXT.take, _listed(data[_TRANSFER.size : at]))
    messages = [*messages_at(data, at, body)] if count else []
    if len(messages) != count:
        raise ValueError("a parcel is cut off")
    return Transfer(channel, number, messages, queue, extra, receipt or None)


def _read_settle(data: bytes, body: bytes) -> Command:
    _, receipt, seq, first, what, consumer_bytes, transaction_bytes = _SETTLE.unpack_from(data)
    at = _SETTLE.size + consumer_bytes
    stop = at + transaction_bytes
    number = what & ~(_RANGE | _AGAIN | _IF_HELD)
    if number >= len(_OUTCOMES) or stop > len(data) or body:
        raise ValueError("an acknowledgement is cut off, or has an unknown outcome")
    consumer = str(data[_SETTLE.size : at], "utf-8", "surrogatepass") if consumer_bytes else ""
    transaction = str(data[at:stop], "utf-8", "surrogatepass") if transaction_bytes else ""
    reason = str(data[stop:], "utf-8", "surrogatepass") if stop < len(data) else ""
    kind = SettleAgain if what & _AGAIN else SettleIfHeld if what & _IF_HELD else Settle
    outcome, begin = _OUTCOMES[number], first if what & _RANGE else None
    return kind(seq, consumer, receipt or None, transaction, outcome, begin, reason)


def _read_settle_run(data: bytes, body: bytes) -> Command:
    _, size = _ACKS.unpack_from(data)
    at = _ACKS.size + size
    if body:
        raise ValueError("an acknowledgement has no body")
    return SettleRun(numbers_at(data, at), _name(data, _ACKS.size, at))


def _read_other(data: bytes, body: bytes) -> Command:
    _, receipt, index = _HEAD.unpack_from(data)
    if index >= len(_COMMANDS) or body:
        raise ValueError(f"there is no command {index}")
    kind, fields = _COMMANDS[index]
    found = _listed(data[_HEAD.size :])
    if len(found) != len(fields):
        raise ValueError(f"{kind.__name__} has {len(fields)} fields")
    command: Any = kind.__new__(kind)
    command.receipt = receipt or None
    for (name, form), value in zip(fields.items(), found, strict=True):
        setattr(command, name, form.take(value))
    return command  # type: ignore[no-any-return]


def _listed(data: bytes) -> list[values.Nested]:
    found = values.decode(data)
    if not isinstance(found, list):
        raise ValueError("a command is a list of values")
    return found


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _name(data: bytes, at: int, stop: int) -> str:
    if stop > len(data):
        raise ValueError("a name is cut off")
    return str(data[at:stop], "utf-8", "surrogatepass")


_READERS: Final[dict[int, Callable[[bytes, bytes], Command]]] = {
    Kind.SEND: _read_send,
    Kind.SEND_TO_MANY: _read_send_to_many,
    Kind.SEND_RUN: _read_run,
    Kind.SEND_MANY: _read_many,
    Kind.SETTLE: _read_settle,
    Kind.SETTLE_RUN: _read_settle_run,
    Kind.TRANSFER: _read_transfer,
    Kind.COMMAND: _read_other,
}
COMMANDS: Final = frozenset(_READERS)
