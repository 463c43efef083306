"""Disk space that the journal takes while much more than it holds goes through it.

Invariant: what is live is known exactly, for one process sends, receives and acknowledges everything, and checks the
order of each queue on the way. Between its batches it looks at the journal's files, so a peak that lasts longer than
SAMPLE_EVERY_S is seen. The promise: segments take at most twice the bytes of the live records and one segment more.

`mixed` is ordinary traffic: sizes from 200 bytes to 16 KiB, a queue that stands some tens of megabytes deep and is
consumed in order, messages that are consumed much later, and some that never are, sent at all times. The others pin
segments as hard as can be, each with next to no live data or with live data where it hurts.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from amq.core.units import parse_size_bytes
from bench import brokers
from bench.load import LoadError
from bench.scale import machine
from bench.scale.backlog import PATIENCE_S, REPORT_EVERY_S, Progress
from bench.wire import WireConnection, encode

SIZES_BYTES = (200, 1024, 1024, 4096, 16384)
SERIAL_BYTES = 12
BATCH_BYTES = 256 << 10
BATCHES_UNCONFIRMED_MAX = 4
SAMPLE_EVERY_S = 0.02
HISTORY_MAX = 500  # samples kept for the report
SEED = 5
OLD, LATE, FIFO = "old", "late", "fifo"


class Scale(NamedTuple):
    """`sent_bytes` through a store with `live_bytes`; `pinned_segments` of `pinned_segment` through others."""

    sent_bytes: float
    live_bytes: float
    pinned_segments: int = 40
    pinned_segment: str = "32MiB"
    segment: str = "32MiB"


QUICK = Scale(2e9, 100e6, 50)


class DiskSample(NamedTuple):
    """Live messages and bytes of their bodies; blocks that the segments take, their sizes, those of other files."""

    at_s: float
    live_messages: int
    live_bytes: int
    used_bytes: int
    size_bytes: int
    other_bytes: int


class DiskQueue:
    """One queue: what is in it, and a consumer that takes only what it is told to, in order."""

    def __init__(self, name: str, port: int) -> None:
        self.destination = f"/queue/scale.{name}"
        self.live: deque[tuple[int, int]] = deque()  # (serial, bytes) sent and not acknowledged
        self.live_bytes = 0
        self._port = port
        self._connection: WireConnection | None = None
        self._held: deque[tuple[bytes, str]] = deque()  # (body, ack id) delivered, not yet taken

    def take(self, wanted_bytes: float) -> None:
        """Acknowledge the oldest messages, `wanted_bytes` or a little more. LoadError where others came."""
        if self._connection is None:
            self._connection = WireConnection(self._port, timeout_s=PATIENCE_S)
            headers = {"id": 0, "destination": self.destination, "ack": "client-individual"}
            self._connection.send("SUBSCRIBE", headers)
        acks: list[bytes] = []
        while wanted_bytes > 0:
            if acks and not self._held:  # the broker may wait for these before it sends more
                self._connection.send_bytes(b"".join(acks))
                acks.clear()
            while not self._held:
                frames = self._connection.read(PATIENCE_S)
                self._held.extend((frame.body, frame.headers["ack"]) for frame in frames)
            body, ack = self._held.popleft()
            serial, size = self.live.popleft()
            if (int(body[:SERIAL_BYTES]), len(body)) != (serial, size):
                raise LoadError(f"{self.destination}: message {body[:SERIAL_BYTES]!r} came instead of {serial}")
            acks.append(encode("ACK", {"id": ack}))
            wanted_bytes -= size
            self.live_bytes -= size
        self._connection.send_bytes(b"".join(acks))

    def close(self) -> None:
        """Leave when every acknowledgement was taken."""
        if self._connection is not None:
            with self._connection as connection:
                connection.send("DISCONNECT", {"receipt": "bye"})
                connection.receipt("bye", PATIENCE_S)


class Pump:
    """Sends to the queues and takes from them; samples the store's journal on the way."""

    def __init__(self, port: int, store: Path, progress: Progress) -> None:
        self.queues = {name: DiskQueue(name, port) for name in (OLD, LATE, FIFO)}
        self.samples: list[DiskSample] = []
        self.sent_bytes = 0
        self._serials = itertools.count()
        self._journal = store / "journal"
        self._sender = WireConnection(port, timeout_s=PATIENCE_S)
        self._unconfirmed = 0
        self._progress = progress
        self._start_s = self._reported_s = time.monotonic()

    def send(self, messages: Sequence[tuple[str, int]]) -> None:
        """One batch of (queue, body bytes), then a look at the store."""
        frames = []
        for number, (name, size) in enumerate(messages, 1):
            queue, serial = self.queues[name], next(self._serials)
            headers: dict[str, object] = {"destination": queue.destination, "content-length": size}
            headers |= {"persistent": "true"} if number < len(messages) else {"persistent": "true", "receipt": "b"}
            frames.append(encode("SEND", headers, b"%012d" % serial + b"x" * (size - SERIAL_BYTES)))
            queue.live.append((serial, size))
            queue.live_bytes += size
            self.sent_bytes += size
        self._sender.send_bytes(b"".join(frames))
        self._unconfirmed += 1
        self.confirm(BATCHES_UNCONFIRMED_MAX)
        self.look()

    def confirm(self, unconfirmed_max: int) -> None:
        """Wait until fewer than this many batches are unconfirmed."""
        while self._unconfirmed >= unconfirmed_max:
            self._unconfirmed -= len(self._sender.read(PATIENCE_S))

    def look(self, force: bool = False) -> None:
        """Sample the store's journal, if it is time to."""
        now_s = time.monotonic()
        if not force and self.samples and now_s - self.samples[-1].at_s < SAMPLE_EVERY_S:
            return
        found = list(machine.files(self._journal))
        segments = [status for path, status in found if path.suffix == ".seg"]
        others = sum(status.st_blocks * 512 for path, status in found if path.suffix != ".seg")
        live = self.queues.values()
        self.samples.append(
            DiskSample(
                now_s,
                sum(len(queue.live) for queue in live),
                sum(queue.live_bytes for queue in live),
                sum(status.st_blocks * 512 for status in segments),
                sum(status.st_size for status in segments),
                others,
            )
        )
        if now_s - self._reported_s > REPORT_EVERY_S:
            self._reported_s = now_s
            rate = self.sent_bytes / (now_s - self._start_s)
            self._progress(f"{self.sent_bytes / 1e9:.2f} GB sent, {rate / 1e6:.0f} MB/s")

    def close(self) -> None:
        """Wait until everything is confirmed; what lives stays in the store."""
        self.confirm(1)
        for queue in self.queues.values():
            queue.close()
        self._sender.close()


