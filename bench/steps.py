"""Steps of the interpreter that a message takes: how many bytecodes, and how many Python calls, in all of a broker's
threads.

A step is not a time, but it does not depend on the machine either, nor on what else runs there: two versions of the
broker differ in a tenth of a step where nothing has changed. So this finds the commit that made a message dearer.
The broker runs under a tracer and is some hundred times slower; each figure is the lowest of some repetitions.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from rich.table import Table

from amq.cli.demo_brokers import free_port
from bench import brokers, cli
from bench.wire import WireConnection, WireError, encode

EXAMPLES = ("--quick", "--peer ../other", "--peer ../other --json steps.json")
BODY = b"x" * 1024
BURST, LONE = 256, 32  # messages of a repetition, in one write or one after the other
REPETITIONS, QUICK_REPETITIONS = 6, 2
TIMEOUT_S = 120.0
ANSWER_BYTES_MAX = 100
# In the broker's process: whoever connects to the socket is told what its threads have done so far. The thread that
# answers is not counted. Nothing of `bench` is imported: the checkout of a peer may not have it.
TRACER = """
import runpy, socket, sys, threading
counts, door = [0, 0], socket.create_server(("127.0.0.1", int(sys.argv.pop(1))))
def step(frame, event, arg):
    if event == "opcode":
        counts[0] += 1
    return step
def call(frame, event, arg):
    counts[1] += 1
    frame.f_trace_opcodes, frame.f_trace_lines = True, False
    return step
def answer():
    while True:
        with door.accept()[0] as asked:
            asked.sendall(b"%d %d" % tuple(counts))
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

    def counts(self) -> Steps:
        """Since the start."""
        with socket.create_connection(("127.0.0.1", self._door), TIMEOUT_S) as asked:
            answer = b""
            while found := asked.recv(ANSWER_BYTES_MAX):
                answer += found
        return Steps(*map(float, answer.split()))


def _cheapest(broker: TracedBroker, repetitions: int, messages: int, work: Callable[[], None]) -> Steps:
    work()  # once, to learn what comes
    found = []
    for _ in range(repetitions):
        before = broker.counts()
        work()
        after = broker.counts()
        found.append(Steps(*((end - begin) / messages for begin, end in zip(before, after, strict=True))))
    return min(found)


def measure(broker: TracedBroker, repetitions: int) -> dict[str, Steps]:
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
        f"send, deliver and acknowledge, window {BURST}": (BURST, lambda: pass_on(BURST, BURST)),
        "send, deliver and acknowledge, window 1": (LONE, lambda: pass_on(1, LONE)),
    }
    found = {name: _cheapest(broker, repetitions, *row) for name, row in rows.items()}
    producer.close()
    consumer.close()
    return found


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
    args = cli.parser("steps", __doc__, EXAMPLES).parse_args()
    cli.terminate_on_signal()
    found: dict[str, dict[str, Steps]] = {}
    try:
        for kind in cli.kinds(args):
            cli.progress(f"counting the steps of {kind}")
            with TracedBroker(kind, args.dir, cli.amq_options(args)) as broker:
                found[kind] = measure(broker, QUICK_REPETITIONS if args.quick else REPETITIONS)
    except (brokers.BrokerProcessError, WireError, OSError) as error:
        sys.exit(f"failed: {error}")
    report: dict[str, Any] = {
        kind: {name: steps._asdict() for name, steps in rows.items()} for kind, rows in found.items()
    }
    cli.show(args, {"steps": report}, table(found))


if __name__ == "__main__":
    main()
