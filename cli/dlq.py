"""`amq dlq`: look at dead letters, send them back to where they came from, delete them; through a running broker.

An operator on a broker's host names the store, and the broker does the work. Others connect as a client with a login.

Invariant: a dead letter is at every moment in its dead-letter queue or in its original one, never in both and never in
none: as a client `retry` sends and acknowledges in one transaction a batch.
"""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from amq.cli import dlq_store, exits
from amq.cli.clients import Address, Failovers, Seconds, connection_options, open_connection, progress, rate
from amq.cli.management import (
    asks_broker,
    check_complete,
    chosen,
    cluster_of_brokers_option,
    open_chosen,
    show,
    texts,
)
from amq.cli.options import confirm, limit_option, most_option, valued, yes_option
from amq.cli.output import examples, json_option, print_json, print_listing, size_text, wall_text
from amq.cli.queues import BODY_CHARS_SHOWN, bare, preview
from amq.client import Connection, Message, Session
from amq.core.errors import AccessError, CommandError, TransactionRolledBackError
from amq.management.client import Manager
from amq.management.listing import Row

T = TypeVar("T")
BATCH_MESSAGES = 100
BATCH_BYTES = 4 << 20
LIST_LIMIT = 100
ROLLED_BACK_MAX = 10  # batches in a row
DEFAULT_QUEUES = ("DLQ.>", "ActiveMQ.DLQ")
ORIGIN, REASON, DELIVERIES = "original-destination", "dead-letter-reason", "dead-letter-deliveries"
OF_A_QUEUE = f"\"{ORIGIN}\" LIKE '/queue/%'"
IDS_AT_A_TIME = 100  # in one selector, which is one header
BODY_CHARS_MAX = 1000  # of a body that `list` tells
RETRY = "dead-letter-retry"  # the run that sent the message back last: a run takes no message twice
_OF_ONE_DELIVERY = frozenset({"ack", "subscription"})  # the next look at the message shows others
# What the broker writes on a delivery, or `send` has an argument for.
_NOT_SENT_BACK = frozenset(
    {
        ORIGIN,
        REASON,
        DELIVERIES,
        RETRY,
        "original-expires",
        "content-length",
        "content-type",
        "destination",
        "expires",
        "JMSXDeliveryCount",
        "message-id",
        "persistent",
        "priority",
        "redelivered",
        "timestamp",
        "_AMQ_DUPL_ID",
        *_OF_ONE_DELIVERY,
    }
)


@click.group(epilog=examples("amq dlq list", "amq dlq retry --queue orders", "amq dlq purge --reason expired"))
def dlq() -> None:
    """Show dead letters, send them back to their queues, or delete them."""


store_option = click.option(
    "--store",
    metavar="DIR|URL",
    envvar="AMQ_STORE",
    default="",
    help="Ask the master's management socket on this host, without a login; or $AMQ_STORE. --url comes first.",
)


@dataclass(frozen=True)
class Meant:
    """Where dead letters are, and which of them are meant. `store` and `cluster` "" = a client asks, which connects to
    `at`."""

    store: str
    cluster: str
    at: Address
    queues: tuple[str, ...]
    queue: str | None
    reason: str | None

    @property
    def asks_brokers(self) -> bool:
        return bool(self.store or self.cluster)

    def open(self) -> Manager:
        """A client of the store, or of the cluster."""
        return open_chosen(self.store, "", self.cluster, "")

    def selector(self, *conditions: str) -> str:
        """The selector of dead letters that were meant for `queue` and whose reason contains `reason`."""
        parts = list(conditions)
        if self.queue is not None:
            parts.append(f"\"{ORIGIN}\" = '{_quoted(_destination(self.queue))}'")
        if self.reason is not None:
            pattern = self.reason.replace("!", "!!").replace("%", "!%").replace("_", "!_")
            parts.append(f"\"{REASON}\" LIKE '%{_quoted(pattern)}%' ESCAPE '!'")
        return " AND ".join(parts)


