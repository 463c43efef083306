"""Metrics: figures of a broker as Prometheus reads them.

`/metrics` has figures of the whole broker, and its answer is as long however many queues there are.
`/metrics/per-object` has those of each queue and topic, `/metrics/detailed` some of these. Counters begin anew
with each mastership where their help says so; rates over such a reset are right all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import amq
from amq.console.link import Seen
from amq.management.listing import Row
from amq.store.copies import CopyState
from amq.store.status import StoreStatus

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
ROLES: Final = ("starting", "slave", "master", "stopped")
PLACE: Final = ("store", "node")  # labels in a cluster
ANEW: Final = " Begins anew with each mastership."


class MetricsText:
    """Families of samples, in the text format."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: str, told: str, samples: Iterable[tuple[Mapping[str, str], float | int]]) -> None:
        """One metric. `kind` = counter, gauge."""
        lines = [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
        if lines:
            self._lines += [f"# HELP {name} {_help(told)}", f"# TYPE {name} {kind}", *lines]

    def one(self, name: str, kind: str, told: str, value: float | int | None) -> None:
        if value is not None:
            self.family(name, kind, told, [({}, value)])

    def histogram(
        self, name: str, told: str, samples: Iterable[tuple[Mapping[str, str], Mapping[str, Any] | None]]
    ) -> None:
        """`samples` = labels, and `Histogram.to_json`."""
        lines: list[str] = []
        for labels, found in samples:
            if found is None:
                continue
            for bound, count in found["buckets"]:
                le = {"le": "+Inf" if bound is None else _number(bound)}
                lines.append(f"{name}_bucket{_labels({**labels, **le})} {count}")
            lines.append(f"{name}_sum{_labels(labels)} {_number(found['sum'])}")
            lines.append(f"{name}_count{_labels(labels)} {found['count']}")
        if lines:
            self._lines += [f"# HELP {name} {_help(told)}", f"# TYPE {name} histogram", *lines]

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    text = value.encode("utf-8", "backslashreplace").decode()
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float | int) -> str:
    if isinstance(value, float):
        return "+Inf" if value == math.inf else "-Inf" if value == -math.inf else repr(value)
    return str(int(value))


# -- the whole broker --------------------------------------------------------------------------------------------------

