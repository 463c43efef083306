"""Whether the transports of a configuration could be opened now, without opening them.

A probe binds each address as the listening socket would (`SO_REUSEADDR`, IPv6 only for IPv6) and closes it again. It
never listens, so no client can connect to it, and it never disturbs a master that opens the same port meanwhile: two
sockets with `SO_REUSEADDR` may be bound to one address while neither listens. Invariant: no exception leaves this file.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from amq.config.transport_url import parse_transport_url


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one transport cannot be opened. `number` is the errno, 0 where a host name cannot be resolved."""

    url: str
    port: int
    number: int
    reason: str

    def __str__(self) -> str:
        return f"cannot listen on {self.url}: {self.reason}"


def refusals(transports: Sequence[str]) -> tuple[Refusal, ...]:
    """The transports that cannot be opened now. May take as long as a name server does."""
    found = []
    for text in transports:
        url = parse_transport_url(text)
        try:
            _bind(url.host, url.port)
        except socket.gaierror as error:
            reason = f"the host name {url.host} cannot be resolved ({error.strerror})"
            found.append(Refusal(text, url.port, 0, reason))
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            found.append(Refusal(text, url.port, error.errno or 0, reason))
        except UnicodeError as error:  # the host name cannot be one
            found.append(Refusal(text, url.port, 0, str(error)))
    return tuple(found)


def _bind(host: str, port: int) -> None:
    """Raises OSError where a listening socket could not be bound either."""
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        try:
            probe = socket.socket(family, kind, protocol)
        except OSError:
            continue  # this kernel has no such family: the event loop passes it over, too
        with probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)
