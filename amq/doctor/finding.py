"""Findings of an examination and its verdict: the worst finding decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class Level(Enum):
    """Severity of a finding. A NOTE does not change the verdict."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    UNFIT = "unfit"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one test.

    topic  the subject: "lock, two processes", "soft"
    found  the state
    why    the purpose or, if the state is bad, its consequence
    cure   what to do; "" = nothing
    """

    level: Level
    topic: str
    found: str
    why: str = ""
    cure: str = ""

    def __str__(self) -> str:
        sentences = "; ".join(part for part in (self.why, self.cure) if part)
        return f"{self.topic}: {self.found}" + (f" ({sentences})" if sentences else "")

    def to_json(self) -> dict[str, str]:
        return asdict(self) | {"level": self.level.value}

    @classmethod
    def from_json(cls, body: Any) -> Finding:
        """Read what `to_json` wrote. Raises LookupError, ValueError, TypeError."""
        return cls(Level(body["level"]), *(str(body[name]) for name in ("topic", "found", "why", "cure")))


@dataclass(slots=True)
class Examination:
    """The outcome of an examination.

    directory       the examined directory: the path, or its parent if the store does not exist yet
    mount           its mount (file system type, source, options, …)
    measured        figures by name, in seconds and bytes
    recommended     settings: mount options, lockKeepAlivePeriod, options of the client's URL
    unreachable     peers that did not answer, with the reason
    """

    path: str
    directory: str
    mount: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)
    recommended: dict[str, str] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)

    def of(self, level: Level) -> list[Finding]:
        return [finding for finding in self.findings if finding.level is level]

    @property
    def verdict(self) -> str:
        """`fit`, `fit with warnings` or `unfit`."""
        if self.of(Level.UNFIT):
            return "unfit"
        return "fit with warnings" if self.of(Level.WARNING) else "fit"

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "path": self.path,
            "directory": self.directory,
            "mount": self.mount,
            "findings": [finding.to_json() for finding in self.findings],
            "measured": self.measured,
            "recommended": self.recommended,
            "unreachable": self.unreachable,
        }


def unfit(topic: str, found: str, why: str, cure: str) -> Finding:
    return Finding(Level.UNFIT, topic, found, why, cure)


def worst(findings: Sequence[Finding]) -> Level:
    """The worst level among `findings`, OK if there are none."""
    order = list(Level)
    return max((finding.level for finding in findings), key=order.index, default=Level.OK)
