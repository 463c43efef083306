"""Transport URLs: where the master listens, as users write it (`stomp://0.0.0.0:61613`), and where clients find it.

A URL that `parse_transport_url` takes can be given to a listening socket, one that `parse_address` takes to a client;
anything else is a `ValueError` that tells the cure.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import urlsplit

DEFAULT_PORTS = {
    "stomp": 61613,
    "openwire": 61616,
    "tcp": 61616,
    "auto": 61616,
    "stomp+ssl": 61614,
    "openwire+ssl": 61617,
    "ssl": 61617,
    "auto+ssl": 61617,
}
TLS_SUFFIX = "+ssl"
TLS_ALONE = "ssl"  # ActiveMQ's name for OpenWire over TLS
KNOWN_MAX = 256  # texts of which is remembered what they mean: those of a group are read again and again
ADDRESS_CHARS_MAX = 255  # of a URL that is published: it is one of a list, in one header
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63}){0,30}\.?")


@dataclass(frozen=True, slots=True)
class TransportUrl:
    """One listening address. `port` 0 lets the kernel choose.

    loopback  only this host can reach the address
    tls       clients speak TLS
    """

    scheme: str
    host: str
    port: int
    loopback: bool = field(init=False, compare=False, repr=False)
    tls: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "loopback", is_loopback(self.host))
        object.__setattr__(self, "tls", self.scheme == TLS_ALONE or self.scheme.endswith(TLS_SUFFIX))

    @property
    def carried(self) -> str:
        """The scheme without TLS."""
        return "tcp" if self.scheme == TLS_ALONE else self.scheme.removesuffix(TLS_SUFFIX)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@lru_cache(maxsize=KNOWN_MAX)
def parse_transport_url(text: str) -> TransportUrl:
    """`scheme://host[:port]` → TransportUrl; `ValueError` names what is wrong."""
    return _parse(text, 'write for example "stomp://0.0.0.0:61613"')


def parse_address(text: str) -> TransportUrl:
    """The same, for an address to which clients connect: with a host and a port that exist."""
    example = 'write for example "stomp://broker1.example.com:61613"'
    url = _parse(text, example)
    if not url.port:
        raise ValueError(f"has the port 0, which no client can connect to: {example}")
    if _is_everywhere(url.host):
        raise ValueError(f"has the host {url.host}, which means any address and is none to connect to: {example}")
    if len(str(url)) > ADDRESS_CHARS_MAX:
        raise ValueError(f"is longer than {ADDRESS_CHARS_MAX} characters")
    return url


def _parse(text: str, example: str) -> TransportUrl:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ValueError(f"is not a URL ({error}): {example}") from error
    if parts.scheme not in DEFAULT_PORTS:
        known = ", ".join(f"{scheme}://" for scheme in DEFAULT_PORTS)
        raise ValueError(f'has the unknown scheme "{parts.scheme}": this version serves {known}; {example}')
    if not host:
        raise ValueError(f"names no host: {example}")
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
    return str(TransportUrl(url.scheme, host_name, url.port)) if _is_everywhere(url.host) and host_name else text


@lru_cache(maxsize=KNOWN_MAX)
def address(text: str, host_name: str) -> str:
    """The transport URL `text` as clients on other hosts connect to it, "" = none can. That is so for text that is not
    a URL, perhaps of another version, and for a port that the kernel chooses when a broker becomes master.
    """
    try:
        return str(parse_address(reachable(text, host_name)))
    except ValueError:
        return ""


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


def _is_everywhere(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_and_port(text: str) -> tuple[str, int]:
    """Of `HOST:PORT`, an IPv6 address in brackets. Raises ValueError."""
    host, separator, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not separator or not bare or not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"{text!r}: write HOST:PORT, such as 127.0.0.1:8162")
    return bare, int(port)
