"""A conversation with a member: the messages that come on one connection.

A thread reads it, which may wait; or an event loop does to which it is lent, which never waits. Invariant: one thread
at a time takes messages, so they keep their order.
"""

from __future__ import annotations

from collections.abc import Callable
from socket import MSG_DONTWAIT
from threading import Lock
from typing import Any, Final

from amq.doors.threads import Threads
from amq.doors.tls import words
from amq.store.port import EventLoop
from amq.store.replica.peer_socket import PeerSocket
from amq.store.replica.wire import PeerWireError, WireReader

READS_MAX: Final = 16  # in one go, of an event loop that has other things to do
_AT_ONCE: Final = int(MSG_DONTWAIT)


class ConnectionEndError(Exception):
    """Raised when the connection to a member has ended."""


class Conversation:
    """Messages of `kinds` on `sock`, for `take`."""

    def __init__(self, sock: PeerSocket, kinds: dict[int, Any], take: Callable[[Any], None]) -> None:
        self.sock = sock
        self.turn = Lock()  # one thread at a time reads
        self._take = take
        self._reader = WireReader(kinds, not sock.is_encrypted)

    def run(self) -> None:
        """Read until the connection ends. Raises PeerWireError, ConnectionEndError."""
        while True:
            self.hear()

    def hear(self) -> None:
        """Wait for something that comes, and take it. Raises PeerWireError, ConnectionEndError."""
        with self.turn:
            self.read(0)

    def read(self, flags: int) -> bool:
        """The turn is the caller's. Returns whether more may have come. Raises BlockingIOError, PeerWireError,
        ConnectionEndError."""
        sock, buffer = self.sock, self._reader.buffer()
        try:
            got = sock.read_into(buffer, flags)
        except BlockingIOError:
            raise
        except OSError as error:
            raise ConnectionEndError(sock.reason or words(error)) from error
        if not got:
            raise ConnectionEndError(sock.reason or "the other end closed the connection")
        for message in self._reader.received(got):
            if message is not None:
                sock.is_busy = True  # with the disk, perhaps: it hears nothing meanwhile
                self._take(message)
                sock.is_busy = False
        return sock.is_encrypted or got == len(buffer)


class Loan:
    """A conversation that `loop` reads until it is over."""

    def __init__(self, conversation: Conversation, loop: EventLoop, threads: Threads) -> None:
        self.loop = loop
        self.over = threads.event()
        self.error: ConnectionEndError | PeerWireError | None = None
        self._conversation = conversation
        self._sock = conversation.sock

    def begin(self) -> None:
        """In the loop. It may be over already."""
        if not self.over.is_set():
            self.loop.add_reader(self._sock.fileno(), self._ready)

    def end(self) -> None:
        """In the loop. The thread of the connection goes on."""
        if not self.over.is_set():
            self.loop.remove_reader(self._sock.fileno())
            self.over.set()

    def hear(self) -> bool:
        """Take what has come, in any thread; wait for nothing. Returns whether more may have come."""
        turn = self._conversation.turn
        if self.error is not None or not turn.acquire(blocking=False):
            return False
        try:
            if not self.over.is_set():
                for _ in range(READS_MAX):
                    if not self._conversation.read(_AT_ONCE):
                        return False
            return not self.over.is_set()
        except BlockingIOError:
            return False
        except (ConnectionEndError, PeerWireError) as error:
            self.error = error
            self._sock.cut()  # the loop hears of it
            return False
        finally:
            turn.release()

    def _ready(self) -> None:
        if self.hear():
            self.loop.call_soon(self._ready)  # what TLS has read is in no socket
        elif self.error is not None:
            self.end()
