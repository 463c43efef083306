"""Masters: looks at all stores of a cluster at the same time, and asks their masters.

Each store is looked at, and asked what changes nothing, in a thread of its own (`_Lane`). So one that hangs delays only
the answers about itself. A master on this host is asked at its management socket, another one through its port for
links, by the secret of the cluster (`amq.link.hello`).

Invariants: every call ends in time, whatever hangs; at most `JOBS_MAX` jobs wait for a store; no thread keeps the
process alive.
"""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Generic, NamedTuple, TypeVar

from amq.cluster.directory import Cluster, StoreTable
from amq.config.transport_url import parse_transport_url
from amq.core.errors import AmqError, StoreError, TransportError
from amq.core.proof import NONCE_BYTES, PROOF_BYTES
from amq.doors.clock import Clock, SystemClock
from amq.link.framing import LinkError
from amq.link.hello import HELLO_BYTES, LinkHello
from amq.management.client import Dial, ManagementClient
from amq.management.listing import Row
from amq.security.login import User
from amq.store.host import SystemHost, is_here
from amq.store.name import real_name
from amq.store.open import open_store
from amq.store.port import Store
from amq.store.presence import BrokerPresence
from amq.store.status import StoreStatus, store_status

LINK: Final = "link"  # the fact of a master that says where its port for links is
LOOK_S: Final = 3.0  # for a look at a store, which may hang
ASK_S: Final = 10.0
KNOWN_S: Final = 1.0  # what was seen is good for so long
JOBS_MAX: Final = 8  # that wait for one store
T = TypeVar("T")
Context = Callable[[], ssl.SSLContext]


class StoreNow(NamedTuple):
    """A store, as seen a moment ago. `status` None = it could not be read, and `trouble` says why, or no node has
    served it yet. `disk_free_bytes` None = that cannot be known. `lacks_table` = the number of a table that the store
    obeys and that the cluster does not have, 0 = there is none."""

    name: str
    location: str
    status: StoreStatus | None = None
    trouble: str = ""
    disk_free_bytes: int | None = None
    lacks_table: int = 0

    @property
    def master(self) -> BrokerPresence | None:
        return None if self.status is None else self.status.master

    @property
    def node(self) -> str:
        """The node that serves it, "" = none."""
        return "" if self.master is None else self.master.name

    @property
    def obeys(self) -> int | None:
        """The number of the table that its master has recorded, None = unknown."""
        placement = self.master.facts.get("placement") if self.master is not None else None
        number = placement.get("number") if isinstance(placement, dict) else None
        return number if isinstance(number, int) else None


class StoreAnswer(NamedTuple):
    """The answer of one store, or why there is none. `node` = that which serves it, "" = none is known."""

    store: str
    node: str
    row: Row | None = None
    error: AmqError | None = None

    @property
    def found(self) -> Row:
        """Raises AmqError."""
        if self.row is None:
            assert self.error is not None
            raise self.error
        return self.row


