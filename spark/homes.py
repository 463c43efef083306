"""The stores of a cluster, as a query that was given the address of its gateways sees them: which of its destinations
each has, and where its master is.

A gateway says so. Its answer is as old as its last look: the master of a store refuses what does not live there. The
direct reads of a cluster are in `stores/NAME` of the directory in option `store`.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from pyspark.sql.datasource import InputPartition

from amq.client import Connection, FailoverTimeoutError
from amq.client.uri import redirected
from pyspark_amq.connections import connected
from pyspark_amq.leases import STORES
from pyspark_amq.options import BrokerOptions, SinkOptions, SourceOptions

if TYPE_CHECKING:
    from pyspark_amq.columns import RowTable

LOOK_S = 2.0  # between two questions, unless something has moved
PATIENCE_S = 120.0  # for the master of a store, where nothing can go on without it
PAUSE_S = 0.2
NAMES_TOGETHER = 50  # destinations of one question
ANY = "/queue/>"  # the name to ask for all stores
_NOTHING = threading.Event()  # never set: nothing wakes what pauses
_Options = TypeVar("_Options", bound=BrokerOptions)


class StoreSilentError(FailoverTimeoutError):
    """A store of the cluster has no master that can be reached."""

    code = "HOME_UNAVAILABLE"


@dataclass
class StorePart(InputPartition):
    """The input of one task: a partition of the store `store`, whose master is at `url`."""

    store: str
    url: str
    partition: InputPartition


class Stores:
    """`connection` leads to a gateway; give another one where it is closed. `names` = the destinations of the query."""

    def __init__(self, options: BrokerOptions, names: Sequence[str], before: Stores | None = None) -> None:
        self._options = options
        self._names = [*names]
        self._urls: dict[str, str] = {} if before is None else before._urls
        self._homes: dict[str, str] = {}
        self._looked_s = -math.inf
        self.all: tuple[str, ...] = () if before is None else before.all  # in the order of the table

    def look(self, connection: Connection, *, again: bool = False) -> bool:
        """Ask the gateway, unless it was asked a moment ago and not `again`. False = there is no cluster: the address
        is that of a broker. Raises AmqError."""
        now_s = time.monotonic()
        if not again and now_s - self._looked_s < LOOK_S:
            return True
        found = connection.where(*self._names)
        if found is None:
            return False
        self._looked_s = now_s
        self._homes = dict(zip(self._names, found.homes, strict=True))
        self._urls |= {name: redirected(self._options.url, uris) for name, uris in found.stores.items() if uris}
        known = () if "" in found.homes else self.all  # else the answer has all stores, in the order of the table
        self.all = tuple(dict.fromkeys((*known, *found.stores)))
        return True

    def forget(self) -> None:
        """Something has moved: ask again soon."""
        self._looked_s = -math.inf

    def names_in(self, store: str) -> list[str]:
        """The destinations that may have something in `store`."""
        return [name for name in self._names if self._homes[name] in ("", store)]

    def homes_of(self, name: str) -> list[str]:
        home = self._homes[name]
        return [home] if home else [*self.all]

    def url(self, store: str) -> str:
        """The URL of the master of `store`, "" = none has ever been known."""
        return self._urls.get(store, "")

    def url_soon(self, store: str, connection: Connection) -> str:
        """The same; wait for a master. Raises StoreSilentError."""
        until_s = time.monotonic() + PATIENCE_S
        while not (url := self.url(store)):
            if time.monotonic() >= until_s:
                why = f"the gateway knows no master of store {store} that this URL lets Spark try, for {PATIENCE_S:g} s"
                raise StoreSilentError(f"{why}: look at `amq cluster status`, or write .option('redirect', 'false')")
            _NOTHING.wait(PAUSE_S)
            self.look(connection, again=True)
        return url


class Targets:
    """Where the rows of a task go: to the store of their destination. Of a destination that lives in every store, each
    task has one, by the number of its `partition`: so its rows stay in order, and an attempt goes where the one before
    went. Use it in `with`."""

    def __init__(self, options: SinkOptions, partition: int = 0) -> None:
        self._options = options
        self._partition = partition
        self._opened = ExitStack()
        self._gateway: Connection | None = None
        self._stores: Stores | None = None
        self._homes: dict[str, str] = {}
        self._is_alone = not options.redirect  # the address is that of a broker
        self.is_cluster = False
        self.possible: tuple[str, ...] = ()  # stores that have rows of this batch or, by another table, might

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    def options_of(self, store: str) -> SinkOptions:
        """Those for the connection to a store; "" = the broker. Raises StoreSilentError."""
        if not store:
            return self._options
        stores = self._all()
        return at(self._options, store, stores.url_soon(store, self._connected()))

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Stores in the order in which they were added to the cluster. Raises AmqError."""
        found = [*names]
        if found == [""]:
            return found
        self._all().look(self._connected(), again=True)
        known = self._all().all
        return sorted(found, key=lambda name: known.index(name) if name in known else len(known))

    def _all(self) -> Stores:
        if self._stores is None:
            self._stores = Stores(self._options, [ANY])
        return self._stores

    def _connected(self) -> Connection:
        if self._gateway is None:
            options = self._options
            self._gateway = self._opened.enter_context(connected(options, options.send_timeout_s, options.window_rows))
        return self._gateway

    def split(self, tables: Sequence[RowTable]) -> Mapping[str, list[RowTable]]:
        """The rows by store. Raises AmqError."""
        if self._is_alone:
            return {"": [*tables]}
        names = sorted({table.destination for table in tables} - self._homes.keys())
        for first in range(0, len(names), NAMES_TOGETHER):
            some = names[first : first + NAMES_TOGETHER]
            self._stores = stores = Stores(self._options, some, self._stores)
            self.is_cluster = stores.look(self._connected(), again=True)
            if not self.is_cluster:
                self._is_alone = True
                self._opened.close()  # the task takes the same connection
                return {"": [*tables]}
            for name in some:
                homes = stores.homes_of(name)
                self._homes[name] = homes[self._partition % len(homes)]
                if len(homes) > 1:
                    self.possible = tuple(homes)
        found: dict[str, list[RowTable]] = {}
        for table in tables:
            found.setdefault(self._homes[table.destination], []).append(table)
        return found

    def forget(self) -> None:
        """A destination has moved."""
        self._homes.clear()
        _NOTHING.wait(PAUSE_S)


def at(options: _Options, store: str, url: str) -> _Options:
    """The options of one store: it is asked at `url`."""
    changed = dataclasses.replace(options, url=url)
    if isinstance(changed, SourceOptions) and changed.store is not None:
        changed = dataclasses.replace(changed, store=str(Path(changed.store, STORES, store)))
    return changed


def shares(room: int, waiting: Mapping[str, int]) -> dict[str, int]:
    """How many of `room` messages each store may give, at least one: in proportion to what waits there, as far as it is
    known. Where there is less room than stores, some get nothing, those that come last."""
    if room < len(waiting):
        return dict.fromkeys([*waiting][:room], 1)
    spare, total = room - len(waiting), sum(waiting.values())
    if not total:
        return {name: 1 + spare // len(waiting) for name in waiting}
    return {name: 1 + spare * count // total for name, count in waiting.items()}
