"""Frames of a link: bytes in, frames out.

A frame is a checksum, the number of bytes of its head and of its body, its kind, its head and its body. The first four
bytes of the head are the number of the client's connection, 0 = the frame is about the link itself. The checksum covers
all but the body: so no damage makes another message of one, or two, and a body has what it has on the client's own
socket, the checksums of TCP or TLS.

Invariants: a frame is at most `FRAME_BYTES_MAX` long, which is known before any memory is taken; garbage is a
`LinkError`, and nothing else.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, Final, NamedTuple

from amq.core.errors import ProtocolError
from amq.journal.format import crc32

SLICE_BYTES: Final = 64 << 10  # more goes in parts, so that other connections have their turn
FRAME_BYTES_MAX: Final = SLICE_BYTES + 64
NUMBER: Final = struct.Struct("<I")
NUMBER_BYTES: Final = NUMBER.size
LEAD: Final = struct.Struct("<IIIB")  # checksum, bytes of the head, of the body, kind
LEAD_BYTES: Final = LEAD.size
_COVERED: Final = struct.Struct("<IIB")  # the part of it that the checksum covers
_CHECKSUM: Final = struct.Struct("<I")
JOINED_BYTES_MAX: Final = 16 << 10  # a longer body is not copied behind the head
LINK: Final = 0  # the number of what is about the link itself


class LinkError(ProtocolError):
    """The other end of a link broke the protocol, is of another version, or has not proved that it knows the secret."""

    code = "LINK_BROKEN"


class Kind(IntEnum):
    """The kinds of frames: of both ends, of the gateway, of the home."""

    BEAT = 1  # nothing but a sign of life
    GRANT = 2  # the other end may send so many bytes more
    LARGE = 3  # what follows comes in parts: its kind, and the bytes of its head and of its body
    PART = 4
    CLOSE = 5  # the connection has ended at this end; the last frame of it from here

    OPEN = 16
    LOST = 17  # the client has no socket, or has one again
    SESSION = 18  # the commands behind it are those of that session
    COMMAND = 19
    SEND = 20
    SEND_TO_MANY = 21
    SEND_RUN = 22
    SEND_MANY = 23
    SETTLE = 24
    SETTLE_RUN = 25
    TRANSFER = 26

    WELCOME = 32
    DELIVER = 33
    DELIVER_MANY = 34
    DELIVER_RECORDS = 35
    BROWSED = 36
    CONFIRM = 37
    CONFIRM_MANY = 38
    FAIL = 39


class LinkFrame(NamedTuple):
    """One frame, or all parts of a large one. `data` is its head, which begins with the number of the connection. The
    body of a part is a view of what was read."""

    kind: int
    data: bytes
    body: Any = b""


def framed(kind: int, data: bytes, body: bytes | memoryview = b"") -> bytes:
    """The bytes of a frame."""
    covered = _COVERED.pack(len(data), len(body), kind) + data
    return b"".join((_CHECKSUM.pack(crc32(covered)), covered, body))


def frame_pieces(kind: int, data: bytes, body: bytes | memoryview) -> tuple[bytes, bytes | memoryview]:
    """The same in two pieces: the body is not copied."""
    assert len(data) + len(body) <= FRAME_BYTES_MAX
    covered = _COVERED.pack(len(data), len(body), kind) + data
    return _CHECKSUM.pack(crc32(covered)) + covered, body


class LinkFrames:
    """Cuts what is read into frames. Their bytes are copied once, or twice where a read ends within them."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def held_bytes(self) -> int:
        """The bytes of a frame that is not complete."""
        return len(self._rest)

    def receive(self, data: bytes) -> list[LinkFrame]:
        """The frames that `data` completes. Raises LinkError."""
        found: list[LinkFrame] = []
        at = self._complete(data, found) if self._rest else 0
        end = len(data)
        while end - at >= LEAD_BYTES:
            crc, head_bytes, body_bytes, kind = LEAD.unpack_from(data, at)
            start = at + LEAD_BYTES
            middle = start + head_bytes
            stop = middle + body_bytes
            if head_bytes < NUMBER_BYTES or stop - start > FRAME_BYTES_MAX:
                raise _misfit(head_bytes, body_bytes)
            if stop > end:
                break
            if crc32(data[at + 4 : middle]) != crc:
                raise _damaged()
            body = memoryview(data)[middle:stop] if kind == Kind.PART else data[middle:stop]
            found.append(LinkFrame(kind, data[start:middle], body))
            at = stop
        if at < end:
            self._rest += data[at:]
        return found

    def _complete(self, data: bytes, found: list[LinkFrame]) -> int:
        """Go on with the frame that has begun. Returns how much of `data` that took."""
        rest, at = self._rest, 0
        if len(rest) < LEAD_BYTES:
            at = LEAD_BYTES - len(rest)
            rest += data[:at]
            if len(rest) < LEAD_BYTES:
                return len(data)
        crc, head_bytes, body_bytes, kind = LEAD.unpack_from(rest)
        if head_bytes < NUMBER_BYTES or head_bytes + body_bytes > FRAME_BYTES_MAX:
            raise _misfit(head_bytes, body_bytes)
        missing: int = LEAD_BYTES + head_bytes + body_bytes - len(rest)
        rest += data[at : at + missing]
        if len(data) < at + missing:
            return len(data)
        middle = LEAD_BYTES + head_bytes
        with memoryview(rest) as view:
            is_damaged = crc32(view[4:middle]) != crc
            frame = LinkFrame(kind, bytes(view[LEAD_BYTES:middle]), bytes(view[middle:]))
        rest.clear()
        if is_damaged:
            raise _damaged()
        found.append(frame)
        return at + missing


def _misfit(head_bytes: int, body_bytes: int) -> LinkError:
    sizes = f"{head_bytes} and {body_bytes} bytes"
    return LinkError(f"a frame of a link has {sizes}: the other end does not speak this protocol")


def _damaged() -> LinkError:
    return LinkError("a frame of a link fails its checksum: the network or a proxy damaged it")
