"""Does the memory of a broker stay what it is while connections, subscriptions and queues come and go?

One broker, and one program that makes it work in rounds of equal parts: connections that log in and end in several
ways, SUBSCRIBE and UNSUBSCRIBE, queues that are used once and emptied, and large frames that break off in the middle.
Resident memory is read after every round, when all of it has ended. The first tenth of the rounds fills what a broker
keeps and bounds; after that nothing may grow.

Exit code: 0 = resident memory at the end is at most `--growth` × that after the first tenth, 1 = it is more,
2 = it could not be measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from bench import brokers, cli
from bench.wire import WireConnection, WireError, encode

ROUNDS = 50
TENTH = 10
GROWTH_MAX = 1.3
TOGETHER = 100  # connections that are open at a time
PIPELINED = 200  # commands before a receipt is waited for
PATIENCE_S = 120.0
SETTLE_S = 1.2  # the broker looks for queues that it may forget every second
SOURCES = 16  # loopback addresses that connections come from: one has 28,000 ports, each of which rests for a minute
MIB = 1 << 20
PROGRESS_S = 5.0
EXAMPLES = ("--quick", "--json churn.json --png churn.png", "--connections 1000000 --broken 0")


@dataclasses.dataclass(frozen=True)
class Amounts:
    """What is done in all rounds together. `broken_bytes` of each frame that breaks off are sent."""

    connections: int = 100_000
    subscriptions: int = 300_000
    queues: int = 60_000
    broken: int = 100
    broken_bytes: int = 99 * MIB

    def part(self, number: int, rounds: int) -> Amounts:
        """The share of round `number`, counted from 0."""
        wholes = (self.connections, self.subscriptions, self.queues, self.broken)
        shares = [whole * (number + 1) // rounds - whole * number // rounds for whole in wholes]
        return Amounts(*shares, self.broken_bytes)


class Sample(NamedTuple):
    """Resident memory at the end of a round."""

    seconds: float
    done: float  # share of all rounds
    rss_bytes: int


class Churn:
    """All rounds against one broker."""

    def __init__(
        self, broker: brokers.BrokerProcess, amounts: Amounts, rounds: int = ROUNDS, growth: float = GROWTH_MAX
    ):
        self.broker = broker
        self.amounts = amounts
        self.rounds = rounds
        self.growth_max = growth
        self.samples: list[Sample] = []
        self._start_s = time.monotonic()
        self._connected = self._subscribed = self._used = 0
        self._printed_s = 0.0

    def run(self) -> None:
        """Everything. Raises OSError, WireError, BrokerError."""
        self._start_s = time.monotonic()
        self._sample(0)
        for number in range(self.rounds):
            part = self.amounts.part(number, self.rounds)
            self._connect(part.connections)
            self._subscribe(part.subscriptions)
            self._use_queues(part.queues)
            for _ in range(part.broken):
                self._break_off(part.broken_bytes)
            self._sample(number + 1)
            self._tell(number + 1)

    @property
    def base_bytes(self) -> int:
        """After the first tenth."""
        return next(sample.rss_bytes for sample in self.samples if sample.done * TENTH >= 1)

    @property
    def growth(self) -> float:
        return self.samples[-1].rss_bytes / self.base_bytes

    @property
    def passed(self) -> bool:
        return self.growth <= self.growth_max

    def report(self) -> dict[str, Any]:
        return {
            "amounts": dataclasses.asdict(self.amounts),
            "rounds": self.rounds,
            "seconds": round(self.samples[-1].seconds, 1),
            "start_bytes": self.samples[0].rss_bytes,
            "base_bytes": self.base_bytes,
            "most_bytes": max(sample.rss_bytes for sample in self.samples),
            "end_bytes": self.samples[-1].rss_bytes,
            "growth": round(self.growth, 3),
            "growth_max": self.growth_max,
            "passed": self.passed,
            "samples": [sample._asdict() for sample in self.samples],
        }

    # -- a round ------------------------------------------------------------------------------------------------------

    def _connect(self, count: int) -> None:
        """Connections that log in, subscribe, send, and end: by DISCONNECT, by closing, by a reset."""
        for start in range(0, count, TOGETHER):
            opened = []
            for _ in range(min(TOGETHER, count - start)):
                self._connected += 1
                sock = self._socket()
                sock.sendall(
                    encode("CONNECT", {"accept-version": "1.2", "host": "/", "client-id": f"c{self._connected}"})
                    + encode("SUBSCRIBE", {"id": 1, "destination": "/queue/churn", "ack": "client"})
                    + encode("SUBSCRIBE", {"id": 2, "destination": "/topic/churn"})
                    + encode("SEND", {"destination": "/topic/churn", "receipt": "r"}, b"x" * 100)
                )
                opened.append(sock)
            for number, sock in enumerate(opened):
                _until(sock, b"receipt-id:r\n")
                if number % 3 == 0:
                    sock.sendall(encode("DISCONNECT", {"receipt": "bye"}))
                    _until(sock, b"receipt-id:bye\n")
                elif number % 3 == 1:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.close()

    def _subscribe(self, count: int) -> None:
        """SUBSCRIBE and UNSUBSCRIBE on one connection, of all kinds."""
        kinds: list[dict[str, object]] = [
            {"destination": "/queue/churn.sub"},
            {"destination": "/topic/churn.sub", "selector": "price > 10"},
            {"destination": "/queue/churn.sub", "ack": "client", "selector": "type = 't'"},
            {"destination": "/queue/churn.>", "ack": "client-individual"},
            {"destination": "/topic/churn.>"},
            {"destination": "/queue/churn.sub", "browser": "true"},
        ]
        with WireConnection(self.broker.port, timeout_s=PATIENCE_S) as connection:
            for start in range(0, count, PIPELINED):
                frames = []
                for number in range(start, min(start + PIPELINED, count)):
                    self._subscribed += 1
                    frames.append(encode("SUBSCRIBE", {"id": number, **kinds[number % len(kinds)]}))
                    frames.append(encode("UNSUBSCRIBE", {"id": number}))
                self._say(connection, frames)

    def _use_queues(self, count: int) -> None:
        """Queues that get one message and lose it; every other message is stored on disk."""
        with WireConnection(self.broker.port, timeout_s=PATIENCE_S) as connection:
            for start in range(0, count, PIPELINED):
                numbers = range(start, min(start + PIPELINED, count))
                frames = []
                for number in numbers:
                    self._used += 1
                    name = {"destination": f"/queue/churn-{self._used}"}
                    frames.append(encode("SUBSCRIBE", {"id": number, **name}))
                    frames.append(encode("SEND", {**name, "persistent": ("true", "false")[number % 2]}))
                connection.send_bytes(b"".join(frames))
                left = len(numbers)
                while left:
                    left -= connection.next_frame(PATIENCE_S).command == "MESSAGE"
                self._say(connection, [encode("UNSUBSCRIBE", {"id": number}) for number in numbers])

    def _break_off(self, size: int) -> None:
        """A frame of one MiB more than is sent of it."""
        with self._socket() as sock, suppress(ConnectionError):
            sock.sendall(encode("CONNECT", {"accept-version": "1.2", "host": "/"}))
            head = {"destination": "/queue/churn", "content-length": size + MIB}
            sock.sendall(encode("SEND", head)[:-1])
            chunk = bytes(MIB)
            for sent in range(0, size, MIB):
                sock.sendall(chunk[: size - sent])

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _socket(self) -> socket.socket:
        source = (f"127.0.0.{2 + self._connected % SOURCES}", 0)
        return socket.create_connection(("127.0.0.1", self.broker.port), PATIENCE_S, source)

    def _say(self, connection: WireConnection, frames: list[bytes]) -> None:
        """And wait until the broker has carried it out."""
        last = encode("SEND", {"destination": "/topic/churn.done", "receipt": "done"})
        connection.send_bytes(b"".join(frames) + last)
        connection.receipt("done", PATIENCE_S)

    def _sample(self, number: int) -> None:
        """When the broker has noticed that all has ended, and has cleaned up."""
        time.sleep(SETTLE_S)
        self.broker.check()
        WireConnection(self.broker.port, timeout_s=PATIENCE_S).close()
        seconds = time.monotonic() - self._start_s
        self.samples.append(Sample(round(seconds, 1), number / self.rounds, self.broker.memory_bytes()))

    def _tell(self, number: int) -> None:
        now_s = time.monotonic()
        if now_s - self._printed_s >= PROGRESS_S or number == self.rounds:
            self._printed_s = now_s
            cli.progress(
                f"{self.samples[-1].seconds:5.0f} s  round {number} of {self.rounds}: {self._connected:,} connections, "
                f"{self._subscribed:,} subscriptions, {self._used:,} queues; {self.samples[-1].rss_bytes / 1e6:.0f} MB"
            )


def _until(sock: socket.socket, what: bytes) -> None:
    """Read until that has come."""
    said = b""
    while what not in said:
        data = sock.recv(1 << 16)
        if not data:
            raise WireError(f"the broker closed the connection: {said[-300:]!r}")
        said += data


def draw(report: dict[str, Any], path: Path) -> None:
    """The curve of the samples, as a small picture. Needs the extra `bench`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    samples = report["samples"]
    axes.plot([100 * each["done"] for each in samples], [each["rss_bytes"] / 1e6 for each in samples], marker=".")
    limit = report["growth_max"] * report["base_bytes"] / 1e6
    axes.axhline(limit, linestyle="--", color="tab:red", label=f"{report['growth_max']:g} × after the first tenth")
    axes.set_xlabel("% done")
    axes.set_ylabel("resident memory, MB")
    axes.set_ylim(bottom=0)
    amounts = report["amounts"]
    axes.set_title(
        f"{amounts['connections']:,} connections, {amounts['subscriptions']:,} subscriptions, {amounts['queues']:,} "
        f"queues,\n{amounts['broken']:,} broken frames of {amounts['broken_bytes'] / MIB:.0f} MiB",
        fontsize=9,
    )
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=80)


