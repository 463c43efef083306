"""The overview of a cluster: a row for each store and each node, as the directory and the masters show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from amq.cluster.alarms import preferred
from amq.cluster.directory import ClusterNode
from amq.cluster.masters import StoreNow
from amq.console.whole import ClusterSeen
from amq.console.words import shown
from amq.management.listing import Row

STORES: Final = (
    ("Store", False),
    ("Node", False),
    ("Should be", False),
    ("Slaves ready", True),
    ("Messages", True),
    ("In/s", True),
    ("Out/s", True),
    ("Dead letters", True),
    ("Connections", True),
    ("Table", True),
    ("State", False),
)
NODES: Final = (
    ("Node", False),
    ("State", False),
    ("Weight", True),
    ("Serves", True),
    ("Gateways", True),
    ("Clients", True),
    ("Restarts", True),
    ("Host", False),
)
FIGURES: Final = ("messages", "in_flight", "dead_letters", "consumers", "connections", "named_queues")


class Cell(NamedTuple):
    text: str
    href: str = ""


class OverviewTable(NamedTuple):
    """`columns` = (title, is it a number)."""

    title: str
    columns: Sequence[tuple[str, bool]]
    rows: list[list[Cell]]


def tables(seen: ClusterSeen, totals: Row | None, rates: Row | None) -> list[OverviewTable]:
    """`totals` and `rates` of the cluster, None = unknown."""
    known = {row["store"]: row for row in (totals or {}).get("stores", ())}
    speeds = {row["store"]: row for row in (rates or {}).get("stores", ())}
    missing = {row["store"]: row["detail"] for row in (totals or {}).get("missing", ())}
    stores = [
        _store(seen, each, known.get(each.name, {}), speeds.get(each.name, {}), missing.get(each.name, ""))
        for each in seen.stores
    ]
    return [
        OverviewTable("Stores", STORES, stores),
        OverviewTable("Nodes", NODES, [_node(seen, each) for each in seen.nodes]),
    ]


def _store(seen: ClusterSeen, store: StoreNow, totals: Row, rates: Row, missing: str) -> list[Cell]:
    slaves = store.status.slaves if store.status is not None else []
    state = store.trouble or ("no node serves it" if store.master is None else missing or "serves")
    return [
        Cell(store.name, f"/queues?{urlencode({'store': store.name})}"),
        Cell(store.node or "none"),
        Cell(preferred(store, seen.order.get(store.name, ())) or "-"),
        Cell(str(sum(not each.not_ready for each in slaves))),
        *(
            Cell(_figure(rates if name.endswith("_per_s") else totals, name))
            for name in ("messages", "in_per_s", "out_per_s", "dead_letters", "connections")
        ),
        Cell("-" if store.obeys is None else str(store.obeys)),
        Cell(state),
    ]


def _figure(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return "-" if value is None else shown(name, value)


def _node(seen: ClusterSeen, node: ClusterNode) -> list[Cell]:
    state = "drained" if node.drained else "runs" if node.running else "does not run"
    if node.running and node.failing:
        state += f"; {', '.join(node.failing)} ends again and again"
    gateways = node.gateways if node.running else ()
    return [
        Cell(node.name),
        Cell(state),
        Cell(f"{node.weight:g}"),
        Cell(str(sum(each.node == node.name for each in seen.stores))),
        Cell(str(sum(each.pid > 0 for each in gateways))),
        Cell(f"{sum(each.connections for each in gateways):,}"),
        Cell(str(node.restarts)),
        Cell(node.host or "-"),
    ]


def figures(totals: Row) -> list[tuple[str, str]]:
    """Of all stores together."""
    return [(name.replace("_", " ").removeprefix("named "), shown(name, totals[name])) for name in FIGURES]
