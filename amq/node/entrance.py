"""Entrance: the limits of strangers, users and descriptors that hold for a whole process.

All members of a node share it, in all their masterships: an address may not guess at one store after the other, and the
descriptors of a process are those of all. It lives on the event loop.

Invariant: a connection has a number that no other one of this process has or had.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, MutableMapping, Sequence
from functools import cached_property
from socket import socket
from ssl import SSLContext

from amq.config.schema import BrokerConfig
from amq.doors.clock import Clock
from amq.link.linked import LinkedClient
from amq.transports.doorkeeper import Doorkeeper
from amq.transports.handshakes import Handshakes, TlsPort
from amq.transports.peer import Peer
from amq.transports.places import Places

Served = Peer | LinkedClient  # a client: with a socket here, or at a gateway


class Entrance:
    """`config()` = the options that are in force now."""

    def __init__(self, clock: Clock, config: Callable[[], BrokerConfig]) -> None:
        self._config = config
        self.door = Doorkeeper(clock, config)
        self.places = Places(clock, lambda: config().max_connections)
        self.numbers = itertools.count(1)
        self._served: list[MutableMapping[int, Served]] = []  # the connections of each mastership, by number

    @cached_property
    def _handshakes(self) -> Handshakes:
        return Handshakes(asyncio.get_running_loop(), self._config)

    def tls_port(
        self,
        sockets: Sequence[socket],
        context: Callable[[], SSLContext | None],
        make: Callable[[], asyncio.Protocol],
    ) -> TlsPort:
        """A port that is open from now on. `context()` = for new handshakes; `make()` a protocol for a connection."""
        return TlsPort(sockets, context, make, self._handshakes, self.door.arrive, self.places.is_reserved)

    def serve(self, connections: MutableMapping[int, Served]) -> None:
        """From now on `connections` take places."""
        self._served.append(connections)

    def leave(self, connections: MutableMapping[int, Served]) -> None:
        """That mastership is over."""
        self._served = [each for each in self._served if each is not connections]

    def enter(self, peer: Served) -> None:
        """`peer` takes a place, perhaps that of another one. Raises PlacesTakenError."""
        gone = self.places.enter(peer, sum(map(len, self._served)))
        if gone is not None:
            for connections in self._served:
                connections.pop(gone.number, None)
