"""Client: asks a broker's management interface, over its Unix socket or, through a console, over HTTP."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self
from urllib.parse import quote, unquote, urlencode, urlsplit

from amq.core.errors import AccessError, AmqError, CommandError, TransportError
from amq.management.listing import LIMIT_MAX, Row
from amq.management.openapi import PREFIX, STORE_AMBIGUOUS, STORES
from amq.security.login import User

TIMEOUT_S = 30.0
ANSWER_BYTES_MAX = 64 << 20
Dial = Callable[[float], socket.socket]


class _DialledConnection(http.client.HTTPConnection):
    def __init__(self, dial: Dial, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._dial = dial

    def connect(self) -> None:
        self.sock = self._dial(self.timeout or TIMEOUT_S)


def _unix(path: str, timeout_s: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


class Manager(ABC):
    """Asks, and is answered: one broker, or the masters of a cluster. Close it, or use it as a context manager.
    `missing`: the stores of a cluster that have not answered, each with a `detail`."""

    where: str
    missing: Sequence[Row] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Row:
        """Raises AmqError, as the broker said it, and TransportError where nobody answers."""

    def get(self, path: str, **query: object) -> Row:
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return self.ask("GET", path + ("?" + urlencode(given) if given else ""))

    def all(self, path: str, limit: int | None = None, **query: object) -> Iterator[Row]:
        """The rows of a list, page by page, at most `limit`."""
        offset = 0
        while limit is None or offset < limit:
            size = LIMIT_MAX if limit is None else min(LIMIT_MAX, limit - offset)
            page = self.get(path, **query, offset=offset, limit=size)
            yield from page["items"]
            offset += len(page["items"])
            if len(page["items"]) < size:
                return

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Row:
        return self.ask("POST", path, body or {})

    def delete(self, path: str, **query: str) -> Row:
        return self.ask("DELETE", path + ("?" + urlencode(query) if query else ""))


class ManagementClient(Manager):
    """`where` = the path of a Unix socket, or `http(s)://[USER:PASSWORD@]HOST:PORT` of a console. `user` = for whom a
    console asks; None = for the operator. A question that changes nothing is given up after `timeout_s`, a change after
    `operation_s` (None = `timeout_s` too). `store` = the one that paths are about, where the process has several:
    `amq.store.name.real_name` of it, or through a console the name that the process gives it. `dial(timeout_s)` opens
    the socket where it is neither; it may raise OSError, AmqError."""

    def __init__(
        self,
        where: str,
        timeout_s: float = TIMEOUT_S,
        user: User | None = None,
        operation_s: float | None = None,
        store: str = "",
        dial: Dial | None = None,
    ) -> None:
        self.where = where
        self._store = store
        self._above = ""  # of each path
        self._timeout_s = timeout_s
        self._operation_s = timeout_s if operation_s is None else operation_s
        self._headers: dict[str, str] = {}
        if user is not None:
            self._headers["Amq-User"] = part(user.name)
            self._headers["Amq-Roles"] = ",".join(map(part, sorted(user.roles)))
        url = urlsplit(where)
        if url.scheme in ("http", "https"):
            self._above = f"{STORES}/{part(store)}" if store else ""
            self.where = f"{url.scheme}://{url.hostname}:{url.port or ''}".rstrip(":")
            if url.username:
                login = f"{unquote(url.username)}:{unquote(url.password or '')}"
                self._headers["Authorization"] = "Basic " + b64encode(login.encode()).decode()
            host, port = url.hostname or "", url.port
            self._http: http.client.HTTPConnection = (
                http.client.HTTPSConnection(host, port, timeout=timeout_s, context=ssl.create_default_context())
                if url.scheme == "https"
                else http.client.HTTPConnection(host, port, timeout=timeout_s)
            )
        else:
            self._http = _DialledConnection(dial or partial(_unix, where), timeout_s)

    def close(self) -> None:
        self._http.close()

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Row:
        try:
            return self._ask(method, self._above + path, body)
        except CommandError as error:
            if error.code != STORE_AMBIGUOUS or not self._store:
                raise
        self._above = self._place()
        return self._ask(method, self._above + path, body)

    def _place(self) -> str:
        """Where the store is, among several of the process. Raises CommandError."""
        for row in self._ask("GET", STORES)["items"]:
            if self._store in (row["name"], row["store"]):
                return f"{STORES}/{part(row['name'])}"
        raise CommandError(f"{self.where} is not about the store {self._store}", code="STORE_UNKNOWN")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Row:
        data = json.dumps(body).encode() if body is not None else None
        headers = {**self._headers, **({"Content-Type": "application/json"} if data is not None else {})}
        self._http.timeout = self._timeout_s if method == "GET" else self._operation_s
        try:
            if self._http.sock is None:
                self._http.connect()
            assert self._http.sock is not None
            self._http.sock.settimeout(self._http.timeout)
            self._http.request(method, PREFIX + path, data, headers)
            answer = self._http.getresponse()
            raw = answer.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            self._http.close()
            if isinstance(error, TimeoutError):
                raise TransportError(
                    f"{self.where}: no answer within {self._http.timeout:g} s: the broker hangs, or its file server"
                ) from error
            raise TransportError(
                f"{self.where}: no answer: {error or type(error).__name__}; does the broker run, as this user?"
            ) from error
        return _checked(answer.status, raw, self.where)


def _checked(status: int, raw: bytes, where: str) -> Row:
    try:
        found = json.loads(raw)
    except ValueError as error:
        raise TransportError(f"{where} answers {status}, and no JSON: is it a console of amq?") from error
    if status < 400 and isinstance(found, dict):
        return found
    code = str(found.get("code", "COMMAND_REFUSED")) if isinstance(found, dict) else "COMMAND_REFUSED"
    kind: type[AmqError] = AccessError if status in (401, 403) else CommandError
    raise kind(str(found.get("detail", status)) if isinstance(found, dict) else str(status), code=code)


def part(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="")
