"""The application of the console: REST, Jolokia's read path, metrics and probes, as ASGI.

Invariant: every request but probes and metrics is one of a user who has logged in; what it may do is the broker's word.
A request that changes something comes from a program or from this origin, never from another site; `hosts` says under
which names those without a login are answered. Every answer, also that to an unknown path, has the headers `HEADERS`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from amq.cluster.whole import CLUSTER
from amq.console import cluster_metrics, jolokia, metrics
from amq.console.announcing import announce
from amq.console.callers import BehindProxies, address_of, is_local
from amq.console.hosts import MISDIRECTED, Hosts
from amq.console.link import OPERATION_S, PROBE_S, Link, trial
from amq.console.logins import Logins
from amq.console.pages import STATIC, Pages
from amq.console.whole import ClusterLink
from amq.core.errors import AccessError, AmqError, TransportError
from amq.doors.clock import Clock
from amq.management.openapi import PREFIX
from amq.management.resources import problem, status_of
from amq.security.login import User

BODY_BYTES_MAX: Final = 2 << 20
FAMILIES_MAX: Final = 20
HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}
Answer = Callable[[Request], Awaitable[Response]]


class Console:
    """`metrics_need_login`: figures are for users only. `peers`: see `Pages`. `proxies`: addresses and networks of the
    reverse proxies that are believed when they name their caller. `hosts`: further names of this console. `url`: where
    people reach it, for `announce`; "" = it announces nothing."""

    def __init__(
        self,
        link: Link,
        clock: Clock,
        metrics_need_login: bool = False,
        peers: str = "",
        proxies: Sequence[str] = (),
        hosts: Sequence[str] = (),
        url: str = "",
    ) -> None:
        self._link = link
        self._clock = clock
        self._logins = Logins(link, clock)
        self._metrics_need_login = metrics_need_login
        self._peers = peers
        self._proxies = proxies
        self._hosts = Hosts(hosts)
        self._url = url

    def app(self) -> ASGIApp:
        """The application for an ASGI server. Raises ValueError where a proxy is no address and no network."""
        app = Guarded(
            routes=[
                Route("/livez", self._told(self.livez)),
                Route("/readyz", self._told(self.readyz)),
                Route("/masterz", self._told(self.masterz)),
                Route("/metrics", self._told(self.metrics)),
                Route("/metrics/per-object", self._told(self.per_object)),
                Route("/metrics/detailed", self._told(self.detailed)),
                Route("/api/jolokia{slash:path}", self._told(self.jolokia), methods=["GET", "POST"]),
                Route(PREFIX + "/{path:path}", self._told(self.rest), methods=["GET", "POST", "DELETE"]),
                *Pages(self._link, self._clock, _foreign, self._hosts, self._peers, self._url).routes(),
            ],
            lifespan=self._announcing,
        )
        return BehindProxies(app, self._proxies) if self._proxies else app

    @asynccontextmanager
    async def _announcing(self, app: Starlette) -> AsyncIterator[None]:  # noqa: ARG002
        """While this console serves, others learn where."""
        task = asyncio.create_task(announce(self._link, self._url)) if self._url else None
        yield
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    @staticmethod
    def _told(answer: Answer) -> Answer:
        """The response to `answer`, with errors as problem details."""

        async def told(request: Request) -> Response:
            try:
                return await answer(request)
            except AmqError as error:
                return _failed(error)

        return told

    async def _user(self, request: Request) -> User:
        header = request.headers.get("authorization", "")
        user = await self._logins.user(header, address_of(request), is_local(request))
        self._hosts.check(request, user)
        return user

    # -- probes -------------------------------------------------------------------------------------------------------

    async def livez(self, request: Request) -> Response:  # noqa: ARG002
        """200: the event loop of the broker turns."""
        found = await trial(self._link)
        return _probe(isinstance(found, dict), "alive" if isinstance(found, dict) else str(found))

    async def readyz(self, request: Request) -> Response:  # noqa: ARG002
        """200: it does its duty, as master, or as a slave that could take over."""
        found = await trial(self._link)
        if isinstance(found, AmqError):
            return _probe(False, str(found))
        if found["role"] in ("master", CLUSTER):
            return _probe(True, found["role"])
        own = (await self._link.seen()).own
        why = own.not_ready if own is not None else "does not run"
        return _probe(found["role"] == "slave" and not why, why or str(found["role"]))

    async def masterz(self, request: Request) -> Response:  # noqa: ARG002
        """200 on the master alone: for load balancers."""
        found = await trial(self._link)
        role = str(found) if isinstance(found, AmqError) else str(found["role"])
        return _probe(role == "master", role)

    # -- metrics ------------------------------------------------------------------------------------------------------

    async def metrics(self, request: Request) -> Response:
        await self._let_in(request)
        if isinstance(self._link, ClusterLink):
            return _text(await self._of_cluster(self._link))
        try:
            seen = await self._link.seen()
        except AmqError:
            return _text(metrics.broker_text(None, None, None, self._clock.wall_ms()))
        found = await trial(self._link)
        status = found if isinstance(found, dict) else None
        totals = None
        if status is not None and status["role"] == "master":
            totals = await self._link.ask("GET", "/totals", timeout_s=5 * PROBE_S)
        return _text(metrics.broker_text(seen, status, totals, self._clock.wall_ms()))

    @staticmethod
    async def _of_cluster(link: ClusterLink) -> str:
        try:
            seen = await link.look()
        except AmqError:
            return cluster_metrics.cluster_text(None, ())
        return cluster_metrics.cluster_text(seen, await link.totals(seen) if seen.own_stores else ())

    async def per_object(self, request: Request) -> Response:
        await self._let_in(request)
        queues = metrics.queues_text(await self._queues(), self._clock.wall_ms())
        return _text(queues + metrics.topics_text(await self._link.rows("/topics")))

    async def detailed(self, request: Request) -> Response:
        """`?family=queue_messages&family=queue_consumers`"""
        await self._let_in(request)
        wanted = [f"amq_{name.removeprefix('amq_')}" for name in request.query_params.getlist("family")]
        unknown = [name for name in wanted if name not in metrics.QUEUES and name not in metrics.TOPICS]
        if unknown or not wanted or len(wanted) > FAMILIES_MAX:
            known = ", ".join((*metrics.QUEUES, *metrics.TOPICS))
            return _problem(400, "REQUEST_INVALID", f"give ?family=NAME of {known}, not {unknown[:3]}")
        of_queues, of_topics = (
            [name for name in dict.fromkeys(wanted) if name in known] for known in (metrics.QUEUES, metrics.TOPICS)
        )
        text = metrics.queues_text(await self._queues(), self._clock.wall_ms(), of_queues) if of_queues else ""
        topics = await self._link.rows("/topics") if of_topics else []
        return _text(text + metrics.topics_text(topics, of_topics))

    async def _let_in(self, request: Request) -> None:
        if self._metrics_need_login or "authorization" in request.headers:
            await self._user(request)
        else:
            self._hosts.check(request)

    async def _queues(self) -> list[dict[str, Any]]:
        return await self._link.rows("/queues")

    # -- REST ---------------------------------------------------------------------------------------------------------

    async def rest(self, request: Request) -> Response:
        """The broker's resources."""
        refused = _foreign(request)
        if refused is not None:
            return refused
        user = await self._user(request)
        body = await _body(request)
        if isinstance(body, Response):
            return body
        raw = request.scope["raw_path"].decode("latin-1").partition("?")[0].removeprefix(PREFIX)
        query = request.url.query
        timeout_s = 30.0 if request.method == "GET" else OPERATION_S
        found = await self._link.ask(
            request.method,
            raw + (f"?{query}" if query else ""),
            body if request.method == "POST" else None,
            user,
            timeout_s,
        )
        return JSONResponse(found)

    async def jolokia(self, request: Request) -> Response:
        refused = _foreign(request)
        if refused is not None:
            return refused
        user = await self._user(request)
        now_s = self._clock.wall_ms() // 1000
        if request.method == "GET":
            path = request.path_params["slash"].strip("/")
            return JSONResponse(await jolokia.answer(self._link, jolokia.parse_path(path), user, now_s))
        body = await _body(request, any_type=True)
        if isinstance(body, Response):
            return body
        if isinstance(body, list):
            if len(body) > jolokia.BATCH_MAX:
                return _problem(400, "REQUEST_INVALID", f"at most {jolokia.BATCH_MAX} requests together")
            return JSONResponse([await jolokia.answer(self._link, each, user, now_s) for each in body])
        return JSONResponse(await jolokia.answer(self._link, body, user, now_s))


