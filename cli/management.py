"""Shared by the commands of operators: which broker they ask, how they print lists, how they ask before a change."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from amq.cli import exits, options
from amq.cli.output import console, print_json, print_table, size_text
from amq.cli.store import read_status
from amq.core.errors import AmqError, TransportError
from amq.management.client import ManagementClient, Manager
from amq.management.listing import Row
from amq.store.name import real_name
from amq.store.presence import BrokerPresence
from amq.store.status import StoreStatus

LIST_LIMIT: Final = 1000
WATCH_S: Final = 2.0
OPERATION_S: Final = 3600.0
READ_S: Final = 30.0
PROBE_S: Final = 5.0  # a broker that does not answer for so long hangs
SUCCESSOR_S: Final = 20.0  # how long a command waits for the next master after that; hungMasterTimeout is 10 s
LOOK_AGAIN_S: Final = 0.2
NAME_COLUMNS_MIN: Final = 8
_Command = TypeVar("_Command", bound=Callable[..., Any])
Columns = Sequence[tuple[str, Callable[[Row], object]]]  # titles, and the cell of a row


class NoBrokerError(AmqError):
    """There is no broker that could be asked from here."""

    code = "TRANSPORT_UNAVAILABLE"


def asks_broker(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command with `broker_options`. It gets a client of the broker, or of the cluster, that they mean as `client`,
    closed behind it. Where stores of a cluster have not answered, the command fails at its end."""

    @functools.wraps(command)
    def ask(*, store: str, url: str, broker: str, cluster: str, **more: Any) -> None:
        with open_chosen(*chosen(store, url, cluster), broker) as client:
            command(client=client, **more)
            check_complete(client)

    return broker_options(ask)


def check_complete(client: Manager) -> None:
    """End with an error that names the stores of a cluster that have not answered."""
    if client.missing:
        lines = [f"store {each['store']} is not in this answer: {each['detail']}" for each in client.missing]
        exits.fail("\n".join(lines), exits.TRANSPORT, "STORES_MISSING")


