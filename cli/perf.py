"""`amq perf` measures throughput and latency of one broker with load from several processes.

Invariant: a queue that the command made up itself is empty when it ends, except after --mode send.
"""

from __future__ import annotations

import dataclasses
import secrets

import click

from amq.cli.clients import (
    Address,
    Seconds,
    connection_options,
    parse_url,
    persistent_option,
    prefetch_option,
    progress,
    window_option,
)
from amq.cli.load import ACKS, HEAD_BYTES, MODES, Load, LoadResult, drain, run
from amq.cli.options import valued
from amq.cli.output import counted, examples, json_option, print_json, print_table
from amq.cli.status import ask
from amq.client import ConnectError
from amq.client.uri import BrokerUri
from amq.core.errors import AccessError

_EPILOG = examples(
    "amq perf",
    "amq perf --producers 4 --consumers 4 --count 200000 --window 256",
    "amq perf --window 1 --non-persistent --json",
    "amq perf --mode send --count 50000 --destination /queue/backlog",
    "amq perf --mode recv --count 50000 --destination /queue/backlog",
)


@click.command(epilog=_EPILOG)
@connection_options
@valued("--producers", type=click.IntRange(1, 1000), default=1, help="Start N processes that send.")
@valued("--consumers", type=click.IntRange(1, 1000), default=1, help="Start N processes that receive.")
@valued("--count", type=click.IntRange(min=1), default=50_000, help="Send N messages in all.")
@valued("--size", type=click.IntRange(min=HEAD_BYTES), default=1024, help="Size of a body in bytes.")
@window_option(256)
@prefetch_option
@persistent_option
@valued("--ack", type=click.Choice(ACKS), default="client-individual", help="Acknowledgement mode of the consumers.")
@valued("--mode", type=click.Choice(MODES), default="both", help="Send and receive, or only one of them.")
@click.option("--destination", metavar="NAME", help="Use this queue, which must be empty. Default: a new queue.")
@valued("--timeout", type=Seconds(min=0.001), default=60.0, help="Fail after so long without progress.")
@json_option
def perf(
    at: Address,
    producers: int,
    consumers: int,
    count: int,
    size: int,
    window: int,
    prefetch: int,
    persistent: bool,
    ack: str,
    mode: str,
    destination: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Measure throughput and latency with several processes.

    The command reports figures only if the broker confirmed every message, delivered it exactly once and took its
    acknowledgement. With a window of 1 a producer waits for each confirmation. With a failover URL the command measures
    the broker that serves; a failover during the run fails the measurement. Latencies are meaningful while the broker
    keeps up: with a large window they are the latencies of a full queue.
    """
    uri = _serving(at)
    load = Load(
        uri.port,
        uri.host,
        producers,
        consumers,
        count,
        size,
        window,
        persistent,
        ack,
        mode,
        prefetch,
        destination or f"/queue/amq.perf.{secrets.token_hex(4)}",
        uri.login or at.login,
        uri.passcode or at.passcode,
        timeout,
        uri if uri.tls else None,
    )
    try:
        with progress("confirmed" if mode == "send" else "received", count) as show:
            result = run(load, show)
    except BaseException:
        if destination is None and (problem := drain(load)):
            click.echo(f"amq: messages of this run may be left in {load.destination}: {problem}", err=True)
        raise
    if as_json:
        settings = {name: value for name, value in dataclasses.asdict(load).items() if name not in ("passcode", "tls")}
        print_json({"load": settings, "result": dataclasses.asdict(result)})
    else:
        _print(load, result)
        if mode == "send":
            click.echo(f"the messages wait in {load.destination}: --mode recv --destination {load.destination}")


def _serving(at: Address) -> BrokerUri:
    """The broker of the URL that serves clients. Raises ConnectError, caused by an AccessError if a broker refused."""
    reasons, refusal = [], None
    for uri in parse_url(at.url).uris:
        facts = ask(uri, uri.login or at.login, uri.passcode or at.passcode)
        if facts["state"] == "serving":
            return uri
        reasons.append(f"{uri}: {facts['reason']}")
        if facts["state"] == "rejected":
            refusal = AccessError(facts["reason"])
    raise ConnectError(f"no broker serves clients: {'; '.join(reasons)}") from refusal


def _print(load: Load, result: LoadResult) -> None:
    kind = "persistent" if load.persistent else "non-persistent"
    sides = {
        "send": (counted(load.producers, "producer"),),
        "recv": (counted(load.consumers, "consumer"),),
        "both": (counted(load.producers, "producer"), counted(load.consumers, "consumer")),
    }
    click.echo(
        f"{', '.join(sides[load.mode])}, {counted(load.messages, f'{kind} message')} of {load.size_bytes:,} bytes, "
        f"window {load.window}"
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
