"""Many subscriptions with selectors on one topic, of which each message fits one.

Invariant: a result is returned only when every message came once, to the subscription whose selector it fits. The
producer is never more than the window ahead of what was delivered. Subscriptions are spread over a few connections, as
those of an application server are.
"""

from __future__ import annotations

import random
import select
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from bench import brokers, cli, host
from bench.load import LoadError
from bench.wire import WireConnection, WireError, encode

EXAMPLES = ("--quick", "--peer activemq", "--subscriptions 10000 --selector \"region = 'r{i}' AND price > 3\"")
SELECTOR = "kind = 't{i}'"
CONNECTIONS = 20
SUBSCRIBE_BATCH = 500  # subscriptions asked for before the receipt of the last one is waited for
TOPIC = "/topic/bench.selected"
TIMEOUT_S = 120.0
LONGEST_S = 30.0  # of the measured time: a slow broker gets fewer messages


def subscribe(connection: WireConnection, numbers: Sequence[int], selector: str) -> None:
    """A subscription for each number, with `selector` filled in; ends when the broker has them all."""
    for at in range(0, len(numbers), SUBSCRIBE_BATCH):
        batch = numbers[at : at + SUBSCRIBE_BATCH]
        frames = [
            encode(
                "SUBSCRIBE",
                {"id": i, "destination": TOPIC, "ack": "auto", "selector": selector.format(i=i)}
                | ({"receipt": i} if i == batch[-1] else {}),
            )
            for i in batch
        ]
        connection.send_bytes(b"".join(frames))
        connection.receipt(str(batch[-1]), TIMEOUT_S)


class GotSoFar:
    """What the consumers got so far. `got[serial]` = the subscription that message came to."""

    def __init__(self, consumers: Sequence[WireConnection]) -> None:
        self.got: dict[int, int] = {}
        self._by_number = {each.socket.fileno(): each for each in consumers}
        self._poll = select.epoll()
        for number in self._by_number:
            self._poll.register(number, select.EPOLLIN)

    def take(self, wait_s: float) -> None:
        """Take what is there, waiting up to `wait_s`. Raises LoadError for a message that comes twice."""
        for number, _ in self._poll.poll(wait_s):
            for frame in self._by_number[number].read(TIMEOUT_S):
                serial = int(frame.body.split(b";", 1)[0])
                if serial in self.got:
                    raise LoadError(f"message {serial} came twice")
                self.got[serial] = int(frame.headers["subscription"])


def drive(
    producer: WireConnection,
    consumers: Sequence[WireConnection],
    wanted: Sequence[int],
    size_bytes: int,
    window: int,
    longest_s: float = LONGEST_S,
) -> tuple[int, float]:
    """Send a message to each subscription in `wanted`, in that order, until all are sent or the time is over.

    Returns how many were sent and delivered, and in how many seconds. Raises LoadError, OSError, WireError.
    """
    deliveries = GotSoFar(consumers)
    start_s = moved_s = time.monotonic()
    sent = 0
    while True:
        before = len(deliveries.got)
        over = sent == len(wanted) or time.monotonic() - start_s > longest_s
        if over and before == sent:
            break
        if not over and sent - before <= window // 2:
            upto = min(len(wanted), before + window)
            producer.send_bytes(b"".join(_frame(serial, wanted[serial], size_bytes) for serial in range(sent, upto)))
            sent = upto
        deliveries.take(1.0)
        if len(deliveries.got) > before:
            moved_s = time.monotonic()
        elif time.monotonic() - moved_s > TIMEOUT_S:
            raise LoadError(f"{before} of {sent} messages came, and no more for {TIMEOUT_S:g} s")
    seconds = time.monotonic() - start_s
    strays = [serial for serial, number in deliveries.got.items() if wanted[serial] != number]
    if strays:
        serial = strays[0]
        raise LoadError(f"message {serial} fits {wanted[serial]} and came to {deliveries.got[serial]}")
    return sent, seconds


