"""Messages per second while people watch the console, beside nobody watching: one broker with many queues.

One `amq console` runs beside the broker. Each viewer has logged in and does what an open page does: every two seconds
it fetches the list of queues, the overview, the figures of the plot and one queue. Pages are timed from the request to
the last byte. The lag of the broker's event loop is what the broker measures itself, ten times a second; under full
load it is that of the load's own batches, so the target is for viewers alone. Console and viewers take processor time
from the same cores as broker and load: CPU µs a message are the broker's alone.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final
from urllib.parse import quote

from rich.table import Table

from amq.management.client import ManagementClient
from amq.store.files.board import FileBoard
from amq.store.files.vfs import SystemVfs
from amq.store.presence import read_presence
from bench import brokers, cli, host
from bench.load import Load, LoadError, LoadResult
from bench.throughput import QUICK, ROWS, Bench, Effort, Row, RowRun, add_turns, summarise, table
from bench.wire import WireConnection

TARGET: Final = 0.97
LAG_TARGET_S: Final = 0.005
PAGE_TARGET_S: Final = 0.3
VIEWED, ALONE, NO_LOAD = "viewers", "nobody", "viewers, no load"
IDLE_S: Final = 20.0
QUEUES: Final = 10_000
VIEWERS: Final = 5
EVERY_S: Final = 2.0
PATIENCE_S: Final = 180.0  # a busy machine starts a console late
NAMES: Final = ("4/4 window 256",)
WINDOW: Final = 500  # sends that wait for one receipt, when queues are made
EXAMPLES: Final = ("", "--queues 1000 --viewers 20", "--quick", "--json console.json")
Lag = Counter[float | None]  # bound of a bucket, None = more → how often


class Viewers:
    """They look while `watching`. `times` = seconds of each page that they got."""

    def __init__(self, port: int, count: int, queue: str) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)
        self.failures: list[str] = []
        self._port = port
        self._watch, self._end = threading.Event(), threading.Event()
        self._pages = ("/queues?part=1", "/?part=1", "/figures.json", f"/queue/{quote(queue, safe='')}?part=figures")
        self._threads = [threading.Thread(target=self._look, args=(number / count,)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        self._watch.set()
        try:
            yield
        finally:
            self._watch.clear()

    def close(self) -> None:
        self._end.set()
        self._watch.set()
        for thread in self._threads:
            thread.join()

    def _look(self, phase: float) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        try:
            connection.request("POST", "/login", "login=&passcode=")
            answer = connection.getresponse()
            answer.read()
            cookie = (answer.headers["set-cookie"] or "").partition(";")[0]
            self._end.wait(phase * EVERY_S)
            while not self._end.is_set():
                self._watch.wait()
                began = time.monotonic()
                for page in self._pages:
                    self._fetch(connection, page, cookie)
                self._end.wait(max(0.0, EVERY_S - (time.monotonic() - began)))
        except (OSError, http.client.HTTPException) as error:
            self.failures.append(str(error) or type(error).__name__)
        finally:
            connection.close()

    def _fetch(self, connection: http.client.HTTPConnection, page: str, cookie: str) -> None:
        began = time.monotonic()
        connection.request("GET", page, headers={"Cookie": cookie})
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            self.failures.append(f"{page}: {answer.status}")
        self.times[page.partition("?")[0] if "queue/" not in page else "/queue/NAME"].append(time.monotonic() - began)


class ConsoleBench(Bench):
    """`masters` = the same broker twice, by whether it is watched. `lags` = of its event loop, by kind."""

    viewers: Viewers
    broker: ManagementClient

    def _run(self, name: str, kind: str, load: Load, run: Callable[[Load], LoadResult]) -> RowRun:
        before = _lag(self.broker)
        with self.viewers.watching() if kind == VIEWED else contextlib.nullcontext():
            turn = super()._run(name, kind, load, run)
        self.lags[kind] += _lag(self.broker) - before
        return turn

    def begin(self) -> None:
        """What was measured so far was to warm up."""
        self.lags: dict[str, Lag] = {VIEWED: Counter(), ALONE: Counter()}
        self.viewers.times.clear()


def _lag(broker: ManagementClient) -> Lag:
    buckets = broker.get("/totals")["loop_lag"]["buckets"]
    counts = [buckets[0][1], *(after[1] - before[1] for before, after in pairwise(buckets))]
    return Counter({bound: count for (bound, _), count in zip(buckets, counts, strict=True) if count})


def p99(lag: Lag) -> float | None:
    """The bound of the bucket in which the 99th percentile is; None = beyond all."""
    total, so_far = sum(lag.values()), 0
    for bound in sorted(bound for bound in lag if bound is not None):
        so_far += lag[bound]
        if so_far >= 0.99 * total:
            return bound
    return None


def make_queues(port: int, count: int) -> None:
    """`count` queues with a message each."""
    with contextlib.closing(WireConnection(port)) as connection:
        for number in range(count):
            last = (number + 1) % WINDOW == 0 or number + 1 == count
            receipt = {"receipt": str(number)} if last else {}
            connection.send("SEND", {"destination": f"/queue/shop.{number:05}", "persistent": "true", **receipt}, b"1")
            if last:
                frame = connection.next_frame(PATIENCE_S)
                if frame.command != "RECEIPT":
                    raise LoadError(f"{frame.command}: {frame.headers}")


@contextlib.contextmanager
def console(broker: brokers.AmqBroker) -> Iterator[int]:
    """Its port."""
    port = brokers.free_port()
    words = [
        str(broker.python),
        "-m",
        "amq.cli.main",
        "console",
        "--store",
        str(broker.store),
        "--listen",
        f"127.0.0.1:{port}",
    ]
    with subprocess.Popen(
        words,
        cwd=brokers.ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=brokers.die_with_parent,  # no thread has begun
    ) as process:
        try:
            until = time.monotonic() + PATIENCE_S
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > until:
                    raise brokers.BrokerProcessError("the console does not start: pip install 'amq[console]'")
                time.sleep(0.1)
            yield port
        finally:
            process.kill()


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/livez")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def measure(
    rows: Sequence[Row],
    scale: Effort,
    queues: int,
    viewers: int,
    size_bytes: int,
    directory: str | None,
    options: dict[str, str],
    idle_s: float,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Returns what `--json` writes."""
    before, kinds = host.describe(directory), (VIEWED, ALONE)
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(brokers.BrokerGroup("amq", directory=directory, options=options))
        broker = group.brokers[0]
        assert isinstance(broker, brokers.AmqBroker)
        progress(f"making {queues:,} queues")
        make_queues(broker.port, queues)
        bench = ConsoleBench(dict.fromkeys(kinds, broker), scale.seconds, size_bytes, scale.backlog)
        (presence,) = read_presence(FileBoard(SystemVfs(), str(broker.store)))
        bench.broker = stack.enter_context(ManagementClient(presence.management))
        bench.viewers = Viewers(stack.enter_context(console(broker)), viewers, "shop.00000")
        stack.callback(bench.viewers.close)
        bench.begin()
        bench.warm_up(scale.warm_up_s, progress)
        bench.begin()
        bench.measure(rows, scale.repeat, progress)
        lags = {**bench.lags, NO_LOAD: watched(bench, idle_s, progress)}
        times, failures = dict(bench.viewers.times), list(bench.viewers.failures)
    if failures:
        raise LoadError(f"a viewer failed: {failures[0]}")
    return {
        "host": {"before": before, "after": host.describe(directory)},
        "kinds": list(kinds),
        "queues": queues,
        "viewers": viewers,
        "rows": summarise(bench.turns, rows, kinds),
        "pages": {page: _spread(found) for page, found in times.items()},
        "loop_lag_p99_s": {kind: p99(lag) for kind, lag in lags.items()},
        "loop_lag": {kind: [[bound, lag[bound]] for bound in lag] for kind, lag in lags.items()},
        "turns": [dataclasses.asdict(turn) for turn in bench.turns],
    }


