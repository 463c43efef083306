"""`amq cluster`: make a cluster, see who serves which store, and decide which nodes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields
from shlex import quote
from typing import Any

import click

from amq.cli import exits
from amq.cli.cluster_import import import_store
from amq.cli.cluster_moving import finish, move, move_wait_option, moves, rate_of, rate_option, remove_store, settled
from amq.cli.cluster_options import WAIT_S, cluster_option, wait_option
from amq.cli.cluster_outboxes import outboxes
from amq.cli.cluster_placing import newest, place, where
from amq.cli.cluster_recovering import recover
from amq.cli.cluster_status import SeenStore, facts_of, look, print_facts
from amq.cli.orders import OrderError, hand_over
from amq.cli.output import counted, examples, json_option, print_json
from amq.cluster.alarms import is_forbidden
from amq.cluster.directory import STORES_MAX, Cluster
from amq.cluster.placement import Naming
from amq.config.schema import OPTIONS
from amq.core.errors import StoreError

NAMING = {
    option.key: option.attribute for option in OPTIONS if option.attribute in {each.name for each in fields(Naming)}
}
STORES = 4  # of a new cluster, where nobody says more
POLL_S = 0.2
_EPILOG = examples(
    "amq cluster init --cluster /mnt/shared/cluster --stores 6",
    "amq cluster status --cluster /mnt/shared/cluster",
    "amq cluster drain --cluster /mnt/shared/cluster a",
    "amq cluster resume --cluster /mnt/shared/cluster a",
)


@click.group(epilog=_EPILOG)
def cluster() -> None:
    """Make a cluster of several stores, see who serves what, drain a node.

    A cluster is a directory, or a database, with several stores. A node (`amq start --cluster DIR`) runs a broker for
    each of them: master of its share, slave of the others. When a node ends, the others share its stores out among
    them; when it comes back, it gets its share again. No message is copied for that.
    """


@cluster.command(
    epilog=examples(
        "amq cluster init --cluster /mnt/shared/cluster",
        "amq cluster init --cluster /mnt/shared/cluster --stores 12",
        "amq cluster init --cluster 'postgresql://owner@db/amq?sslmode=verify-full' --stores 6",
        "amq cluster init --cluster /mnt/c --store postgresql://amq@db1/amq --store postgresql://amq@db2/amq",
    )
)
@cluster_option
@click.option(
    "--stores",
    "count",
    metavar="N",
    type=click.IntRange(1, STORES_MAX),
    help=f"Make N stores there, s1 to sN: two or more a node share out well. Default: {STORES}.",
)
@click.option(
    "--store",
    "locations",
    metavar="PATH|URL",
    multiple=True,
    help="Take this store, a directory elsewhere or a database, instead of one of the cluster. May be repeated.",
)
@click.option(
    "-o",
    "--option",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    help=f"An option by which the cluster reads names, and which all its nodes must have alike: {', '.join(NAMING)}.",
)
@json_option
def init(
    directory: str, count: int | None, locations: tuple[str, ...], options: tuple[str, ...], as_json: bool
) -> None:
    """Make a cluster. The directory may be there already; a cluster must not."""
    if count is not None and locations:
        raise click.UsageError("give one of --stores and --store")
    places = list(locations) or [""] * (count or STORES)
    stores = {f"s{number}": place for number, place in enumerate(places, start=1)}
    made = Cluster.create(directory, stores, _naming(options))
    stores = {name: made.location(name) for name in made.table().stores}
    if as_json:
        print_json({"cluster": made.directory, "id": made.id, "stores": stores})
        return
    click.echo(f"{made.directory} is a cluster of {len(stores)} stores: {', '.join(stores)}")
    click.echo(f"start a node on each host: amq start --cluster {quote(made.directory)} --name NODE")


@cluster.command(
    "add-store",
    epilog=examples(
        "amq cluster add-store --cluster /mnt/shared/cluster s5",
        "amq cluster add-store --cluster /mnt/shared/cluster s6 --share",
        "amq cluster add-store --cluster /mnt/shared/cluster archive --at postgresql://amq@db/archive",
    ),
)
@cluster_option
@click.argument("name", metavar="NAME")
@click.option("--at", "location", metavar="PATH|URL", default="", help="Where it is. Default: in the cluster.")
@click.option("--share", is_flag=True, help="Give it its share of the slots, with what their destinations hold.")
@rate_option
@move_wait_option
@json_option
def add_store(
    directory: str, name: str, location: str, share: bool, rate: str | None, wait_s: float, as_json: bool
) -> None:
    """Add a store. The nodes notice it within seconds, and share it out.

    Nothing lives in it until a rule says so, or with --share until its share has moved there, as by `amq cluster move`;
    the same command gives a store its share later.
    """
    found = Cluster(directory)
    known = newest(found, time.monotonic() + WAIT_S).stores
    if not share or name not in known:
        found.add_store(name, location)
    if share:
        placement = settled(found)
        wanted = placement.shared_out(rate_of(rate))
        if wanted.layout != placement.layout:
            placement = found.place(wanted).placement
        done = f"store {name} has its share of the slots"
        finish(found, placement, wait_s, as_json, {"store": name, "at": found.location(name)}, done, placement.layout)
    elif as_json:
        print_json({"cluster": found.directory, "store": name, "at": found.location(name)})
    else:
        click.echo(f"store {name} is at {found.location(name)}")
        click.echo(f"no destination lives in it yet: amq cluster place --cluster {found.directory} PATTERN {name}")


@cluster.command(
    epilog=examples(
        "amq cluster status --cluster /mnt/shared/cluster",
        "amq cluster status --cluster /mnt/shared/cluster --json | jq '.stores[] | select(.master == null)'",
    )
)
@cluster_option
@json_option
def status(directory: str, as_json: bool) -> None:
    """Show the stores and the nodes: who serves what, and who should.

    `preferred` is the node that should serve a store: it has its share by weight. While another one serves it, the
    preferred node does not run, or has not caught up, or takes over in a moment (failbackDelay).

    Exit code 0: every store has a master. 1: one has none, or cannot be read.
    """
    found = Cluster(directory)
    facts = facts_of(found)
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)
    if any(store["master"] is None for store in facts["stores"]):
        raise click.exceptions.Exit(exits.FAILED)


@cluster.command(
    epilog=examples(
        "amq cluster drain --cluster /mnt/shared/cluster a",
        "amq cluster drain --cluster /mnt/shared/cluster a --wait 300 && systemctl stop amq",
    )
)
@cluster_option
@click.argument("node", metavar="NODE")
@wait_option
@json_option
def drain(directory: str, node: str, wait_s: float, as_json: bool) -> None:
    """Let other nodes serve all stores of a node, which stays a slave of them, until `amq cluster resume`.

    The masterships are handed over one after the other, each as by `amq handover`. A store for which no other node is
    ready stays where it is.

    Exit code 0: the node serves no store. 7: it still serves some, with the reasons.
    """
    found = Cluster(directory)
    found.drain(node, True)
    moved, refused = _settle(found, wait_s, lambda store: store.master == node)
    _done(found, as_json, {"node": node, "drained": True}, moved, refused, f"{node} serves no store")


@cluster.command(epilog=examples("amq cluster resume --cluster /mnt/shared/cluster a"))
@cluster_option
@click.argument("node", metavar="NODE")
@wait_option
@json_option
def resume(directory: str, node: str, wait_s: float, as_json: bool) -> None:
    """Give a drained node its share of the stores again."""
    found = Cluster(directory)
    found.drain(node, False)
    if not found.node(node).running:
        wait_s = 0
    moved, refused = _settle(found, wait_s, lambda store: store.preferred == node)
    _done(found, as_json, {"node": node, "drained": False}, moved, refused, f"{node} has its share again")


@cluster.command(epilog=examples("amq cluster rebalance --cluster /mnt/shared/cluster"))
@cluster_option
@wait_option
@json_option
def rebalance(directory: str, wait_s: float, as_json: bool) -> None:
    """Hand every store over to the node that should serve it, without waiting for failbackDelay.

    Exit code 0: each store is where it should be. 7: some are not, with the reasons.
    """
    found = Cluster(directory)
    moved, refused = _settle(found, wait_s, lambda _: True)
    _done(found, as_json, {}, moved, refused, "each store is served by the node that should serve it")


@cluster.command(epilog=examples("amq cluster forget --cluster /mnt/shared/cluster a"))
@cluster_option
@click.argument("node", metavar="NODE")
@json_option
def forget(directory: str, node: str, as_json: bool) -> None:
    """Forget a node that will not come back: the others share its stores out anew. It must not run."""
    Cluster(directory).forget(node)
    if as_json:
        print_json({"node": node, "forgotten": True})
    else:
        click.echo(f"{node} does not belong to the cluster any more")


cluster.add_command(import_store)
cluster.add_command(move)
cluster.add_command(moves)
cluster.add_command(outboxes)
cluster.add_command(place)
cluster.add_command(recover)
cluster.add_command(remove_store)
cluster.add_command(where)


def _naming(options: tuple[str, ...]) -> Naming:
    values: dict[str, str] = {}
    for text in options:
        key, separator, value = text.partition("=")
        if key not in NAMING or not separator:
            raise click.UsageError(f"--option {text}: write KEY=VALUE with one of {', '.join(NAMING)}")
        values[NAMING[key]] = value
    return Naming(**values)


# -- moving masterships ------------------------------------------------------------------------------------------------


def _settle(
    found: Cluster, wait_s: float, concerns: Callable[[SeenStore], bool]
) -> tuple[dict[str, str], dict[str, str]]:
    """Hand each store that `concerns` over to the node that should serve it, within `wait_s`. Returns store → its new
    master, and store → why it stays where it is."""
    until = time.monotonic() + wait_s
    moved: dict[str, str] = {}
    refused: dict[str, str] = {}
    said = ""
    while True:
        left = [store for store in look(found)[1] if store.master != store.preferred and concerns(store)]
        refused = {store.name: _obstacle(store) for store in left}
        for store in left:
            left_s = until - time.monotonic()
            if not refused[store.name] and left_s > 0:
                refused[store.name] = _move(store, left_s)
            elif not refused[store.name]:
                refused[store.name] = "not within --wait"
            if not refused[store.name]:
                moved[store.name] = store.preferred
                del refused[store.name]
        if refused and wait_s and said != (said := _reasons(refused)):
            click.echo(f"waiting for {said}", err=True)
        if not refused or time.monotonic() >= until:
            return moved, refused
        time.sleep(min(POLL_S, max(0.0, until - time.monotonic())))


def _reasons(refused: dict[str, str]) -> str:
    """Why stores stay where they are, each reason once."""
    stores: dict[str, list[str]] = {}
    for store, why in refused.items():
        stores.setdefault(why, []).append(store)
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in stores.items())


def _obstacle(store: SeenStore) -> str:
    """Why `store` cannot be handed over now, "" = it can."""
    if store.error:
        return store.error
    if not store.preferred:
        if store.order:
            return f"no broker of it runs, of node {' or '.join(store.order)}"
        return "the cluster has no node that is not drained: start or `amq cluster resume` one"
    if store.master is None:
        return "" if is_forbidden(store.now) else "no node serves it now"
    if why := store.slaves.get(store.preferred, ""):
        return f"{store.preferred} {why}"
    return ""


def _move(store: SeenStore, left_s: float) -> str:
    """Hand `store` over. Returns why that has failed, "" = it is done."""
    try:
        hand_over(store.now.location, store.preferred, left_s)
    except (OrderError, StoreError) as error:
        return error.description
    return ""


def _done(
    found: Cluster, as_json: bool, facts: dict[str, Any], moved: dict[str, str], refused: dict[str, str], said: str
) -> None:
    if as_json:
        print_json({"cluster": found.directory, **facts, "moved": moved, "refused": refused})
    else:
        for store, node in moved.items():
            click.echo(f"{store}: {node} serves it now")
        if not refused:
            click.echo(said)
    if refused:
        raise OrderError(f"not done for {counted(len(refused), 'store')}: {_reasons(refused)}")
