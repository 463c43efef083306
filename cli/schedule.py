"""`amq schedule` shows scheduled messages and removes them, through a running broker.

Invariant: when `remove` ends, the broker delivers none of the removed messages any more. A message that falls due
during the command may be delivered once more; if it repeats, the command finds its next occurrence.
"""

from __future__ import annotations

import re
from typing import Any

import click

from amq.cli import exits
from amq.cli.clients import Address, Failovers, connection_options, open_connection, progress
from amq.cli.options import confirm, limit_option
from amq.cli.output import (
    counted,
    examples,
    json_option,
    print_json,
    print_listing,
    size_text,
    wall_text,
)
from amq.client import Connection, Message
from amq.core.errors import CommandError

LIST_LIMIT = 100
PREFETCH = 100
IDS_MAX = 50  # in one selector: a header is 10 KiB at most
ROUNDS_MAX = 20  # passes over the schedule: a repeating message may fall due in between
MANAGEMENT = "/topic/ActiveMQ.Scheduler.Management"
EVERYTHING = "/schedule/>"
JOB_ID = "scheduledJobId"
_ID = re.compile(r"(?:.*\D)?(\d{1,19})", re.ASCII)
_destination = click.option(
    "--destination",
    metavar="NAME",
    help="Only messages for this destination: orders, /queue/orders.eu.> or /topic/prices.",
)


@click.group(epilog=examples("amq schedule list", "amq schedule remove 17592186044417"))
def schedule() -> None:
    """Show or remove messages that the broker is to deliver later."""


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
@limit_option(LIST_LIMIT, " messages")
@json_option
def list_(at: Address, destination: str | None, limit: int, as_json: bool) -> None:
    """Show scheduled messages: destination, next due time, and whether they repeat.

    The command changes nothing. It groups messages by destination, in the order in which they were scheduled.
    """
    found: dict[str, dict[str, Any]] = {}  # by id: a failover begins a browse anew
    with (
        open_connection(at, Failovers()) as connection,
        connection.session() as session,
        progress("read", None) as show,
        session.browser(_schedule(destination), prefetch=min(limit, PREFETCH)) as browser,
    ):
        while len(found) <= limit and (message := browser.receive()) is not None:
            found[message.id] = _facts(message)
            show(len(found))
    print_listing(
        list(found.values()),
        limit,
        as_json,
        ("FOR", "DUE", "AGAIN", "SIZE", "SENT", "ID"),
        lambda row: (
            row["destination"],
            wall_text(row["due_ms"]),
            _again(row),
            size_text(row["bytes"]),
            wall_text(row["sent_ms"]),
            row["id"],
        ),
    )


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
@click.option("--all", "everything", is_flag=True, help="Remove all scheduled messages, for all destinations.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def remove(
    at: Address,
    ids: tuple[str, ...],
    destination: str | None,
    everything: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove scheduled messages, so that the broker never delivers them. `amq schedule list` shows each ID.

    Removal cannot be undone; without an ID the command asks for confirmation. Exit code 1 if an ID is not scheduled any
    more, because the broker has delivered the message or somebody removed it; the command removes the others.
    """
    if bool(ids) + (destination is not None) + everything != 1:
        raise click.UsageError("say which: one ID or several, --destination NAME, or --all")
    jobs = {id: _job_id(id) for id in ids}
    conditions = [_selects(job) for job in jobs.values()]
    selectors = [" OR ".join(conditions[at : at + IDS_MAX]) for at in range(0, len(jobs), IDS_MAX)] or [""]
    if not ids:
        confirm(yes, f"Remove all scheduled messages for {destination or 'all destinations'}?")
    with (
        open_connection(at, Failovers()) as connection,
        progress("removed", None) as show,
    ):
        removed: dict[str, None] = {}
        for selector in selectors:
            for _ in range(ROUNDS_MAX):
                if not _remove(connection, _schedule(destination), selector, removed):
                    break
                show(len(removed))
            else:
                raise CommandError("messages repeat faster than this command removes them; run it again")
    if as_json:
        print_json({"removed": len(removed), "ids": list(removed)})
    else:
        click.echo(f"{counted(len(removed), 'message')} removed")
    gone = [id for id, job in jobs.items() if job not in removed]
    if gone:
        exits.fail(f"not scheduled any more: {', '.join(gone)}; see `amq schedule list`", exits.FAILED, "NOT_SCHEDULED")


def _remove(connection: Connection, source: str, selector: str, removed: dict[str, None]) -> bool:
    """Remove what `source` holds now. False = it holds nothing."""
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
        raise CommandError(f"{destination!r} is not a destination; write orders, /queue/orders or /topic/prices")
    return f"/schedule/{kind}.{plain}"


def _job_id(id: str) -> str:
    """The digits at the end of an id, as `schedule list` or a delivered message shows it. Raises CommandError."""
    found = _ID.fullmatch(id)
    if found is None:
        raise CommandError(f"{id!r} is not the id of a scheduled message; `amq schedule list` shows them")
    return found[1]


def _selects(job: str) -> str:
    """A selector for the scheduled message of that id, also after it was delivered and scheduled again."""
    return f"({JOB_ID} = '{job}' OR ({JOB_ID} IS NULL AND JMSMessageID LIKE '%-{job}'))"


def _job(message: Message) -> str:
    """The id of the schedule. It stays the same while the message repeats, and deliveries carry it."""
    return message.headers.get(JOB_ID) or message.id.rpartition("-")[2]


def _facts(message: Message) -> dict[str, Any]:
    headers = message.headers
    kind, _, name = message.destination.removeprefix("/schedule/").partition(".")
    return {
        "id": _job(message),
        "destination": f"/{kind}/{name}",
        "due_ms": int(headers.get("expires", "0")),
        "cron": headers.get("AMQ_SCHEDULED_CRON", ""),
        "period_ms": int(headers.get("AMQ_SCHEDULED_PERIOD", "0")),
        "repeat": int(headers.get("AMQ_SCHEDULED_REPEAT", "0")),
        "bytes": len(message.body),
        "sent_ms": int(headers.get("timestamp", "0")),
    }


def _again(row: dict[str, Any]) -> str:
    """`every 5000 ms, 3 times`, `30 8 * * 1-5`"""
    parts = [row["cron"]] if row["cron"] else []
    if row["repeat"]:
        times = "without end" if row["repeat"] < 0 else f"{row['repeat']} times"
        parts.append(f"every {row['period_ms']} ms, {times}")
    return "; ".join(parts)
