"""Message: what a producer handed over, independent of the protocol it came by.

A message that another protocol than STOMP brought may keep the form in which it came (`Native`). It goes out unchanged
to a consumer of that protocol; `head`, `neutral` and `headers` show it to everybody else. Invariant: a message without
an envelope has text properties only and is BYTES or TEXT, so that the hot path asks one question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat
from sys import getsizeof
from typing import Final, NamedTuple, Self, TypeAlias

from amq.core import values
from amq.core.destination import wire_name
from amq.core.errors import CommandError
from amq.core.values import Properties

BYTES, TEXT, MAP, STREAM, OBJECT, NONE = range(6)
SEQ_DIGITS_MAX: Final = 23
STORE_BITS: Final = 10  # of a message's number, as a client of a gateway sees it: the place of its store in the table
CONTENTS = ("bytes", "text", "map", "stream", "object", "none")  # their names
DEFAULT_PRIORITY = 4
# A larger body is never joined with anything: it is written, read and delivered where it lies, and is in memory only on
# its way. Measured: to write one in pieces costs 26 µs against 10 at 4 KiB, the same at 128 KiB, 545 against 613 at
# 1 MiB; a lower limit would cost more when waiting messages are read back, about 1 ms for each MiB.
LARGE_BODY_BYTES = 1 << 20


HEADER_OVERHEAD_BYTES = 60  # a dictionary's share, beside the two strings: what it is for three, less for more
SUBSCRIPTION_SCHEME = "subscription://"  # of the queues of durable subscriptions, which nobody can address
USER_ID = "JMSXUserID"  # property: the user who sent it, as JMS calls it
ORIGINAL_DESTINATION = "original-destination"  # property: where a message for another destination was sent


# Headers of text protocols for which an envelope has fields.
CORRELATION_ID, REPLY_TO, TYPE = "correlation-id", "reply-to", "type"
LIFTED: Final = frozenset({CORRELATION_ID, REPLY_TO, TYPE})
BINARY_ID = "ID:AMQP_BINARY:"  # text of an id that is bytes begins so, then hex; so the mapping of AMQP to JMS has it
JSON_TYPE = "application/json"
SHORT_BYTES_MAX = 64_000  # of content type and duplicate id, each: the journal takes 65,535, with a user before the id
SECTION_BYTES_MAX = 16 << 20  # of properties and envelope, encoded
_UINT64_MAX = (1 << 64) - 1
_WIDE_TEXT_BYTES = 76  # of a text that is not ASCII, beside its letters
_ENVELOPE_BYTES = 150  # of an envelope, beside what it holds
# What is read of a native form is kept in memory if it takes no more than this beside it. It is counted from the
# beginning, read or not: so nothing that is counted ever changes.
_READ_BYTES, _READ_SHARE = 512, 8
# Of a message with nothing but a native form: what its `header_bytes` are, for each byte of that form and beside them.
NATIVE_BYTES: Final = _ENVELOPE_BYTES + _READ_BYTES
NATIVE_SHARE: Final = 1 + _READ_SHARE
# A body of a native form that is shown to others. To inflate 256 KiB takes half a millisecond, to make JSON of a map of
# that size some; more is work for a thread, and a body that would be larger than THREAD_BYTES_MAX is shown as it came.
LOOP_BYTES_MAX: Final = 256 << 10
THREAD_BYTES_MAX: Final = 64 << 20
TURN_BYTES_MAX: Final = 8 << 20  # of heads that take more, until the end of the turn
_NAMES = ("queue", "topic", "temp-queue", "temp-topic")
_WIRE_PREFIXES: Final = {f"/{'remote-' if kind.startswith('temp') else ''}{kind}/": f"{kind}://" for kind in _NAMES}


def _full_name(wire: str) -> str:
    """The full name of which `wire` is the `wire_name`; any other text as it is."""
    parts = wire.split(",")
    for at, part in enumerate(parts):
        prefix = part[: part.find("/", 1) + 1]
        if prefix not in _WIRE_PREFIXES or part == prefix:
            return wire
        parts[at] = _WIRE_PREFIXES[prefix] + part.removeprefix(prefix)
    return ",".join(parts)


def _is_full_name(text: str) -> bool:
    return all(part.startswith(tuple(_WIRE_PREFIXES.values())) for part in text.split(","))


class GivenIds(NamedTuple):
    """The ids that the broker gives to messages, as a client sees them: `prefix`, then the number of the message, which
    a gateway moves by `bits`, with the `place` of the store behind it."""

    prefix: str
    bits: int = 0
    place: int = 0

    def seq_of(self, id: str) -> int | None:
        """The number of the message in its store, None = it is not such an id."""
        text = id.removeprefix(self.prefix)
        if not text.isascii() or not text.isdecimal() or len(text) > SEQ_DIGITS_MAX:
            return None
        number = int(text)
        return number >> self.bits if number & ((1 << self.bits) - 1) == self.place else None


def ids_of_cluster(cluster: str, place: int = 0) -> GivenIds:
    """Those of the store at that place of the table, as the clients of a gateway see them. `cluster` = its id."""
    return GivenIds(f"ID:{cluster[:12]}-", STORE_BITS, place)


@dataclass(slots=True)
class Native:
    """The form in which a message came: its body is in the spelling of `protocol`, and `data` is whatever else that
    keeps, such as properties as they were received."""

    protocol: str
    data: bytes
    read: Head | None = field(default=None, compare=False, repr=False)  # see `head`
    is_costly: bool = field(default=False, compare=False, repr=False)  # to show its body takes a thread: see `neutral`


class Envelope(NamedTuple):
    """Facts about a message that only some producers give.

    message_id      the producer's own id, ""; beside a native form an id that counts instead of the one in there
    correlation_id  None = there is none
    reply_to        full name of a destination, or the producer's text as it is where that is none; ""
    type            JMSType, subject; ""
    sent_ms         the producer's clock, milliseconds since 1970, 0
    native          None = body and properties are neutral
    """

    message_id: str = ""
    correlation_id: str | bytes | None = None
    reply_to: str = ""
    type: str = ""
    sent_ms: int = 0
    native: Native | None = None

    @property
    def correlation_text(self) -> str | None:
        """The correlation id as text. An id of bytes has a spelling that `lift` makes the same bytes of."""
        id = self.correlation_id
        return BINARY_ID + id.hex().upper() if isinstance(id, bytes) else id

    @property
    def reply_text(self) -> str:
        """`reply_to` as it is in headers."""
        return wire_name(self.reply_to) if _is_full_name(self.reply_to) else self.reply_to

    @property
    def texts(self) -> dict[str, str]:
        """Those of the headers of text protocols that it has."""
        found: dict[str, str] = {}
        id = self.correlation_text
        if id is not None:
            found[CORRELATION_ID] = id
        if self.reply_to:
            found[REPLY_TO] = self.reply_text
        if self.type:
            found[TYPE] = self.type
        return found


class Lifted(Envelope):
    """An envelope that `lift` made: all properties beside it are text, the content is BYTES or TEXT, and `headers`
    gives back the headers that it was made of."""

    __slots__ = ()


Head: TypeAlias = "tuple[Properties | None, Envelope]"


def lift(headers: dict[str, str]) -> Lifted | None:
    """The envelope of a message that came with these headers, None where it has none. It takes those out of `headers`
    that it can give back as they were; the others stay there, and count before it."""
    id = headers.pop(CORRELATION_ID, None)
    reply, kind = headers.get(REPLY_TO), headers.get(TYPE)
    correlation_id = _binary(id) if id and id.startswith(BINARY_ID) else id
    if reply:
        full = _full_name(reply)
        if full != reply or not _is_full_name(full):
            del headers[REPLY_TO]
        reply = full
    if kind:
        del headers[TYPE]
    if id is None and not reply and not kind:
        return None
    return Lifted("", correlation_id, reply or "", kind or "")


def _binary(id: str) -> str | bytes:
    try:
        found = bytes.fromhex(id.removeprefix(BINARY_ID))
    except ValueError:
        return id
    return found if Envelope(correlation_id=found).correlation_text == id else id


class Sharing:
    """Of a message that several queues may hold.

    origin   the connection that sent it
    others   how many queues more than one hold it
    encoded  what protocols wrote of it once for all, by their own key; None where nothing is, and from the end of the
             turn on in which it was handed out: what waits takes the memory of its body only
    """

    __slots__ = ("encoded", "origin", "others")

    def __init__(self, origin: object, others: int = 0, encodes: bool = True) -> None:
        self.origin = origin
        self.others = others
        self.encoded: dict[object, bytes] | None = {} if encodes else None


class MessageBatch:
    """Messages for many subscriptions, in order. `encoded` = what protocols wrote of all, by their own key."""

    __slots__ = ("encoded", "messages")

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.encoded: dict[object, list[bytes]] = {}


class Message:
    """One message. Everything but `seq` is fixed when it is made; `seq` is given once, by the broker that stores it.

    destination     full name, `queue://orders` or `topic://prices`
    body            bytes as sent
    properties      of the application, in the order sent; where the message is native those that the broker must see
    content_type    MIME type or ""
    priority        0 (lowest) to 9
    persistent      survives a takeover
    timestamp_ms    wall clock of the broker at arrival
    expires_ms      absolute wall-clock milliseconds, 0 = never
    duplicate_id    id given by the producer for duplicate detection, or ""
    content         what the body is: BYTES, TEXT (STOMP: no content-length), MAP (an encoded map of `amq.core.values`),
                    STREAM (an encoded list), OBJECT (opaque), NONE (there is no body)
    envelope        what only some producers give; None = nothing, and properties are text, and content BYTES or TEXT
    segment         where the journal keeps it; None = not in the journal
    offset, size    of its record in that segment, bytes
    header_bytes    that properties and envelope take in memory, or will at most
    shared          what several holders of the message share; None = it has one
    seq             store-wide sequence number, unique and growing over the life of the store; 0 = not stored yet
    """

    __slots__ = (
        "body",
        "content",
        "content_type",
        "destination",
        "duplicate_id",
        "envelope",
        "expires_ms",
        "header_bytes",
        "offset",
        "persistent",
        "priority",
        "properties",
        "segment",
        "seq",
        "shared",
        "size",
        "timestamp_ms",
    )

    def __init__(
        self,
        destination: str,
        body: bytes,
        properties: Properties | None = None,
        content_type: str = "",
        priority: int = DEFAULT_PRIORITY,
        persistent: bool = True,
        timestamp_ms: int = 0,
        expires_ms: int = 0,
        duplicate_id: str = "",
        content: int = BYTES,
        seq: int = 0,
        envelope: Envelope | None = None,
    ) -> None:
        self.destination = destination
        self.body = body
        self.properties = properties
        self.header_bytes = _memory_of(properties, envelope) if properties or envelope else 0
        self.content_type = content_type
        self.priority = priority
        self.persistent = persistent
        self.timestamp_ms = timestamp_ms
        self.expires_ms = expires_ms
        self.duplicate_id = duplicate_id
        self.content = content
        self.seq = seq
        self.envelope = envelope
        self.segment: object = None
        self.shared: Sharing | None = None
        self.offset = 0
        self.size = 0

    @classmethod
    def made_of(cls, message: Message, destination: str, properties: Properties | None, seq: int = 0) -> Self:
        """`message` as it goes to `destination` with these properties. Body and envelope are shared."""
        return cls(
            destination,
            message.body,
            properties,
            message.content_type,
            message.priority,
            message.persistent,
            message.timestamp_ms,
            message.expires_ms,
            message.duplicate_id,
            message.content,
            seq,
            message.envelope,
        )

    def with_body(self, body: bytes) -> Message:
        """A message, not stored yet, that differs from this one in its body alone: properties and envelope, which do
        not change, are shared."""
        other = Message.__new__(Message)
        other.destination = self.destination
        other.body = body
        other.properties = self.properties
        other.header_bytes = self.header_bytes
        other.content_type = self.content_type
        other.priority = self.priority
        other.persistent = self.persistent
        other.timestamp_ms = self.timestamp_ms
        other.expires_ms = self.expires_ms
        other.duplicate_id = self.duplicate_id
        other.content = self.content
        other.envelope = self.envelope
        other.segment = other.shared = None
        other.seq = other.offset = other.size = 0
        return other

    @property
    def is_stripped(self) -> bool:
        """Its large body is on the disk, or in a consumer's socket, and no more here."""
        return not self.body and self.size > LARGE_BODY_BYTES

    @property
    def queue_name(self) -> str:
        """Full name of the queue that holds it, or will."""
        return self.destination

    def send_to(self, queue_name: str) -> None:
        """It goes to the queue of that full name instead."""
        self.destination = queue_name

    def __repr__(self) -> str:
        return f"<Message {self.seq} {self.destination} {len(self.body)} B>"


