"""The status of a cluster, for `amq status --cluster` and `amq cluster status`: stores, nodes, alarms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import click

from amq.cli.cluster_placing import placement_facts
from amq.cli.output import duration_text, print_table
from amq.cluster.alarms import alarms, preferred
from amq.cluster.directory import Cluster, ClusterNode, StoreTable
from amq.cluster.masters import Masters, StoreNow
from amq.doors.clock import SystemClock


@dataclass(frozen=True, slots=True)
class SeenStore:
    """A store of the cluster, as it is now. `order` = the nodes that should serve it, the most preferred one first;
    `slots` = how many are its own; `slaves` = name → why it is not ready, "" = it is.
    """

    now: StoreNow
    order: list[str]
    slots: int
    slaves: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.now.name

    @property
    def master(self) -> str | None:
        return self.now.node or None

    @property
    def error(self) -> str:
        """Why it cannot be read, "" = it can."""
        return self.now.trouble

    @property
    def preferred(self) -> str:
        """The node that should serve it: of those that run, the most preferred one."""
        return preferred(self.now, self.order)


def look(found: Cluster, nodes: Sequence[ClusterNode] | None = None) -> tuple[StoreTable, list[SeenStore]]:
    """At all stores of the newest table, at the same time: one that hangs costs a few seconds, and no other one."""
    with closing(Masters(found)) as masters:
        table = masters.table()
        orders, seen = found.preferences(table, nodes), masters.look(table)
    slots = Counter(table.placement.layout.slots)
    return table, [
        SeenStore(
            each,
            orders[each.name],
            slots[each.name],
            {slave.name: slave.not_ready for slave in each.status.slaves} if each.status is not None else {},
        )
        for each in seen
    ]


def facts_of(found: Cluster) -> dict[str, Any]:
    nodes = found.nodes()
    table, stores = look(found, nodes)
    told = alarms(
        table,
        [store.now for store in stores],
        nodes,
        {store.name: store.order for store in stores},
        SystemClock().wall_ms(),
    )
    return {
        "cluster": found.directory,
        "id": found.id,
        **placement_facts(table.placement),
        "stores": [_store_facts(store) for store in stores],
        "nodes": [_node_facts(node, stores) for node in nodes],
        "alarms": [alarm._asdict() for alarm in told],
    }


def _store_facts(store: SeenStore) -> dict[str, Any]:
    urls = store.now.master.facts.get("urls") if store.now.master is not None else None
    status = store.now.status
    return {
        "store": store.name,
        "at": store.now.location,
        "node": store.master,
        "master": store.master,
        "preferred": store.order[0] if store.order else None,
        "epoch": status.epoch.number if status is not None and status.epoch is not None else 0,
        "urls": [str(url) for url in urls or []],
        "slaves": sorted(store.slaves),
        "slaves_ready": sorted(name for name, why in store.slaves.items() if not why),
        "error": store.error or None,
        "slots": store.slots,
        "obeys_table": store.now.obeys,
    }


def _node_facts(node: ClusterNode, stores: list[SeenStore]) -> dict[str, Any]:
    return {
        "node": node.name,
        "running": node.running,
        "host": node.host,
        "pid": node.pid,
        "weight": node.weight,
        "drained": node.drained,
        "stopped": node.has_stopped and not node.running,
        "scale_down": None if node.scale_down is None else node.scale_down.to_json(),
        "addresses": list(node.addresses),
        "gateways": [each._asdict() for each in node.gateways] if node.running else [],
        "restarts": node.restarts,
        "failing": list(node.failing) if node.running else [],
        "serves": [store.name for store in stores if store.master == node.name],
        "should_serve": [store.name for store in stores if store.order[:1] == [node.name]],
    }


def _state(node: dict[str, Any]) -> str:
    if node["drained"]:
        return "drained"
    if node["running"]:
        return "runs"
    return "stopped" if node["stopped"] else "gone"


def _scale_down_text(node: dict[str, Any], there: Collection[str]) -> str:
    """ "" = no store is there (any more) that the node would leave behind."""
    rule = node["scale_down"]
    stores = ", ".join(name for name in rule["stores"] if name in there)
    if not stores:
        return ""
    failure_s = rule["after_failure_s"]
    failure = "" if failure_s is None else f", or for {duration_text(failure_s)} after a failure"
    into = ", ".join(rule["into"]) or "the other stores"
    away = f"away for {duration_text(rule['after_s'])} after a stop{failure}"
    return f"{stores} will go to {into} when {node['node']} is {away}"


def print_facts(facts: Mapping[str, Any]) -> None:
    under_way = "; a change is under way" if facts["moving"] else ""
    click.echo(f"table {facts['table']} of the placement{under_way}\n")
    print_table(
        ("store", "node", "should be", "epoch", "slaves", "slots", "where"),
        [
            (
                store["store"],
                store["node"] or ("cannot be read" if store["error"] else "none"),
                store["preferred"] or "-",
                store["epoch"],
                f"{len(store['slaves_ready'])} of {len(store['slaves'])} ready",
                store["slots"],
                store["error"] or ", ".join(store["urls"]) or "-",
            )
            for store in facts["stores"]
        ],
    )
    click.echo()
    print_table(
        ("node", "state", "weight", "serves", "gateways", "clients", "restarts", "where"),
        [
            (
                node["node"],
                _state(node),
                f"{node['weight']:g}",
                ", ".join(node["serves"]) or "-",
                sum(each["pid"] > 0 for each in node["gateways"]),
                sum(each["connections"] for each in node["gateways"]),
                node["restarts"],
                ", ".join(node["addresses"]) or node["host"] or "-",
            )
            for node in facts["nodes"]
        ],
    )
    there = [store["store"] for store in facts["stores"]]
    rules = [_scale_down_text(node, there) for node in facts["nodes"] if node["scale_down"]]
    if rules := list(filter(None, rules)):
        click.echo("\n" + "\n".join(rules))
    if facts["alarms"]:
        click.echo()
        for alarm in facts["alarms"]:
            click.echo(f"alarm: {alarm['text']} [{alarm['code']}]")
