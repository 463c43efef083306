"""Connections to brokers over sockets: one thread moves the bytes of all of them, in `Peer.wait` and `pump`.

Invariant: a socket is closed when its `Peer` is closed or its making fails; waits end by an answer, an error or a
deadline. A peer that is not listened to (`listens`) keeps the kernel's buffers full, and so the broker back.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from amq.client.errors import CallTimeoutError, ConnectError, ConnectionLostError
from amq.client.openwire.addresses import Addresses
from amq.client.openwire.wire import SESSION, Wire
from amq.clock import Clock
from amq.errors import AccessError, AmqError, ProtocolError
from amq.protocols.openwire import table
from amq.protocols.openwire.table import Structure, structure

CONNECT_S: Final = 10.0  # for the socket, and again for the handshake
ANSWER_S: Final = 60.0
RECEIVE_BYTES: Final = 256 << 10
LEAVE_S: Final = 5.0


class Peer:
    """A broker to which this process is connected and logged in."""

    def __init__(self, sock: socket.socket, wire: Wire, clock: Clock) -> None:
        self.sock = sock
        self.wire = wire
        self.clock = clock
        self.listens = True
        self._unsent = memoryview(b"")

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def wants_to_write(self) -> bool:
        return bool(self._unsent) or self.wire.out_bytes > 0

    def write(self) -> None:
        """Write as much as the kernel takes. Raises ConnectionLostError."""
        while True:
            if not self._unsent:
                self._unsent = memoryview(self.wire.take_output(self.clock.monotonic()))
                if not self._unsent:
                    return
            try:
                self._unsent = self._unsent[self.sock.send(self._unsent) :]
            except BlockingIOError:
                return
            except OSError as error:
                raise ConnectionLostError(f"{self.wire.whose}: {error.strerror or error}") from error

    def read(self) -> None:
        """Take what has come. Raises AmqError."""
        try:
            data = self.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise ConnectionLostError(f"{self.wire.whose}: {error.strerror or error}") from error
        if not data:
            if not self.wire.version:
                raise ProtocolError(
                    f"{self.wire.whose} closes the connection without a word of OpenWire: it is the port of another "
                    "protocol, or of TLS; name the one for JMS clients (61616)",
                    code="PROTOCOL_UNKNOWN",
                )
            raise ConnectionLostError(f"{self.wire.whose} has closed the connection")
        self.wire.receive(data, self.clock.monotonic())

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
        self.close()

    def close(self) -> None:
        self.sock.close()


def pump(peers: Iterable[Peer], timeout_s: float) -> bool:
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
            assert isinstance(found, Peer)
            if events & selectors.EVENT_WRITE:
                found.write()
            if events & selectors.EVENT_READ:
                came = True
                found.read()
    return came


def connect(addresses: Addresses, user: str, password: str, connection: str, clock: Clock, whose: str) -> Peer:
    """Connect to the first member that answers, and log in. `connection` = an id that no other connection has. Raises
    AmqError: ConnectError where nobody answers, which a later try may mend; others where none does."""
    causes: list[str] = []
    for host, port in addresses.members:
        name = f"{whose} {host}:{port}"
        try:
            sock = socket.create_connection((host, port), CONNECT_S)
        except OSError as error:
            causes.append(f"{host}:{port}: {error.strerror or error}")
            continue
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = Peer(sock, Wire(name, connection, clock.monotonic()), clock)
        try:
            _log_in(peer, addresses.user or user, addresses.password if addresses.user else password)
        except (ConnectionLostError, CallTimeoutError) as error:
            peer.close()
            causes.append(str(error))
        except BaseException:
            peer.close()
            raise
        else:
            return peer
    raise ConnectError(f"no broker answers at {addresses}: {'; '.join(causes)}")


def _log_in(peer: Peer, user: str, password: str) -> None:
    """Raises AmqError."""
    wire = peer.wire
    peer.wait(lambda: wire.version > 0, CONNECT_S, "does not say a word of OpenWire (is it the port for JMS clients?)")
    wire.send(structure(table.CONNECTION_CONTROL, fault_tolerant=True))
    try:
        peer.request(structure(
            table.CONNECTION_INFO, id=wire.id, client_id=wire.connection, user_name=user or None,
            password=password or None, fault_tolerant=True,
        ))  # fmt: skip
    except AccessError as error:
        raise AccessError(f"{error.description}: check the user and the password", code=error.code) from error
    wire.send(structure(table.SESSION_INFO, id=structure(table.SESSION_ID, connection=wire.connection, value=SESSION)))
