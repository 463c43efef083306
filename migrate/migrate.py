"""`amq migrate`: move the messages of another broker's queues into ours, each exactly once, over OpenWire."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import click

from amq.cli import exits
from amq.cli.clients import Seconds, progress, rate
from amq.cli.options import valued
from amq.cli.output import counted, examples, json_option, print_json, print_table, size_text
from amq.core.errors import AmqError
from amq.doors.clock import SystemClock
from amq_migrate.openwire.addresses import parse
from amq_migrate.openwire.migration import Migration, Side
from amq_migrate.openwire.moving import Counts, MovingLimits

PASSWORD_BYTES_MAX = 4096
WINDOW_MAX = 10_000  # half of the ids that a queue of the new broker remembers by default
REFUSED_SHOWN_MAX = 10


def _login_options(which: str, prefix: str, variable: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """--user, --password and --password-file for one of the two brokers, which with its URL become one `Side`."""
    key = prefix.replace("-", "_")

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_side(**given: Any) -> None:
            password = _password(given.pop(f"{key}password_file"), given.pop(f"{key}password"))
            given[which] = Side(f"the {which} broker", parse(given[which]), given.pop(f"{key}user"), password)
            command(**given)

        with_options: Callable[..., None] = with_side
        for option in (
            click.option(
                f"--{prefix}password-file",
                metavar="FILE",
                type=click.Path(dir_okay=False),
                help=f"The password at the {which} broker is the first line of this file.",
            ),
            click.option(
                f"--{prefix}password",
                metavar="TEXT",
                default="",
                envvar=f"{variable}_PASSWORD",
                help=f"Password at the {which} broker, if the URL has none; better in a file, or ${variable}_PASSWORD.",
            ),
            click.option(
                f"--{prefix}user",
                metavar="NAME",
                default="",
                envvar=f"{variable}_USER",
                help=f"User at the {which} broker, if the URL has none; or ${variable}_USER.",
            ),
        ):
            with_options = option(with_options)
        return with_options

    return add


@click.command(
    epilog=examples(
        "amq migrate --from tcp://old:61616 --all --dry-run",
        "amq migrate --from tcp://old:61616 --to 'failover:(tcp://a:61616,tcp://b:61616)' --all",
        "amq migrate --from tcp://old:61616 --to tcp://a:61616 orders 'invoices.*'",
        "amq migrate --from tcp://old:61616 --user admin --password-file old.password --all --json",
        "amq migrate --from 'ssl://old:61617?trust=old-ca.pem' --to 'ssl://a:61617?trust=ca.pem' --all",
    )
)
@click.argument("names", metavar="[QUEUE]...", nargs=-1)
@click.option(
    "--from",
    "old",
    metavar="URL",
    required=True,
    help="The broker that has the messages: tcp://HOST:PORT, ssl://HOST:PORT, or failover:(tcp://A:PORT,tcp://B:PORT).",
)
@click.option(
    "--to",
    "new",
    metavar="URL",
    default="tcp://127.0.0.1:61616",
    show_default=True,
    help="The broker, or all brokers of the group, that get them.",
)
@click.option("--all", "every", is_flag=True, help="Move all queues of the old broker.")
@click.option("--dry-run", is_flag=True, help="Show the queues and how many messages each holds; move nothing.")
@_login_options("old", "", "AMQ_FROM")
@_login_options("new", "to-", "AMQ_TO")
@valued("--window", type=click.IntRange(1, WINDOW_MAX), default=1000, help="Have at most N messages on their way.")
@valued(
    "--window-bytes",
    type=click.IntRange(min=1),
    default=64 << 20,
    help="Have at most this many bytes on their way, or one message.",
)
@valued(
    "--timeout",
    type=Seconds(),
    default=60.0,
    help="Give up when a broker does not answer, or the new one confirms nothing, for so long.",
)
@valued(
    "--idle",
    type=Seconds(),
    default=5.0,
    help="Leave a queue whose messages are held by other consumers when nothing comes for so long.",
)
@json_option
def migrate(
    names: tuple[str, ...],
    old: Side,
    new: Side,
    every: bool,
    dry_run: bool,
    window: int,
    window_bytes: int,
    timeout: float,
    idle: float,
    as_json: bool,
) -> None:
    """Move the messages of another broker's queues into ours, each exactly once.

    The old broker may be ActiveMQ Classic 5.4 or later, or amq. QUEUE is a name or a pattern such as `orders.>`. A
    message keeps its type, body, properties, headers, id, timestamp, priority, expiry and group, and is acknowledged at
    the old broker when the new one has stored it. The new broker knows the ids of the messages that it got last
    (duplicateWindow). So this command can be killed at any point and run again: nothing is lost or doubled.

    Stop the programs that use the old queues first. Messages that another consumer holds, and those that the new broker
    rejects, stay where they are (exit code 1). Messages on their way are persistent afterwards. Durable subscriptions
    and messages that the old broker is to deliver later are not moved: see docs/migration.md.
    """
    if every == bool(names):
        raise click.UsageError("give the names of queues, or --all")
    if {uri.address for uri in old.url.uris} & {uri.address for uri in new.url.uris} and not dry_run:
        raise click.UsageError("--from and --to name the same broker")
    limits = MovingLimits(window, window_bytes, idle, timeout)
    with progress("moved", None) as show:
        run = Migration(old, new, limits, timeout, SystemClock(), _say, show)
        if dry_run:
            found = run.look(names)
        else:
            began = time.monotonic()
            error = _run(run, names)
    if dry_run:
        _show_found(found, as_json)
        return
    _report(run, time.monotonic() - began, as_json)
    if error is not None:
        raise error
    _end(run)


def _run(run: Migration, names: tuple[str, ...]) -> BaseException | None:
    """The error with which it ended, if messages had been moved before: first they are told."""
    try:
        run.run(names)
    except (AmqError, KeyboardInterrupt) as error:
        if not run.counts:
            raise
        return error
    return None


def _say(text: str) -> None:
    click.echo(f"amq: {text}", err=True)


def _password(path: str | None, otherwise: str) -> str:
    """The first line of the file."""
    if path is None:
        return otherwise
    with open(path, "rb") as file:
        data = file.read(PASSWORD_BYTES_MAX)
    try:
        return data.partition(b"\n")[0].removesuffix(b"\r").decode()
    except UnicodeDecodeError:
        raise click.UsageError(f"{path}: the password is not UTF-8") from None


def _show_found(found: dict[str, int], as_json: bool) -> None:
    if as_json:
        print_json({"queues": found, "messages": sum(found.values())})
        return
    print_table(("QUEUE", "MESSAGES"), list(found.items()))


def _report(run: Migration, seconds: float, as_json: bool) -> None:
    moved = sum(counts.moved for counts in run.counts.values())
    if as_json:
        print_json(
            {
                "moved": moved,
                "bytes": sum(counts.bytes for counts in run.counts.values()),
                "queues": {name: _facts(counts) for name, counts in run.counts.items()},
                "seconds": round(seconds, 3),
                "per_s": rate(moved, seconds),
                "reconnects": run.reconnects,
            }
        )
        return
    if run.counts:
        print_table(
            ("QUEUE", "MOVED", "BYTES", "REMAIN", "REFUSED"),
            [
                (name, counts.moved, size_text(counts.bytes), counts.remaining, len(counts.refused))
                for name, counts in run.counts.items()
            ],
        )
    click.echo(f"{counted(moved, 'message')} moved in {seconds:.3f} s ({rate(moved, seconds):,.0f}/s)")
    for what, many in (
        ("were not persistent, and are now", sum(counts.hardened for counts in run.counts.values())),
        ("asked for a delay and were delivered without", sum(counts.released for counts in run.counts.values())),
    ):
        if many:
            click.echo(f"{many:,} of them {what}")


def _facts(counts: Counts) -> dict[str, Any]:
    return {
        "moved": counts.moved,
        "bytes": counts.bytes,
        "made_persistent": counts.hardened,
        "made_due": counts.released,
        "remaining": counts.remaining,
        "refused": counts.refused,
    }


def _end(run: Migration) -> None:
    """Raises Exit where something stays at the old broker."""
    lines: list[str] = []
    for name, counts in run.counts.items():
        if counts.remaining:
            lines.append(
                f"queue {name}: {counted(counts.remaining, 'message')} stay at the old broker: another consumer holds "
                "them, or too many were rejected; stop its programs and run this again"
            )
        for id, why in list(counts.refused.items())[:REFUSED_SHOWN_MAX]:
            lines.append(f"queue {name}: message {id} stays at the old broker: {why}")
        if len(counts.refused) > REFUSED_SHOWN_MAX:
            lines.append(f"queue {name}: {len(counts.refused) - REFUSED_SHOWN_MAX} more messages were rejected: --json")
    if lines:
        exits.fail("\n".join(lines), exits.FAILED, "MESSAGES_STAY")
