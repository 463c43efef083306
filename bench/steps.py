"""Steps of the interpreter that a message takes: how many bytecodes, and how many Python calls, in all of a broker's
threads.

A step is not a time, but it does not depend on the machine either, nor on what else runs there: two versions of the
broker differ in a tenth of a step where nothing has changed. So this finds the commit that made a message dearer.
The broker runs under a tracer and is some hundred times slower; each figure is the lowest of some repetitions.

`--features` tells what each feature costs a message that does not use it: the bytecodes of the lines that name it (see
FEATURES; a line that names two counts for both), and those of a whole message while SWITCHED_ON is. For that each line
has the lowest count of all repetitions: so timers that go off meanwhile do not count, and nor does a turn that is cut.
"""

from __future__ import annotations

import json
import linecache
import re
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.table import Table

from amq.cli.demo_brokers import free_port
from bench import brokers, cli
from bench.wire import WireConnection, WireError, encode

EXAMPLES = ("--quick", "--features", "--peer ../other", "--peer ../other --json steps.json")
BODY = b"x" * 1024
BURST, LONE = 256, 32  # messages of a repetition, in one write or one after the other
REPETITIONS, QUICK_REPETITIONS = 6, 2
PASSED_ON = (f"send, deliver and acknowledge, window {BURST}", "send, deliver and acknowledge, window 1")
TIMEOUT_S = 120.0
# What lines of the broker, as "path: text", a feature is named by.
FEATURES = {
    "expiry": r"expires_ms|expir(y|ing|ed)\b",
    "priorities": r"priority\b|PRIORITY",
    "duplicate ids": r"duplicate",
    "message groups": r"GROUP_ID|\bgroups?\.|\.chooses",
    "properties, selectors": r"properties|selecti(on|ng)",
    "topics, retained messages": r"\.shared\b|retention|recovery",
    "transactions": r"transaction|two_phase|prepared",
    "redelivery, schedules": r"redeliver|schedule|scheduling|timers",
    "diverts, rings, quotas": r"divert|fires|drops_above|limit_bytes|throttle|at_limit",
    "memory and paging": r"taken_bytes|resident_bytes|backlogs|pager",
    "large bodies": r"envelope|BODY_BYTES_MAX|Large|is_large|_slices|in_slices|is_full|behind_bytes",
    "permissions": r"permi|may_|rights|\ballow",
    "browsers, console": r"browser|viewing",
    "statistics": r"histogram\.py|counting\.py|rates\.py|traffic|syncs\.add|acknowledged \+=",
    "wildcards": r"wildcard",
    "clusters, moves": r"homes|_effect\b|moving|gateway|_not_given",
    "rare work of a turn": r"_rare\b",
}
# Options that switch features on which the messages that are counted do not use.
SWITCHED_ON = {
    "storeLimit": "1TiB",
    "queueLimit": "1GiB",
    "maxQueuesPerUser": "1000",
    "maxConnectionsPerUser": "1000",
    "subscriptionRecoveryCount": "100",
    "directReads": "*",
    "auditLog": "all",
}
ANSWER_BYTES_MAX = 1 << 20
# In the broker's process: whoever connects to the socket is told what its threads have done so far. The thread that
# answers is not counted. Nothing of `bench` is imported: the checkout of a peer may not have it.
TRACER = """
import json, runpy, socket, sys, threading
lines, calls, door = {}, [0], socket.create_server(("127.0.0.1", int(sys.argv.pop(1))))
def step(frame, event, arg):
    if event == "opcode":
        at = frame.f_code.co_filename, frame.f_lineno
        lines[at] = lines.get(at, 0) + 1
    return step
def call(frame, event, arg):
    calls[0] += 1
    frame.f_trace_opcodes, frame.f_trace_lines = True, False
    return step
def answer():
    while True:
        with door.accept()[0] as asked:
            found = [[file, line or 0, count] for (file, line), count in list(lines.items())]
            asked.sendall(json.dumps([calls[0], found]).encode())
threading.Thread(target=answer, daemon=True).start()
threading.settrace(call)
sys.settrace(call)
sys.argv.pop(0)
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


class Steps(NamedTuple):
    """Of one message."""

    bytecodes: float
    calls: float


class LineCounts(NamedTuple):
    """Calls, and bytecodes by file and line; of a broker since its start, or of one message."""

    calls: float
    lines: dict[tuple[str, int], float]

    def since(self, before: LineCounts, messages: int) -> LineCounts:
        """Of each of `messages`, between `before` and now."""
        known = before.lines
        lines = {at: (count - known.get(at, 0)) / messages for at, count in self.lines.items()}
        return LineCounts((self.calls - before.calls) / messages, lines)

    @property
    def steps(self) -> Steps:
        return Steps(sum(self.lines.values()), self.calls)


class TracedBroker:
    """A broker of `kind` under the tracer, alone on its store. Use it in `with`."""

    def __init__(self, kind: str, directory: str | None, options: dict[str, str]) -> None:
        self._group = brokers.BrokerGroup(kind, directory=directory, options=options)
        self._broker, self._door = self._group.brokers[0], free_port()
        if not isinstance(self._broker, brokers.AmqBroker):
            raise brokers.BrokerProcessError(f"{kind} has no steps of Python: name another checkout of amq")
        python, _, *rest = self._broker.command()
        traced = [python, "-c", TRACER, str(self._door), *rest]
        self._broker.command = lambda: traced  # type: ignore[method-assign]

    def __enter__(self) -> TracedBroker:
        self._group.__enter__()
        self.port = self._broker.port
        return self

    def __exit__(self, *_: object) -> None:
        self._group.close()

    def counts(self) -> LineCounts:
        """Since the start."""
        with socket.create_connection(("127.0.0.1", self._door), TIMEOUT_S) as asked:
            answer = b""
            while found := asked.recv(ANSWER_BYTES_MAX):
                answer += found
        calls, lines = json.loads(answer)
        return LineCounts(calls, {(file, line): count for file, line, count in lines})


class CheapestSteps(NamedTuple):
    """Of a message: the steps of the cheapest repetition, and the bytecodes of each line in that which had the fewest
    of them."""

    steps: Steps
    lines: dict[tuple[str, int], float]


def _cheapest(broker: TracedBroker, repetitions: int, messages: int, work: Callable[[], None]) -> CheapestSteps:
    work()  # once, to learn what comes
    found = []
    for _ in range(repetitions):
        before = broker.counts()
        work()
        found.append(broker.counts().since(before, messages))
    lines = {at: min(counts.lines.get(at, 0.0) for counts in found) for at in found[-1].lines}
    return CheapestSteps(min(counts.steps for counts in found), lines)


def measure(broker: TracedBroker, repetitions: int) -> dict[str, CheapestSteps]:
    """By row. Raises WireError, OSError."""
    producer, consumer = (WireConnection(broker.port, timeout_s=TIMEOUT_S) for _ in range(2))
    consumer.send("SUBSCRIBE", {"id": "0", "destination": "/queue/read", "ack": "client-individual", "receipt": "s"})
    consumer.receipt("s", TIMEOUT_S)

    def send(queue: str, burst: int, count: int) -> None:
        head = {"destination": f"/queue/{queue}", "persistent": "true", "content-length": len(BODY)}
        frames = [encode("SEND", {**head, "receipt": str(number)}, BODY) for number in range(count)]
        for start in range(0, count, burst):
            producer.send_bytes(b"".join(frames[start : start + burst]))
            producer.receipt(str(min(start + burst, count) - 1), TIMEOUT_S)

    def pass_on(burst: int, count: int) -> None:
        for _ in range(0, count, burst):
            send("read", burst, burst)
            ids = [consumer.next_frame(TIMEOUT_S).headers["ack"] for _ in range(burst)]
            asking = [{"id": id, **({"receipt": "a"} if id == ids[-1] else {})} for id in ids]
            consumer.send_bytes(b"".join(encode("ACK", headers) for headers in asking))
            consumer.receipt("a", TIMEOUT_S)

    rows: dict[str, tuple[int, Callable[[], None]]] = {
        f"send, window {BURST}": (BURST, lambda: send("burst", BURST, BURST)),
        "send, window 1": (LONE, lambda: send("lone", 1, LONE)),
        PASSED_ON[0]: (BURST, lambda: pass_on(BURST, BURST)),
        PASSED_ON[1]: (LONE, lambda: pass_on(1, LONE)),
    }
    found = {name: _cheapest(broker, repetitions, *row) for name, row in rows.items()}
    producer.close()
    consumer.close()
    return found


def costs(found: dict[str, CheapestSteps]) -> dict[str, list[float]]:
    """By feature: the bytecodes a message of the lines that name it, in a window of many and of one; those of all."""
    costs = {"any": [sum(found[row].lines.values()) for row in PASSED_ON]}
    for feature, pattern in FEATURES.items():
        named = re.compile(pattern)
        costs[feature] = [
            sum(count for at, count in found[row].lines.items() if count and named.search(_text(*at)))
            for row in PASSED_ON
        ]
    return costs


def _text(file: str, line: int) -> str:
    return f"{file}: {linecache.getline(file, line).strip()}" if line else ""


def features_table(off: dict[str, list[float]], on: Sequence[float]) -> Table:
    shown = Table(title="bytecodes of a message that is sent, delivered and acknowledged, and does not use the feature")
    for heading in ("lines that name", f"window {BURST}", "window 1"):
        shown.add_column(heading, justify="right" if heading.startswith("window") else "left")
    for name, counts in off.items():
        shown.add_row(name, *(f"{count:,.1f}" for count in counts))
    more = (f"{count - plain:+,.1f}" for count, plain in zip(on, off["any"], strict=True))
    shown.add_row(f"any, with {', '.join(SWITCHED_ON)}", *more)
    return shown


def table(found: dict[str, dict[str, Steps]]) -> Table:
    shown = Table(title="steps of the broker a message, all threads")
    shown.add_column("row")
    for kind in found:
        shown.add_column(f"bytecodes, {kind}", justify="right")
        shown.add_column("calls", justify="right")
    for name in next(iter(found.values())):
        cells = [f"{figure:,.1f}" for rows in found.values() for figure in rows[name]]
        shown.add_row(name, *cells)
    return shown


def main() -> None:
    parser = cli.parser("steps", __doc__, EXAMPLES)
    parser.add_argument("--features", action="store_true", help="what each feature costs that is not used")
    args = parser.parse_args()
    cli.terminate_on_signal()
    kinds, options = cli.kinds(args), cli.amq_options(args)
    repetitions = QUICK_REPETITIONS if args.quick else REPETITIONS
    found: dict[str, dict[str, CheapestSteps]] = {}
    on: list[float] = []
    try:
        for kind in kinds:
            cli.progress(f"counting the steps of {kind}")
            with TracedBroker(kind, args.dir, options) as broker:
                found[kind] = measure(broker, repetitions)
        if args.features:
            cli.progress(f"counting the steps of {kinds[0]} with features switched on")
            with TracedBroker(kinds[0], args.dir, options | SWITCHED_ON) as broker:
                on = costs(measure(broker, repetitions))["any"]
    except (brokers.BrokerProcessError, WireError, OSError) as error:
        sys.exit(f"failed: {error}")
    steps = {kind: {name: counts.steps for name, counts in rows.items()} for kind, rows in found.items()}
    report: dict[str, Any] = {
        "steps": {kind: {name: each._asdict() for name, each in rows.items()} for kind, rows in steps.items()}
    }
    shown = [table(steps)]
    if args.features:
        off = costs(found[kinds[0]])
        report |= {"off": off, "on": on}
        shown.append(features_table(off, on))
    cli.show(args, report, *shown)


if __name__ == "__main__":
    main()
