"""Window: what one side of a connection has sent and may have to say again, on another socket.

A stream is counted in bytes, from the first one of its connection on. The side that sends keeps copies of the last of
them until the other side has confirmed them. So nothing here knows frames, and a stream may be cut at any byte.
Invariant: at most `bytes_max` bytes are kept. Where the other side lacks more than that, `covers` says so.
"""

from __future__ import annotations

from collections import deque

CONFIRMATIONS = 4  # the other side confirms so often while it receives as much as the window holds
IDLE_BYTES = 1 << 10  # less than this waits for more before it is confirmed


class Window:
    """The bytes from number `start` to number `end` of a stream, which has no more of them yet."""

    __slots__ = ("_pieces", "bytes_max", "end", "start")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.start = 0
        self.end = 0
        self._pieces: deque[bytes] = deque()

    @property
    def held_bytes(self) -> int:
        return self.end - self.start

    def push(self, data: bytes) -> None:
        """`data` is sent: written, or lost on a socket that broke."""
        self._pieces.append(data)
        self.end += len(data)
        if self.end - self.start > self.bytes_max:
            self.shrink(self.bytes_max)

    def shrink(self, bytes_max: int) -> None:
        """Keep that many bytes at most. The oldest go: the other side is likely to have them."""
        while self.end - self.start > bytes_max:
            self.start += len(self._pieces.popleft())

    def confirm(self, count: int) -> None:
        """The other side has the first `count` bytes of the stream."""
        pieces = self._pieces
        while pieces and self.start + len(pieces[0]) <= count:
            self.start += len(pieces.popleft())

    def covers(self, count: int) -> bool:
        """Can all be repeated that a side lacks which has the first `count` bytes?"""
        return self.start <= count <= self.end

    def since(self, count: int) -> list[bytes]:
        """All bytes behind the first `count`. `covers(count)` must be true."""
        assert self.covers(count)
        found, at = [], self.start
        for piece in self._pieces:
            if at + len(piece) > count:
                found.append(piece[max(0, count - at) :])
            at += len(piece)
        return found


def step_bytes(window_bytes: int) -> int:
    """Received bytes after which a side confirms them to a peer whose window is that large."""
    return max(1, window_bytes // CONFIRMATIONS)
