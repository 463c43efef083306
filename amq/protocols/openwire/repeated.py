"""Messages and acknowledgements that follow each other in one shape: read in one loop, without a call for each.

A producer of many messages writes such frames, and so does a consumer that acknowledges each message. The shape of a
message is that of the first: the bytes that must be the same, and holes for the number of the command, the sequence of
the id, the timestamp, the content and the properties. Invariant: a frame that is taken here is one that the path of
single frames would have read, with the same result. All other frames, and incomplete ones, are left to that.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from amq.protocols.openwire import table
from amq.protocols.openwire.consumers import USUAL_ID
from amq.protocols.openwire.messages import HEAD, SCHEDULED, USUAL, USUAL_END
from amq.protocols.openwire.wire import INT, LONG

_PART_BYTES_MAX: Final = 16 << 10  # of body and properties, each: with larger ones the steps do not count
# Behind the place of the sequence: fields that are the same in all, then the timestamp, then "no type" and "content".
_SAME_AT: Final = 16
_TIME_AT: Final = 34
_BODY_AT: Final = USUAL.size + 5
_NO_TYPE_BUT_CONTENT: Final = b"\0\1"


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
    kind, first, offset, available = data[start], data[start + 5 : at], at - start, len(data)
    same, last = data[at + _SAME_AT : at + _TIME_AT], data[end - USUAL_END.size : end]
    head = native[: HEAD.size]
    bodies: list[bytes] = []
    natives: list[bytes] = []
    command_ids: list[int] = []
    properties: list[int] = []
    unpack, position, end_bytes = INT.unpack_from, end, USUAL_END.size
    while len(bodies) < frames_max and position + 4 < available:
        begin = position + 4
        stop = begin + unpack(data, position)[0]
        at = begin + offset
        cut, body = at + USUAL.size, at + _BODY_AT
        close = stop - end_bytes
        if stop > available or body >= close or data[begin] != kind or not data.startswith(first, begin + 5):
            break
        if data[cut - 1 : cut + 1] != _NO_TYPE_BUT_CONTENT or not data.startswith(same, at + _SAME_AT):
            break
        rest = body + unpack(data, cut + 1)[0]
        if not body <= rest < close or rest - body > _PART_BYTES_MAX or not data.startswith(last, close):
            break
        size = 0
        if data[rest]:
            size = close - rest - 5
            if not 0 <= size <= _PART_BYTES_MAX or unpack(data, rest + 1)[0] != size:
                break
            if (size > properties_max and unpack(data, rest + 5)[0] > properties_max) or (
                data.find(SCHEDULED, rest, close) >= 0
            ):
                break
        elif rest + 1 != close:
            break
        bodies.append(data[body:rest])
        natives.append(b"%b%b%b" % (head, data[begin + 6 : cut], data[rest:stop]))
        command_ids.append(unpack(data, begin + 1)[0])
        properties.append(size)
        position = stop
    return Sends(bodies, natives, command_ids, properties, position)


def acknowledged(data: bytes, start: int, at: int, end: int, frames_max: int) -> tuple[list[int], int]:
    """Names of the messages that frames of the shape of one acknowledgement settle, each frame one message and without
    an answer; and where these frames end. They stand behind that acknowledgement, which reaches from `start` to `end`
    in `data`, with its kind at `at`. At most `frames_max`."""
    same, offset, available = data[start + 5 : at + 1], at - start, len(data)
    names: list[int] = []
    unpack = INT.unpack_from
    while len(names) < frames_max and end + 4 < available:
        begin = end + 4
        stop, at = begin + unpack(data, end)[0], begin + offset
        if stop > available or stop < at + 9 or data[begin] != table.MESSAGE_ACK or data[stop - 1]:
            break
        if not data.startswith(same, begin + 5) or not data.startswith(USUAL_ID, at + 1):
            break
        last = at + 41 + (data[at + 7] << 8 | data[at + 8])
        if stop != last + last - at + 4 or not data.startswith(data[at + 1 : last], last):
            break
        names.append(LONG.unpack_from(data, last - 8)[0])
        end = stop
    return names, end
