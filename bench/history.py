"""What clients saw during a soak, in the order in which each of them saw it, on disk while it happens.

One text file per worker: a first line `# worker role queue`, then one line per event, fields separated by tabs:

    microseconds (monotonic)  event  connection  message  detail

    open    the broker answered CONNECTED     detail = port/epoch, epoch as in its amq-epoch header (0 = none)
    send    a SEND was handed to the socket   (also when it is a repetition)
    sent    its RECEIPT came
    recv    a MESSAGE came                    detail = its message-id header
    ack     an ACK was handed to the socket   (before the bytes leave)
    acked   its RECEIPT came
    bad     a MESSAGE came whose body is not what was sent

Connections are numbered from 1 by their worker; 0 = it does not know which one. Message names are unique in the
history: `producer-serial`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

EVENTS = ("open", "send", "sent", "recv", "ack", "acked", "bad")


class Observation(NamedTuple):
    time_us: int
    kind: str
    connection: int
    message: str
    detail: str


class Log(NamedTuple):
    """One worker's events. `role` is "producer" or "consumer"."""

    worker: str
    role: str
    queue: str
    events: list[Observation]


class HistoryWriter:
    """Writes one worker's file; buffered, whole after `close`."""

    def __init__(self, directory: Path, worker: str, role: str, queue: str) -> None:
        self._file = (directory / f"{worker}.log").open("w", encoding="utf-8")
        self._file.write(f"# {worker} {role} {queue}\n")

    def add(self, kind: str, connection: int, message: str = "", detail: str = "") -> None:
        assert kind in EVENTS, kind
        self._file.write(f"{time.monotonic_ns() // 1000}\t{kind}\t{connection}\t{message}\t{detail}\n")

    def close(self) -> None:
        self._file.close()


def read(directory: Path) -> list[Log]:
    """All logs of a round, by worker."""
    logs = []
    for path in sorted(directory.glob("*.log")):
        with path.open(encoding="utf-8") as file:
            _, worker, role, queue = file.readline().split()
            events = []
            for line in file:
                stamp, kind, connection, message, detail = line.rstrip("\n").split("\t")
                events.append(Observation(int(stamp), kind, int(connection), message, detail))
        logs.append(Log(worker, role, queue, events))
    return logs