def _selection(command: Callable[..., None]) -> Callable[..., None]:
    """Options that say which dead letters are `meant`."""

    @functools.wraps(command)
    def choose(*, store: str, cluster: str, **more: Any) -> None:
        context = click.get_current_context()
        named = [context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in ("store", "cluster")]
        is_named = any(named)
        has_url = context.get_parameter_source("url") is not ParameterSource.DEFAULT
        if is_named and context.get_parameter_source("url") is ParameterSource.COMMANDLINE:
            raise click.UsageError("give --store or --cluster, or --url, and not both")
        others = {each.name: more.pop(each.name) for each in fields(Meant) if each.name not in ("store", "cluster")}
        if has_url and not is_named:
            store = cluster = ""
        store, _, cluster = chosen(store, "", cluster)
        command(meant=Meant(store, cluster, **others), **more)

    options: Callable[..., None] = cluster_of_brokers_option(store_option(choose))
    for option in (
        click.option("--reason", metavar="TEXT", help="Only those whose reason contains this text, such as expired."),
        click.option("--queue", metavar="NAME", help="Only those that were meant for this queue."),
        click.option(
            "--dead-letter-queue",
            "queues",
            metavar="NAME",
            multiple=True,
            default=DEFAULT_QUEUES,
            show_default=True,
            help="Where to look, a name or pattern. May be repeated.",
        ),
    ):
        options = option(options)
    return connection_options(options)


def _working(command: Callable[..., None]) -> Callable[..., None]:
    """Options of what takes messages from queues."""
    timeout = valued("--timeout", type=Seconds(), default=1.0, help="A queue is done when nothing comes for so long.")
    return most_option(timeout(command))


@dlq.command(
    "list",
    epilog=examples(
        "amq dlq list --store /mnt/shared/amq",
        "amq dlq list --queue orders --reason expired --limit 10",
        "amq dlq list --limit 1000 --json >dead-letters.json",
    ),
)
@_selection
@limit_option(LIST_LIMIT)
@click.option("--body", "with_body", is_flag=True, help=f"Show the first {BODY_CHARS_SHOWN} characters of each body.")
@json_option
def list_(meant: Meant, limit: int, with_body: bool, as_json: bool) -> None:
    """Show dead letters: where they were meant to go, why they did not, and how often they were delivered.

    Looks and takes nothing: what is on the queues stays as it is. --json also gives all headers of a message and the
    first 1000 characters of its body; `body` is null where that is not text. `amq dlq retry` and `amq dlq purge` take
    the ids.
    """
    found: dict[str, dict[str, Any]] = {}  # by id: a failover begins a browse anew
    with progress("read", None) as show, ExitStack() as stack:
        if meant.asks_brokers:
            client = stack.enter_context(meant.open())
            stack.callback(check_complete, client)
            each = _rows_of_store(client, meant)
        else:
            connection = stack.enter_context(open_connection(meant.at, Failovers()))
            each = _rows_of_client(connection, meant, min(limit, BATCH_MESSAGES))
        for row in each:
            found[row["id"]] = row
            show(len(found))
            if len(found) > limit:
                break
    titles = ("DEAD-LETTER QUEUE", "MEANT FOR", "DELIVERIES", "REASON", "SIZE", "SENT", "ID")
    print_listing(
        list(found.values()),
        limit,
        as_json,
        (*titles, "BODY") if with_body else titles,
        lambda row: (
            row["dead_letter_queue"],
            row["original_destination"] or "?",
            row["deliveries"],
            row["reason"] or "?",
            size_text(row["bytes"]),
            wall_text(row["sent_ms"]),
            row["id"],
            *([preview(row)] if with_body else []),
        ),
    )


@dlq.command(epilog=examples("amq dlq causes --store /mnt/shared/amq", "amq dlq causes --queue orders --json"))
@click.option("--queue", metavar="TEXT", default="", help="Only those meant for queues with this in the name.")
@asks_broker
@json_option
def causes(client: Manager, queue: str, as_json: bool) -> None:
    """Count dead letters by queue, origin, reason and cause, the most frequent first.

    The broker looks at 10,000 dead letters at most; a line on stderr says so where there are more.
    """
    found = client.get("/dead-letters", name=queue)
    show(
        lambda: list(found["items"]),
        texts(
            ("MESSAGES", "messages"),
            ("DEAD-LETTER QUEUE", "queue"),
            ("MEANT FOR", "meant_for"),
            ("CAUSE", "cause"),
            ("REASON", "reason"),
        ),
        as_json,
    )
    if not found["complete"]:
        click.echo(f"and more: this is about the first {found['looked_at']} messages", err=True)


