"""One point of the curves: a master and a slave with N waiting messages of 1 KiB each.

Measured at each point, on one store: rate of the filling; memory of both; kill -9 of the master until a consumer has a
message of the next one; both killed and one started again, with the journal in the page cache and not; rate of the
draining. What is repeated stops early once it has taken REPEAT_S: a start that takes a minute is measured once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from bench import brokers
from bench.scale import machine
from bench.scale.backlog import BODY_BYTES, Progress, drain, fill
from bench.stats import Spread, spread
from bench.takeover import QUEUE, connect, first_message, one_takeover
from bench.wire import WireConnection

KEEP_ALIVE_MS = 5000
REPEAT_S = 60.0
START_TIMEOUT_S = 900.0
ALIVE_EVERY_S = 2.0  # is the process that we wait for still there?
TAKEOVER_S_MAX = 1.0
COLD_START_S_MAX = 10.0
MEMORY_BYTES_MAX = 1_200_000_000
# Every kill delivers the first message once more: that is not a reason to send it to the dead-letter queue.
OPTIONS = {"maximumRedeliveries": "-1"}
TAKEOVER, MEMORY, RATES = "takeover", "memory", "rates"


def repeated(measure: Callable[[], float], repeat: int) -> dict[str, float]:
    """Spread of up to `repeat` measurements, in seconds."""
    values: list[float] = []
    start_s = time.monotonic()
    while not values or (len(values) < repeat and time.monotonic() - start_s < REPEAT_S):
        values.append(measure())
    return spread(values)._asdict()


def takeover_s(group: brokers.BrokerGroup) -> float:
    """Kill the master; seconds until a message came from the next one. The killed one comes back as its slave."""
    seconds = one_takeover(group)["first_message_s"]
    for broker in group.brokers:
        if not broker.alive:
            broker.start()
            broker.wait_slave()
            machine.settle(broker)
    return seconds


def cold_start_s(group: brokers.BrokerGroup, drop_cache: bool) -> float:
    """Kill every broker and start one; seconds from the start of its process until a message came from it."""
    for broker in group.brokers:
        if broker.alive:
            broker.kill()
    if drop_cache:
        machine.drop_page_cache(group.store)
    first = group.brokers[0]
    start_s = time.monotonic()
    first.start()
    with _connect(first, start_s + START_TIMEOUT_S) as connection:
        first_message(connection, START_TIMEOUT_S)
    return time.monotonic() - start_s


def _connect(broker: brokers.BrokerProcess, deadline_s: float) -> WireConnection:
    """A connection as soon as the broker answers; BrokerError when it is gone."""
    while True:
        try:
            return connect([broker.port], min(deadline_s, time.monotonic() + ALIVE_EVERY_S))
        except TimeoutError:
            broker.check()
            if time.monotonic() > deadline_s:
                raise


def require_space(messages: int, directory: str | None) -> None:
    """Raise SpaceError where a backlog of this many does not fit."""
    wanted_bytes = messages * BODY_BYTES * machine.RECORD_FACTOR
    machine.require_space(directory, wanted_bytes, f"{messages:,} messages", "ask for fewer with --messages")


def measure(
    messages: int, wanted: set[str], repeat: int, directory: str | None, options: dict[str, str], progress: Progress
) -> dict[str, Any]:
    """What `wanted` (of TAKEOVER, MEMORY, RATES) names, with `messages` waiting.

    Raises BrokerError, LoadError, WireError, OSError.
    """
    require_space(messages, directory)
    name = f"{messages:,} messages"

    def say(text: str) -> None:
        progress(f"{name}: {text}")

    say("starting two brokers")
    with brokers.BrokerGroup(
        "amq", 2, keep_alive_ms=KEEP_ALIVE_MS, directory=directory, options=OPTIONS | options
    ) as group:
        master, slave = group.brokers
        point: dict[str, Any] = {"messages": messages}
        point["empty_memory"] = {"master": machine.memory(master), "slave": machine.memory(slave)}
        point["send_per_s"] = fill(master.port, messages, QUEUE, progress=say)
        say("waiting for the slave")
        point["slave_caught_up_s"] = machine.settle(slave)
        point["store_bytes"] = sum(status.st_blocks * 512 for _, status in machine.files(group.store))
        point["memory"] = {"master": machine.memory(master), "slave": machine.memory(slave)}
        if TAKEOVER in wanted:
            say("killing the master")
            point["takeover_s"] = repeated(lambda: takeover_s(group), repeat)
            point["memory"]["after takeover"] = machine.memory(group.wait_master())
            say("killing both")
            point["warm_start_s"] = repeated(lambda: cold_start_s(group, drop_cache=False), repeat)
            point["cold_start_s"] = repeated(lambda: cold_start_s(group, drop_cache=True), repeat)
            point["memory"]["after cold start"] = machine.memory(group.brokers[0])
        if RATES in wanted:
            point["drain_per_s"] = drain(group.wait_master().port, messages, QUEUE, progress=say)
    return point


def measure_queues(queues: int, directory: str | None, options: dict[str, str], progress: Progress) -> dict[str, Any]:
    """Memory of master and slave with `queues` queues of one message of 1 KiB."""
    name = f"{queues:,} queues"
    machine.require_space(directory, queues * BODY_BYTES * machine.RECORD_FACTOR, name, "ask for fewer with --queues")
    progress(f"{name}: starting two brokers")
    with brokers.BrokerGroup("amq", 2, directory=directory, options=options) as group:
        master, slave = group.brokers
        empty = {"master": machine.memory(master), "slave": machine.memory(slave)}
        rate = fill(master.port, queues, "/queue/scale", queues=True, progress=progress)
        machine.settle(slave)
        return {
            "queues": queues,
            "send_per_s": rate,
            "empty_memory": empty,
            "memory": {"master": machine.memory(master), "slave": machine.memory(slave)},
        }


def misses(points: Sequence[dict[str, Any]]) -> list[str]:
    """What was promised and not kept."""
    missed = []
    for point in points:
        limits = {"takeover_s": TAKEOVER_S_MAX, "cold_start_s": COLD_START_S_MAX}
        for name, limit in limits.items():
            if name in point and point[name]["median"] > limit:
                missed.append(f"{name} {point[name]['median']:.2f} > {limit:g} with {point['messages']:,} messages")
        for who, sizes in point["memory"].items():
            if sizes["rss_bytes"] > MEMORY_BYTES_MAX:
                missed.append(f"memory of {who} {sizes['rss_bytes'] / 1e6:,.0f} MB with {point['messages']:,} messages")
    return missed


def _seconds(point: dict[str, Any], name: str) -> str:
    if name not in point:
        return "–"
    times = Spread(**point[name])
    return f"{times.median:.2f} ({times.low:.2f}–{times.high:.2f})"


def _megabytes(sizes: dict[str, int] | None) -> str:
    return "–" if sizes is None else f"{sizes['rss_bytes'] / 1e6:,.0f} ({sizes['peak_bytes'] / 1e6:,.0f})"


def table(points: Sequence[dict[str, Any]]) -> Table:
    shown = Table(title="master and slave with a backlog of 1 KiB: seconds median (min–max), resident MB (peak)")
    headings = (
        "backlog",
        "takeover",
        "start, cached",
        "start, not cached",
        "master MB",
        "slave MB",
        "new master MB",
        "sends/s",
        "drains/s",
    )
    for heading in headings:
        shown.add_column(heading, justify="right")
    for point in points:
        sizes = point["memory"]
        shown.add_row(
            f"{point['messages']:,}",
            *(_seconds(point, name) for name in ("takeover_s", "warm_start_s", "cold_start_s")),
            *(_megabytes(sizes.get(who)) for who in ("master", "slave", "after takeover")),
            f"{point['send_per_s']:,.0f}",
            f"{point['drain_per_s']:,.0f}" if "drain_per_s" in point else "–",
        )
    return shown


def queues_table(result: dict[str, Any]) -> Table:
    shown = Table(title="queues of one message: resident MB (peak)")
    for heading in ("queues", "master MB", "slave MB", "master B a queue", "sends/s"):
        shown.add_column(heading, justify="right")
    sizes, empty = result["memory"], result["empty_memory"]
    each = (sizes["master"]["rss_bytes"] - empty["master"]["rss_bytes"]) / result["queues"]
    cells = [_megabytes(sizes[who]) for who in ("master", "slave")]
    shown.add_row(f"{result['queues']:,}", *cells, f"{each:,.0f}", f"{result['send_per_s']:,.0f}")
    return shown
