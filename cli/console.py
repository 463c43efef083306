"""`amq console`: REST, metrics and probes of the broker of this host, in a separate process."""

from __future__ import annotations

import os

import click

from amq.cli import logs
from amq.cli.management import chosen
from amq.cli.output import examples
from amq.cli.store import check_store, store_of
from amq.config import BrokerConfig
from amq.config.transport_url import host_and_port
from amq.core.errors import ConfigError
from amq.doors.clock import SystemClock
from amq.management.consoles import web_url
from amq.node.process import raise_file_limit

_MISSING = (
    "the console needs packages that are not installed: pip install '.[console]' in a checkout, else 'amq[console]'"
)


@click.command(
    epilog=examples(
        "amq console --store /mnt/shared/amq --listen 127.0.0.1:8161",
        "amq console --store /mnt/shared/amq --listen 0.0.0.0:8161 --certificate cert.pem --key key.pem",
        "amq console --cluster /mnt/shared/cluster --listen 127.0.0.1:8161",
        "amq console --store /mnt/shared/amq --public-url https://amq-a.example/ --trusted-proxy 127.0.0.1",
    )
)
@click.option("--store", metavar="DIR|URL", envvar="AMQ_STORE", default="", help="Store of the group; or $AMQ_STORE.")
@click.option(
    "--cluster",
    metavar="DIR|URL",
    envvar="AMQ_CLUSTER",
    default="",
    help="Be the console of this cluster: pages and REST are about all its stores; or $AMQ_CLUSTER.",
)
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:8161", show_default=True, help="Where to serve.")
@click.option("--name", metavar="NAME", default="", help="The broker to ask. Default: that of this host.")
@click.option("--certificate", metavar="FILE", type=click.Path(), help="Serve HTTPS with this certificate chain (PEM).")
@click.option("--key", metavar="FILE", type=click.Path(), help="Its private key (PEM).")
@click.option(
    "--peers",
    metavar="URL",
    default="",
    help="Where the console of the master is, for links on a slave's pages, instead of where it says: a URL "
    "with {host} or {name} of the master, or one that always leads there, such as that of a load balancer.",
)
@click.option(
    "--public-url",
    metavar="URL",
    default="",
    help="Where people reach this console, which it announces to its broker for the links of other consoles: needed "
    "behind a reverse proxy. Default: from --listen and --certificate.",
)
@click.option(
    "--trusted-proxy",
    "proxies",
    metavar="ADDRESS",
    multiple=True,
    help="A reverse proxy (or a network of them) that names its callers in X-Forwarded-For. Repeatable. Default: none.",
)
@click.option(
    "--host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A further name of this console: under other names than that of its host and --listen, nobody is answered "
    "without a login or HTTPS. Repeatable.",
)
@click.option("--metrics-login", is_flag=True, help="Ask for a login also for metrics.")
def console(
    store: str,
    cluster: str,
    listen: str,
    name: str,
    certificate: str | None,
    key: str | None,
    peers: str,
    public_url: str,
    proxies: tuple[str, ...],
    hosts: tuple[str, ...],
    metrics_login: bool,
) -> None:
    """Serve pages, REST, metrics and probes of the broker of this host.

    One console runs beside each broker. It goes on when the broker hangs, and says so. Users are those of the broker,
    and have the rights that the broker's permissions give them. Metrics and probes need no login. On other addresses
    than those of this host, use a certificate: passwords travel with each request.
    """
    try:
        from amq.console import announcing, callers, guests
        from amq.console.app import Console
        from amq.console.link import Link
        from amq.console.whole import ClusterLink
    except ImportError as error:
        raise ConfigError(f"{_MISSING} ({error.name})", code="CONSOLE_MISSING") from error
    try:
        host, port = host_and_port(listen)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--listen") from error
    if bool(certificate) != bool(key):
        raise click.UsageError("give --certificate and --key together")
    if peers and not peers.startswith(("http://", "https://")):
        raise click.BadParameter("write https://{host}:8161/ or the like", param_hint="--peers")
    if public_url and not web_url(public_url):
        raise click.BadParameter("write https://amq-a.example/ or the like", param_hint="--public-url")
    try:
        trusted = callers.checked(proxies)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--trusted-proxy") from error
    store, _, cluster = chosen(store, "", cluster)
    if not (store or cluster):
        raise click.UsageError("give --store, or --cluster")
    if not cluster:
        check_store(store_of(store))
    logs.configure(BrokerConfig(name=name or os.uname().nodename, store=store or cluster))
    clock = SystemClock()
    raise_file_limit()
    url = web_url(public_url) or web_url(announcing.own_url(host, port, bool(certificate)))
    names = (host, os.uname().nodename, *hosts)
    link = ClusterLink(cluster, name, clock) if cluster else Link(store, name, clock)
    app = Console(link, clock, metrics_login, peers, trusted, names, url).app()
    guests.serve(guests.server_of(app, host, port, trusted, certificate, key))
