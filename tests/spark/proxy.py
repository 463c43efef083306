"""A proxy before a broker that knows the moments at which an exactly-once sink may be hurt, and hurts it there.

It passes bytes on and looks for COMMIT and ABORT frames. At each it asks `hook` (kind, headers) → Fate. Invariant: what
comes after a frame on its connection waits for its fate.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable
from enum import Enum

from tests.patience import DEADLINE_S

PREPARE, BATCH, ROLLBACK = "prepare", "batch", "rollback"
_FRAME = re.compile(rb"(COMMIT|ABORT)\n([^\0]*?)\n\n[^\0]*\0")  # the parts of a large batch are in a body
_ERROR = b"ERROR\nmessage:the proxy does not like it\ncode:PROXY\n\n\0"
_KEPT_BYTES = 70_000  # the longest frame of that kind, and some more


class Fate(Enum):
    PASS = "passes"
    HELD = "passes when `let_go` is set, as it stood when the frame came"
    CUT_BEFORE = "never arrives, and the connection breaks"
    CUT_AFTER = "is carried out, and the connection breaks before the answer"
    REFUSED = "never arrives, and is answered with an error"
    DENIED = "is carried out, and answered with an error"


Hook = Callable[[str, dict[str, str]], Fate]


def passing(_kind: str, _headers: dict[str, str]) -> Fate:
    return Fate.PASS


class Proxy:
    """Listens at `port` for the broker at `target`. A context manager."""

    def __init__(self, target: int, hook: Hook = passing) -> None:
        self.target = target
        self.hook = hook
        self.let_go = threading.Event()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    @property
    def url(self) -> str:
        return f"failover:(stomp://127.0.0.1:{self.port})?updateURIsSupported=false"  # nobody goes round it

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go.set()
        shut(self._listener)
        for sock in self._sockets:
            shut(sock)
        for thread in self._threads:
            thread.join(DEADLINE_S)

    def join(self) -> None:
        """Wait until the connections of clients that are gone are served to their end: a fate was carried out then."""
        for thread in self._threads[1:]:  # the first accepts
            thread.join(DEADLINE_S)
            assert not thread.is_alive()

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name=f"proxy {self.port}")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            self._sockets += [client, broker]
            pair = _Pair(self, client, broker)
            self._spawn(pair.to_broker)
            self._spawn(pair.to_client)

    def decide(self, kind: str, headers: dict[str, str]) -> Fate:
        """One frame at a time, whatever connection it comes on."""
        with self._lock:
            fate, let_go = self.hook(kind, headers), self.let_go
        if fate is not Fate.HELD:
            return fate
        let_go.wait()
        return Fate.PASS


class _Pair:
    """One connection of a client, and the one of ours to the broker."""

    def __init__(self, proxy: Proxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._broker = broker
        self._hides_answer = False
        self._answered = threading.Event()

    def to_broker(self) -> None:
        seen = b""
        try:
            while data := self._client.recv(1 << 16):
                seen += data
                fates = [self._fate(match[1], match[2].decode()) for match in _FRAME.finditer(seen)]
                seen = seen[max(seen.rfind(b"\0") + 1, len(seen) - _KEPT_BYTES) :]
                fate = next((fate for fate in fates if fate is not Fate.PASS), Fate.PASS)
                if fate in (Fate.CUT_AFTER, Fate.DENIED):
                    self._hides_answer = True
                    self._broker.sendall(data)
                    self._answered.wait(DEADLINE_S)
                if fate in (Fate.REFUSED, Fate.DENIED):
                    self._client.sendall(_ERROR)
                if fate is not Fate.PASS:
                    break
                self._broker.sendall(data)
        except OSError:
            pass
        shut(self._client)
        shut(self._broker)

    def _fate(self, command: bytes, text: str) -> Fate:
        headers = dict(line.split(":", 1) for line in text.split("\n"))
        kind = ""
        if headers.keys() & {"xid", "owner"}:
            kind = ROLLBACK if command == b"ABORT" else PREPARE if "phase" in headers else BATCH
        return self._proxy.decide(kind, headers) if kind else Fate.PASS

    def to_client(self) -> None:
        try:
            while data := self._broker.recv(1 << 16):
                if not self._hides_answer:
                    with contextlib.suppress(OSError):  # the other thread sees that the client is gone, and closes both
                        self._client.sendall(data)
                elif b"RECEIPT" in data:
                    self._answered.set()
                    return  # the other thread closes both
        except OSError:
            pass
        self._answered.set()
        shut(self._client)
        shut(self._broker)


def shut(sock: socket.socket) -> None:
    """Both ways, so that who waits in another thread wakes."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
