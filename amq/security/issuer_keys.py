"""IssuerKeys: the public keys with which an OIDC issuer signs tokens, fetched when they are needed, and kept.

Invariants: no key is a secret, so none can be used with an algorithm for secrets; whatever keys tokens name, the issuer
is asked at most once in `ASK_S`, by one thread; keys that nobody could confirm for `STALE_S` count no more. An issuer
that does not answer stops no login whose key is known; one that answers slowly, byte by byte, is cut off after
`CUT_S`.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlsplit

import jwt
import structlog

from amq.core.errors import AmqError
from amq.doors.clock import Clock
from amq.doors.threads import SystemThreads
from amq.doors.tls import is_protected
from amq.security.login import refusal, unavailable

ASK_S: Final = 60.0  # between two questions that were answered
ASK_AGAIN_S: Final = 10.0  # after one that was not
FRESH_S: Final = 3600.0
STALE_S: Final = 86_400.0
TIMEOUT_S: Final = 5.0  # of connecting, and of each read
ANSWER_S: Final = 15.0  # that a login waits
CUT_S: Final = 15.0  # of all together: then the connection is cut
ANSWER_BYTES_MAX: Final = 256 << 10
KEYS_MAX: Final = 100
DISCOVERY: Final = "/.well-known/openid-configuration"
Keys = Mapping[tuple[str | None, str], jwt.PyJWK]  # by id and algorithm; None = the issuer has one key for it
_log = structlog.get_logger("amq.security")


class IssuerKeys:
    """Lives on the event loop. `algorithms` = those that are allowed; `url` = where the keys are, "" = the issuer says;
    `context` = the CAs for https."""

    def __init__(
        self, issuer: str, url: str, algorithms: tuple[str, ...], context: ssl.SSLContext, clock: Clock
    ) -> None:
        assert not any(name.upper().startswith("HS") or name.lower() == "none" for name in algorithms), algorithms
        self._issuer = issuer
        self._url = url
        self._algorithms = algorithms
        self._context = context
        self._clock = clock
        self._keys: Keys = {}
        self._fetched_at = -math.inf
        self._ask_after = -math.inf
        self._trouble = "its keys were not fetched yet"
        self._fetching: asyncio.Future[Keys] | None = None

    async def find(self, id: str | None, algorithm: str) -> jwt.PyJWK:
        """The key with that id. Raises AccessError: unknown id (LOGIN_REFUSED), or no answer (LOGIN_UNAVAILABLE)."""
        key = self._keys.get((id, algorithm))
        if key is None or self._age_s() > FRESH_S:
            self._ask()
        if (key is None or self._age_s() > STALE_S) and self._fetching is not None:
            await asyncio.wait([self._fetching], timeout=ANSWER_S)
            key = self._keys.get((id, algorithm))
        if self._age_s() > STALE_S:
            raise unavailable(f"the issuer of tokens does not answer ({self._trouble})")
        if key is None:
            raise refusal("the token is signed with a key that its issuer does not have; get a new one")
        return key

    def _age_s(self) -> float:
        return self._clock.monotonic() - self._fetched_at

    def _ask(self) -> None:
        """Fetch the keys, unless that was done just now. A thread that hangs is the only one."""
        if self._fetching is not None or self._clock.monotonic() < self._ask_after:
            return
        self._ask_after = math.inf
        loop = asyncio.get_running_loop()
        fetching = self._fetching = loop.create_future()
        cut = Cut()
        timer = loop.call_later(CUT_S, cut.off)
        fetching.add_done_callback(lambda _: timer.cancel())
        fetching.add_done_callback(self._answered)

        def fetch() -> None:
            try:
                result, error = fetch_keys(self._issuer, self._url, self._algorithms, self._context, cut), None
            except IssuerError as found:
                result, error = {}, found
            try:
                loop.call_soon_threadsafe(_end, fetching, result, error)
            except RuntimeError:  # the event loop is closed: the broker has ended meanwhile
                return

        SystemThreads().start("amq-issuer-keys", fetch)

    def _answered(self, fetching: asyncio.Future[Keys]) -> None:
        self._fetching = None
        now = self._clock.monotonic()
        if fetching.cancelled():
            self._ask_after = now
            return
        error = fetching.exception()
        self._ask_after = now + (ASK_S if error is None else ASK_AGAIN_S)
        if error is not None:
            self._trouble = str(error)
            _log.warning("the keys of the token issuer cannot be fetched", issuer=self._issuer, reason=str(error))
            return
        if fetching.result().keys() != self._keys.keys():
            _log.info("keys of the token issuer read", issuer=self._issuer, keys=len(fetching.result()))
        self._keys, self._fetched_at = fetching.result(), now


class IssuerError(AmqError):
    """The issuer does not answer, or not with keys."""

    code = "ISSUER_UNUSABLE"


def _end(future: asyncio.Future[Keys], keys: Keys, error: IssuerError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(keys)
    else:
        future.set_exception(error)


class Cut:
    """Ends a question from another thread: its connection, and those that it would make."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._socket: socket.socket | None = None
        self.is_off = False

    def guard(self, connection: socket.socket) -> None:
        """This is the connection now. Raises TimeoutError where the question was cut off before."""
        with self._mutex:
            if self.is_off:
                raise TimeoutError("timed out")
            self._socket = connection

    def off(self) -> None:
        with self._mutex:
            self.is_off = True
            if self._socket is not None:
                with suppress(OSError):  # closed already
                    # Not by the method of a TLS socket, which takes the session from the thread that reads.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def fetch_keys(issuer: str, url: str, algorithms: tuple[str, ...], context: ssl.SSLContext, cut: Cut) -> Keys:
    """Ask the issuer. Blocks. Raises IssuerError."""
    try:
        if not url:
            about = _get(issuer.rstrip("/") + DISCOVERY, context, cut)
            if about.get("issuer") != issuer:
                raise IssuerError(f"it says that it is another issuer: {str(about.get('issuer'))[:200]}")
            url = str(about.get("jwks_uri", ""))
        return _parse(_get(url, context, cut), algorithms)
    except (OSError, HTTPException, ValueError, RecursionError) as error:
        why = f"no whole answer within {CUT_S:g} s" if cut.is_off else error
        raise IssuerError(f"{url or issuer}: {why}"[:500]) from error