def _frame(serial: int, number: int, size_bytes: int) -> bytes:
    headers = {
        "destination": TOPIC,
        "content-length": size_bytes,
        "persistent": "false",
        "kind": f"t{number}",
        "region": f"r{number}",
        "price": number % 100 + 4,
    }
    return encode("SEND", headers, b"%d;" % serial + b"x" * (size_bytes - len(b"%d;" % serial)))


def measure(
    kind: str,
    subscriptions: int,
    messages: int,
    selector: str,
    size_bytes: int,
    window: int,
    directory: str | None,
    options: dict[str, str],
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """`messages` to `subscriptions`, after as many messages as the window holds to warm up."""
    randomly = random.Random(1)
    progress(f"{kind}: starting")
    with brokers.BrokerGroup(kind, directory=directory, options=options) as group:
        broker = group.wait_master()
        connections = [WireConnection(broker.port, timeout_s=TIMEOUT_S) for _ in range(CONNECTIONS + 1)]
        try:
            producer, *consumers = connections
            progress(f"{kind}: {subscriptions:,} subscriptions")
            start_s = time.monotonic()
            for number, consumer in enumerate(consumers):
                if mine := range(number, subscriptions, CONNECTIONS):
                    subscribe(consumer, mine, selector)
            subscribed_s = time.monotonic() - start_s
            progress(f"{kind}: {messages:,} messages")
            drive(producer, consumers, [randomly.randrange(subscriptions) for _ in range(window)], size_bytes, window)
            wanted = [randomly.randrange(subscriptions) for _ in range(messages)]
            sent, seconds = drive(producer, consumers, wanted, size_bytes, window)
        finally:
            for connection in connections:
                connection.close()
    return {
        "kind": kind,
        "subscriptions": subscriptions,
        "selector": selector,
        "size_bytes": size_bytes,
        "messages": sent,
        "per_s": sent / seconds,
        "subscribed_per_s": subscriptions / subscribed_s,
    }


def table(results: Sequence[dict[str, Any]]) -> Table:
    shown = Table(title=f"one topic, {results[0]['subscriptions']:,} subscriptions with {results[0]['selector']}")
    for heading in ("", "subscribed/s", "messages", "messages/s"):
        shown.add_column(heading, justify="right")
    for result in results:
        row = (f"{result['subscribed_per_s']:,.0f}", f"{result['messages']:,}", f"{result['per_s']:,.0f}")
        shown.add_row(result["kind"], *row)
    if len(results) == 2:
        shown.caption = f"amq / {results[1]['kind']}: {results[0]['per_s'] / results[1]['per_s']:.1f} ×"
    return shown


def main() -> None:
    parser = cli.parser("subscriptions", __doc__, EXAMPLES)
    parser.add_argument("--subscriptions", type=int, default=10_000, help="default %(default)s")
    parser.add_argument("--messages", type=int, default=100_000, help=f"at most, in {LONGEST_S:g} s")
    parser.add_argument("--selector", default=SELECTOR, metavar="SQL", help="{i} = number (default %(default)s)")
    parser.add_argument("--size", type=int, default=1024, metavar="BYTES", help="of a body (default %(default)s)")
    parser.add_argument("--window", type=int, default=500, help="sent and not yet delivered (default %(default)s)")
    args = parser.parse_args()
    cli.terminate_on_signal()
    subscriptions, messages = (500, 1000) if args.quick else (args.subscriptions, args.messages)
    results = []
    try:
        for kind in cli.kinds(args):
            options = cli.amq_options(args) if kind == "amq" else {}
            results.append(
                measure(
                    kind,
                    subscriptions,
                    messages,
                    args.selector,
                    args.size,
                    args.window,
                    args.dir,
                    options,
                    cli.progress,
                )
            )
    except (LoadError, WireError, OSError, brokers.BrokerProcessError) as error:
        sys.exit(f"failed: {error}")
    cli.show(args, {"host": host.describe(args.dir), "subscriptions": results}, table(results))


if __name__ == "__main__":
    main()
