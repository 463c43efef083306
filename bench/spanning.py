"""Transactions over two stores of a cluster, beside those that stay in one: rate, syncs and processor time of each.

A node on this host serves two stores through its one gateway. Clients commit transactions of two persistent messages of
1 KiB, one after the other: both messages go to one queue's store, or one to each store. The two kinds take turns. A
client sends a transaction with its COMMIT at once, and waits for the receipt of that.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.table import Table

from amq.cli.demo_brokers import free_port
from amq.cluster.directory import Cluster
from amq.cluster.masters import Masters
from amq.core.errors import AmqError
from bench import brokers, cli, host
from bench.wire import WireConnection, WireError, encode

EXAMPLES = ("--quick", "--repeat 5 --json spanning.json", "--clients 1 --clients 64")
STORES: Final = ("s1", "s2")
KINDS: Final = {"one home": ("s1", "s1"), "two homes": ("s1", "s2")}
CLIENTS: Final = (1, 16)
BODY: Final = b"x" * 1024
START_S: Final = 120.0
RECEIPT_S: Final = 60.0
FIGURES: Final = ("per_s", "median_ms", "syncs", "member_us", "gateway_us")


def work(port: int, queues: Sequence[str], seconds: float, ours: Pipe) -> None:
    """In a process: tells how long each transaction took, or what went wrong."""
    waits: list[float] = []
    try:
        with WireConnection(port, timeout_s=RECEIPT_S) as connection:
            frames = b"".join(
                [
                    encode("BEGIN", {"transaction": "t"}),
                    *(encode("SEND", {"destination": f"/queue/{name}", "transaction": "t"}, BODY) for name in queues),
                    encode("COMMIT", {"transaction": "t", "receipt": "c"}),
                ]
            )
            until_s = time.monotonic() + seconds
            while (began_s := time.monotonic()) < until_s:
                connection.socket.sendall(frames)
                connection.receipt("c", RECEIPT_S)
                waits.append(time.monotonic() - began_s)
    except (WireError, OSError) as error:
        ours.send(str(error) or repr(error))
    else:
        ours.send(waits)


class SpanningNode:
    """A node of two stores. Use it in `with`."""

    def __init__(self, directory: Path, options: dict[str, str]) -> None:
        store = directory / "cluster"
        store.mkdir()
        self._node = brokers.TwoStoreNode("node", store, free_port(), 2000, options)
        self._store = store

    def __enter__(self) -> SpanningNode:
        self._node.start()
        try:
            until_s = time.monotonic() + START_S
            cluster = Cluster(str(self._store))
            self._masters = Masters(cluster)
            while not self._node.answers() or any(each.master is None for each in self._masters.look()):
                self._node.check()
                if time.monotonic() > until_s:
                    raise brokers.BrokerProcessError(f"the node does not answer:\n{self._node.log_text()[-2000:]}")
                time.sleep(0.05)
            home_of = cluster.table().placement.home_of
            self.queues = {
                store: next(name for number in range(1000) if home_of(f"queue://{(name := f'q{number}')}") == store)
                for store in STORES
            }
        except BaseException:
            self._node.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._masters.close()
        self._node.stop()

    def syncs(self) -> int:
        """Of both stores' journals. Raises AmqError."""
        found = self._masters.ask_all("/totals", None, RECEIPT_S)
        return sum(int(each.found["journal_sync"]["count"]) for each in found)

    def run(self, kind: str, clients: int, seconds: float) -> dict[str, float]:
        """Raises BrokerProcessError, AmqError."""
        context = multiprocessing.get_context("fork")
        queues = [self.queues[store] for store in KINDS[kind]]
        pipes = [context.Pipe(duplex=False) for _ in range(clients)]
        workers = [
            context.Process(target=work, args=(self._node.port, queues, seconds, ours), daemon=True)
            for _, ours in pipes
        ]
        before, syncs = [self._node.cpu_s_of(part) for part in self._node.PARTS], self.syncs()
        began_s = time.monotonic()
        for worker in workers:
            worker.start()
        told = [theirs.recv() for theirs, _ in pipes]
        took_s = time.monotonic() - began_s
        for worker in workers:
            worker.join()
        if wrong := [each for each in told if isinstance(each, str)]:
            raise brokers.BrokerProcessError("; ".join(wrong))
        waits = [wait for each in told for wait in each]
        used = [self._node.cpu_s_of(part) - cpu_s for part, cpu_s in zip(self._node.PARTS, before, strict=True)]
        member_us, gateway_us = (1e6 * cpu_s / len(waits) for cpu_s in used)
        return {
            "per_s": len(waits) / took_s,
            "median_ms": 1000 * median(waits),
            "syncs": (self.syncs() - syncs) / len(waits),
            "member_us": member_us,
            "gateway_us": gateway_us,
        }


def table(rows: Sequence[dict[str, Any]]) -> Table:
    shown = Table(title="transactions of two messages, in one store and over two")
    for heading in ("clients", "transactions", "a second", "ms", "syncs", "members, µs", "gateway, µs"):
        shown.add_column(heading, justify="left" if heading == "transactions" else "right")
    for row in rows:
        figures = (
            f"{row[key]:,.0f}" if key in ("per_s", "member_us", "gateway_us") else f"{row[key]:.2f}" for key in FIGURES
        )
        shown.add_row(str(row["clients"]), row["kind"], *figures)
    return shown


def main() -> None:
    parser = cli.parser("spanning", __doc__, EXAMPLES, peers=False)
    parser.add_argument("--clients", type=int, action="append", help=f"at once; may be repeated (default {CLIENTS})")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run (default %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="turns (default %(default)s)")
    args = parser.parse_args()
    cli.terminate_on_signal()
    seconds, repeat, counts = (0.5, 1, [2]) if args.quick else (args.seconds, args.repeat, args.clients or CLIENTS)
    turns: list[dict[str, Any]] = []
    try:
        with (
            tempfile.TemporaryDirectory(prefix="bench-spanning-", dir=args.dir) as place,
            SpanningNode(Path(place), cli.amq_options(args)) as node,
        ):
            for kind in KINDS:
                node.run(kind, 1, min(1.0, seconds))
            for turn in range(repeat):
                for clients in counts:
                    for kind in KINDS:
                        cli.progress(f"turn {turn + 1}: {clients} clients, {kind}")
                        turns.append({"clients": clients, "kind": kind, **node.run(kind, clients, seconds)})
    except (WireError, OSError, brokers.BrokerProcessError, AmqError) as error:
        sys.exit(f"failed: {error}")
    rows = []
    for clients in counts:
        for kind in KINDS:
            mine = [turn for turn in turns if (turn["clients"], turn["kind"]) == (clients, kind)]
            rows.append(
                {"clients": clients, "kind": kind, **{key: median(turn[key] for turn in mine) for key in FIGURES}}
            )
    load = [float(word) for word in Path("/proc/loadavg").read_text().split()[:3]]
    cli.show(args, {"host": host.describe(args.dir), "load": load, "spanning": rows, "turns": turns}, table(rows))


if __name__ == "__main__":
    main()
