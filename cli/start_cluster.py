"""`amq start --cluster`: the process of a node, its gateways, and the configuration of its members."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import BinaryIO

import click
import structlog

import amq
from amq.cli import logs
from amq.cluster.directory import Cluster, ClusterNode
from amq.cluster.placement import Naming
from amq.cluster.scaling import ScaleDown
from amq.cluster.supervisor import SOCKETS, Program, Supervisor
from amq.config import BrokerConfig
from amq.config.addresses import of_broker, ports, shifted
from amq.config.schema import OPTIONS
from amq.config.transport_url import TransportUrl, parse_transport_url, reachable
from amq.core.errors import ConfigError, TransportError
from amq.gateway.members import member_ways
from amq.gateway.process import Gateway
from amq.management.probes import Health
from amq.node import process
from amq.node.management import AUTO, NONE, make_directory, socket_path
from amq.node.node import Node, store_names
from amq.node.probes import OwnProbes
from amq.node.reception import LISTEN_PATIENCE_S, LISTEN_RETRY_S
from amq.node.service import Readers, Source
from amq.security.credentials import link_context
from amq.store.board import Seat
from amq.store.name import at_node
from amq.transports.handshakes import listening_sockets
from amq.transports.probe import refusals

SECRET_VARIABLE = "AMQ_LINK_SECRET_FILE"
GATEWAYS = 2  # where nobody says more
_log = structlog.get_logger("amq.cluster")


def run(
    directory: str,
    read: Callable[[str], BrokerConfig],
    weight: float,
    gateways: int | None,
    scale_down: ScaleDown | None,
) -> None:
    """Be a node until a signal comes. `read(store)` = the configuration of a member, but for what belongs to the
    cluster; `gateways` = how many there are, None = as many as are good for this host. Raises AmqError; the command's
    exit code is that of the process that failed to stop."""
    config = read(directory)
    logs.configure(config)
    process.raise_file_limit()
    if config.sources.get("priority", "default") != "default":
        raise ConfigError("priority: a cluster shares its stores out: give --weight, or drain a node")
    cluster = Cluster(directory)
    secret = cluster.secret()
    table = cluster.table()
    _check_ports(config, len(table.placement.places))
    _check_naming(config, table.placement.naming)
    count = gateways or min(GATEWAYS, len(os.sched_getaffinity(0)))
    began_ms = time.time_ns() // 1_000_000
    node = ClusterNode(
        config.name,
        True,
        weight,
        host=socket.gethostname(),
        pid=os.getpid(),
        began_ms=began_ms,
        scale_down=scale_down,
    )
    if not config.failover_on_shutdown:
        _log.warning("failoverOnShutdown = false: when this node stops, no other node takes over what it serves")
    gone = [] if scale_down is None else scale_down.check(table.stores)
    seat = cluster.join(node.name, node.weight, node.host, node.pid, scale_down)
    if gone:
        _log.warning("--scale-down names stores that the cluster does not have: they may have left it", stores=gone)
    _log.info("node starting", version=amq.__version__, pid=os.getpid(), cluster=cluster.directory, weight=weight)
    try:
        with _own_directory(config) as place:
            environment = _with_secret(secret, place, config, os.environ)
            code = asyncio.run(_be_node(cluster, config, node, seat, place, count, environment))
    finally:
        seat.close()
    _log.info("stopped", exit_code=code)
    if code:
        raise click.exceptions.Exit(code)


async def _be_node(
    cluster: Cluster,
    config: BrokerConfig,
    node: ClusterNode,
    seat: Seat,
    place: str,
    gateways: int,
    environment: Mapping[str, str],
) -> int:
    shares = await _open_ports(config, gateways)
    urls = [
        reachable(str(TransportUrl(parse_transport_url(text).scheme, *each.getsockname()[:2])), node.host)
        for text, sockets in zip(config.transports, shares[0], strict=True)
        for each in sockets
    ]
    node = dataclasses.replace(node, addresses=of_broker(config, urls, node.host))
    programs = [Program([*_words(), "--gateway"], sockets) for sockets in shares]
    supervisor = Supervisor(cluster, node, seat, place, _member_command, environment, programs)
    probes = OwnProbes(config.probe_listen, lambda: Health("master" if supervisor.is_serving else "starting"))
    await probes.start()
    _log.info("the ports are open", urls=urls, gateways=gateways)
    try:
        return await supervisor.until_stopped()
    finally:
        await probes.close()


async def _open_ports(config: BrokerConfig, gateways: int) -> list[list[list[socket.socket]]]:
    """For each gateway the sockets of each transport. Raises TransportError."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + LISTEN_PATIENCE_S
    while refused := await loop.run_in_executor(None, refusals, config.transports):
        if loop.time() >= until_s:  # until then a node that was killed may have left them
            raise TransportError(
                f"{refused[0]}; another program has the port, perhaps another node on this host, or the address is not "
                "of this host"
            )
        await asyncio.sleep(LISTEN_RETRY_S)
    shares: list[list[list[socket.socket]]] = [[] for _ in range(gateways)]
    for text in config.transports:
        url = parse_transport_url(text)
        shares[0].append(await listening_sockets(loop, url.host, url.port, shares=True))
        for share in shares[1:]:
            ports = [await listening_sockets(loop, *each.getsockname()[:2], shares=True) for each in shares[0][-1]]
            share.append([each for sockets in ports for each in sockets])
    return shares


