"""Stream: the bytes below a protocol's connection, whatever carries them.

A `Connection` sees bytes only. This is the one file that knows how TCP and TLS differ: TLS has no half-close (asyncio's
and uvloop's TLS transports refuse `write_eof`), so the end of what we say is told in another way. Invariant: the client
can read our last word in both cases. A socket that is closed while input of the client is unread makes the kernel reset
the connection, and throw away what the client has not read yet; so input is read, and ignored, until the client closes.

WebSocket, plain or over TLS, fits between: it is an asyncio.Protocol above one of these streams, and a `Stream` with a
`write` of its own for the connection, to which it hands the content of its frames as `data_received`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from amq.transports.hosts import shown
from amq.transports.liveness import TcpSocket

# A client over TLS that said nothing for so long after our last word has heard it, or never will: TLS is then closed,
# which is its way to tell the end.
QUIET_S = 0.25
_log = structlog.get_logger("amq.connection")


class Stream:
    """TCP, or a Unix socket: one side may end while the other goes on.

    The functions of the transport are attributes here, so that to call one costs what it costs there.
    """

    tls = False
    full_read_bytes = 250_000  # `data_received` has this many where a read filled its buffer of 256 KiB

    __slots__ = (
        "_fd",
        "_transport",
        "_waiting_bytes",
        "abort",
        "certificate",
        "ignored_bytes",
        "is_closing",
        "pause_reading",
        "peer_address",
        "peer_name",
        "resume_reading",
        "socket",
        "write",
    )

    def __init__(self, transport: asyncio.Transport, output_bytes_max: int) -> None:
        """`output_bytes_max` = how much may wait for the client before `pause_writing`."""
        self._transport = transport
        self.abort: Callable[[], None] = transport.abort
        self.is_closing: Callable[[], bool] = transport.is_closing
        self.pause_reading: Callable[[], None] = transport.pause_reading
        self.resume_reading: Callable[[], None] = transport.resume_reading
        self.write: Callable[[bytes], None] = transport.write
        self._waiting_bytes: Callable[[], int] = transport.get_write_buffer_size
        peer = transport.get_extra_info("peername")
        self.peer_name = shown(peer) if peer else "?"
        self.peer_address: str = peer[0] if peer else ""
        self.socket: TcpSocket | None = transport.get_extra_info("socket")
        self._fd = self.socket.fileno() if self.socket is not None else -1
        self.certificate: Mapping[str, Any] | None = None  # of the client, checked by TLS
        self.ignored_bytes = 0  # that the client said after our last word
        transport.set_write_buffer_limits(high=output_bytes_max)

    @property
    def descriptor(self) -> int:
        """The number of the socket; -1 = it is closed, or has none."""
        return self._fd

    def write_now(self, data: bytes) -> None:
        """`write` before the rest of this round: uvloop's transport writes at its end. The transport keeps what the
        socket does not take.
        """
        if not self._waiting_bytes():
            try:
                written = os.write(self._fd, data)
            except OSError:  # full, broken or gone: the transport finds that out too, and knows what to do
                written = 0
            if written == len(data):
                return
            data = data[written:]
        self.write(data)

    def finish(self, loop: asyncio.AbstractEventLoop) -> None:  # noqa: ARG002
        """All is said: the client sees the end when it has read it. Its input is read on."""
        self._transport.write_eof()

    def hand_to(self, protocol: asyncio.BaseProtocol) -> None:
        """From now on `protocol` hears of this stream, and nobody else."""
        self._transport.set_protocol(protocol)

    def cut(self) -> None:
        """Shut the socket down, from any thread; the event loop notices when it can."""
        if self._fd < 0:
            return
        handle = socket.socket(fileno=self._fd)
        try:
            handle.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            _log.debug("socket was closed already", peer=self.peer_name, error=str(error))
        finally:
            handle.detach()

    def lost(self) -> None:
        """The socket is closed: its number may be that of another file by now."""
        self._fd = -1
        self.socket = None


class TlsStream(Stream):
    """TLS over TCP: closed in both directions at once, or not at all."""

    __slots__ = ()

    tls = True
    full_read_bytes = 8000  # records may have one byte each, which are 23 bytes of TLS 1.3, and 30 of TLS 1.2

    def __init__(self, transport: asyncio.Transport, output_bytes_max: int) -> None:
        super().__init__(transport, output_bytes_max)
        self.certificate = transport.get_extra_info("peercert") or None

    def write_now(self, data: bytes) -> None:
        self.write(data)

    def finish(self, loop: asyncio.AbstractEventLoop) -> None:
        """All is said. The client closes when it has read it; where it waits for us, TLS is closed as soon as it is
        quiet. Not earlier: what it says after that would reset the connection."""
        loop.call_later(QUIET_S, self._close_when_quiet, loop, self.ignored_bytes)

    def _close_when_quiet(self, loop: asyncio.AbstractEventLoop, ignored_bytes: int) -> None:
        if self._fd < 0 or self.is_closing():
            return
        if self.ignored_bytes == ignored_bytes:
            self._transport.close()
        else:
            loop.call_later(QUIET_S, self._close_when_quiet, loop, self.ignored_bytes)


def stream_over(transport: asyncio.Transport, output_bytes_max: int) -> Stream:
    """The stream that `transport` carries."""
    kind = Stream if transport.get_extra_info("sslcontext") is None else TlsStream
    return kind(transport, output_bytes_max)
