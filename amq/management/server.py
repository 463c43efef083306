"""Server: the resources of the brokers of this process over a Unix socket of this host, as HTTP/1.1 with JSON.

The port for links of a cluster leads here, too, for those who have proved that they know its secret (`amq.link.hello`).

Invariants: only the broker's own account (and root) may connect, by the mode of the socket and by its peer's
credentials, or by the secret, which that account alone can read. Requests, answers on their way and connections are
bounded; a client that does not read, or does not finish a request, is closed. The answer to any bytes is HTTP or the
end of the connection.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import stat
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import h11
import structlog

from amq.core.errors import AmqError, ConfigError
from amq.management.listing import Row, invalid
from amq.management.resources import Caller, Resources, problem, split, status_of
from amq.management.slices import Slices, pieces
from amq.security.login import User

CONNECTIONS_MAX: Final = 32
HEAD_BYTES_MAX: Final = 16 << 10
BODY_BYTES_MAX: Final = 2 << 20
QUERY_FIELDS_MAX: Final = 20
IDLE_S: Final = 60.0
REQUEST_S: Final = 10.0  # from the first byte of a request to its last
WRITE_S: Final = 20.0  # for a client to read an answer
PATH_BYTES_MAX: Final = 107  # of a Unix socket
USER_HEADER, ROLES_HEADER = b"amq-user", b"amq-roles"  # for whom the console asks; percent-encoded, with commas between
OPERATOR: Final = "local operator"
_CREDENTIALS = struct.Struct("3i")
_JSON, _PROBLEM = b"application/json", b"application/problem+json"
_log = structlog.get_logger("amq.management")


class ManagementServer:
    """Serves `resources` at `path`, from `start` to `close`."""

    def __init__(self, path: str, resources: Resources, slices: Slices) -> None:
        self.path = path
        self.resources = resources
        self.slices = slices
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Raises ConfigError where the socket cannot be made."""
        try:
            listening = _listen(self.path)
        except OSError as error:
            raise ConfigError(
                f"managementSocket {self.path}: {error.strerror or error}: give the path of a file in a directory of "
                f"this host that the broker may write, of at most {PATH_BYTES_MAX} bytes",
                code="MANAGEMENT_SOCKET",
            ) from error
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Connection(self), sock=listening)

    def make_trusted(self) -> asyncio.Protocol:
        """The protocol of a socket whose other end has proved elsewhere that it may do all."""
        return _Connection(self, is_trusted=True)

    def forget(self, store: str | None = None) -> None:
        """The role in `store` (None = in any) changed: what is asked for now is not answered any more."""
        for connection in list(self.connections):
            if None in (store, connection.store) or connection.store == store:
                connection.abort()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            try:
                os.unlink(self.path)
            except OSError as error:
                _log.info("the management socket was removed already", path=self.path, reason=str(error))
        self.forget()


