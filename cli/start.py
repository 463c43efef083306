"""`amq start`: one broker in the foreground, from its configuration to its exit code."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import NoReturn

import click
import structlog
import uvloop

import amq
from amq.cli import exits, logs, start_cluster, store_check
from amq.cli.foreign import properties_of, property_option, read_foreign, read_permissions, read_users
from amq.cli.output import examples
from amq.cli.scale_down import scale_down_options
from amq.cluster.directory import GATEWAYS_MAX, WEIGHT_MAX
from amq.cluster.scaling import ScaleDown
from amq.config import BrokerConfig, load
from amq.core.errors import AmqError, ConfigError, StoreError
from amq.node import process
from amq.node.service import Readers, Service, Source
from amq.store.presence import NameInUseError
from amq.transports.places import FILES_MIN, files_warning

_log = structlog.get_logger("amq.process")
_MAY_PASS = (StoreError.code, NameInUseError.code)  # the second: of the own session, at a coordinator
_EPILOG = examples(
    "amq start --store /mnt/shared/amq --name a --transport stomp://0.0.0.0:61613",
    "amq start /etc/amq/amq.toml",
    "amq start amq.toml -o lockKeepAlivePeriod=5s -o log.logLevel=debug",
    "amq start --store 'postgresql://amq@db/amq?sslmode=verify-full' --name a",
    "amq start --store 'replica:///var/lib/amq?group=fish&coordinator=etcd://x,y,z&listen=a:61620' --name a",
    "AMQ_STORE=/mnt/shared/amq amq start",
    "amq start --cluster /mnt/shared/cluster --name a --transport auto://0.0.0.0:61616",
    "amq start --cluster /mnt/shared/cluster --name c --scale-down s3 --scale-down-to s1",
    "amq start amq.toml --name b -o priority=10 --wait-for-activation",
    "amq start activemq.xml --property activemq.data=/mnt/shared/amq",
)


@click.command(epilog=f"{_EPILOG}\n\n{exits.table()}")
@click.argument("config_file", metavar="[CONFIG]", required=False, type=click.Path())
@click.option(
    "--store",
    metavar="DIR|URL",
    help="Store directory on the shared file system, or the URL of a database: the same for all brokers. Or "
    "replica:///DIR?…, where each broker keeps a copy in its own directory.",
)
@click.option(
    "--cluster",
    metavar="DIR|URL",
    help="Be a node of the cluster in this directory or database: a member of each of its stores (`amq cluster`).",
)
@click.option(
    "--weight",
    metavar="NUMBER",
    type=click.FloatRange(0, WEIGHT_MAX),
    help="With --cluster: the share of the stores that this node should serve, compared with others. Default: 1.",
)
@click.option(
    "--gateways",
    metavar="NUMBER",
    type=click.IntRange(1, GATEWAYS_MAX),
    help="With --cluster: the processes that hold the connections of clients. Default: 2, 1 on a host with one core.",
)
@scale_down_options
@click.option("--member", metavar="STORE", hidden=True, help="For the processes that a node starts.")
@click.option("--gateway", is_flag=True, hidden=True, help="For the processes that a node starts.")
@click.option("--name", metavar="NAME", help="Name of this broker, unique on the store. Default: the host name.")
@click.option(
    "--transport",
    "transports",
    metavar="URL",
    multiple=True,
    help="Where to serve clients while master: stomp://HOST:PORT, with TLS stomp+ssl://HOST:PORT. May be repeated. "
    "Port 0: any free one.",
)
@click.option(
    "-o",
    "--option",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    help="Any option of the configuration, see `amq config show`. May be repeated; wins over file and environment.",
)
@click.option(
    "--wait-for-activation",
    is_flag=True,
    help="Report to the service manager that the broker is ready only once it is master.",
)
@property_option
@click.option("--allow-unsafe-store", is_flag=True, help="Start also on a store that `amq doctor` finds unfit.")
def start(
    config_file: str | None,
    store: str | None,
    cluster: str | None,
    weight: float | None,
    gateways: int | None,
    scale_down: ScaleDown | None,
    member: str | None,
    gateway: bool,
    name: str | None,
    transports: tuple[str, ...],
    options: tuple[str, ...],
    properties: tuple[str, ...],
    wait_for_activation: bool,
    allow_unsafe_store: bool,
) -> None:
    """Run a broker in the foreground.

    All brokers on one store form a group. The broker that gets the lock is the master and serves clients. The others
    are slaves and take over when it goes. The broker logs to stderr. It refuses a store on which two brokers could be
    master, or none (exit code 4), with the reason and the cure; `amq doctor` tells more.

    CONFIG is a TOML file, or the configuration of ActiveMQ or Artemis (activemq.xml, broker.xml). The log then warns of
    each part that amq does not support; `amq config import` shows the whole report.

    SIGTERM or SIGINT: commit what came in, hand the store over, exit. A second signal ends the process at once, as
    safely as any crash does. SIGHUP: read the configuration, the users file, the certificates and the permissions
    again. The broker also watches these files.

    With --cluster this process is a node: it starts a process for each store of the cluster, its member there, and
    gateways, and starts one that ends again. The gateways listen at the ports that the configuration names, and lead
    clients to all stores; the ports of the first store are higher by 1, and so on. The nodes share the stores out
    (`amq cluster status`), so the option priority must not be given.

    Under systemd (Type=notify) it reports which role it has, and that it is
    ready: as soon as it competes for the store, as slave or master, or with --wait-for-activation when it is master.
    """
    if wait_for_activation:
        options = (*options, "waitForActivation=true")
    given = properties_of(properties)
    if cluster is not None and store is not None:
        raise click.UsageError("give one of --store and --cluster")
    if cluster is None and (weight, gateways, member, scale_down) != (None, None, None, None):
        raise click.UsageError(
            "--weight, --gateways and --scale-down are for a node of a cluster: give --cluster DIR, too"
        )
    if cluster is not None and wait_for_activation:
        raise click.UsageError("--wait-for-activation: a node of a cluster is never master of all its stores")

    def read(at: str | None = store) -> BrokerConfig:
        return load(
            config_file,
            os.environ,
            options,
            store=at,
            name=name,
            transports=transports,
            allow_unsafe_store=allow_unsafe_store or None,
            require_store=True,
            properties=given,
            read_foreign=read_foreign,
        )

    if cluster is not None and member is None and not gateway:
        start_cluster.run(cluster, read, 1.0 if weight is None else weight, gateways, scale_down)
        return
    if cluster is not None and member is not None:
        read = partial(start_cluster.member_config, cluster, member, read)
    elif cluster is not None:
        read = partial(read, cluster)
    leash = None if cluster is None else start_cluster.leash()
    config = read()
    configure_log = partial(logs.configure, store=member or "")
    configure_log(config)
    process.tune()
    files = process.raise_file_limit()
    _log.info("starting", version=amq.__version__, pid=os.getpid(), store=config.store, config=config_file or "")
    for warning in config.warnings:
        _log.warning(warning)
    if told := files_warning(config.max_connections, files):
        _log.warning(told)
    failure = _too_few(files) or (None if gateway else store_check.refusal(config))
    if failure is None:
        readers = Readers(
            lambda file: read_users(file, config_file, given),
            lambda file, generation: read_permissions(file, config_file, given, generation),
        )
        source = Source(read, config_file or "")
        service: Service
        if cluster is not None and gateway:
            service = start_cluster.gateway(cluster, config, source, readers, configure_log)
        else:
            service = start_cluster.member(cluster, config, source, readers, configure_log)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            failure = runner.run(service.until_stopped(leash))
    if failure is not None:
        _end(failure)
    _log.info("stopped", exit_code=0)


def _end(failure: AmqError) -> NoReturn:
    """End this process with the exit code of `failure`. A process that has replaced itself becomes another one instead,
    where the store may be usable again."""
    if failure.code in _MAY_PASS and process.is_replacement():
        _log.warning("the store cannot be used yet: starting anew", reason=exits.told(failure), pause_s=process.AGAIN_S)
        time.sleep(process.AGAIN_S)  # SIGTERM ends it
        process.replace_process()
    code = exits.exit_code(failure)
    _log.error("stopped", reason=exits.told(failure), code=failure.code, exit_code=code)
    raise click.exceptions.Exit(code)


def _too_few(files: int) -> AmqError | None:
    if files >= FILES_MIN:
        return None
    return ConfigError(
        f"this process may open {files} files, a broker needs at least {FILES_MIN}: raise `ulimit -n` "
        "(LimitNOFILE of a service)",
        code="FILES_LIMIT",
    )
