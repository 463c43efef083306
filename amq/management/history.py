"""History: what happened to this broker lately, as an operator wants to see it: roles, group, limits, a full disk.

Invariant: at most `KEPT` changes of roles are kept, and as many of all else, so that a limit that is reached again and
again does not push the roles out. It begins with the process; the epochs in the store say who was master before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from heapq import merge
from typing import Final

from amq.broker.events import (
    Event,
    Events,
    GroupChanged,
    MemoryLimitLeft,
    MemoryLimitReached,
    QueueLimitLeft,
    QueueLimitReached,
    RoleChanged,
    StoreFull,
    StoreHasRoom,
    StoreLimitLeft,
    StoreLimitReached,
)
from amq.core.destination import wire_name
from amq.doors.clock import Clock
from amq.management.listing import Row, Table

KEPT: Final = 100
TEXT_CHARS_MAX: Final = 300
TOLD: Final[dict[type[Event], str]] = {
    GroupChanged: "clients are told where the group is",
    MemoryLimitReached: "memoryLimit is reached: producers wait or are rejected",
    MemoryLimitLeft: "there is memory again",
    QueueLimitReached: "a queue has reached queueLimit",
    QueueLimitLeft: "a queue is below queueLimit again",
    StoreFull: "the disk of the store is full: messages are rejected",
    StoreHasRoom: "the disk of the store has room again",
    StoreLimitReached: "storeLimit is reached: producers wait or are rejected",
    StoreLimitLeft: "the store is below storeLimit again",
}


class History:
    """Listens from the beginning. `epoch()` = that of the mastership, None = this broker is not the master."""

    def __init__(self, events: Events, clock: Clock, epoch: Callable[[], int | None]) -> None:
        self._clock = clock
        self._epoch = epoch
        self._roles: deque[Row] = deque(maxlen=KEPT)
        self._others: deque[Row] = deque(maxlen=KEPT)
        events.listen(RoleChanged, self._role_changed)
        for kind in TOLD:
            events.listen(kind, self._happened)

    def rows(self) -> list[Row]:
        """{"at_ms", "what", "about"}, the latest first."""
        return list(merge(reversed(self._roles), reversed(self._others), key=lambda row: row["at_ms"], reverse=True))

    def _role_changed(self, event: RoleChanged) -> None:
        epoch = self._epoch()
        about = f"epoch {epoch}" if epoch is not None else ""
        self._roles.append({"at_ms": self._clock.wall_ms(), "what": f"role: {event.role}", "about": about})

    def _happened(self, event: Event) -> None:
        facts = [
            f"{name.replace('_', ' ')} {_told(name, value)}"
            for name, value in asdict(event).items()
            if value not in ("", ())
        ]
        self._others.append(
            {"at_ms": self._clock.wall_ms(), "what": TOLD[type(event)], "about": ", ".join(facts)[:TEXT_CHARS_MAX]}
        )


def _told(name: str, value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return wire_name(str(value)) if name == "queue" else str(value)


def table() -> Table[Row]:
    return Table(lambda row: str(row["what"]), {"at_ms": lambda row: int(row["at_ms"])}, lambda row: dict(row))
