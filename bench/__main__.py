"""A short version of everything, in about four minutes: `make bench`, or `python -m bench [--peer activemq]`.

Prints one table with what was measured, what was promised, and whether it was kept. For figures that are worth quoting
run the single benchmarks (`python -m bench.throughput --help`, `.takeover`, `.recovery`, `.scale`, `.soak`) on a quiet
machine.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from bench import brokers, cli, clients, host, recovery, soak, takeover, throughput
from bench.load import LoadError
from bench.scale import disk
from bench.scale import rates as scale_rates
from bench.stats import Spread
from bench.wire import WireError

SOAK_S = 20.0
TAKEOVER_MESSAGES = 10_000
DISK_SENT_BYTES, DISK_LIVE_BYTES = 400e6, 40e6
KEEP_ALIVE_MS = 5000
EXAMPLES = ("", "--peer activemq", "--peer activemq --json bench.json", "--quick")


class ResultLine(NamedTuple):
    """One line of the table. `kept` None = nothing was promised."""

    what: str
    amq: str
    peer: str
    promise: str
    kept: bool | None


def throughput_lines(report: dict[str, Any], kinds: list[str]) -> list[ResultLine]:
    lines = []
    for row in report["rows"]:
        rates = [f"{Spread(**row['per_s'][kind]).median:,.0f}/s" for kind in kinds] + ["–"]
        promise = f"≥ {row['target']:g} × ActiveMQ" if row.get("target") else "–"
        ratio = f" ({row['ratio']['median']:.1f} ×)" if "ratio" in row else ""
        lines.append(
            ResultLine(row["row"], rates[0] + ratio, rates[1], promise, row["met"] if promise != "–" else None)
        )
    return lines


def takeover_line(results: list[dict[str, Any]]) -> ResultLine:
    seconds = [result["spread"]["first_message_s"]["median"] for result in results]
    shown = [f"{value:.2f} s" for value in seconds] + ["–"]
    what = f"kill -9 to first message, {results[0]['messages']:,} waiting"
    return ResultLine(what, shown[0], shown[1], f"≤ {takeover.TARGET_S:g} s", seconds[0] <= takeover.TARGET_S)


def recovery_lines(results: list[dict[str, Any]], kinds: list[str]) -> list[ResultLine]:
    longest = [[result for result in results if result["kind"] == kind][-1] for kind in kinds]
    starts = [f"{result['spread']['first_message_s']['median']:.2f} s" for result in longest] + ["–"]
    memory = [result["memory_bytes_per_message"] for result in longest]
    texts = [f"{value:,.0f} B" for value in memory] + ["–"]
    return [
        ResultLine(f"cold start, {longest[0]['messages']:,} waiting", starts[0], starts[1], "–", None),
        ResultLine("memory for a waiting message of 1 KiB", texts[0], texts[1], "–", None),
    ]


def scale_lines(directory: str | None, options: dict[str, str]) -> tuple[list[ResultLine], dict[str, Any]]:
    """Disk space and the cost of keeping it small, and what was measured."""
    space = disk.measure(disk.mixed, DISK_SENT_BYTES, DISK_LIVE_BYTES, "8MiB", directory, options, cli.progress)
    scale = scale_rates.Throughput(1, 2.0, 4.0, DISK_LIVE_BYTES)
    busy = scale_rates.measure_throughput(scale, directory, options, cli.progress)
    used = f"{space['used_bytes_max'] / 1e6:.0f} MB for {space['live_bytes_max'] / 1e6:.0f} MB live"
    rate = f"{busy['per_s']['busy']['median']:,.0f}/s ({busy['ratio']['median']:.2f} ×)"
    promise = f"≥ {scale_rates.BUSY_SHARE_MIN:g} × without"
    lines = [
        ResultLine("disk space under traffic", used, "–", "≤ 2 × live + a segment", space["met"]),
        ResultLine("4/4 window 256 beside compaction and a slave", rate, "–", promise, busy["met"]),
    ]
    return lines, {"disk": space, "throughput": busy}


def soak_line(seconds: float, directory: str | None) -> ResultLine:
    seed = random.SystemRandom().randrange(1, 10**6)
    keep = Path(tempfile.mkdtemp(prefix="bench-soak-", dir=directory))
    options = {"heartBeatSend": f"{clients.HEARTBEAT_MS}ms"}
    group = brokers.BrokerGroup("amq", 3, keep_alive_ms=1000, directory=directory, options=options)
    with group:
        trial = soak.Soak(group, soak.Settings(round_s=seconds), seed, keep)
        trial.run(seconds=seconds / 2, kills=None)
    done = f"{trial.totals['sent']:,} messages, {sum(trial.faults.values())} faults"
    if trial.violations:
        print(f"soak, seed {seed}, evidence in {keep}:", *trial.violations, sep="\n  ", file=sys.stderr)
    else:
        keep.rmdir()
    return ResultLine("soak: nothing lost, undone, doubled, reordered", done, "–", "no violation", not trial.violations)


def table(lines: list[ResultLine], kinds: list[str]) -> Table:
    shown = Table(title="a short look; ratios on a busy machine are rough")
    for heading in ("", "amq", *(kinds[1:] or ["peer"]), "promised", ""):
        shown.add_column(heading, justify="right" if heading else "left")
    for line in lines:
        verdict = {None: "", True: "[green]kept", False: "[red]missed"}[line.kept]
        shown.add_row(line.what, line.amq, line.peer, line.promise, verdict)
    return shown


def main() -> None:
    parser = cli.parser("", __doc__, EXAMPLES)
    args = parser.parse_args()
    if args.only_peer:
        parser.error("--only-peer is for the single benchmarks")
    cli.terminate_on_signal()
    kinds, options = cli.kinds(args), cli.amq_options(args)
    rows = [throughput.ROWS[name] for name in (throughput.QUICK_ROWS if args.quick else throughput.ROWS)]
    messages = TAKEOVER_MESSAGES // 5 if args.quick else TAKEOVER_MESSAGES
    try:
        rows_report = throughput.measure(kinds, rows, throughput.QUICK, 1024, args.dir, options, cli.progress)
        takeovers, starts = [], []
        for kind in kinds:
            own = options if kind == "amq" else {}
            takeovers.append(takeover.measure(kind, messages, 2, 1, KEEP_ALIVE_MS, args.dir, own, cli.progress))
            starts += recovery.measure(kind, [messages], 1, args.dir, own, cli.progress)
        at_scale, scale_report = scale_lines(args.dir, options)
        cli.progress("soak")
        trial = soak_line(SOAK_S / 2 if args.quick else SOAK_S, args.dir)
    except (LoadError, brokers.BrokerProcessError, WireError) as error:
        sys.exit(f"failed: {error}")
    lines = [*throughput_lines(rows_report, kinds), takeover_line(takeovers), *recovery_lines(starts, kinds)]
    lines += [*at_scale, trial]
    report = {"host": host.describe(args.dir), "throughput": rows_report, "takeovers": takeovers, "starts": starts}
    report["scale"] = scale_report
    report["table"] = [line._asdict() for line in lines]
    cli.show(args, report, table(lines, kinds))
    if any(line.kept is False for line in lines):
        sys.exit("a promise was not kept")


if __name__ == "__main__":
    main()
