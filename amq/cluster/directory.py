"""The directory of a cluster, in files or in a database: which stores it has, and which nodes take part in it.

    cluster.json      made once, with the id of the cluster
    secret            made once, for its own user alone: by it gateways and members know each other (`amq.link`)
    tables/N.json     the stores, and which destination lives in which (see `amq.cluster.placement`); the highest N
                      counts. A change makes N + 1: of two at the same time one fails
    stores/NAME/      an ordinary store, which nodes alone serve; in a database it is in tables beside those of the
                      cluster, whose prefix ends with its name
    brokers/NODE.json the seat of a node: its weight, and whether it runs (see `amq.store.board`)
    orders/NODE.json  what an operator wants of a node

Invariant: nothing here is needed for safety. Each store decides alone which broker is its master, and keeps in its
journal the table that it obeys, so a lost or an old table, or two nodes that see different ones, cost a preference or
an answer that comes later, and no message.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from types import MappingProxyType
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from amq.cluster.placement import SPREAD, Naming, Placement
from amq.cluster.preference import preferences, priorities
from amq.cluster.scaling import ScaleDown
from amq.config.addresses import bounded, stated
from amq.core.errors import AmqError, ConfigError, CorruptError, NewerFormatError, StoreError
from amq.store.board import Posted, Seat, SeatTakenError
from amq.store.document import decode, encode, field
from amq.store.name import full_name, is_directory
from amq.store.open import open_register, open_store
from amq.store.register import Register
from amq.store.status import store_status

P = ParamSpec("P")
T = TypeVar("T")
CLUSTER_FILE: Final = "cluster.json"
SECRET_FILE: Final = "secret"
SECRET_BYTES: Final = 32
TABLES_DIRECTORY: Final = "tables"
STORES_DIRECTORY: Final = "stores"
STORES_MAX = 256
NODES_MAX = 128
WEIGHT_MAX = 1000.0
NODE_BYTES = 16 << 10  # of a seat: what is written later is never shorter
GATEWAYS_MAX = 64  # of one node
FAILING_MAX = 16  # names
ORDER_BYTES = 1024
READS_MAX = 3  # of a document that is being written
CONFLICT: Final = "CONFLICT"  # the code of a change that came too late
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
NAME_CURE = "use up to 64 letters, digits, '.', '_' and '-', and begin with a letter or a digit"


@dataclass(frozen=True, slots=True)
class StoreTable:
    """Path or URL of each store of a cluster, also of one that is joining, "" = it is in the cluster; and what lives in
    which."""

    locations: Mapping[str, str]
    placement: Placement

    @property
    def stores(self) -> dict[str, str]:
        """The stores that nodes serve, in the order in which they were added."""
        return {name: self.locations[name] for name in self.placement.stores}

    @property
    def number(self) -> int:
        return self.placement.number


class GatewaySeen(NamedTuple):
    """A gateway, as its node last said.

    pid            of its process, 0 = it does not run
    connections    clients that it has
    links          stores to which it has a link
    waiting        connections that wait for the master of a store
    refused        stores whose master refuses its links now
    received, delivered   messages of clients that it passed on, and gave to clients, since its start
    links_lost     links that broke, since its start
    repeats        how often commands had to wait for a newer table of the homes, since its start
    restarts       how often its process was started again, since the start of its node
    table          number of the table of the homes by which it leads clients, 0 = it does not say (an older version)
    """

    pid: int
    connections: int = 0
    links: int = 0
    waiting: int = 0
    refused: int = 0
    received: int = 0
    delivered: int = 0
    links_lost: int = 0
    repeats: int = 0
    restarts: int = 0
    table: int = 0

    @classmethod
    def of(cls, pid: int, counts: Mapping[str, Any], restarts: int = 0) -> GatewaySeen:
        """`counts` = what it says of itself; it may be of another version than its node."""
        known = {name: _count(counts.get(name)) for name in cls._fields}
        return cls(**{**known, "pid": pid, "restarts": restarts})


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node as the directory shows it.

    running   its process holds its seat now
    weight    its share of the masterships, relative to those of the others
    drained   an operator wants it to be master of no store
    host, pid of its process, as it last said
    addresses where clients find its gateways, () = it has not said
    gateways  its processes that hold clients' connections
    began_ms  when its process was started, by its own clock, 0 = unknown
    restarts  how often its processes were started again
    failing   those that end again and again: a store names its member
    has_stopped  in good order, when it ran last
    scale_down   which stores leave the cluster with it, None = none
    """

    name: str
    running: bool
    weight: float = 1.0
    drained: bool = False
    host: str = ""
    pid: int = 0
    addresses: tuple[str, ...] = ()
    gateways: tuple[GatewaySeen, ...] = ()
    began_ms: int = 0
    restarts: int = 0
    failing: tuple[str, ...] = ()
    has_stopped: bool = False
    scale_down: ScaleDown | None = None

    @property
    def effective_weight(self) -> float:
        return 0.0 if self.drained else self.weight


