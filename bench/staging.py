"""Processor time that a row of an exactly-once sink takes, step by step: in a task without Spark, in the broker without
sockets. Other work on the machine counts little, as no clock on the wall is read.

Rows have a value alone, a key too, or a key and three headers. The task makes frames of Arrow batches; the broker reads
them, prepares transactions of so many rows, writes and applies them, and commits all as one batch. Invariant: a result
is returned only when the queue holds each row.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from rich.table import Table

from amq.protocols.commands import CommitBatch, Prepare
from amq.protocols.stomp import runs
from amq.protocols.stomp.codec import StompCodec
from amq.protocols.stomp.frame import encode
from bench import cli, host
from bench.load import LoadError
from pyspark_amq import columns
from pyspark_amq.frames import FrameColumns
from tests.broker.world import Client, World

EXAMPLES = ("--quick", "--rows 500000 --window 1000")
ROWS, QUICK_ROWS = 100_000, 10_000
WINDOW_ROWS = 10_000
BODY_BYTES = 100
CONNECTIONS = 2
READ_BYTES = 1 << 18
ROUNDS = 3
KINDS = ("value", "key", "key and headers")
HEADERS = ("colour", "region", "trace")
STEPS = (
    "task: Arrow to columns",
    "task: checksum",
    "task: frames",
    "broker: read frames",
    "broker: take in",
    "broker: prepare",
    "broker: write and apply",
    "broker: commit the batch",
)


class Stopwatch:
    """Seconds of processor time of this process, by step."""

    def __init__(self) -> None:
        self.spent_s = dict.fromkeys(STEPS, 0.0)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        started_s = time.process_time()
        yield
        self.spent_s[name] += time.process_time() - started_s


def batch_of(start: int, stop: int, kind: str) -> tuple[pa.RecordBatch, FrameColumns]:
    """Rows, and what their columns mean."""
    found = {"value": pa.array([str(row).rjust(BODY_BYTES, ".") for row in range(start, stop)])}
    if kind != "value":
        found["key"] = pa.array([f"key-{row}" for row in range(start, stop)])
    if kind == "key and headers":
        headers = [[(name, f"{name}-{row}") for name in HEADERS] for row in range(start, stop)]
        found["headers"] = pa.array(headers, pa.map_(pa.string(), pa.string()))
    described = FrameColumns(text=True, key="key" in found, destination=False, headers="headers" in found, id=None)
    return pa.record_batch(found), described


def once(rows: int, window: int, kind: str, directory: str | None) -> dict[str, float]:
    """Microseconds per row of each step. Raises LoadError."""
    watch = Stopwatch()
    with tempfile.TemporaryDirectory(dir=directory) as store:
        world = World(
            store, journal_segment_size_bytes=64 << 20, checkpoint_distance_bytes=0, memory_limit_bytes=1 << 30
        )
        streams = [(opened(), world.connect()) for _ in range(CONNECTIONS)]
        xids = []
        for number, start in enumerate(range(0, rows, window)):
            stream = streams[number % CONNECTIONS]
            send(world, watch, *stream, f"t{number}", *batch_of(start, min(rows, start + window), kind))
            xids.append(f"bench.{number}")
            with watch.step("broker: prepare"):
                stream[1].do(Prepare(f"t{number}", xids[-1], 0, "bench", 0, "p"))
            with watch.step("broker: write and apply"):
                world.settle()
        client = world.connect()
        with watch.step("broker: commit the batch"):
            client.do(CommitBatch("bench", 0, xids, "c"))
            world.settle()
        if world.broker.state.queue("queue://bench").stored != rows:
            raise LoadError(f"the queue holds {world.broker.state.queue('queue://bench').stored} of {rows} rows")
        world.close()
    return {name: 1e6 * spent_s / rows for name, spent_s in watch.spent_s.items()}


def opened() -> StompCodec:
    stomp = StompCodec()
    stomp.receive(encode("CONNECT", [("accept-version", "1.2"), ("host", "bench"), (runs.HEADER, runs.VERSION)]))
    return stomp


def send(
    world: World,
    watch: Stopwatch,
    stomp: StompCodec,
    client: Client,
    transaction: str,
    batch: pa.RecordBatch,
    described: FrameColumns,
) -> None:
    """Rows of one transaction, from Arrow to the broker's memory."""
    head = f"SENDMANY\ndestination:/queue/bench\npersistent:true\ntransaction:{transaction}\ntext:true\n"
    written = [encode("BEGIN", [("transaction", transaction)])]
    with watch.step("task: Arrow to columns"):
        (whole,) = columns.tables_of(batch, described, "/queue/bench")
        parts = [sent for part in whole.pieces() if (sent := part.sent()) is not None]
    with watch.step("task: checksum"):
        whole.checksum()
    with watch.step("task: frames"):
        for part in parts:
            body = part.pack()
            written.append(f"{head}messages:{part.count}\ncontent-length:{len(body)}\n\n".encode() + body + b"\0")
    data = b"".join(written)
    for start in range(0, len(data), READ_BYTES):
        with watch.step("broker: read frames"):
            commands = stomp.receive(data[start : start + READ_BYTES])
        with watch.step("broker: take in"):
            client.do(*commands)
            world.turn()


def measure(rows: int, window: int, directory: str | None) -> dict[str, dict[str, float]]:
    """The best of some rounds, step by step, of each kind of rows."""
    gc.collect()
    gc.freeze()
    found = {}
    for kind in KINDS:
        rounds = [once(rows, window, kind, directory) for _ in range(ROUNDS)]
        found[kind] = {name: min(each[name] for each in rounds) for name in STEPS}
    return found


def table(result: dict[str, dict[str, float]], rows: int, window: int) -> Table:
    shown = Table(title=f"processor time per row, µs: {rows:,} rows of {BODY_BYTES} bytes, {window:,} in a transaction")
    shown.add_column("step")
    for kind in result:
        shown.add_column(kind, justify="right")
    for name in STEPS:
        shown.add_row(name, *(f"{spent_us[name]:.2f}" for spent_us in result.values()))
    for part in ("task", "broker"):
        sums = (sum(us for name, us in spent_us.items() if name.startswith(part)) for spent_us in result.values())
        shown.add_row(f"{part} together", *(f"{us:.2f}" for us in sums))
    return shown


def main() -> None:
    parser = cli.parser("staging", __doc__, EXAMPLES, peers=False)
    parser.add_argument("--rows", type=int, default=ROWS, help="(default %(default)s)")
    parser.add_argument("--window", type=int, default=WINDOW_ROWS, help="rows of a transaction (default %(default)s)")
    args = parser.parse_args()
    rows = QUICK_ROWS if args.quick else args.rows
    try:
        result = measure(rows, args.window, args.dir)
    except LoadError as error:
        sys.exit(f"failed: {error}")
    cli.show(args, {"host": host.describe(args.dir), "us_per_row": result}, table(result, rows, args.window))


if __name__ == "__main__":
    main()
