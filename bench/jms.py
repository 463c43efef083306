"""Messages per second of JMS clients, row by row, ours beside a peer's in the same run.

The clients are threads of one Java program (bench/java/JmsLoad.java) on the unmodified ActiveMQ client of Debian: the
same JVM serves all brokers, and stays warm. It counts every message, and fails if one is missing or comes twice.
Brokers and the floor take turns as in `bench.throughput`; all sync persistent messages before they answer, as they do
by default.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from typing import Any

from bench import brokers, cli, jvm, throughput
from bench.load import LoadError
from bench.throughput import Bench, Effort, Row, RowRun

WARM_UP_SHARE = 10  # one message in so many, in front of those that are measured
WARM_UP_MAX = 5000
EXAMPLES = (
    "--quick",
    "--peer activemq --repeat 5 --json jms.json",
    "--peer activemq --row 'async 4/4' --seconds 10",
    "--peer artemis=/opt/apache-artemis-2.40.0",
)


@dataclasses.dataclass(frozen=True)
class JmsRow(Row):
    """`window` = messages of a producer that no consumer has yet, 0 = any number; the rest as the generator has it."""

    send: str = "default"
    ack: str = "auto"
    producer_window: int = 0
    queues: int = 1
    batch: int = 100


ROWS = {
    row.name: row
    for row in (
        JmsRow("sync 1/1", 1, 1, 0, target=1.0),
        JmsRow("sync 32/32", 32, 32, 0, target=2.0),
        JmsRow("async 4/4", 4, 4, 1000, target=1.5, send="async"),
        JmsRow("async 4/4 with ProducerAck", 4, 4, 1000, send="async", producer_window=256),
        JmsRow("transactions of 100, 4/4", 4, 4, 1000, target=1.5, send="transacted", ack="transacted"),
        JmsRow("send only, async, 4 producers", 4, 4, 0, target=1.5, send="async", drains=True, drain_target=1.5),
        JmsRow("non-persistent 4/4", 4, 4, 1000, persistent=False, target=1.0),
    )
}
WARM_UP_ROW = "async 4/4"
QUICK_ROWS = ("sync 32/32", "async 4/4", "transactions of 100, 4/4", "non-persistent 4/4")
QUICK = Effort(1, 1.5, 8.0)


def report_of(line: str) -> dict[str, Any]:
    """What the program reports of a run in `line`. Raises LoadError."""
    report: dict[str, Any] = json.loads(line)
    if "error" in report:
        raise LoadError(str(report["error"]))
    return report


def options_of(
    row: JmsRow, broker: brokers.BrokerProcess, destination: str, messages: int, size_bytes: int = 1024
) -> dict[str, object]:
    """What the program is told to put the load of `row` on `broker`."""
    return {
        "url": f"tcp://127.0.0.1:{broker.openwire_port}",
        "destination": destination,
        "messages": messages,
        "size": size_bytes,
        "producers": row.producers,
        "consumers": row.consumers,
        "queues": row.queues,
        "persistent": str(row.persistent).lower(),
        "send": row.send,
        "ack": row.ack,
        "batch": row.batch,
        "window": row.window,
        "producer-window": row.producer_window,
    }


class Generator:
    """The Java program, which does one run at a time."""

    def __init__(self) -> None:
        self._process = jvm.start("JmsLoad", "--serve")

    def run(self, options: Mapping[str, object]) -> dict[str, Any]:
        """What the program reports of a run with `options`, without their dashes. Raises LoadError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        try:
            self._process.stdin.write(" ".join(words) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError as error:
            raise LoadError(f"the generator is gone, exit code {self._process.wait()}") from error
        if not line:
            raise LoadError(f"the generator is gone, exit code {self._process.wait()}")
        return report_of(line)

    def close(self) -> None:
        jvm.end(self._process)


class JmsBench(Bench):
    """The turns of JMS clients."""

    warm_up_row = ROWS[WARM_UP_ROW]
    openwire = True

    def __init__(
        self, masters: dict[str, brokers.BrokerProcess], seconds: float, size_bytes: int, backlog: int
    ) -> None:
        super().__init__(masters, seconds, size_bytes, backlog)
        self._generator = Generator()

    def turn(self, row: Row, kind: str, seconds: float) -> list[RowRun]:
        assert isinstance(row, JmsRow)
        self._queues += 1
        if not row.drains:
            turn = self._run_java(row, row.name, kind, "both", self.messages(row, kind, seconds))
            self.rates[row.name, kind] = turn.per_s
            return [turn]
        lines = {"send": row.name, "recv": throughput.DRAIN_NAME}
        return [self._run_java(row, name, kind, mode, self.backlog) for mode, name in lines.items()]

    def _run_java(self, row: JmsRow, name: str, kind: str, mode: str, messages: int) -> RowRun:
        warm_up = min(messages // WARM_UP_SHARE, WARM_UP_MAX) if mode == "both" else 0
        options = options_of(row, self.masters[kind], f"bench.jms.{self._queues}", messages, self.size_bytes)
        options |= {"mode": mode, "warmup": warm_up}
        cpu_s = self.masters[kind].cpu_s()
        try:
            report = self._generator.run(options)
        except LoadError as error:
            self.masters[kind].check()
            raise LoadError(f"{kind}, {name}: {error}") from error
        cpu_us = (self.masters[kind].cpu_s() - cpu_s) / (messages + warm_up) * 1e6
        names = ("per_s", "generator_cpu_us", "delivery_us", "confirm_us")
        return RowRun(row=name, kind=kind, broker_cpu_us=round(cpu_us, 1), **{field: report[field] for field in names})

    def close(self) -> None:
        self._generator.close()


def main() -> None:
    parser = cli.parser("jms", __doc__, EXAMPLES)
    throughput.add_arguments(parser, ROWS)
    throughput.add_floor(parser)
    args = parser.parse_args()
    cli.terminate_on_signal()
    kinds = cli.kinds(args) + [throughput.FLOOR] * args.floor
    rows = [ROWS[name] for name in args.row or (QUICK_ROWS if args.quick else ROWS)]
    if args.peer not in (None, "activemq"):
        target = throughput.VERSIONS_TARGET if args.peer not in brokers.KINDS else None
        rows = [dataclasses.replace(row, target=target, drain_target=target) for row in rows]
    scale = QUICK if args.quick else Effort(args.repeat, args.seconds, args.warm_up, args.backlog)
    try:
        report = throughput.measure(
            kinds, rows, scale, args.size, args.dir, cli.amq_options(args), cli.progress, JmsBench
        )
    except (LoadError, brokers.BrokerProcessError, jvm.JavaError) as error:
        sys.exit(f"failed: {error}")
    cli.show(args, report, throughput.table(report["rows"], kinds), f"host: {report['host']}")
    if not all(line.get("met", True) for line in report["rows"]):
        sys.exit("a target was missed")


if __name__ == "__main__":
    main()