def gateway(
    directory: str,
    config: BrokerConfig,
    source: Source,
    readers: Readers,
    configure_log: Callable[[BrokerConfig], None],
) -> Gateway:
    """A gateway of the node that has started this process. Raises AmqError."""
    try:
        numbers = json.loads(os.environ[SOCKETS])
        sockets = [[socket.socket(fileno=number) for number in each] for each in numbers]
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise ConfigError(f"--gateway is for the processes that a node starts ({error})") from error
    return Gateway(config, source, readers, Cluster(directory), sockets, configure_log)


def member(
    directory: str | None,
    config: BrokerConfig,
    source: Source,
    readers: Readers,
    configure_log: Callable[[BrokerConfig], None],
) -> Node:
    """A broker, with ways to the masters of the other stores of its cluster, or to one into which its store is merged.
    Raises AmqError."""
    (name,) = store_names([config])
    if directory is not None:
        doors = {"peers": member_ways(Cluster(directory).location, lambda: link_context(config))}
    else:
        doors = {"merges": member_ways(lambda place: place, lambda: link_context(config))}
    return Node([config], [source], readers, environment=os.environ, configure_log=configure_log, doors={name: doors})


def member_config(directory: str, store: str, read: Callable[[str], BrokerConfig]) -> BrokerConfig:
    """The configuration of the member of `store`: where it is, its share of the ports, and its priority now."""
    cluster = Cluster(directory)
    table = cluster.table()
    config = read(location := cluster.location(store, table))
    if (own := at_node(location, config.name, socket.gethostname())) != location:
        config = read(own)
    _check_naming(config, table.placement.naming)
    priority = cluster.priorities(config.name, table).get(store, 0)
    first = parse_transport_url(config.transports[0])
    own_link = str(dataclasses.replace(first, scheme="ssl" if config.certificate else "tcp", port=0))
    config = shifted(config, table.placement.places.index(store) + 1)
    return dataclasses.replace(
        config,
        priority=priority,
        link_listen=config.link_listen or own_link,
        placed={
            "cluster": cluster.id,
            "store": store,
            "number": table.number,
            "placement": table.placement.to_json(),
        },
        management_socket=own if (own := config.management_socket) in (NONE, AUTO) else f"{own}.{store}",
    )


def _with_secret(secret: bytes, place: str, config: BrokerConfig, environment: Mapping[str, str]) -> Mapping[str, str]:
    """The environment of members: it leads to a copy of the cluster's secret, which this node keeps in `place` as long
    as it runs, unless the configuration has another one."""
    if config.link_secret_file:
        return environment
    path = os.path.join(place, "secret")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(secret)
    return {**environment, SECRET_VARIABLE: path}


@contextmanager
def _own_directory(config: BrokerConfig) -> Iterator[str]:
    """A directory of this node alone, for the sockets of its members. It removes what a node left there that died."""
    path = socket_path(config, config.name, os.environ)
    if not path:
        with tempfile.TemporaryDirectory(prefix="amq-node-") as made:
            yield made
        return
    place = f"{path.removesuffix('.sock')}-node"
    if config.management_socket == AUTO:
        make_directory(os.path.dirname(place))
    shutil.rmtree(place, ignore_errors=True)
    make_directory(place)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _check_ports(config: BrokerConfig, stores: int) -> None:
    """Raises ConfigError where two processes of this node would listen at the same port."""
    taken: dict[int, str] = {}
    for index in range(stores + 1):
        whose = f"store number {index}" if index else "the gateways"
        for port in ports(shifted(config, index)):
            if port in taken:
                raise ConfigError(
                    f"port {port} would be that of {taken[port]} and of {whose}: the ports of each store are higher by "
                    "its number; give one --transport, such as auto://0.0.0.0:61616, or ports that are at least "
                    f"{stores + 1} apart"
                )
            taken[port] = whose


def _check_naming(config: BrokerConfig, naming: Naming) -> None:
    """Raises ConfigError where the options of this node would give names another meaning than the cluster's table."""
    for each in dataclasses.fields(Naming):
        ours, theirs = getattr(config, each.name), getattr(naming, each.name)
        if ours != theirs:
            key = next(option.key for option in OPTIONS if option.attribute == each.name)
            raise ConfigError(
                f"{key}={ours!r}: the cluster was made with {theirs!r}, and places destinations by it: set that, or "
                f"give `amq cluster init` the option"
            )


def leash() -> BinaryIO:
    """The standard input of a member, which ends when its node stops or dies."""
    return os.fdopen(sys.stdin.fileno(), "rb", buffering=0, closefd=False)


def _member_command(store: str) -> list[str]:
    return [*_words(), "--member", store]


def _words() -> list[str]:
    """This command, as a process of the node."""
    return [sys.executable, "-P", "-m", "amq", *sys.argv[1:]]
