"""Cuts the stream of a client into frames: a size of four bytes, and so many bytes.

Invariant: at most one frame and one read are held; a frame that is larger than the limit is refused as soon as its size
is here; a large one is gathered in pieces and joined once.
"""

from __future__ import annotations

from amq.errors import ProtocolError
from amq.protocols.openwire.wire import INT


class Frames:
    """`bytes_max` = of one frame, without its size; `data` has come, and is used up to `at`; the code that cuts a frame
    out moves that on."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.data = b""
        self.at = 0
        self._size = 0  # of a frame that is gathered in pieces, 0 = none is
        self._pieces: list[bytes] = []
        self._gathered = 0

    @property
    def pending(self) -> bool:
        """Has a frame begun that is not complete?"""
        return bool(self._size or len(self.data) > self.at)

    def push(self, data: bytes) -> None:
        """`data` has come."""
        if self._size:
            self._pieces.append(data)
            self._gathered += len(data)
            if self._gathered < self._size:
                return
            data, self._pieces, self._gathered, self._size = b"".join(self._pieces), [], 0, 0
            self.data, self.at = data, 0
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
        if not 0 < size <= self.bytes_max:
            raise ProtocolError(
                f"a frame of {size} bytes: this broker takes up to {self.bytes_max} (maxFrameSize)"
                if size > 0 else f"a frame of {size} bytes",
                code="FRAME_TOO_LARGE" if size > 0 else "FRAME_INVALID",
            )  # fmt: skip
        end = at + INT.size + size
        if end > len(data):
            if not self._size:
                self._pieces, self._gathered, self._size = [data[at:]], left, INT.size + size
                self.data, self.at = b"", 0
            return None
        self.at = end
        return data[at + INT.size : end]

    def clear(self) -> None:
        """Let go of what was buffered."""
        self.data, self.at, self._size, self._pieces, self._gathered = b"", 0, 0, [], 0
