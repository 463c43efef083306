"""Hosts: the names under which a console answers those who have not logged in.

A page of another site can have a name that resolves to this host (DNS rebinding): a browser then sends its requests
here, as requests of that site's own origin. The browser names the site in `Host`, which a page cannot change. So with
plain HTTP, whoever has not logged in is answered under these names only:

- localhost, 127.0.0.1, [::1], the name of this host, and the host of `--listen`,
- the address at which the request came in,
- the names of `--host`.

Others get 421. Three things need no such check: HTTPS, where the certificate says whose name it is; a request of a user
who has logged in, since a page of another site knows no password and gets no cookie; and probes, which say one word
to load balancers and kubelets that send addresses of their own choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.requests import Request

from amq.core.errors import AccessError
from amq.security.login import ANONYMOUS, User

MISDIRECTED: Final = "MISDIRECTED"
LOCAL: Final = ("localhost", "127.0.0.1", "::1")
TOLD_CHARS_MAX: Final = 100


class Hosts:
    """`names` = further names and addresses, without ports."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = frozenset(_plain(name) for name in (*LOCAL, *names))

    def check(self, request: Request, user: User | None = None) -> None:
        """`user` = for whom it is answered, None = nobody has logged in. Raises AccessError."""
        if request.scope["scheme"] == "https" or (user is not None and user.name != ANONYMOUS):
            return
        name = host_of(request.headers.get("host", ""))
        if name and (name in self._names or name == _address(request)):
            return
        raise AccessError(
            f"this console does not know the host {name[:TOLD_CHARS_MAX]!r}, and you have not logged in: ask for "
            "localhost, or start the console with --host and that name",
            code=MISDIRECTED,
        )


def host_of(header: str) -> str:
    """The host that a `Host` header names, without its port."""
    name, separator, port = header.rpartition(":")
    if not separator or port.endswith("]") or (port and not (port.isascii() and port.isdecimal())):
        name = header
    return _plain(name)


def _address(request: Request) -> str:
    """The address of this host at which `request` came in, as the kernel says it; "" = unknown."""
    server = request.scope.get("server")
    return _plain(str(server[0])) if server else ""


def _plain(name: str) -> str:
    """`name` in the form in which names are compared."""
    return name.strip().removeprefix("[").removesuffix("]").lower()
