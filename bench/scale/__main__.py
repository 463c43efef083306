"""The store at scale: what a takeover, a start, memory, disk space and rates are with millions of waiting messages.

  takeover    a backlog of 1 KiB messages on a master and a slave: kill -9 of the master until a consumer has a message
              of the next one; both killed, one started, until the first message (journal in the page cache, and not)
  memory      resident memory of both with that backlog, and with 100,000 queues of one message
  disk        peak of the segments while 50 GB of mixed traffic go through a store that holds 100 MB
  pinning     the same for traffic that is made to keep dead segments from going
  throughput  durable traffic beside compaction, checkpoints and a slave, against a lone broker without them, in turns
  drain       a backlog of 10 GB from disk against one from memory
  plot        rates, memory, takeover and start against the backlog, 10 thousand to 10 million, as a PNG

Without a row: all of them, which takes hours and some 15 GB. What is done so far is in scale.json in the output
directory. Exit code 1 where a promise was not kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from bench import brokers, cli, host
from bench.load import LoadError
from bench.scale import disk, plot, points, rates
from bench.wire import WireError

ROWS = ("takeover", "memory", "disk", "pinning", "throughput", "drain", "plot")
BACKLOG_ROWS = {"takeover", "memory", "plot"}
MESSAGES = (100_000, 1_000_000, 10_000_000)
PLOT_MESSAGES = (10_000, *MESSAGES)
QUICK_MESSAGES = (1_000, 5_000)
EXAMPLES = (
    "--quick",
    "takeover memory --messages 1000000 --directory /mnt/big",
    "disk --gigabytes 5",
    "throughput --repeat 5 -o memoryLimit=256MiB --json throughput.json",
    "plot --messages 10000 --messages 100000 --output curves",
)


def arguments() -> argparse.ArgumentParser:
    parser = cli.parser("scale", __doc__, EXAMPLES, peers=False)
    parser.add_argument("rows", metavar="ROW", nargs="*", help=f"of {', '.join(ROWS)}")
    parser.add_argument(
        "--messages", type=int, action="append", metavar="N", help=f"backlog (repeatable; default {MESSAGES})"
    )
    parser.add_argument("--queues", type=int, default=100_000, help="of one message, for memory (default %(default)s)")
    parser.add_argument("--gigabytes", type=float, default=50.0, help="through disk's store (default %(default)g)")
    parser.add_argument("--live-megabytes", type=float, default=100.0, help="held meanwhile (default %(default)g)")
    parser.add_argument("--backlog-gigabytes", type=float, default=10.0, help="drained from disk (default %(default)g)")
    parser.add_argument("--repeat", type=int, default=3, help="of each measurement (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a turn of throughput (default %(default)g)")
    for side in ("alone", "busy"):
        parser.add_argument(
            f"--{side}-option",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help=f"option of the brokers of throughput's side {side!r}",
        )
    parser.add_argument("--output", metavar="DIR", type=Path, help="for scale.json and scale.png (default: .bench/…)")
    return parser


def quick(args: argparse.Namespace) -> None:
    """Numbers that show whether everything works, and nothing else. What was asked for by name is kept."""
    args.messages = args.messages or list(QUICK_MESSAGES)
    args.queues = min(args.queues, 1_000)
    args.gigabytes = min(args.gigabytes, 2.0)
    args.backlog_gigabytes = min(args.backlog_gigabytes, 0.1)
    args.repeat, args.seconds = 1, min(args.seconds, 1.5)


class ScaleRun:
    """What was measured so far, on disk after each row."""

    def __init__(self, args: argparse.Namespace, output: Path) -> None:
        self.args = args
        self.output = output
        self.options = cli.amq_options(args)
        self.report: dict[str, Any] = {"host": host.describe(args.dir), "options": self.options}
        self.missed: list[str] = []
        self.shown: list[RenderableType] = []
        self.doing = "the start"

    def progress(self, text: str) -> None:
        """Say what is being done, and remember it: an error of a socket does not tell."""
        self.doing = text
        cli.progress(text)

    def check_first(self, rows: set[str]) -> None:
        """What would fail in an hour fails now: SpaceError, PlotError."""
        args = self.args
        if "plot" in rows:
            plot.require()
        if rows & BACKLOG_ROWS:
            points.require_space(max(args.messages or MESSAGES), args.dir)
        if "drain" in rows:
            rates.require_space(args.backlog_gigabytes * 1e9, args.dir)

    def keep(self, name: str, result: object) -> None:
        self.report[name] = result
        (self.output / "scale.json").write_text(json.dumps(self.report, indent=1) + "\n")

    def backlogs(self, rows: set[str]) -> None:
        """takeover, memory and plot look at the same stores."""
        args = self.args
        wanted = {"takeover": {points.TAKEOVER}, "memory": {points.MEMORY}}
        wanted["plot"] = {points.TAKEOVER, points.MEMORY, points.RATES}
        named = set().union(*(wanted[row] for row in rows))
        found: list[dict[str, Any]] = []
        for messages in sorted(args.messages or (PLOT_MESSAGES if "plot" in rows else MESSAGES)):
            found.append(points.measure(messages, named, args.repeat, args.dir, self.options, self.progress))
            self.keep("points", found)
        self.shown.append(points.table(found))
        self.missed += points.misses(found)
        if "plot" in rows:
            plot.draw(found, self.output / "scale.png")
            self.shown.append(f"plot: {self.output / 'scale.png'}")

    def queues(self) -> None:
        result = points.measure_queues(self.args.queues, self.args.dir, self.options, self.progress)
        self.keep("queues", result)
        self.shown.append(points.queues_table(result))

    def disk(self, rows: set[str]) -> None:
        args = self.args
        scale = disk.QUICK if args.quick else disk.Scale(0, 0)
        scale = scale._replace(sent_bytes=args.gigabytes * 1e9, live_bytes=args.live_megabytes * 1e6)
        found = disk.measure_all(scale, rows, args.dir, self.options, self.progress)
        self.keep("disk", found)
        self.shown.append(disk.table(found))
        self.missed += disk.misses(found)

    def throughput(self) -> None:
        args = self.args
        sides = [cli.key_values(pairs) for pairs in (args.alone_option, args.busy_option)]
        scale = rates.Throughput(args.repeat, args.seconds, args.seconds, args.live_megabytes * 1e6, *sides)
        self._rates("throughput", rates.measure_throughput(scale, args.dir, self.options, self.progress))

    def drain(self) -> None:
        args = self.args
        size_bytes = args.backlog_gigabytes * 1e9
        self._rates("drain", rates.measure_drain(size_bytes, args.repeat, args.dir, self.options, self.progress))

    def _rates(self, name: str, result: dict[str, Any]) -> None:
        self.keep(name, result)
        self.shown.append(rates.table({name: result}))
        self.missed += rates.misses({name: result})


def steps(run: ScaleRun, rows: set[str]) -> Iterator[Callable[[], None]]:
    """What there is to do, the quick things first."""
    if "throughput" in rows:
        yield run.throughput
    if "drain" in rows:
        yield run.drain
    if "memory" in rows:
        yield run.queues
    if mine := rows & {"disk", "pinning"}:
        yield lambda: run.disk(mine)
    if curves := rows & BACKLOG_ROWS:
        yield lambda: run.backlogs(curves)


def main() -> None:
    parser = arguments()
    args = parser.parse_args()
    rows = set(args.rows or ROWS)
    if unknown := rows - set(ROWS):
        parser.error(f"no row is called {', '.join(sorted(unknown))}: there are {', '.join(ROWS)}")
    cli.terminate_on_signal()
    if args.quick:
        quick(args)
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    output = args.output or Path(".bench") / f"scale-{stamp}"
    output.mkdir(parents=True, exist_ok=True)
    run, failure = ScaleRun(args, output), ""
    try:
        run.check_first(rows)
        for step in steps(run, rows):
            step()
    except (LoadError, brokers.BrokerProcessError, WireError, OSError) as error:
        failure = f"failed at {run.doing!r}: {error}"
    cli.show(args, run.report, *run.shown)
    print(f"kept in {output}", file=sys.stderr)
    if failure:
        sys.exit(failure)
    if run.missed:
        sys.exit("promises that were not kept:\n" + "\n".join(f"  {text}" for text in run.missed))


if __name__ == "__main__":
    main()