class Guarded(Starlette):
    """An application whose answers have the headers `HEADERS`, unless they have their own. Static files may be cached.
    It ignores the requests of clients that went away in the middle of them."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        may_cache = scope["path"].startswith(f"{STATIC}/")

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    if not (may_cache and name == "Cache-Control"):
                        headers.setdefault(name, value)
            await send(message)

        with suppress(ClientDisconnect):
            await super().__call__(scope, receive, guarded)


def _foreign(request: Request) -> Response | None:
    """A refusal, where another site makes a browser send this."""
    if request.method == "GET":
        return None
    site, origin = request.headers.get("sec-fetch-site", "none"), request.headers.get("origin")
    if site not in ("none", "same-origin") or (origin and urlsplit(origin).netloc != request.headers.get("host")):
        return _problem(403, "FOREIGN_ORIGIN", "another site asks for this: only programs and this origin may")
    return None


async def _body(request: Request, any_type: bool = False) -> Any:
    """The JSON of the body, or the answer that refuses it."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > BODY_BYTES_MAX:
            return _problem(413, "REQUEST_INVALID", f"a body of more than {BODY_BYTES_MAX} bytes")
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if data and not any_type and kind != "application/json":
        return _problem(415, "REQUEST_INVALID", "the body must be application/json")
    try:
        found = json.loads(data) if data else {}
    except (ValueError, RecursionError) as error:
        return _problem(400, "REQUEST_INVALID", f"the body is not JSON: {error}")
    if not isinstance(found, dict) and not (any_type and isinstance(found, list)):
        return _problem(400, "REQUEST_INVALID", "the body must be a JSON object")
    return found


def _failed(error: AmqError) -> Response:
    if error.code in ("LOGIN_REFUSED", "LOGIN_REQUIRED"):
        headers = {"WWW-Authenticate": 'Basic realm="amq", charset="UTF-8"'}
        return _problem(401, error.code, str(error), headers)
    if error.code == MISDIRECTED:
        return _problem(421, error.code, str(error))
    if error.code in ("LOGIN_BUSY", "TOO_MANY_FAILED_LOGINS"):
        return _problem(429, error.code, str(error), {"Retry-After": "1" if error.code == "LOGIN_BUSY" else "60"})
    if isinstance(error, TransportError):
        return _problem(503, error.code, str(error))
    return _problem(403 if isinstance(error, AccessError) else status_of(error), error.code, str(error))


def _problem(status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    body = problem(status, code, detail)
    return JSONResponse(body, status, dict(headers or {}), media_type="application/problem+json")


def _probe(good: bool, told: str) -> Response:
    return PlainTextResponse(told + "\n", 200 if good else 503)


def _text(text: str) -> Response:
    return Response(text, media_type=metrics.CONTENT_TYPE)
