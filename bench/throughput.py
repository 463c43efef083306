"""Messages per second, row by row, ours beside a peer's in the same run.

The brokers of all kinds stay up during the whole run and take turns on each row, several times: what else the machine
does then falls on both, and only their ratio is compared with the target. Where there is a C compiler, the floor of
each row takes its turns, too: a server that reads, copies, syncs and writes the same and does nothing else
(bench/floor/floor.c). All are warmed up first: a JVM gives half its rate in its first seconds. A turn is long enough
(`--seconds`) by the rate that the broker showed on that row before; a backlog has the same length for all.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.table import Table

from bench import brokers, cli, fanout, floor, host
from bench.load import Load, LoadError, LoadResult, run
from bench.stats import Spread, spread

FIRST_TURN_S = 0.7
MESSAGES_MIN = 200
MESSAGES_MAX = 1_000_000
FIRST_MESSAGES = 400
FLOOR = brokers.FloorServer.kind
VERSIONS_TARGET = 0.97  # on each line, beside another version of amq


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table. `target` = the ratio to ActiveMQ Classic that we promise, None = only shown."""

    name: str
    producers: int
    consumers: int
    window: int
    persistent: bool = True
    target: float | None = None
    drains: bool = False  # send everything first, then receive it: yields a second line for the draining
    drain_target: float | None = None
    topic: bool = False  # to all consumers: rates count deliveries


ROWS = {
    row.name: row
    for row in (
        Row("1/1 window 1", 1, 1, 1, target=1.3),
        Row("1/1 window 1000", 1, 1, 1000),
        Row("4/4 window 256", 4, 4, 256, target=6.0),
        Row("32/32 window 1", 32, 32, 1, target=2.0),
        Row("32/32 window 32", 32, 32, 32),
        Row("4/4 window 256 non-persistent", 4, 4, 256, persistent=False, target=1.5),
        Row("topic, 1/100", 1, 100, 2000, persistent=False, target=5.0, topic=True),
        Row("send only, 4 producers", 4, 4, 256, target=8.0, drains=True, drain_target=8.0),
    )
}
DRAIN_NAME = "drain, 4 consumers"
EXAMPLES = (
    "--quick",
    "--peer activemq --repeat 5 --json throughput.json",
    "--peer activemq --row '4/4 window 256' --row '1/1 window 1'",
    "--peer ../amq-of-last-week --repeat 5",
)
WARM_UP_ROW = "4/4 window 256"
QUICK_ROWS = ("1/1 window 1", "4/4 window 256", "32/32 window 1", "send only, 4 producers")


class Effort(NamedTuple):
    """How much to measure: turns per row and broker, their length, warm-up of each broker, messages of a backlog."""

    repeat: int = 3
    seconds: float = 4.0
    warm_up_s: float = 15.0
    backlog: int = 40_000


QUICK = Effort(1, 1.5, 8.0, 10_000)


@dataclasses.dataclass
class RowRun:
    """One run of one row on one broker. CPU is the broker's, microseconds per message."""

    row: str
    kind: str
    per_s: float
    broker_cpu_us: float
    generator_cpu_us: float
    delivery_us: dict[str, int]
    confirm_us: dict[str, int]


class Bench:
    """Brokers that are up, and what they have done so far."""

    warm_up_row = ROWS[WARM_UP_ROW]
    openwire = False  # whether the brokers are to listen for it

    def __init__(
        self, masters: dict[str, brokers.BrokerProcess], seconds: float, size_bytes: int, backlog: int
    ) -> None:
        self.masters = masters
        self.seconds = seconds
        self.size_bytes = size_bytes
        self.backlog = backlog
        self.turns: list[RowRun] = []
        self.rates: dict[tuple[str, str], float] = {}
        self._queues = 0

    def turn(self, row: Row, kind: str, seconds: float) -> list[RowRun]:
        """One run (a second one that drains, where the row says so) of about `seconds` on a fresh queue."""
        messages = self.backlog if row.drains else self.messages(row, kind, seconds)
        self._queues += 1
        load = Load(
            self.masters[kind].port,
            producers=row.producers,
            consumers=row.consumers,
            messages=messages,
            size_bytes=self.size_bytes,
            window=row.window,
            persistent=row.persistent,
            mode="send" if row.drains else "both",
            destination=f"/{'topic' if row.topic else 'queue'}/bench.{self._queues}",
        )
        turns = [self._run(row.name, kind, load, fanout.run if row.topic else run)]
        self.rates[row.name, kind] = turns[0].per_s / (row.consumers if row.topic else 1)
        if row.drains:
            turns.append(self._run(DRAIN_NAME, kind, dataclasses.replace(load, mode="recv"), run))
        return turns

    def messages(self, row: Row, kind: str, seconds: float) -> int:
        """How many messages keep that broker busy for about `seconds`, by the rate of its last turn."""
        rate = self.rates.get((row.name, kind))
        messages = FIRST_MESSAGES if rate is None else int(rate * seconds)
        return max(MESSAGES_MIN, row.producers * 4, min(MESSAGES_MAX, messages))

    def close(self) -> None:
        """Stop what `turn` started beside the brokers."""

    def _run(self, name: str, kind: str, load: Load, run: Callable[[Load], LoadResult]) -> RowRun:
        master = self.masters[kind]
        cpu_s = master.cpu_s()
        try:
            result = run(load)
        except LoadError as error:
            master.check()
            raise LoadError(f"{kind}, {name}: {error}") from error
        cpu_us = (master.cpu_s() - cpu_s) / load.messages * 1e6
        return RowRun(
            name, kind, result.per_s, round(cpu_us, 1), result.generator_cpu_us, result.delivery_us, result.confirm_us
        )

    def warm_up(self, seconds: float, progress: Callable[[str], None]) -> None:
        for kind in self.masters:
            progress(f"warming up {kind}")
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                self.turn(self.warm_up_row, kind, FIRST_TURN_S)

    def measure(self, rows: Sequence[Row], repeat: int, progress: Callable[[str], None]) -> None:
        for row in rows:
            for kind in self.masters:
                if not row.drains:
                    progress(f"{row.name}: how long is a turn of {kind}?")
                    self.turn(row, kind, FIRST_TURN_S)
                    self.turn(row, kind, FIRST_TURN_S)
            for number in range(repeat):
                for kind in self.masters:
                    progress(f"{row.name}: {kind}, {number + 1} of {repeat}")
                    self.turns += self.turn(row, kind, self.seconds)


