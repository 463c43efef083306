"""Is a coordinator fit to hold the lock of a store? Asks each of its servers, and measures.

Invariant: nothing is written; a store may be in use meanwhile.
"""

from __future__ import annotations

import ipaddress

from amq.doctor.finding import Examination, Finding, Level, unfit
from amq.doctor.probes import Times
from amq.doors.clock import Clock, SystemClock
from amq.store.coordinated.etcd import Etcd
from amq.store.coordinated.url import CoordinatorUrl
from amq.store.open import open_coordinator

READS, BUDGET_S = 50, 1.0
CHANGES_MAX = 200_000  # that etcd remembers: brokers make about one a second


def examine_coordinator(url: str, quick: bool, clock: Clock | None = None, group: str = "") -> Examination:
    """`group` = of the replicated store whose lock it is, "" = of another store. Raises OSError where too few servers
    answer, ConfigError, StoreError."""
    clock = clock or SystemClock()
    parsed, coordinator = CoordinatorUrl.parse(url), open_coordinator(url)
    report = Examination(url, url)
    report.findings += _judge_servers(coordinator.servers())
    report.findings.append(_judge_connection(parsed))
    lock, place = (f"{group}/lock", f"{parsed.namespace}/{group}") if group else ("lock", parsed.namespace)
    held = coordinator.read(lock) is not None
    report.findings.append(Finding(Level.OK, "namespace", place, "has a lock" if held else "has no lock yet"))
    if isinstance(coordinator, Etcd) and not coordinator.is_compacted(CHANGES_MAX):
        why = "etcd keeps each heartbeat for ever, until its space is used up and the master is deposed"
        cure = "start it with --auto-compaction-mode=periodic --auto-compaction-retention=1h"
        report.findings.append(Finding(Level.WARNING, "history", f"more than {CHANGES_MAX} changes", why, cure))
    if not quick:
        times: list[float] = []
        began = clock.monotonic()
        while len(times) < READS and clock.monotonic() < began + BUDGET_S:
            start = clock.monotonic()
            coordinator.read(lock)
            times.append(clock.monotonic() - start)
        report.measured["read"] = Times.of(times).to_json()
    return report


def _judge_servers(servers: list[tuple[str, str]]) -> list[Finding]:
    found = []
    for server, why in servers:
        consequence = "another one that fails may be one too many"
        bad = Finding(Level.WARNING, f"server {server}", why, consequence, "start it, or look at its log")
        found.append(bad if why else Finding(Level.OK, f"server {server}", "answers"))
    if len(servers) < 3:
        why = "no broker becomes master while a server is down"
        text = f"{len(servers)} named"
        found.append(Finding(Level.NOTE, "servers", text, why, "use three or five, and name all of them in the URL"))
    away = sum(1 for _, why in servers if why)
    if away * 2 >= len(servers):
        text = f"{len(servers) - away} of {len(servers)} answer"
        found.append(unfit("servers", text, "they elect no leader, so no broker becomes master", "start the others"))
    return found


def _judge_connection(url: CoordinatorUrl) -> Finding:
    if url.tls:
        return Finding(Level.OK, "connection", "TLS, and the names of the servers are checked")
    if all(_is_local(host) for host, _ in url.servers):
        return Finding(Level.OK, "connection", "not encrypted, and stays on this host")
    why = "others on the network may read and change what brokers say"
    cure = "give the servers certificates, and add caFile=FILE to the URL"
    return Finding(Level.WARNING, "connection", "not encrypted", why, cure)


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
