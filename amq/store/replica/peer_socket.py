"""One connection to another member: a blocking socket, with TLS or without.

One thread at a time reads; any thread may send, and none waits: what the socket does not take at once is queued for a
thread that writes. Invariants: at most `WAITING_BYTES_MAX` wait, or one message; frames leave whole and in order; the
socket is closed by the thread that reads, when no other can use it.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from select import POLLIN, POLLOUT, poll
from socket import IPPROTO_TCP, MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_RDWR, TCP_NODELAY, socket
from threading import Condition, Lock
from typing import Any, Final

from amq.doors.threads import Thread, Threads
from amq.store.replica.wire import Data, FramedMessage

WAITING_BYTES_MAX: Final = 16 << 20
_PIECES_MAX: Final = 512  # of one call; the system takes 1,024
_READ_BYTES: Final = 64 << 10
_AT_ONCE: Final = int(MSG_DONTWAIT)  # plain numbers: an operation of an enum takes 3 µs
_SEND_AT_ONCE: Final = int(MSG_DONTWAIT | MSG_NOSIGNAL)


class PeerSocket:
    """`context` = of TLS; `server_name` = whose certificate the dialler expects, None = this is the listener."""

    def __init__(
        self, sock: socket, threads: Threads, context: ssl.SSLContext | None = None, server_name: str | None = None
    ) -> None:
        sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        sock.settimeout(None)
        self._sock = sock
        self._threads = threads
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._queue: deque[list[Data]] = deque()
        self._writer: Thread | None = None
        self._tls: ssl.SSLObject | None = None
        self.is_encrypted = context is not None
        self.waiting_bytes = 0
        self.dropped = 0  # messages that found no room
        self.is_open = True
        self.reason = ""  # why this end cut it
        self.is_busy = False  # the thread that reads carries out a message
        self.reads = 0
        self.sends = 0
        if context is not None:
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_name is None, server_name)

    # -- the thread that reads -----------------------------------------------------------------------------------------

    def shake_hands(self) -> None:
        """The handshake of TLS, where there is TLS. Raises OSError."""
        if self._tls is None:
            return
        while True:
            try:
                with self._changed:
                    try:
                        self._tls.do_handshake()
                    finally:
                        self._flush()  # also the alert that says why not
                return
            except ssl.SSLWantReadError:
                if not self._feed():
                    raise EOFError("the other end closed the connection in the handshake of TLS") from None

    def read_exactly(self, size: int) -> bytes:
        """Raises EOFError, OSError."""
        data = bytearray(size)
        view = memoryview(data)
        while view:
            got = self.read_into(view)
            if not got:
                raise EOFError("the other end closed the connection")
            view = view[got:]
        return bytes(data)

    def read_into(self, buffer: memoryview, flags: int = 0) -> int:
        """How many bytes were read; 0 = the other end has closed. `flags` = of the call to the system. Raises
        OSError."""
        if self._tls is None:
            while True:
                try:
                    got = self._sock.recv_into(buffer, 0, flags)
                except BlockingIOError:
                    self._await(POLLIN, flags)
                else:
                    self.reads += 1
                    return got
        while True:
            try:
                with self._changed:
                    read: Any = self._tls.read(len(buffer), buffer)  # the number, though typeshed has the bytes
                    if self._outgoing.pending:
                        self._flush()
                return int(read)
            except ssl.SSLWantReadError:
                if not self._feed(flags):
                    return 0
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0

    def close(self) -> None:
        """Only the thread that reads calls this."""
        self.cut()
        if self._writer is not None:
            self._writer.join()
        with self._changed:
            self._sock.close()

    def _feed(self, flags: int = 0) -> bool:
        while True:
            try:
                data = self._sock.recv(_READ_BYTES, flags)
                break
            except BlockingIOError:
                self._await(POLLIN, flags)
        self.reads += 1
        with self._changed:
            self._incoming.write(data) if data else self._incoming.write_eof()
        return bool(data)

    def _await(self, events: int, flags: int = 0) -> None:
        """Wait as a blocking call does: an event loop may have made the socket one that does not block. Raises the
        BlockingIOError of the caller where its `flags` say so."""
        if flags & _AT_ONCE:
            raise
        ready = poll()
        ready.register(self._sock, events)
        ready.poll()

    # -- any thread ----------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, frame: FramedMessage) -> bool:
        """Returns False if the message was dropped: the connection is broken, or too much waits."""
        with self._lock:
            if not self.is_open:
                return False
            if self.waiting_bytes and self.waiting_bytes + frame.size > WAITING_BYTES_MAX:
                self.dropped += 1
                return False
            self.sends += 1
            if self._tls is None:
                return self._put(frame.pieces, frame.size)
            for piece in frame.pieces:
                if len(piece):
                    self._tls.write(piece)
            return self._flush()

    def send_bytes(self, data: bytes) -> None:
        """Send a part of the hello."""
        frame = FramedMessage.__new__(FramedMessage)
        frame.pieces, frame.size = [data], len(data)
        self.send(frame)

    def cut(self, reason: str = "") -> None:
        """End the connection; its threads notice."""
        with self._changed:
            if self.is_open:
                self.is_open = False
                self.reason = reason
                with suppress(OSError):  # the other end was quicker
                    self._sock.shutdown(SHUT_RDWR)
                self._queue.clear()
                self.waiting_bytes = 0
                self._changed.notify_all()

    # -- with the lock held --------------------------------------------------------------------------------------------

    def _flush(self) -> bool:
        sealed = self._outgoing.read()
        return self._put([sealed], len(sealed)) if sealed else True

    def _put(self, pieces: Sequence[Data], size: int) -> bool:
        if not self._queue:
            try:
                sent = self._sock.sendmsg(pieces[:_PIECES_MAX], (), _SEND_AT_ONCE)
            except BlockingIOError:
                sent = 0
            except OSError:
                return False  # the thread that reads finds out why
            if sent == size:
                return True
            pieces, size = _rest(pieces, sent), size - sent
        self._queue.append([*pieces])
        self.waiting_bytes += size
        if self._writer is None:
            self._writer = self._threads.start("amq-peer-writer", self._write)
        self._changed.notify_all()
        return True

    # -- the thread that writes ----------------------------------------------------------------------------------------

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._queue and self.is_open:
                    self._changed.wait()
                if not self._queue:
                    return
                pieces = self._queue[0]
            try:
                sent = self._sock.sendmsg(pieces[:_PIECES_MAX], (), MSG_NOSIGNAL)
            except BlockingIOError:
                self._await(POLLOUT)
                continue
            except OSError:
                self.cut()
                return
            left = _rest(pieces, sent)
            with self._changed:
                if not self._queue:  # it was cut
                    return
                self.waiting_bytes -= sent
                if left:
                    self._queue[0] = left
                else:
                    self._queue.popleft()


def _rest(pieces: Sequence[Data], sent: int) -> list[Data]:
    """Those of `pieces`, or parts of them, that remain after the first `sent` bytes."""
    for index, piece in enumerate(pieces):
        if sent < len(piece):
            return [memoryview(piece)[sent:], *pieces[index + 1 :]]
        sent -= len(piece)
    return []
