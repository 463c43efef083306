"""What the commands that talk to a broker share: options, the connection, news of failovers, the progress bar."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from amq.cli.output import console, is_terminal
from amq.client import Connection, ConnectionEvent, EventKind, connect
from amq.client.uri import parse

DEFAULT_URL = "stomp://127.0.0.1:61613"
REFRESH_S = 0.1
SAY_AFTER_S = 5.0
SECONDS_MAX = 1e9  # thirty years
_Command = TypeVar("_Command", bound=Callable[..., Any])


class Seconds(click.FloatRange):
    """A number of seconds, 0 or more. FloatRange alone takes nan."""

    def __init__(self, min: float = 0.0, max: float = SECONDS_MAX) -> None:
        super().__init__(min, max)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return found


def connection_options(command: _Command) -> _Command:
    """--url, --login and --passcode."""
    for option in (
        click.option(
            "--passcode", default="", envvar="AMQ_PASSCODE", help="Password, where the URL has none; or $AMQ_PASSCODE."
        ),
        click.option("--login", default="", envvar="AMQ_LOGIN", help="User, where the URL has none; or $AMQ_LOGIN."),
        click.option(
            "--url", metavar="URL", default=DEFAULT_URL, envvar="AMQ_URL", show_default=True,
            help="stomp://HOST:PORT, or failover:(stomp://A:PORT,stomp://B:PORT)?OPTIONS; or $AMQ_URL.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


class Failovers:
    """Listens to a connection: counts failovers and tells of them on stderr. `again` = there can be some."""

    def __init__(self) -> None:
        self.count = 0
        self.interrupted_s = 0.0
        self.again = True

    def __call__(self, event: ConnectionEvent) -> None:
        if event.kind is EventKind.INTERRUPTED:
            again = "; connecting again" if self.again else ""
            click.echo(f"amq: connection to {event.old_uri} lost: {event.error}{again}", err=True)
        elif event.kind is EventKind.FAILOVER:
            self.count += 1
            self.interrupted_s += event.duration_s
            click.echo(f"amq: connected to {event.new_uri} after {event.duration_s:.3f} s", err=True)


def open_connection(url: str, login: str, passcode: str, failovers: Failovers, **options: Any) -> Connection:
    """Connect, and say so when that takes long; the client's own errors come out as the command line's messages do."""
    logging.basicConfig(format="amq: %(message)s", level=logging.ERROR, stream=sys.stderr)
    failovers.again = parse(url).options.max_reconnect_attempts != 0
    waiting = threading.Timer(SAY_AFTER_S, click.echo, ("amq: no broker has answered yet; waiting",), {"err": True})
    waiting.start()
    try:
        return connect(url, login=login, passcode=passcode, on_event=failovers, **options)
    finally:
        waiting.cancel()


def parse_headers(pairs: tuple[str, ...]) -> dict[str, str]:
    """`k=v` words as headers. Raises BadParameter."""
    headers = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"--header {pair}: write NAME=VALUE")
        headers[name] = value
    return headers


def say_nothing(_done: int) -> None:
    """Progress that nobody watches."""


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while the block runs, if that is a terminal. Call the yielded function with how much is done."""
    if not is_terminal():
        yield say_nothing
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f}"), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        shown_at = 0.0

        def show(done: int) -> None:
            nonlocal shown_at
            now = time.monotonic()
            if now - shown_at >= REFRESH_S:
                shown_at = now
                bar.update(task, completed=done)

        yield show


def rate(count: int, seconds: float) -> float:
    """How many per second, rounded for people; 0 where there was no time."""
    return round(count / seconds, 1) if seconds > 0 else 0.0