@dlq.command(
    epilog=examples(
        "amq dlq retry --queue orders --store /mnt/shared/amq",
        "amq dlq retry ID:5f1d3c2ab901-17592186044417",
        "amq dlq retry --reason 'without acknowledgement' --limit 1",
        "amq dlq retry --url 'failover:(stomp://a:61613,stomp://b:61613)' --json",
    )
)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@_selection
@_working
@json_option
def retry(ids: tuple[str, ...], meant: Meant, limit: int | None, timeout: float, as_json: bool) -> None:
    """Send dead letters back to the queues for which they were meant: those with the given ids, or all.

    Each batch is one transaction, so a message is always in exactly one of the two queues, also if the master or this
    command dies. The message keeps body, headers and priority, gets a header dead-letter-retry, and does not expire. A
    run sends each message once: one that returns to the dead-letter queue meanwhile stays there. Dead letters of topics
    stay, because every subscriber or nobody would get them. So do replies to temporary queues, and messages without
    an origin.
    """
    name = secrets.token_hex(8)
    run = _Run("moved", meant, timeout, limit, as_json, lambda session, message: _send_back(session, message, name))
    if meant.asks_brokers:
        run.work_in_store("retry", meant.selector(OF_A_QUEUE), ids)
    else:
        run.work(meant.selector(OF_A_QUEUE, f'("{RETRY}" IS NULL OR "{RETRY}" <> \'{name}\')'), ids)


@dlq.command(
    epilog=examples(
        "amq dlq purge --queue orders --reason expired",
        "amq dlq purge ID:5f1d3c2ab901-17592186044417 --yes",
        "amq dlq purge --yes --json",
    )
)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@_selection
@_working
@yes_option
@json_option
def purge(ids: tuple[str, ...], meant: Meant, limit: int | None, timeout: float, yes: bool, as_json: bool) -> None:
    """Delete dead letters for good, after a question: those with the given ids, or all.

    A queue that is given with --dead-letter-queue and holds messages without a dead-letter-reason is not a dead-letter
    queue: nothing is deleted (exit code 7).
    """
    selector = meant.selector()
    which = f" for which {selector}" if selector else ""
    what = f"{len(ids)} messages with the given ids" if ids else "messages"
    confirm(yes, f"Delete the {what} of {', '.join(meant.queues)}{which} for good?")
    run = _Run("deleted", meant, timeout, limit, as_json)
    if meant.asks_brokers:
        run.work_in_store("purge", selector, ids)
    else:
        run.work(selector, ids, only_dead_letters=meant.queues != DEFAULT_QUEUES)


def _rows_of_store(client: Manager, meant: Meant) -> Iterator[dict[str, Any]]:
    for queue in dlq_store.queues(client, map(bare, meant.queues), meant.queues == DEFAULT_QUEUES):
        for row in dlq_store.messages(client, queue["name"], meant.selector()):
            yield _facts_of_row(row, queue["name"])


def _rows_of_client(connection: Connection, meant: Meant, prefetch: int) -> Iterator[dict[str, Any]]:
    selector = meant.selector()

    def browse(name: str) -> Iterator[dict[str, Any]]:
        with (
            connection.session() as session,
            session.browser(_destination(name), prefetch=prefetch, selector=selector) as browser,
        ):
            while (message := browser.receive()) is not None:
                yield _facts(message)

    return _of_permitted(meant.queues, browse)


def _of_permitted(names: tuple[str, ...], each: Callable[[str], Iterator[T]]) -> Iterator[T]:
    """Yield what `each` yields for each of `names`. Where the operator named no queues, one that this user may not read
    is left out, and a line on stderr says so. Raises AccessError if none is left."""
    refused: list[AccessError] = []
    for name in names:
        try:
            yield from each(name)
        except AccessError as error:
            refused.append(error)
            if names != DEFAULT_QUEUES or len(refused) == len(names):
                raise
            click.echo(f"amq: {name} is left out: {error.description}", err=True)


