"""A replicated store beside Artemis' replicated pair, and beside our own store in files: rates, and a kill -9.

All brokers run on this host, their copies are on one disk, and they take turns on each row: what else the machine does
falls on all. Our members sync each write on `needed` disks before they confirm it; Artemis' backup answers before it
syncs. Then, for each kind that has copies, a fresh group each time: the master is killed with -9 while messages wait,
and clients that try all ports without pause say when the next one delivers and confirms.

`--members 2` makes pairs on both sides (the survivor of ours goes on alone, as that of Artemis does); with three
members, which we recommend, two of three must have a write. Both may be measured in one run. The floor of a group
(bench/floor/floor.c) is as many processes in C that pass on, sync and answer the same bytes, and do nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from amq.store.open import open_store
from bench import brokers, cli, host, takeover
from bench.load import Load, LoadError, run
from bench.stats import Spread, spread
from bench.throughput import QUICK, ROWS, Bench, Effort, RowRun, add_floor, add_turns

REPLICA, PAIR, FILES, FLOOR = "replica", "artemis pair", "amq", "floor"
GOALS = {"4/4 window 256": 5.0, "1/1 window 1": 1.0, "32/32 window 1": 1.0}  # of the rates of Artemis' pair
FILES_GOALS = {"4/4 window 256": 0.6}  # of those of our store in files
TAKEOVER_S = 1.0
KEEP_ALIVE_MS = 2000
EXAMPLES = (
    "--quick",
    "--peer artemis=/opt/apache-artemis-2.40.0 --repeat 5 --json replication.json",
    "--members 2 --members 3 --row '1/1 window 1' --takeovers 0",
)


class ReplicaBroker(brokers.AmqBroker):
    """One member, whose copy is in a directory below the store's."""

    kind = REPLICA
    members = 2

    def __init__(self, name: str, store: Path, port: int, *rest: Any) -> None:
        super().__init__(name, store, port, *rest)
        (store / "small").mkdir(exist_ok=True)
        least = self.members // 2 + (self.members > 2)  # a pair may go on as one
        counts = f"members={self.members}&leastCopies={least}"
        self.url = f"replica://{store / name}?group=bench&coordinator=file://{store / 'small'}&{counts}"

    def command(self) -> list[str]:
        return [self.url if word == str(self.store) else word for word in super().command()]

    def counts(self) -> bool:
        """Whether its copy is one of those that count."""
        copies = open_store(self.url).copies()
        return copies is not None and any(each.startswith(f"{self.name}-") for each in copies.counting)

    def wait_slave(self, timeout_s: float = brokers.START_TIMEOUT_S) -> None:
        """Until its copy counts, too."""
        super().wait_slave(timeout_s)
        deadline_s = time.monotonic() + timeout_s
        while not self.counts():
            self.check()
            if time.monotonic() > deadline_s:
                raise brokers.BrokerProcessError(f"the copy of {self.name} does not count after {timeout_s:g} s")
            time.sleep(brokers.PROBE_PAUSE_S)


