"""`amq doctor --cluster`: is a cluster fit: its directory, secret, clocks, stores, options, ports and balance?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import combinations

from amq.cli.status import options_differ
from amq.cluster.alarms import Alarm, alarms
from amq.cluster.directory import Cluster, ClusterNode
from amq.cluster.masters import Masters, StoreNow
from amq.config.transport_url import parse_transport_url
from amq.core.errors import AmqError
from amq.doctor.finding import Examination, Finding, Level
from amq.doors.clock import SystemClock
from amq.store.name import is_directory

CLOCKS_S = 2.0  # that the clocks of two hosts may differ
_UNFIT = ("STORE_UNREADABLE", "STORE_WITHOUT_MASTER")


def examine_cluster(directory: str) -> Examination:
    """Looks only: it starts, changes and tries nothing. Raises AmqError where there is no cluster."""
    found = Cluster(directory)
    table, nodes = found.table(), found.nodes()
    with closing(Masters(found)) as masters:
        stores = masters.look(table)
    now_ms = SystemClock().wall_ms()
    told = alarms(table, stores, nodes, found.preferences(table, nodes), now_ms)
    findings = [
        Finding(Level.OK, "directory", f"table {table.number} of {len(table.stores)} stores, {len(nodes)} nodes"),
        _secret(found),
        *_directories(found.directory, stores),
        *(_alarm(each) for each in told),
        *(finding for store in stores for finding in _clocks(store, now_ms)),
        *(finding for store in stores for finding in _options(store)),
        *_ports(nodes, len(table.placement.places)),
    ]
    if not told:
        findings.append(Finding(Level.OK, "balance", "each store is served by the node that should serve it"))
    return Examination(directory, found.directory, findings=findings)


def _secret(found: Cluster) -> Finding:
    try:
        found.secret()
    except AmqError as error:
        return Finding(Level.UNFIT, "secret", error.description, "gateways and masters know each other by it")
    return Finding(Level.OK, "secret", "only its own user can read it", "gateways and masters know each other by it")


def _directories(directory: str, stores: Sequence[StoreNow]) -> Iterator[Finding]:
    """The things at which `amq start` looks each time, of each file system that can be read."""
    from amq.doctor.stores import examine_quickly

    places = [store.location for store in stores if store.status is not None and is_directory(store.location)]
    known: set[tuple[str, str, str]] = set()
    for place in [*([directory] if is_directory(directory) else []), *places]:
        for finding in examine_quickly(place).findings:
            key = (finding.level.value, finding.topic, finding.found)
            if key not in known:
                known.add(key)
                yield finding


def _alarm(alarm: Alarm) -> Finding:
    topic = f"store {alarm.store}" if alarm.store else f"node {alarm.node}"
    return Finding(Level.UNFIT if alarm.code in _UNFIT else Level.WARNING, topic, alarm.text, alarm.code)


def _clocks(store: StoreNow, now_ms: int) -> Iterator[Finding]:
    """The last heartbeat of a master is by its clock, and some seconds old at most."""
    status, master = store.status, store.master
    if status is None or master is None or master.owner is None or status.last_sign_wall_ms is None:
        return
    ahead_s = (status.last_sign_wall_ms - now_ms) / 1000
    behind_s = -ahead_s - master.owner.lock_keep_alive_period_s
    if max(ahead_s, behind_s) > CLOCKS_S:
        seconds = ahead_s if ahead_s > 0 else -behind_s
        how = "ahead" if seconds > 0 else "behind, or it hangs"
        yield Finding(
            Level.WARNING,
            f"store {store.name}, clock",
            f"that of host {master.owner.host} is {abs(seconds):.0f} s {how}",
            "times of messages and alarms are wrong",
            "let all hosts synchronise their clocks",
        )


def _options(store: StoreNow) -> Iterator[Finding]:
    if store.status is not None:
        for each in options_differ(store.status):
            cure = "give all nodes the same options"
            yield Finding(Level.WARNING, f"store {store.name}, options", each["text"], "a takeover changes them", cure)


def _ports(nodes: Sequence[ClusterNode], stores: int) -> Iterator[Finding]:
    """Nodes of one host, each of which has as many ports above its own as there are stores."""
    taken = [(node, {port + index for port in _of(node) for index in range(stores + 1)}) for node in nodes]
    for (one, ports), (other, others) in combinations(taken, 2):
        if one.host and one.host == other.host and (both := ports & others):
            yield Finding(
                Level.WARNING,
                f"nodes {one.name} and {other.name}, ports",
                f"both are on host {one.host}, and {min(both)} would be a port of both",
                "each store has the ports of its node, higher by its number",
                f"give them ports that are at least {stores + 1} apart",
            )


def _of(node: ClusterNode) -> set[int]:
    found: set[int] = set()
    for url in node.addresses:
        try:
            found.add(parse_transport_url(url).port)
        except ValueError:  # of another version
            continue
    return found - {0}