class _Run:
    """Takes messages from queues, a batch in each transaction, and does something with each."""

    def __init__(
        self,
        done: str,
        meant: Meant,
        timeout: float,
        limit: int | None,
        as_json: bool,
        each: Callable[[Session, Message], None] = lambda _session, _message: None,
    ) -> None:
        self._done = done
        self._meant = meant
        self._timeout = timeout
        self._limit = limit
        self._as_json = as_json
        self._each = each
        self._counts: dict[str, int] = {}  # by dead-letter queue
        self._began = time.monotonic()
        self._failovers = Failovers()

    @property
    def _count(self) -> int:
        return sum(self._counts.values())

    def work(self, selector: str, ids: tuple[str, ...] = (), only_dead_letters: bool = False) -> None:
        """All that `selector` selects in the queues that are meant (of those with `ids`, if there are any), then say
        how many. `only_dead_letters`: refuse, before anything is done, where a queue holds other messages. Ends with
        exit code 1 where an id was not found.
        """
        meant, wanted = self._meant, tuple(dict.fromkeys(ids))
        try:
            with (
                open_connection(meant.at, self._failovers) as connection,
                progress(self._done, self._limit) as show,
            ):
                for name in meant.queues if only_dead_letters else ():
                    _check_dead_letters(connection, name)
                for part in _parts(wanted):
                    self._work_part(connection, _with_ids(selector, part), show)
        finally:
            self._report()
        self._check_all_found(wanted)

    def work_in_store(self, verb: str, selector: str, ids: tuple[str, ...] = ()) -> None:
        """The same, by the master of the store. A queue that the operator named and that holds other messages is not
        purged."""
        names, wanted = self._meant.queues, tuple(dict.fromkeys(ids))
        try:
            with self._meant.open() as client, progress(self._done, self._limit) as show:
                found = dlq_store.queues(client, map(bare, names), names == DEFAULT_QUEUES)
                missing = client.missing
                queues = list(dict.fromkeys(row["name"] for row in found))
                if verb == "purge" and names != DEFAULT_QUEUES:
                    for queue in queues:
                        other = next(dlq_store.messages(client, queue, f'"{REASON}" IS NULL'), None)
                        if other is not None:
                            raise _in_use(queue, other["id"])
                for queue, part in product(queues, _parts(wanted)):
                    if self._left() > 0:
                        limit = None if self._limit is None else self._left()
                        count = dlq_store.change(client, verb, queue, _with_ids(selector, part), limit)
                        self._counts[queue] = self._counts.get(queue, 0) + count
                        show(self._count)
                client.missing = missing
        finally:
            self._report()
        check_complete(client)
        self._check_all_found(wanted)

    def _check_all_found(self, wanted: tuple[str, ...]) -> None:
        if self._count < len(wanted) and self._left() > 0:
            exits.fail(f"{len(wanted) - self._count} of {len(wanted)} ids were not found", exits.FAILED)

    def _work_part(self, connection: Connection, selector: str, show: Callable[[int], None]) -> None:
        visited: set[str] = set()
        for destination in _of_permitted(
            self._meant.queues, lambda name: _queues_of(connection, name, selector, visited)
        ):
            visited.add(destination)
            self._counts.setdefault(destination, 0)
            self._empty(connection, destination, selector, show)
            if self._left() == 0:
                return

    def _left(self) -> int:
        return BATCH_MESSAGES if self._limit is None else self._limit - self._count

    def _empty(self, connection: Connection, destination: str, selector: str, show: Callable[[int], None]) -> None:
        rolled_back = 0
        with connection.session(transacted=True) as session:
            prefetch = min(self._left(), BATCH_MESSAGES)
            with session.consumer(destination, prefetch=max(1, prefetch), selector=selector) as consumer:
                while self._left() > 0:
                    try:
                        count = 0
                        for message in _batch(consumer.receive, min(self._left(), BATCH_MESSAGES), self._timeout):
                            self._each(session, message)
                            count += 1
                        session.commit()
                    except TransactionRolledBackError:
                        session.rollback()
                        rolled_back += 1
                        if rolled_back >= ROLLED_BACK_MAX:
                            raise
                        continue
                    if not count:
                        return
                    rolled_back = 0
                    self._counts[destination] += count
                    show(self._count)

    def _report(self) -> None:
        seconds = time.monotonic() - self._began
        queues = {bare(name): count for name, count in self._counts.items() if count}
        if self._as_json:
            print_json(
                {
                    self._done: self._count,
                    "queues": queues,
                    "seconds": round(seconds, 3),
                    "per_s": rate(self._count, seconds),
                    "failovers": self._failovers.count,
                }
            )
            return
        where = ", ".join(f"{count:,} of {name}" for name, count in queues.items())
        click.echo(f"{self._count:,} messages {self._done}{f': {where}' if where else ''}")


def _batch(receive: Callable[[float], Message | None], count: int, timeout: float) -> Iterator[Message]:
    """Receive up to `count` messages, or those that there are."""
    size = 0
    for number in range(count):
        message = receive(timeout if number == 0 else 0.0)
        if message is None:
            return
        yield message
        size += len(message.body)
        if size >= BATCH_BYTES:
            return


