"""Reading: whether the socket of a connection is read, and why not."""

from __future__ import annotations

from amq.doors.clock import Clock
from amq.transports.parking import Lifeline
from amq.transports.stream import Stream

# Why a connection is not read.
LOGIN = "its login is checked"
STALLED = "its commands wait for room"
OUTPUT = "it does not read"
TURN = "it is the turn of others"
WORK = "it has received more than it could carry out"
THROTTLED = "its user sends more than throttleMessages or throttleSize allow"


class Reading:
    """The part of a connection that knows it. A subclass sets the fields."""

    _clock: Clock
    _closing: bool
    _frame_since: float
    _last_read: float
    _lifeline: Lifeline | None
    _paused_at: float  # since when it is not read, 0 = it is
    _stream: Stream | None
    _unread_for: set[str]  # why it is not read; empty = it is

    def pause_reading(self) -> None:
        self._unread(STALLED)

    def resume_reading(self) -> None:
        self._read_for(STALLED)

    def _unread(self, reason: str) -> None:
        """Do not read the client as long as there is `reason`, or any other."""
        stream = self._stream
        if self._closing:
            return
        if stream is None or stream.is_closing():
            if self._lifeline is not None:
                self._unread_for.add(reason)  # nor on its next socket
            return
        if not self._unread_for:
            self._paused_at = self._clock.monotonic()
            stream.pause_reading()
        self._unread_for.add(reason)

    def _read_for(self, reason: str) -> None:
        """`reason` is over: read on where there is no other."""
        stream = self._stream
        if reason not in self._unread_for:
            return
        if stream is None or stream.is_closing():
            if self._lifeline is not None:
                self._unread_for.remove(reason)
            return
        self._unread_for.remove(reason)
        if not self._unread_for:
            # The client could not speak meanwhile, so that time does not count.
            paused_s = self._clock.monotonic() - self._paused_at
            self._paused_at = 0.0
            self._last_read += paused_s
            self._frame_since += paused_s if self._frame_since else 0.0
            stream.resume_reading()
