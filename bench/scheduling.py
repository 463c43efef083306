"""Many scheduled messages: how fast they are stored, what each costs in memory, how late others are beside them.

First messages that are due in an hour or later are sent. Then, while those wait, some more that fall due in the next
seconds, spread evenly, to a consumer: lateness is from the time that each asked for, by the wall clock of this host,
until the consumer has it. Invariant: a result is returned only when each of these came once, and none too early.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from bench import brokers, cli, host
from bench.load import LoadError
from bench.stats import percentiles
from bench.wire import WireConnection, WireError, encode

EXAMPLES = ("--quick", "--messages 1000000 --peer activemq", "--messages 1000000 --near 50000 --json scheduling.json")
WINDOW = 2000  # messages of a batch; its last one is confirmed before the next but one is sent
NEAR_WINDOW = 10  # the same where it counts when the broker has them: delays are from then
HOUR_MS = 3_600_000
LEAD_S = 2.0  # from now until the first of the near ones falls due, at the least
QUEUE, NEAR_QUEUE = "/queue/bench", "/queue/bench.near"
TIMEOUT_S = 60.0


def schedule(
    connection: WireConnection, destination: str, delays_ms: Sequence[int], size_bytes: int, window: int = WINDOW
) -> float:
    """Send a persistent message for each delay; its body begins with when it is due. Returns seconds until all are
    confirmed. Raises OSError, WireError."""
    start_s = time.monotonic()
    receipts = 0
    for i in range(0, len(delays_ms), window):
        batch = delays_ms[i : i + window]
        now_ms = time.time_ns() / 1e6
        frames = []
        for number, delay_ms in enumerate(batch, start=1):
            headers: dict[str, object] = {"destination": destination, "persistent": "true"}
            headers |= {"AMQ_SCHEDULED_DELAY": delay_ms, "content-length": size_bytes}
            if number == len(batch):
                headers["receipt"] = i
            frames.append(encode("SEND", headers, f"{now_ms + delay_ms:.3f};".encode().ljust(size_bytes, b"x")))
        connection.send_bytes(b"".join(frames))
        receipts += 1
        if receipts > 1:
            connection.receipt(str(i - window), TIMEOUT_S)
    connection.receipt(str((receipts - 1) * window), TIMEOUT_S)
    return time.monotonic() - start_s


def lateness_ms(connection: WireConnection, count: int, patience_s: float) -> list[float]:
    """How late each of `count` messages of the near queue is. Raises LoadError where one is missing or early."""
    late: list[float] = []
    seen: set[str] = set()
    while len(late) < count:
        try:
            frames = connection.read(patience_s)
        except TimeoutError as error:
            raise LoadError(f"only {len(late)} of {count} scheduled messages came") from error
        now_ms = time.time_ns() / 1e6
        for frame in frames:
            late.append(now_ms - float(frame.body.partition(b";")[0]))
            seen.add(frame.headers["message-id"])
    if len(seen) != len(late):
        raise LoadError(f"{len(late) - len(seen)} scheduled messages came twice")
    if min(late) < -1.0:
        raise LoadError(f"a scheduled message came {-min(late):.3f} ms too early")
    return late


def measure(
    kind: str,
    messages: int,
    near: int,
    span_s: float,
    size_bytes: int,
    directory: str | None,
    options: dict[str, str],
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """`messages` that wait, and then `near` that fall due within `span_s`."""
    randomly = random.Random(1)
    progress(f"{kind}: starting")
    with brokers.BrokerGroup(kind, directory=directory, options={"schedulerSupport": "true"} | options) as group:
        broker = group.wait_master()
        with WireConnection(broker.port) as producer, WireConnection(broker.port) as consumer:
            schedule(producer, QUEUE, [HOUR_MS] * min(messages, WINDOW), size_bytes)  # what is made once is there
            empty_bytes = broker.memory_bytes()
            progress(f"{kind}: scheduling {messages:,} messages")
            far = [HOUR_MS + randomly.randrange(24 * HOUR_MS) for _ in range(messages)]
            seconds = schedule(producer, QUEUE, far, size_bytes)
            memory_bytes = broker.memory_bytes()
            progress(f"{kind}: {near:,} fall due within {span_s:g} s")
            consumer.send("SUBSCRIBE", {"id": "1", "destination": NEAR_QUEUE, "ack": "auto", "receipt": "s"})
            consumer.receipt("s", TIMEOUT_S)
            lead_s = LEAD_S + 5 * near * seconds / messages
            delays_ms = [int(1000 * (lead_s + span_s * number / near)) for number in range(near)]
            randomly.shuffle(delays_ms)
            schedule(producer, NEAR_QUEUE, delays_ms, size_bytes, NEAR_WINDOW)
            late = lateness_ms(consumer, near, lead_s + span_s + TIMEOUT_S)
    return {
        "kind": kind,
        "messages": messages,
        "size_bytes": size_bytes,
        "per_s": messages / seconds,
        "memory_bytes_per_message": (memory_bytes - empty_bytes) / messages,
        "near": near,
        "due_per_s": near / span_s,
        "late_ms": percentiles(late),
    }


def table(results: Sequence[dict[str, Any]]) -> Table:
    shown = Table(title="scheduled messages: persistent, receipts asked for")
    for heading in ("", "waiting", "scheduled/s", "memory B a message", "due/s", *results[0]["late_ms"]):
        shown.add_column(heading if heading not in results[0]["late_ms"] else f"late {heading} ms", justify="right")
    for result in results:
        shown.add_row(
            result["kind"],
            f"{result['messages']:,}",
            f"{result['per_s']:,.0f}",
            f"{result['memory_bytes_per_message']:.0f}",
            f"{result['due_per_s']:,.0f}",
            *(f"{value:.1f}" for value in result["late_ms"].values()),
        )
    return shown


def main() -> None:
    parser = cli.parser("scheduling", __doc__, EXAMPLES)
    parser.add_argument("--messages", type=int, default=100_000, help="that wait for hours (default %(default)s)")
    parser.add_argument("--near", type=int, default=5000, help="that fall due beside them (default %(default)s)")
    parser.add_argument("--span", type=float, default=5.0, metavar="S", help="within which (default %(default)s)")
    parser.add_argument("--size", type=int, default=1024, metavar="BYTES", help="of a body (default %(default)s)")
    args = parser.parse_args()
    cli.terminate_on_signal()
    messages, near, span_s = (10_000, 1000, 1.0) if args.quick else (args.messages, args.near, args.span)
    results = []
    try:
        for kind in cli.kinds(args):
            options = cli.amq_options(args) if kind == "amq" else {}
            results.append(measure(kind, messages, near, span_s, args.size, args.dir, options, cli.progress))
    except (LoadError, WireError, OSError, brokers.BrokerProcessError) as error:
        sys.exit(f"failed: {error}")
    cli.show(args, {"host": host.describe(args.dir), "scheduling": results}, table(results))


if __name__ == "__main__":
    main()