# -- patterns of traffic: (pump, bytes to send, live bytes, segment bytes) ---------------------------------------------


def mixed(pump: Pump, sent_bytes: float, live_bytes: float, _segment_bytes: int) -> None:
    """Half of the live data is in a queue, a tenth waits for long, the rest for ever (a half of that from the
    start on, the other half comes by and by).
    """
    choose = random.Random(SEED)
    queues = pump.queues
    late_sent = 0
    while pump.sent_bytes < sent_bytes:
        batch: list[tuple[str, int]] = []
        size = 0
        old_due = live_bytes * 0.2 * (1 + pump.sent_bytes / sent_bytes) - queues[OLD].live_bytes
        while size < BATCH_BYTES:
            message = choose.choice(SIZES_BYTES)
            if old_due > 0:
                batch.append((OLD, message))
                old_due -= message
            elif late_sent < pump.sent_bytes / 50:
                batch.append((LATE, message))
                late_sent += message
            else:
                batch.append((FIFO, message))
            size += message
        pump.send(batch)
        queues[FIFO].take(queues[FIFO].live_bytes - live_bytes * 0.5)
        if queues[LATE].live_bytes > live_bytes * 0.1:
            queues[LATE].take(live_bytes * 0.05)


def _through(pump: Pump, size_bytes: float) -> None:
    """Send so much and consume it as soon as it is stored."""
    end = pump.sent_bytes + size_bytes
    while pump.sent_bytes < end:
        pump.send([(FIFO, 1024)] * 64)
        pump.queues[FIFO].take(pump.queues[FIFO].live_bytes)


def one_in_each_segment(pump: Pump, sent_bytes: float, _live_bytes: float, segment_bytes: int) -> None:
    """One message that nobody consumes, twice in each segment, among traffic that leaves nothing."""
    while pump.sent_bytes < sent_bytes:
        pump.send([(OLD, 1024)])
        _through(pump, segment_bytes / 2)


def chained_acknowledgements(pump: Pump, sent_bytes: float, _live_bytes: float, segment_bytes: int) -> None:
    """One old message in the first segment; then messages that are each acknowledged a segment later, beside the next
    one: each segment holds an acknowledgement for the one before.
    """
    pump.send([(OLD, 1024)])
    while pump.sent_bytes < sent_bytes:
        pump.send([(LATE, 1024)])
        if len(pump.queues[LATE].live) > 1:
            pump.queues[LATE].take(1)
        _through(pump, segment_bytes)


def every_other_lives(pump: Pump, sent_bytes: float, live_bytes: float, _segment_bytes: int) -> None:
    """Every second message stays, so that each segment is half live; then traffic that leaves nothing."""
    while pump.queues[OLD].live_bytes < min(live_bytes, sent_bytes / 4):
        pump.send([(OLD, 1024), (FIFO, 1024)] * 32)
        pump.queues[FIFO].take(pump.queues[FIFO].live_bytes)
    _through(pump, sent_bytes - pump.sent_bytes)


Pattern = Callable[[Pump, float, float, int], None]
PINNING: tuple[Pattern, ...] = (one_in_each_segment, chained_acknowledgements, every_other_lives)


