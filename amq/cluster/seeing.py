"""The table that the master of a store obeys, as its store shows it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from amq.cluster.directory import Cluster
from amq.cluster.placing import StoreSeen, ahead
from amq.core.errors import AmqError, StoreError
from amq.store.open import open_store
from amq.store.port import Store
from amq.store.status import store_status

SET_BACK: Final = "CLUSTER_SET_BACK"  # the code of a cluster that lacks a table which a store obeys


@cache
def _store_of(location: str) -> Store:
    return open_store(location)


def store_seen(found: Cluster, name: str) -> StoreSeen:
    """Store `name`, as its master describes it. A store that the newest table no longer has is unused: somebody has
    just made the last table of its removal, and nobody serves it any more. Raises StoreError."""
    table = found.table()
    if name not in table.stores:
        return StoreSeen(is_unused=True)
    try:
        status = store_status(_store_of(found.location(name, table)))
    except FileNotFoundError:
        return StoreSeen(is_unused=not runs(found))
    except (AmqError, OSError) as error:
        raise StoreError(f"store {name} cannot be read: {error}") from error
    if status.epoch is None:
        return StoreSeen(is_unused=not runs(found) and not status.brokers)
    facts = status.master.facts.get("placement") if status.master is not None else None
    return seen_of(facts) if isinstance(facts, dict) else StoreSeen()


def check_newest(found: Cluster, stores: Mapping[str, StoreSeen]) -> None:
    """Raises StoreError where one of `stores`, as they were seen, obeys a later table than the newest one: tables that
    follow it would give a number that stores obey already a second meaning, and two stores one home."""
    newest = found.table()
    if older := ahead(newest.placement, stores):
        name = older.stores[0]
        raise StoreError(set_back(newest.number, name, stores[name].number), code=SET_BACK)


def set_back(newest: int, store: str, obeys: int) -> str:
    """The words for an operator: `store` obeys table `obeys`, and `newest` is the newest of the cluster."""
    return (
        f"store {store} obeys table {obeys}, and the newest one of the cluster is {newest}: this host does not see it "
        "yet, or the cluster was restored from an older backup, and refuses changes until `amq cluster recover`"
    )


def seen_of(facts: dict[str, Any]) -> StoreSeen:
    """The facts of `amq.broker.homes`, which may be of another version."""
    due, busy = facts.get("due"), facts.get("busy")
    return StoreSeen(
        _number(facts.get("number")),
        _texts(facts.get("held")),
        _number(facts.get("refused")),
        due=tuple((_number(each[0]), _number(each[1])) for each in due) if isinstance(due, list) else (),
        is_cut=facts.get("cut") is True,
        busy=tuple(map(_number, busy)) if isinstance(busy, list) else (),
        left=_number(facts.get("left")),
        left_bytes=_number(facts.get("left_bytes")),
        due_bytes=_number(facts.get("due_bytes")),
        sent=_number(facts.get("sent")),
        sent_bytes=_number(facts.get("sent_bytes")),
        bytes_a_second=_number(facts.get("bytes_a_second")),
        waits=_texts(facts.get("waits")),
        rest=_texts(facts.get("rest")),
        stuck=_stuck(facts.get("stuck")),
        peers=_texts(facts.get("peers")),
        copying=facts.get("copying") is True,
        to_copy=_number(facts.get("to_copy")),
        to_copy_bytes=_number(facts.get("to_copy_bytes")),
        copied=_number(facts.get("copied")),
        copied_bytes=_number(facts.get("copied_bytes")),
        remembers=facts.get("remembers") is True,
    )


def _stuck(told: object) -> str:
    if not isinstance(told, dict):
        return ""
    return f"store {told.get('store')} refuses {told.get('destination')}: {told.get('reason')}"


def runs(found: Cluster) -> bool:
    """Does a node of the cluster run?"""
    return any(node.running for node in found.nodes())


def _texts(found: object) -> tuple[str, ...]:
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _number(value: object) -> int:
    return value if type(value) is int else 0
