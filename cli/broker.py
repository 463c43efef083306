"""`amq topics`, `subscriptions`, `connections`, `consumers`, `message`, `broker`: what else an operator sees of a
broker and does with it, through its management socket."""

from __future__ import annotations

import time
from typing import Any

import click

from amq.cli.management import (
    asks_broker,
    limit_option,
    report,
    show,
    size,
    some,
    texts,
    watch_option,
)
from amq.cli.options import confirm, store_of_group_option, valued, yes_option
from amq.cli.orders import WAIT_S, OrderError, hand_over
from amq.cli.output import examples, json_option, print_json, print_table, size_text
from amq.cli.queues import print_message
from amq.cli.store import read_status
from amq.core.errors import CommandError
from amq.management.client import Manager, part
from amq.management.routes import NO_CLIENT

_pattern = click.argument("pattern", metavar="[PATTERN]", default="")
_id = click.argument("id", metavar="ID")


@click.command(epilog=examples("amq topics --store /mnt/shared/amq", "amq topics 'prices.*' --json"))
@_pattern
@limit_option
@watch_option
@asks_broker
@json_option
def topics(client: Manager, pattern: str, limit: int, watch: bool, as_json: bool) -> None:
    """Show topics in use and their consumers."""
    columns = texts(
        ("NAME", "name"), ("CONSUMERS", "consumers"), ("DURABLE", "durable_subscriptions"), ("ENQUEUED", "enqueued")
    )
    show(lambda: some(client, "/topics", limit, name=pattern), columns, as_json, watch, limit)


@click.command(epilog=examples("amq consumers --store /mnt/shared/amq", "amq consumers --json"))
@limit_option
@watch_option
@asks_broker
@json_option
def consumers(client: Manager, limit: int, watch: bool, as_json: bool) -> None:
    """Show consumers: what each takes, and how much it has not acknowledged."""
    columns = texts(
        ("DESTINATION", "destination"),
        ("USER", "user"),
        ("CLIENT ID", "client_id"),
        ("IN FLIGHT", "in_flight"),
        ("PREFETCH", "prefetch"),
        ("CONNECTION", "connection"),
        ("SELECTOR", "selector"),
    )
    show(lambda: some(client, "/consumers", limit), columns, as_json, watch, limit)


@click.group(epilog=examples("amq subscriptions list", "amq subscriptions delete audit --client reports --yes"))
def subscriptions() -> None:
    """Show or delete durable subscriptions."""


@subscriptions.command("list", epilog=examples("amq subscriptions list --store /mnt/shared/amq"))
@_pattern
@limit_option
@asks_broker
@json_option
def list_subscriptions(client: Manager, pattern: str, limit: int, as_json: bool) -> None:
    """Show durable subscriptions, and how much waits for each."""
    columns = [
        *texts(("NAME", "name"), ("CLIENT ID", "client_id"), ("MESSAGES", "messages"), ("CONSUMERS", "consumers")),
        ("SIZE", size("bytes")),
        *texts(("TOPICS", "topics"), ("SELECTOR", "selector"), ("USER", "user")),
    ]
    show(lambda: some(client, "/subscriptions", limit, name=pattern), columns, as_json, False, limit)


@subscriptions.command("delete", epilog=examples("amq subscriptions delete audit --client reports --yes"))
@click.argument("name", metavar="NAME")
@click.option(
    "--client", "client_id", metavar="ID", default="", help="The client id of the subscription. Default: it has none."
)
@click.option(
    "--user", metavar="NAME", help="The user to whom it belongs. Needed only where several have one of that name."
)
@yes_option
@asks_broker
@json_option
def delete_subscription(client: Manager, name: str, client_id: str, user: str | None, yes: bool, as_json: bool) -> None:
    """Delete a durable subscription that nobody uses, with the messages that wait for it."""
    confirm(yes, f"Delete the durable subscription {name} and what waits for it for good?")
    asked = {} if user is None else {"user": user}
    found = client.delete(f"/subscriptions/{part(client_id or NO_CLIENT)}/{part(name)}", **asked)
    report(found, f"{name} deleted", as_json)


@click.group(epilog=examples("amq connections list", "amq connections close 1-17 --yes"))
def connections() -> None:
    """Show or close the connections of clients."""


@connections.command("list", epilog=examples("amq connections list --store /mnt/shared/amq"))
@limit_option
@watch_option
@asks_broker
@json_option
def list_connections(client: Manager, limit: int, watch: bool, as_json: bool) -> None:
    """Show connections. SLOW: it does not read; BLOCKED: its sends wait for room."""
    columns = [
        *texts(("ID", "name"), ("ADDRESS", "address"), ("PROTOCOL", "protocol"), ("USER", "user")),
        *texts(("CLIENT ID", "client_id"), ("CONSUMERS", "consumers"), ("PRODUCERS", "producers")),
        ("STATE", lambda row: "slow" if row["slow"] else "blocked" if row["blocked"] else "ok"),
    ]
    show(lambda: some(client, "/connections", limit), columns, as_json, watch, limit)


