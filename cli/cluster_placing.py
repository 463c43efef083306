"""`amq cluster place` and `amq cluster where`: the homes of destinations."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from amq.cli.cluster_options import change_wait_option, cluster_option
from amq.cli.orders import OrderError
from amq.cli.output import examples, json_option, print_json, print_table
from amq.cluster.directory import CONFLICT, Cluster
from amq.cluster.moving import advance
from amq.cluster.placement import SPREAD, Placement
from amq.cluster.placing import Await, Carry, Grant, Older, Revert, StoreSeen, ahead, decide
from amq.cluster.seeing import check_newest, store_seen
from amq.core.destination import TOPIC_SCHEME
from amq.core.errors import ConfigError, StoreError

POLL_S = 0.2
Seen = Callable[[str], StoreSeen]


@click.command(
    epilog=examples(
        "amq cluster place --cluster /mnt/shared/cluster 'orders.>' s2",
        "amq cluster place --cluster /mnt/shared/cluster clicks spread",
        "amq cluster place --cluster /mnt/shared/cluster --remove 'orders.>'",
    )
)
@cluster_option
@click.argument("pattern", metavar="PATTERN")
@click.argument("store", metavar="STORE|spread", default="")
@click.option("--remove", "removes", is_flag=True, help="Remove the rule of PATTERN.")
@change_wait_option
@json_option
def place(directory: str, pattern: str, store: str, removes: bool, wait_s: float, as_json: bool) -> None:
    """Give the destinations of PATTERN a home: a store, or all of them (spread).

    The rule with the most specific pattern decides; destinations without a rule are shared out by their names. A
    destination with messages or durable subscriptions does not move: the command says which, and changes nothing.
    While the stores take the change over, for a few seconds, commands for what moves are refused with MOVING.

    Exit code 0: every store obeys the rule, and every gateway knows it; a transaction of a connection that has used the
    destination before may still fail with MOVED, once. 7: they do not yet, or the change was taken back, with the
    reasons.
    """
    if removes == bool(store):
        raise click.UsageError("give STORE or spread, or --remove")
    found = Cluster(directory)
    until = time.monotonic() + wait_s
    placement = finished(found, until)
    if placement.layout.rules.get(pattern, "") != store or removes:
        wait_until_all_have(found, placement, until)
        placement = found.place(placement.placed(pattern, store)).placement
        placement = carry_through(found, placement, until)
        if placement.layout.rules.get(pattern, "") != store:
            raise OrderError("somebody else changed the cluster at the same time: try again")
    wait_until_obeyed(found, placement, until)
    if as_json:
        print_json({"cluster": found.directory, "table": placement.number, "pattern": pattern, "home": store or None})
    elif removes:
        click.echo(f"table {placement.number}: {pattern} has no rule")
    else:
        click.echo(f"table {placement.number}: {pattern} lives in {'every store' if store == SPREAD else store}")


@click.command(epilog=examples("amq cluster where --cluster /mnt/shared/cluster orders.eu topic://news --json"))
@cluster_option
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@json_option
def where(directory: str, names: tuple[str, ...], as_json: bool) -> None:
    """Show where destinations live, and why: by a rule, or by the slot of their placement key."""
    placement = Cluster(directory).table().placement
    if nameless := [name for name in names if not name.rpartition("://")[2]]:
        raise ConfigError(f"{nameless[0]!r} is not a name: give that of a queue or topic, such as orders.eu")
    # A queue and a topic of one name live in one store.
    found = [placement.where(name if "://" in name else TOPIC_SCHEME + name) for name in names]
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "home": each.home,
            "key": each.key,
            "slot": each.slot if each.slot >= 0 else None,
            "rule": each.rule or None,
        }
        for name, each in zip(names, found, strict=True)
    ]
    if as_json:
        print_json({"table": placement.number, "destinations": rows})
        return
    print_table(
        ("name", "home", "key", "slot", "rule"),
        [
            (row["name"], row["home"], row["key"], "-" if row["slot"] is None else row["slot"], row["rule"] or "-")
            for row in rows
        ],
    )


def placement_facts(placement: Placement) -> dict[str, Any]:
    """A table, for `amq cluster status`."""
    return {
        "table": placement.number,
        "moving": placement.before is not None,
        "rules": [{"pattern": pattern, "home": home} for pattern, home in placement.layout.rules.items()],
    }


def finished(found: Cluster, until: float) -> Placement:
    """The placement of a cluster in which no change is under way: one that somebody left behind comes to its end, but
    the import of a store is taken back, because that store may hold something else meanwhile. Raises OrderError."""
    placement = newest(found, until)
    if placement.step is not None:
        raise OrderError("destinations are moving: see `amq cluster moves`, and wait for the end or --cancel")
    if placement.joining:
        return found.place(placement.reverted()).placement
    return placement if placement.before is None else carry_through(found, placement, until)


def newest(found: Cluster, until: float) -> Placement:
    """The newest placement, of which no later one is obeyed: a host may see a table later than stores do. Raises
    StoreError where it does not come in time, for the cluster was set back."""
    said = False
    while True:
        placement = found.table().placement
        stores = {name: _seen_if_any(found, name) for name in placement.stores}
        if (older := ahead(placement, stores)) is None:
            return placement
        if time.monotonic() >= until:
            check_newest(found, stores)
        if not said:
            click.echo(f"waiting until this host sees the table that store {older.stores[0]} obeys", err=True)
            said = True
        time.sleep(POLL_S)


def _seen_if_any(found: Cluster, name: str) -> StoreSeen:
    """A store that cannot be read stops no change here: the steps of the change need it, and say why."""
    try:
        return store_seen(found, name)
    except StoreError:
        return StoreSeen()


def carry_through(found: Cluster, placement: Placement, until: float, seen: Seen | None = None) -> Placement:
    """Bring a change to its end, together with others that do so. `seen(name)` looks at a store. Returns the table that
    holds then. Raises OrderError where it was taken back."""
    seen = seen or partial(store_seen, found)
    while placement.before is not None and placement.step is None:
        try:
            placement = _carried(found, placement, until, seen)
        except StoreError as error:
            if error.code != CONFLICT:
                raise
            placement = found.table().placement  # another command was quicker
    return _bring_ids(found, placement, until, seen)


def _carried(found: Cluster, placement: Placement, until: float, seen: Seen) -> Placement:
    """The table that follows. Raises OrderError where it takes the change back, StoreError."""
    while True:
        stores = {name: seen(name) for name in placement.stores}
        match decide(placement, stores):
            case Grant():
                return found.place(placement.settled()).placement
            case Carry():
                return found.place(placement.remembering()).placement
            case Revert(held):
                found.place(placement.reverted())
                reasons = "; ".join(f"store {name} holds {', '.join(names)}" for name, names in held.items())
                raise OrderError(
                    f"nothing was changed, because that would strand messages: {reasons}. Consume or move them first, "
                    "and end durable subscriptions and delete queues of virtual topics there"
                )
            case Older():
                return newest(found, until)
            case Await(late) if time.monotonic() >= until:
                found.place(placement.reverted())
                raise OrderError(
                    f"nothing was changed: {', '.join(late)} did not take table {placement.number} over in time. Every "
                    "store needs a master for that: `amq cluster status`"
                )
        time.sleep(POLL_S)


def _bring_ids(found: Cluster, placement: Placement, until: float, seen: Seen) -> Placement:
    """Carry the ids that stores remember to the new homes, if they move; the nodes do the same. Returns the table that
    holds then."""
    while placement.step is not None:
        if time.monotonic() >= until:
            raise OrderError(
                f"the ids that stores remember have not arrived in time (table {placement.number}). The nodes go on: "
                "`amq cluster moves`"
            )
        time.sleep(POLL_S)
        placement = advance(found, seen)
    return placement


def wait_until_obeyed(found: Cluster, placement: Placement, until: float, seen: Seen | None = None) -> None:
    """A change is made: wait until each store serves what it has got, and each gateway leads clients there, as far as
    it says so. Raises OrderError."""
    seen = seen or partial(store_seen, found)
    while late := [*_late_stores(placement, seen), *_late_gateways(found, placement)]:
        if time.monotonic() >= until:
            raise OrderError(
                f"the change is made (table {placement.number}), but {', '.join(late)} did not take it over in time: "
                "until then commands for what has moved may fail with MOVED or MOVING"
            )
        time.sleep(POLL_S)


def _late_stores(placement: Placement, seen: Seen) -> list[str]:
    stores = {name: seen(name) for name in placement.stores}
    return [name for name, each in stores.items() if each.number < placement.since and not each.is_unused]


def _late_gateways(found: Cluster, placement: Placement) -> list[str]:
    """Gateways of nodes that run. One of an older version does not say which table it has."""
    return [
        f"a gateway of node {node.name}"
        for node in found.nodes()
        if node.running and any(each.pid and 0 < each.table < placement.since for each in node.gateways)
    ]


def wait_until_all_have(found: Cluster, placement: Placement, until: float, seen: Seen | None = None) -> None:
    """Two changes may not be under way at a time: a store could miss one. Raises OrderError."""
    seen = seen or partial(store_seen, found)
    while late := _late_stores(placement, seen):
        if time.monotonic() >= until:
            raise OrderError(
                f"{', '.join(late)} did not take table {placement.since} over in time, which must come before a "
                "change: see `amq cluster status` for stores without a master"
            )
        time.sleep(POLL_S)
