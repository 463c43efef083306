"""Alarms: what an operator of a cluster should do something about. Pure: of what was seen of stores and nodes.

| code                  | when |
|-----------------------|------|
| STORE_UNREADABLE      | a store cannot be read |
| STORE_WITHOUT_MASTER  | no node serves a store |
| STORE_BLOCKED         | fewer copies of a replicated store answer than must have a write |
| COPY_SILENT           | a copy that counts does not answer for 30 s |
| COPY_BEHIND           | a copy that counts answers, and has lacked something for 30 s |
| STORE_UNBALANCED      | not the node that should serves a store, for longer than failbackDelay and `GRACE_S` |
| TABLE_NOT_IN_FORCE    | the master of a store has not recorded the newest homes of destinations, for `GRACE_S` |
| CLUSTER_SET_BACK      | a store obeys a table that the cluster does not have |
| OUTBOX_WAITS          | what the master of a store leads to another store has not left for `GRACE_S` |
| MOVE_STANDS_STILL     | the next home of a destination has refused for `GRACE_S` what moves to it |
| TRANSACTION_IN_DOUBT  | what became of a transaction over several stores is not known for `GRACE_S` |
| NODE_ABSENT           | a node does not run, and no operator has drained it |
| PROCESS_RESTARTS      | processes of a node end again and again |
| LINK_REFUSED          | links of gateways are refused: secret, version or certificate   |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from amq.cluster.directory import ClusterNode, StoreTable
from amq.cluster.masters import StoreNow
from amq.cluster.seeing import SET_BACK, set_back
from amq.core.units import parse_duration_ms
from amq.store.presence import BrokerPresence

GRACE_S: Final = 30.0
FAILBACK_S: Final = 5.0  # failbackDelay, where a master does not say


class Alarm(NamedTuple):
    """`store` or `node` "" = it is about none, or about several."""

    code: str
    text: str
    store: str = ""
    node: str = ""


def alarms(
    table: StoreTable,
    stores: Iterable[StoreNow],
    nodes: Sequence[ClusterNode],
    preferences: Mapping[str, Sequence[str]],
    now_ms: int,
) -> list[Alarm]:
    """In the order of the table above. `preferences`: by store the nodes that should serve it, best first."""
    found = [alarm for store in stores for alarm in _of_store(table, store, nodes, preferences, now_ms)]
    return [*found, *(alarm for node in nodes for alarm in _of_node(node))]


def is_forbidden(store: StoreNow) -> bool:
    """Do the slaves of `store` wait for an order, because its last master stopped and forbade a failover?"""
    return store.status is not None and any(each.facts.get("passive") is True for each in store.status.slaves)


def _why_none(store: StoreNow) -> str:
    if not is_forbidden(store):
        return "see the logs of the nodes"
    return (
        "its last master stopped with failoverOnShutdown = false: start that node again, or `amq cluster rebalance`, "
        "and set the option to true for the nodes of a cluster"
    )


def _of_store(
    table: StoreTable,
    store: StoreNow,
    nodes: Sequence[ClusterNode],
    preferences: Mapping[str, Sequence[str]],
    now_ms: int,
) -> list[Alarm]:
    if store.trouble:
        return [Alarm("STORE_UNREADABLE", f"store {store.name} cannot be read: {store.trouble}", store.name)]
    master, status = store.master, store.status
    if master is None or status is None or status.epoch is None:
        return [Alarm("STORE_WITHOUT_MASTER", f"no node serves store {store.name}: {_why_none(store)}", store.name)]
    told = status.copies_seen.alarms() if status.copies_seen is not None else []
    found = [Alarm(code, f"store {store.name}: {text}", store.name, master.name) for code, text in told]
    serves_s = (now_ms - status.epoch.started_wall_ms) / 1000
    wanted = preferred(store, preferences.get(store.name, ()))
    began_ms = next((node.began_ms for node in nodes if node.name == wanted), 0)
    waits_s = min(serves_s, (now_ms - began_ms) / 1000)
    if wanted and wanted != master.name and waits_s > _failback_s(store) + GRACE_S:
        why = next((slave.not_ready for slave in status.slaves if slave.name == wanted), "")
        text = f"node {master.name} serves store {store.name}, and {wanted} should"
        text += f", which {why}" if why else ": `amq cluster rebalance`"
        found.append(Alarm("STORE_UNBALANCED", text, store.name, wanted))
    if store.obeys is not None and store.obeys < table.placement.since and serves_s > GRACE_S:
        text = f"store {store.name} obeys table {store.obeys} of the homes, not {table.placement.since}"
        found.append(Alarm("TABLE_NOT_IN_FORCE", text, store.name, master.name))
    if store.lacks_table:
        found.append(Alarm(SET_BACK, set_back(table.number, store.name, store.lacks_table), store.name, master.name))
    if late := _late(master, "outbox", now_ms):
        why = late.get("reason") or "its home has not confirmed them"
        text = f"store {store.name} has messages for {late.get('destination')} that do not leave: {why}"
        text += ": `amq cluster outboxes` shows all"
        found.append(Alarm("OUTBOX_WAITS", text, store.name, master.name))
    if late := _late(master, "stuck", now_ms):
        what = f"{late.get('destination')} does not move from store {store.name} to {late.get('store')}"
        text = f"{what}, which refuses it: {late.get('reason')}. It goes on when that is mended"
        text += "; `amq cluster moves --cancel` takes it back"
        found.append(Alarm("MOVE_STANDS_STILL", text, store.name, master.name))
    if late := _late(master, "doubt", now_ms):
        why, waits_s = late.get("reason") or "it has not answered", (now_ms - late["since_ms"]) // 1000
        text = (
            f"transaction {late.get('xid')} of store {store.name} waits {waits_s} s for {late.get('waits_for')}: {why}"
        )
        found.append(Alarm("TRANSACTION_IN_DOUBT", text, store.name, master.name))
    return found


def _late(master: BrokerPresence, what: str, now_ms: int) -> dict[str, Any]:
    """Facts that the master tells of something that waits, if it has waited for `GRACE_S`."""
    placement = master.facts.get("placement")
    late = placement.get(what) if isinstance(placement, dict) else None
    since_ms = late.get("since_ms") if isinstance(late, dict) else None
    if not isinstance(late, dict) or not isinstance(since_ms, int):  # none, or of another version
        return {}
    return late if (now_ms - since_ms) / 1000 > GRACE_S else {}


def _of_node(node: ClusterNode) -> list[Alarm]:
    if not node.running:
        if node.drained:
            return []
        text = f"node {node.name} does not run: start it, drain it, or `amq cluster forget` it"
        return [Alarm("NODE_ABSENT", text, node=node.name)]
    found = []
    if node.failing:
        text = f"processes of node {node.name} end again and again: {', '.join(node.failing)}; see its log"
        found.append(Alarm("PROCESS_RESTARTS", text, node=node.name))
    if refused := sum(each.refused for each in node.gateways):
        masters = "1 master" if refused == 1 else f"{refused} masters"
        text = (
            f"gateways of node {node.name} have no link to {masters}: one knows another secret, runs another version, "
            "or has a certificate that is refused; see the log of the node"
        )
        found.append(Alarm("LINK_REFUSED", text, node=node.name))
    return found


def preferred(store: StoreNow, order: Sequence[str]) -> str:
    """The node that should serve a store: of those that run a broker for it, the most preferred one; "" = none runs."""
    if store.status is None:
        return ""
    running = {each.name for each in store.status.brokers}
    return next((node for node in order if node in running), "")


def _failback_s(store: StoreNow) -> float:
    options = store.master.facts.get("options") if store.master is not None else None
    values = options.get("values") if isinstance(options, dict) else None
    text = values.get("failbackDelay") if isinstance(values, dict) else None
    try:
        return parse_duration_ms(text) / 1000 if isinstance(text, str) else FAILBACK_S
    except ValueError:  # of another version
        return FAILBACK_S
