"""A gateway and the store behind it, beside a broker alone: messages/s, who uses the processor, and the memory of
connections that say nothing.

The broker serves its clients itself. Those of the node meet its one gateway, which passes their commands on to the
member of its one store. Both are up all the time, and take turns. So does the floor of a gateway, where there is a C
compiler: two processes that read, pass on, sync and write the same bytes, and do nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import resource
import sys
from collections.abc import Callable
from typing import Any

from rich.table import Table

from bench import brokers, cli, host
from bench.load import Load, LoadError, LoadResult
from bench.stats import Spread, spread
from bench.throughput import QUICK, ROWS, Bench, Effort, RowRun, add_floor, add_turns, summarise
from bench.wire import WireConnection, WireError

EXAMPLES = ("--quick", "--repeat 5 --json gateway.json", "--row '4/4 window 256' --idle 1000")
KINDS = (brokers.OneStoreCluster.kind, brokers.AmqBroker.kind)
FLOOR = brokers.FloorGateway.kind
MEASURED = ("4/4 window 256", "32/32 window 1", "1/1 window 1", "4/4 window 256 non-persistent")
RATE_TARGET, MEMBER_TARGET = 0.85, 0.6  # of the broker alone, at the first row: messages/s, processor time
IDLE, IDLE_QUICK = 10_000, 200
FILES_BESIDE = 200  # that this process has open besides its connections


@dataclasses.dataclass
class NodeRun(RowRun):
    """A run on a node. `parts` = processor time a message, in µs, by process."""

    parts: dict[str, float] = dataclasses.field(default_factory=dict)


class GatewayBench(Bench):
    def _run(self, name: str, kind: str, load: Load, run: Callable[[Load], LoadResult]) -> RowRun:
        node = self.masters[kind]
        if not isinstance(node, brokers.OneStoreCluster):
            return super()._run(name, kind, load, run)
        before = {part: node.cpu_s_of(part) for part in node.PARTS}
        found = super()._run(name, kind, load, run)
        parts = {part: (node.cpu_s_of(part) - cpu_s) / load.messages * 1e6 for part, cpu_s in before.items()}
        return NodeRun(**vars(found), parts=parts)


def idle(node: brokers.OneStoreCluster, count: int) -> dict[str, float]:
    """Bytes that each of `count` connections takes which have logged in and say nothing, by process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count + FILES_BESIDE)), hard))
    before = [node.memory_bytes_of(part) for part in node.PARTS]
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(contextlib.closing(WireConnection(node.port)))
        return {
            part: (node.memory_bytes_of(part) - size) / count for part, size in zip(node.PARTS, before, strict=True)
        }


def of_floor(line: dict[str, Any]) -> tuple[str, ...]:
    """The floor's rate with its processor time, and the node's share of that rate; nothing where it was left out."""
    if FLOOR not in line["per_s"]:
        return ()
    rate = f"{line['per_s'][FLOOR]['median']:,.0f}, {line['broker_cpu_us'][FLOOR]:.1f} µs"
    return rate, f"{line['floor'][KINDS[0]]['rate']:.2f}"


def table(lines: list[dict[str, Any]], bytes_each: dict[str, float], count: int) -> Table:
    shown = Table(
        title="a gateway and a store behind it, beside a broker alone",
        caption=f"{count:,} connections that say nothing take "
        + " and ".join(f"{size:,.0f} bytes of the {part[2:]}" for part, size in bytes_each.items())
        + " each",
    )
    for heading in (
        "row",
        "messages/s",
        "broker alone",
        "ratio",
        "member, µs",
        "gateway",
        "broker alone",
        "floor",
        "share of it",
    ):
        shown.add_column(heading, justify="left" if heading == "row" else "right")
    for line in lines:
        rates = [Spread(**line["per_s"][kind]) for kind in KINDS]
        shown.add_row(
            line["row"],
            *[f"{rate.median:,.0f} ({rate.low:,.0f}–{rate.high:,.0f})" for rate in rates],
            f"{line['ratio']['median']:.2f}",
            *[f"{line['parts'][part]['median']:.1f}" for part in brokers.OneStoreCluster.PARTS],
            f"{line['broker_cpu_us'][brokers.AmqBroker.kind]:.1f}",
            *of_floor(line),
        )
    return shown


def main() -> None:
    parser = cli.parser("gateway", __doc__, EXAMPLES, peers=False)
    add_turns(parser, ROWS)
    add_floor(parser)
    parser.add_argument("--idle", type=int, help=f"connections that say nothing (default {IDLE:,})")
    args = parser.parse_args()
    cli.terminate_on_signal()
    rows = [ROWS[name] for name in args.row or (MEASURED[:1] if args.quick else MEASURED)]
    scale = QUICK if args.quick else Effort(args.repeat, args.seconds, args.warm_up)
    kinds = [*KINDS, FLOOR] if args.floor else KINDS
    count = args.idle or (IDLE_QUICK if args.quick else IDLE)
    try:
        with contextlib.ExitStack() as stack:
            masters = {}
            for kind in kinds:
                group = brokers.BrokerGroup(kind, directory=args.dir, options=cli.amq_options(args))
                masters[kind] = stack.enter_context(group).brokers[0]
            bench = GatewayBench(masters, scale.seconds, args.size, scale.backlog)
            bench.warm_up(scale.warm_up_s, cli.progress)
            bench.measure(rows, scale.repeat, cli.progress)
            node = masters[KINDS[0]]
            assert isinstance(node, brokers.OneStoreCluster)
            cli.progress(f"{count:,} connections that say nothing")
            bytes_each = idle(node, count)
    except (LoadError, WireError, OSError, brokers.BrokerProcessError) as error:
        sys.exit(f"failed: {error}")
    lines = summarise(bench.turns, rows, kinds, FLOOR)
    for line in lines:
        runs = [run.parts for run in bench.turns if isinstance(run, NodeRun) and run.row == line["row"]]
        line["parts"] = {part: spread([run[part] for run in runs])._asdict() for part in brokers.OneStoreCluster.PARTS}
    cli.show(
        args,
        {"host": host.describe(args.dir), "gateway": lines, "idle_bytes": bytes_each},
        table(lines, bytes_each, count),
    )
    first = next((line for line in lines if line["row"] == MEASURED[0]), None)
    if first is not None:
        alone, member = first["broker_cpu_us"][brokers.AmqBroker.kind], first["parts"][brokers.OneStoreCluster.PARTS[0]]
        if first["ratio"]["median"] < RATE_TARGET or member["median"] > MEMBER_TARGET * alone:
            sys.exit(f"a target was missed: {RATE_TARGET} of the rate, {MEMBER_TARGET} of the processor time")


if __name__ == "__main__":
    main()
