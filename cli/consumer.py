"""`amq consumer`: receives messages and writes each as a line, before it acknowledges it: at least once, never lost."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import length_hint
from typing import Any, BinaryIO

import click

from amq.cli import exits
from amq.cli.clients import (
    Failovers,
    Seconds,
    connection_options,
    open_connection,
    parse_headers,
    progress,
    rate,
    say_nothing,
)
from amq.cli.output import examples
from amq.client import Consumer, DeliveryLostError, Message
from amq.protocols.commands import ACK_AUTO, ACK_CLIENT, ACK_INDIVIDUAL

BATCH_MAX = 256  # messages that are written before they are acknowledged
_EPILOG = examples(
    "amq consumer --destination /queue/orders",
    "amq consumer --destination /queue/orders --count 10 --timeout 5 --output orders.txt",
    "amq consumer --destination /queue/orders --timeout 1 --json >orders.txt",
    "amq consumer --url 'failover:(stomp://a:61613,stomp://b:61613)' --destination /queue/orders",
)


@click.command(epilog=_EPILOG)
@connection_options
@click.option("--destination", metavar="NAME", required=True, help="Where from: /queue/NAME.")
@click.option(
    "--output", metavar="FILE", default="-", show_default=True,
    help="Where bodies go, behind what is there; - is stdout.",
)  # fmt: skip
@click.option("--count", metavar="N", type=click.IntRange(min=1), help="Stop after so many. Default: never.")
@click.option(
    "--timeout", metavar="SECONDS", type=Seconds(),
    help="Stop when none comes for so long. Default: never.",
)  # fmt: skip
@click.option(
    "--prefetch", metavar="N", type=click.IntRange(min=1), default=1000, show_default=True,
    help="Sent ahead of acks.",
)  # fmt: skip
@click.option(
    "--ack", type=click.Choice([ACK_INDIVIDUAL, ACK_CLIENT, ACK_AUTO]), default=ACK_INDIVIDUAL, show_default=True,
    help="Acknowledge each message, all up to one, or as soon as it arrives (what then is not written is lost).",
)  # fmt: skip
@click.option("--header", "headers", metavar="K=V", multiple=True, help="A header of SUBSCRIBE. May be repeated.")
@click.option("--json", "as_json", is_flag=True, help="The summary as JSON, on stderr, for scripts.")
def consumer(
    url: str, login: str, passcode: str, destination: str, output: str, count: int | None, timeout: float | None,
    prefetch: int, ack: str, headers: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Receive messages and write each body as a line, exactly as it was sent.

    A message is acknowledged after it was written. Delivery is at least once: when the master or this command dies
    between the two, the message comes again and its line is there twice; the summary counts messages that were
    redelivered. The summary goes to stderr, JSON with --json.

    Exit code 1 where --count messages did not come in time.
    """
    failovers = Failovers()
    subscribe_headers = parse_headers(headers)
    with _sink(output) as sink:
        run = _Run(sink, ack, count, timeout)
        with (
            open_connection(url, login, passcode, failovers) as connection,
            connection.session(ack=ack) as session,
            progress("received", count) as show,
        ):
            run.begin(show)
            window = prefetch if count is None else min(prefetch, count)
            try:
                run.receive(session.consumer(destination, prefetch=window, headers=subscribe_headers))
            except KeyboardInterrupt:
                run.interrupted = True
            finally:
                run.report(as_json, failovers)
    if run.interrupted:
        raise click.exceptions.Exit(exits.INTERRUPTED)
    if count is not None and run.received < count:
        exits.fail(f"{run.received} of {count} messages, then none for {timeout:g} s", exits.FAILED, "TIMEOUT")


class _Run:
    """Receives, writes, acknowledges, in this order."""

    def __init__(self, sink: BinaryIO, ack: str, count: int | None, timeout: float | None) -> None:
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
        """Until there were enough, or none came for long enough."""
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
        """Write the batch, then acknowledge it. With `wait` until the broker has taken the last acknowledgement."""
        parts = [part for message in batch for part in (message.body, b"\n")]
        unwritten = iter(parts)
        try:
            self._sink.writelines(unwritten)
            self._sink.flush()
        except Exception:
            batch = []
            raise
        finally:  # also where Ctrl-C comes as the kernel has taken them: a reader may have acted on the lines already
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
        seconds = self._ended - self._began  # not the time after the last one
        facts: dict[str, Any] = {
            "received": self.received, "bytes": self.received_bytes, "seconds": round(seconds, 3),
            "per_s": rate(self.received, seconds), "redelivered": self.redelivered, "acks_lost": self.acks_lost,
            "failovers": failovers.count, "interrupted_s": round(failovers.interrupted_s, 3),
        }  # fmt: skip
        if as_json:
            click.echo(json.dumps(facts), err=True)
            return
        again = f", {self.redelivered:,} of them delivered before" if self.redelivered else ""
        click.echo(
            f"{self.received:,} messages{again} in {seconds:.3f} s ({facts['per_s']:,.0f}/s), "
            f"{failovers.count} failovers", err=True,
        )  # fmt: skip


@contextmanager
def _sink(output: str) -> Iterator[BinaryIO]:
    if output == "-":
        yield sys.stdout.buffer
    else:
        with open(output, "ab") as file:  # what an earlier run has written is nowhere else: it was acknowledged
            yield file
