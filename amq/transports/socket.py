"""Socket: one accepted socket, from its first byte to its last, and the Stream of its bytes.

A `Socket` belongs to a `Peer`, its client, which may outlive it (`amq.transports.peer`). It knows when it was read
last, whether and why it is not read, and whether the client reads. It notices a client that does not log in or finish a
frame in time, or that is silent for longer than it promised.

A `Stream` is the carrier: it alone knows how TCP and TLS differ. TLS has no half-close (asyncio's and uvloop's TLS
transports refuse `write_eof`), so the end of what we say is told in another way. Invariant: the client can read our
last word in both cases. A socket that is closed while input of the client is unread makes the kernel reset the
connection, and throw away what the client has not read yet; so input is read, and ignored, until the client closes.

WebSocket, plain or over TLS, fits between: it is an asyncio.Protocol above one of these streams, and a `Stream` with a
`write` of its own for the socket, to which it hands the content of its frames as `data_received`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import structlog

from amq.core.errors import ProtocolError
from amq.transports import liveness
from amq.transports.hosts import is_loopback, shown
from amq.transports.hub import Hub
from amq.transports.liveness import TcpSocket
from amq.transports.shares import FULL_READS_MAX

# A client over TLS that said nothing for so long after our last word has heard it, or never will: TLS is then closed,
# which is its way to tell the end.
QUIET_S = 0.25
FRAME_RATE_BYTES_MIN = 64 << 10  # bytes a second that a large frame must come in at
IGNORED_BYTES_MAX = 256 << 20  # a client that talks on before it listens still learns why
SECOND_LOOK_S = 0.05  # a client that seems silent: what the kernel holds from it is read first
SILENT = "HEARTBEAT_TIMEOUT"  # the code of the error of a client that is silent for longer than it promised
# Why a socket is not read: its peer has a reason, or the socket itself.
LOGIN = "its login is checked"
STALLED = "its commands wait for room"
WORK = "it has received more than it could carry out"
THROTTLED = "its user sends more than throttleMessages or throttleSize allow"
OUTPUT = "it does not read"
TURN = "it is the turn of others"
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


class SocketOwner(Protocol):
    """The peer of a socket."""

    number: int
    is_closing: bool
    frame_bytes: int  # of a frame that is not complete

    @property
    def has_shown_login(self) -> bool: ...
    def attach(self, socket: Socket) -> None: ...
    def arrived(self) -> None:
        """The socket is open."""

    def receive(self, data: bytes, now_s: float) -> None: ...
    def hold_back(self) -> None:
        """No deliveries: the client does not read."""

    def resume(self) -> None:
        """The client has read (nearly) all that was written."""

    def beat(self, now_s: float, has_to_speak: bool) -> None:
        """Once in a while. `has_to_speak`: the client has to hear something."""

    def too_late(self, error: ProtocolError) -> None:
        """The client has not said in time what it should have."""

    def has_vanished(self, why: str) -> None:
        """The socket does not lead to the client any more."""

    def lost(self, exc: Exception | None) -> None:
        """The socket is closed."""

    def abort(self) -> None: ...


class Socket(asyncio.Protocol):
    """`peer` None = it serves nobody any more. `has_arrived`: the door heard of it before its TLS handshake."""

    def __init__(self, hub: Hub[Any], peer: SocketOwner, has_arrived: bool = False) -> None:
        self._hub = hub
        self._clock = hub.clock
        self.peer: SocketOwner | None = None
        peer.attach(self)
        self.has_arrived = has_arrived
        self.stream: Stream | None = None
        self.name = self.address = ""
        self.is_loopback = False  # the client is on this host
        self.is_tls = False
        self.is_full = False  # of what the client has not read
        self.is_over = False  # our last word is said
        self.behind_bytes = 0  # of answers written since it is full: deliveries have stopped
        self.stays_s = 0.0  # it is open so long after a refusal
        self.unread_for: set[str] = set()  # why it is not read; empty = it is
        self.frame_since_s = 0.0  # when the frame began that is not complete, 0 = there is none
        self.last_read_s = 0.0
        self._paused_at_s = 0.0  # since when it is not read, 0 = it is
        self._full_read_bytes = Stream.full_read_bytes
        self._full_reads = 0  # in this turn
        self.seems_silent = False
        self.speaks_s = self.hears_s = 0.0  # each side says something so often, 0 = it has not promised
        self._watched: TcpSocket | None = None  # its peer may vanish without a word
        self._timer: asyncio.Handle | None = None
        self._login_by_s = 0.0  # when it is too late for that

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        hub, peer = self._hub, self.peer
        assert peer is not None
        # uvloop's transport is a separate class, not a subclass
        stream = stream_over(cast(asyncio.Transport, transport), hub.config.consumer_buffer_size_bytes // 2)
        self.stream = stream
        self.name, self.address = stream.peer_name, stream.peer_address
        self.is_loopback, self.is_tls = is_loopback(stream.peer_address), stream.tls
        self._full_read_bytes = stream.full_read_bytes
        ttl_s = hub.config.connection_ttl_s
        if stream.socket is not None and ttl_s and liveness.watch(stream.socket, ttl_s):
            self._watched = stream.socket
        if hub.places.is_reserved(stream.descriptor):
            peer.abort()
            return
        self.last_read_s = self._clock.monotonic()
        self._login_by_s = self.last_read_s + hub.config.connect_timeout_s
        self.await_login()
        peer.arrived()

    def data_received(self, data: bytes) -> None:
        peer = self.peer
        if peer is None or peer.is_closing:
            self._ignore(len(data))
            return
        if len(data) >= self._full_read_bytes:
            self._full_reads += 1
            if self._full_reads == 1:
                self._hub.loop.call_soon(self._begin_turn)
            elif self._full_reads == FULL_READS_MAX:
                self.unread(TURN)
        self.last_read_s = now_s = self._clock.monotonic()
        peer.receive(data, now_s)

    def _ignore(self, size: int) -> None:
        """The client talks on after our last word."""
        stream = self.stream
        if stream is not None:
            stream.ignored_bytes += size
            if stream.ignored_bytes > IGNORED_BYTES_MAX:
                self.abort()

    def _begin_turn(self) -> None:
        self._full_reads = 0
        self.read_for(TURN)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.is_full = True
        if self.peer is not None:
            self.peer.hold_back()

    def resume_writing(self) -> None:
        self.is_full = False
        if self.peer is not None:
            self.peer.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.stream is not None:
            self.stream.lost()
            self.stream = None
        peer = self.peer
        self._forget()
        if peer is not None:
            peer.lost(exc)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        """It serves nobody any more."""
        self.peer = self._watched = None
        self._cancel()

    def leave(self) -> None:
        """Its peer has another socket, or none: what still comes has no effect."""
        self._forget()
        self.abort()

    def close_in(self, seconds: float, then: Callable[[], None]) -> None:
        """Until then input is thrown away, but the end of the connection is noticed."""
        for reason in list(self.unread_for):
            self.read_for(reason)
        self._call_later(seconds, then)

    def finish(self) -> None:
        """All is said."""
        self.is_over = True
        if self.stream is not None:
            self.stream.finish(self._hub.loop)

    def abort(self) -> None:
        if self.stream is not None:
            self.stream.abort()

    def cut(self) -> None:
        """Shut it down from another thread; the event loop notices when it can."""
        stream = self.stream
        if stream is not None:
            stream.cut()

    @property
    def is_closing(self) -> bool:
        return self.stream is None or self.stream.is_closing()

    # -- whether it is read -------------------------------------------------------------------------------------------

    def unread(self, reason: str) -> None:
        """Do not read the client as long as there is `reason`, or any other."""
        stream = self.stream
        if stream is None or stream.is_closing():
            return
        if not self.unread_for:
            self._paused_at_s = self._clock.monotonic()
            stream.pause_reading()
        self.unread_for.add(reason)

    def read_for(self, reason: str) -> None:
        """`reason` is over: read on where there is no other."""
        stream = self.stream
        if reason not in self.unread_for or stream is None or stream.is_closing():
            return
        self.unread_for.remove(reason)
        if not self.unread_for:
            # The client could not speak meanwhile, so that time does not count.
            paused_s = self._clock.monotonic() - self._paused_at_s
            self._paused_at_s = 0.0
            self.last_read_s += paused_s
            self._login_by_s += paused_s
            self.frame_since_s += paused_s if self.frame_since_s else 0.0
            stream.resume_reading()

    # -- time ---------------------------------------------------------------------------------------------------------

    def _call_later(self, seconds: float, call: Callable[[], None]) -> None:
        """In place of what the timer was for before."""
        self._cancel()
        self._timer = self._hub.loop.call_later(seconds, call)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def agree(self, beats_ms: tuple[int, int]) -> None:
        """From now on each side says something so often: we, and the client; 0 = it need not."""
        self.speaks_s, self.hears_s = beats_ms[0] / 1000, beats_ms[1] / 1000
        self._cancel()
        self.tick()

    def await_login(self) -> None:
        """It is up to the client to go on with its login, in what is left of its time for that."""
        self._call_later(max(0.0, self._login_by_s - self._clock.monotonic()), self._connect_late)

    def _connect_late(self) -> None:
        peer = self.peer
        if peer is None or peer.is_closing or peer.has_shown_login:
            return  # how long a login waits to be checked is up to the broker
        why = f"no login within {self._hub.config.connect_timeout_s:g} s"
        self._too_late(ProtocolError(why, code="CONNECT_TIMEOUT"), self._connect_late)

    def _too_late(self, error: ProtocolError, look_again: Callable[[], None]) -> None:
        """The client has not said in time what it should have. Where the event loop was held up, by a busy host or
        by long work, timers go off before the sockets are read: what came meanwhile is read before anybody is cut."""
        if self.seems_silent:
            if self.peer is not None:
                self.peer.too_late(error)
            return
        self.seems_silent = True
        # A timer may go off before the sockets are read once more; what it puts off twice comes after that.
        self._timer = self._hub.loop.call_later(SECOND_LOOK_S, self._put_off, look_again, 2)

    def _put_off(self, look_again: Callable[[], None], times: int) -> None:
        """So many rounds of the event loop."""
        if times:
            self._timer = self._hub.loop.call_soon(self._put_off, look_again, times - 1)
        else:
            look_again()

    def tick(self) -> None:
        peer = self.peer
        if peer is None or peer.is_closing:
            return
        now_s = self._clock.monotonic()
        heard_until_s = self._paused_at_s if self.unread_for else now_s
        config = self._hub.config
        # A client that sends on at a decent rate may take longer than one that drips.
        limit_s = config.unfinished_frame_timeout_s + peer.frame_bytes / FRAME_RATE_BYTES_MIN
        error: ProtocolError | None = None
        if self.frame_since_s and heard_until_s - self.frame_since_s > limit_s:
            error = ProtocolError(f"a frame was begun and not finished within {limit_s:.1f} s", code="FRAME_TIMEOUT")
        elif self.hears_s and heard_until_s - self.last_read_s > 2 * self.hears_s:  # an interval for the network
            error = ProtocolError(f"the client said nothing for {2 * self.hears_s:g} s", code=SILENT)
        if error is not None:
            self._too_late(error, self.tick)
            return
        self.seems_silent = False
        peer.beat(now_s, self.speaks_s > 0)
        if peer.is_closing or self._has_vanished(peer):
            return
        intervals_s = (
            self.speaks_s / 2,
            self.hears_s,
            config.unfinished_frame_timeout_s / 2,
            config.connection_ttl_s / 4 if self._watched is not None else 0.0,
        )
        self._call_later(min(s for s in intervals_s if s), self.tick)

    def _has_vanished(self, peer: SocketOwner) -> bool:
        """True when the client's host does not answer any more. The socket is then closed."""
        ttl_s = self._hub.config.connection_ttl_s
        if self._watched is None or not ttl_s or (self.hears_s and not self._paused_at_s):
            return False
        if not liveness.vanished(self._watched, ttl_s):
            return False
        _log.info(
            "connection closed: the client's host does not answer",
            connection=peer.number,
            peer=self.name,
            connectionTtl=ttl_s,
        )
        peer.has_vanished("the client's host does not answer")
        return True
