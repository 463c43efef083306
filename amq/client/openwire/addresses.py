"""Broker URLs as clients of OpenWire write them: `tcp://host:61616`, `ssl://host:61617` and
`failover:(tcp://a:61616,tcp://b:61616)`.

Options behind a `?` are those of Java's client, which are read over, and those of TLS of our client, for one broker or
for all. For any text `parse` returns a `BrokerUrl` or raises `UriError`, which never repeats a password.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from amq.client.errors import UriError
from amq.client.options import TLS_OPTIONS, TransportOptions
from amq.client.uri import BrokerUri, BrokerUrl, filled, query_values

MEMBERS_MAX: Final = 64
_PLAIN, _TLS = "tcp", "ssl"
_PORTS: Final = {_PLAIN: 61616, _TLS: 61617}
_SCHEMES: Final = {
    **dict.fromkeys(("tcp", "openwire", "auto", "nio", "auto+nio"), _PLAIN),
    **dict.fromkeys(("ssl", "nio+ssl", "auto+ssl", "auto+nio+ssl", "openwire+ssl"), _TLS),
}
_AUTHORITY: Final = re.compile(
    r"(?:(?P<user>[^:@/]*)(?::(?P<password>[^@/]*))?@)?"
    r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:@/?#\s%]+)(?::(?P<port>[0-9]{1,5}))?/?"
)


def parse(url: str) -> BrokerUrl:
    """Read a URL. Raises UriError."""
    url = url.strip()
    scheme, colon, rest = url.partition(":")
    failover = scheme.lower() == "failover" and bool(colon)
    common: dict[str, str] = {}
    if failover:
        rest = rest.removeprefix("//")
        inner, closed, after = rest[1:].rpartition(")") if rest.startswith("(") else (rest, ")", "")
        if not closed or (after and not after.startswith("?")):
            raise UriError("the failover URL has no closing parenthesis, or something other than ?options behind it")
        url, common = inner, _of_tls(after[1:])
    names = url.split(",")
    if len(names) > MEMBERS_MAX:
        raise UriError(f"the URL names {len(names)} brokers, more than {MEMBERS_MAX}")
    if len(names) > 1 and not failover:
        raise UriError("the URL names several brokers: write failover:(tcp://A:61616,tcp://B:61616)")
    uris: dict[tuple[str, int], BrokerUri] = {}
    for name in names:
        uri = _member(name.strip(), common)
        uris.setdefault(uri.address, uri)
    if len({(uri.login, uri.passcode) for uri in uris.values() if uri.login}) > 1:
        raise UriError("the URL names several users: give one, for all brokers of the group")
    return BrokerUrl(tuple(uris.values()), failover=failover)


def login_of(url: BrokerUrl) -> tuple[str, str]:
    """User and password, "" = the URL names none."""
    return next(((uri.login, uri.passcode) for uri in url.uris if uri.login), ("", ""))


def _of_tls(query: str) -> dict[str, str]:
    return {name: value for name, value in query_values(query).items() if name in TLS_OPTIONS}


def _member(name: str, common: dict[str, str]) -> BrokerUri:
    location, _, query = name.partition("?")
    word, separator, authority = location.partition("://")
    shown = re.sub(r"://.*@", "://…@", location)[:80]
    if word.lower() in ("stomp", "stomp+ssl", "http", "https", "amqp", "mqtt", "ws"):
        raise UriError(f"{shown!r}: messages are moved over OpenWire: write tcp://HOST:61616, the port for JMS clients")
    scheme, match = _SCHEMES.get(word.lower()), _AUTHORITY.fullmatch(authority)
    if not separator or scheme is None or match is None:
        raise UriError(f"{shown!r} is no address of a broker: write tcp://HOST:61616, an IPv6 address in [brackets]")
    port = int(match["port"] or _PORTS[scheme])
    if not 0 < port < 65536:
        raise UriError(f"{shown!r}: port {port} is not between 1 and 65535")
    own = _of_tls(query)
    if own and scheme == _PLAIN:
        raise UriError(f"{shown!r}: option {next(iter(own))} has no effect without TLS: write ssl://HOST:61617")
    options = filled(TransportOptions, common | own)
    user, password = unquote(match["user"] or ""), unquote(match["password"] or "")
    return BrokerUri(unquote(match["host"].strip("[]")), port, user, password, options, scheme)
