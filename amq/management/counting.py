"""Counting: counters of this process that no other object keeps, and the lag of its event loop.

They come from the port of events, begin with the process and go on over its masterships. A reason beyond `REASONS_MAX`
counts as "other".
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections import Counter
from typing import Final

from amq.broker.events import Connected, DeadLettered, Discarded, Events, Expired, QueueForgotten, RoleChanged
from amq.core.histogram import Histogram
from amq.doors.clock import Clock
from amq.management.listing import Row

REASONS_MAX: Final = 20
REASON_CHARS_MAX: Final = 60
LAG_EVERY_S: Final = 0.1


class Counting:
    """Listens from the beginning; `start` measures the event loop until `close`."""

    def __init__(self, events: Events, clock: Clock) -> None:
        self._clock = clock
        self._began_wall_ms = clock.wall_ms()
        self._counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._forgotten = [0, 0]  # enqueued and dequeued of queues that the present master has forgotten
        self._lag = Histogram()
        self._timer: asyncio.TimerHandle | None = None
        events.listen(DeadLettered, self._dead_lettered)
        events.listen(Expired, self._expired)
        events.listen(Discarded, self._discarded)
        events.listen(Connected, self._connected)
        events.listen(QueueForgotten, self._queue_forgotten)
        events.listen(RoleChanged, self._role_changed)

    def start(self) -> None:
        due_s = self._clock.monotonic() + LAG_EVERY_S
        self._timer = asyncio.get_running_loop().call_later(LAG_EVERY_S, self._tick, due_s)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self, due_s: float) -> None:
        self._lag.add(max(0.0, self._clock.monotonic() - due_s))
        self.start()

    def facts(self) -> Row:
        return {
            "expired": self._counts["expired"],
            "discarded": self._counts["discarded"],
            "connections_opened": self._counts["connections"],
            "masterships": self._counts["masterships"],
            "dead_lettered": dict(self._reasons),
            "loop_lag": self._lag.to_json(),
            "forgotten_enqueued": self._forgotten[0],
            "forgotten_dequeued": self._forgotten[1],
        }

    def process(self) -> Row:
        """Figures of the kernel on this process. `open_files` is missing where they would have to be counted singly:
        Linux before 6.2."""
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        found: Row = {
            "cpu_s": time.process_time(),
            "resident_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
            "files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "began_wall_ms": self._began_wall_ms,
        }
        if files := os.stat("/proc/self/fd").st_size:
            found["open_files"] = files
        return found

    def _dead_lettered(self, event: DeadLettered) -> None:
        reason = event.reason[:REASON_CHARS_MAX]
        known = reason in self._reasons or len(self._reasons) < REASONS_MAX
        self._reasons[reason if known else "other"] += 1

    def _expired(self, event: Expired) -> None:
        self._counts["expired"] += event.count

    def _discarded(self, event: Discarded) -> None:
        self._counts["discarded"] += event.count

    def _connected(self, event: Connected) -> None:  # noqa: ARG002
        self._counts["connections"] += 1

    def _queue_forgotten(self, event: QueueForgotten) -> None:
        self._forgotten[0] += event.enqueued
        self._forgotten[1] += event.dequeued

    def _role_changed(self, event: RoleChanged) -> None:
        if event.role == "master":
            self._counts["masterships"] += 1
            self._forgotten = [0, 0]
