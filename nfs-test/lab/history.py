"""What the clients of one run were told, and what the store says at its end. Facts only; `checker` judges them.

All times are seconds on one clock, that of the machine which runs the lab: clients, faults and the reading of the
brokers' logs share it.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

ORIGIN_S = time.monotonic()


def now_s() -> float:
    """Seconds since the lab was started, on the one clock of all events."""
    return time.monotonic() - ORIGIN_S


@dataclass(frozen=True)
class Sent:
    """A send that was confirmed. `began_s`: before its first byte left; `epoch` 0 = not told on that connection."""

    message: str
    host: str
    epoch: int
    began_s: float
    at_s: float
    persistent: bool = True


@dataclass(frozen=True)
class Delivered:
    """A message that an application got."""

    message: str
    host: str
    epoch: int
    at_s: float


@dataclass(frozen=True)
class AckBegun:
    """An acknowledgement that was asked for: from here on the message may be gone."""

    message: str
    at_s: float


@dataclass(frozen=True)
class Acked:
    """An acknowledgement that was confirmed."""

    message: str
    host: str
    at_s: float


@dataclass(frozen=True)
class Served:
    """A broker said, in its log or to a client, that it serves clients as the master of `epoch`."""

    host: str
    epoch: int
    at_s: float


@dataclass(frozen=True)
class Opened:
    """A probe was accepted by a broker."""

    host: str
    epoch: int
    at_s: float


@dataclass(frozen=True)
class Closed:
    """That connection ended, by the broker's doing."""

    host: str
    epoch: int
    at_s: float


Event = Sent | Delivered | AckBegun | Acked | Served | Opened | Closed
T = TypeVar("T", Sent, Delivered, AckBegun, Acked, Served, Opened, Closed)


@dataclass
class StoreFacts:
    """The store at the end.

    epochs          documents of epochs/, oldest first
    journal_check   exit code of `amq journal check`, and what it said
    """

    epochs: list[dict[str, Any]] = field(default_factory=list)
    journal_check: tuple[int, str] = (0, "")


class History:
    """Events in the order in which they were noted. Any thread may note."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.store = StoreFacts()
        self._changed = threading.Condition()

    def note(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def of(self, kind: type[T]) -> list[T]:
        """The events of one kind."""
        with self._changed:
            return [event for event in self.events if isinstance(event, kind)]

    def dump(self, path: str) -> None:
        """One line of JSON an event, for people who look into a failure."""
        with self._changed, open(path, "w") as file:
            for event in self.events:
                file.write(json.dumps({"kind": type(event).__name__, **asdict(event)}) + "\n")