def lines_of(rows: Sequence[Row]) -> list[tuple[str, float | None]]:
    """(name, target) of every line that these rows yield, in order."""
    lines: list[tuple[str, float | None]] = []
    for row in rows:
        lines.append((row.name, row.target))
        if row.drains:
            lines.append((DRAIN_NAME, row.drain_target))
    return lines


def summarise(
    turns: Sequence[RowRun], rows: Sequence[Row], kinds: Sequence[str], least: str = FLOOR
) -> list[dict[str, Any]]:
    """Per line: spread of the rates by kind, and the ratio first kind / second kind with its target.

    Ratios are taken turn by turn (neighbours in time); the median of them counts. Beside the floor, of kind `least`,
    each other kind has its ratio to that: of the rate, and of the processor time for a message.
    """
    summary = []
    compared = [kind for kind in kinds if kind != least]
    for name, target in lines_of(rows):
        mine = {kind: [turn for turn in turns if (turn.row, turn.kind) == (name, kind)] for kind in kinds}
        rates = {kind: [turn.per_s for turn in mine[kind]] for kind in kinds}
        line: dict[str, Any] = {"row": name, "per_s": {kind: spread(rates[kind])._asdict() for kind in kinds}}
        for field in ("broker_cpu_us", "generator_cpu_us"):
            line[field] = {kind: spread([getattr(turn, field) for turn in mine[kind]]).median for kind in kinds}
        for field in ("delivery_us", "confirm_us"):
            typical = {kind: sorted(mine[kind], key=lambda turn: turn.per_s)[len(mine[kind]) // 2] for kind in kinds}
            line[field] = {kind: getattr(typical[kind], field) for kind in kinds}
        if least in kinds:
            line["floor"] = {kind: _to_the_floor(kind, rates, line["broker_cpu_us"], least) for kind in compared}
        if len(compared) == 2:
            ratio = _ratio(*(rates[kind] for kind in compared))
            line |= {"ratio": ratio._asdict(), "target": target, "met": target is None or ratio.median >= target}
        summary.append(line)
    return summary


def _ratio(mine: Sequence[float], others: Sequence[float]) -> Spread:
    return spread([one / other for one, other in zip(mine, others, strict=True)])


def _to_the_floor(
    kind: str, rates: Mapping[str, Sequence[float]], cpu_us: Mapping[str, float], least: str
) -> dict[str, float | None]:
    """Of `kind`: its share of the floor's rate, and its processor time for a message in that of the floor (None = the
    floor used less than the kernel counts)."""
    cpu = cpu_us[kind] / cpu_us[least] if cpu_us[least] else None
    return {"rate": _ratio(rates[kind], rates[least]).median, "cpu": cpu}


def to_the_floor(ratios: dict[str, float | None]) -> str:
    """Ratios of `_to_the_floor` as they are shown."""
    return f"{ratios['rate']:.2f}, " + (f"{ratios['cpu']:.1f}" if ratios["cpu"] else "–")


def _us(microseconds: float) -> str:
    """A time of one message as it is shown."""
    return f"{microseconds:.0f}" if microseconds >= 20 else f"{microseconds:.1f}"


def table(summary: Sequence[dict[str, Any]], kinds: Sequence[str]) -> Table:
    shown = Table(title="messages/s, median (min–max)")
    shown.add_column("producers/consumers")
    for kind in kinds:
        shown.add_column(kind, justify="right")
    shown.add_column("delivery p50/p99 ms", justify="right")
    shown.add_column("CPU µs/message", justify="right")
    compared = [kind for kind in kinds if kind != FLOOR]
    if len(compared) == 2:
        shown.add_column("ratio", justify="right")
        shown.add_column("target", justify="right")
    if FLOOR in kinds:
        shown.add_column("rate, CPU in the floor's", justify="right")
    for line in summary:
        cells = [line["row"]]
        for kind in kinds:
            rate = Spread(**line["per_s"][kind])
            cells.append(f"{rate.median:,.0f} ({rate.low:,.0f}–{rate.high:,.0f})")
        latencies = [line["delivery_us"][kind] or line["confirm_us"][kind] for kind in kinds]
        cells.append(" | ".join(f"{us['p50'] / 1000:.1f}/{us['p99'] / 1000:.1f}" if us else "–" for us in latencies))
        cells.append(" | ".join(_us(line["broker_cpu_us"][kind]) for kind in kinds))
        if len(compared) == 2:
            colour = "" if line["target"] is None else "[green]" if line["met"] else "[red]"
            cells.append(f"{colour}{line['ratio']['median']:.2f}")
            cells.append("–" if line["target"] is None else f"≥ {line['target']:g}")
        if FLOOR in kinds:
            cells.append(" | ".join(to_the_floor(line["floor"][kind]) for kind in compared))
        shown.add_row(*cells)
    return shown


def measure(
    kinds: Sequence[str],
    rows: Sequence[Row],
    scale: Effort,
    size_bytes: int,
    directory: str | None,
    options: dict[str, str],
    progress: Callable[[str], None],
    make: type[Bench] = Bench,
) -> dict[str, Any]:
    """Start one broker of each kind, measure `rows` with `make`, stop them. Returns what `--json` writes."""
    before = host.describe(directory)
    with contextlib.ExitStack() as stack:
        masters = {}
        for kind in kinds:
            ours = issubclass(brokers.broker_class(kind), brokers.AmqBroker)
            group = brokers.BrokerGroup(
                kind, directory=directory, options=options if ours else None, openwire=make.openwire
            )
            masters[kind] = stack.enter_context(group).brokers[0]
        bench = stack.enter_context(contextlib.closing(make(masters, scale.seconds, size_bytes, scale.backlog)))
        bench.warm_up(scale.warm_up_s, progress)
        bench.measure(rows, scale.repeat, progress)
    return {
        "host": {"before": before, "after": host.describe(directory)},
        "kinds": list(kinds),
        "size_bytes": size_bytes,
        "rows": summarise(bench.turns, rows, kinds),
        "turns": [dataclasses.asdict(turn) for turn in bench.turns],
    }


def add_arguments(parser: argparse.ArgumentParser, rows: Iterable[str]) -> None:
    """The options that say which of `rows` are measured, how often and how long, and of what length a backlog is."""
    add_turns(parser, rows)
    parser.add_argument(
        "--backlog", type=int, default=Effort().backlog, help="sent, then drained (default %(default)s)"
    )


def add_turns(parser: argparse.ArgumentParser, rows: Iterable[str]) -> None:
    """The same without a backlog."""
    scale = Effort()
    parser.add_argument("--row", action="append", choices=sorted(rows), help="only this row (repeatable)")
    parser.add_argument("--repeat", type=int, default=scale.repeat, help="turns on each row (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=scale.seconds, help="length of a turn (default %(default)s)")
    warm_up = "for each broker before the first turn (default %(default)s)"
    parser.add_argument("--warm-up", type=float, default=scale.warm_up_s, metavar="SECONDS", help=warm_up)
    parser.add_argument("--size", type=int, default=1024, metavar="BYTES", help="of a body (default %(default)s)")


def add_floor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--floor",
        action=argparse.BooleanOptionalAction,
        default=floor.compiler() is not None,
        help="measure the floor of each row in the same run (default: where there is a C compiler)",
    )


def main() -> None:
    parser = cli.parser("throughput", __doc__, EXAMPLES)
    add_arguments(parser, ROWS)
    add_floor(parser)
    args = parser.parse_args()
    cli.terminate_on_signal()
    kinds = cli.kinds(args) + [FLOOR] * args.floor
    rows = [ROWS[name] for name in args.row or (QUICK_ROWS if args.quick else ROWS)]
    if args.peer not in (None, *brokers.KINDS):
        rows = [dataclasses.replace(row, target=VERSIONS_TARGET, drain_target=VERSIONS_TARGET) for row in rows]
    scale = QUICK if args.quick else Effort(args.repeat, args.seconds, args.warm_up, args.backlog)
    try:
        report = measure(kinds, rows, scale, args.size, args.dir, cli.amq_options(args), cli.progress)
    except (LoadError, brokers.BrokerProcessError) as error:
        sys.exit(f"failed: {error}")
    cli.show(args, report, table(report["rows"], kinds), f"host: {report['host']}")
    if not all(line.get("met", True) for line in report["rows"]):
        sys.exit("a target was missed")


if __name__ == "__main__":
    main()
