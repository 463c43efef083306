"""Handshakes: the ports at which clients speak TLS, from `accept` to the first byte of a protocol.

A stranger can begin a handshake and never end it, so what that costs is bounded: at most `maxHandshakes` are in
progress over all ports, each for at most `handshakeTimeout`, and other clients wait in the kernel meanwhile. If others
wait, a handshake that has taken `GIVES_WAY_S` gives way to them, so that strangers cannot hold all places. Invariant: a
connection exists for the broker only after its handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from amq.core.errors import AccessError
from amq.transports.hosts import shown

GIVES_WAY_S: Final = 1.0
ACCEPTED_MAX: Final = 16  # in one round of the event loop
PAUSE_S: Final = 0.1  # where the kernel gives no descriptor
GOODBYE_S: Final = 5.0  # of TLS
BACKLOG: Final = 4096
TLS_RECORD: Final = 0x16  # the first byte of a handshake
TOLD_EVERY_S: Final = 10.0
_NO_DESCRIPTOR: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_log = structlog.get_logger("amq.connection")


class HandshakeLimits(Protocol):
    """Options; see `amq.config.schema`."""

    @property
    def max_handshakes(self) -> int: ...
    @property
    def handshake_timeout_s(self) -> float: ...
    @property
    def tls_optional(self) -> bool: ...


class Failures:
    """Lines about handshakes that failed. Strangers can make many, so they are counted between two lines."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._untold = 0
        self._told_at = -TOLD_EVERY_S
        self.count = 0

    def tell(self, peer: str, reason: str) -> None:
        self.count += 1
        now = self._loop.time()
        if now < self._told_at + TOLD_EVERY_S:
            self._untold += 1
            return
        _log.info("TLS handshake failed", peer=peer, reason=reason, others_since=self._untold)
        self._untold, self._told_at = 0, now


