"""Connections to brokers over sockets: one thread moves the bytes of all of them, in `OtherBroker.wait` and
`pump`.

Invariant: a socket is closed when its `OtherBroker` is closed or its making fails; waits end by an answer, an error or
a deadline. A peer that is not listened to (`listens`) keeps the kernel's buffers full, and so the broker back.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from amq.client.errors import CallTimeoutError, ConnectError, ConnectionLostError
from amq.client.tls import Contexts, Layer
from amq.client.uri import BrokerUrl
from amq.core.errors import AccessError, AmqError, ProtocolError
from amq.doors.clock import Clock
from amq.protocols.openwire import table
from amq.protocols.openwire.table import Structure, structure
from amq_migrate.openwire.addresses import login_of
from amq_migrate.openwire.wire import SESSION, Wire

CONNECT_S: Final = 10.0  # for the socket, and again for the handshake
ANSWER_S: Final = 60.0
RECEIVE_BYTES: Final = 256 << 10
LEAVE_S: Final = 5.0


class OtherBroker:
    """A broker to which this process is connected and logged in; `tls` None = over a plain socket."""

    def __init__(self, sock: socket.socket, wire: Wire, clock: Clock, tls: Layer | None = None) -> None:
        self.sock = sock
        self._tls = tls
        self.wire = wire
        self.clock = clock
        self.listens = True
        self._unsent = memoryview(b"")

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def wants_to_write(self) -> bool:
        may_speak = self._tls is None or self._tls.established
        return bool(self._unsent) or (may_speak and self.wire.out_bytes > 0)

    def begin(self) -> None:
        """Wait for the end of the TLS handshake, where there is one. Raises AmqError."""
        tls = self._tls
        if tls is not None:
            tls.begin()
            self.wait(lambda: tls.established, CONNECT_S, "does not finish the TLS handshake")

    def write(self) -> None:
        """Write as much as the kernel takes. Raises ConnectionLostError."""
        while True:
            if not self._unsent:
                self._unsent = memoryview(self._next_output())
                if not self._unsent:
                    return
            try:
                self._unsent = self._unsent[self.sock.send(self._unsent) :]
            except BlockingIOError:
                return
            except OSError as error:
                raise ConnectionLostError(f"{self.wire.whose}: {error.strerror or error}") from error

    def _next_output(self) -> bytes:
        tls = self._tls
        if tls is None:
            return self.wire.take_output(self.clock.monotonic())
        own = tls.output()
        if own or not tls.established:
            return own
        plain = self.wire.take_output(self.clock.monotonic())
        return tls.seal(plain) if plain else b""

    def read(self) -> None:
        """Take what has come. Raises AmqError."""
        try:
            data = self.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise ConnectionLostError(f"{self.wire.whose}: {error.strerror or error}") from error
        tls = self._tls
        if tls is None:
            self._received(data, not data)
            return
        plain = tls.receive(data)
        if plain or tls.error is None:
            self._received(plain, not data or tls.ended)
        if tls.error is not None:
            raise tls.error

    def _received(self, data: bytes, ends: bool) -> None:
        if data:
            self.wire.receive(data, self.clock.monotonic())
        if not ends:
            return
        if not self.wire.version:
            raise ProtocolError(
                f"{self.wire.whose} closes the connection without a word of OpenWire: it is the port of another "
                "protocol, or of TLS (ssl://); name the one for JMS clients (61616)",
                code="PROTOCOL_UNKNOWN",
            )
        raise ConnectionLostError(f"{self.wire.whose} has closed the connection")

    def request(self, found: Structure, timeout_s: float = ANSWER_S) -> Structure:
        """Send a command, and wait for its answer. Raises AmqError."""
        answers: list[Structure | AmqError] = []
        self.wire.send(found, answers.append)
        self.wait(lambda: bool(answers), timeout_s, "does not answer")
        answer = answers[0]
        if isinstance(answer, AmqError):
            raise answer
        return answer

    def wait(self, until: Callable[[], bool], timeout_s: float, otherwise: str) -> None:
        """Move bytes until `until()`. Raises AmqError; CallTimeoutError where the time is over."""
        end = self.clock.monotonic() + timeout_s
        while not until():
            left = end - self.clock.monotonic()
            if left <= 0:
                raise CallTimeoutError(f"{self.wire.whose} {otherwise} within {timeout_s:g} s")
            pump((self,), left)

    def leave(self) -> None:
        """Say goodbye, so that the broker has read all that was sent, and close."""
        with suppress(AmqError):
            self.request(structure(table.REMOVE_INFO, id=self.wire.id), LEAVE_S)
            self.wire.send(structure(table.SHUTDOWN_INFO))
            self.write()
            if self._tls is not None and not self._unsent:
                self._unsent = memoryview(self._tls.goodbye())
                self.write()
        self.close()

    def close(self) -> None:
        self.sock.close()


def pump(peers: Iterable[OtherBroker], timeout_s: float) -> bool:
    """Write and read what there is, or wait for it up to `timeout_s`. False: nothing came. Raises AmqError."""
    came = False
    with selectors.PollSelector() as selector:
        for peer in peers:
            peer.wire.beat(peer.clock.monotonic(), peer.listens)
            peer.write()
            timeout_s = min(timeout_s, peer.wire.beat_s)
            events = peer.listens * selectors.EVENT_READ | peer.wants_to_write * selectors.EVENT_WRITE
            if events:
                selector.register(peer, events)
        for key, events in selector.select(timeout_s):
            found = key.fileobj
            assert isinstance(found, OtherBroker)
            if events & selectors.EVENT_WRITE:
                found.write()
            if events & selectors.EVENT_READ:
                came = True
                found.read()
    return came


def connect(
    url: BrokerUrl, user: str, password: str, connection: str, clock: Clock, whose: str, contexts: Contexts
) -> OtherBroker:
    """Connect to the first member that answers, and log in. `connection` = an id that no other connection has. Raises
    AmqError: ConnectError where nobody answers, which a later try may mend; others where none does."""
    causes: list[str] = []
    own_user, own_password = login_of(url)
    for uri in url.uris:
        name = f"{whose} {uri.host}:{uri.port}"
        try:
            layer = contexts.layer(uri)
            sock = socket.create_connection(uri.address, CONNECT_S)
        except ConnectError as error:
            causes.append(str(error))
            continue
        except OSError as error:
            causes.append(f"{uri.host}:{uri.port}: {error.strerror or error}")
            continue
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = OtherBroker(sock, Wire(name, connection, clock.monotonic()), clock, layer)
        try:
            peer.begin()
            _log_in(peer, own_user or user, own_password if own_user else password)
        except (ConnectError, ConnectionLostError, CallTimeoutError) as error:
            peer.close()
            causes.append(str(error))
        except BaseException:
            peer.close()
            raise
        else:
            return peer
    raise ConnectError(f"no broker answers at {url}: {'; '.join(causes)}")


def _log_in(peer: OtherBroker, user: str, password: str) -> None:
    """Raises AmqError."""
    wire = peer.wire
    peer.wait(lambda: wire.version > 0, CONNECT_S, "does not say a word of OpenWire (is it the port for JMS clients?)")
    wire.send(structure(table.CONNECTION_CONTROL, fault_tolerant=True))
    try:
        peer.request(
            structure(
                table.CONNECTION_INFO,
                id=wire.id,
                client_id=wire.connection,
                user_name=user or None,
                password=password or None,
                fault_tolerant=True,
            )
        )
    except AccessError as error:
        raise AccessError(f"{error.description}: check the user and the password", code=error.code) from error
    wire.send(structure(table.SESSION_INFO, id=structure(table.SESSION_ID, connection=wire.connection, value=SESSION)))
