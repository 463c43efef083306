"""A cable between a client and its brokers that can be pulled: it carries bytes between ports of this host and brokers.

Invariant: every byte passes, both ways, until `pull`, and where one side ends the other one does. `pull` breaks all
connections; new ones pass.
"""

import contextlib
import socket
import threading

from amq.client.uri import BrokerUri, BrokerUrl

PIECE_BYTES = 1 << 16


class Cable:
    """`url` leads through the cable to the brokers of `direct`, with its reconnectWindow. Use it in a `with` block."""

    def __init__(self, direct: BrokerUrl) -> None:
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in direct.uris]
        self._threads = [
            threading.Thread(target=self._accept, args=pair) for pair in zip(self._listeners, direct.uris, strict=True)
        ]
        ports = [listener.getsockname()[1] for listener in self._listeners]
        uris = ",".join(f"stomp://127.0.0.1:{port}" for port in ports)
        window = f"reconnectWindow={direct.options.reconnect_window_ms}"
        self.url = f"failover:({uris})?{window}&updateURIsSupported=false"  # the brokers tell of ways past the cable

    def pull(self) -> None:
        """Break every connection, as a switch does that restarts. New ones pass at once."""
        with self._lock:
            for end in self._ends:
                shut(end)

    def __enter__(self) -> "Cable":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners:
            shut(listener)
        for thread in self._threads:
            thread.join()
        for listener in self._listeners:
            listener.close()

    def _accept(self, listener: socket.socket, broker: BrokerUri) -> None:
        """Until the listener is shut. Ends with the connections that it accepted."""
        carriers = []
        with contextlib.suppress(OSError):  # raised by accept when the listener is shut
            while True:
                near = listener.accept()[0]
                carriers.append(threading.Thread(target=self._connect, args=(near, broker)))
                carriers[-1].start()
        self.pull()
        for carrier in carriers:
            carrier.join()

    def _connect(self, near: socket.socket, broker: BrokerUri) -> None:
        with near:
            try:
                far = socket.create_connection(broker.address)
            except OSError:  # a slave does not listen
                return
            with far:
                with self._lock:
                    self._ends |= {near, far}
                back = threading.Thread(target=carry, args=(far, near))
                back.start()
                carry(near, far)
                back.join()
                with self._lock:
                    self._ends -= {near, far}


def carry(source: socket.socket, target: socket.socket) -> None:
    """Until either ends; then the other one ends, too."""
    with contextlib.suppress(OSError):  # reset: as good as an end
        while piece := source.recv(PIECE_BYTES):
            target.sendall(piece)
    shut(source)
    shut(target)


def shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended already
        sock.shutdown(socket.SHUT_RDWR)
