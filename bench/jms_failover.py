"""A JMS client with a failover URL (bench/java/JmsFailover.java), watched while its master goes.

Times are seconds of `time.monotonic`: Java's `nanoTime` reads the same clock on Linux, which `ready` verifies.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from bench import jvm
from bench.brokers import BrokerProcessError

CLOCKS_APART_S = 5.0


class JmsProbe:
    """A JVM with a consumer of `queue` and a producer, both connected by failover to `ports`. `query` = options of the
    failover URL, "" for the client's defaults."""

    def __init__(self, ports: Sequence[int], queue: str, other_queue: str, query: str = "") -> None:
        hosts = ",".join(f"tcp://127.0.0.1:{port}" for port in ports)
        self._process = jvm.start("JmsFailover", f"failover:({hosts}){'?' if query else ''}{query}", queue, other_queue)

    def ready(self) -> None:
        """Wait until the present master served both."""
        word, _, nanoseconds = self._line().partition(" ")
        if word != "ready":
            raise BrokerProcessError(f"the JMS client was not served: {word} {nanoseconds}")
        apart_s = abs(time.monotonic() - int(nanoseconds) / 1e9)
        if apart_s > CLOCKS_APART_S:
            raise BrokerProcessError(
                f"the clock of Java differs from that of Python by {apart_s:.1f} s: no time can be taken"
            )

    def times_s(self) -> dict[str, float]:
        """When the first master was lost ("lost"), the next one connected ("connected"), and gave a message ("message")
        and the answer to a send ("receipt")."""
        report = json.loads(self._line())
        if "error" in report:
            raise BrokerProcessError(f"the JMS client: {report['error']}")
        return {name.removesuffix("_ns"): value / 1e9 for name, value in report.items()}

    def close(self) -> None:
        jvm.end(self._process)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BrokerProcessError(f"the JMS client is gone, exit code {self._process.wait()}")
        return line.strip()
