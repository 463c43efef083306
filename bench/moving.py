"""How long producers wait while their queue moves to another store of a cluster, and how quickly its messages go.

Three nodes on this host, two stores, and a queue in which messages of 1 KiB wait. A producer sends one message after
the other to it, through a gateway, and another one to a queue that does not move. Then the queue moves
(`amq cluster move`). The figures are messages/s from the command to its end, the longest wait of each producer for a
receipt meanwhile and before, and the most memory that a process of the nodes had.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from amq.core.errors import AmqError
from bench import cli, host, takeover
from bench.brokers import BrokerProcessError
from bench.load import Load, LoadError, run
from bench.store_takeover import AFTERWARDS, CALM_S, PACE_S, ClusterStore, Watch, send_one
from bench.wire import WireError
from tests.processes import naming

STORES: Final = 2
TARGET: Final = "s2"
MOVE_S: Final = 3600.0
EXAMPLES = ("--quick", "--messages 1000000", "--repeat 5 --json moving.json")


def one(group: ClusterStore, to: str, messages: int) -> dict[str, float]:
    """One move. Raises BrokerProcessError."""
    context = multiprocessing.get_context("fork")
    watches = [Watch(context, group.port, queue, True) for queue in (takeover.QUEUE, f"/queue/{group.others[0]}")]
    processes = [context.Process(target=watch.tell, args=(partial(send_one, watch),), daemon=True) for watch in watches]
    try:
        for process in processes:
            process.start()
        _until_all(watches, 1)
        time.sleep(CALM_S)
        began_s = time.monotonic()
        _move(group.cluster.directory, to)
        ended_s = time.monotonic()
        _until_all(watches, AFTERWARDS)
        for watch in watches:
            watch.stop.set()
        found = [watch.ours.recv() for watch in watches]
    finally:
        for process in processes:
            process.kill()
            process.join()
    if wrong := [told for told in found if isinstance(told, str)]:
        raise BrokerProcessError("; ".join(wrong))
    blocked, others = (max(after - before for before, after in waits if after > began_s) for waits in found)
    calm = max(after - before for before, after in found[0] if after < began_s)
    return {
        "move_s": ended_s - began_s,
        "messages_per_s": messages / (ended_s - began_s),
        "blocked_s": blocked,
        "others_s": others,
        "before_s": calm,
        "memory_mib": _memory_mib(group.cluster.directory),
    }


def _until_all(watches: list[Watch], count: int) -> None:
    """Until each producer has got this number of receipts more. Raises BrokerProcessError."""
    before = [watch.done.value for watch in watches]
    deadline = time.monotonic() + MOVE_S
    while any(watch.done.value < done + count for watch, done in zip(watches, before, strict=True)):
        if ended := [watch.ours.recv() for watch in watches if watch.ours.poll()]:  # `MOVING`: it waited for too long
            raise BrokerProcessError("; ".join(map(str, ended)))
        if time.monotonic() > deadline:
            raise BrokerProcessError(f"no receipts for {MOVE_S:g} s")
        time.sleep(PACE_S)


def _move(directory: str, to: str) -> None:
    """Raises BrokerProcessError."""
    words = ["move", takeover.QUEUE.removeprefix("/queue/"), to, "--cluster", directory, "--wait", f"{MOVE_S:g}"]
    command = [sys.executable, "-P", "-m", "amq", "cluster", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise BrokerProcessError(done.stderr[-400:])


def _memory_mib(directory: str) -> float:
    """The most that a member had since its start."""
    peaks = []
    for pid, words in naming(directory):
        if "--member" in words:
            status = Path(f"/proc/{pid}/status").read_text()
            peaks.append(next(int(line.split()[1]) for line in status.split("\n") if line.startswith("VmHWM")))
    return max(peaks) / 1024


def measure(messages: int, repeat: int, directory: str | None, progress: Callable[[str], None]) -> dict[str, Any]:
    """The figures of `repeat` moves, there and back."""
    with tempfile.TemporaryDirectory(prefix="bench-moving-", dir=directory) as place:
        progress("starting the nodes")
        with ClusterStore(place, STORES) as group:
            progress(f"sending {messages} messages")
            run(Load(group.port, producers=4, messages=messages, window=1000, mode="send", destination=takeover.QUEUE))
            moves = []
            for number in range(repeat):
                progress(f"move {number + 1} of {repeat}")
                group.wait_whole()
                moves.append(one(group, TARGET if number % 2 == 0 else "s1", messages))
    return {"messages": messages, "moves": moves}


def table(result: dict[str, Any]) -> Table:
    shown = Table(title=f"a queue of {result['messages']:,} messages of 1 KiB moves to another store")
    keys = ("move_s", "messages_per_s", "blocked_s", "others_s", "before_s", "memory_mib")
    for heading in ("seconds", "messages/s", "longest wait, s", "of another queue", "before the move", "MiB"):
        shown.add_column(heading, justify="right")
    for move in result["moves"]:
        shown.add_row(*(f"{move[key]:,.2f}" for key in keys))
    return shown


def main() -> None:
    parser = cli.parser("moving", __doc__, EXAMPLES, peers=False)
    parser.add_argument("--messages", type=int, default=100_000, help="in the queue, of 1 KiB (default %(default)s)")
    parser.add_argument("--repeat", type=int, default=2, help="moves, there and back (default %(default)s)")
    args = parser.parse_args()
    cli.terminate_on_signal()
    messages, repeat = (2000, 1) if args.quick else (args.messages, args.repeat)
    try:
        result = measure(messages, repeat, args.dir, cli.progress)
    except (LoadError, WireError, OSError, BrokerProcessError, AmqError) as error:
        sys.exit(f"failed: {error}")
    load = [float(word) for word in Path("/proc/loadavg").read_text().split()[:3]]
    cli.show(args, {"host": host.describe(args.dir), "load": load, "moving": result}, table(result))


if __name__ == "__main__":
    main()
