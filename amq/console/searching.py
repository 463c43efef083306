"""Searching: what a search found, in groups, each with a link to where it is shown.

The broker finds what it has (`amq.management.search`) and decides what a user may see. Brokers of the group come from
the store, which every page of the console shows to everybody who has logged in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from amq.console.lists import only, queue_href, topic_href
from amq.management.listing import Row
from amq.store.status import StoreStatus

BROKERS_MAX: Final = 20


class Hit(NamedTuple):
    """`about` = what else identifies it."""

    name: str
    href: str
    about: str


class KindHits(NamedTuple):
    """The best hits of a kind, and how many there are."""

    title: str
    hits: Sequence[Hit]
    total: int


KINDS: Final[Mapping[str, tuple[str, Callable[[Row], str], tuple[str, ...]]]] = {
    "queue": ("Queues", queue_href, ()),
    "topic": ("Topics", topic_href, ()),
    "subscription": ("Subscriptions", lambda row: only("/subscriptions", row["name"]), ("client_id",)),
    "connection": ("Connections", lambda row: only("/connections", row["name"]), ("client_id", "user", "address")),
    "user": ("Users", lambda row: only("/users", row["name"]), ()),
    "broker": ("Brokers", lambda _: "/", ("host", "state")),
}


def brokers(status: StoreStatus, wanted: str) -> list[Row]:
    """Those of the group, running or not, whose name or host has that part."""
    part = wanted.casefold()
    rows = [
        {
            "kind": "broker",
            "name": each.name,
            "host": each.owner.host if each.owner is not None else "",
            "state": each.role if is_running else "gone",
        }
        for is_running, some in ((True, status.brokers), (False, status.gone))
        for each in some
    ]
    return [row for row in rows if part in row["name"].casefold() or part in row["host"].casefold()]


def groups(found: Row, of_store: Sequence[Row]) -> list[KindHits]:
    """`found` = the broker's answer. Kinds without a hit are left out."""
    totals = {**found["totals"], "broker": len(of_store)}
    rows = [*found["items"], *of_store[:BROKERS_MAX]]
    groups = []
    for kind, (title, href, fields) in KINDS.items():
        hits = [
            Hit(row["name"], href(row), ", ".join(str(row[field]) for field in fields if row[field]))
            for row in rows
            if row["kind"] == kind
        ]
        if hits:
            groups.append(KindHits(title, hits, totals[kind]))
    return groups
