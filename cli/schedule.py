"""`amq schedule`: look at messages whose time has not come, and take them back; through a running broker.

Invariant: what `remove` was asked for and what stands in no schedule when it ends will not be delivered any more; one
that falls due while it works may be delivered once more, and is found again where it repeats.
"""

from __future__ import annotations

import re
from typing import Any

import click

from amq.cli.clients import Failovers, connection_options, open_connection, progress
from amq.cli.output import examples, is_terminal, json_option, print_json, print_listing, size_text, wall_text
from amq.client import Connection, Message
from amq.errors import CommandError

LIST_LIMIT = 100
PREFETCH = 100
IDS_MAX = 50  # in one selector: a header is 10 KiB at most
ROUNDS_MAX = 20  # looks for what repeats, and fell due in between
MANAGEMENT = "/topic/ActiveMQ.Scheduler.Management"
EVERYTHING = "/schedule/>"
JOB_ID = "scheduledJobId"
_ID = re.compile(r"(?:.*\D)?(\d{1,19})", re.ASCII)
_destination = click.option(
    "--destination", metavar="NAME", help="Only what is for this one: orders, /queue/orders.eu.> or /topic/prices."
)


@click.group(epilog=examples("amq schedule list", "amq schedule remove 17592186044417"))
def schedule() -> None:
    """Look at messages that are to be delivered later, or take them back."""


@schedule.command(
    "list",
    epilog=examples(
        "amq schedule list",
        "amq schedule list --destination /queue/orders --limit 10",
        "amq schedule list --limit 1000 --json >scheduled.json",
    ),
)
@connection_options
@_destination
@click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), default=LIST_LIMIT, show_default=True, help="At most so many.",
)  # fmt: skip
@json_option
def list_(url: str, login: str, passcode: str, destination: str | None, limit: int, as_json: bool) -> None:
    """Show scheduled messages: where they go, when they fall due next, and whether they come again.

    Looks and takes nothing. Those for one destination come together, as they were scheduled.
    """
    found: dict[str, dict[str, Any]] = {}  # by id: a failover begins a browse anew
    with (
        open_connection(url, login, passcode, Failovers()) as connection,
        connection.session() as session,
        progress("read", None) as show,
        session.browser(_schedule(destination), prefetch=min(limit, PREFETCH)) as browser,
    ):
        while len(found) <= limit and (message := browser.receive()) is not None:
            found[message.id] = _facts(message)
            show(len(found))
    print_listing(
        list(found.values()), limit, as_json, ("FOR", "DUE", "AGAIN", "SIZE", "SENT", "ID"),
        lambda row: (
            row["destination"], wall_text(row["due_ms"]), _again(row), size_text(row["bytes"]),
            wall_text(row["sent_ms"]), row["id"],
        ),
    )  # fmt: skip


@schedule.command(
    epilog=examples(
        "amq schedule remove 17592186044417",
        "amq schedule remove --destination /topic/prices",
        "amq schedule remove --all --yes --json",
    )
)
@connection_options
@click.argument("ids", nargs=-1, metavar="[ID]...")
@_destination
@click.option("--all", "everything", is_flag=True, help="All that is scheduled, for whichever destination.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def remove(
    url: str, login: str, passcode: str, ids: tuple[str, ...], destination: str | None, everything: bool, yes: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Take scheduled messages back: they are not delivered any more. ID is what `amq schedule list` shows.

    What is removed is gone for good; without an ID the command asks first.
    """
    if bool(ids) + (destination is not None) + everything != 1:
        raise click.UsageError("say which: one ID or several, --destination NAME, or --all")
    conditions = [_selects(id) for id in ids]
    selectors = [" OR ".join(conditions[at : at + IDS_MAX]) for at in range(0, len(ids), IDS_MAX)] or [""]
    if not ids and not yes:
        if not is_terminal():
            raise click.UsageError("nobody is there to be asked: say --yes")
        which = f"for {destination}" if destination else "for whichever destination"
        click.confirm(f"Remove all messages that are scheduled {which}?", abort=True, err=True)
    with (
        open_connection(url, login, passcode, Failovers()) as connection,
        progress("removed", None) as show,
    ):
        removed: dict[str, None] = {}
        for selector in selectors:
            for _ in range(ROUNDS_MAX):
                if not _remove(connection, _schedule(destination), selector, removed):
                    break
                show(len(removed))
            else:
                raise CommandError("some fall due and are scheduled again faster than they are removed: run it again")
    if as_json:
        print_json({"removed": len(removed), "ids": list(removed)})
    else:
        click.echo(f"{len(removed):,} messages removed")


def _remove(connection: Connection, source: str, selector: str, removed: dict[str, None]) -> bool:
    """Remove what stands in `source` now. False = nothing does."""
    with connection.session() as session, session.browser(source, prefetch=PREFETCH, selector=selector) as browser:
        found = False
        producer = session.producer(MANAGEMENT)
        while (message := browser.receive()) is not None:
            found = True
            headers = {"AMQ_SCHEDULER_ACTION": "REMOVE", JOB_ID: message.id}
            producer.send("", headers=headers, wait=False)
            removed[_job(message)] = None
        producer.flush()
        return found


def _schedule(destination: str | None) -> str:
    """`orders` or `/queue/orders` → `/schedule/queue.orders`. Raises CommandError."""
    if destination is None:
        return EVERYTHING
    name = destination.replace("://", "/", 1).removeprefix("/")
    kind, slash, plain = name.partition("/")
    if not slash or kind not in ("queue", "topic"):
        kind, plain = "queue", name
    if not plain or (destination.startswith("/") and plain == name):
        raise CommandError(f"{destination!r} is no destination: write orders, /queue/orders or /topic/prices")
    return f"/schedule/{kind}.{plain}"


def _selects(id: str) -> str:
    """What selects the scheduled message of that id, or what it has become since. Raises CommandError."""
    found = _ID.fullmatch(id)
    if found is None:
        raise CommandError(f"{id!r} is no id of a scheduled message: give one that `amq schedule list` shows")
    return f"({JOB_ID} = '{found[1]}' OR ({JOB_ID} IS NULL AND JMSMessageID LIKE '%-{found[1]}'))"


def _job(message: Message) -> str:
    """The same as long as it is scheduled; what is delivered has it too."""
    return message.headers.get(JOB_ID) or message.id.rpartition("-")[2]


def _facts(message: Message) -> dict[str, Any]:
    headers = message.headers
    kind, _, name = message.destination.removeprefix("/schedule/").partition(".")
    return {
        "id": _job(message), "destination": f"/{kind}/{name}", "due_ms": int(headers.get("expires", "0")),
        "cron": headers.get("AMQ_SCHEDULED_CRON", ""), "period_ms": int(headers.get("AMQ_SCHEDULED_PERIOD", "0")),
        "repeat": int(headers.get("AMQ_SCHEDULED_REPEAT", "0")), "bytes": len(message.body),
        "sent_ms": int(headers.get("timestamp", "0")),
    }  # fmt: skip


def _again(row: dict[str, Any]) -> str:
    """`every 5000 ms, 3 times`, `30 8 * * 1-5`"""
    parts = [row["cron"]] if row["cron"] else []
    if row["repeat"]:
        times = "without end" if row["repeat"] < 0 else f"{row['repeat']} times"
        parts.append(f"every {row['period_ms']} ms, {times}")
    return "; ".join(parts)
