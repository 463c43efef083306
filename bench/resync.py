"""A new, empty member of a replicated store gets what it lacks, while clients send and receive: how long that takes,
and how long a producer waits at most.

Two members hold `--gib` of messages that nobody receives. Producers send one message after the other to another queue,
from which a consumer takes them. After some calm seconds a third member starts with an empty directory. The master
fills its copy from the old segments, then from the stream, and takes it into the group; no step stops the traffic. The
report has the longest wait for a receipt and the rate in both phases, and the memory of the master and the new member.
All copies are on one disk and share the processors of this host: three hosts have three of each.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from rich.table import Table

from bench import brokers, cli, host
from bench.load import Load, LoadError, run
from bench.replication import REPLICA, CopyGroup, ReplicaBroker
from bench.wire import WireConnection, WireError

BODY_BYTES = 64 << 10
GIB = 1 << 30
PRODUCERS = 4
CALM_S = 10.0
AFTER_S = 2.0  # traffic goes on for so long when the copy counts
LOOK_S = 0.1
GIVE_UP_S = 3600.0
TARGET_S = 1.0  # the longest wait of a producer
ROOM = 1.2  # of the disk, for each byte that is to be on it
CALM, FILLING, OVER = range(3)
EXAMPLES = ("--quick", "--gib 1", "--gib 10 --dir /mnt/disk --json resync.json")


class Customers:
    """Producers that send one message after the other, and a consumer; each is a process. `phase` = what they count."""

    def __init__(self, port: int) -> None:
        context = multiprocessing.get_context("fork")
        self.phase = context.RawValue("i", CALM)
        self._sent = [context.RawArray("q", 2) for _ in range(PRODUCERS)]
        self._longest = [context.RawArray("d", 2) for _ in range(PRODUCERS)]
        self._errors = context.SimpleQueue()
        self._workers = [context.Process(target=self._consume, args=(port,), daemon=True)]
        self._workers += [
            context.Process(target=self._produce, args=(port, each), daemon=True) for each in range(PRODUCERS)
        ]

    def __enter__(self) -> Customers:
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.phase.value = OVER
        for worker in self._workers:
            worker.join(5.0)
            worker.kill()
            worker.join()

    def check(self) -> None:
        """Raises LoadError where a client has failed."""
        if not self._errors.empty():
            raise LoadError(self._errors.get())

    def sent(self, phase: int) -> int:
        return sum(each[phase] for each in self._sent)

    def longest_s(self, phase: int) -> float:
        return max(each[phase] for each in self._longest)

    def _produce(self, port: int, number: int) -> None:
        sent, longest = self._sent[number], self._longest[number]
        try:
            with WireConnection(port, timeout_s=GIVE_UP_S) as connection:
                while (phase := self.phase.value) != OVER:
                    began_s = time.monotonic()
                    headers = {"destination": "/queue/traffic", "persistent": "true", "receipt": "1"}
                    connection.send("SEND", headers, b"x" * 1024)
                    connection.receipt("1", GIVE_UP_S)
                    longest[phase] = max(longest[phase], time.monotonic() - began_s)
                    sent[phase] += 1
        except (OSError, WireError) as error:
            self._errors.put(f"a producer failed: {error}")

    def _consume(self, port: int) -> None:
        try:
            with WireConnection(port, timeout_s=GIVE_UP_S) as connection:
                connection.send("SUBSCRIBE", {"id": "0", "destination": "/queue/traffic", "ack": "auto"})
                while self.phase.value != OVER:
                    try:
                        connection.next_frame(0.2)
                    except TimeoutError:
                        continue
        except (OSError, WireError) as error:
            self._errors.put(f"the consumer failed: {error}")


def measure(
    total_bytes: int, calm_s: float, directory: str | None, options: dict[str, str], progress: Callable[[str], None]
) -> dict[str, Any]:
    """Raises LoadError, BrokerProcessError."""
    room, needed = shutil.disk_usage(directory or tempfile.gettempdir()).free, int(3 * ROOM * total_bytes)
    if room < needed:
        raise LoadError(f"three copies need {needed / GIB:.1f} GiB of disk, there are {room / GIB:.1f}: use --dir")
    group = CopyGroup(REPLICA, directory, options)
    *running, new = group.brokers
    master = running[0]
    try:
        for broker in running:
            broker.start()
            group.wait_master() if broker is master else broker.wait_slave()
        messages = max(total_bytes // BODY_BYTES, 4)
        progress(f"sending {messages} messages of 64 KiB")
        load = Load(master.port, producers=4, messages=messages, window=16, mode="send", size_bytes=BODY_BYTES)
        filled = run(dataclasses.replace(load, destination="/queue/backlog"))
        with Customers(master.port) as traffic:
            progress(f"traffic alone for {calm_s:g} s")
            memory = {"before": master.memory_bytes(), "master": 0, "new": 0}
            time.sleep(calm_s)
            traffic.check()
            progress("the new member is filled")
            traffic.phase.value, began_s = FILLING, time.monotonic()
            new.start()
            assert isinstance(new, ReplicaBroker)
            while not new.counts():
                new.check()
                traffic.check()
                for name, broker in (("master", master), ("new", new)):
                    memory[name] = max(memory[name], broker.memory_bytes())
                if time.monotonic() - began_s > GIVE_UP_S:
                    raise LoadError(f"the new copy does not count after {GIVE_UP_S:g} s:\n{new.log_text()[-2000:]}")
                time.sleep(LOOK_S)
            filling_s = time.monotonic() - began_s
            time.sleep(AFTER_S)
            traffic.check()
        phases = {
            name: {"longest_wait_s": traffic.longest_s(phase), "per_s": traffic.sent(phase) / seconds}
            for name, phase, seconds in (("calm", CALM, calm_s), ("filling", FILLING, filling_s + AFTER_S))
        }
    finally:
        group.close()
    return {
        "gib": total_bytes / GIB,
        "filled_mib_per_s": filled.per_s * BODY_BYTES / (1 << 20),
        "resync_s": filling_s,
        "mib_per_s": total_bytes / (1 << 20) / filling_s,
        "memory_bytes": memory,
        "phases": phases,
    }


def table(found: dict[str, Any], load: float) -> Table:
    memory = {name: f"{size / (1 << 20):,.0f} MiB" for name, size in found["memory_bytes"].items()}
    shown = Table(
        title=f"{found['gib']:g} GiB to a new member: {found['resync_s']:.1f} s, {found['mib_per_s']:.0f} MiB/s",
        caption=f"master {memory['before']}, then at most {memory['master']}; new member {memory['new']}; load {load}",
    )
    for heading in ("", "messages/s", "longest wait of a producer, s"):
        shown.add_column(heading, justify="right" if heading else "left")
    for name, phase in found["phases"].items():
        shown.add_row(name, f"{phase['per_s']:,.0f}", f"{phase['longest_wait_s']:.3f}")
    return shown


def _gib(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1000:
        raise argparse.ArgumentTypeError("must be above 0 and at most 1000")
    return value


def main() -> None:
    parser = cli.parser("resync", __doc__, EXAMPLES, peers=False)
    parser.add_argument("--gib", type=_gib, default=1.0, help="GiB that the new member lacks (default %(default)s)")
    args = parser.parse_args()
    cli.terminate_on_signal()
    brokers.KINDS[REPLICA] = type("Member", (ReplicaBroker,), {"members": 3})
    gib, calm_s = (1 / 64, 1.0) if args.quick else (args.gib, CALM_S)
    try:
        found = measure(int(gib * GIB), calm_s, args.dir, cli.amq_options(args), cli.progress)
    except (LoadError, brokers.BrokerProcessError) as error:
        sys.exit(f"failed: {error}")
    about = host.describe(args.dir)
    cli.show(args, {"host": about, "resync": found}, table(found, about["load_average"]))
    if found["phases"]["filling"]["longest_wait_s"] > TARGET_S:
        sys.exit(f"target missed: no producer is to wait longer than {TARGET_S:g} s")


if __name__ == "__main__":
    main()
