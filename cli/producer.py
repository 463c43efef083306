"""`amq producer` sends messages in a pipeline, also across a failover. The broker stores each message once."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import click

from amq.cli import exits
from amq.cli.clients import (
    Address,
    Failovers,
    Seconds,
    connection_options,
    open_connection,
    parse_headers,
    persistent_option,
    progress,
    rate,
    window_option,
)
from amq.cli.options import valued
from amq.cli.output import counted, examples, json_option, print_json
from amq.client import FlushError, Producer
from amq.core.errors import AmqError

LAST_FLUSH_S = 1.0  # after Ctrl-C, wait so long for outstanding confirmations
_EPILOG = examples(
    "amq producer --destination /queue/orders --message 'one pizza'",
    "amq producer --destination /queue/orders --file orders.txt",
    "seq 1000 | amq producer --destination /queue/numbers --file -",
    "amq producer --url 'failover:(stomp://a:61613,stomp://b:61613)' --destination /queue/a --count 1000 --size 1024",
)


@click.command(epilog=_EPILOG)
@connection_options
@click.option("--destination", metavar="NAME", required=True, help="Send to this destination, such as /queue/NAME.")
@click.option(
    "--file",
    "path",
    metavar="FILE",
    help="Send each line of this file as a message, without its line end; - is stdin.",
)
@click.option("--message", metavar="TEXT", help="Send this text as a message.")
@click.option(
    "--count",
    metavar="N",
    type=click.IntRange(min=0),
    help="Send N messages. Default: 1, or all lines of --file.",
)
@click.option("--size", metavar="N", type=click.IntRange(min=0), help="Generate messages of N bytes.")
@click.option(
    "--header",
    "headers",
    metavar="K=V",
    multiple=True,
    help="Add this header to every message. May be repeated.",
)
@persistent_option
@valued("--priority", type=click.IntRange(0, 9), default=4, help="Priority of the messages, 0 (lowest) to 9.")
@click.option(
    "--ttl",
    metavar="SECONDS",
    type=Seconds(max=1e10),
    default=0.0,
    help="Messages expire after this time; 0 = never.",
)
@window_option(1000)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=Seconds(),
    help="Wait at most so long for a broker. Default: the time-out in the URL.",
)
@json_option
def producer(
    at: Address,
    destination: str,
    path: str | None,
    message: str | None,
    count: int | None,
    size: int | None,
    headers: tuple[str, ...],
    persistent: bool,
    priority: int,
    ttl: float,
    window: int,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Send messages: lines of a file, a text, or generated ones.

    The command sends without waiting for each confirmation; the broker confirms a message when it is stored. After a
    takeover the command sends unconfirmed messages again, and the new master stores each message once. The command ends
    when the broker has confirmed every message.
    """
    if path is not None and message is not None:
        raise click.UsageError("give one of --file and --message")
    if size is not None and (path is not None or message is not None):
        raise click.UsageError("--size is for generated messages: leave out --file and --message")
    send_options: dict[str, Any] = {
        "headers": parse_headers(headers),
        "persistent": persistent,
        "priority": priority,
        "time_to_live": ttl,
        "timeout": timeout,
        "wait": False,
    }
    failovers = Failovers()
    report = _Report(as_json, failovers)
    with _source(path, message, count, size) as (bodies, total):
        try:
            with (
                open_connection(at, failovers, timeout=timeout, send_window_messages=window) as connection,
                connection.session() as session,
                progress("sent", total) as show,
            ):
                report.begin()
                sender = session.producer(destination)
                try:
                    for body in bodies:
                        sender.send(body, **send_options)
                        report.sent += 1
                        report.sent_bytes += len(body)
                        show(report.sent)
                    sender.flush(timeout)
                    report.end()
                except FlushError as error:
                    report.end(failed=len(error.failures))
                    raise
                except (AmqError, KeyboardInterrupt) as error:
                    failed = _settle(sender, LAST_FLUSH_S if isinstance(error, KeyboardInterrupt) else 0.0)
                    report.end(failed, connection.unconfirmed)
                    connection.abort()  # an orderly close would wait for the unconfirmed sends
                    raise
        except FlushError as error:
            report.show()
            first = error.failures[0][1]
            exits.fail(error.description, exits.exit_code(first), first.code)
        except (AmqError, KeyboardInterrupt):
            report.show()
            raise
    report.show()


def _settle(sender: Producer, timeout_s: float) -> int:
    """After an error: the number of sends that the broker has refused or that were lost with the connection."""
    try:
        sender.flush(timeout_s)
    except FlushError as error:
        return len(error.failures)
    except (AmqError, KeyboardInterrupt):
        return 0  # no answer: they are unconfirmed, and counted as such
    return 0


class _Report:
    """Counts what was sent and confirmed, and measures the rate."""

    def __init__(self, as_json: bool, failovers: Failovers) -> None:
        self.sent = 0
        self.sent_bytes = 0
        self.failed = 0
        self._unconfirmed = 0
        self._as_json = as_json
        self._failovers = failovers
        self._began: float | None = None
        self._seconds = 0.0

    def begin(self) -> None:
        self._began = time.monotonic()

    def end(self, failed: int = 0, unconfirmed: int = 0) -> None:
        assert self._began is not None
        self.failed = failed
        self._seconds = time.monotonic() - self._began
        self._unconfirmed = unconfirmed

    def show(self) -> None:
        if self._began is None:
            return
        confirmed = self.sent - self._unconfirmed - self.failed
        facts: dict[str, Any] = {
            "sent": self.sent,
            "confirmed": confirmed,
            "failed": self.failed,
            "unconfirmed": self._unconfirmed,
            "bytes": self.sent_bytes,
            "seconds": round(self._seconds, 3),
            "per_s": rate(confirmed, self._seconds),
            "failovers": self._failovers.count,
            "interrupted_s": round(self._failovers.interrupted_s, 3),
        }
        if self._as_json:
            print_json(facts, indent=None)
            return
        click.echo(
            f"{confirmed:,} of {counted(self.sent, 'message')} confirmed in {self._seconds:.3f} s "
            f"({facts['per_s']:,.0f}/s), {counted(self._failovers.count, 'failover')}"
        )


@contextmanager
def _source(
    path: str | None, message: str | None, count: int | None, size: int | None
) -> Iterator[tuple[Iterator[bytes | str], int | None]]:
    """Returns (bodies, their number or None if unknown)."""
    if path is None:
        number = 1 if count is None else count
        yield (itertools.repeat(message, number) if message is not None else _generated(number, size)), number
    elif path == "-":
        yield _lines(sys.stdin.buffer, count), count
    else:
        with open(path, "rb") as file:
            yield _lines(file, count), count


def _lines(file: BinaryIO, count: int | None) -> Iterator[bytes]:
    return (line.removesuffix(b"\n") for line in itertools.islice(file, count))


def _generated(count: int, size: int | None) -> Iterator[bytes]:
    for number in range(1, count + 1):
        text = f"message {number}".encode()
        yield text if size is None else text[:size].ljust(size, b".")