def record_overhead_bytes(store: Path) -> float:
    """What a live message takes in the journal beside its body, by `amq journal stat`."""
    command = [sys.executable, "-m", "amq.cli.main", "journal", "stat", "--store", str(store), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=brokers.ROOT, check=False)
    if done.returncode:
        raise brokers.BrokerProcessError(f"amq journal stat failed, exit code {done.returncode}: {done.stderr[-1000:]}")
    found = json.loads(done.stdout)["destinations"]
    live = sum(destination["live"] for destination in found)
    records = sum(destination["live_record_bytes"] for destination in found)
    bodies = sum(destination["live_bytes"] for destination in found)
    return (records - bodies) / live if live else 0.0


def summarise(name: str, samples: Sequence[DiskSample], overhead_bytes: float, segment_bytes: int) -> dict[str, Any]:
    """The peaks of `samples` against the promise: `over_segments` = most by which it was broken, in segments."""

    def live(sample: DiskSample) -> float:
        return sample.live_bytes + sample.live_messages * overhead_bytes

    def over(sample: DiskSample) -> float:
        return (sample.used_bytes - 2 * live(sample) - segment_bytes) / segment_bytes

    worst = max(samples, key=over)
    step = max(1, len(samples) // HISTORY_MAX)
    return {
        "pattern": name,
        "segment_bytes": segment_bytes,
        "samples": len(samples),
        "record_overhead_bytes": overhead_bytes,
        "live_bytes": live(samples[-1]),
        "live_bytes_max": max(map(live, samples)),
        "used_bytes_max": max(sample.used_bytes for sample in samples),
        "size_bytes_max": max(sample.size_bytes for sample in samples),
        "other_bytes_max": max(sample.other_bytes for sample in samples),
        "worst": worst._asdict() | {"bound_bytes": 2 * live(worst) + segment_bytes},
        "over_segments": over(worst),
        "met": over(worst) <= 0,
        "history": [sample._asdict() for sample in samples[::step]],
    }


def measure(
    pattern: Pattern,
    sent_bytes: float,
    live_bytes: float,
    segment: str,
    directory: str | None,
    options: dict[str, str],
    progress: Progress,
) -> dict[str, Any]:
    """Send `sent_bytes` through a separate store in that pattern.

    Raises BrokerError, LoadError, WireError, OSError.
    """
    name = pattern.__name__.replace("_", " ")
    options = {"journalSegmentSize": segment} | options
    segment_bytes = parse_size_bytes(options["journalSegmentSize"])
    wanted = 3 * live_bytes + 8 * segment_bytes
    machine.require_space(directory, wanted, f"disk, {name}", "hold less with --live-megabytes")
    progress(f"{name}: starting")
    with brokers.BrokerGroup("amq", directory=directory, options=options) as group:
        pump = Pump(group.ports[0], group.store, lambda text: progress(f"{name}: {text}"))
        start_s = time.monotonic()
        pattern(pump, sent_bytes, live_bytes, segment_bytes)
        pump.close()
        seconds = time.monotonic() - start_s
        machine.settle(group.brokers[0])
        pump.look(force=True)
        result = summarise(name, pump.samples, record_overhead_bytes(group.store), segment_bytes)
    return result | {"sent_bytes": pump.sent_bytes, "sent_bytes_per_s": pump.sent_bytes / seconds}


def measure_all(
    scale: Scale, wanted: set[str], directory: str | None, options: dict[str, str], progress: Progress
) -> list[dict[str, Any]]:
    """The mixed traffic ("disk" in `wanted`) and the patterns that pin segments ("pinning")."""
    results = []
    if "disk" in wanted:
        results.append(measure(mixed, scale.sent_bytes, scale.live_bytes, scale.segment, directory, options, progress))
    if "pinning" in wanted:
        sent = scale.pinned_segments * parse_size_bytes(scale.pinned_segment)
        for pattern in PINNING:
            live = scale.live_bytes / 4
            results.append(measure(pattern, sent, live, scale.pinned_segment, directory, options, progress))
    return results


def misses(results: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"disk, {result['pattern']}: {result['over_segments']:.2f} segments more than 2 × live + one segment"
        for result in results
        if not result["met"]
    ]


def table(results: Sequence[dict[str, Any]]) -> Table:
    shown = Table(title="disk space of the segments; over = most beyond 2 × live + one segment, in segments")
    for heading in ("traffic", "GB sent", "MB/s", "live MB (most)", "segments MB (peak)", "segment MB", "over"):
        shown.add_column(heading, justify="right" if heading != "traffic" else "left")
    for result in results:
        colour = "[green]" if result["met"] else "[red]"
        shown.add_row(
            result["pattern"],
            f"{result['sent_bytes'] / 1e9:.1f}",
            f"{result['sent_bytes_per_s'] / 1e6:.0f}",
            f"{result['live_bytes_max'] / 1e6:.1f}",
            f"{result['used_bytes_max'] / 1e6:.0f}",
            f"{result['segment_bytes'] / 1e6:.1f}",
            f"{colour}{result['over_segments']:+.2f}",
        )
    return shown
