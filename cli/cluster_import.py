"""`amq cluster import-store`: the store of a lone group becomes one of a cluster.

The order of steps makes it safe to end this command at any of them:

1. The command holds the lock of the store until it ends, so that no broker changes what the store holds.
2. It makes a table in which the store is `joining`: no node serves it yet, and every other store gives up what the new
   rules place there, or refuses because it holds some of that.
3. When all of them have recorded that, the next table makes it a store of the cluster. Until then the command, the next
   one that changes the placement, or the same one again takes the change back, and the store is as it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from random import SystemRandom
from shlex import quote
from typing import Any
from uuid import UUID

import click

from amq.cli.cluster_options import change_wait_option, cluster_option
from amq.cli.cluster_placing import carry_through, finished, wait_until_all_have
from amq.cli.journal_common import look
from amq.cli.orders import OrderError
from amq.cli.output import counted, examples, json_option, print_json
from amq.cli.store import read_status, store_of
from amq.cluster.adopting import adopting_rules
from amq.cluster.directory import Cluster, StoreTable
from amq.cluster.placement import SPREAD, Placement
from amq.cluster.placing import StoreSeen
from amq.cluster.seeing import runs, store_seen
from amq.core.destination import TEMPORARY_QUEUE_SCHEME, TEMPORARY_TOPIC_SCHEME, wire_name
from amq.core.errors import AmqError, ConfigError, StoreError
from amq.core.message import SUBSCRIPTION_SCHEME
from amq.doors.clock import SystemClock
from amq.journal.hidden import home_name
from amq.store.host import Owner, SystemHost
from amq.store.locker import Locker
from amq.store.name import full_name, real_name

TOLD_MAX = 20  # destinations that are named at once
_NAME = "amq-cluster-import"
_PERIOD_S = 1.0  # of a broker that is never master


@dataclass(frozen=True, slots=True)
class _Contents:
    """Full names of the destinations of which a store holds something, ids of messages included; and the cluster whose
    table it obeys, "" = none."""

    names: frozenset[str] = frozenset()
    cluster: str = ""


@click.command(
    "import-store",
    epilog=examples(
        "amq cluster import-store --cluster /mnt/shared/cluster /mnt/shared/amq --dry-run",
        "amq cluster import-store --cluster /mnt/shared/cluster /mnt/shared/amq --name orders",
        "amq cluster import-store --cluster /mnt/shared/cluster 'postgresql://amq@db/amq?tablePrefix=shop_' --json",
    ),
)
@cluster_option
@click.argument("store", metavar="STOREDIR|URL")
@click.option("--name", metavar="NAME", help="Its name in the cluster. Default: the next free one of s1, s2, ….")
@click.option("--dry-run", is_flag=True, help="Show the rules, or what is in the way, and change nothing.")
@change_wait_option
@json_option
def import_store(directory: str, store: str, name: str | None, dry_run: bool, wait_s: float, as_json: bool) -> None:
    """Make the store of a lone group one of a cluster. It stays where it is, and keeps its destinations.

    Stop the brokers of the group first, run this command, then start nodes instead of the brokers. Nodes that run
    already serve the store within seconds. The command reads the journal, also with --dry-run while the group serves,
    and makes rules for the destinations of which the store holds something: one each, or one for many whose names begin
    alike.

    A command that was killed has changed nothing, or everything; run it again.

    Exit code 0: the store is one of the cluster. 5: a broker has the store. 7: another store holds destinations of
    these names, or did not take the change over; nothing was changed.
    """
    found, location = Cluster(directory), full_name(store)
    until = time.monotonic() + wait_s
    if known := _member_at(found, location):
        _done(found, as_json, known, location, {}, 0)
        return
    if not dry_run:
        _check_free(location)
    with nullcontext() if dry_run else _locked(location):
        placement = found.table().placement if dry_run else finished(found, until)
        name = name or next(each for number in count(1) if (each := f"s{number}") not in found.table().locations)
        if name in placement.stores:
            raise ConfigError(f"the cluster has a store {name!r} already: give --name", code="STORE_EXISTS")
        ours = _contents(location)
        if ours.cluster:
            raise StoreError(
                f"{location} is a store of cluster {ours.cluster}: its journal says where its destinations live",
                code="STORE_EXISTS",
            )
        theirs = {each: _contents_of(found, each) for each in placement.stores}
        keys, others = _keys(placement, ours), {each: _keys(placement, held) for each, held in theirs.items()}
        _check_apart(keys, others)
        held = {key: each for each, of_store in others.items() for key in of_store}
        rules = adopting_rules(placement, name, keys, held)
        after = placement.adopting(name, rules)
        if not dry_run:
            _adopt(found, placement, after, location, theirs, until)
    _done(found, as_json, name, location, rules, len(ours.names), is_dry=dry_run)


def _adopt(
    found: Cluster, before: Placement, after: Placement, location: str, theirs: dict[str, _Contents], until: float
) -> None:
    """Raises OrderError where the stores of the cluster did not let it come."""

    def seen(each: str) -> StoreSeen:
        """A store that was imported, and that no node has served yet, is judged by its journal."""
        store = store_seen(found, each)
        if not store.number and not store.is_unused and not theirs[each].cluster and not runs(found):
            return StoreSeen(is_unused=not read_status(found.location(each)).brokers)
        return store

    wait_until_all_have(found, before, until, seen)
    click.echo(f"asking {counted(len(before.stores), 'store')} to leave its destinations to it", err=True)
    carried = carry_through(found, found.place(after, {after.joining: location}).placement, until, seen)
    if after.joining not in carried.stores:
        raise OrderError("somebody else changed the cluster at the same time: try again")


def _member_at(found: Cluster, location: str) -> str:
    """Name of the store of the cluster that is at `location`, "" = none."""
    table: StoreTable = found.table()
    places = {real_name(found.location(name, table)): name for name in table.stores}
    return places.get(real_name(location), "")


def _check_free(location: str) -> None:
    """Raises AmqError where a broker runs on the store."""
    if brokers := read_status(location).brokers:
        names = ", ".join(broker.owner.describe() if broker.owner else broker.name for broker in brokers)
        raise AmqError(
            f"{location} has brokers: {names}. Stop them, import the store, then start nodes of the cluster in their "
            "place. Clients fail over if their URL names the addresses of the nodes, too",
            code="STORE_LOCKED",
        )


@contextmanager
def _locked(location: str) -> Iterator[None]:
    """Hold the lock of the store, without being its master. Raises AmqError."""
    host = SystemHost()
    owner = Owner.make(
        host,
        name=_NAME,
        uuid=str(UUID(bytes=SystemRandom().randbytes(16))),
        transport_urls=(),
        lock_keep_alive_period_s=_PERIOD_S,
    )
    locker = Locker(store_of(location), SystemClock(), host, owner)
    try:
        if not locker.try_acquire(at_once=True):
            raise AmqError(
                f"{location} is locked by {locker.holder() or 'another process'}: stop it, then import the store",
                code="STORE_LOCKED",
            )
        yield
    except OSError as error:
        raise StoreError(f"{error.filename or location}: {error.strerror}") from error
    finally:
        locker.abandon()


def _contents(location: str) -> _Contents:
    """Raises StoreError where there is no store, or a damaged one, OSError."""
    inspection, liveness = look(location)
    if inspection.problems:
        raise StoreError(f"{inspection.problems[0]}: see `amq journal check --store {location}`")
    queues = {name for name, tally in liveness.destinations.items() if tally.live}
    queues |= {name for name, ids in liveness.duplicates.items() if len(ids)}
    names = {home_name(name) for name in queues if not name.startswith(SUBSCRIPTION_SCHEME)}
    for record, _ in liveness.subscriptions.values():
        names |= {each for each in record.sources if isinstance(each, str)}
    temporary = (TEMPORARY_QUEUE_SCHEME, TEMPORARY_TOPIC_SCHEME)
    obeyed = liveness.placed[0].cluster if liveness.placed is not None else ""
    return _Contents(frozenset(name for name in names if not name.startswith(temporary)), obeyed)


def _contents_of(found: Cluster, store: str) -> _Contents:
    """Of a store of the cluster; empty where no broker was ever master of it. Raises OrderError."""
    location = found.location(store)
    try:
        return _contents(location) if store_of(location).epochs.newest() is not None else _Contents()
    except (AmqError, OSError) as error:
        raise OrderError(f"store {store} cannot be read: {error}") from error


def _keys(placement: Placement, contents: _Contents) -> dict[str, str]:
    """Placement key → a name that has it; without what lives in every store."""
    found = {}
    for name in sorted(contents.names):
        where = placement.where(name)
        if where.slot >= 0 and not (where.rule and where.home == SPREAD):
            found[where.key] = name
    return found


def _check_apart(keys: dict[str, str], others: dict[str, dict[str, str]]) -> None:
    """Raises OrderError where another store holds something of what must have its home in this one."""
    both = [(keys[key], store) for store, held in others.items() for key in held if key in keys]
    if both:
        told = ", ".join(f"{wire_name(name)} (store {store})" for name, store in both[:TOLD_MAX])
        more = f" and {len(both) - TOLD_MAX} more" if len(both) > TOLD_MAX else ""
        raise OrderError(
            f"{counted(len(both), 'destination')} would have two homes: {told}{more}. Consume or purge them in one of "
            "the stores, or export them there and import them here (`amq journal export --destination NAME`), then try "
            "again"
        )


def _done(
    found: Cluster, as_json: bool, name: str, location: str, rules: dict[str, str], held: int, *, is_dry: bool = False
) -> None:
    facts: dict[str, Any] = {"cluster": found.directory, "store": name, "at": location, "destinations": held}
    if as_json:
        print_json({**facts, "rules": [list(rule) for rule in rules.items()], "imported": not is_dry})
        return
    if is_dry:
        for pattern, store in rules.items():
            click.echo(f"{pattern} lives in {store}")
        click.echo(f"{location} would be store {name}, with {counted(len(rules), 'rule')}; nothing was changed")
        return
    click.echo(f"store {name} is at {location}: {counted(len(rules), 'new rule')} for {counted(held, 'destination')}")
    if not runs(found):
        click.echo(f"start a node on each host: amq start --cluster {quote(found.directory)} --name NODE")
