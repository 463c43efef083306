"""Where the time of one row goes: Python calls per message, and what py-spy sees from outside.

Two runs, because each spoils the other's figures. `calls` starts a broker under cProfile and puts the row's load on it:
how often each function of `amq` was called per message, and its own time. Exact, and slow: the rates mean nothing. Only
the event loop's thread is counted, which is where a message is handled. `samples` watches an ordinary broker under full
load with py-spy, where that is installed: every thread that is not waiting, C code under the Python function that
called it (`write` and `fdatasync` under the journal's). It writes a flame graph if asked to.
"""

from __future__ import annotations

import contextlib
import cProfile
import pstats
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from bench import brokers, cli, jms, jvm
from bench.load import Load, LoadError, run
from bench.throughput import ROWS

CALLS_MESSAGES = 20_000
QUICK_CALLS_MESSAGES = 4_000
WARM_UP_MESSAGES = 2_000
SAMPLE_S = 6.0
SAMPLE_RATE = 200
SAMPLED_MESSAGES = 40_000  # of one run; runs follow one another until the sampling ends
TOP = 25
CALLS_TARGET = 25
EXAMPLES = (
    "--quick",
    "--row '4/4 window 256'",
    "--row '1/1 window 1' --flame window1.svg",
    "--row 'async 4/4' --json profile.json",
)


class Function(NamedTuple):
    """One line of the profile, per message. `self_us` is its own time under the profiler."""

    name: str
    calls: float
    self_us: float


class ProfiledBroker(brokers.AmqBroker):
    """A broker under cProfile; the profile is written to `profile` when it has stopped."""

    @property
    def profile(self) -> Path:
        return self.store.parent / f"{self.name}.profile"

    def command(self) -> list[str]:
        _, *rest = super().command()
        return [sys.executable, "-m", "bench.profile", "--run", str(self.profile), *rest[1:]]


def run_under_profile(path: str, module: str, arguments: list[str]) -> None:
    """In the broker's process: run `module` as a program with a profile of the main thread."""
    sys.argv = [module, *arguments]
    profile = cProfile.Profile()
    try:
        profile.runcall(runpy.run_module, module, run_name="__main__", alter_sys=True)
    finally:
        profile.dump_stats(path)


@contextlib.contextmanager
def _clients(row_name: str, broker: brokers.BrokerProcess) -> Iterator[Callable[[int, str], float]]:
    """Puts the load of a row on `broker`: (messages, name of a queue) → seconds."""
    if row_name in jms.ROWS:
        java = jms.ROWS[row_name]
        with contextlib.closing(jms.Generator()) as generator:
            yield lambda messages, queue: float(
                generator.run(jms.options_of(java, broker, queue, messages) | {"warmup": 0})["seconds"]
            )
        return
    row = ROWS[row_name]

    def stomp(messages: int, queue: str) -> float:
        return run(
            Load(
                broker.port,
                producers=row.producers,
                consumers=row.consumers,
                messages=messages,
                window=row.window,
                persistent=row.persistent,
                destination=f"/queue/{queue}",
            )
        ).seconds

    yield stomp


def _counts(
    row_name: str, messages: int, directory: str | None, options: dict[str, str]
) -> dict[str, tuple[float, float]]:
    """{function: (calls, own seconds)} of a broker that served `messages` and was stopped."""
    group = brokers.BrokerGroup("amq", directory=directory, options=options, openwire=row_name in jms.ROWS)
    broker = ProfiledBroker("b0", group.store, group.ports[0], group.brokers[0].keep_alive_ms, options)
    broker.openwire_port = group.brokers[0].openwire_port
    group.brokers[:] = [broker]
    with group, _clients(row_name, broker) as load:
        load(messages, "profile")
        broker.stop()
        stats: Any = pstats.Stats(str(broker.profile))
        return {_name(key): (value[1], value[2]) for key, value in stats.stats.items()}


def _name(key: tuple[str, int, str]) -> str:
    path, line, function = key
    where = re.sub(r"^.*/(?=(amq|cli)/)|^.*/lib/python[\d.]+/", "", path)
    return function if path == "~" else f"{where}:{line} {function}"