def floor_of(kind: str, members: int) -> type[brokers.FloorServer]:
    """The floor of such a group: one server that passes batches on to processes, each with a file."""
    more = ("copies", str(members), str(members // 2 + 1))
    return type("FloorCopies", (brokers.FloorServer,), {"kind": kind, "more": more})


class ReplicatedArtemis(brokers.ArtemisBroker):
    """Primary or backup of a pair, as `artemis create --replicated` makes them."""

    kind = PAIR
    slave_line = re.compile("AMQ221024")  # Backup server … is synchronized with server

    def __init__(self, name: str, store: Path, port: int, *rest: Any) -> None:
        super().__init__(name, store, port, *rest)
        self.store = store / name
        self.log = store / f"{name}.log"
        self.more = ["--replicated"]


class CopyGroup(brokers.BrokerGroup):
    """Brokers with a copy each, the master first; of the kind FILES, one broker."""

    def __init__(self, kind: str, directory: str | None, options: dict[str, str]) -> None:
        made = brokers.broker_class(kind)
        count = made.members if issubclass(made, ReplicaBroker) else 2 if kind == PAIR else 1
        options = options if issubclass(made, brokers.AmqBroker) else {}
        super().__init__(kind, count, keep_alive_ms=KEEP_ALIVE_MS, directory=directory, options=options)
        if kind == PAIR:
            primary, backup = self.brokers
            assert isinstance(primary, ReplicatedArtemis)
            assert isinstance(backup, ReplicatedArtemis)
            primary.neighbour, backup.neighbour = backup.port, primary.port
            backup.more = [*backup.more, "--backup"]


def measure_rates(
    kinds: Sequence[str],
    names: Sequence[str],
    effort: Effort,
    size_bytes: int,
    directory: str | None,
    options: dict[str, str],
    progress: Callable[[str], None],
) -> list[RowRun]:
    with contextlib.ExitStack() as stack:
        masters = {}
        for kind in kinds:
            progress(f"starting {kind}")
            masters[kind] = stack.enter_context(CopyGroup(kind, directory, options)).brokers[0]
        bench = stack.enter_context(contextlib.closing(Bench(masters, effort.seconds, size_bytes, effort.backlog)))
        bench.warm_up(effort.warm_up_s, progress)
        bench.measure([ROWS[name] for name in names], effort.repeat, progress)
        return bench.turns


def measure_takeovers(
    kinds: Sequence[str],
    repeat: int,
    messages: int,
    directory: str | None,
    options: dict[str, str],
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Each in a fresh group: a pair that has lost its primary is no pair."""
    times: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for number in range(repeat):
        for kind in kinds:
            progress(f"takeover {number + 1} of {repeat}, {kind}: sending {messages} messages")
            with CopyGroup(kind, directory, options) as group:
                load = Load(group.brokers[0].port, producers=4, messages=messages, window=1000, mode="send")
                run(dataclasses.replace(load, destination=takeover.QUEUE))
                if kind.startswith(REPLICA):
                    for broker in group.brokers[1:]:
                        broker.wait_slave()
                times[kind].append(takeover.one_takeover(group))
    return [
        {
            "kind": kind,
            "client": "stomp",
            "how": "kill",
            "messages": messages,
            "keep_alive_ms": KEEP_ALIVE_MS,
            "times": found,
            "spread": {name: spread([each[name] for each in found])._asdict() for name in found[0]},
        }
        for kind, found in times.items()
    ]


def summarise(turns: Sequence[RowRun], names: Sequence[str], kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Per row: rates by kind, and the ratio of each group of ours to each other kind, turn by turn (neighbours in
    time)."""
    rows = []
    for name in names:
        per_s = {kind: [turn.per_s for turn in turns if (turn.row, turn.kind) == (name, kind)] for kind in kinds}
        row: dict[str, Any] = {"row": name, "per_s": {kind: spread(found)._asdict() for kind, found in per_s.items()}}
        row["cpu_us"] = {
            kind: spread([turn.broker_cpu_us for turn in turns if (turn.row, turn.kind) == (name, kind)]).median
            for kind in kinds
        }
        row["ratios"] = {}
        for ours, kind in _compared(kinds):
            ratio = spread([one / other for one, other in zip(per_s[ours], per_s[kind], strict=True)])
            goal = {PAIR: GOALS, FILES: FILES_GOALS}.get(kind, {}).get(name)
            met = goal is None or ratio.median >= goal
            row["ratios"][f"{ours} : {kind}"] = ratio._asdict() | {"goal": goal, "met": met}
        rows.append(row)
    return rows


def _compared(kinds: Sequence[str]) -> list[tuple[str, str]]:
    """Each group of ours, with each other kind, and with its floor."""
    groups = [kind for kind in kinds if kind.startswith(REPLICA)]
    pairs = [(ours, kind) for kind in (FILES, PAIR) for ours in groups]
    pairs += [(ours, ours.replace(REPLICA, FLOOR)) for ours in groups]
    return [(ours, kind) for ours, kind in pairs if kind in kinds]


def missed(report: dict[str, Any]) -> list[str]:
    """The goals that the figures do not meet."""
    found = [
        f"{row['row']}: {names} {ratio['median']:.2f}, goal {ratio['goal']:g}"
        for row in report["rows"]
        for names, ratio in row["ratios"].items()
        if not ratio["met"]
    ]
    for each in report["takeovers"]:
        took_s = max(time["median"] for time in each["spread"].values())
        if each["kind"].startswith(REPLICA) and took_s > TAKEOVER_S:
            found.append(f"takeover of {each['kind']} {took_s:.2f} s, goal {TAKEOVER_S:g}")
    return found


def tables(report: dict[str, Any]) -> list[Table]:
    kinds = report["kinds"]
    rates = Table(
        title="messages/s, median (min–max)",
        caption=f"load {report['host']['load_average']}",
    )
    ratios = [f"{ours} : {kind}" for ours, kind in _compared(kinds)]
    for heading in ("producers/consumers", *kinds, "CPU µs of the master", *ratios):
        rates.add_column(heading, justify="left" if heading == "producers/consumers" else "right")
    for row in report["rows"]:
        cells = [
            f"{each.median:,.0f} ({each.low:,.0f}–{each.high:,.0f})" for each in map(_spread, row["per_s"].values())
        ]
        cells.append(" | ".join(f"{row['cpu_us'][kind]:.0f}" for kind in kinds))
        for names in ratios:
            ratio = row["ratios"][names]
            goal = "" if ratio["goal"] is None else f" (goal {ratio['goal']:g})"
            cells.append(f"{ratio['median']:.2f}{goal}")
        rates.add_row(row["row"], *cells)
    return [rates, *([takeover.table(report["takeovers"])] if report["takeovers"] else [])]


def _spread(row: dict[str, float]) -> Spread:
    return Spread(row["median"], row["low"], row["high"])


def main() -> None:
    parser = cli.parser("replication", __doc__, EXAMPLES, peers=False)
    parser.add_argument("--peer", type=cli.peer, metavar="artemis=DIR", help="measure its pair in the same run")
    parser.add_argument(
        "--members", type=int, choices=(2, 3, 5), action="append", help="of our group (default 2; several: each)"
    )
    parser.add_argument("--messages", type=int, default=100_000, help="waiting at a kill (default %(default)s)")
    parser.add_argument("--takeovers", type=int, default=3, help="kills of each kind, 0 = none (default %(default)s)")
    add_turns(parser, GOALS)
    add_floor(parser)
    args = parser.parse_args()
    if args.peer not in (None, "artemis"):
        parser.error(f"{args.peer} has no replicated pair: name artemis=DIR")
    cli.terminate_on_signal()
    options = cli.amq_options(args)
    kinds = []
    for members in dict.fromkeys(args.members or [2]):
        kinds.append(f"{REPLICA}-{members}")
        brokers.KINDS[kinds[-1]] = type("Member", (ReplicaBroker,), {"kind": kinds[-1], "members": members})
    kinds.append(FILES)
    if args.peer:
        kinds.append(PAIR)
        brokers.KINDS[PAIR] = type("Pair", (ReplicatedArtemis,), {"home": brokers.KINDS["artemis"].home})
    if args.floor:
        for members in dict.fromkeys(args.members or [2]):
            kinds.append(f"{FLOOR}-{members}")
            brokers.KINDS[kinds[-1]] = floor_of(kinds[-1], members)
    effort = QUICK if args.quick else Effort(args.repeat, args.seconds, args.warm_up, 0)
    messages, repeat = (2000, min(args.takeovers, 1)) if args.quick else (args.messages, args.takeovers)
    names = args.row or list(GOALS)
    try:
        turns = measure_rates(kinds, names, effort, args.size, args.dir, options, cli.progress)
        copied = [kind for kind in kinds if kind.startswith((REPLICA, PAIR))]
        takeovers = measure_takeovers(copied, repeat, messages, args.dir, options, cli.progress) if repeat else []
    except (LoadError, brokers.BrokerProcessError, TimeoutError) as error:
        sys.exit(f"failed: {error}")
    report = {
        "host": host.describe(args.dir),
        "kinds": kinds,
        "rows": summarise(turns, names, kinds),
        "takeovers": takeovers,
    }
    cli.show(args, report, *tables(report))
    if found := missed(report):
        sys.exit("a target was missed: " + "; ".join(found))


if __name__ == "__main__":
    main()
