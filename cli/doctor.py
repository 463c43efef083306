"""`amq doctor`: is a directory fit to be a store?"""

from __future__ import annotations

import os
import re
import socket
import sys
from typing import TYPE_CHECKING

import click

from amq.cli import exits
from amq.cli.output import examples, is_terminal, json_option, print_json, print_table
from amq.core.errors import StoreError
from amq.store.name import is_directory

if TYPE_CHECKING:
    from amq.doctor.finding import Examination

PORT = 61612
_EPILOG = examples(
    "amq doctor /mnt/shared/amq",
    "amq doctor /mnt/shared/amq --as-peer",
    "amq doctor /mnt/shared/amq --peer host-b --peer host-c",
    "amq doctor /mnt/shared/amq --quick --json | jq -r .verdict",
    "amq doctor --cluster /mnt/shared/cluster",
    "amq doctor postgresql://db.example.com/amq",
    "amq doctor 'replica:///var/lib/amq?group=fish&coordinator=etcd://x,y,z'",
    "amq doctor --tls 'failover:(stomp+ssl://a:61614,stomp+ssl://b:61614)?trust=/etc/app/ca.pem'",
)


@click.command(epilog=_EPILOG)
@click.argument("path", metavar="PATH", type=click.Path(), envvar="AMQ_STORE", required=False)
@click.option(
    "--peer",
    "peers",
    metavar="HOST[:PORT]",
    multiple=True,
    help="Another host, which runs `amq doctor PATH --as-peer`: try locks, links and visibility. May be repeated.",
)
@click.option("--as-peer", is_flag=True, help="Be the other host of such an examination, until interrupted.")
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=PORT,
    help="TCP port of peers; with --as-peer the one to listen on, 0: any free one.",
)
@click.option("--quick", is_flag=True, help="Only what `amq start` looks at each time; takes milliseconds.")
@click.option(
    "--tls",
    "url",
    metavar="URL",
    help="Examine no directory but the TLS ports of this client URL: versions, certificate, names, dates, and whether "
    "the broker wants a certificate of the client.",
)
@click.option(
    "--cluster",
    metavar="DIR|URL",
    help="Examine this cluster: directory, secret, clocks, each store, the homes in force, options, ports, balance.",
)
@json_option
def doctor(
    path: str | None,
    peers: tuple[str, ...],
    as_peer: bool,
    port: int,
    quick: bool,
    url: str | None,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Find out whether a directory is fit to be a store, or what clients of a TLS port meet.

    Looks at the file system and its mount options, and tries what brokers rely on: locks that exclude, links that are
    exclusive, content that others see, what a sync costs. Only files of its own, amq-doctor-*, are touched, and they
    are gone afterwards: brokers may run on the store meanwhile.

    Exit code 0 where the verdict is fit, with warnings or without, 4 where it is unfit or does not exist, 6 where a
    peer cannot be asked. Without PATH $AMQ_STORE is examined, or the cluster $AMQ_CLUSTER.

    PATH may be the URL of a store in a database. Then the command looks at the server's settings, its standbys, the
    tables and the rights of the role, and measures a commit. It writes to no table.

    With --tls: 0 where each broker that listens lets this client in, 1 where one does not, 6 where none listens. It
    sends no login.
    """
    if url is not None:
        if as_peer or peers or quick:
            raise click.UsageError("--tls examines no directory: give it alone")
        from amq.cli.doctor_tls import examine_url

        examine_url(url, as_json)
        return
    if cluster is None and path is None and not (as_peer or peers or quick):
        cluster = os.environ.get("AMQ_CLUSTER") or None
    if cluster is not None:
        if as_peer or peers or quick:
            raise click.UsageError("--cluster looks at what there is: give it alone")
        from amq.cli.doctor_cluster import examine_cluster

        _show(examine_cluster(cluster), as_json)
        return
    if path is None:
        raise click.UsageError("Missing argument 'PATH': give a directory, or --cluster DIR.")
    if sum((as_peer, bool(peers), quick)) > 1:
        raise click.UsageError("give one of --peer, --as-peer and --quick")
    if as_peer and as_json:
        raise click.UsageError("--json is for the host that asks its peers")
    if not is_directory(path) and (as_peer or peers):
        raise click.UsageError("a database has no peers: give its URL without --peer and --as-peer")
    _check_directory(path)
    if as_peer:
        _be_peer(path, port)
        return
    from amq.doctor.stores import examine, examine_quickly

    addresses = [_address(peer, port) for peer in peers]
    if is_terminal() and not quick:
        click.echo(f"examining {path}; this takes some seconds …", err=True)
    try:
        report = examine_quickly(path) if quick else examine(path, addresses)
    except OSError as error:
        if is_directory(path):
            raise
        raise StoreError(f"{path}: {error.strerror}: the store cannot be examined") from error
    _show(report, as_json)


def _show(report: Examination, as_json: bool) -> None:
    """Print it. Ends with an error where something is unfit, or a peer cannot be asked."""
    if as_json:
        print_json(report.to_json())
    else:
        _print(report)
    for host, reason in report.unreachable.items():
        click.echo(f"amq: peer {host}: {reason} [PEER_UNREACHABLE]", err=True)
    if report.verdict == "unfit":
        raise click.exceptions.Exit(exits.STORE)
    if report.unreachable:
        raise click.exceptions.Exit(exits.TRANSPORT)


def _check_directory(path: str) -> None:
    """Raises StoreError where there is nothing to examine: a typing error must not be judged by its parent."""
    if not is_directory(path) or os.path.lexists(path):
        return
    parent = os.path.dirname(os.path.abspath(path))
    made = f"; the first broker would make it in {parent}: examine that" if os.path.isdir(parent) else ""
    raise StoreError(f"{path} does not exist: mount the file system, or correct the name{made}", code="STORE_MISSING")


def _address(peer: str, port: int) -> tuple[str, int]:
    """`host`, `host:port`, `[::1]`, `[::1]:port` → (host, port)."""
    found = re.fullmatch(r"(\[[^\]]+\]|[^:\[\]]+)(?::(\d{1,5}))?", peer)
    number = int(found[2] or port) if found else 0
    if found is None or not 0 < number <= 65535:
        raise click.UsageError(f"--peer {peer}: give HOST or HOST:PORT; an IPv6 address in brackets")
    return found[1].strip("[]"), number


def _print(report: Examination) -> None:
    rows = []
    for finding in report.findings:
        why = "; ".join(part for part in (finding.why, finding.cure) if part)
        rows.append((finding.level.value, finding.topic, finding.found, why))
    print_table(("", "what", "found", "what it is for, or what to do"), rows)
    click.echo()
    for name, value in report.recommended.items():
        click.echo(f"recommended {name}: {value}")
    if "silent_master_s" in report.measured:
        seconds = report.measured["silent_master_s"]
        click.echo(f"with these heart-beats a client leaves a silent master after {seconds:g} s")
    click.echo(f"{report.directory}: {report.verdict}")


def _be_peer(path: str, port: int) -> None:
    from amq.doctor.peer import serve_peer

    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        server = socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6)
    except OSError as error:
        why = f"port {port}: {os.strerror(error.errno or 0)}; free it, or give another --port"
        exits.fail(why, exits.TRANSPORT, "TRANSPORT_UNAVAILABLE")
    with server:
        click.echo(f"listening on port {server.getsockname()[1]}, in {os.path.abspath(path)}; Ctrl-C ends it")
        sys.stdout.flush()
        serve_peer(server, path, lambda line: click.echo(line))
