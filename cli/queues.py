"""`amq queues` and `amq queue`: see queues, and change what is in them, through the management socket of a broker."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from amq.cli import options
from amq.cli.management import (
    asks_broker,
    limit_option,
    report,
    show,
    size,
    some,
    texts,
    watch_option,
    with_marks,
)
from amq.cli.options import confirm, most_option, valued, yes_option
from amq.cli.output import counted, examples, json_option, print_json, print_table, size_text, wall_text
from amq.management.client import Manager, part
from amq.management.listing import Row

SORTS = {
    "backlog": "-messages",
    "messages": "-messages",
    "consumers": "-consumers",
    "enqueued": "-enqueued",
    "dequeued": "-dequeued",
    "bytes": "-bytes",
    "in-flight": "-in_flight",
    "name": "name",
}
COLUMNS = [
    ("NAME", with_marks),
    *texts(("MESSAGES", "messages"), ("IN FLIGHT", "in_flight"), ("CONSUMERS", "consumers")),
    *texts(("ENQUEUED", "enqueued"), ("DEQUEUED", "dequeued")),
    ("SIZE", size("bytes")),
]
PAGE = 100
BODY_CHARS_SHOWN = 60
_selector = click.option("--selector", metavar="TEXT", default="", help="Only messages that this selector selects.")
_ids = click.option("--id", "ids", metavar="ID", multiple=True, help="Only this message. May be repeated.")
_name = click.argument("name", metavar="NAME")


@click.command(
    epilog=examples(
        "amq queues --store /mnt/shared/amq",
        "amq queues 'orders.*' --sort backlog --watch --store /mnt/shared/amq",
        "amq queues --store /mnt/shared/amq --json | jq '.[] | select(.consumers == 0)'",
    )
)
@click.argument("pattern", metavar="[PATTERN]", default="")
@valued("--sort", type=click.Choice(list(SORTS)), default="name", help="The order of the queues.")
@click.option("--filter", "condition", metavar="TEXT", default="", help="Such as consumers=0,messages>100.")
@limit_option
@watch_option
@asks_broker
@json_option
def queues(
    client: Manager,
    pattern: str,
    sort: str,
    condition: str,
    limit: int,
    watch: bool,
    as_json: bool,
) -> None:
    """Show queues: how much waits in each, and who consumes it.

    PATTERN is a name with * and ?. IN FLIGHT counts messages that consumers have not acknowledged yet. ENQUEUED and
    DEQUEUED begin anew when another broker becomes master.
    """
    show(
        lambda: some(client, "/queues", limit, name=pattern, sort=SORTS[sort], filter=condition),
        COLUMNS,
        as_json,
        watch,
        limit,
    )


@click.group(epilog=examples("amq queue show orders --store /mnt/shared/amq", "amq queue purge orders --yes"))
def queue() -> None:
    """See one queue and its messages; purge, move, copy, pause or delete."""


@queue.command("show", epilog=examples("amq queue show orders --store /mnt/shared/amq"))
@_name
@asks_broker
@json_option
def show_(client: Manager, name: str, as_json: bool) -> None:
    """Show all figures of a queue."""
    row = client.get(f"/queues/{part(bare(name))}")
    if as_json:
        print_json(row)
        return
    told = {**row, "bytes": size_text(row["bytes"]), "memory_bytes": size_text(row["memory_bytes"])}
    told["oldest_ms"] = wall_text(row["oldest_ms"]) if row["oldest_ms"] else "unknown" if row["messages"] else "none"
    told["limit_bytes"] = size_text(row["limit_bytes"]) if row["limit_bytes"] else "none"
    print_table(("FIGURE", "VALUE"), [(key.replace("_", " "), _plain(value)) for key, value in told.items()])


@queue.command(epilog=examples("amq queue why orders --store /mnt/shared/amq"))
@_name
@asks_broker
@json_option
def why(client: Manager, name: str, as_json: bool) -> None:
    """Say why a queue does not drain, as far as its broker can see.

    It looks at the consumers, their selectors and the first 1,000 messages, at limits, and at the disk of the store.
    """
    found = client.get(f"/queues/{part(bare(name))}/hints")
    if as_json:
        print_json(found)
        return
    for hint in found["items"]:
        click.echo(hint["text"])
    if not found["items"]:
        click.echo("nothing to be seen: it drains, or waits for messages")


@queue.command(
    epilog=examples("amq queue browse orders --limit 20", "amq queue browse orders --selector \"n = '5'\" --json")
)
@_name
@_selector
@options.limit_option(PAGE)
@asks_broker
@json_option
def browse(client: Manager, name: str, selector: str, limit: int, as_json: bool) -> None:
    """Show the messages of a queue in the order of delivery. They stay as they are."""
    rows, more = _messages(client, bare(name), selector, limit)
    if as_json:
        print_json(rows)
        return
    print_table(
        ("ID", "PRIORITY", "REDELIVERED", "SIZE", "SENT", "BODY"),
        [
            (
                row["id"],
                row["priority"],
                row["redelivered"],
                size_text(row["bytes"]),
                wall_text(row["timestamp_ms"]),
                preview(row),
            )
            for row in rows
        ],
    )
    if more:
        click.echo(f"and more: these are the first {limit}, see --limit", err=True)


@queue.command(epilog=examples("amq queue peek orders", "amq queue peek orders --json | jq -r .body"))
@_name
@_selector
@asks_broker
@json_option
def peek(client: Manager, name: str, selector: str, as_json: bool) -> None:
    """Show the message that is delivered next, with its headers and body."""
    rows, _ = _messages(client, bare(name), selector, 1)
    if not rows:
        report({}, "no message", as_json)
        return
    row = client.get(f"/queues/{part(bare(name))}/messages/{part(rows[0]['id'])}")
    print_message(row, as_json)


@queue.command(epilog=examples("amq queue export orders >orders.jsonl", "amq queue export orders --selector 'n > 5'"))
@_name
@_selector
@asks_broker
def export(client: Manager, name: str, selector: str) -> None:
    """Write the messages of a queue as lines of JSON. They stay where they are.

    A body that is no text is in `body_base64`. Bodies of more than 1 MiB are cut, and `truncated` is true. `amq journal
    export` writes a whole store, with everything.
    """
    after: str | None = ""
    while after is not None:
        page = client.get(
            f"/queues/{part(bare(name))}/messages", selector=selector, after=after, limit=PAGE, body=1 << 20
        )
        for row in page["items"]:
            if row["truncated"]:
                row = client.get(f"/queues/{part(bare(name))}/messages/{part(row['id'])}")
            sys.stdout.write(json.dumps(row) + "\n")
        after = page["after"]


@queue.command(epilog=examples("amq queue purge orders --yes", "amq queue purge orders --selector \"colour = 'red'\""))
@_name
@_selector
@_ids
@most_option
@yes_option
@asks_broker
@json_option
def purge(
    client: Manager,
    name: str,
    selector: str,
    ids: tuple[str, ...],
    limit: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete messages of a queue for good. Messages that consumers have not acknowledged yet stay with them."""
    path, body = f"/queues/{part(bare(name))}/purge", _selected(selector, ids, limit)
    if not yes:
        confirm(yes, f"Delete {_previewed(client, path, body)} of {bare(name)} for good?")
    found = client.post(path, body)
    report(found, f"{counted(found['count'], 'message')} deleted", as_json)