def watched(bench: ConsoleBench, seconds: float, progress: Callable[[str], None]) -> Lag:
    """The lag of a broker that does nothing but answer the viewers."""
    progress("viewers alone")
    before = _lag(bench.broker)
    with bench.viewers.watching():
        time.sleep(seconds)
    return _lag(bench.broker) - before


def _spread(found: Sequence[float]) -> dict[str, float]:
    ordered = sorted(found)
    return {"count": len(found), "p50_s": statistics.median(ordered), "p99_s": ordered[len(ordered) * 99 // 100]}


def pages_table(report: dict[str, Any]) -> Table:
    shown = Table(title=f"{report['queues']:,} queues, {report['viewers']} viewers")
    for title in ("page, or the event loop", "how often", "p50 ms", "p99 ms", "target"):
        shown.add_column(title, justify="left" if "page" in title else "right")
    for page, found in report["pages"].items():
        cells = (f"{found[name] * 1000:,.0f}" for name in ("p50_s", "p99_s"))
        shown.add_row(page, f"{found['count']:,}", *cells, f"p50 < {PAGE_TARGET_S * 1000:.0f}")
    for kind, lag in report["loop_lag_p99_s"].items():
        count = sum(number for _, number in report["loop_lag"][kind])
        told = f"≤ {lag * 1000:g}" if lag is not None else "> 10,000"
        target = f"≤ {LAG_TARGET_S * 1000:g}" if kind == NO_LOAD else "–"
        shown.add_row(f"lag of the loop, {kind}", f"{count:,}", "", told, target)
    return shown


def _parser() -> argparse.ArgumentParser:
    parser = cli.parser("console", __doc__, EXAMPLES, peers=False)
    parser.add_argument("--queues", type=int, default=QUEUES, help="with a message each (default %(default)s)")
    parser.add_argument("--viewers", type=int, default=VIEWERS, help="of pages (default %(default)s)")
    add_turns(parser, ROWS)
    return parser


def main() -> None:
    args = _parser().parse_args()
    cli.terminate_on_signal()
    rows = [dataclasses.replace(ROWS[name], target=TARGET) for name in args.row or NAMES]
    scale = QUICK if args.quick else Effort(args.repeat, args.seconds, args.warm_up)
    try:
        options = cli.amq_options(args)
        idle_s = 3.0 if args.quick else IDLE_S
        report = measure(rows, scale, args.queues, args.viewers, args.size, args.dir, options, idle_s, cli.progress)
    except (LoadError, brokers.BrokerProcessError) as error:
        sys.exit(f"failed: {error}")
    cli.show(args, report, table(report["rows"], report["kinds"]), pages_table(report), f"host: {report['host']}")
    lag = report["loop_lag_p99_s"][NO_LOAD]
    slow = [page for page, found in report["pages"].items() if found["p50_s"] >= PAGE_TARGET_S]
    if not all(line["met"] for line in report["rows"]) or slow or lag is None or lag > LAG_TARGET_S:
        sys.exit("a target was missed")


if __name__ == "__main__":
    main()