Figure = tuple[str, str, str, Callable[[Row], Any]]
TOTALS: Final[list[Figure]] = [
    ("amq_messages", "gauge", "Messages in all queues.", lambda row: row["messages"]),
    ("amq_messages_in_flight", "gauge", "Messages that consumers have not acknowledged.", lambda row: row["in_flight"]),
    ("amq_dead_letters", "gauge", "Messages in dead-letter queues.", lambda row: row["dead_letters"]),
    (
        "amq_queues_without_consumers",
        "gauge",
        "Queues with messages and without consumers, but for dead-letter queues.",
        lambda row: row["queues_without_consumers"],
    ),
    (
        "amq_messages_enqueued_total",
        "counter",
        "Messages that came to queues: they count when they are stored, as their producers hear." + ANEW,
        lambda row: row["enqueued"] + row["forgotten_enqueued"],
    ),
    (
        "amq_messages_dequeued_total",
        "counter",
        "Messages that left queues, for whatever reason." + ANEW,
        lambda row: row["dequeued"] + row["forgotten_dequeued"],
    ),
    (
        "amq_messages_redelivered_total",
        "counter",
        "Messages that came back from consumers." + ANEW,
        lambda row: row.get("came_back"),
    ),
    ("amq_messages_expired_total", "counter", "Messages past their time.", lambda row: row["expired"]),
    (
        "amq_messages_discarded_total",
        "counter",
        "Messages that slow consumers of topics missed.",
        lambda row: row["discarded"],
    ),
    ("amq_queues", "gauge", "Queues, hidden ones too.", lambda row: row["queues"]),
    ("amq_topics", "gauge", "Topics in use.", lambda row: row["topics"]),
    ("amq_consumers", "gauge", "Consumers of queues.", lambda row: row["consumers"]),
    ("amq_producers_blocked", "gauge", "Clients that wait for room to send.", lambda row: row.get("blocked")),
    ("amq_connections", "gauge", "Clients that are logged in.", lambda row: row["connections"]),
    ("amq_connections_opened_total", "counter", "Clients that logged in.", lambda row: row["connections_opened"]),
    ("amq_prepared_transactions", "gauge", "Prepared transactions.", lambda row: row["prepared"]),
    (
        "amq_transactions_in_doubt",
        "gauge",
        "Parts and decisions of transactions over several stores that wait for other stores.",
        lambda row: row.get("in_doubt"),
    ),
    (
        "amq_transactions_in_doubt_oldest_seconds",
        "gauge",
        "Age of the oldest of these, 0 = there are none.",
        lambda row: row.get("in_doubt_s"),
    ),
    (
        "amq_outbox_messages",
        "gauge",
        "Messages on the way to other stores of the cluster.",
        lambda row: row.get("outbox_messages"),
    ),
    ("amq_memory_used_bytes", "gauge", "Memory that messages take.", lambda row: row["memory_used_bytes"]),
    ("amq_memory_limit_bytes", "gauge", "memoryLimit.", lambda row: row["memory_limit_bytes"]),
    ("amq_store_used_bytes", "gauge", "Files of the journal.", lambda row: row["store_used_bytes"]),
    ("amq_store_limit_bytes", "gauge", "storeLimit, 0 = none.", lambda row: row["store_limit_bytes"]),
    (
        "amq_store_full",
        "gauge",
        "1 = the disk is full, or storeLimit is reached.",
        lambda row: row["store_full"] or row["store_at_limit"],
    ),
    ("amq_journal_segments", "gauge", "Segments of the journal.", lambda row: row["journal_segments"]),
    (
        "amq_journal_written_bytes_total",
        "counter",
        "Bytes written to the journal." + ANEW,
        lambda row: row["journal_written_bytes"],
    ),
    (
        "amq_lease_remaining_seconds",
        "gauge",
        "How long this master may confirm without another look at the lock.",
        lambda row: row.get("lease_left_s"),
    ),
    (
        "amq_lease_renewals_total",
        "counter",
        "Looks at the lock that proved the mastership." + ANEW,
        lambda row: row.get("lease_renewals"),
    ),
    ("amq_masterships_total", "counter", "How often this process became master.", lambda row: row["masterships"]),
]

# name, kind, help, label, part of the totals with the count of each
BY_LABEL: Final[list[tuple[str, str, str, str, str]]] = [
    (
        "amq_messages_dead_lettered_total",
        "counter",
        "Messages that went to a dead-letter queue.",
        "reason",
        "dead_lettered",
    ),
    ("amq_connections_by_protocol", "gauge", "Clients that are logged in, by protocol.", "protocol", "protocols"),
    (
        "amq_messages_received_total",
        "counter",
        "Messages that clients sent; refused ones do not count, one to several destinations counts once." + ANEW,
        "protocol",
        "received",
    ),
    (
        "amq_messages_delivered_total",
        "counter",
        "Messages that went to clients: each time, also to browsers, but not those that Spark reads from the store."
        + ANEW,
        "protocol",
        "delivered",
    ),
    (
        "amq_messages_acknowledged_total",
        "counter",
        "Messages that consumers acknowledged: in a transaction at once, and those of leases that Spark settled. "
        "Consumers that need not (ack:auto) do not count." + ANEW,
        "protocol",
        "acknowledged",
    ),
    (
        "amq_connections_refused_total",
        "counter",
        "Connections that were turned away, by the option that allows no more." + ANEW,
        "reason",
        "turned_away",
    ),
    ("amq_logins_total", "counter", "Logins: ok, or the code of the refusal." + ANEW, "result", "logins"),
]

TIMES: Final[list[tuple[str, str, str]]] = [  # name, help, part of the totals
    (
        "amq_takeover_seconds",
        "How long takeovers by this process took, with the wait for the lease of the master before.",
        "takeover",
    ),
    ("amq_journal_sync_seconds", "How long fdatasync took." + ANEW, "journal_sync"),
    ("amq_loop_lag_seconds", "How late the event loop was, ten times a second.", "loop_lag"),
]


