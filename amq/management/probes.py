"""Probes: the broker's own answer to kubelets and load balancers, over TCP, without a login.

`/livez`, `/readyz` and `/masterz` say 200 or 503 and one line of text, nothing else. They come from the broker's own
event loop: whatever happens to a console, they say how the broker is. Invariant: each connection carries one request of
at most `HEAD_BYTES_MAX`, for at most `REQUEST_S`; of more than `CONNECTIONS_MAX` the oldest is closed, so that silent
connections never keep a probe out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import h11

from amq.core.errors import ConfigError

CONNECTIONS_MAX: Final = 16
HEAD_BYTES_MAX: Final = 4 << 10
REQUEST_S: Final = 2.0  # from the connection to the end of the answer
LIVE, READY, MASTER = "/livez", "/readyz", "/masterz"


class Health(NamedTuple):
    """The condition of a broker: its role, and why it could not take over as a slave, "" = it could."""

    role: str
    not_ready: str = ""


def told(path: str, condition: Health) -> tuple[int, str]:
    """Status and text of the answer to a probe; 404 = there is no such probe."""
    role, why = condition
    if path == LIVE:
        return 200, "alive"
    if path == READY:
        good = role == "master" or (role == "slave" and not why)
        return (200, role) if good else (503, why if role == "slave" else role)
    if path == MASTER:
        return (200 if role == "master" else 503), role
    return 404, f"there are {LIVE}, {READY} and {MASTER}"


class ProbeServer:
    """Answers at `host` and `port`, from `start` to `close`. `condition()` = that of the broker now."""

    def __init__(self, host: str, port: int, condition: Callable[[], Health]) -> None:
        self._host = host
        self._port = port
        self.condition = condition
        self.connections: dict[_Probe, None] = {}  # the oldest first
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Returns where it listens. Raises ConfigError where that is not possible."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Probe(self), self._host, self._port)
        except OSError as error:
            raise ConfigError(
                f"probeListen {self._host}:{self._port}: {error.strerror or error}: another program has the port, or "
                "the address is not of this host",
                code="PROBE_LISTEN",
            ) from error
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.abort()

    def enter(self, connection: _Probe) -> None:
        if len(self.connections) >= CONNECTIONS_MAX:
            next(iter(self.connections)).abort()
        self.connections[connection] = None


class _Probe(asyncio.Protocol):
    """One connection with one request."""

    def __init__(self, server: ProbeServer) -> None:
        self._server = server
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._server.enter(self)
        self._timer = asyncio.get_running_loop().call_later(REQUEST_S, self.abort)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            self._answer(error.error_status_hint, "bad request", True)
            return
        if not isinstance(event, h11.Request):
            return
        if event.method not in (b"GET", b"HEAD"):
            self._answer(405, "GET only", True)
            return
        path = event.target.partition(b"?")[0].decode("ascii")
        self._answer(*told(path, self._server.condition()), event.method == b"GET")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._server.connections.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        """End at once."""
        self._server.connections.pop(self, None)
        self._transport.abort()

    def _answer(self, status: int, text: str, has_body: bool) -> None:
        body = f"{text}\n".encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            (b"connection", b"close"),
        ]
        out = self._http.send(h11.Response(status_code=status, headers=headers)) or b""
        if has_body:
            out += self._http.send(h11.Data(data=body)) or b""
        self._transport.write(out)
        self._transport.close()
