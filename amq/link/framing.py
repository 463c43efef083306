"""Frames of a link: bytes in, frames out.

A frame is framed as a record of the journal is: the number of its bytes, a checksum over its kind and its bytes, its
kind. Its first four bytes are the number of the client's connection, 0 = the frame is about the link itself.

Invariants: a frame is at most `FRAME_BYTES_MAX` long, which is known before any memory is taken; garbage is a
`LinkError`, and nothing else.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from amq.core.errors import ProtocolError
from amq.journal.format import RECORD, RECORD_BYTES, crc32

SLICE_BYTES: Final = 64 << 10  # more goes in parts, so that other connections have their turn
FRAME_BYTES_MAX: Final = SLICE_BYTES + 64
NUMBER: Final = struct.Struct("<I")
NUMBER_BYTES: Final = NUMBER.size
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

    WELCOME = 32
    DELIVER = 33
    DELIVER_MANY = 34
    DELIVER_RECORDS = 35
    BROWSED = 36
    CONFIRM = 37
    CONFIRM_MANY = 38
    FAIL = 39


class LinkFrame(NamedTuple):
    """One frame, or all parts of a large one. `data` begins with the number of the connection. `body` is the end of it
    where that came apart from the rest."""

    kind: int
    data: bytes
    body: bytes = b""


def framed(kind: int, data: bytes, body: bytes | memoryview = b"") -> bytes:
    """The bytes of a frame, whose content is `data` and `body`. They are copied once."""
    size = len(data) + len(body)
    assert size <= FRAME_BYTES_MAX
    return b"".join((RECORD.pack(size, crc32(body, crc32(data, kind)), kind), data, body))


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
        while end - at >= RECORD_BYTES:
            size, crc, kind = RECORD.unpack_from(data, at)
            if not NUMBER_BYTES <= size <= FRAME_BYTES_MAX:
                raise _too_large(size)
            stop = at + RECORD_BYTES + size
            if stop > end:
                break
            body = data[at + RECORD_BYTES : stop]
            if crc32(body, kind) != crc:
                raise _damaged()
            found.append(LinkFrame(kind, body))
            at = stop
        if at < end:
            self._rest += data[at:]
        return found

    def _complete(self, data: bytes, found: list[LinkFrame]) -> int:
        """Go on with the frame that has begun. Returns how much of `data` that took."""
        rest, at = self._rest, 0
        if len(rest) < RECORD_BYTES:
            at = RECORD_BYTES - len(rest)
            rest += data[:at]
            if len(rest) < RECORD_BYTES:
                return len(data)
        size, crc, kind = RECORD.unpack_from(rest)
        if not NUMBER_BYTES <= size <= FRAME_BYTES_MAX:
            raise _too_large(size)
        missing: int = RECORD_BYTES + size - len(rest)
        rest += data[at : at + missing]
        if len(data) < at + missing:
            return len(data)
        body = bytes(memoryview(rest)[RECORD_BYTES:])
        rest.clear()
        if crc32(body, kind) != crc:
            raise _damaged()
        found.append(LinkFrame(kind, body))
        return at + missing


def _too_large(size: int) -> LinkError:
    return LinkError(f"a frame of a link has {size} bytes: the other end does not speak this protocol")


def _damaged() -> LinkError:
    return LinkError("a frame of a link fails its checksum: the network or a proxy damaged it")
