"""`amq consumer` receives messages, writes each as a line and then acknowledges it: at least once, never lost. With
`--browse` it takes nothing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import length_hint
from typing import Any, Protocol

import click

from amq.cli import exits
from amq.cli.clients import (
    Address,
    Failovers,
    Seconds,
    connection_options,
    open_connection,
    parse_headers,
    prefetch_option,
    progress,
    rate,
    say_nothing,
)
from amq.cli.options import valued
from amq.cli.output import counted, examples
from amq.client import Consumer, DeliveryLostError, Message, Session
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_CLIENT, ACK_INDIVIDUAL

BATCH_MAX = 256  # messages written before they are acknowledged
_EPILOG = examples(
    "amq consumer --destination /queue/orders",
    "amq consumer --destination /queue/orders --count 10 --timeout 5 --output orders.txt",
    "amq consumer --destination /queue/orders --timeout 1 --json >orders.txt",
    "amq consumer --destination /queue/orders --browse",
    "amq consumer --url 'failover:(stomp://a:61613,stomp://b:61613)' --destination /queue/orders",
)


@click.command(epilog=_EPILOG)
@connection_options
@click.option(
    "--destination",
    metavar="NAME",
    required=True,
    help="Receive from this destination, such as /queue/NAME.",
)
@click.option(
    "--output",
    metavar="FILE",
    default="-",
    show_default=True,
    help="Append bodies to this file; - is stdout.",
)
@click.option(
    "--browse",
    is_flag=True,
    help="Show the messages of a queue, leave them there, and stop at the end.",
)
@click.option("--count", metavar="N", type=click.IntRange(min=1), help="Stop after N messages. Default: never.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=Seconds(),
    help="Stop if no message arrives for so long. Default: never.",
)
@prefetch_option
@valued(
    "--ack",
    type=click.Choice([ACK_INDIVIDUAL, ACK_CLIENT, ACK_AUTO]),
    default=ACK_INDIVIDUAL,
    help="client-individual: acknowledge each message; client: all up to one; auto: on delivery (not safe).",
)
@click.option(
    "--header",
    "headers",
    metavar="K=V",
    multiple=True,
    help="Add this header to SUBSCRIBE. May be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Write the summary as JSON, on stderr, for scripts.")
def consumer(
    at: Address,
    destination: str,
    output: str,
    browse: bool,
    count: int | None,
    timeout: float | None,
    prefetch: int,
    ack: str,
    headers: tuple[str, ...],
    as_json: bool,
) -> None:
    """Receive messages and write each body as a line, exactly as it was sent.

    The command writes a message before it acknowledges it (at-least-once delivery): if the master or this command dies
    between the two steps, the broker delivers the message again and its line appears twice. The summary on stderr
    counts redelivered messages.

    With --browse the command acknowledges nothing and takes nothing from the queue.

    Exit code 1 if --count messages did not come in time.
    """
    failovers = Failovers()
    subscribe_headers = parse_headers(headers)
    if "browser" in subscribe_headers:
        raise click.UsageError("--header browser=… would show the queue again and again: use --browse")
    if browse and ack != ACK_INDIVIDUAL:
        raise click.UsageError("--browse acknowledges nothing: leave out --ack")
    with _sink(output) as sink:
        run = _Run(sink, ACK_AUTO if browse else ack, count, timeout)
        with (
            open_connection(at, failovers) as connection,
            connection.session(ack=ack) as session,
            progress("received", count, beside_output=output == "-") as show,
        ):
            run.begin(show)
            window = prefetch if count is None else min(prefetch, count)
            try:
                run.receive(_subscribe(session, destination, browse, window, subscribe_headers))
            except KeyboardInterrupt:
                run.interrupted = True
            finally:
                run.report(as_json, failovers)
    if run.interrupted:
        raise click.exceptions.Exit(exits.INTERRUPTED)
    if count is not None and run.received < count:
        if browse:
            exits.fail(f"the queue holds {counted(run.received, 'message')}, not {count}", exits.FAILED, "TIMEOUT")
        exits.fail(f"{run.received} of {count} messages, then none for {timeout:g} s", exits.FAILED, "TIMEOUT")


def _subscribe(session: Session, destination: str, browse: bool, prefetch: int, headers: dict[str, str]) -> Consumer:
    if browse:
        return session.browser(destination, prefetch=prefetch, headers=headers)
    return session.consumer(destination, prefetch=prefetch, headers=headers)


class Sink(Protocol):
    """The place to which bodies go."""

    def writelines(self, lines: Iterable[bytes], /) -> None: ...
    def flush(self) -> None: ...


class _Run:
    """Receives, writes, then acknowledges. With ACK_AUTO it acknowledges nothing."""

    def __init__(self, sink: Sink, ack: str, count: int | None, timeout: float | None) -> None:
        self.received = 0
        self.received_bytes = 0
        self.redelivered = 0
        self.acks_lost = 0
        self.interrupted = False
        self._sink = sink
        self._ack = ack
        self._count = count
        self._timeout = timeout
        self._began = self._ended = time.monotonic()
        self._show: Callable[[int], None] = say_nothing

    def begin(self, show: Callable[[int], None]) -> None:
        self._began = self._ended = time.monotonic()
        self._show = show

    def receive(self, consumer: Consumer) -> None:
        """Receive until there are enough messages, or none arrives in time."""
        batch: list[Message] = []
        while self._count is None or self.received + len(batch) < self._count:
            message = consumer.receive(0 if batch else self._timeout)
            if message is not None:
                batch.append(message)
                if len(batch) < BATCH_MAX:
                    continue
            elif not batch:
                break
            self._settle(batch)
            batch = []
        if batch:
            self._settle(batch, wait=True)

    def _settle(self, batch: list[Message], wait: bool = False) -> None:
        """Write the batch, then acknowledge it. `wait` = until the broker has confirmed the last acknowledgement."""
        parts = [part for message in batch for part in (message.body, b"\n")]
        unwritten = iter(parts)
        try:
            self._sink.writelines(unwritten)
            self._sink.flush()
        except Exception:
            batch = []
            raise
        finally:  # also if Ctrl-C comes when the kernel has taken them: a reader may have acted on the lines already
            written = batch[: (len(parts) - length_hint(unwritten)) // 2]
            self.received += len(written)
            self.received_bytes += sum(len(message.body) for message in written)
            self.redelivered += sum(message.redelivered for message in written)
        self._ended = time.monotonic()
        self._show(self.received)
        if self._ack == ACK_AUTO:
            return
        for message in batch if self._ack == ACK_INDIVIDUAL else batch[-1:]:
            try:
                message.ack(wait=wait and message is batch[-1])
            except DeliveryLostError:
                self.acks_lost += 1  # a failover came between: the broker delivers it again

    def report(self, as_json: bool, failovers: Failovers) -> None:
        seconds = self._ended - self._began  # without the time after the last message
        facts: dict[str, Any] = {
            "received": self.received,
            "bytes": self.received_bytes,
            "seconds": round(seconds, 3),
            "per_s": rate(self.received, seconds),
            "redelivered": self.redelivered,
            "acks_lost": self.acks_lost,
            "failovers": failovers.count,
            "interrupted_s": round(failovers.interrupted_s, 3),
        }
        if as_json:
            click.echo(json.dumps(facts), err=True)
            return
        again = f", {self.redelivered:,} of them delivered before," if self.redelivered else ""
        click.echo(
            f"{counted(self.received, 'message')}{again} in {seconds:.3f} s ({facts['per_s']:,.0f}/s), "
            f"{counted(failovers.count, 'failover')}",
            err=True,
        )


class _Terminal:
    """Shows bodies in place of what a terminal would obey."""

    def writelines(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            sys.stdout.write(line.decode("utf-8", "backslashreplace"))

    def flush(self) -> None:
        sys.stdout.flush()


@contextmanager
def _sink(output: str) -> Iterator[Sink]:
    if output == "-":
        yield _Terminal() if sys.stdout.isatty() else sys.stdout.buffer
    else:
        with open(output, "ab") as file:  # an earlier run acknowledged its messages: its lines are the only copy
            yield file