def _with_cure(read: Callable[P, T]) -> Callable[P, T]:
    """Damage that `read` finds is none of a store: no tool of journals repairs it."""

    @wraps(read)
    def reader(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(*args, **kwargs)
        except CorruptError as error:
            error.cure = (
                "restore the file from a backup of the cluster's directory, its newest table above all; nodes that run "
                "go on with what they know"
            )
            raise

    return reader


class Cluster:
    """The cluster in `directory`, a path or the URL of a database. Every call may hang there."""

    @_with_cure
    def __init__(self, directory: str) -> None:
        """Raises StoreError where no cluster is there, or the directory cannot be read, ConfigError."""
        self.directory = full_name(directory)
        self._register = register = open_register(self.directory)
        self._board = register.board
        try:
            body = decode("cluster", register.read("", CLUSTER_FILE), register.place("", CLUSTER_FILE))
        except FileNotFoundError as error:
            raise _missing(self.directory) from error
        except StoreError as error:
            if error.code == "STORE_MISSING":  # a database without tables
                raise _missing(self.directory) from error
            raise
        except OSError as error:
            raise _unreadable(error) from error
        self.id: str = field(body, "id", str, register.place("", CLUSTER_FILE))

    @classmethod
    def create(cls, directory: str, stores: Mapping[str, str], naming: Naming | None = None) -> Cluster:
        """Make a cluster of `stores`, name → path or URL; "" = in the directory itself. Raises ConfigError, StoreError
        where there is one already, OSError."""
        path = full_name(directory)
        register = open_register(path)
        _check_stores(stores, register)
        if _was_served(path):
            raise StoreError(
                f"{path} is the store of a lone group: make the cluster in another directory, then take the store into "
                f"it: amq cluster import-store --cluster DIR {shlex.quote(path)}",
                code="STORE_IN_USE",
            )
        for location in filter(None, stores.values()):
            _check_unused(location)
        register.make((TABLES_DIRECTORY, STORES_DIRECTORY))
        if CLUSTER_FILE in register.names(""):
            raise StoreError(
                f"{path} is a cluster already: `amq cluster status --cluster {path}`", code="CLUSTER_EXISTS"
            )
        with suppress(FileExistsError):  # somebody makes it at the same time: the first table counts
            first = StoreTable(stores, Placement.even(1, stores, naming))
            register.write(TABLES_DIRECTORY, "1.json", _encode_table(first), _attempt())
        with suppress(FileExistsError):
            register.write("", CLUSTER_FILE, encode("cluster", {"id": secrets.token_hex(8)}), _attempt())
        made = cls(path)
        made.secret()
        if made.table().stores != stores:
            raise StoreError(f"{path} was made at the same time with other stores", code="CLUSTER_EXISTS")
        for name, location in stores.items():
            _make_store(made.location(name), is_elsewhere=bool(location))
        return made

    def secret(self) -> bytes:
        """The secret of the cluster; one of an older version, which has none, gets it now. Raises StoreError."""
        path = self._register.place("", SECRET_FILE)
        try:
            if SECRET_FILE not in self._register.names(""):
                with suppress(FileExistsError):  # another node was quicker
                    made = secrets.token_hex(SECRET_BYTES).encode()
                    self._register.write("", SECRET_FILE, made, _attempt(), private=True)
            found = self._register.read("", SECRET_FILE)
            if not self._register.is_private("", SECRET_FILE):
                raise StoreError(
                    f"{path} can be read by others, who could then act as a gateway: chmod 600 {path}",
                    code="SECRET_SHARED",
                )
        except OSError as error:
            raise StoreError(
                f"{path}: {error.strerror}: the secret of the cluster cannot be read; let all nodes run as one user"
            ) from error
        if len(found) < SECRET_BYTES:
            raise CorruptError(path, 0, "the secret is too short: remove the file while no node runs")
        return found

    # -- stores -------------------------------------------------------------------------------------------------------

    @_with_cure
    def table(self) -> StoreTable:
        """The newest table. Raises StoreError."""
        register = self._register
        try:
            names = register.names(TABLES_DIRECTORY)
            numbers = [int(name[:-5]) for name in names if re.fullmatch(r"[1-9][0-9]{0,8}\.json", name)]
            if not numbers:
                raise CorruptError(register.place(TABLES_DIRECTORY), 0, "there is no table of the stores")
            name = f"{max(numbers)}.json"
            path = register.place(TABLES_DIRECTORY, name)
            body = decode("cluster-table", register.read(TABLES_DIRECTORY, name), path)
        except OSError as error:
            raise _unreadable(error) from error
        stores: dict[str, str] = field(body, "stores", dict, path)
        try:
            _check_stores(stores, register)
            placement = _placement(max(numbers), body.get("placement"), stores)
        except (ConfigError, ValueError) as error:
            raise CorruptError(path, 0, str(error)) from error
        return StoreTable(MappingProxyType(stores), placement)

    def add_store(self, name: str, location: str = "") -> StoreTable:
        """The table with one store more, in which nothing lives yet. Raises ConfigError, StoreError where another
        change was quicker, OSError."""
        before = self.table()
        if name in before.locations:
            raise ConfigError(f"the cluster has a store {name!r} already", code="STORE_EXISTS")
        after = StoreTable({**before.locations, name: location}, before.placement.with_store(name))
        _check_stores(after.locations, self._register)
        if location:
            _check_unused(location)
        _make_store(self.location(name, after), is_elsewhere=bool(location))
        return self._change(after)

    def place(self, placement: Placement, places: Mapping[str, str] = MappingProxyType({})) -> StoreTable:
        """The table with `placement`, which was made of the newest one; `places` = where stores are that it does not
        have. Raises ConfigError, StoreError where another change was quicker, OSError."""
        names = {*placement.stores, placement.joining}
        found = {**self.table().locations, **places}
        locations = {name: location for name, location in found.items() if name in names}
        _check_stores(locations, self._register)
        return self._change(StoreTable(locations, placement))

    def _change(self, after: StoreTable) -> StoreTable:
        try:
            self._register.write(TABLES_DIRECTORY, f"{after.number}.json", _encode_table(after), _attempt())
        except FileExistsError as error:
            raise StoreError("somebody else changed the cluster at the same time: try again", code=CONFLICT) from error
        return after

    def location(self, name: str, table: StoreTable | None = None) -> str:
        """Path or URL of store `name`. Raises ConfigError."""
        stores = (table or self.table()).stores
        if name not in stores:
            raise ConfigError(f"the cluster has no store {name!r}; it has {', '.join(stores)}", code="STORE_UNKNOWN")
        return stores[name] or self.own_place(name)

    def own_place(self, name: str) -> str:
        """Path or URL of a store `name` that the cluster does not have elsewhere."""
        return self._register.place_of_store(STORES_DIRECTORY, name)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def join(self, node: str, weight: float, host: str, pid: int, scale_down: ScaleDown | None = None) -> Seat:
        """Take part as `node`, until the seat is closed. Raises ConfigError, NodeTakenError, StoreError."""
        check_node(node, weight)
        others = [each for each in self.nodes() if each.name != node]
        if len(others) >= NODES_MAX:
            raise ConfigError(f"the cluster has {len(others)} nodes already: `amq cluster forget` those that are gone")
        try:
            self._board.make_slot(node)
            seat = self._board.take(node)
        except SeatTakenError as error:
            other = _node_of(Posted(node, "", error.read), True)
            where = f" on host {other.host}, pid {other.pid}," if other.host else ""
            raise NodeTakenError(
                f"a node{where} already runs as {node!r}: give this one another --name, or stop that one"
            ) from None
        except OSError as error:
            raise _cannot_join(self.directory, error) from error
        try:
            seat.write(node_document(ClusterNode(node, True, weight, host=host, pid=pid, scale_down=scale_down)))
        except OSError as error:
            seat.close()
            raise _cannot_join(self.directory, error) from error
        except BaseException:
            seat.close()
            raise
        return seat

    def nodes(self) -> list[ClusterNode]:
        """All that have ever joined and were not forgotten, by name. Raises StoreError."""
        try:
            by_name: dict[str, ClusterNode] = {}
            for held in (True, False, True):  # one that starts or stops meanwhile is in one of the three lists
                by_name |= {posted.name: _node_of(posted, held) for posted in self._board.seats(held=held)}
            return [self._with_order(by_name[name]) for name in sorted(by_name)]
        except OSError as error:
            raise StoreError(
                f"{error.filename or self.directory}: {error.strerror}: the cluster cannot be read"
            ) from error

    def drain(self, node: str, drained: bool) -> None:
        """From now on `node` should be master of no store, or of its share again. Raises ConfigError, OSError."""
        self.node(node)
        self._board.make_slot(node)
        self._board.write_slot(node, encode("node-order", {"drained": drained}, ORDER_BYTES))

    def node(self, name: str) -> ClusterNode:
        """Raises ConfigError where no such node has ever joined."""
        found = {node.name: node for node in self.nodes()}
        if name not in found:
            names = ", ".join(found) or "none"
            raise ConfigError(f"no node {name!r} has ever joined this cluster; nodes: {names}", code="NODE_UNKNOWN")
        return found[name]

    def forget(self, name: str) -> None:
        """Node `name`, which does not run, will not come back: the others share its stores. Raises ConfigError,
        OSError."""
        if self.node(name).running:
            raise ConfigError(f"node {name!r} runs: stop it first", code="NODE_RUNS")
        self._board.forget(name)

    # -- who should be master -----------------------------------------------------------------------------------------

    def preferences(
        self, table: StoreTable | None = None, nodes: Sequence[ClusterNode] | None = None
    ) -> dict[str, list[str]]:
        """By store: the nodes that should be its master, the most preferred one first. `table` and `nodes`: where they
        are known, for a store may leave meanwhile."""
        return preferences((table or self.table()).stores, _weights(self.nodes() if nodes is None else nodes))

    def priorities(
        self, node: str, table: StoreTable | None = None, nodes: Sequence[ClusterNode] | None = None
    ) -> dict[str, int]:
        """By store: the `priority` of its member at `node`. See `preferences`."""
        return priorities((table or self.table()).stores, _weights(self.nodes() if nodes is None else nodes), node)

    def _with_order(self, node: ClusterNode) -> ClusterNode:
        for _ in range(READS_MAX):
            data = self._board.read_slot(node.name)
            if data is None:
                return node
            with suppress(CorruptError):
                body = decode("node-order", data, self._board.place_of_slot(node.name))
                return replace(node, drained=body.get("drained") is True)
        return node


def check_lone(store: str) -> None:
    """Raises StoreError where `store` is the directory of a cluster, or a store in one or elsewhere that a node serves
    now, so that nodes alone serve it; OSError."""
    if not is_directory(store):
        return
    path = os.path.realpath(store)
    if _is_cluster(path):
        raise StoreError(
            f"{path} is a cluster, not a store: start a node with `amq start --cluster {path}`",
            code="STORE_IN_CLUSTER",
        )
    stores, name = os.path.split(path)
    above = os.path.dirname(stores)
    if os.path.basename(stores) == STORES_DIRECTORY and _is_cluster(above):
        cluster = Cluster(above)
        if name in (table := cluster.table()).stores and cluster.location(name, table) == path:
            raise StoreError(
                f"{path} is store {name!r} of the cluster {above}: clients of its gateways would not reach this "
                f"broker. Start a node with `amq start --cluster {above}`",
                code="STORE_IN_CLUSTER",
            )
    elif os.path.isdir(path) and (master := store_status(open_store(path)).master) and "placement" in master.facts:
        raise StoreError(
            f"{path} is a store of a cluster, and node {master.name!r} serves it: clients of its gateways would not "
            "reach this broker. Start a node with `amq start --cluster DIR`",
            code="STORE_IN_CLUSTER",
        )


def _is_cluster(path: str) -> bool:
    return os.path.lexists(os.path.join(path, CLUSTER_FILE))


def _was_served(location: str) -> bool:
    """Was a broker ever master of a store in that directory? Of a database, which may not be there yet, nobody asks."""
    if not is_directory(location) or not os.path.isdir(location):
        return False
    return open_store(location).epochs.newest() is not None


def _check_unused(location: str) -> None:
    """Raises StoreError where a directory that shall become a store holds something already."""
    if is_directory(location) and _is_cluster(location):
        raise StoreError(f"{location} is a cluster, not a store: give another directory", code="STORE_IN_USE")
    if _was_served(location):
        raise StoreError(
            f"{location} is a store that brokers have served, and may hold messages: take it into the cluster, with "
            f"what it holds: amq cluster import-store --cluster DIR {shlex.quote(location)}",
            code="STORE_IN_USE",
        )


def node_document(node: ClusterNode) -> bytes:
    """The document of `node` in its seat."""
    body = {
        "weight": node.weight,
        "host": node.host,
        "pid": node.pid,
        "gateways": [list(each) for each in node.gateways[:GATEWAYS_MAX]],
        "began_ms": node.began_ms,
        "restarts": node.restarts,
        "failing": list(node.failing[:FAILING_MAX]),
        "has_stopped": node.has_stopped,
        "scale_down": None if node.scale_down is None else node.scale_down.to_json(),
    }
    return encode("node", {**body, "addresses": list(bounded(node.addresses))}, NODE_BYTES)


class NodeTakenError(AmqError):
    """A running node has this name."""

    code = "NAME_IN_USE"


def check_node(node: str, weight: float) -> None:
    """Raises ConfigError."""
    if not NAME.fullmatch(node):
        raise ConfigError(f"{node!r} is not a name for a node: {NAME_CURE}")
    if not 0 <= weight <= WEIGHT_MAX:
        raise ConfigError(f"a node has a weight between 0 and {WEIGHT_MAX:g}, not {weight:g}")


def _check_stores(stores: Mapping[str, Any], register: Register) -> None:
    if not 1 <= len(stores) <= STORES_MAX:
        raise ConfigError(f"a cluster has between 1 and {STORES_MAX} stores, not {len(stores)}")
    for name, location in stores.items():
        if not NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is not a name for a store: {NAME_CURE}")
        if name == SPREAD:
            raise ConfigError(f"{SPREAD!r} is not a name for a store: rules use it for all stores")
        if not isinstance(location, str) or (location and is_directory(location) and not os.path.isabs(location)):
            raise ConfigError(f"store {name!r}: {location!r} is neither an absolute path nor the URL of a database")
    given = Counter(location or register.place_of_store(STORES_DIRECTORY, name) for name, location in stores.items())
    for location, count in given.items():
        if count > 1:
            raise ConfigError(f"{count} stores of the cluster are at {location}")


def _make_store(location: str, *, is_elsewhere: bool) -> None:
    if is_directory(location):
        os.makedirs(location, exist_ok=True)
    elif not is_elsewhere:  # another database may not be there yet
        open_store(location).election.make()


def _missing(directory: str) -> StoreError:
    return StoreError(
        f"{directory} is not a cluster: it has no {CLUSTER_FILE}; make one with `amq cluster init --cluster "
        f"{directory}`, or mount its file system",
        code="CLUSTER_MISSING",
    )


def _unreadable(error: OSError) -> StoreError:
    cure = "; run this as the user of its nodes, or as root" if isinstance(error, PermissionError) else ""
    return StoreError(f"{error.filename}: {error.strerror}: the cluster cannot be read{cure}")


def _cannot_join(directory: str, error: OSError) -> StoreError:
    return StoreError(f"{error.filename or directory}: {error.strerror}: cannot join the cluster")


def _attempt() -> str:
    return secrets.token_hex(4)


def _encode_table(table: StoreTable) -> bytes:
    return encode("cluster-table", {"stores": dict(table.locations), "placement": table.placement.to_json()})


def _placement(number: int, found: object, stores: Mapping[str, str]) -> Placement:
    """A table without one is of an amq that had none: its slots are shared out evenly. Raises ValueError."""
    if found is None:
        return Placement.even(number, stores)
    placement = Placement.from_json(number, found)
    if sorted(filter(None, (*placement.stores, placement.joining))) != sorted(stores):
        raise ValueError("the placement is of other stores than the table")
    return placement


def _weights(nodes: Sequence[ClusterNode]) -> dict[str, float]:
    return {node.name: node.effective_weight for node in nodes}


def _node_of(posted: Posted, running: bool) -> ClusterNode:
    """The node as its seat says; one that cannot be read, perhaps of a newer version, has weight 1."""
    for _ in range(READS_MAX):
        try:
            body = decode("node", posted.read(), posted.place)
        except CorruptError:
            continue
        except NewerFormatError:
            break
        host, pid = body.get("host"), body.get("pid")
        return ClusterNode(
            posted.name,
            running,
            _weight(body.get("weight")),
            host=host if isinstance(host, str) else "",
            pid=pid if isinstance(pid, int) else 0,
            addresses=stated(found, "") if isinstance(found := body.get("addresses"), list) else (),
            gateways=_gateways(body.get("gateways")),
            began_ms=_count(body.get("began_ms")),
            restarts=_count(body.get("restarts")),
            failing=tuple(map(str, failing[:FAILING_MAX])) if isinstance(failing := body.get("failing"), list) else (),
            has_stopped=body.get("has_stopped") is True,
            scale_down=ScaleDown.from_json(body.get("scale_down")),
        )
    return ClusterNode(posted.name, running)


def _gateways(found: object) -> tuple[GatewaySeen, ...]:
    each = found[:GATEWAYS_MAX] if isinstance(found, list) else []
    size = len(GatewaySeen._fields)
    return tuple(GatewaySeen(*map(_count, one[:size])) for one in each if isinstance(one, list) and one)


def _count(found: object) -> int:
    return found if isinstance(found, int) else 0


def _weight(found: object) -> float:
    if isinstance(found, int | float) and 0 <= found <= WEIGHT_MAX:
        return float(found)
    return 1.0
