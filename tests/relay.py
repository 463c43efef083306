"""A relay between clients and brokers. It keeps answers back, so that a request is carried out and its client never
told; or it falls silent without a word, as a pulled cable does. A `Cutter` breaks each connection at some byte.

Invariant: until `freeze` bytes to a broker pass; bytes to a client pass until it is cut off from answers, and then
never again; where one side ends the other one does, at once. After `freeze` nothing passes, and nothing is closed.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.patience import DEADLINE_S

PIECE_BYTES = 64 << 10


def _has_receipt(data: bytes) -> bool:
    return b"RECEIPT\n" in data


class Relay:
    """`ports` = for each of the brokers' ports one that leads there. A separate thread carries the bytes."""

    def __init__(self, broker_ports: Sequence[int]) -> None:
        self._listeners = {socket.create_server(("127.0.0.1", 0)): port for port in broker_ports}
        self.ports = [int(listener.getsockname()[1]) for listener in self._listeners]
        self._brokers: dict[socket.socket, socket.socket] = {}  # client → broker
        self._clients: dict[socket.socket, socket.socket] = {}  # broker → client
        self._kept: dict[socket.socket, bytes] = {}  # broker → what its client is not told
        self._changed = threading.Condition()
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for sock in (*self._listeners, self._woken):
            self._selector.register(sock, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="relay")
        self._thread.start()

    def silence(self) -> None:
        """From now on no client that is connected hears anything."""
        with self._changed:
            self._kept = dict.fromkeys(self._clients, b"")

    def wait_answered(self, connections: int, is_answer: Callable[[bytes], bool] = _has_receipt) -> None:
        """Until this many of them would have got an answer: what they are not told satisfies `is_answer`."""

        def answered() -> bool:
            return sum(is_answer(data) for data in self._kept.values()) >= connections

        with self._changed:
            assert self._changed.wait_for(answered, DEADLINE_S), f"fewer than {connections} have an answer"

    @property
    def clients(self) -> frozenset[socket.socket]:
        """The connections of clients that lead to a broker."""
        with self._changed:
            return frozenset(self._brokers)

    def wait_renewed(self, before: frozenset[socket.socket]) -> None:
        """Until the connections `before`, whose broker died, have ended, and as many others are there."""

        def renewed() -> bool:
            return before.isdisjoint(self._brokers) and len(self._brokers) >= len(before)

        with self._changed:
            assert self._changed.wait_for(renewed, DEADLINE_S), f"fewer than {len(before)} clients came back"

    def freeze(self) -> None:
        """From now on: silence, on both sides. Who connects gets no answer."""
        self._wake.close()
        self._thread.join()

    def close(self) -> None:
        """The cable is in again, and both sides see the end."""
        self.freeze()
        for sock in (*self._brokers, *self._clients, *self._listeners, self._woken):
            sock.close()
        self._selector.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is self._woken:
                    return
                if sock in self._listeners:
                    self._accept(sock)
                elif sock in self._brokers or sock in self._clients:  # else the other side ended in this round
                    self._carry(sock)

    def _port_of(self, listener: socket.socket) -> int:
        """The port where it leads."""
        return self._listeners[listener]

    def _accept(self, listener: socket.socket) -> None:
        client = listener.accept()[0]
        try:
            broker = socket.create_connection(("127.0.0.1", self._port_of(listener)))
        except ConnectionError:  # not the master
            client.close()
            return
        with self._changed:
            self._brokers[client], self._clients[broker] = broker, client
            self._changed.notify_all()
        for sock in (client, broker):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(sock, selectors.EVENT_READ)

    def _carry(self, sock: socket.socket) -> None:
        data = b""
        with contextlib.suppress(ConnectionError):  # as good as an end
            data = sock.recv(PIECE_BYTES)
            with self._changed:
                if sock in self._kept:
                    self._kept[sock] += data
                    self._changed.notify_all()
                elif data:
                    (self._brokers.get(sock) or self._clients[sock]).sendall(data)
        if not data:
            self._end(sock)

    def _end(self, sock: socket.socket) -> None:
        client = sock if sock in self._brokers else self._clients[sock]
        with self._changed:
            broker = self._brokers.pop(client)
            del self._clients[broker]
            self._kept.pop(broker, None)
            self._changed.notify_all()
        for each in (client, broker):
            self._selector.unregister(each)
            each.close()


class Cut(NamedTuple):
    """A connection breaks when this many bytes have passed to the broker, or to the client. `half_open`: the broker is
    not told. `reset`: both are told by a reset, and what they have not read yet is lost."""

    to_broker: int
    to_client: int
    half_open: bool = False
    reset: bool = False


class Cutter(Relay):
    """Each connection that it accepts breaks as `cuts` says; where that has no more of them, it passes everything."""

    def __init__(self, broker_port: int, cuts: Iterable[Cut]) -> None:
        self._cuts = iter(cuts)
        self._left: dict[socket.socket, list[int]] = {}  # client or broker → the bytes that may still come from it
        self._how: dict[socket.socket, Cut] = {}
        self._dangling: list[socket.socket] = []
        self.broken = 0
        super().__init__([broker_port])

    def _accept(self, listener: socket.socket) -> None:
        known = set(self._brokers)
        super()._accept(listener)
        for client in set(self._brokers) - known:
            cut = next(self._cuts, None)
            if cut is not None:
                self._left[client], self._left[self._brokers[client]] = [cut.to_broker], [cut.to_client]
                self._how[client] = self._how[self._brokers[client]] = cut

    def _carry(self, sock: socket.socket) -> None:
        if sock not in self._left:
            super()._carry(sock)
            return
        left = self._left[sock]
        data = b""
        with contextlib.suppress(ConnectionError):
            data = sock.recv(PIECE_BYTES)
            if data[: left[0]]:
                (self._brokers.get(sock) or self._clients[sock]).sendall(data[: left[0]])
        left[0] -= len(data)
        if left[0] <= 0 or not data:
            self.broken += bool(data)
            self._end(sock)

    def _end(self, sock: socket.socket) -> None:
        client = sock if sock in self._brokers else self._clients[sock]
        broker, cut = self._brokers[client], self._how.pop(sock, None)
        for each in (client, broker):
            self._left.pop(each, None)
            self._how.pop(each, None)
            if cut is not None and cut.reset:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if cut is not None and cut.half_open:
            self._dangling.append(broker.dup())
        super()._end(sock)

    def close(self) -> None:
        super().close()
        for sock in self._dangling:
            sock.close()


@contextlib.contextmanager
def relayed(broker_port: int) -> Iterator[Relay]:
    """A relay to that broker, closed at the end."""
    relay = Relay([broker_port])
    try:
        yield relay
    finally:
        relay.close()
