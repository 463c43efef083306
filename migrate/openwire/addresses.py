"""Broker URLs as clients of OpenWire write them: `tcp://host:61616`, `ssl://host:61617` and
`failover:(tcp://a:61616,tcp://b:61616)`.

Options behind a `?` are those of Java's client, which are read over, and those of TLS of our client, for one broker or
for all. For any text `parse` returns a `BrokerUrl` or raises `UriError`, which never repeats a password.
"""

from __future__ import annotations

import re
from typing import Final

from amq.client.errors import UriError
from amq.client.options import TLS_OPTIONS, TransportOptions
from amq.client.uri import BrokerUri, BrokerUrl, failover_parts, filled, query_values, read_authority

MEMBERS_MAX: Final = 64
_PLAIN, _TLS = "tcp", "ssl"
_PORTS: Final = {_PLAIN: 61616, _TLS: 61617}
_SCHEMES: Final = {
    **dict.fromkeys(("tcp", "openwire", "auto", "nio", "auto+nio"), _PLAIN),
    **dict.fromkeys(("ssl", "nio+ssl", "auto+ssl", "auto+nio+ssl", "openwire+ssl"), _TLS),
}


def parse(url: str) -> BrokerUrl:
    """Read a URL. Raises UriError."""
    url = url.strip()
    scheme, colon, rest = url.partition(":")
    failover = scheme.lower() == "failover" and bool(colon)
    common: dict[str, str] = {}
    if failover:
        url, query = failover_parts(rest.removeprefix("//"))
        common = _of_tls(query)
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
    scheme = _SCHEMES.get(word.lower())
    found = read_authority(authority, _PORTS[scheme], repr(shown)) if separator and scheme is not None else None
    if scheme is None or found is None:
        raise UriError(f"{shown!r} is not a broker's address: write tcp://HOST:61616, an IPv6 address in [brackets]")
    own = _of_tls(query)
    if own and scheme == _PLAIN:
        raise UriError(f"{shown!r}: option {next(iter(own))} has no effect without TLS: write ssl://HOST:61617")
    options = filled(TransportOptions, common | own)
    return BrokerUri(*found, options, scheme)