@connections.command("close", epilog=examples("amq connections close 1-17 --yes --store /mnt/shared/amq"))
@_id
@yes_option
@asks_broker
@json_option
def close_connection(client: Manager, id: str, yes: bool, as_json: bool) -> None:
    """Close a connection. The messages that it held go back to the queues; its client may connect again."""
    confirm(yes, f"Close the connection {id}?")
    found = client.delete(f"/connections/{part(id)}")
    report(found, f"{id} closed", as_json)


@click.group(epilog=examples("amq message show ID:5f1d3c2ab901-17592186044417", "amq message delete ID --yes"))
def message() -> None:
    """Show, retry or delete one message, wherever it waits."""


@message.command("show", epilog=examples("amq message show ID:5f1d3c2ab901-17592186044417 --json"))
@_id
@asks_broker
@json_option
def show_message(client: Manager, id: str, as_json: bool) -> None:
    """Show a message with headers and body."""
    row = client.get(f"/queues/{part(_queue_of(client, id))}/messages/{part(id)}")
    print_message(row, as_json)


@message.command("delete", epilog=examples("amq message delete ID:5f1d3c2ab901-17592186044417 --yes"))
@_id
@yes_option
@asks_broker
@json_option
def delete_message(client: Manager, id: str, yes: bool, as_json: bool) -> None:
    """Delete a message for good, unless a consumer has it."""
    name = _queue_of(client, id)
    confirm(yes, f"Delete {id} of {name} for good?")
    found = client.delete(f"/queues/{part(name)}/messages/{part(id)}")
    report({**found, "queue": name}, f"{id} deleted from {name}", as_json)


@message.command("retry", epilog=examples("amq message retry ID:5f1d3c2ab901-17592186044417"))
@_id
@asks_broker
@json_option
def retry_message(client: Manager, id: str, as_json: bool) -> None:
    """Send a dead letter back to the queue for which it was meant."""
    name = _queue_of(client, id)
    found = client.post(f"/queues/{part(name)}/retry", {"ids": [id]})
    if not found["count"]:
        raise CommandError(f"{id} in {name} is not a dead letter of a queue, or a consumer has it", code="NOT_FOUND")
    report({**found, "queue": name}, f"{id} sent back from {name}", as_json)


def _queue_of(client: Manager, id: str) -> str:
    return str(client.get(f"/messages/{part(id)}")["queue"])


@click.group(epilog=examples("amq broker status --store /mnt/amq", "amq broker drain --store /mnt/amq --name a"))
def broker() -> None:
    """See one broker, or take it out of service."""


@broker.command("status", epilog=examples("amq broker status --store /mnt/amq --name b", "amq broker status --json"))
@asks_broker
@json_option
def status(client: Manager, as_json: bool) -> None:
    """Show the role of a broker and its figures. `amq status` shows the group, also where no broker answers."""
    found = client.get("/broker")
    if found["role"] == "master":
        found = {**found, **client.get("/totals")}
    if as_json:
        print_json(found)
        return
    print_table(("FIGURE", "VALUE"), [(key.replace("_", " "), _told(key, value)) for key, value in found.items()])


def _told(key: str, value: Any) -> str:
    if key.endswith("_bytes"):
        return size_text(value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


@broker.command(
    "drain",
    epilog=examples("amq broker drain --store /mnt/amq --name a", "amq broker drain --store /mnt/amq --name a --to b"),
)
@store_of_group_option
@click.option("--name", metavar="NAME", required=True, help="The broker that is to be drained.")
@click.option("--to", metavar="NAME", default="", help="The broker that shall be master. Default: the best slave.")
@valued(
    "--wait", "wait_s", type=click.FloatRange(0.1, 86_400), default=WAIT_S, help="How long to wait until it is done."
)
@json_option
def drain(store: str, name: str, to: str, wait_s: float, as_json: bool) -> None:
    """Take a broker out of service before it is stopped: a master hands over, and its clients go to the new one.

    Exit code 0: it is a slave, or does not run. 7: no slave can take over, with the reason. 1: not done in time.
    """
    began = time.monotonic()
    seen = read_status(store)
    if to == name:
        raise OrderError(f"--to {to}: that is the broker to be drained; name another one")
    if seen.master is None or seen.master.name != name:
        facts = {"name": name, "drained": True, "master": seen.master.name if seen.master is not None else None}
        report(facts, f"{name} serves no clients", as_json)
        return
    master, _ = hand_over(store, to, wait_s)
    seconds = round(time.monotonic() - began, 3)
    facts = {"name": name, "drained": True, "master": master, "seconds": seconds}
    report(facts, f"{name} serves no clients: {master} is master, after {seconds:.1f} s", as_json)
