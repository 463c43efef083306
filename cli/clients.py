"""Shared by the commands that talk to a broker: options, the connection, failover messages, the progress bar."""

from __future__ import annotations

import functools
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from amq.cli.exits import is_refusal
from amq.cli.options import valued
from amq.cli.output import console, is_terminal
from amq.client import Connection, ConnectionEvent, EventKind
from amq.client.connection import begin
from amq.client.driver import seconds
from amq.client.uri import BrokerUrl, parse

DEFAULT_URL = "stomp://127.0.0.1:61613"
REFRESH_S = 0.1
SAY_AFTER_S = 5.0
SECONDS_MAX = 1e9  # thirty years
_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Address:
    """The brokers that a command talks to, and its login there."""

    url: str
    login: str
    passcode: str


class Seconds(click.FloatRange):
    """A number of seconds, 0 or more. FloatRange alone takes nan."""

    def __init__(self, min: float = 0.0, max: float = SECONDS_MAX) -> None:
        super().__init__(min, max)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return found


def connection_options(command: Callable[..., None]) -> Callable[..., None]:
    """--url, --login and --passcode, which the command gets as the one value `at`."""

    @functools.wraps(command)
    def with_address(*, url: str, login: str, passcode: str, **more: Any) -> None:
        command(at=Address(url, login, passcode), **more)

    with_options: Callable[..., None] = with_address
    for option in (
        click.option(
            "--passcode", default="", envvar="AMQ_PASSCODE", help="Password, if the URL has none; or $AMQ_PASSCODE."
        ),
        click.option("--login", default="", envvar="AMQ_LOGIN", help="User, if the URL has none; or $AMQ_LOGIN."),
        click.option(
            "--url",
            metavar="URL",
            default=DEFAULT_URL,
            envvar="AMQ_URL",
            show_default=True,
            help="stomp://HOST:PORT, or failover:(stomp://A:PORT,stomp://B:PORT)?OPTIONS; or $AMQ_URL.",
        ),
    ):
        with_options = option(with_options)
    return with_options


persistent_option = click.option(
    "--persistent/--non-persistent",
    default=True,
    help="Store messages so that they survive a takeover, or not. Default: persistent.",
)
prefetch_option = valued(
    "--prefetch",
    type=click.IntRange(min=1),
    default=1000,
    help="Let the broker send at most N messages ahead of acknowledgements.",
)


def window_option(default: int) -> Callable[[_Command], _Command]:
    """--window"""
    return valued(
        "--window",
        type=click.IntRange(min=1),
        default=default,
        help="Let each producer send at most N messages ahead of their confirmations.",
    )


class Failovers:
    """Counts the failovers of a connection and reports them on stderr, and says so where no broker answers for long.

    A refusal is not reported here: the command ends with that error.
    """

    def __init__(self) -> None:
        self.count = 0
        self.interrupted_s = 0.0
        self._url: BrokerUrl | None = None
        self._connection: Connection | None = None
        self._timer: threading.Timer | None = None

    def connect(self, url: str, timeout: float | None, **options: Any) -> Connection:
        """Connect, and look on."""
        self._url = parse_url(url)
        self._connection = begin(url, on_event=self, **options)
        limit_s = seconds(timeout, self._url.options.timeout_ms)
        self._wait(f"the command waits for at most {limit_s:g} s (timeout)", startup=True)
        try:
            self._connection.wait_connected(timeout)
        finally:
            self._wait_no_more()
        return self._connection

    def __call__(self, event: ConnectionEvent) -> None:
        self._wait_no_more()
        if event.kind is EventKind.INTERRUPTED and not is_refusal(event.error):
            assert self._url is not None
            again = self._url.options.max_reconnect_attempts != 0
            says = "; connecting again" if again else ""
            click.echo(f"amq: connection to {event.old_uri} lost: {event.error}{says}", err=True)
            if again:
                self._wait("the command goes on", startup=False)
        elif event.kind is EventKind.FAILOVER:
            self.count += 1
            self.interrupted_s += event.duration_s
            click.echo(f"amq: connected to {event.new_uri} after {event.duration_s:.3f} s", err=True)
        elif event.kind is EventKind.REATTACHED:
            self.interrupted_s += event.duration_s
            click.echo(f"amq: connected to {event.new_uri} again after {event.duration_s:.3f} s", err=True)

    def _wait(self, how_long: str, startup: bool) -> None:
        self._timer = threading.Timer(SAY_AFTER_S, self._say, (how_long, startup))
        self._timer.daemon = True
        self._timer.start()

    def _wait_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _say(self, how_long: str, startup: bool) -> None:
        assert self._connection is not None
        assert self._url is not None
        causes = self._connection.why_not_connected or "; ".join(f"{uri}: no answer yet" for uri in self._url.uris)
        rounds = self._url.limit(startup) if self._url.failover else ""
        limit = f"{how_long}{', and gives up after ' if rounds else ''}{rounds}"
        click.echo(f"amq: no broker has answered for {SAY_AFTER_S:g} s: {causes}; {limit}", err=True)


def open_connection(at: Address, failovers: Failovers, timeout: float | None = None, **options: Any) -> Connection:
    """Connect; say so if that takes long. Errors of the client are printed in the form of the command line."""
    logging.basicConfig(format="amq: %(message)s", level=logging.ERROR, stream=sys.stderr)
    return failovers.connect(at.url, timeout, login=at.login, passcode=at.passcode, **options)


@functools.cache
def parse_url(url: str) -> BrokerUrl:
    """Parse a broker URL, and print its warnings, once. Raises UriError."""
    parsed = parse(url)
    for warning in parsed.warnings:
        click.echo(f"amq: warning: {warning}", err=True)
    return parsed


def parse_headers(pairs: tuple[str, ...]) -> dict[str, str]:
    """Parse words `k=v` as headers. Raises BadParameter."""
    headers = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"--header {pair}: write NAME=VALUE")
        headers[name] = value
    return headers


def say_nothing(_done: int) -> None:
    """Progress for nobody."""


@contextmanager
def progress(label: str, total: int | None, *, beside_output: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr while the block runs, if stderr is a terminal. The block calls the yielded function.

    beside_output   the block writes its result to stdout: no bar if that is a terminal too, as they would share lines
    """
    if not is_terminal() or (beside_output and sys.stdout.isatty()):
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
    """Rate per second, rounded for people; 0 if no time has passed."""
    return round(count / seconds, 1) if seconds > 0 else 0.0