def _get(url: str, context: ssl.SSLContext, cut: Cut) -> dict[str, Any]:
    """The JSON object at `url`, asked without a proxy. An answer that sends us elsewhere is an error."""
    if not is_protected(url):
        raise ValueError(f"{url[:200]} is not an https address")
    parts = urlsplit(url)
    host, target = parts.hostname or "", (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if parts.scheme == "https":
        connection: HTTPConnection = HTTPSConnection(host, parts.port or 443, timeout=TIMEOUT_S, context=context)
    else:
        connection = HTTPConnection(host, parts.port or 80, timeout=TIMEOUT_S)
    with closing(connection):
        connection.connect()
        cut.guard(connection.sock)
        connection.request("GET", target, headers={"Accept": "application/json", "Connection": "close"})
        with closing(connection.getresponse()) as answer:
            if answer.status != 200:
                raise ValueError(f"{url}: HTTP {answer.status} {answer.reason}")
            data = answer.read(ANSWER_BYTES_MAX + 1)
    if len(data) > ANSWER_BYTES_MAX:
        raise ValueError(f"{url} answers with more than {ANSWER_BYTES_MAX} bytes")
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError(f"{url} does not answer with a JSON object")
    return found


def _parse(found: dict[str, Any], algorithms: tuple[str, ...]) -> Keys:
    """The keys that can be used. Others, also secret ones, are left out. Raises ValueError where there is none."""
    rows = found.get("keys")
    keys: dict[tuple[str | None, str], jwt.PyJWK] = {}
    for row in rows[:KEYS_MAX] if isinstance(rows, list) else ():
        if not isinstance(row, dict) or row.get("use", "sig") != "sig" or not isinstance(row.get("kid", ""), str):
            continue
        for algorithm in algorithms:
            if row.get("alg", algorithm) != algorithm:
                continue
            try:
                keys[row.get("kid"), algorithm] = jwt.PyJWK(row, algorithm)
            except (jwt.PyJWTError, ValueError, TypeError):
                continue  # of another kind
    if not keys:
        raise ValueError(f"it has no key for {', '.join(algorithms)}")
    for algorithm in algorithms:
        of_it = [key for (_, its), key in keys.items() if its == algorithm]
        if len(of_it) == 1:
            keys[None, algorithm] = of_it[0]
    return keys
