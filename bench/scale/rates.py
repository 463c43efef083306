"""What it costs to be safe at scale: throughput beside compaction, checkpoints and a slave; draining from disk.

Throughput: two groups of brokers stay up during the whole run and take turns. `alone` = one broker on an empty store.
`busy` = a master and a slave on a store whose live data nobody consumes. Before each of its turns some more comes:
among traffic, in segments that must be copied so that the journal stays within its disk space. What else may be
switched off on the quiet side is given by the caller as options.

Drain: a backlog that waits on disk alone, with the page cache dropped, beside one that fits into memory: from memory,
from disk, from memory again, so that each rate from disk has neighbours in time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from pathlib import Path
from typing import Any

from rich.table import Table

from amq.journal.format import HEADER_BYTES
from bench import brokers
from bench.scale import machine
from bench.scale.backlog import BODY_BYTES, Progress, drain, fill
from bench.stats import Spread, spread
from bench.throughput import ROWS, Bench, summarise

BUSY_SHARE_MIN = 0.85
DISK_SHARE_MIN = 0.6
MEMORY_BACKLOG_BYTES_MAX = 1_000_000_000
FROM_DISK = {"memoryLimit": "64MiB", "maxFrameSize": "1MiB", "maxTransactionSize": "16MiB"}
FROM_MEMORY = {"memoryLimit": "8GiB"}
WARM_UP_S = 8.0
ADDED_SHARE = 0.08  # of what lives, before each turn: about 2 % of its traffic
ROW = dataclasses.replace(ROWS["4/4 window 256"], target=BUSY_SHARE_MIN)
KINDS = ("busy", "alone")


def segments(store: Path) -> set[str]:
    return {path.name for path, _ in machine.files(store / "journal") if path.suffix == ".seg"}


def unused(store: Path) -> str:
    """The segment that was made ahead of need: the newest one, where nothing stands behind its header."""
    newest = max(segments(store))
    with (store / "journal" / newest).open("rb") as file:
        file.seek(HEADER_BYTES)
        return newest if not file.read(1).strip(b"\0") else ""


@dataclasses.dataclass(frozen=True)
class Throughput:
    """How much: turns of each side and their length, live data on the busy side, options that only one side has."""

    repeat: int = 5
    seconds: float = 8.0
    warm_up_s: float = WARM_UP_S
    live_bytes: float = 100e6
    alone_options: dict[str, str] = dataclasses.field(default_factory=dict)
    busy_options: dict[str, str] = dataclasses.field(default_factory=dict)


def measure_throughput(
    scale: Throughput, directory: str | None, options: dict[str, str], progress: Progress
) -> dict[str, Any]:
    """The line of the table of bench.throughput, with the ratio busy / alone, and proof that compaction ran."""
    machine.require_space(directory, 4 * scale.live_bytes + 1e9, "throughput", "hold less with --live-megabytes")
    with contextlib.ExitStack() as stack:
        progress("throughput: starting three brokers")
        quiet = brokers.BrokerGroup("amq", directory=directory, options=options | scale.alone_options)
        alone = stack.enter_context(quiet).brokers[0]
        group = brokers.BrokerGroup("amq", 2, directory=directory, options=options | scale.busy_options)
        master, slave = stack.enter_context(group).brokers
        fill(master.port, int(scale.live_bytes / BODY_BYTES), "/queue/scale.pinned", progress=progress)
        machine.settle(slave)
        bench = Bench({"busy": master, "alone": alone}, scale.seconds, BODY_BYTES, 0)
        bench.warm_up(scale.warm_up_s, progress)
        slave_cpu_s, start_s = slave.cpu_s(), time.monotonic()
        moved, added = 0, int(ADDED_SHARE * scale.live_bytes / BODY_BYTES)
        for _ in range(scale.repeat):
            fill(master.port, added, "/queue/scale.pinned", progress=progress)
            pinned = max(segments(group.store) - {unused(group.store)})
            bench.measure([ROW], 1, progress)
            moved += pinned not in segments(group.store)
        slave_share = (slave.cpu_s() - slave_cpu_s) / (time.monotonic() - start_s)
        slave.check()
        (line,) = summarise(bench.turns, [ROW], KINDS)
        return line | {
            "turns": [dataclasses.asdict(turn) for turn in bench.turns],
            "pinned_segments": scale.repeat,
            "pinned_segments_moved": moved,
            "slave_cpu_share": slave_share,
            "memory": {"master": machine.memory(master), "slave": machine.memory(slave)},
        }


def require_space(backlog_bytes: float, directory: str | None) -> None:
    """Raise SpaceError where a backlog of that size does not fit."""
    wanted_bytes = backlog_bytes * machine.RECORD_FACTOR
    machine.require_space(directory, wanted_bytes, "drain", "drain less with --backlog-gigabytes")


def drain_rate(
    what: str, backlog_bytes: float, directory: str | None, options: dict[str, str], progress: Progress
) -> float:
    """Fill a separate store with messages of 1 KiB, drop the page cache, drain it; messages/s of the draining."""
    require_space(backlog_bytes, directory)
    messages = int(backlog_bytes / BODY_BYTES)

    def say(text: str) -> None:
        progress(f"drain from {what}: {text}")

    with brokers.BrokerGroup("amq", directory=directory, options=options) as group:
        say("filling")
        fill(group.ports[0], messages, "/queue/scale.drain", progress=say)
        machine.settle(group.brokers[0])
        machine.drop_page_cache(group.store)
        return drain(group.ports[0], messages, "/queue/scale.drain", progress=say)


def measure_drain(
    backlog_bytes: float, repeat: int, directory: str | None, options: dict[str, str], progress: Progress
) -> dict[str, Any]:
    """Rates from disk and from memory, and their ratio: each from disk against the mean of its neighbours."""
    in_memory_bytes = min(backlog_bytes, MEMORY_BACKLOG_BYTES_MAX)

    def from_memory() -> float:
        return drain_rate("memory", in_memory_bytes, directory, options | FROM_MEMORY, progress)

    memory, disk = [from_memory()], []
    for _ in range(repeat):
        disk.append(drain_rate("disk", backlog_bytes, directory, options | FROM_DISK, progress))
        memory.append(from_memory())
    ratios = [2 * rate / (memory[at] + memory[at + 1]) for at, rate in enumerate(disk)]
    ratio = spread(ratios)
    return {
        "backlog_bytes": backlog_bytes,
        "in_memory_bytes": in_memory_bytes,
        "disk_per_s": spread(disk)._asdict(),
        "memory_per_s": spread(memory)._asdict(),
        "rates": {"disk": disk, "memory": memory},
        "ratio": ratio._asdict(),
        "met": ratio.median >= DISK_SHARE_MIN,
    }


def misses(report: dict[str, Any]) -> list[str]:
    """`report` may hold "throughput" and "drain"."""
    missed = []
    for name, least in (("throughput", BUSY_SHARE_MIN), ("drain", DISK_SHARE_MIN)):
        if name in report and not report[name]["met"]:
            missed.append(f"{name}: {report[name]['ratio']['median']:.2f} < {least:g}")
    if "throughput" in report and not report["throughput"]["pinned_segments_moved"]:
        missed.append("throughput: compaction had nothing to do: more --seconds, or fewer --live-megabytes")
    return missed


def table(report: dict[str, Any]) -> Table:
    shown = Table(title="messages/s, median (min–max); ratios of neighbours in time")
    for heading in ("", "with", "without", "ratio", "promised"):
        shown.add_column(heading, justify="right" if heading else "left")
    lines = []
    if "throughput" in report:
        per_s, least = report["throughput"]["per_s"], BUSY_SHARE_MIN
        name = f"{ROW.name}: compaction, checkpoints and a slave | none of them"
        lines.append((name, per_s["busy"], per_s["alone"], report["throughput"], least))
    if "drain" in report:
        found = report["drain"]
        sizes = [f"{found[name] / 1e9:g} GB" for name in ("backlog_bytes", "in_memory_bytes")]
        name = f"drain {sizes[0]} from disk | {sizes[1]} from memory"
        lines.append((name, found["disk_per_s"], found["memory_per_s"], found, DISK_SHARE_MIN))
    for name, ours, theirs, result, least in lines:
        rates = [Spread(**rate) for rate in (ours, theirs)]
        ratio = Spread(**result["ratio"])
        colour = "[green]" if result["met"] else "[red]"
        shown.add_row(
            name,
            *(f"{rate.median:,.0f} ({rate.low:,.0f}–{rate.high:,.0f})" for rate in rates),
            f"{colour}{ratio.median:.2f}[/] ({ratio.low:.2f}–{ratio.high:.2f})",
            f"≥ {least:g}",
        )
    return shown
