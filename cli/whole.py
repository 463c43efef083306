"""The cluster that the commands of operators ask: its masters, all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from amq.cluster.directory import Cluster
from amq.cluster.masters import ASK_S, Masters
from amq.cluster.whole import LISTS, Merged, WholeCluster
from amq.management.client import Manager, part
from amq.management.listing import LIMIT_MAX, Row
from amq.management.openapi import STORES


class WholeClient(Manager):
    """Asks a cluster: see `amq.cluster.whole`. `only` = the store that all paths are about, "" = all stores. A
    question that changes nothing is given up after `timeout_s`, a change after `operation_s`."""

    def __init__(self, directory: str, only: str = "", timeout_s: float = ASK_S, operation_s: float = ASK_S) -> None:
        self.whole = WholeCluster(Masters(Cluster(directory)))
        self.where, self._timeout_s, self._operation_s = directory, timeout_s, operation_s
        if only:
            self.whole.masters.cluster.location(only)  # is there such a store?
        self._above = f"{STORES}/{part(only)}" if only else ""

    def close(self) -> None:
        self.whole.masters.close()

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Row:
        timeout_s = self._timeout_s if method == "GET" else self._operation_s
        found = self.whole.ask(method, self._above + path, body, None, timeout_s)
        self.missing = found.get("missing", ())
        return found

    def all(self, path: str, limit: int | None = None, **query: object) -> Iterator[Row]:
        if self._above or path not in LISTS:
            yield from super().all(path, limit, **query)
            return
        given = {name: str(value) for name, value in query.items() if value not in (None, "")}
        merged = Merged(self.whole.masters, path, given, None, self._timeout_s, limit or LIMIT_MAX)
        yield from islice(merged, limit)
        self.missing = merged.missing