def broker_text(seen: Seen | None, status: Row | None, totals: Row | None, now_ms: int) -> str:
    """`seen` None = the store does not answer; `status` None = the broker does not; `totals` None = it is no master."""
    text = MetricsText()
    text.family("amq_build_info", "gauge", "The version of the console.", [({"version": amq.__version__}, 1)])
    text.one("amq_up", "gauge", "1 = the broker of this host answers.", int(status is not None))
    text.one("amq_store_readable", "gauge", "1 = the store answers.", int(seen is not None))
    role = status["role"] if status is not None else ""
    text.family(
        "amq_role",
        "gauge",
        "1 = the broker of this host has this role.",
        [({"role": each}, int(each == role)) for each in ROLES],
    )
    if status is not None:
        text.one("amq_epoch", "gauge", "The epoch of this master.", status.get("epoch"))
        _process(text, status.get("process", {}))
        caught_up_ms = status.get("lag", {}).get("caught_up_wall_ms", 0)
        lag = max(0.0, (now_ms - caught_up_ms) / 1000) if caught_up_ms else math.inf
        text.one(
            "amq_follower_lag_seconds",
            "gauge",
            "How long ago this slave knew all of the journal.",
            lag if role == "slave" else None,
        )
    if seen is not None:
        _store(text, seen)
    totals_of(text, [({}, totals)] if totals is not None else [])
    return str(text)


def totals_of(text: MetricsText, masters: Sequence[tuple[Mapping[str, str], Row]]) -> None:
    """The figures of `masters`, each with its labels."""
    for name, kind, told, of in TOTALS:
        values = [(labels, of(row)) for labels, row in masters]
        text.family(name, kind, told, [(labels, value) for labels, value in values if value is not None])
    for name, kind, told, label, part in BY_LABEL:
        found = [(labels, each, count) for labels, row in masters for each, count in row.get(part, {}).items()]
        text.family(name, kind, told, [({**labels, label: each}, count) for labels, each, count in found])
    for name, told, part in TIMES:
        text.histogram(name, told, [(labels, row.get(part)) for labels, row in masters])


def copies_of(text: MetricsText, stores: Sequence[tuple[Mapping[str, str], StoreStatus]]) -> None:
    """The copies of those of `stores` that are replicated, each with its labels."""
    known = [(labels, status.copies) for labels, status in stores if status.copies is not None]
    told = [(labels, status.copies_seen) for labels, status in stores if status.copies_seen is not None]
    there = [(labels, copy) for labels, each in told for copy in each.copies if copy.state is not CopyState.GONE]
    each_copy = [({**labels, "copy": copy.id}, copy) for labels, copy in there]
    families: list[tuple[str, str, list[tuple[Mapping[str, str], float | None]]]] = [
        ("amq_store_copies", "Copies that count.", [(labels, len(each.counting)) for labels, each in known]),
        (
            "amq_store_copies_needed",
            "How many copies must have a write before it is confirmed.",
            [(labels, each.needed) for labels, each in known],
        ),
        (
            "amq_store_copies_silent",
            "Copies that count and do not answer the master.",
            [(labels, len(each.silent)) for labels, each in told],
        ),
        (
            "amq_store_blocked",
            "1 = fewer copies answer than must have a write: nothing is confirmed.",
            [(labels, int(each.blocked)) for labels, each in told],
        ),
        ("amq_store_copy_lag_bytes", "How much a copy lacks.", [(of, copy.lag_bytes) for of, copy in each_copy]),
        (
            "amq_store_copy_behind_seconds",
            "How long a copy has lacked something.",
            [(of, copy.behind_s) for of, copy in each_copy],
        ),
    ]
    for name, what, values in families:
        text.family(name, "gauge", what, [(labels, value) for labels, value in values if value is not None])


