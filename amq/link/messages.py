"""Messages on a link: one, or many in columns. Their heads are those of the journal's records.

Invariant: a message that is read is equal to the one that was written, with the types of all its values; bytes that
were not written here are a ValueError, a struct.error or a RecursionError.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise, repeat
from typing import Final

from amq.core.message import Envelope, HeaderColumns, Message, stood
from amq.core.message_run import MessageRun
from amq.journal.format import RECORD_BYTES
from amq.journal.records.message import MESSAGE_HEAD, decode_message
from amq.journal.records.section import encode_section

_LEAD: Final = struct.Struct("<IB")  # bytes of the name of the destination, is it persistent?
_COLUMNS: Final = struct.Struct("<IIB")  # messages, bytes of `like`, `_NATIVES` or not
_NATIVES, _DIFFERENT = 1, 2
_NOTHING: Final = Envelope()[:5]
ROWS_MAX: Final = 1 << 20  # of a column


def head_of(message: Message) -> bytes:
    """All of `message` but its body. Raises ValueError, struct.error."""
    flags = message.content
    if message.envelope is not None:
        flags, properties = encode_section(message)
    else:
        properties = json.dumps(message.properties).encode() if message.properties else b""
    name = message.destination.encode("utf-8", "surrogatepass")
    content_type, duplicate_id = message.content_type.encode(), message.duplicate_id.encode()
    head = MESSAGE_HEAD.pack(
        message.seq,
        0,
        flags,
        message.priority,
        message.timestamp_ms,
        message.expires_ms,
        len(content_type),
        len(duplicate_id),
        len(properties),
    )
    lead = _LEAD.pack(len(name), message.persistent)
    return b"".join((lead, name, head, content_type, duplicate_id, properties))


def message_at(data: bytes, at: int, body: bytes, stop: int | None = None) -> Message:
    """The message with that body, whose head begins at `at`, which is at least 4, and ends at `stop`."""
    size, persistent = _LEAD.unpack_from(data, at)
    start = at + _LEAD.size
    name = str(data[start : start + size], "utf-8", "surrogatepass")
    stop = len(data) if stop is None else stop
    message = decode_message(data, start + size - RECORD_BYTES, stop, name)
    if message.body:
        raise ValueError("there are bytes after the head of a message")
    message.persistent = persistent == 1
    message.body = body
    return message


def columns_of(messages: Sequence[Message]) -> tuple[bytes, bytes]:
    """The columns of `messages`, at least one, and their bodies. Raises ValueError, struct.error."""
    if messages.__class__ is MessageRun:
        seqs, times = column_of("Q", messages.seqs), column_of("Q", messages.times)
        return _run_of(messages.like, messages.bodies, None, seqs, times), b"".join(messages.bodies)
    bodies = [message.body for message in messages]
    first, natives = messages[0], None
    if first.envelope is not None and first.envelope.native is not None:
        natives = _natives_of(messages)
        is_alike = natives is not None
    else:
        is_alike = _are_alike(messages)
    if not is_alike:
        heads = [head_of(message) for message in messages]
        lead = _COLUMNS.pack(len(messages), 0, _DIFFERENT)
        sizes = column_of("I", [*map(len, bodies)]), column_of("I", [*map(len, heads)])
        return b"".join((lead, *sizes, *heads)), b"".join(bodies)
    seqs = column_of("Q", [message.seq for message in messages])
    times = column_of("Q", [message.timestamp_ms for message in messages])
    return _run_of(first.with_body(b""), bodies, natives, seqs, times), b"".join(bodies)


def _are_alike(messages: Sequence[Message]) -> bool:
    """Do they differ in seq, time and body alone? They share their properties and envelopes then."""
    first = messages[0]
    destination, content_type, priority, persistent = (
        first.destination,
        first.content_type,
        first.priority,
        first.persistent,
    )
    expires_ms, content, properties, envelope = first.expires_ms, first.content, first.properties, first.envelope
    for each in messages:
        if (
            each.properties is not properties
            or each.envelope is not envelope
            or each.duplicate_id
            or (each.destination is not destination and each.destination != destination)
            or (each.content_type is not content_type and each.content_type != content_type)
            or each.priority != priority
            or each.persistent is not persistent
            or (each.expires_ms is not expires_ms and each.expires_ms != expires_ms)
            or each.content != content
        ):
            return False
    return True


def _natives_of(messages: Sequence[Message]) -> list[bytes] | None:
    """The data of the native forms of messages that have nothing else and are otherwise alike; None = they have."""
    found, facts = [], set()
    for each in messages:
        envelope = each.envelope
        native = envelope.native if envelope is not None else None
        if native is None or envelope is None or envelope[:5] != _NOTHING or each.properties:
            return None
        found.append(native.data)
        facts.add(
            (
                each.destination,
                each.content_type or each.duplicate_id,
                each.priority,
                each.persistent,
                each.expires_ms,
                each.content,
                native.protocol,
            )
        )
    return found if len(facts) == 1 and not (messages[0].content_type or messages[0].duplicate_id) else None


def messages_at(data: bytes, at: int, bodies: bytes) -> Sequence[Message]:
    """The messages of the columns that begin at `at`, with these bodies."""
    count, _, flags = _COLUMNS.unpack_from(data, at)
    if flags != _DIFFERENT:
        like, at = _like_at(data, at)
        seqs, at = column_at("Q", data, at, count)
        times, at = column_at("Q", data, at, count)
        found, natives = _bodies_at(data, at, count, flags, bodies)
        if natives is None:
            return MessageRun(like, seqs, times, found, b"\0" in bodies)
        return stood(like, found, (seqs, times, repeat(0), repeat(0)), natives)
    sizes, at = column_at("I", data, at + _COLUMNS.size, count)
    head_sizes, at = column_at("I", data, at, count)
    ends = [*accumulate(head_sizes, initial=at)]
    if ends[-1] != len(data):
        raise ValueError("a head is cut off, or there are bytes after the heads")
    places = zip(_cut(bodies, 0, sizes), pairwise(ends), strict=True)
    return [message_at(data, begin, body, end) for body, (begin, end) in places]


def run_of(like: Message, bodies: list[bytes], natives: list[bytes] | None) -> tuple[bytes, bytes]:
    """The columns of messages that differ in their bodies and natives alone, and the bodies."""
    return _run_of(like, bodies, natives), b"".join(bodies)


def run_at(data: bytes, at: int, bodies: bytes) -> tuple[Message, list[bytes], list[bytes] | None]:
    """The run that `run_of` was given."""
    count, _, flags = _COLUMNS.unpack_from(data, at)
    if flags == _DIFFERENT:
        raise ValueError("the messages of a run are not alike")
    like, at = _like_at(data, at)
    return like, *_bodies_at(data, at, count, flags, bodies)


def _run_of(like: Message, bodies: Sequence[bytes], natives: list[bytes] | None, *columns: bytes) -> bytes:
    """All columns but the bodies; `columns` = the first ones."""
    head = head_of(like)
    lead = _COLUMNS.pack(len(bodies), len(head), _NATIVES if natives is not None else 0)
    sizes = column_of("I", [*map(len, bodies)])
    if natives is None:
        return b"".join((lead, head, *columns, sizes))
    return b"".join((lead, head, *columns, sizes, column_of("I", [*map(len, natives)]), *natives))


def _like_at(data: bytes, at: int) -> tuple[Message, int]:
    """The message that all of a run are like, and where it ends."""
    _, size, flags = _COLUMNS.unpack_from(data, at)
    start = at + _COLUMNS.size
    stop = start + size
    if stop > len(data):
        raise ValueError("a head is cut off")
    like = message_at(data, start, b"", stop)
    if flags and (like.envelope is None or like.envelope.native is None):
        raise ValueError("messages with native forms are like one without")
    return like, stop


def _bodies_at(data: bytes, at: int, count: int, flags: int, bodies: bytes) -> tuple[list[bytes], list[bytes] | None]:
    """Bodies, and the data of native forms, with which `data` ends."""
    sizes, at = column_at("I", data, at, count)
    natives = None
    if flags == _NATIVES:
        native_sizes, at = column_at("I", data, at, count)
        natives = _cut(data, at, native_sizes)
    elif flags:
        raise ValueError("columns of this kind are unknown")
    elif at != len(data):
        raise ValueError("there are bytes after the columns")
    return _cut(bodies, 0, sizes), natives


def _cut(data: bytes, at: int, sizes: Sequence[int]) -> list[bytes]:
    """The pieces of these sizes, of which `data` consists from `at` on."""
    size = sizes[0]
    if size and sizes.count(size) == len(sizes) and len(data) - at == size * len(sizes):  # in half of the time
        return [piece for (piece,) in struct.iter_unpack(f"{size}s", memoryview(data)[at:])]
    ends = [*accumulate(sizes, initial=at)]
    if ends[-1] != len(data):
        raise ValueError("the pieces are not as long as their sizes say")
    return [data[begin:end] for begin, end in pairwise(ends)]


def column_of(code: str, values: Sequence[int]) -> bytes:
    """Numbers of 32 (`I`) or 64 (`Q`) bits. Raises ValueError."""
    try:
        column = array(code, values)
    except (OverflowError, TypeError) as error:
        raise ValueError("a column has what is not one of its numbers") from error
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def column_at(code: str, data: bytes, at: int, count: int) -> tuple[array[int], int]:
    """A column of `count` numbers, and where it ends."""
    column: array[int] = array(code)
    stop = at + count * column.itemsize
    if not 0 < count <= ROWS_MAX or stop > len(data):
        raise ValueError("a column is cut off, or has too many rows")
    column.frombytes(data[at:stop])
    if sys.byteorder == "big":
        column.byteswap()
    return column, stop


def numbers_at(data: bytes, at: int) -> list[int]:
    """The column of numbers of 64 bits that ends with `data`."""
    count, odd = divmod(len(data) - at, 8)
    if odd:
        raise ValueError("a column is cut off")
    return column_at("Q", data, at, count)[0].tolist()


def packed_headers(headers: HeaderColumns | None) -> bytes:
    """As JSON, which keeps halves of surrogate pairs; b"" = there are none."""
    if headers is None:
        return b""
    return json.dumps([headers.lists, headers.which.decode("latin-1"), headers.values]).encode()


def read_headers(data: bytes, count: int) -> HeaderColumns | None:
    """The headers of `count` messages. Raises ValueError, RecursionError."""
    if not data:
        return None
    found = json.loads(data)
    match found:
        case [list(lists), str(which), list(values)]:
            pass
        case _:
            raise ValueError("headers are a list of three")
    if any(each.__class__ is not list for each in lists):
        raise ValueError("lists of names are lists")
    if {*map(type, values)} - {str} or {type(name) for names in lists for name in names} - {str}:
        raise ValueError("names and values of headers are texts")
    rows = which.encode("latin-1") or bytes(1) * count
    if len(rows) != count or max(rows, default=0) >= len(lists):
        raise ValueError("headers name a list that there is not")
    if sum(rows.count(number) * len(names) for number, names in enumerate(lists) if number < 256) != len(values):
        raise ValueError("headers are not as many as their lists say")
    return HeaderColumns(tuple(map(tuple, lists)), which.encode("latin-1"), values)