def calls(row_name: str, messages: int, directory: str | None, options: dict[str, str]) -> list[Function]:
    """Functions by own time. What start, stop and connections cost is taken off by a second, smaller run."""
    few = _counts(row_name, WARM_UP_MESSAGES, directory, options)
    many = _counts(row_name, WARM_UP_MESSAGES + messages, directory, options)
    functions = []
    for name, (count, seconds) in many.items():
        before, before_s = few.get(name, (0, 0.0))
        functions.append(Function(name, (count - before) / messages, (seconds - before_s) / messages * 1e6))
    return sorted(functions, key=lambda function: -function.self_us)


def samples(
    row_name: str, seconds: float, flame: str | None, directory: str | None, options: dict[str, str]
) -> list[tuple[str, float]]:
    """(function, share of all samples in which it was the innermost one), by share. Empty without py-spy."""
    spy = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if spy is None:
        return []
    group = brokers.BrokerGroup("amq", directory=directory, options=options, openwire=row_name in jms.ROWS)
    broker = group.brokers[0]
    with group, tempfile.TemporaryDirectory() as scratch, _clients(row_name, broker) as load:
        load(WARM_UP_MESSAGES, "warm")
        raw = Path(scratch) / "raw.txt"
        watching = ["record", "--function", "--rate", str(SAMPLE_RATE), "--pid", str(broker.pid)]
        spies = [_spy([spy, *watching, "--format", "raw", "--output", str(raw)])]
        if flame:
            spies.append(_spy([spy, *watching, "--format", "flamegraph", "--output", flame]))
        try:
            _keep_busy(load, seconds)
        finally:
            for process in spies:
                process.send_signal(signal.SIGINT)
                process.wait()
        return _innermost(raw.read_text())


def _spy(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _keep_busy(load: Callable[[int, str], float], seconds: float) -> None:
    spent_s, number = 0.0, 0
    messages = WARM_UP_MESSAGES
    while spent_s < seconds:
        number += 1
        spent_s += load(messages, f"busy{number}")
        messages = min(SAMPLED_MESSAGES, messages * 2)


def _innermost(raw: str) -> list[tuple[str, float]]:
    """py-spy's raw format: `outer;…;inner count` a line."""
    counts: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        counts[re.sub(r"^.*/(?=(amq|cli)/)", "", stack.rpartition(";")[2])] += int(count)
    total = counts.total() or 1
    return [(name, count / total) for name, count in counts.most_common()]


def calls_table(functions: list[Function]) -> Table:
    python = sum(function.calls for function in functions if ":" in function.name)
    native = sum(function.calls for function in functions if ":" not in function.name)
    shown = Table(title=f"calls a message: {python:.1f} of Python functions (aim ≤ {CALLS_TARGET}), {native:.1f} of C")
    for heading in ("function", "calls", "own µs (with profiler)"):
        shown.add_column(heading, justify="left" if heading == "function" else "right")
    for function in functions[:TOP]:
        shown.add_row(function.name, f"{function.calls:.2f}", f"{function.self_us:.2f}")
    return shown


def samples_table(shares: list[tuple[str, float]]) -> Table:
    shown = Table(title="samples by innermost function, busy threads" if shares else "no py-spy here: no samples")
    shown.add_column("function")
    shown.add_column("share", justify="right")
    for name, share in shares[:TOP]:
        shown.add_row(name, f"{share:.1%}")
    return shown


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        run_under_profile(sys.argv[2], sys.argv[3], sys.argv[4:])
        return
    parser = cli.parser("profile", __doc__, EXAMPLES, peers=False)
    together = sorted(name for name, row in (ROWS | jms.ROWS).items() if not (row.drains or row.topic))
    parser.add_argument("--row", choices=together, default="4/4 window 256", help="default %(default)s")
    parser.add_argument("--flame", metavar="FILE", help="write py-spy's flame graph there (SVG)")
    args = parser.parse_args()
    cli.terminate_on_signal()
    options = cli.amq_options(args)
    try:
        cli.progress("counting calls")
        messages = QUICK_CALLS_MESSAGES if args.quick else CALLS_MESSAGES
        functions = calls(args.row, messages, args.dir, options)
        cli.progress("sampling")
        shares = samples(args.row, SAMPLE_S / 3 if args.quick else SAMPLE_S, args.flame, args.dir, options)
    except (LoadError, brokers.BrokerProcessError, jvm.JavaError) as error:
        sys.exit(f"failed: {error}")
    report = {"row": args.row, "calls": [function._asdict() for function in functions], "samples": shares}
    cli.show(args, report, calls_table(functions), samples_table(shares))


if __name__ == "__main__":
    main()