class Handshakes:
    """All that are in progress, over all ports of a process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Callable[[], HandshakeLimits]) -> None:
        self.loop = loop
        self.limits = limits
        self.failures = Failures(loop)
        self._running: dict[asyncio.Task[None], tuple[float, TlsPort]] = {}  # → since when; the oldest first
        self._waiting: list[TlsPort] = []
        self._ticking: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._running)

    def is_full(self, port: TlsPort) -> bool:
        """True: `port` learns when there is room."""
        if len(self._running) < self.limits().max_handshakes:
            return False
        if port not in self._waiting:
            self._waiting.append(port)
        if self._ticking is None:
            self._make_room()
        return True

    def begin(self, port: TlsPort, work: asyncio.Task[None]) -> None:
        self._running[work] = self.loop.time(), port
        work.add_done_callback(self._ended)

    def leave(self, port: TlsPort) -> None:
        """The port closes: none of its handshakes goes on."""
        self._waiting = [each for each in self._waiting if each is not port]
        for work, (_, of) in list(self._running.items()):
            if of is port:
                work.cancel()

    def _ended(self, work: asyncio.Task[None]) -> None:
        self._running.pop(work, None)
        if not work.cancelled() and (error := work.exception()) is not None:
            _log.error("internal error", exc_info=error)
        waiting, self._waiting = self._waiting, []
        for port in waiting:
            port.resume()

    def _make_room(self) -> None:
        """Somebody waits: the oldest handshake gives way when its second is over."""
        self._ticking = None
        if not self._waiting or not self._running:
            return
        oldest, (since, _) = next(iter(self._running.items()))
        left_s = since + GIVES_WAY_S - self.loop.time()
        if left_s <= 0:
            oldest.cancel()
            left_s = 0.001
        self._ticking = self.loop.call_later(left_s, self._make_room)


class TlsPort:
    """One transport with TLS. `context()` = the one that new handshakes use; `make()` = a protocol for a connection;
    `arrive(address)` raises AccessError for an address that is to get no handshake; `is_reserved(descriptor)` = clients
    may not have it."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        context: Callable[[], ssl.SSLContext | None],
        make: Callable[[], asyncio.Protocol],
        handshakes: Handshakes,
        arrive: Callable[[str], None],
        is_reserved: Callable[[int], bool],
    ) -> None:
        self.sockets = tuple(sockets)
        self._context = context
        self._make = make
        self._arrive = arrive
        self._is_reserved = is_reserved
        self._handshakes = handshakes
        self._loop = handshakes.loop
        self._log_context = contextvars.copy_context()  # another port may wake this one
        self._is_reading = False
        self.resume()

    def resume(self) -> None:
        if not self._is_reading and self.sockets:
            self._is_reading = True
            for sock in self.sockets:
                self._loop.add_reader(sock.fileno(), self._log_context.run, self._accept, sock)

    def _pause(self) -> None:
        if self._is_reading:
            self._is_reading = False
            for sock in self.sockets:
                self._loop.remove_reader(sock.fileno())

    def close(self) -> None:
        self._pause()
        for sock in self.sockets:
            sock.close()
        self.sockets = ()
        self._handshakes.leave(self)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_MAX):
            if self._handshakes.is_full(self):
                self._pause()
                return
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    raise
                _log.error("no descriptor for a new connection: raise `ulimit -n`", reason=str(error))
                self._pause()
                self._loop.call_later(PAUSE_S, self.resume)
                return
            if self._is_reserved(sock.fileno()):
                sock.close()
                continue
            peer = shown(address)
            try:
                self._arrive(address[0])
            except AccessError as error:
                self._handshakes.failures.tell(peer, str(error))
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._handshakes.begin(self, self._loop.create_task(self._shake_hands(sock, peer)))

    async def _shake_hands(self, sock: socket.socket, peer: str) -> None:
        limits = self._handshakes.limits()
        timeout_s = limits.handshake_timeout_s
        given_away = False
        spare: socket.socket | None = None  # the same connection, for the last word when the event loop has closed it
        try:
            spare = sock.dup()
            if self._is_reserved(spare.fileno()):
                return
            async with asyncio.timeout(timeout_s):
                context = self._context() if not limits.tls_optional or await self._speaks_tls(sock) else None
                given_away = True
                if context is None:
                    await self._loop.connect_accepted_socket(self._make, sock)
                else:
                    await self._loop.connect_accepted_socket(
                        self._make, sock, ssl=context, ssl_handshake_timeout=timeout_s, ssl_shutdown_timeout=GOODBYE_S
                    )
        except TimeoutError:
            self._handshakes.failures.tell(peer, f"it took longer than {timeout_s:g} s")
        except asyncio.CancelledError:
            self._handshakes.failures.tell(peer, "it was slow, and others waited")
            raise
        except ssl.SSLError as error:
            self._handshakes.failures.tell(peer, reason_of(error))
            if spare is not None:
                _tell(spare, getattr(error, "alert", b""))
        except OSError as error:
            self._handshakes.failures.tell(peer, error.strerror or str(error) or "the client is gone")
        finally:
            if spare is not None:
                spare.close()
            if not given_away:
                sock.close()

    async def _speaks_tls(self, sock: socket.socket) -> bool:
        """By its first byte, which stays where it is."""
        ready = self._loop.create_future()
        number = sock.fileno()
        self._loop.add_reader(number, _set, ready)
        try:
            await ready
        finally:
            self._loop.remove_reader(number)
        return sock.recv(1, socket.MSG_PEEK)[:1] == bytes((TLS_RECORD,))


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _tell(sock: socket.socket, alert: bytes) -> None:
    """Say why its handshake failed to a client that still listens."""
    with contextlib.suppress(OSError):
        sock.send(alert)
        sock.shutdown(socket.SHUT_WR)


def reason_of(error: ssl.SSLError) -> str:
    """Why a handshake failed, in words."""
    reason = (error.reason or "").replace("_", " ").lower()
    if reason in ("wrong version number", "http request", "unknown protocol"):
        return "the client does not speak TLS"
    if reason == "unsupported protocol":
        return "the client speaks only versions of TLS older than tlsMinimumVersion"
    if reason == "peer did not return a certificate":
        return "the client sent no certificate, and clientCertificate is need"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    return reason or str(error)


async def listening_sockets(
    loop: asyncio.AbstractEventLoop, host: str, port: int, *, shares: bool = False
) -> list[socket.socket]:
    """Bound to all addresses of `host`. `shares`: others that share may be bound to them, too, and the kernel deals
    connections out to them. Raises OSError."""
    found: list[socket.socket] = []
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        for family, kind, number, _, address in dict.fromkeys(infos):
            try:
                sock = socket.socket(family, kind, number)
            except OSError:  # this kernel has no such family
                continue
            found.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shares)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.setblocking(False)
            sock.listen(BACKLOG)
    except BaseException:
        for sock in found:
            sock.close()
        raise
    return found