class Masters:
    """Those of the stores of `cluster`. May be used by many threads. `context()` = how TLS of links is checked."""

    def __init__(self, cluster: Cluster, context: Context = ssl.create_default_context, clock: Clock | None = None):
        self.cluster = cluster
        self._context = context
        self._clock = clock or SystemClock()
        self._host = SystemHost()
        self._lanes: dict[str, _Lane] = {}
        self._opened: dict[str, Store] = {}
        self._seen: dict[str, tuple[float, StoreNow]] = {}
        self._lock = threading.Lock()
        self._table: StoreTable | None = None
        self._read_at = 0.0

    def table(self) -> StoreTable:
        """The newest table, as it was a moment ago. While it cannot be read: the last one that could. Raises
        StoreError."""
        now = self._clock.monotonic()
        if self._table is None or now >= self._read_at + KNOWN_S:
            try:
                self._table = self._in_lane("", self.cluster.table, LOOK_S)
            except AmqError:
                if self._table is None:
                    raise
            self._read_at = self._clock.monotonic()
        return self._table

    def close(self) -> None:
        with self._lock:
            for lane in self._lanes.values():
                lane.close()
            self._lanes.clear()

    # -- looking ------------------------------------------------------------------------------------------------------

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def look(self, table: StoreTable | None = None) -> list[StoreNow]:
        """At all stores of `table`, by default the newest one, in its order."""
        table = table or self.table()
        jobs = [(name, self._begin(name, partial(self._look, name, table))) for name in table.stores]
        until = self._clock.monotonic() + LOOK_S
        found = []
        for name, job in jobs:
            try:
                found.append(self._end(name, job, until))
            except AmqError as error:
                found.append(StoreNow(name, self.cluster.location(name, table), trouble=str(error)))
        return self._compared(found, table)

    def _compared(self, stores: list[StoreNow], table: StoreTable) -> list[StoreNow]:
        """Which of them obey a table that the cluster does not have? It may have come since `table` was read."""
        if all((each.obeys or 0) <= table.number for each in stores):
            return stores
        try:
            newest = self._in_lane("", self.cluster.table, LOOK_S).number
        except AmqError:  # the next look will tell
            return stores
        return [each._replace(lacks_table=seen) if (seen := each.obeys or 0) > newest else each for each in stores]

    def _look(self, name: str, table: StoreTable) -> StoreNow:
        """In the lane of the store. Raises AmqError."""
        seen_at, seen = self._seen.get(name, (0.0, None))
        if seen is not None and self._clock.monotonic() < seen_at + KNOWN_S:
            return seen
        location = self.cluster.location(name, table)
        try:
            if location not in self._opened:
                self._opened[location] = open_store(location)
            store = self._opened[location]
            seen = StoreNow(name, location, store_status(store), "", store.log.free_bytes())
        except FileNotFoundError:
            seen = StoreNow(name, location)
        except OSError as error:
            raise StoreError(f"{location}: {error.strerror}: the store cannot be read") from error
        self._seen[name] = self._clock.monotonic(), seen
        return seen

    # -- asking -------------------------------------------------------------------------------------------------------

    def ask_all(
        self, path: str, user: User | None = None, timeout_s: float = ASK_S, stores: Sequence[str] | None = None
    ) -> list[StoreAnswer]:
        """The answers of all masters (or of those of `stores`) to GET `path`, within `timeout_s`."""
        table = self.table()
        names = table.stores if stores is None else stores
        jobs = [(name, self._begin(name, partial(self._ask, name, table, path, user, timeout_s))) for name in names]
        until = self._clock.monotonic() + timeout_s
        found = []
        for name, job in jobs:
            try:
                found.append(self._end(name, job, until))
            except AmqError as error:
                _, seen = self._seen.get(name, (0.0, None))
                found.append(StoreAnswer(name, "" if seen is None else seen.node, None, error))
        return found

    def _ask(self, name: str, table: StoreTable, path: str, user: User | None, timeout_s: float) -> StoreAnswer:
        """In the lane of the store. Raises AmqError."""
        seen = self._look(name, table)
        try:
            with self._client(seen, user, timeout_s, timeout_s) as client:
                return StoreAnswer(name, seen.node, client.ask("GET", path))
        except AmqError as error:
            return StoreAnswer(name, seen.node, None, error)

    def ask(
        self,
        name: str,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        user: User | None = None,
        timeout_s: float = ASK_S,
    ) -> StoreAnswer:
        """The answer of the master of one store, in the thread of the caller: changes may take long. Raises AmqError
        where the cluster has no such store."""
        table = self.table()
        self.cluster.location(name, table)
        node = ""
        try:
            seen = self._in_lane(name, partial(self._look, name, table), LOOK_S)
            node = seen.node
            with self._client(seen, user, timeout_s, timeout_s) as client:
                return StoreAnswer(name, node, client.ask(method, path, body))
        except AmqError as error:
            return StoreAnswer(name, node, None, error)

    def ask_near(
        self, method: str, path: str, body: Mapping[str, Any] | None, user: User | None, timeout_s: float = ASK_S
    ) -> Row:
        """The answer of any broker, of this host if there is one that answers: for what all of them know. Raises
        AmqError."""
        stores = self.look()
        trouble: AmqError = TransportError("no broker of the cluster can be asked from here: `amq cluster status`")
        for seen in stores:
            for each in seen.status.brokers if seen.status is not None else ():
                is_near = each.owner is not None and is_here(each.owner, self._host)
                if is_near and each.management and os.path.exists(each.management):
                    place = real_name(seen.location)
                    try:
                        with ManagementClient(each.management, timeout_s, user, store=place) as client:
                            return client.ask(method, path, body)
                    except TransportError as error:
                        trouble = error
        for seen in stores:
            if seen.master is not None:
                try:
                    with self._client(seen, user, timeout_s, timeout_s) as client:
                        return client.ask(method, path, body)
                except TransportError as error:
                    trouble = error
        raise trouble

    def _client(self, seen: StoreNow, user: User | None, timeout_s: float, operation_s: float) -> ManagementClient:
        """Raises TransportError where it cannot be asked from here."""
        master = seen.master
        if master is None:
            why = "no node serves it now" if seen.status is not None else "no node has served it yet"
            raise TransportError(f"store {seen.name}: {why}: see `amq cluster status`")
        where, dial = master.management, None
        is_near = master.owner is not None and is_here(master.owner, self._host)
        if not (where and is_near and os.path.exists(where)):
            where = str(master.facts.get(LINK) or "")
            if not where:
                raise TransportError(
                    f"store {seen.name}: {master.name} cannot be asked from this host: it has no port for links",
                )
            dial = self.dial(where)
        return ManagementClient(where, timeout_s, user, operation_s, real_name(seen.location), dial)

    def dial(self, url: str) -> Dial:
        """How the port for links at `url` is called."""
        return partial(dial_link, url, self.cluster.secret, self._context)

    # -- lanes --------------------------------------------------------------------------------------------------------

    def _begin(self, name: str, call: Callable[[], T]) -> Future[T]:
        with self._lock:
            lane = self._lanes.get(name)
            if lane is None:
                self._lanes[name] = lane = _Lane(name)
        return lane.begin(call)

    def _end(self, name: str, job: Future[T], until: float) -> T:
        """Raises AmqError."""
        try:
            return job.result(max(0.0, until - self._clock.monotonic()))
        except (TimeoutError, CancelledError) as error:
            job.cancel()
            whose = f"store {name}" if name else "the directory of the cluster"
            raise TransportError(f"{whose} does not answer: its file system or its master hangs") from error

    def _in_lane(self, name: str, call: Callable[[], T], timeout_s: float) -> T:
        return self._end(name, self._begin(name, call), self._clock.monotonic() + timeout_s)


