"""Metrics of a cluster: at each console those of its own nodes, with the labels `store` and `node`, and of the cluster.

A store has the figures of `amq.console.metrics` at the console of the node that serves it. So those of all consoles
together are those of the cluster, each once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import amq
from amq.cluster.directory import GatewaySeen
from amq.cluster.masters import StoreAnswer
from amq.console.metrics import MetricsText, copies_of, totals_of
from amq.console.whole import ClusterSeen

GATEWAYS: Final[list[tuple[str, str, str, Callable[[GatewaySeen], int]]]] = [
    ("amq_gateway_up", "gauge", "1 = the gateway runs.", lambda each: each.pid > 0),
    ("amq_gateway_connections", "gauge", "Clients of the gateway.", lambda each: each.connections),
    ("amq_gateway_links", "gauge", "Stores to which it has a link.", lambda each: each.links),
    ("amq_gateway_waiting", "gauge", "Connections that wait for the master of a store.", lambda each: each.waiting),
    ("amq_gateway_links_refused", "gauge", "Stores whose master refuses its links now.", lambda each: each.refused),
    ("amq_gateway_received_total", "counter", "Messages of clients that it passed on.", lambda each: each.received),
    ("amq_gateway_delivered_total", "counter", "Messages that it gave to clients.", lambda each: each.delivered),
    ("amq_gateway_links_lost_total", "counter", "Links that broke.", lambda each: each.links_lost),
    (
        "amq_gateway_repeats_total",
        "counter",
        "How often commands waited for a newer table of the homes, to be repeated there.",
        lambda each: each.repeats,
    ),
    ("amq_gateway_restarts_total", "counter", "How often it was started again.", lambda each: each.restarts),
]


def cluster_text(seen: ClusterSeen | None, totals: Sequence[StoreAnswer]) -> str:
    """`seen` None = the cluster cannot be read; `totals` = of the stores that the nodes of this host serve."""
    text = MetricsText()
    text.family("amq_build_info", "gauge", "The version of the console.", [({"version": amq.__version__}, 1)])
    text.one("amq_cluster_readable", "gauge", "1 = the directory of the cluster answers.", int(seen is not None))
    if seen is None:
        return str(text)
    stores = [({"store": each.name}, each) for each in seen.stores]
    told = "1 = a node serves the store."
    text.family("amq_group_has_master", "gauge", told, [(of, int(each.master is not None)) for of, each in stores])
    readable = [(of, int(not each.trouble)) for of, each in stores]
    text.family("amq_store_readable", "gauge", "1 = the store answers.", readable)
    text.family(
        "amq_disk_free_bytes",
        "gauge",
        "Free space of the store's file system. Missing for a store in a database.",
        [(of, each.disk_free_bytes) for of, each in stores if each.disk_free_bytes is not None],
    )
    copies_of(text, [(of, each.status) for of, each in stores if each.status is not None])
    slaves = [
        (of, sum(not slave.not_ready for slave in each.status.slaves) if each.status is not None else 0)
        for of, each in stores
    ]
    text.family("amq_store_slaves_ready", "gauge", "Nodes that could take the store over now.", slaves)
    nodes = [({"node": each.name}, each) for each in seen.nodes]
    text.family("amq_node_up", "gauge", "1 = the node runs.", [(of, int(each.running)) for of, each in nodes])
    drained = [(of, int(each.drained)) for of, each in nodes]
    text.family("amq_node_drained", "gauge", "1 = an operator has drained it.", drained)
    restarts = [(of, each.restarts) for of, each in nodes]
    text.family("amq_node_restarts_total", "counter", "How often its processes were started again.", restarts)
    alarms = [({"code": each.code, "store": each.store, "node": each.node}, 1) for each in seen.alarms]
    text.family("amq_alarm", "gauge", "1 = the alarm of that code is there: see docs/cluster.md.", alarms)
    gateways = [
        ({"node": node.name, "gateway": str(number)}, each)
        for node in seen.nodes
        if node.name in seen.own and node.running
        for number, each in enumerate(node.gateways, start=1)
    ]
    for name, kind, told, count in GATEWAYS:
        text.family(name, kind, told, [(labels, int(count(each))) for labels, each in gateways])
    answers = [({"store": each.store, "node": each.node}, each.row) for each in totals]
    up = [(labels, int(row is not None)) for labels, row in answers]
    text.family("amq_up", "gauge", "1 = the broker answers.", up)
    totals_of(text, [(labels, row) for labels, row in answers if row is not None])
    return str(text)