def chosen(store: str, url: str, cluster: str) -> tuple[str, str, str]:
    """The options that count: what is on the command line comes before the environment, then --url before --store
    before --cluster. A --store that is a name is one of the cluster."""
    context = click.get_current_context()
    given = [
        name
        for name in ("url", "store", "cluster")
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if "url" in given and "cluster" in given:
        raise click.UsageError("give one of --url and --cluster")
    if cluster and store and "/" not in store and (not url or "cluster" in given):
        return store, "", cluster
    if url and ("url" in given or not given):
        return store, url, ""
    if store and ("store" in given or "cluster" not in given):
        return store, "", ""
    return ("", "", cluster) if cluster else (store, url, "")


def place_of(store: str, cluster: str) -> str:
    """Path or URL of --store: where that is the name of a store of the cluster, the place of that one. Raises
    AmqError."""
    if not (store and cluster):
        return store
    from amq.cluster.directory import Cluster

    return Cluster(cluster).location(store)


cluster_of_brokers_option = click.option(
    "--cluster",
    metavar="DIR",
    envvar="AMQ_CLUSTER",
    default="",
    help="All stores of this cluster, from any host that has its directory; or $AMQ_CLUSTER. With --store NAME: one.",
)


def broker_options(command: _Command) -> _Command:
    """--store, --name, --url, --cluster"""
    for option in (
        cluster_of_brokers_option,
        click.option("--name", "broker", metavar="NAME", default="", help="Ask this broker. Default: the master."),
        click.option(
            "--url",
            metavar="URL",
            envvar="AMQ_CONSOLE_URL",
            default="",
            help="Ask through a console, http(s)://[USER:PASSWORD@]HOST:PORT; or $AMQ_CONSOLE_URL.",
        ),
        click.option(
            "--store",
            metavar="DIR|URL",
            envvar="AMQ_STORE",
            default="",
            help="Store of a group with a broker on this host; or $AMQ_STORE. With --url: NAME of one of its stores.",
        ),
    ):
        command = option(command)
    return command


limit_option = options.limit_option(LIST_LIMIT)
watch_option = click.option("--watch", is_flag=True, help=f"Show it again every {WATCH_S:g} seconds, until Ctrl-C.")


def open_chosen(store: str, url: str, cluster: str, broker: str) -> Manager:
    """Return a client of what the options mean, as `chosen` has them. Raises AmqError."""
    if not cluster:
        return open_working_client(store, url, broker)
    if broker:
        raise click.UsageError("--cluster asks the masters: give no --name")
    from amq.cli.whole import WholeClient

    return WholeClient(cluster, store, READ_S, OPERATION_S)


def open_client(store: str, url: str, broker: str, timeout_s: float = READ_S) -> ManagementClient:
    """Return a client of the broker that the options name. Raises AmqError that says where the command can be run."""
    if url:
        if not url.startswith(("http://", "https://")):
            raise click.BadParameter("write http://HOST:PORT or https://HOST:PORT, of a console", param_hint="--url")
        name = store if "/" not in store else ""  # AMQ_STORE is a directory, or a URL
        return ManagementClient(url, timeout_s, operation_s=OPERATION_S, store=name)
    if not store:
        raise click.UsageError("give --store DIR of a group with a broker on this host, or --url of a console")
    where = _socket_of(_wanted(read_status(store), store, broker))
    return ManagementClient(where, timeout_s, operation_s=OPERATION_S, store=real_name(store))


def open_working_client(store: str, url: str, broker: str) -> ManagementClient:
    """Return a client of a broker that answers. A master that hangs is replaced by the group after a while: without
    the name of a broker this function waits for the next one, `SUCCESSOR_S` at most. Raises AmqError.
    """
    until = time.monotonic() + PROBE_S + SUCCESSOR_S
    hangs = ""  # the socket that does not answer
    while True:
        try:
            client = open_client(store, url, broker)
        except NoBrokerError:
            if not hangs or time.monotonic() > until:
                raise
            time.sleep(LOOK_AGAIN_S)
            continue
        if url or client.where == hangs:
            if url or time.monotonic() > until:
                return client  # the command itself says what is wrong
            client.close()
            time.sleep(LOOK_AGAIN_S)
            continue
        try:
            with ManagementClient(client.where, PROBE_S, store=real_name(store)) as probe:
                probe.get("/broker")
        except TransportError as error:
            client.close()
            if broker:
                raise
            click.echo(f"amq: {error.description}; waiting for another master for {SUCCESSOR_S:g} s", err=True)
            hangs = client.where
        else:
            return client


def _wanted(seen: StoreStatus, store: str, name: str) -> BrokerPresence:
    if name:
        found = next((each for each in seen.brokers if each.name == name), None)
        if found is None:
            names = ", ".join(each.name for each in seen.brokers) or "none"
            raise NoBrokerError(f"no broker {name!r} runs on {store}; running: {names}", code="BROKER_UNKNOWN")
        return found
    if seen.master is None:
        running = ", ".join(each.name for each in seen.brokers) or "none"
        raise NoBrokerError(f"{store} has no master now (running: {running}): see `amq status --store {store}`")
    return seen.master


def _socket_of(broker: BrokerPresence) -> str:
    host = broker.owner.host if broker.owner is not None else "?"
    if not broker.management:
        raise NoBrokerError(f"{broker.name} on host {host} has no management socket: see managementSocket and its log")
    if not os.path.exists(broker.management):
        raise NoBrokerError(
            f"{broker.name} runs on host {host}: run this command there, or give --url of a console there "
            f"(its socket {broker.management} is not on this host)"
        )
    return broker.management


def show(
    rows: Callable[[], list[Row]], columns: Columns, as_json: bool, watch: bool = False, limit: int | None = None
) -> None:
    """Print rows as JSON or as a table; with `watch` again and again. Rows of a cluster say where they come from; those
    with a `detail` are about a store that has not answered."""
    while True:
        found = rows()
        missing = [row for row in found if "code" in row and "detail" in row]
        found = found[: len(found) - len(missing)]
        more = limit is not None and len(found) > limit
        found = found[:limit] if limit is not None else found
        if as_json:
            print_json([*found, *missing], None if watch else 2)
        else:
            if watch and console().is_terminal:
                console().clear()
            has_place = any("node" in row for row in (*found, *missing))
            shown = [*columns[:1], *_PLACE, *columns[1:]] if has_place else columns
            titles, table = [title for title, _ in shown], [[cell(row) for _, cell in shown] for row in found]
            blank = [""] * (len(shown) - 1 - len(_PLACE))
            table += [[f"({row['detail']})", *(cell(row) for _, cell in _PLACE), *blank] for row in missing]
            print_table(titles, _narrowed(titles, table, console().width) if watch else table)
            if more:
                click.echo(f"and more: these are the first {limit}, see --limit", err=True)
        if not watch:
            return
        time.sleep(WATCH_S)


def _narrowed(titles: Sequence[str], rows: list[list[object]], columns: int) -> list[list[object]]:
    """Shorten the names in the first column as far as it takes to show one line for each row on a screen of `columns`
    characters."""

    def width(value: object) -> int:
        return len(f"{value:,}" if isinstance(value, int) else str(value))

    others = sum(2 + max([len(title), *(width(row[at]) for row in rows)]) for at, title in enumerate(titles) if at)
    room = max(NAME_COLUMNS_MIN, columns - others)
    return [[name if len(name := str(row[0])) <= room else f"{name[: room - 1]}…", *row[1:]] for row in rows]


def some(client: Manager, path: str, limit: int, **query: object) -> list[Row]:
    """One row more than `limit`, where there are more; then one for each store of a cluster that is missing."""
    return [*client.all(path, limit + 1, **query), *client.missing]


def report(found: Row, text: str, as_json: bool) -> None:
    """The result of a change."""
    if as_json:
        print_json(found)
    else:
        click.echo(text)


def field(name: str) -> Callable[[Row], object]:
    return lambda row: row[name]


def size(name: str) -> Callable[[Row], object]:
    return lambda row: size_text(row[name])


def texts(*pairs: tuple[str, str]) -> Columns:
    """Columns that show a field as it is."""
    return [(title, field(name)) for title, name in pairs]


def with_marks(row: Row) -> str:
    """The name of a queue, marked where it is paused."""
    return f"{row['name']} (paused)" if row["paused"] else str(row["name"])


_PLACE: Final[Columns] = texts(("STORE", "store"), ("NODE", "node"))


def joined(parts: Iterable[Columns]) -> Columns:
    return [column for part in parts for column in part]