class Stub(Message):
    """A stored message that waited on disk alone and is about to leave its queue: only where it stands is here."""

    __slots__ = ()

    @property
    def is_stripped(self) -> bool:
        return True


class Copy(Message):
    """A message as one of several queues gets it; in the journal they have one record (`Multicast`).

    queue_name  of the queue, which may be another than `destination`
    original    the message as it was sent, as long as it is not on its way to the journal
    """

    __slots__ = ("original", "queue_name")

    queue_name: str
    original: Message | None

    def send_to(self, queue_name: str) -> None:
        self.destination = self.queue_name = queue_name

    @classmethod
    def of(cls, message: Message, queue_name: str, seq: int = 0) -> Copy:
        """The copy of `message` for the queue of that name."""
        return Copier(message).copy(queue_name, seq)


class Copier:
    """Makes the messages that several destinations get of `message`. Those to which it was not sent get a property that
    names its destination. They share these properties, which are as long as a composite name, and which count once."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._led: Properties | None = None
        self._led_bytes = message.header_bytes

    def led(self) -> tuple[Properties, int]:
        """Properties of a message for another destination, and the memory that they take."""
        if self._led is None:
            original = {ORIGINAL_DESTINATION: wire_name(self._message.destination)}
            self._led = {**(self._message.properties or {}), **original}
            self._led_bytes = _memory_of(self._led, self._message.envelope)
        return self._led, self._led_bytes

    def copy(self, queue_name: str, seq: int = 0) -> Copy:
        """The copy for the queue of that name."""
        message = self._message
        copy = Copy.made_of(message, queue_name, None, seq)
        copy.properties, copy.header_bytes = message.properties, message.header_bytes  # shared, and counted once
        copy.queue_name = queue_name
        copy.original = None
        if queue_name.startswith(SUBSCRIPTION_SCHEME):
            copy.destination = message.destination
        elif queue_name != message.destination:
            copy.properties, copy.header_bytes = self.led()
        return copy

    def message(self, destination: str) -> Message:
        """The message for the destination of that name, where it is stored for that alone."""
        if destination == self._message.destination:
            return Message.made_of(self._message, destination, self._message.properties)
        message = Message.made_of(self._message, destination, None)
        message.properties, message.header_bytes = self.led()
        return message


def _memory_of(properties: Properties | None, envelope: Envelope | None) -> int:
    """By contents alone, so that a replay counts the same."""
    size = 0
    if properties:
        size += HEADER_OVERHEAD_BYTES * len(properties)
        size += _size_of_all(properties) + _size_of_all(properties.values())
    if envelope is not None:
        *texts, _, native = envelope
        size += _ENVELOPE_BYTES + sum([_size_of(text) for text in texts if text])
        if native is not None:
            size += len(native.data) + _read_bytes_max(native)
    return size


def _size_of(value: object) -> int:
    """Bytes of memory. A text that is not ASCII takes more or less by its widest letter, and the interpreter may keep
    its UTF-8 beside it: it counts as the largest of its length."""
    if isinstance(value, str) and not value.isascii():
        return _WIDE_TEXT_BYTES + 4 * len(value)
    return getsizeof(value)


def _size_of_all(found: Collection[object]) -> int:
    """The sum of `_size_of` of these; without a call for each where all are ASCII, as nearly always."""
    with suppress(TypeError):  # not all of them are text
        if "".join(found).isascii():  # type: ignore[arg-type]
            return sum(map(getsizeof, found))
    return sum(map(_size_of, found))


def _read_bytes_max(native: Native) -> int:
    return _READ_BYTES + _READ_SHARE * len(native.data) if native.data else 0


class HeaderColumns(NamedTuple):
    """Headers of many messages, by columns. They are application properties and the correlation id, which stands first
    where a message has one.

    lists    lists of names; a message has all headers of one of them
    which    index of the list of each message; b"" = all have the first one
    values   the values of all messages, one message after the other
    """

    lists: tuple[tuple[str, ...], ...]
    which: bytes
    values: list[str]

    def names(self, count: int) -> Iterator[tuple[str, ...]]:
        """The names of each of `count` messages."""
        return map(self.lists.__getitem__, self.which) if self.which else repeat(self.lists[0], count)

    def rows(self, count: int) -> Iterator[dict[str, str]]:
        """The headers of each of `count` messages."""
        values = iter(self.values)
        return (dict(zip(names, values, strict=False)) for names in self.names(count))

    def memory_bytes(self, count: int) -> int:
        """The sum of `header_bytes` of all these messages."""
        size = _size_of_all(self.values)
        used = Counter(self.which) if self.which else {0: count}
        for index, rows in used.items():
            names = self.lists[index]
            if names and names[0] == CORRELATION_ID:
                size += rows * _ENVELOPE_BYTES
                names = names[1:]
            size += rows * (HEADER_OVERHEAD_BYTES * len(names) + _size_of_all(names))
        return size - self._empty_ids(count) * getsizeof("")

    def _empty_ids(self, count: int) -> int:
        """How many correlation ids are empty: an envelope has them for nothing."""
        if "" not in self.values:
            return 0
        return sum(row.get(CORRELATION_ID) == "" for row in self.rows(count))


def header_bytes_of_natives(natives: Sequence[bytes]) -> int:
    """The sum of the `header_bytes` of messages that have nothing but native forms with these data."""
    return NATIVE_BYTES * len(natives) + NATIVE_SHARE * sum(map(len, natives))


def native_like(like: Message) -> tuple[str, int]:
    """Protocol and content of messages that come with native forms and are otherwise like `like`."""
    assert like.envelope is not None
    assert like.envelope.native is not None
    return like.envelope.native.protocol, like.content


def alike(
    like: Message,
    bodies: Iterable[bytes],
    headers: Iterable[dict[str, str]] | None = None,
    natives: Sequence[bytes] | None = None,
) -> list[Message]:
    """Messages without ids that differ from `like` in their bodies alone, and in `headers`, which become theirs, or in
    the data of their native forms."""
    if natives is not None:
        return stood(like, bodies, (repeat(0), repeat(like.timestamp_ms), repeat(0), repeat(0)), natives)
    if headers is None:
        return list(map(like.with_body, bodies))
    destination, content_type, priority, content = like.destination, like.content_type, like.priority, like.content
    persistent, timestamp_ms, expires_ms = like.persistent, like.timestamp_ms, like.expires_ms
    found = []
    for body, own in zip(bodies, headers, strict=True):
        envelope = lift(own)
        found.append(
            Message(
                destination,
                body,
                own or None,
                content_type,
                priority,
                persistent,
                timestamp_ms,
                expires_ms,
                "",
                content,
                0,
                envelope,
            )
        )
    return found


def stood(
    like: Message,
    bodies: Iterable[bytes],
    facts: tuple[Iterable[int], Iterable[int], Iterable[int], Iterable[int]],
    natives: Sequence[bytes] | None = None,
    segment: object = None,
) -> list[Message]:
    """Messages in `segment` that differ from `like` in their bodies alone, in the data of their native forms where they
    have some, and in `facts`: seqs, times, offsets and sizes. As `with_body`, in two thirds of the time."""
    new, found = Message.__new__, []
    destination, properties, header_bytes = like.destination, like.properties, like.header_bytes
    content_type, duplicate_id, content = like.content_type, like.duplicate_id, like.content
    priority, persistent, expires_ms, envelope = like.priority, like.persistent, like.expires_ms, like.envelope
    for body, seq, timestamp_ms, offset, size in zip(bodies, *facts, strict=False):
        message = new(Message)
        message.destination = destination
        message.body = body
        message.properties = properties
        message.header_bytes = header_bytes
        message.content_type = content_type
        message.priority = priority
        message.persistent = persistent
        message.timestamp_ms = timestamp_ms
        message.expires_ms = expires_ms
        message.duplicate_id = duplicate_id
        message.content = content
        message.envelope = envelope
        message.segment = segment
        message.shared = None
        message.seq = seq
        message.offset = offset
        message.size = size
        found.append(message)
    if natives is not None:
        _give_natives(found, native_like(like)[0], natives)
    return found


def _give_natives(messages: list[Message], protocol: str, natives: Sequence[bytes]) -> None:
    """`messages` have nothing but these native forms beside their bodies. Made without a call of Python for each."""
    new, of_tuple = Native.__new__, tuple.__new__
    for message, data in zip(messages, natives, strict=True):
        native = new(Native)
        native.protocol, native.data, native.read, native.is_costly = protocol, data, None, False
        message.envelope = of_tuple(Envelope, ("", None, "", "", 0, native))
        message.header_bytes = NATIVE_BYTES + NATIVE_SHARE * len(data)


def check(message: Message) -> None:
    """To be called by the codec of each protocol whose own limits do not see to this, before it hands over a message:
    it can be stored. Raises CommandError."""
    assert message.content in range(len(CONTENTS))
    envelope, properties = message.envelope, message.properties
    if envelope is None:
        assert message.content <= TEXT, "it needs an envelope"
        assert values.are_texts((properties or {}).values()), "it needs an envelope"
    if not (0 <= message.timestamp_ms <= _UINT64_MAX and 0 <= message.expires_ms <= _UINT64_MAX):
        raise _unfit("a time is before 1970, or does not fit into 64 bits")
    if not 0 <= message.priority <= 9:
        raise _unfit("its priority is not from 0 to 9")
    if not values.are_values((properties or {}).values()):
        raise _unfit("a property is neither text, bytes, a number nor a truth")
    try:
        message.destination.encode()
        longest = max(len(message.content_type.encode()), len(message.duplicate_id.encode()))
        parts = [*(() if envelope is None else envelope[:5])]
        if envelope is not None and envelope.native is not None:
            parts += envelope.native.protocol, envelope.native.data
        section = len(values.encode([dict(properties or {}), *parts]))
    except ValueError as error:
        raise _unfit(str(error)) from error
    if longest > SHORT_BYTES_MAX:
        raise _unfit(f"content type or id for duplicate detection has more than {SHORT_BYTES_MAX} bytes")
    if section > SECTION_BYTES_MAX:
        raise _unfit(f"its properties and headers have {section} bytes, at most {SECTION_BYTES_MAX}: use the body")


def _unfit(why: str) -> CommandError:
    return CommandError(f"the message cannot be stored: {why}", code="MESSAGE_INVALID")


# -- native forms ------------------------------------------------------------------------------------------------------


class Content(NamedTuple):
    """The neutral body of a message, and what it is."""

    content: int
    body: bytes
    content_type: str = ""


class NativeReader(NamedTuple):
    """Reads the native forms of one protocol. The functions are pure, and raise ValueError for what is none.

    head     properties and envelope, from the native data alone: the body may be on the disk
    content  what the body says
    without  native data in which no property has one of these names, and all else is as it was
    """

    head: Callable[[Message], Head]
    content: Callable[[Message, int], Content]
    without: Callable[[bytes, Container[str]], bytes]


_readers: Final[dict[str, NativeReader]] = {}


def register(protocol: str, reader: NativeReader) -> None:
    """From now on `reader` reads what came by `protocol`: called once, by the module of its codec."""
    assert _readers.setdefault(protocol, reader) is reader, "there is one already"


class Heads:
    """Heads that were read in this turn and take more than is counted for them, or are those of one message alone. So
    a message is read once a turn, however many selectors are asked. They take `TURN_BYTES_MAX`, or are one that is
    larger; the broker clears them at the end of each turn.

    last   the message that was asked for last, its own properties, and its head with these
    """

    __slots__ = ("bytes", "last", "natives")

    def __init__(self) -> None:
        self.natives: list[Native] = []
        self.bytes = 0
        self.last: tuple[Message, Properties, Head] | None = None

    def keep(self, native: Native, size: int) -> None:
        """`native` has been read, and that takes `size` bytes."""
        if self.bytes + size > TURN_BYTES_MAX:
            self.clear()
        self.natives.append(native)
        self.bytes += size

    def clear(self) -> None:
        for native in self.natives:
            native.read = None
        self.natives.clear()
        self.bytes = 0
        self.last = None


heads: Final = Heads()


def head(message: Message) -> tuple[Properties | None, Envelope | None]:
    """Neutral properties and envelope. Those of a native form are read once and stay in memory as long as that does; if
    they take more than is counted for them, until the end of the turn."""
    envelope = message.envelope
    if envelope is None or envelope.native is None:
        return message.properties, envelope
    native, own = envelope.native, message.properties
    found = native.read
    if found is None:
        found = native.read = _read_head(message, envelope)
        size = _memory_of(*found)
        if size > _read_bytes_max(native):
            heads.keep(native, size)
    if not own:
        return found
    last = heads.last
    if last is None or last[0] is not message or last[1] is not own:
        last = heads.last = message, own, ({**(found[0] or {}), **own}, found[1])
    return last[2]


def _read_head(message: Message, envelope: Envelope) -> Head:
    assert envelope.native is not None
    reader = _readers.get(envelope.native.protocol)
    if reader is not None:
        with suppress(ValueError):  # it is as if its protocol were unknown
            properties, found = reader.head(message)
            return properties, found._replace(native=None)
    return None, envelope._replace(native=None)


def without(message: Message, names: Container[str]) -> tuple[Properties, Envelope | None]:
    """Properties and envelope of `message` as they are when the broker takes the properties `names` off, also where its
    native form has them. A form that cannot be read stays as it is."""
    properties = {name: value for name, value in (message.properties or {}).items() if name not in names}
    envelope = message.envelope
    if envelope is None or envelope.native is None:
        return properties, envelope
    native = envelope.native
    reader = _readers.get(native.protocol)
    if reader is not None:
        with suppress(ValueError):
            envelope = envelope._replace(native=Native(native.protocol, reader.without(native.data, names)))
    return properties, envelope


class CostlyError(Exception):
    """The body of this message takes longer to show than an event loop may wait."""


def neutral(message: Message, bytes_max: int = LOOP_BYTES_MAX) -> Message:
    """The same with neutral properties and body; itself where it is not native. Where its protocol is unknown, or its
    body none of that, or where it would have more than `THREAD_BYTES_MAX`, the bare body is BYTES. Raises CostlyError
    where it would have more than `bytes_max`, which is what may be inflated or translated on an event loop: a thread
    gives `THREAD_BYTES_MAX`."""
    envelope = message.envelope
    if envelope is None or envelope.native is None:
        return message
    native, costs = envelope.native, bytes_max < THREAD_BYTES_MAX
    if native.is_costly and costs:
        raise CostlyError
    properties, found = head(message)
    reader, content = _readers.get(native.protocol), Content(BYTES, message.body, message.content_type)
    if reader is not None:
        try:
            content = reader.content(message, bytes_max)
        except CostlyError:
            if costs:
                native.is_costly = True
                raise
        except ValueError:  # as above
            pass
    return with_content(message, content, properties, found)


def plain(message: Message, bytes_max: int = LOOP_BYTES_MAX) -> Message:
    """The same for those who know BYTES and TEXT alone: of a map or stream they see JSON. Itself where it is so.
    `bytes_max`: as for `neutral`."""
    message = neutral(message, bytes_max)
    if message.content <= TEXT:
        return message
    content = Content(BYTES, message.body, message.content_type)
    if message.content in (MAP, STREAM):
        if len(message.body) > bytes_max:
            raise CostlyError
        with suppress(ValueError):  # of a body that no codec wrote the bytes are all that can be shown
            content = Content(TEXT, values.to_json(values.decode(message.body)).encode("utf-8", "replace"), JSON_TYPE)
    return with_content(message, content, message.properties, message.envelope)


def bare(message: Message) -> Message:
    """`message` with its body as its client sent it, which is BYTES for everybody who does not know that form."""
    return with_content(message, Content(BYTES, message.body, message.content_type), *head(message))


def with_content(
    message: Message, content: Content, properties: Properties | None, envelope: Envelope | None
) -> Message:
    """The same message at the same place, with another body, other properties and another envelope."""
    found = Message(
        message.destination,
        content.body,
        properties,
        content.content_type,
        message.priority,
        message.persistent,
        message.timestamp_ms,
        message.expires_ms,
        message.duplicate_id,
        content.content,
        message.seq,
        envelope,
    )
    found.segment, found.offset, found.size = message.segment, message.offset, message.size
    return found


def headers(message: Message) -> Mapping[str, str]:
    """Properties as text, with those of the envelope that are headers of text protocols. A property of such a name
    counts. A native message shows what the broker sees of it: take `neutral` before."""
    envelope = message.envelope
    if envelope is None:
        return message.properties or {}  # type: ignore[return-value]  # all of them are text
    found = envelope.texts
    if message.properties:
        found |= message.properties if envelope.__class__ is Lifted else values.texts(message.properties)  # type: ignore[arg-type]
    return found


def header(message: Message, name: str) -> str | None:
    """One of the headers of `message`, also of a native one; None where it has none of that name."""
    properties, envelope = head(message)
    if properties and name in properties:
        return values.text(properties[name])
    return envelope.texts.get(name) if envelope is not None else None
