"""`amq perf`: load from several processes on one broker: throughput, latency percentiles."""

from __future__ import annotations

import dataclasses
import secrets

import click

from amq.cli.clients import Seconds, connection_options
from amq.cli.load import ACKS, HEAD_BYTES, MODES, Load, Result, run
from amq.cli.output import examples, json_option, print_json, print_table
from amq.cli.status import ask
from amq.client import ConnectError
from amq.client.uri import BrokerUri, parse
from amq.errors import AccessError

_EPILOG = examples(
    "amq perf",
    "amq perf --producers 4 --consumers 4 --count 200000 --window 256",
    "amq perf --window 1 --non-persistent --json",
    "amq perf --mode send --count 50000 --destination /queue/backlog",
    "amq perf --mode recv --count 50000 --destination /queue/backlog",
)


@click.command(epilog=_EPILOG)
@connection_options
@click.option(
    "--producers", metavar="N", type=click.IntRange(1, 1000), default=1, show_default=True,
    help="Processes that send.",
)  # fmt: skip
@click.option(
    "--consumers", metavar="N", type=click.IntRange(1, 1000), default=1, show_default=True,
    help="Processes that receive.",
)  # fmt: skip
@click.option(
    "--count", metavar="N", type=click.IntRange(min=1), default=50_000, show_default=True,
    help="Messages in all.",
)  # fmt: skip
@click.option(
    "--size", metavar="N", type=click.IntRange(min=HEAD_BYTES), default=1024, show_default=True,
    help="Bytes of a body.",
)  # fmt: skip
@click.option(
    "--window", metavar="N", type=click.IntRange(min=1), default=256, show_default=True,
    help="Unconfirmed sends of one producer.",
)  # fmt: skip
@click.option(
    "--prefetch", metavar="N", type=click.IntRange(min=1), default=1000, show_default=True,
    help="Sent ahead of acks.",
)  # fmt: skip
@click.option("--persistent/--non-persistent", default=True, help="Survive a takeover or not. Default: persistent.")
@click.option("--ack", type=click.Choice(ACKS), default="client-individual", show_default=True, help="Ack mode.")
@click.option("--mode", type=click.Choice(MODES), default="both", show_default=True, help="Leave one side out.")
@click.option("--destination", metavar="NAME", help="An empty queue. Default: a new one.")
@click.option(
    "--timeout", metavar="SECONDS", type=Seconds(min=0.001), default=60.0, show_default=True,
    help="Without progress.",
)  # fmt: skip
@json_option
def perf(
    url: str, login: str, passcode: str, producers: int, consumers: int, count: int, size: int, window: int,
    prefetch: int, persistent: bool, ack: str, mode: str, destination: str | None, timeout: float, as_json: bool,
) -> None:  # fmt: skip
    """Measure throughput and latency with several processes.

    A figure is shown only when every message was confirmed, delivered exactly once and acknowledged. Each producer
    keeps --window sends unconfirmed; with a window of 1 it waits for each. Of a failover URL the broker that serves is
    taken; a failover meanwhile fails the measurement. Latencies mean something while the broker keeps up: with a large
    window they are those of a full queue.
    """
    uri = _serving(url, login, passcode)
    load = Load(
        uri.port, uri.host, producers, consumers, count, size, window, persistent, ack, mode, prefetch,
        destination or f"/queue/amq.perf.{secrets.token_hex(4)}", uri.login or login, uri.passcode or passcode, timeout,
    )  # fmt: skip
    result = run(load)
    if as_json:
        settings = {name: value for name, value in dataclasses.asdict(load).items() if name != "passcode"}
        print_json({"load": settings, "result": dataclasses.asdict(result)})
    else:
        _print(load, result)


def _serving(url: str, login: str, passcode: str) -> BrokerUri:
    """The broker of the URL that serves clients. Raises ConnectError, because of an AccessError where one refuses."""
    reasons, refusal = [], None
    for uri in parse(url).uris:
        facts = ask(uri, uri.login or login, uri.passcode or passcode)
        if facts["state"] == "serving":
            return uri
        reasons.append(f"{uri}: {facts['reason']}")
        if facts["state"] == "rejected":
            refusal = AccessError(facts["reason"])
    raise ConnectError(f"no broker serves clients: {'; '.join(reasons)}") from refusal


def _print(load: Load, result: Result) -> None:
    kind = "persistent" if load.persistent else "non-persistent"
    sides = {"both": f"{load.producers} producers, {load.consumers} consumers", "send": f"{load.producers} producers"}
    click.echo(
        f"{sides.get(load.mode, f'{load.consumers} consumers')}, {load.messages:,} {kind} messages of "
        f"{load.size_bytes:,} bytes, window {load.window}"
    )
    click.echo(f"{result.per_s:,.0f} messages/s ({result.seconds:.3f} s)")
    rows = [
        (label, *(f"{latencies[name] / 1000:.2f} ms" for name in latencies))
        for label, latencies in (("send to receipt", result.confirm_us), ("send to delivery", result.delivery_us))
        if latencies
    ]
    if rows:
        print_table(("", *(result.confirm_us or result.delivery_us)), rows)
    click.echo(f"the load generator used {result.generator_cpu_us:.1f} µs of processor time for each message")