def _process(text: MetricsText, found: Row) -> None:
    """Of the broker, not of the console: the names that dashboards for any process expect."""
    began_ms = found.get("began_wall_ms")
    text.one("process_cpu_seconds_total", "counter", "Processor time of the broker.", found.get("cpu_s"))
    text.one("process_resident_memory_bytes", "gauge", "Memory of the broker.", found.get("resident_bytes"))
    text.one(
        "process_open_fds", "gauge", "Open files of the broker. Missing on Linux before 6.2.", found.get("open_files")
    )
    text.one("process_max_fds", "gauge", "How many files the broker may open.", found.get("files_limit"))
    text.one(
        "process_start_time_seconds",
        "gauge",
        "When the broker was started, Unix time.",
        began_ms / 1000 if began_ms is not None else None,
    )


def _store(text: MetricsText, seen: Seen) -> None:
    text.one(
        "amq_disk_free_bytes",
        "gauge",
        "Free space of the store's file system. Missing for a store in a database.",
        seen.disk_free_bytes,
    )
    text.one("amq_group_brokers", "gauge", "Brokers that run on the store.", len(seen.status.brokers))
    text.one("amq_group_has_master", "gauge", "1 = a broker of the group serves.", int(seen.status.master is not None))
    copies_of(text, [({}, seen.status)])
    shown = [each.facts.get("certificate") for each in seen.status.brokers]
    times = [each["not_after_s"] for each in shown if isinstance(each, dict) and "not_after_s" in each]
    text.one(
        "amq_certificate_not_after_seconds",
        "gauge",
        "When the first certificate of the group ends, Unix time.",
        min(times, default=None),
    )


# -- queues ------------------------------------------------------------------------------------------------------------

QUEUES: Final[dict[str, tuple[str, str, Callable[[Row, int], Any]]]] = {
    "amq_queue_messages": ("gauge", "Messages.", lambda row, _: row["messages"]),
    "amq_queue_in_flight": ("gauge", "Messages that consumers have not acknowledged.", lambda row, _: row["in_flight"]),
    "amq_queue_consumers": ("gauge", "Consumers.", lambda row, _: row["consumers"]),
    "amq_queue_bytes": ("gauge", "Bytes of its messages in the store.", lambda row, _: row["bytes"]),
    "amq_queue_oldest_message_age_seconds": (
        "gauge",
        "Age of the oldest message, where that is in memory.",
        lambda row, now_ms: (now_ms - row["oldest_ms"]) / 1000 if row["oldest_ms"] else None,
    ),
    "amq_queue_enqueued_total": ("counter", "Messages that came." + ANEW, lambda row, _: row["enqueued"]),
    "amq_queue_dequeued_total": ("counter", "Messages that left." + ANEW, lambda row, _: row["dequeued"]),
}


TOPICS: Final[dict[str, tuple[str, str, Callable[[Row], Any]]]] = {
    "amq_topic_consumers": ("gauge", "Consumers.", lambda row: row["consumers"]),
    "amq_topic_durable_subscriptions": (
        "gauge",
        "Durable subscriptions by that name.",
        lambda row: row["durable_subscriptions"],
    ),
    "amq_topic_enqueued_total": (
        "counter",
        "Messages that came. Begins anew with each mastership, and when the topic was forgotten (unused for a minute).",
        lambda row: row["enqueued"],
    ),
}


def _object(row: Row) -> dict[str, str]:
    """The labels of a queue or a topic: in a cluster also where it lives."""
    return {"destination": row["name"], **{name: row[name] for name in PLACE if name in row}}


def topics_text(rows: list[Row], families: Iterable[str] = tuple(TOPICS)) -> str:
    """Of each topic in use, the `families` of `TOPICS`. No rows = no text."""
    text = MetricsText()
    for name in families if rows else ():
        kind, told, of = TOPICS[name]
        text.family(name, kind, told, [(_object(row), of(row)) for row in rows])
    return str(text).lstrip("\n")


def queues_text(rows: list[Row], now_ms: int, families: Iterable[str] = tuple(QUEUES)) -> str:
    """Of each queue, the `families` of `QUEUES`."""
    text = MetricsText()
    for name in families:
        kind, told, of = QUEUES[name]
        values = ((_object(row), of(row, now_ms)) for row in rows)
        text.family(name, kind, told, [(labels, value) for labels, value in values if value is not None])
    return str(text)
