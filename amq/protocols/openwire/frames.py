"""Cuts the stream of a client into frames: a size of four bytes, then that number of bytes.

Invariant: at most one frame and one read are held; a frame that is larger than the limit is refused as soon as its size
is here, or, once the client has logged in, its beginning; a large one is gathered in pieces and joined once.
"""

from __future__ import annotations

from typing import Final

from amq.core.errors import ProtocolError
from amq.protocols.openwire.wire import INT

HEAD_BYTES: Final = 16 << 10  # of a frame that is too large: they name its producer, destination and transaction


class TooLarge(ProtocolError):
    """A frame is larger than the limit. `head` is its beginning; the rest is thrown away as it
    comes."""

    code = "FRAME_TOO_LARGE"

    def __init__(self, size: int, bytes_max: int, head: bytes) -> None:
        super().__init__(f"a frame of {size} bytes: this broker takes up to {bytes_max} (maxFrameSize)")
        self.size = size
        self.head = head


class Frames:
    """`bytes_max` = of one frame, without its size; `data` has come, and is used up to `at`; the code that cuts a frame
    out moves that on. `skips`: the stream goes on after a frame that is too large."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.data = b""
        self.at = 0
        self.skips = False
        self.to_skip = 0  # bytes of a frame that are still thrown away
        self.gathers = 0  # bytes of a frame that is gathered in pieces, 0 = none is
        self._pieces: list[bytes] = []
        self._gathered = 0

    @property
    def pending(self) -> bool:
        """Has a frame begun that is not complete?"""
        return bool(self.gathers or self.to_skip or len(self.data) > self.at)

    def push(self, data: bytes) -> None:
        """`data` has come."""
        if not data:
            return
        if self.gathers:
            self._pieces.append(data)
            self._gathered += len(data)
            if self._gathered < self.gathers:
                return
            data, self._pieces, self._gathered, self.gathers = b"".join(self._pieces), [], 0, 0
            self.data, self.at = data, 0
        elif self.to_skip:
            self.data, self.at = data, min(self.to_skip, len(data))
            self.to_skip -= self.at
        elif self.at < len(self.data):
            self.data, self.at = self.data[self.at :] + data, 0
        else:
            self.data, self.at = data, 0

    def next_frame(self) -> bytes | None:
        """The next frame without its size, None = it is not complete. Raises ProtocolError."""
        data, at = self.data, self.at
        left = len(data) - at
        if left < INT.size:
            return None
        (size,) = INT.unpack_from(data, at)
        if size <= 0:
            raise ProtocolError(f"a frame of {size} bytes", code="FRAME_INVALID")
        end = at + INT.size + size
        if size > self.bytes_max:
            if not self.skips:
                raise TooLarge(size, self.bytes_max, b"")
            shown = INT.size + min(size, HEAD_BYTES)
            if left < shown:
                self._gather(shown)
                return None
            self.at = min(end, len(data))
            self.to_skip = end - self.at
            raise TooLarge(size, self.bytes_max, data[at + INT.size : at + shown])
        if end > len(data):
            if not self.gathers:
                self._gather(INT.size + size)
            return None
        self.at = end
        return data[at + INT.size : end]

    def _gather(self, size: int) -> None:
        """Go on when that number of bytes is here."""
        data = self.data[self.at :]
        self._pieces, self._gathered, self.gathers = [data], len(data), size
        self.data, self.at = b"", 0

    def clear(self) -> None:
        """Let go of what was buffered."""
        self.data, self.at, self.to_skip, self.gathers, self._pieces, self._gathered = b"", 0, 0, 0, [], 0
