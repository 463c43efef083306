"""`amq store merge`: all that a running lone group has goes into the store of another one.

The master of the first group does it (`amq.broker.transfer.merging`), and each later one goes on. This command looks
whether it can be done, gives the order, and watches: when it is killed, nothing stops, and the same command watches on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import click

from amq.cli.cluster_moving import move_wait_option, rate_of, rate_option
from amq.cli.management import OPERATION_S, READ_S, open_client
from amq.cli.orders import OrderError
from amq.cli.output import counted, examples, json_option, print_json
from amq.cli.store import read_status
from amq.cluster.masters import dial_link
from amq.config.schema import BrokerConfig
from amq.core.errors import ConfigError, StoreError
from amq.gateway.lookout import master_of
from amq.management.client import ManagementClient
from amq.management.listing import Row
from amq.node.linking import link_secret
from amq.security.credentials import link_context
from amq.store.name import full_name, real_name
from amq.store.open import open_store

LOOK_S: Final = 0.5
TOLD_MAX: Final = 20
OF_CLUSTER: Final = "placement"  # the fact of a master of a cluster's store
MERGE: Final = "merge"  # that of one whose store is merged


@dataclass(frozen=True, slots=True)
class _Target:
    """The group that gets everything. `urls` = where clients find it."""

    place: str
    link: str
    urls: tuple[str, ...]


@click.command(
    epilog=examples(
        "amq store merge /mnt/shared/old /mnt/shared/amq --secret /etc/amq/secret --dry-run",
        "amq store merge /mnt/shared/old /mnt/shared/amq --secret /etc/amq/secret --rate 20MiB",
        "amq store merge /mnt/shared/old 'postgresql://amq@db/amq' --secret /etc/amq/secret --wait 0 --json",
    )
)
@click.argument("source", metavar="FROM")
@click.argument("into", metavar="INTO")
@click.option(
    "--secret",
    "secret_file",
    metavar="FILE",
    type=click.Path(),
    help="The linkSecretFile of the brokers of INTO, at the same path for all brokers of FROM. Default: theirs.",
)
@click.option(
    "--address",
    "addresses",
    metavar="URL",
    multiple=True,
    help="Where clients of FROM go then. May be repeated. Default: the transports of the brokers of INTO.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be merged, or what is in the way, and change nothing.")
@rate_option
@move_wait_option
@json_option
def merge(
    source: str,
    into: str,
    secret_file: str | None,
    addresses: tuple[str, ...],
    dry_run: bool,
    rate: str | None,
    wait_s: float,
    as_json: bool,
) -> None:
    """Merge the store of one running group into that of another one: all that FROM has is in INTO then, exactly once.

    Run it on the host of FROM's master. The brokers of INTO need linkListen and linkSecretFile, and those of FROM must
    be able to read the store INTO. From the order on FROM closes its clients, and refuses them with MERGING until all
    has arrived; then it tells them where the brokers of INTO are, which our clients and those of OpenWire with failover
    URLs follow, and refuses the others with MERGED and that URL. INTO serves its clients all the time. FROM's master
    carries the merge through, also when this command ends; the same command shows how far it is.

    Exit code 0: FROM is merged. 7: not within --wait, or something is in the way, which the command names.
    """
    until, place = time.monotonic() + wait_s, full_name(into)
    now = _progress(source)
    if not now:
        target = _target(place, addresses)
        secret = _secret(secret_file)
        with open_client(source, "", "") as client:
            waits = _in_the_way(client, target, secret, place)
            totals = client.get("/totals")
            if dry_run or waits:
                _tell_plan(source, target, totals, waits, as_json)
                return
            body = {"into": place, "urls": target.urls, "secret_file": _absolute(secret_file)}
            client.post("/merge", {**body, "rate_bytes": rate_of(rate)})
    elif real_name(now["into"]) != real_name(place):
        raise OrderError(f"{source} is being merged into {now['into']} already")
    _watch(source, until, as_json)


def _progress(source: str) -> dict[str, Any]:
    """How far it is, as the master says; empty = it was not ordered, or the master has not said so. Raises AmqError."""
    status = read_status(source)
    found = status.master.facts.get(MERGE) if status.master is not None else None
    return dict(found) if isinstance(found, dict) else {}


def _target(place: str, addresses: tuple[str, ...]) -> _Target:
    """Raises AmqError that names the cure."""
    store = open_store(place)
    found, master = read_status(place).master, master_of(store)
    if found is None:
        raise StoreError(f"{place} has no master: start its brokers", code="STORE_MISSING")
    if OF_CLUSTER in found.facts:
        raise StoreError(
            f"{place} is a store of a cluster: `amq cluster import-store` adopts a store as it is",
            code="STORE_IN_CLUSTER",
        )
    if MERGE in found.facts:
        raise StoreError(f"{place} is being merged into another store itself, or was", code="MERGED")
    if master is None:
        raise ConfigError(
            f"{found.name}, the master of {place}, has no port for links: set linkListen and linkSecretFile of all its "
            "brokers, and restart them",
            code="LINK_REFUSED",
        )
    return _Target(place, master.address, addresses or master.urls)


def _secret(path: str | None) -> bytes:
    """The secret of the links; b"" if this command does not know it. Raises AmqError."""
    return link_secret(_absolute(path)) if path else b""


def _absolute(path: str | None) -> str:
    return os.path.abspath(path) if path else ""


def _in_the_way(client: ManagementClient, target: _Target, secret: bytes, place: str) -> list[str]:
    """The things that must be changed before. Raises AmqError where INTO does not let FROM in."""
    waits = [f"a transaction is prepared: {row['name']}" for row in client.all("/prepared", TOLD_MAX)]
    if not secret:
        return waits
    context = partial(link_context, BrokerConfig(store=place, name="merge"))
    dial = partial(dial_link, target.link, lambda: secret, context)
    with ManagementClient(target.link, READ_S, None, OPERATION_S, real_name(place), dial) as other:
        theirs = {_named(row): _meaning(row) for row in other.all("/subscriptions")}
    for row in client.all("/subscriptions"):
        if theirs.get(_named(row), _meaning(row)) != _meaning(row):
            waits.append(
                f"both stores have a durable subscription {row['name']!r} of client {row['client_id']!r}, to other "
                "topics or with another selector: delete one (`amq subscriptions delete`)"
            )
    return waits


def _named(row: Row) -> tuple[str, str, str]:
    return str(row["user"]), str(row["client_id"]), str(row["name"])


def _meaning(row: Row) -> tuple[str, str]:
    return str(row["topics"]), str(row["selector"])


def _tell_plan(source: str, target: _Target, totals: Mapping[str, Any], waits: list[str], as_json: bool) -> None:
    """Raises OrderError where something is in the way."""
    messages, size = int(totals["messages"]), int(totals["bytes"])
    if as_json:
        facts = {"from": source, "into": target.place, "urls": [*target.urls], "messages": messages, "bytes": size}
        print_json({**facts, "waits_for": waits})
    else:
        click.echo(f"{counted(messages, 'message')}, {size >> 10} KiB, would go to {target.place}")
        click.echo(f"clients would go to failover:({','.join(target.urls)})")
    if waits:
        raise OrderError("not merged: " + "; ".join(waits[:TOLD_MAX]))


def _watch(source: str, until: float, as_json: bool) -> None:
    """Show the progress until it is over. Raises OrderError."""
    said, now = "", _progress(source)
    while not now.get("over") and time.monotonic() < until:
        if not as_json and now and (line := _told(now)) != said:
            click.echo(said := line, err=True)
        time.sleep(LOOK_S)
        now = _progress(source) or now
    if as_json:
        print_json({"from": source, **now, "eta_s": _eta_s(now)})
    if not now.get("over"):
        raise OrderError(
            f"the merge goes on without this command: {_told(now) if now else 'no master has reported it yet'}"
        )
    if not as_json:
        click.echo(f"{source} is merged into {now['into']}: clients go to failover:({','.join(now['urls'])})")


def _eta_s(now: Mapping[str, Any]) -> int | None:
    """None = nothing was sent yet."""
    rate, left = int(now.get("bytes_a_second", 0)), int(now.get("left_bytes", 0))
    return left // rate if rate else (None if left else 0)


def _told(now: Mapping[str, Any]) -> str:
    """The progress in one line, for people."""
    eta_s = _eta_s(now)
    eta = "" if eta_s is None else f", about {eta_s} s"
    text = f"{now['left']} messages, {now['left_bytes'] >> 10} KiB to go{eta}; {now['sent']} sent"
    return f"{text}; waits: {now['trouble']}" if now["trouble"] else text