def table(report: dict[str, Any]) -> Table:
    shown = Table("resident memory", "MB")
    for name in ("start", "base", "most", "end"):
        shown.add_row({"base": "after the first tenth"}.get(name, name), f"{report[name + '_bytes'] / 1e6:.1f}")
    verdict = "passed" if report["passed"] else "FAILED"
    shown.add_row(f"end / first tenth ({verdict}: ≤ {report['growth_max']:g})", f"{report['growth']:.2f}")
    return shown


def _arguments() -> argparse.Namespace:
    parser = cli.parser("churn", __doc__, EXAMPLES, peers=False)
    for field in dataclasses.fields(Amounts):
        name = field.name.replace("_", "-")
        parser.add_argument(f"--{name}", type=int, metavar="N", default=field.default, help="default %(default)s")
    parser.add_argument("--growth", type=float, default=GROWTH_MAX, help="most that memory may grow (%(default)s ×)")
    parser.add_argument("--png", metavar="FILE", help="draw the curve of resident memory")
    return parser.parse_args()


def main() -> None:
    args = _arguments()
    cli.terminate_on_signal()
    amounts = Amounts(args.connections, args.subscriptions, args.queues, args.broken, args.broken_bytes)
    rounds = ROUNDS
    if args.quick:
        amounts, rounds = Amounts(1000, 3000, 600, 10, 9 * MIB), 10
    group = brokers.BrokerGroup("amq", 1, directory=args.dir, options=cli.amq_options(args))
    try:
        with group:
            churn = Churn(group.brokers[0], amounts, rounds, args.growth)
            churn.run()
    except (OSError, WireError, brokers.BrokerProcessError) as error:
        print(f"failed: {error}", file=sys.stderr)
        sys.exit(2)
    report = churn.report()
    if args.png:
        draw(report, Path(args.png))
    cli.show(args, report, table(report))
    sys.exit(0 if churn.passed else 1)


if __name__ == "__main__":
    main()
