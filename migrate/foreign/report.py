"""Report: what became of each element, attribute and URL option of another broker's configuration."""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass
from typing import Any

from amq_migrate.foreign.document import Element

TOLD_CHARS_MAX = 500


class Status(enum.Enum):
    """The fate of a part of the file."""

    CARRIED = "carried"  # our configuration says the same
    NATURAL = "natural"  # amq does so without being told
    CLUSTER = "cluster"  # a cluster does so: it is made by commands, and no option of one broker
    UNSUPPORTED = "unsupported"  # it changes behaviour, and amq does not do it
    IGNORED = "ignored"  # it has no meaning here


@dataclass(frozen=True, slots=True)
class ReportLine:
    """One part of the file.

    path     its element, `element@attribute`, or `element@uri?option`; "" = a default, which stands nowhere
    near     the end of the path, for people
    line     where its element begins; 0 = a default
    told     what became of it, and what to do
    options  our options that it sets, `key = value`
    within   it only follows the line about the element around it
    """

    path: str
    near: str
    line: int
    status: Status
    told: str = ""
    options: tuple[str, ...] = ()
    within: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "line": self.line,
            "status": self.status.value,
            "options": list(self.options),
            "told": self.told,
        }


class Report:
    """The lines of one file, in its order; the other broker's defaults come last."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lines: list[ReportLine] = []

    def add(
        self,
        element: Element | None,
        suffix: str,
        status: Status,
        told: str = "",
        options: tuple[str, ...] = (),
        *,
        within: bool = False,
    ) -> None:
        """Add a line, fit for a log: what the file holds may be long, or no text. `element` None = a default."""
        told = told if told.isprintable() else ascii(told)[1:-1]
        told = told if len(told) <= TOLD_CHARS_MAX else f"{told[:TOLD_CHARS_MAX]}…"
        path, near, line = (element.path, element.near, element.line) if element is not None else ("", "default", 0)
        self.lines.append(ReportLine(f"{path}{suffix}", f"{near}{suffix}", line, status, told, options, within))

    def sort(self) -> None:
        """The order of the file, defaults at the end."""
        self.lines.sort(key=lambda line: line.line or sys.maxsize)

    def counts(self) -> dict[str, int]:
        """How many lines each status has."""
        return {status.value: sum(line.status is status for line in self.lines) for status in Status}

    def told(self) -> list[ReportLine]:
        """The lines that people want to read, those that need work first: no mere containers, nothing that only follows
        the element around it."""
        found = [line for line in self.lines if not line.within and (line.told or line.options)]
        return sorted(found, key=lambda line: line.status is not Status.UNSUPPORTED)

    def unsupported(self) -> list[ReportLine]:
        """What changes behaviour."""
        return [line for line in self.told() if line.status is Status.UNSUPPORTED]

    def of_cluster(self) -> list[ReportLine]:
        """The parts that only a cluster does."""
        return [line for line in self.told() if line.status is Status.CLUSTER]

    def text(self, line: ReportLine) -> str:
        """One line for people: `activemq.xml:12: unsupported: beans/broker@useMirroredQueues: …`."""
        where = f"{self.path}:{line.line}" if line.line else self.path
        told = "; ".join(filter(None, ("; ".join(line.options), line.told)))
        return f"{where}: {line.status.value}: {line.near}: {told}"

    def summary(self) -> str:
        """`12 carried over, 4 so by nature, 3 not supported, 7 without meaning here`."""
        counts = {status: sum(line.status is status for line in self.told()) for status in Status}
        cluster = f"{counts[Status.CLUSTER]} done by a cluster, " if counts[Status.CLUSTER] else ""
        return (
            f"{counts[Status.CARRIED]} carried over, {counts[Status.NATURAL]} so by nature, {cluster}"
            f"{counts[Status.UNSUPPORTED]} not supported, {counts[Status.IGNORED]} without meaning here"
        )
