"""The calls of a `Recipient` on a link: each as one frame, and back."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from amq.core import values
from amq.core.message import Message
from amq.journal.reader import RecordRun
from amq.link.forms import ERROR, NUMBER, TEXT, TRUTH, Form, choice, many, row
from amq.link.framing import NUMBER as CONNECTION
from amq.link.framing import NUMBER_BYTES, LinkError, LinkFrame
from amq.link.messages import column_at, column_of, head_of, message_at, messages_at, numbers_at
from amq.protocols.commands import Failure, Scope

_DELIVERY: Final = struct.Struct("<III")  # connection, consumer, deliveries before
_CONSUMER: Final = struct.Struct("<II")  # connection, consumer
_RECORDS: Final = struct.Struct("<IIQIII")  # connection, consumer, seq, bytes of the name, records, redelivered ones
_CONFIRM: Final = struct.Struct("<IQ")  # connection, receipt
_SIZE: Final = struct.Struct("<IQ")  # connection, bytes
_LARGE: Final = struct.Struct("<IBQQ")  # connection, kind, bytes of the head, of the body
_UNREADABLE: Final = (ValueError, struct.error, RecursionError, OverflowError)
_SCOPES: Final = many(choice(Scope))


class ClientOpening(NamedTuple):
    """A connection as its gateway opens it. `owner` = what the names of its temporary destinations begin with;
    `survives` = errors of these scopes leave it open."""

    user: str
    roles: tuple[str, ...]
    id: str
    instance: str
    exclusive: bool
    owner: str
    protocol: str
    peer_name: str
    survives: tuple[Scope, ...]
    since_ms: int = 0


class Home(NamedTuple):
    """The master, as it says when a link begins. `newest_seq` = of the messages that there are."""

    broker: str
    epoch: int
    message_id_prefix: str
    newest_seq: int = 0


OPENING: Final = row(ClientOpening, TEXT, many(TEXT), TEXT, TEXT, TRUTH, TEXT, TEXT, TEXT, _SCOPES, NUMBER)
HOME: Final = row(Home, TEXT, NUMBER, TEXT, NUMBER)
FAILURE: Final = row(Failure, ERROR, choice(Scope), NUMBER, NUMBER, TEXT)


class Records(NamedTuple):
    """`Recipient.deliver_run`."""

    consumer: int
    destination: str
    run: RecordRun
    seq: int
    redelivered: list[tuple[int, int]]


def numbered(number: int) -> bytes:
    """The content of a frame of that connection."""
    return CONNECTION.pack(number)


def stated(number: int, form: Form, value: Any) -> bytes:
    """`value` as values. Raises ValueError."""
    return CONNECTION.pack(number) + values.encode(form.put(value))


def statement(frame: LinkFrame, form: Form) -> Any:
    """The value that `stated` was given. Raises LinkError."""
    try:
        return form.take(values.decode(frame.data[NUMBER_BYTES:]))
    except _UNREADABLE as error:
        raise LinkError(f"a frame cannot be read: {error}") from error


def delivery(number: int, consumer: int, message: Message, redelivered: int) -> bytes:
    """All of `Recipient.deliver` but the body. Raises ValueError, struct.error."""
    return _DELIVERY.pack(number, consumer, redelivered) + head_of(message)


def read_delivery(frame: LinkFrame) -> tuple[int, Message, int]:
    """Consumer, message, deliveries before. Raises LinkError."""
    try:
        _, consumer, redelivered = _DELIVERY.unpack_from(frame.data)
        return consumer, message_at(frame.data, _DELIVERY.size, frame.body), redelivered
    except _UNREADABLE as error:
        raise LinkError(f"a delivery cannot be read: {error}") from error


def of_consumer(number: int, consumer: int, rest: bytes = b"") -> bytes:
    """`rest` for that consumer: columns of messages, or nothing."""
    return _CONSUMER.pack(number, consumer) + rest


def read_deliveries(frame: LinkFrame) -> tuple[int, Sequence[Message]]:
    """Consumer and messages. Raises LinkError."""
    try:
        _, consumer = _CONSUMER.unpack_from(frame.data)
        return consumer, messages_at(frame.data, _CONSUMER.size, frame.body)
    except _UNREADABLE as error:
        raise LinkError(f"deliveries cannot be read: {error}") from error


def read_consumer(frame: LinkFrame) -> int:
    """Raises LinkError."""
    if len(frame.data) != _CONSUMER.size:
        raise LinkError("the number of a consumer is cut off")
    return int(_CONSUMER.unpack(frame.data)[1])


def records(
    number: int, consumer: int, destination: str, run: RecordRun, seq: int, redelivered: Sequence[tuple[int, int]]
) -> bytes:
    """All of `Recipient.deliver_run` but its data. Raises ValueError, struct.error."""
    name = destination.encode("utf-8", "surrogatepass")
    lead = _RECORDS.pack(number, consumer, seq, len(name), len(run.sizes), len(redelivered))
    again = column_of("I", [each for pair in redelivered for each in pair])
    return b"".join((lead, name, column_of("I", run.sizes), again))


def read_records(frame: LinkFrame) -> Records:
    """Raises LinkError."""
    data = frame.data
    try:
        _, consumer, seq, size, count, again = _RECORDS.unpack_from(data)
        at = _RECORDS.size + size
        name = str(data[_RECORDS.size : at], "utf-8", "surrogatepass")
        sizes, at = column_at("I", data, at, count)
        pairs: list[int] = []
        if again:
            column, at = column_at("I", data, at, 2 * again)
            pairs = column.tolist()
        body = frame.body
        if sum(sizes) != len(body) or at != len(data):
            raise ValueError("the records are not as long as their sizes say")
        places = [*zip(pairs[::2], pairs[1::2], strict=True)]
        if any(place >= count for place, _ in places):
            raise ValueError("a redelivered message is not in its run")
        return Records(consumer, name, RecordRun(body, sizes), seq, places)
    except _UNREADABLE as error:
        raise LinkError(f"a run of records cannot be read: {error}") from error


def confirmation(number: int, receipt: int, outcome: str) -> bytes:
    """`Recipient.confirm`."""
    return _CONFIRM.pack(number, receipt) + outcome.encode("utf-8", "surrogatepass")


def read_confirmation(frame: LinkFrame) -> tuple[int, str]:
    """Receipt and outcome. Raises LinkError."""
    data = frame.data
    try:
        return _CONFIRM.unpack_from(data)[1], str(data[_CONFIRM.size :], "utf-8", "surrogatepass")
    except _UNREADABLE as error:
        raise LinkError(f"a confirmation cannot be read: {error}") from error


def confirmations(number: int, receipts: Sequence[int]) -> bytes:
    """`Recipient.confirm_all`."""
    return CONNECTION.pack(number) + column_of("Q", receipts)


def read_confirmations(frame: LinkFrame) -> list[int]:
    """Raises LinkError."""
    try:
        return numbers_at(frame.data, NUMBER_BYTES)
    except _UNREADABLE as error:
        raise LinkError(f"confirmations cannot be read: {error}") from error


def of_size(number: int, size: int) -> bytes:
    """A number of bytes, or 0 and 1 for no and yes."""
    return _SIZE.pack(number, size)


def read_size(frame: LinkFrame) -> int:
    """Raises LinkError."""
    if len(frame.data) != _SIZE.size:
        raise LinkError("a number of bytes is cut off")
    return int(_SIZE.unpack(frame.data)[1])


def large(number: int, kind: int, head_bytes: int, body_bytes: int) -> bytes:
    """The beginning of what comes in parts."""
    return _LARGE.pack(number, kind, head_bytes, body_bytes)


def read_large(frame: LinkFrame) -> tuple[int, int, int]:
    """Kind, bytes of its head, of its body. Raises LinkError."""
    if len(frame.data) != _LARGE.size:
        raise LinkError("the beginning of a large frame is cut off")
    _, kind, head_bytes, body_bytes = _LARGE.unpack(frame.data)
    return kind, head_bytes, body_bytes
