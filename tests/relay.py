"""A relay between a client and a broker that can fall silent without a word, as a pulled cable does."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator

PIECE_BYTES = 64 << 10


class Relay:
    """Listens on `port`. After `freeze` nothing passes any more, and no socket is closed."""

    def __init__(self, broker_port: int) -> None:
        self._broker_port = broker_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._partners: dict[socket.socket, socket.socket] = {}
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def freeze(self) -> None:
        """From now on: silence. Who connects gets no answer."""
        self._wake.close()
        self._thread.join()

    def close(self) -> None:
        """The cable is in again, and both sides see the end."""
        self.freeze()
        for sock in (*self._partners, self._listener, self._woken):
            sock.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for sock in (self._listener, self._woken):
                selector.register(sock, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    sock = key.fileobj
                    assert isinstance(sock, socket.socket)
                    if sock is self._woken:
                        return
                    if sock is self._listener:
                        client, broker = sock.accept()[0], socket.create_connection(("127.0.0.1", self._broker_port))
                        self._partners |= {client: broker, broker: client}
                        selector.register(client, selectors.EVENT_READ)
                        selector.register(broker, selectors.EVENT_READ)
                        continue
                    with contextlib.suppress(ConnectionError):
                        if data := sock.recv(PIECE_BYTES):
                            self._partners[sock].sendall(data)
                            continue
                    selector.unregister(sock)
                    with contextlib.suppress(OSError):  # the other side was first
                        self._partners[sock].shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def relayed(broker_port: int) -> Iterator[Relay]:
    """A relay to that broker, closed at the end."""
    relay = Relay(broker_port)
    try:
        yield relay
    finally:
        relay.close()
