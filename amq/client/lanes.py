"""Lanes: the direct connections of one that leads to a gateway of a cluster (`redirect=true` in the URL).

A producer or consumer of a destination with one home goes by a connection to the master of that store, its *lane*. A
lane is a failover connection of its own. Its brokers are the master, and behind it the gateways: where the master does
not answer, or says that a destination has moved, the lane goes on by a gateway, and repeats there in the old order and
with the same ids what was not confirmed. It returns to the master when it has no consumer, which would get again what
it holds.

Invariants: what one connection sends to a destination always goes by the same lane, or always by the gateway; there are
at most `LANES_MAX` lanes and `NAMES_MAX` destinations that have one. The connection itself keeps what belongs to it:
transactions, the client id with its durable subscriptions, and temporary destinations.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from amq.client.uri import BrokerUri, redirected
from amq.client.whereabouts import EVERYWHERE, Whereabouts
from amq.core.errors import AmqError

LANES_MAX = 64
NAMES_MAX = 1000
REACH_S = 10.0  # for a lane to be connected, to the master or to a gateway
TEMPORARY = "/temp-", "/remote-temp-"
log = logging.getLogger("amq.client")
Masters = tuple[BrokerUri, ...]


class Faced(Protocol):
    """A connection of either face."""

    _machine: Any

    @property
    def uri(self) -> BrokerUri | None: ...
    @property
    def brokers(self) -> tuple[BrokerUri, ...]: ...
    @property
    def why_not_connected(self) -> str: ...


C = TypeVar("C", bound=Faced)


class LaneTable(Generic[C]):
    """The lanes of `connection`, by the destinations that go by them."""

    def __init__(self, connection: C, url: str) -> None:
        self._connection = connection
        self._url = url
        self._by_store: dict[str, C | None] = {}  # None = its master cannot be reached from here
        self._by_name: dict[str, C | None] = {}

    @property
    def all(self) -> list[C]:
        return [lane for lane in self._by_store.values() if lane is not None]

    @property
    def stores(self) -> dict[str, BrokerUri | None]:
        """Where the lane of each store leads now; None = nowhere, at this moment."""
        return {store: lane.uri for store, lane in self._by_store.items() if lane is not None}

    def leave(self, destination: str) -> None:
        """New producers and consumers of it go by the connection itself."""
        self._by_name[destination] = None

    def _may_have_one(self, destination: str) -> bool:
        if destination.startswith(TEMPORARY) or "," in destination:
            return False
        return destination in self._by_name or len(self._by_name) < NAMES_MAX

    def _wanted(self, found: Whereabouts | None) -> tuple[str, Masters] | None:
        """The store to which a lane shall lead, and where its master is. None = there shall be none."""
        if found is None or found.homes[0] == EVERYWHERE:
            return None
        store = found.homes[0]
        masters = found.stores.get(store, ())
        if store not in self._by_store and (not masters or len(self._by_store) >= LANES_MAX):
            return None
        return store, masters

    def _url_to(self, masters: Masters) -> str:
        gateways = [uri for uri in self._connection.brokers if uri.address not in {each.address for each in masters}]
        url = redirected(self._url, [*masters, *gateways])
        first = ",".join(map(str, masters))
        return f"{url}{'&' if '?' in url else '?'}priorityBackup=true&priorityURIs={first}"

    def _reaches(self, store: str, lane: C, masters: Masters, error: AmqError | None) -> bool:
        """Does it lead to the master? If not, a warning is in the log."""
        if error is None and lane.uri is not None and lane.uri.address in {each.address for each in masters}:
            log.info("destinations of store %s go to its master at %s", store, lane.uri)
            return True
        why = error or lane.why_not_connected or f"{', '.join(map(str, masters))}: no answer"
        log.warning("destinations of store %s go through the gateway: its master cannot be reached: %s", store, why)
        return False


class Blocking(Faced, Protocol):
    """A synchronous connection."""

    def where(self, *destinations: str) -> Whereabouts | None: ...
    def wait_connected(self, timeout: float | None = None) -> None: ...
    def abort(self) -> None: ...


S = TypeVar("S", bound=Blocking)


class Lanes(LaneTable[S]):
    """The lanes of a synchronous connection; `begin(url)` begins to connect another one like it."""

    def __init__(self, connection: S, url: str, begin: Callable[[str], S]) -> None:
        super().__init__(connection, url)
        self._begin = begin
        self._lock = threading.Lock()

    def lane_of(self, destination: str) -> S | None:
        """None = by the connection itself. Raises AmqError."""
        if not self._may_have_one(destination):
            return None
        with self._lock:
            if destination not in self._by_name:
                wanted = self._wanted(self._connection.where(destination))
                if wanted is not None and wanted[0] not in self._by_store:
                    self._by_store[wanted[0]] = self._open(*wanted)
                self._by_name[destination] = None if wanted is None else self._by_store[wanted[0]]
            return self._by_name[destination]

    def _open(self, store: str, masters: Masters) -> S | None:
        lane, failed = self._begin(self._url_to(masters)), None
        try:
            lane.wait_connected(REACH_S)
        except AmqError as error:
            failed = error
        if self._reaches(store, lane, masters, failed):
            return lane
        lane.abort()
        return None