def _queues_of(connection: Connection, name: str, selector: str, done: set[str]) -> Iterator[str]:
    """Names of the queues that `name` means and that hold something, one after the other as they are found."""
    while True:
        with connection.session() as session:
            browser = session.browser(_destination(name), prefetch=1, selector=selector)
            found = next((message.destination for message in browser if message.destination not in done), None)
        if found is None:
            return
        yield found


def _send_back(session: Session, message: Message, run: str) -> None:
    headers = {name: value for name, value in message.headers.items() if name not in _NOT_SENT_BACK}
    body: bytes | str = message.body
    if "content-length" not in message.headers:  # it is text
        try:
            body = message.text
        except UnicodeDecodeError:
            headers["amq-msg-type"] = "text"
    session.producer(message.headers[ORIGIN]).send(
        body,
        headers={**headers, RETRY: run},
        persistent=message.headers.get("persistent") == "true",
        priority=message.priority,
        content_type=message.headers.get("content-type", ""),
    )


def _parts(ids: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The ids of each selector; one without any where none are given."""
    return [ids[at : at + IDS_AT_A_TIME] for at in range(0, len(ids), IDS_AT_A_TIME)] or [()]


def _with_ids(selector: str, ids: tuple[str, ...]) -> str:
    if not ids:
        return selector
    listed = ", ".join(f"'{_quoted(id)}'" for id in ids)
    return " AND ".join(part for part in (f"JMSMessageID IN ({listed})", selector) if part)


def _check_dead_letters(connection: Connection, name: str) -> None:
    """Raises CommandError where a queue that `name` names holds what never was a dead letter: a typing error must not
    empty a queue that is in use."""
    with connection.session() as session:
        browser = session.browser(_destination(name), prefetch=1, selector=f'"{REASON}" IS NULL')
        found = next(iter(browser), None)
    if found is not None:
        raise _in_use(bare(found.destination), found.id)


def _in_use(queue: str, id: str) -> CommandError:
    return CommandError(
        f"{queue} is not a dead-letter queue: it holds a message without {REASON} ({id}). Nothing was deleted. "
        "To empty a queue use `amq queue purge`"
    )


def _quoted(text: str) -> str:
    return text.replace("'", "''")


def _destination(name: str) -> str:
    """`orders` → `/queue/orders`. Raises CommandError for a topic."""
    queue = bare(name)
    if not queue or queue.startswith(("/", "topic:")):
        raise CommandError(f"{name!r} is not the name of a queue: write orders, or /queue/orders")
    return f"/queue/{queue}"


def _facts(message: Message) -> dict[str, Any]:
    headers = message.headers
    deliveries = headers.get(DELIVERIES, "")
    return {
        "id": message.id,
        "dead_letter_queue": bare(message.destination),
        "original_destination": bare(headers.get(ORIGIN, "")),
        "reason": headers.get(REASON, ""),
        "deliveries": int(deliveries) if deliveries.isdecimal() else 0,
        "bytes": len(message.body),
        "sent_ms": int(headers.get("timestamp", "0")),
        "headers": {name: value for name, value in headers.items() if name not in _OF_ONE_DELIVERY},
        "body": text_of(message.body),
    }


def _facts_of_row(row: Row, queue: str) -> dict[str, Any]:
    """The same of a message as the broker shows it to operators."""
    properties = {name: str(value) for name, value in row["properties"].items()}
    deliveries = properties.get(DELIVERIES, "")
    body = row.get("body")
    return {
        "id": row["id"],
        "dead_letter_queue": queue,
        "original_destination": bare(properties.get(ORIGIN, "")),
        "reason": properties.get(REASON, ""),
        "deliveries": int(deliveries) if deliveries.isdecimal() else 0,
        "bytes": row["bytes"],
        "sent_ms": row["timestamp_ms"],
        "headers": properties,
        "body": body[:BODY_CHARS_MAX] if body is not None else None,
    }


def text_of(body: bytes) -> str | None:
    """The beginning of `body`; None where that is not text."""
    part = body[: 4 * BODY_CHARS_MAX]
    for cut in range(min(4, len(part) + 1)):  # the cut may go through a character
        try:
            return part[: len(part) - cut].decode()[:BODY_CHARS_MAX]
        except UnicodeDecodeError:
            if len(part) == len(body):
                return None
    return None