@queue.command(epilog=examples("amq queue delete orders", "amq queue delete orders --yes --json"))
@_name
@yes_option
@asks_broker
@json_option
def delete(client: Manager, name: str, yes: bool, as_json: bool) -> None:
    """Delete a queue that has no consumers, with its messages. The next message makes it anew."""
    path = f"/queues/{part(bare(name))}"
    if not yes:
        row = client.get(path)
        confirm(yes, f"Delete {bare(name)} and its {counted(row['messages'], 'message')} for good?")
    found = client.delete(path)
    report(found, f"{bare(name)} deleted, with {counted(found['count'], 'message')}", as_json)


@queue.command(
    epilog=examples("amq queue move orders archive", "amq queue move orders archive --selector \"n = '5'\" --yes")
)
@_name
@click.argument("to", metavar="TO")
@_selector
@_ids
@most_option
@yes_option
@asks_broker
@json_option
def move(
    client: Manager,
    name: str,
    to: str,
    selector: str,
    ids: tuple[str, ...],
    limit: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Move messages to the queue TO. Each is at every moment in exactly one of the two."""
    path, body = f"/queues/{part(bare(name))}/move", {**_selected(selector, ids, limit), "to": bare(to)}
    if not yes:
        confirm(yes, f"Move {_previewed(client, path, body)} of {bare(name)} to {bare(to)}?")
    found = client.post(path, body)
    report(found, f"{counted(found['count'], 'message')} moved", as_json)


@queue.command(epilog=examples("amq queue copy orders test.orders --limit 10"))
@_name
@click.argument("to", metavar="TO")
@_selector
@_ids
@most_option
@asks_broker
@json_option
def copy(
    client: Manager,
    name: str,
    to: str,
    selector: str,
    ids: tuple[str, ...],
    limit: int | None,
    as_json: bool,
) -> None:
    """Copy messages to the queue TO as well."""
    body = {**_selected(selector, ids, limit), "to": bare(to)}
    found = client.post(f"/queues/{part(bare(name))}/copy", body)
    report(found, f"{counted(found['count'], 'message')} copied", as_json)


@queue.command(epilog=examples("amq queue pause orders --store /mnt/shared/amq"))
@_name
@asks_broker
@json_option
def pause(client: Manager, name: str, as_json: bool) -> None:
    """Deliver nothing from a queue until `amq queue resume`, or until another broker becomes master."""
    found = client.post(f"/queues/{part(bare(name))}/pause")
    report(found, f"{bare(name)} is paused: its consumers get nothing", as_json)


@queue.command(epilog=examples("amq queue resume orders --store /mnt/shared/amq"))
@_name
@asks_broker
@json_option
def resume(client: Manager, name: str, as_json: bool) -> None:
    """Deliver again from a paused queue."""
    found = client.post(f"/queues/{part(bare(name))}/resume")
    report(found, f"{bare(name)} delivers", as_json)


def _messages(client: Manager, name: str, selector: str, limit: int) -> tuple[list[Row], bool]:
    """The first `limit` messages, and whether there are more."""
    rows: list[Row] = []
    after: str | None = ""
    while after is not None and len(rows) < limit:
        page = client.get(
            f"/queues/{part(name)}/messages", selector=selector, after=after, limit=min(PAGE, limit - len(rows))
        )
        rows += page["items"]
        after = page["after"]
    return rows, after is not None


def _selected(selector: str, ids: tuple[str, ...], limit: int | None) -> dict[str, Any]:
    return {"selector": selector, "ids": list(ids), **({"limit": limit} if limit is not None else {})}


def _previewed(client: Manager, path: str, body: dict[str, Any]) -> str:
    found = client.post(path, {**body, "dry_run": True})
    return f"{'' if found['complete'] else 'at least '}{counted(found['count'], 'message')}"


def print_message(row: Row, as_json: bool) -> None:
    """A whole message."""
    if as_json:
        print_json(row)
        return
    head = [
        (key.replace("_", " "), _plain(value))
        for key, value in row.items()
        if key not in ("properties", "headers", "body", "body_base64")
    ]
    more = {**row.get("headers", {}), **row["properties"]}
    print_table(("HEADER", "VALUE"), [*head, *((key, _plain(value)) for key, value in more.items() if value != "")])
    click.echo()
    click.echo(row["body"] if "body" in row else f"(no text; base64) {row['body_base64']}")


def preview(row: Row) -> str:
    """A body in one short line of a table."""
    if row.get("body") is None:
        return f"({size_text(row['bytes'])}, not text)"
    line = "".join(char if char.isprintable() else " " for char in row["body"][: BODY_CHARS_SHOWN + 1])
    return line if len(line) <= BODY_CHARS_SHOWN else f"{line[:BODY_CHARS_SHOWN]}…"


def _plain(value: object) -> str:
    """`value` for a terminal, so that nothing in it moves the cursor."""
    text = "yes" if value is True else "no" if value is False else "" if value is None else str(value)
    return "".join(char if char.isprintable() else "�" for char in text)


def bare(name: str) -> str:
    """The name of a queue without its prefix."""
    return name.removeprefix("/queue/").removeprefix("queue://")