def _listen(path: str) -> socket.socket:
    """A listening socket of mode 600 at `path`, in place of one that nobody serves any more. Raises OSError."""
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise OSError(errno.ENAMETOOLONG, f"the path has more than {PATH_BYTES_MAX} bytes")
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(errno.EEXIST, "there is a file of that name that is not a socket")
        _check_unused(path)
        os.unlink(path)
    except FileNotFoundError:
        pass  # as nearly always
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)
        try:
            listening.bind(path)
        finally:
            os.umask(before)
        os.chmod(path, 0o600)
        listening.listen(CONNECTIONS_MAX)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def _check_unused(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        trial.settimeout(1.0)
        try:
            trial.connect(path)
        except ConnectionRefusedError:
            return
        raise OSError(errno.EADDRINUSE, "another process serves there: give each broker another path")


def _caller(headers: Mapping[bytes, bytes]) -> Caller:
    """The user for whom a console asks; without one the operator."""
    name = headers.get(USER_HEADER)
    if name is None:
        return Caller(User(OPERATOR), is_operator=True)
    roles = filter(None, headers.get(ROLES_HEADER, b"").decode("latin-1").split(","))
    return Caller(User(unquote(name.decode("latin-1")), frozenset(map(unquote, roles))))


class _Connection(asyncio.Protocol):
    """One client: one request at a time."""

    def __init__(self, server: ManagementServer, is_trusted: bool = False) -> None:
        self._server = server
        self._is_trusted = is_trusted
        self.store: str | None = None  # that which the newest request named
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._transport: Any = None
        self._request: h11.Request | None = None
        self._body = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        is_ours = self._is_trusted or _is_ours(transport.get_extra_info("socket"))
        if len(self._server.connections) >= CONNECTIONS_MAX or not is_ours:
            transport.abort()
            return
        self._server.connections.add(self)
        self._wait(IDLE_S)

    def data_received(self, data: bytes) -> None:
        if self._http.our_state is h11.IDLE and self._request is None:
            self._wait(REQUEST_S)
        try:
            self._http.receive_data(data)
            self._next()
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint, str(error))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._server.connections.discard(self)
        self._may_write.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def abort(self) -> None:
        """End at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- requests -----------------------------------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort)

    def _next(self) -> None:
        """Raises h11.RemoteProtocolError."""
        while self._task is None:
            event = self._http.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return
            if isinstance(event, h11.Request):
                self._request = event
                self._body.clear()
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > BODY_BYTES_MAX:
                    self._refuse(413, f"a body of more than {BODY_BYTES_MAX} bytes")
                    return
            elif isinstance(event, h11.EndOfMessage):
                assert self._request is not None
                if self._timer is not None:
                    self._timer.cancel()
                self._transport.pause_reading()
                self._task = asyncio.get_running_loop().create_task(self._serve(self._request, bytes(self._body)))

    async def _serve(self, request: h11.Request, body: bytes) -> None:
        status, kind = 200, _JSON
        try:
            found = await self._answer(request, body)
        except AmqError as error:
            status, kind = status_of(error), _PROBLEM
            found = problem(status, error.code, str(error))
        except Exception as error:  # noqa: BLE001 (a defect: told and logged, and the broker goes on)
            _log.error("a management request failed", exc_info=error)
            status, kind, found = 500, _PROBLEM, problem(500, "INTERNAL_ERROR", repr(error)[:500])
        await self._respond(status, kind, found, request.method)
        self._task, self._request = None, None
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._wait(IDLE_S)
            self._transport.resume_reading()
            try:
                self._next()
            except h11.RemoteProtocolError as error:
                self._refuse(error.error_status_hint, str(error))
        else:
            self._transport.close()

    async def _answer(self, request: h11.Request, body: bytes) -> Row:
        target = urlsplit(request.target.decode("ascii"))
        try:
            pairs = parse_qsl(target.query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
            found = json.loads(body) if body else {}
        except (ValueError, RecursionError) as error:
            raise invalid(f"the query or the body cannot be read: {error}") from error
        if not isinstance(found, dict):
            raise invalid("the body must be a JSON object")
        caller = _caller(dict(request.headers))
        self.store = split(target.path)[0]
        method = request.method.decode("ascii")
        method = "GET" if method == "HEAD" else method
        return await self._server.resources.answer(method, target.path, dict(pairs), found, caller)

    # -- answers ------------------------------------------------------------------------------------------------------

    async def _respond(self, status: int, kind: bytes, found: Row, method: bytes = b"GET") -> None:
        parts = await self._encode(found)
        headers = [
            (b"content-type", kind),
            (b"content-length", b"%d" % sum(map(len, parts))),
            (b"cache-control", b"no-store"),
        ]
        out = self._http.send(h11.Response(status_code=status, headers=headers)) or b""
        for part in [] if method == b"HEAD" else parts:
            out += self._http.send(h11.Data(data=part)) or b""
        out += self._http.send(h11.EndOfMessage()) or b""
        self._transport.write(out)
        if not self._may_write.is_set():
            try:
                await asyncio.wait_for(self._may_write.wait(), WRITE_S)
            except TimeoutError:
                _log.info("a management client does not read its answer: closed")
                self.abort()

    async def _encode(self, found: Row) -> list[bytes]:
        """JSON, the rows of a list in slices."""
        rows = found.get("items")
        if not isinstance(rows, list):
            return [json.dumps(found).encode()]
        head = json.dumps({name: value for name, value in found.items() if name != "items"})
        parts = [(head[:-1] + (", " if len(head) > 2 else "") + '"items": [').encode()]
        async with self._server.slices.work() as work:
            for number, piece in enumerate(pieces(rows)):
                parts.append((", " if number else "").encode() + json.dumps(piece)[1:-1].encode())
                await work.did(len(piece))
        return [*parts, b"]}"]

    def _refuse(self, status: int, why: str) -> None:
        """Answer bytes that are not a request, and close the connection."""
        if self._task is not None or self._transport.is_closing():
            return
        body = json.dumps(problem(status, "REQUEST_INVALID", why)).encode()
        for out in _last_words(self._http, status, body):
            self._transport.write(out)
        self._transport.close()


def _last_words(http: h11.Connection, status: int, body: bytes) -> Iterator[bytes]:
    if http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    headers = [(b"content-type", _PROBLEM), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
        yield http.send(event) or b""


def _is_ours(peer: Any) -> bool:
    """Does the peer run as this account, or as root?"""
    if peer is None:
        return False
    uid: int = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
    return uid in (0, os.geteuid())
