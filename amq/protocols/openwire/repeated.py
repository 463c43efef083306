"""Messages and acknowledgements that follow each other in one shape: read in one loop, without a call for each.

A producer of many messages writes such frames, and so does a consumer that acknowledges each message. The shape of a
message is that of the first: the bytes that must be the same, and holes for the number of the command, the sequence of
the id, the timestamp, the content and the properties. Invariant: a frame that is taken here is one that the path of
single frames would have read, with the same result. All other frames, and incomplete ones, are left to that.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from amq.protocols.openwire import table
from amq.protocols.openwire.messages import HEAD, NO_TYPE_BUT_CONTENT, SAME_AT, SCHEDULED, TIME_AT, USUAL, USUAL_END
from amq.protocols.openwire.wire import INT

_PART_BYTES_MAX: Final = 16 << 10  # of body and properties, each: with larger ones the steps do not count
_LENGTH_BYTES: Final = 5  # a truth and a number, before content and properties


@lru_cache(maxsize=256)
def _message(first_bytes: int) -> struct.Struct:
    """A message up to its content: the size of the frame, its type, the number of the command, `first_bytes` that are
    the same in all up to the sequence, `SAME_AT` to `TIME_AT`, no type and content, and the size of that."""
    same_bytes, time_bytes = TIME_AT - SAME_AT, USUAL.size - 1 - TIME_AT
    return struct.Struct(f">IBi{first_bytes}s{SAME_AT}x{same_bytes}s{time_bytes}x2sI")


@lru_cache(maxsize=256)
def _acknowledgement(same_bytes: int, id_bytes: int) -> struct.Struct:
    """An acknowledgement: the size of the frame, its type, `same_bytes` that are the same in all up to its kind, and
    twice the `id_bytes` of an id and the number of the message; then how many these are, and that there is no cause."""
    return struct.Struct(f">IB4x{same_bytes}s{id_bytes}sq{id_bytes}sq4xB")


class Sends(NamedTuple):
    """Messages behind the first: their bodies, native data, numbers of their commands, and bytes of their properties.
    `end` = where they end."""

    bodies: list[bytes]
    natives: list[bytes]
    command_ids: list[int]
    properties: list[int]
    end: int


def sends(data: bytes, start: int, at: int, end: int, native: bytes, frames_max: int, properties_max: int) -> Sends:
    """The frames behind the message that stands from `start` to `end` in `data`, with its sequence at `at`, and has
    that native data; at most `frames_max`, as long as they have its shape."""
    kind, first, available = data[start], data[start + 5 : at], len(data)
    same, last = data[at + SAME_AT : at + TIME_AT], data[end - USUAL_END.size : end]
    bare, head = b"\0" + last, native[: HEAD.size]
    shape = _message(len(first))
    unpack, to_body, last_bytes = shape.unpack_from, shape.size, len(last)
    to_cut = to_body - _LENGTH_BYTES
    bodies: list[bytes] = []
    natives: list[bytes] = []
    command_ids: list[int] = []
    properties: list[int] = []
    position = end
    for _ in range(frames_max):
        body = position + to_body
        if body >= available:
            break
        frame_bytes, of_kind, command_id, beginning, common, typed, body_bytes = unpack(data, position)
        if of_kind != kind or beginning != first or common != same or typed != NO_TYPE_BUT_CONTENT:
            break
        rest, stop = body + body_bytes, position + 4 + frame_bytes
        if stop > available or body_bytes > _PART_BYTES_MAX:
            break
        tail = data[rest:stop]
        size = 0
        if tail != bare:
            size = len(tail) - last_bytes - _LENGTH_BYTES
            if not 0 <= size <= _PART_BYTES_MAX or not tail[0] or not tail.endswith(last):
                break
            if INT.unpack_from(tail, 1)[0] != size or SCHEDULED in tail:
                break
            if size > properties_max and INT.unpack_from(tail, _LENGTH_BYTES)[0] > properties_max:
                break
        bodies.append(data[body:rest])
        natives.append(head + data[position + 10 : position + to_cut] + tail)
        command_ids.append(command_id)
        properties.append(size)
        position = stop
    return Sends(bodies, natives, command_ids, properties, position)


def acknowledged(data: bytes, start: int, at: int, end: int, frames_max: int) -> tuple[list[int], int]:
    """Names of the messages that frames of the shape of one acknowledgement settle, each frame one message and without
    an answer; and where these frames end. They stand behind that acknowledgement, which reaches from `start` to `end`
    in `data`, with its kind at `at`. At most `frames_max`."""
    same, id_bytes = data[start + 5 : at + 1], 32 + (data[at + 7] << 8 | data[at + 8])
    shape = _acknowledgement(len(same), id_bytes)
    size, kind, id_begin = shape.size - 4, table.MESSAGE_ACK, data[at + 1 : at + 9]
    names: list[int] = []
    count = min(frames_max, (len(data) - end) // shape.size)
    found = memoryview(data)[end : end + count * shape.size]
    for frame_bytes, of_kind, common, id, name, again, last, cause in shape.iter_unpack(found):
        if frame_bytes != size or of_kind != kind or common != same or not id.startswith(id_begin):
            break
        if id != again or name != last or cause:
            break
        names.append(name)
    return names, end + len(names) * shape.size
