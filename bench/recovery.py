"""Cold start against the length of the backlog: time, memory, disk.

One broker gets more and more messages of 1 KiB, is killed with -9 and started again, several times at each length.
Measured: from the start of the process until CONNECT is answered and until a consumer holds the first message; resident
memory then; bytes in the store. Time and memory less those of the empty store, per message, are the slopes that count.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from bench import brokers, cli, host
from bench.load import Load, LoadError, run
from bench.stats import Spread, spread
from bench.takeover import QUEUE, first_message
from bench.wire import WireConnection

BODY_BYTES = 1024
EXAMPLES = ("--quick", "--backlog 10000 --backlog 100000 --peer activemq", "--backlog 1000000 --json recovery.json")
BACKLOGS = (10_000, 50_000, 100_000)
QUICK_BACKLOGS = (2_000, 10_000)


def store_bytes(store: Path) -> int:
    """Disk space that the files below `store` take, reserved blocks included."""
    return sum(path.stat().st_blocks * 512 for path in store.rglob("*") if path.is_file())


def one_start(group: brokers.BrokerGroup, backlog: int) -> dict[str, float]:
    """Kill the only broker of `group`, start it again, look at it."""
    broker = group.brokers[0]
    broker.kill()
    start_s = time.monotonic()
    broker.start()
    group.wait_master()
    connected_s = time.monotonic()
    if backlog:
        with WireConnection(broker.port) as connection:
            first_message(connection)
    return {
        "connected_s": connected_s - start_s,
        "first_message_s": time.monotonic() - start_s,
        "memory_bytes": broker.memory_bytes(),
        "store_bytes": store_bytes(group.store),
    }


def measure(
    kind: str,
    backlogs: Sequence[int],
    repeat: int,
    directory: str | None,
    options: dict[str, str],
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """One entry per backlog, the empty one first."""
    results: list[dict[str, Any]] = []
    progress(f"{kind}: starting")
    with brokers.BrokerGroup(kind, directory=directory, options=options) as group:
        stored = 0
        for backlog in (0, *sorted(backlogs)):
            if backlog > stored:
                progress(f"{kind}: sending {backlog - stored} messages")
                port = group.wait_master().port
                run(Load(port, producers=4, messages=backlog - stored, window=1000, mode="send", destination=QUEUE))
                stored = backlog
            starts = []
            for number in range(repeat):
                progress(f"{kind}: start {number + 1} of {repeat} with {backlog} messages")
                starts.append(one_start(group, backlog))
            spreads = {name: spread([start[name] for start in starts]) for name in starts[0]}
            empty = results[0]["spread"] if results else {name: value._asdict() for name, value in spreads.items()}
            slopes = {
                f"{name}_per_message": (spreads[name].median - empty[name]["median"]) / backlog
                for name in ("connected_s", "memory_bytes", "store_bytes")
                if backlog
            }
            spread_report = {name: value._asdict() for name, value in spreads.items()}
            results.append({"kind": kind, "messages": backlog, "spread": spread_report, **slopes})
    return results


def table(results: Sequence[dict[str, Any]]) -> Table:
    shown = Table(title="cold start after kill -9, median (min–max)")
    for heading in (
        "",
        "backlog",
        "connected s",
        "first message s",
        "µs a message",
        "memory MB",
        "memory B a message",
        "store B a message",
    ):
        shown.add_column(heading, justify="right" if heading else "left")
    for result in results:
        connected, message = (Spread(**result["spread"][name]) for name in ("connected_s", "first_message_s"))
        slopes = ["–"] * 3
        if result["messages"]:
            slopes = [
                f"{result['connected_s_per_message'] * 1e6:.1f}",
                f"{result['memory_bytes_per_message']:.0f}",
                f"{result['store_bytes_per_message']:.0f}",
            ]
        shown.add_row(
            result["kind"],
            f"{result['messages']:,}",
            f"{connected.median:.2f} ({connected.low:.2f}–{connected.high:.2f})",
            f"{message.median:.2f} ({message.low:.2f}–{message.high:.2f})" if result["messages"] else "–",
            slopes[0],
            f"{result['spread']['memory_bytes']['median'] / 1e6:.0f}",
            slopes[1],
            slopes[2],
        )
    return shown


def main() -> None:
    parser = cli.parser("recovery", __doc__, EXAMPLES)
    parser.add_argument(
        "--backlog", type=int, action="append", metavar="N", help=f"messages waiting (repeatable; default {BACKLOGS})"
    )
    parser.add_argument("--repeat", type=int, default=3, help="starts at each length (default %(default)s)")
    args = parser.parse_args()
    cli.terminate_on_signal()
    backlogs = args.backlog or (QUICK_BACKLOGS if args.quick else BACKLOGS)
    repeat = 1 if args.quick else args.repeat
    results = []
    try:
        for kind in cli.kinds(args):
            options = cli.amq_options(args) if kind == "amq" else {}
            results += measure(kind, backlogs, repeat, args.dir, options, cli.progress)
    except (LoadError, brokers.BrokerProcessError) as error:
        sys.exit(f"failed: {error}")
    cli.show(args, {"host": host.describe(args.dir), "starts": results}, table(results))


if __name__ == "__main__":
    main()
