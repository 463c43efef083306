"""The two directions of one connection on a link: `Outlet` sends, `Inlet` receives.

The window: `Outlet.flight_bytes` are sent and not yet granted back. An end sends small frames at once, and its owner
stops asking for more while the window is full; a large frame goes in parts as the window allows, and what follows it
waits behind it. So a connection whose other end is slow holds itself back, and a large body lets other connections
pass.

Invariants: frames of one connection arrive in the order in which they were put; an end holds of a connection what its
window allows, what was put while it was full, and one large frame of at most `LARGE_BYTES_MAX`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from io import BytesIO
from typing import Final

from amq.journal.format import RECORD_BYTES_MAX
from amq.link import calls
from amq.link.framing import (
    JOINED_BYTES_MAX,
    NUMBER_BYTES,
    SLICE_BYTES,
    Kind,
    LinkError,
    LinkFrame,
    frame_pieces,
    framed,
)

WINDOW_BYTES: Final = 512 << 10
GRANT_BYTES: Final = WINDOW_BYTES // 4  # fewer are not granted, since each grant is a frame
LARGE_BYTES_MAX: Final = RECORD_BYTES_MAX  # no store has a larger message
_PARTED: Final = frozenset(Kind) - {Kind.BEAT, Kind.GRANT, Kind.LARGE, Kind.PART, Kind.CLOSE, Kind.WELCOME}


class Outlet:
    """`write` takes the bytes of a frame, or its two pieces. `emptied` is called when the last part of large frames is
    written."""

    def __init__(self, number: int, write: Callable[..., None], emptied: Callable[[], None]) -> None:
        self._number = number
        self._write = write
        self._emptied = emptied
        # Frames and parts: kind, head, body.
        self._waiting: deque[tuple[int, bytes, bytes | memoryview]] = deque()
        self.flight_bytes = 0

    @property
    def waits(self) -> bool:
        """Is anything not written yet?"""
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        return self.flight_bytes >= WINDOW_BYTES or bool(self._waiting)

    def put(self, kind: int, data: bytes, body: bytes = b"") -> None:
        """Send a frame, whose `data` begins with the number of the connection, in parts where it is large."""
        size = len(data) + len(body)
        if size <= SLICE_BYTES:
            if self._waiting:
                self._waiting.append((kind, data, body))
            else:
                self.flight_bytes += size
                if len(body) <= JOINED_BYTES_MAX:
                    self._write(framed(kind, data, body))
                else:
                    self._write(*frame_pieces(kind, data, body))
            return
        number = calls.numbered(self._number)
        self._waiting.append((Kind.LARGE, calls.large(self._number, kind, len(data), len(body)), b""))
        for piece in (data, body):
            view = memoryview(piece)
            parts = [view[at : at + SLICE_BYTES] for at in range(0, len(piece), SLICE_BYTES)]
            self._waiting += [(Kind.PART, number, part) for part in parts]
        self._go_on()

    def granted(self, size: int) -> None:
        """The other end is ready for so many bytes more. Raises LinkError."""
        if size > self.flight_bytes:
            raise LinkError("the other end of a link grants more than it was sent")
        self.flight_bytes -= size
        if self._waiting:
            self._go_on()

    def _go_on(self) -> None:
        waiting = self._waiting
        while waiting and self.flight_bytes < WINDOW_BYTES:
            kind, data, body = waiting.popleft()
            self.flight_bytes += len(data) + len(body)
            self._write(*frame_pieces(kind, data, body))
        if not waiting:
            self._emptied()

    def close(self) -> None:
        """Nothing is sent any more."""
        self._waiting.clear()
        self._emptied = _nothing  # it refers to the owner of this


def _nothing() -> None:
    """There is nobody any more who waits."""


class Inlet:
    """Puts large frames together, and counts what may be granted. `bytes_max` = of one large frame."""

    def __init__(self, bytes_max: int = LARGE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kind = 0  # of the large frame of which parts are to come, 0 = there is none
        self._sizes = [0, 0]  # bytes that are missing of its head, and of its body
        self._parts = (BytesIO(), BytesIO())  # of its head, and of its body: a file gives its bytes without a copy
        self.taken_bytes = 0  # and not yet granted

    def take(self, frame: LinkFrame) -> LinkFrame | None:
        """The frame, or the large one that it completes; None = parts are missing. Raises LinkError."""
        kind, data, body = frame
        self.taken_bytes += len(data) + len(body)
        if kind == Kind.PART:
            return self._part(body)
        if self._kind:
            raise LinkError("a frame came in the middle of a large one")
        if kind != Kind.LARGE:
            return frame
        found, head_bytes, body_bytes = calls.read_large(frame)
        if found not in _PARTED or head_bytes < NUMBER_BYTES or head_bytes + body_bytes > self._bytes_max:
            raise LinkError(
                f"a large frame of kind {found} has {head_bytes} and {body_bytes} bytes, at most {self._bytes_max} are "
                "taken: the other end has a larger maxFrameSize"
            )
        self._kind, self._sizes = found, [head_bytes, body_bytes]
        return None

    def _part(self, data: bytes) -> LinkFrame | None:
        at = 0 if self._sizes[0] else 1
        if not self._kind or not 0 < len(data) <= self._sizes[at]:
            raise LinkError("a part of a large frame is not one")
        self._parts[at].write(data)
        self._sizes[at] -= len(data)
        if any(self._sizes):
            return None
        frame = LinkFrame(self._kind, self._parts[0].getvalue(), self._parts[1].getvalue())
        self.close()
        return frame

    def grant(self) -> int:
        """How many bytes may be granted now: none while there are few."""
        size = self.taken_bytes
        if size < GRANT_BYTES:
            return 0
        self.taken_bytes = 0
        return size

    def close(self) -> None:
        """Forget what has come of a large frame."""
        self._kind, self._sizes, self._parts = 0, [0, 0], (BytesIO(), BytesIO())
