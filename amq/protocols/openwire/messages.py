"""Messages of OpenWire ↔ `Message`.

A message keeps the form in which it came: its native data are the fields of its frame around the content, which is its
body. So it goes to a consumer as it came, with another broker sequence in its id; nobody decodes its properties unless
a selector, a consumer of another protocol, or a change by the broker asks for them.

Native data: `HEAD` (type of the message, flags, where in the rest its id begins and ends, and where the content
stood), then the rest, in version 12. Invariant: `read_message` raises ValueError for what is no message, and whatever
it takes the general codec of `table` reads as well.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple

from amq.core.destination import QUEUE_SCHEME
from amq.core.errors import CommandError
from amq.core.message import (
    BYTES,
    JSON_TYPE,
    MAP,
    NATIVE_BYTES,
    NATIVE_SHARE,
    NONE,
    OBJECT,
    ORIGINAL_DESTINATION,
    SECTION_BYTES_MAX,
    STREAM,
    TEXT,
    THREAD_BYTES_MAX,
    USER_ID,
    Content,
    CostlyError,
    Envelope,
    Message,
    Native,
    NativeReader,
    neutral,
    register,
)
from amq.core.values import Int32, Nested, Properties, Text, Value, text
from amq.core.values import decode as decode_value
from amq.core.values import decode_map as decode_values
from amq.core.values import encode as encode_value
from amq.protocols.openwire import advisories, table
from amq.protocols.openwire.names import destination_in, destination_of, full_names, is_destination
from amq.protocols.openwire.primitives import (
    count_of,
    decode_map,
    decode_stream,
    encode_map,
    encode_stream,
    properties_of,
)
from amq.protocols.openwire.table import FIELDS, VERSION_MAX, Structure, decode, read_nested, structure
from amq.protocols.openwire.wire import (
    INT,
    LONG,
    FieldReader,
    decode_text,
    encode_text,
    optional_bytes,
    storable,
    to_utf8,
)

NAME: Final = "openwire"
GROUP_ID, GROUP_SEQ = "JMSXGroupID", "JMSXGroupSeq"
SCHEDULED: Final = b"AMQ_SCHEDULE"  # the names of the scheduler's properties begin so
PROPERTIES_MAX: Final = 1000  # of a message, unless the broker is configured otherwise
HEAD: Final = struct.Struct(">BBIII")
_HAS_CONTENT, _IS_COMPRESSED = 1, 2
_COMMAND: Final = struct.Struct(">i?")
_TAIL: Final = struct.Struct(">qq")  # brokerInTime, brokerOutTime
_BARE: Final = b"\0\0\0\0\0"  # a command id and "no response required", in a message inside a dispatch
_CONTENT_OF: Final = {
    table.MESSAGE: NONE,
    table.BYTES_MESSAGE: BYTES,
    table.MAP_MESSAGE: MAP,
    table.OBJECT_MESSAGE: OBJECT,
    table.STREAM_MESSAGE: STREAM,
    table.TEXT_MESSAGE: TEXT,
}
_TYPE_OF: Final = {content: type for type, content in _CONTENT_OF.items()} | {OBJECT: table.BYTES_MESSAGE}
_SEEN: Final = frozenset({GROUP_ID, GROUP_SEQ})  # properties that the broker sees and that are in the native data too
MESSAGE_TYPES: Final = frozenset(_CONTENT_OF)
_STARTS: Final = {type: b"\1" + bytes((type,)) + _BARE for type in _CONTENT_OF}  # of a message as a field
_LENGTH: Final = struct.Struct(">Bi")
_LENGTH_BYTES: Final = _LENGTH.size
PIECES: Final = 4  # of a dispatch


class Id(NamedTuple):
    """The id that the client gave to a message: a text, or what others make of producer and sequence."""

    producer: bytes
    sequence: int
    text: str


class Incoming(NamedTuple):
    """A message as a client sent it. Structures are bytes, as fields of a command; b"" = there is none.

    answer  the id of the command, where its client waits for a response; None = it does not
    group   its name, "" = none, and the place in it
    native  see above
    """

    answer: int | None
    producer: bytes
    destination: bytes
    transaction: bytes
    id: Id
    group: tuple[str, int]
    persistent: bool
    expiration: int
    priority: int
    content: bytes
    properties: bytes
    native: bytes


# The fields of a message that has neither transaction, group, correlation id, reply-to nor type, behind the producer of
# its id; and those behind the properties of one that has no structures and no user.
USUAL: Final = struct.Struct(">qqBBiBBqBBqB")
USUAL_END: Final = struct.Struct(">BBBiBqBBBBqqB")
# Behind the place of the sequence: fields that are nearly always the same, then the timestamp.
SAME_AT: Final = 16
TIME_AT: Final = 34
NO_TYPE_BUT_CONTENT: Final = b"\0\1"
_TYPED: Final = struct.Struct(">2si")  # that, and the size of the content
_USUAL_BYTES: Final = USUAL.size
_new, _of_tuple = Native.__new__, tuple.__new__
_KNOWN_BYTES_MAX: Final = 1024  # of what each producer remembers


class Known:
    """How the messages of one producer to one destination, in one transaction, begin: all that stands between the
    producer's id and the sequence of their own ids is the same, and is read once. Another beginning takes its place."""

    __slots__ = ("_bare", "_same", "_usual", "id_start", "is_queue", "name", "prefix", "properties_max", "transaction")

    def __init__(self, properties_max: int = PROPERTIES_MAX) -> None:
        self.properties_max = properties_max
        self.prefix = b"\0"  # of no message
        self.name = ""  # full name of the destination
        self.is_queue = False
        self.transaction = b""
        self.id_start = 0
        # The fields from SAME_AT to TIME_AT, and those behind the content, of the last message without properties that
        # never expires; and what they say: flags, priority, whether it is persistent.
        self._same = b""
        self._bare: bytes | None = None
        self._usual = 0, 0, False

    def learn(self, data: bytes, found: Incoming, name: str) -> None:
        """`found` is the message `data` to the destination `name`: those that begin so are known from now on."""
        _, _, id_start, id_end, _ = HEAD.unpack_from(found.native)
        prefix = data[6 + len(found.producer) : id_end - 10]
        if not found.id.text and found.id.producer == found.producer and len(prefix) <= _KNOWN_BYTES_MAX:
            self.prefix, self.id_start, self.name, self.transaction = prefix, id_start, name, found.transaction
            self.is_queue = name.startswith(QUEUE_SCHEME)

    def read(self, data: bytes, start: int, at: int, size: int, producer: str) -> tuple[Message, int] | None:
        """The message whose frame stands from `start` to `size` in `data`, with its sequence at `at`, behind the
        prefix; and the bytes of its properties. None = it must be read in general. `producer` = the id by which to know
        duplicates, "" = that is not asked. Measured: 2.4 µs against 8.1."""
        cut = at + _USUAL_BYTES
        begin = cut + _LENGTH_BYTES
        if size < begin:
            return None
        typed, content_bytes = _TYPED.unpack_from(data, cut - 1)
        rest = begin + content_bytes
        tail = data[rest:size]
        if (
            tail == self._bare
            and typed == NO_TYPE_BUT_CONTENT
            and data.startswith(self._same, at + SAME_AT)
            and content_bytes >= 0
        ):
            flags, priority, persistent = self._usual
            expiration = properties = 0
        else:
            found = self._read_any(data, start, at, rest, size)
            if found is None:
                return None
            flags, priority, persistent, expiration, properties = found
        head = HEAD.pack(data[start], flags, self.id_start, at + 10 - start, cut - 6 - start)
        message = Message(
            self.name,
            data[begin:rest],
            None,
            "",
            priority,
            persistent,
            0,
            expiration,
            f"{producer}:{LONG.unpack_from(data, at)[0]}" if producer and persistent else "",
            _CONTENT_OF[data[start]],
        )
        own = head + data[start + 6 : cut] + tail
        native = _new(Native)  # as its constructor and that of the envelope do, without their calls
        native.protocol, native.data, native.read, native.is_costly = NAME, own, None, False
        message.envelope = _of_tuple(Envelope, ("", None, "", "", 0, native))
        message.header_bytes = NATIVE_BYTES + NATIVE_SHARE * len(own)
        return message, properties

    def _read_any(
        self, data: bytes, start: int, at: int, rest: int, size: int
    ) -> tuple[int, int, bool, int, int] | None:
        """Flags, priority, persistence, when it expires and the bytes of the properties of that message, which are at
        `rest`. None = it must be read in general."""
        _, _, original, group, _, correlation, persistent, expiration, priority, reply, _, kind = USUAL.unpack_from(
            data, at
        )
        cut = at + USUAL.size
        if original or group or correlation or reply or kind or not data[cut]:
            return None
        end = size - USUAL_END.size
        if not cut + _LENGTH.size <= rest < end:
            return None
        properties = 0
        if data[rest]:
            properties = end - rest - _LENGTH.size
            if properties < 0 or INT.unpack_from(data, rest + 1)[0] != properties:
                return None
            if properties > self.properties_max and INT.unpack_from(data, rest + 5)[0] > self.properties_max:
                return None
        elif rest + 1 != end:
            return None
        structure, target, compressed, _, path, _, user, _, _, cluster, _, _, _ = USUAL_END.unpack_from(data, end)
        if structure or target or path or user or cluster:
            return None
        if properties and (data.find(SCHEDULED, rest, end) >= 0 or cut - start + size - rest > SECTION_BYTES_MAX // 2):
            return None
        flags, priority, expiration = (
            _HAS_CONTENT | bool(compressed) * _IS_COMPRESSED,
            min(priority, 9),
            max(0, expiration),
        )
        if not properties and not expiration:
            self._same, self._bare = data[at + SAME_AT : at + TIME_AT], data[rest:size]
            self._usual = flags, priority, persistent != 0
        return flags, priority, persistent != 0, expiration, properties


def head_of(data: bytes) -> tuple[bytes, bytes]:
    """Producer and transaction of a message, as fields, by the beginning of its frame; b"" = none. Or ValueError."""
    try:
        producer, at = _identity(data, 6, table.PRODUCER_ID)
        _, at = _destination(data, at)
        end = _skip(data, at)
    except (IndexError, struct.error) as error:
        raise ValueError("a message is cut off") from error
    if end > len(data):
        raise ValueError("a message is cut off")
    return producer, b"" if end == at + 1 else data[at:end]


def read_message(data: bytes, version: int) -> Incoming:
    """The message that `data` is, a frame without its size. Raises ValueError."""
    if version < 10:
        data = table.encode(decode(data, version), VERSION_MAX)
    return _checked(data)


def _checked(data: bytes) -> Incoming:
    try:
        return _read(data)
    except (IndexError, struct.error) as error:
        raise ValueError("a message is cut off") from error


def _read(data: bytes) -> Incoming:
    type = data[0]
    if type not in _CONTENT_OF:
        raise ValueError(f"a command of type {type} is not a message")
    command_id, wants_response = _COMMAND.unpack_from(data, 1)
    producer, at = _identity(data, 6, table.PRODUCER_ID)
    destination, at = _destination(data, at)
    start = at
    at = _skip(data, at)
    transaction = b"" if at == start + 1 else data[start:at]
    at = _skip(data, at)  # the original destination
    id_start = at
    if data[at] != 1 or data[at + 1] != table.MESSAGE_ID:
        raise ValueError("a message has no id")
    id_text, at = _text(data, at + 2)
    id_producer, at = _identity(data, at, table.PRODUCER_ID)
    (id_sequence,) = LONG.unpack_from(data, at)
    id_end = at = at + 16
    at = _skip(data, at)  # the original transaction
    group, at = _text(data, at)
    (group_sequence,) = INT.unpack_from(data, at)
    _, at = _text(data, at + 4)  # the correlation id
    persistent = data[at] != 0
    (expiration,) = LONG.unpack_from(data, at + 1)
    priority = data[at + 9]
    at = _skip(data, at + 10)  # where to reply to
    _, at = _text(data, at + 8)  # the timestamp, then the type
    cut = at
    content, at = _bytes(data, at)
    rest = at
    properties, at = _bytes(data, at)
    at = _skip(data, at)  # the data structure
    at = _skip(data, at)  # the target consumer
    compressed = data[at] != 0
    at = _past_structures(data, at + 5)  # the redelivery counter, then the path
    _, at = _text(data, at + 8)  # the arrival, then the user
    at = _past_structures(data, at + 2)  # by_bridge and droppable, then the cluster
    _TAIL.unpack_from(data, at)
    at += _TAIL.size + 1
    if at != len(data):
        raise ValueError(f"a message ends after {at} bytes of {len(data)}")
    flags = (content is not None) * _HAS_CONTENT + compressed * _IS_COMPRESSED
    head = HEAD.pack(type, flags, id_start - 6, id_end - 6, cut - 6)
    native = b"".join((head, data[6:cut], data[rest:]))
    return Incoming(
        command_id if wants_response else None,
        producer,
        destination,
        transaction,
        Id(id_producer, id_sequence, id_text),
        (group, group_sequence),
        persistent,
        expiration,
        priority,
        content or b"",
        properties or b"",
        native,
    )


def _identity(data: bytes, at: int, type: int) -> tuple[bytes, int]:
    """The id of that type, which is a text and two numbers, as a field; and where it ends."""
    if not data[at]:
        raise ValueError("a message has no producer")
    if data[at + 1] != type:
        raise ValueError(f"a structure of type {data[at + 1]} is where one of type {type} is wanted")
    _, end = _text(data, at + 2)
    end += 16
    return data[at:end], end


def _destination(data: bytes, at: int) -> tuple[bytes, int]:
    if not data[at]:
        raise ValueError("a message has no destination")
    if not (table.QUEUE <= data[at + 1] <= table.TEMP_TOPIC and data[at + 2]):
        raise ValueError("the destination of a message is none")
    _, end = _text(data, at + 2)
    return data[at:end], end


def _skip(data: bytes, at: int) -> int:
    """Where the field ends that is a structure."""
    if not data[at]:
        return at + 1
    if table.QUEUE <= data[at + 1] <= table.TEMP_TOPIC and data[at + 2]:
        return _text(data, at + 2)[1]
    reader = FieldReader(data, at)
    read_nested(reader, VERSION_MAX)
    return reader.at


def _text(data: bytes, at: int) -> tuple[str, int]:
    if not data[at]:
        return "", at + 1
    end = at + 3 + (data[at + 1] << 8 | data[at + 2])
    return decode_text(data[at + 3 : end]), end


def _past_structures(data: bytes, at: int) -> int:
    if not data[at]:
        return at + 1
    reader = FieldReader(data, at + 1)
    for _ in range(reader.unsigned_short()):
        read_nested(reader, VERSION_MAX)
    return reader.at


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    if not data[at]:
        return None, at + 1
    (size,) = INT.unpack_from(data, at + 1)
    end = at + 5 + size
    if size < 0 or end > len(data):
        raise ValueError(f"a sequence of {size} bytes is cut off")
    return data[at + 5 : end], end


def message_of(found: Incoming, destination: str, duplicate_id: str, properties_max: int = PROPERTIES_MAX) -> Message:
    """The message for `destination`, a full name. Raises ValueError where it cannot be stored, CommandError where it
    has more properties than that."""
    count = count_of(found.properties)
    if count > properties_max:
        why = f"a message has {count} properties, at most {properties_max} (maxHeaderCount): put them into the body"
        raise CommandError(why, code="HEADERS_TOO_MANY")
    properties: dict[str, Value] | None = None
    group, group_sequence = found.group
    if group:
        properties = {GROUP_ID: group, GROUP_SEQ: Int32(group_sequence)}
    if SCHEDULED in found.properties:
        names = properties_of(found.properties)
        asked = {name: text(each) for name, each in names.items() if name.startswith(SCHEDULED.decode())}
        properties = {**(properties or {}), **asked}
    if len(found.native) > SECTION_BYTES_MAX // 2:
        raise ValueError(f"its properties and headers have more than {SECTION_BYTES_MAX // 2} bytes: use the body")
    return Message(
        destination,
        found.content,
        properties,
        "",
        min(found.priority, 9),
        found.persistent,
        0,
        max(found.expiration, 0),
        storable(duplicate_id),
        _CONTENT_OF[found.native[0]],
        0,
        Envelope("", None, "", "", 0, Native(NAME, found.native)),
    )


# -- the neutral form -------------------------------------------------------------------------------------------------


def _fields(message: Message) -> Structure:
    """All fields of `message` but its content, by its native data. Raises ValueError."""
    assert message.envelope is not None
    assert message.envelope.native is not None
    data = message.envelope.native.data
    if len(data) < HEAD.size:
        raise ValueError("the native form is cut off")
    type, _, _, _, cut = HEAD.unpack_from(data)
    cut += HEAD.size
    found = decode(b"".join((bytes((type,)), _BARE, data[HEAD.size : cut], b"\0", data[cut:])))
    if found.type not in _CONTENT_OF:
        raise ValueError(f"a message of type {found.type} is unknown")
    return found


def _head(message: Message) -> tuple[Properties, Envelope]:
    """Raises ValueError."""
    found = _fields(message)
    properties = {
        name: Text(value) if isinstance(value, str) else value
        for name, value in properties_of(found.get("properties")).items()
    }
    if group := found.get("group_id"):
        properties[GROUP_ID], properties[GROUP_SEQ] = group, Int32(found.get("group_sequence", 0))
    if user := found.get("user_id"):
        properties[USER_ID] = user
    correlation_id = found.get("correlation_id")
    return properties, Envelope(
        given_id(message) or id_text(found.get("id")),
        correlation_id,
        _reply_to(found.get("reply_to")),
        found.get("type", ""),
        max(0, found.get("timestamp", 0)),
    )


def _reply_to(destination: Structure | None) -> str:
    try:
        return ",".join(full_names(destination)) if destination is not None else ""
    except CommandError:  # the client's own affair, until somebody sends there
        return ""


def id_text(id: Structure | None) -> str:
    """A message's id as a JMS client shows it, "" = it has none."""
    if id is None:
        return ""
    if said := id.get("text"):
        return str(said) if said.startswith("ID:") else f"ID:{said}"
    producer = id.get("producer")
    return f"{producer_text(producer)}:{id.get('producer_sequence', 0)}" if producer is not None else ""


def producer_text(id: Structure) -> str:
    """A producer's id as text."""
    return f"{id.get('connection', '')}:{id.get('session', 0)}:{id.get('value', 0)}"


def producer_text_in(field: bytes) -> str:
    """The same of a producer's id as a field."""
    id = read_nested(FieldReader(field), VERSION_MAX)
    assert id is not None
    return producer_text(id)


def _content(message: Message, bytes_max: int) -> Content:
    """Raises ValueError; CostlyError where it would have more than `bytes_max`."""
    found, body = _fields(message), message.body
    if found.get("compressed") and body:
        body = inflated(body[4:] if found.type == table.BYTES_MESSAGE else body, bytes_max)
    if found.type == table.TEXT_MESSAGE:
        return Content(TEXT, to_utf8(body[4:]))
    if found.type in (table.MAP_MESSAGE, table.STREAM_MESSAGE) and len(body) > bytes_max:
        raise CostlyError
    if found.type == table.MAP_MESSAGE:
        return Content(MAP, encode_value(decode_map(body)))
    if found.type == table.STREAM_MESSAGE:
        return Content(STREAM, encode_value(decode_stream(body)))
    return Content(_CONTENT_OF[found.type], body)


def inflated(data: bytes, bytes_max: int) -> bytes:
    """The only place where anything is inflated. It makes no more than `bytes_max`, whatever `data` says: CostlyError
    for more, ValueError for what is damaged."""
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(data, bytes_max)
        is_larger = not inflater.eof and bool(inflater.decompress(inflater.unconsumed_tail, 1))
    except zlib.error as error:
        raise ValueError(f"a compressed body is damaged: {error}") from error
    if is_larger:
        raise CostlyError
    if not inflater.eof:
        raise ValueError("a compressed body is cut off")
    return found


def _without(data: bytes, names: Container[str]) -> bytes:
    """Native data without the properties of these names. Raises ValueError."""
    try:
        at = HEAD.size + HEAD.unpack_from(data)[-1]
        properties, end = _bytes(data, at)
    except (IndexError, struct.error) as error:
        raise ValueError("the native form is cut off") from error
    if not properties:
        return data
    kept = {name: value for name, value in decode_map(properties).items() if name not in names}
    return data[:at] + optional_bytes(encode_map(kept) if kept else None) + data[end:]


register(NAME, NativeReader(_head, _content, _without))

# -- messages of all protocols → dispatches ---------------------------------------------------------------------------


def is_openwire(message: Message) -> bool:
    """Did it come by this protocol?"""
    envelope = message.envelope
    return envelope is not None and envelope.native is not None and envelope.native.protocol == NAME


def own_id(message: Message, producer: str, sequence: int, name: int, store: str, version: int) -> bytes:
    """A MessageId as a field: that of a producer of ours, with the id that the message has as text, and the number
    `name`. The broker's own ids of messages begin with `store`."""
    text = given_id(message)
    if not text:
        text = id_text(_fields(message).get("id")) if is_openwire(message) else f"{store}-{message.seq}"
    id = structure(
        table.MESSAGE_ID,
        text=text,
        producer=structure(table.PRODUCER_ID, connection=producer),
        producer_sequence=sequence,
        broker_sequence=name,
    )
    return table.nested(id, version)


def given_id(message: Message) -> str:
    """The id that the broker has given to a message of this protocol instead of its own; "" = none."""
    return message.envelope.message_id if is_openwire(message) and message.envelope is not None else ""


class Written(NamedTuple):
    """A message inside a dispatch, in pieces: its body is not copied."""

    before: bytes
    body: bytes
    after: bytes


def write(message: Message, version: int, id: bytes) -> Written:
    """`message` as the field of a dispatch. `id` = a new MessageId for it, as a field; b"" = its own."""
    envelope = message.envelope
    native = envelope.native if envelope is not None else None
    if native is not None and native.protocol == NAME:
        if version >= 10 and (message.properties is None or message.properties.keys() <= _SEEN):
            return _as_it_came(message, native.data, id)
        return _changed(message, version, id)
    return _translated(message, version, id)


def dispatch_as_they_came(opening: bytes, messages: Sequence[Message], redelivered: int) -> list[bytes]:
    """The frames of dispatches to a client of version 10 or later, each in PIECES: `opening`, which is all that comes
    before the message, and copies of what came. They end before the first message that must be written in general:
    another protocol brought it, the broker has told it something, or it has another destination or no content."""
    pieces: list[bytes] = []
    destination, head, again = messages[0].destination, b"", INT.pack(redelivered)
    for message in messages:
        envelope = message.envelope
        if envelope is None or message.properties or message.destination != destination:
            break
        native = envelope.native
        if native is None or native.protocol != NAME:
            break
        data, body = native.data, message.body
        if not head or not data.startswith(head):  # as a run of one producer has it
            type, flags, _, id_end, cut = HEAD.unpack_from(data)
            if not flags & _HAS_CONTENT:
                break
            head, start, id_end, cut = data[: HEAD.size], opening + _STARTS[type], id_end + HEAD.size, cut + HEAD.size
            pack = _dispatch(len(start), id_end - 8 - HEAD.size, cut - id_end).pack
            beside = len(start) - HEAD.size + _LENGTH.size + INT.size
        size = len(body)
        before = pack(
            beside + len(data) + size, start, data[HEAD.size : id_end - 8], message.seq, data[id_end:cut], 1, size
        )
        pieces += (before, body, data[cut:], again)
    return pieces


@lru_cache(maxsize=256)
def _dispatch(start_bytes: int, before_bytes: int, after_bytes: int) -> struct.Struct:
    """The size of a frame, its start, the fields of a message before and after the number that is the last of its id,
    and the beginning of its content."""
    return struct.Struct(f">i{start_bytes}s{before_bytes}sq{after_bytes}s{_LENGTH.format[1:]}")


def _as_it_came(message: Message, data: bytes, id: bytes) -> Written:
    type, flags, id_start, id_end, cut = HEAD.unpack_from(data)
    start = HEAD.size
    if id:
        parts = data[start : start + id_start], id
    else:
        parts = data[start : start + id_end - 8], LONG.pack(message.seq)
    body = message.body
    content = _LENGTH.pack(1, len(body)) if flags & _HAS_CONTENT else b"\0"
    before = b"".join((_STARTS[type], *parts, data[start + id_end : start + cut], content))
    return Written(before, body, data[start + cut :])


def _changed(message: Message, version: int, id: bytes) -> Written:
    """A message that the broker has moved or told something, or for a client of an older version."""
    found = _fields(message)
    fields = found.fields
    more = {name: each for name, each in (message.properties or {}).items() if name not in _SEEN}
    original = more.pop(ORIGINAL_DESTINATION, None)
    if (user := more.pop(USER_ID, None)) is not None:
        fields["user_id"] = text(user)
    if more:
        with suppress(ValueError):  # of properties that are none: they stay as they came
            fields["properties"] = encode_map({**decode_map(fields["properties"]), **more})
    if is_destination(message.destination):
        if original is not None or more:
            fields["original_destination"] = fields["destination"]
        fields["destination"] = destination_of(message.destination)
    if not message.expires_ms:
        fields["expiration"] = 0
    fields["id"].fields["broker_sequence"] = message.seq
    assert message.envelope is not None
    assert message.envelope.native is not None
    has_content = message.envelope.native.data[1] & _HAS_CONTENT
    return _around(found, version, id, message.body if has_content else None)


def _around(found: Structure, version: int, id: bytes, body: bytes | None, prefix: bytes = b"") -> Written:
    """The fields of `found` before and behind its content, which is `prefix` and `body`; None = it has none."""
    before, after = [b"\1", bytes((found.type,))], list[bytes]()
    into = before
    for name, kind, since in FIELDS[found.type]:
        if name == "content":
            into.append(b"\0" if body is None else b"\1" + INT.pack(len(prefix) + len(body)) + prefix)
            into = after
        elif name == "id" and id:
            into.append(id)
        elif since <= version:
            into.append(table.write_field(kind, found.fields.get(name), version))
    return Written(b"".join(before), body or b"", b"".join(after))


def _translated(message: Message, version: int, id: bytes) -> Written:
    """A message that another protocol brought."""
    message = neutral(message, THREAD_BYTES_MAX)
    envelope, properties = message.envelope or Envelope(), dict(message.properties or {})
    if envelope.type == advisories.TYPE and message.destination.startswith(advisories.PREFIX):
        found = advisories.structure_of(message.destination, properties)
        body: bytes | None = None
        prefix = b""
    else:
        found, prefix, body = _by_content(message, properties)
    fields = found.fields
    group = properties.pop(GROUP_ID, None)
    if group is not None:
        fields["group_id"], fields["group_sequence"] = text(group), _number(properties.pop(GROUP_SEQ, 0))
    if (user := properties.pop(USER_ID, None)) is not None:
        fields["user_id"] = text(user)
    original = properties.pop(ORIGINAL_DESTINATION, None)
    if original is not None:
        fields["original_destination"] = destination_in(text(original))
    reply_to = properties.pop("reply-to", "") or envelope.reply_to
    fields.update(
        destination=destination_of(message.destination),
        persistent=message.persistent,
        priority=message.priority,
        expiration=message.expires_ms,
        timestamp=envelope.sent_ms or message.timestamp_ms,
        arrival=message.timestamp_ms,
        correlation_id=envelope.correlation_text,
        type=text(properties.pop("type", "")) or envelope.type or None,
    )
    if isinstance(reply_to, str) and is_destination(reply_to):
        fields["reply_to"] = destination_of(reply_to)
    if message.content_type and message.content_type != JSON_TYPE:
        properties.setdefault("content-type", message.content_type)
    if properties:
        fields["properties"] = encode_map(_fitting(properties))
    return _around(found, version, id, body, prefix)


def _by_content(message: Message, properties: Mapping[str, Value]) -> tuple[Structure, bytes, bytes | None]:  # noqa: ARG001
    """The message without its other fields, and its content: what is before the body, and the body."""
    body, content = message.body, message.content
    try:
        if content == TEXT:
            data = body if body.isascii() and b"\0" not in body else encode_text(body.decode("utf-8", "replace"))
            return structure(table.TEXT_MESSAGE), INT.pack(len(data)), data
        if content == MAP:
            return structure(table.MAP_MESSAGE), b"", encode_map(decode_values(body))
        if content == STREAM:
            values = decode_value(body)
            return structure(table.STREAM_MESSAGE), b"", encode_stream(values if isinstance(values, list) else [])
    except ValueError:  # no codec wrote it: the bytes are all that can be shown
        content = BYTES
    if content == NONE:
        return structure(table.MESSAGE), b"", None
    return structure(_TYPE_OF.get(content, table.BYTES_MESSAGE)), b"", body


def _fitting(properties: Mapping[str, Value]) -> dict[str, Nested]:
    """Those whose names fit into a primitive map."""
    return {name: each for name, each in properties.items() if len(name) <= 20_000}


def _number(value: Value) -> int:
    try:
        return max(-(1 << 31), min(int(text(value)), (1 << 31) - 1))
    except ValueError:
        return 0
