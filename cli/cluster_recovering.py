"""`amq cluster recover`: the table that a cluster lacks, from the journal of a store that obeys it."""

from __future__ import annotations

import click

from amq.cli.cluster_options import cluster_option
from amq.cli.journal_common import look
from amq.cli.orders import OrderError
from amq.cli.output import examples, json_option, print_json
from amq.cli.store import store_of
from amq.cluster.directory import Cluster
from amq.cluster.placement import Placement
from amq.core.errors import AmqError, ConfigError, StoreError
from amq.journal.records import ObeyedTable


@click.command(
    epilog=examples(
        "amq cluster recover --cluster /mnt/shared/cluster",
        "amq cluster recover --cluster /mnt/shared/cluster --at archive=postgresql://amq@db/archive",
    )
)
@cluster_option
@click.option(
    "--at",
    "places",
    metavar="STORE=PATH|URL",
    multiple=True,
    help="Where a store is that came after the backup, unless it is in the cluster. May be repeated.",
)
@json_option
def recover(directory: str, places: tuple[str, ...], as_json: bool) -> None:
    """Write the newest table again that a store obeys.

    A store records in its journal which table of the homes it obeys. Where the directory of the cluster was restored
    from a backup that is older (alarm CLUSTER_SET_BACK), this command reads the journals of all stores, and puts the
    newest of these tables into the cluster. It changes no store. Nodes may run meanwhile.

    Exit code 0: the cluster has the newest table that a store obeys. 7: a store could not be read, so a newer table may
    be there; nothing was changed.
    """
    found, told = Cluster(directory), _places(places)
    table = found.table()
    record, store = _newest(found)
    if record is None or record.number <= table.number:
        _say(found, as_json, table.number, "")
        return
    placement = Placement.from_json(record.number, record.placement)
    names = [name for name in (*placement.stores, placement.joining) if name and name not in table.locations]
    unknown = [name for name in names if name not in told and not _is_inside(found, name)]
    if unknown:
        raise ConfigError(
            f"store {unknown[0]} came by a table that the backup lacks: say with --at {unknown[0]}=PATH where it is",
            code="STORE_UNKNOWN",
        )
    found.place(placement, {name: told.get(name, "") for name in names})
    _say(found, as_json, record.number, store)


def _places(given: tuple[str, ...]) -> dict[str, str]:
    told = {}
    for each in given:
        name, equals, place = each.partition("=")
        if not (name and equals and place):
            raise click.UsageError(f"--at {each}: give STORE=PATH|URL")
        told[name] = place
    return told


def _newest(found: Cluster) -> tuple[ObeyedTable | None, str]:
    """The newest table that a store of the cluster obeys, None = none obeys one; and the name of the store. Raises
    OrderError where a store cannot be read, StoreError where one is of another cluster."""
    newest, of = None, ""
    table = found.table()
    for name in table.stores:
        location = found.location(name, table)
        try:
            if store_of(location).epochs.newest() is None:
                continue  # no broker was master of it
            inspection, liveness = look(location)
        except (AmqError, OSError) as error:
            raise OrderError(f"nothing was changed: store {name} cannot be read: {error}") from error
        if inspection.problems:
            raise OrderError(f"nothing was changed: store {name} is damaged: {inspection.problems[0]}")
        if liveness.placed is None:
            continue
        record = liveness.placed[0]
        if record.cluster != found.id:
            raise StoreError(f"store {name} obeys the table of another cluster, {record.cluster}", code="STORE_FOREIGN")
        if newest is None or record.number > newest.number:
            newest, of = record, name
    return newest, of


def _is_inside(found: Cluster, name: str) -> bool:
    """Is there a store of that name where the cluster has those without a place of their own?"""
    try:
        return store_of(found.own_place(name)).epochs.newest() is not None
    except (AmqError, OSError):
        return False


def _say(found: Cluster, as_json: bool, number: int, store: str) -> None:
    if as_json:
        print_json({"cluster": found.directory, "table": number, "recovered_from": store or None})
    elif store:
        click.echo(f"table {number} is in the cluster again, from the journal of store {store}")
    else:
        click.echo(f"nothing is missing: no store obeys a later table than {number}")
