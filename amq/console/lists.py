"""The lists of the console: which columns each has, where its rows lead, and how a row is deleted."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from glob import escape
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode

from amq.core.message import ORIGINAL_DESTINATION
from amq.management.listing import Row
from amq.management.operations import CAUSE, REASON
from amq.management.routes import NO_CLIENT


class Column(NamedTuple):
    """`field` can be sorted by where it is a number, and not `derived`. `href(row)` = where the cell leads, "" =
    nowhere."""

    title: str
    field: str
    number: bool = False
    href: Callable[[Row], str] | None = None
    derived: bool = False


class DeleteButton(NamedTuple):
    """The button of each row that deletes its object. `fields` identify the row, `path` is the resource to delete, and
    the question shows the fields `about`."""

    verb: str
    noun: str
    fields: tuple[str, ...]
    path: Callable[[Mapping[str, str]], str]
    about: tuple[str, ...] = ()


class Listed(NamedTuple):
    """A page that is a list. `resource` = what it asks the broker for, `note` = what its readers should know,
    `rows_are` = what a count of its rows counts; "" = what the title says."""

    path: str
    title: str
    resource: str
    columns: tuple[Column, ...]
    sort: str = "name"
    ending: DeleteButton | None = None
    note: str = ""
    rows_are: str = ""


def topic_href(row: Row) -> str:
    return f"/topic/{quote(row['name'], safe='')}"


def queue_href(row: Row) -> str:
    return f"/queue/{quote(row['name'], safe='')}"


def dead_href(row: Row) -> str:
    return f"/queue/{quote(row['queue'], safe='')}"


def consumed_href(row: Row) -> str:
    """Of a consumer: its queue or topic; "" = several, or a pattern."""
    name = str(row["destination"])
    if any(mark in name for mark in ",*>") or name.startswith(("/temp-", "/remote-temp-")):
        return ""
    if name.startswith("/topic/"):
        return topic_href({"name": name.removeprefix("/topic/")})
    return "" if name.startswith("/") else queue_href({"name": name})


def heard_href(row: Row) -> str:
    """Of a durable subscription: its topic; "" = several, or a pattern."""
    name = str(row["topics"]).removeprefix("topic://")
    return "" if any(mark in name for mark in ",*>") else topic_href({"name": name})


def only(path: str, name: str) -> str:
    """The list at `path` with nothing but what has that name."""
    return f"{path}?{urlencode({'name': escape(name)})}"


def connection_href(row: Row) -> str:
    return only("/connections", row["connection"])


def consumers_href(row: Row) -> str:
    return f"/consumers?{urlencode({'name': escape(row['name']) + ':*'})}"


def letters_href(row: Row) -> str:
    """Of a group of dead letters: its queue, with a selector that selects the group."""
    conditions = [
        _condition(ORIGINAL_DESTINATION, _wire_name(str(row["meant_for"]))),
        _condition(REASON, str(row["reason"])),
        _condition(CAUSE, str(row["cause"])),
    ]
    return f"{dead_href(row)}?{urlencode({'selector': ' AND '.join(filter(None, conditions))})}"


def _wire_name(name: str) -> str:
    """The name as the header has it; a list shows it without `/queue/`."""
    return f"/queue/{name}" if name and not name.startswith("/") else name


def _condition(name: str, value: str) -> str:
    """The part of a selector for a property that is, or begins with, `value`."""
    if not value:
        return ""
    pattern = re.sub(r"[!%_]", r"!\g<0>", value.replace("'", "''"))
    return f"\"{name}\" LIKE '{pattern}%' ESCAPE '!'"


def _subscription(row: Mapping[str, str]) -> str:
    return f"/subscriptions/{quote(row['client_id'] or NO_CLIENT, safe='')}/{quote(row['name'], safe='')}"


def _connection(row: Mapping[str, str]) -> str:
    return f"/connections/{quote(row['name'], safe='')}"


def _numbers(*pairs: tuple[str, str]) -> tuple[Column, ...]:
    return tuple(Column(title, field, True) for title, field in pairs)


LISTS: Final = (
    Listed(
        "/queues",
        "Queues",
        "/queues",
        (
            Column("Name", "name", href=queue_href),
            *_numbers(("Messages", "messages"), ("In flight", "in_flight"), ("Consumers", "consumers")),
            Column("In/s", "in_per_s", True, derived=True),
            Column("Out/s", "out_per_s", True, derived=True),
            *_numbers(("Enqueued", "enqueued"), ("Dequeued", "dequeued"), ("Bytes", "bytes")),
            Column("Paused", "paused"),
        ),
        "-messages",
    ),
    Listed(
        "/topics",
        "Topics",
        "/topics",
        (
            Column("Name", "name", href=topic_href),
            *_numbers(("Consumers", "consumers"), ("Durable", "durable_subscriptions"), ("Enqueued", "enqueued")),
        ),
    ),
    Listed(
        "/dead-letters",
        "Dead letters",
        "/dead-letters",
        (
            Column("Queue", "queue", href=dead_href),
            Column("Messages", "messages", True, letters_href, derived=True),
            Column("Meant for", "meant_for"),
            Column("Reason", "reason"),
            Column("Cause", "cause"),
        ),
        "",
        note="The count of a group leads to its messages, where they are retried, moved or deleted together.",
        rows_are="Groups",
    ),
    Listed(
        "/subscriptions",
        "Subscriptions",
        "/subscriptions",
        (
            Column("Name", "name"),
            Column("Client id", "client_id"),
            *_numbers(("Messages", "messages"), ("Consumers", "consumers")),
            Column("Topics", "topics", href=heard_href),
            Column("Selector", "selector"),
        ),
        ending=DeleteButton("delete", "durable subscription", ("name", "client_id"), _subscription, ("topics",)),
    ),
    Listed(
        "/consumers",
        "Consumers",
        "/consumers",
        (
            Column("Destination", "destination", href=consumed_href),
            Column("User", "user"),
            Column("Client id", "client_id"),
            *_numbers(("In flight", "in_flight"), ("Prefetch", "prefetch")),
            Column("Connection", "connection", href=connection_href),
            Column("Selector", "selector"),
        ),
        "-in_flight",
    ),
    Listed(
        "/connections",
        "Connections",
        "/connections",
        (
            Column("Id", "name"),
            Column("Address", "address"),
            Column("Protocol", "protocol"),
            Column("User", "user"),
            Column("Client id", "client_id"),
            Column("Consumers", "consumers", True, consumers_href),
            *_numbers(("Producers", "producers")),
            Column("Slow", "slow"),
            Column("Blocked", "blocked"),
        ),
        ending=DeleteButton(
            "close", "connection", ("name",), _connection, ("user", "client_id", "address", "protocol")
        ),
    ),
    Listed(
        "/scheduled",
        "Scheduled",
        "/scheduled",
        (
            Column("Id", "id"),
            Column("For", "for"),
            Column("Due", "due_ms"),
            Column("Bytes", "bytes", True, derived=True),
        ),
        "",
    ),
    Listed(
        "/prepared",
        "Prepared",
        "/prepared",
        (
            Column("Id", "name"),
            Column("Owner", "owner"),
            *_numbers(("Sends", "sends"), ("Acknowledges", "acknowledges"), ("Created", "created_ms")),
        ),
    ),
    Listed(
        "/store",
        "Store",
        "/segments",
        (
            Column("Segment", "name"),
            *_numbers(
                ("Bytes", "bytes"), ("Live messages", "live_messages"), ("Live bytes", "live_bytes"), ("Epoch", "epoch")
            ),
        ),
        note="Compaction copies live messages out of old segments and deletes the files: a segment goes when it holds "
        "no live message. `amq journal stat` counts by queue.",
        rows_are="Segments",
    ),
    Listed(
        "/configuration",
        "Configuration",
        "/configuration",
        (
            Column("Option", "name"),
            Column("Section", "section"),
            Column("For", "destination"),
            Column("Value", "value"),
            Column("From", "source"),
            Column("Live", "live"),
            Column("Meaning", "help"),
        ),
        note="Live = a change of the file counts at once; others wait for a restart of this broker.",
        rows_are="Options",
    ),
    Listed(
        "/users",
        "Users",
        "/users",
        (Column("User", "name"), Column("Roles", "roles")),
        note="Users of the users file. Tokens, certificates and directories bring further ones, with their roles.",
    ),
    Listed(
        "/rights",
        "Permissions",
        "/rights",
        (
            Column("Destinations", "name"),
            Column("Read", "read"),
            Column("Write", "write"),
            Column("Browse", "browse"),
            Column("Admin", "admin"),
            Column("Manage", "manage"),
            Column("Only", "only"),
        ),
        note="Roles that have each right; * = everybody. Several entries that match a name count together, up to one "
        "with Only.",
        rows_are="Entries",
    ),
    Listed(
        "/history",
        "History",
        "/history",
        (
            Column("When", "at_ms", True),
            Column("What", "what"),
            Column("About", "about"),
        ),
        "-at_ms",
        note="Roles, limits and the disk of the broker of this host, since it was started. Its log has more.",
        rows_are="Events",
    ),
)
SEARCH: Final = "/search"
SEND: Final = "/send"
PAGES: Final = (("/", "Overview"), *((each.path, each.title) for each in LISTS), (SEND, "Send"))
