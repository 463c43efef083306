"""Callers: the address from which a request comes, also behind a reverse proxy.

A proxy names its caller in `X-Forwarded-For`, as everybody can. Invariants: only proxies that the operator has declared
are believed; a request that names another caller, or that says in whatever header that it came through a proxy, never
counts as one from this host, whoever sends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

LOOPBACK: Final = ("127.0.0.1", "::1")
PEER: Final = "amq.peer"
# A proxy names its caller, or itself, in one of these.
NAMED: Final = frozenset(
    (
        "forwarded",
        "via",
        "x-client-ip",
        "x-cluster-client-ip",
        "x-forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-forwarded-server",
        "x-original-forwarded-for",
        "x-real-ip",
        "true-client-ip",
        "cf-connecting-ip",
        "fastly-client-ip",
        "forwarded-for",
    )
)


def checked(proxies: Sequence[str]) -> list[str]:
    """Addresses and networks of proxies. Raises ValueError, which names one that cannot be believed."""
    for each in proxies:
        try:
            network = ip_network(each)
        except ValueError as error:
            raise ValueError(f"{error}: write the address of the proxy, or its network") from error
        if not network.prefixlen:
            raise ValueError(f"{each} is every address: anybody could then choose the address that is noted")
    return list(proxies)


class BehindProxies:
    """The ASGI application `app`, whose requests come from the callers that `proxies` name."""

    def __init__(self, app: ASGIApp, proxies: Sequence[str]) -> None:
        self._app = app
        self._named = ProxyHeadersMiddleware(self._checked, checked(proxies))  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[PEER] = scope.get("client")
        await self._named(scope, receive, send)  # type: ignore[arg-type]

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("client"):
            try:
                ip_address(scope["client"][0])
            except ValueError:  # "unknown", or a name
                scope["client"] = scope[PEER]
        await self._app(scope, receive, send)


def address_of(request: Request) -> str:
    """The address of the program or browser that sent `request`, "" = it has none."""
    return request.client.host if request.client is not None else ""


def is_local(request: Request) -> bool:
    """Does it come from this host, without a proxy on the way?"""
    return address_of(request) in LOOPBACK and NAMED.isdisjoint(request.headers)
