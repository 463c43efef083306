"""Transport URLs: where the master listens, as users write it (`stomp://0.0.0.0:61613`).

A URL that parses here can be given to a listening socket; anything else is a `ValueError` that tells the cure.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

DEFAULT_PORTS = {"stomp": 61613}
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63}){0,30}\.?")


@dataclass(frozen=True, slots=True)
class TransportUrl:
    """One listening address. `port` 0 lets the kernel choose."""

    scheme: str
    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """True where only this host can reach the address."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_transport_url(text: str) -> TransportUrl:
    """`scheme://host[:port]` → TransportUrl; `ValueError` names what is wrong."""
    example = 'write for example "stomp://0.0.0.0:61613"'
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ValueError(f"is not a URL ({error}): {example}") from error
    if parts.scheme not in DEFAULT_PORTS:
        known = ", ".join(f"{scheme}://" for scheme in DEFAULT_PORTS)
        raise ValueError(f'has the unknown scheme "{parts.scheme}": this version serves {known}; {example}')
    if not host:
        raise ValueError(f"names no host to listen on: {example}")
    if "@" in parts.netloc or parts.path not in ("", "/") or parts.fragment:
        raise ValueError(f"has more than scheme, host and port: {example}; users belong in usersFile")
    if parts.query:
        raise ValueError(f'has the unknown option "{parts.query.split("=")[0]}": {parts.scheme}:// takes none')
    if not (_is_address(host) or _HOST_NAME.fullmatch(host)):
        raise ValueError(f'has the host "{host}", which is neither an IP address nor a host name: {example}')
    return TransportUrl(parts.scheme, host, DEFAULT_PORTS[parts.scheme] if port is None else port)


def reachable(text: str, host_name: str) -> str:
    """The transport URL `text` as clients on other hosts write it: `0.0.0.0` and `::` become `host_name`."""
    url = parse_transport_url(text)
    try:
        everywhere = ipaddress.ip_address(url.host).is_unspecified
    except ValueError:
        everywhere = False
    return str(TransportUrl(url.scheme, host_name, url.port)) if everywhere and host_name else text


def is_loopback(host: str) -> bool:
    """True where `host` (an address or `localhost`) is reachable from this machine only. No name is looked up."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback  # a dual-stack socket reports IPv4 peers like this
    return address.is_loopback


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