class _Job(NamedTuple, Generic[T]):
    call: Callable[[], T]
    future: Future[T]

    def run(self) -> None:
        if self.future.set_running_or_notify_cancel():
            try:
                self.future.set_result(self.call())
            except BaseException as error:  # noqa: BLE001 (it is raised where the result is wanted)
                self.future.set_exception(error)


class _Lane:
    """The thread of one store. It takes one job after the other."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=f"amq-store-{name}", daemon=True).start()

    def begin(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        if self._jobs.qsize() >= JOBS_MAX:
            future.cancel()
        else:
            self._jobs.put(_Job(call, future))
        return future

    def close(self) -> None:
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()


def dial_link(url: str, secret: Callable[[], bytes], context: Context, timeout_s: float) -> socket.socket:
    """A socket to the management of the master whose port for links is at `url`. Raises OSError, AmqError."""
    place = parse_transport_url(url)
    sock = socket.create_connection((place.host, place.port), timeout_s)
    try:
        if place.tls:
            sock = context().wrap_socket(sock, server_hostname=place.host)
        hello = LinkHello(False, secret(), secrets.token_bytes(NONCE_BYTES), manages=True)
        sock.sendall(hello.begin())
        answer, _ = hello.receive(_received(sock, HELLO_BYTES, url))
        sock.sendall(answer)
        hello.receive(_received(sock, PROOF_BYTES, url))
    except BaseException:
        sock.close()
        raise
    return sock


def _received(sock: socket.socket, size: int, url: str) -> bytes:
    """Raises LinkError, OSError."""
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise LinkError(
                f"{url} takes no questions: it has another secret, another version, or stops", code="LINK_REFUSED"
            )
        data += part
    return data
