"""Broker URLs as clients of OpenWire write them: `tcp://host:61616` and `failover:(tcp://a:61616,tcp://b:61616)`.

Options behind a `?` are those of Java's client; they are read over. For any text `parse` returns `Addresses` or raises
`UriError`, which never repeats a password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from amq.client.errors import UriError

DEFAULT_PORT: Final = 61616
MEMBERS_MAX: Final = 64
_SCHEMES: Final = ("tcp", "openwire", "auto", "nio", "auto+nio")
_TLS: Final = ("ssl", "nio+ssl", "auto+ssl", "auto+nio+ssl", "openwire+ssl")
_AUTHORITY: Final = re.compile(
    r"(?:(?P<user>[^:@/]*)(?::(?P<password>[^@/]*))?@)?"
    r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:@/?#\s%]+)(?::(?P<port>[0-9]{1,5}))?/?"
)
_OPTIONS: Final = re.compile(r"\?[^,()]*")


@dataclass(frozen=True)
class Addresses:
    """Where a broker or its group is. `failover` False = one broker, and one attempt to reach it at first."""

    members: tuple[tuple[str, int], ...]
    failover: bool = False
    user: str = ""
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        names = ",".join(f"tcp://{_written(host)}:{port}" for host, port in self.members)
        return f"failover:({names})" if self.failover else names


def parse(url: str) -> Addresses:
    """Read a URL. Raises UriError."""
    url = url.strip()
    scheme, colon, rest = url.partition(":")
    failover = scheme.lower() == "failover" and bool(colon)
    if failover:
        rest = rest.removeprefix("//")
        inner, closed, after = rest[1:].rpartition(")") if rest.startswith("(") else (rest, ")", "")
        if not closed or (after and not after.startswith("?")):
            raise UriError("the failover URL has no closing parenthesis, or something other than ?options behind it")
        url = inner
    members: dict[tuple[str, int], None] = {}
    logins: dict[tuple[str, str], None] = {}
    for name in _OPTIONS.sub("", url).split(","):
        address, login = _member(name.strip())
        members[address] = None
        if login[0]:
            logins[login] = None
    if len(members) > MEMBERS_MAX:
        raise UriError(f"the URL names {len(members)} brokers, more than {MEMBERS_MAX}")
    if len(members) > 1 and not failover:
        raise UriError("the URL names several brokers: write failover:(tcp://A:61616,tcp://B:61616)")
    if len(logins) > 1:
        raise UriError("the URL names several users: give one, for all brokers of the group")
    user, password = next(iter(logins), ("", ""))
    return Addresses(tuple(members), failover, user, password)


def _member(name: str) -> tuple[tuple[str, int], tuple[str, str]]:
    scheme, separator, authority = name.partition("://")
    shown = re.sub(r"://.*@", "://…@", name)[:80]
    if scheme.lower() in _TLS:
        raise UriError(f"{shown!r}: this command does not speak TLS: name a connector without it, tcp://HOST:61616")
    if scheme.lower() in ("stomp", "http", "https", "amqp", "mqtt", "ws"):
        raise UriError(f"{shown!r}: messages are moved over OpenWire: write tcp://HOST:61616, the port for JMS clients")
    match = _AUTHORITY.fullmatch(authority)
    if not separator or scheme.lower() not in _SCHEMES or match is None:
        raise UriError(f"{shown!r} is no address of a broker: write tcp://HOST:61616, an IPv6 address in [brackets]")
    port = int(match["port"] or DEFAULT_PORT)
    if not 0 < port < 65536:
        raise UriError(f"{shown!r}: port {port} is not between 1 and 65535")
    login = unquote(match["user"] or ""), unquote(match["password"] or "")
    return (unquote(match["host"].strip("[]")), port), login


def _written(host: str) -> str:
    return f"[{host}]" if ":" in host else host
