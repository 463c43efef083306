"""`amq start --cluster`: the process of a node, and the configuration of its members."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

import click
import structlog

import amq
from amq.cli import logs
from amq.cluster.directory import Cluster
from amq.cluster.supervisor import Supervisor
from amq.config import BrokerConfig
from amq.config.addresses import ports, shifted
from amq.core.errors import ConfigError
from amq.node import process
from amq.node.management import AUTO, NONE, make_directory, socket_path

_log = structlog.get_logger("amq.cluster")


def run(directory: str, read: Callable[[str], BrokerConfig], weight: float) -> None:
    """Be a node until a signal comes. `read(store)` = the configuration of a member, but for what belongs to the
    cluster. Raises AmqError; the command's exit code is that of the member that failed to stop."""
    config = read(directory)
    logs.configure(config)
    process.raise_file_limit()
    if config.sources.get("priority", "default") != "default":
        raise ConfigError("priority: a cluster shares its stores out by itself: give --weight, or drain a node")
    cluster = Cluster(directory)
    _check_ports(config, len(cluster.table().stores))
    seat = cluster.join(config.name, weight, socket.gethostname(), os.getpid())
    _log.info("node starting", version=amq.__version__, pid=os.getpid(), cluster=cluster.directory, weight=weight)
    try:
        with _own_directory(config) as place:
            code = asyncio.run(
                Supervisor(cluster, config.name, seat, place, _member_command, os.environ).until_stopped()
            )
    finally:
        seat.close()
    _log.info("stopped", exit_code=code)
    if code:
        raise click.exceptions.Exit(code)


def member_config(directory: str, store: str, read: Callable[[str], BrokerConfig]) -> BrokerConfig:
    """The configuration of the member of `store`: where it is, its share of the ports, and its priority now."""
    cluster = Cluster(directory)
    table = cluster.table()
    config = read(cluster.location(store, table))
    priority = cluster.priorities(config.name).get(store, 0)
    return dataclasses.replace(
        shifted(config, list(table.stores).index(store)),
        priority=priority,
        management_socket=own if (own := config.management_socket) in (NONE, AUTO) else f"{own}.{store}",
    )


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
    """Raises ConfigError where two members of this node would listen at the same port."""
    taken: dict[int, int] = {}
    for index in range(stores):
        for port in ports(shifted(config, index)):
            if port in taken:
                raise ConfigError(
                    f"port {port} would be that of store number {taken[port] + 1} and of number {index + 1}: the ports "
                    "of each store are higher by one than those of the store before; give one --transport, such as "
                    f"auto://0.0.0.0:61616, or ports that are at least {stores} apart"
                )
            taken[port] = index


def leash() -> BinaryIO:
    """The standard input of a member, which ends when its node stops or dies."""
    return os.fdopen(sys.stdin.fileno(), "rb", buffering=0, closefd=False)


def _member_command(store: str) -> list[str]:
    return [sys.executable, "-P", "-m", "amq", *sys.argv[1:], "--member", store]
